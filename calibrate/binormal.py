"""A population in closed form: the scores of right and of wrong answers are normal with equal spread.

Used for planning and for simulations. Given its accuracy and AUROC nothing else is free: right answers score N(0, 1),
wrong ones N(gap, 1) with ``gap = sqrt(2) Phi^-1(AUROC)``. With AUROC above .5 the error rate grows with acceptance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.optimize import brentq

from guardrail.errors import UsageError

__all__ = ["Binormal"]


@dataclass(frozen=True, slots=True)
class Binormal:
    """A binormal population.

    Attributes:
        accuracy: Share of right answers, in (0, 1).
        auroc: P(a wrong answer is less certain than a right one), in (0, 1).
    """

    accuracy: float
    auroc: float

    def __post_init__(self) -> None:
        for name, value in (("accuracy", self.accuracy), ("auroc", self.auroc)):
            if not 0 < value < 1:
                raise UsageError(f"{name} must be in (0, 1), got {value}. Write 0.7 for 70 %.")

    @property
    def gap(self) -> float:
        """How much higher wrong answers score on average, in standard deviations."""
        return math.sqrt(2.0) * float(special.ndtri(self.auroc))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
        """Independent items: uncertainties and errors."""
        error = (rng.random(n) >= self.accuracy).astype(np.int8)
        return rng.normal(size=n) + self.gap * error, error

    def acceptance(self, threshold: float) -> float:
        """P(u <= threshold)."""
        wrong, right = self._accepted(threshold)
        return wrong + right

    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold); the limit where nothing is accepted in double precision."""
        wrong, right = self._accepted(threshold)
        if wrong + right > 0.0:
            return wrong / (wrong + right)
        return 1.0 - self.accuracy if self.gap == 0 else float(self.gap < 0)

    def ceiling(self, alpha: float) -> float:
        """The largest acceptance with an error rate of at most alpha: what an oracle that knows the population takes.

        0 if there is none. With AUROC at or below .5 the error rate is lowest when everything is accepted.
        """
        if 1.0 - self.accuracy <= alpha:
            return 1.0
        if self.gap <= 0:
            return 0.0
        low, high = -37.0, 37.0 + self.gap
        if self.scer(low) >= alpha:
            return self.acceptance(low)
        return self.acceptance(float(brentq(lambda t: self.scer(t) - alpha, low, high)))

    def _accepted(self, threshold: float) -> tuple[float, float]:
        wrong = (1.0 - self.accuracy) * float(special.ndtr(threshold - self.gap))
        return wrong, self.accuracy * float(special.ndtr(threshold))
