"""Results as text and in a notebook: one kind of table, an HTML card, a matplotlib axis, and percentages.

Cards have no scripts, and every text in them is escaped. matplotlib is loaded by the first plot, never at import.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..errors import require

BLUE, RED, GREEN, GREY = "#0072b2", "#d55e00", "#007a59", "#5b6570"
"""Okabe and Ito's colours, as in the report: they differ for colour-blind readers, too."""


def percent(share: float | None, digits: int = 1) -> str:
    """A share as a percentage: 0.153 is "15.3 %", 0.12 is "12 %" (no trailing zeros); "-" for None.

    Args:
        share: The share, 1 for all.
        digits: Most decimals that are shown.
    """
    if share is None:
        return "-"
    text = f"{100 * share:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def sure(delta: float) -> str:
    """The confidence 1 - delta as a percentage, with enough decimals to stay below 100 %: .0152 is "98.5 %"."""
    return percent(1 - delta, max(1, math.ceil(-math.log10(delta)) - 2))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts: `print` shows them as lines, a notebook, the terminal and the report each in its own form.

    Attributes:
        heads: Names of the columns.
        rows: Cells of each row.
        named: Leading columns that name a row; the others hold figures.
        prose: Heads of columns that hold sentences.
        chosen: Place of the row in use, if one is marked.
        note: A sentence below the table.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    named: int = 1
    prose: Sequence[str] = ()
    chosen: int | None = None
    note: str = ""

    def __str__(self) -> str:
        lines = [self.heads, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(cells))
            for cells in (zip(line, widths, strict=True) for line in lines)
        )

    def _repr_html_(self) -> str:
        top = "".join(_cell("th", head) for head in self.heads)
        body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in self.rows)
        return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def as_html(
    title: str, facts: Iterable[tuple[str, str]] = (), table: Table | None = None, *, good: bool | None = None
) -> str:
    """One HTML element: a title, facts by name, and a table.

    Args:
        title: What is shown, and its verdict.
        facts: Names and values.
        table: A table.
        good: Green for True, red for False, grey for None.
    """
    colour = GREY if good is None else GREEN if good else RED
    lines = "".join(f"<tr>{_cell('th', name, 'white-space:nowrap')}{_cell('td', value)}</tr>" for name, value in facts)
    body = (f"<table>{lines}</table>" if lines else "") + ("" if table is None else table._repr_html_())
    return f'<div style="border-left:4px solid {colour};padding-left:8px"><strong>{escape(title)}</strong>{body}</div>'


def _cell(kind: str, text: str, more: str = "") -> str:
    return f'<{kind} style="text-align:left;vertical-align:top;{more}">{escape(text)}</{kind}>'


def axis(ax: Any = None) -> Any:
    """Return the axis to draw on: ``ax``, or that of a new figure.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    pyplot = require("matplotlib.pyplot", extra="calibrate")
    return pyplot.subplots(figsize=(7, 3.6), layout="constrained")[1]
