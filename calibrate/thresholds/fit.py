"""One call from scores and labels to a threshold: ``fit``, and the diagnosis that goes with every outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.errors import UsageError, did_you_mean
from guardrail.outcome import Diagnostics, Feasible, Infeasible, InfeasibleReason

from .bounds import clopper_pearson_interval, zero_error_floor
from .groups import Groups, prepare
from .registry import rule_named
from .rule import TOLERANCE, Prefix, Rule, RuleRequest, default_min_accept

__all__ = ["DEFAULT_DELTA", "FRESH_LABELS", "USEFUL_AUROC", "check_items", "check_open_unit", "fit", "request_for"]

DEFAULT_DELTA: Final = 0.1
"""delta where a rule uses one and none is given."""
SEARCH_LIMIT: Final = 20_000
"""Largest n at which the smallest feasible alpha is searched by default."""
USEFUL_AUROC: Final = 0.6
"""Below this a score hardly tells right from wrong, and another score helps more than labels or another target."""
FRESH_LABELS: Final = "Fit another score on fresh labels: a second fit on these is a selection, and is paid for."
"""What every advice to change the score ends with: labels that a fit has seen no longer choose among scores freely."""
_GRID = 1_000
"""Alphas are searched in thousandths."""


def fit(
    uncertainty: ArrayLike,
    error: ArrayLike,
    *,
    alpha: float,
    rule: str | Rule = "acrc",
    delta: float | None = None,
    groups: Sequence[Hashable] | Literal["ignore"] | None = None,
    diagnose: Literal["full", "fast"] | None = None,
    **options: Any,
) -> Feasible | Infeasible:
    """Choose the threshold of a gate that accepts iff ``uncertainty <= threshold``.

    Pure: the same items in any order give the same outcome (with repeated groups, which item of a group is used depends
    on the order within the group). Only block ends (the last of a run of equal scores) are candidates, so ties are
    accepted or rejected together. O(n log n), plus, for ``cp_simultaneous`` and ``certified``, a dynamic programme over
    the block ends, which is cached.

    Args:
        uncertainty: Scores, shape (n,), finite; higher is less certain.
        error: 1 where the answer is wrong, 0 where it is correct, shape (n,).
        alpha: Target error rate among accepted answers, in (0, 1).
        rule: One of :func:`rules`, or a :class:`calibrate.Rule` of your own; what each promises is in its class's
            docstring and in docs/guarantees.md.
        delta: Failure probability of rules that have one; 0.1 when left out.
        groups: Ids of the conversation, user or document of each item. With repeated ids items are not independent:
            "certified" and "one_per_group" then use one item a group (counts are of those; the options tell how many
            items there were), "group_mean" and "group_total" all of them, and every other rule is refused. "ignore"
            treats items as independent all the same.
        diagnose: "full" searches the smallest feasible alpha, "fast" leaves it None; None means full up to 20,000
            items. Recorded in the outcome's options.
        **options: Options of the rule, e.g. ``min_accept=1``.

    Returns:
        ``Feasible`` with the threshold, or ``Infeasible`` with the reason.

    Raises:
        UsageError: Misuse: no items, lengths that differ, a score that is not finite, a label other than 0 or 1,
            alpha or delta outside (0, 1), an unknown rule or option, delta for a rule without one, or repeated groups.
    """
    chosen, request = request_for(rule, alpha=alpha, delta=delta, options=options)
    scores, labels = check_items(uncertainty, error)
    # Type first: comparing an array of ids with a string would not give one truth value.
    ignored = isinstance(groups, str) and groups == "ignore"
    grouped = None if groups is None or ignored else Groups.of(groups, scores.size)
    prefix, request = prepare(chosen, request, scores, labels, grouped)
    if diagnose not in (None, "full", "fast"):
        raise UsageError(f"diagnose must be 'full' or 'fast', got {diagnose!r}. Leave it out for the default.")
    return _outcome(prefix, chosen, request, diagnose, ignored=ignored)


def _outcome(
    prefix: Prefix, rule: Rule, request: RuleRequest, diagnose: Literal["full", "fast"] | None, *, ignored: bool
) -> Feasible | Infeasible:
    index = rule.select(prefix, request)
    mode = diagnose or ("full" if prefix.n <= SEARCH_LIMIT else "fast")
    resolved = rule.resolve(prefix.n, request) | {"diagnose": mode} | ({"groups": "ignore"} if ignored else {})
    diagnostics = _diagnostics(prefix, rule, request, feasible=index is not None, search=mode == "full")
    common = {
        "rule": rule.name,
        "alpha": request.alpha,
        "delta": request.delta,
        "options": resolved,
        "n": prefix.n,
        "guarantee": rule.guarantee(request),
        "diagnostics": diagnostics,
        "certifies": rule.certifies,
    }
    if index is None:
        why, detail = _reason(prefix, rule, request, diagnostics.smallest_feasible_alpha)
        if prefix.auroc is not None and prefix.auroc < 1 - USEFUL_AUROC:
            detail = f"Wrong answers have the lower scores. If these are confidences, pass 1 - confidence. {detail}"
        return Infeasible(reason=why, detail=detail, **common)
    k, e = int(prefix.k[index]), int(prefix.e[index])
    return Feasible(
        threshold=float(prefix.score[index]),
        n_accepted=k,
        n_errors=e,
        interval=clopper_pearson_interval(e, k),
        # At index 0 a look to the left would wrap round to the last block.
        tie_block=k - int(prefix.k[index - 1]) if index else k,
        **common,
    )


def request_for(
    rule: str | Rule, *, alpha: float, delta: float | None, options: dict[str, Any]
) -> tuple[Rule, RuleRequest]:
    """Check everything about a fit but its items.

    Raises:
        UsageError: See :func:`fit`.
    """
    chosen = rule_named(rule)
    check_open_unit("alpha", alpha)
    if delta is not None and not chosen.uses_delta:
        raise UsageError(
            f"rule {chosen.name!r} makes no statement with a delta, got delta = {delta!r}. "
            "Leave delta out, or choose rule certified."
        )
    if chosen.uses_delta:
        delta = DEFAULT_DELTA if delta is None else delta
        check_open_unit("delta", delta)
    unknown = [option for option in options if option not in chosen.defaults]
    if unknown:
        hint = did_you_mean(unknown[0], chosen.defaults)
        options_text = f"Its options: {', '.join(chosen.defaults)}." if chosen.defaults else "It takes no options."
        raise UsageError(f"rule {chosen.name!r} takes no option {unknown[0]!r}. {hint}{options_text}")
    filled = {**chosen.defaults, **options}
    request = RuleRequest(float(alpha), None if delta is None else float(delta), filled)
    chosen.check(request)
    return chosen, request


def check_open_unit(name: str, value: float) -> None:
    """Refuse what is not a number in (0, 1).

    Raises:
        UsageError: Naming the value and, for a likely percentage, the number that was meant.
    """
    # A bool is an int in Python, and True would pass for the number 1.
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise UsageError(f"{name} must be a number in (0, 1), got {value!r}.")
    if not 0 < value < 1:
        percent = math.isfinite(value) and 1 < value < 100
        hint = f" Write {value / 100:g} for {value:g} %." if percent else ""
        raise UsageError(f"{name} must be in (0, 1), got {value}.{hint}")


def check_items(uncertainty: ArrayLike, error: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Scores and labels as arrays.

    Raises:
        UsageError: Naming the first offending index and value.
    """
    scores, labels = _numbers("uncertainty", uncertainty), _labels(error)
    if scores.size != labels.size:
        raise UsageError(f"uncertainty has {scores.size} items and error has {labels.size}. Pass one label a score.")
    if scores.size == 0:
        raise UsageError("no items (n = 0). Calibration needs labelled questions.")
    # Refused, not dropped: NaN sorts last in numpy, and infinity would make a separate block.
    finite = np.isfinite(scores)
    if not finite.all():
        index = int(np.argmin(finite))
        raise UsageError(
            f"uncertainty[{index}] must be finite, got {scores[index]}. Leave out items whose uncertainty could not be "
            "measured (at run time they are abstained on)."
        )
    # Checked before the cast to int8, which would cut 0.5 to 0 and turn 257 into 1.
    binary = (labels == 0) | (labels == 1)
    if not binary.all():
        index = int(np.argmin(binary))
        raise UsageError(
            f"error[{index}] must be 0 (correct) or 1 (wrong), got {labels[index]:g}. Leave out items without a label."
        )
    return scores, labels.astype(np.int8, copy=False)


