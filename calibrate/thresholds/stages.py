"""Thresholds of several models, chosen together: the rules of a cascade, pure.

Stage 1 answers iff its uncertainty is at most its threshold; else stage 2, and so on; else a person.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.cascade_artifact import CascadeOutcome, StageShare
from guardrail.errors import UsageError
from guardrail.gate import accepts
from guardrail.outcome import InfeasibleReason

from ..bounds import binomial_tail, clopper_pearson_interval, zero_error_floor
from .fit import DEFAULT_DELTA, check_open_unit
from .pairs import best_pair
from .rule import default_min_accept

__all__ = ["RULES", "Thresholds", "fit_stages", "outcome_at", "paths"]

Scores = NDArray[np.float64]
Errors = NDArray[np.int64]
Thresholds = tuple[float, ...]
"""One a stage; -inf where a stage never answers."""

RULES = ("certified", "lec_joint")
DESIGN_SHARE = 0.1
"""Share of the questions whose scores set the path of the certified rule; their labels are not used."""
DESIGN_LEAST = 50
"""Fewest of them."""
RATIOS = (0.0, 0.5, 1.0)
"""How far an earlier stage goes on each path, as a multiple of the share that the last stage accepts; 0: only the
last stage answers."""
PRICE = {"certified": 0.1, "lec_joint": 0.0}
"""Answers given up for each call of a later stage that is saved, by rule."""
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
    price = PRICE[rule] if price is None else price
    if not 0 <= price < math.inf:
        raise UsageError(f"price must be a number of answers, at least 0, got {price}. Use 0 for most answers.")
    if rule == "lec_joint":
        if delta is not None:
            raise UsageError("rule 'lec_joint' makes no statement with a delta. Leave delta out, or use 'certified'.")
        return _lec_joint(u, labels, alpha, price)
    delta = DEFAULT_DELTA if delta is None else delta
    check_open_unit("delta", delta)
    return _certified(u, labels, alpha, delta, seed, price)


def _lec_joint(u: Scores, error: Errors, alpha: float, price: float) -> CascadeOutcome:
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
    quantile of its own. Thresholds grow along a path, so the questions accepted do too.

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
