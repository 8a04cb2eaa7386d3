"""Records as a table: whole records by position, and what is known of all of them as arrays.

`table_of` makes one of any sequence of records. A large record file (`calibrate.data.columns`) has one whose columns
stand in a file beside it, and whose records are read one by one. Callers need not know which.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from guardrail.items.spec import ITEMS, mean_uncertainty
from guardrail.judges.json_value import read_json
from guardrail.plain_json import canonical_json
from guardrail.sampling.replies.ends import is_cut

from .item_columns import ItemColumns, lists_of
from .questions import Question, asked_of, fingerprint
from .record import Record, was_looked_at

AnswerKind = Literal["texts", "JSON objects", "tool calls"]
"""Form of a primary answer."""
KINDS: tuple[AnswerKind | None, ...] = (None, "texts", "JSON objects", "tool calls")
"""Forms of primary answers by their code in the column ``kind``; None without an answer."""

DRAWN, SOUND, ENDED, CUT, LOOKED_AT, FAILED = (1 << bit for bit in range(6))
"""Bits of the column ``flags``: answers were drawn, without a problem; the primary answer says how it ended, and that
it was cut off; a missing label was not for want of looking (`was_looked_at`); drawing failed for a cause that does not
depend on the question."""

_MOST_PAIRS = 1_000
"""Contradicting pairs that are compared by their texts."""

Places = NDArray[np.int64]
Codes = NDArray[np.int32]


class Source:
    """Records in memory and their columns, each computed when it is first asked for."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = tuple(records)
        self._columns: dict[str, NDArray[Any]] = {}

    def __len__(self) -> int:
        return len(self._records)

    def record(self, index: int) -> Record:
        """The record at an index."""
        return self._records[index]

    def column(self, name: str) -> NDArray[Any]:
        """A column of `columns_of`; one of scores that no record has is all -inf."""
        if name not in self._columns:
            self._columns[name] = columns_of(self._records, [name])[name]
        return self._columns[name]

    def texts(self, name: Literal["id", "group", "turns"]) -> list[str | None]:
        """A field of each record."""
        return [getattr(record, name) for record in self._records]

    def score_keys(self) -> set[str]:
        """Keys of the scores that some record may have."""
        return {key for record in self._records for key in record.scores}

    def items(self) -> ItemColumns:
        """The items of answers and their labels."""
        return ItemColumns.of(self._records)


