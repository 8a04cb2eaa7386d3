"""The estimators by name."""

from __future__ import annotations

from dataclasses import replace

from ..errors import ArtifactMismatchError, UsageError
from ..judges import GuardedJaccard, Judge, RougeL, Similarity, make_similarity
from ..judges import make as make_judge
from .base import Estimator, EstimatorSpec, Needs
from .clustering import Clustering
from .entropy import discrete_semantic_entropy, num_sets, self_consistency, semantic_entropy
from .graph import degree, eccentricity, eigenvalue, kernel_language_entropy, lexical_similarity
from .likelihood import length_normalised_entropy, perplexity, sequence_nll
from .options import max_softmax, predictive_entropy

__all__ = ["available", "from_spec", "make"]

_CLUSTERED = Needs(samples=True, judge=True)
_LIKELIHOOD_CLUSTERED = Needs(samples=True, logprobs=True, judge=True)
_OPTIONS = Needs(options=True)
_SAMPLE_LOGPROBS = Needs(samples=True, logprobs=True)
_GRAPH = Needs(samples=True, similarity=True)
_ALIKE = GuardedJaccard()
_ESTIMATORS = {
    estimator.name: estimator
    for estimator in (
        Estimator("degree", 1, "probability", "continuous", _GRAPH, degree, similarity=_ALIKE),
        Estimator("discrete_semantic_entropy", 1, "nats", "discrete", _CLUSTERED, discrete_semantic_entropy),
        Estimator("eccentricity", 1, "distance", "continuous", _GRAPH, eccentricity, similarity=_ALIKE),
        Estimator("eigenvalue", 1, "count", "continuous", _GRAPH, eigenvalue, similarity=_ALIKE),
        Estimator(
            "kernel_language_entropy", 1, "nats", "continuous", _GRAPH, kernel_language_entropy, similarity=_ALIKE
        ),
        Estimator("length_normalised_entropy", 1, "nats", "continuous", _SAMPLE_LOGPROBS, length_normalised_entropy),
        Estimator(
            "lexical_similarity", 1, "probability", "continuous", _GRAPH, lexical_similarity, similarity=RougeL()
        ),
        Estimator("max_softmax", 1, "probability", "continuous", _OPTIONS, max_softmax),
        Estimator("num_sets", 1, "count", "discrete", _CLUSTERED, num_sets),
        Estimator("perplexity", 1, "nats", "continuous", Needs(logprobs=True), perplexity),
        Estimator("predictive_entropy", 1, "nats", "continuous", _OPTIONS, predictive_entropy),
        Estimator("self_consistency", 1, "probability", "discrete", _CLUSTERED, self_consistency),
        Estimator("semantic_entropy", 1, "nats", "continuous", _LIKELIHOOD_CLUSTERED, semantic_entropy),
        Estimator("sequence_nll", 1, "nats", "continuous", Needs(logprobs=True), sequence_nll),
    )
}
DEFAULT_JUDGE = "token_f1"
"""Judge of the clustering estimators when none is given, at its default threshold."""


def available() -> tuple[str, ...]:
    """Names of the estimators, sorted."""
    return tuple(sorted(_ESTIMATORS))


def make(
    name: str,
    *,
    judge: Judge | None = None,
    clustering: Clustering = "components",
    similarity: Similarity | None = None,
) -> Estimator:
    """Make an estimator by name.

    Args:
        name: One of `available()`.
        judge: Equivalence judge, for estimators that cluster. Default: `token_f1` at 0.5.
        clustering: How verdicts become clusters.
        similarity: Graded similarity, for estimators over a graph. Default: `guarded_jaccard`; `rouge_l` for
            `lexical_similarity`.

    Raises:
        UsageError: Unknown name, or a judge or similarity for an estimator that uses none.
    """
    if name not in _ESTIMATORS:
        raise UsageError(f"no estimator named {name!r}; choose one of {', '.join(available())}")
    estimator = _ESTIMATORS[name]
    if similarity is not None and not estimator.needs.similarity:
        raise UsageError(f"{name} rates no pairs of answers and takes no similarity; leave similarity out")
    if not estimator.needs.judge:
        if judge is not None:
            instead = "pass similarity=from_judge(judge)" if estimator.needs.similarity else "leave judge out"
            raise UsageError(f"{name} groups no answers and takes no judge; {instead}")
        return estimator if similarity is None else replace(estimator, similarity=similarity)
    return replace(estimator, judge=judge or make_judge(DEFAULT_JUDGE), clustering=clustering)


def from_spec(spec: EstimatorSpec, *, judge: Judge | None = None, similarity: Similarity | None = None) -> Estimator:
    """The estimator an artifact was calibrated with.

    Args:
        spec: What the artifact stores.
        judge: The judge object, for judges that cannot be made by name. Its spec must equal the stored one.
        similarity: The similarity object, likewise.

    Raises:
        ArtifactMismatchError: This library's estimator or judge differs from the calibrated one; both are named.
    """
    if spec.name.startswith("imported:"):
        raise ArtifactMismatchError(
            f"calibrated on {spec.name!r}: scores that came from a file, which a guard cannot compute. Such an "
            "artifact is for study; `calibrate collect` draws answers that lead to one that can be served."
        )
    if spec.name not in _ESTIMATORS:
        raise ArtifactMismatchError(f"calibrated with estimator {spec.name!r}, which this version does not have")
    if spec.judge is not None and judge is None:
        try:
            judge = make_judge(spec.judge.name, **spec.judge.params)
        except (UsageError, TypeError) as error:
            raise ArtifactMismatchError(
                f"calibrated with judge {spec.judge.name!r} {spec.judge.params}, which cannot be made by name here "
                f"({error}). Pass the judge object: Guardrail(..., judge=...)."
            ) from error
    if spec.similarity is not None and similarity is None:
        try:
            similarity = make_similarity(spec.similarity.name, **spec.similarity.params)
        except UsageError as error:
            raise ArtifactMismatchError(
                f"calibrated with similarity {spec.similarity.name!r} {spec.similarity.params}, which cannot be made "
                f"by name here ({error}). Pass the similarity object: Guardrail(..., similarity=...)."
            ) from error
    running = make(spec.name, judge=judge, clustering=spec.clustering or "components", similarity=similarity)
    if running.spec != spec:
        raise ArtifactMismatchError(
            f"estimator differs: calibrated with {spec.model_dump()}, running {running.spec.model_dump()}. "
            "Scores are not comparable: calibrate again, or install the version that made the artifact."
        )
    return running
