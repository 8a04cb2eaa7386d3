"""What a person sees: one record as a card, and the loop of card and key."""

from __future__ import annotations

from collections import Counter
from typing import TextIO

from rich.console import Console, Group
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from guardrail.judges import normalise

from ..records import Record
from .keys import key_reader
from .session import KEYS, Pressed, Session

__all__ = ["card", "label_by_hand", "shares"]

_SHOWN = 8
"""Distinct samples on a card."""


def label_by_hand(session: Session, console: Console, stream: TextIO) -> None:
    """Show records and read keys until all are done, or the person quits, or the input ends."""
    with key_reader(stream) as next_key:
        while (record := session.current) is not None:
            if console.is_terminal:
                console.clear()
            console.print(card(record, done=session.done, total=session.total))
            key = next_key()
            if key is None:
                return
            pressed = session.press(key)
            if pressed is Pressed.QUIT:
                return
            console.print(f"[dim]{escape(key)}: {pressed.value}[/dim]")


def card(record: Record, *, done: int, total: int) -> Panel:
    """A record: question, options, answer, references, and the distinct samples with their shares."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("question", Text(record.question))
    for name, option in (record.options or {}).items():
        rows.add_row("", Text(option if name == option else f"{name}) {option}"))
    rows.add_row("answer", Text(record.answer or "(empty)", style="bold cyan"))
    rows.add_row("accepted", Text(" | ".join(record.references) or "(none given)", style="green"))
    for text, share in shares(record)[:_SHOWN]:
        rows.add_row(f"{share:.0%}", Text(text or "(empty)", style="dim"))
    help_line = Text("   ".join(f"{key} {meaning}" for key, meaning in KEYS.items()), style="dim")
    return Panel(
        Group(rows, "", Text("Is the answer right?"), help_line), title=f"{done} of {total} done", title_align="left"
    )


def shares(record: Record) -> list[tuple[str, float]]:
    """Distinct samples (normalised; shown as first seen) with their share, most frequent first."""
    samples = [sample.text for sample in record.drawn.samples] if record.drawn is not None else []
    spelling: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for text in samples:
        key = normalise(text)
        spelling.setdefault(key, text)
        counts[key] += 1
    return [(spelling[key], count / len(samples)) for key, count in counts.most_common()]
