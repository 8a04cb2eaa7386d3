"""Rules that steer an average: a fixed share, the plug-in estimate, LEC-Direct, joint risk. None is a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from .rule import TOLERANCE, Prefix, Rule, RuleRequest

__all__ = ["CrcJoint", "Empirical", "FixedQuantile", "Lec", "last"]


def last(ok: NDArray[np.bool_]) -> int | None:
    """Index of the last True, or None."""
    if not ok.size:
        return None
    # argmax stops at the first True, so the reversed view needs no list of all positions.
    index = ok.size - 1 - int(ok[::-1].argmax())
    return index if ok[index] else None


class FixedQuantile(Rule):
    """Accept a fixed share of the items without reading labels: the largest block end k <= q n (Fixed-50 at q = .5).

    Guarantee: none; alpha plays no part in the choice. Paper: the uncalibrated baseline of A-CRC-QA.
    """

    name = "fixed_quantile"
    uses_alpha = False
    promise = "none"
    in_report = True
    defaults: ClassVar[Mapping[str, Any]] = {"quantile": 0.5}

    def check(self, request: RuleRequest) -> None:
        """``quantile`` is a share in (0, 1]."""
        quantile = request.options["quantile"]
        if isinstance(quantile, bool) or not isinstance(quantile, int | float) or not 0 < quantile <= 1:
            raise UsageError(
                f"quantile of rule 'fixed_quantile' must be in (0, 1], got {quantile!r}. Write 0.5 for half."
            )

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest block end with k <= q n."""
        limit = request.options["quantile"] * prefix.n + TOLERANCE
        return int(np.searchsorted(prefix.k, limit, side="right")) - 1 if prefix.k[0] <= limit else None

    def guarantee(self, request: RuleRequest) -> str:
        """None."""
        return "None: it accepts a fixed share of the items and looks at no label, whatever the target."


class Empirical(Rule):
    """The plug-in rule: the largest block end with e_k / k <= alpha, that is C_k <= 0.

    Guarantee: none. The mean error of accepted answers is a little above alpha and about half of all calibrations
    exceed it. Paper: "Empirical" of A-CRC-QA.
    """

    name = "empirical"
    promise = "none"
    in_report = True

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest block end with C_k <= 0."""
        return last(prefix.excess(request.alpha) <= TOLERANCE)

    def guarantee(self, request: RuleRequest) -> str:
        """None."""
        return (
            "None: the observed error rate is alpha or less on these items, chosen by looking at them; expect about "
            "half of all calibrations to exceed alpha on new questions."
        )


class Lec(Rule):
    """LEC-Direct (Wang et al., arXiv 2512.01556): the largest block end with C_k = sum(E - alpha) <= -1.

    Guarantee: as its authors state, P(wrong | accepted) <= alpha for exchangeable items. Where we differ: that claim
    cannot hold in finite samples (see docs/guarantees.md), and measured at alpha = .15 the ratio E[SE]/E[S] is .1675,
    .1538 and .1520 at n = 100, 500 and 1,000. So we label it a baseline.
    """

    name = "lec"
    promise = "none in finite samples"
    in_report = True

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest block end with C_k <= -1."""
        # The tolerance lets an exact -1 pass: alpha k is rarely exact in binary.
        return last(prefix.excess(request.alpha) <= -1.0 + TOLERANCE)

    def guarantee(self, request: RuleRequest) -> str:
        """The promise that its authors state, and a warning that it does not hold."""
        return (
            "Stated by its authors as P(wrong | accepted) <= alpha; no rule can promise that without assumptions in "
            "finite samples, and the measured rate is a little above alpha. About half of all calibrations exceed it."
        )


class CrcJoint(Rule):
    """Conformal risk control of the joint error "accepted and wrong", which never falls as more is accepted.

    Formula: the largest block end with ``(e_k + 1) / (n + 1) <= alpha``.

    Guarantee: P(accepted and wrong) <= alpha for the next question, over calibration and question, exact for
    exchangeable items and any n. It is a share of *all* questions, not of the accepted ones: the error rate among
    accepted answers is that divided by the acceptance. Paper: Angelopoulos et al., ICLR 2024, arXiv 2208.02814.
    """

    name = "crc_joint"
    population = "all"
    promise = "of all questions, exact"
    in_report = True

    def select(self, prefix: Prefix, request: RuleRequest) -> int | None:
        """Largest block end with e_k + 1 <= alpha (n + 1); e_k never falls with k."""
        limit = request.alpha * (prefix.n + 1) - 1.0 + TOLERANCE
        # Multiplied out by n + 1, so that integers are compared with one rounded number instead of a rounded quotient.
        index = int(np.searchsorted(prefix.e, limit, side="right")) - 1
        return index if index >= 0 else None

    def guarantee(self, request: RuleRequest) -> str:
        """Exact, of a joint rate."""
        return (
            f"P(accepted and wrong) <= {request.alpha:g} per question, on average over calibrations, exact in finite "
            "samples for exchangeable items. This is a share of all questions, not of the accepted ones."
        )
