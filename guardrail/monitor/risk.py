"""The risk monitor: audited accepted answers against "at most alpha of them are wrong"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from ..errors import UsageError
from .state import STAKES, Bet, BettingState, check_unit

__all__ = ["RiskState", "interval_of", "log_wealth"]


class RiskState(BettingState):
    """Tests "the error rate among accepted answers is at most alpha" on audited accepted answers, at any time.

    Null hypothesis: given everything before, the next accepted answer is wrong with probability at most alpha. For
    exchangeable answers this is SCER <= alpha. With bets lambda fixed before the answer is seen, and an audit
    that happens with known probability q independently of whether the answer is wrong (given everything known before
    the audit), the gain of an audited answer with error E in {0, 1} is

        1 + lambda (E - alpha) / q,  0 <= lambda < q_min / alpha,

    and 1 for an answer that was not audited; its expectation is at most 1. Money is divided over several bets (`jump`),
    which needs no tuning.

    It does not see errors among answers that were held back, nor auditors' mistakes (an auditor who calls right answers
    wrong with probability r needs alpha + r).
    """

    kind = "risk"
    SETTINGS = ("artifact", "alpha", "delta", "min_audit_rate")

    artifact: str
    """Digest of the artifact that accepts the answers: evidence against one says nothing about another."""
    alpha: float
    """Error rate among accepted answers that was promised."""
    min_audit_rate: float
    """Smallest probability with which an accepted answer is audited; bets are sized for it."""
    shares: tuple[float, ...] = (1 / len(STAKES),) * len(STAKES)
    """The share of the wealth in each bet; sums to 1."""
    tallies: tuple[tuple[float, int, int], ...] = ()
    """(audit rate, audited answers, wrong ones among them)."""

    @classmethod
    def start(cls, artifact: str, alpha: float, delta: float, min_audit_rate: float, *, calls: bool = False) -> Self:
        """The state before the first audit.

        Raises:
            UsageError: A number that is not a probability.
        """
        check_unit("alpha", alpha)
        check_unit("delta", delta)
        if not 0 < min_audit_rate <= 1:
            raise UsageError(f"min_audit_rate must be in (0, 1], got {min_audit_rate}. Write 0.1 to audit one in ten.")
        return cls(artifact=artifact, alpha=alpha, delta=delta, min_audit_rate=min_audit_rate, calls=calls)

    def take(self, error: bool, audit_rate: float | None = None) -> tuple[Self, list[Bet]]:
        """The state after one more audited answer, and the bet on it.

        Args:
            error: Whether it was wrong: true or false, or 1 or 0.
            audit_rate: Probability with which *this* answer was chosen for audit; default: ``min_audit_rate``.

        Raises:
            UsageError: An audit rate below the declared smallest one, or above 1; an error that is neither true nor
                false. Leave out answers that could not be judged, and count them.
        """
        # By equality: 1 and 0 pass, while None (an answer nobody could judge) must not count as right.
        if error not in (True, False):
            raise UsageError(f"error must be True or False, got {error!r}. Leave out answers that could not be judged.")
        rate = self.min_audit_rate if audit_rate is None else float(audit_rate)
        if not self.min_audit_rate <= rate <= 1:
            raise UsageError(
                f"audit_rate must be in [{self.min_audit_rate}, 1], got {audit_rate}: bets are sized for the "
                "declared smallest rate. Start a new monitor with a smaller min_audit_rate."
            )
        # At this bet a right answer at the smallest audit rate takes all the money: 1 - lambda alpha / q = 0.
        largest = self.min_audit_rate / self.alpha
        gains = 1 + np.array(STAKES) * largest * (float(error) - self.alpha) / rate
        counts = {known: (audited, wrong) for known, audited, wrong in self.tallies}
        audited, wrong = counts.get(rate, (0, 0))
        counts[rate] = (audited + 1, wrong + int(error))
        after = self.bet(gains, tallies=tuple((known, *pair) for known, pair in sorted(counts.items())))
        return after, [Bet(float(error), rate, after.log_wealth)]

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """Estimate of the error rate among accepted answers with 95 % bounds; see `interval_of`."""
        return interval_of(self.tallies, self.min_audit_rate)

    def finding(self) -> dict[str, Any]:
        """The promise and the estimate."""
        return {"alpha": self.alpha, "estimate": self.interval}


def interval_of(tallies: Sequence[tuple[float, int, int]], min_audit_rate: float) -> tuple[float, float, float] | None:
    """Estimate of the error rate among accepted answers with a 95 % confidence sequence: valid at every time.

    The estimate weighs each audited answer by 1 / audit rate. The bounds are the error rates m that betting against "at
    most m" and against "at least m", each at 2.5 %, has not refuted with the audited answers so far.

    Args:
        tallies: (audit rate, audited answers, wrong ones among them).
        min_audit_rate: Smallest audit rate, for which bets are sized.

    Returns:
        (estimate, lower, upper), or None before the first audit.
    """
    if not tallies:
        return None
    weight = sum(audited / rate for rate, audited, _ in tallies)
    estimate = sum(wrong / rate for rate, _, wrong in tallies) / weight
    limit = math.log(1 / 0.025)  # so both sides together hold at 95 %
    lower = _bisect(lambda m: log_wealth(tallies, m, min_audit_rate) > limit)
    # An upper bound of the error rate is a lower bound of the rate of right answers.
    flipped = [(rate, audited, audited - wrong) for rate, audited, wrong in tallies]
    return estimate, lower, 1 - _bisect(lambda m: log_wealth(flipped, m, min_audit_rate) > limit)


def log_wealth(tallies: Iterable[tuple[float, int, int]], m: float, min_audit_rate: float = 1.0) -> float:
    """Natural logarithm of what fixed bets against "at most m of the accepted answers are wrong" have made of 1.

    The mean over the bets, never mixed, so the order of the answers plays no part. While the hypothesis holds it ever
    reaches log(1/delta) with probability at most delta, however often it is looked at. It falls as m grows.

    Args:
        tallies: (audit rate, audited answers, wrong ones among them).
        m: The error rate.
        min_audit_rate: Smallest audit rate, for which bets are sized.
    """
    logs = np.zeros(len(STAKES))
    for rate, audited, wrong in tallies:
        bets = np.array(STAKES) * min_audit_rate / rate
        # At m = 0 a wrong answer refutes everything; 1e-12 keeps that a number.
        logs += wrong * np.log1p(bets * (1 - m) / max(m, 1e-12)) + (audited - wrong) * np.log1p(-bets)
    return float(np.logaddexp.reduce(logs) - math.log(len(STAKES)))


def _bisect(above: Callable[[float], bool]) -> float:
    """The point in [0, 1] at which ``above`` turns from true to false; 0 if it is never true."""
    # `above` turns from true to false once, so false just above 0 means false everywhere.
    if not above(1e-9):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):  # more halvings than a float has bits
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low
