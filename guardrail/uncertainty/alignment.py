"""Tokens laid on the text that they spell: the characters of each token, and the NLL of each word.

The tokens must spell the answer, byte for byte, up to surrounding white space. Otherwise (a tool call was cut out of
the text, there is an end token, a server sent tokens of another text) words have no likelihoods, and the answer is
unmeasured: a mismatch is never scored 0.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from typing import Literal

from ..types import Missing, Sample, Unmeasured

__all__ = ["Level", "Span", "characters", "spans", "total", "without", "words"]

Level = Literal["word", "token"]
"""Size of the pieces that are taken out of an answer to see how much each matters."""
_WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an answer and its NLL.

    Attributes:
        start: First character, counted in the stripped text of the answer.
        end: One past the last character.
        nll: -sum of the log-probabilities of its tokens, in nats.
    """

    start: int
    end: int
    nll: float


def without(text: str, span: Span, level: Level) -> str:
    """The stripped text of an answer without one of its words or tokens; empty if nothing else is left.

    It is removed at its place, not at every occurrence of the same letters. A word is removed with the white space
    after it, so that its neighbours stay one space apart.
    """
    before, after = text[: span.start], text[span.end :]
    return (before + (after.lstrip() if level == "word" else after)).strip()


def words(sample: Sample) -> tuple[Span, ...]:
    """The words of an answer, as `str.split` gives them: CJK text without spaces is one word.

    NLL of a word = sum over its tokens. A token belongs to the word that contains its first byte outside white space: a
    token that spans two words counts for the first. A token without such a byte (a line break, or nothing at all)
    counts for the word after it, or for the last word at the end. No token is lost: the words' NLLs add up to the
    answer's.

    Returns:
        One span for each word.

    Raises:
        Missing: As `characters`.
    """
    extents = characters(sample)
    text = sample.text.strip()
    places = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    costs: list[list[float]] = [[] for _ in places]
    for (start, end), logprob in zip(extents, sample.logprobs or (), strict=True):
        # A token often begins with the space before its word; the space must not give it to the word before.
        first = next((index for index in range(start, end) if not text[index].isspace()), start)
        word = next((i for i, (_, stop) in enumerate(places) if first < stop), len(places) - 1)
        costs[word].append(-logprob)
    return tuple(Span(start, end, total(cost)) for (start, end), cost in zip(places, costs, strict=True))


def spans(sample: Sample) -> tuple[Span, ...]:
    """The tokens of an answer as stretches of whole characters; together they are the stripped text.

    Tokens that share a character (an emoji is up to four byte-level tokens) are one span, with the sum of their NLLs. A
    token without a character of the text (white space around it) counts for the span after it, or for the last at the
    end.

    Returns:
        One span for each token, or for each group that shares a character.

    Raises:
        Missing: As `characters`.
    """
    merged: list[Span] = []
    waiting: list[float] = []
    for (start, end), logprob in zip(characters(sample), sample.logprobs or (), strict=True):
        waiting.append(-logprob)
        if start == end:
            continue
        # The span before ends inside a character that this token continues, so neither can be removed alone.
        if merged and start < merged[-1].end:
            last = merged.pop()
            merged.append(Span(last.start, max(end, last.end), total((last.nll, *waiting))))
        else:
            merged.append(Span(start, end, total(waiting)))
        waiting = []
    if waiting:
        last = merged.pop()
        merged.append(Span(last.start, last.end, total((last.nll, *waiting))))
    return tuple(merged)


def characters(sample: Sample) -> tuple[tuple[int, int], ...]:
    """For each token, the characters of the stripped text that it has a byte of: [start, end).

    Empty (start = end) for a token without such a byte. Bytes that do not form a complete character count as the
    replacement character that the text shows for them.

    Raises:
        Missing: The answer has no tokens, or they do not spell the answer.
    """
    if sample.tokens is None:
        raise Missing(Unmeasured.NO_LOGPROBS, "token log-probabilities are missing")
    if not sample.tokens:
        raise Missing(Unmeasured.EMPTY_ANSWER, "the answer has no tokens")
    if sample.token_bytes is None:
        spelled = "".join(sample.tokens)
        extents = list(pairwise(accumulate(map(len, sample.tokens), initial=0)))
    else:
        try:
            raw = [bytes.fromhex(token) for token in sample.token_bytes]
        except ValueError:
            raise Missing(Unmeasured.NO_LOGPROBS, "the bytes of a token are not hexadecimal") from None
        spelled, extents = _decoded(raw)
    text = sample.text.strip()
    if not text:
        raise Missing(Unmeasured.EMPTY_ANSWER, "the answer has no text")
    # Compared in full: tokens of another text would give every word a likelihood that is not its own.
    if spelled.strip() != text:
        raise Missing(
            Unmeasured.NO_LOGPROBS,
            f"the {len(sample.tokens)} tokens do not spell the answer: they are {_differing(spelled.strip(), text)}",
        )
    # Tokens spell the text with its white space, and places are counted in the stripped text.
    before = len(spelled) - len(spelled.lstrip())

    def inside(position: int) -> int:
        return min(max(position - before, 0), len(text))

    return tuple((inside(start), inside(end)) for start, end in extents)


def _differing(spelled: str, text: str) -> str:
    """The place where two texts differ, without quoting them: the answer may be held back."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(spelled, text, strict=False)))
    return f"{len(spelled)} characters, it is {len(text)}, and they differ from character {same + 1} on"


def _decoded(raw: Sequence[bytes]) -> tuple[str, list[tuple[int, int]]]:
    """Text of byte pieces, and for each piece the characters that it contributes to."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    extents = []
    for piece in raw:
        touched = []
        # Byte by byte: only then is it known to which character each byte of a token belongs.
        for byte in piece:
            text += decoder.decode(bytes([byte]))
            pending = bool(decoder.getstate()[0])
            touched.append(len(text) if pending else len(text) - 1)
        extents.append((touched[0], touched[-1] + 1) if touched else (len(text), len(text)))
    return text + decoder.decode(b"", final=True), extents


def total(values: Iterable[float]) -> float:
    """The sum of values; infinite if it is too large for a float, which no estimator counts as a measurement."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf
