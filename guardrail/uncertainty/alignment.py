"""Which characters of an answer each token spells, and what each word of the answer cost in nats.

The tokens have to spell the answer, byte for byte, up to white space around it. Where they do not (a tool call was cut
out of the text, an end token is among them, a server sent tokens of something else) nothing can be said about words,
and the answer is unmeasured: a mismatch is never scored 0.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..types import Sample, Unmeasured
from .base import Missing

__all__ = ["Span", "characters", "spans", "words"]

_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an answer and what it cost.

    Attributes:
        start: First character, counted in the stripped text of the answer.
        end: One past the last character.
        nll: -sum of the log-probabilities of its tokens, in nats.
    """

    start: int
    end: int
    nll: float


def words(sample: Sample) -> tuple[Span, ...] | Missing:
    """The words of an answer: what `str.split` gives, so that CJK text without spaces is one word.

    NLL of a word = sum over its tokens. A token belongs to the word that its first byte outside white space lies in: a
    token that spans two words counts for the first. A token without such a byte (a line break, or nothing at all)
    counts for the word after it, or for the last word at the end. So no token is lost: the words' NLLs add up to the
    answer's.

    Returns:
        One span a word, or why there is none.
    """
    extents = characters(sample)
    if isinstance(extents, Missing):
        return extents
    text = sample.text.strip()
    places = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    costs: list[list[float]] = [[] for _ in places]
    for (start, end), logprob in zip(extents, sample.logprobs or (), strict=True):
        first = next((place for place in range(start, end) if not text[place].isspace()), start)
        word = next((i for i, (_, stop) in enumerate(places) if first < stop), len(places) - 1)
        costs[word].append(-logprob)
    return tuple(Span(start, end, _total(cost)) for (start, end), cost in zip(places, costs, strict=True))


def spans(sample: Sample) -> tuple[Span, ...] | Missing:
    """The tokens of an answer as stretches of whole characters; together they are the stripped text.

    Tokens that share a character (an emoji is up to four byte-level tokens) are one span, with the sum of their NLLs. A
    token without a character of the text (white space around it) counts for the span after it, or for the last at the
    end.

    Returns:
        One span for each token, or for each few that share a character, or why there is none.
    """
    extents = characters(sample)
    if isinstance(extents, Missing):
        return extents
    found: list[Span] = []
    waiting: list[float] = []
    for (start, end), logprob in zip(extents, sample.logprobs or (), strict=True):
        if start == end:
            waiting.append(-logprob)
        elif found and start < found[-1].end:
            last = found.pop()
            found.append(Span(last.start, max(end, last.end), _total((last.nll, *waiting, -logprob))))
            waiting = []
        else:
            found.append(Span(start, end, _total((*waiting, -logprob))))
            waiting = []
    if waiting:
        last = found.pop()
        found.append(Span(last.start, last.end, _total((last.nll, *waiting))))
    return tuple(found)


def characters(sample: Sample) -> tuple[tuple[int, int], ...] | Missing:
    """For each token, the characters of the stripped text that it has a byte of: [start, end).

    Empty (start = end) for a token without such a byte. Bytes that are no complete character count as the replacement
    character that the text shows for them.
    """
    if sample.tokens is None:
        return Missing(Unmeasured.NO_LOGPROBS, "token log-probabilities are missing")
    if not sample.tokens:
        return Missing(Unmeasured.EMPTY_ANSWER, "the answer has no tokens")
    if sample.token_bytes is None:
        spelled, extents = "".join(sample.tokens), _ends([len(token) for token in sample.tokens])
    else:
        try:
            raw = [bytes.fromhex(token) for token in sample.token_bytes]
        except ValueError:
            return Missing(Unmeasured.NO_LOGPROBS, "the bytes of a token are not hexadecimal")
        spelled, extents = _decoded(raw)
    text = sample.text.strip()
    if not text:
        return Missing(Unmeasured.EMPTY_ANSWER, "the answer has no text")
    if spelled.strip() != text:
        return Missing(
            Unmeasured.NO_LOGPROBS,
            f"the {len(sample.tokens)} tokens do not spell the answer: they are {_differing(spelled.strip(), text)}",
        )
    before = len(spelled) - len(spelled.lstrip())

    def inside(place: int) -> int:
        return min(max(place - before, 0), len(text))

    return tuple((inside(start), inside(end)) for start, end in extents)


def _differing(spelled: str, text: str) -> str:
    """Where two texts part, without a word of either: an answer may be one that is held back."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(spelled, text, strict=False)))
    return f"{len(spelled)} characters, it is {len(text)}, and they differ from character {same + 1} on"


def _ends(lengths: Sequence[int]) -> list[tuple[int, int]]:
    found, start = [], 0
    for length in lengths:
        found.append((start, start + length))
        start += length
    return found


def _decoded(raw: Sequence[bytes]) -> tuple[str, list[tuple[int, int]]]:
    """Text of byte pieces, and for each piece the characters that it has a byte of."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    extents = []
    for piece in raw:
        touched = []
        for byte in piece:
            text += decoder.decode(bytes([byte]))
            pending = bool(decoder.getstate()[0])
            touched.append(len(text) if pending else len(text) - 1)
        extents.append((touched[0], touched[-1] + 1) if touched else (len(text), len(text)))
    return text + decoder.decode(b"", final=True), extents


def _total(values: Iterable[float]) -> float:
    """Their sum; infinite, which no estimator takes for a measurement, where it is too large for a number."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf
