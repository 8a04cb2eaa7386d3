"""The content of the report as plain values, without its layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact
from guardrail.judges import distinct_answers
from guardrail.notebook import percent

from ..data.records import Record
from ..data.table import table_of
from ..evaluation.choice import Ranked
from ..evaluation.evaluate import FEW_SPLITS, Estimate, Evaluation, EvaluationRow
from ..evaluation.label_checks import Missed, Suspicious, lowest
from ..evaluation.tables import TableRow
from ..pipeline import GateCounts, accepted_of
from ..rules import RULES
from ..scoring.scores import labels_of, values_of

__all__ = [
    "FEW_NOTE",
    "Card",
    "CategoryRow",
    "Contradiction",
    "EstimatorRow",
    "Part",
    "RuleRow",
    "Tile",
    "categories",
    "comparison",
    "contradictions",
    "estimator_rows",
    "few",
    "managed",
    "missed_labels",
    "reading",
    "tiles",
]


FEW_NOTE = (
    f"* mean over fewer than {FEW_SPLITS} splits, those that answer something: it says little. Label more questions, "
    "or compare at a larger alpha."
)
"""Meaning of the mark of `few`."""
NO_RULE = "none"
"""Name of the row without a rule."""
CERTIFIED = "certified"
"""Name of the certificate that a manager compares with."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure a manager looks at first, of each part.

    Attributes:
        label: Name of the figure.
        values: Figure and a note for each part, the test part first.
    """

    label: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The questions of one part, calibration or test. No table or figure mixes the two.

    Attributes:
        name: "calibration" or "test".
        records: Its records.
        counts: What the gate does on them.
    """

    name: str
    records: Sequence[Record]
    counts: GateCounts


