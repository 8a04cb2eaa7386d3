"""Figures that compare rules over random splits: errors across alpha, splits above it, and the paper's panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ..evaluation.evaluate import FEW_SPLITS, EvaluationRow
from ..evaluation.tables import TableRow, rule_of
from .figures import Figure, Palette, fitting, render

__all__ = ["across_alpha", "paper_panels", "violations"]

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

BANDED = ("A-CRC-QA", "certified")
"""Methods of the paper's figure that are drawn first, thick and with a band; seven bands would hide each other."""


def across_alpha(
    rows: Sequence[EvaluationRow], alpha: float, base_error: float | None = None, name: str = "alphas"
) -> Figure:
    """Error rate among answered questions, and share answered, against alpha: a line for each rule.

    A point of the error rate that rests on fewer than ten splits is left out.

    Args:
        rows: Rules at several alphas.
        alpha: The alpha in use: a vertical line.
        base_error: Share of wrong answers without a rule: a level line, "none".
        name: Prefix of the ids in the SVG; unique on a page.
    """
    series = [list(group) for _, group in groupby(rows, key=lambda row: (row.rule, str(row.options)))]

    def draw(axes: Any, colour: Palette) -> None:
        left, right = axes
        targets = sorted({100 * row.alpha for row in rows})
        left.plot(targets, targets, color=colour.grid, lw=5, solid_capstyle="round", zorder=1)
        base = [] if base_error is None else [(100 * base_error, "none")]
        top = max([1.2 * targets[-1], *(1.15 * y for y, _ in base)])
        _lines(left, series, colour, _known_error, top, base)
        _lines(right, series, colour, lambda row: row.acceptance.value, 104, [(100.0, "none")] if base else [])
        for panel in axes:
            panel.axvline(100 * alpha, color=colour.muted, lw=1, ls=(0, (1, 2)), zorder=1)
            panel.set(xlabel="target alpha, %", xlim=(0, targets[-1] * 1.42))
            panel.set_xticks([value for value in panel.get_xticks() if value <= targets[-1]])
        left.set_title("wrong among answered, %", loc="left", color=colour.ink, fontsize=11)
        right.set_title("questions answered, %", loc="left", color=colour.ink, fontsize=11)

    return render(draw, name, "Error rate and share answered against alpha, by rule", panels=(1, 2))


def _known_error(row: EvaluationRow) -> float | None:
    """The error rate over all splits; None where fewer than ten answer something, which says little about the rule."""
    return None if row.pooled is None or row.n_feasible < FEW_SPLITS < row.splits else row.pooled.value


def violations(rows: Sequence[EvaluationRow], promised: Mapping[str, float], name: str = "violations") -> Figure:
    """Share of splits whose test error rate exceeds alpha, by rule, with the level that certificates promise.

    Args:
        rows: Rules at one alpha.
        promised: The failure probability of each rule that certifies one, by rule.
        name: Prefix of the ids in the SVG; unique on a page.
    """
    ranked = sorted(rows, key=lambda row: (row.rule not in promised, row.violation_rate.value))

    def draw(axes: Any, colour: Palette) -> None:
        most = 10.0
        for y, row in enumerate(reversed(ranked)):
            proven = row.rule in promised
            ink = colour.blue if proven else colour.red
            at, reach = 100 * row.violation_rate.value, 200 * (row.violation_rate.se or 0.0)
            most = max(most, at + reach)
            axes.plot([max(0.0, at - reach), at + reach], [y, y], color=ink, lw=2, alpha=0.6, solid_capstyle="butt")
            axes.plot([at], [y], "o" if proven else "s", ms=8, mfc=ink if proven else colour.paper, mec=ink, mew=1.8)
            if proven:
                edge = 100 * promised[row.rule]
                axes.plot([edge, edge], [y - 0.36, y + 0.36], color=colour.ink, lw=2.4)
        axes.set_yticks(range(len(ranked)), [row.rule for row in reversed(ranked)])
        axes.set(xlim=(-1, min(102, 1.08 * most)), ylim=(-0.7, len(ranked) - 0.3))
        axes.set_xlabel("splits whose error rate exceeds the target, %")
        _key(axes, colour)

    height = 1.5 + 0.3 * len(rows)
    return render(draw, name, "How often each rule ends above the target", size=(9.0, height))


