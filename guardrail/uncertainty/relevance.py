"""Estimators that weigh each word or token by how much it matters to its answer: WSE, SAR and the answer's own words.

A piece matters as much as the answer changes without it. Notation: question x, n samples s_1 ... s_n, pieces w of a
sample, g a similarity in [0, 1]. The similarity receives the question with the two texts; an embedding or a
cross-encoder prepends it to both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..judges import GuardedJaccard
from ..judges.words import FUNCTION_WORDS, NEGATIONS, asked_words, fold, read
from ..types import Missing, Unmeasured
from .alignment import total, words
from .base import Estimator, Evidence, Needs
from .likelihood import nll_of

__all__ = ["ESTIMATORS"]

TEMPERATURE = 0.001
"""t of the sentence level: the share that similar samples add is divided by it."""


def weighted_nll(costs: Sequence[float], likeness: Sequence[float]) -> float:
    """Relevance-weighted NLL of an answer: U = sum_w R(w) NLL(w) / sum_w R(w), R(w) = 1 - |g(x + s, x + s without w)|.

    Nats; a weighted mean, so between the smallest and the largest NLL of a piece. Weights are uniform if no piece
    matters (sum R = 0), and a single piece has weight 1.

    Args:
        costs: NLL of each piece of the answer.
        likeness: Similarity of the answer to itself without each piece.
    """
    matters = [1 - abs(value) for value in likeness]
    weight = math.fsum(matters)
    # No piece matters: a weighted mean with weights 0 does not exist, and 0 would call the answer certain.
    if weight <= 0:
        return math.fsum(costs) / len(costs)
    return math.fsum(share * nll for share, nll in zip(matters, costs, strict=True)) / weight


def _weighted(evidence: Evidence) -> list[float]:
    """U of each sample."""
    return [weighted_nll(nlls, alike) for nlls, alike in zip(evidence.costs, evidence.relevance, strict=True)]


def _supported(alike: Sequence[Sequence[float]], costs: Sequence[float]) -> float:
    """Mean over j of -ln(p_j + (1/t) sum_{k != j} g_jk p_k), p = exp(-costs), by log-sum-exp: it cannot underflow."""
    scores = []
    for j, cost in enumerate(costs):
        terms = [-cost]
        for k, other in enumerate(costs):
            # A similarity of 0 adds nothing, and its logarithm does not exist.
            if k != j and alike[j][k] > 0:
                terms.append(math.log(alike[j][k] / TEMPERATURE) - other)
        # The largest term leaves exp(0) = 1 in the sum, so the logarithm always exists.
        top = max(terms)
        scores.append(-top - math.log(math.fsum(math.exp(term - top) for term in terms)))
    return math.fsum(scores) / len(scores)


def _alike(evidence: Evidence) -> Sequence[Sequence[float]]:
    """Similarity of samples, rows and columns in the order of the samples."""
    # The matrix is in canonical order; costs are in the order of the samples and must meet their own rows.
    return tuple(tuple(evidence.matrix[a][b] for b in evidence.rows) for a in evidence.rows)


def word_sequence_entropy(evidence: Evidence) -> float:
    """Word-sequence entropy (WSE). Nats, in [-ln(1 + (n - 1)/t), inf), t = 0.001; usually below 0.

    Words = white-space split; NLL(w) = sum over the word's tokens; R(w) = 1 - g(x + s, x + s without w), normalised
    over the answer; U(s) = sum_w R(w) NLL(w); p'(s) = exp(-U(s)); score = mean_j -ln(p'(s_j) + (1/t) sum_{k != j}
    g(s_j, s_k) p'(s_k)).

    Source: Wang et al., Engineering Applications of AI 2025 (arXiv 2402.14259). This is a reconstruction: the authors
    published no code, and details that the description leaves open (the similarity model, t, word by word or occurrence
    by occurrence) follow SAR. It is SAR at the level of words; parity with the paper's numbers is not claimed. Ties:
    see `weighted_nll`. One answer whose tokens do not spell it makes it unmeasured.
    """
    return _supported(_alike(evidence), _weighted(evidence))


def sar(evidence: Evidence) -> float:
    """SAR: shifting attention to relevance, at token and at sentence level. Nats, in [-ln(1 + (n - 1)/t), inf).

    U(s) = sum_i R(z_i) NLL(z_i) over tokens, p'(s) = exp(-U(s)); score = mean_j -ln(p'(s_j) + (1/t) sum_{k != j}
    g(s_j, s_k) p'(s_k)), t = 0.001.

    Source: Duan et al., ACL 2024. Differences: a token is removed at its place (the authors' code removes every
    occurrence of its letters), tokens that share a character are one, end tokens are not part of the answer, and tokens
    that do not fit the text are unmeasured (in their code a count that does not fit scores 0, i.e. certain). Their g
    is cross-encoder/stsb-roberta-large; the default here compares words, and an embedding is recommended.
    """
    return _supported(_alike(evidence), _weighted(evidence))


def token_sar(evidence: Evidence) -> float:
    """Token-level SAR: mean over samples of U(s) = sum_i R(z_i) NLL(z_i). Nats per token, in [0, inf).

    R(z) = 1 - |g(x + s, x + s without z)|, normalised over the answer. Source: Duan et al., ACL 2024; differences as in
    `sar`. lm-polygraph computes it on the greedy answer only, and gives a single token relevance 0.5; here its weight
    is 1.
    """
    costs = _weighted(evidence)
    return math.fsum(costs) / len(costs)


def sentence_sar(evidence: Evidence) -> float:
    """Sentence-level SAR: mean_j -ln(p(s_j) + (1/t) sum_{k != j} g(s_j, s_k) p(s_k)), t = 0.001, p(s) = exp(-NLL(s)).

    Nats, in [-ln(1 + (n - 1)/t), inf). p is the probability of the whole answer, not divided by its length. Computed in
    logarithms: answers of a thousand tokens do not underflow.
    Source: Duan et al., ACL 2024. The authors rate question + answer; here g may ignore the question.
    """
    return _supported(_alike(evidence), [nll_of(sample) for sample in evidence.drawn.samples])


def answer_word_nll(evidence: Evidence) -> float:
    """Answer-word NLL of the primary answer: -sum ln p(z) over the tokens of own words. Nats, in [0, inf).

    Own words are neither in the question nor function words (`guardrail.judges.words.FUNCTION_WORDS`): a full sentence
    otherwise pays for its phrasing. Words are split at white space, so the marks at a word's end belong to it. An
    answer of function words only ("No.") counts whole. An *echo*, whose content words all stand in the question, says
    nothing and is unmeasured: a guard holds it back. So this score is not for questions that name their answer ("Is it
    A or B?"). The sum grows with every own word, so that longer answers score as less certain.

    Source: `sequence_nll`, which Aichberger et al. 2024 (arXiv 2412.15176) derive from a proper score as G-NLL, on
    fewer tokens. The restriction to own words is this library's.
    """
    primary, question = evidence.answer, evidence.drawn.question
    if primary.tool_calls:
        raise Missing(Unmeasured.NO_LOGPROBS, "a tool call has no words whose log-probabilities could be added")
    extents = words(primary)
    text = primary.text.strip()
    functional = FUNCTION_WORDS | NEGATIONS
    asked = functional | asked_words(question)
    answer_words = read(text).words
    if asked.issuperset(answer_words) and not functional.issuperset(answer_words):
        raise Missing(Unmeasured.EMPTY_ANSWER, "the answer only repeats words of the question")
    spelled = [(span.nll, text[span.start : span.end]) for span in extents]
    content_nlls = [
        nll for nll, word in spelled if fold(word) not in functional and not asked.issuperset(read(word).words)
    ]
    # No own word and no echo: function words only, and those are the answer ("No.").
    return total(content_nlls or [span.nll for span in extents])


_SAMPLES = Needs(samples=True, logprobs=True)
_MATRIX = replace(_SAMPLES, similarity=True)
_TOKENS, _WORDS = replace(_MATRIX, relevance="token"), replace(_MATRIX, relevance="word")
_ALIKE = GuardedJaccard()

ESTIMATORS = (
    Estimator("answer_word_nll", 3, "nats", Needs(logprobs=True), answer_word_nll),
    Estimator("sar", 1, "nats", _TOKENS, sar, similarity=_ALIKE),
    Estimator("sentence_sar", 1, "nats", _MATRIX, sentence_sar, similarity=_ALIKE),
    Estimator("token_sar", 1, "nats", replace(_SAMPLES, relevance="token"), token_sar, similarity=_ALIKE),
    Estimator("word_sequence_entropy", 1, "nats", _WORDS, word_sequence_entropy, similarity=_ALIKE),
)
