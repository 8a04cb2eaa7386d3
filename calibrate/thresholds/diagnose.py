"""Figures and words that go with every fit: what could have been accepted, and why nothing was."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from guardrail.outcome import Diagnostics, InfeasibleReason

from .bounds import zero_error_floor
from .rule import TOLERANCE, Prefix, Request, Rule

__all__ = ["diagnostics", "reason", "smallest_feasible_alpha"]

_GRID = 1_000
"""Alphas are searched in thousandths."""


def diagnostics(prefix: Prefix, rule: Rule, request: Request, *, feasible: bool, search: bool) -> Diagnostics:
    """The figures of one fit.

    Args:
        prefix: Block ends.
        rule: The rule that ran.
        request: What it was asked.
        feasible: Whether it found a threshold.
        search: Whether to look for the smallest feasible alpha.
    """
    base = prefix.errors / prefix.n
    return Diagnostics(
        base_error=base,
        auroc=prefix.auroc,
        zero_error_floor=None if request.delta is None else zero_error_floor(request.alpha, request.delta),
        max_acceptance=min(1.0, (1.0 - base) / (1.0 - request.alpha)),
        smallest_feasible_alpha=smallest_feasible_alpha(prefix, rule, request, feasible=feasible) if search else None,
    )


def smallest_feasible_alpha(prefix: Prefix, rule: Rule, request: Request, *, feasible: bool) -> float | None:
    """Smallest alpha in thousandths at which the rule is feasible on these items, by bisection.

    A rule whose feasibility is not monotone in alpha (a default ``min_accept`` shrinks as alpha grows) gets an alpha
    at which it is feasible while one thousandth less is not. The answer never contradicts the fit: it is above alpha
    exactly when the fit was infeasible (up to rounding to thousandths). None when even .999 is infeasible, and for a
    rule that ignores alpha.
    """
    if not rule.uses_alpha:
        return None

    def holds(thousandths: int) -> bool:
        return rule.feasible(prefix, request.at(thousandths / _GRID))

    low = math.floor(rule.alpha_floor(prefix, request) * _GRID + TOLERANCE)
    if feasible:
        high = min(_GRID - 1, math.ceil(request.alpha * _GRID - TOLERANCE))
        return _bisect(holds, min(low, high - 1), high) / _GRID
    low = max(low, math.floor(request.alpha * _GRID + TOLERANCE))
    bracket = _gallop(holds, low)
    return None if bracket is None else _bisect(holds, *bracket) / _GRID


def _gallop(holds: Callable[[int], bool], low: int) -> tuple[int, int] | None:
    """An infeasible and a feasible number of thousandths, found by doubling steps upward; None if there is none."""
    step = 1
    while low < _GRID - 1:
        high = min(_GRID - 1, low + step)
        if holds(high):
            return low, high
        low, step = high, 4 * step
    return None


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest feasible number above an infeasible (or excluded) one; ``high`` is feasible."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def reason(prefix: Prefix, rule: Rule, request: Request) -> tuple[InfeasibleReason, str]:
    """Why the rule found nothing, and what to do about it.

    Asked in this order: does the rule know (:meth:`Rule.explain`); would the same number of items without a single
    error do; would a cut inside a block of ties do, errors spread evenly; otherwise the risk is never low enough.
    """
    known = rule.explain(prefix, request)
    if known is not None:
        return known
    n, alpha = prefix.n, request.alpha
    if not rule.feasible(_untied(n, np.zeros(n)), request):
        return InfeasibleReason.TOO_FEW_ITEMS, _too_few(n, rule, request)
    if prefix.k.size < n and rule.feasible(_untied(n, _spread_evenly(prefix)), request):
        block = int(prefix.size.argmax())
        return InfeasibleReason.TIE_BLOCK_TOO_LARGE, (
            f"The scores have {prefix.k.size} distinct values; {int(prefix.size[block])} of {n} items "
            f"({prefix.size[block] / n:.0%}) share the score {prefix.score[block]:g} and must be accepted or rejected "
            "together. A cut inside a block of ties would do. Use a finer uncertainty score (more samples, or a "
            "continuous estimator)."
        )
    rate = prefix.e / prefix.k
    best = int(rate.argmin())
    return InfeasibleReason.RISK_NEVER_LOW_ENOUGH, (
        f"No threshold satisfies rule {rule.name!r} at alpha = {alpha:g}: overall {prefix.errors} of {n} answers are "
        f"wrong ({prefix.errors / n:.1%}), and the lowest rate is {int(prefix.e[best])} wrong of the "
        f"{int(prefix.k[best])} most certain ({rate[best]:.1%}). Use a better uncertainty score, more calibration "
        "items, or a larger alpha (see smallest_feasible_alpha)."
    )


def _untied(n: int, errors: NDArray[np.float64]) -> Prefix:
    """Prefix of n untied items with these cumulative errors, rounded up."""
    counts = np.ceil(errors - TOLERANCE).astype(np.int64)
    return Prefix(n, np.arange(n, dtype=np.float64), np.arange(1, n + 1), counts)


def _spread_evenly(prefix: Prefix) -> NDArray[np.float64]:
    """Cumulative errors at 1..n if each block's errors were spread evenly over it."""
    k, e = np.concatenate(([0], prefix.k)), np.concatenate(([0], prefix.e))
    return np.interp(np.arange(1, prefix.n + 1), k, e)


def _too_few(n: int, rule: Rule, request: Request) -> str:
    needed = f"Even without a single error {n} items are too few for rule {rule.name!r} at alpha = {request.alpha:g}"
    if request.delta is not None:
        floor = zero_error_floor(request.alpha, request.delta)
        needed += f" and delta = {request.delta:g}: one threshold alone takes {floor} error-free accepted items"
    return needed + ". Collect more labelled questions or ask for a larger alpha."
