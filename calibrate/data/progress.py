"""Progress: what long work reports, and the rich bar that shows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from guardrail.errors import require

EVERY = 60.0
"""Seconds between the lines of long work outside a terminal."""

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Called now and then with how far the work is."""

    def __call__(self, done: int, total: int, note: str = "") -> None:
        """Report the items finished, with those found finished at the start; a note is, for example, "2 failed"."""
        ...


def silent(done: int, total: int, note: str = "") -> None:
    """Report nothing."""


def _lines(console: Console, title: str, unit: str) -> Progress:
    """Report by a line a minute, the first one after a minute: short work stays silent."""
    begun = last = time.monotonic()
    before: int | None = None

    def report(done: int, total: int, note: str = "") -> None:
        nonlocal last, before
        now = time.monotonic()
        if before is None:  # what was there before does not count as speed
            before = done
        if now - last < EVERY:
            return
        last = now
        left = (total - done) * (now - begun) / (done - before) if done > before else None
        remaining = "" if left is None else f", about {max(1, round(left / 60))} min left"
        line = f"{title}: {done} of {total} {unit}{remaining}" + (f" ({note})" if note else "")
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    return report


@contextmanager
def bar(console: Console, title: str, unit: str = "questions") -> Iterator[Progress]:
    """A rich progress bar with rate and time left. Outside a terminal a line a minute takes its place."""
    if not console.is_terminal:
        yield _lines(console, title, unit)
        return
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
