"""The promises about items, as calls of `calibrate.rules`. The unit of every certificate is the answer, not the item.

Item j of answer i has an uncertainty ``u_ij`` and a label ``wrong_ij``; it is kept iff ``u_ij <= t``. Items of one
answer may depend on each other in any way. At t, answer i keeps K_i items, W_i of them wrong; it is *shown* iff
K_i > 0, and *broken* iff W_i > 0. Each promise holds with probability 1 - delta over calibrations:

    wrong_share             E[W] / E[K] <= alpha                `certified_groups`, most = cap     (capital)
    wrong_share_per_answer  E[W / K | shown] <= alpha           `certified_groups`                 (capital)
    clean_shown             P(broken | shown) <= alpha          `walk_of_tests`                    (tail)
    clean_answers           P(broken) <= alpha, of all answers  `count_threshold`                  (count)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.items.spec import ItemRule, measured

from ..data.item_columns import ragged_places
from ..rules.capital import certified_groups
from ..rules.certificate import SHARE, walk_of_tests
from ..rules.count import count_threshold
from ..rules.counts import Feasible, Floats, Infeasible, Ints, Result, check_share

__all__ = ["RULES", "AnswerItems", "check_cap", "clean_answers", "clean_shown", "fit_items", "rule_named"]
__all__ += ["wrong_share"]

RULES: tuple[ItemRule, ...] = get_args(ItemRule)
"""Names of the rules; the first is the default."""


@dataclass(frozen=True)
class AnswerItems:
    """The items of labelled answers, one list behind the other.

    Attributes:
        ids: Id of each answer, shape (n,).
        size: Items of each answer, at least 1, shape (n,).
        uncertainty: As `guardrail.items.spec.measured` returns them, so inf for what is never kept; shape (items,).
        wrong: 0 for a right item, 1 for a wrong or undecided one; shape (items,).
        cap: Most items of an answer that are ever kept.
    """

    ids: tuple[str, ...]
    size: Ints
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
        flat = np.concatenate([measured(scores, cap) for scores in uncertainties])
        labels = np.array([label is None or label != 0 for some in wrong for label in some], dtype=np.int64)
        return cls(names, np.array([len(scores) for scores in uncertainties], dtype=np.int64), flat, labels, cap)

    @property
    def n(self) -> int:
        """Answers, those that keep nothing included."""
        return len(self.ids)

    @property
    def n_right(self) -> int:
        """Answers without a wrong item."""
        return self.n - np.unique(self.answer[self.wrong == 1]).size

    @cached_property
    def answer(self) -> Ints:
        """Position of each item's answer, shape (items,)."""
        return np.repeat(np.arange(self.n), self.size)

    @cached_property
    def scores(self) -> Floats:
        """The measured uncertainties that occur, each once, ascending."""
        return np.unique(self.uncertainty[np.isfinite(self.uncertainty)])

    def take(self, places: NDArray[Any]) -> AnswerItems:
        """The answers at these positions, or those that a mask selects, in this order."""
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else np.asarray(places)
        flat = ragged_places(self.size, chosen)
        names = tuple(self.ids[i] for i in chosen)
        return AnswerItems(names, self.size[chosen], self.uncertainty[flat], self.wrong[flat], self.cap)

    def with_unmeasured(self, number: int) -> AnswerItems:
        """With as many answers more that could not be measured: nothing of them is ever kept, and they are among n."""
        names = tuple(f"unmeasured {i}" for i in range(number))
        ones, inf = np.ones(number, dtype=np.int64), np.full(number, np.inf)
        return AnswerItems(
            self.ids + names,
            np.append(self.size, ones),
            np.append(self.uncertainty, inf),
            np.append(self.wrong, 0 * ones),
            self.cap,
        )

    def counts(self, threshold: float | None) -> tuple[Ints, Ints]:
        """K and W of each answer at a threshold, shape (n,); None keeps nothing."""
        kept = np.isfinite(self.uncertainty) & (self.uncertainty <= (-np.inf if threshold is None else threshold))
        K = np.bincount(self.answer[kept], minlength=self.n)
        return K, np.bincount(self.answer[kept & (self.wrong == 1)], minlength=self.n)

    def first_kept(self) -> Floats:
        """Smallest threshold at which each answer shows something; inf if it never does. Shape (n,)."""
        return self._least(np.ones(self.wrong.size, dtype=np.bool_))

    def first_broken(self) -> Floats:
        """Smallest threshold at which each answer keeps a wrong item; inf if it never does. Shape (n,)."""
        return self._least(self.wrong == 1)

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


