"""Estimators that read the likelihood of the primary answer."""

from __future__ import annotations

import math

from ..types import Sample, Unmeasured
from .base import Evidence, Missing

__all__ = ["mean_logprob", "perplexity"]


def mean_logprob(sample: Sample) -> float | Missing:
    """Length-normalised log-likelihood: the mean of an answer's token log-probabilities, special tokens excluded."""
    if sample.logprobs is None:
        return Missing(Unmeasured.NO_LOGPROBS, "token log-probabilities are missing")
    if not sample.logprobs:
        return Missing(Unmeasured.EMPTY_ANSWER, "the answer has no tokens")
    return math.fsum(sample.logprobs) / len(sample.logprobs)


def perplexity(evidence: Evidence) -> float | Missing:
    """Log-perplexity of the primary answer: -(1/N) sum_i ln p(z_i). Nats a token, in [0, inf).

    The logarithm, as in lm-polygraph, not exp of it: the order is the same and it cannot overflow.
    Source: Kadavath et al. 2022.
    """
    primary = evidence.drawn.primary
    if primary is None:
        return Missing(Unmeasured.EMPTY_ANSWER, "there is no primary answer")
    mean = mean_logprob(primary)
    return mean if isinstance(mean, Missing) else -mean
