"""Output of the example; no logic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.console import Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from calibrate.cli.frame.terminal import VisibleConsole
from examples.bank_agent.bank import CONTACTS
from guardrail import CalibrationArtifact, Feasible
from guardrail.describe import CALLS, guarantee, why_infeasible
from guardrail.judges.tool_call import read_calls
from guardrail.plain_json import visible

__all__ = ["CONSOLE", "show_calibration", "show_held", "show_line", "show_note"]

CONSOLE = VisibleConsole(width=100, highlight=False)


def show_line(who: str, text: str) -> None:
    """Print a line of the conversation."""
    colour = {"you": "cyan", "agent": "green", "tool": "yellow", "person": "magenta"}[who]
    CONSOLE.print(f"[{colour}]{who:>7}[/{colour}]  {escape(text)}")


def show_note(text: str) -> None:
    """Print a remark."""
    CONSOLE.print(f"[dim]{'':>7}  {escape(text)}[/dim]")


def show_calibration(artifact: CalibrationArtifact) -> None:
    """Print the promise of the artifact and the figures behind it."""
    outcome = artifact.outcome
    if not isinstance(outcome, Feasible):
        CONSOLE.print(Panel(escape(why_infeasible(outcome, CALLS)), title="calibration", border_style="red"))
        return
    CONSOLE.print(
        Panel(
            f"Of {outcome.n} recorded transfers the gate lets {outcome.n_accepted} through, {outcome.n_errors} of them "
            f"wrong.\n{escape(guarantee(outcome, nouns=CALLS))}",
            title=f"calibrated for {outcome.alpha:.0%} error",
            border_style="blue",
        )
    )


def transfer(args: Mapping[str, Any]) -> str:
    """Return a transfer in words."""
    return f"{args.get('amount')} euros to {CONTACTS.get(str(args.get('to')), args.get('to'))}"


def show_held(value: Mapping[str, Any], ticket: str) -> None:
    """Print a transfer that waits for a person: the candidate, the evidence and the ticket."""
    verdict = value["verdict"]
    shares: dict[str, float] = {}
    for alternative in value["alternatives"]:
        calls = read_calls(alternative["text"])
        words = "; ".join(transfer(call.arguments) for call in calls) if calls else alternative["text"]
        shares[words] = shares.get(words, 0.0) + alternative["share"]
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    for words, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        table.add_row(f"{share:>4.0%}", Text("█" * round(30 * share), style="yellow"), Text(visible(words)))
    (action, *_) = value["action_requests"]
    score = verdict["uncertainty"]["value"]
    shown = "not measured" if score is None else f"{score:.2f}, accepted up to {verdict['threshold']:.2f}"
    CONSOLE.print(
        Panel(
            Group(
                Text(visible(f"“{value['question']}”"), style="italic"),
                Text(visible(f"\nThe agent wants to send {transfer(action['args'])}."), style="bold"),
                Text("What it said when asked ten times:", style="dim"),
                table,
                Text(f"Disagreement {shown}.", style="dim"),
            ),
            title="[bold]held for a person[/bold]",
            subtitle=f"ticket {ticket[:8]}",
            border_style="yellow",
        )
    )
