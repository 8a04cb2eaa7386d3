"""`python -m examples.bank_agent ask "Send 40 euros to Alex"`, then `review`, then `resume`: three processes.

ask     Asks the agent. It reads the balance freely; a transfer goes out only if the gate accepts, otherwise it is held.
review  Shows the held transfer and asks for a decision: approve, edit, reject or respond.
resume  Carries out the decision where the first process stopped. The model is not asked again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver

from examples.bank_agent.bank import Bank, tools_of
from examples.bank_agent.calibration import SYSTEM, calibrate
from examples.bank_agent.model import Teller
from examples.bank_agent.screen import CONSOLE, show_calibration, show_held, show_line, show_note
from guardrail.review import Candidate, Decision, Item, ReviewStore
from integrations.langchain_agents import GuardrailMiddleware
from integrations.langgraph_review import ReviewBridge

REVIEWER = "you"


@contextmanager
def open_agent(folder: Path) -> Iterator[tuple[Any, ReviewBridge]]:
    """Open the agent on its durable checkpoints, and the queue where a person answers."""
    fresh = not (folder / "transfers.json").exists()
    artifact = calibrate(folder)
    if fresh:
        show_calibration(artifact)
    middleware = GuardrailMiddleware(tools={"transfer": artifact}, exempt=["balance"], on_abstain="review")
    with (
        SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver,
        ReviewStore(folder / "reviews.db") as store,
    ):
        agent = create_agent(
            Teller(),
            tools=tools_of(Bank(folder / "bank.db")),
            system_prompt=SYSTEM,
            middleware=[middleware],
            checkpointer=saver,
        )
        yield agent, ReviewBridge(store)


def config_of(thread: str) -> Any:
    """Return the LangGraph config of a conversation."""
    return {"configurable": {"thread_id": thread}}


def ask(folder: Path, thread: str, request: str) -> int:
    """Run one turn of the conversation."""
    with open_agent(folder) as (agent, bridge):
        config = config_of(thread)
        if agent.get_state(config).interrupts:
            show_note(f"A transfer of conversation {thread!r} still waits: decide it first (review, resume).")
            return 1
        show_line("you", request)
        before = len(agent.get_state(config).values.get("messages", ()))
        show(agent.invoke({"messages": request}, config), agent, bridge, thread, before + 1)
    return 0


def show(result: dict[str, Any], agent: Any, bridge: ReviewBridge, thread: str, start: int) -> None:
    """Print the messages of a turn and the transfers it left waiting."""
    for message in result["messages"][start:]:
        if isinstance(message, ToolMessage):
            show_line("tool", message.text)
        elif isinstance(message, AIMessage) and message.text:
            show_line("agent", message.text)
    for item in bridge.enqueue(agent, config_of(thread)):
        (value,) = [
            interrupt.value for interrupt in agent.get_state(config_of(thread)).interrupts if interrupt.id == item.key
        ]
        show_held(value, item.id)
        show_note("python -m examples.bank_agent review   then   resume")


def review(folder: Path, options: argparse.Namespace) -> int:
    """Decide about the oldest waiting transfer."""
    with open_agent(folder) as (agent, bridge):
        lease = bridge.store.claim(REVIEWER)
        if lease is None:
            show_note("Nothing waits for a decision.")
            return 0
        item = lease.item
        state = agent.get_state(config_of(str(item.content.metadata["thread_id"])))
        show_held(next(interrupt.value for interrupt in state.interrupts if interrupt.id == item.key), item.id)
        try:
            decision = read_decision(item, options)
        except EOFError:
            show_note("The input ended before a decision; the transfer still waits.")
            decision = None
        if decision is None:
            bridge.store.release(lease)
            return 1
        bridge.store.decide(lease, decision)
        show_line("person", ": ".join(filter(None, (decision.action, decision.text))))
        show_note("python -m examples.bank_agent resume")
    return 0


def read_decision(item: Item, options: argparse.Namespace) -> Decision | None:
    """Return the decision from the command line or, without one, from the keyboard; None if it is not usable."""
    action, amount, to, message = options.decision, options.amount, options.to, options.message
    if action is None:
        action = CONSOLE.input("[bold]\\[a]pprove, \\[e]dit, \\[r]eject, re\\[s]pond?[/bold] ").strip().lower()
        action = {"a": "approve", "e": "edit", "r": "reject", "s": "respond"}.get(action, action)
        if action == "edit":
            typed = CONSOLE.input("Amount in euros (empty: unchanged): ").strip()
            if typed and not typed.isdecimal():
                show_note(f"{typed!r} is not a whole number of euros; the transfer still waits.")
                return None
            amount = int(typed) if typed else None
            to = CONSOLE.input("Payee (empty: unchanged): ") or None
        elif action == "respond":
            message = CONSOLE.input("Message: ")
    if action == "approve":
        return Decision(action="approve")
    if action == "reject":
        return Decision(action="reject")
    if action == "respond" and message:
        return Decision(action="respond", text=message)
    if action == "edit" and item.content.candidate is not None:
        (call,) = item.content.candidate.tool_calls
        changes = {name: value for name, value in (("amount", amount), ("to", to)) if value is not None}
        edited = call.model_copy(update={"arguments": {**call.arguments, **changes}})
        return Decision(action="edit", candidate=Candidate(tool_calls=(edited,)))
    show_note(f"{action!r} is not a decision; the transfer still waits.")
    return None


def resume(folder: Path, thread: str) -> int:
    """Continue where the first process stopped."""
    with open_agent(folder) as (agent, bridge):
        config = config_of(thread)
        before = len(agent.get_state(config).values.get("messages", ()))
        result = bridge.resume(agent, config)
        if result is None:
            show_note("Nothing was decided yet." if agent.get_state(config).interrupts else "Nothing waits here.")
            return 0
        show(result, agent, bridge, thread, before)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.bank_agent", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("bank-agent"), help="folder for all files")
    commands = parser.add_subparsers(dest="command", required=True)
    asking = commands.add_parser("ask", help="ask the agent")
    asking.add_argument("request")
    resuming = commands.add_parser("resume", help="carry out the decision")
    for command in (asking, resuming):
        command.add_argument("--thread", default="1", help="name of the conversation")
    reviewing = commands.add_parser("review", help="decide about the held transfer")
    reviewing.add_argument("decision", nargs="?", choices=["approve", "edit", "reject", "respond"])
    reviewing.add_argument("--amount", type=int, help="edit: this many euros instead")
    reviewing.add_argument("--to", help="edit: this payee instead")
    reviewing.add_argument("--message", help="respond: the message")
    options = parser.parse_args(arguments)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--folder {str(options.folder)!r} cannot be a folder ({error.strerror}). Name another one.")
    if options.command == "ask":
        return ask(options.folder, options.thread, options.request)
    return review(options.folder, options) if options.command == "review" else resume(options.folder, options.thread)


if __name__ == "__main__":
    sys.exit(main())
