"""A row of a file, and its cells as texts, lists, objects and numbers.

A cell that is not what its field must be is an error that names file, line, field, value, rule and way out. Cells of
tables are texts, so lists and objects are parsed there: JSON, as Python writes them, or "a | b" for lists.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from guardrail.errors import RecordError, UsageError, require
from guardrail.types import is_logprob


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it stands in its file.

    Attributes:
        where: File and line, as shown to people.
        values: Fields by name.
        textual: Whether every value is a text (of a table), so that lists and numbers have to be parsed; None for a
            cell that says that it has no value.
        decimal_comma: Whether numbers are written with a decimal comma: "0,9".
        columns: Columns by field, where values are by field (`ColumnMap.by_field`): errors name the column.
    """

    where: str
    values: Mapping[str, Any]
    textual: bool = False
    decimal_comma: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)

    def column(self, field: str) -> str:
        """The column that holds a field."""
        return self.columns.get(field, field)

    def fail(self, field: str, got: object, rule: str) -> RecordError:
        """The error for a bad field: where, what was found, and the rule with the way out."""
        return RecordError(f"{self.where}: field {self.column(field)!r}: got {short(got)}; {rule}")

    def name(self, column: str) -> str | None:
        """A short text or whole number; None when it is absent.

        Raises:
            RecordError: Any other value, as for all methods below.
        """
        value = self.values.get(column)
        if value is None or value == "":
            return None
        if isinstance(value, float) and value.is_integer():  # as pandas writes whole numbers beside missing ones
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.fail(column, value, "it must be a text or a whole number; leave it out if there is none")
        return str(value).strip() or None

    def text(self, column: str) -> str:
        """A text that is not empty; numbers are written out."""
        value = self.values.get(column)
        if is_plain(value) and str(value).strip():
            return str(value).strip()
        way_out = "Correct the row, map another column, or pass --skip-bad 0.1."
        if isinstance(value, dict) and value:
            paths = [f"{self.column(column)}.{name}" for name in list(value)[:4]]
            way_out = f"Name the path to it: {' or '.join(paths)}."
        raise self.fail(column, value, f"it must be a text. {way_out}")

    def listed(self, column: str) -> list[Any]:
        """A list; one text counts as a list of one, except in tables, where it is JSON or separated by "|"."""
        value = self.values.get(column)
        if value is None:
            return []
        if self.textual and isinstance(value, str):
            if not value.lstrip().startswith("["):
                return list(value.split("|"))
            items = read_list(value)
            if items is None:
                rule = "it is not a list, as JSON or as Python writes it. A long array may be cut (...)"
                raise self.fail(column, value, rule)
            return items
        if is_plain(value):
            return [value]
        if not isinstance(value, list | tuple):
            raise self.fail(column, value, 'it must be a list, e.g. ["Paris", "Paris, France"]')
        return list(value)

    def labelled(self, column: str, *, keep: Collection[str] = ()) -> dict[str, Any] | None:
        """An object from label to value; None if absent.

        Labels whose value is null are left out, because Parquet pads with them, except those to keep.
        """
        written = value = self.values.get(column)
        if value is None:
            return None
        if self.textual and isinstance(value, str):
            value = _literal(value)
        if not isinstance(value, dict):
            rule = 'it must be an object from label to text or number, e.g. {"A": "red", "B": "blue"}'
            raise self.fail(column, written, rule)
        options = {str(label).strip(): item for label, item in value.items() if item is not None or label in keep}
        if len(options) < 2:
            raise self.fail(column, value, "there must be at least two options")
        return options

    def number(self, column: str, value: object) -> float:
        """A number, from a number or its text, with a decimal comma where the table has them; infinity is one."""
        read = self.number_or_none(value)
        if read is None or math.isnan(read):
            raise self.fail(column, value, "it must be a finite number. Correct the row, or leave the value out.")
        return read

    def number_or_none(self, value: object) -> float | None:
        """A number from a number or its text; None for any other value."""
        if isinstance(value, str) and self.decimal_comma and "." not in value:
            value = value.replace(",", ".")
        try:
            return None if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None

    def logprob(self, column: str, value: object) -> float | None:
        """A log-probability, from a number or its text; None if it was not measured: null, NaN, -inf, -9999.0."""
        read = None if value is None else self.number_or_none(value)
        if (value is not None and read is None) or (read is not None and read > 1e-6):
            raise self.fail(column, value, "a log-probability is a number of at most 0. Is it a probability?")
        return read if read is not None and is_logprob(read) else None

    def with_paths(self, columns: Iterable[str]) -> RawRow:
        """The row with the values at paths into nested columns, under the paths as names.

        A column of that very name comes first. Cells of a table that are JSON objects or lists are nested columns, too.
        """
        wanted = [column for column in columns if column not in self.values and _PATH.search(column)]
        if not wanted:
            return self
        document = {name: parsed(value) for name, value in self.values.items()}
        values_at: dict[str, Any] = {}
        for path in wanted:
            with suppress(UsageError):  # a column with another name, whose cell is empty here
                values_at[path] = search(path, document, "--map")
        return replace(self, values={**self.values, **values_at})


