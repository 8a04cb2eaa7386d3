"""The report's figures: risk against coverage, the scores of right and wrong answers, and rules at other targets."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guardrail.describe import ANSWERS, Nouns
from guardrail.errors import require
from guardrail.outcome import Feasible, Infeasible, accepts

from ..evaluation.results import FEW_SPLITS, EvaluationRow
from ..rules.certificate import interval
from ..rules.counts import counts

_BAND_POINTS = 160
_FEW = 60
_FEW_VALUES = 40
_MOST_POINTS = 20_000
_DPI = 160
COLOURS = SimpleNamespace(
    paper="#ffffff",
    ink="#1c2127",
    muted="#5b6570",
    grid="#dfe3e8",
    blue="#0072b2",
    red="#d55e00",
    green="#007a59",
    orange="#9a6700",
    purple="#a8518a",
)
"""Okabe and Ito's colours, by role; in the SVG each becomes the page's CSS variable of its name."""
NARROW = 5.0
"""Width in inches of a figure for a phone: its letters have the size of the page's small print."""


@dataclass(frozen=True, slots=True)
class Items:
    """Scores and errors of one set of questions.

    Attributes:
        uncertainty: Scores, shape (n,).
        error: 0 or 1, shape (n,).
    """

    uncertainty: NDArray[np.float64]
    error: NDArray[np.int8]


def risk_coverage(
    items: Items,
    outcome: Feasible | Infeasible,
    test: Items | None = None,
    *,
    nouns: Nouns = ANSWERS,
) -> Figure:
    """Error rate among answered questions against the share answered, with target, band and threshold.

    Args:
        items: The calibration items.
        outcome: The fitted threshold: a filled circle. Nothing is marked when it is infeasible.
        test: Items that were not fitted on: a second, dashed curve, and a square where the threshold ends on them.
        nouns: What was scored.
    """
    accepted = f"{nouns.counted} {nouns.accepted}"
    coverage, risk = _curve(items)
    low, high = _band(coverage, risk, items.error.size)
    at = np.linspace(0, coverage.size - 1, low.size).round().astype(int)

    def draw(axes: Any) -> None:
        axes.fill_between(
            100 * coverage[at], 100 * low, 100 * high, color=COLOURS.blue, alpha=0.16, lw=0, label="95 % band"
        )
        x, y = _thinned(coverage, risk)
        # With few thresholds the line only joins them; dots show which points can be reached.
        dots = "o" if x.size <= _FEW else ""
        axes.plot(x, y, color=COLOURS.blue, lw=2.2, marker=dots, ms=4.5, label="calibration")
        if test is not None:
            x, y = _thinned(*_curve(test))
            axes.plot(x, y, color=COLOURS.green, lw=1.8, ls=(0, (5, 2)), label="test")
            ends = _ends(outcome, test)
            if ends is not None:
                axes.plot(
                    *ends, "s", ms=9, mfc=COLOURS.paper, mec=COLOURS.green, mew=2, label="in use, on test", zorder=6
                )
        target = f"target {100 * outcome.alpha:g} %"
        axes.axhline(100 * outcome.alpha, color=COLOURS.red, lw=1.6, ls=(0, (2, 2)), label=target)
        if (used := _ends(outcome, items)) is not None:
            _mark(axes, *used)
        settled = risk[coverage >= 0.2]  # where a score misleads, the curve comes down from above
        top = max(1.8 * outcome.alpha, 1.3 * float(items.error.mean()), 1.05 * float(settled.max()), 0.05)
        if test is not None:
            top = max(top, 1.15 * float(test.error.mean()), 0.0 if ends is None else ends[1] / 85)
        axes.set(xlim=(0, 101), ylim=(0, 100 * min(top, 1.02)))
        axes.set(xlabel=f"{accepted}, %", ylabel=f"wrong among {nouns.accepted}, %")
        _legend(axes)

    label = f"Error rate among {nouns.given} against the share of {accepted}"
    return render(draw, "risk", label)


