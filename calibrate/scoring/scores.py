"""Scores and labels of records as the arrays that threshold rules take."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import MOST_FAILED, CalibrationScores
from guardrail.errors import UsageError
from guardrail.explain import WAY_OUT
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.notebook import percent
from guardrail.specs import EstimatorSpec

from ..data.records import Record
from ..data.split import one_per_cluster
from ..data.table import RecordTable, table_of
from ..rules import Unit
from ..spec_syntax import estimator_flags
from .items import ScoredItems

__all__ = ["Scored", "Units", "arrays", "refuse_failed", "scored_by", "units_of", "unmeasured_among"]

_MOST_REASONS = 10_000
"""Records of a large file that are asked why they have no score, where none has one."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The items a threshold rule can use, and how many it cannot.

    Attributes:
        records: The records of these items, in order.
        ids: Their ids, shape (n,).
        uncertainty: Scores, shape (n,); higher is less certain.
        error: 1 where the answer is wrong or undecided, shape (n,).
        group: The question file's group of each item, or None when any item has none.
        n_unmeasured: Records without a score. They always abstain.
        n_unlabelled: Records with a score but without a label.
        n_undecided: Items that are undecided (`Record.is_undecided`).
    """

    records: RecordTable
    ids: Sequence[str]
    uncertainty: NDArray[np.float64]
    error: NDArray[np.int8]
    group: Sequence[str] | None
    n_unmeasured: int
    n_unlabelled: int
    n_undecided: int

    def stored(self, *, clusters: bool) -> CalibrationScores:
        """The part that an artifact keeps; with the cluster of each answer if these are its units."""
        return CalibrationScores(
            uncertainty=array("d", self.uncertainty.tobytes()),
            error=array("b", self.error.tobytes()),
            group=tuple(self.group) if clusters and self.group is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Units:
    """The questions of a fit as a rule reads them: those that could not be measured are among them.

    With items a row is an item, its group is its answer, and a question that could not be measured is a row.

    Attributes:
        u: Scores, shape (n,); +inf where the question could not be measured, which no threshold accepts.
        wrong: 1 where the answer is wrong or undecided, shape (n,); 0 where it was not measured.
        group: Group of each question, where asked for; of an item its answer.
        cap: Most items of an answer that are ever kept; None for whole answers.
    """

    u: NDArray[np.float64]
    wrong: NDArray[np.int8]
    group: Sequence[str] | None
    cap: int | None = None

    @property
    def n(self) -> int:
        """Number of questions."""
        return self.u.size if self.cap is None or self.group is None else len(set(self.group))

    @property
    def unit(self) -> Unit:
        """The kind of row: a whole answer, or an item of one."""
        return "answer" if self.cap is None else "item"


def unmeasured_among(n_used: int, n_unlabelled: int, n_unmeasured: int) -> int:
    """The part of the unmeasured questions that belongs to the labelled ones.

    All of them, where every measured question has a label; of a random part that was labelled, the same share. Nobody
    labels a question without a score, so labels do not tell.
    """
    return round(n_unmeasured * n_used / (n_used + n_unlabelled))


def arrays(records: Sequence[Record], key: str) -> Scored:
    """The items that have both a score by ``key`` and a label; undecided answers count as wrong.

    Raises:
        UsageError: No record is usable; the message says which step is missing.
    """
    table = table_of(records)
    values, label, n = table.scores(key), table.counted_labels(), len(table)
    present = table.score_keys()
    # Records without samples have nothing to score, but of several imported scores one may be named wrongly.
    if unscored := n if present and key not in present else table.unscored(key):
        raise _unscored_error(unscored, n, present, key)
    measured = ~np.isnan(values)
    usable = measured & (label >= 0)
    selected, n_unlabelled = table.take(usable), int(np.count_nonzero(measured & (label < 0)))
    if not len(selected):
        # Reasons need whole records, which is slow in a large file, and the most common one shows early.
        reasons = Counter(_why(record, key) for record in table[:_MOST_REASONS])
        raise UsageError(_nothing_usable(n, reasons, n_unlabelled))
    return Scored(
        records=selected,
        ids=selected.ids,
        uncertainty=values[usable],
        # Labels are 1 for right; unlabelled records (-1) are masked out, so this is 0 or 1.
        error=1 - label[usable],
        group=None if None in selected.coded("group")[1] else cast(Sequence[str], selected.groups),
        n_unmeasured=n - int(np.count_nonzero(measured)),
        n_unlabelled=n_unlabelled,
        n_undecided=int(np.count_nonzero(selected.undecided())),
    )


def scored_by(records: Sequence[Record], key: str, spec: EstimatorSpec | None) -> Scored | ScoredItems:
    """The labelled answers with a score: whole, or with their items where that is what the score is of.

    Raises:
        UsageError: As `arrays` and `ScoredItems.of`.
    """
    if spec is not None and spec.name == ITEMS:
        return ScoredItems.of(table_of(records), ItemsSpec.of(spec))
    return arrays(records, key)


def units_of(records: Sequence[Record], key: str, *, groups: bool = False, spec: EstimatorSpec | None = None) -> Units:
    """The labelled records, and those without a score that belong to them.

    Where only a part of the records is labelled, the first unmeasured ones stand for those of that part.

    Args:
        records: The records.
        key: Key of the score.
        groups: Whether groups are clusters: of whole answers they are kept, of answers with items one of each is.
        spec: The score; by its items if it is that of items.

    Raises:
        UsageError: As `scored_by`.
    """
    if groups and spec is not None and spec.name == ITEMS:
        records = one_per_cluster(records)  # the group of an item is its answer
    scored = scored_by(records, key, spec)
    n = unmeasured_among(len(scored.ids), scored.n_unlabelled, scored.n_unmeasured)
    infinite, right = np.full(n, np.inf), np.zeros(n, dtype=np.int8)
    if isinstance(scored, ScoredItems):
        items = scored.items
        names = [*items.group, *(f"unmeasured {i}" for i in range(n))]
        u, wrong = np.append(items.uncertainty, infinite), np.append(items.wrong.astype(np.int8), right)
        return Units(u, wrong, names, items.cap)
    u, wrong = np.append(scored.uncertainty, infinite), np.append(scored.error, right)
    if not groups or scored.group is None:
        return Units(u, wrong, None)
    table = table_of(records)
    unmeasured = table.take(np.isnan(table.scores(key)))
    return Units(u, wrong, [*scored.group, *(str(group) for group in unmeasured.groups[:n])])


def refuse_failed(records: Sequence[Record], key: str | None = None, *, allowed: bool = False) -> int:
    """Refuse records of which too many have no score because a server, a rate limit or a time-out failed.

    Such answers are neither right nor wrong. Long and hard questions fail more often, so the others are easier than
    what is asked at run time, and a threshold that is fitted on them alone promises too much.

    Args:
        records: The records of a fit or a test.
        key: Key of the score; None where none is computed yet.
        allowed: Whether any number may be left out.

    Returns:
        The number of such records, at most `MOST_FAILED` of all unless ``allowed``.

    Raises:
        UsageError: There are more.
    """
    table = table_of(records)
    failed = table.failed(key) if key is None else table.failed(key) & np.isnan(table.scores(key))
    n, total = int(np.count_nonzero(failed)), len(table)
    if allowed or n <= MOST_FAILED * total:
        return n
    first = table[int(np.argmax(failed))]
    what = "answer" if key is None else f"{key} score"
    raise UsageError(
        f"{n} of {total} questions ({percent(n / total)}) have no {what} because a server, a rate limit or a "
        f"time-out failed, e.g. {first.id!r}: {_why(first, key)}. They are neither right nor wrong, and long and hard "
        "questions fail more often, so a threshold for the others promises too much. Ask only these again: the same "
        "`calibrate run` or `collect` does that, and `score` for a scorer; imported rows need an answer. Or leave them "
        "out: --without-failed (in Python without_failed=True), and the promise states their share."
    )


def _unscored_error(unscored: int, n: int, known: Iterable[str], key: str) -> UsageError:
    present = ", ".join(sorted(known)) or "none"
    return UsageError(
        f"{unscored} of {n} records have no {key!r} score (scores present: {present}). Run: calibrate score RECORDS "
        f"{estimator_flags(key)}"
    )


def _why(record: Record, key: str | None) -> str:
    score = None if key is None else record.scores.get(key)
    if score is not None and score.reason is not None:
        return f"{score.reason.value}: {score.detail}"
    if record.drawn is not None and record.drawn.problem is not None:
        return f"{record.drawn.problem.value}: {record.drawn.problem_detail}"
    return "no score"


def _nothing_usable(n: int, unmeasured: Counter[str], unlabelled: int) -> str:
    if not n:
        return "the record file holds no record. Collect some first."
    if unlabelled:
        return (
            f"none of {n} records has a label ({unlabelled} have a score only). Run: calibrate label RECORDS; if you "
            "did, the questions have no references, or none the rule can compare."
        )
    reason, count = unmeasured.most_common(1)[0]
    ways_out = (text for cause, text in WAY_OUT.items() if reason.startswith(cause))
    way_out = next(ways_out, "Collect with a plan that draws it.")
    return f"none of {n} records could be measured; {count} of them: {reason}. {way_out}"
