"""Counts of a gate of items on labelled answers: by answer, by field path, by number of items, and along thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.items.spec import ItemFigures

from ..data.item_columns import ItemColumns
from ..rules.certificate import interval
from .rules import AnswerItems

__all__ = ["CurvePoint", "PathRow", "curve", "item_figures", "kept_of", "length_bands", "path_rows"]

_BANDS = ((1, 2), (3, 4), (5, 8), (9, 16), (17, None))
"""Bands of the number of items in reports; the last is open."""


def kept_of(items: AnswerItems, thresholds: float | Sequence[float | None] | None) -> NDArray[np.bool_]:
    """Which items are kept, shape (items,).

    Args:
        items: The items.
        thresholds: One for all answers, or one for each; None keeps nothing.
    """
    each = thresholds if isinstance(thresholds, Sequence) else [thresholds] * items.n
    limits = np.array([-np.inf if limit is None else limit for limit in each])[items.answer]
    kept: NDArray[np.bool_] = (items.uncertainty <= limits) & np.isfinite(items.uncertainty)
    return kept


def item_figures(
    items: AnswerItems,
    thresholds: float | Sequence[float | None] | None,
    *,
    allowed: int = 0,
    columns: ItemColumns | None = None,
) -> ItemFigures:
    """Count what the thresholds keep.

    Args:
        items: Labelled answers.
        thresholds: One for all answers, or one for each.
        allowed: Wrong items that an answer may keep without being broken.
        columns: The items as stored, for recall against references; None leaves it out.
    """
    kept = kept_of(items, thresholds)
    K = np.bincount(items.answer, weights=kept, minlength=items.n)
    W = np.bincount(items.answer, weights=kept & (items.wrong == 1), minlength=items.n)
    shown, broken = int((K > 0).sum()), int((allowed < W).sum())
    recalled = None if columns is None else _recall(items, kept, columns)
    return ItemFigures(
        answers=items.n,
        shown=shown,
        complete=int(((items.size == K) & (K > 0)).sum()),
        broken=broken,
        items=int(items.size.sum()),
        wrong=int(items.wrong.sum()),
        kept=int(K.sum()),
        kept_wrong=int(W.sum()),
        wrong_per_answer=float((W[K > 0] / K[K > 0]).mean()) if shown else None,
        broken_interval=interval(broken, shown) if shown else None,
        **({} if recalled is None else recalled),
    )


def _recall(items: AnswerItems, kept: NDArray[np.bool_], columns: ItemColumns) -> dict[str, Any] | None:
    """Fields of references that kept right items match, over all fields of references; unit of the interval: answer."""
    size = columns.reference.astype(np.float64)
    if (size < 0).any() or not size.sum():
        return None
    matched = np.bincount(items.answer, weights=kept & (items.wrong == 0) & ~columns.absent, minlength=items.n)
    share = matched.sum() / size.sum()
    # A ratio of means: its linear part is (M_i - share R_i) / mean R.
    spread = 1.96 * (matched - share * size).std() / size.mean() / math.sqrt(items.n)
    interval = (max(0.0, share - spread), min(1.0, share + spread))
    return {"reference": int(size.sum()), "recalled": int(matched.sum()), "recall_interval": interval}


@dataclass(frozen=True, slots=True)
class PathRow:
    """Counts of one field path over all answers.

    Attributes:
        path: The path, with "*" for the items of a list; "(an item of a text)" for texts.
        items: Items there.
        wrong: Wrong ones.
        kept: Kept ones.
        kept_wrong: Wrong ones among the kept.
    """

    path: str
    items: int
    wrong: int
    kept: int
    kept_wrong: int


def path_rows(
    items: AnswerItems, thresholds: float | Sequence[float | None] | None, columns: ItemColumns
) -> list[PathRow]:
    """Counts by field path, in the order in which the paths first occur."""
    kept, wrong = kept_of(items, thresholds), items.wrong == 1
    number: dict[str, int] = {}
    row_of = np.array([number.setdefault(_pattern(path), len(number)) for path in columns.paths], dtype=np.int64)
    row, first = row_of[columns.path], np.full(len(number), kept.size)
    np.minimum.at(first, row, np.arange(row.size))

    def counts(chosen: NDArray[np.bool_]) -> Sequence[int]:
        occurrences: list[int] = np.bincount(row[chosen], minlength=len(number)).tolist()
        return occurrences

    everything = np.ones(kept.size, dtype=np.bool_)
    columns_of_counts = zip(number, counts(everything), counts(wrong), counts(kept), counts(kept & wrong), strict=True)
    rows = [PathRow(*each) for each in columns_of_counts]
    return [rows[i] for i in np.argsort(first).tolist() if rows[i].items]


def _pattern(path: str | None) -> str:
    if path is None:
        return "(an item of a text)"
    return "/".join("*" if step.isdigit() else step for step in path.split("/")) or "(the whole answer)"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A threshold and what it keeps.

    Attributes:
        threshold: tau.
        kept: Share of items kept.
        right_kept: Share of right items kept.
        wrong: Share of wrong ones among the kept.
        shown: Share of answers shown.
        broken: Share of broken ones among the shown.
    """

    threshold: float
    kept: float
    right_kept: float
    wrong: float
    shown: float
    broken: float


def curve(items: AnswerItems, most: int = 200) -> list[CurvePoint]:
    """The curve of kept against wrong items: a point at each score that occurs, at most so many of them."""
    scores = items.scores
    if scores.size > most:
        scores = scores[np.unique(np.linspace(0, scores.size - 1, most).astype(int))]
    kept, wrong = items.counts(scores)
    total, right = max(1, int(items.size.sum())), max(1, int((items.wrong == 0).sum()))
    points = []
    for j, threshold in enumerate(scores.tolist()):
        K, W = int(kept[:, j].sum()), int(wrong[:, j].sum())
        shown, broken = int((kept[:, j] > 0).sum()), int((wrong[:, j] > 0).sum())
        points.append(
            CurvePoint(threshold, K / total, (K - W) / right, W / K, shown / items.n, broken / shown if shown else 0.0)
        )
    return points


def length_bands(
    items: AnswerItems, thresholds: float | Sequence[float | None] | None, *, allowed: int = 0
) -> list[tuple[str, ItemFigures]]:
    """Figures by number of items."""
    each = thresholds if isinstance(thresholds, Sequence) else [thresholds] * items.n
    rows = []
    for low, high in _BANDS:
        inside = (items.size >= low) & (items.size <= (np.inf if high is None else high))
        if inside.any():
            own = [each[i] for i in np.flatnonzero(inside).tolist()]
            name = f"{low} or more" if high is None else f"{low} to {high}"
            rows.append((name, item_figures(items.take(inside), own, allowed=allowed)))
    return rows