def score_histogram(items: Items, threshold: float | None, unit: str, *, nouns: Nouns = ANSWERS) -> Figure:
    """Scores of right answers (upwards) and of wrong ones (downwards).

    Scores with at most 40 values get narrow bars, and the line stands behind the bar that is accepted last.

    Args:
        items: The calibration items.
        threshold: Accept iff uncertainty <= this; None when infeasible.
        unit: Unit of the scores.
        nouns: What was scored.
    """
    discrete = np.unique(items.uncertainty).size <= _FEW_VALUES

    def draw(axes: Any) -> None:
        right, wrong = items.uncertainty[items.error == 0], items.uncertainty[items.error == 1]
        edges = _edges(items.uncertainty, discrete=discrete)
        up, _ = np.histogram(right, bins=edges)
        down, _ = np.histogram(wrong, bins=edges)
        width, left = np.diff(edges), edges[:-1]
        look = {"align": "edge", "edgecolor": COLOURS.paper, "lw": 0.8}
        axes.bar(left, up, width, color=COLOURS.blue, label=f"right {nouns.labelled} (up)", **look)
        axes.bar(left, -down, width, color=COLOURS.red, hatch="///", label=f"wrong {nouns.labelled} (down)", **look)
        axes.axhline(0, color=COLOURS.ink, lw=0.8)
        axes.set(xlim=(edges[0], edges[-1]))
        if threshold is not None:
            _cut(axes, _line(threshold, edges, discrete=discrete), nouns)
        shown = "" if unit == "probability" else f", {unit}"
        axes.set(xlabel=f"score{shown} (further right: less certain)", ylabel=nouns.counted)
        axes.tick_params(axis="x", pad=7)  # or the first may touch the lowest number of questions
        _legend(axes)
        axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")

    return render(draw, "scores", f"Scores of right and of wrong {nouns.labelled}")


def _curve(items: Items) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share accepted and error rate at each distinct score, by increasing uncertainty."""
    at = counts(items.uncertainty, items.error)
    return at.k / at.n, at.e / at.k


def _thinned(
    coverage: NDArray[np.float64], risk: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coverage and risk in %; a long curve keeps as many points as can be seen."""
    at: Any = slice(None)
    if coverage.size > _MOST_POINTS:
        at = np.linspace(0, coverage.size - 1, _MOST_POINTS).round().astype(int)
    return 100 * coverage[at], 100 * risk[at]


def _line(threshold: float, edges: NDArray[np.float64], *, discrete: bool) -> float:
    """Place of the threshold's line: behind the bar of equal scores it accepts, if the bars are single scores."""
    if not discrete:
        return threshold
    return float(edges[min(int(np.searchsorted(edges, threshold, side="right")), edges.size - 1)])


def _cut(axes: Any, at: float, nouns: Nouns) -> None:
    """Draw a line at the threshold, with a label on either side above the panel, where no bar and no name stands."""
    axes.axvline(at, color=COLOURS.ink, lw=1.6, ls=(0, (5, 2)))
    low, high = axes.get_xlim()
    common = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "bottom"}
    room = 0.01 * (high - low)
    if at - low > fitting(axes, 12, 22) * room:
        axes.annotate(f"\u2190 {nouns.accepted}", (at, 1), xytext=(-6, 3), ha="right", color=COLOURS.ink, **common)
    if high - at > fitting(axes, 30, 35) * room:
        axes.annotate("held back \u2192", (at, 1), xytext=(6, 3), color=COLOURS.ink, **common)


def _ends(outcome: Feasible | Infeasible, test: Items) -> tuple[float, float] | None:
    """Share accepted and error rate of the threshold on items, in %; None where nothing is accepted."""
    if not isinstance(outcome, Feasible):
        return None
    accepted = accepts(test.uncertainty, outcome.threshold)
    return (100 * float(accepted.mean()), 100 * float(test.error[accepted].mean())) if accepted.any() else None


