"""Canonical JSON, digests, what JSON, UTF-8 and terminals cannot hold, and what a reader does not see.

A value that JSON cannot hold would be stored or run as something other than what was judged.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import unicodedata
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

DEEPEST = 100
"""Levels to which arguments may be nested. pydantic's writer stops at 255, the interpreter's recursion at about 500."""
PACKED = range(-(2**63), 2**64)
"""Integers that MessagePack has, in which LangGraph stores a graph's state."""


_LINE_ENDS = re.compile("[\\x7f-\\x9f\\u2028\\u2029]")
"""Characters that end a line for some readers, and that JSON leaves as they are."""


def quoted(text: str) -> str:
    """A text as a JSON string on one line, for prompts: nothing in it can close it and pose as the prompt around it."""
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def canonical_json(
    value: Any,
    *,
    compact: bool = True,
    ascii_only: bool = False,
    allow_nan: bool = True,
    default: Callable[[Any], object] | None = None,
) -> str:
    """JSON with sorted keys: one text for equal values, to be compared or hashed.

    Digests are stored, so a caller never changes its options: another spelling of the same value is another digest.

    Args:
        value: Any JSON value.
        compact: Whether to leave out white space.
        ascii_only: Whether to escape every character beyond ASCII.
        allow_nan: Whether NaN and the infinities may stand in it, as Python spells them.
        default: Makes a JSON value of any other object.

    Raises:
        TypeError: An object that is not JSON, without ``default``.
        ValueError: NaN or an infinity, without ``allow_nan``; a value that contains itself.
    """
    separators = (",", ":") if compact else None
    return json.dumps(
        value, sort_keys=True, separators=separators, ensure_ascii=ascii_only, allow_nan=allow_nan, default=default
    )


def sha256_hex(data: str | bytes, digits: int = 64) -> str:
    """The first hex digits of SHA-256 over bytes, or over a text in UTF-8.

    Raises:
        UnicodeEncodeError: A text that UTF-8 cannot write. Callers that must hash it pass bytes.
    """
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:digits]


def spelled(text: str) -> str:
    r"""The text as UTF-8 can write it: half of a surrogate pair becomes the six characters that name it (\ud83d)."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# -- Characters that a reader does not see: the one definition, for prompts, judges, labels and terminals --------
# Written out instead of asked from `unicodedata`, so that a text is the same question in every version of Python.

INVISIBLE_CLASS = (
    "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"  # controls that are not white space
    "\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U00016fe4\U000e0000-\U000e0fff"  # default-ignorable code points and format characters
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff"  # halves of surrogate pairs and noncharacters
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0x10000, 0x110000, 0x10000))
)
"""What has no shape of its own, for use between the brackets of a regular expression."""
INVISIBLE = re.compile(f"[{INVISIBLE_CLASS}]")
BLANK = re.compile(
    "[\u115f\u1160\u2800\u3164\uffa0\U0001d159\U00013441\U00013442"  # fillers and empty signs
    "\x0b\x0c\r\x1c-\x1f\x85\u1680\u2000-\u200a\u2028\u2029\u202f\u205f]"
)
"""A sign that is shown as a space, as a line end or as nothing, depending on the font and the program."""
_ASCII_SIGN = re.compile("[!-~]")
_SHAPING = "\u200c\u200d\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Invisible characters with a use in plain text: joiners and variation selectors, which shape the sign before them."""


def has_visible(text: str) -> bool:
    """Whether a text has a character that shows by itself: not white space, and not only a mark on another one."""
    if _ASCII_SIGN.search(text):  # nearly every text, at once
        return True
    seen = BLANK.sub("", INVISIBLE.sub("", text))
    return any(not (sign.isspace() or unicodedata.category(sign) in ("Me", "Mn")) for sign in seen)


_HIDDEN = (
    f"(?![{_SHAPING}])[{INVISIBLE_CLASS}\x0b\x0c\x1c-\x1f\x85\u115f\u1160\u2028\u2029\u2800\u3164\uffa0\U0001d159]"
)
_IN_TEXT, _IN_LINE = re.compile(f"{_HIDDEN}|\r(?!\n)"), re.compile(f"{_HIDDEN}|[\t\n\r]")


