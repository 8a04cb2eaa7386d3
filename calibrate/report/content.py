"""What the report says, as plain values: everything but the looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guardrail.artifact import CalibrationArtifact
from guardrail.judges import normalise

from ..data.records import Record
from ..evaluation.evaluate import Estimate, Evaluation, EvaluationRow
from ..evaluation.label_checks import Suspicious
from ..pipeline import HeldOut, is_accepted
from ..thresholds.registry import RULES, rule_named
from .sentences import percent

__all__ = [
    "Card",
    "CategoryRow",
    "Contradiction",
    "RuleRow",
    "Tile",
    "categories",
    "comparison",
    "contradictions",
    "reading",
    "tiles",
]


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure a manager looks at first."""

    value: str
    label: str
    note: str = ""


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
    nothing: str
    power: str
    promise: str


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A label that contradicts an extreme score."""

    id: str
    label: str
    question: str
    answer: str
    references: str
    uncertainty: str


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One category of questions."""

    name: str
    n: int
    base_error: str
    answered: str
    error: str


def tiles(artifact: CalibrationArtifact, test: HeldOut | None) -> list[Tile]:
    """The figures at the top: on test questions if there are any, else on the calibration questions."""
    outcome = artifact.outcome
    target = f"target {percent(outcome.alpha)}"
    without = Tile(percent(outcome.diagnostics.base_error), "wrong without the gate", f"{outcome.n} questions")
    accepted, errors, n = artifact.n_accepted, artifact.n_errors, outcome.n
    if artifact.segments is not None:
        n = len(artifact.calibration.error)
        without = Tile(percent(sum(artifact.calibration.error) / n), "wrong without the gate", f"{n} questions")
    if test is not None:
        where = f"on {test.n} questions kept out of the fit"
        error = "none answered" if test.error_rate is None else percent(test.error_rate[0])
        if test.error_rate is not None:
            target = f"95 % interval {percent(test.error_rate[1])} to {percent(test.error_rate[2])}; {target}"
        return [
            Tile(percent(test.acceptance[0]), "of questions answered by the model", where),
            Tile(error, "of those answers are wrong", target),
            without,
        ]
    if accepted:
        return [
            Tile(percent(accepted / n), "of questions answered by the model", f"{accepted} of {n}"),
            Tile(percent(errors / accepted), "of those answers are wrong", target),
            without,
        ]
    return [Tile("0 %", "of questions answered by the model", "nothing is accepted"), without]


def comparison(evaluation: Evaluation, artifact: CalibrationArtifact) -> list[RuleRow]:
    """The rules at the artifact's alpha, most accepting first."""
    rows = [row for row in evaluation.rows if row.alpha == artifact.alpha]
    return [
        RuleRow(
            name=row.rule,
            chosen=row.rule == artifact.outcome.rule,
            acceptance=_estimate(row.acceptance),
            error=_estimate(row.pooled),
            over=_estimate(row.violation_rate),
            nothing=_estimate(row.infeasible_rate),
            power=_estimate(row.power),
            promise=_promise(row),
        )
        for row in sorted(rows, key=lambda row: -row.acceptance.value)
    ]


def reading(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, limit: int = 6
) -> tuple[list[Card], list[Card]]:
    """Answers worth reading: certain mistakes that are accepted, and right answers that are held back.

    Both most certain first. When nothing is accepted: the most certain mistakes and right answers of all.
    """
    none = not artifact.n_accepted

    def pick(keep: Callable[[Record], bool]) -> list[Card]:
        usable = [record for record in records if _usable(record, estimator) and keep(record)]
        found = [(record.scores[estimator].value, record) for record in usable]
        found.sort(key=lambda pair: (pair[0] or 0.0, pair[1].id))
        return [_card(record, artifact, value) for value, record in found[:limit] if value is not None]

    mistakes = pick(lambda record: not record.correct and (none or is_accepted(artifact, record, estimator)))
    rejected = pick(lambda record: bool(record.correct) and (none or not is_accepted(artifact, record, estimator)))
    return mistakes, rejected


def contradictions(found: Suspicious, estimator: str, most: int = 8) -> list[Contradiction]:
    """Labels that contradict an extreme score, wrong ones first."""
    return [
        _contradiction(record, label, estimator)
        for label, some in (("wrong", found.wrong), ("right", found.right))
        for record in some[:most]
    ]


def _contradiction(record: Record, label: str, estimator: str) -> Contradiction:
    score = record.scores[estimator].value
    return Contradiction(
        id=record.id,
        label=label,
        question=_cut(record.question),
        answer=_cut(record.shown_answer or "(imported without the answer)"),
        references=_cut(" / ".join(record.references) or "(not on file)"),
        uncertainty="-" if score is None else f"{score:.3g}",
    )


def categories(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, most: int = 20
) -> list[CategoryRow]:
    """How the gate does in each category, the largest first; empty without at least two categories.

    The promise holds for all questions together: a category can lie above the target.
    """
    labelled = [record for record in records if record.correct is not None and record.group is not None]
    sizes = Counter(str(record.group) for record in labelled)
    if not 2 <= len(sizes) <= len(labelled) / 3:
        return []
    rows = []
    for name, n in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:most]:
        members = [record for record in labelled if record.group == name]
        accepted = [record for record in members if is_accepted(artifact, record, estimator)]
        wrong = sum(not record.correct for record in accepted)
        rows.append(
            CategoryRow(
                name=name,
                n=n,
                base_error=percent(sum(not record.correct for record in members) / n),
                answered=percent(len(accepted) / n),
                error=f"{percent(wrong / len(accepted))} ({wrong} of {len(accepted)})" if accepted else "-",
            )
        )
    return rows


def _usable(record: Record, estimator: str) -> bool:
    score = record.scores.get(estimator)
    return record.correct is not None and score is not None and score.value is not None


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
    counts = Counter(map(normalise, texts))
    shown = {normalise(text): text for text in reversed(texts)}
    return tuple((_cut(shown[key]), f"{count} of {len(texts)}") for key, count in counts.most_common(most))


def _cut(text: str, longest: int = 120) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def _options(record: Record) -> Sequence[tuple[str, float]]:
    assert record.drawn is not None
    return () if record.drawn.options is None else record.drawn.options.shares()


def _promise(row: EvaluationRow) -> str:
    if row.rule not in RULES:
        return "rule of your own"
    rule = rule_named(row.rule)
    sure = f", {percent(1 - row.delta)} sure" if rule.certifies and row.delta is not None else ""
    return rule.promise + sure


def _estimate(value: Estimate | None) -> str:
    if value is None:
        return "-"
    spread = "" if value.se is None else f" \u00b1 {100 * value.se:.1f}"
    return f"{100 * value.value:.1f}{spread}"