def _band(
    coverage: NDArray[np.float64], risk: NDArray[np.float64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pointwise 95 % Clopper-Pearson band at a selection of thresholds."""
    at = np.linspace(0, coverage.size - 1, min(_BAND_POINTS, coverage.size)).round().astype(int)
    counts = [(round(n * float(coverage[i])), round(n * float(coverage[i]) * float(risk[i]))) for i in at]
    bounds = np.array([interval(errors, k) for k, errors in counts])
    return bounds[:, 0], bounds[:, 1]


def _edges(scores: NDArray[np.float64], *, discrete: bool) -> NDArray[np.float64]:
    values = np.unique(scores)
    low, high = float(values[0]), float(values[-1])
    span = high - low or 1.0
    count = _FEW_VALUES if discrete else 30
    edges: NDArray[np.float64] = np.linspace(low - span / (2 * count), high + span / (2 * count), count + 2)
    return edges


def _mark(axes: Any, x: float, y: float) -> None:
    """Mark where the threshold in use ends, with a line down to the share it answers."""
    axes.plot([x, x], [0, y], color=COLOURS.ink, lw=1, ls=(0, (1, 2)))
    axes.plot([x], [y], "o", ms=8, color=COLOURS.ink, ls="", label="threshold in use", zorder=5, clip_on=False)


def _legend(axes: Any) -> None:
    """Name the lines below the figure, where nothing is drawn."""
    handles, labels = axes.get_legend_handles_labels()
    looks = {"frameon": False, "labelcolor": COLOURS.ink, "handlelength": 1.7, "columnspacing": 1.2}
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=fitting(axes, 6, 2), **looks)


# -- Rules over random splits: errors and acceptance across alpha ------------------------------------------------------

_STYLES: tuple[tuple[str, Any, str], ...] = (
    ("blue", "-", "o"),
    ("red", (0, (5, 2)), "s"),
    ("green", (0, (6, 1.5, 1.5, 1.5)), "D"),
    ("orange", (0, (2, 1.5)), "^"),
    ("purple", (0, (8, 3)), "v"),
    ("muted", (0, (1, 1.5)), "X"),
    ("ink", (0, (4, 1, 1, 1, 1, 1)), "P"),
)
"""Colour, dashes and marker of each series, so that none rests on colour alone."""


def across_alpha(
    pools: Mapping[str, Sequence[EvaluationRow]],
    fields: Sequence[str] = ("pooled", "acceptance"),
    *,
    alpha: float | None = None,
    base_error: float | None = None,
    nouns: Nouns = ANSWERS,
    name: str = "alphas",
) -> Figure:
    """Figures of rules against alpha: a panel for each pool and field, a line for each rule.

    A point of an error rate that rests on fewer than ten splits is left out.

    Args:
        pools: Rules at several alphas, by the name of their pool ("" for a single one).
        fields: Fields of the rows.
        alpha: The alpha in use: a vertical line.
        base_error: Share of wrong answers without a rule: a level line, "no rule".
        nouns: What was scored.
        name: Prefix of the ids in the SVG; unique on a page.
    """
    jobs = [(pool, rows, field) for pool, rows in pools.items() for field in fields]
    titles = {
        "pooled": f"wrong among {nouns.accepted}, %",
        "scer": f"wrong among {nouns.accepted}, %",
        "acceptance": f"{nouns.counted} {nouns.accepted}, %",
        "power": f"right {nouns.labelled} {nouns.accepted}, %",
        "violation_rate": "splits above alpha, %",
    }

    def draw(axes: Any) -> None:
        for panel, (pool, rows, field) in zip(axes, jobs, strict=True):
            targets = sorted({100 * row.alpha for row in rows})
            if field in _ERRORS:
                panel.plot(targets, targets, color=COLOURS.grid, lw=5, solid_capstyle="round", zorder=1, label="target")
            if base_error is not None:
                level = 100 * base_error if field in _ERRORS else 100.0
                ends = [targets[0], targets[-1]]
                panel.plot(ends, [level, level], color=COLOURS.muted, lw=1.3, ls=(0, (6, 3)), label="no rule")
            for index, (rule, rows_of_rule) in enumerate(groupby(rows, key=lambda row: row.name)):
                points = [
                    (100 * row.alpha, 100 * value) for row in rows_of_rule if (value := _known(row, field)) is not None
                ]
                ink, dashes, marker = style(index)
                x, y = [at for at, _ in points], [value for _, value in points]
                panel.plot(x, y, color=ink, ls=dashes, marker=marker, ms=4.5, lw=1.9, label=rule)
            if alpha is not None:
                panel.axvline(100 * alpha, color=COLOURS.muted, lw=1, ls=(0, (1, 2)), zorder=1)
            panel.set(xlabel="target alpha, %", ylim=(0, None))
            title = ": ".join(filter(None, (pool, titles[field])))
            panel.set_title(title, loc="left", color=COLOURS.ink, fontsize=11)
            panel.set_xticks(targets)
        _legend(axes[0])

    down = len(jobs) // 2
    size = (9.0, 4.3) if down == 1 else (10.0, 3.6 * down + 0.6)
    return render(draw, name, "Error rate and share answered against alpha, by rule", size=size, panels=(down, 2))


_ERRORS = ("pooled", "scer")


def _known(row: EvaluationRow, field: str) -> float | None:
    """A figure; None for an error rate where fewer than ten splits answer something, which says little about it."""
    value = getattr(row, field)
    few = field in _ERRORS and row.n_feasible < FEW_SPLITS < row.splits
    return None if value is None or few else value.value


def style(index: int) -> tuple[str, Any, str]:
    """Colour, dashes and marker of the series with this number."""
    name, dashes, marker = _STYLES[index % len(_STYLES)]
    return getattr(COLOURS, name), dashes, marker


# -- Rendering: an SVG element of the page and a PNG, with palette, fonts and theme ------------------------------------
# Drawn for the page (SVG whose colours are the page's CSS variables, so they follow light and dark) and once as PNG.
# On a phone the letters of a wide figure would have 6 px, so the page has a narrow one, too. Colours are Okabe and
# Ito's; every series also differs in line style or shape. No global matplotlib state is touched.


@dataclass(frozen=True, slots=True)
class Figure:
    """A finished figure.

    Attributes:
        svg: Two ``<svg>`` elements without prolog, for a wide and a narrow window, of which the page shows one; their
            colours are CSS variables of the page.
        png: The same on white, as PNG.
    """

    svg: str
    png: bytes


Draw: TypeAlias = Callable[[Any], None]
"""Draws on axes, or with several panels on a list of axes."""


def render(
    draw: Draw, name: str, label: str, *, size: tuple[float, float] = (9.0, 4.3), panels: tuple[int, int] = (1, 1)
) -> Figure:
    """Draw a figure for the page, wide and narrow, and as PNG.

    Args:
        draw: Draws the content.
        name: Prefix of the ids in the SVG; unique on a page.
        label: Description of the figure, for screen readers.
        size: Width and height in inches.
        panels: Rows and columns of panels; with more than one, ``draw`` gets the list of axes. On a narrow page they
            stand below each other.
    """
    rows, columns = panels
    narrow = _laid_out(draw, name, (NARROW, size[1] if columns == 1 else 3.0 * rows * columns), (rows * columns, 1))
    wide = _laid_out(draw, name, size, panels)
    svg = "".join(
        _for_page(_saved(figure, "svg", name).decode(), f"{name}-{width}", f"figure {width}", label)
        for width, figure in (("wide", wide), ("narrow", narrow))
    )
    return Figure(svg=svg, png=_saved(wide, "png", name))


def fitting(axes: Any, wide: int, narrow: int) -> int:
    """The number that fits a figure's width, for example of a legend's columns."""
    return wide if axes.figure.get_figwidth() > NARROW else narrow


def _laid_out(draw: Draw, name: str, size: tuple[float, float], panels: tuple[int, int]) -> Any:
    """Return a matplotlib figure whose places are fixed, so that saving it draws it once."""
    figures = require("matplotlib.figure", extra="calibrate")
    canvases = require("matplotlib.backends.backend_agg", extra="calibrate")
    with _settings(name):
        figure = figures.Figure(figsize=size, layout="constrained", dpi=_DPI)
        canvases.FigureCanvasAgg(figure)  # texts are measured as in the PNG; the SVG takes the fonts of its page
        figure.patch.set_facecolor(COLOURS.paper)
        every = list(figure.subplots(*panels, squeeze=False).flat)
        for axes in every:
            axes.set_facecolor(COLOURS.paper)
        draw(every if len(every) > 1 else every[0])
        for axes in every:
            _plain(axes)
        # With a layout engine, matplotlib draws a figure without output before it saves it.
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)
    return figure


def _saved(figure: Any, kind: str, name: str) -> bytes:
    """Return the file of a figure that is laid out: svg or png."""
    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with _settings(name):
        figure.savefig(stream, format=kind, dpi=_DPI, metadata=metadata)
    return stream.getvalue()


def _settings(name: str) -> Any:
    matplotlib = require("matplotlib", extra="calibrate")
    return matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10.5, "hatch.linewidth": 0.7}
    )


def _plain(axes: Any) -> None:
    """Style an axis: a light grid, one axis line, muted labels."""
    axes.grid(axis="y", color=COLOURS.grid, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=COLOURS.muted, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(COLOURS.muted)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(COLOURS.muted)


def _for_page(svg: str, name: str, kind: str, label: str) -> str:
    """Fit an SVG element into a page: theme colours, page fonts, ids that no other figure has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for role, colour in vars(COLOURS).items():
        svg = svg.replace(colour, f"var(--{role})")
    svg = re.sub(r'font-family: [^;"]*', "font-family: inherit", svg)
    svg = svg.replace("*{stroke", ".figure *{stroke")
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    head = f'<svg role="img" aria-label="{label}" class="{kind}" '
    return re.sub(
        r'<svg (?:width="[^"]*"|height="[^"]*"|\s)*', head, re.sub(r' (width|height)="[\d.]+pt"', "", svg), count=1
    )
