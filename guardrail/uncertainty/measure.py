"""Measure one sample set with several estimators, sharing one judging pass."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence, Missing
from .clustering import Clusters, cluster

__all__ = ["answer_text", "measure", "measure_all"]


def answer_text(sample: Sample) -> str:
    """What judges compare: the text."""
    return sample.text.strip()


def measure(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> Uncertainty:
    """Measure one sample set with one estimator; see `measure_all`."""
    return measure_all(drawn, [estimator], plan)[0]


def measure_all(drawn: SampleSet, estimators: Sequence[Estimator], plan: SamplingPlan) -> list[Uncertainty]:
    """Measure one sample set with several estimators.

    Fails closed: whatever the plan asks for and the set lacks makes the estimators that need it unmeasured, with the
    reason. Estimators with the same judge and clustering share one clustering.

    Args:
        drawn: What was drawn for the prompt.
        estimators: What to compute.
        plan: The plan the set was drawn by.

    Returns:
        One `Uncertainty` an estimator, in order.
    """
    shared: dict[str, Clusters | Missing] = {}
    results = []
    for estimator in estimators:
        found = _gap(drawn, estimator, plan)
        clusters: Clusters | None = None
        if found is None and estimator.judge is not None:
            key = f"{estimator.judge.spec.model_dump_json()}/{estimator.clustering}"
            if key not in shared:
                shared[key] = _cluster(drawn, estimator)
            grouped = shared[key]
            if isinstance(grouped, Missing):
                found = grouped
            else:
                clusters = grouped
        if found is not None:
            results.append(estimator.unmeasured(found.reason, found.detail))
        else:
            results.append(estimator.score(Evidence(drawn, clusters)))
    return results


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
