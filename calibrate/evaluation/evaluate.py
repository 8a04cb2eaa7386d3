"""The evaluation protocol: many random calibration/test splits of one pool, every rule on the same splits.

The model is never called: scores and labels are fixed, only the split is random. Standard errors are Monte-Carlo errors
over splits of *this* pool; they shrink with more splits and say nothing about another pool.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError

from ..data.progress import Progress, silent
from ..fitting import Target, target_of
from ..rules import Infeasible, Rule, Unit
from ..rules.counts import Bools, Counts, Floats, Ints, counts, items
from ..rules.items import AnswerItems
from ..scoring.metrics import ranking_of
from .results import Estimate, Evaluation, EvaluationRow

THREADS_FROM = 200_000
"""Fewest items for which two splits are computed at the same time."""


def evaluate(
    uncertainty: ArrayLike,
    error: ArrayLike,
    *,
    rules: Sequence[str | Rule],
    alphas: Sequence[float],
    n_calibration: int,
    splits: int = 100,
    seed: int = 0,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    cap: int | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Run every rule at every alpha on the same random splits of one pool.

    Args:
        uncertainty: Scores of the pool, shape (n,); higher is less certain, +inf where it could not be measured.
        error: 0 or 1, shape (n,).
        rules: Names, with settings or without ("acrc:k_min=1", "certified:delta=0.05"), or rules of your own.
        alphas: Targets, each in (0, 1).
        n_calibration: Items to calibrate on; the rest is the test part.
        splits: Random splits (100 in the paper, of a pool of 4,000 with 1,000 for calibration).
        seed: Same seed, same pool: same splits for all rules.
        delta: For rules that use one and do not bring their own; their default when None.
        groups: Group of each item. Groups stay whole: random groups are taken while they fit into ``n_calibration``.
            Rules read them as `calibrate.fit` does. Rules for items need them: the answer of each item, and n and
            ``n_calibration`` count answers.
        cap: Of rules for items: most items of an answer that can be kept.
        progress: Called after each split.

    Returns:
        The evaluation.

    Raises:
        UsageError: As :func:`calibrate.fit`; or no rules, alphas or splits, or an impossible split.
    """
    pool = _Pool.of(uncertainty, error, groups, cap)
    _check_protocol(pool, rules, alphas, n_calibration, splits)
    unit: Unit = "answer" if cap is None else "item"
    tried = [target_of(unit, rule, alpha=alpha, delta=delta, cap=cap) for rule in rules for alpha in alphas]
    children = np.random.SeedSequence(seed).spawn(splits)  # the same splits, independent of rules and alphas
    done = list(_run(pool, [target for target, _ in tried], n_calibration, children, progress))
    rankings = [ranking for ranking, _ in done if ranking is not None]
    areas = [area for area, *_ in rankings if area is not None]
    auroc, aurc, excess = ranking_of(pool.counts)
    return Evaluation(
        n=pool.n,
        n_calibration=n_calibration,
        splits=splits,
        seed=seed,
        grouped=groups is not None and pool.answers is None,
        base_error=pool.counts.errors / max(1, pool.counts.measured),
        auroc=auroc,
        aurc=aurc,
        excess_aurc=excess,
        test_auroc=Estimate.mean(areas) if areas else None,
        test_aurc=Estimate.mean([area for _, area, _ in rankings]),
        test_excess_aurc=Estimate.mean([area for *_, area in rankings]),
        rows=tuple(
            row_of(target, options, [counts[index] for _, counts in done])
            for index, (target, options) in enumerate(tried)
        ),
    )


