"""What an artifact is bound to: the plan it needs, the questions and turns of its fit, and what differs from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from guardrail.artifact import CalibrationArtifact, Made
from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import SamplingPlan
from guardrail.uncertainty import EstimatorSpec, Needs, list_estimators, make_estimator
from guardrail.uncertainty.combine import COMBINATIONS, Parts, union_of_needs

from .data.record import Record, package_versions
from .data.table import RecordTable, among, table_of

__all__ = ["hashes_of_fit", "made", "narrowed_plan", "refuse_fitted", "turns_of_records", "unlike"]


def narrowed_plan(plan: SamplingPlan, spec: EstimatorSpec) -> SamplingPlan:
    """The plan that run time needs for this one estimator: a collection may have drawn more, for others.

    Nothing that moves the score or the primary answer is dropped: samples, log-probabilities and follow-ups that the
    estimator does not read. With options n and log-probabilities stay, because n decides there what the primary answer
    is. Imported scores keep all: what they were computed from is unknown.
    """
    read = _read_by(spec)
    if read is None:  # imported scores: what they need is unknown, so nothing may be left out
        return plan
    needs, asked = read
    plan = plan.model_copy(update={"follow_ups": tuple(name for name in plan.follow_ups if name in asked)})
    if plan.options is not None:
        return plan
    reads_samples = needs.samples or plan.primary == "majority"
    n = spec.samples or plan.n  # `then` reads the first m samples, whatever else was drawn
    return plan.model_copy(update={"n": n if reads_samples else 0, "logprobs": plan.logprobs and needs.logprobs})


def _read_by(spec: EstimatorSpec) -> tuple[Needs, set[str]] | None:
    """The needs of an estimator and its follow-ups by name; None where they are unknown."""
    if spec.name in COMBINATIONS:
        read = [_read_by(part) for part in Parts.from_stored(spec.params).parts]
        known = [each for each in read if each is not None]
        if len(known) < len(read):
            return None
        return union_of_needs([needs for needs, _ in known]), set[str]().union(*(asked for _, asked in known))
    if spec.name.startswith(SCORE):
        reads = spec.params["reads"]
        return Needs(samples="samples" in reads, logprobs="logprobs" in reads), {spec.name}
    if spec.name == ITEMS:
        return Needs(samples=True), set()
    if spec.name in list_estimators():
        needs = make_estimator(spec.name).needs
        return needs, set() if needs.follow_up is None else {needs.follow_up.name}
    return None


def unlike(sides: Iterable[tuple[str, object, object]]) -> list[str]:
    """The differences of an artifact from records: (name, the artifact's, the records'), models field by field."""
    lines = []
    for name, ours, theirs in sides:
        if isinstance(ours, BaseModel) and type(ours) is type(theirs):
            fields = (
                (f"{name}.{field}", getattr(ours, field), getattr(theirs, field)) for field in type(ours).model_fields
            )
            lines += unlike(fields)
        elif ours != theirs:
            lines.append(f"{name}: artifact {ours!r}, records {theirs!r}")
    return lines


def hashes_of_fit(artifact: CalibrationArtifact) -> NDArray[np.uint64]:
    """Hashes of the questions of the calibration part (`RecordTable.asked_hashes`), sorted."""
    return np.sort(np.array(artifact.data.hashes, dtype=np.uint64))


def refuse_fitted(artifact: CalibrationArtifact, records: Sequence[Record], what: str) -> None:
    """Refuse to test on questions that the threshold was chosen on: it fits them.

    Questions are compared by what was asked, under any id.

    Raises:
        UsageError: Naming how many there are.
    """
    table = table_of(records)
    shared = table.take(among(table.asked_hashes(), hashes_of_fit(artifact)))
    if shared:
        raise UsageError(
            f"{len(shared)} of {len(records)} {what} records are questions that the artifact was fitted on, e.g. "
            f"{shared[0].id!r}. A threshold chosen on them fits them: leave them out, or test on other questions."
        )


def turns_of_records(usable: RecordTable) -> tuple[str, ...] | None:
    """Turns of the prompts that the threshold was fitted on; None if those of some prompt are unknown."""
    names = usable.coded("turns")[1]
    distinct = sorted(turns for turns in names if turns is not None)
    return tuple(distinct) if distinct and len(distinct) == len(names) else None


def made() -> Made:
    """What an artifact states about this fit: the time, in UTC, and the versions of the installed packages."""
    return Made(at=datetime.now(UTC).isoformat(timespec="seconds"), packages=package_versions())
