"""Measure sample sets with estimators: one judging pass for many questions and many estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from ..judges import Similarity
from ..sampling.replies import part_of_an_answer
from ..types import Missing, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence, Level
from .clustering import Steps, clustering
from .combine import combined, first_stage
from .graph import graph, likeness
from .judging import JudgingPass, Rater, entailment_rater, judge_rater, similarity_rater
from .likelihood import impossible_logprobs
from .relevance import all_pieces, relevance_of
from .selfcheck import contradictions, sentences

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

    Each judge, similarity and entailment model is asked once per round for many sets and all estimators together, and
    only once about equal pairs of equal questions. At most 64 sets are read ahead (fewer if they need many pairs), so
    memory does not grow with the number of sets. Nothing is asked before the first result is requested.

    Args:
        drawns: What was drawn, one set for each prompt.
        estimators: What to compute.
        plan: The plan the sets were drawn by.
        seen: Receives the evidence that formulas read.
    """
    wants = [_Wants.of(member, estimator) for estimator in estimators for member in estimator.members or (estimator,)]
    batch = _Batch(wants, plan, seen)
    for drawn in drawns:
        batch.add(drawn)
        if batch.full:
            yield from batch.scores(estimators)
            batch = _Batch(wants, plan, seen)
    yield from batch.scores(estimators)


@dataclass(slots=True)
class _Set:
    """A sample set in a pass, with the number of each of its measurements there."""

    drawn: SampleSet
    answers: list[str]
    tasks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, drawn: SampleSet) -> _Set:
        return cls(drawn, [sample.comparable for sample in drawn.samples])

    @property
    def primary(self) -> str:
        assert self.drawn.primary is not None  # `unusable`
        return self.drawn.primary.comparable


_Fields: TypeAlias = dict[str, Any]
"""Fields of `Evidence` that a measurement gives."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A measurement that the evidence of an estimator needs.

    Attributes:
        rater: The judge, similarity or entailment model that is asked.
        key: Equal for measurements that give equal results: estimators share them.
        steps: The measurement of a set.
    """

    rater: Rater
    key: str
    steps: Callable[[_Set], Steps[Any, _Fields | Missing]]


def _readings(estimator: Estimator) -> list[_Reading]:
    """The measurements that an estimator's needs name."""
    needs, readings = estimator.needs, list[_Reading]()
    if estimator.judge is not None:
        rater = judge_rater(estimator.judge)
        key = f"{rater.key}/{estimator.clustering}/{needs.primary}"
        readings.append(_Reading(rater, key, partial(_clusters, estimator)))
    if estimator.similarity is not None:
        rater = similarity_rater(estimator.similarity)
        if needs.similarity:
            readings.append(_Reading(rater, f"{rater.key}/matrix", partial(_matrix, estimator.similarity)))
        if needs.likeness:
            readings.append(_Reading(rater, f"{rater.key}/likeness", partial(_likeness, estimator.similarity)))
        if needs.relevance is not None:
            steps = partial(_relevance, needs.relevance, estimator.similarity)
            readings.append(_Reading(rater, f"{rater.key}/{needs.relevance}", steps))
    if estimator.entailment is not None:
        rater = entailment_rater(estimator.entailment)
        readings.append(_Reading(rater, rater.key, _contradictions))
    return readings


def _clusters(estimator: Estimator, own: _Set) -> Steps[bool, _Fields]:
    assert estimator.judge is not None
    answers = [*own.answers, own.primary] if estimator.needs.primary else own.answers
    clusters = yield from clustering(answers, estimator.judge, estimator.clustering)
    if clusters is None or not estimator.needs.primary:
        return {"clusters": clusters}
    *assignment, label = clusters.assignment
    samples = clusters.model_copy(update={"assignment": tuple(assignment)})
    # -1 is no cluster's number, so an answer that no sample shares counts no votes.
    return {"clusters": samples, "primary_cluster": label if label in assignment else -1}


def _matrix(similarity: Similarity, own: _Set) -> Steps[float, _Fields]:
    rated = yield from graph(own.answers, similarity)
    return None if rated is None else {"matrix": rated[0], "rows": rated[1]}


def _likeness(similarity: Similarity, own: _Set) -> Steps[float, _Fields]:
    return {"likeness": (yield from likeness(own.primary, own.answers, similarity))}


def _relevance(level: Level, similarity: Similarity, own: _Set) -> Steps[float, _Fields | Missing]:
    pieces = all_pieces(own.drawn, level)
    if isinstance(pieces, Missing):
        return pieces
    return {"pieces": pieces, "relevance": (yield from relevance_of(own.answers, pieces, similarity))}


def _contradictions(own: _Set) -> Steps[float, _Fields]:
    return {"contradiction": (yield from contradictions(sentences(own.primary), own.answers))}


