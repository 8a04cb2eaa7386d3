"""Populations of questions that planning draws from: scores and how often they err, or labelled answers with items."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from guardrail.errors import UsageError

from ..rules import Rule, Unit
from ..rules.counts import TOLERANCE, Floats, Ints, check_share, counts
from ..rules.items import AnswerItems
from ..scope import cut_at
from ..scoring.metrics import auroc as auroc_of

FEWEST_IN_PILOT = 20
"""Labelled questions below which a pilot is refused."""
POINTS = 50_000
"""Scores of a population that is guessed, equally likely: a draw of thousands has hardly a tie."""


@dataclass(frozen=True, slots=True)
class Population:
    """Answers, or items of answers: their scores, each as likely as the others, and how often one with it is wrong.

    Attributes:
        scores: Scores in increasing order, ties included; shape (m,).
        probability: P(wrong) at each, in (0, 1), of items 0 or 1; shape (m,).
        accuracy: Share of right ones, guessed or of the pilot.
        auroc: P(a wrong one is less certain than a right one), ties counting half; guessed or of the pilot.
        answers: Labelled answers with items, of which new ones are drawn with all their items; None for whole answers.
    """

    scores: Floats
    probability: Floats
    accuracy: float
    auroc: float
    answers: AnswerItems | None = None

    @property
    def unit(self) -> Unit:
        """What is accepted by itself."""
        return "answer" if self.answers is None else "item"

    @classmethod
    def binormal(cls, accuracy: float, auroc: float) -> Population:
        """Normal scores of equal spread: right answers score N(0, 1), wrong ones N(`gap`, 1); see `POINTS`.

        Given accuracy and AUROC nothing else is free. With AUROC above .5 the error rate grows with acceptance.

        Raises:
            UsageError: Accuracy or AUROC outside (0, 1).
        """
        check_share("accuracy", accuracy)
        distance = gap(auroc)
        # 8 standard deviations: the densities beyond are below one in 10^15.
        t = np.linspace(min(0.0, distance) - 8, max(0.0, distance) + 8, 4 * POINTS)
        below = accuracy * special.ndtr(t) + (1 - accuracy) * special.ndtr(t - distance)
        scores = np.interp((np.arange(POINTS) + 0.5) / POINTS, below, t)
        odds = (1 - accuracy) / accuracy * np.exp(distance * scores - distance**2 / 2)
        return cls(scores, odds / (1 + odds), accuracy, auroc)

    @classmethod
    def of_pilot(cls, scores: Floats, errors: Ints, at: Floats | None = None) -> Population:
        """The scores of labelled questions, or others ``at`` which they tell the errors by `error_probabilities`.

        Raises:
            UsageError: Fewer than 20 questions, or all right, or all wrong.
        """
        if scores.size < FEWEST_IN_PILOT or not 0 < errors.sum() < errors.size:
            raise UsageError(
                f"a pilot of {scores.size} questions with {int(errors.sum())} wrong answers cannot stand for the "
                f"others. Label at least {FEWEST_IN_PILOT}, some right and some wrong; a hundred say something."
            )
        ranked = np.sort(scores if at is None else at)
        area = auroc_of(scores, errors) or 0.0
        return cls(ranked, error_probabilities(ranked, scores, errors), 1.0 - float(errors.mean()), area)

    @classmethod
    def of_items(cls, answers: AnswerItems) -> Population:
        """Labelled answers with items."""
        u, wrong = answers.uncertainty, answers.wrong
        order = np.argsort(u)
        area = counts(u, wrong).auroc or 0.0
        return cls(u[order], wrong[order].astype(np.float64), 1.0 - float(wrong.mean()), area, answers)

    def with_ranks_of(self, scores: Floats) -> Population:
        """Other scores that rank questions as these do: at each quantile, the probability that is there here.

        Ties share the middle of their block.
        """
        values, count = np.unique(scores, return_counts=True)
        middle = (np.cumsum(count) - count / 2) / scores.size
        ranks = (np.arange(self.scores.size) + 0.5) / self.scores.size
        probability = np.repeat(np.interp(middle, ranks, self.probability), count)
        return replace(self, scores=np.repeat(values, count), probability=probability)

    def lowest(self, share: float) -> Population:
        """The part of the lowest scores, cut as a scope is.

        Raises:
            UsageError: Ties: no cut at so small a share.
        """
        k = self._within(cut_at(self.scores, share))
        return replace(self, scores=self.scores[:k], probability=self.probability[:k])

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8]]:
        """Independent answers: scores and errors, each of shape (n,)."""
        chosen = rng.integers(self.scores.size, size=n)
        return self.scores[chosen], (rng.random(n) < self.probability[chosen]).astype(np.int8)

    def rows(self, rng: np.random.Generator, n: int) -> tuple[Floats, NDArray[np.int8], Ints]:
        """Score and error of each answer or item of n questions, and the number of its question below n."""
        if self.answers is None:
            return *self.draw(rng, n), np.arange(n)
        some = self.answers.take(rng.integers(0, self.answers.n, n))
        return some.uncertainty, some.wrong.astype(np.int8), some.answer

    def acceptance(self, threshold: float) -> float:
        """P(u <= threshold)."""
        return self._within(threshold) / self.scores.size

    def scer(self, threshold: float) -> float:
        """P(wrong | u <= threshold); where nothing is accepted, that of the lowest score."""
        return float(self.probability[: max(1, self._within(threshold))].mean())

    def risk(self, rule: Rule, threshold: float) -> float:
        """What a rule bounds, at a threshold."""
        if self.answers is None:
            return self.scer(threshold)
        return rule.risk_of(*self.answers.counts(threshold)) or 0.0

    def ceiling(self, alpha: float) -> float:
        """The largest acceptance with an error rate of at most alpha, as an oracle reaches it; 0 if nothing can be."""
        ends = np.append(self.scores[1:] != self.scores[:-1], True) & np.isfinite(self.scores)
        k = np.arange(1, self.scores.size + 1)
        good = k[ends & (np.cumsum(self.probability) <= (alpha + TOLERANCE) * k)]
        return float(good.max(initial=0)) / self.scores.size

    def _within(self, threshold: float) -> int:
        return int(np.searchsorted(self.scores, threshold, side="right"))


def gap(auroc: float) -> float:
    """Difference of the mean scores of wrong and right answers in standard deviations: sqrt(2) Phi^-1(AUROC)."""
    check_share("auroc", auroc)
    return math.sqrt(2.0) * float(special.ndtri(auroc))


def error_probabilities(scores: Floats, pilot_scores: Floats, pilot_errors: Ints) -> Floats:
    """P(wrong) at each score, from a labelled pilot: the isotonic regression of its errors on its scores.

    Tied scores are one point, weighted by their number: their order in the file plays no part. A pilot of a hundred
    questions is enough to compare scopes; its labels must not be used for the fit again.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    values, rank, count = np.unique(pilot_scores, return_inverse=True, return_counts=True)
    fitted = isotonic_regression(np.bincount(rank, weights=pilot_errors) / count, weights=count).x
    at = np.clip(np.searchsorted(values, scores, side="right") - 1, 0, values.size - 1)
    # No score is surely right or wrong on the word of a pilot: half an error in it stays possible.
    n = pilot_scores.size
    probabilities: Floats = np.clip(fitted[at], 0.5 / n, 1 - 0.5 / n)
    return probabilities
