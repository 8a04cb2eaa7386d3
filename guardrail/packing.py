"""Many numbers in a JSON file: packed as base64 of their compressed bytes."""

from __future__ import annotations

import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from typing import Any

__all__ = ["PACKED_FROM", "pack", "unpack"]

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
