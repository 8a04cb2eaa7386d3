"""Thresholds of several models, chosen together: the rules of a cascade, pure.

Stage 1 answers iff its uncertainty is at most its threshold; else stage 2, and so on; else a person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CascadeOutcome, StageShare
from guardrail.errors import UsageError
from guardrail.gate import accepts
from guardrail.outcome import InfeasibleReason

from .bounds import binomial_tail, clopper_pearson_interval, zero_error_floor
from .fit import DEFAULT_DELTA, check_open_unit
from .rule import TOLERANCE, default_min_accept

__all__ = ["RULES", "Pair", "StageRule", "Thresholds", "best_pair", "fit_stages", "outcome_at", "paths"]

Scores = NDArray[np.float64]
Errors = NDArray[np.int64]
Thresholds = tuple[float, ...]
"""One a stage; -inf where a stage never answers."""

DESIGN_SHARE = 0.1
"""Share of the questions whose scores set the path of the certified rule; their labels are not used."""
DESIGN_LEAST = 50
"""Fewest of them."""
RATIOS = (0.0, 0.5, 1.0)
"""How far an earlier stage goes on each path, as a multiple of the share that the last stage accepts; 0: only the
last stage answers."""
START = 0.1
"""Share of questions at which paths begin."""


def fit_stages(
    uncertainty: Scores,
    error: Errors,
    *,
    alpha: float,
    rule: str = "lec_joint",
    delta: float | None = None,
    seed: int = 0,
    price: float | None = None,
) -> CascadeOutcome:
    """Choose the thresholds of all stages together.

    * ``lec_joint`` (two stages): the pair that accepts most under ``sum S_i (E_i - alpha) <= -1``. It steers the mean
      error to alpha and certifies nothing.
    * ``certified``: paths of thresholds that were fixed without looking at labels, each walked outward by exact
      binomial tests until the first failure (`paths`). P(error rate among answers > alpha) <= delta, any risk curve.

    Args:
        uncertainty: Shape (n, stages); higher is less certain, +inf where it was not measured.
        error: 1 where that stage's answer is wrong, shape (n, stages).
        alpha: Target error rate among the system's answers, in (0, 1).
        rule: One of `RULES`.
        delta: Failure probability, for ``certified``; default 0.1.
        seed: Of the random part that sets the paths. Fix it before looking.
        price: Answers you would give up for each call of a later stage that is saved, at least 0. Among admissible
            thresholds those are taken that give most answers, plus this times the answers of the first stage. Default:
            0 for ``lec_joint`` (most answers), 0.1 for ``certified``.

    Raises:
        UsageError: Arrays that do not fit together, an unknown rule, or more than two stages with ``lec_joint``.
    """
    check_open_unit("alpha", alpha)
    u, labels = _checked(uncertainty, error)
    if rule not in RULES:
        raise UsageError(f"unknown rule {rule!r} for a cascade; choose one of {', '.join(RULES)}")
    chosen = RULES[rule]
    price = chosen.price if price is None else price
    if not 0 <= price < math.inf:
        raise UsageError(f"price must be a number of answers, at least 0, got {price}. Use 0 for most answers.")
    if delta is not None and not chosen.certifies:
        raise UsageError(f"rule {rule!r} makes no statement with a delta. Leave delta out, or use 'certified'.")
    delta = DEFAULT_DELTA if delta is None else delta
    check_open_unit("delta", delta)
    return chosen.fit(u, labels, alpha, delta, seed, price)


def _lec_joint(u: Scores, error: Errors, alpha: float, delta: float, seed: int, price: float) -> CascadeOutcome:
    """Neither delta nor the seed plays a part."""
    if u.shape[1] != 2:
        raise UsageError(f"rule 'lec_joint' takes two stages, got {u.shape[1]}. Use rule 'certified'.")
    guarantee = (
        f"The thresholds keep the error rate of the system's answers near {alpha:g} on average over calibrations. They "
        "certify nothing: a single calibration exceeds the target about as often as not."
    )
    pair = best_pair(u, error, alpha, price=price)
    options = {"price": price}
    if pair is None:
        return _infeasible(u, error, alpha, None, "lec_joint", options, guarantee, alpha)
    chosen = tuple(-math.inf if value is None else value for value in (pair.first, pair.second))
    return outcome_at(u, error, chosen, alpha=alpha, delta=None, rule="lec_joint", options=options, guarantee=guarantee)


def paths(design: Scores, start: float, ratios: Sequence[float] = RATIOS) -> list[list[Thresholds]]:
    """Paths of thresholds from scores alone: quantile-matched, one for each ratio.

    At share q the last stage's threshold is the q-quantile of its scores, every earlier stage's the (ratio * q)-
    quantile of that stage's. Thresholds grow along a path, so the questions accepted do too.

    Args:
        design: Scores that are used for nothing else, shape (m, stages).
        start: Share at which the paths begin, in (0, 1).
        ratios: One path each.
    """
    ranked = [np.sort(column[np.isfinite(column)]) for column in design.T]
    found = []
    for ratio in ratios:
        path: list[Thresholds] = []
        for share in np.linspace(start, 1.0, len(design) + 1):
            shares = [ratio * share] * (len(ranked) - 1) + [share]
            point = tuple(_quantile(column, own, len(design)) for column, own in zip(ranked, shares, strict=True))
            if not path or point != path[-1]:
                path.append(point)
        found.append(path)
    return found


def _quantile(ranked: NDArray[np.float64], share: float, m: int) -> float:
    """The score that this share of m questions is at or below; -inf for less than one of them."""
    count = min(math.floor(share * m + 1e-9), len(ranked))
    return float(ranked[count - 1]) if count else -math.inf


def _certified(u: Scores, error: Errors, alpha: float, delta: float, seed: int, price: float) -> CascadeOutcome:
    n = len(u)
    m = min(max(DESIGN_LEAST, math.ceil(DESIGN_SHARE * n)), n // 2)
    order = np.random.default_rng(seed).permutation(n)
    design, rest = u[order[:m]], order[m:]
    # A little beyond what the first test needs, so that it can pass; by counts of questions only.
    start = min(0.9, max(START, 1.25 * default_min_accept(len(rest), alpha) / max(1, len(rest))))
    walks = paths(design, start) if m else []
    level = delta / max(1, len(walks))
    best: tuple[float, int, Thresholds] | None = None
    for walk in walks:
        for point in walk:
            answering = _answering(u[rest], point)
            k = int((answering >= 0).sum())
            e = int(error[rest][np.arange(len(rest)), answering][answering >= 0].sum())
            if not k or float(binomial_tail(e, k, alpha)) > level:
                break
            first = int((answering == 0).sum())
            candidate = (k + price * first, first, point)
            best = candidate if best is None else max(best, candidate)
    options: dict[str, Any] = {"design": m, "seed": seed, "ratios": list(RATIOS), "start": start, "price": price}
    guarantee = (
        f"With probability at least {1 - delta:g} over calibrations the error rate among the system's answers is at "
        f"most {alpha:g}, in finite samples and whatever the shape of the risk curve, if questions are independent "
        f"draws from the same source. The paths of thresholds were set by the scores of {m} questions, not tested."
    )
    if best is None:
        return _infeasible(u[rest], error[rest], alpha, delta, "certified", options, guarantee, level)
    return outcome_at(
        u[rest], error[rest], best[2], alpha=alpha, delta=delta, rule="certified", options=options, guarantee=guarantee
    )


@dataclass(frozen=True, slots=True)
class StageRule:
    """A rule of a cascade, and what it states about itself."""

    fit: Callable[[Scores, Errors, float, float, int, float], CascadeOutcome]
    """From scores, errors, alpha, delta, seed and price to the thresholds of all stages."""
    price: float
    """Answers given up by default for each call of a later stage that is saved."""
    certifies: bool
    """Whether it keeps the system's error rate at alpha with probability 1 - delta, at finite n."""


