"""Answer normalisation, shared by judges and correctness rules.

Follows the SQuAD / CoQA convention (lower case, punctuation and articles dropped, white space folded) on NFKC text.
Difference: punctuation inside a number is kept ("3.5" stays "3.5", "1,000" becomes "1000"), because "3.5" and "35"
are not the same answer.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["is_refusal", "normalise", "word_tuple", "words"]

_ARTICLES = frozenset({"a", "an", "the"})
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# A word: a number with an optional sign and decimals, or a run of letters and digits (apostrophes inside kept out).
_WORD = re.compile(r"(?<!\w)[-+]?\d+(?:\.\d+)?(?!\w)|\w+", flags=re.UNICODE)
_REFUSALS = re.compile(
    r"^(i\s+(do\s+not|don\s*t|dont)\s+know|i\s*m\s+(not\s+sure|unsure)|i\s+am\s+(not\s+sure|unsure)|not\s+sure|unknown|"
    r"no\s+idea|i\s+(can\s*not|cannot|can\s*t|cant)\s+(answer|help|say|tell)\b.*|"
    r"i\s*m\s+sorry\b.*|sorry\b.*)$"
)


def words(text: str, *, keep_articles: bool = False) -> list[str]:
    """Words of a text: NFKC, case-folded, punctuation dropped, thousands separators removed, articles dropped.

    An answer that consists of articles only keeps them ("A" is an answer to a multiple-choice question).
    """
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()  # the same for ASCII
    if "," in folded:
        folded = _THOUSANDS.sub("", folded)
    folded = folded.replace("\u2019", "'")
    if "'" in folded:
        folded = folded.replace("can't", "cannot").replace("n't", " not").replace("'s ", " ")
    found: list[str] = _WORD.findall(folded)
    if "+" in folded:
        found = [word.lstrip("+") for word in found]
    if keep_articles:
        return found
    return [word for word in found if word not in _ARTICLES] or found


@lru_cache(maxsize=4096)
def word_tuple(text: str) -> tuple[str, ...]:
    """`words` of a text, remembered: every answer is compared with several others, by several judges."""
    return tuple(words(text))


def normalise(text: str) -> str:
    """Normalised form of an answer; equal strings count as the same answer. Empty for an answer without words.

    Text without any word character (e.g. an emoji or "[]") falls back to the folded text itself, so that two
    different symbols are not taken for the same (empty) answer.
    """
    found = word_tuple(text)
    return " ".join(found) if found else " ".join(unicodedata.normalize("NFKC", text).casefold().split())


@lru_cache(maxsize=4096)
def is_refusal(text: str) -> bool:
    """Whether an answer says that there is no answer ("I don't know", "not sure", "I'm sorry, ...")."""
    return bool(_REFUSALS.match(" ".join(words(text.replace("'", " "), keep_articles=True))))
