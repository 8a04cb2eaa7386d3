"""Human review of held-back answers: a durable queue, hooks that fill it, and a page to work through it.

    store = ReviewStore("sqlite:///reviews.db")                         # or postgresql://...
    guard = Guardrail(model=..., artifact=..., on_abstain=ask_reviewer(store, wait=300))

Needs the ``review`` extra. ``import guardrail`` does not load this package.
"""

from __future__ import annotations

from ..errors import require

require("sqlalchemy", extra="review")

from .candidates import CandidateRule, CandidateSet  # noqa: E402
from .delivery import Deliverer  # noqa: E402
from .destinations import Destination  # noqa: E402
from .errors import (  # noqa: E402
    AlreadyDecidedError,
    ItemExpiredError,
    LeaseLostError,
    ReviewError,
    StoreUnavailableError,
    UnknownItemError,
    UnstorableError,
)
from .hooks import ask_reviewer, audit_sample, content_of, ticket  # noqa: E402
from .item import ACTIONS, Candidate, Content, Decision, Event, Item, ItemDecision, by_items  # noqa: E402
from .monitors import Monitors, RiskMonitor  # noqa: E402
from .purging import Purged  # noqa: E402
from .store import Lease, ReviewStore, WorkLease  # noqa: E402

__all__ = [
    "ACTIONS",
    "AlreadyDecidedError",
    "Candidate",
    "CandidateRule",
    "CandidateSet",
    "Content",
    "Decision",
    "Deliverer",
    "Destination",
    "Event",
    "Item",
    "ItemDecision",
    "ItemExpiredError",
    "Lease",
    "LeaseLostError",
    "Monitors",
    "Purged",
    "ReviewError",
    "ReviewStore",
    "RiskMonitor",
    "StoreUnavailableError",
    "UnknownItemError",
    "UnstorableError",
    "WorkLease",
    "ask_reviewer",
    "audit_sample",
    "by_items",
    "content_of",
    "ticket",
]