@dataclass(frozen=True, slots=True)
class _Wants:
    """An estimator and what its evidence comes from, prepared once.

    Attributes:
        estimator: What to compute.
        readings: The measurements that it needs.
        first: Whether it comes first in `then`, and reads what the first stage draws.
        samples: Number of samples that it reads, the first of the set; None for all.
    """

    estimator: Estimator
    readings: Sequence[_Reading]
    first: bool
    samples: int | None

    @classmethod
    def of(cls, estimator: Estimator, whole: Estimator) -> _Wants:
        """From an estimator, and the combination that it is a member of, or itself."""
        first = whole.after_first is not None and estimator is whole.members[0]
        return cls(estimator, _readings(estimator), first, whole.first if first else whole.samples)

    def part_of(self, sample_set: _Set, plan: SamplingPlan) -> _Set:
        """The part of a set, drawn by a plan, that the estimator reads."""
        drawn = sample_set.drawn
        if self.first:
            return _Set.of(first_stage(drawn, self.samples or 0, plan))
        if self.samples is None or len(drawn.samples) <= self.samples:
            return sample_set
        return _Set.of(drawn.model_copy(update={"samples": drawn.samples[: self.samples]}))


_Measured: TypeAlias = list[tuple[_Set, Missing | None]]
"""For each estimator, the set it measures, and the reason if it cannot."""


class _Batch:
    """Sample sets that are judged together."""

    def __init__(self, wants: Sequence[_Wants], plan: SamplingPlan, seen: list[Evidence] | None) -> None:
        self._wants = wants
        self._seen = seen
        self._plan = plan
        self._judging = JudgingPass()
        self._sets: list[tuple[SampleSet, _Measured]] = []

    @property
    def full(self) -> bool:
        return len(self._sets) >= QUESTIONS or self._judging.waiting >= ITEMS

    def add(self, drawn: SampleSet) -> None:
        """Begin the judgements of a set."""
        whole = _Set.of(drawn)
        measured: _Measured = []
        problem = unusable(drawn, self._plan)
        for want in self._wants:
            sample_set = want.part_of(whole, self._plan)
            fault = problem if sample_set is whole else unusable(sample_set.drawn, self._plan)
            n = self._plan.n if want.samples is None else want.samples
            gap = fault or _gap(sample_set, want.estimator, self._plan, n)
            if gap is None:
                self._begin(sample_set, want)
            measured.append((sample_set, gap))
        self._sets.append((drawn, measured))

    def scores(self, estimators: Sequence[Estimator]) -> Iterator[list[Uncertainty]]:
        """Judge, then apply the formulas."""
        results = self._judging.run()
        for drawn, measured in self._sets:
            scores = []
            for want, (sample_set, gap) in zip(self._wants, measured, strict=True):
                evidence = gap or _evidence(sample_set, want, results)
                if isinstance(evidence, Missing):
                    scores.append(want.estimator.unmeasured(evidence.reason, evidence.detail))
                else:
                    if self._seen is not None:
                        self._seen.append(evidence)
                    scores.append(want.estimator.score(evidence))
            yield combined(drawn, estimators, scores)

    def _begin(self, sample_set: _Set, want: _Wants) -> None:
        for reading in want.readings:
            if reading.key not in sample_set.tasks:
                # Premise and hypothesis are whole sentences: without a question, equal pairs of any two questions are
                # asked once.
                question = "" if reading.rater.directed else sample_set.drawn.question
                sample_set.tasks[reading.key] = self._judging.add(reading.rater, question, reading.steps(sample_set))


def _evidence(sample_set: _Set, want: _Wants, results: Sequence[_Fields | Missing]) -> Evidence | Missing:
    """The input of the formula: the results of the pass, or the first reason why one is missing."""
    fields: _Fields = {}
    for reading in want.readings:
        result = results[sample_set.tasks[reading.key]]
        if isinstance(result, Missing):
            return result
        fields |= result
    return Evidence(sample_set.drawn, **fields)


def unusable(drawn: SampleSet, plan: SamplingPlan | None) -> Missing | None:
    """The reason why a set cannot be measured, or None. Without a plan a cut-off answer is not looked for."""
    if drawn.problem is not None:
        return Missing(drawn.problem, drawn.problem_detail)
    if drawn.primary is None:
        return Missing(Unmeasured.MODEL_FAILED, "there is no primary answer")
    if drawn.primary.refusal:
        return Missing(Unmeasured.REFUSED, "the model refused to answer")
    if not drawn.primary.comparable:
        return Missing(Unmeasured.EMPTY_ANSWER, "the primary answer is empty")
    return part_of_an_answer(drawn, plan) if plan is not None and plan.cut_off == "abstain" else None


def _gap(sample_set: _Set, estimator: Estimator, plan: SamplingPlan, n: int) -> Missing | None:
    """The first need of the estimator, which reads n samples, that the set does not meet."""
    needs, drawn = estimator.needs, sample_set.drawn
    if needs.samples:
        # One sample agrees with itself, which an estimator over samples alone would take for certainty.
        if len(drawn.samples) < max(n, estimator.fewest):
            return Missing(Unmeasured.SAMPLING_SHORTFALL, f"asked for {n} samples, received {len(drawn.samples)}")
        if not all(sample_set.answers):
            return Missing(Unmeasured.EMPTY_ANSWER, "a sample is empty")
    # Fewer options than planned would share their probability among the rest and look more certain.
    if needs.options and (drawn.options is None or drawn.options.labels != plan.options):
        read = None if drawn.options is None else drawn.options.labels
        return Missing(Unmeasured.NO_OPTIONS, f"asked to read options {plan.options}, received {read}")
    if needs.entailment and estimator.entailment is None:
        return Missing(Unmeasured.JUDGE_FAILED, f"{estimator.name} needs an entailment model, and none was given")
    return impossible_logprobs(drawn, plan.bindings) if needs.logprobs else None
