"""Answers in a format: JSON is compared as values. As words, most of it is field names, which all answers share."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from ..plain_json import too_deep
from ..specs import JudgeSpec
from ..types import Bindings
from .base import EqualityJudge
from .words import normalise

__all__ = ["JsonJudge", "canonical_value", "is_structured", "read_json", "unique_fields"]


def is_structured(bindings: Bindings | None) -> bool:
    """Return whether answers follow a format: a JSON schema, or JSON mode."""
    response_format = None if bindings is None else bindings.response_format
    return response_format is not None and response_format.get("type") != "text"


def read_json(text: str) -> Any:
    """The value of a text that is JSON, or ends in one code fence with JSON; numbers are exact (`Decimal`).

    These are the texts from which the guard itself reads objects (``with_structured_output``).

    Raises:
        ValueError: It is not JSON, is nested too deep, or has a field twice.
    """
    fenced = _FENCED.fullmatch(text)
    try:
        value = json.loads(
            text if fenced is None else fenced["inside"],
            # Decimal, because a float would make 0.1 and 0.1 with a digit in the twentieth place equal.
            parse_int=Decimal,
            parse_float=Decimal,
            parse_constant=_refuse,
            object_pairs_hook=unique_fields,
        )
    except (ArithmeticError, RecursionError) as error:  # an exponent beyond Decimal, thousands of brackets
        raise ValueError(f"cannot be read as JSON ({type(error).__name__})") from error
    if too_deep(value):
        raise ValueError("nested too deep")
    return value


def canonical_value(value: Any) -> str:
    """One text for equal values of `read_json`: keys sorted, no white space, one way to write each number."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{canonical_value(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical_value, value)) + "]"
    return _number(value) if isinstance(value, Decimal) else json.dumps(value)


def _number(value: Decimal) -> str:
    """All digits and an exponent: 1, 1.0 and 10e-1 are "1e0"."""
    sign, digits, exponent = value.as_tuple()
    significant = "".join(map(str, digits)).rstrip("0")
    assert isinstance(exponent, int), "JSON has finite numbers only"
    return f"{'-' * sign}{significant}e{exponent + len(digits) - len(significant)}" if significant else "0"


def unique_fields(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, as ``object_pairs_hook`` of `json.loads`.

    Raises:
        ValueError: A field occurs twice.
    """
    value_of = dict(fields)
    # json.loads keeps the last of two equal fields, so a reader might see another value than a judge.
    if len(value_of) < len(fields):
        raise ValueError("a field occurs twice")
    return value_of


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_FENCED = re.compile(r"(?:(?!```).)*```(?:json)?\s(?P<inside>(?:(?!```).)*)```\s*", re.DOTALL | re.IGNORECASE)
"""A code fence at the end of a text, without another before it."""


@dataclass(frozen=True, slots=True)
class JsonJudge(EqualityJudge):
    """Two answers are the same iff they are equal as JSON values.

    The order of fields and white space do not count; the order of lists does. Numbers are equal iff their values are,
    exactly (1.0 is 1, 0.1 is not 0.10000001), texts iff every character is: "Rome" is not "rome", and "1" is not 1. So
    a field with free text (a reason, say) makes nearly all answers differ.

    A code fence around the JSON, and words before the fence, do not count. A text that is not JSON (cut off, with words
    around it, with a field twice) differs from every JSON value. Two such texts are the same iff their normalised
    strings are.

    Example:
        >>> judge = JsonJudge()
        >>> judge.equivalent("", [('{"city": "Rome", "n": 1}', '{"n": 1.0, "city": "Rome"}')])
        [True]
        >>> judge.equivalent("", [('{"city": "Rome"}', '{"city": "Lyon"}')])
        [False]
    """

    is_slow = False

    spec = JudgeSpec(name="json", version=4, params={})

    def identity(self, text: str) -> str:
        """Canonical JSON of the value, or the normalised text; the first word says which."""
        try:
            return f"json {canonical_value(read_json(text))}"
        except ValueError:
            return f"text {normalise(text)}"