def rule_named(name: str | None) -> ItemRule:
    """The rule of this name; None for the default.

    Raises:
        UsageError: No rule has the name.
    """
    for rule in RULES:
        if name in (None, rule):
            return rule
    raise UsageError(f"no rule for items named {name!r}; choose one of: {', '.join(RULES)}")


def fit_items(items: AnswerItems, rule: ItemRule, alpha: float, delta: float = 0.1) -> Result:
    """The threshold of a rule. n, k and e of the result count answers: all, those shown, those broken.

    Raises:
        UsageError: alpha or delta is not in (0, 1).
    """
    check_share("alpha", alpha)
    check_share("delta", delta)
    if rule == "clean_answers":
        return clean_answers(items, alpha, delta)
    if rule == "clean_shown":
        return clean_shown(items, alpha, delta)
    return wrong_share(items, alpha, delta, per="item" if rule == "wrong_share" else "answer")


def wrong_share(
    items: AnswerItems, alpha: float, delta: float, *, per: Literal["item", "answer"], begin: float | None = None
) -> Result:
    """Share of wrong items among all that are kept, or its mean over the answers of which something is kept.

    `certified_groups` with the answers as groups, of at most ``cap`` items each ("item"), and ``begin`` as there.
    """
    names = [items.ids[i] for i in items.answer]
    most = items.cap if per == "item" else None
    found = certified_groups(items.uncertainty, items.wrong, alpha, delta, group=names, most=most, begin=begin)
    if isinstance(found, Infeasible):
        return Infeasible(items.n, found.reason)
    return _at(items, found.threshold)


def clean_shown(items: AnswerItems, alpha: float, delta: float, *, share: float = SHARE) -> Result:
    """Share of broken answers among those of which something is kept.

    `walk_of_tests` over the scores that occur: k answers are shown there and e of them broken. Given k, e is
    Binomial(k, risk), so every test is exact, for any shape of the risk. ``share`` is where the walk begins, as in
    `calibrate.rules.certified`.
    """
    k = np.searchsorted(np.sort(items.first_kept()), items.scores, side="right")
    e = np.searchsorted(np.sort(items.first_broken()), items.scores, side="right")
    reached = walk_of_tests(items.n, k, e, alpha, delta, share)
    return reached if isinstance(reached, Infeasible) else _at(items, float(items.scores[reached[0]]))


def clean_answers(items: AnswerItems, alpha: float, delta: float | None) -> Result:
    """Share of broken answers among all; one of which nothing is kept counts as clean.

    The largest score strictly below `count_threshold` of `AnswerItems.first_broken`: an answer that is broken stays
    broken at every larger threshold. On average over calibrations for delta None (conformal factuality, arXiv
    2402.10978). Never state this without the share of answers shown, and the share of those that are broken.
    """
    limit = count_threshold(items.first_broken(), alpha, delta)
    if limit is None:
        return Infeasible(items.n, "too_few_items")
    below = items.scores[items.scores < limit]
    return _at(items, float(below[-1])) if below.size else Infeasible(items.n, "risk_never_low_enough")


def _at(items: AnswerItems, threshold: float) -> Feasible:
    K, W = items.counts(threshold)
    return Feasible(threshold, items.n, int((K > 0).sum()), int((W > 0).sum()))
