"""One call from scores and labels to a threshold: ``fit``, and the diagnosis that goes with every outcome."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.errors import UsageError, did_you_mean
from guardrail.outcome import Diagnostics, Feasible, Hint, Infeasible, InfeasibleReason

from ..rules.certificate import fewest_accepted, interval, smallest
from ..rules.counts import Feasible as Threshold
from .groups import Groups, prepare
from .registry import rule_named
from .rule import TOLERANCE, Prefix, Rule, RuleRequest, default_k_min

__all__ = ["DEFAULT_DELTA", "FRESH_LABELS", "USEFUL_AUROC", "check_items", "check_open_unit", "fit", "request_for"]

DEFAULT_DELTA: Final = 0.1
"""delta where a rule uses one and none is given."""
USEFUL_AUROC: Final = 0.6
"""Below this a score hardly tells right from wrong, and another score helps more than labels or another target."""
FRESH_LABELS: Final = "Fit another score on fresh labels: to choose a score by these labels breaks the promise."
"""What every advice to change the score ends with: labels that a fit has seen no longer choose among scores freely."""


def fit(
    uncertainty: ArrayLike,
    error: ArrayLike,
    *,
    alpha: float | Literal["smallest"],
    rule: str | Rule = "certified",
    delta: float | None = None,
    groups: Sequence[Hashable] | Literal["ignore"] | None = None,
    **options: Any,
) -> Feasible | Infeasible:
    """Choose the threshold of a gate that accepts iff ``uncertainty <= threshold``.

    Pure: the same items in any order give the same outcome (with repeated groups, which item of a group is used depends
    on the order within the group). Only block ends (the last of a run of equal scores) are candidates, so ties are
    accepted or rejected together. O(n log n).

    Args:
        uncertainty: Scores, shape (n,), finite; higher is less certain.
        error: 1 where the answer is wrong, 0 where it is correct, shape (n,).
        alpha: Target error rate among accepted answers, in (0, 1); or "smallest", of rule certified: the first
            threshold that the walk would test, with the exact bound of its error rate (`calibrate.rules.smallest`).
        rule: One of :func:`rules`, or a :class:`calibrate.Rule` of your own; what each promises is in the docstring of
            its function in `calibrate.rules` and in docs/guarantees.md.
        delta: Failure probability of rules that have one; 0.1 when left out.
        groups: Ids of the conversation, user or document of each item. With repeated ids items are not independent:
            "certified" then uses one item a group (counts are of those; the options tell how many items there were),
            "certified_groups" all of them, and every other rule is refused. "ignore" treats items as independent all
            the same.
        **options: Settings of the rule, e.g. ``share=.4``, declared before labels are seen.

    Returns:
        ``Feasible`` with the threshold, or ``Infeasible`` with the reason.

    Raises:
        UsageError: Misuse: no items, lengths that differ, a score that is not finite, a label other than 0 or 1,
            alpha or delta outside (0, 1), an unknown rule or option, delta for a rule without one, or repeated groups.
    """
    tested = 0.5 if alpha == "smallest" else alpha  # any alpha: the first tested threshold does not depend on it
    chosen, request = request_for(rule, alpha=tested, delta=delta, options=options)
    scores, labels = check_items(uncertainty, error)
    # Type first: comparing an array of ids with a string would not give one truth value.
    ignored = isinstance(groups, str) and groups == "ignore"
    grouped = None if groups is None or ignored else Groups.of(groups, scores.size)
    prefix, request = prepare(chosen, request, scores, labels, grouped)
    if alpha == "smallest":
        return _smallest(prefix, chosen, request)
    index = chosen.select(prefix, request)
    resolved = chosen.resolve(prefix.n, request) | ({"groups": "ignore"} if ignored else {})
    return _outcome(prefix, chosen, request, index, resolved)


def _outcome(
    prefix: Prefix, rule: Rule, request: RuleRequest, index: int | None, options: dict[str, Any]
) -> Feasible | Infeasible:
    base = prefix.errors / prefix.n
    common = {
        "rule": rule.name,
        "alpha": request.alpha,
        "delta": request.delta,
        "options": options,
        "n": prefix.n,
        "guarantee": rule.guarantee(request),
        # Accepting every right answer, 1 - base, and errors up to alpha of what is accepted.
        "diagnostics": Diagnostics(
            base_error=base, auroc=prefix.auroc, max_acceptance=min(1.0, (1.0 - base) / (1.0 - request.alpha))
        ),
        "certifies": rule.certifies,
    }
    if index is None:
        hint = _hint(prefix, rule, request)
        reason, detail = _reason(prefix, rule, request, hint)
        return Infeasible(reason=reason, detail=detail, hint=hint, **common)
    k, e = int(prefix.k[index]), int(prefix.e[index])
    return Feasible(
        threshold=float(prefix.score[index]),
        n_accepted=k,
        n_errors=e,
        interval=interval(e, k),
        # At index 0 a look to the left would wrap round to the last block.
        tie_block=k - int(prefix.k[index - 1]) if index else k,
        **common,
    )


def _smallest(prefix: Prefix, rule: Rule, request: RuleRequest) -> Feasible | Infeasible:
    """The first threshold that rule certified would test, with the bound of its error rate as alpha."""
    if rule.name != "certified":
        raise UsageError(f"alpha='smallest' is of rule 'certified', got rule {rule.name!r}. Give alpha as a number.")
    hint = _hint(prefix, rule, request)
    options = rule.resolve(prefix.n, request) | {"alpha": "smallest"}
    if hint is None:
        return _outcome(prefix, rule, request, None, options)
    index = int(np.searchsorted(prefix.score, hint.threshold))
    # Upward to thousandths: what people read is then no less than what was certified.
    return _outcome(prefix, rule, request.at(math.ceil(1_000 * hint.bound) / 1_000), index, options)


def _hint(prefix: Prefix, rule: Rule, request: RuleRequest) -> Hint | None:
    if rule.name != "certified":
        return None
    first = smallest(*prefix.items(), request.level, share=request.options["share"])
    if not isinstance(first, Threshold) or first.bound is None:
        return None
    return Hint(threshold=first.threshold, n_accepted=first.k, n_errors=first.e, bound=first.bound)


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


def _reason(prefix: Prefix, rule: Rule, request: RuleRequest, hint: Hint | None) -> tuple[InfeasibleReason, str]:
    """Why the rule found nothing: the number of accepted items that came closest, and one next step.

    Asked in this order: would the same number of items without a single error do; would a cut inside a block of ties
    do, errors spread evenly; otherwise the risk is never low enough.
    """
    n, alpha = prefix.n, request.alpha
    # A rule that fails on error-free, untied items lacks items: no labels and no other score could help.
    if rule.select(_untied(n, np.zeros(n)), request) is None:
        return InfeasibleReason.TOO_FEW_ITEMS, _too_few(n, rule, request)
    upside_down = prefix.auroc is not None and prefix.auroc < 1 - USEFUL_AUROC
    start = "Wrong answers have the lower scores. If they are confidences, pass 1 - confidence. " if upside_down else ""
    if prefix.k.size < n and rule.select(_untied(n, _spread_evenly(prefix)), request) is not None:
        block = int(prefix.size.argmax())
        return InfeasibleReason.TIE_BLOCK_TOO_LARGE, (
            f"{start}The scores have {prefix.k.size} distinct values; {int(prefix.size[block])} of {n} items "
            f"({prefix.size[block] / n:.0%}) share the score {prefix.score[block]:g} and must be accepted or rejected "
            f"together: {_around(prefix, block)}. A cut inside the block would do. Use a finer uncertainty score (more "
            f"samples, or a continuous score). {FRESH_LABELS}"
        )
    if hint is not None:
        said = (
            f"{alpha:g} cannot be certified: of the {hint.n_accepted} most certain items ({hint.n_accepted / n:.0%}) "
            f"{hint.n_errors} are wrong. For these {hint.bound:.2g} can (--alpha smallest). "
        )
        rate = hint.n_errors / hint.n_accepted
    else:
        # With fewer than k_min items at_least points past the end, and the last block end stands in.
        first = min(prefix.at_least(default_k_min(n, alpha)), prefix.k.size - 1)
        best = first + int((prefix.e[first:] / prefix.k[first:]).argmin())
        k, e = int(prefix.k[best]), int(prefix.e[best])
        said, rate = f"Accepting the {k} most certain came closest, with {e} wrong ({e / k:.1%}). ", e / k
    return InfeasibleReason.RISK_NEVER_LOW_ENOUGH, (
        f"{start}No threshold satisfies rule {rule.name!r} at alpha = {alpha:g}: overall {prefix.errors} of {n} "
        f"answers are wrong ({prefix.errors / n:.1%}). {said}{_next_step(prefix, request, rate)}"
    )


def _next_step(prefix: Prefix, request: RuleRequest, rate: float) -> str:
    """The next step that helps most: a score that ranks errors, then labels, then a better score."""
    # The score comes first: with one that does not rank errors neither labels nor a larger alpha help for long.
    if prefix.auroc is not None and prefix.auroc < USEFUL_AUROC:
        auroc = f"AUROC {prefix.auroc:.2f}, and 0.5 is guessing"
        if prefix.auroc < 0.5:
            return f"Check whether the score is upside down: higher must mean less certain ({auroc})."
        return f"Use another uncertainty score: this one hardly tells right from wrong ({auroc}). {FRESH_LABELS}"
    if rate <= request.alpha:
        return "Label more questions: that rate is within the target, but the items are too few to show it."
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
        floor = int(fewest_accepted(0, request.alpha, request.delta))
        needed += f" and delta = {request.delta:.3g}: one threshold alone takes {floor} error-free accepted items"
    return needed + ". Label more questions."


def _around(prefix: Prefix, block: int) -> str:
    """Errors among the accepted without a block and with it."""
    ends = [(int(prefix.e[i]), int(prefix.k[i])) for i in (block - 1, block) if i >= 0]
    return ", then ".join(f"{e} wrong of {k} accepted ({e / k:.1%})" for e, k in ends)
