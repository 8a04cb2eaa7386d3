"""A guard's answers: what a reply shows of a verdict, in its body and in headers, and abstentions as errors. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from langchain_core.messages import AIMessage

from guardrail.explain import without_quotes
from guardrail.guard.abstention import ABSTAINED
from guardrail.types import Unmeasured
from guardrail.verdict import Reason, Verdict

from .errors import AGAIN, FAULTS, ApiError, upstream_down

SHOWN = (
    "accepted", "abstained", "reason", "uncertainty", "threshold", "artifact", "fallback", "handoff", "ticket",
    "replaced",
)  # fmt: skip
"""Fields of a verdict that are sent as headers."""
INCOMPLETE = "Fields of the answer are not certain enough, and the request asked for all or nothing."
"""Text of an abstention for `all_or_nothing`."""
_READ = ("accepted", "reason", "uncertainty", "threshold", "alpha", "outcome", "basis", "artifact")


def read_verdict(metadata: Mapping[str, Any]) -> Verdict:
    """The verdict in the metadata of a message, without any text of an answer."""
    return Verdict.from_stored({"candidate": None, **{name: metadata[name] for name in _READ}})


def is_settled(metadata: Mapping[str, Any]) -> bool:
    """Whether an identical request gets this verdict again: an answer, or an abstention that is a result.

    A failed transport and an alarm do not depend on the question, so another attempt selects nothing.
    """
    stages = metadata.get("stages") or [metadata]
    return read_verdict(metadata).passes or any(read_verdict(stage).is_result for stage in stages)


@dataclass(frozen=True)
class GuardReply:
    """The guard's reply to a request: an answer, or the text of an abstention."""

    message: AIMessage
    metadata: Mapping[str, Any]
    """``Verdict.to_metadata()``."""
    shape: Literal["content_filter", "stop"] = "content_filter"
    """``finish_reason`` of an abstention's text, and of an answer that no gate judged."""
    fallback: str | None = None
    """Name of the model that answered in place of the guarded one."""

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict, without any text of an answer."""
        return read_verdict(self.metadata)

    @property
    def abstained(self) -> bool:
        """Whether the message is the text of an abstention, which answers nothing."""
        # A ticket beside an accepted answer is about the items of it that are held back.
        waits = self.ticket is not None and not self.verdict.passes
        return ABSTAINED in self.message.response_metadata or waits

    @property
    def ticket(self) -> str | None:
        """Ticket under which a person decides."""
        ticket: str | None = (self.message.response_metadata.get("review") or {}).get("ticket")
        return ticket

    @property
    def shown(self) -> dict[str, Any]:
        """The ``guardrail`` object of a reply; it quotes no answer held back."""
        content, abstained = self.metadata, self.abstained
        explained = abstained or not self.verdict.accepted
        more = {
            "unmeasured": self.verdict.uncertainty.reason,
            "fallback": self.fallback,
            "explanation": without_quotes(self.verdict) if explained else None,
            **{name: content.get(name) for name in ("handoff", "route", "turns", "stage", "held_back")},
        }
        if "items" in content:
            more["items"] = [_item(item, answered=not abstained) for item in content["items"]]
        return {
            **{name: content[name] for name in ("accepted", "reason", "threshold", "alpha", "artifact")},
            **{name: value for name, value in more.items() if value is not None},
            "abstained": abstained, "uncertainty": self.verdict.uncertainty.value, "ticket": self.ticket,
        }  # fmt: skip


def _item(item: Mapping[str, Any], *, answered: bool) -> dict[str, Any]:
    """An item without its words; its path has none of the model's words unless the answer is given out."""
    content = {name: value for name, value in item.items() if name not in ("text", "named")}
    return content if answered or "named" not in item else {**content, "path": item["named"]}


def all_or_nothing(answer: GuardReply) -> GuardReply:
    """The reply for a client that takes no part of an answer: an abstention unless everything is kept."""
    if answer.verdict.reason is not Reason.PARTLY_HELD_BACK or answer.abstained:
        return answer
    metadata = {**answer.message.response_metadata, ABSTAINED: True}
    message = answer.message.model_copy(update={"content": INCOMPLETE, "tool_calls": [], "response_metadata": metadata})
    content = {name: value for name, value in answer.metadata.items() if name != "candidate"}
    return GuardReply(message, {**content, "accepted": False}, shape=answer.shape)


def headers_of(shown: Mapping[str, Any], replaced: Sequence[str] = ()) -> dict[str, str]:
    """The ``guardrail`` object of a reply as headers; a number that was not measured is an empty header."""
    values = {**shown, "replaced": ", ".join(replaced) or None}

    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

    names = [name for name in SHOWN if values.get(name) is not None or name in ("uncertainty", "threshold")]
    return {f"x-guardrail-{name}": text(values[name]) for name in names}


def failure(metadata: Mapping[str, Any], message: str, down: str | None = None) -> ApiError:
    """An abstention as an error; ``down`` is the time from which an upstream that had replied no longer does.

    A measured abstention has a status that no client retries: retries would draw until a wrong answer looks certain.
    Only a failed transport is worth another attempt.
    """
    abstention = GuardReply(AIMessage(content="", response_metadata={ABSTAINED: True}), metadata)
    verdict, headers = abstention.verdict, headers_of(abstention.shown)
    reason, code = verdict.reason, verdict.uncertainty.reason or verdict.reason
    if down is not None and code in (Unmeasured.MISCONFIGURED, Unmeasured.MODEL_FAILED):
        outage = upstream_down(down)
        return replace(outage, headers={**headers, **outage.headers}, verdict=verdict)
    failed = FAULTS[Unmeasured.MODEL_FAILED]
    if reason is Reason.UNMEASURED and not is_settled(metadata):
        status, message, _ = fault = FAULTS.get(code, failed)
        headers |= AGAIN if fault is failed else {"x-should-retry": "false"}
    elif reason is Reason.INFEASIBLE:
        status, code = 500, reason
        headers |= {"x-should-retry": "false"}
    else:
        status = 400
    return ApiError(status, message, code, headers=headers, verdict=verdict)