def _labels(values: ArrayLike) -> NDArray[Any]:
    """Labels as they came where they are whole numbers or booleans, which is faster to check; else as floats."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biu":
        return values
    return _numbers("error", values)


def _numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be numbers, got {type(values).__name__}: {error}.") from error
    if array.ndim != 1:
        raise UsageError(f"{name} must be one-dimensional, got shape {array.shape}. Pass one number an item.")
    return array


# -- Figures and sentences of every fit: what could have been accepted, and why nothing was ----------------------------


def _diagnostics(prefix: Prefix, rule: Rule, request: RuleRequest, *, feasible: bool, search: bool) -> Diagnostics:
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
        # Accepting every right answer, 1 - base, and errors up to alpha of what is accepted.
        max_acceptance=min(1.0, (1.0 - base) / (1.0 - request.alpha)),
        smallest_feasible_alpha=_smallest_feasible_alpha(prefix, rule, request, feasible=feasible) if search else None,
    )


def _smallest_feasible_alpha(prefix: Prefix, rule: Rule, request: RuleRequest, *, feasible: bool) -> float | None:
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
    # alpha itself was shown feasible, so it is the upper end and rounds up; infeasible, it is the lower end and rounds
    # down.
    if feasible:
        high = min(_GRID - 1, math.ceil(request.alpha * _GRID - TOLERANCE))
        return _bisect(holds, min(low, high - 1), high) / _GRID
    low = max(low, math.floor(request.alpha * _GRID + TOLERANCE))
    bracket = _gallop(holds, low)
    return None if bracket is None else _bisect(holds, *bracket) / _GRID


def _gallop(holds: Callable[[int], bool], low: int) -> tuple[int, int] | None:
    """An infeasible and a feasible number of thousandths, found by growing steps; None if none is feasible."""
    step = 1
    while low < _GRID - 1:
        high = min(_GRID - 1, low + step)
        if holds(high):
            return low, high
        # Growing steps: an alpha just above is bracketed tightly, and a distant one takes few more tests.
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


def _reason(prefix: Prefix, rule: Rule, request: RuleRequest, smallest: float | None) -> tuple[InfeasibleReason, str]:
    """Why the rule found nothing: the number of accepted items that came closest, and one next step.

    Asked in this order: does the rule know (:meth:`Rule.explain`); would the same number of items without a single
    error do; would a cut inside a block of ties do, errors spread evenly; otherwise the risk is never low enough.
    """
    explanation = rule.explain(prefix, request)
    if explanation is not None:
        return explanation
    n, alpha = prefix.n, request.alpha
    # A rule that fails on error-free, untied items lacks items: no labels and no other score could help.
    if not rule.feasible(_untied(n, np.zeros(n)), request):
        return InfeasibleReason.TOO_FEW_ITEMS, _too_few(n, rule, request)
    if prefix.k.size < n and rule.feasible(_untied(n, _spread_evenly(prefix)), request):
        block = int(prefix.size.argmax())
        return InfeasibleReason.TIE_BLOCK_TOO_LARGE, (
            f"The scores have {prefix.k.size} distinct values; {int(prefix.size[block])} of {n} items "
            f"({prefix.size[block] / n:.0%}) share the score {prefix.score[block]:g} and must be accepted or rejected "
            f"together: {_around(prefix, block)}. A cut inside the block would do. Use a finer uncertainty score (more "
            f"samples, or a continuous estimator). {FRESH_LABELS}"
        )
    best = _closest(prefix, rule, request, smallest)
    k, e = int(prefix.k[best]), int(prefix.e[best])
    return InfeasibleReason.RISK_NEVER_LOW_ENOUGH, (
        f"No threshold satisfies rule {rule.name!r} at alpha = {alpha:g}: overall {prefix.errors} of {n} answers are "
        f"wrong ({prefix.errors / n:.1%}). Accepting the {k} most certain came closest, with {e} wrong ({e / k:.1%}). "
        + _next_step(prefix, request, e / k, smallest)
    )


def _closest(prefix: Prefix, rule: Rule, request: RuleRequest, smallest: float | None) -> int:
    """Index of the block end that came closest: the rule's choice at the smallest alpha at which it finds one.

    Where that alpha is unknown: the lowest error rate among block ends that accept enough items to show anything. A
    single clean item at the start is the lowest rate of most untied scores, and means nothing.
    """
    index = None if smallest is None else rule.select(prefix, request.at(smallest))
    if index is not None:
        return index
    # With fewer than k_min items at_least points past the end, and the last block end stands in.
    first = min(prefix.at_least(default_min_accept(prefix.n, request.alpha)), prefix.k.size - 1)
    return first + int((prefix.e[first:] / prefix.k[first:]).argmin())


def _next_step(prefix: Prefix, request: RuleRequest, rate: float, smallest: float | None) -> str:
    """The next step that helps most: a score that ranks errors, then labels, then another target."""
    # The score comes first: with one that does not rank errors neither labels nor a larger alpha help for long.
    if prefix.auroc is not None and prefix.auroc < USEFUL_AUROC:
        auroc = f"AUROC {prefix.auroc:.2f}, and 0.5 is guessing"
        if prefix.auroc < 0.5:
            return f"Check whether the score is upside down: higher must mean less certain ({auroc})."
        return f"Use another uncertainty score: this one hardly tells right from wrong ({auroc}). {FRESH_LABELS}"
    if rate <= request.alpha:
        return "Label more questions: that rate is within the target, but the items are too few to show it."
    if smallest is not None:
        return f"Ask for alpha = {smallest:g} or more, where this rule finds a threshold on these items."
    return f"Use a better uncertainty score. {FRESH_LABELS}"


def _untied(n: int, errors: NDArray[np.float64]) -> Prefix:
    """Prefix of n untied items with these cumulative errors, rounded up."""
    # Rounded up, so that a fraction of an error never makes the imagined cut look better than a real one.
    counts = np.ceil(errors - TOLERANCE).astype(np.int64)
    return Prefix(n, np.arange(n, dtype=np.float64), np.arange(1, n + 1), counts)


def _spread_evenly(prefix: Prefix) -> NDArray[np.float64]:
    """Cumulative errors at 1..n if each block's errors were spread evenly over it."""
    k, e = np.concatenate(([0], prefix.k)), np.concatenate(([0], prefix.e))
    return np.interp(np.arange(1, prefix.n + 1), k, e)


def _too_few(n: int, rule: Rule, request: RuleRequest) -> str:
    needed = f"Even without a single error {n} items are too few for rule {rule.name!r} at alpha = {request.alpha:g}"
    if request.delta is not None:
        floor = zero_error_floor(request.alpha, request.delta)
        needed += f" and delta = {request.delta:.3g}: one threshold alone takes {floor} error-free accepted items"
    return needed + ". Label more questions."


def _around(prefix: Prefix, block: int) -> str:
    """Errors among the accepted without a block and with it."""
    ends = [(int(prefix.e[i]), int(prefix.k[i])) for i in (block - 1, block) if i >= 0]
    return ", then ".join(f"{e} wrong of {k} accepted ({e / k:.1%})" for e, k in ends)
