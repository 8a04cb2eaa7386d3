"""What a review store refuses.

* ReviewError
  - UnknownItemError      no such item
  - LeaseLostError        somebody else holds the item now, or nobody gave it to you
  - AlreadyDecidedError   somebody else decided first
  - ItemExpiredError      the time in which an answer was wanted is over
  - UnstorableError       a content or a decision that cannot be written as it is
"""

from __future__ import annotations

from ..errors import GuardrailError

__all__ = [
    "AlreadyDecidedError",
    "ItemExpiredError",
    "LeaseLostError",
    "ReviewError",
    "UnknownItemError",
    "UnstorableError",
]


class ReviewError(GuardrailError):
    """The review store refuses; the message says why and what to do."""


class UnknownItemError(ReviewError):
    """No item has this id."""


class LeaseLostError(ReviewError):
    """The lease is not (or no longer) the one that holds the item."""


class AlreadyDecidedError(ReviewError):
    """Another decision was recorded first; it stands."""


class ItemExpiredError(ReviewError):
    """The item's deadline has passed, so nobody waits for an answer."""


class UnstorableError(ReviewError):
    """A content or a decision is nothing that can be written and read back: too deep, no JSON, broken characters."""
