"""The content of the report as plain values, without its layout: sections with tables, and answers to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import CALLS, ITEMS_OF_ANSWERS, Nouns, figures_lines, nouns_of, share_of
from guardrail.items.spec import ItemsSpec, bounds_answers
from guardrail.judges import distinct_answers
from guardrail.notebook import Table, percent

from ..data.records import Record
from ..data.table import table_of
from ..evaluation.choice import Ranked
from ..evaluation.label_checks import (
    Suspicious,
    judge_to_look_at,
    lowest,
    merged,
    merged_text,
    missed,
    missed_text,
    suspicious,
)
from ..evaluation.results import FEW_NOTE, Evaluation, EvaluationRow, cells, few
from ..items.figures import by_path
from ..judging import GateCounts, accepted_of
from ..rules import RULES
from ..scoring.items import ScoredItems
from .assessment import second_look

NO_RULE = "none"
"""Name of the row without a rule."""
MOST_ROWS = 8
"""Answers in a table of labels to look at, of each kind."""
MOST_CARDS = 12
"""Answers with items to read."""


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
class Section:
    """A heading, sentences and a table.

    Attributes:
        heading: Above them.
        texts: Sentences.
        table: Below these.
        warnings: Sentences that are marked.
    """

    heading: str
    texts: Sequence[str]
    table: Table
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A named text of a card: ``tone`` is "right", "wrong" or "held"; ``note`` stands behind it in small print."""

    name: str
    text: str
    tone: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """One answer to read: the question, lines about the answer, and where it is from."""

    question: str
    lines: Sequence[Line]
    source: str = ""


# -- Figures -----------------------------------------------------------------------------------------------------------


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


def rule_table(evaluation: Evaluation, artifact: CalibrationArtifact) -> Table:
    """The rules at the artifact's alpha, the most accepting first and that of the artifact marked, below no rule."""
    rule_in_use, nouns, base = artifact.outcome.rule, nouns_of(artifact), evaluation.base_error
    rows = sorted(
        (row for row in evaluation.rows if row.alpha == artifact.alpha), key=lambda row: -row.acceptance.value
    )
    above = "100" if base > artifact.alpha else "0"
    accepted, right = nouns.accepted, "right answers given"
    if nouns is ITEMS_OF_ANSWERS:
        right = "right items kept"
    without = (NO_RULE, "100", f"{100 * base:.1f}", "100", "-", above, "0", f"none: everything is {accepted}")
    listed = [without, *map(_rule, rows)]
    return Table(
        heads=(
            *("rule", accepted, f"wrong among {accepted}", right),
            *("splits over target, test part (reads high)", "splits over target, all questions (reads low)"),
            *("splits without an answer", "promise"),
        ),
        rows=listed,
        prose=("promise",),
        chosen=next((index for index, (name, *_) in enumerate(listed) if name == rule_in_use), None),
        note=FEW_NOTE if any(few(row.n_feasible) for row in rows) else "",
    )


def _rule(row: EvaluationRow) -> tuple[str, ...]:
    promise = "rule of your own"
    if (rule := RULES.get(row.rule)) is not None:
        sure = f", {percent(1 - row.delta)} sure" if rule.certifies and row.delta is not None else ""
        promise = rule.promise + sure
    return (row.rule, *cells(row, ("given", "pooled", "right", "above", "all", "none")), promise)


def score_table(ranking: Sequence[Ranked], chosen: str) -> Table:
    """Scores with AUROC, the highest AUROC first; the chosen one is marked."""
    rows = [
        (
            ranked.estimator,
            f"{ranked.auroc.value:.3f}",
            f"{ranked.auroc.low:.3f} to {ranked.auroc.high:.3f}",
            str(ranked.n_unmeasured),
        )
        for ranked in ranking
    ]
    index = next((index for index, (name, *_) in enumerate(rows) if name == chosen), None)
    return Table(("score", "AUROC", "95 % interval", "not measured"), rows, chosen=index)


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
            rows=[(name, *_category(*counts.get(name, (0, 0, 0, 0)))) for name in names],
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
    return str(n), percent(wrong / n), percent(accepted / n), share_of(wrong_accepted, accepted)


# -- Labels to look at -------------------------------------------------------------------------------------------------

_PROSE = ("question", "answer", "reference")
_ANSWER = (*_PROSE, "score", "id")
_BEFORE = 30
"""Characters that are shown before the first difference of two long texts."""


def label_sections(artifact: CalibrationArtifact, parts: Sequence[Part], estimator: str) -> Iterator[Section]:
    """Labels and merges worth a second look; the rules and the judge are looked at on the calibration part."""
    looked = {part.name: suspicious(part.records, estimator) for part in parts}
    texts = [f"{name.capitalize()}: {text}" for name, some in looked.items() if (text := second_look(some)) is not None]
    if texts:
        yield Section(
            "Labels worth a second look",
            (*texts, "The most extreme of each kind:"),
            contradictions(looked, estimator),
        )
    fitted = parts[0].records
    if (misses := missed(fitted, artifact.correctness.name)) is not None:
        rows = [_answer(record, estimator) for record in misses.records[:MOST_ROWS]]
        heading = "Labelled wrong, although the answer contains the reference"
        yield Section(heading, (missed_text(misses), "Some of them:"), Table(_ANSWER, rows, prose=_PROSE))
    if (merges := merged(fitted, judge_to_look_at(artifact.estimator.judge))) is not None:
        heads = ("wrong answer", "reference", "id")
        pairs = [(_cut(answer), _cut(reference), name) for name, answer, reference in merges.pairs[:MOST_ROWS]]
        heading = "Wrong answers that the judge takes for right ones"
        yield Section(heading, (merged_text(merges),), Table(heads, pairs, prose=heads))


