"""Measure sample sets with estimators: one judging pass for many questions and many estimators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from ..judges.base import Comparer
from ..sampling.replies.read import part_of_an_answer
from ..types import Missing, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence
from .combine import combined, seen_by
from .comparing import Asking, clusters_of, likeness, matrix, relevance
from .judging import JudgingPass
from .likelihood import impossible_logprobs
from .selfcheck import contradictions

__all__ = ["measure", "measure_stream", "unusable"]

QUESTIONS = 64
"""Most questions in one pass."""
ITEMS = 16384
"""Pairs that fill a pass; the question that reaches this number is its last."""


def measure(
    drawn: SampleSet, estimator: Estimator, plan: SamplingPlan, *, seen: list[Evidence] | None = None
) -> Uncertainty:
    """Measure one sample set with one estimator; see `measure_stream`.

    Args:
        drawn: What was drawn for one prompt.
        estimator: What to compute.
        plan: The plan the set was drawn by.
        seen: Receives the evidence that the formula read, if there was any.
    """
    return next(measure_stream([drawn], [estimator], plan, seen=seen))[0]


def measure_stream(
    drawns: Iterable[SampleSet],
    estimators: Sequence[Estimator],
    plan: SamplingPlan,
    *,
    seen: list[Evidence] | None = None,
) -> Iterator[list[Uncertainty]]:
    """Measure sample sets with estimators: for each set, in order, one `Uncertainty` for each estimator, in order.

    Fails closed: if a set lacks something that the plan asks for, the estimators that need it are unmeasured, with the
    reason. If a judge raises, or gives no verdict on a pair, only the sets that need that pair are unmeasured.

    Each judge, similarity and entailment model is asked once for many sets and all estimators together, and
    only once about equal pairs of equal questions. At most 64 sets are read ahead (fewer if they need many pairs), so
    memory does not grow with the number of sets. Nothing is asked before the first result is requested.

    Args:
        drawns: What was drawn, one set for each prompt.
        estimators: What to compute.
        plan: The plan the sets were drawn by.
        seen: Receives the evidence that formulas read.
    """
    members = [[(member, _readings(member)) for member in whole.members or (whole,)] for whole in estimators]
    judging, begun = JudgingPass(), list[tuple[SampleSet, list[list[_Begun]]]]()
    for drawn in drawns:
        begin = partial(_begin, drawn, plan, judging, {})
        measurements = [[begin(whole, *each) for each in own] for whole, own in zip(estimators, members, strict=True)]
        begun.append((drawn, measurements))
        if len(begun) >= QUESTIONS or judging.waiting >= ITEMS:
            yield from _scores(begun, estimators, judging, seen)
            judging, begun = JudgingPass(), []
    yield from _scores(begun, estimators, judging, seen)


# -- What the evidence of an estimator comes from ----------------------------------------------------------------------

_Reading: TypeAlias = tuple[str, Comparer, Hashable, Callable[[SampleSet], Asking]]
"""The judge, similarity or entailment model that is asked, by a key that is equal for those that give equal answers;
what is equal for equal measurements by it, which estimators share; and the measurement of a set, whose result is fields
of `Evidence`. It raises `Missing` if there is none."""


def _readings(estimator: Estimator) -> list[_Reading]:
    """The measurements that an estimator's needs name."""
    needs, readings = estimator.needs, list[_Reading]()

    def add(rater: Comparer, kind: Hashable, measurement: Callable[[SampleSet], Asking]) -> None:
        readings.append((f"{rater.role} {rater.spec.model_dump_json()}", rater, kind, measurement))

    if (judge := estimator.judge) is not None:
        grouped = partial(clusters_of, judge=judge, method=estimator.clustering, primary=needs.primary)
        add(judge, (estimator.clustering, needs.primary), grouped)
    if (similarity := estimator.similarity) is not None:
        if needs.similarity:
            add(similarity, "matrix", partial(matrix, similarity=similarity))
        if needs.likeness:
            add(similarity, "likeness", partial(likeness, similarity=similarity))
        if needs.relevance is not None:
            add(similarity, needs.relevance, partial(relevance, similarity=similarity, level=needs.relevance))
    if estimator.entailment is not None:
        add(estimator.entailment, "contradiction", contradictions)
    return readings


# -- One pass ----------------------------------------------------------------------------------------------------------


