"""Several estimators as one: a weighted sum of their standardised scores, with weights fitted beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from ..errors import ArtifactMismatchError, UsageError
from ..plain_json import sha256_hex
from ..specs import EstimatorSpec
from ..types import Frozen, Missing, SampleSet, Uncertainty, Unmeasured
from .base import Estimator, Evidence, Needs

__all__ = [
    "NAME",
    "EnsembleParams",
    "Member",
    "Training",
    "combined",
    "ensemble",
    "expanded",
    "from_ensemble_spec",
    "hash_of",
    "question_hash",
    "union_of_needs",
]

NAME = "ensemble"
"""Name of the estimator in specs. `make_estimator` cannot make one: it must be fitted (`calibrate ensemble`)."""


class Member(Frozen):
    """One estimator of an ensemble. Mean and scale are those of its scores on the training part."""

    spec: EstimatorSpec
    """The estimator, with its judge or similarity."""
    mean: float
    """Mean of its training scores, in its own unit."""
    scale: float = Field(gt=0)
    """Standard deviation of its training scores, in its own unit."""
    weight: float = Field(gt=0)
    """Change of the log-odds of an error when its score rises by one standard deviation."""


class Training(Frozen):
    """The questions that the weights were fitted on, as short hashes: a threshold must be fitted on others."""

    ids: tuple[str, ...]
    """Hashes of the question ids."""
    questions: tuple[str, ...]
    """Hashes of the questions with their options, in normal form."""
    groups: tuple[str, ...] = ()
    """Hashes of the groups of questions that have one. They count if groups are clusters."""

    @classmethod
    def of(cls, source: str | Path | Iterable[str]) -> Training:
        """The questions that a file or texts name; see `guardrail.scorer`.

        Raises:
            UsageError: The file cannot be read, or names no question.
        """
        if isinstance(source, str | Path):
            try:
                lines = Path(source).read_text(encoding="utf-8").splitlines()
                texts = [line.strip() for line in lines if line.strip()]
                rows = [json.loads(text) for text in texts] if Path(source).suffix == ".jsonl" else texts
            except (OSError, ValueError) as error:  # JSON's error is a ValueError
                raise UsageError(f"trained_on: {source} cannot be read ({error}).") from error
        else:
            rows = list(source)
        ids, questions, groups = set[str](), set[str](), set[str]()
        for row in rows:
            # A bare text may be any of the three; a question refused by mistake costs less than one let through.
            fields: dict[str, Any] = row if isinstance(row, dict) else {"id": row, "question": row, "group": row}
            ids |= {hash_of(str(fields["id"]))} if fields.get("id") else set()
            groups |= {hash_of(str(fields["group"]))} if fields.get("group") else set()
            questions |= {question_hash(fields["question"], fields.get("options"))} if fields.get("question") else set()
        if not (ids or questions):
            raise UsageError(f"trained_on names no question, got {source!r:.100}. Leave it out for an untrained score.")
        return cls(ids=tuple(sorted(ids)), questions=tuple(sorted(questions)), groups=tuple(sorted(groups)))


def question_hash(question: str, options: Mapping[str, str] | None) -> str:
    """Hash of text and options, without regard to case and white space."""
    # The NUL keeps labels and texts apart: without it (A, Bc) and (AB, c) would have the same hash.
    listed = "".join(f"\0{label}\0{text}" for label, text in sorted((options or {}).items()))
    return hash_of(" ".join(f"{question}{listed}".casefold().split()))


def hash_of(text: str) -> str:
    """Short hash of an id, a group or a question."""
    return sha256_hex(text, 16)


class EnsembleParams(Frozen):
    """The whole ensemble; stored in `EstimatorSpec.params`, so that an artifact needs no other file."""

    intercept: float
    """Log-odds of an error when every member scores its mean."""
    members: tuple[Member, ...] = Field(min_length=1)
    """The members, with positive weights."""
    training: Training
    """The questions that it was fitted on."""

    @model_validator(mode="after")
    def _flat(self) -> EnsembleParams:
        if any(member.spec.name == NAME for member in self.members):
            raise ValueError("a member is an ensemble itself; name its members instead")
        return self


def ensemble(params: EnsembleParams, members: Sequence[Estimator]) -> Estimator:
    """The estimator ``intercept + sum_i weight_i (u_i - mean_i) / scale_i``: the log-odds of an error.

    Unit: nats (log-odds), in (-inf, inf), if the questions asked are like the training questions; the threshold is
    calibrated on other questions and does not rely on this. It rises with every member's score, because weights are
    positive. If a member is unmeasured the ensemble is unmeasured, and names it: nothing is imputed.

    Args:
        params: Weights.
        members: The estimators of ``params.members``, in that order.
    """

    def formula(evidence: Evidence) -> float | Missing:
        # `_combine` leaves out members without a value; a shorter list must not be paired with the wrong weights.
        if len(evidence.members) != len(params.members):
            return Missing(Unmeasured.NOT_RECORDED, "the members of the ensemble were not measured")
        score = params.intercept
        for member, value in zip(params.members, evidence.members, strict=True):
            score += member.weight * (value - member.mean) / member.scale
        return score

    return Estimator(
        NAME,
        1,
        "nats",
        union_of_needs([member.needs for member in members]),
        formula,
        members=tuple(members),
        params=params.model_dump(mode="json"),
    )


def from_ensemble_spec(spec: EstimatorSpec, remake: Callable[[EstimatorSpec], Estimator]) -> Estimator:
    """The ensemble that a spec describes; ``remake`` makes its members.

    Raises:
        ArtifactMismatchError: The parameters are not those of an ensemble, or a member cannot be remade.
    """
    try:
        params = EnsembleParams.model_validate(spec.params)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ArtifactMismatchError(
            f"the spec of an ensemble has a wrong field {field!r}: {first['msg']}. Fit it again: calibrate ensemble."
        ) from error
    return ensemble(params, [remake(member.spec) for member in params.members])


def expanded(estimators: Sequence[Estimator]) -> list[Estimator]:
    """The estimators that must be measured: ensembles are replaced by their members."""
    return [each for estimator in estimators for each in (estimator.members or (estimator,))]


def combined(drawn: SampleSet, estimators: Sequence[Estimator], scores: Sequence[Uncertainty]) -> list[Uncertainty]:
    """The scores of the estimators from those of `expanded(estimators)`, in order."""
    # One iterator for all: `expanded` put the members of each ensemble in this order.
    rest = iter(scores)
    return [
        _combine(drawn, estimator, [next(rest) for _ in estimator.members]) if estimator.members else next(rest)
        for estimator in estimators
    ]


def _combine(drawn: SampleSet, estimator: Estimator, scores: Sequence[Uncertainty]) -> Uncertainty:
    if estimator.after_first is not None and scores[1].value is None:
        # In two stages a failure after the first call counts as full disagreement (see `two_stage`).
        scores = [scores[0], scores[1].model_copy(update={"value": 1.0, "reason": None, "detail": ""})]
    missing = [score for score in scores if score.reason is not None]
    if missing:  # a reason that depends on the question comes first: a guard never draws it again
        score = next((each for each in missing if each.reason and each.reason.depends_on_question), missing[0])
        return estimator.unmeasured(score.reason or Unmeasured.NOT_FINITE, f"{score.estimator}: {score.detail}")
    score = estimator.score(Evidence(drawn, members=tuple(score.value for score in scores if score.value is not None)))
    return score if estimator.after_first is None else score.model_copy(update={"first": scores[0].value})


def union_of_needs(needs: Sequence[Needs]) -> Needs:
    """Everything that any of them needs. Of follow-ups only the first; `plan_for` reads the members themselves."""
    return Needs(
        samples=any(each.samples for each in needs),
        logprobs=any(each.logprobs for each in needs),
        options=any(each.options for each in needs),
        judge=any(each.judge for each in needs),
        similarity=any(each.similarity for each in needs),
        likeness=any(each.likeness for each in needs),
        entailment=any(each.entailment for each in needs),
        relevance=next((each.relevance for each in needs if each.relevance is not None), None),
        follow_up=next((each.follow_up for each in needs if each.follow_up is not None), None),
    )