RULES: Final[dict[str, StageRule]] = {
    "certified": StageRule(_certified, price=0.1, certifies=True),
    "lec_joint": StageRule(_lec_joint, price=0.0, certifies=False),
}
"""The rules of a cascade by name. A new one is its function and one line here."""


def _answering(u: Scores, thresholds: Thresholds) -> NDArray[np.int64]:
    """Index of the stage that answers each question, -1 for a person; by the gate's own comparison."""
    inside = np.column_stack([accepts(column, threshold) for column, threshold in zip(u.T, thresholds, strict=True)])
    return np.where(inside.any(axis=1), inside.argmax(axis=1), -1)


def outcome_at(
    u: Scores,
    error: Errors,
    thresholds: Thresholds,
    *,
    alpha: float,
    delta: float | None,
    rule: str,
    options: dict[str, Any],
    guarantee: str,
) -> CascadeOutcome:
    """What given thresholds (-inf for none) do on these questions."""
    answering = _answering(u, thresholds)
    stages = tuple(
        StageShare(
            threshold=None if threshold == -math.inf else threshold,
            n_accepted=int((answering == stage).sum()),
            n_errors=int(error[answering == stage, stage].sum()),
        )
        for stage, threshold in enumerate(thresholds)
    )
    k, e = sum(stage.n_accepted for stage in stages), sum(stage.n_errors for stage in stages)
    return CascadeOutcome(
        rule=rule,
        alpha=alpha,
        delta=delta,
        options=options,
        n=len(u),
        guarantee=guarantee,
        stages=stages,
        interval=clopper_pearson_interval(e, k) if k else None,
    )


