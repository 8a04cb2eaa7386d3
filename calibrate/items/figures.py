"""What a gate of items does on labelled answers: counts by answer, by field path, and along thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.items.spec import ItemFigures

from ..data.item_columns import ItemColumns
from ..rules.certificate import interval
from ..rules.counts import Floats
from .rules import AnswerItems

__all__ = ["PathRow", "curve", "item_figures", "path_rows"]


def item_figures(items: AnswerItems, threshold: float | None, columns: ItemColumns | None = None) -> ItemFigures:
    """Count what a threshold keeps.

    Args:
        items: Labelled answers.
        threshold: Largest uncertainty that is kept; None keeps nothing.
        columns: The items as stored, for recall against references; None leaves it out.
    """
    K, W = items.counts(threshold)
    shown, broken = int((K > 0).sum()), int((W > 0).sum())
    return ItemFigures(
        answers=items.n,
        shown=shown,
        complete=int((items.size == K).sum()),
        broken=broken,
        items=int(items.size.sum()),
        wrong=int(items.wrong.sum()),
        kept=int(K.sum()),
        kept_wrong=int(W.sum()),
        wrong_per_answer=float((W[K > 0] / K[K > 0]).mean()) if shown else None,
        broken_interval=interval(broken, shown) if shown else None,
        **({} if columns is None else _recall(items, threshold, columns)),
    )


def _kept(items: AnswerItems, threshold: float | None) -> NDArray[np.bool_]:
    limit = -np.inf if threshold is None else threshold
    return np.asarray(np.isfinite(items.uncertainty) & (items.uncertainty <= limit))


def _recall(items: AnswerItems, threshold: float | None, columns: ItemColumns) -> dict[str, Any]:
    """Fields of references that kept right items match, over all fields of references; unit of the interval: answer."""
    size = columns.reference.astype(np.float64)
    if (size < 0).any() or not size.sum():
        return {}
    right = _kept(items, threshold) & (items.wrong == 0) & ~columns.absent
    matched = np.bincount(items.answer, weights=right, minlength=items.n)
    share = matched.sum() / size.sum()
    # A ratio of means: its linear part is (M_i - share R_i) / mean R.
    spread = 1.96 * (matched - share * size).std() / size.mean() / math.sqrt(items.n)
    ends = (max(0.0, share - spread), min(1.0, share + spread))
    return {"reference": int(size.sum()), "recalled": int(matched.sum()), "recall_interval": ends}


@dataclass(frozen=True, slots=True)
class PathRow:
    """Counts of one field path over all answers: its items, the wrong ones, the kept ones, the wrong among the kept.

    ``path`` has "*" for the entries of a list.
    """

    path: str
    items: int
    wrong: int
    kept: int
    kept_wrong: int


def path_rows(items: AnswerItems, threshold: float | None, columns: ItemColumns) -> list[PathRow]:
    """Counts by field path, in the order in which the paths first occur."""
    kept, wrong = _kept(items, threshold), items.wrong == 1
    number: dict[str, int] = {}
    row_of = np.array([number.setdefault(_pattern(path), len(number)) for path in columns.paths], dtype=np.int64)
    row = row_of[columns.path]
    _, first = np.unique(row, return_index=True)
    names = list(number)
    return [
        PathRow(
            names[code],
            int((row == code).sum()),
            int((wrong & (row == code)).sum()),
            int((kept & (row == code)).sum()),
            int((kept & wrong & (row == code)).sum()),
        )
        for code in row[np.sort(first)].tolist()
    ]


def _pattern(path: str) -> str:
    return "/".join("*" if step.isdigit() else step for step in path.split("/")) or "(the whole answer)"


def curve(items: AnswerItems, most: int = 200) -> tuple[Floats, Floats]:
    """The share of items kept, and of wrong ones among these, at each score that occurs; at most so many points."""
    scores = items.scores
    if scores.size > most:
        scores = scores[np.unique(np.linspace(0, scores.size - 1, most).astype(int))]
    order = np.argsort(items.uncertainty, kind="stable")
    wrong = np.cumsum(items.wrong[order])
    K = np.searchsorted(items.uncertainty[order], scores, side="right")
    return K / items.wrong.size, wrong[K - 1] / K
