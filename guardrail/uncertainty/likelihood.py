"""Estimators that read likelihoods only: of the primary answer, of the samples, or of answer options."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..judges.json_value import is_structured
from ..types import Bindings, Missing, Sample, SampleSet, Unmeasured
from .base import Estimator, Evidence, Needs

__all__ = ["ESTIMATORS", "impossible_logprobs", "mean_logprob", "nll_of"]


_CERTAIN = -1e-6
"""Log-probability above which a token is certain: single precision writes 0 there."""
_IMPOSSIBLE_BESIDE_CERTAIN = math.log(0.01)
"""Log-probability above which a token contradicts one that is certain in its place: their sum exceeds 1."""
_FEW = 4
"""Most tokens of an answer whose log-probabilities may all be exactly 0."""


def impossible_logprobs(drawn: SampleSet, bindings: Bindings | None = None) -> Missing | None:
    """The reason why log-probabilities cannot be those of the model, or None.

    Servers write 0 for "not computed", or for the only token left at temperature 0. Two signs:

    * Each token of an answer of more than four tokens has exactly 0. Single precision rounds a probability to 1 only
      where all other tokens together have less than 6e-8. Of 38,522 recorded answers of a small model (10 tokens at the
      median) none is all zeros, and .03 % of their 422,817 tokens are. Larger models are surer and were not measured:
      an honest answer that is held back here costs acceptance, at calibration as at run time. Not where answers follow
      a format, because what the format dictates is certain.
    * Each token of an answer has probability 1, and yet an answer that goes another way was drawn, which must have a
      token of probability 0. An answer that another one begins with contradicts nothing, because the end of an answer
      is no token here.

    Args:
        drawn: What was drawn.
        bindings: The plan's tools and answer format.
    """
    # Each of them, also of equal texts: of a greedy answer and an equal sample one may have the zeros.
    answers = [sample for sample in (drawn.primary, *drawn.samples) if sample is not None]
    if not is_structured(bindings) and any(map(_only_zeros, answers)):
        return Missing(
            Unmeasured.NO_LOGPROBS, "each token of an answer has log-probability 0 exactly: the zeros are placeholders"
        )
    if _contradict(answers):
        return Missing(
            Unmeasured.NO_LOGPROBS,
            "each token of an answer has log-probability 0, and yet another answer was drawn: the zeros are "
            "placeholders, or come after a temperature of 0",
        )
    return None


def _only_zeros(answer: Sample) -> bool:
    logprobs = answer.logprobs or ()
    return len(logprobs) > _FEW and not any(logprobs)


def _contradict(answers: Sequence[Sample]) -> bool:
    """Whether every token of an answer is certain, and another answer goes another way without an unlikely token.

    An answer without log-probabilities names no unlikely token either: that it was drawn is contradiction enough.
    """
    certain = {answer.comparable for answer in answers if answer.logprobs and min(answer.logprobs) > _CERTAIN}
    other_way = {answer.comparable for answer in answers if min(answer.logprobs or (0.0,)) > _IMPOSSIBLE_BESIDE_CERTAIN}
    return any(not (other.startswith(text) or text.startswith(other)) for text in certain for other in other_way)


def nll_of(sample: Sample) -> float:
    """Negative log-likelihood of an answer: -sum of its token log-probabilities, special tokens excluded.

    Raises:
        Missing: It has no log-probabilities, or no tokens.
    """
    if sample.logprobs is None:
        detail = "token log-probabilities are missing, or one of them is a placeholder (such as -9999.0)"
        raise Missing(Unmeasured.NO_LOGPROBS, detail)
    if not sample.logprobs:
        raise Missing(Unmeasured.EMPTY_ANSWER, "the answer has no tokens")
    return -math.fsum(sample.logprobs)


def mean_logprob(sample: Sample) -> float:
    """Length-normalised log-likelihood: the mean of an answer's token log-probabilities; raises as `nll_of`."""
    return -nll_of(sample) / len(sample.logprobs or ())


def perplexity(evidence: Evidence) -> float:
    """Log-perplexity of the primary answer: -(1/N) sum_i ln p(z_i). Nats per token, in [0, inf).

    The logarithm, as in lm-polygraph, not exp of it: the order is the same and it cannot overflow.
    Source: Kadavath et al. 2022.
    """
    return -mean_logprob(evidence.answer)


def sequence_nll(evidence: Evidence) -> float:
    """Negative log-likelihood of the primary answer: -sum_i ln p(z_i). Nats, in [0, inf); 0 for a certain answer.

    Not divided by the length, so longer answers score as less certain: compare answers of similar length, or use
    `perplexity`. Special and end tokens are not in the sum; an answer without tokens is unmeasured, not 0.
    Source: the sequence probability of lm-polygraph ("MSP"), whose sum includes the end token.
    """
    return nll_of(evidence.answer)


def length_normalised_entropy(evidence: Evidence) -> float:
    """Length-normalised predictive entropy: -(1/n) sum_m (1/N_m) sum_i ln p(z_i of s_m). Nats per token, in [0, inf).

    A Monte-Carlo estimate over the n samples, without regard to meaning. One sample without log-probabilities or tokens
    makes it unmeasured. Samples that were drawn several times count several times. Source: Malinin & Gales 2021, as in
    Kuhn et al. 2023. Difference: samples come from the plan's temperature and top-p, while log-probabilities are the
    untempered model's, so it estimates a cross-entropy unless both are 1.
    """
    means = list(map(mean_logprob, evidence.drawn.samples))
    return -math.fsum(means) / len(means)


# -- Answer options ----------------------------------------------------------------------------------------------------


def _probabilities(evidence: Evidence) -> tuple[float, ...]:
    options = evidence.drawn.options
    if options is None:
        raise Missing(Unmeasured.NO_OPTIONS, "no option log-likelihoods were read")
    return options.probabilities


def predictive_entropy(evidence: Evidence) -> float:
    r"""Predictive entropy (PE) over the answer options.

    p = softmax of the options' log-likelihoods, PE = -sum_k p_k ln p_k, with 0 ln 0 = 0. Nats, in [0, ln K].

    An option whose probability underflows counts 0. Missing options are unmeasured, never counted as probability 0.
    Source: A-CRC-QA section 4 (PE on MedMCQA); the shares of sampled answers are another estimator.
    """
    p = _probabilities(evidence)
    # 0 ln 0 = 0 is the limit; math.log(0) would raise.
    return -math.fsum(value * math.log(value) for value in p if value > 0)


def max_softmax(evidence: Evidence) -> float:
    """Maximum softmax probability as an uncertainty (MSP): 1 - max_k p_k over the options.

    Probability, in [0, 1 - 1/K].

    Source: Hendrycks & Gimpel 2017; A-CRC-QA section 4.
    """
    return 1.0 - max(_probabilities(evidence))


_OPTIONS = Needs(options=True)
_PRIMARY = Needs(logprobs=True)
_SAMPLES = Needs(samples=True, logprobs=True)

ESTIMATORS = (
    Estimator("length_normalised_entropy", 1, "nats", _SAMPLES, length_normalised_entropy),
    Estimator("max_softmax", 1, "probability", _OPTIONS, max_softmax),
    Estimator("perplexity", 1, "nats", _PRIMARY, perplexity),
    Estimator("predictive_entropy", 1, "nats", _OPTIONS, predictive_entropy),
    Estimator("sequence_nll", 1, "nats", _PRIMARY, sequence_nll),
)
