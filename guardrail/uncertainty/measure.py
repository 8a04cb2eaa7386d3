"""Measure sample sets with estimators: one judging pass for many questions and many estimators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..judges.base import Comparer
from ..sampling.replies.read import part_of_an_answer
from ..types import Missing, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence
from .combine import combined, expanded, seen_by
from .comparing import Asking, clusters_of, likeness, matrix, relevance
from .judging import JudgingPass, Result
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
    wholes = [(whole, [(part, _readings(part)) for part in expanded([whole])]) for whole in estimators]
    judging, begun = JudgingPass(), list[list[_End]]()
    for drawn in drawns:
        begin = partial(_begin, drawn, plan, judging, {}, seen)
        begun.append([_whole(drawn, whole, [begin(whole, *each) for each in parts]) for whole, parts in wholes])
        if len(begun) >= QUESTIONS or judging.waiting >= ITEMS:
            yield from _ended(judging, begun)
            judging, begun = JudgingPass(), []
    yield from _ended(judging, begun)


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
        grouped = partial(clusters_of, judge=judge, primary=needs.primary)
        add(judge, needs.primary, grouped)
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

_End: TypeAlias = Callable[[], Uncertainty]
"""Ends a measurement, once its judges were asked."""


def _begin(
    drawn: SampleSet,
    plan: SamplingPlan,
    judging: JudgingPass,
    shared: dict[Hashable, Result],
    seen: list[Evidence] | None,
    whole: Estimator,
    estimator: Estimator,
    readings: Sequence[_Reading],
) -> _End:
    """Begin to measure a set by a score: itself, or a member of a combination."""
    drawn, n = seen_by(estimator, whole, drawn, plan)
    results = list[Result]()
    try:
        if (gap := unusable(drawn, plan) or _gap(drawn, estimator, plan, n)) is not None:
            raise gap
        for key, rater, kind, measurement in readings:
            if (key, kind, n) not in shared:
                # Premise and hypothesis are whole sentences: without a question, equal pairs of any two are asked once.
                question = "" if rater.role == "entailment" else drawn.question
                shared[key, kind, n] = judging.add(key, rater, question, measurement(drawn))
            results.append(shared[key, kind, n])
    except Missing as missing:
        return partial(estimator.unmeasured, missing.reason, missing.detail)

    def end() -> Uncertainty:
        found: dict[str, Any] = {}
        for result in results:
            fields = result()
            if isinstance(fields, Missing):
                return estimator.unmeasured(fields.reason, fields.detail)
            found |= fields
        evidence = Evidence(drawn, **found)
        if seen is not None:
            seen.append(evidence)
        return estimator.score(evidence)

    return end


def _whole(drawn: SampleSet, whole: Estimator, parts: Sequence[_End]) -> _End:
    return (lambda: combined(whole, [end() for end in parts], drawn)) if whole.members else parts[0]


def _ended(judging: JudgingPass, begun: Sequence[Sequence[_End]]) -> Iterator[list[Uncertainty]]:
    """Judge, then apply the formulas."""
    judging.run()
    for ends in begun:
        yield [end() for end in ends]


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