class RecordTable(Sequence[Record]):
    """Records in order; arrays have an entry for each.

    Hashes have 64 bits, so that two of ten million records share one by chance with probability 3e-6. Wherever a
    shared hash would refuse something, the records themselves are compared.
    """

    __slots__ = ("_selected", "sources")

    def __init__(self, sources: Sequence[Source], selected: Places | None = None) -> None:
        self.sources = tuple(sources)
        self._selected = selected
        """Places in all sources together; None for all of them."""

    def __len__(self) -> int:
        return sum(map(len, self.sources)) if self._selected is None else self._selected.size

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordTable: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Record | RecordTable:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        place = index.__index__()
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return next(iter(self.take(np.array([place % len(self)]))))

    def __iter__(self) -> Iterator[Record]:
        ends = np.cumsum([len(source) for source in self.sources])
        positions = np.arange(len(self)) if self._selected is None else self._selected
        numbers = np.searchsorted(ends, positions, side="right")
        for number, position in zip(numbers.tolist(), positions.tolist(), strict=True):
            source = self.sources[number]
            yield source.record(position - int(ends[number]) + len(source))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equality reads all records

    def take(self, positions: NDArray[Any]) -> RecordTable:
        """The records at these positions, or those that a mask selects."""
        chosen = np.flatnonzero(positions) if positions.dtype == np.bool_ else positions
        return RecordTable(self.sources, chosen if self._selected is None else self._selected[chosen])

    def joined(self, others: Sequence[RecordTable]) -> RecordTable:
        """These records and those of other tables behind them."""
        tables = [self, *others]
        sources = [source for table in tables for source in table.sources]
        if all(table._selected is None for table in tables):
            return RecordTable(sources)
        sizes = [sum(map(len, table.sources)) for table in tables]
        positions = [np.arange(len(table)) if table._selected is None else table._selected for table in tables]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        return RecordTable(
            sources, np.concatenate([some + start for some, start in zip(positions, starts, strict=True)])
        )

    def column(self, name: str) -> NDArray[Any]:
        """A column of `columns_of`."""
        columns = [source.column(name) for source in self.sources]
        whole = columns[0] if len(columns) == 1 else np.concatenate(columns or [columns_of((), [name])[name]])
        return whole if self._selected is None else whole[self._selected]

    def _texts(self, name: Literal["id", "group", "turns"]) -> list[Any]:
        texts = [text for source in self.sources for text in source.texts(name)]
        return texts if self._selected is None else [texts[position] for position in self._selected.tolist()]

    @property
    def ids(self) -> list[str]:
        """Id of each record."""
        return self._texts("id")

    @property
    def groups(self) -> list[str | None]:
        """Group of each record."""
        return self._texts("group")

    def coded(self, name: Literal["id", "group", "turns"]) -> tuple[Codes, list[str | None]]:
        """A column of texts: the number of its text for each record, and the texts in order of appearance."""
        number: dict[str | None, int] = {}
        codes = [number.setdefault(text, len(number)) for text in self._texts(name)]
        return np.array(codes, dtype=np.int32), list(number)

    def units(self, name: Literal["id", "group"]) -> tuple[Places, int]:
        """Number of each record's text among the distinct texts of a column, sorted, and how many there are."""
        codes, texts = self.coded(name)
        rank = np.empty(len(texts), dtype=np.int64)
        rank[sorted(range(len(texts)), key=lambda i: str(texts[i]))] = np.arange(len(texts))
        return rank[codes], len(texts)

    def scores(self, key: str) -> NDArray[np.float64]:
        """Scores of an estimator; NaN without one."""
        values = self.column(f"score:{key}")
        return np.where(np.isfinite(values), values, np.nan)

    def compared(self, key: str) -> NDArray[np.float64]:
        """The number by which answers are compared with others: their score, with items the mean over these; or NaN."""
        if key != ITEMS:
            return self.scores(key)
        columns = self.items()
        values = (uncertainties.tolist() for uncertainties in lists_of(columns.size, columns.uncertainty))
        means = (
            mean_uncertainty([None if value != value else value for value in uncertainties]) for uncertainties in values
        )
        return np.array([math.nan if mean is None else mean for mean in means], dtype=np.float64)

    def scored(self, key: str) -> NDArray[np.bool_]:
        """Return which records an estimator looked at, whether or not it could measure them."""
        return ~np.isneginf(self.column(f"score:{key}"))

    def failed(self, key: str | None = None) -> NDArray[np.bool_]:
        """Return which records have no score because a server, a rate limit or a time-out failed.

        Args:
            key: Of the score; None for the answers alone.
        """
        failed: NDArray[np.bool_] = (self.flags() & FAILED) != 0
        return failed if key is None else failed | np.isposinf(self.column(f"score:{key}"))

    def score_keys(self) -> set[str]:
        """Keys of the estimators that looked at some record."""
        keys = {key for source in self.sources for key in source.score_keys()}
        return {key for key in keys if self.scored(key).any()}

    def items(self) -> ItemColumns:
        """The items of answers and their labels."""
        columns = ItemColumns.joined([source.items() for source in self.sources])
        return columns if self._selected is None else columns.take(self._selected)

    def fingerprint(self) -> str:
        """SHA-256 over the sorted digests of the questions, so that the order of the records does not matter."""
        rows = self.column("row")
        order = np.lexsort((rows[:, 1], rows[:, 0]))
        return sha256(rows[order].astype(">u8").tobytes()).hexdigest()

    def questions_sha256(self) -> str:
        """Fingerprint of the questions for the header of a file: a pool of large files is not stored, so `row` does."""
        if all(type(source) is Source for source in self.sources):
            return fingerprint(record.to_question() for record in self)
        return self.fingerprint()

    def labels(self) -> NDArray[np.int8]:
        """1 for a right answer, 0 for a wrong one, -1 without a label, also where it is undecided."""
        return self.column("label")

    def undecided(self) -> NDArray[np.bool_]:
        """Return which records are undecided; see `Record.is_undecided`."""
        mask: NDArray[np.bool_] = (self.labels() < 0) & ((self.flags() & LOOKED_AT) != 0)
        return mask & (self.column("kind") > 0)

    def counted_labels(self) -> NDArray[np.int8]:
        """Labels with undecided answers as wrong ones: dropping them would leave out the answers that err most."""
        return np.where(self.undecided(), np.int8(0), self.labels())

    def flags(self) -> NDArray[np.uint8]:
        """The bits `DRAWN` to `FAILED`."""
        return self.column("flags")

    def id_hashes(self) -> NDArray[np.uint64]:
        """Hash of the id."""
        return self.column("id_hash")

    def asked_hashes(self) -> NDArray[np.uint64]:
        """Hash of `Question.asked`: of the question under any id."""
        return self.column("asked")

    def labelled(self, key: str) -> NDArray[np.bool_]:
        """Which records have the labels that belong to the scores of a key; undecided answers count as wrong ones."""
        return self.items().labelled if key == ITEMS else self.counted_labels() >= 0

    def usable(self, key: str) -> NDArray[np.bool_]:
        """Return which records have a score and a label; undecided answers count as wrong."""
        mask: NDArray[np.bool_] = ~np.isnan(self.scores(key)) & self.labelled(key)
        return mask

    def unscored(self, key: str) -> int:
        """Records with sound answers that an estimator did not look at."""
        return int(np.count_nonzero(((self.flags() & SOUND) != 0) & ~self.scored(key)))

    def kinds(self) -> Counter[AnswerKind]:
        """Number of primary answers of each form, the form of the first answer first."""
        code, first, count = np.unique(self.column("kind"), return_index=True, return_counts=True)
        ordered = [(KINDS[code[i]], int(count[i])) for i in np.argsort(first).tolist()]
        return Counter({kind: n for kind, n in ordered if kind is not None})

    def repeated(self) -> tuple[int, int] | None:
        """Positions of the first record whose id an earlier one has, the earlier one first; None if all ids differ."""
        positions = _with_equals(self.id_hashes())
        first: dict[str, int] = {}
        for position, record in zip(positions.tolist(), self.take(positions), strict=True):
            if first.setdefault(record.id, position) != position:
                return first[record.id], position
        return None

    def both_ways(self) -> tuple[Places, int]:
        """Pairs of records with one question and answer and different labels (`calibrate.data.labels`).

        Returns:
            Positions of up to a thousand pairs by the later record, shape (pairs, 2), and the number of all.
        """
        hashes = self.asked_hashes() ^ self.column("answer")
        labels = self.labels()
        positions = _with_equals(hashes)
        # By hash and label the position of the first such answer: what contradicts a later one.
        first: dict[tuple[int, int], int] = {}
        pairs: list[tuple[int, int]] = []
        for position, code, label in zip(
            positions.tolist(), hashes[positions].tolist(), labels[positions].tolist(), strict=True
        ):
            if label < 0:
                continue
            first.setdefault((code, label), position)
            if (code, 1 - label) in first:
                pairs.append((first[code, 1 - label], position))
        return np.array(pairs[:_MOST_PAIRS], dtype=np.int64).reshape(-1, 2), len(pairs)


