"""Figures that compare rules over splits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure

from calibrate.evaluation.evaluate import evaluate
from calibrate.evaluation.results import FEW_SPLITS
from calibrate.report import figures


def test_points_that_rest_on_few_splits_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of two lucky splits would draw a rule far below its target."""
    dice = np.random.default_rng(0)
    scores = dice.random(240)
    wrong = (dice.random(240) < 0.1 + 0.5 * scores).astype(int)
    rules, alphas = ["acrc", "certified"], [0.1, 0.15, 0.2, 0.3, 0.4]
    rows = evaluate(scores, wrong, rules=rules, alphas=alphas, n_calibration=120, splits=30).rows
    assert any(0 < row.n_feasible < FEW_SPLITS for row in rows), "the control: some rows rest on few splits"
    panels: list[Any] = []

    def render(draw: Any, *_: Any, **__: Any) -> None:
        panels.extend(MplFigure().subplots(1, 2))
        draw(panels)

    monkeypatch.setattr(figures, "render", render)
    figures.across_alpha({"": rows}, alpha=0.2)
    for rule in rules:
        own = [row for row in rows if row.rule == rule]
        known = [row for row in own if row.pooled is not None and row.n_feasible >= FEW_SPLITS]
        drawn = [next(line for line in panel.lines if line.get_label() == rule) for panel in panels]
        assert drawn[0].get_ydata() == pytest.approx([100 * row.pooled.value for row in known if row.pooled])
        assert drawn[1].get_ydata() == pytest.approx([100 * row.acceptance.value for row in own])


@pytest.mark.usefixtures("whole_figures")
def test_a_figure_is_put_together_once_a_width_and_drawn_once_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[float] = []
    files: list[str] = []
    draw_axes = Axes.draw

    def draw(axes: Any) -> None:
        widths.append(axes.figure.get_figwidth())
        axes.plot([0, 1], [0, 1], color=figures.COLOURS.blue, label="a")
        axes.legend()

    def drawn(self: Axes, renderer: Any) -> None:
        files.append(type(renderer).__name__)
        draw_axes(self, renderer)

    monkeypatch.setattr(Axes, "draw", drawn)
    figure = figures.render(draw, "name", "label")
    assert sorted(widths) == [figures.NARROW, 9]
    assert sorted(files) == ["MixedModeRenderer", "MixedModeRenderer", "RendererAgg"]
    # The page chooses the colours of the SVG, the PNG has its own.
    assert figure.svg.count("stroke: var(--blue)") == 4
    assert "#0072b2" not in figure.svg
    assert figure.png.startswith(b"\x89PNG")
