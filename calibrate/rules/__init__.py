"""The statistics of a selective gate, as pure functions of scores and labels.

A **unit** (a question; a conversation; an answer with items) has a **score** u, shape (n,), higher = less certain, +inf
= not measured, and a label **wrong**, shape (n,), 1 = wrong or undecided, else 0. The gate accepts iff u <= threshold:
ties go together, and no threshold is infinite. The unmeasured are among the n of every count and share. Units are
independent draws from the source that is served later.

A rule is a function ``(u, wrong, alpha, delta, **settings) -> Feasible | Infeasible``; `RULES` has them by name, and a
new one is its function and one line there. **alpha** in (0, 1) is the target, **delta** in (0, 1) the failure
probability. Settings are keyword-only and declared before labels are seen. Scores that are NaN or -inf, labels that are
not 0 or 1, and probabilities outside (0, 1) raise `guardrail.errors.UsageError` everywhere.

    certificate.py   certified(u, wrong, alpha, delta=.1, *, share=.25)     P(SCER > alpha) <= delta
                     smallest(u, wrong, delta=.1, *, share=.25)             first threshold with its exact bound
                     start(n, alpha, delta=.1, share=.25) -> int            accepted units at which the walk begins
                     walk(passed, first) -> int | None                      last index before the first failure
                     tail(e, k, alpha)                                      p-values P(Bin(k, alpha) <= e)
                     upper_bound(e, k, delta), interval(e, k, confidence=.95)                   Clopper-Pearson
                     fewest_accepted(errors, alpha, delta), most_errors(n, alpha, delta), passes(p, delta)
    plug_in.py       fixed_quantile(..., *, quantile=.5), empirical, lec, hoeffding, clopper_pearson
                     acrc(..., *, k_min=None, monotone=True, correction=True, envelope=False)   k_min=1: as printed
    capital.py       certified_groups(..., *, group, most=None, share=.25, begin=None)          groups of items
                     capital(z, most, delta=.1, planned=None), p_capital(...)                   Z of units:
                     excess_mean(K, W, alpha), excess_total(K, W, alpha), excess_audit(wrong, q, alpha)
                     first_to_test(reach, units, alpha, delta) -> int       where a walk of groups begins
    count.py         count_threshold(s, alpha, delta=None) -> float | None  limit below which P(s <= t) <= alpha
                     crc_joint(..., *, average=True)                        P(accepted and wrong) <= alpha
    cascade.py       certified_cascade(u, wrong, alpha, delta=.1, *, share=.25, ratio=1., path=None)
                     matched_path(u, ratio=1.), path_counts(u, wrong, path) arrays of shape (n, stages)
    prediction_powered.py   prediction_powered(..., *, judge, sampled), p_people(people, judge, judge_only, alpha)
    counts.py        Feasible(threshold, n, k, e, start, bound), .acceptance; Infeasible(n, reason, start, first)
                     counts(u, wrong) -> Counts(n, threshold, k, e)         at the thresholds that occur
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .capital import certified_groups
from .certificate import certified, smallest
from .count import crc_joint
from .counts import Feasible, Infeasible, Result
from .plug_in import acrc, clopper_pearson, empirical, fixed_quantile, hoeffding, lec
from .prediction_powered import prediction_powered

__all__ = ["RULES", "Feasible", "Infeasible", "Rule", "certified", "smallest"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, whether it certifies (the error rate among answers, with probability 1 - delta), and its promise."""

    choose: Callable[..., Result]
    certified: bool
    promise: str


RULES: Final[dict[str, Rule]] = {
    "certified": Rule(certified, True, "certificate"),
    "acrc": Rule(acrc, False, "in the limit, on average"),
    "fixed_quantile": Rule(fixed_quantile, False, "none"),
    "empirical": Rule(empirical, False, "none"),
    "hoeffding": Rule(hoeffding, False, "none as a scan"),
    "clopper_pearson": Rule(clopper_pearson, False, "none as a scan"),
    "lec": Rule(lec, False, "none in finite samples"),
    "crc_joint": Rule(crc_joint, False, "of all questions, on average"),
    "certified_groups": Rule(certified_groups, True, "certificate, of groups"),
    "prediction_powered": Rule(prediction_powered, False, "asymptotic"),
}
"""Every rule by the name that users write: the certificate, the base paper's rule and its baselines, the others."""
