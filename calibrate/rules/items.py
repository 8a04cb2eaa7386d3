"""The promises about items of answers, as calls of `certified_groups`, `walk_of_tests` and `count_threshold`.

An item is a row with a score and a label, as a whole answer is, and its group is its answer: the unit of every
certificate is the answer, because items of one answer may depend on each other in any way. An item is kept iff
``u <= t``. At t, answer i keeps K_i items, W_i of them wrong; it is *shown* iff K_i > 0, and *broken* iff W_i > 0. Each
promise holds with probability 1 - delta over calibrations:

    wrong_share             E[W] / E[K] <= alpha                `certified_groups`, most = cap     (capital)
    wrong_share_per_answer  E[W / K | shown] <= alpha           `certified_groups`                 (capital)
    clean_shown             P(broken | shown) <= alpha          `walk_of_tests`                    (tail)
    clean_answers           P(broken) <= alpha, of all answers  `count_threshold`                  (count)

Their n, k and e count answers: all, those shown, those broken. ``start`` of an infeasible result is the number of
answers that would do without a wrong item, where they are too few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.errors import UsageError
from guardrail.items.spec import measured

from ..data.item_columns import ragged_places
from .capital import LARGEST_STAKE, certified_groups
from .certificate import SHARE, fewest_accepted, walk_of_tests
from .count import count_threshold
from .counts import Counts, Feasible, Floats, Infeasible, Ints, Result, check_share
from .counts import counts as counted
from .counts import items as checked


@dataclass(frozen=True)
class AnswerItems:
    """The items of labelled answers, a row each.

    Attributes:
        names: Name of each answer, shape (n,).
        answer: Place of each item's answer in ``names``; shape (items,).
        uncertainty: inf for what is never kept; shape (items,).
        wrong: 0 for a right item, 1 for a wrong or undecided one; shape (items,).
        cap: Most items of an answer that are ever kept.
    """

    names: Sequence[Hashable]
    answer: Ints
    uncertainty: Floats
    wrong: Ints
    cap: int

    @classmethod
    def of(
        cls,
        uncertainties: Sequence[Sequence[float | None] | Floats],
        wrong: Sequence[Sequence[Any] | NDArray[Any]],
        *,
        cap: int,
        ids: Sequence[str] | None = None,
    ) -> AnswerItems:
        """From one list of uncertainties and one of labels an answer, items in the order of the text.

        Args:
            uncertainties: None, NaN and infinity mean that an item could not be measured: it is never kept.
            wrong: 0 or False for a right item. All else, also None for a label that could not be decided, is wrong.
            cap: Most items of an answer that are kept, fixed without labels; run time uses the same.
            ids: Id of each answer; default: its position.

        Raises:
            UsageError: No answers, an answer without an item, lists of different lengths, a repeated id, or a cap
                below 1.
        """
        names = tuple(map(str, range(len(uncertainties)))) if ids is None else tuple(ids)
        check_cap(cap)
        if not names:
            raise UsageError("no answers (n = 0). Calibration needs labelled answers with their items.")
        if len(set(names)) < len(names):
            raise UsageError("an id occurs twice among the answers. Every answer counts once in a certificate.")
        for name, scores, labels in zip(names, uncertainties, wrong, strict=True):
            if len(scores) != len(labels) or not len(scores):
                raise UsageError(
                    f"answer {name!r} has {len(scores)} uncertainties and {len(labels)} labels. Pass one label an "
                    "item, and at least one item."
                )
        size = np.array([len(scores) for scores in uncertainties], dtype=np.int64)
        flat = np.concatenate([measured(scores, cap) for scores in uncertainties])
        errors = np.array([label is None or label != 0 for some in wrong for label in some], dtype=np.int64)
        return cls(names, np.repeat(np.arange(size.size), size), flat, errors, cap)

    @classmethod
    def of_rows(cls, u: ArrayLike, wrong: ArrayLike, group: Sequence[Hashable], cap: int | None) -> AnswerItems:
        """From a row an item: its score, +inf where it was not measured, its label and the name of its answer.

        Raises:
            UsageError: No cap, an answer with more measured items than that, or rows that are no scores and labels.
        """
        if cap is None:
            raise UsageError(
                "rules for items need cap, the most items of an answer that can be kept: give it, e.g. cap=4. Fix it "
                "without labels."
            )
        check_cap(cap)
        scores, errors = checked(u, wrong)
        if len(group) != scores.size:
            raise UsageError(f"group must name the answer of each of the {scores.size} items, got {len(group)} names.")
        code_of: dict[Hashable, int] = {}
        code = np.array([code_of.setdefault(name, len(code_of)) for name in group], dtype=np.int64)
        largest = int(np.bincount(code[np.isfinite(scores)], minlength=1).max())
        if largest > cap:
            raise UsageError(
                f"an answer has {largest} measured items, more than cap = {cap}, and the promise rests on that number. "
                "Give the uncertainty inf to all but the most certain ones, here and at run time."
            )
        return cls(tuple(code_of), code, scores, errors, cap)

    @property
    def n(self) -> int:
        """Answers, those that keep nothing included."""
        return len(self.names)

    @property
    def group(self) -> list[Any]:
        """Name of each item's answer, shape (items,)."""
        return [self.names[i] for i in self.answer.tolist()]

    @cached_property
    def size(self) -> Ints:
        """Items of each answer, shape (n,)."""
        return np.bincount(self.answer, minlength=self.n)

    @cached_property
    def scores(self) -> Floats:
        """The measured uncertainties that occur, each once, ascending."""
        return np.unique(self.uncertainty[np.isfinite(self.uncertainty)])

    @property
    def is_wrong(self) -> Ints:
        """1 for an answer with a wrong item, shape (n,)."""
        return (np.bincount(self.answer, weights=self.wrong, minlength=self.n) > 0).astype(np.int64)

    def take(self, places: NDArray[Any]) -> AnswerItems:
        """The answers at these positions, or those that a mask selects, in this order."""
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else np.asarray(places, dtype=np.int64)
        rows = np.argsort(self.answer, kind="stable")[ragged_places(self.size, chosen)]
        code = np.repeat(np.arange(chosen.size), self.size[chosen])
        names = tuple(self.names[i] for i in chosen.tolist())
        return AnswerItems(names, code, self.uncertainty[rows], self.wrong[rows], self.cap)

    def kept(self, threshold: float | None) -> NDArray[np.bool_]:
        """Which items a threshold keeps, shape (items,); None keeps nothing."""
        return np.isfinite(self.uncertainty) & (self.uncertainty <= (-np.inf if threshold is None else threshold))

    def counts(self, threshold: float | None) -> tuple[Ints, Ints]:
        """K and W of each answer at a threshold, shape (n,); None keeps nothing."""
        kept = self.kept(threshold)
        K = np.bincount(self.answer[kept], minlength=self.n)
        return K, np.bincount(self.answer[kept & (self.wrong == 1)], minlength=self.n)

    def first_kept(self) -> Floats:
        """Smallest threshold at which each answer shows something; inf if it never does. Shape (n,)."""
        return self._least(np.ones(self.wrong.size, dtype=np.bool_))

    def first_broken(self) -> Floats:
        """Smallest threshold at which each answer keeps a wrong item; inf if it never does. Shape (n,)."""
        return self._least(self.wrong == 1)

    def as_answers(self) -> Counts:
        """The answers as `counts`: accepted where something is kept, wrong where some item is."""
        return counted(self.first_kept(), self.is_wrong)

    def _least(self, chosen: NDArray[np.bool_]) -> Floats:
        values = np.full(self.n, np.inf)
        np.minimum.at(values, self.answer[chosen], self.uncertainty[chosen])
        return values


