"""Labels as files write them: which values say right, which say wrong, and what becomes of all others."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from guardrail.errors import UsageError

from ..row import RawRow, is_nan, short
from .field_map import OtherLabels

WORDS = {
    **dict.fromkeys(("true", "t", "1", "1.0", "yes", "y", "right", "correct", "pass", "passed"), True),
    **dict.fromkeys(("false", "f", "0", "0.0", "no", "n", "wrong", "incorrect", "fail", "failed"), False),
}
"""What labels say in usual words, in small letters."""


@dataclass(slots=True)
class Labels:
    """Reads labels, and counts what it cannot read until `finish` knows all values of the file.

    Attributes:
        right: Values that say right; case does not count. Without any, the usual words.
        cut: Labels are grades, and right from this number on.
        other: What any other value is; None: the file is refused.
    """

    right: tuple[str, ...] = ()
    cut: float | None = None
    other: OtherLabels | None = None
    _unknown: Counter[str] = field(default_factory=Counter)
    _n_right: int = 0
    _n_known: int = 0
    _n_apart: int = 0

    def read(self, row: RawRow, column: str, *, of_errors: bool = False) -> bool | None:
        """Return whether the label in a column says right; None without one, or where several people disagree.

        Args:
            row: The row.
            column: Its column with labels.
            of_errors: The column says whether the answer is wrong: usual words and grades are read the other way
                round. The words of ``right`` say right in any column.

        Raises:
            RecordError: With a cut, a value that is not a number; an object.
        """
        value = row.values.get(column)
        values = value if isinstance(value, list) else [value]
        there = [item for item in values if item is not None and str(item).strip()]
        read = {self._one(row, column, item, of_errors) for item in there}
        self._n_apart += len(read) > 1
        return read.pop() if len(read) == 1 else None

    def _one(self, row: RawRow, column: str, value: Any, of_errors: bool) -> bool | None:
        if isinstance(value, dict | list):
            paths = [f"{column}.{name}" for name in list(value)[:4]] if isinstance(value, dict) else [f"{column}[0]"]
            raise row.fail(
                column, value, f"a label is a single value. Name the path to it: --map correct={' or '.join(paths)}"
            )
        word = str(value).strip().lower()
        if self.cut is not None:
            grade = row.number_or_none(value)
            if grade is None or is_nan(grade):
                raise row.fail(column, value, "with --cut, labels must be numbers. Leave it out for labels in words.")
            return (grade >= self.cut) is not of_errors
        if self.right and word in {name.strip().lower() for name in self.right}:
            self._n_right += 1
            return True  # in a column of errors, too: the word says that the answer is right
        known = None if self.right else WORDS.get(word)
        if known is not None:
            self._n_known += 1
            return known is not of_errors
        self._unknown[str(value).strip()] += 1
        # With --right a single other value is the wrong one; `finish` refuses several.
        return None if self.other == "unlabelled" else False

    def finish(self, column: str) -> None:
        """Refuse a file whose labels were not all read.

        Raises:
            UsageError: With the options that read them.
        """
        if self.right and not self._n_right:
            there = ", ".join(map(short, self._unknown)) or "only usual words such as true and false"
            raise UsageError(f"--right {self.right[0]}: no label in {column!r} is that; there are {there}.")
        if not self._unknown or self.other is not None or (self.right and len(self._unknown) == 1):
            return
        words = sorted(self._unknown)
        listed = ", ".join(f"{short(word)} ({self._unknown[word]})" for word in words[:6])
        if all(RawRow("", {}).number_or_none(word) is not None for word in words):
            way_out = "They are grades: say from which one on an answer is right, --cut 0.5."
        elif self.right or self._n_known:
            way_out = "Say what they are: --other-labels wrong or --other-labels unlabelled (of `calibrate import`)."
        elif len(words) <= 2:
            way_out = f"Name the one that says right: --right {', or --right '.join(map(shlex.quote, words))}."
        else:
            way_out = (
                "Name what says right, --right VALUE, and what the others are: --other-labels wrong or unlabelled."
            )
        raise UsageError(f"labels in {column!r} say neither right nor wrong: {listed}. {way_out}")

    def notes(self) -> Iterator[str]:
        """Sentences about labels that were read otherwise than they are written."""
        for word, count in self._unknown.most_common():
            yield f"{count} labels are {word!r}: counted as {self.other or 'wrong'}."
        if self._n_apart:
            yield f"{self._n_apart} rows have labels that disagree; they are unlabelled."
