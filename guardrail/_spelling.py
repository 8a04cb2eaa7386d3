"""Which of a reply's tokens spell its text: end tokens and stop strings come after it, other texts are not it.

Endpoints differ in what they list. Besides the tokens of the text it may be the end token, a stop string, or reasoning
that was taken out of the text before it. And they write tokens that are not whole characters in their own ways.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

__all__ = ["text_tokens"]

BROKEN = "\ufffd"
"""What a token that is a part of a character is shown as, where its bytes are not told."""

Kept = tuple[tuple[str, ...], tuple[str, ...] | None]
"""Tokens, and their bytes in hex where those are needed."""


def text_tokens(text: str, tokens: Sequence[str], token_bytes: Sequence[str] | None) -> Kept | None:
    """The leading tokens that spell a text; None where the tokens are those of another text.

    Tokens after the text are dropped, white space among them unless the text ends in it. A token that the text ends
    within (a stop string began there) is kept, cut to the text. Not taken for another text: white space that differs,
    since servers strip texts and drop the space that begins a token, and replacement characters that stand for parts
    of one character. A text of white space has no tokens.

    Args:
        text: The text as the server gave it, not stripped.
        tokens: What it listed.
        token_bytes: Their bytes in hex, where a token is not whole characters.
    """
    count = _exactly(text, pieces := _pieces(tokens, token_bytes)) if text.strip() else 0
    if count is not None:
        return tuple(tokens[:count]), None if token_bytes is None else tuple(token_bytes[:count])
    found = _apart_from_space("".join(text.split()), pieces)
    if found is None:
        return None
    count, cut = found
    kept, raw = list(tokens[:count]), None if token_bytes is None else list(token_bytes[:count])
    if cut and (raw is None or bytes.fromhex(raw[-1]) == pieces[count - 1][0].encode()):
        kept[-1] = pieces[count - 1][0][:-cut]
        if raw is not None:
            raw[-1] = kept[-1].encode().hex()
    return tuple(kept), None if raw is None else tuple(raw)


def _pieces(tokens: Sequence[str], token_bytes: Sequence[str] | None) -> list[tuple[str, bool]]:
    """The characters that each token completes, and whether it leaves one incomplete."""
    if token_bytes is None:
        return [(token, False) for token in tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [(decoder.decode(bytes.fromhex(raw)), bool(decoder.getstate()[0])) for raw in token_bytes]


def _exactly(text: str, pieces: Sequence[tuple[str, bool]]) -> int | None:
    """How many pieces spell the text to the letter; an incomplete character is shown as BROKEN."""
    whole, length, found = "".join(piece for piece, _ in pieces), 0, None
    for count, (piece, pending) in enumerate(pieces, start=1):
        length += len(piece)
        adds = piece or pending  # a token of no bytes at the end is an end token
        if adds and length + pending == len(text) and whole[:length] + BROKEN * pending == text:
            found = count
    return found


def _apart_from_space(letters: str, pieces: Sequence[tuple[str, bool]]) -> tuple[int, int] | None:
    """How many pieces spell the letters, white space aside, and how many characters of the last go beyond them.

    A replacement character stands for a character that is not ASCII, or for another part of the one before: after some
    pieces the letters spelled so far may be any of several counts. Bit i of ``counts``: i letters are one of them.
    """
    places: dict[str, int] = {}
    for place, letter in enumerate(letters):
        places[letter] = places.get(letter, 0) | 1 << place
    wide = sum(at for letter, at in places.items() if not letter.isascii())
    counts, whole, found = 1, 1 << len(letters), None
    for place, (piece, pending) in enumerate(pieces):
        complete = bool(counts & whole)
        spelled = piece + BROKEN * (pending and place == len(pieces) - 1)
        for at, letter in enumerate(spelled):
            if letter.isspace():
                continue
            onwards = (counts & (wide if letter == BROKEN else places.get(letter, 0))) << 1
            if letter == BROKEN:  # or another part of the character before
                onwards |= counts & (wide << 1)
            if not onwards:
                within = not complete and counts & whole
                return (place + 1, len(spelled) - at) if within else None if found is None else (found, 0)
            counts = onwards
        if spelled.strip() and counts & whole:
            found = place + 1
    return None if found is None else (found, 0)
