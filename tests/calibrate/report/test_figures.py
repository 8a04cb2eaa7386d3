"""Figures that compare rules over splits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure

from calibrate.evaluation.evaluate import FEW_SPLITS, evaluate
from calibrate.report import figures


def test_points_that_rest_on_few_splits_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(0)
    scores = dice.random(240)
    wrong = (dice.random(240) < 0.1 + 0.5 * scores).astype(int)
    rules, alphas = ["acrc", "certified"], [0.1, 0.15, 0.2, 0.3, 0.4]
    rows = evaluate(scores, wrong, rules=rules, alphas=alphas, n_calibration=120, splits=30).rows
    few = [row for row in rows if 0 < row.n_feasible < FEW_SPLITS]
    assert few, "the control: some rows rest on few splits"
    drawn: list[list[float | None]] = []

    def lines(axes: Any, series: Any, colour: Any, figure_of: Any, top: float, level: Any = ()) -> None:
        drawn.append([figure_of(row) for group in series for row in group])

    monkeypatch.setattr(figures, "_lines", lines)
    figures.across_alpha(rows, 0.2)
    errors, answered = drawn[0], drawn[1]
    for row, error, share in zip(rows, errors, answered, strict=True):
        expected = None if row.pooled is None or row.n_feasible < FEW_SPLITS else row.pooled.value
        assert (error, share) == (expected, row.acceptance.value)


def test_ticks_end_at_the_largest_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room to the right of it is for the names of the rules."""
    scores = np.linspace(0, 1, 200)
    wrong = (np.arange(200) % 5 == 0).astype(int)
    rows = evaluate(scores, wrong, rules=["acrc"], alphas=[0.1, 0.4], n_calibration=100, splits=2).rows
    seen: list[Any] = []

    def render(draw: Any, *_: Any, **__: Any) -> None:
        seen.extend(axes := MplFigure().subplots(1, 2))
        draw(axes, figures._LIGHT)

    monkeypatch.setattr(figures, "render", render)
    figures.across_alpha(rows, 0.2)
    for axes in seen:
        ticks = list(axes.get_xticks())
        assert ticks, "the control: there are ticks"
        assert max(ticks) <= 40 < axes.get_xlim()[1]


@pytest.mark.usefixtures("whole_figures")
def test_a_figure_is_put_together_once_a_width_and_drawn_once_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[float] = []
    files: list[str] = []
    draw_axes = Axes.draw

    def draw(axes: Any, colour: Any) -> None:
        widths.append(axes.figure.get_figwidth())
        axes.plot([0, 1], [0, 1], color=colour.blue, label="a")
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
