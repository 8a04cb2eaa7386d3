"""The terminal: consoles, lines, tables, and how every command ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from guardrail.plain_json import visible


class VisibleConsole(Console):
    """Prints lines that are longer than the terminal in full, which the terminal then wraps.

    Control characters of a model's answers are shown and not obeyed: an answer could repaint the screen.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text with its control characters made visible."""
        # Here, because rich breaks lines next, by the width of the characters that are shown.
        return super().render_str(visible(text), **options)

    def render(self, *renderables: Any, **options: Any) -> Iterator[Segment]:
        """Render segments with their control characters made visible: a panel or table may hold text from a model."""
        for segment in super().render(*renderables, **options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """Print without cutting long lines."""
        super().print(*objects, crop=crop, **options)


console = VisibleConsole()
errors = VisibleConsole(stderr=True)


@contextmanager
def quiet(wanted: bool) -> Iterator[None]:
    """Print no words on standard output if wanted: it is JSON for a program. Warnings go to standard error."""
    console.quiet = wanted
    try:
        yield
    finally:
        console.quiet = False


GAP = "    "
"""Between two things on one line."""

LONGEST_TEXT = 16
"""Width in characters that a text keeps beside numbers in a narrow terminal, before it is folded."""


class _WholeTable(Table):
    """A table as wide as its texts where no terminal limits it: in a pipe, or in a file.

    In a terminal the texts are folded first, the widest before the others, and only then the rest.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=10_000)
        if not console.is_terminal:
            yield from super().__rich_console__(console, unlimited)
            return
        surplus = Measurement.get(console, unlimited, self).maximum - options.max_width
        # Where the numbers alone are too wide, fixed widths of the texts make rich leave whole columns out.
        fits = sum(column.min_width or 0 for column in self.columns) <= options.max_width
        texts = [column for column in self.columns if fits and column.justify == "left"]
        widths = {id(column): max((cell_len(str(cell)) for cell in column.cells), default=0) for column in texts}
        for column in sorted(texts, key=lambda column: -widths[id(column)]):
            folded = max(column.min_width or 0, widths[id(column)] - max(surplus, 0))
            if folded < widths[id(column)]:
                surplus -= widths[id(column)] - folded
                column.width = folded
        yield from super().__rich_console__(console, options)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, texts: int = 1) -> Table:
    """A plain table; the first columns are texts, left-aligned, the others right. No number is cut."""
    grid = _WholeTable(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    cells = [[escape(cell) for cell in row] for row in rows]
    for i, column in enumerate(columns):
        longest = max(cell_len(word) for text in (column, *(row[i] for row in cells)) for word in (*text.split(), ""))
        grid.add_column(
            escape(column),
            justify="left" if i < texts else "right",
            overflow="fold",
            min_width=min(longest, LONGEST_TEXT) if i < texts else longest,
        )
    for row in cells:
        grid.add_row(*row)
    return grid


def print_line(text: str, style: str | None = None) -> None:
    """Print a sentence without reading markup in it: a terminal breaks it between words, a pipe gets one line."""
    _print(console, text, style)


def print_warning(text: str) -> None:
    """Print a warning on standard error, since standard output may be JSON."""
    _print(errors, text, "yellow")


def _print(to: Console, text: str, style: str | None) -> None:
    if to.is_terminal:  # not by rich, which parts a number and its sign, and breaks words at a hyphen
        whole = text.replace(" %", "\u00a0%")
        indent = "  " if text.startswith("- ") else ""
        text = fill(whole, to.width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    to.print(escape(text.replace("\u00a0", " ")), style=style, highlight=False, soft_wrap=True)


def finish(written: Iterable[Path | str], following: str, *others: str) -> None:
    """Print the end of every command: the files written, the next command, and what else helps.

    A single file and the command share a line where they fit.
    """
    lines = [f"[green]Wrote[/green] {escape(str(path))}" for path in written]
    lines.append(f"[bold]Next:[/bold] {escape(following)}")
    together = GAP.join(lines)
    if len(lines) == 2 and cell_len(Text.from_markup(together).plain) <= console.width:
        lines = [together]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    for other in others:
        print_line(f"      {other}")


def shortened(text: str, longest: int = 60) -> str:
    """A text in quotes on one line, cut where it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= longest else line[: longest - 1] + "\u2026")
