"""Records as a table: whole records by position, and what is known of all of them as arrays.

`table_of` makes one of any sequence of records. A record file has one already (`RecordFile.records`): of records in
memory, or of the columns beside a large file (`calibrate.data.column_store`). Callers need not know which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b, sha256
from itertools import chain
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from guardrail.judges.json_value import read_json
from guardrail.plain_json import canonical_json
from guardrail.sampling.replies import is_cut

from .item_columns import ItemColumns
from .questions import fingerprint, question_digest, row_digest, rows_fingerprint
from .record import Record, was_looked_at

__all__ = ["AnswerKind", "Codes", "Places", "RecordTable", "RecordsInMemory", "among", "table_of"]

AnswerKind = Literal["texts", "JSON objects", "tool calls"]
"""Form of a primary answer."""
KINDS: tuple[AnswerKind | None, ...] = (None, "texts", "JSON objects", "tool calls")
"""Forms of primary answers by their code in the column ``kind``; None without an answer."""

DRAWN, SOUND, ENDED, CUT, LOOKED_AT, FAILED = (1 << bit for bit in range(6))
"""Bits of the column ``flags``: answers were drawn, without a problem; the primary answer says how it ended, and that
it was cut off; a missing label was not for want of looking (`was_looked_at`); drawing failed for a cause that does not
depend on the question."""

DTYPES: dict[str, DTypeLike] = {
    "label": np.int8,
    "flags": np.uint8,
    "kind": np.uint8,
    "id_hash": np.uint64,
    "question": np.uint64,
    "asked": np.uint64,
    "key": np.uint64,
}
"""Columns of numbers that every table has."""

_MOST_PAIRS = 1_000
"""Contradicting pairs that are compared by their texts."""

Places = NDArray[np.int64]
Codes = NDArray[np.int32]


class RecordTable(Sequence[Record], ABC):
    """Records in order; arrays have an entry for each.

    Hashes have 64 bits, so that two of ten million records share one by chance with probability 3e-6. Wherever a
    shared hash would refuse something, the records themselves are compared.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordTable: ...
    @abstractmethod
    def __getitem__(self, index: SupportsIndex | slice) -> Record | RecordTable: ...

    @abstractmethod
    def take(self, places: NDArray[Any]) -> RecordTable:
        """The records at these positions, or those that a mask selects."""

    @abstractmethod
    def joined(self, others: Sequence[RecordTable]) -> RecordTable:
        """These records and those of other tables behind them."""

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """Id of each record."""

    @property
    @abstractmethod
    def groups(self) -> Sequence[str | None]:
        """Group of each record."""

    @abstractmethod
    def numbers(self, name: str) -> NDArray[Any]:
        """A column of `DTYPES`."""

    @abstractmethod
    def coded(self, name: Literal["group", "turns"]) -> tuple[Codes, list[str | None]]:
        """A column whose texts repeat: the number of its text for each record, and the texts in order of appearance."""

    @abstractmethod
    def scores(self, key: str) -> NDArray[np.float64]:
        """Scores of an estimator; NaN without one."""

    @abstractmethod
    def scored(self, key: str) -> NDArray[np.bool_]:
        """Which records an estimator looked at, whether or not it could measure them."""

    @abstractmethod
    def failed(self, key: str | None = None) -> NDArray[np.bool_]:
        """Which records have no score because a server, a rate limit or a time-out failed.

        Args:
            key: Of the score; None for the answers alone.
        """

    @abstractmethod
    def score_keys(self) -> set[str]:
        """Keys of the estimators that looked at some record."""

    @abstractmethod
    def items(self, key: str) -> ItemColumns:
        """The items of answers under a key, and their labels."""

    @abstractmethod
    def fingerprint(self) -> str:
        """`calibrate.data.questions.rows_fingerprint` of the questions."""

    @abstractmethod
    def questions_sha256(self) -> str:
        """Fingerprint of the questions for the header of a file."""

    def labels(self) -> NDArray[np.int8]:
        """1 for a right answer, 0 for a wrong one, -1 without a label, also where it is undecided."""
        return self.numbers("label")

    def undecided(self) -> NDArray[np.bool_]:
        """Which records are undecided; see `Record.is_undecided`."""
        mask: NDArray[np.bool_] = (self.labels() < 0) & ((self.flags() & LOOKED_AT) != 0)
        # The form of an answer takes longer than all else here, and most files have nothing undecided.
        return mask & (self.numbers("kind") > 0) if mask.any() else mask

    def counted_labels(self) -> NDArray[np.int8]:
        """Labels with undecided answers as wrong ones: dropping them would leave out the answers that err most."""
        return np.where(self.undecided(), np.int8(0), self.labels())

    def flags(self) -> NDArray[np.uint8]:
        """The bits `DRAWN` to `FAILED`."""
        return self.numbers("flags")

    def id_hashes(self) -> NDArray[np.uint64]:
        """First 8 bytes of SHA-256 over the id."""
        return self.numbers("id_hash")

    def question_hashes(self) -> NDArray[np.uint64]:
        """`calibrate.data.questions.question_digest` of the question."""
        return self.numbers("question")

    def asked_hashes(self) -> NDArray[np.uint64]:
        """Hash of `Question.asked`, which leaves out the id."""
        return self.numbers("asked")

    def usable(self, key: str) -> NDArray[np.bool_]:
        """Which records have a score and a label; undecided answers count as wrong."""
        mask: NDArray[np.bool_] = ~np.isnan(self.scores(key)) & (self.counted_labels() >= 0)
        return mask

    def unscored(self, key: str) -> int:
        """Records with sound answers that an estimator did not look at."""
        return int(np.count_nonzero(((self.flags() & SOUND) != 0) & ~self.scored(key)))

    def kinds(self) -> Counter[AnswerKind]:
        """Number of primary answers of each form, the form of the first answer first."""
        code, first, count = np.unique(self.numbers("kind"), return_index=True, return_counts=True)
        ordered = [(KINDS[code[i]], int(count[i])) for i in np.argsort(first).tolist()]
        return Counter({kind: n for kind, n in ordered if kind is not None})

    def units(self, name: Literal["id", "group"]) -> tuple[Places, int]:
        """Number of each record's text among the distinct texts of a column, sorted, and how many there are."""
        if name == "id":
            places, texts = _coded(self.ids)
        else:
            places, texts = self.coded(name)
        rank = np.empty(len(texts), dtype=np.int64)
        rank[sorted(range(len(texts)), key=lambda i: str(texts[i]))] = np.arange(len(texts))
        return rank[places], len(texts)

    def first_of_groups(self) -> Places:
        """Positions of one record of each group in order, the one whose id has the smallest hash."""
        codes, _ = self.coded("group")
        order = np.lexsort((self.id_hashes(), codes))
        is_first = np.concatenate(([True], np.diff(codes[order]) != 0)) if order.size else order
        return np.sort(order[is_first])

    def repeated(self) -> tuple[int, int] | None:
        """Positions of the first record whose id an earlier one has, the earlier one first; None if all ids differ."""
        pairs = _equal_pairs(self.id_hashes())
        places = np.unique(pairs)
        name_of = dict(zip(places.tolist(), self.take(places).ids if places.size else (), strict=True))
        return next(((a, b) for a, b in pairs.tolist() if name_of[a] == name_of[b]), None)

    def both_ways(self) -> tuple[Places, int]:
        """Pairs of records with one question and answer and different labels: `calibrate.data.labels.contradictions`.

        Returns:
            Positions of up to a thousand pairs by the later record, shape (pairs, 2), and the number of all.
        """
        hashes = self.numbers("key")
        places = _with_equals(hashes)
        right = self.labels()[places]
        places, right = places[right >= 0], right[right >= 0]
        if not places.size:
            return np.empty((0, 2), dtype=np.int64), 0
        order = np.argsort(hashes[places], kind="stable")
        ranked_hashes = hashes[places][order]
        start = np.flatnonzero(np.concatenate(([True], ranked_hashes[1:] != ranked_hashes[:-1])))
        run = np.repeat(np.arange(start.size), np.diff(np.append(start, ranked_hashes.size)))
        ranked, far = right[order], ranked_hashes.size
        # Places within `known` of the first wrong and the first right record of each run; `far` if the run lacks it.
        firsts = np.stack([np.minimum.reduceat(np.where(ranked == label, order, far), start) for label in (0, 1)])
        other = firsts[1 - ranked.astype(np.int64), run]
        later = np.flatnonzero(other < order)
        shown = later[np.argsort(order[later])][:_MOST_PAIRS]
        return np.stack([places[other[shown]], places[order[shown]]], axis=1), later.size


