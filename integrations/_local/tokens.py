"""From token ids to text: pieces that add up to it, characters that are split over tokens, stop strings.

Special tokens and end tokens are not part of an answer: not of its text, its tokens or its log-probability.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from guardrail.types import Sample

from .decoding import Continuation

INCOMPLETE = "\ufffd"
"""Written by a decoder for bytes that are not a complete character."""

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer:
    """Decodes the tokens of one tokenizer; safe to share between threads.

    Args:
        tokenizer: A transformers tokenizer.
        hidden: Ids without text: special tokens and end tokens.
    """

    def __init__(self, tokenizer: Any, hidden: frozenset[int]) -> None:
        self.hidden = hidden
        self._tokenizer = tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, without the hidden ids."""
        shown = [token for token in ids if token not in self.hidden]
        return str(self._tokenizer.decode(shown, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds; a character split over tokens belongs to the last of them.

        Args:
            ids: Tokens, none of them hidden.
        """
        pieces: list[str] = []
        # Decoders look at the token before (for its white space), so the tokens of the last complete piece are decoded
        # again and their text is cut off. A piece begins at `begun`.
        context, begun = 0, 0
        for end in range(1, len(ids) + 1):
            added = self.decode(ids[context:end])[len(self.decode(ids[context:begun])) :]
            # The next token may complete the character. Bytes that never become one belong to the last token.
            complete = not added.endswith(INCOMPLETE) or end == len(ids)
            pieces.append(added if complete else "")
            if complete:
                context, begun = begun, end
        whole = self.decode(ids)
        # Log-probabilities are paired with pieces, so pieces that do not add up to the answer must not leave.
        return pieces if "".join(pieces) == whole else self._by_prefix(ids, whole)

    def _by_prefix(self, ids: Sequence[int], whole: str) -> list[str]:
        """`pieces` for decoders that depend on more than one earlier token: slower, by growing prefixes."""
        ends = [0]
        for count in range(1, len(ids)):
            agreed = _common(self.decode(ids[:count]), whole)
            # A later token may rewrite earlier text; ends must not run backwards.
            ends.append(max(ends[-1], agreed))
        ends.append(len(whole))
        return [whole[start:end] for start, end in pairwise(ends)]

    def is_byte(self, token: int) -> bool:
        """Whether a token is a byte in a vocabulary with byte fallback."""
        return _BYTE_FALLBACK.fullmatch(str(self._tokenizer.convert_ids_to_tokens(token))) is not None

    def answer(
        self,
        result: Continuation,
        *,
        stops: Sequence[str] = (),
        stop_ids: Collection[int] = (),
        pieces: bool = False,
    ) -> Sample:
        """Text, tokens and log-probabilities of a finished sequence, cut at the first stop string.

        The text has the model's white space, and the tokens are its pieces. A token that overlaps the stop string keeps
        the part before it; a token inside it is dropped.

        Args:
            result: The sequence.
            stops: Stop strings.
            stop_ids: Tokens that end it and are not part of it.
            pieces: Whether to return tokens and log-probabilities.
        """
        ids, logprobs = result.ids, result.logprobs
        reason = "stop" if result.ended else "length"
        # Only the last: decoding ends at the first of them.
        if ids and ids[-1] in stop_ids:
            ids, logprobs = ids[:-1], logprobs[:-1]
        whole = self.decode(ids)
        # The earliest occurrence of any stop string, not the first string on the list.
        end = min((start for start in map(whole.find, stops) if start >= 0), default=len(whole))
        if not pieces:
            return Sample(text=whole[:end], finish_reason=reason)
        shown = [(token, value) for token, value in zip(ids, logprobs, strict=True) if token not in self.hidden]
        parts = self.pieces([token for token, _ in shown])
        kept = parts if end == len(whole) else _clip(parts, end)
        # Tokens inside the stop string are dropped, and with them their log-probabilities.
        values = tuple(value for _, value in shown[: len(kept)])
        return Sample(text=whole[:end], tokens=tuple(kept), logprobs=values, finish_reason=reason)


def _common(first: str, second: str) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(first), len(second)))


def _clip(parts: Sequence[str], end: int) -> list[str]:
    """Pieces that begin before ``end``, the last one cut there."""
    clipped: list[str] = []
    start = 0
    for part in parts:
        if start >= end:
            break
        clipped.append(part[: end - start])
        start += len(part)
    return clipped


class TextStream:
    """Text for a reader: no incomplete characters, no surrounding white space, no part of a stop string.

    Text that may be the beginning of a stop string, or white space at the end, waits for further tokens.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """Add a token; the text that may be shown now."""
        if token not in self._detokenizer.hidden:
            self._ids.append(token)
        settled = len(self._ids)
        # A decoder with byte fallback replaces all bytes of a run if some of them are not a character.
        while settled and self._detokenizer.is_byte(self._ids[settled - 1]):
            settled -= 1
        text = self._detokenizer.decode(self._ids[:settled]).rstrip(INCOMPLETE)
        return self._show(text[: self._certain(text)])

    def close(self) -> str:
        """The rest, once no token follows."""
        return self._show(self._detokenizer.decode(self._ids))

    def _show(self, text: str) -> str:
        end = min((start for start in map(text.find, self._stops) if start >= 0), default=len(text))
        # White space at the end of an answer is not shown, and here nobody knows yet whether more text follows.
        visible = text[:end].strip()
        new = visible[self._shown :]
        self._shown = max(self._shown, len(visible))
        return new

    def _certain(self, text: str) -> int:
        """Length of the part of a text that is not the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
