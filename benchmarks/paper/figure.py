"""The paper's four panels: error rate and acceptance against the target, for two data sets."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrate.evaluation.tables import TableRow
from guardrail.errors import require

__all__ = ["STYLES", "risk_retention"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes


STYLES = {
    "Empirical": ("#E69F00", ":", "s"),
    "A-CRC-QA": ("#0072B2", "-", "o"),
    "UCB-CLP": ("#009E73", "-.", "^"),
    "certified": ("#D55E00", "--", "D"),
}
"""Colour (Okabe & Ito), line style and marker of each method: any one of the three tells them apart."""


def risk_retention(rows: Sequence[TableRow]) -> bytes:
    """Draw the mean over splits with a band of one standard deviation, as PNG.

    Args:
        rows: Rows with labels among :data:`STYLES`, of any number of data sets and targets.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = require("matplotlib.figure", extra="calibrate").Figure(figsize=(12.5, 3.6), layout="constrained")
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    panels = np.atleast_1d(figure.subplots(1, 2 * len(datasets)))
    for i, dataset in enumerate(datasets):
        shown = [row for row in rows if row.dataset == dataset]
        _error_rate(panels[2 * i], shown)
        _acceptance(panels[2 * i + 1], shown)
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
    return stream.getvalue()


def _error_rate(axes: Axes, rows: Sequence[TableRow]) -> None:
    limit = [min(row.alpha for row in rows), max(row.alpha for row in rows)]
    axes.plot(limit, limit, color="#000000", linewidth=0.8)
    axes.annotate("target", (limit[1], limit[1]), ha="right", va="bottom", fontsize=8)
    for label in STYLES:
        own = [row for row in rows if row.label == label and row.scer is not None]
        values = [(row.alpha, row.scer.value, row.scer_sd or 0.0) for row in own if row.scer is not None]
        _band(axes, label, values)
    axes.set(title=f"{rows[0].dataset}: error among accepted", xlabel="target alpha", ylabel="SCER")


def _acceptance(axes: Axes, rows: Sequence[TableRow]) -> None:
    for label in STYLES:
        own = [row for row in rows if row.label == label]
        _band(axes, label, [(row.alpha, row.acceptance.value, row.acceptance_sd or 0.0) for row in own])
    axes.set(title=f"{rows[0].dataset}: acceptance", xlabel="target alpha", ylabel="AR", ylim=(-0.02, 1.02))


def _band(axes: Axes, label: str, values: Sequence[tuple[float, float, float]]) -> None:
    if not values:
        return
    x, y, sd = (np.array(column) for column in zip(*sorted(values), strict=True))
    colour, line, marker = STYLES[label]
    axes.plot(x, y, color=colour, linestyle=line, marker=marker, markersize=4, label=label)
    axes.fill_between(x, np.maximum(y - sd, 0.0), np.minimum(y + sd, 1.0), color=colour, alpha=0.13, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)
