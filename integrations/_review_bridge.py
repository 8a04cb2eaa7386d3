"""From a paused graph to the review queue and back: the queue is where the person answers.

Nothing happens inside a node: the graph pauses, and whoever runs it calls `enqueue`, and `resume` after the decision.
Both may be called again at any time, also by another process after a crash: an item's key is its interrupt's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from guardrail.errors import UsageError

if TYPE_CHECKING:
    from guardrail.review import Decision, Item, ReviewStore

__all__ = ["ReviewBridge"]

TOO_LATE = "Nobody decided in time."
"""Reason of the rejection of an expired item."""


@dataclass(frozen=True, slots=True)
class ReviewBridge:
    """Puts a graph's guardrail interrupts into a review store, and takes the decisions back.

    An interrupt about several calls is one item: approve, reject and respond are about all of them, and an edit gives
    all of them, in order.

    Example:
        >>> bridge = ReviewBridge(ReviewStore("reviews.db"))        # doctest: +SKIP
        >>> agent.invoke({"messages": "..."}, config)               # doctest: +SKIP
        >>> bridge.enqueue(agent, config)                           # doctest: +SKIP
        >>> bridge.resume(agent, config)   # None until decided     # doctest: +SKIP

    Attributes:
        store: The queue.
        expires_in: Seconds in which a decision is wanted; afterwards the candidate is rejected. None: no limit.
        callback: URL that is told about the decision.
        metadata: Stored with each item.
    """

    store: ReviewStore
    expires_in: float | None = None
    callback: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def enqueue(self, graph: Any, config: Any) -> list[Item]:
        """The items of the thread's open guardrail interrupts; those that are new are added."""
        return [item for _, _, item in self._open(graph.get_state(config), config)]

    async def aenqueue(self, graph: Any, config: Any) -> list[Item]:
        """`enqueue` for async checkpointers."""
        return [item for _, _, item in self._open(await graph.aget_state(config), config)]

    def resume(self, graph: Any, config: Any) -> dict[str, Any] | None:
        """Go on with what is decided; None while nothing is. The graph's result may hold the next interrupt."""
        answers = self._answers(graph.get_state(config), config)
        return None if not answers else graph.invoke(_command(answers), config)

    async def aresume(self, graph: Any, config: Any) -> dict[str, Any] | None:
        """`resume` for async checkpointers."""
        answers = self._answers(await graph.aget_state(config), config)
        return None if not answers else await graph.ainvoke(_command(answers), config)

    def _answers(self, state: Any, config: Any) -> dict[str, Any]:
        found = {}
        for name, value, item in self._open(state, config):
            if item.decision is not None:
                found[name] = {"decisions": response_of(item.decision, value)}
            elif item.state == "expired":
                found[name] = {"decisions": [{"type": "reject", "message": TOO_LATE}] * len(value["action_requests"])}
        return found

    def _open(self, state: Any, config: Any) -> list[tuple[str, dict[str, Any], Item]]:
        from guardrail.review import Candidate, Content

        thread = config["configurable"]["thread_id"]
        found = []
        for one in state.interrupts:
            value = one.value
            if not isinstance(value, dict) or value.get("type") != "guardrail_review":
                continue
            calls = [{"name": c["name"], "arguments": c["args"]} for c in value["candidate"]["tool_calls"]]
            text, verdict = value["candidate"]["text"], {**value["verdict"], "candidate": None}
            content = Content(
                question=value["question"],
                kind=value["kind"],
                candidate=Candidate.model_validate({"text": text, "tool_calls": calls}) if text or calls else None,
                verdict=verdict,
                alternatives=tuple((a["text"], a["share"]) for a in value["alternatives"]),
                allowed=tuple(value["review_configs"][0]["allowed_decisions"]),
                metadata={**self.metadata, "thread_id": str(thread), "interrupt": one.id},
            )
            item = self.store.enqueue(content, key=one.id, expires_in=self.expires_in, callback=self.callback)
            found.append((one.id, value, item))
        return found


def response_of(decision: Decision, value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A reviewer's decision as the decisions of an interrupt, one for each action.

    Raises:
        UsageError: The edited candidate has other calls than those that were judged.
    """
    actions = value["action_requests"]
    if decision.action == "respond":
        return [{"type": "respond", "message": decision.text}] * len(actions)
    if decision.action == "reject":
        said = {"message": decision.note} if decision.note else {}
        return [{"type": "reject", **said}] * len(actions)
    if decision.action == "approve" or decision.candidate is None:
        return [{"type": "approve"}] * len(actions)
    if value["kind"] == "answer":
        return [{"type": "edit", "edited_action": {"name": "answer", "args": {"text": decision.candidate.text}}}]
    # The candidate shows all calls of the message; those that pass without a gate are not decided about.
    gated = {action["name"] for action in actions}
    mended = [call for call in decision.candidate.tool_calls if call.name in gated]
    if [call.name for call in mended] != [action["name"] for action in actions]:
        raise UsageError(
            f"the edited candidate calls {[call.name for call in mended]}, but the calls to decide about are "
            f"{[action['name'] for action in actions]}: an edit changes arguments. Reject it to make another call."
        )
    return [{"type": "edit", "edited_action": {"name": c.name, "args": dict(c.arguments)}} for c in mended]


def _command(answers: dict[str, Any]) -> Any:
    from langgraph.types import Command

    return Command(resume=answers)
