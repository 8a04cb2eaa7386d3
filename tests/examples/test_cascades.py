"""The example cascades run, and a scorer on a stage is bound, asked only there, and fails closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibrate.data.questions import Question
from calibrate.rules.certificate import tail
from examples.cascade import Stage, System, decision_first, fitted, report, system, trust_or_escalate
from guardrail import Cascade, Scorer, scorer
from guardrail.artifact import CascadeArtifact
from guardrail.errors import ArtifactMismatchError
from guardrail.testing import ScriptedChat
from guardrail.types import Unmeasured

pytestmark = pytest.mark.slow

ALPHA = 0.1
QUESTIONS = [Question(id=str(i), question=f"{i}?", references=(str(i),)) for i in range(240)]
SILENT = "239?"
"""The question for which the scorer gives nothing."""


def known(i: int) -> bool:
    """What the small model knows."""
    return i % 2 == 0


SMALL = ScriptedChat(
    script={f"{i}?": [str(i) if known(i) else "no"] for i in range(240)}, probability=0.5, name_of_model="small"
)
LARGE = ScriptedChat(script={f"{i}?": [str(i)] for i in range(240)}, name_of_model="large", probability=0.9)


def sure(asked: list[str]) -> Scorer:
    """Return the scorer of the first stage, which adds each question to ``asked``."""

    @scorer(version=1, higher="certain", name="sure")
    def of_words(question: str, answer: str) -> float | None:
        asked.append(question)
        if question == SILENT:
            return None
        return 0.9 if answer != "no" else 0.2

    return of_words


def stages(asked: list[str]) -> tuple[Stage, Stage]:
    return Stage("small", SMALL, sure(asked)), Stage("large", LARGE, "sequence_nll")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> CascadeArtifact:
    return fitted(stages([]), QUESTIONS[:200], tmp_path_factory.mktemp("cascade"), ALPHA)


def test_the_artifact_has_the_score_of_each_stage_and_draws_no_samples(artifact: CascadeArtifact) -> None:
    """Neither score needs samples, so users would pay for what nothing reads."""
    assert [stage.estimator.name for stage in artifact.stages] == ["score:sure@1", "sequence_nll"]
    assert [stage.plan.n for stage in artifact.stages] == [0, 0]


def test_a_scorer_decides_at_its_stage_alone(artifact: CascadeArtifact) -> None:
    """A scorer that also judged the large model's answers would be asked twice about what it sent on."""
    asked: list[str] = []
    cascade = system(stages(asked), artifact, "message")
    even = cascade.assess("220?")
    assert (even.accepted, even.stage, even.cost.calls) == (True, 1, 2)  # the answer and its score
    odd = cascade.assess("221?")
    assert (odd.accepted, odd.stage, odd.cost.calls) == (True, 2, 3)  # and the large model's answer
    assert odd.stages[0].uncertainty.value == pytest.approx(1 - 0.2)
    assert asked == ["220?", "221?"]


def test_a_stage_whose_scorer_gives_nothing_ends_the_question(artifact: CascadeArtifact) -> None:
    """Stage 2 was not fitted for questions that stage 1 could not rate, so its promise does not cover them."""
    silent = system(stages([]), artifact, "message").assess(SILENT)
    assert (silent.accepted, silent.stage) == (False, 1)
    assert silent.uncertainty.reason is Unmeasured.JUDGE_FAILED


@scorer(version=2, higher="certain", name="sure")
def newer(question: str) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([{}, {}], "calibrated with the scorer score:sure@1"),
        ([{"using": {"scorer": newer}}, {}], "scorer differs: .*score:sure@2"),
        ([{"using": {"scorer": sure([])}}, {"using": {"scorer": sure([])}}], "Leave scorer out"),
    ],
    ids=["none", "another version", "at a stage without one"],
)
def test_the_scorer_of_a_stage_is_bound(
    artifact: CascadeArtifact, settings: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    """Scores of another function are not those that the threshold was fitted on."""
    path = tmp_path / "cascade.json"
    artifact.save(path)
    with pytest.raises(ArtifactMismatchError, match=message):
        Cascade([SMALL, LARGE], artifact=path, on_abstain="message", stage_settings=settings)


@pytest.mark.parametrize(
    ("module", "labelled", "fresh", "paths"),
    [(decision_first, 400, 40, 3), pytest.param(trust_or_escalate, 500, 60, 4, marks=pytest.mark.slow)],
)
def test_the_examples_run(module: object, labelled: int, fresh: int, paths: int) -> None:
    result: System = module.run(labelled, fresh)  # type: ignore[attr-defined]
    assert len(result.answered) == paths
    assert sum(result.answered.values()) == fresh
    *models, person = result.answered
    answers = [result.answered[model] for model in models]
    given = sum(answers)
    # A cascade whose first model answers nothing, or whose person answers most, would show nobody what it is for.
    assert answers[0] > fresh / 10
    assert given > fresh / 2
    # Errors that come up with probability .001 at most at an error rate of alpha would refute the promise.
    assert tail(given - result.wrong, given, 1 - ALPHA) > 0.001
    assert f"{given} answers of models" in report(result, ALPHA, person)[-1]
