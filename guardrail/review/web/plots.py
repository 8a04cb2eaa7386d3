"""The two pictures of the page as inline SVG, without style attributes, so that the content security policy allows it.

A monitor's wealth over time, and an answer's uncertainty against the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeGuard

from markupsafe import Markup, escape

from ..monitors import MonitorStep

__all__ = ["uncertainty_plot", "wealth_plot"]

WIDTH = 640
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 230, 10, 626, 20, 196
"""Plot of the wealth: the picture's height, and the area of the curve."""
START, END, MIDDLE = 12, 628, 46
"""Plot of the uncertainty: the ends of the number line and its height."""


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


def uncertainty_plot(verdict: Mapping[str, Any] | None) -> Markup | None:
    """A number line with the accepted range, the threshold, and this answer.

    Args:
        verdict: ``Verdict.model_dump(mode="json")``.

    Returns:
        The SVG element, or None without a value or a threshold.
    """
    if verdict is None:
        return None
    uncertainty = verdict.get("uncertainty") or {}
    value = uncertainty.get("value") if isinstance(uncertainty, Mapping) else None
    threshold = verdict.get("threshold")
    if not _drawable(value) or not _drawable(threshold):
        return None
    low = min(0.0, value, threshold)
    high = max(value, threshold, low + 1e-12)
    span = (high - low) * 1.12

    def place(number: float) -> float:
        return START + (number - low) / span * (END - START)

    at, edge = place(value), place(threshold)
    unit = " nats" if uncertainty.get("unit") == "nats" else ""
    name = f"Score {value:.3g}{unit}, threshold {threshold:.3g}{unit}"
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} 84" role="img" aria-label="{escape(name)}">',
        f'<rect class="plot-rest" x="{START}" y="{MIDDLE - 7}" width="{END - START}" height="14" rx="7"/>',
        f'<rect class="plot-ok" x="{START}" y="{MIDDLE - 7}" width="{max(edge - START, 2):.1f}" height="14" rx="7"/>',
        f'<line class="plot-edge" x1="{edge:.1f}" x2="{edge:.1f}" y1="{MIDDLE - 16}" y2="{MIDDLE + 16}"/>',
        f'<circle class="plot-dot{" fine" if value <= threshold else ""}" cx="{at:.1f}" cy="{MIDDLE}" r="9"/>',
        _label("plot-value", at, 22, f"this answer {value:.3g}"),
        _label("plot-limit", edge, 80, f"threshold {threshold:.3g}"),
        "</svg>",
    ]
    return Markup("".join(parts))


def _drawable(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) <= 1e300


def _label(kind: str, x: float, y: int, text: str) -> str:
    """Text centred at x, or aligned to the edge it would cross."""
    anchor = "start" if x < 150 else "end" if x > WIDTH - 150 else "middle"
    return f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
