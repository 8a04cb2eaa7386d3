"""Errors of the gateway in OpenAI's shape, with the statuses after which clients try again, or never do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from guardrail.types import Unmeasured
from guardrail.verdict import Verdict

AGAIN = {"Retry-After": "5"}
"""Header of errors after which clients try again."""
KINDS = {429: "rate_limit_error"}
"""OpenAI's ``type`` by status, where it is neither that of a wrong request nor of a fault of the server."""
DOWN = "upstream_down"
"""Code of the error while an upstream that had replied no longer does."""


@dataclass(eq=False)
class ApiError(Exception):
    """An error reply in OpenAI's shape. Clients retry 408, 409, 429 and every 5xx; never 400, 401, 403, 404 or 413."""

    status: int
    message: str
    """Text for the caller; it names no address and no key."""
    code: str
    param: str | None = None
    """Field of the request that is wrong."""
    headers: Mapping[str, str] = field(default_factory=dict)
    verdict: Verdict | None = None
    """The abstention that it reports."""

    @property
    def body(self) -> dict[str, Any]:
        """The reply's body, with all four keys."""
        kind = "server_error" if self.status >= 500 else KINDS.get(self.status, "invalid_request_error")
        if self.verdict is not None and self.status == 400:
            kind = "guardrail_abstained"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(where: str, rule: str, code: str = "invalid_field") -> ApiError:
    """The error for a field that breaks a rule."""
    return ApiError(400, f"'{where[:100]}' {rule}", code, where[:100])


def unavailable(message: str, code: str) -> ApiError:
    """An error after which clients try again."""
    return ApiError(503, message, code, headers=AGAIN)


class Fault(NamedTuple):
    """A fault of the upstream for which questions get errors."""

    status: int
    message: str
    """Text for the caller."""
    cause: str
    """Sentence for operators."""


FAULTS: Mapping[str, Fault] = {
    Unmeasured.MISCONFIGURED: Fault(  # never 401: the client would blame its own key
        502, "The model behind the gateway cannot be reached with its configuration.",
        "the upstream answers no call; check its key, model name and url, and that the server runs there{hint}",
    ),
    Unmeasured.DEGENERATE_SAMPLES: Fault(
        503, "The model behind the gateway does not sample as the guard needs, so nothing is answered.",
        "a probe refused the upstream, so no question is answered ({detail})",
    ),
    Unmeasured.MODEL_CHANGED: Fault(
        503, "The model behind the gateway is not the one that was calibrated, so its answer is held back.",
        "the upstream answers as another model than the pinned one, so its answers are held back",
    ),
    Unmeasured.MODEL_FAILED: Fault(
        503, "The model behind the gateway failed, so the answer could not be measured. Try again.",
        "the upstream failed or sent no JSON, so a question could not be measured",
    ),
    DOWN: Fault(
        503, "The model behind the gateway is down (since {since}). Try again.",
        "the upstream is down (since {since})",
    ),
}  # fmt: skip
"""Faults of upstreams, by the code of the error."""


def upstream_down(since: str) -> ApiError:
    """The error for an upstream that had replied and no longer does, after which clients try again."""
    return unavailable(FAULTS[DOWN].message.format(since=since), DOWN)


def not_served(path: str, method: str) -> ApiError:
    """The error for every path that the gateway does not serve: nothing passes the gate by accident."""
    served = "the gateway serves POST /v1/chat/completions, /v1/responses and /v1/messages, and GET /v1/models"
    more = "It keeps no responses. The operator may pass other paths through with 'pass_through' in the configuration."
    return ApiError(404, f"{method} {path[:100]} is not served; {served}. {more}", "unknown_endpoint")


def no_model(name: str) -> ApiError:
    """The error for a model that does not exist here, or that a key may not see."""
    return ApiError(404, f"The model {name[:100]!r} does not exist here.", "model_not_found", "model")