class _Begun(NamedTuple):
    """A measurement that waits for its judges.

    Attributes:
        estimator: What is computed.
        drawn: What it reads: the set, or a part of it.
        tasks: Numbers of its readings in the pass, or the reason why it cannot be measured.
    """

    estimator: Estimator
    drawn: SampleSet
    tasks: list[int] | Missing


def _begin(
    drawn: SampleSet,
    plan: SamplingPlan,
    judging: JudgingPass,
    shared: dict[Hashable, int],
    whole: Estimator,
    estimator: Estimator,
    readings: Sequence[_Reading],
) -> _Begun:
    """Begin to measure a set by a score: itself, or a member of a combination."""
    drawn, n = seen_by(estimator, whole, drawn, plan)
    tasks: list[int] = []
    try:
        if (gap := unusable(drawn, plan) or _gap(drawn, estimator, plan, n)) is not None:
            raise gap
        for key, rater, kind, measurement in readings:
            if (key, kind, n) not in shared:
                # Premise and hypothesis are whole sentences: without a question, equal pairs of any two are asked once.
                question = "" if rater.role == "entailment" else drawn.question
                shared[key, kind, n] = judging.add(key, rater, question, measurement(drawn))
            tasks.append(shared[key, kind, n])
    except Missing as missing:
        return _Begun(estimator, drawn, missing)
    return _Begun(estimator, drawn, tasks)


def _scores(
    begun: Sequence[tuple[SampleSet, Sequence[Sequence[_Begun]]]],
    estimators: Sequence[Estimator],
    judging: JudgingPass,
    seen: list[Evidence] | None,
) -> Iterator[list[Uncertainty]]:
    """Judge, then apply the formulas."""
    results = judging.run()
    for drawn, measurements in begun:
        scores = [[_score(each, results, seen) for each in own] for own in measurements]
        yield [
            combined(whole, own, drawn) if whole.members else own[0]
            for whole, own in zip(estimators, scores, strict=True)
        ]


def _score(begun: _Begun, results: Sequence[Any], seen: list[Evidence] | None) -> Uncertainty:
    tasks = begun.tasks
    found: list[Any] = [tasks] if isinstance(tasks, Missing) else [results[task] for task in tasks]
    missing = next((each for each in found if isinstance(each, Missing)), None)
    if missing is not None:
        return begun.estimator.unmeasured(missing.reason, missing.detail)
    evidence = Evidence(begun.drawn, **{name: value for fields in found for name, value in fields.items()})
    if seen is not None:
        seen.append(evidence)
    return begun.estimator.score(evidence)


def unusable(drawn: SampleSet, plan: SamplingPlan | None) -> Missing | None:
    """The reason why a set cannot be measured, or None. Without a plan a cut-off answer is not looked for."""
    if drawn.problem is not None:
        return Missing(drawn.problem, drawn.problem_detail)
    if drawn.primary is None:
        return Missing(Unmeasured.MODEL_FAILED, "there is no primary answer")
    if drawn.primary.refusal:
        return Missing(Unmeasured.REFUSED, "the model refused to answer")
    if plan is not None and (part := part_of_an_answer(drawn, plan)) is not None:
        return part
    if not drawn.primary.comparable:
        return Missing(Unmeasured.EMPTY_ANSWER, "the primary answer is empty")
    return None


def _gap(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan, n: int) -> Missing | None:
    """The first need of the estimator, which reads n samples, that the set does not meet."""
    needs = estimator.needs
    if needs.samples:
        # One sample agrees with itself, which an estimator over samples alone would take for certainty.
        if len(drawn.samples) < max(n, estimator.fewest):
            return Missing(Unmeasured.SAMPLING_SHORTFALL, f"asked for {n} samples, received {len(drawn.samples)}")
        if not all(sample.comparable for sample in drawn.samples):
            return Missing(Unmeasured.EMPTY_ANSWER, "a sample is empty")
    # Fewer options than planned would share their probability among the rest and look more certain.
    if needs.options and (drawn.options is None or drawn.options.labels != plan.options):
        read = None if drawn.options is None else drawn.options.labels
        return Missing(Unmeasured.NO_OPTIONS, f"asked to read options {plan.options}, received {read}")
    if needs.entailment and estimator.entailment is None:
        return Missing(Unmeasured.JUDGE_FAILED, f"{estimator.name} needs an entailment model, and none was given")
    return impossible_logprobs(drawn, plan.bindings) if needs.logprobs else None
