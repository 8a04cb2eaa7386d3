"""Records against an artifact: whether they fit it, which it was fitted on, and what its gate does on the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, computed_field

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.spec import ItemFigures, ItemsSpec
from guardrail.outcome import accepts
from guardrail.specs import EstimatorSpec
from guardrail.types import Frozen

from .data.records import Record, RecordFile, RecordHeader
from .data.table import RecordTable, among, table_of
from .narrowing import narrowed_plan
from .pipeline import figures_of
from .rules.certificate import interval
from .scoring.apart import refuse_overlap, without_ranked
from .scoring.items import ScoredItems, with_cap
from .scoring.scores import unmeasured_among

# -- What the gate does on labelled records ----------------------------------------------------------------------------


Share: TypeAlias = tuple[float, float, float]
"""A share with its 95 % Clopper-Pearson interval: (share, lower, upper)."""


class GateCounts(Frozen):
    """Counts of a gate on labelled questions that it was not fitted on.

    Of a gate of items: an answer is accepted iff some item of it is kept, and wrong iff it then keeps a wrong item.
    """

    n: int
    """Labelled questions; at least 1."""
    n_asked: int
    """Questions asked: those labelled, and those that could not be measured and so have no label."""
    n_accepted: int
    """Answers accepted."""
    n_errors: int
    """Wrong answers among the accepted."""
    n_correct: int
    """Right answers among all."""
    items: ItemFigures | None = None
    """Counts of the items; None for a gate of whole answers."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def error_rate(self) -> Share | None:
        """Errors among accepted answers (SCER); None when nothing was accepted."""
        return _share(self.n_errors, self.n_accepted) if self.n_accepted else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def acceptance(self) -> Share:
        """Share of the questions asked that are answered."""
        return _share(self.n_accepted, self.n_asked)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def power(self) -> Share | None:
        """Share of the right answers that were accepted; None when no answer was right, and for a gate of items."""
        is_known = self.n_correct > 0 and self.items is None
        return _share(self.n_accepted - self.n_errors, self.n_correct) if is_known else None


def _share(k: int, n: int) -> Share:
    return (k / n, *interval(k, n))


@dataclass(frozen=True, slots=True)
class Judged:
    """The labelled records as a gate judges them; with items an answer is accepted iff some item of it is kept.

    Attributes:
        accepted: Accepted items of each answer, shape (n,); of a whole answer 1 or 0.
        errors: Wrong ones among them.
        right: Whether the answer is right, or has no wrong item; shape (n,).
        records: Their records.
        n_asked: Questions asked that they stand for, those that could not be measured included.
        figures: Counts of items; None for whole answers.
    """

    accepted: NDArray[np.int64]
    errors: NDArray[np.int64]
    right: NDArray[np.bool_]
    records: RecordTable
    n_asked: int
    figures: ItemFigures | None

    @property
    def counts(self) -> GateCounts:
        """The counts."""
        return GateCounts(
            n=len(self.records),
            n_asked=max(len(self.records), self.n_asked),
            n_accepted=int(np.count_nonzero(self.accepted)),
            n_errors=int(np.count_nonzero(self.errors)),
            n_correct=int(np.count_nonzero(self.right)),
            items=self.figures,
        )


