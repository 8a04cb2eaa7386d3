"""Cascades that run in seconds: a decision model before an LLM and a person, and LLM judges that escalate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from calibrate import collect_records, label_records, make_rule, read_records, score_records
from calibrate.cascade import fit_cascade
from calibrate.data.questions import Question
from calibrate.data.records import RecordFile
from calibrate.rules.certificate import interval
from calibrate.scoring.names import estimator_key
from guardrail import Cascade, Scorer, plan_for
from guardrail.artifact import CascadeArtifact
from guardrail.uncertainty import Estimator, make_estimator

__all__ = ["Stage", "System", "fitted", "report", "system"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A model of a cascade, and the score by which it answers.

    Attributes:
        name: Name in the report.
        model: The model.
        score: A scorer, or the name of an estimator.
    """

    name: str
    model: BaseChatModel
    score: Scorer | str

    @property
    def estimator(self) -> Estimator:
        """The estimator of the score."""
        return make_estimator(self.score) if isinstance(self.score, str) else self.score.estimator

    @property
    def scorer(self) -> Scorer | None:
        """The scorer, if the score is one."""
        return None if isinstance(self.score, str) else self.score


def fitted(stages: Sequence[Stage], questions: Sequence[Question], folder: Path, alpha: float) -> CascadeArtifact:
    """Ask every stage the labelled questions, and certify the system as a whole (delta .1)."""
    files, rule = [], make_rule("exact")
    for number, stage in enumerate(stages):
        path = folder / f"stage{number + 1}.jsonl"
        collect_records(questions, stage.model, plan_for([stage.estimator]), path, scorer=stage.scorer or ())
        file = score_records(read_records(path), [stage.estimator])
        header = file.header.model_copy(update={"correctness": rule.spec})
        files.append(RecordFile(file.path, header, tuple(label_records(file.records, rule))))
    keys = [estimator_key(stage.estimator) for stage in stages]
    return fit_cascade(files, alpha=alpha, scores=keys)


def system(stages: Sequence[Stage], artifact: CascadeArtifact, fallback: Any) -> Cascade:
    """The cascade, with each stage's scorer given to its guard."""
    settings: list[dict[str, Any]] = [
        {"using": {} if stage.scorer is None else {"scorer": stage.scorer}, "remember": 0} for stage in stages
    ]
    models = [stage.model for stage in stages]
    return Cascade(models, artifact=artifact, on_abstain=fallback, stage_settings=settings)


@dataclass(slots=True)
class System:
    """Results of fresh questions: who answered how many, and how many of those answers were wrong."""

    answered: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    calls: int = 0

    def ask(self, cascade: Cascade, stages: Sequence[Stage], right: Mapping[str, str], last: str) -> System:
        """Ask every question; ``last`` is the name of the path where no stage is certain."""
        self.answered = dict.fromkeys([*(stage.name for stage in stages), last], 0)
        for question, reference in right.items():
            message = cascade.invoke(question)
            verdict = message.response_metadata["guardrail"]
            self.answered[stages[verdict["stage"] - 1].name if verdict["accepted"] else last] += 1
            self.wrong += verdict["accepted"] and message.text != reference
            self.calls += verdict["cost"]["calls"]
        return self


def report(result: System, alpha: float, last: str) -> list[str]:
    """The lines that the examples print."""
    n = sum(result.answered.values())
    given = n - result.answered[last]
    low, high = interval(result.wrong, given) if given else (0.0, 1.0)
    lines = [f"{name:<28}{count / n:>6.1%} of {n} questions" for name, count in result.answered.items()]
    wrong = f"{result.wrong / given:.1%}" if given else "none"
    return [
        *lines,
        f"wrong among the {given} answers of models: {wrong} (95 % interval {low:.1%} to {high:.1%}; certified: "
        f"at most {alpha:.0%}); {result.calls / n:.1f} calls a question",
    ]