_PATH = re.compile(r"[.\[|&(]")
"""What a name of a column seldom has, and every path into one does."""


def is_nan(value: object) -> bool:
    """Whether a value is the number NaN, which stands for none in data frames."""
    return isinstance(value, float) and math.isnan(value)


def is_missing(value: object) -> bool:
    """Whether a value, or an item of a list, stands for none: null, or NaN."""
    return value is None or is_nan(value)


def is_plain(value: object) -> bool:
    """Return whether a value is a text or a number."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def short(value: object, limit: int = 120) -> str:
    """A value for an error message."""
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def search(path: str, document: Any, flag: str) -> Any:
    """The value at a path (JMESPath, https://jmespath.org) in a JSON value, or None.

    Raises:
        UsageError: It is not a path; ``flag`` names where it was given.
    """
    jmespath = require("jmespath", extra="calibrate")
    try:
        return jmespath.search(path, document)
    except jmespath.exceptions.JMESPathError as error:
        raise UsageError(
            f"{flag} {path!r} is not a path: {str(error).splitlines()[0]}. Write answer.text, choices[0].text, or "
            '"a name".text (JMESPath).'
        ) from error


def whole_json(text: str) -> Any:
    """The value that a text writes as JSON.

    Raises:
        ValueError: It is not JSON. A `UnicodeEncodeError` where a text in it has half of a surrogate pair, which could
            not be written again.
    """
    return _whole(text, json.loads(text))


def _whole(text: str, value: Any) -> Any:
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False, default=str).encode()
    return value


def parsed(value: Any) -> Any:
    """A cell as JSON if it is an object or a list."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return whole_json(value)
    return value


def read_list(text: str) -> list[Any] | None:
    """The list in a text: JSON, or as pandas writes list cells ("['a', 'b']") and arrays ("['a' 'b']"); else None."""
    value = _literal(text)
    return value if isinstance(value, list) and ... not in value else None


def _literal(text: str) -> Any:
    """The value that a text writes, as JSON or as Python's repr or NumPy's str does; None if it is none."""
    with suppress(ValueError, RecursionError):
        return whole_json(text)
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError):
        return _whole(text, ast.literal_eval(_with_commas(text)))
    return None


_OPEN, _CLOSE = frozenset("[({"), frozenset("])}")


def _with_commas(text: str) -> str:
    """Python source with a comma between neighbours: "['a' 'b']" of a NumPy array would be read as one text 'ab'."""
    parts: list[str] = []
    ended = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        value = token.type in (tokenize.STRING, tokenize.NUMBER)
        if ended and (value or token.string in _OPEN or token.string == "-"):
            parts.append(",")
        if value or token.type in (tokenize.OP, tokenize.NAME):
            parts.append(token.string)
            ended = value or token.string in _CLOSE
        elif token.type in (tokenize.COMMENT, tokenize.ERRORTOKEN):
            raise ValueError("not a literal")
    return " ".join(parts)
