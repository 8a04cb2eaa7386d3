"""Populations of questions that planning draws from: normal scores, or a labelled pilot of answers or of items."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from guardrail.errors import UsageError

from ..rules import Rule, Unit
from ..rules.counts import Floats, Ints, counts
from ..rules.items import AnswerItems
from ..scoring.metrics import auroc

__all__ = ["Binormal", "ItemPilot", "Pilot", "Population", "error_probabilities"]

FEWEST_IN_PILOT = 20
"""Labelled questions below which a pilot is refused."""


class _WholeAnswers(ABC):
    """A population of whole answers; `ItemPilot` is one of answers with items."""

    unit: ClassVar[Unit] = "answer"
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that its rules need."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8]]:
        """Independent items: uncertainties and errors."""

    def rows(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8], Ints]:
        """Uncertainty and error of each row, and the number of its question below n."""
        return *self.draw(rng, n), np.arange(n)

    @abstractmethod
    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold)."""

    def risk(self, rule: Rule, threshold: float) -> float:
        """What a rule bounds, at a threshold."""
        return self.scer(threshold)


@dataclass(frozen=True, slots=True)
class Binormal(_WholeAnswers):
    """Normal scores of equal spread: right answers score N(0, 1), wrong ones N(gap, 1), gap = sqrt(2) Phi^-1(AUROC).

    Given accuracy and AUROC nothing else is free. With AUROC above .5 the error rate grows with acceptance.

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
        """Difference of the mean scores of wrong and right answers, in standard deviations."""
        return math.sqrt(2.0) * float(special.ndtri(self.auroc))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8]]:
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
        # Far to the left the density of the group with the lower mean outweighs the other without bound.
        return 1.0 - self.accuracy if self.gap == 0 else float(self.gap < 0)

    def ceiling(self, alpha: float) -> float:
        """The largest acceptance with an error rate of at most alpha, as an oracle reaches it.

        0 if nothing can be accepted. With AUROC at or below .5 the error rate is lowest when everything is accepted.
        """
        if 1.0 - self.accuracy <= alpha:
            return 1.0
        # The error rate does not rise with acceptance, so it is lowest at full acceptance, which was too high just
        # above.
        if self.gap <= 0:
            return 0.0
        from scipy.optimize import brentq  # slow to import

        # Normal tails beyond 37 standard deviations are 0 or 1 in double precision.
        low, high = -37.0, 37.0 + self.gap
        if self.scer(low) >= alpha:
            return self.acceptance(low)
        return self.acceptance(float(brentq(lambda t: self.scer(t) - alpha, low, high)))

    def error_probabilities(self, scores: Floats) -> Floats:
        """P(wrong) at each score, if these scores rank questions as this population's do: by their quantiles."""
        from scipy.optimize import brentq

        _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
        # Ties share the middle of their block, so no score lies at 0 or 1, where no quantile exists.
        quantiles = (np.cumsum(count) - count / 2) / scores.size
        at = np.array([brentq(lambda t, q=q: self.acceptance(t) - q, -40.0, 40.0 + abs(self.gap)) for q in quantiles])
        odds = (1.0 - self.accuracy) / self.accuracy * np.exp(self.gap * at - self.gap**2 / 2)
        probabilities: Floats = (odds / (1.0 + odds))[place]
        return probabilities

    def _accepted(self, threshold: float) -> tuple[float, float]:
        wrong = (1.0 - self.accuracy) * float(special.ndtr(threshold - self.gap))
        return wrong, self.accuracy * float(special.ndtr(threshold))


