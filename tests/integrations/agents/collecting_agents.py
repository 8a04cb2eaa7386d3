"""Agents that collect, and what people decide about their calls: for the tests of collecting and of learning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from typer.testing import CliRunner

from calibrate.cli import app
from guardrail.review import Decision, ReviewStore
from guardrail.types import MAX_TOKENS
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import ReviewBridge
from tests.integrations.agents.agent_fakes import SYSTEM, AgentChat, balance, close, sending
from tests.integrations.frameworks.cases import decide_in

SENT: list[int] = []
"""Amounts that `transfer` has sent in this test; see ``in_a_folder`` in conftest.py."""


@tool
def transfer(to: str, amount: int) -> str:
    """Send money."""
    SENT.append(amount)
    return f"sent {amount} to {to}"


class Greedy(AgentChat):
    """An agent's model that answers as the plan's primary answer is drawn."""

    temperature: float = 0.0
    max_tokens: int = MAX_TOKENS


def chat(kind: type[AgentChat] = AgentChat, /, **steps: Sequence[Any]) -> AgentChat:
    """Answers a request named by its first word, then says "Done."."""
    first = {(name, 0): replies for name, replies in steps.items()}
    return kind(steps=first | {(name, 1): ["Done."] for name in steps})


def agent(model: AgentChat, *middleware: Any, saver: Any = None, system: str = SYSTEM) -> Any:
    return create_agent(
        model,
        [balance, transfer, close],
        system_prompt=system,
        middleware=middleware,
        checkpointer=saver or InMemorySaver(),
    )


def collecting(**options: Any) -> GuardrailMiddleware:
    """A guard without any artifact: transfers and closings wait for a person."""
    return GuardrailMiddleware(tools={"transfer": "collect", "close": "collect"}, exempt=["balance"], **options)


def thread(name: str) -> Any:
    """The configuration of a conversation."""
    return {"configurable": {"thread_id": name}}


def ask(guarded_agent: Any, text: str, name: str = "1") -> dict[str, Any]:
    """The state of a conversation, of this name, after a message of the user."""
    result: dict[str, Any] = guarded_agent.invoke({"messages": text}, thread(name))
    return result


def answer(guarded_agent: Any, decision: dict[str, Any], name: str = "1") -> Any:
    """Go on with a conversation after a decision about the only call that waits."""
    return guarded_agent.invoke(Command(resume={"decisions": [decision]}), thread(name))


# -- decisions in a checkpointer ---------------------------------------------------------------------------------------

APPROVE: dict[str, Any] = {"type": "approve"}
REJECT: dict[str, Any] = {"type": "reject"}


def edit(amount: int) -> dict[str, Any]:
    return {"type": "edit", "edited_action": {"name": "transfer", "args": {"to": "bob", "amount": amount}}}


DECISIONS: dict[str, dict[str, Any]] = {
    "send": APPROVE,
    "wrong": edit(7),
    "spam": REJECT,
    "cash": {"type": "respond", "message": "Paid in cash."},
}
"""Decisions about transfers of 40, by the request."""


def approvals() -> Any:
    """LangChain's own approvals of transfers."""
    return HumanInTheLoopMiddleware({"transfer": True})


Resume = Callable[[Any, dict[str, Any]], dict[str, Any]]


def in_a_batch(interrupt: Any, decision: dict[str, Any]) -> dict[str, Any]:
    """How a run is resumed after a decision about all calls of a message."""
    return {"decisions": [decision]}


def by_interrupt(interrupt: Any, decision: dict[str, Any]) -> dict[str, Any]:
    """How a run is resumed after a decision about each call."""
    return {interrupt.id: decision}


def decide_in_checkpoints(saver: Any, middleware: Any, resume: Resume = in_a_batch) -> None:
    """The requests of `DECISIONS` with their decisions, and one that is open ("late"), each in a separate thread."""
    model = chat(**{name: [sending(40)] for name in (*DECISIONS, "late")})
    guarded_agent = agent(model, middleware, saver=saver)
    for name, decision in DECISIONS.items():
        (interrupt,) = ask(guarded_agent, name, name)["__interrupt__"]
        guarded_agent.invoke(Command(resume=resume(interrupt, decision)), thread(name))
    ask(guarded_agent, "late", "late")


# -- decisions in the review queue, and what is learned of them --------------------------------------------------------


def approve_transfers(texts: Sequence[str], store: str = "reviews.db") -> None:
    """Collect transfers that a person approves, with their samples in a file named after the store."""
    guarded_agent = agent(chat(**{text: [sending(40)] for text in texts}), collecting(records=records_of(store)))
    with ReviewStore(store) as opened:
        bridge = ReviewBridge(opened)
        for text in texts:
            ask(guarded_agent, text, text)
            (item,) = bridge.enqueue(guarded_agent, thread(text))
            decide_in(opened, item, Decision(action="approve"))


def cases(n: int, name: str = "case") -> list[str]:
    return [f"{name} {number}" for number in range(n)]


def records_of(store: str) -> str:
    """The file of samples beside a review store."""
    return f"{Path(store).stem}.agent.jsonl"


def learn(source: str, *arguments: str, tool: str = "transfer", code: int = 0) -> str:
    """What `calibrate learn` says about the decisions of a store or checkpointer; ``code`` is its exit status."""
    done = CliRunner().invoke(app, ["learn", source, "--tool", tool, *arguments])
    assert done.exit_code == code, done.output
    return " ".join(done.output.replace("│", " ").split())


def counts(output: str, tool: str = "transfer") -> dict[str, int]:
    """The row of a tool in the table of decisions, by heading."""
    headings, rows = re.split("─+", output, maxsplit=1)
    row = re.search(rf" {tool}((?: \d+)+)", rows)
    assert row is not None, output
    numbers = [int(number) for number in row[1].split()]
    return dict(zip(headings.split()[-len(numbers) :], numbers, strict=True))
