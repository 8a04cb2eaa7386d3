"""Questions that a fit leaves out: those a score was made from, and those it was chosen on."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path

from guardrail.errors import UsageError
from guardrail.plain_json import sha256_hex
from guardrail.sampling.follow_ups import SCORE
from guardrail.uncertainty import Estimator, EstimatorSpec, measure_stream
from guardrail.uncertainty.combine import COMBINATIONS, FEWEST, Parts, Ranks, ranked_parts
from guardrail.uncertainty.scorer import TRAINING
from guardrail.uncertainty.training import Training, hash_of, question_hash

from ..data.record import Record
from ..data.records import RecordFile, RecordHeader, RecordReader
from ..data.split import Groups
from ..data.table import RecordTable, table_of

__all__ = ["drawn_by_hash", "ranks_from", "refuse_overlap", "training_of", "without_ranked"]

_ASKED = round(1.1 * FEWEST)
"""Questions that ranks are taken from: 10 % more than needed, because some have no score."""


def training_of(records: Sequence[Record]) -> Training:
    """Hashes of ids, questions and groups of records, sorted and each once."""
    return Training(
        ids=tuple(sorted({hash_of(record.id) for record in records})),
        questions=tuple(sorted({_question_hash(record) for record in records})),
        groups=tuple(sorted({hash_of(record.group) for record in records if record.group is not None})),
    )


# -- Ranks -------------------------------------------------------------------------------------------------------------


def ranks_from(source: RecordFile | str | Path, estimator: Estimator, key: str) -> Ranks:
    """The ranks of a combination: those that the file's scores have, or from its questions.

    Labels are not read. Of the questions, about 330 are drawn by a hash; where enough have no label, from those, so
    that no label is lost: a fit leaves the questions out.

    Args:
        source: Record file.
        estimator: The combination.
        key: Key of its scores in a record file.

    Raises:
        UsageError: Fewer than 300 questions can be ranked, or none would be left.
    """
    if isinstance(source, RecordFile):
        return _ranks_of(source.header, source.records, estimator, key)
    with Path(source).open("rb") as stream:
        reader = RecordReader(Path(source), stream)
        return _ranks_of(reader.header, reader, estimator, key)


def _ranks_of(header: RecordHeader, records: Iterable[Record], estimator: Estimator, key: str) -> Ranks:
    if (known := header.estimators.get(key)) is not None:
        stored = Parts.from_stored(known.params)
        if stored.ranks is not None and stored.parts == tuple(part.spec for part in estimator.members):
            return stored.ranks
    drawn, others = _drawn(records)
    if not others:
        raise UsageError(
            f"{estimator.name} ranks questions among {_ASKED} others, which a fit then leaves out, and there are only "
            f"{len(drawn)}. Collect more questions (they need no labels), or name a record file that has them: "
            "--ranks-from FILE."
        )
    parts = ranked_parts(estimator)
    sets = (record.drawn for record in drawn if record.drawn is not None)
    scores = [[each.value for each in row] for row in measure_stream(sets, parts, header.plan)]
    measured = [[value for value in row if value is not None] for row in scores if None not in row]
    if len(measured) < FEWEST:
        raise UsageError(
            f"{len(measured)} of {len(drawn)} answers have a score by {', '.join(part.name for part in parts)}, and "
            f"{estimator.name} needs {FEWEST} to rank others. Name a record file of more questions (--ranks-from "
            "FILE), or collect with all that these scores read."
        )
    columns = zip(*measured, strict=True)
    return Ranks(scores=tuple(tuple(sorted(column)) for column in columns), questions=training_of(drawn))


def _drawn(records: Iterable[Record]) -> tuple[list[Record], int]:
    """The questions with the smallest hashes, without labels if those are enough, and the number of the others."""
    unlabelled, whole = list[tuple[str, str, Record]](), list[tuple[str, str, Record]]()
    n = n_unlabelled = 0
    for record in records:
        n += 1
        # Undecided answers count as wrong in a fit: to spend them here would leave out the answers that err most.
        waits = record.correct is None and not record.is_undecided
        n_unlabelled += waits
        entry = (_unit_hash(record, "ranks", "category"), record.id, record)
        for heap in (whole, unlabelled) if waits else (whole,):
            heap.append(entry)
            if len(heap) >= 2 * _ASKED:
                heap[:] = heapq.nsmallest(_ASKED, heap, key=lambda each: each[:2])
    pool = unlabelled if _ASKED <= n_unlabelled < n else whole
    drawn = [record for *_, record in heapq.nsmallest(_ASKED, pool, key=lambda each: each[:2])]
    return drawn, n - len(drawn)


def without_ranked(spec: EstimatorSpec, records: Sequence[Record], *, groups: Groups = "category") -> RecordTable:
    """The records without the questions that the ranks of a combination come from: a fit and a test use others."""
    table = table_of(records)
    ranks = Parts.from_stored(spec.params).ranks if spec.name in COMBINATIONS else None
    if ranks is None:
        return table
    shared = {record.id for record in _shared(ranks.questions, table, groups)}
    return table_of([record for record in table if record.id not in shared])


# -- Training ----------------------------------------------------------------------------------------------------------


def refuse_overlap(
    spec: EstimatorSpec, records: Sequence[Record], *, groups: Groups = "category", what: str = "calibration"
) -> None:
    """Refuse to calibrate or test a score on a question that it was trained on, or whose ranks come from it.

    Scores there are too good. Questions are compared by id, and by their text with options; with clusters also by
    group. Other scores pass.

    Raises:
        UsageError: Naming how many records, the first ids, and the way out.
    """
    for made_of, training in _trainings(spec):
        shared = [record.id for record in _shared(training, records, groups)]
        if shared:
            more = ", ..." if len(shared) > 3 else ""
            raise UsageError(
                f"{len(shared)} of {len(records)} {what} records are among the {len(training.ids)} questions the "
                f"{made_of} (same id, same question, or same cluster): {', '.join(shared[:3])}{more}. Its scores there "
                "look better than on new questions, so that a threshold would promise too much. Use other questions."
            )


def _trainings(spec: EstimatorSpec) -> list[tuple[str, Training]]:
    """The questions that a score and its parts were made from, with its role."""
    if spec.name in COMBINATIONS:
        stored = Parts.from_stored(spec.params)
        own = [] if stored.ranks is None else [(f"score by {spec.name} has its ranks from", stored.ranks.questions)]
        return [*own, *(each for part in stored.parts for each in _trainings(part))]
    stored_training = spec.params.get(TRAINING) if spec.name.startswith(SCORE) else None
    if stored_training is None:
        return []
    return [(f"scorer {spec.name} was trained on", Training.model_validate(stored_training))]


def _shared(training: Training, records: Sequence[Record], groups: Groups) -> list[Record]:
    ids, questions, clusters = set(training.ids), set(training.questions), set(training.groups)
    return [
        record
        for record in records
        if hash_of(record.id) in ids
        or _question_hash(record) in questions
        or (groups == "cluster" and record.group is not None and hash_of(record.group) in clusters)
    ]


# -- A part by hash ----------------------------------------------------------------------------------------------------


def drawn_by_hash(
    records: Sequence[Record], share: float, *, groups: Groups = "category"
) -> tuple[list[Record], list[Record]]:
    """The records of the questions, or with clusters of the groups, with the smallest hashes; and the others.

    Equal questions, and clusters, stay together. Every run sets the same questions apart, for any order of records.
    """
    units = [_unit_hash(record, "choice", groups) for record in records]
    distinct = sorted(set(units))
    chosen = set(distinct[: round(share * len(distinct))])
    drawn = [record for record, unit in zip(records, units, strict=True) if unit in chosen]
    return drawn, [record for record, unit in zip(records, units, strict=True) if unit not in chosen]


def _unit_hash(record: Record, purpose: str, groups: Groups) -> str:
    # With the purpose, so that one drawn part says nothing about another.
    own = f"group {record.group}" if groups == "cluster" else f"question {_question_hash(record)}"
    return sha256_hex(f"{purpose} {own}", 16)


def _question_hash(record: Record) -> str:
    return question_hash(record.question, record.options)
