"""A-CRC, the rule of "Asymptotic Risk Calibration for Selective Question Answering", repaired, and its ablations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from guardrail.errors import UsageError
from guardrail.outcome import InfeasibleReason

from .empirical import last
from .rule import TOLERANCE, Prefix, Rule, RuleRequest, check_min_accept, min_accept_of

__all__ = ["Acrc"]


class Acrc(Rule):
    """A-CRC with a minimum acceptance.

    Formula (counts): the largest block end k >= k_min with
    ``max_{k_min <= j <= k} C_j + (1 - alpha) n / (n + 1) <= 0``, where C_j = e_j - alpha j.

    Guarantee: E[wrong and accepted] / E[accepted] tends to at most alpha as n grows, for independent items. Not a
    certificate: about 40 % of calibrations end slightly above alpha.

    Paper: gamma_n = (1 - alpha)/(n + 1), largest k with ``max_{j <= k} C_j / n + gamma_n <= 0``.

    Where we differ: as written the paper's rule never accepts anything on untied scores when alpha < n/(2n + 1), since
    already C_1 >= -alpha > -(1 - alpha) n/(n + 1) and the prefix maximum never forgets it. So the family of thresholds
    is restricted, before looking at labels, to those that accept at least k_min items
    (:func:`.rule.default_min_accept`). ``min_accept=1`` gives the literal rule.

    Options:
        min_accept: k_min, a count; None for the default.
        monotone: Take the maximum over all earlier block ends (True) or look at each alone (ablation).
        correction: Add (1 - alpha) n/(n + 1) (True) or nothing (ablation).
        envelope: Use the instance-wise envelope loss (1 - alpha) E 1{accepted} instead of C (ablation). That is
            (1 - alpha) e_k + (1 - alpha) n/(n + 1) <= 0, which never holds: always infeasible.
    """

    name = "acrc"
    promise = "in the limit, on average"
    in_report = True
    in_plan = True
    defaults: ClassVar[Mapping[str, Any]] = {
        "min_accept": None,
        "monotone": True,
        "correction": True,
        "envelope": False,
    }

    def check(self, request: RuleRequest) -> None:
        """``min_accept`` is a count, the rest are flags."""
        check_min_accept(self.name, request)
        for option in ("monotone", "correction", "envelope"):
            if not isinstance(request.options[option], bool):
                raise UsageError(
                    f"{option} of rule 'acrc' must be True or False, got {request.options[option]!r}. Leave it out."
                )

    def resolve(self, n: int, request: RuleRequest) -> dict[str, Any]:
        """Options with the k_min that was used."""
        return {**request.options, "min_accept": min_accept_of(n, request)}

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest block end at or past k_min before the first violation (or the last block end without one)."""
        first = prefix.at_least(min_accept_of(prefix.n, request))
        if first == prefix.k.size:
            return None
        k, e = prefix.k[first:], prefix.e[first:]
        loss = (1.0 - request.alpha) * e if request.options["envelope"] else e - request.alpha * k
        # Counts instead of means: C_j + (1 - alpha) n/(n + 1) <= 0 is the paper's condition times n, so nothing is
        # rounded.
        fine = loss <= TOLERANCE - _correction(prefix.n, request)
        if not request.options["monotone"]:
            index = last(fine)
            return None if index is None else first + index
        # argmin of booleans is the first False, or 0 when all are True; the next line tells these two apart.
        violated = int(np.argmin(fine))
        if fine[violated]:
            return first + fine.size - 1
        return first + violated - 1 if violated else None

    def feasible(self, prefix: Prefix, request: RuleRequest) -> bool:
        """With the prefix maximum the first candidate alone decides."""
        first = prefix.at_least(min_accept_of(prefix.n, request))
        if not request.options["monotone"] or request.options["envelope"] or first == prefix.k.size:
            return self.select(prefix, request) is not None
        excess = float(prefix.e[first] - request.alpha * prefix.k[first])
        return excess <= TOLERANCE - _correction(prefix.n, request)

    def guarantee(self, request: RuleRequest) -> str:
        """Asymptotic, on average."""
        if request.options["envelope"]:
            return "None: the instance-wise envelope condition never holds, so the rule never accepts anything."
        return (
            "Asymptotic and on average over calibrations: for independent items the error rate among accepted answers "
            "tends to alpha or less as n grows. Not a certificate: about 40 % of calibrations end slightly above alpha."
        )

    def explain(self, prefix: Prefix, request: RuleRequest) -> tuple[InfeasibleReason, str] | None:
        """Two failures of this rule: the envelope, and a prefix maximum that is violated at the start."""
        n, alpha = prefix.n, request.alpha
        if request.options["envelope"]:
            return (
                InfeasibleReason.RISK_NEVER_LOW_ENOUGH,
                f"The instance-wise envelope needs (1 - alpha) e_k + {_correction(n, request):.3f} <= 0, and the left "
                "side is never negative: it is infeasible on any data. Leave the option envelope out.",
            )
        later = RuleRequest(alpha, None, {**request.options, "monotone": False})
        index = self.select(prefix, later)
        if not request.options["monotone"] or index is None:
            return None
        first = prefix.at_least(min_accept_of(n, request))
        k, e = int(prefix.k[first]), int(prefix.e[first])
        reason = InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG
        if alpha * k < _correction(n, request) - TOLERANCE:
            return reason, (
                f"The first prefix accepts {k} item(s), so C_{k}/n >= -{alpha:g}*{k}/n, which is above "
                f"-gamma_n = -(1 - alpha)/(n + 1) = -{(1 - alpha) / (n + 1):.6f} even without an error, and the prefix "
                "maximum never forgets it: with min_accept="
                f"{min_accept_of(n, request)} this rule cannot accept anything here. Leave min_accept at its default."
            )
        return reason, (
            f"Of the {k} most certain items {e} are wrong ({e / k:.1%}), above alpha = {alpha:g} after correction. "
            f"This rule then accepts no larger set either, though the first {int(prefix.k[index])} items would pass "
            f"({int(prefix.e[index])} wrong). Look at those confident errors, and at their labels."
        )


def _correction(n: int, request: RuleRequest) -> float:
    return (1.0 - request.alpha) * n / (n + 1) if request.options["correction"] else 0.0