@dataclass(frozen=True, slots=True)
class Card:
    """One answer to read."""

    id: str
    group: str | None
    question: str
    options: tuple[tuple[str, str], ...]
    answer: str
    references: tuple[str, ...]
    uncertainty: str
    samples: tuple[tuple[str, str], ...]
    """Distinct sampled answers with their share, most frequent first."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One threshold rule over many random splits."""

    name: str
    chosen: bool
    acceptance: str
    error: str
    over: str
    over_pool: str
    nothing: str
    power: str
    promise: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A label that contradicts an extreme score."""

    id: str
    part: str
    label: str
    question: str
    answer: str
    references: str
    uncertainty: str


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One category of questions.

    Attributes:
        name: The category.
        parts: For each part: questions, wrong without the gate, answered, wrong among answered.
    """

    name: str
    parts: tuple[tuple[str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class EstimatorRow:
    """One estimator on labelled questions."""

    name: str
    chosen: bool
    auroc: str
    interval: str
    n_unmeasured: int


def few(row: EvaluationRow | TableRow) -> str:
    """The mark of a mean over fewer than ten splits; empty otherwise, and where their number is unknown."""
    n = row.n_feasible if isinstance(row, EvaluationRow) else row.feasible
    return "*" if n is not None and 0 < n < FEW_SPLITS else ""


def tiles(artifact: CalibrationArtifact, parts: Sequence[Part]) -> list[Tile]:
    """The figures at the top, side by side for each part; the test part first, because nothing was fitted on it."""

    def tile(label: str, figure: Callable[[GateCounts], tuple[str, str]]) -> Tile:
        return Tile(label, tuple(figure(part.counts) for part in reversed(parts)))

    def error(counts: GateCounts) -> tuple[str, str]:
        if counts.error_rate is None:
            return "-", "nothing is accepted"
        rate, low, high = counts.error_rate
        return percent(
            rate
        ), f"{counts.n_errors} of {counts.n_accepted}; 95 % interval {percent(low)} to {percent(high)}"

    def answered(counts: GateCounts) -> tuple[str, str]:
        return percent(counts.acceptance[0]), f"{counts.n_accepted} of {counts.n_asked} questions"

    def without(counts: GateCounts) -> tuple[str, str]:
        wrong = counts.n - counts.n_correct
        return percent(wrong / counts.n), f"{wrong} of {counts.n} questions"

    return [
        tile("answered by the model", answered),
        tile(f"wrong among those answers (target {percent(artifact.alpha)})", error),
        tile("wrong without the gate", without),
    ]


def comparison(evaluation: Evaluation, artifact: CalibrationArtifact) -> list[RuleRow]:
    """The rules at the artifact's alpha, most accepting first, and a row without a rule."""
    rows = [row for row in evaluation.rows if row.alpha == artifact.alpha]
    base = evaluation.base_error
    without = RuleRow(
        name=NO_RULE,
        chosen=False,
        acceptance="100",
        error=f"{100 * base:.1f}",
        over="-",
        over_pool="100" if base > artifact.alpha else "0",
        nothing="0",
        power="100",
        promise="none: everything is answered",
    )
    return [
        without,
        *(
            RuleRow(
                name=row.rule,
                chosen=row.rule == artifact.outcome.rule,
                acceptance=_estimate(row.acceptance),
                error=_estimate(row.pooled) + few(row),
                over=_estimate(row.violation_rate),
                over_pool=_estimate(row.pool_violation_rate),
                nothing=_estimate(row.infeasible_rate),
                power=_estimate(row.power),
                promise=_promise(row),
            )
            for row in sorted(rows, key=lambda row: -row.acceptance.value)
        ),
    ]


def estimator_rows(ranking: Sequence[Ranked], chosen: str) -> list[EstimatorRow]:
    """Estimators with AUROC, the highest AUROC first; the chosen one is marked."""
    return [
        EstimatorRow(
            name=ranked.estimator,
            chosen=ranked.estimator == chosen,
            auroc=f"{ranked.auroc.value:.3f}",
            interval=f"{ranked.auroc.low:.3f} to {ranked.auroc.high:.3f}",
            n_unmeasured=ranked.n_unmeasured,
        )
        for ranked in ranking
    ]


def managed(rows: Sequence[RuleRow]) -> list[RuleRow]:
    """The three rules a manager compares: the one in use, the certificate, none."""
    shown = [row for row in rows if row.chosen or row.name in (CERTIFIED, NO_RULE)]
    return sorted(shown, key=lambda row: (not row.chosen, row.name == NO_RULE))


def reading(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, limit: int = 6
) -> tuple[list[Card], list[Card]]:
    """Answers worth reading: certain mistakes that are accepted, and right answers that are held back.

    Both most certain first. When nothing is accepted: the most certain mistakes and right answers of all.
    """
    values, label, accepted = (
        values_of(records, estimator),
        table_of(records).labels(),  # an undecided answer is no certain mistake to read
        accepted_of(artifact, records, estimator),
    )
    all_of_them = np.array(not artifact.outcome.n_accepted)

    def pick(among: NDArray[np.bool_]) -> list[Card]:
        lowest_scores = lowest(records, among & ~np.isnan(values), values, limit)
        return [_card(record, artifact, value) for value, record in lowest_scores]

    return pick((label == 0) & (accepted | all_of_them)), pick((label == 1) & (~accepted | all_of_them))


def contradictions(suspicious: Suspicious, estimator: str, part: str, most: int = 8) -> list[Contradiction]:
    """Labels of a part that contradict an extreme score, wrong ones first."""
    return [
        _contradiction(record, part, label, estimator)
        for label, some in (("wrong", suspicious.wrong), ("right", suspicious.right))
        for record in some[:most]
    ]


def missed_labels(missed: Missed, estimator: str, most: int = 8) -> list[Contradiction]:
    """Answers labelled wrong although they contain a reference."""
    return [_contradiction(record, "calibration", "wrong", estimator) for record in missed.records[:most]]


def _contradiction(record: Record, part: str, label: str, estimator: str) -> Contradiction:
    score = record.scores[estimator].value if estimator in record.scores else None
    return Contradiction(
        id=record.id,
        part=part,
        label=label,
        question=_cut(record.question),
        answer=_cut(record.shown_answer or "(imported without the answer)"),
        references=_cut(" / ".join(record.references) or "(not on file)"),
        uncertainty="-" if score is None else f"{score:.3g}",
    )


def categories(
    artifact: CalibrationArtifact, parts: Sequence[Part], estimator: str, most: int = 20
) -> list[CategoryRow]:
    """Counts of the gate in each category of each part, the largest first; empty with fewer than two categories.

    The promise holds for all questions together: a category can lie above the target.
    """
    counted = [_by_category(artifact, part.records, estimator) for part in parts]
    sizes: Counter[str] = Counter()
    for counts in counted:
        sizes.update({name: n for name, (n, *_) in counts.items()})
    if not 2 <= len(sizes) <= sizes.total() / 3:
        return []
    return [
        CategoryRow(name, tuple(_category(*counts.get(name, (0, 0, 0, 0))) for counts in counted))
        for name, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:most]
    ]


def _by_category(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str
) -> dict[str, tuple[int, int, int, int]]:
    """Labelled questions of each category: all, wrong, accepted, wrong among the accepted."""
    label, accepted = labels_of(records), accepted_of(artifact, records, estimator)
    codes, names = table_of(records).coded("group")
    ours = (label >= 0) & np.array([name is not None for name in names], dtype=np.bool_)[codes]
    masks = (ours, ours & (label == 0), ours & accepted, ours & accepted & (label == 0))
    counts = np.stack([np.bincount(codes[mask], minlength=len(names)) for mask in masks], axis=1).tolist()
    return {
        str(name): (n, wrong, n_accepted, bad)
        for name, (n, wrong, n_accepted, bad) in zip(names, counts, strict=True)
        if n
    }


def _category(n: int, wrong: int, accepted: int, wrong_accepted: int) -> tuple[str, str, str, str]:
    if not n:
        return "0", "-", "-", "-"
    among = f"{percent(wrong_accepted / accepted)} ({wrong_accepted} of {accepted})" if accepted else "-"
    return str(n), percent(wrong / n), percent(accepted / n), among


def _card(record: Record, artifact: CalibrationArtifact, value: float) -> Card:
    unit = " nats" if artifact.estimator.unit == "nats" else ""
    return Card(
        id=record.id,
        group=record.group,
        question=record.question,
        options=tuple((record.options or {}).items()),
        answer="(imported without the answer)" if record.shown_answer is None else record.shown_answer,
        references=record.references,
        uncertainty=f"{value:.3g}{unit}",
        samples=_shares(record),
    )


def _shares(record: Record, most: int = 5) -> tuple[tuple[str, str], ...]:
    if record.drawn is None:
        return ()
    if not record.drawn.samples:
        return tuple((label, percent(share, 0)) for label, share in _options(record))[:most]
    texts = [sample.comparable for sample in record.drawn.samples]
    return tuple((_cut(text), f"{count} of {len(texts)}") for text, count in distinct_answers(texts)[:most])


def _cut(text: str, longest: int = 120) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def _options(record: Record) -> Sequence[tuple[str, float]]:
    assert record.drawn is not None
    return () if record.drawn.options is None else record.drawn.options.shares()


def _promise(row: EvaluationRow) -> str:
    if row.rule not in RULES:
        return "rule of your own"
    rule = RULES[row.rule]
    sure = f", {percent(1 - row.delta)} sure" if rule.certifies and row.delta is not None else ""
    return rule.promise + sure


def _estimate(value: Estimate | None) -> str:
    if value is None:
        return "-"
    spread = "" if value.se is None else f" \u00b1 {100 * value.se:.1f}"
    return f"{100 * value.value:.1f}{spread}"
