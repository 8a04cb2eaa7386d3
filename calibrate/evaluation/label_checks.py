"""Do the labels and the score fit together? The AUROC with its interval, and labels worth a second look."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from guardrail.types import Frozen

from ..data.records import Record
from ..thresholds.fit import check_items, check_open_unit

__all__ = ["EXTREME", "AurocInterval", "Suspicious", "auroc_interval", "suspicious"]

EXTREME = 0.1
"""A score is very certain (uncertain) when at most this share of the questions is more certain (uncertain) still."""


class AurocInterval(Frozen):
    """AUROC of a score for errors, with a confidence interval."""

    value: float
    """P(a wrong answer is less certain than a right one), ties counting half."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    se: float
    """DeLong's standard error; 0 when the sample shows no spread (a perfect ranking)."""
    confidence: float
    """Coverage of the interval, asymptotically."""

    @property
    def verdict(self) -> Literal["ranks", "unclear", "reversed"]:
        """Whether the score ranks errors: "unclear" when the interval contains .5, "reversed" when it lies below."""
        if self.high < 0.5:
            return "reversed"
        return "ranks" if self.low > 0.5 else "unclear"


@dataclass(frozen=True, slots=True)
class Suspicious:
    """Labels that contradict an extreme score, most extreme first: surprises of the model, or wrong labels.

    Attributes:
        wrong: Labelled wrong although the model was very certain.
        right: Labelled right although the model was very uncertain.
        n_wrong: How many of the first kind there are in all.
        n_right: How many of the second.
    """

    wrong: tuple[Record, ...]
    right: tuple[Record, ...]
    n_wrong: int
    n_right: int


def auroc_interval(uncertainty: ArrayLike, error: ArrayLike, confidence: float = 0.95) -> AurocInterval | None:
    """AUROC with a DeLong interval on the logit scale; None if there is only one class.

    DeLong, DeLong & Clarke-Pearson (1988): each wrong answer has the share of right answers it is less certain than
    (ties half), each right answer the share of wrong ones; the variance of the AUROC is the sum of the sample variances
    of those shares over their numbers. The interval is taken on the logit scale, which keeps it inside (0, 1). Where
    that variance is 0 or cannot be had (a perfect ranking, a single error), Newcombe's (2006) score interval stands in:
    the AUROCs whose own variance, by the exponential model with balanced sizes, does not rule out what was seen.

    Args:
        uncertainty: Scores, shape (n,), finite; higher is less certain.
        error: 0 or 1, shape (n,).
        confidence: Coverage, in (0, 1).

    Raises:
        UsageError: As :func:`calibrate.thresholds.fit`, or a confidence outside (0, 1).
    """
    check_open_unit("confidence", confidence)
    scores, labels = check_items(uncertainty, error)
    wrong, right = np.sort(scores[labels == 1]), np.sort(scores[labels == 0])
    if not wrong.size or not right.size:
        return None
    of_wrong, of_right = _share_below(wrong, right), 1.0 - _share_below(right, wrong)
    value = float(of_wrong.mean())
    variance = _variance_of_mean(of_wrong) + _variance_of_mean(of_right)
    z = float(special.ndtri(0.5 + confidence / 2))
    if 0 < value < 1 and 0 < variance < math.inf:
        se = math.sqrt(variance)
        reach = z * se / (value * (1 - value))
        centre = math.log(value / (1 - value))
        low, high = float(special.expit(centre - reach)), float(special.expit(centre + reach))
    else:
        se = 0.0
        low, high = _newcombe(value, wrong.size, right.size, z)
    return AurocInterval(value=value, low=low, high=high, se=se, confidence=confidence)


def suspicious(records: Sequence[Record], estimator: str, k: int = 10) -> Suspicious:
    """Labels to look at again: wrong among the most certain answers, right among the most uncertain ones.

    Records without a score or a label are left out. Equal scores are ordered by id.

    Args:
        records: Records with scores and labels.
        estimator: Key of the score.
        k: Most records of each kind to return.
    """
    usable = []
    for record in records:
        score = record.scores.get(estimator)
        if record.correct is not None and score is not None and score.value is not None:
            usable.append((score.value, record))
    values = np.sort([value for value, _ in usable])
    most = EXTREME * len(usable)

    def certain(value: float) -> bool:
        return float(np.searchsorted(values, value, side="left")) <= most

    def uncertain(value: float) -> bool:
        return float(values.size - np.searchsorted(values, value, side="right")) <= most

    constant = values.size == 0 or values[0] == values[-1]
    wrong = sorted(
        ((value, record.id, record) for value, record in usable if not record.correct and certain(value)),
        key=lambda item: item[:2],
    )
    right = sorted(
        ((-value, record.id, record) for value, record in usable if record.correct and uncertain(value)),
        key=lambda item: item[:2],
    )
    if constant:
        wrong, right = [], []
    return Suspicious(
        wrong=tuple(record for *_, record in wrong[:k]),
        right=tuple(record for *_, record in right[:k]),
        n_wrong=len(wrong),
        n_right=len(right),
    )


def _share_below(of: NDArray[np.float64], among: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of ``among`` (sorted) below each of ``of``, ties counting half."""
    below = np.searchsorted(among, of, side="left")
    up_to = np.searchsorted(among, of, side="right")
    shares: NDArray[np.float64] = (below + up_to) / (2.0 * among.size)
    return shares


def _variance_of_mean(shares: NDArray[np.float64]) -> float:
    return float(shares.var(ddof=1)) / shares.size if shares.size > 1 else math.inf


def _newcombe(value: float, wrong: int, right: int, z: float) -> tuple[float, float]:
    """The AUROCs A with (A - value)^2 <= z^2 V(A), by bisection on either side of the value."""
    balanced = (wrong + right) / 2 - 1

    def consistent(area: float) -> bool:
        spread = area * (1 - area) * (1 + balanced * ((1 - area) / (2 - area) + area / (1 + area)))
        return (area - value) ** 2 <= z * z * spread / (wrong * right)

    return _edge(consistent, value, 0.0), _edge(consistent, value, 1.0)


def _edge(consistent: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where ``consistent`` ends between a value that is and one that need not be."""
    if inside == outside:
        return inside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if consistent(middle) else (inside, middle)
    return outside
