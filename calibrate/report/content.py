"""The content of the report as plain values, without its layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import CALLS, ITEMS_OF_ANSWERS, Nouns, nouns_of
from guardrail.items.spec import bounds_answers
from guardrail.judges import distinct_answers
from guardrail.notebook import Table, percent
from guardrail.outcome import CERTIFIED

from ..data.records import Record
from ..data.table import table_of
from ..evaluation.choice import Ranked
from ..evaluation.label_checks import Merged, Missed, Suspicious, lowest
from ..evaluation.results import FEW_NOTE, Evaluation, EvaluationRow, cells, few
from ..pipeline import GateCounts, accepted_of
from ..rules import RULES

__all__ = [
    *("Card", "Part", "categories", "contradictions", "headings", "headline", "merged_answers"),
    *("missed_labels", "reading", "rule_table", "score_table"),
]

NO_RULE = "none"
"""Name of the row without a rule."""


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


def headings(artifact: CalibrationArtifact) -> tuple[str, str, str]:
    """What the figures at the top of the report are; with the target where it bounds them."""
    nouns = nouns_of(artifact)
    target = f" (target {100 * artifact.alpha:g} %)" if bounds_answers(artifact.outcome.rule) else ""
    if nouns is ITEMS_OF_ANSWERS:
        return ("answers that show something", f"of these keep a wrong item{target}", "have a wrong item")
    return (
        "let through" if nouns is CALLS else "answered by the model",
        f"wrong among those {nouns.many}{target}",
        "wrong without the gate",
    )


def headline(parts: Sequence[Part], nouns: Nouns) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each part with its figures and notes; the test part first, because nothing was fitted on it."""
    return [(part.name, list(_headline(part.counts, nouns))) for part in reversed(parts)]


def _headline(counts: GateCounts, nouns: Nouns) -> Iterator[tuple[str, str]]:
    yield percent(counts.acceptance[0]), f"{counts.n_accepted:,} of {counts.n_asked:,} {nouns.asked}"
    if counts.error_rate is None:
        yield "-", "nothing is accepted"
    else:
        rate, low, high = counts.error_rate
        note = f"{counts.n_errors:,} of {counts.n_accepted:,} {nouns.many}"
        yield percent(rate), f"{note}; 95 % interval {percent(low)} to {percent(high)}"
    wrong = counts.n - counts.n_correct
    yield percent(wrong / counts.n), f"{wrong:,} of {counts.n:,} {nouns.asked}"


def rule_table(evaluation: Evaluation, artifact: CalibrationArtifact, *, all_rules: bool) -> Table:
    """The rules at the artifact's alpha beside no rule.

    Args:
        evaluation: The rules over many random splits.
        artifact: Its rule is marked.
        all_rules: All, the most accepting first; or the rule in use, the certificate and none.
    """
    own = artifact.outcome.rule
    rows = sorted(
        (row for row in evaluation.rows if row.alpha == artifact.alpha), key=lambda row: -row.acceptance.value
    )
    base = evaluation.base_error
    above = "100" if base > artifact.alpha else "0"
    nouns = nouns_of(artifact)
    accepted, right = nouns.accepted, "right answers given"
    if nouns is ITEMS_OF_ANSWERS:
        right = "right items kept"
    without = (NO_RULE, "100", f"{100 * base:.1f}", "100", "-", above, "0", f"none: everything is {accepted}")
    if all_rules:
        shown, listed = rows, [without, *map(_rule, rows)]
    else:
        shown = sorted((row for row in rows if row.rule in (own, CERTIFIED)), key=lambda row: row.rule != own)
        listed = [*map(_rule, shown), without]
    return Table(
        heads=(
            *("rule", accepted, f"wrong among {accepted}", right),
            *("splits over target, test part (reads high)", "splits over target, all questions (reads low)"),
            *("splits without an answer", "promise"),
        ),
        rows=tuple(listed),
        prose=("promise",),
        chosen=next((place for place, (name, *_) in enumerate(listed) if name == own), None),
        note=FEW_NOTE if any(few(row.n_feasible) for row in shown) else "",
    )


def _rule(row: EvaluationRow) -> tuple[str, ...]:
    return (row.rule, *cells(row, ("given", "pooled", "right", "above", "all", "none")), _promise(row))


def score_table(ranking: Sequence[Ranked], chosen: str) -> Table:
    """Scores with AUROC, the highest AUROC first; the chosen one is marked."""
    return Table(
        heads=("score", "AUROC", "95 % interval", "not measured"),
        rows=tuple(
            (
                ranked.estimator,
                f"{ranked.auroc.value:.3f}",
                f"{ranked.auroc.low:.3f} to {ranked.auroc.high:.3f}",
                str(ranked.n_unmeasured),
            )
            for ranked in ranking
        ),
        chosen=next((place for place, ranked in enumerate(ranking) if ranked.estimator == chosen), None),
    )


