"""Progress: what long work reports, and the rich bar that shows it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from guardrail.errors import require

__all__ = ["Progress", "bar", "silent"]

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Called now and then with how far the work is."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Report.

        Args:
            done: Items finished, including those found finished at the start.
            total: Items in all.
            note: A few words, e.g. "2 failed".
        """
        ...


def silent(done: int, total: int, note: str = "") -> None:
    """Report nothing."""


@contextmanager
def bar(console: Console, title: str, unit: str = "questions") -> Iterator[Progress]:
    """A rich progress bar with rate and time left. Outside a terminal nothing is drawn until the end."""
    rich = require("rich.progress", extra="calibrate")
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}", style="yellow"),
    )
    with rich.Progress(*columns, console=console) as shown:
        task = shown.add_task(title, total=None, rate="", note="")

        begun = False

        def report(done: int, total: int, note: str = "") -> None:
            nonlocal begun
            if not begun:  # what was there before does not count as speed
                shown.reset(task, total=total, completed=done)
                begun = True
            speed = shown.tasks[task].speed
            rate = f"{speed:.1f} {unit}/s" if speed else ""
            shown.update(task, completed=done, total=total, rate=rate, note=note)

        yield report