def _infeasible(
    u: Scores,
    error: Errors,
    alpha: float,
    delta: float | None,
    rule: str,
    options: dict[str, Any],
    guarantee: str,
    level: float,
) -> CascadeOutcome:
    needed = math.ceil(1 / alpha) if delta is None else zero_error_floor(alpha, level)
    if len(u) < needed:
        reason = InfeasibleReason.TOO_FEW_ITEMS
        detail = f"It takes {needed} questions without a single error at alpha = {alpha:g}; there are {len(u)}."
    else:
        reason = InfeasibleReason.RISK_NEVER_LOW_ENOUGH
        shares = ", ".join(f"{share:.3g}" for share in error.mean(axis=0))
        detail = f"No admissible thresholds keep the error rate at {alpha:g}; the stages by themselves err on {shares}."
    return CascadeOutcome(
        rule=rule,
        alpha=alpha,
        delta=delta,
        options=options,
        n=len(u),
        guarantee=guarantee,
        stages=tuple(StageShare(threshold=None, n_accepted=0, n_errors=0) for _ in range(u.shape[1])),
        interval=None,
        reason=reason,
        detail=detail,
    )


def _checked(uncertainty: Scores, error: Errors) -> tuple[Scores, Errors]:
    u, labels = np.asarray(uncertainty, dtype=np.float64), np.asarray(error)
    if u.ndim != 2 or u.shape[1] < 2 or labels.shape != u.shape or not len(u):
        raise UsageError(
            "uncertainty and error must both have shape (questions, stages), with at least one question and two "
            f"stages, got {u.shape} and {labels.shape}."
        )
    bad = np.isnan(u) | (u == -np.inf)
    if bad.any():
        row, stage = np.argwhere(bad)[0]
        raise UsageError(f"uncertainty[{row}, {stage}] is {u[row, stage]}; write inf where a stage was not measured.")
    if not np.isin(labels, (0, 1)).all():
        row, stage = np.argwhere(~np.isin(labels, (0, 1)))[0]
        raise UsageError(f"error[{row}, {stage}] must be 0 (correct) or 1 (wrong), got {labels[row, stage]}.")
    return u, labels.astype(np.int64)


# -- The best pair of thresholds for two stages: ``lec_joint`` in O(n log n) -------------------------------------------


@dataclass(frozen=True, slots=True)
class Pair:
    """Thresholds of two stages and what they accept; a threshold of None accepts nothing."""

    first: float | None
    second: float | None
    n_accepted: int
    n_first: int