@dataclass(frozen=True, slots=True)
class Pilot(_WholeAnswers):
    """Labelled questions as a population: their scores, ties included, and errors by `error_probabilities`.

    Attributes:
        scores: Uncertainties, in increasing order.
        errors: 1 where the answer is wrong.
        probability: P(wrong) at each score.
    """

    scores: Floats
    errors: Ints
    probability: Floats

    @classmethod
    def of(cls, scores: Floats, errors: Ints) -> Pilot:
        """Make a population of scores and errors of labelled questions.

        Raises:
            UsageError: Fewer than 20 questions, or all right, or all wrong.
        """
        if scores.size < FEWEST_IN_PILOT or not 0 < errors.sum() < errors.size:
            raise UsageError(
                f"a pilot of {scores.size} questions with {int(errors.sum())} wrong answers cannot stand for the "
                f"others. Label at least {FEWEST_IN_PILOT}, some right and some wrong; a hundred say something."
            )
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], errors[order], error_probabilities(scores[order], scores, errors))

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return 1.0 - float(self.errors.mean())

    @property
    def auroc(self) -> float:
        """P(a wrong answer is less certain than a right one), ties counting half."""
        return auroc(self.scores, self.errors) or 0.0

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8]]:
        """Independent items: uncertainties and errors."""
        chosen = rng.integers(self.scores.size, size=n)
        return self.scores[chosen], (rng.random(n) < self.probability[chosen]).astype(np.int8)

    def acceptance(self, threshold: float) -> float:
        """P(u <= threshold)."""
        return float(np.searchsorted(self.scores, threshold, side="right")) / self.scores.size

    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold); where nothing is accepted, that of the lowest score."""
        below = max(1, int(np.searchsorted(self.scores, threshold, side="right")))
        return float(self.probability[:below].mean())

    def ceiling(self, alpha: float) -> float:
        """The largest acceptance with an error rate of at most alpha; 0 if nothing can be accepted."""
        return max((self.acceptance(t) for t in np.unique(self.scores) if self.scer(t) <= alpha), default=0.0)


@dataclass(frozen=True, slots=True)
class ItemPilot:
    """Labelled answers with items as a population: new answers are drawn from them with all their items.

    Attributes:
        items: Their items.
    """

    unit: ClassVar[Unit] = "item"
    items: AnswerItems

    @property
    def settings(self) -> dict[str, Any]:
        """The cap of the items."""
        return {"cap": self.items.cap}

    @property
    def accuracy(self) -> float:
        """Share of right items."""
        return 1.0 - float(self.items.wrong.mean())

    @property
    def auroc(self) -> float:
        """P(a wrong item is less certain than a right one) of the measured items, ties counting half."""
        return counts(self.items.uncertainty, self.items.wrong).auroc or 0.0

    def rows(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8], Ints]:
        """As of whole answers, with a row an item."""
        some = self.items.take(rng.integers(0, self.items.n, n))
        return some.uncertainty, some.wrong.astype(np.int8), some.answer

    def acceptance(self, threshold: float) -> float:
        """Share of items kept."""
        return float(self.items.kept(threshold).mean())

    def risk(self, rule: Rule, threshold: float) -> float:
        """What the rule bounds on the pilot."""
        return rule.risk_of(*self.items.counts(threshold)) or 0.0

    def ceiling(self, alpha: float) -> float:
        """The largest share of items kept of which at most alpha are wrong; 0 if nothing can be kept."""
        at = counts(self.items.uncertainty, self.items.wrong)
        good = at.k[at.e <= alpha * at.k]
        return float(good.max(initial=0)) / at.n


Population: TypeAlias = Binormal | Pilot | ItemPilot


def error_probabilities(scores: Floats, pilot_scores: Floats, pilot_errors: Ints) -> Floats:
    """P(wrong) at each score, from a labelled pilot: the isotonic regression of its errors on its scores.

    Tied scores are one point, weighted by their number: their order in the file plays no part. A pilot of a hundred
    questions is enough to compare scopes; its labels must not be used for the fit again.
    """
    from scipy.optimize import isotonic_regression

    values, place, count = np.unique(pilot_scores, return_inverse=True, return_counts=True)
    fitted = isotonic_regression(np.bincount(place, weights=pilot_errors) / count, weights=count).x
    at = np.clip(np.searchsorted(values, scores, side="right") - 1, 0, values.size - 1)
    # No score is surely right or wrong on the word of a pilot: half an error in it stays possible.
    n = pilot_scores.size
    probabilities: Floats = np.clip(fitted[at], 0.5 / n, 1 - 0.5 / n)
    return probabilities
