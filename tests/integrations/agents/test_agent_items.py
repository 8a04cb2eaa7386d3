"""An agent whose gates judge items: a call or structured answer goes out whole or waits, a JSON text in kept fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from guardrail import AbstainedError, PromptWrapping, Reason
from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.items.json_fields import json_spec
from guardrail.testing import make_artifact
from integrations.langchain_agents import GuardrailMiddleware
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, calls, sending
from tests.integrations.agents.guarded_agents import APPROVE, CONFIG, deciding, interrupt_of, texts, thread
from tests.integrations.agents.guarded_agents import agent_of as loop_of


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


def call(degrees: int) -> AIMessage:
    return calls(("Weather", {"city": "Rome", "degrees": degrees}))


def text(degrees: int) -> str:
    return Weather(city="Rome", degrees=degrees).model_dump_json()


def agent_of(model: AgentChat, artifact: CalibrationArtifact, form: Any, **more: Any) -> Any:
    return loop_of(model, GuardrailMiddleware(artifact, **more), [], response_format=form)


def by_call(model: AgentChat) -> CalibrationArtifact:
    bindings = bindings_for([Weather], tool_choice="any")
    prompt = PromptWrapping(system=SYSTEM)
    return make_artifact(model, items=json_spec(bindings), threshold=0.2, n=4, prompt=prompt, bindings=bindings)


def test_a_structured_answer_of_an_agent_is_given_whole_or_waits_for_a_person() -> None:
    """LangChain would ask the model again for the fields that are left out."""
    sure, doubtful = [call(20)], [call(20), call(21), call(22), call(20), call(20)]
    model = AgentChat(steps={("warm?", 0): sure, ("cold?", 0): doubtful})
    agent = agent_of(model, by_call(model), ToolStrategy(Weather))
    assert agent.invoke({"messages": "warm?"}, CONFIG)["structured_response"] == Weather(city="Rome", degrees=20)
    made, other = model.made, thread("2")
    result = agent.invoke({"messages": "cold?"}, other)
    assert result.get("structured_response") is None
    assert model.made == made + 5, "the primary answer and four samples, and no further question"
    assert "__interrupt__" in result
    decided = agent.invoke(APPROVE, other)
    assert decided["structured_response"] == Weather(city="Rome", degrees=20)
    assert model.made == made + 5


def test_a_structured_answer_that_is_held_back_is_not_given_in_part() -> None:
    """The application would take the part for the whole."""
    model = AgentChat(steps={("cold?", 0): [call(20), call(21), call(22), call(20), call(20)]})
    agent = agent_of(model, by_call(model), ToolStrategy(Weather), on_abstain="message")
    with pytest.raises(AbstainedError) as caught:  # a text would be read as an answer that the agent must mend
        agent.invoke({"messages": "cold?"}, CONFIG)
    assert caught.value.verdict.reason is Reason.PARTLY_HELD_BACK
    assert model.made == 5


# -- calls and JSON texts -------------------------------------------------------------------------------------------


def by_field(model: AgentChat, threshold: float) -> CalibrationArtifact:
    prompt, bindings = PromptWrapping(system=SYSTEM), bindings_for(TOOLS)
    return make_artifact(model, threshold=threshold, prompt=prompt, n=4, bindings=bindings, items=json_spec(cap=4))


def agent(samples: list[Any], threshold: float = 0.25) -> tuple[Any, AgentChat]:
    model = AgentChat(steps={("pay bob", 0): [sending(5), *samples], ("pay bob", 1): ["Done."]})
    middleware = GuardrailMiddleware(
        tools={"transfer": by_field(model, threshold)}, exempt=["balance", "close"], on_abstain="review"
    )
    return loop_of(model, middleware), model


CORRECTED = {"type": "edit", "edited_action": {"name": "transfer", "args": {"to": "bob", "amount": 7}}}


@pytest.mark.parametrize(("decision", "sent"), [({"type": "approve"}, "sent 5 to bob"), (CORRECTED, "sent 7 to bob")])
def test_a_call_with_an_argument_that_is_held_back_waits_for_a_person(decision: dict[str, Any], sent: str) -> None:
    """A tool would run without an argument that the model gave it."""
    # All agree about whom, half about how much.
    running, model = agent([sending(5), sending(5), sending(6), sending(7)])
    result = running.invoke({"messages": "pay bob"}, CONFIG)
    assert interrupt_of(result)["candidate"]["tool_calls"][0]["args"] == {"to": "bob", "amount": 5}
    assert "sent" not in " ".join(texts(result))
    made = model.made
    assert sent in "\n".join(texts(running.invoke(deciding(decision), CONFIG)))
    assert model.made == made + 1  # the next step; nothing is drawn again for this one


def test_a_call_with_all_arguments_kept_runs() -> None:
    """A person would be asked about a sure call."""
    running, _ = agent([sending(5), sending(5), sending(5), sending(6)])
    assert "sent 5 to bob" in texts(running.invoke({"messages": "pay bob"}, CONFIG))


def test_of_an_answer_in_json_only_the_kept_fields_go_out() -> None:
    """The user would read a field that is not sure."""
    text, other = '{"name": "Bob", "owes": 5}', '{"name": "Bob", "owes": 7}'
    model = AgentChat(steps={("who", 0): [text, other, other, text, other]})
    artifact = make_artifact(
        model,
        prompt=PromptWrapping(system=SYSTEM),
        n=4,
        threshold=0.25,
        bindings=bindings_for(TOOLS),
        items=json_spec(cap=4),
    )
    middleware = GuardrailMiddleware(artifact, exempt=["balance", "close", "transfer"])
    result = loop_of(model, middleware).invoke({"messages": "who"}, CONFIG)
    assert json.loads(texts(result)[-1]) == {"name": "Bob"}
    assert "5" not in json.dumps([message.model_dump(mode="json")["content"] for message in result["messages"]])
