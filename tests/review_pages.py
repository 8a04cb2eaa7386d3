"""A review page with an item, for tests of the page in process, over HTTP and in a browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from guardrail.plain_json import sha256_hex
from guardrail.review import Candidate, CandidateSet, Content, Decision, Item, Lease, ReviewStore
from guardrail.review.web.accounts import Account, Accounts, Role
from guardrail.review.web.app import server_of
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Reason, Uncertainty
from guardrail.verdict import Verdict

__all__ = [
    "HOSTILE",
    "OURS",
    "accounts",
    "claim",
    "decision_of",
    "held_back",
    "in_process",
    "reviewer",
    "served",
    "verdict",
]

ROLES: dict[str, Role] = {"ann": "reviewer", "bob": "reviewer", "eve": "admin", "zendesk": "system", "jira": "system"}
"""The accounts of tests; the token of ann is ``ann-token-0123456789ab``."""
OURS = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of a form that a page of the same address sends."""
HOSTILE = (
    '</div></textarea><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
    "{{ 7 * 7 }} <a href=\"javascript:document.title='owned'\">click</a> \u202e\x00"
)


class _Known(Accounts):
    """Accounts without a file."""

    def __init__(self) -> None:
        self._known = tuple(
            Account(name=name, role=role, sha256=sha256_hex(f"{name}-token-0123456789ab".encode()))
            for name, role in ROLES.items()
        )

    def all(self) -> tuple[Account, ...]:
        return self._known


def accounts() -> Accounts:
    """Return the accounts of `ROLES`."""
    return _Known()


def verdict(value: float = 1.36, **changes: Any) -> Verdict:
    """Return the verdict of a gate at 0.61 nats."""
    values: dict[str, Any] = {
        "accepted": False,
        "reason": Reason.ABOVE_THRESHOLD,
        "uncertainty": Uncertainty(value=value, unit="nats", estimator="discrete_semantic_entropy"),
        "threshold": 0.61,
        "alpha": 0.1,
        "outcome": make_artifact(ScriptedChat(), threshold=0.61).outcome,
        "basis": Basis.SAMPLES,
        "artifact": "",
        "candidate": None,
    }
    return Verdict(**{**values, **changes})


def held_back(question: str = "Who wrote The Waves?", answer: str = "Virginia Woolf", **changes: Any) -> Content:
    """Return an item as a guard would queue it."""
    values: dict[str, Any] = {
        "question": question,
        "messages": ({"role": "human", "content": question},),
        "candidate": Candidate(text=answer),
        "verdict": verdict(),
        "alternatives": ((answer, 0.4), ("Katherine Mansfield", 0.3), ("E. M. Forster", 0.2), ("Henry James", 0.1)),
        "candidate_set": CandidateSet(
            answers=((answer, 0.4), ("Katherine Mansfield", 0.3)),
            epsilon=0.2,
            attained=True,
            attainable=0.12,
            delta=0.1,
        ),
        **changes,
    }
    return Content.model_validate(values)


def claim(store: ReviewStore, reviewer: str, **settings: Any) -> Lease:
    """Claim an item that is free."""
    lease = store.claim(reviewer, **settings)
    assert lease is not None
    return lease


def decision_of(store: ReviewStore, item: str) -> Decision:
    """Return the decision about an item that is decided."""
    decision = store.item(item).decision
    assert decision is not None
    return decision


@contextmanager
def reviewer(store: ReviewStore, decide: Callable[[Item], Decision]) -> Iterator[list[Item]]:
    """Somebody who decides the first item that comes."""
    reviewed: list[Item] = []
    stopped = threading.Event()

    def work() -> None:
        while not stopped.wait(0.01):
            lease = store.claim("ann")
            if lease is not None:
                reviewed.append(store.decide(lease, decide(lease.item)))
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield reviewed
    finally:
        stopped.set()
        thread.join()


def in_process(app: Starlette) -> TestClient:
    """Return a client that calls the application without a server and follows no redirect."""
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False, headers=OURS)


@contextmanager
def served(app: Starlette) -> Iterator[str]:
    """Serve the application on a free port of the loopback, as the command does; yield its address."""
    server = server_of(app)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
