"""Closed-ended estimators: how spread out the option probabilities are."""

from __future__ import annotations

import math

from ..types import Unmeasured
from .base import Evidence, Missing

__all__ = ["max_softmax", "predictive_entropy"]


def _probabilities(evidence: Evidence) -> tuple[float, ...] | Missing:
    options = evidence.drawn.options
    if options is None:
        return Missing(Unmeasured.NO_OPTIONS, "no option log-likelihoods were read")
    return options.probabilities


def predictive_entropy(evidence: Evidence) -> float | Missing:
    r"""Predictive entropy (PE) over the answer options.

    p = softmax of the options' log-likelihoods, PE = -sum_k p_k ln p_k, with 0 ln 0 = 0. Nats, in [0, ln K].

    An option whose probability underflows counts 0. Missing options are unmeasured, never taken as probability 0.
    Source: A-CRC-QA section 4 (PE on MedMCQA); the shares of sampled answers are another estimator, with another name.
    """
    p = _probabilities(evidence)
    if isinstance(p, Missing):
        return p
    return -math.fsum(value * math.log(value) for value in p if value > 0)


def max_softmax(evidence: Evidence) -> float | Missing:
    """Maximum softmax probability as an uncertainty (MSP): 1 - max_k p_k over the options.

    Probability, in [0, 1 - 1/K].

    Source: Hendrycks & Gimpel 2017; A-CRC-QA section 4.
    """
    p = _probabilities(evidence)
    return p if isinstance(p, Missing) else 1.0 - max(p)
