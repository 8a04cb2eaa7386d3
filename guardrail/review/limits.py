"""Limits of the review store: texts that both databases can hold, and lengths of time that a calendar can hold.

SQLite would take more than PostgreSQL. The store refuses the same values with both, before it calls the database.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ..errors import UsageError

__all__ = [
    "LONGEST",
    "LONGEST_KEY",
    "LONGEST_NAME",
    "check_callback",
    "check_seconds",
    "check_text",
    "storable",
    "without_surrogates",
]

LONGEST = 10 * 365.25 * 86_400.0
"""Longest time, in seconds: ten years."""
LONGEST_KEY = 512
"""Characters of a key."""
LONGEST_NAME = 256
"""Characters of a reviewer's name."""


def check_callback(url: str) -> None:
    """Refuse a text that is not an http(s) URL, and one with a query or a user name.

    The database and its backups hold the URL, and a secret in it would be one of these.

    Raises:
        UsageError: With the rule and the way out; the URL itself is not quoted.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    # `urlsplit` drops line breaks and tabs without a word.
    readable = storable(url) and not re.search(r"[\x00-\x20\x7f]", url)
    if parts.scheme not in ("http", "https") or not parts.netloc or not readable:
        raise UsageError(
            "callback must be an http(s) URL without white space and control characters, got one that begins with "
            f"{url.partition(':')[0][:20]!r}."
        )
    if "?" in url or "#" in url or "@" in parts.netloc:
        raise UsageError(
            "callback has parameters, a fragment or a user name, which may be secrets, and the URL would be stored in "
            "plain text. Leave them out: each callback carries the key and the metadata of its item, and the receiver "
            "can verify its signature with a library of Standard Webhooks."
        )


def check_seconds(name: str, seconds: float, way_out: str) -> None:
    """Refuse a length of time outside (0, ten years], including infinities and NaN.

    Raises:
        UsageError: With the value, the rule and the way out.
    """
    if not 0 < seconds <= LONGEST:
        raise UsageError(f"{name} must be above 0 seconds and at most ten years, got {seconds}. {way_out}")


def check_text(name: str, text: str, most: int) -> None:
    """Refuse a text that is empty, longer than its column, or cannot be stored.

    Raises:
        UsageError: With the value, the rule and the way out.
    """
    if not isinstance(text, str) or not text:
        raise UsageError(f"{name} must be a non-empty text, got {text!r}.")
    if len(text) > most:
        raise UsageError(
            f"{name} may have {most} characters, got {len(text)}: {text[:40]!r}... Use a hash of it instead."
        )
    if not storable(text):
        raise UsageError(
            f"{name} holds a NUL or half of a surrogate pair, which a database cannot store: {text[:80]!r}."
        )


def storable(text: str) -> bool:
    """Whether a text column can hold it: it has no NUL and no half of a surrogate pair."""
    return "\0" not in text and without_surrogates(text) == text


def without_surrogates(text: str) -> str:
    """The text with U+FFFD in place of each half of a surrogate pair, which UTF-8 cannot write."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