def paper_panels(rows: Sequence[TableRow], name: str = "panels") -> Figure:
    """The paper's figure: SCER and acceptance against alpha for each data set; bands: one standard deviation.

    With one data set its power and violation rate fill the other two panels.

    Args:
        rows: Rows of every method at every alpha, averaged over models.
        name: Prefix of the ids in the SVG.
    """
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    kinds: list[tuple[str, str]] = [("scer", "test SCER"), ("acceptance", "acceptance rate")]
    if len(datasets) == 1:
        kinds += [("power", "power"), ("violation_rate", "splits above alpha")]
    jobs = [(dataset, field, title) for dataset in datasets for field, title in kinds]

    def draw(axes: Any, colour: Palette) -> None:
        for panel, (dataset, field, title) in zip(axes, jobs, strict=True):
            _panel(panel, [row for row in rows if row.dataset == dataset], field, colour)
            panel.set_title(f"{dataset}: {title}, %", loc="left", color=colour.ink, fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        legend = axes[0].figure.legend(
            handles, labels, loc="outside lower center", ncols=fitting(axes[0], 4, 2), frameon=False
        )
        for text in legend.get_texts():
            text.set_color(colour.ink)

    down = len(jobs) // 2
    return render(
        draw, name, "Risk and acceptance across target levels", size=(10.0, 3.6 * down + 0.6), panels=(down, 2)
    )


def _panel(panel: Any, rows: Sequence[TableRow], field: str, colour: Palette) -> None:
    labels = sorted(dict.fromkeys(row.label for row in rows), key=lambda label: label not in BANDED)
    for index, label in enumerate(labels):
        ink, dashes, marker = _style(index, colour)
        points = [(row, value) for row in rows if row.label == label and (value := getattr(row, field)) is not None]
        x, y = [100 * row.alpha for row, _ in points], [100 * value.value for _, value in points]
        width = 2.6 if label in BANDED else 1.5
        panel.plot(x, y, color=ink, ls=dashes, marker=marker, ms=4.5, lw=width, label=rule_of(label))
        sds = [100 * sd for row, _ in points if (sd := getattr(row, f"{field}_sd", None)) is not None]
        if label in BANDED and sds and len(sds) == len(y):
            low = [at - sd for at, sd in zip(y, sds, strict=True)]
            high = [at + sd for at, sd in zip(y, sds, strict=True)]
            panel.fill_between(x, low, high, color=ink, alpha=0.13, lw=0)
    if field == "scer":
        targets = sorted({100 * row.alpha for row in rows})
        panel.plot(targets, targets, color=colour.ink, lw=1, ls=(0, (1, 2)), label="target alpha")
    panel.set_xticks(sorted({100 * row.alpha for row in rows}))
    panel.set_xlabel("target alpha, %")
    panel.set_ylim(bottom=0)


def _lines(
    axes: Any,
    series: Sequence[Sequence[EvaluationRow]],
    colour: Palette,
    figure_of: Callable[[EvaluationRow], float | None],
    top: float,
    level: Sequence[tuple[float, str]] = (),
) -> None:
    """Draw a line for each rule, its name beside the last point, and level lines; the axis ends at ``top``."""
    axes.set_ylim(0, top)
    ends = []
    for height, name in level:
        last = 100 * max(row.alpha for rows in series for row in rows)
        axes.plot([0, last], [height, height], color=colour.muted, lw=1.3, ls=(0, (6, 3)))
        ends.append((height, last, name, colour.muted))
    for index, rows in enumerate(series):
        ink, dashes, marker = _style(index, colour)
        points = [(100 * row.alpha, value) for row in rows if (value := figure_of(row)) is not None]
        if not points:
            continue
        x, y = [at for at, _ in points], [100 * value for _, value in points]
        axes.plot(x, y, color=ink, ls=dashes, marker=marker, ms=4.5, lw=1.9)
        ends.append((y[-1], x[-1], rows[0].rule, ink))
    _name(axes, ends, top)


def _name(axes: Any, ends: Sequence[tuple[float, float, str, str]], top: float) -> None:
    """Write names beside the ends of lines, moved apart until none covers another, inside the panel."""
    # matplotlib draws no annotation of a point outside the panel: the name of a line that leaves it stands at the edge.
    ranked = sorted((min(y, top), x, name, ink) for y, x, name, ink in ends)
    if not ranked:
        return
    space = 0.068 * top
    at = [y for y, *_ in ranked]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + space)
    middle = (at[-1] - ranked[-1][0]) / 2
    shift = min(max(middle, at[-1] - 0.98 * top), at[0] - 0.03 * top)
    right = max(x for _, x, *_ in ranked)
    for (y, x, name, ink), placed in zip(ranked, at, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(right * 1.05, placed - shift),
            color=ink,
            va="center",
            fontsize=9.5,
            arrowprops={"arrowstyle": "-", "color": ink, "lw": 0.6, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)},
        )


def _style(index: int, colour: Palette) -> tuple[str, Any, str]:
    name, dashes, marker = _STYLES[index % len(_STYLES)]
    return getattr(colour, name), dashes, marker


def _key(axes: Any, colour: Palette) -> None:
    axes.plot([], [], "o", ms=8, mfc=colour.blue, mec=colour.blue, ls="", label="certificate")
    axes.plot([], [], "|", ms=13, mew=2.4, color=colour.ink, ls="", label="what it promises at most")
    axes.plot([], [], "s", ms=8, mfc=colour.paper, mec=colour.red, mew=1.8, ls="", label="no promise about this")
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), frameon=False, ncols=fitting(axes, 3, 1), columnspacing=1.6
    )
    for text in legend.get_texts():
        text.set_color(colour.ink)
