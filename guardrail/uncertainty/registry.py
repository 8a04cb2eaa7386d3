"""The estimators by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ..errors import ArtifactMismatchError, UsageError
from ..judges import (
    Entailment,
    GuardedJaccard,
    Jaccard,
    Judge,
    JudgeSpec,
    RougeL,
    Similarity,
    default_judge,
    make_entailment,
    make_similarity,
)
from ..judges import make as make_judge
from ..sampling.follow_ups import P_TRUE, SELFCHECK_PROMPT, VERBALISED
from ..specs import Clustering, EstimatorSpec
from ..types import Bindings
from .base import Estimator, Needs
from .early_bounds import by_pairs, by_partition, by_primary, semantic_entropy_bounds
from .ensemble import NAME, from_ensemble_spec
from .entropy import (
    discrete_semantic_entropy,
    graded_disagreement,
    num_sets,
    primary_disagreement,
    self_consistency,
    semantic_entropy,
)
from .graph import degree, eccentricity, eigenvalue, kernel_language_entropy, lexical_similarity
from .likelihood import length_normalised_entropy, max_softmax, perplexity, predictive_entropy, sequence_nll
from .relevance import sar, sentence_sar, token_sar, word_sequence_entropy
from .self_report import p_true, verbalised
from .selfcheck import selfcheck_ngram, selfcheck_nli, selfcheck_prompt

__all__ = ["available", "from_spec", "make"]

Made = TypeVar("Made")
_CLUSTERED = Needs(samples=True, judge=True)
_LIKELIHOOD_CLUSTERED = Needs(samples=True, logprobs=True, judge=True)
_OPTIONS = Needs(options=True)
_SAMPLE_LOGPROBS = Needs(samples=True, logprobs=True)
_GRAPH = Needs(samples=True, similarity=True)
_GRADED = Needs(samples=True, judge=True, primary=True, likeness=True)
_ALIKE = GuardedJaccard()
_WEIGHED_SAMPLES = Needs(samples=True, logprobs=True, similarity=True)
_BY_WORD = replace(_WEIGHED_SAMPLES, relevance="word")
_BY_TOKEN = replace(_WEIGHED_SAMPLES, relevance="token")
_TOKENS_ALONE = Needs(samples=True, logprobs=True, relevance="token")
_ASKED_P_TRUE = Needs(samples=True, follow_up=P_TRUE)
_ASKED_SUPPORT = Needs(samples=True, follow_up=SELFCHECK_PROMPT)
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
        Estimator(
            "graded_disagreement", 1, "probability", "continuous", _GRADED, graded_disagreement, similarity=Jaccard()
        ),
        Estimator("length_normalised_entropy", 1, "nats", "continuous", _SAMPLE_LOGPROBS, length_normalised_entropy),
        Estimator(
            "lexical_similarity", 1, "probability", "continuous", _GRAPH, lexical_similarity, similarity=RougeL()
        ),
        Estimator("max_softmax", 1, "probability", "continuous", _OPTIONS, max_softmax),
        Estimator("num_sets", 1, "count", "discrete", _CLUSTERED, num_sets),
        Estimator("p_true", 1, "probability", "continuous", _ASKED_P_TRUE, p_true),
        Estimator("perplexity", 1, "nats", "continuous", Needs(logprobs=True), perplexity),
        Estimator("predictive_entropy", 1, "nats", "continuous", _OPTIONS, predictive_entropy),
        Estimator(
            "primary_disagreement",
            1,
            "probability",
            "discrete",
            replace(_CLUSTERED, primary=True),
            primary_disagreement,
        ),
        Estimator("sar", 1, "nats", "continuous", _BY_TOKEN, sar, similarity=_ALIKE),
        Estimator("self_consistency", 1, "probability", "discrete", _CLUSTERED, self_consistency),
        Estimator("selfcheck_ngram", 2, "nats", "continuous", Needs(samples=True), selfcheck_ngram),
        Estimator("selfcheck_nli", 1, "probability", "continuous", Needs(samples=True, entailment=True), selfcheck_nli),
        Estimator("selfcheck_prompt", 1, "probability", "discrete", _ASKED_SUPPORT, selfcheck_prompt),
        Estimator("semantic_entropy", 1, "nats", "continuous", _LIKELIHOOD_CLUSTERED, semantic_entropy),
        Estimator("sentence_sar", 1, "nats", "continuous", _WEIGHED_SAMPLES, sentence_sar, similarity=_ALIKE),
        Estimator("sequence_nll", 1, "nats", "continuous", Needs(logprobs=True), sequence_nll),
        Estimator("token_sar", 1, "nats", "continuous", _TOKENS_ALONE, token_sar, similarity=_ALIKE),
        Estimator("verbalised", 1, "probability", "discrete", Needs(follow_up=VERBALISED), verbalised),
        Estimator("word_sequence_entropy", 1, "nats", "continuous", _BY_WORD, word_sequence_entropy, similarity=_ALIKE),
    )
}
_ESTIMATORS |= {
    name: replace(_ESTIMATORS[name], bounds=bounds)
    for name, bounds in {
        "degree": by_pairs(degree),
        "discrete_semantic_entropy": by_partition(discrete_semantic_entropy),
        "graded_disagreement": by_primary(graded_disagreement),
        "lexical_similarity": by_pairs(lexical_similarity),
        "num_sets": by_partition(num_sets),
        "primary_disagreement": by_primary(primary_disagreement),
        "self_consistency": by_partition(self_consistency),
        "semantic_entropy": semantic_entropy_bounds,
    }.items()
}


def available() -> tuple[str, ...]:
    """Names of the estimators, sorted."""
    return tuple(sorted(_ESTIMATORS))


def make(
    name: str,
    *,
    judge: Judge | None = None,
    clustering: Clustering = "components",
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
    bindings: Bindings | None = None,
) -> Estimator:
    """Make an estimator by name.

    Args:
        name: One of `available()`.
        judge: Equivalence judge, for estimators that cluster. Default: `default_judge` of the bindings: `token_f1` at
            0.5, or `json` where answers have a format.
        clustering: How verdicts become clusters.
        similarity: Graded similarity, for estimators over a graph or over pieces of an answer. Default:
            `guarded_jaccard`; `rouge_l` for `lexical_similarity`; `jaccard` for `graded_disagreement`.
        entailment: Entailment model, for estimators that look for contradictions. There is no default: without one
            they are unmeasured.
        bindings: The plan's tools and answer format, which decide the default judge.

    Raises:
        UsageError: Unknown name, or a judge, similarity or entailment model for an estimator that uses none.
    """
    if name not in _ESTIMATORS:
        raise UsageError(f"no estimator named {name!r}; choose one of {', '.join(available())}")
    estimator = _ESTIMATORS[name]
    rates = estimator.similarity is not None
    if similarity is not None and not rates:
        raise UsageError(f"{name} rates no pairs of answers and takes no similarity; leave similarity out")
    if entailment is not None and not estimator.needs.entailment:
        raise UsageError(f"{name} looks for no contradictions and takes no entailment model; leave entailment out")
    estimator = replace(estimator, similarity=similarity or estimator.similarity, entailment=entailment)
    if not estimator.needs.judge:
        if judge is not None:
            instead = "pass similarity=from_judge(judge)" if rates else "leave judge out"
            raise UsageError(f"{name} groups no answers and takes no judge; {instead}")
        return estimator
    return replace(estimator, judge=judge or default_judge(bindings), clustering=clustering)


def from_spec(
    spec: EstimatorSpec,
    *,
    judge: Judge | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
) -> Estimator:
    """The estimator an artifact was calibrated with.

    Args:
        spec: What the artifact stores.
        judge: The judge object, for judges that cannot be made by name. Its spec must equal the stored one.
        similarity: The similarity object, likewise.
        entailment: The entailment model, likewise.

    Raises:
        ArtifactMismatchError: This library's estimator or judge differs from the calibrated one; both are named.
        MissingDependencyError: The package of a judge that is made by name is not installed.
    """
    if spec.name.startswith("imported:"):
        raise ArtifactMismatchError(
            f"calibrated on {spec.name!r}: scores that came from a file, which a guard cannot compute. Such an "
            "artifact is for study; `calibrate collect` draws answers that lead to one that can be served."
        )
    if spec.name == NAME:
        remake = partial(_member, judge=judge, similarity=similarity, entailment=entailment)
        return from_ensemble_spec(spec, remake)
    if spec.name not in _ESTIMATORS:
        raise ArtifactMismatchError(f"calibrated with estimator {spec.name!r}, which this version does not have")
    running = make(
        spec.name,
        judge=judge or _remade(spec.judge, make_judge, "judge", "judge"),
        clustering=spec.clustering or "components",
        similarity=similarity or _remade(spec.similarity, make_similarity, "similarity", "similarity"),
        entailment=entailment or _remade(spec.entailment, make_entailment, "entailment model", "entailment"),
    )
    if running.spec != spec:
        raise ArtifactMismatchError(
            f"estimator differs: calibrated with {spec.model_dump()}, running {running.spec.model_dump()}. "
            "Scores are not comparable: calibrate again, or install the version that made the artifact."
        )
    return running


def _remade(spec: JudgeSpec | None, remake: Callable[..., Made], kind: str, argument: str) -> Made | None:
    """The judge, similarity or entailment model of a spec, made by name."""
    if spec is None:
        return None
    try:
        return remake(spec.name, **spec.params)
    except UsageError as error:
        raise ArtifactMismatchError(
            f"calibrated with {kind} {spec.name!r} {spec.params}, which cannot be made by name here ({error}). "
            f"Pass the {kind} object: Guardrail(..., {argument}=...)."
        ) from error


def _member(
    spec: EstimatorSpec, *, judge: Judge | None, similarity: Similarity | None, entailment: Entailment | None
) -> Estimator:
    """A member of an ensemble, with the objects given only where they are its own."""
    return from_spec(
        spec,
        judge=judge if judge is not None and judge.spec == spec.judge else None,
        similarity=similarity if similarity is not None and similarity.spec == spec.similarity else None,
        entailment=entailment if entailment is not None and entailment.spec == spec.entailment else None,
    )
