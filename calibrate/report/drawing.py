"""How a figure becomes an SVG element of the page and a PNG: palette, fonts, theme.

Drawn once for the page (SVG whose colours are the page's CSS variables, so they follow light and dark) and once as PNG.
Colours are Okabe and Ito's; every series also differs in line style or shape. No global matplotlib state is touched.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from guardrail.errors import require

__all__ = ["Draw", "Figure", "Palette", "render"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure.

    Attributes:
        svg: An ``<svg>`` element without prolog; its colours are CSS variables of the page.
        png: The same on white, as PNG.
    """

    svg: str
    png: bytes


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by role; the page has a CSS variable of each name."""

    paper: str
    ink: str
    muted: str
    grid: str
    blue: str
    red: str
    green: str
    orange: str
    purple: str


Draw: TypeAlias = Callable[[Any, Palette], None]
"""Draws on axes (or, with several panels, on a list of axes) in the colours of a palette."""

_LIGHT = Palette("#ffffff", "#1c2127", "#5b6570", "#dfe3e8", "#0072b2", "#d55e00", "#007a59", "#9a6700", "#a8518a")
# Stand-ins that occur nowhere else; `_for_page` replaces each by the CSS variable of its name.
_MARKS = Palette(*(f"#01010{i}" for i in range(1, 10)))


def render(
    draw: Draw, name: str, label: str, *, size: tuple[float, float] = (9.0, 4.3), panels: tuple[int, int] = (1, 1)
) -> Figure:
    """Draw twice.

    Args:
        draw: What to draw.
        name: Prefix of the ids in the SVG; unique on a page.
        label: What the figure shows, for those who cannot see it.
        size: Width and height in inches.
        panels: Rows and columns of panels; with more than one, ``draw`` gets the list of axes.
    """
    svg = _save(draw, _MARKS, "svg", name, size, panels).decode()
    return Figure(svg=_for_page(svg, name, label), png=_save(draw, _LIGHT, "png", name, size, panels))


def _save(
    draw: Draw, colour: Palette, kind: str, name: str, size: tuple[float, float], panels: tuple[int, int]
) -> bytes:
    matplotlib = require("matplotlib", extra="calibrate")
    figures = require("matplotlib.figure", extra="calibrate")
    settings = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10.5, "hatch.linewidth": 0.7}
    with matplotlib.rc_context(settings):
        figure = figures.Figure(figsize=size, layout="constrained")
        figure.patch.set_facecolor(colour.paper)
        every = list(figure.subplots(*panels, squeeze=False).flat)
        for axes in every:
            axes.set_facecolor(colour.paper)
        draw(every if len(every) > 1 else every[0], colour)
        for axes in every:
            _plain(axes, colour)
        stream = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(stream, format=kind, dpi=160, metadata=metadata)
    return stream.getvalue()


def _plain(axes: Any, colour: Palette) -> None:
    """A light grid, one axis line, muted labels."""
    axes.grid(axis="y", color=colour.grid, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=colour.muted, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(colour.muted)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(colour.muted)


def _for_page(svg: str, name: str, label: str) -> str:
    """An element to put into a page: theme colours, page fonts, ids that no other figure has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for field in Palette.__dataclass_fields__:
        svg = svg.replace(getattr(_MARKS, field), f"var(--{field})")
    svg = re.sub(r'font-family: [^;"]*', "font-family: inherit", svg)
    svg = svg.replace("*{stroke", ".figure *{stroke")
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    head = f'<svg role="img" aria-label="{label}" class="figure" '
    return re.sub(
        r'<svg (?:width="[^"]*"|height="[^"]*"|\s)*', head, re.sub(r' (width|height)="[\d.]+pt"', "", svg), count=1
    )