def visible(text: str, *, one_line: bool = False) -> str:
    r"""The text as a terminal shows it without obeying it: a control character becomes what names it (\x1b, \u202e).

    So does a character that changes the direction of writing, which can show one answer as another, one without width,
    and half of a surrogate pair. For every text that a model, a file or a server wrote.

    Args:
        text: The text.
        one_line: Whether line ends and tabs are named, too; otherwise they stay.
    """
    unsafe = _IN_LINE if one_line else _IN_TEXT
    return unsafe.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def text_fault(text: str) -> str | None:
    """The reason why a text cannot be written, or None."""
    if text.isascii() or spelled(text) == text:
        return None
    index = next(i for i, letter in enumerate(text) if "\ud800" <= letter <= "\udfff")
    return f"half of a surrogate pair ({spelled(text[index])}), which is not a character"


_LONGEST_INTEGER = 14_280
"""Bits of an integer that Python surely turns into a text: 4300 decimal digits (`sys.get_int_max_str_digits`)."""


def json_fault(value: Any, *, packed: bool = False) -> str | None:
    """The reason why a value is not plain JSON that reads back equal, or None. Never recurses.

    Args:
        value: Any value.
        packed: Whether integers must be in `PACKED`, as in a LangGraph state; in JSON they have up to 4300 digits.
    """
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        fault = None
        if isinstance(item, str):
            fault = text_fault(item)
        elif isinstance(item, float) and not math.isfinite(item):
            fault = f"the number {item}, which JSON does not have"
        elif isinstance(item, int) and item.bit_length() > _LONGEST_INTEGER:
            fault = f"an integer of {item.bit_length()} bits, which has more digits than Python writes"
        elif packed and isinstance(item, int) and item not in PACKED:
            bits = item.bit_length()
            fault = f"an integer of {bits} bits; -2**63 to 2**64 - 1 can be stored, and texts of any length"
        elif isinstance(item, Mapping | list | tuple):
            if depth >= DEEPEST:
                return f"values nested more than {DEEPEST} deep"
            inner: Iterable[Any] = item
            if isinstance(item, Mapping):
                inner = [*(str(key) for key in item), *item.values()]
            waiting.extend((part, depth + 1) for part in inner)
        elif item is not None and not isinstance(item, bool | int | float):
            fault = f"a {type(item).__name__}, which JSON does not have"
        if fault is not None:
            return fault
    return None


def too_deep(value: Any) -> bool:
    """Whether values are nested deeper than `DEEPEST`. Never recurses."""
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            return False
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
    return any(isinstance(item, dict | list) for item in level)


# -- Many numbers in a JSON file: packed as base64 of their compressed bytes -------------------------------------------

PACKED_FROM = 50_000
"""Numbers from which on a list is stored packed: five million numbers are 92 MiB of JSON."""


def pack(numbers: array[Any]) -> dict[str, str]:
    """Numbers as {type code: base64 of their compressed little-endian bytes}."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    level = 0 if numbers.typecode == "Q" else 1  # hashes do not get smaller
    return {numbers.typecode: b64encode(zlib.compress(numbers, level)).decode()}


def unpack(stored: dict[str, str], kinds: str) -> array[Any]:
    """The numbers that `pack` wrote.

    Args:
        stored: Its result.
        kinds: Type codes that are allowed here.

    Raises:
        ValueError: Another type code, or bytes that cannot be read.
    """
    (kind, text), *others = stored.items() or [("", "")]
    if others or kind not in tuple(kinds):
        raise ValueError(f"packed numbers have one field of {', '.join(kinds)}, got the fields {sorted(stored)}")
    numbers = array(kind)
    try:
        numbers.frombytes(zlib.decompress(b64decode(text, validate=True)))
    except (TypeError, zlib.error) as error:
        raise ValueError(f"the packed numbers cannot be read: {error}") from error
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
