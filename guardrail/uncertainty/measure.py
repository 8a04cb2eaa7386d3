"""Measure one sample set with several estimators, sharing one judging pass and one similarity pass."""

from __future__ import annotations

from collections.abc import Sequence

from ..judges import Similarity, canonical_calls
from ..types import Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence, Missing
from .clustering import Clusters, cluster
from .graph import Matrix, similarity_matrix

__all__ = ["answer_text", "measure", "measure_all"]


def answer_text(sample: Sample) -> str:
    """What judges compare: the canonical JSON of the tool calls where there are any, else the text."""
    return canonical_calls(sample.tool_calls) if sample.tool_calls else sample.text.strip()


def measure(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> Uncertainty:
    """Measure one sample set with one estimator; see `measure_all`."""
    return measure_all(drawn, [estimator], plan)[0]


def measure_all(drawn: SampleSet, estimators: Sequence[Estimator], plan: SamplingPlan) -> list[Uncertainty]:
    """Measure one sample set with several estimators.

    Fails closed: whatever the plan asks for and the set lacks makes the estimators that need it unmeasured, with the
    reason. Estimators with the same judge and clustering share one clustering, and those with the same similarity one
    matrix.

    Args:
        drawn: What was drawn for the prompt.
        estimators: What to compute.
        plan: The plan the set was drawn by.

    Returns:
        One `Uncertainty` an estimator, in order.
    """
    clusters: dict[str, Clusters | Missing] = {}
    matrices: dict[str, Matrix | Missing] = {}
    results = []
    for estimator in estimators:
        found = _gap(drawn, estimator, plan)
        evidence = found if found is not None else _evidence(drawn, estimator, clusters, matrices)
        if isinstance(evidence, Missing):
            results.append(estimator.unmeasured(evidence.reason, evidence.detail))
        else:
            results.append(estimator.score(evidence))
    return results


def _evidence(
    drawn: SampleSet,
    estimator: Estimator,
    clusters: dict[str, Clusters | Missing],
    matrices: dict[str, Matrix | Missing],
) -> Evidence | Missing:
    """What the formula reads; judged and rated once for all estimators of a set."""
    grouped: Clusters | Missing | None = None
    matrix: Matrix | Missing | None = None
    if estimator.judge is not None:
        key = f"{estimator.judge.spec.model_dump_json()}/{estimator.clustering}"
        if key not in clusters:
            clusters[key] = _cluster(drawn, estimator)
        grouped = clusters[key]
    if estimator.similarity is not None:
        key = estimator.similarity.spec.model_dump_json()
        if key not in matrices:
            matrices[key] = _rate(drawn, estimator.similarity)
        matrix = matrices[key]
    if isinstance(grouped, Missing):
        return grouped
    return matrix if isinstance(matrix, Missing) else Evidence(drawn, grouped, matrix)


def _gap(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> Missing | None:
    """What the estimator needs and the set lacks."""
    if drawn.problem is not None:
        return Missing(drawn.problem, drawn.problem_detail)
    if drawn.primary is None:
        return Missing(Unmeasured.MODEL_FAILED, "there is no primary answer")
    if drawn.primary.refusal:
        return Missing(Unmeasured.REFUSED, "the model refused to answer")
    if not answer_text(drawn.primary) and not drawn.primary.tool_calls:
        return Missing(Unmeasured.EMPTY_ANSWER, "the primary answer is empty")
    needs = estimator.needs
    if needs.samples:
        if len(drawn.samples) < max(plan.n, 2):
            return Missing(Unmeasured.SAMPLING_SHORTFALL, f"asked for {plan.n} samples, received {len(drawn.samples)}")
        if not all(answer_text(sample) or sample.tool_calls for sample in drawn.samples):
            return Missing(Unmeasured.EMPTY_ANSWER, "a sample is empty")
    if needs.options and (drawn.options is None or drawn.options.labels != plan.options):
        read = None if drawn.options is None else drawn.options.labels
        return Missing(Unmeasured.NO_OPTIONS, f"asked to read options {plan.options}, received {read}")
    return None


def _cluster(drawn: SampleSet, estimator: Estimator) -> Clusters | Missing:
    assert estimator.judge is not None
    answers = [answer_text(sample) for sample in drawn.samples]
    try:
        clusters = cluster(drawn.question, answers, estimator.judge, estimator.clustering)
    except Exception as error:  # a judge is somebody else's code; whatever it raises is a missing measurement
        return Missing(Unmeasured.JUDGE_FAILED, f"judge {estimator.judge.spec.name}: {type(error).__name__}: {error}")
    if clusters is None:
        return Missing(Unmeasured.JUDGE_FAILED, f"judge {estimator.judge.spec.name} gave no verdict on a pair")
    return clusters


def _rate(drawn: SampleSet, similarity: Similarity) -> Matrix | Missing:
    name = similarity.spec.name
    try:
        matrix = similarity_matrix(drawn.question, [answer_text(sample) for sample in drawn.samples], similarity)
    except Exception as error:  # as for judges
        return Missing(Unmeasured.JUDGE_FAILED, f"similarity {name}: {type(error).__name__}: {error}")
    if matrix is None:
        return Missing(Unmeasured.JUDGE_FAILED, f"similarity {name} gave no rating for a pair")
    return matrix