def judged_by(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> Judged:
    """The labelled records as an artifact's gate judges them; undecided answers are wrong.

    Raises:
        UsageError: No record has a label.
    """
    table = table_of(records)
    if artifact.kind == "items":
        scored = ScoredItems.of(table, ItemsSpec.of(artifact.estimator))
        right, figures = scored.items.is_wrong == 0, figures_of(scored, artifact.threshold)
        accepted, errors = scored.items.counts(artifact.threshold)
        return Judged(accepted, errors, right, scored.records, asked_with(table, estimator), figures)
    labelled = table.take(table.counted_labels() >= 0)
    if not labelled:
        raise UsageError("no test record has a label. Run: calibrate label RECORDS")
    right = labelled.counted_labels() == 1
    accepted = accepted_of(artifact, labelled, estimator).astype(np.int64)
    return Judged(accepted, accepted * ~right, right, labelled, asked_with(table, estimator), None)


def held_out(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> GateCounts:
    """Counts of the artifact's gate on labelled records; undecided answers are wrong, others without a label left out.

    Raises:
        UsageError: No record has a label, or the score was chosen, or the threshold fitted, on some of them.
    """
    judged = judged_by(artifact, records, estimator)
    refuse_seen(artifact, judged.records, "test")
    return judged.counts


def asked_with(records: Sequence[Record], estimator: str) -> int:
    """The questions asked that the labelled and measured ones stand for: they, and their part of the unmeasured."""
    table = table_of(records)
    measured = ~np.isnan(table.scores(estimator))
    n_measured, n_labelled = (int(np.count_nonzero(mask)) for mask in (measured, table.usable(estimator)))
    if not n_measured:
        return len(table)
    return n_labelled + unmeasured_among(n_labelled, n_measured - n_labelled, len(table) - n_measured)


def at_calibration(artifact: CalibrationArtifact) -> GateCounts:
    """The same counts on the items it was fitted on. Its threshold was chosen on them, so they flatter it."""
    outcome, scores = artifact.outcome, artifact.calibration
    return GateCounts(
        n=scores.n,
        n_asked=max(scores.n, round(outcome.n / outcome.scope.measured)),
        n_accepted=outcome.n_accepted,
        n_errors=outcome.n_errors,
        n_correct=scores.n - scores.n_wrong,
    )


def accepted_of(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> NDArray[np.bool_]:
    """Which records the artifact's gate accepts. A record without a score is not accepted."""
    table = table_of(records)
    # A record that was not measured has the score NaN, which is not below any threshold.
    scores = table.scores(estimator)
    # No score is at or below -inf, so a gate without a threshold accepts nothing.
    return accepts(scores, -np.inf if artifact.threshold is None else artifact.threshold)


# -- Which records fit an artifact, and which it was fitted on ---------------------------------------------------------


def keys_of_score(header: RecordHeader, spec: EstimatorSpec) -> list[str]:
    """Keys of the scores that are those of an artifact. Scores of items may have another cap."""
    return [key for key, stored in header.estimators.items() if with_cap(stored, 1) == with_cap(spec, 1)]


def require_same(artifact: CalibrationArtifact, file: RecordFile, estimator: str) -> None:
    """Refuse records that were not made as the artifact says.

    Raises:
        UsageError: Another model, prompt, plan, estimator or correctness rule; both sides are named.
    """
    header, scored = file.header, file.header.estimators.get(estimator)
    differences = artifact.model.differences(header.model)
    sides: list[tuple[str, object, object]] = [
        ("prompt", artifact.prompt, header.prompt),
        ("score", with_cap(artifact.estimator, 1), None if scored is None else with_cap(scored, 1)),
        ("plan", artifact.plan, narrowed_plan(header.plan, artifact.estimator)),
        ("correctness rule", artifact.correctness, header.label_rule(estimator)),
    ]
    differences += unlike(sides)
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(f"{file.path} does not fit the artifact:\n  {listed}\nCollect, score and label both alike.")


def unlike(sides: Iterable[tuple[str, object, object]], names: tuple[str, str] = ("artifact", "records")) -> list[str]:
    """The differences of two sides, models field by field, each with the value of both.

    Args:
        sides: What is compared: its name, and the value on each side.
        names: Names of the two sides.
    """
    lines = []
    for name, ours, theirs in sides:
        if isinstance(ours, BaseModel) and type(ours) is type(theirs):
            fields = type(ours).model_fields
            inside = [(f"{name}.{field}", getattr(ours, field), getattr(theirs, field)) for field in fields]
            lines += unlike(inside, names)
        elif ours != theirs:
            lines.append(f"{name}: {names[0]} {ours!r}, {names[1]} {theirs!r}")
    return lines


def fitted_on(artifact: CalibrationArtifact, records: Sequence[Record]) -> NDArray[np.bool_]:
    """Which records are questions of the calibration part, under any id."""
    hashes = np.sort(np.array(artifact.data.hashes, dtype=np.uint64))
    return among(table_of(records).asked_hashes(), hashes)


def refuse_seen(artifact: CalibrationArtifact, records: Sequence[Record], what: str) -> None:
    """Refuse to test on questions that the threshold was fitted on, or that the score was trained, ranked or chosen on.

    Both look better there than on new questions.

    Raises:
        UsageError: Naming how many there are.
    """
    refuse_overlap(artifact.estimator, records, what=what)
    table = table_of(records)
    if n_chosen := len(table) - len(without_choice(artifact, table)):
        raise UsageError(
            f"{n_chosen} of {len(table)} {what} records are among those that the score was chosen on, where it looks "
            "better than on new questions. Leave them out, or test on other questions."
        )
    if shared := table.take(fitted_on(artifact, table)):
        raise UsageError(
            f"{len(shared)} of {len(table)} {what} records are questions that the artifact was fitted on, e.g. "
            f"{shared[0].id!r}. A threshold chosen on them fits them: leave them out, or test on other questions."
        )


def without_choice(artifact: CalibrationArtifact, records: Sequence[Record]) -> RecordTable:
    """The records without the questions, under any id, that the artifact's estimator was chosen on, or ranks with."""
    table = without_ranked(artifact.estimator, records)
    if artifact.data.choice is None:
        return table
    hashes = np.array([int(digits, 16) for digits in artifact.data.choice.questions], dtype=np.uint64)
    return table.take(~among(table.asked_hashes(), np.sort(hashes)))


def without(records: Sequence[Record], others: Sequence[Record]) -> RecordTable:
    """The records whose ids are not among the others'."""
    table = table_of(records)
    if not others:
        return table
    return table.take(~among(table.id_hashes(), np.sort(table_of(others).id_hashes())))


def calibration_part(artifact: CalibrationArtifact, records: Sequence[Record]) -> tuple[RecordTable, RecordTable]:
    """The records of the calibration part, and the others but those that the estimator was chosen on.

    Clusters belong to the part as a whole, although most rules use one question of each.
    """
    table = without_ranked(artifact.estimator, records)
    clusters = artifact.calibration.group
    if clusters is not None:
        groups = set(clusters)
        codes, names = table.coded("group")
        ours = np.array([name in groups for name in names], dtype=np.bool_)[codes]
    else:
        ours = fitted_on(artifact, table)
    # Only of the others: a cluster of the fit may ask a question that the choice asked in another cluster, too.
    return table.take(ours), without_choice(artifact, table.take(~ours))
