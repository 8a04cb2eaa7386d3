"""A guard whose calibrated answer is the vote of the samples gives out that vote, and every other way in is closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import ValidationError

from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact, CascadeArtifact, CascadeOutcome, StageShare
from guardrail.doctor import examine
from guardrail.errors import UsageError
from guardrail.guard.cascade import Cascade
from guardrail.guard.comparability import unlike_plan
from guardrail.sampling.effects import run
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, SamplingPlan
from integrations.watcher import Watcher

QUESTION = "Capital of France?"
GREEDY = "Rome"
MODEL = ScriptedChat(script={QUESTION: [GREEDY, "Paris", "Paris", "Oslo", "paris"]})
"""The greedy answer is not among the four samples, of which three say Paris."""


def artifact(threshold: float | None = 1.0, model: Any = MODEL) -> CalibrationArtifact:
    made = make_artifact(model, threshold=threshold, n=4)
    return made.model_copy(update={"plan": made.plan.model_copy(update={"primary": "majority"})})


def test_the_vote_is_given_out_and_the_greedy_answer_is_not_even_asked_for() -> None:
    guard = Guardrail(model=MODEL, artifact=artifact())
    reply = guard.invoke(QUESTION)
    assert (reply.content, reply.response_metadata["guardrail"]["cost"]["calls"]) == ("Paris", 4)
    assert guard.assess(QUESTION).candidate == Sample(text="Paris", finish_reason="stop")


def test_a_plan_without_the_vote_gives_out_the_greedy_answer() -> None:
    """The negative control: today's default plan on the same model."""
    assert Guardrail(model=MODEL, artifact=make_artifact(MODEL, threshold=1.0, n=4)).invoke(QUESTION).content == GREEDY


def test_a_person_sees_the_vote_where_nothing_can_be_accepted() -> None:
    verdict = Guardrail(model=MODEL, artifact=artifact(threshold=None)).assess(QUESTION)
    assert (verdict.accepted, verdict.candidate and verdict.candidate.text) == (False, "Paris")


def test_a_set_has_no_answer_before_the_vote() -> None:
    (drawn,) = Sampler(MODEL, artifact().plan).draw([[HumanMessage(QUESTION)]])
    assert (drawn.primary, len(drawn.samples)) == (None, 4)


def test_served_answers_are_no_votes() -> None:
    plan = artifact().plan
    with pytest.raises(UsageError, match="the most frequent of 4 samples"):
        Watcher(Guardrail(model=MODEL, artifact=artifact()))
    with pytest.raises(UsageError, match="cannot measure an answer that was served"):
        run(Guardrail(model=MODEL, artifact=artifact()).served_steps([HumanMessage(QUESTION)], Sample(text="Paris")))
    with pytest.raises(UsageError, match="cannot measure"):
        next(Sampler(MODEL, plan).draw_behind_steps([HumanMessage(QUESTION)], Sample(text="Paris")))
    assert unlike_plan({"temperature": plan.temperature, "top_p": plan.top_p}, plan) == ["primary"]


@pytest.mark.parametrize("changed", [{"n": 0}, {"follow_ups": ("p_true",)}])
def test_what_would_cut_the_vote_short_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="the vote of all n samples"):
        SamplingPlan(**{"n": 4, "primary": "majority", **changed})


def test_doctor_asks_as_the_guard_does(tmp_path: Path) -> None:
    model = ScriptedChat(default=["Rome", "Paris", "Paris", "Oslo", "Paris"])
    path = artifact(model=model).save(tmp_path / "artifact.json")
    findings = {finding.check: finding for finding in examine(str(path), model)}
    assert "of which the most frequent is the answer" in findings["plan for the score"].detail
    assert findings["measuring"].status == "ok"
    assert findings["cost of a question"].detail.startswith("4 calls")


def test_an_agent_gets_the_vote() -> None:
    agents = pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
    from integrations.langchain_agents import GuardrailMiddleware

    made = make_artifact(MODEL, threshold=1.0, n=4)
    voted = made.model_copy(update={"plan": made.plan.model_copy(update={"primary": "majority"})})
    agent = agents.create_agent(MODEL, [], middleware=[GuardrailMiddleware(artifact=voted, on_abstain="message")])
    last = agent.invoke({"messages": [HumanMessage(QUESTION)]})["messages"][-1]
    assert isinstance(last, AIMessage)
    assert last.content == "Paris"


def test_a_cascade_gives_out_the_vote_of_each_stage() -> None:
    unsure = ScriptedChat(name_of_model="small", script={QUESTION: [GREEDY, "Bern", "Riga", "Oslo", "Lima"]})
    stages = (artifact(threshold=0.1, model=unsure), artifact())
    shares = tuple(StageShare(threshold=stage.threshold, n_accepted=1, n_errors=0) for stage in stages)
    system = CascadeOutcome(rule="none", alpha=0.1, delta=None, n=2, stages=shares, interval=None)
    both = CascadeArtifact(stages=stages, outcome=system)
    verdict = Cascade([unsure, MODEL], artifact=both).assess(QUESTION)
    assert (verdict.stage, verdict.candidate and verdict.candidate.text, verdict.cost.calls) == (2, "Paris", 8)
