"""Captions of the report's figures: none covers another, none leaves the figure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from calibrate import fit
from calibrate.evaluation.evaluate import evaluate
from calibrate.report.figures import NARROW, Items, across_alpha, render, risk_coverage, score_histogram

RULES = ["acrc", "certified", "lec", "empirical", "clopper_pearson", "hoeffding"]
POOLS = {"usual": (0.1, 0.5), "good": (0.02, 0.1), "bad": (0.4, 0.55), "no signal": (0.3, 0.0)}
"""Error rate at uncertainty 0, and its rise towards 1."""


def _items(low: float, slope: float) -> Items:
    dice = np.random.default_rng(0)
    scores = dice.random(400)
    return Items(scores, (dice.random(400) < low + slope * scores).astype(np.int8))


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return the faults of what was drawn since the last look: a figure's wide form, also its PNG, and narrow form."""
    drawn: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *args: Any, **settings: Any) -> None:
        if self not in drawn:
            drawn.append(self)
        save(self, *args, **settings)

    monkeypatch.setattr(Figure, "savefig", remember)

    def faults_since() -> list[str]:
        widths = [figure.get_figwidth() for figure in drawn]
        assert min(widths) == NARROW < max(widths)
        found = [
            f"{width:g} in: {fault}" for figure, width in zip(drawn, widths, strict=True) for fault in _faults(figure)
        ]
        drawn.clear()
        return list(dict.fromkeys(found))

    return faults_since


def _faults(figure: Figure) -> list[str]:
    canvas: Any = FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # places everything; pixels would take longer
    renderer = canvas.get_renderer()
    skipped = {text for axes in figure.axes for text in _ticks_out_of_view(axes)}
    # An annotation's extent includes its arrow, which may end at a line; a caption is the text alone.
    boxes = [
        (text.get_text(), Text.get_window_extent(text, renderer))
        for text in figure.findobj(Text)
        if isinstance(text, Text) and text not in skipped and text.get_visible() and text.get_text().strip()
    ]
    found = [
        f"{one!r} covers {other!r}"
        for (one, a), (other, b) in combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5
    ]
    width, height = figure.bbox.width, figure.bbox.height
    return found + [
        f"{name!r} leaves the figure"
        for name, box in boxes
        if min(box.x0, box.y0) < -0.5 or box.x1 > width + 0.5 or box.y1 > height + 0.5
    ]


def _ticks_out_of_view(axes: Any) -> list[Text]:
    """Labels that matplotlib holds for ticks beyond the limits, and does not draw."""
    return [
        label
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) - 1e-9 <= tick.get_loc() <= max(axis.get_view_interval()) + 1e-9
        for label in (tick.label1, tick.label2)
    ]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("rules", [pytest.param(RULES[:2], marks=pytest.mark.slow), RULES])
@pytest.mark.parametrize("alphas", [(0.05, 0.1, 0.2), (0.25, 0.5, 0.75)])
def test_names_of_rules(
    faults: Callable[[], list[str]], pool: str, rules: list[str], alphas: tuple[float, ...]
) -> None:
    items = _items(*POOLS[pool])
    rows = evaluate(items.uncertainty, items.error, rules=rules, alphas=alphas, n_calibration=200, splits=4).rows
    across_alpha({"": rows}, alpha=alphas[1], base_error=float(items.error.mean()))
    assert not faults()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    "threshold", [None, 0.02, *(pytest.param(value, marks=pytest.mark.slow) for value in (0.13, 0.5, 0.9)), 1.0]
)
def test_sides_of_the_threshold(faults: Callable[[], list[str]], pool: str, threshold: float | None) -> None:
    score_histogram(_items(*POOLS[pool]), threshold, "nats")
    assert not faults()


@pytest.mark.parametrize("alpha", [0.01, 0.2])
@pytest.mark.parametrize("pool", POOLS)
def test_risk_against_coverage(faults: Callable[[], list[str]], pool: str, alpha: float) -> None:
    items = _items(*POOLS[pool])
    risk_coverage(items, fit(items.uncertainty, items.error, alpha=alpha, rule="acrc"), test=items)
    assert not faults()


def test_covered_captions_are_found(faults: Callable[[], list[str]]) -> None:
    def draw(axes: Any) -> None:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "one")
        axes.text(0.51, 0.5, "two")
        axes.text(0.9, 0.9, "far too long for what is left" * 2, in_layout=False)

    render(draw, "control", "control")
    left_out = "far too long for what is left" * 2
    assert faults() == [
        f"{width} in: {fault}"
        for width in (9, 5)
        for fault in ("'one' covers 'two'", f"{left_out!r} leaves the figure")
    ]
