"""The tokens that spell a reply's text, with their log-probabilities: end tokens and stop strings come after them.

Endpoints list different tokens: those of the text, and some also the end token, a stop string, or reasoning that the
text leaves out. Each has its own way to write a token that is not a whole character.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from ...types import is_logprob

BROKEN = "\ufffd"
"""The text of a token that is a part of a character, if its bytes are not given."""

Kept = tuple[tuple[str, ...], tuple[str, ...] | None]
"""Tokens, and their bytes in hex if any token needs them."""


def text_tokens(text: str, tokens: Sequence[str], token_bytes: Sequence[str] | None) -> Kept | None:
    """The leading tokens that spell a text; None if the tokens spell another text.

    Tokens after the text are dropped, white space among them unless the text ends in it. If the text ends within a
    token (a stop string began there), that token is kept and cut to the text. White space may differ, since servers
    strip texts and drop the space that begins a token, and so may replacement characters, which stand for parts of one
    character. A text of white space has no tokens.

    Args:
        text: The text from the server, not stripped.
        tokens: The tokens that the server listed.
        token_bytes: Their bytes in hex, if a token is not whole characters.
    """
    count = _exactly(text, pieces := _pieces(tokens, token_bytes)) if text.strip() else 0
    if count is not None:
        return tuple(tokens[:count]), None if token_bytes is None else tuple(token_bytes[:count])
    spelled_by = _apart_from_space("".join(text.split()), pieces)
    if spelled_by is None:
        return None
    count, cut = spelled_by
    leading, raw = list(tokens[:count]), None if token_bytes is None else list(token_bytes[:count])
    # A token that is part of a character has no text to cut; it stays whole.
    if cut and (raw is None or bytes.fromhex(raw[-1]) == pieces[count - 1][0].encode()):
        leading[-1] = pieces[count - 1][0][:-cut]
        if raw is not None:
            raw[-1] = leading[-1].encode().hex()
    return tuple(leading), None if raw is None else tuple(raw)


def _pieces(tokens: Sequence[str], token_bytes: Sequence[str] | None) -> list[tuple[str, bool]]:
    """The characters that each token completes, and whether it leaves one incomplete."""
    if token_bytes is None:
        return [(token, False) for token in tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [(decoder.decode(bytes.fromhex(raw)), bool(decoder.getstate()[0])) for raw in token_bytes]


def _exactly(text: str, pieces: Sequence[tuple[str, bool]]) -> int | None:
    """The number of pieces that spell the text exactly; an incomplete character is written as BROKEN."""
    whole, length, exact = "".join(piece for piece, _ in pieces), 0, None
    for count, (piece, pending) in enumerate(pieces, start=1):
        length += len(piece)
        adds = piece or pending  # a token of no bytes at the end is an end token
        if adds and length + pending == len(text) and whole[:length] + BROKEN * pending == text:
            exact = count
    return exact


def _apart_from_space(letters: str, pieces: Sequence[tuple[str, bool]]) -> tuple[int, int] | None:
    """The number of pieces that spell the letters, white space aside, and of characters of the last one beyond them.

    A replacement character stands for a character that is not ASCII, or for a further part of the previous character.
    So after a piece several numbers of letters may have been spelled: bit i of ``counts`` says that i is one of them.
    """
    # Integers as sets of bits: all positions advance with one shift, however ambiguous the text is.
    places: dict[str, int] = {}
    for index, letter in enumerate(letters):
        places[letter] = places.get(letter, 0) | 1 << index
    wide = sum(at for letter, at in places.items() if not letter.isascii())
    counts, whole, last = 1, 1 << len(letters), None
    for index, (piece, pending) in enumerate(pieces):
        complete = bool(counts & whole)
        spelled = piece + BROKEN * (pending and index == len(pieces) - 1)
        for at, letter in enumerate(spelled):
            if letter.isspace():
                continue
            onwards = (counts & (wide if letter == BROKEN else places.get(letter, 0))) << 1
            if letter == BROKEN:  # or another part of the character before
                onwards |= counts & (wide << 1)
            if not onwards:
                if not complete and counts & whole:
                    return index + 1, len(spelled) - at
                return None if last is None else (last, 0)
            counts = onwards
        if spelled.strip() and counts & whole:
            last = index + 1
    return None if last is None else (last, 0)


def token_fields(listed: Any, text: str | None) -> dict[str, Any]:
    """Tokens, log-probabilities and bytes as fields of a `Sample`; empty if they were not measured.

    Args:
        listed: Log-probabilities in OpenAI's form, an object with ``content``, or the list itself (Ollama).
        text: The text that the tokens must spell; None for tool calls, whose text no reply contains.
    """
    fields = _measured(_without_end({"content": listed} if isinstance(listed, list) else listed))
    return fields if text is None else _of_text(text, fields)


def _of_text(text: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of the tokens that spell the text; empty if the tokens spell another text."""
    kept = text_tokens(text, fields["tokens"], fields["token_bytes"]) if fields else None
    if kept is None:
        return {}
    tokens, token_bytes = kept
    if token_bytes == tuple(token.encode().hex() for token in tokens):  # those that needed bytes were dropped
        token_bytes = None
    return {"tokens": tokens, "logprobs": fields["logprobs"][: len(tokens)], "token_bytes": token_bytes}


def _measured(listed: Any) -> dict[str, Any]:
    """Tokens, log-probabilities and bytes as fields of a `Sample`; empty if they were not measured."""
    tokens, logprobs = _token_logprobs(listed)
    if tokens is None:
        return {}
    return {"tokens": tokens, "logprobs": logprobs, "token_bytes": _token_bytes(listed["content"], tokens)}


def _without_end(listed: Any) -> Any:
    """Log-probabilities without the end of the answer, which llama-server lists as a last token of no bytes."""
    try:
        *rest, last = listed["content"]
        return {"content": rest} if last["token"] == "" and not last.get("bytes") else listed
    except (AttributeError, KeyError, TypeError, ValueError):
        return listed


def _token_logprobs(listed: Any) -> tuple[tuple[str, ...] | None, tuple[float, ...] | None]:
    try:
        content = listed["content"]
        tokens = tuple(str(item["token"]) for item in content)
        if any(isinstance(item["logprob"], bool) for item in content):  # which counts as 0 or 1
            return None, None
        logprobs = tuple(float(item["logprob"]) for item in content)
    except (KeyError, TypeError, ValueError):
        return None, None
    # One value that is none makes the sum of the answer meaningless, so all count as missing.
    return (tokens, tuple(min(value, 0.0) for value in logprobs)) if all(map(is_logprob, logprobs)) else (None, None)


def _token_bytes(content: Sequence[Any], tokens: Sequence[str]) -> tuple[str, ...] | None:
    """Bytes of the tokens in hex, from OpenAI's ``bytes``; None if the tokens' own text has the same bytes."""
    try:
        listed = [item.get("bytes") for item in content]
        if not any(listed):  # the server gave none; some SDKs write empty lists then
            return None
        raw = [
            token.encode() if listing is None else bytes(list(listing))
            for listing, token in zip(listed, tokens, strict=True)
        ]
        if all(each == token.encode() for each, token in zip(raw, tokens, strict=True)):
            return None
    except (AttributeError, TypeError, ValueError):  # not a list of bytes: the tokens' text must do
        return None
    return tuple(each.hex() for each in raw)
