"""Results in a notebook: an HTML card, plots on a matplotlib axis, and percentages as text everywhere.

Cards have no scripts, and every text in them is escaped. matplotlib is loaded by the first plot, never at import.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from ..errors import require

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "RED",
    "as_html",
    "axis",
    "draw_rates",
    "percent",
    "sure",
    "text_table",
]

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


def as_html(
    title: str,
    facts: Iterable[tuple[str, str]] = (),
    heads: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
    *,
    good: bool | None = None,
) -> str:
    """One HTML element: a title, facts by name, and a table.

    Args:
        title: What is shown, and its verdict.
        facts: Names and values.
        heads: Columns of the table.
        rows: Its cells.
        good: Green for True, red for False, grey for None.
    """
    colour = GREY if good is None else GREEN if good else RED
    left = "text-align:left;vertical-align:top"
    facts_html = "".join(
        f'<tr><th style="{left};white-space:nowrap">{escape(name)}</th><td style="{left}">{escape(value)}</td></tr>'
        for name, value in facts
    )
    body = f"<table>{facts_html}</table>" if facts_html else ""
    if heads:
        top = "".join(f'<th style="{left}">{escape(head)}</th>' for head in heads)
        cells = "".join(
            "<tr>" + "".join(f'<td style="{left}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
        )
        body += f"<table><thead><tr>{top}</tr></thead><tbody>{cells}</tbody></table>"
    return f'<div style="border-left:4px solid {colour};padding-left:8px"><strong>{escape(title)}</strong>{body}</div>'


def text_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of equal columns for `print`, the first column to the left and the others to the right."""
    lines = [tuple(heads), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def aligned(line: Sequence[str]) -> str:
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        return "  ".join((line[0].ljust(len(first)), *others))

    return "\n".join(map(aligned, lines))


def axis(ax: Any = None) -> Any:
    """Return the axis to draw on: ``ax``, or that of a new figure.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    pyplot = require("matplotlib.pyplot", extra="calibrate")
    return pyplot.subplots(figsize=(7, 3.6), layout="constrained")[1]


def draw_rates(ax: Any, rates: Sequence[tuple[str, float | None, float, float]], alpha: float) -> None:
    """Draw a row for each name: its rate with an interval, against the target; a rate of None is "answers nothing"."""
    names = [name for name, *_ in rates]
    for row, (_, rate, low, high) in enumerate(reversed(rates)):
        if rate is None:
            ax.annotate(" answers nothing", (0, row), va="center", color=GREY)
            continue
        ax.plot([100 * low, 100 * high], [row, row], color=BLUE, lw=2)
        ax.plot([100 * rate], [row], "o", color=BLUE)
    ax.axvline(100 * alpha, color=RED, lw=1.5, ls=":", label=f"target {100 * alpha:g} %")
    ax.set_yticks(range(len(names)), names[::-1])
    ax.set(xlim=(0, None), ylim=(-0.6, len(names) - 0.4), xlabel="wrong among answered, %")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