def contradictions(looked: Mapping[str, Suspicious], estimator: str) -> Table:
    """Labels that contradict an extreme score, by the name of their part; wrong ones first."""
    rows = [
        (part, label, *_answer(record, estimator))
        for part, some in looked.items()
        for label, records in (("wrong", some.wrong), ("right", some.right))
        for record in records[:MOST_ROWS]
    ]
    return Table(("part", "labelled", *_ANSWER), rows, prose=_PROSE)


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
    start = next(index for index, (ours, theirs) in enumerate(pairs) if ours != theirs) - _BEFORE
    return f"... {answer[start:]}", f"... {reference[start:]}"


def _cut(text: str, longest: int = 120) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


# -- Answers to read ---------------------------------------------------------------------------------------------------


def reading(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, limit: int = 6
) -> tuple[list[Card], list[Card]]:
    """Answers worth reading: certain mistakes that are accepted, and right answers that are held back.

    Both most certain first. When nothing is accepted: the most certain mistakes and right answers of all.
    """
    table, accepted = table_of(records), accepted_of(artifact, records, estimator)
    values, label = table.scores(estimator), table.labels()  # an undecided answer is no certain mistake to read
    all_of_them = np.array(not artifact.outcome.n_accepted)

    def pick(among: NDArray[np.bool_], tone: str) -> list[Card]:
        certain = lowest(records, among & ~np.isnan(values), values, limit)
        return [_card(record, artifact, value, tone) for value, record in certain]

    return (
        pick((label == 0) & (accepted | all_of_them), "wrong"),
        pick((label == 1) & (~accepted | all_of_them), "right"),
    )


def _card(record: Record, artifact: CalibrationArtifact, value: float, tone: str) -> Card:
    unit = " nats" if artifact.estimator.unit == "nats" else ""
    answer = "(imported without the answer)" if record.shown_answer is None else record.shown_answer
    lines = [Line(label, text) for label, text in (record.options or {}).items() if label != text]
    lines += [
        Line("answer", answer, tone),
        Line("reference", " / ".join(record.references) or "(not on file)"),
        Line("score", f"{value:.3g}{unit}"),
    ]
    if shares := _shares(record):
        lines.append(Line("said", "; ".join(f"{text} ({share})" for text, share in shares)))
    return Card(record.in_words, lines, " · ".join(filter(None, (record.id, record.group))))


def _shares(record: Record, most: int = 5) -> list[tuple[str, str]]:
    """Distinct sampled answers, or options, with their share; the most frequent first."""
    if record.drawn is None:
        return []
    if not record.drawn.samples:
        options = () if record.drawn.options is None else record.drawn.options.shares()
        return [(label, percent(share, 0)) for label, share in options if share >= 0.005][:most]
    texts = [sample.comparable for sample in record.drawn.samples]
    return [(_cut(text), f"{count} of {len(texts)}") for text, count in distinct_answers(texts)[:most]]


# -- Gates of items ----------------------------------------------------------------------------------------------------


def item_sections(artifact: CalibrationArtifact, parts: Sequence[Part]) -> Iterator[Section]:
    """Counts by path of each part, the test part first."""
    for part in reversed(parts):
        scored = ScoredItems.of(table_of(part.records), ItemsSpec.of(artifact.estimator))
        table, warnings = by_path(artifact, scored.items, scored.columns)
        yield Section(
            f"Items, {part.name}",
            figures_lines(part.counts.items or artifact.items, artifact.outcome.rule),
            table,
            warnings,
        )


def item_cards(artifact: CalibrationArtifact, part: Part) -> list[Card]:
    """Answers with their items, chosen evenly over a part, not by hand."""
    scored = ScoredItems.of(table_of(part.records), ItemsSpec.of(artifact.estimator))
    kept = iter(scored.items.kept(artifact.threshold).tolist())
    every = [Card(record.question, list(_items(record, kept))) for record in scored.records]
    return every[:: max(1, len(every) // MOST_CARDS)][:MOST_CARDS]


def _items(record: Record, kept: Iterator[bool]) -> Iterator[Line]:
    labels = () if record.item_labels is None else record.item_labels.right
    for item, label in zip(record.items or (), labels, strict=True):
        is_kept = next(kept)
        notes = (
            "" if is_kept else "held back",
            "not measured" if item.uncertainty is None else f"{item.uncertainty:.2g}",
            {True: "", False: "wrong", None: "undecided"}[label],
        )
        text = "(left out)" if item.absent else item.text
        tone = "held" if not is_kept else "wrong" if label is False else ""
        yield Line(item.path, text, tone, ", ".join(filter(None, notes)))
