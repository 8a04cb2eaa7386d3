"""A monitor's wealth over time as inline SVG, without style attributes, because of the content security policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup, escape

from ..monitors import MonitorStep

__all__ = ["wealth_plot"]

WIDTH = 640
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 230, 10, 626, 20, 196
"""The picture's height, and the area of the curve."""


def wealth_plot(steps: Sequence[MonitorStep], delta: float) -> Markup | None:
    """ln(wealth) over the updates, from 0 at the start, with the alarm line ln(1/delta).

    Args:
        steps: The history in order; a long history may be thinned, and must include the last step.
        delta: False-alarm probability of the monitor.

    Returns:
        The SVG element, or None before the first update.
    """
    if not steps:
        return None
    alarm, last = -math.log(delta), steps[-1]
    values = [0.0, *(step.log_wealth for step in steps)]
    numbers = [0, *(step.n for step in steps)]
    low, high = min(-0.5, *values), max(alarm * 1.12, *values)

    def x(number: int) -> float:
        return LEFT + number / last.n * (RIGHT - LEFT)

    def y(value: float) -> float:
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    points = " ".join(f"{x(n):.1f},{y(value):.1f}" for n, value in zip(numbers, values, strict=True))
    reached = max(values) >= alarm
    name = (
        f"Wealth after {last.n} updates: {_amount(last.log_wealth)}; the alarm is at {1 / delta:g} and was "
        f"{'reached' if reached else 'not reached'}."
    )
    parts = [
        f'<svg class="plot wealth" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">',
        f'<line class="wealth-zero" x1="{LEFT}" x2="{RIGHT}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>',
        f'<line class="wealth-alarm" x1="{LEFT}" x2="{RIGHT}" y1="{y(alarm):.1f}" y2="{y(alarm):.1f}"/>',
        f'<polyline class="wealth-line" points="{points}"/>',
        f'<circle class="wealth-dot{" over" if reached else ""}" cx="{x(last.n):.1f}" cy="{y(last.log_wealth):.1f}" '
        'r="6"/>',
        _text("wealth-limit", LEFT, y(alarm) - 6, "start", f"alarm at {1 / delta:g}"),
        _text("plot-limit", LEFT, BOTTOM + 26, "start", _day(steps[0].at)),
        _text("plot-limit", RIGHT, BOTTOM + 26, "end", f"{_day(last.at)}, update {last.n}"),
        "</svg>",
    ]
    return Markup("".join(parts))


def _text(kind: str, x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _amount(log_wealth: float) -> str:
    return f"{math.exp(log_wealth):.3g}" if log_wealth < 700 else "very large"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
