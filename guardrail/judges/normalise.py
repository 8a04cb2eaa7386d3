"""Answer normalisation, shared by judges and correctness rules.

Follows the SQuAD / CoQA convention (lower case, punctuation and articles dropped, white space folded) on NFKC text.
Difference: marks that make another answer are kept, because "3.5" and "35", "C++" and "C#", "x > 5" and "x < 5" are not
the same answer. Taking two answers for one hides that the model is unsure, taking one for two costs an answer at most:
what is in doubt stays apart.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .marks import folded, is_operator, marked, may_have_marks, word_pattern

__all__ = ["is_refusal", "marked_words", "normalise", "word_tuple", "words"]

_ARTICLES = frozenset({"a", "an", "the"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# A word: a number with an optional sign and decimals, or a run of letters and digits (apostrophes inside kept out).
_WORD = re.compile(r"(?<!\w)[-+]?\d+(?:\.\d+)?(?!\w)|\w+", flags=re.UNICODE)
_UNABLE = (
    r"(?:do not|don t|dont) (?:know|have|understand|recall|remember)\b.*"
    r"|(?:can not|cannot|can t|cant|could not|couldn t|(?:am|m|are|re|was|were) (?:un|not )able to)"
    r" (?:access|answer|assist|comply|determine|discuss|find|give|help|identify|provide|say|share|tell|verify)\b.*"
    r"|(?:am|m|are|re) (?:not (?:aware|certain|familiar|sure)|unsure|uncertain)\b.*"
    r"|have no (?:answer|data|idea|information|knowledge|record)\b.*"
)
_REFUSALS = re.compile(
    r"(?:i (?:do not|don t|dont) know|(?:i (?:m|am) )?not sure|i (?:m|am) unsure|unknown|no idea"
    r"|i (?:can not|cannot|can t|cant) (?:answer\b.*|help(?: you)?(?: (?:with|on|about|here|there)\b.*)?"
    r"|(?:say|tell)(?: you)?(?: (?:for|with) (?:sure|certain|certainty))?)"
    rf"|(?:(?:i|we) (?:m|am|re|are) )?(?:so |very |really )?sorry(?: (?:but )?(?:that )?(?:i|we) (?:{_UNABLE}))?)"
)
"""What nobody would give as an answer: "sorry" counts alone or before "I cannot ...", not in "Sorry by Justin Bieber".
A refusal that is missed only splits answers; an answer taken for a refusal is merged with others."""


def words(text: str, *, keep_articles: bool = False) -> list[str]:
    """Words of a text: NFKC, case-folded, punctuation dropped, thousands separators removed, articles dropped.

    An answer that consists of articles only keeps them ("A" is an answer to a multiple-choice question). Numbers keep
    their sign and decimals, letters their combining marks; other marks are dropped (`marked_words` has them).
    """
    found = _words(_plain(text))
    return found if keep_articles else _without_articles(found)


def _words(plain: str) -> list[str]:
    pattern = _WORD if plain.isascii() else word_pattern(plain) or _WORD
    found: list[str] = pattern.findall(plain)
    return [word.lstrip("+") for word in found] if "+" in plain else found


def _without_articles(found: list[str]) -> list[str]:
    if _ARTICLES.isdisjoint(found):
        return found
    return [word for word in found if word not in _ARTICLES] or found


def _plain(text: str) -> str:
    """Folded text without thousands separators and contractions."""
    plain = text.lower() if text.isascii() else folded(text)
    if "," in plain:
        plain = _THOUSANDS.sub("", plain)
    plain = plain.replace("\u2019", "'")
    if "'" in plain:
        plain = plain.replace("can't", "cannot").replace("n't", " not").replace("'s ", " ")
    return plain


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Words without and with marks, remembered: every answer is compared with several others, by several judges."""
    plain = _plain(text)
    found = _words(plain)
    bare = tuple(_without_articles(found))
    if not may_have_marks(plain):
        return bare, bare
    kept = marked(plain)
    if _ARTICLES.isdisjoint(kept) or _ARTICLES.issuperset(found):
        return bare, tuple(kept)
    beside = [False, *map(is_operator, kept), False]
    return bare, tuple(word for i, word in enumerate(kept) if word not in _ARTICLES or beside[i] or beside[i + 2])


def word_tuple(text: str) -> tuple[str, ...]:
    """`words` of a text, remembered."""
    return _read(text)[0]


def marked_words(text: str) -> tuple[str, ...]:
    """`words` of a text with the marks that make another answer (see `normalise`), remembered.

    An article beside an operator may be a variable, and stays.
    """
    return _read(text)[1]


def normalise(text: str) -> str:
    """Normalised form of an answer; equal strings count as the same answer. Empty for an answer without words.

    Kept are marks that make another answer: (1) suffixes, "C++", "C#", "O-", "18+"; (2) "=", "!=", "<", ">" and other
    mathematical signs; (3) "+ - * / ^ :" between numbers or variables, "+" and "*" between any words; (4) currencies
    and "%"; (5) signs, "-5" with any minus or dash, a leading decimal point, ".5", and exponents, "1e-5". All else is
    dropped: quotes, brackets, hyphens inside words, the "/" of "AC/DC", full stops, emphasis ("**Paris**"), the "+" of
    "+5". Normalising twice changes nothing more, and leaves `words` as they are.

    Text without any word or mark (e.g. an emoji or "[]") falls back to the folded text itself, so that two different
    symbols are not taken for the same (empty) answer.
    """
    _, found = _read(text)
    return " ".join(found) if found else " ".join(_plain(text).split())


@lru_cache(maxsize=4096)
def is_refusal(text: str) -> bool:
    """Whether an answer says that there is no answer ("I don't know", "not sure", "I'm sorry, but I cannot ...")."""
    return _REFUSALS.fullmatch(" ".join(words(text.replace("'", " "), keep_articles=True))) is not None
