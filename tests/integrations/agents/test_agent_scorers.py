"""Agents whose gates read scores: each gate asks its own scorer, and only about candidates that it judges."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from guardrail import Scorer, scorer
from guardrail.artifact import CalibrationArtifact
from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactMismatchError
from guardrail.prompting import PromptWrapping
from guardrail.testing import ScriptedChat, make_artifact
from integrations._agents.framework_guard import FrameworkGuard
from integrations.langchain_agents import GuardrailMiddleware
from tests.guardrail.guard.test_two_stages import counted_stages, two_stage_artifact
from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, balance, sending

asked: list[tuple[str, str]] = []


@scorer(version=1, higher="uncertain", params={"model": "decides"})
def risk(question: str, tool_calls: Any) -> float:
    asked.append(("risk", str(tool_calls[0].arguments["amount"])))
    return float(tool_calls[0].arguments["amount"] > 100)


@scorer(version=1, higher="certain")
async def grounded(answer: str) -> float:
    asked.append(("grounded", answer))
    return 1.0


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    asked.clear()


def agent_artifact(model: AgentChat, own: Scorer) -> CalibrationArtifact:
    return make_artifact(
        model, estimator=own.estimator, prompt=PromptWrapping(system=SYSTEM), bindings=bindings_for(TOOLS)
    )


def model_sending(amount: int) -> AgentChat:
    return AgentChat(steps={("pay", 0): [sending(amount)], ("pay", 1): ["done"]})


def answer_of(amount: int, **options: Any) -> str:
    model = model_sending(amount)
    guard = GuardrailMiddleware(
        agent_artifact(model, grounded),
        tools={"transfer": agent_artifact(model, risk)},
        exempt=["balance", "close"],
        using={"scorer": [risk, grounded]},
        on_abstain="message",
        **options,
    )
    agent = create_agent(model, TOOLS, system_prompt=SYSTEM, middleware=[guard])
    return str(agent.invoke({"messages": [HumanMessage("pay")]})["messages"][-1].content)


def test_each_gate_asks_its_own_scorer_about_its_candidates() -> None:
    """Each question to a scorer costs a model call."""
    assert answer_of(5) == "done"
    assert asked == [("risk", "5"), ("grounded", "done")]


def test_a_risky_call_does_not_run() -> None:
    """The score of the call must reach its gate."""
    assert "done" not in answer_of(500)
    assert asked == [("risk", "500")]


def test_a_missing_scorer_is_refused_when_the_guard_is_made() -> None:
    """The first customer's question would find it."""
    model = model_sending(5)
    with pytest.raises(ArtifactMismatchError, match="score:risk@1"):
        GuardrailMiddleware(None, tools={"transfer": agent_artifact(model, risk)}, exempt=[balance.name, "close"])


async def test_a_single_scorer_needs_no_list() -> None:
    """A list of one reads like a mistake."""
    model = model_sending(500)
    guard = FrameworkGuard(model, agent_artifact(model, risk), on_abstain="message", using={"scorer": risk})
    answer = await guard.ask(PromptWrapping(system=SYSTEM).messages("pay"), bindings_for(TOOLS))
    assert answer.message.tool_calls == []
    assert asked == [("risk", "500")]


@pytest.mark.parametrize(
    ("threshold", "answers", "calls", "accepted"),
    [
        (0.7, ["a", "a", "b"], 1, True),
        (0.49, ["a", "a", "a"], 1, False),
        (0.6, ["a", "a", "b"], 3, True),
        (0.6, ["a", "b", "b"], 3, False),
    ],
)
def test_an_agents_gate_with_two_stages_draws_samples_only_where_the_first_call_does_not_decide(
    threshold: float, answers: list[str], calls: int, accepted: bool
) -> None:
    """Two stages are there to save the samples."""
    model = ScriptedChat(default=list(answers), probability=math.exp(-1.495))
    artifact = two_stage_artifact(model, threshold)
    guard = GuardrailMiddleware(artifact, on_abstain="message")
    reply = create_agent(model, [], middleware=[guard]).invoke({"messages": [HumanMessage("q")]})["messages"][-1]
    verdict = reply.response_metadata["guardrail"]
    assert (verdict["accepted"], verdict["cost"]["calls"]) == (accepted, calls)
    assert (reply.text == "a") is accepted


def test_calls_are_judged_in_two_stages_beside_answers_whose_score_has_none() -> None:
    """All calls were held back: the answers' score decided how many samples the first stage of the calls has."""
    model = model_sending(5)
    answers = artifact_of(model)
    staged = counted_stages(model, 0.5).estimator
    calls = make_artifact(model, threshold=0.5).outcome
    transfers = answers.model_copy(update={"estimator": staged, "outcome": calls})
    guard = GuardrailMiddleware(
        answers, tools={"transfer": transfers}, exempt=["balance", "close"], on_abstain="message"
    )
    agent = create_agent(model, TOOLS, system_prompt=SYSTEM, middleware=[guard])
    messages = agent.invoke({"messages": [HumanMessage("pay")]})["messages"]
    assert messages[-1].text == "done"
    cost = messages[1].response_metadata["guardrail"]["cost"]
    assert (cost["calls"], cost["saved"]) == (3, 2)


@pytest.mark.parametrize(("threshold", "calls"), [(0.49, 3), (0.7, 1)])
def test_a_person_sees_the_samples_of_what_two_stages_hold_back(threshold: float, calls: int) -> None:
    """A reviewer who sees no samples, or a list of candidates that is not shown, is no help."""
    model = ScriptedChat(default=["a", "b", "b"], probability=math.exp(-1.495))
    guard = GuardrailMiddleware(two_stage_artifact(model, threshold), on_abstain="review")
    agent = create_agent(model, [], middleware=[guard], checkpointer=InMemorySaver())
    result = agent.invoke({"messages": [HumanMessage("q")]}, {"configurable": {"thread_id": "1"}})
    if calls == 1:  # an acceptance needs nobody to look
        assert result["messages"][-1].response_metadata["guardrail"]["cost"]["calls"] == 1
    else:
        (interrupt,) = result["__interrupt__"]
        assert interrupt.value["alternatives"] == [{"text": "b", "share": 1.0}]