def best_pair(
    u: NDArray[np.float64], error: NDArray[np.int64], alpha: float, *, margin: float = 1.0, price: float = 0.0
) -> Pair | None:
    """The pair of thresholds that accepts most under ``sum_i S_i (E_i - alpha) <= -margin``.

    S = S_a + (1 - S_a) S_b with S_a = 1[u_a <= tau_a], S_b = 1[u_b <= tau_b]; E is the error of the stage that answers.
    Among pairs that accept equally many, the one whose first stage answers more (it saves calls), then the one with the
    smaller second threshold.

    The first threshold moves outward once over the sorted scores of stage a. A question that stage a takes over leaves
    the pool of stage b, which is kept as a segment tree over the sorted scores of stage b: sums of E - alpha, counts,
    and the smallest prefix sum below each node, so that the last admissible threshold is found by one descent.
    Ties are accepted or rejected together in both stages.

    Args:
        u: Scores, shape (n, 2); +inf where a stage has none, and then it never answers.
        error: 0 or 1, shape (n, 2); read only where the score is finite.
        alpha: Target, in (0, 1).
        margin: Slack in errors; 1 is LEC's.
        price: Answers given up for a call of stage b that is saved: what is made largest is the number of answers plus
            this times the number that stage a gives.

    Returns:
        The pair, or None when no pair satisfies the rule.
    """
    n = len(u)
    block_of, pool = _pool(u[:, 1], error[:, 1], alpha)
    order = np.argsort(u[:, 0], kind="stable")
    best: Pair | None = None
    most = (-1.0, -1)
    taken, excess, i = 0, 0.0, 0
    first: float | None = None
    while True:
        found = pool.last_at_most(-margin - excess + TOLERANCE)
        if found is not None:
            count = taken + found.count
            value = (count + price * taken, taken)
            if count and value > most:
                best, most = Pair(first, found.score, count, taken), value
        if i == n or not np.isfinite(u[order[i], 0]):
            return best
        first = float(u[order[i], 0])
        while i < n and u[order[i], 0] == first:
            item = int(order[i])
            excess += float(error[item, 0]) - alpha
            taken += 1
            if block_of[item] >= 0:
                pool.remove(int(block_of[item]), float(error[item, 1]) - alpha)
            i += 1


def _pool(u: NDArray[np.float64], error: NDArray[np.int64], alpha: float) -> tuple[NDArray[np.int64], _Pool]:
    finite = np.isfinite(u)
    scores, block = np.unique(u[finite], return_inverse=True)
    block_of = np.full(len(u), -1, dtype=np.int64)
    block_of[finite] = block
    weight = np.bincount(block, weights=error[finite] - alpha, minlength=len(scores))
    count: NDArray[np.int64] = np.bincount(block, minlength=len(scores)).astype(np.int64)
    return block_of, _Pool(scores, weight.astype(np.float64), count)


@dataclass(frozen=True, slots=True)
class _Found:
    score: float | None
    count: int


class _Pool:
    """Blocks of equal scores in increasing order, with sums, counts and smallest prefix sums in a binary tree."""

    def __init__(self, scores: NDArray[np.float64], weight: NDArray[np.float64], count: NDArray[np.int64]) -> None:
        self._scores = scores
        self._size = size = 1 << max(0, int(len(scores) - 1).bit_length())
        self._sum = [0.0] * (2 * size)
        self._count = [0] * (2 * size)
        self._low = [0.0] * (2 * size)
        for i in range(len(scores)):
            self._sum[size + i] = self._low[size + i] = float(weight[i])
            self._count[size + i] = int(count[i])
        for node in range(size - 1, 0, -1):
            self._update(node)

    def _update(self, node: int) -> None:
        left, right = 2 * node, 2 * node + 1
        self._sum[node] = self._sum[left] + self._sum[right]
        self._count[node] = self._count[left] + self._count[right]
        self._low[node] = min(self._low[left], self._sum[left] + self._low[right])

    def remove(self, block: int, weight: float) -> None:
        """Take one question out of a block."""
        node = self._size + block
        self._count[node] -= 1
        # A block that is empty weighs exactly nothing: no rounding may be left.
        self._sum[node] = self._sum[node] - weight if self._count[node] else 0.0
        self._low[node] = self._sum[node]
        while node > 1:
            node //= 2
            self._update(node)

    def last_at_most(self, limit: float) -> _Found | None:
        """The longest prefix of blocks (or none of them) whose sum is at most ``limit``."""
        if self._low[1] > limit:
            return _Found(None, 0) if limit >= 0 else None
        node, before, count = 1, 0.0, 0
        while node < self._size:
            left, right = 2 * node, 2 * node + 1
            if before + self._sum[left] + self._low[right] <= limit:
                before, count, node = before + self._sum[left], count + self._count[left], right
            else:
                node = left
        count += self._count[node]
        return _Found(self._filled(node - self._size), count)

    def _filled(self, block: int) -> float | None:
        """Score of the last block up to this one that is not empty: a threshold among empty ones accepts no more."""
        while block >= 0 and not self._count[self._size + block]:
            block -= 1
        return float(self._scores[block]) if block >= 0 else None
