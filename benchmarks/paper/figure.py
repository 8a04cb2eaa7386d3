"""The paper's figure: error rate and acceptance against the target, two panels a data set."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.paper.protocol import Row
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


def risk_retention(rows: Sequence[Row]) -> bytes:
    """Draw means over splits with a band of one standard deviation, as PNG: error rates above, acceptance below.

    Args:
        rows: Rows with labels among `STYLES`, of any number of data sets and targets.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    size = (2.6 * len(datasets) + 0.4, 5.4)
    figure = require("matplotlib.figure", extra="calibrate").Figure(figsize=size, layout="constrained")
    panels = figure.subplots(2, len(datasets), sharex=True, sharey="row", squeeze=False)
    for (above, below), dataset in zip(panels.T, datasets, strict=True):
        shown = [row for row in rows if row.dataset == dataset]
        _error_rate(above, shown)
        _acceptance(below, shown)
    panels[0, 0].set_ylabel("SCER: error among accepted")
    panels[1, 0].set_ylabel("AR: acceptance")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110, metadata={"Software": None})
    return stream.getvalue()


def _error_rate(axes: Axes, rows: Sequence[Row]) -> None:
    limit = [min(row.alpha for row in rows), max(row.alpha for row in rows)]
    axes.plot(limit, limit, color="#000000", linewidth=0.8, label="target")
    for label in STYLES:
        own = [row for row in rows if row.label == label]
        _band(axes, label, [(row.alpha, row.scer, row.scer_sd or 0.0) for row in own if row.scer is not None])
    axes.set(title=rows[0].dataset)


def _acceptance(axes: Axes, rows: Sequence[Row]) -> None:
    for label in STYLES:
        _band(axes, label, [(row.alpha, row.acceptance, row.acceptance_sd) for row in rows if row.label == label])
    axes.set(xlabel="target alpha", ylim=(-0.02, 1.02))


def _band(axes: Axes, label: str, values: Sequence[tuple[float, float, float]]) -> None:
    if not values:
        return
    x, y, sd = (np.array(column) for column in zip(*sorted(values), strict=True))
    colour, line, marker = STYLES[label]
    axes.plot(x, y, color=colour, linestyle=line, marker=marker, markersize=4, label=label)
    axes.fill_between(x, np.maximum(y - sd, 0.0), np.minimum(y + sd, 1.0), color=colour, alpha=0.13, linewidth=0)
    axes.spines[["top", "right"]].set_visible(False)