def _check_protocol(
    pool: _Pool, rules: Sequence[str | Rule], alphas: Sequence[float], n_calibration: int, splits: int
) -> None:
    if not rules or not alphas:
        raise UsageError("evaluate needs at least one rule and one alpha.")
    if isinstance(rules, str):
        raise UsageError(f"rules must be a list of rules, got {rules!r}. Write [{rules!r}].")
    if splits < 1:
        raise UsageError(f"splits must be at least 1, got {splits}. The paper uses 100.")
    if not 1 <= n_calibration < pool.n:
        raise UsageError(
            f"n_calibration must leave items to test on: between 1 and {pool.n - 1} for a pool of {pool.n}, got "
            f"{n_calibration}."
        )
    if pool.answers is None and pool.members and min(map(len, pool.members)) > n_calibration:
        raise UsageError(f"every group has more than n_calibration = {n_calibration} items. Raise n_calibration.")


def _run(
    pool: _Pool,
    targets: Sequence[Target],
    n_calibration: int,
    children: Sequence[np.random.SeedSequence],
    progress: Progress,
) -> Iterator[tuple[_Ranking | None, list[SplitCounts]]]:
    """Of each split the ranking of its test part, if something was measured, and what every rule does on it."""

    def run(child: np.random.SeedSequence) -> tuple[_Ranking | None, list[SplitCounts]]:
        inside = pool.calibration_part(n_calibration, np.random.default_rng(child))
        test = counts(pool.u[~inside], pool.wrong[~inside])
        counted = [pool.counted(target, pool.fitted(target, inside), inside, test) for target in targets]
        return ranking_of(test) if test.measured else None, counted

    # numpy works on large arrays without the interpreter's lock; small ones would only wait for each other.
    with ThreadPoolExecutor(2 if pool.u.size >= THREADS_FROM else 1) as threads:
        for number, counted in enumerate(threads.map(run, children), start=1):
            yield counted
            progress(number, len(children))


_Ranking: TypeAlias = tuple[float | None, float, float]
"""AUROC, AURC and excess AURC."""