def reading(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, limit: int = 6
) -> tuple[list[Card], list[Card]]:
    """Answers worth reading: certain mistakes that are accepted, and right answers that are held back.

    Both most certain first. When nothing is accepted: the most certain mistakes and right answers of all.
    """
    values, label, accepted = (
        table_of(records).scores(estimator),
        table_of(records).labels(),  # an undecided answer is no certain mistake to read
        accepted_of(artifact, records, estimator),
    )
    all_of_them = np.array(not artifact.outcome.n_accepted)

    def pick(among: NDArray[np.bool_]) -> list[Card]:
        lowest_scores = lowest(records, among & ~np.isnan(values), values, limit)
        return [_card(record, artifact, value) for value, record in lowest_scores]

    return pick((label == 0) & (accepted | all_of_them)), pick((label == 1) & (~accepted | all_of_them))


def contradictions(looked: Mapping[str, Suspicious], estimator: str, most: int = 8) -> Table:
    """Labels that contradict an extreme score, by the name of their part; wrong ones first."""
    return Table(
        heads=("part", "labelled", *_ANSWER),
        rows=tuple(
            (part, label, *_answer(record, estimator))
            for part, suspicious in looked.items()
            for label, some in (("wrong", suspicious.wrong), ("right", suspicious.right))
            for record in some[:most]
        ),
        prose=_TEXTS,
    )


def missed_labels(missed: Missed, estimator: str, most: int = 8) -> Table:
    """Answers labelled wrong although they contain a reference."""
    rows = tuple(_answer(record, estimator) for record in missed.records[:most])
    return Table(_ANSWER, rows, prose=_TEXTS)


def merged_answers(merges: Merged, most: int = 8) -> Table:
    """Wrong answers that the judge takes for right ones."""
    heads = ("wrong answer", "reference", "id")
    rows = tuple((_cut(answer), _cut(reference), name) for name, answer, reference in merges.pairs[:most])
    return Table(heads, rows, prose=heads)


_TEXTS = ("question", "answer", "reference")
_ANSWER = (*_TEXTS, "score", "id")
_BEFORE = 30
"""Characters that are shown before the first difference of two long texts."""


def _answer(record: Record, estimator: str) -> tuple[str, ...]:
    score = record.scores[estimator].value if estimator in record.scores else None
    answer, reference = _apart(record.shown_answer, " / ".join(record.references))
    return (
        _cut(record.question),
        _cut(answer or "(imported without the answer)"),
        _cut(reference or "(not on file)"),
        "-" if score is None else f"{score:.3g}",
        record.id,
    )


def _apart(answer: str | None, reference: str) -> tuple[str, str]:
    """Both texts; from shortly before they differ, if they would look alike once they are cut, as long calls do."""
    answer = answer or ""
    if answer == reference or _cut(answer) != _cut(reference):
        return answer, reference
    pairs = zip_longest(answer, reference)
    start = next(place for place, (ours, theirs) in enumerate(pairs) if ours != theirs) - _BEFORE
    return f"... {answer[start:]}", f"... {reference[start:]}"


def categories(artifact: CalibrationArtifact, parts: Sequence[Part], estimator: str, most: int = 20) -> list[Table]:
    """Counts of the gate in each category, the largest first, a table for each part; none with fewer than two.

    The promise holds for all questions together: a category can lie above the target.
    """
    counted = [_by_category(artifact, part.records, estimator) for part in parts]
    sizes: Counter[str] = Counter()
    for counts in counted:
        sizes.update({name: n for name, (n, *_) in counts.items()})
    if not 2 <= len(sizes) <= sizes.total() / 3:
        return []
    names = [name for name, _ in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:most]]
    return [
        Table(
            heads=(part.name, "questions", "wrong without the gate", "answered", "wrong among answered"),
            rows=tuple((name, *_category(*counts.get(name, (0, 0, 0, 0)))) for name in names),
        )
        for part, counts in zip(parts, counted, strict=True)
    ]


def _by_category(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str
) -> dict[str, tuple[int, int, int, int]]:
    """Labelled questions of each category: all, wrong, accepted, wrong among the accepted."""
    label, accepted = table_of(records).counted_labels(), accepted_of(artifact, records, estimator)
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
        question=record.in_words,
        options=tuple((label, text) for label, text in (record.options or {}).items() if label != text),
        answer="(imported without the answer)" if record.shown_answer is None else record.shown_answer,
        references=record.references,
        uncertainty=f"{value:.3g}{unit}",
        samples=_shares(record),
    )


def _shares(record: Record, most: int = 5) -> tuple[tuple[str, str], ...]:
    if record.drawn is None:
        return ()
    if not record.drawn.samples:
        return tuple((label, percent(share, 0)) for label, share in _options(record) if share >= 0.005)[:most]
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
