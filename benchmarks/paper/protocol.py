"""The paper's experiments on pools of recorded or simulated outputs, and their means over pools and models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.paper.pools import Pool
from calibrate.evaluation.evaluate import evaluate
from calibrate.evaluation.paper import DELTA, NAMES, experiment
from calibrate.evaluation.results import Estimate, EvaluationRow
from calibrate.rules import Feasible, certified

__all__ = ["Held", "Row", "average", "held", "run"]

RATES = ("scer", "acceptance", "power", "violation_rate", "infeasible_rate")


@dataclass(frozen=True, slots=True)
class Row:
    """One rule at one alpha on one pool, or the mean over several."""

    dataset: str
    model: str | None
    """None for the mean over a data set's models."""
    label: str
    """Method of the paper, score, or calibration size."""
    n: int
    """Calibration items."""
    accuracy: float
    """Share of right answers in the pool."""
    auroc: float
    """Of the measured answers."""
    figures: EvaluationRow
    """Means over the splits."""


def run(pool: Pool, name: str, *, splits: int, seed: int) -> Iterator[Row]:
    """The rows of one of the paper's tables on one pool; every rule and score has the same splits."""
    settings = experiment(name, pool.error.size)
    for score, u in list(pool.uncertainty.items())[: None if settings.every_score else 1]:
        for n in settings.sizes:
            found = evaluate(
                u,
                pool.error,
                rules=settings.rules,
                alphas=settings.alphas,
                n_calibration=n,
                splits=splits,
                seed=seed,
                delta=DELTA,
            )
            for row in found.rows:
                method = NAMES.get(row.name, row.name)
                full = f"Full {method}" if row.name == "acrc" else method
                label = {"scores": score, "sizes": f"{n:,}", "ablation": full}.get(name, method)
                accuracy = 1 - float(pool.error.mean())
                yield Row(pool.dataset, pool.model, label, n, accuracy, found.auroc or math.nan, row)


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
    figures = [row.figures for row in group]
    updates: dict[str, Any] = {"splits": sum(row.splits for row in figures)}
    for name in (*RATES, "scer_sd"):
        some = [row for row in figures if getattr(row, name) is not None]
        weights = [row.n_feasible if name.startswith("scer") else 1 for row in some]
        values = [getattr(row, name) for row in some]
        if not some:
            updates[name] = None
        elif name in RATES:
            updates[name] = Estimate(value=float(np.average([each.value for each in values], weights=weights)), se=None)
        else:
            updates[name] = float(np.average(values, weights=weights))
    return replace(
        group[0],
        model=group[0].model if len({row.model for row in group}) == 1 else None,
        accuracy=float(np.mean([row.accuracy for row in group])),
        auroc=float(np.mean([row.auroc for row in group])),
        figures=figures[0].model_copy(update=updates),
    )


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
        outcome = certified(u[drawn], wrong[drawn], alpha, delta)
        if isinstance(outcome, Feasible):
            k = int(np.searchsorted(u, outcome.threshold, side="right"))
            accepted += k / u.size
            false += errors[k] > alpha * k
    return Held(pool, n, alpha, accepted / runs, false / runs)
