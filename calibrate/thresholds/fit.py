"""One call from scores and labels to a threshold: ``fit``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible

from .acrc import Acrc
from .anchored import Anchored, Certified, OnePerGroup
from .bounds import clopper_pearson_interval
from .clusters import ClusterFixedSequence, Groups, prepare
from .diagnose import diagnostics, reason
from .empirical import CrcJoint, Empirical, FixedQuantile, Lec
from .multiple import Bonferroni, Sgr
from .pointwise import ClopperPearson, Hoeffding
from .rule import Prefix, Request, Rule
from .sequential import FixedSequence
from .simultaneous import CpSimultaneous

__all__ = ["DEFAULT_DELTA", "Support", "check_items", "check_open_unit", "fit", "request_for", "rule_named", "rules"]

DEFAULT_DELTA: Final = 0.1
"""delta where a rule uses one and none is given."""
SEARCH_LIMIT: Final = 20_000
"""Largest n at which the smallest feasible alpha is searched by default."""

Support = Literal["continuous", "discrete"]
"""Whether a score can take few values; declared by the estimator, never read off the data."""

_RULES: Final[dict[str, Rule]] = {
    rule.name: rule
    for rule in (
        Acrc(),
        Anchored(),
        Bonferroni(),
        Certified(),
        ClopperPearson(),
        ClusterFixedSequence(),
        CpSimultaneous(),
        CrcJoint(),
        Empirical(),
        FixedQuantile(),
        FixedSequence(),
        Hoeffding(),
        Lec(),
        OnePerGroup(),
        Sgr(),
    )
}


def rules() -> tuple[str, ...]:
    """Names of all threshold rules, sorted."""
    return tuple(sorted(_RULES))


def fit(
    uncertainty: ArrayLike,
    error: ArrayLike,
    *,
    alpha: float,
    rule: str = "acrc",
    delta: float | None = None,
    groups: Sequence[Hashable] | Literal["ignore"] | None = None,
    support: Support = "continuous",
    diagnose: Literal["full", "fast"] | None = None,
    **options: Any,
) -> Feasible | Infeasible:
    """Choose the threshold of a gate that accepts iff ``uncertainty <= threshold``.

    Pure: the same items in any order give the same outcome (with repeated groups, which item of a group is used depends
    on the order within the group). Only block ends (the last of a run of equal scores) are candidates, so ties are
    accepted or rejected together. O(n log n), plus a dynamic programme that depends on (n, alpha, delta) alone and is
    cached, for ``cp_simultaneous`` and ``anchored``.

    Args:
        uncertainty: Scores, shape (n,), finite; higher is less certain.
        error: 1 where the answer is wrong, 0 where it is correct, shape (n,).
        alpha: Target error rate among accepted answers, in (0, 1).
        rule: One of :func:`rules`; what each promises is in its class's docstring and in docs/guarantees.md.
        delta: Failure probability of rules that have one; 0.1 when left out.
        groups: Ids of the conversation, user or document of each item. With repeated ids items are not independent:
            "certified" and "one_per_group" then use one item a group (counts are of those; the options tell how many
            items there were), "cluster_fixed_sequence" all of them, and every other rule is refused. "ignore" treats
            items as independent all the same.
        support: "discrete" where the estimator can take only few values; read by ``certified``.
        diagnose: "full" searches the smallest feasible alpha, "fast" leaves it None; None means full up to 20,000
            items. Recorded in the outcome's options.
        **options: Options of the rule, e.g. ``min_accept=1``.

    Returns:
        ``Feasible`` with the threshold, or ``Infeasible`` with the reason.

    Raises:
        UsageError: Misuse: no items, lengths that differ, a score that is not finite, a label other than 0 or 1,
            alpha or delta outside (0, 1), an unknown rule or option, delta for a rule without one, or repeated groups.
    """
    chosen, request = request_for(rule, alpha=alpha, delta=delta, support=support, options=options)
    scores, labels = check_items(uncertainty, error)
    ignored = isinstance(groups, str) and groups == "ignore"
    grouped = None if groups is None or ignored else Groups.of(groups, scores.size)
    prefix, request = prepare(chosen, request, scores, labels, grouped)
    if diagnose not in (None, "full", "fast"):
        raise UsageError(f"diagnose must be 'full' or 'fast', got {diagnose!r}. Leave it out for the default.")
    return _outcome(prefix, chosen, request, diagnose, ignored=ignored)


def _outcome(
    prefix: Prefix, rule: Rule, request: Request, diagnose: Literal["full", "fast"] | None, *, ignored: bool
) -> Feasible | Infeasible:
    index = rule.select(prefix, request)
    mode = diagnose or ("full" if prefix.n <= SEARCH_LIMIT else "fast")
    resolved = rule.resolve(prefix.n, request) | {"diagnose": mode} | ({"groups": "ignore"} if ignored else {})
    common = {
        "rule": rule.name,
        "alpha": request.alpha,
        "delta": request.delta,
        "options": resolved,
        "n": prefix.n,
        "guarantee": rule.guarantee(request),
        "diagnostics": diagnostics(prefix, rule, request, feasible=index is not None, search=mode == "full"),
    }
    if index is None:
        why, detail = reason(prefix, rule, request)
        return Infeasible(reason=why, detail=detail, **common)
    k, e = int(prefix.k[index]), int(prefix.e[index])
    return Feasible(
        threshold=float(prefix.score[index]),
        n_accepted=k,
        n_errors=e,
        interval=clopper_pearson_interval(e, k),
        tie_block=k - int(prefix.k[index - 1]) if index else k,
        **common,
    )


def rule_named(name: str) -> Rule:
    """The rule of that name.

    Raises:
        UsageError: There is none; the nearest names are suggested.
    """
    if name in _RULES:
        return _RULES[name]
    close = difflib.get_close_matches(str(name), _RULES, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"unknown rule {name!r}. {hint}Rules: {', '.join(rules())}.")


def request_for(
    rule: str, *, alpha: float, delta: float | None, support: Support, options: dict[str, Any]
) -> tuple[Rule, Request]:
    """Check everything about a fit but its items.

    Raises:
        UsageError: See :func:`fit`.
    """
    chosen = rule_named(rule)
    check_open_unit("alpha", alpha)
    if support not in ("continuous", "discrete"):
        raise UsageError(f"support must be 'continuous' or 'discrete', got {support!r}.")
    if delta is not None and not chosen.uses_delta:
        raise UsageError(
            f"rule {rule!r} makes no statement with a delta, got delta = {delta!r}. "
            "Leave delta out, or choose rule='certified'."
        )
    if chosen.uses_delta:
        delta = DEFAULT_DELTA if delta is None else delta
        check_open_unit("delta", delta)
    unknown = [option for option in options if option not in chosen.defaults]
    if unknown:
        close = difflib.get_close_matches(unknown[0], chosen.defaults, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        known = f"Its options: {', '.join(chosen.defaults)}." if chosen.defaults else "It takes no options."
        raise UsageError(f"rule {rule!r} takes no option {unknown[0]!r}. {hint}{known}")
    filled = {**chosen.defaults, **options}
    if isinstance(chosen, Certified):
        filled["support"] = support
    request = Request(float(alpha), None if delta is None else float(delta), filled)
    chosen.check(request)
    return chosen, request


def check_open_unit(name: str, value: float) -> None:
    """Refuse what is not a number in (0, 1).

    Raises:
        UsageError: Naming the value and, for a likely percentage, the number that was meant.
    """
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
        raise UsageError("there are no items (n = 0). Calibration needs labelled questions.")
    finite = np.isfinite(scores)
    if not finite.all():
        index = int(np.argmin(finite))
        raise UsageError(
            f"uncertainty[{index}] must be finite, got {scores[index]}. Leave out items whose uncertainty could not be "
            "measured (at run time they are abstained on)."
        )
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