def check_cap(cap: int) -> None:
    """Refuse a cap that is not a number of items.

    Raises:
        UsageError: It is not a whole number, or below 1.
    """
    if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
        raise UsageError(f"cap must be a whole number of items, at least 1, got {cap!r}.")


# -- The rules ---------------------------------------------------------------------------------------------------------


def by_rows(rule: Callable[[AnswerItems, float, float], Result]) -> Callable[..., Result]:
    """A rule of `calibrate.rules.RULES` from one over answers: ``group`` names the answer of each row."""

    def choose(
        u: ArrayLike,
        wrong: ArrayLike,
        alpha: float,
        delta: float = 0.1,
        *,
        group: Sequence[Hashable],
        cap: int | None = None,
    ) -> Result:
        check_share("delta", delta)
        return rule(AnswerItems.of_rows(u, wrong, group, cap), alpha, delta)

    choose.__doc__ = rule.__doc__
    return choose


def wrong_share(some: AnswerItems, alpha: float, delta: float) -> Result:
    """Share of wrong items among all that are kept: `certified_groups`, an answer of at most ``cap`` items a group."""
    result = certified_groups(some.uncertainty, some.wrong, alpha, delta, group=some.group, most=some.cap)
    reach = float(np.isfinite(some.uncertainty).sum()) / (some.n * some.cap)
    return _in_answers(some, result, _needed_by_capital(alpha, delta, reach))


