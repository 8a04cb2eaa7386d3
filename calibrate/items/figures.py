"""Counts of a gate of items on labelled answers, by answer and by field path."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import share_of
from guardrail.items.spec import ItemFigures
from guardrail.notebook import Table, percent

from ..data.item_columns import ItemColumns
from ..rules import RULES
from ..rules.certificate import interval
from ..rules.items import AnswerItems


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


def _recall(items: AnswerItems, threshold: float | None, columns: ItemColumns) -> dict[str, Any]:
    """Fields of references that kept right items match, over all fields of references; unit of the interval: answer."""
    size = columns.reference.astype(np.float64)
    if (size < 0).any() or not size.sum():
        return {}
    right = items.kept(threshold) & (items.wrong == 0) & ~columns.absent
    matched = np.bincount(items.answer, weights=right, minlength=items.n)
    share = matched.sum() / size.sum()
    # A ratio of means: its linear part is (M_i - share R_i) / mean R.
    spread = 1.96 * (matched - share * size).std() / size.mean() / math.sqrt(items.n)
    ends = (max(0.0, share - spread), min(1.0, share + spread))
    return {"reference": int(size.sum()), "recalled": int(matched.sum()), "recall_interval": ends}


def by_path(artifact: CalibrationArtifact, items: AnswerItems, columns: ItemColumns) -> tuple[Table, list[str]]:
    """Counts of labelled answers by field path, and sentences about fields that err more than the target.

    The paths stand in the order in which they first occur, with "*" for the entries of a list.
    """
    kept = items.kept(artifact.threshold)
    wrong = items.wrong == 1
    code_of: dict[str, int] = {}  # of each path, in place of the entries of a list "*"
    codes_of_paths = [code_of.setdefault(_pattern(path), len(code_of)) for path in columns.paths]
    code = np.array(codes_of_paths, dtype=np.int64)[columns.path]
    selections = (np.ones_like(wrong), wrong, kept, kept & wrong)
    counts = np.stack([np.bincount(code[selected], minlength=len(code_of)) for selected in selections], axis=1)
    _, first = np.unique(code, return_index=True)
    names, rows, warnings = list(code_of), [], []
    for path in code[np.sort(first)].tolist():
        name = names[path]
        n, n_wrong, n_kept, n_kept_wrong = counts[path].tolist()
        rows.append((name, str(n), share_of(n_wrong, n), share_of(n_kept, n), share_of(n_kept_wrong, n_kept)))
        if RULES[artifact.outcome.rule].population != "items" or not n_kept:
            continue
        if interval(n_kept_wrong, n_kept)[0] > artifact.alpha:
            warnings.append(
                f"Of the kept values of {name}, {percent(n_kept_wrong / n_kept)} are wrong: the promise is about all "
                "items together. If this field decides alone, calibrate it alone."
            )
    return Table(("path", "items", "wrong", "kept", "wrong among kept"), rows, prose=("path",)), warnings


def _pattern(path: str) -> str:
    return "/".join("*" if step.isdigit() else step for step in path.split("/")) or "(the whole answer)"