def table_of(records: Sequence[Record]) -> RecordTable:
    """The records as a table; a table is returned unchanged."""
    return records if isinstance(records, RecordTable) else RecordTable([Source(records)])


def among(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of the values are among the sorted known ones: `numpy.isin`, in a tenth of its time for millions."""
    mask = np.zeros(values.size, dtype=np.bool_)
    if known.size:
        order = np.argsort(values)  # values in order find their places without a cache miss for each
        ranked = values[order]
        position = np.searchsorted(known, ranked)
        mask[order] = known[np.minimum(position, known.size - 1, out=position)] == ranked
    return mask


def _with_equals(values: NDArray[np.uint64]) -> Places:
    """Places of the values that occur more than once."""
    ranked = np.sort(values)
    twice = ranked[1:][ranked[1:] == ranked[:-1]]
    return np.flatnonzero(among(values, twice)) if twice.size else np.empty(0, dtype=np.int64)


# -- The columns: of records, or of what `calibrate.data.columns` decodes of their lines, which has the same fields ----


def columns_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Columns by name, with an entry for each row.

    Args:
        rows: Records.
        names: Of `NUMBERS` and `DIGESTS`, or "score:KEY". A column of scores has NaN where the score could not be
            measured, infinity where a server failed, and -infinity where the estimator did not look at the record.
    """
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        if name.startswith("score:"):
            key = name.removeprefix("score:")
            columns[name] = np.array([_stored(row.scores.get(key)) for row in rows], dtype=np.float64)
        elif name in NUMBERS:
            dtype, number_of = NUMBERS[name]
            columns[name] = np.array([number_of(row) for row in rows], dtype=dtype)
        else:
            size, text_of = DIGESTS[name]
            digests = b"".join([sha256(text_of(row).encode()).digest()[:size] for row in rows])
            whole = np.frombuffer(digests, dtype=">u8").astype(np.uint64)
            columns[name] = whole if size == 8 else whole.reshape(-1, size // 8)
    return columns


def _flags(row: Any) -> int:
    """The bits `DRAWN` to `FAILED`."""
    bits = LOOKED_AT if row.label_detail and was_looked_at(row.label_detail) else 0
    if row.drawn is None:
        return bits
    problem = row.drawn.problem
    bits |= DRAWN | (SOUND if problem is None else 0 if problem.depends_on_question else FAILED)
    return bits if row.drawn.primary is None else bits | _ending(row.drawn.primary.finish_reason)


@cache  # there are few reasons, and many records
def _ending(reason: str | None) -> int:
    return 0 if reason is None else ENDED | CUT if is_cut(reason) else ENDED


def _kind(row: Any) -> int:
    """The form of the primary answer, as a code of `KINDS`."""
    primary = None if row.drawn is None else row.drawn.primary
    if primary is None:
        return 0
    if primary.tool_calls:
        return 3
    try:
        # Most answers hold no brace, and parsing them would take longer than all else that is done with a line.
        return 2 if "{" in primary.text and isinstance(read_json(primary.text), dict) else 1
    except ValueError:
        return 1


def _answered(row: Any) -> str:
    """One text for equal answers, as `calibrate.data.labels.refuse_contradictions` compares them."""
    primary = None if row.drawn is None else row.drawn.primary
    if primary is None:
        return ""
    calls = [{"name": call.name, "arguments": call.arguments} for call in primary.tool_calls]
    return f"\0{primary.text.strip()}\0{canonical_json(calls) if calls else ''}"


def _row(row: Any) -> str:
    """The canonical JSON of the question; with text and references alone it is spelled here, several times as fast."""
    bare = row.options is row.slots is row.tools is row.messages is None
    if row.rejected or not bare:
        question = Question(**{name: getattr(row, name) for name in Question.model_fields})
        return canonical_json(question.model_dump())
    group = "null" if row.group is None else encode_basestring(row.group)
    references = ",".join(map(encode_basestring, row.references))
    return (
        f'{{"group":{group},"id":{encode_basestring(row.id)},"options":null,'
        f'"question":{encode_basestring(row.question)},"references":[{references}]}}'
    )


def _stored(score: Any) -> float:
    if score is None:
        return -math.inf
    if score.value is not None:
        return float(score.value)
    return math.nan if score.reason is None or score.reason.depends_on_question else math.inf


NUMBERS: dict[str, tuple[DTypeLike, Callable[[Any], int]]] = {
    "label": (np.int8, lambda row: -1 if row.correct is None else row.correct),
    "flags": (np.uint8, _flags),
    "kind": (np.uint8, _kind),
}
"""Columns of numbers that every table has, with the number of a record."""

DIGESTS: dict[str, tuple[int, Callable[[Any], str]]] = {
    "id_hash": (8, lambda row: str(row.id)),
    "asked": (8, asked_of),
    "answer": (8, _answered),
    "row": (16, _row),
}
"""Columns of digests that every table has: the first bytes of SHA-256 over a text, in words of 64 bits."""
