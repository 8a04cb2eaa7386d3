"""The example cascades run, and a scorer on a stage is bound, asked only there, and fails closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibrate.data.questions import Question
from examples.cascade import Stage, System, decision_first, fitted, report, system, trust_or_escalate
from guardrail import Cascade, Scorer, scorer
from guardrail.artifact import CascadeArtifact
from guardrail.errors import ArtifactMismatchError
from guardrail.testing import ScriptedChat
from guardrail.types import Unmeasured

pytestmark = pytest.mark.slow

QUESTIONS = [Question(id=str(i), question=f"{i}?", references=(str(i),)) for i in range(240)]
ASKED: list[str] = []


def known(i: int) -> bool:
    """What the small model knows."""
    return i % 2 == 0


SMALL = ScriptedChat(
    script={f"{i}?": [str(i) if known(i) else "no"] for i in range(240)}, probability=0.5, name_of_model="small"
)
LARGE = ScriptedChat(script={f"{i}?": [str(i)] for i in range(240)}, name_of_model="large", probability=0.9)


@scorer(version=1, higher="certain")
def sure(question: str, answer: str) -> float | None:
    ASKED.append(question)
    return None if question == "239?" else 0.9 if answer != "no" else 0.2


STAGES = (Stage("small", SMALL, sure), Stage("large", LARGE, "sequence_nll"))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> CascadeArtifact:
    return fitted(STAGES, QUESTIONS[:200], tmp_path_factory.mktemp("cascade"), 0.1)


def test_a_scorer_decides_at_its_stage_alone(artifact: CascadeArtifact) -> None:
    assert [stage.estimator.name for stage in artifact.stages] == ["score:sure@1", "sequence_nll"]
    assert [stage.plan.n for stage in artifact.stages] == [0, 0]
    cascade = system(STAGES, artifact, "message")
    ASKED.clear()
    verdicts: list[Any] = [cascade.assess("220?"), cascade.assess("221?")]
    even, odd = verdicts
    assert (even.accepted, even.stage, even.cost.calls) == (True, 1, 2)  # the answer and its score
    assert (odd.accepted, odd.stage, odd.cost.calls) == (True, 2, 3)
    assert odd.stages[0].uncertainty.value == pytest.approx(0.8)
    assert ASKED == ["220?", "221?"]


def test_a_stage_whose_scorer_gives_nothing_ends_the_question(artifact: CascadeArtifact) -> None:
    # Without a score stage 1 cannot decide, and stage 2 was not fitted for questions that stage 1 could not rate.
    silent = system(STAGES, artifact, "message").assess("239?")
    assert (silent.accepted, silent.stage) == (False, 1)
    assert silent.uncertainty.reason is Unmeasured.JUDGE_FAILED


def test_the_scorer_of_a_stage_is_bound(artifact: CascadeArtifact, tmp_path: Path) -> None:
    path = tmp_path / "cascade.json"
    artifact.save(path)

    @scorer(version=2, higher="certain", name="sure")
    def newer(question: str) -> float:
        return 1.0

    given: list[Scorer | None] = [None, newer]
    for own in given:
        settings = [{} if own is None else {"using": {"scorer": own}}, {}]
        with pytest.raises(ArtifactMismatchError):
            Cascade([SMALL, LARGE], artifact=path, on_abstain="message", stage_settings=settings)
    with pytest.raises(ArtifactMismatchError, match="Leave scorer out"):
        Cascade([SMALL, LARGE], artifact=path, on_abstain="message", stage_settings=[{"using": {"scorer": sure}}] * 2)


@pytest.mark.parametrize(
    ("module", "labelled", "fresh", "paths"),
    [(decision_first, 400, 40, 3), pytest.param(trust_or_escalate, 500, 60, 4, marks=pytest.mark.slow)],
)
def test_the_examples_run(module: object, labelled: int, fresh: int, paths: int) -> None:
    result: System = module.run(labelled, fresh)  # type: ignore[attr-defined]
    assert len(result.answered) == paths
    assert sum(result.answered.values()) == fresh
    *models, last = result.answered.values()
    assert models[0] > fresh / 10
    assert sum(models) > fresh / 2
    assert result.wrong <= 0.25 * sum(models)  # far above what chance gives at an error rate of 10 %
    assert f"{sum(models)} answers of models" in report(result, 0.1, list(result.answered)[-1])[-1]
    assert last == fresh - sum(models)
