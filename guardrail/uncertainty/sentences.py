"""Where a sentence ends."""

from __future__ import annotations

import re

__all__ = ["sentences"]

# A mark, closing quotes or brackets, then white space; CJK marks need none.
_END = re.compile(r"(?:[.!?\u2026]+[\"'\u201d\u2019)\]]*(?=\s)|[\u3002\uff01\uff1f]+[\u300d\u300f\uff09\"]*)\s*|\n\s*")
_NO_END = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|cf|Fig|approx|ca|(?:[A-Za-z]\.)+[A-Za-z])\.$"
)


def sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text, in order; a text without an end mark is one sentence, an empty one none.

    Rules, no model: a sentence ends at . ! ? or an ellipsis followed by white space, at a CJK full stop, and at a line
    break. Initials ("J. Smith", "U.S.") and a few abbreviations end none. SelfCheckGPT uses spaCy instead.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        if _NO_END.search(text[start : match.end()].rstrip(" \t")) and "\n" not in match[0]:
            continue
        found.append(text[start : match.end()])
        start = match.end()
    found.append(text[start:])
    return tuple(part.strip() for part in found if part.strip())