class SplitCounts(NamedTuple):
    """Counts of a threshold on one split."""

    n: int
    """Test items."""
    right: int
    """Right ones among them."""
    accepted: int
    """Accepted test items."""
    errors: int
    """Wrong ones among them."""
    violated: bool
    """Whether the risk on the test part is above alpha."""
    above: bool
    """The same of the whole pool."""
    shown: float | None = None
    """With items: share of the test answers of which some item is kept."""
    complete: float | None = None
    """With items: share of the test answers of which every item is kept."""
    broken: float | None = None
    """With items: share of the shown test answers that keep a wrong item; None when none is shown."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """The items in the order of their scores: sorted once, both parts of every split are taken in this order.

    Attributes:
        u: Scores, increasing; shape (items,).
        wrong: Labels.
        group: Group of each item, with items of answers its answer; None without groups.
        members: The items of each group, groups in the order given; None without groups.
        counts: Of all items.
        answers: With items of answers: these answers.
        rank: Place here of each item as given, shape (items,).
    """

    u: Floats
    wrong: Ints
    group: Sequence[Hashable] | None
    members: Sequence[Ints] | None
    counts: Counts
    answers: AnswerItems | None
    rank: Ints

    @classmethod
    def of(cls, uncertainty: ArrayLike, error: ArrayLike, groups: Sequence[Hashable] | None, cap: int | None) -> _Pool:
        scores, labels = items(uncertainty, error)
        if groups is not None and len(groups) != scores.size:
            raise UsageError(
                f"groups has {len(groups)} ids and uncertainty has {scores.size} items. Pass one id an item."
            )
        order = np.argsort(scores, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        u, wrong, group, members = scores[order], labels[order], None, None
        if groups is not None:
            group = [groups[i] for i in order.tolist()]
            places: dict[Hashable, list[int]] = {}
            for name, index in zip(groups, rank.tolist(), strict=True):
                places.setdefault(name, []).append(index)
            members = [np.array(each) for each in places.values()]
        answers = None if cap is None else AnswerItems.of_rows(u, wrong, group or range(u.size), cap)
        return cls(u, wrong, group, members, counts(u, wrong), answers, rank)

    @property
    def n(self) -> int:
        """Items; with items of answers the number of answers."""
        return self.u.size if self.answers is None else self.answers.n

    def calibration_part(self, size: int, rng: np.random.Generator) -> Bools:
        """Which items to calibrate on: random items, answers with all their items, or groups while they fit."""
        inside = np.zeros(self.u.size, dtype=np.bool_)
        if self.members is None:
            inside[self.rank[rng.permutation(self.n)[:size]]] = True
            return inside
        room = size
        for group in rng.permutation(len(self.members)):
            taken = self.members[group]
            # An answer counts once, however many items it has. Groups stay whole, since items of one group on both
            # sides would make the test look too good: those that no longer fit are left out.
            counted = taken.size if self.answers is None else 1
            if counted <= room:
                inside[taken] = True
                room -= counted
        return inside

    def fitted(self, target: Target, inside: Bools) -> float | None:
        """The threshold that a rule finds on the items inside; None if it finds none."""
        places = np.flatnonzero(inside)
        groups = None if self.group is None else [self.group[i] for i in places.tolist()]
        part, _ = target.units(groups, places.size)
        group = None if groups is None else [groups[i] for i in part.tolist()]
        result = target.choose(self.u[places[part]], self.wrong[places[part]], group)
        return None if isinstance(result, Infeasible) else result.threshold

    def counted(self, target: Target, threshold: float | None, inside: Bools, test: Counts) -> SplitCounts:
        """Counts of a threshold on the items outside and on the whole pool; None accepts nothing."""
        accepted, errors = (0, 0) if threshold is None else test.accepted(threshold)
        test_part = (test.n, test.measured - test.errors, accepted, errors)
        if self.answers is None:
            of_all = (0, 0) if threshold is None else self.counts.accepted(threshold)
            risks = [e / k if k else 0.0 for k, e in ((accepted, errors), of_all)]
            return SplitCounts(*test_part, *(risk > target.alpha for risk in risks))
        K, W = self.answers.counts(threshold)  # the rule may bound a share of answers
        tested = np.bincount(self.answers.answer[inside], minlength=self.n) == 0
        risks = [target.rule.risk_of(*some) or 0.0 for some in ((K[tested], W[tested]), (K, W))]
        violated, above = (risk > target.alpha for risk in risks)
        shown = K[tested] > 0
        return SplitCounts(
            *test_part,
            violated,
            above,
            shown=float(shown.mean()),
            complete=float((self.answers.size == K)[tested].mean()),
            broken=float((W[tested][shown] > 0).mean()) if shown.any() else None,
        )


def row_of(target: Target, options: dict[str, Any], splits: Sequence[SplitCounts]) -> EvaluationRow:
    """The figures of a rule over all splits."""
    n, right, accepted, errors = (np.array(column, dtype=np.float64) for column in list(zip(*splits, strict=True))[:4])
    some, with_right = accepted > 0, right > 0
    rate = errors[some] / accepted[some]
    # A split without a right answer has no power; 0 would pull the mean down.
    power = (accepted - errors)[with_right] / right[with_right]
    of_answers = {
        name: [value for split in splits if (value := getattr(split, name)) is not None]
        for name in ("shown", "complete", "broken")
    }
    return EvaluationRow(
        rule=target.rule.name,
        options=options,
        alpha=target.alpha,
        delta=target.delta,
        splits=len(splits),
        scer=Estimate.mean(rate) if rate.size else None,
        scer_sd=float(rate.std(ddof=1)) if rate.size > 1 else None,
        pooled=Estimate.ratio(errors, accepted) if rate.size else None,
        acceptance=Estimate.mean(accepted / n),
        power=Estimate.mean(power) if power.size else None,
        violation_rate=Estimate.mean([split.violated for split in splits]),
        pool_violation_rate=Estimate.mean([split.above for split in splits]),
        infeasible_rate=Estimate.mean(~some),
        **{name: Estimate.mean(values) for name, values in of_answers.items() if values},
    )
