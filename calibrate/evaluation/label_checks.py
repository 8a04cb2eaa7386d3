"""Checks of labels, judge and score: AUROC with its interval, and labels and merges worth a second look."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.judges import Judge, JudgeSpec, default_judge, make_judge
from guardrail.judges.base import Item
from guardrail.judges.registry import JUDGES
from guardrail.plain_json import sha256_hex
from guardrail.uncertainty import list_estimators, make_estimator

from ..correctness import Contains, Numeric
from ..data.records import Record, RecordFile
from ..data.table import table_of
from ..scoring.compute import score_records
from ..scoring.names import estimator_key

EXTREME = 0.1
"""A score is very certain (uncertain) when at most this share of the questions is more certain (uncertain) still."""


@dataclass(frozen=True, slots=True)
class Suspicious:
    """Labels that contradict an extreme score, most extreme first: surprises of the model, or wrong labels.

    Attributes:
        wrong: Labelled wrong although the model was very certain.
        right: Labelled right although the model was very uncertain.
        n_wrong: Number of the first kind in all.
        n_right: Number of the second.
        n_certain: Labelled answers of which the model was very certain.
    """

    wrong: tuple[Record, ...]
    right: tuple[Record, ...]
    n_wrong: int
    n_right: int
    n_certain: int = 0


def unread_answers(file: RecordFile, key: str, most: int = 2_000) -> tuple[int, int] | None:
    """The number of answers that agree with none of their samples, where a score does not read the answer.

    Args:
        file: The records.
        key: The score.
        most: Most records to look at where `primary_disagreement` is not on file: a look takes as long as scoring them.

    Returns:
        Such answers and all that were compared; None if the score reads the answer, the answer is the vote of the
        samples, or only a model can compare them.
    """
    plan, spec = file.header.plan, file.header.estimators[key]
    judged = default_judge(plan.bindings).spec if spec.judge is None else spec.judge
    known = spec.name in list_estimators() and judged.name in JUDGES
    if not known or plan.primary == "majority" or make_estimator(spec.name).reads_answer:
        return None
    votes = make_estimator("primary_disagreement", judge=make_judge(judged.name, **judged.params))
    name, some = estimator_key(votes), file.records
    if file.header.estimators.get(name) != votes.spec:
        some = score_records(RecordFile(file.path, file.header, some[:most]), [votes]).records
    values = table_of(some).scores(name)
    return int(np.count_nonzero(values == 1)), int(np.count_nonzero(~np.isnan(values)))


def suspicious(records: Sequence[Record], estimator: str, k: int = 10) -> Suspicious:
    """Labels to look at again: wrong among the most certain answers, right among the most uncertain ones.

    Records without a score or a label are left out, undecided ones too. Equal scores are ordered by id.

    Args:
        records: Records with scores and labels.
        estimator: Key of the score.
        k: Most records of each kind to return.
    """
    score, label = table_of(records).scores(estimator), table_of(records).labels()
    usable = ~np.isnan(score) & (label >= 0)
    values = np.sort(score[usable])
    # With one value for all nothing is more certain than anything else.
    if not values.size or values[0] == values[-1]:
        return Suspicious((), (), 0, 0)
    # At most this share of the scores is below the largest certain one, and above the smallest uncertain one.
    most = math.floor(EXTREME * values.size)
    surest = usable & (score <= values[min(most, values.size - 1)])
    certain = surest & (label == 0)
    uncertain = usable & (label == 1) & (score >= values[max(values.size - 1 - most, 0)])
    return Suspicious(
        wrong=tuple(record for _, record in lowest(records, certain, score, k)),
        right=tuple(record for _, record in lowest(records, uncertain, -score, k)),
        n_wrong=int(np.count_nonzero(certain)),
        n_right=int(np.count_nonzero(uncertain)),
        n_certain=int(np.count_nonzero(surest)),
    )


def lowest(
    records: Sequence[Record], among: NDArray[np.bool_], score: NDArray[np.float64], k: int
) -> list[tuple[float, Record]]:
    """The k records with the lowest scores, with these; equal scores are ordered by id."""
    candidates = np.flatnonzero(among)
    if candidates.size > k:
        # All ties of the k-th score stay, because the id decides among them below.
        candidates = (
            candidates[score[candidates] <= np.partition(score[candidates], k - 1)[k - 1]] if k else candidates[:0]
        )
    table = table_of(records)
    ranked = heapq.nsmallest(
        k, zip(score[candidates].tolist(), table.take(candidates).ids, candidates.tolist(), strict=True)
    )
    places = [index for *_, index in ranked]
    chosen = table.take(np.array(places, dtype=np.int64))
    return [(value, record) for (value, *_), record in zip(ranked, chosen, strict=True)]


# -- Labels to read: a few of them, and answers that are wrong by a rule although they contain the reference -----------

_OF_WORDS = ("exact", "numeric", "token_f1")
"""Rules that may call a whole sentence wrong for the words around the right ones."""
_MOST_READ = 10_000
"""Wrong answers of a large file whose texts are read, the first of the file."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Answers labelled wrong although they contain a reference.

    Attributes:
        records: These records, in file order.
        n_wrong: Answers labelled wrong in all.
        rule: The rule that would call them right: "numeric" where it calls them all right, else "contains".
    """

    records: tuple[Record, ...]
    n_wrong: int
    rule: str


def labelled_answers(records: Sequence[Record], k: int = 6) -> list[Record]:
    """A few labelled answers to read, half of them wrong if possible, picked by a hash of their ids."""
    labelled = [record for record in records if record.correct is not None and record.shown_answer]
    # By hash: the first of a file are often alike, and every look must show the same answers.
    labelled.sort(key=lambda record: sha256_hex(record.id))
    wrong, right = ([record for record in labelled if record.correct is label] for label in (False, True))
    # More than half where right ones are few, so that k answers are shown whenever there are as many.
    n_wrong = min(len(wrong), max(k // 2, k - len(right)))
    return [*right[: k - n_wrong], *wrong[:n_wrong]]


def missed(records: Sequence[Record], rule: str) -> Missed | None:
    """Answers that a rule of words calls wrong although they contain a reference (rule `contains`); None if none is.

    Args:
        records: Labelled records.
        rule: Name of the rule that labelled them.
    """
    if rule not in _OF_WORDS:
        return None
    table = table_of(records)
    called_wrong = table.take(np.flatnonzero(table.labels() == 0)[:_MOST_READ])
    wrong = [record for record in called_wrong if record.answer and not record.options]
    containing = tuple(filter(_contains, wrong))
    if not containing:
        return None
    numbers = all(Numeric().label(one.answer or "", one).correct for one in containing)
    return Missed(containing, len(wrong), "numeric" if numbers else "contains")


_NEARLY_NONE, _MANY, _FEWEST = 0.05, 0.2, 20
"""Share of right answers, share of wrong ones that contain a reference, and labels, from which labels look broken."""


def broken_labels(records: Sequence[Record], rule: str) -> Missed | None:
    """`missed` where a rule calls nearly no answer right, and many of the wrong ones contain a reference; else None."""
    labels = table_of(records).labels()
    n_right, n_wrong = int((labels == 1).sum()), int((labels == 0).sum())
    if n_right + n_wrong < _FEWEST or n_right > _NEARLY_NONE * (n_right + n_wrong):
        return None
    misses = missed(records, rule)
    return misses if misses is not None and len(misses.records) >= _MANY * misses.n_wrong else None


def missed_text(misses: Missed, typed: str = "RECORDS") -> str:
    """A warning about such answers, with the rule that calls them right; ``typed`` is their file."""
    first = misses.records[0]
    text, against = f"{first.answer!r:.60}", f"{' | '.join(first.references)!r:.60}"
    return (
        f"{len(misses.records)} of the {misses.n_wrong} wrong answers contain a reference, e.g. {text} (reference "
        f"{against}, {first.id}). If such answers are right, use rule {misses.rule}: `calibrate label {typed} "
        f"--rule {misses.rule}`, or --correctness {misses.rule} of `run`."
    )


def refuse_broken(file: RecordFile) -> None:
    """Stop before a fit where the labels look broken.

    Raises:
        UsageError: The rule calls nearly no answer right, and many wrong answers contain a reference.
    """
    spec = file.header.correctness
    if spec is not None and (misses := broken_labels(file.records, spec.name)) is not None:
        raise UsageError(
            f"the labels of {file.path} look broken: rule {spec.name} calls nearly no answer right, and "
            f"{missed_text(misses, file.typed)} To fit on these labels all the same, add --trust-labels."
        )


# -- Wrong answers that the judge of a score takes for right ones ------------------------------------------------------

_MOST_JUDGED = 1_000
"""Wrong answers that are compared with their references, the first of the file."""


@dataclass(frozen=True, slots=True)
class Merged:
    """Wrong answers that a judge takes for a right one: to a score that it serves they agree with right ones.

    Attributes:
        judge: Name of the judge.
        pairs: (id of the record, the answer, the reference), in file order.
        n_wrong: Wrong answers that were compared.
    """

    judge: str
    pairs: tuple[tuple[str, str, str], ...]
    n_wrong: int


def judge_to_look_at(spec: JudgeSpec | None) -> Judge | None:
    """The judge of a score if it asks no model; otherwise None."""
    return make_judge(spec.name, **spec.params) if spec is not None and spec.name in JUDGES else None


def merged(records: Sequence[Record], judge: Judge | None) -> Merged | None:
    """Wrong answers that a judge takes for a reference; None without any, or without a judge.

    Answers that contain their reference are left out, because there the label may be wrong (`missed`).
    """
    table = table_of(records)
    called_wrong = table.take(np.flatnonzero(table.labels() == 0)[:_MOST_JUDGED])
    wrong = [
        record
        for record in called_wrong
        if record.answer and record.references and not record.options and not _contains(record)
    ]
    items: list[Item] = [
        (record.question, record.answer or "", reference) for record in wrong for reference in record.references
    ]
    if judge is None or not items:
        return None
    verdicts = iter(judge.compare(items))
    same = [(record, [ref for ref in record.references if next(verdicts)]) for record in wrong]
    pairs = tuple((record.id, record.answer or "", references[0]) for record, references in same if references)
    return Merged(judge.spec.name, pairs, len(wrong)) if pairs else None


def merged_text(merges: Merged) -> str:
    """A warning about such answers, with a judge that tells them apart."""
    _, answer, reference = merges.pairs[0]
    return (
        f"Judge {merges.judge} takes {len(merges.pairs)} of {merges.n_wrong} wrong answers for right ones, e.g. "
        f"{answer!r:.60} for {reference!r:.60}. A judge that asks a model: `calibrate score RECORDS --score "
        "'graded_disagreement:chat(model=MODEL)'`, one call for each pair of different answers."
    )


def _contains(record: Record) -> bool:
    return bool(Contains().label(record.answer or "", record).correct)
