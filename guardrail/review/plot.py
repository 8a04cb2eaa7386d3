"""The uncertainty against the threshold as a small inline SVG: no style attributes, so a strict policy allows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from markupsafe import Markup, escape

__all__ = ["uncertainty_plot"]

WIDTH, LEFT, RIGHT, Y = 640, 12, 628, 46


def uncertainty_plot(verdict: Mapping[str, Any] | None) -> Markup | None:
    """A number line: what would have been accepted, the threshold, and where this answer lies.

    Args:
        verdict: ``Verdict.model_dump(mode="json")``.

    Returns:
        The SVG element, or None where there is no value or no threshold.
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
        return LEFT + (number - low) / span * (RIGHT - LEFT)

    at, edge = place(value), place(threshold)
    unit = " nats" if uncertainty.get("unit") == "nats" else ""
    name = f"Uncertainty {value:.3g}{unit}, threshold {threshold:.3g}{unit}"
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} 84" role="img" aria-label="{escape(name)}">',
        f'<rect class="plot-rest" x="{LEFT}" y="{Y - 7}" width="{RIGHT - LEFT}" height="14" rx="7"/>',
        f'<rect class="plot-ok" x="{LEFT}" y="{Y - 7}" width="{max(edge - LEFT, 2):.1f}" height="14" rx="7"/>',
        f'<line class="plot-edge" x1="{edge:.1f}" x2="{edge:.1f}" y1="{Y - 16}" y2="{Y + 16}"/>',
        f'<circle class="plot-dot{" fine" if value <= threshold else ""}" cx="{at:.1f}" cy="{Y}" r="9"/>',
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
