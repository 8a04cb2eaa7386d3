"""Estimators over clusters of samples that mean the same: entropies and self-consistency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..judges import Jaccard
from ..types import Missing, Unmeasured
from .base import Estimator, Evidence, Needs
from .comparing import Clusters
from .likelihood import mean_logprob

__all__ = ["ESTIMATORS"]


def _entropy(weights: Sequence[float]) -> float:
    """Shannon entropy, in nats, of weights scaled to sum to 1; 0 ln 0 = 0.

    `math.fsum` rounds once and does not depend on the order: equal partitions give bit-equal scores, so that ties stay
    ties.
    """
    total = math.fsum(weights)
    return -math.fsum((w / total) * math.log(w / total) for w in weights if w > 0)


def _clusters(evidence: Evidence) -> Clusters:
    if not evidence.clusters.assignment:  # whose entropy is 0, as that of a certain answer
        raise Missing(Unmeasured.SAMPLING_SHORTFALL, "there are no samples to cluster")
    return evidence.clusters


def discrete_semantic_entropy(evidence: Evidence) -> float:
    """Discrete semantic entropy: P(C) = |C| / n over clusters of equal meaning, -sum_C P ln P. Nats, in [0, ln n].

    With n = 10 it takes at most 42 values, with a large block at 0: thresholds treat ties as blocks.
    Source: Farquhar et al., Nature 2024 (the black-box variant). Difference: clusters are connected components, which
    do not depend on the order of the samples; the paper assigns each answer to the first cluster that it fits.
    """
    return _entropy(_clusters(evidence).sizes)


def self_consistency(evidence: Evidence) -> float:
    """Self-consistency as an uncertainty: 1 - share of the largest cluster. Probability, in [0, 1 - 1/n].

    Source: Wang et al. 2023 (majority vote).
    """
    clusters = _clusters(evidence)
    return 1.0 - max(clusters.sizes) / len(clusters.assignment)


def primary_disagreement(evidence: Evidence) -> float:
    """Disagreement with the answer that would be returned: 1 - share of the samples that mean the same as the primary.

    Probability, in [0, 1]; 1 when no sample agrees with it. If the primary answer is the most frequent one it equals
    `self_consistency`; otherwise the samples count against it, even if they agree with each other. Source: the
    exact-match rate of uqlm, with any judge in place of exact match.
    """
    agreeing, n = _votes(evidence)
    return 1.0 - agreeing / n


def graded_disagreement(evidence: Evidence) -> float:
    """Disagreement with the answer that would be returned; the distance of the samples breaks ties between equal votes.

    (k + d) / (n + 1), k the number of samples that do not mean the same as the primary, d = mean over all n samples of
    1 - similarity to the primary. Probability, in [0, 1]; 0 iff all agree and are alike, 1 iff none agrees and none has
    anything in common. As d is at most one vote, an answer with fewer samples against it never scores higher: the order
    refines that of `primary_disagreement`, without a weight to fit.

    `primary_disagreement` takes n + 1 values, and thresholds can only pass between them. Source: this library. A sample
    counts 1 in uqlm's exact-match rate and 1 - cosine in its cosine score; here the former decides and the latter
    refines.
    """
    agreeing, n = _votes(evidence)
    return (n - agreeing + 1 - math.fsum(evidence.likeness) / n) / (n + 1)


def _votes(evidence: Evidence) -> tuple[int, int]:
    """The number of samples that mean the same as the primary answer, and the number of all samples."""
    clusters = _clusters(evidence)
    return clusters.assignment.count(evidence.primary_cluster), len(clusters.assignment)


def num_sets(evidence: Evidence) -> float:
    """Number of semantic sets: how many clusters of equal meaning the samples form. Count, whole, in [1, n].

    Sizes do not count: 9 + 1 and 5 + 5 both score 2, so ties are large blocks. Refusals count as one set.
    Source: Lin et al., TMLR 2024 (NumSet). They merge answers if neither contradicts the other; here the judge decides.
    """
    return float(len(_clusters(evidence).sizes))


def semantic_entropy(evidence: Evidence) -> float:
    """Semantic entropy, likelihood form: -sum_C P(C) ln P(C). Nats, in [0, ln(number of clusters)].

    p(s) = exp(mean token log-probability of s); P(C) = sum of p(s) over samples s in C, divided by the sum over all
    samples, so that cluster probabilities add to 1. The sum runs over clusters, not samples. Computed from
    log-likelihoods shifted by their maximum, so it neither overflows nor underflows.

    Source: Farquhar et al., Nature 2024, eq. 5. Samples that were drawn several times count several times, as in the
    authors' code. With equal likelihoods it equals `discrete_semantic_entropy`.
    """
    clusters = _clusters(evidence)
    means = list(map(mean_logprob, evidence.drawn.samples))
    members: dict[int, list[float]] = {}
    for label, mean in zip(clusters.assignment, means, strict=True):
        # The shift cancels when weights are scaled to sum to 1, and the largest exponent is 0.
        members.setdefault(label, []).append(math.exp(mean - max(means)))
    return _entropy([math.fsum(weights) for weights in members.values()])


_CLUSTERS = Needs(samples=True, judge=True)
_VOTES = replace(_CLUSTERS, primary=True)
_GRADED = replace(_VOTES, likeness=True)
_WEIGHED = replace(_CLUSTERS, logprobs=True)

ESTIMATORS = (
    Estimator("discrete_semantic_entropy", 1, "nats", _CLUSTERS, discrete_semantic_entropy),
    Estimator("graded_disagreement", 1, "probability", _GRADED, graded_disagreement, similarity=Jaccard()),
    Estimator("num_sets", 1, "count", _CLUSTERS, num_sets),
    Estimator("primary_disagreement", 1, "probability", _VOTES, primary_disagreement),
    Estimator("self_consistency", 1, "probability", _CLUSTERS, self_consistency),
    Estimator("semantic_entropy", 1, "nats", _WEIGHED, semantic_entropy),
)
