"""Measure sample sets with estimators: one judging pass for many questions and many estimators.

A pass collects the pairs of all measurements, drops those that were asked before (by another estimator, or for the same
question again), and gives each judge the rest in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

from ..foreign_errors import describe_error
from ..judges.base import Comparer, Item
from ..sampling.replies.read import part_of_an_answer
from ..types import Missing, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence
from .combine import combined, expanded, seen_by
from .comparing import Asking, Pair, clusters_of, likeness, matrix, relevance
from .likelihood import impossible_logprobs
from .selfcheck import contradictions

__all__ = ["measure", "measure_stream", "unusable"]

QUESTIONS = 64
"""Most questions in one pass."""
ITEMS = 16384
"""Pairs that fill a pass; the question that reaches this number is its last."""
BATCH = 4096
"""Most pairs that a judge gets at once."""


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
    judging = _Pass()
    begun = list[list[_End]]()
    for drawn in drawns:
        begin = partial(_begin, drawn, plan, judging, {}, seen)
        begun.append([_whole(drawn, whole, [begin(whole, *each) for each in parts]) for whole, parts in wholes])
        if len(begun) >= QUESTIONS or judging.waiting >= ITEMS:
            yield from _ended(judging, begun)
            judging, begun = _Pass(), []
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
    judging: _Pass,
    shared: dict[Hashable, _Result],
    seen: list[Evidence] | None,
    whole: Estimator,
    estimator: Estimator,
    readings: Sequence[_Reading],
) -> _End:
    """Begin to measure a set by a score: itself, or a member of a combination."""
    drawn, n = seen_by(estimator, whole, drawn, plan)
    results = list[_Result]()
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
        evidence_fields: dict[str, Any] = {}
        for result in results:
            fields = result()
            if isinstance(fields, Missing):
                return estimator.unmeasured(fields.reason, fields.detail)
            evidence_fields |= fields
        evidence = Evidence(drawn, **evidence_fields)
        if seen is not None:
            seen.append(evidence)
        return estimator.score(evidence)

    return end


def _whole(drawn: SampleSet, whole: Estimator, parts: Sequence[_End]) -> _End:
    return (lambda: combined(whole, [end() for end in parts], drawn)) if whole.members else parts[0]


def _ended(judging: _Pass, begun: Sequence[Sequence[_End]]) -> Iterator[list[Uncertainty]]:
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


# -- What is asked: each judge once for all measurements of a pass -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Failed:
    """The reason why an item has no answer.

    Attributes:
        detail: What went wrong.
        raised: Whether the judge raised; another item of the same batch may be the cause.
    """

    detail: str
    raised: bool = False


_Result: TypeAlias = Callable[[], dict[str, Any] | Missing]
"""The fields of `Evidence` that a measurement gives, or why it gives none; for after the pass."""


class _Pass:
    """Measurements that are run together. Raters are judges, similarities and entailment models."""

    def __init__(self) -> None:
        self._raters: dict[str, Comparer] = {}
        self._answers: dict[str, dict[Item, Any]] = {}
        """By rater: the answer to each item; None before it is asked."""

    @property
    def waiting(self) -> int:
        """Number of items that will be asked."""
        return sum(map(len, self._answers.values()))

    def add(self, key: str, rater: Comparer, question: str, asking: Asking) -> _Result:
        """Add a measurement by a rater; raters that give equal answers have one key."""
        items = [_item(rater, question, pair) for pair in asking.pairs]
        self._raters[key] = rater
        self._answers.setdefault(key, {}).update(dict.fromkeys(items))
        return cache(lambda: self._result(key, items, asking.read))

    def run(self) -> None:
        """Ask about all items."""
        for key, rater in self._raters.items():
            self._answers[key] = _asked(rater, self._answers[key])

    def _result(
        self, key: str, items: Sequence[Item], read: Callable[[Sequence[Any]], dict[str, Any]]
    ) -> dict[str, Any] | Missing:
        rater, known = self._raters[key], self._answers[key]
        failed = dict.fromkeys(item for item in items if isinstance(known[item], _Failed) and known[item].raised)
        if failed and len(failed) < len(known):
            # Asked on their own: a bad pair fails only the measurements that need it.
            known = {**known, **_asked(rater, failed)}
        answers = [known[item] for item in items]
        fault = next((answer for answer in answers if isinstance(answer, _Failed)), None)
        if fault is not None:
            return Missing(Unmeasured.JUDGE_FAILED, f"{rater.role} {rater.spec.name}: {fault.detail}")
        return read(answers)


def _item(rater: Comparer, question: str, pair: Pair) -> Item:
    a, b = pair
    # One orientation for both, so that a symmetric question is asked once and gets one answer.
    return (question, b, a) if b < a and rater.role != "entailment" else (question, a, b)


def _asked(rater: Comparer, items: Collection[Item]) -> dict[Item, Any]:
    """The answer to each item, or `_Failed`."""
    known: dict[Item, Any] = {}
    pending = list(items)
    for start in range(0, len(pending), BATCH):
        part = pending[start : start + BATCH]
        try:
            answers = rater.compare(list(part))  # the caller's code may change the list in place
            # With a wrong number of answers nobody knows which item each belongs to.
            fault = f"{len(answers)} answers for {len(part)} pairs" if len(answers) != len(part) else ""
        except Exception as error:  # a judge is the caller's code: any exception is a missing measurement
            fault = f"it raised {describe_error(error)}"
        if fault:
            known.update(dict.fromkeys(part, _Failed(fault, raised=True)))
        else:
            known.update((item, _checked(rater, answer)) for item, answer in zip(part, answers, strict=True))
    return known


def _checked(rater: Comparer, answer: Any) -> Any:
    if answer is None:
        return _Failed("no answer for a pair")
    try:
        return rater.read(answer)
    except (AttributeError, TypeError, ValueError) as error:
        return _Failed(f"{type(error).__name__}: {error}")
