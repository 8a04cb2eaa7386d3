"""Logged samples without a separate answer: the vote is calibrated, so the vote must be given out.

End to end: rows to `from_frame`, to an artifact, to a guard that answers 600 other questions. The negative controls
give out one sample, or the greedy answer, on the same artifact, as guards did when the plan said greedy for every file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from calibrate.dataframe import from_frame
from calibrate.rules.certificate import interval
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.testing import ScriptedChat

pytestmark = pytest.mark.slow

ALPHA, N, LABELS, FRESH = 0.1, 10, 1_000, 600


def questions(seed: int, count: int) -> dict[str, list[str]]:
    """Answers by question: the greedy one, then the samples. Right is "yes".

    A sample is right with a probability of .55 to .95 in most questions and of .1 in 3 %. The greedy answer is right in
    70 %, whatever the samples say.
    """
    rng = np.random.default_rng(seed)
    answers = {}
    for number in range(count):
        right = 0.1 if rng.random() < 0.03 else rng.uniform(0.55, 0.95)
        sampled = ["yes" if rng.random() < right else "no" for _ in range(N)]
        answers[f"question {seed}-{number}"] = ["yes" if rng.random() < 0.7 else "no", *sampled]
    return answers


@pytest.fixture(scope="module")
def artifact() -> CalibrationArtifact:
    """An artifact of the logged samples, whose rows have no column with the answer."""
    model = ScriptedChat(script={})
    rows: list[dict[str, Any]] = [
        {"question": question, "samples": samples, "references": ["yes"]}
        for question, (_, *samples) in questions(1, LABELS).items()
    ]
    records = from_frame(rows, model=model).score("discrete_semantic_entropy").label("exact")
    return records.fit(alpha=ALPHA, rule="certified", score="discrete_semantic_entropy")


def given_out(artifact: CalibrationArtifact, answers: dict[str, list[str]]) -> list[str]:
    """The answers that a guard gives out."""
    guard = Guardrail(model=ScriptedChat(script=answers), artifact=artifact)
    replies = guard.batch(list(answers))
    return [str(reply.content) for reply in replies if reply.response_metadata["guardrail"]["accepted"]]


def error_bounds(answers: Sequence[str]) -> tuple[float, float]:
    """The 99.9 % interval of the error rate: two tests at level .001 raise a false alarm in 1 of 500 runs."""
    return interval(sum(answer != "yes" for answer in answers), len(answers), confidence=0.999)


def test_the_vote_keeps_what_was_calibrated(artifact: CalibrationArtifact) -> None:
    assert artifact.plan.primary == "majority"
    answers = given_out(artifact, questions(2, FRESH))
    assert len(answers) > 300  # a gate that answers nothing would show nothing
    assert error_bounds(answers)[0] <= ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("primary", ["greedy", "sampled"])
def test_any_other_answer_breaks_it(artifact: CalibrationArtifact, primary: str) -> None:
    """The negative control: the check above must fail on the plans that such a file was given before."""
    other = artifact.model_copy(update={"plan": artifact.plan.model_copy(update={"primary": primary})})
    asked = questions(2, FRESH)
    if primary == "sampled":  # the scripted model's first answer is a sample like the others
        asked = {question: [samples[-1], *samples] for question, (_, *samples) in asked.items()}
    answers = given_out(other, asked)
    assert len(answers) > 300
    assert error_bounds(answers)[0] > ALPHA
