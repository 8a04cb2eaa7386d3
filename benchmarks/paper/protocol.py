"""The protocol of the base paper: random splits of a pool, a threshold from one part, its metrics on the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.pools import Pool
from calibrate.rules import RULES, Feasible

__all__ = ["METHODS", "VARIANTS", "Held", "Method", "Row", "auroc", "average", "held", "run"]

ALPHA = 0.15
"""Target where a table does not vary it, as in the paper."""
DELTA = 0.05
"""Failure probability of the confidence bounds, as in the paper, and of the certificate beside them."""


@dataclass(frozen=True, slots=True)
class Method:
    """A rule with its settings."""

    rule: str
    settings: Mapping[str, Any] = field(default_factory=dict)


METHODS = {
    "Fixed-50": Method("fixed_quantile"),
    "Empirical": Method("empirical"),
    "UCB-HFD": Method("hoeffding"),
    "UCB-CLP": Method("clopper_pearson"),
    "LEC-Direct": Method("lec"),
    "A-CRC-QA": Method("acrc"),
    "certified": Method("certified"),
}
"""The paper's methods by their printed names, A-CRC in its repaired form, and the certificate."""
VARIANTS = {
    "Without monotonization": Method("acrc", {"monotone": False}),
    "Without correction": Method("acrc", {"correction": False}),
    "Instance-wise envelope": Method("acrc", {"envelope": True}),
    "As printed (k_min = 1)": Method("acrc", {"k_min": 1}),
    "Full A-CRC-QA": Method("acrc"),
}
"""The paper's ablations by their printed names, and the rule as printed."""


@dataclass(frozen=True, slots=True)
class Row:
    """Means over the splits of a pool, or over pools; all are shares in [0, 1]."""

    dataset: str
    model: str | None
    """None for the mean over a data set's models."""
    label: str
    alpha: float
    n: int
    """Calibration items."""
    accuracy: float
    auroc: float
    accepting: float
    """Share of splits that accept any test item."""
    scer: float | None
    """Error rate among accepted test items, over these splits; None if there is none."""
    scer_sd: float | None
    acceptance: float
    """AR: accepted share of all test items."""
    acceptance_sd: float
    power: float
    """Accepted share of the right test items."""
    violations: float
    """VR: share of splits whose test error rate is above alpha."""
    infeasible: float
    """IF: share of splits without a threshold."""


def run(
    pool: Pool,
    methods: Mapping[str, Method],
    alphas: Sequence[float] = (ALPHA,),
    *,
    score: str | None = None,
    n: int | None = None,
    splits: int = 100,
    seed: int = 0,
) -> list[Row]:
    """Rows of one pool, methods outermost; every call with one seed and n has the same splits."""
    u = pool.uncertainty[score or next(iter(pool.uncertainty))]
    order = np.argsort(u, kind="stable")
    u, wrong = u[order], pool.error[order]
    n = pool.n_calibration if n is None else n
    figures = {case: np.zeros((splits, 4)) for case in product(methods, alphas)}
    rng = np.random.default_rng(seed)
    for split in range(splits):
        drawn = np.zeros(u.size, dtype=np.bool_)
        drawn[rng.permutation(u.size)[:n]] = True
        part = drawn[order]
        calibration, labels, test = u[part], wrong[part], u[~part]
        errors = np.append(0, np.cumsum(wrong[~part]))
        right = test.size - errors[-1]
        for (label, alpha), found in figures.items():
            method = methods[label]
            outcome = RULES[method.rule].choose(calibration, labels, alpha, DELTA, **method.settings)
            k = int(np.searchsorted(test, outcome.threshold, side="right")) if isinstance(outcome, Feasible) else 0
            rate = errors[k] / k if k else math.nan
            found[split] = rate, k / test.size, (k - errors[k]) / right, isinstance(outcome, Feasible)
    area, accuracy = auroc(u, wrong), 1 - float(wrong.mean())
    return [
        Row(pool.dataset, pool.model, label, alpha, n, accuracy, area, **_summary(found, alpha))
        for (label, alpha), found in figures.items()
    ]


def _summary(found: NDArray[np.float64], alpha: float) -> dict[str, Any]:
    rate, acceptance, power, feasible = found.T
    some = rate[~np.isnan(rate)]
    return {
        "accepting": some.size / rate.size,
        "scer": float(some.mean()) if some.size else None,
        "scer_sd": float(some.std(ddof=1)) if some.size > 1 else None,
        "acceptance": float(acceptance.mean()),
        "acceptance_sd": float(acceptance.std(ddof=1)) if acceptance.size > 1 else 0.0,
        "power": float(power.mean()),
        "violations": float(np.mean(np.nan_to_num(rate) > alpha)),
        "infeasible": 1 - float(feasible.mean()),
    }


def auroc(u: NDArray[np.float64], wrong: NDArray[np.int64]) -> float:
    """P(a wrong answer is less certain than a right one), ties counting half."""
    _, block, size = np.unique(u, return_inverse=True, return_counts=True)
    rank = (np.cumsum(size) - (size - 1) / 2)[block]
    n_wrong = int(wrong.sum())
    return float((rank[wrong == 1].sum() - n_wrong * (n_wrong + 1) / 2) / (n_wrong * (wrong.size - n_wrong)))


def average(rows: Sequence[Row], key: Callable[[Row], tuple[Any, ...]]) -> list[Row]:
    """Means of the rows with an equal key, in the order in which the keys first appear.

    SCER and its standard deviation are weighted by the splits that accept anything: otherwise one lucky split of a
    hopeless model would count as much as a hundred of another.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [_mean(group) for group in groups.values()]


def _mean(group: Sequence[Row]) -> Row:
    def mean(name: str) -> float | None:
        some = [row for row in group if getattr(row, name) is not None]
        weights = [row.accepting if name.startswith("scer") else 1.0 for row in some]
        total = math.fsum(weights)
        return (
            math.fsum(w * getattr(row, name) for w, row in zip(weights, some, strict=True)) / total if total else None
        )

    models = {row.model for row in group}
    means: dict[str, Any] = {each.name: mean(each.name) for each in fields(Row)[5:]}
    return replace(group[0], model=group[0].model if len(models) == 1 else None, **means)


@dataclass(frozen=True, slots=True)
class Held:
    """What `certified` did on one pool at one n and alpha."""

    pool: Pool
    n: int
    alpha: float
    acceptance: float
    """Mean accepted share of the pool, 0 where there is no threshold."""
    false: float
    """Share of calibrations whose threshold has an error rate above alpha in the pool."""


def held(pool: Pool, n: int, alpha: float, delta: float, runs: int, seed: int = 0) -> Held:
    """Draw calibrations from a pool with replacement: they are independent, and the pool's error rate is the truth."""
    u = next(iter(pool.uncertainty.values()))
    order = np.argsort(u, kind="stable")
    u, wrong = u[order], pool.error[order]
    errors = np.append(0, np.cumsum(wrong))
    rng, accepted, false = np.random.default_rng([seed, n]), 0.0, 0
    for _ in range(runs):
        drawn = np.sort(rng.integers(0, u.size, n))
        outcome = RULES["certified"].choose(u[drawn], wrong[drawn], alpha, delta)
        if isinstance(outcome, Feasible):
            k = int(np.searchsorted(u, outcome.threshold, side="right"))
            accepted += k / u.size
            false += errors[k] > alpha * k
    return Held(pool, n, alpha, accepted / runs, false / runs)
