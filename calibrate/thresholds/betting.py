"""Certificates for groups that use every item: ``group_mean`` and ``group_total``, by betting on whole groups."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.notebook import sure
from guardrail.outcome import InfeasibleReason

from .rule import TOLERANCE, GroupedItems, Prefix, Rule, RuleRequest

__all__ = ["LARGEST_STAKE", "GroupMean", "GroupTotal", "betting_p"]

LARGEST_STAKE = 0.9
"""Largest share of the capital that is bet on one group; 1 would lose everything at the first wholly wrong group."""
_CELLS = 2_000_000
"""Groups times block ends that are held in memory at a time."""

Reals = NDArray[np.float64]


def betting_p(excess: Reals, most: float, delta: float, planned: int | None = None) -> Reals:
    """p-values of "the mean of Z is positive" for independent Z that are at most ``most``.

    A bettor stakes f_t of the capital on group t, chosen from the groups before it. The capital
    prod(1 - f_t Z_t / most) never turns negative and does not grow on average where E[Z] >= 0, so by Ville's inequality
    its maximum exceeds 1/p with probability at most p: exact for any number of groups and any law of Z. Stakes for a
    number n of groups that is fixed (Waudby-Smith & Ramdas, arXiv 2010.09686):
    ``f_t = min(.9, sqrt(2 ln(1/delta) / (n v_t)))``, v_t the variance of Z/most over the groups before t, started with
    one value whose square is .0025.

    Args:
        excess: Z, shape (groups, thresholds), groups in an order that was fixed without looking at them.
        most: Largest value that Z can have.
        delta: Level that the stakes are set for.
        planned: Number of groups n that the stakes are set for; default: those given. Of several looks at growing
            labels it is that of the last one.

    Returns:
        Shape (thresholds,), in (0, 1].
    """
    gain = -excess / most
    before = np.vstack([np.zeros((1, gain.shape[1])), gain[:-1]])
    count = np.arange(1.0, len(gain) + 1)[:, None]
    mean = np.cumsum(before, axis=0) / count
    variance = (0.0025 + np.cumsum(before * before, axis=0)) / count - mean * mean
    # The first value keeps the variance positive; rounding could still end a hair below zero.
    n = len(gain) if planned is None else planned
    stake = np.minimum(LARGEST_STAKE, np.sqrt(2 * math.log(1 / delta) / (n * np.maximum(variance, 1e-9))))
    capital = np.cumsum(np.log1p(stake * gain), axis=0)
    p: Reals = np.exp(-np.maximum(capital.max(axis=0), 0.0))
    return p


class _Betting(Rule):
    """A fixed sequence of betting tests over groups, from the first block end at which a test can pass."""

    uses_delta = True
    certifies = True
    grouping = "all"
    defaults: ClassVar[Mapping[str, Any]] = {"seed": 0}
    starts: ClassVar[Sequence[float]] = (0.5, 0.8, 0.9, 1.0)
    """Shares of the groups that would do without an error where the sequence starts: the first one that can be had."""

    @abstractmethod
    def excess(self, accepted: Reals, wrong: Reals, alpha: float) -> Reals:
        """Z of each group at each threshold; the threshold is bad iff its mean is positive."""

    @abstractmethod
    def most(self, request: RuleRequest) -> float:
        """Largest value that Z can have."""

    @abstractmethod
    def share(self, accepted: Reals, request: RuleRequest) -> Reals:
        """Size of the bets at each threshold, in [0, 1]: 1 if every group is accepted whole."""

    def check(self, request: RuleRequest) -> None:
        """``seed`` is a whole number."""
        seed = request.options["seed"]
        # A bool is an int in Python, and True would pass, and read the groups in another order than 1 does.
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise UsageError(f"seed of rule {self.name!r} must be a whole number, got {seed!r}. Leave it out for 0.")

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Last block end before the first test that fails."""
        first = position = self._first(prefix, request)
        # Chunks double because most sequences stop early, and a long one must not pay for many small calls.
        chunk, largest = 16, max(1, _CELLS // _groups(prefix))
        while position < prefix.k.size:
            stop = min(prefix.k.size, position + min(chunk, largest))
            failed = np.flatnonzero(self._p(prefix, position, stop, request) > request.level)
            if failed.size:
                position += int(failed[0])
                break
            position, chunk = stop, 2 * chunk
        return position - 1 if position > first else None

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """The first test decides."""
        first = self._first(prefix, request)
        return first < prefix.k.size and bool(self._p(prefix, first, first + 1, request)[0] <= request.level)

    def explain(self, prefix: Prefix, request: RuleRequest) -> tuple[InfeasibleReason, str] | None:
        """Too few groups for any test to pass."""
        if self._first(prefix, request) < prefix.k.size:
            return None
        return InfeasibleReason.TOO_FEW_ITEMS, (
            f"The items come from {_groups(prefix)} groups; at alpha = {request.alpha:g} and delta = "
            f"{request.level:g} rule {self.name!r} cannot accept anything here even without a single error. Label "
            "questions from more groups; more questions of the same groups help little."
        )

    def _first(self, prefix: Prefix, request: RuleRequest) -> int:
        """The first block end at which half of the groups would do without an error, else .8 of them, .9 or all.

        It reads scores, never labels.
        """
        groups = _groups(prefix)
        for part in self.starts:
            growth = math.expm1(math.log(1 / request.level) / (part * groups))
            needed = growth * (1 - request.alpha) / (LARGEST_STAKE * request.alpha)
            if needed <= 1 and (first := self._reached(prefix, needed, request)) < prefix.k.size:
                return first
        return prefix.k.size

    def _reached(self, prefix: Prefix, needed: float, request: RuleRequest) -> int:
        """Index of the first block end whose share is at least what is needed; the share never falls along them."""
        low, high = 0, prefix.k.size
        while low < high:
            middle = (low + high) // 2
            accepted, _ = _counts(prefix, middle, middle + 1)
            if float(self.share(accepted, request)[0]) >= needed - TOLERANCE:
                high = middle
            else:
                low = middle + 1
        return low

    def _p(self, prefix: Prefix, start: int, stop: int, request: RuleRequest) -> Reals:
        accepted, wrong = _counts(prefix, start, stop)
        return betting_p(self.excess(accepted, wrong, request.alpha), self.most(request), request.level)


class GroupMean(_Betting):
    """Every group counts once: the mean over groups of the error rate among a group's accepted answers.

    Formula: at block end k let group g have K_g accepted items, W_g of them wrong, and ``Z_g = W_g/K_g - alpha`` (0
    where nothing is accepted). The block end passes if `betting_p` of the Z_g is at most delta. The sequence begins at
    the first block end at which half of the groups would pass without an error (else .8 of them, .9 or all), and ends
    at the first failure.

    Guarantee: P(E[W/K | K > 0] > alpha) <= delta over calibrations, any number of groups and any dependence within a
    group, if groups are independent draws and the rate does not fall as acceptance grows. To pass the first bad
    threshold, its own test must pass, and that has probability at most delta. The start is read off the scores of the
    calibration items; with it the promise was simulated (tests/validity/test_groups.py). The rate is not that of a
    random question: long groups count no more than short ones.

    Sources: betting, arXiv 2010.09686; fixed sequence, arXiv 2110.01052.

    Options:
        seed: Of the order in which groups are read. Fix it before looking.
    """

    name = "group_mean"
    promise = "certificate, mean over groups"

    def excess(self, accepted: Reals, wrong: Reals, alpha: float) -> Reals:
        """``W/K - alpha``, 0 where nothing is accepted."""
        return np.where(accepted > 0, wrong / np.maximum(accepted, 1.0) - alpha, 0.0)

    def most(self, request: RuleRequest) -> float:
        """1 - alpha: everything accepted is wrong."""
        return 1 - request.alpha

    def share(self, accepted: Reals, request: RuleRequest) -> Reals:
        """Share of groups with an accepted item."""
        shown: Reals = (accepted > 0).mean(axis=0)
        return shown

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, for groups of any kind."""
        return (
            f"With probability at least {sure(request.level)} over calibrations the error rate among accepted answers "
            f"is at most {request.alpha:g} as a mean over groups (every group with an accepted answer counts once), in "
            "finite samples, if groups are independent draws from the same source and that rate does not fall as more "
            "answers are accepted. Questions within a group may depend on each other."
        )


class GroupTotal(_Betting):
    """Every question counts once: the error rate among all accepted answers, for groups of a declared largest size.

    Formula: as ``group_mean`` with ``Z_g = W_g - alpha K_g``, which is at most (1 - alpha) times ``largest_group``. The
    share that the start looks at is the mean of K_g / largest_group.

    Guarantee: P(E[W]/E[K] > alpha) <= delta over calibrations, under the same conditions, if no group ever has more
    questions than declared. Never take the largest group of the data: with one giant group in 200, all of it wrong, 86
    of 100 such certificates are false (docs/guarantees.md).

    Sources: as ``group_mean``.

    Options:
        largest_group: Most questions that any group can have, at calibration and later; required with groups, and fixed
            without looking at the data (the longest conversation that you allow). A larger group refuses the fit.
        seed: Of the order in which groups are read. Fix it before looking.
    """

    name = "group_total"
    promise = "certificate, all questions of groups"
    defaults: ClassVar[Mapping[str, Any]] = {"largest_group": None, "seed": 0}

    def check(self, request: RuleRequest) -> None:
        """``largest_group`` is a count; whether it is needed shows with the groups."""
        super().check(request)
        largest = request.options["largest_group"]
        if largest is not None and (isinstance(largest, bool) or not isinstance(largest, int) or largest < 1):
            raise UsageError(
                f"largest_group of rule {self.name!r} must be a whole number of questions, at least 1, got {largest!r}."
            )

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Last block end before the first test that fails.

        Raises:
            UsageError: A group has more items than declared, or nothing is declared.
        """
        declared = request.options["largest_group"]
        if prefix.grouped is not None and declared is None:
            raise UsageError(
                "rule 'group_total' needs largest_group, the most questions that any group can ever have. Write "
                "group_total:largest_group=20, a number that you allow, not one read off the data."
            )
        found = 1 if prefix.grouped is None else int(np.bincount(prefix.grouped.code).max())
        if found > _largest(request):
            raise UsageError(
                f"a group has {found} questions, more than largest_group = {declared}, and the promise rests on that "
                "number. Declare the most that can ever occur, or use rule group_mean."
            )
        return super().select(prefix, request)

    def excess(self, accepted: Reals, wrong: Reals, alpha: float) -> Reals:
        """``W - alpha K``."""
        return wrong - alpha * accepted

    def most(self, request: RuleRequest) -> float:
        """(1 - alpha) times the largest group: all of it accepted and wrong."""
        return (1 - request.alpha) * _largest(request)

    def share(self, accepted: Reals, request: RuleRequest) -> Reals:
        """Mean of K / largest_group."""
        mean: Reals = accepted.mean(axis=0) / _largest(request)
        return mean

    def guarantee(self, request: RuleRequest) -> str:
        """Finite sample, for groups of at most the declared size."""
        return (
            f"With probability at least {sure(request.level)} over calibrations the error rate among accepted answers "
            f"is at most {request.alpha:g}, in finite samples, if groups are independent draws from the same source, "
            f"none has more than {_largest(request)} question{'s' * (_largest(request) > 1)}, and the rate does not "
            "fall as more answers are accepted. Questions within a group may depend on each other."
        )


def _largest(request: RuleRequest) -> int:
    """The declared largest group; without repeated groups every item is its own."""
    declared: int | None = request.options["largest_group"]
    return 1 if declared is None else declared


def _groups(prefix: Prefix) -> int:
    return prefix.n if prefix.grouped is None else int(prefix.grouped.code.max()) + 1


def _counts(prefix: Prefix, start: int, stop: int) -> tuple[Reals, Reals]:
    """Accepted items of each group and wrong ones among them, at some block ends; shape (groups, stop - start)."""
    items = prefix.grouped or _singletons(prefix)
    groups, ends = _groups(prefix), prefix.k[start:stop]
    # Each item is counted in the column of the first of these block ends that accepts it, then summed along them.
    column = np.searchsorted(ends, np.arange(1, ends[-1] + 1))
    cell = items.code[: ends[-1]] * ends.size + column
    shape, size = (groups, ends.size), groups * ends.size
    accepted = np.bincount(cell, minlength=size).reshape(shape).cumsum(axis=1)
    wrong = np.bincount(cell, weights=items.error[: ends[-1]], minlength=size).reshape(shape).cumsum(axis=1)
    return accepted.astype(np.float64), wrong


def _singletons(prefix: Prefix) -> GroupedItems:
    """Every item as its own group, read in a fixed order that has nothing to do with its score."""
    errors = np.diff(prefix.e, prepend=0)
    # Within a block it does not matter which item is wrong: they are accepted together.
    starts = np.repeat(prefix.k - prefix.size, prefix.size)
    wrong = np.arange(prefix.n) - starts < np.repeat(errors, prefix.size)
    return GroupedItems(np.random.default_rng(0).permutation(prefix.n), wrong.astype(np.int64))
