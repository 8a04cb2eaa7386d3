"""An agent whose gates judge items: a call without an argument waits, and of an answer only the kept fields go out."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")

from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.items.json_fields import json_spec
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from integrations.langchain_agents import GuardrailMiddleware
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, sending
from tests.integrations.agents.test_langchain_agents import APPROVE, CONFIG, agent_of, deciding, interrupt_of, texts


def by_field(model: AgentChat, threshold: float) -> CalibrationArtifact:
    prompt, bindings = PromptWrapping(system=SYSTEM), bindings_for(TOOLS)
    return make_artifact(model, threshold=threshold, prompt=prompt, n=4, bindings=bindings, items=json_spec(cap=4))


def agent(samples: list[Any], threshold: float = 0.25) -> tuple[Any, AgentChat]:
    model = AgentChat(steps={("pay bob", 0): [sending(5), *samples], ("pay bob", 1): ["Done."]})
    middleware = GuardrailMiddleware(
        tools={"transfer": by_field(model, threshold)}, exempt=["balance", "close"], on_abstain="review"
    )
    return agent_of(model, middleware), model


def test_a_call_with_an_argument_that_is_held_back_waits_for_a_person() -> None:
    running, model = agent(
        [sending(5), sending(5), sending(6), sending(7)]  # all agree about whom, half about how much
    )
    result = running.invoke({"messages": "pay bob"}, CONFIG)
    shown = interrupt_of(result)
    assert shown["candidate"]["tool_calls"][0]["args"] == {"to": "bob", "amount": 5}
    assert "sent" not in " ".join(texts(result))
    made = model.made
    approved = running.invoke(APPROVE, CONFIG)
    assert "sent 5 to bob" in texts(approved)
    assert model.made == made + 1  # the next step; nothing is drawn again for this one


def test_a_person_corrects_the_argument() -> None:
    running, _ = agent([sending(5), sending(5), sending(6), sending(7)])
    running.invoke({"messages": "pay bob"}, CONFIG)
    edited = {"type": "edit", "edited_action": {"name": "transfer", "args": {"to": "bob", "amount": 7}}}
    assert "sent 7 to bob" in "\n".join(texts(running.invoke(deciding(edited), CONFIG)))


def test_a_call_with_all_arguments_kept_runs() -> None:
    running, _ = agent([sending(5), sending(5), sending(5), sending(6)])
    assert "sent 5 to bob" in texts(running.invoke({"messages": "pay bob"}, CONFIG))


def test_of_an_answer_in_json_only_the_kept_fields_go_out() -> None:
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
    result = agent_of(model, middleware).invoke({"messages": "who"}, CONFIG)
    assert json.loads(texts(result)[-1]) == {"name": "Bob"}
    assert "5" not in json.dumps([message.model_dump(mode="json")["content"] for message in result["messages"]])
