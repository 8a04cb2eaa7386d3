"""Texts that a model cannot tell apart because its vocabulary lacks their words: "yes" and "no" in a script it has not.

A tokenizer with an unknown token reads every word it does not know as that one token. To such a model two opposite
answers can be the same input, and their likeness says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["hidden"]


@dataclass(frozen=True, slots=True)
class _Read:
    """What a tokenizer makes of a text."""

    ids: tuple[int, ...]
    """Its tokens, special ones aside."""
    unknown: tuple[str, ...]
    """The words behind its unknown tokens; the whole text where the tokenizer does not say which they are."""
    lost: bool
    """Whether more than half of its tokens or of its characters are unknown, or no token is left of it."""


def hidden(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether unknown tokens hide how the texts of a pair differ; never so for equal texts.

    They do where a text is lost (more than half of its tokens, or of its characters, are unknown, or no token is left
    of it), where each text has an unknown word that the other lacks, and where the tokens are the same but the unknown
    words are not. A word that is known to neither and stands in both hides nothing; nor does one that only one text has
    besides words that are known, since the model sees that something is there.

    Args:
        tokenizer: The model's. Without an unknown token (byte-level vocabularies) nothing is hidden.
        pairs: Texts as the model reads them, without the question: its words would outnumber those of a short answer.
    """
    texts = list(dict.fromkeys(text for a, b in pairs if a != b for text in (a, b)))
    if tokenizer.unk_token_id is None or not texts:
        return [False] * len(pairs)
    fast = bool(tokenizer.is_fast)  # only these know which characters a token stands for
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=fast, verbose=False)
    places = encoded["offset_mapping"] if fast else [None] * len(texts)
    found = {
        text: _read(text, ids, spans, tokenizer.unk_token_id)
        for text, ids, spans in zip(texts, encoded["input_ids"], places, strict=True)
    }
    return [a != b and _hides(found[a], found[b]) for a, b in pairs]


def _read(text: str, ids: Sequence[int], spans: Sequence[tuple[int, int]] | None, unknown: int) -> _Read:
    count = sum(one == unknown for one in ids)
    words: tuple[str, ...] = (text,) if count else ()
    lost = 2 * count > len(ids)
    if spans is not None:
        words = tuple(text[start:end].strip() for one, (start, end) in zip(ids, spans, strict=True) if one == unknown)
        lost |= 2 * _letters("".join(words)) > _letters(text)
    return _Read(tuple(ids), words, lost or (not ids and bool(text.strip())))


def _letters(text: str) -> int:
    return sum(map(len, text.split()))


def _hides(a: _Read, b: _Read) -> bool:
    words, others = set(a.unknown), set(b.unknown)
    confused = bool(words - others and others - words)
    return a.lost or b.lost or confused or (a.ids == b.ids and a.unknown != b.unknown)