class RecordsInMemory(tuple[Record, ...], RecordTable):
    """A tuple of records; each column is computed when it is asked for."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordsInMemory: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Record | RecordsInMemory:
        if isinstance(index, slice):
            return RecordsInMemory(super().__getitem__(index))
        return super().__getitem__(index)

    def take(self, places: NDArray[Any]) -> RecordsInMemory:
        """The records at these positions, or those that a mask selects."""
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else places
        return RecordsInMemory(self[place] for place in chosen.tolist())

    def joined(self, others: Sequence[RecordTable]) -> RecordTable:
        """These records and those of other tables behind them, in memory."""
        return RecordsInMemory(chain(self, *others))

    @property
    def ids(self) -> tuple[str, ...]:
        """Id of each record."""
        return tuple(record.id for record in self)

    @property
    def groups(self) -> tuple[str | None, ...]:
        """Group of each record."""
        return tuple(record.group for record in self)

    def numbers(self, name: str) -> NDArray[Any]:
        """A column of `DTYPES`."""
        number_of = _NUMBER_OF[name]
        return np.array([number_of(record) for record in self], dtype=DTYPES[name])

    def coded(self, name: Literal["group", "turns"]) -> tuple[Codes, list[str | None]]:
        """A column whose texts repeat: the number of its text for each record, and the texts in order of appearance."""
        return _coded(getattr(record, name) for record in self)

    def scores(self, key: str) -> NDArray[np.float64]:
        """Scores of an estimator; NaN without one."""
        scores = (record.scores.get(key) for record in self)
        values = [np.nan if score is None or score.value is None else score.value for score in scores]
        return np.array(values, dtype=np.float64)

    def scored(self, key: str) -> NDArray[np.bool_]:
        """Which records an estimator looked at, whether or not it could measure them."""
        return np.array([key in record.scores for record in self], dtype=np.bool_)

    def failed(self, key: str | None = None) -> NDArray[np.bool_]:
        """Which records have no score because a server, a rate limit or a time-out failed."""
        failed = [record.may_be_drawn_again or failed_score(record.scores.get(key or "")) for record in self]
        return np.array(failed, dtype=np.bool_)

    def score_keys(self) -> set[str]:
        """Keys of the estimators that looked at some record."""
        return {key for record in self for key in record.scores}

    def items(self, key: str) -> ItemColumns:
        """The items of answers under a key, and their labels."""
        return ItemColumns.of(self, key)

    def fingerprint(self) -> str:
        """`calibrate.data.questions.rows_fingerprint` of the questions."""
        return rows_fingerprint(sorted(row_digest(record.to_question()) for record in self))

    def questions_sha256(self) -> str:
        """`calibrate.data.questions.fingerprint` of the questions."""
        return fingerprint(record.to_question() for record in self)


def table_of(records: Sequence[Record]) -> RecordTable:
    """The records as a table; a table is returned unchanged."""
    return records if isinstance(records, RecordTable) else RecordsInMemory(records)


def among(values: NDArray[Any], known: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of the values are among the sorted known ones: `numpy.isin`, in a tenth of its time for millions."""
    mask = np.zeros(values.size, dtype=np.bool_)
    if known.size:
        order = np.argsort(values)  # values in order find their places without a cache miss for each
        ranked = values[order]
        place = np.searchsorted(known, ranked)
        mask[order] = known[np.minimum(place, known.size - 1, out=place)] == ranked
    return mask


def _coded(texts: Iterable[str | None]) -> tuple[Codes, list[str | None]]:
    number: dict[str | None, int] = {}
    codes = [number.setdefault(text, len(number)) for text in texts]
    return np.array(codes, dtype=np.int32), list(number)


def _equal_pairs(hashes: NDArray[np.uint64]) -> Places:
    """Pairs of the first place of a hash that repeats and each later one, shape (pairs, 2), by the later place."""
    places = _with_equals(hashes)
    first: dict[int, int] = {}
    pairs = [
        (first.setdefault(value, place), place)
        for value, place in zip(hashes[places].tolist(), places.tolist(), strict=True)
    ]
    return np.array([pair for pair in pairs if pair[0] != pair[1]], dtype=np.int64).reshape(-1, 2)


def _with_equals(values: NDArray[np.uint64]) -> Places:
    """Places of the values that occur more than once."""
    ranked = np.sort(values)
    twice = ranked[1:][ranked[1:] == ranked[:-1]]
    return np.flatnonzero(among(values, twice)) if twice.size else np.empty(0, dtype=np.int64)


# -- Columns of one record; also of what `calibrate.data.column_build` decodes of a line, which has the same fields ----


def asked_text(row: Any) -> str:
    """One text for equal `Question.asked`; that of a question with no options and tools needs no JSON."""
    if row.options is None and row.tools is None:
        return str(row.question.strip())
    tools = None if row.tools is None else sorted(map(canonical_json, row.tools))
    return "\0" + canonical_json([row.question.strip(), row.options, tools])


def answered_text(primary: Any) -> str:
    """One text for equal answers, as `calibrate.data.labels.contradictions` compares them."""
    if not primary.tool_calls:
        return f"\0{primary.text.strip()}\0"
    calls = [{"name": call.name, "arguments": call.arguments} for call in primary.tool_calls]
    return f"\0{primary.text.strip()}\0{canonical_json(calls)}"


def flags_of(row: Any) -> int:
    """The bits `DRAWN` to `FAILED`."""
    bits = LOOKED_AT if was_looked_at(row.label_detail) else 0
    if row.drawn is None:
        return bits
    problem = row.drawn.problem
    bits |= DRAWN | (SOUND if problem is None else 0 if problem.depends_on_question else FAILED)
    return bits if row.drawn.primary is None else bits | _ending(row.drawn.primary.finish_reason)


def _ending(reason: str | None) -> int:
    return 0 if reason is None else ENDED | CUT if is_cut(reason) else ENDED


def failed_score(score: Any) -> bool:
    """Whether a score is missing for a cause that does not depend on the question."""
    return score is not None and score.reason is not None and not score.reason.depends_on_question


def kind_of(row: Any) -> int:
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


def _key(record: Record) -> int:
    primary = None if record.drawn is None else record.drawn.primary
    return _short_hash(asked_text(record) + ("" if primary is None else answered_text(primary)))


def _short_hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


_NUMBER_OF: dict[str, Callable[[Record], int]] = {
    "label": lambda record: -1 if record.correct is None else record.correct,
    "flags": flags_of,
    "kind": kind_of,
    "id_hash": lambda record: int.from_bytes(sha256(record.id.encode()).digest()[:8]),
    "question": lambda record: int.from_bytes(question_digest(record.to_question())),
    "asked": lambda record: _short_hash(asked_text(record)),
    "key": _key,
}
