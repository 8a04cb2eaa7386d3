"""Files of a pool that look as if their questions were of another kind than the others'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from guardrail.notebook import percent

from ..data.records import RecordFile
from ..data.table import table_of
from ..scoring.metrics import fisher_exact, ks_two_sample
from .promise_test import DIFFERENT


@dataclass(frozen=True, slots=True)
class Difference:
    """The way in which a file differs from the others of its pool.

    Attributes:
        p: Probability of a difference as large if all files were alike.
        text: The difference in words.
    """

    p: float
    text: str


def unlike_file(files: Sequence[RecordFile], key: str) -> tuple[Path, Difference] | None:
    """The first file whose scores or share of wrong answers differ from those of the others; None if none does.

    Kolmogorov-Smirnov for the scores, Fisher's exact test for the shares, at level `DIFFERENT` over both tests of all
    files (Bonferroni).
    """
    if len(files) < 2:
        return None
    for file in files:
        others = [other for other in files if other is not file]
        differences = [_of_scores(key, file, others), _of_labels(file, others)]
        largest = min(filter(None, differences), key=lambda difference: difference.p, default=None)
        if largest is not None and largest.p < DIFFERENT / (2 * len(files)):
            return file.path, largest
    return None


def _of_scores(key: str, file: RecordFile, others: Sequence[RecordFile]) -> Difference | None:
    scores = file.records.scores(key)
    other_scores = np.concatenate([other.records.scores(key) for other in others])
    scores = scores[~np.isnan(scores)]
    other_scores = other_scores[~np.isnan(other_scores)]
    if not scores.size or not other_scores.size:
        return None
    distance, p = ks_two_sample(scores, other_scores)
    return Difference(p, f"largest distance of {key} {distance:.2f}")


def _of_labels(file: RecordFile, others: Sequence[RecordFile]) -> Difference | None:
    wrong, n = _wrong_of([file])
    others_wrong, others_n = _wrong_of(others)
    if not n or not others_n:
        return None
    p = fisher_exact(wrong, n, others_wrong, others_n)
    return Difference(p, f"{percent(wrong / n)} of its answers are wrong, {percent(others_wrong / others_n)} there")


def _wrong_of(files: Sequence[RecordFile]) -> tuple[int, int]:
    """The number of wrong answers, and of answers whose label counts."""
    labels = np.concatenate([table_of(file.records).counted_labels() for file in files])
    return int((labels == 0).sum()), int((labels >= 0).sum())
