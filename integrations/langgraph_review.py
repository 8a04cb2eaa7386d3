"""Abstentions as LangGraph interrupts: a person approves, edits, rejects or responds, and nothing is sampled twice.

A LangGraph node runs again from its start when it is resumed. So no node here both samples and interrupts: one node
draws, judges and freezes the candidate in the state, another asks the person about what was frozen.

    graph.add_node("answer", nodes.sample)      # draws, judges; holds back, or answers
    graph.add_node("review", nodes.review)      # asks about a held-back message; passes everything else

Needs a checkpointer and a thread id, as every interrupt does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import RunnableLambda
from typing_extensions import TypedDict

from guardrail.errors import UnreadableReplyError, require
from guardrail.guard.abstention import worded
from guardrail.guard.chat_model import Guardrail
from guardrail.guard.messages import accepted_answer, candidate_message, with_verdict
from guardrail.sampling.replies import refuse_unstorable
from guardrail.types import Unmeasured
from guardrail.verdict import Reason, Verdict

from ._agents.decisions import (
    ALL_DECISIONS,
    Decision,
    DecisionType,
    answer_schema,
    possible,
    released,
    review_request,
)
from ._agents.graph_bridge import GraphBridge as ReviewBridge
from ._agents.graph_bridge import unchanged
from ._agents.held import Conversation, GuardState, HeldMessage, held_message, pack, unpack
from ._agents.review_bridge import CHANGED, lapsed

if TYPE_CHECKING:
    from langgraph.graph.message import add_messages
    from langgraph.types import interrupt
else:
    add_messages = require("langgraph.graph.message", extra="agents").add_messages
    interrupt = require("langgraph.types", extra="agents").interrupt

__all__ = [
    "ALL_DECISIONS",
    "Decision",
    "DecisionType",
    "GuardedNodes",
    "GuardedState",
    "ReviewBridge",
    "guarded_nodes",
    "held_message",
    "review_request",
]


def ask(held: HeldMessage, allowed: Sequence[DecisionType] = ALL_DECISIONS) -> list[Decision]:
    """Interrupt, and return one decision for each target. Resume with ``{"decisions": [...]}``.

    LangGraph checks the answer against the schema before it keeps it: a bad one raises ``pydantic.ValidationError``
    and the same interrupt can be answered again.
    """
    tools = [target.name for target in held.judged if target.call_id is not None]
    schema = answer_schema(possible(held, allowed), tools)
    request = review_request(held, allowed)
    answer = interrupt(request, response_schema=schema)
    if not unchanged(answer, request):
        answer = lapsed(request, CHANGED)
    return cast(list[Decision], answer["decisions"])


# -- plain graphs ------------------------------------------------------------------------------------------------------


class GuardedState(TypedDict):
    """State of a graph with guarded nodes; add your own keys by inheriting from it."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The conversation."""
    guardrail: NotRequired[str | None]
    """The candidate and its verdict, packed, while one is held back; see `integrations._agents.held`."""


@dataclass(frozen=True, slots=True)
class GuardedNodes:
    """The two nodes of a guarded answer in a plain graph.

    Attributes:
        guard: Judges. Its ``on_abstain`` plays no part here: abstentions are held for the review node.
        allowed: Decisions the person may take.
    """

    guard: Guardrail
    allowed: tuple[DecisionType, ...] = ALL_DECISIONS

    def sample(self, state: GuardedState) -> dict[str, Any]:
        """Draw, judge once, and answer or freeze the candidate."""
        return self._noted(state, self.guard.assess(state["messages"]))

    async def asample(self, state: GuardedState) -> dict[str, Any]:
        """`sample` without blocking the event loop."""
        return self._noted(state, await self.guard.aassess(state["messages"]))

    def review(self, state: GuardedState) -> dict[str, Any]:
        """Ask a person about a held-back message; the decided message joins the conversation."""
        note = unpack(state.get("guardrail"))
        if note is None or note.held is None:
            return {}
        message, _ = released(note.held, ask(note.held, self.allowed), self._refusal)
        return {"messages": [message.to_message()], "guardrail": None}

    def add_to(self, graph: Any, *, name: str = "guard") -> tuple[str, str]:
        """Add both nodes and the edge between them to a ``StateGraph``.

        Returns:
            Names of the entry and of the exit node: ``graph.add_edge(START, entry)``, ``graph.add_edge(exit, ...)``.
        """
        entry, leave = f"{name}_sample", f"{name}_review"
        graph.add_node(entry, RunnableLambda(self.sample, afunc=self.asample))
        graph.add_node(leave, self.review)
        graph.add_edge(entry, leave)
        return entry, leave

    def _noted(self, state: GuardedState, verdict: Verdict) -> dict[str, Any]:
        verdict = _storable(verdict)
        if verdict.passes:
            answer = accepted_answer(verdict, self.guard.artifact.model.model)
            return {"messages": [with_verdict(answer, verdict)], "guardrail": None}
        pending = held_of(state["messages"], verdict, self.guard.artifact.model.model)
        return {"guardrail": pack(GuardState(phase="held", held=pending))}

    def _refusal(self, verdict: Verdict) -> str:
        return worded(self.guard.abstain_message, verdict)


def guarded_nodes(guard: Guardrail, *, allowed: Sequence[DecisionType] = ALL_DECISIONS) -> GuardedNodes:
    """The two nodes that put a person behind a guard in a plain LangGraph graph.

    Tool calls that a guard of a plain graph holds back are shown and released as a whole message: the caller's graph
    runs them, so edit and respond are for answers. In an agent use `integrations.langchain_agents`.
    """
    return GuardedNodes(guard, tuple(allowed))


def held_of(messages: Sequence[BaseMessage], verdict: Verdict, model: str) -> HeldMessage:
    """A verdict's candidate as a message that is held back as a whole."""
    candidate = verdict.candidate
    message = AIMessage(content="") if candidate is None else candidate_message(candidate, model)
    return HeldMessage.of(with_verdict(message, verdict), verdict, conversation=Conversation.of(messages))


def _storable(verdict: Verdict) -> Verdict:
    """The verdict; unmeasured and without its candidate if a state could not store the candidate."""
    try:
        if verdict.candidate is not None:
            refuse_unstorable(verdict.candidate)
    except UnreadableReplyError as error:
        why = {"value": None, "is_bound": False, "reason": Unmeasured.MODEL_FAILED, "detail": str(error)}
        return verdict.model_copy(
            update={
                "accepted": False,
                "reason": Reason.UNMEASURED,
                "detail": f"Held back: {error}.",
                "uncertainty": verdict.uncertainty.model_copy(update=why),
                "candidate": None,
            }
        )
    return verdict