def wrong_share_per_answer(some: AnswerItems, alpha: float, delta: float) -> Result:
    """Mean share of wrong items among those kept of an answer, over the answers of which something is kept."""
    result = certified_groups(some.uncertainty, some.wrong, alpha, delta, group=some.group)
    return _in_answers(some, result, _needed_by_capital(alpha, delta, 1.0))


def clean_shown(some: AnswerItems, alpha: float, delta: float) -> Result:
    """Share of broken answers among those of which something is kept.

    `walk_of_tests` over the scores that occur: k answers are shown there and e of them broken. Given k, e is
    Binomial(k, risk), so every test is exact, for any shape of the risk.
    """
    k = np.searchsorted(np.sort(some.first_kept()), some.scores, side="right")
    e = np.searchsorted(np.sort(some.first_broken()), some.scores, side="right")
    reached = walk_of_tests(some.n, k, e, alpha, delta, SHARE)
    if isinstance(reached, Infeasible):
        return _in_answers(some, reached, int(fewest_accepted(0, alpha, delta)))
    return _at(some, float(some.scores[reached[0]]))


def clean_answers(some: AnswerItems, alpha: float, delta: float | None) -> Result:
    """Share of broken answers among all; one of which nothing is kept counts as clean.

    The largest score strictly below `count_threshold` of `AnswerItems.first_broken`: an answer that is broken stays
    broken at every larger threshold. On average over calibrations for delta None (conformal factuality, arXiv
    2402.10978). Never state this without the share of answers shown, and the share of those that are broken.
    """
    limit = count_threshold(some.first_broken(), alpha, delta)
    if limit is None:
        return Infeasible(some.n, "too_few_items", None if delta is None else int(fewest_accepted(0, alpha, delta)))
    below = some.scores[some.scores < limit]
    return _at(some, float(below[-1])) if below.size else Infeasible(some.n, "risk_never_low_enough")


def _needed_by_capital(alpha: float, delta: float, reach: float) -> int | None:
    """Fewest answers that can certify the promise without a wrong item, if ``reach`` of the cap is kept of each.

    ``ln(1/delta) / ln(1 + .9 alpha reach / (1 - alpha))``; None where nothing is measured.
    """
    gain = math.log1p(LARGEST_STAKE * alpha * reach / (1 - alpha))
    return math.ceil(-math.log(delta) / gain - 1e-9) if gain else None


def _in_answers(some: AnswerItems, result: Result, needed: int | None) -> Result:
    """A result whose counts are answers."""
    if isinstance(result, Infeasible):
        return Infeasible(some.n, result.reason, needed if result.reason == "too_few_items" else None)
    return _at(some, result.threshold)


def _at(some: AnswerItems, threshold: float) -> Feasible:
    K, W = some.counts(threshold)
    return Feasible(threshold, some.n, int((K > 0).sum()), int((W > 0).sum()))
