"""Errors of the review store, all of them a `ReviewError`."""

from __future__ import annotations

from ..errors import GuardrailError

__all__ = [
    "AlreadyDecidedError",
    "ItemExpiredError",
    "LeaseLostError",
    "ReviewError",
    "StoreUnavailableError",
    "UnknownItemError",
    "UnstorableError",
]


class ReviewError(GuardrailError):
    """The review store refused an operation; the message says why and what to do."""


class UnknownItemError(ReviewError):
    """No item has this id."""


class LeaseLostError(ReviewError):
    """The lease does not hold the item, or no longer holds it."""


class AlreadyDecidedError(ReviewError):
    """Another decision was recorded first; it stands."""


class ItemExpiredError(ReviewError):
    """The deadline of the item has passed, so nobody waits for an answer."""


class UnstorableError(ReviewError):
    """A content or a decision cannot be written and read back: nested too deeply, not JSON, or broken characters."""


class StoreUnavailableError(ReviewError):
    """The database did not answer within the deadline, or cannot be reached.

    If it was broken off while committing, the operation may have happened: repeat it under the same key.
    """
