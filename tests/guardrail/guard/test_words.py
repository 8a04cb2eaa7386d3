"""Verdicts and reports speak of a score for scorers, and of samples only where there are some."""

from __future__ import annotations

from typing import Any

import pytest

from calibrate.report.facts import facts
from guardrail import Guardrail, scorer
from guardrail.artifact import CalibrationArtifact
from guardrail.describe import summary
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import Estimator, make_estimator, then, ties
from guardrail.verdict import Verdict
from tests.combinations import ranks_of

MODEL = ScriptedChat(default=["Oslo"], probability=0.5)


@scorer(version=1, higher="certain")
def stated(answer: str) -> float:
    return 0.9


@scorer(version=1, higher="uncertain", unit="nats")
def surprise(answer: str) -> float:
    return 3.0


@scorer(version=1, higher="certain")
def silent(answer: str) -> None:
    return None


def staged() -> Estimator:
    return then(make_estimator("sequence_nll"), make_estimator("primary_disagreement"), ranks=ranks_of(range(300)))


def verdict(estimator: Estimator, threshold: float, **settings: Any) -> tuple[Verdict, CalibrationArtifact]:
    artifact = make_artifact(MODEL, threshold=threshold, estimator=estimator)
    return Guardrail(model=MODEL, artifact=artifact, **settings).assess("q?"), artifact


def words(verdict: Verdict, artifact: CalibrationArtifact) -> str:
    shown = " ".join(f"{label} {value}" for label, value in facts(artifact))
    return f"{verdict.explain()} {shown} {' '.join(summary(artifact))}"


@pytest.mark.parametrize(
    ("own", "threshold", "says"),
    [
        (stated, 0.05, "score:stated@1 0.1 > 0.05 (the scorer gave 0.9, and 0.95 is enough)"),
        (stated, 0.2, "score:stated@1 0.1 <= 0.2 (the scorer gave 0.9, and 0.8 is enough)"),
        (surprise, 2.0, "score:surprise@1 3 > 2 nats, the threshold"),
        (silent, 0.2, "the score could not be measured"),
    ],
)
def test_a_scorer_gives_a_score_with_unit_and_direction(own: Any, threshold: float, says: str) -> None:
    judged, artifact = verdict(own.estimator, threshold, using={"scorer": own})
    text = words(judged, artifact)
    assert says in judged.detail
    assert "uncertainty" not in text.lower()
    assert "disagree" not in text
    assert "its own answers" not in text
    assert "no samples, up to" in text  # the plan, and nothing else, names samples
    assert text.count("sample") == 1
    assert "rated by the scorer score:" in text
    assert f"in {own.unit}" in text
    assert ("1 - the scorer's number" in text) == (own.higher == "certain")


def test_a_score_of_one_call_says_nothing_of_samples() -> None:
    judged, artifact = verdict(make_estimator("sequence_nll"), 0.1)
    assert "gave its own answer too little probability" in judged.detail
    text = words(judged, artifact)
    assert "disagree" not in text
    assert text.count("sample") == 1


def test_scores_that_are_made_of_others() -> None:
    judged, _ = verdict(staged(), 0.001)
    assert "too little probability, or its further answers contradict it" in judged.detail
    judged, _ = verdict(ties(stated.estimator, make_estimator("sequence_nll")), 0.05, using={"scorer": stated})
    assert "The score does not speak for the answer clearly enough" in judged.detail
    assert "disagree" not in judged.detail


def test_samples_that_disagree_are_named_where_they_were_drawn() -> None:
    model = ScriptedChat(script={"q?": ["Oslo", "Rome", "Bern", "Oslo", "Kiev"]})
    artifact = make_artifact(model, threshold=0.1, estimator=make_estimator("discrete_semantic_entropy"), n=4)
    judged = Guardrail(model=model, artifact=artifact).assess("q?")
    assert "The model's own answers disagree too much" in judged.detail
