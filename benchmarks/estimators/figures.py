"""AUROC, AURC and acceptance of one score, each with a bootstrap interval; all resamples at once.

Items are sorted once. A resample is a vector of how often each unit was drawn, so that every figure is a cumulative sum
over blocks of equal scores, and the same resamples serve every estimator of a file: differences are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.rules.counts import TOLERANCE
from calibrate.rules.plug_in import default_k_min
from guardrail.types import Frozen

__all__ = ["ALPHAS", "Draws", "Figures", "Interval", "acceptance_after_acrc", "draw", "measure_figures", "paired"]

ALPHAS = (0.1, 0.15, 0.2)
HALVES = 400
"""Random halves behind a point estimate of acceptance."""
HALVES_EACH = (3, 10)
"""Random halves of each resample: at least and at most, as many as `_WORK` cells allow."""
_WORK = 30_000_000
_CHUNK = 2_000_000
"""Cells of a working matrix: bounds memory, not results."""

Array = NDArray[np.float64]


class Interval(Frozen):
    """A figure with its 95 % percentile bootstrap interval."""

    value: float
    """The figure on the items, without resampling."""
    low: float
    """Lower end: 2.5 % of the resamples are below."""
    high: float
    """Upper end: 2.5 % of the resamples are above."""


class Figures(Frozen):
    """Quality of one score on one file."""

    n: int
    """Items with a label and a measured score."""
    n_unmeasured: int
    """Labelled items whose score could not be measured; left out."""
    error_rate: float
    """Share of wrong answers among the n."""
    auroc: Interval
    """P(a wrong answer scores above a right one), ties counting half."""
    aurc: Interval
    """Area under the risk-coverage curve; lower is better."""
    acceptance: dict[str, Interval]
    """By alpha: share of the other half that is accepted after rule `acrc` on one half, mean over random halves."""
    test_error: dict[str, float | None]
    """By alpha: errors among accepted test answers over all random halves; None where nothing was accepted."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers shared by all scores of a file.

    Attributes:
        unit: Unit of each item, shape (n,): the item itself, or its cluster.
        times: How often each unit is drawn, shape (resamples, units).
        halves: Calibration halves of the units for point estimates, shape (HALVES, units).
        resampled_halves: Calibration halves for each resample, shape (halves, resamples, units).
    """

    unit: NDArray[np.int64]
    times: NDArray[np.int16]
    halves: NDArray[np.bool_]
    resampled_halves: NDArray[np.bool_]


def draw(n: int, groups: Sequence[str] | None, *, resamples: int, seed: int) -> Draws:
    """Draw resamples and halves of units: items, or whole clusters."""
    unit = np.arange(n) if groups is None else np.unique(np.array(groups), return_inverse=True)[1].astype(np.int64)
    units = int(unit.max()) + 1
    generator, splitter = (np.random.default_rng([seed, part]) for part in (0, 1))
    times = np.stack([np.bincount(generator.integers(0, units, units), minlength=units) for _ in range(resamples)])
    halves = _halves(splitter, HALVES, units)
    few, many = HALVES_EACH
    layers = max(few, min(many, _WORK // (resamples * n)))
    each = np.stack([_halves(splitter, resamples, units) for _ in range(layers)])
    return Draws(unit, times.astype(np.int16), halves, each)


def measure_figures(
    uncertainty: Array,
    error: NDArray[np.int64],
    draws: Draws,
    *,
    n_unmeasured: int = 0,
    alphas: Sequence[float] = ALPHAS,
) -> Figures:
    """Return all figures of one score.

    Args:
        uncertainty: Scores, shape (n,), finite.
        error: 1 for wrong, shape (n,); both classes must occur.
        draws: Draws of the same n items.
        n_unmeasured: Items left out before.
        alphas: Targets.
    """
    unweighted = np.ones((1, uncertainty.size))
    area, risk = _ranking(uncertainty, error, unweighted)
    areas, risks = ranking_resampled(uncertainty, error, draws)
    point, pooled = _acceptance(uncertainty, error, draws, alphas, None)
    spread, _ = _acceptance(uncertainty, error, draws, alphas, draws.times)
    names = [f"{alpha:g}" for alpha in alphas]
    return Figures(
        n=uncertainty.size,
        n_unmeasured=n_unmeasured,
        error_rate=float(error.mean()),
        auroc=_interval(float(area[0]), areas),
        aurc=_interval(float(risk[0]), risks),
        acceptance={name: _interval(float(point[i].mean()), spread[i]) for i, name in enumerate(names)},
        test_error=dict(zip(names, pooled, strict=True)),
    )


def paired(
    ours: Array, theirs: Array, error: NDArray[np.int64], draws: Draws, alphas: Sequence[float] = ALPHAS
) -> dict[str, Interval]:
    """Differences, ours minus theirs, on the same resamples: "auroc", and acceptance by alpha."""
    unweighted = np.ones((1, ours.size))
    point = float(_ranking(ours, error, unweighted)[0][0] - _ranking(theirs, error, unweighted)[0][0])
    spread = ranking_resampled(ours, error, draws)[0] - ranking_resampled(theirs, error, draws)[0]
    differences = {"auroc": _interval(point, spread)}
    if alphas:
        both = [_acceptance(score, error, draws, alphas, None)[0].mean(axis=1) for score in (ours, theirs)]
        resampled = [_acceptance(score, error, draws, alphas, draws.times)[0] for score in (ours, theirs)]
        for i, alpha in enumerate(alphas):
            differences[f"{alpha:g}"] = _interval(float(both[0][i] - both[1][i]), resampled[0][i] - resampled[1][i])
    return differences


def ranking_resampled(uncertainty: Array, error: NDArray[np.int64], draws: Draws) -> tuple[Array, Array]:
    """AUROC and AURC of every resample, NaN where a resample has one class only."""
    parts = []
    step = max(1, _CHUNK // uncertainty.size)
    for start in range(0, draws.times.shape[0], step):
        weights = draws.times[start : start + step][:, draws.unit].astype(np.float64)
        parts.append(_ranking(uncertainty, error, weights))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def acceptance_after_acrc(
    uncertainty: Array, error: NDArray[np.int64], calibration: Array, test: Array, alphas: Sequence[float]
) -> tuple[Array, Array, Array]:
    """Count accepted test items, errors among them (shape (alphas, rows)), and test items, for each row of weights.

    Rule `acrc` chooses the threshold on the calibration weights: the last block end with at least k_min items before
    the first block end with ``e - alpha k + (1 - alpha) n/(n+1) > 0``. A test item is accepted iff its score is at most
    the threshold.

    Args:
        uncertainty: Shape (n,).
        error: Shape (n,).
        calibration: How often each item is in the calibration part, shape (rows, n).
        test: The same for the test part.
        alphas: Targets.
    """
    order, starts = _blocks(uncertainty)
    wrong = error[order].astype(np.float64)
    calibration, test = calibration[:, order], test[:, order]
    k, e = _cumulated(calibration, starts), _cumulated(calibration * wrong, starts)
    tested, test_wrong = _cumulated(test, starts), _cumulated(test * wrong, starts)
    present = np.diff(k, axis=1, prepend=0) > 0  # a block without a calibration item offers no threshold
    rows = np.arange(k.shape[0])
    accepted, errors = np.zeros((len(alphas), rows.size)), np.zeros((len(alphas), rows.size))
    for i, alpha in enumerate(alphas):
        last = _last_fine(k, e, present, alpha)
        some = last >= 0
        accepted[i] = np.where(some, tested[rows, last], 0.0)
        errors[i] = np.where(some, test_wrong[rows, last], 0.0)
    return accepted, errors, tested[:, -1]


def _last_fine(k: Array, e: Array, present: NDArray[np.bool_], alpha: float) -> NDArray[np.int64]:
    """Return the block that rule `acrc` chooses in each row; -1 if the rule is infeasible."""
    size = k[:, -1:]
    fewest = np.array([default_k_min(int(n), alpha) for n in size[:, 0]])[:, None]
    candidate = present & (k >= fewest)
    violated = candidate & (e - alpha * k > TOLERANCE - (1 - alpha) * size / (size + 1))
    first = np.where(violated.any(axis=1), np.argmax(violated, axis=1), k.shape[1])
    fine = candidate & (np.arange(k.shape[1]) < first[:, None])
    return np.where(fine.any(axis=1), k.shape[1] - 1 - np.argmax(fine[:, ::-1], axis=1), -1)


def _acceptance(
    uncertainty: Array,
    error: NDArray[np.int64],
    draws: Draws,
    alphas: Sequence[float],
    times: NDArray[np.int16] | None,
) -> tuple[Array, list[float | None]]:
    """Return the accepted share and the pooled test errors.

    The share has the shape (alphas, halves), or (alphas, resamples) as the mean over the halves of each resample.
    """
    layers = draws.halves[None] if times is None else draws.resampled_halves
    shares, n_accepted, wrong = [], np.zeros(len(alphas)), np.zeros(len(alphas))
    step = max(1, _CHUNK // uncertainty.size)
    for layer in layers:
        parts = []
        for start in range(0, layer.shape[0], step):
            half = layer[start : start + step]
            weights = np.ones(half.shape) if times is None else times[start : start + step].astype(np.float64)
            calibration, test = (weights * half)[:, draws.unit], (weights * ~half)[:, draws.unit]
            accepted, errors, tested = acceptance_after_acrc(uncertainty, error, calibration, test, alphas)
            parts.append(accepted / np.maximum(tested, 1.0))
            n_accepted += accepted.sum(axis=1)
            wrong += errors.sum(axis=1)
        shares.append(np.concatenate(parts, axis=1))
    pooled = [float(w / t) if t else None for w, t in zip(wrong, n_accepted, strict=True)]
    return np.mean(shares, axis=0), pooled


def _ranking(uncertainty: Array, error: NDArray[np.int64], weights: Array) -> tuple[Array, Array]:
    order, starts = _blocks(uncertainty)
    wrong_weights = weights[:, order] * error[order]
    k, e = _cumulated(weights[:, order], starts), _cumulated(wrong_weights, starts)
    size, wrong = np.diff(k, axis=1, prepend=0), np.diff(e, axis=1, prepend=0)
    right = size - wrong
    below = (k - e) - right
    total_wrong, total_right = e[:, -1], (k - e)[:, -1]
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (wrong * (below + 0.5 * right)).sum(axis=1) / (total_wrong * total_right)
    risk = (size * e / np.maximum(k, 1.0)).sum(axis=1) / k[:, -1]
    return area, risk


def _blocks(uncertainty: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order by score, and the start of each block of equal scores."""
    order = np.argsort(uncertainty, kind="stable")
    ranked = uncertainty[order]
    return order, np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))


def _cumulated(weights: Array, starts: NDArray[np.int64]) -> Array:
    return np.asarray(np.cumsum(np.add.reduceat(weights, starts, axis=1), axis=1), dtype=np.float64)


def _halves(generator: np.random.Generator, rows: int, units: int) -> NDArray[np.bool_]:
    """Choose exactly half of the units (rounded down) in each row."""
    ranks = np.argsort(generator.random((rows, units), dtype=np.float32), axis=1, kind="stable")
    inside = np.zeros((rows, units), dtype=np.bool_)
    np.put_along_axis(inside, ranks[:, : units // 2], True, axis=1)
    return inside


def _interval(value: float, spread: Array) -> Interval:
    defined = spread[~np.isnan(spread)]
    low, high = np.quantile(defined, [0.025, 0.975]) if defined.size else (value, value)
    return Interval(value=value, low=float(low), high=float(high))
