"""An agent whose structured answer is gated by its fields: whole or not at all, and never asked for again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from guardrail import AbstainedError, Guardrail, Partial, PromptWrapping, Reason
from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.items.json_fields import json_spec
from guardrail.testing import make_artifact
from integrations.langchain_agents import GuardrailMiddleware
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, calls

CONFIG: Any = {"configurable": {"thread_id": "1"}}


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


def call(degrees: int) -> AIMessage:
    return calls(("Weather", {"city": "Rome", "degrees": degrees}))


def text(degrees: int) -> str:
    return Weather(city="Rome", degrees=degrees).model_dump_json()


def agent_of(model: AgentChat, artifact: CalibrationArtifact, form: Any, **more: Any) -> Any:
    middleware = GuardrailMiddleware(artifact, **more)
    return create_agent(
        model,
        tools=[],
        system_prompt=SYSTEM,
        middleware=[middleware],
        response_format=form,
        checkpointer=InMemorySaver(),
    )


def by_call(model: AgentChat) -> CalibrationArtifact:
    bindings = bindings_for([Weather], tool_choice="any")
    prompt = PromptWrapping(system=SYSTEM)
    return make_artifact(model, items=json_spec(bindings), threshold=0.2, n=4, prompt=prompt, bindings=bindings)


def test_a_structured_answer_of_an_agent_is_given_whole_or_waits_for_a_person() -> None:
    sure, doubtful = [call(20)], [call(20), call(21), call(22), call(20), call(20)]
    model = AgentChat(steps={("warm?", 0): sure, ("cold?", 0): doubtful})
    agent = agent_of(model, by_call(model), ToolStrategy(Weather))
    assert agent.invoke({"messages": "warm?"}, CONFIG)["structured_response"] == Weather(city="Rome", degrees=20)
    made, other = model.made, {"configurable": {"thread_id": "2"}}
    result = agent.invoke({"messages": "cold?"}, other)
    assert result.get("structured_response") is None
    assert model.made == made + 5, "the primary answer and four samples, and no further question"
    assert "__interrupt__" in result
    decided = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), other)
    assert decided["structured_response"] == Weather(city="Rome", degrees=20)
    assert model.made == made + 5


def test_a_structured_answer_that_is_held_back_is_not_given_in_part() -> None:
    model = AgentChat(steps={("cold?", 0): [call(20), call(21), call(22), call(20), call(20)]})
    agent = agent_of(model, by_call(model), ToolStrategy(Weather), on_abstain="message")
    with pytest.raises(AbstainedError) as caught:  # a text would be read as an answer that the agent must mend
        agent.invoke({"messages": "cold?"}, CONFIG)
    assert caught.value.verdict.reason is Reason.PARTLY_HELD_BACK
    assert model.made == 5


def test_a_guard_gives_the_kept_fields_of_a_parsed_type() -> None:
    bindings = bindings_for(response_format=Weather)
    model = AgentChat(steps={("warm?", 0): [text(20)], ("cold?", 0): [text(20), text(21), text(22), text(20)]})
    artifact = make_artifact(model, items=json_spec(bindings), threshold=0.2, n=4, bindings=bindings)
    asking = Guardrail(model=model, artifact=artifact).with_structured_output(Weather)
    assert asking.invoke("warm?") == Weather(city="Rome", degrees=20)
    partial = asking.invoke("cold?")
    assert isinstance(partial, Partial)
    assert (partial.kept, partial.held_back) == ({"city": "Rome"}, ("/degrees",))
