"""Measure sample sets with estimators: one judging pass for many questions and many estimators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..sampling.replies import part_of_an_answer
from ..types import Missing, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .base import Estimator, Evidence, Level, Piece
from .clustering import Steps, clustering
from .combine import combined, primary_alone
from .graph import graph, likeness
from .judging import JudgingPass, Rater, entailment_rater, judge_rater, similarity_rater
from .relevance import all_pieces, relevance_of
from .selfcheck import contradictions, sentences

__all__ = ["measure", "measure_all", "measure_many", "measure_stream", "unusable"]

QUESTIONS = 64
"""Most questions in one pass."""
ITEMS = 16384
"""Pairs that fill a pass; the question that reaches this number is its last."""


def measure(
    drawn: SampleSet, estimator: Estimator, plan: SamplingPlan, *, seen: list[Evidence] | None = None
) -> Uncertainty:
    """Measure one sample set with one estimator; see `measure_many`.

    Args:
        drawn: What was drawn for one prompt.
        estimator: What to compute.
        plan: The plan the set was drawn by.
        seen: Receives the evidence that the formula read, if there was any.
    """
    return next(measure_stream([drawn], [estimator], plan, seen=seen))[0]


def measure_all(drawn: SampleSet, estimators: Sequence[Estimator], plan: SamplingPlan) -> list[Uncertainty]:
    """Measure one sample set with several estimators; see `measure_many`."""
    return measure_many([drawn], estimators, plan)[0]


def measure_many(
    drawns: Iterable[SampleSet], estimators: Sequence[Estimator], plan: SamplingPlan
) -> list[list[Uncertainty]]:
    """Measure sample sets with estimators.

    Fails closed: if a set lacks something that the plan asks for, the estimators that need it are unmeasured, with the
    reason. If a judge raises, or gives no verdict on a pair, only the sets that need that pair are unmeasured.

    Each judge, similarity and entailment model is asked once per round for all sets and estimators together, and only
    once about equal pairs of equal questions. `measure_stream` does the same for sets that do not fit in memory.

    Args:
        drawns: What was drawn, one set for each prompt.
        estimators: What to compute.
        plan: The plan the sets were drawn by.

    Returns:
        For each set, in order, one `Uncertainty` for each estimator, in order.
    """
    return list(measure_stream(drawns, estimators, plan))


def measure_stream(
    drawns: Iterable[SampleSet],
    estimators: Sequence[Estimator],
    plan: SamplingPlan,
    *,
    seen: list[Evidence] | None = None,
) -> Iterator[list[Uncertainty]]:
    """`measure_many` as a stream: reads at most 64 sets ahead (fewer when they need many pairs), yields in order.

    Memory does not grow with the number of sets. Nothing is asked before the first result is requested.

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


@dataclass(frozen=True, slots=True)
class _Wants:
    """An estimator and the raters that its evidence comes from, prepared once.

    Attributes:
        estimator: What to compute.
        judge: Asked whether answers are the same.
        similarity: Asked how alike they are.
        entailment: Asked what they contradict.
        first: Whether it comes first in `then`, and reads the primary answer alone.
        samples: Number of samples that it reads, the first of the set; None for all.
    """

    estimator: Estimator
    judge: Rater | None
    similarity: Rater | None
    entailment: Rater | None
    first: bool
    samples: int | None

    @classmethod
    def of(cls, estimator: Estimator, whole: Estimator) -> _Wants:
        """From an estimator, and the combination that it is a member of, or itself."""
        return cls(
            estimator,
            None if estimator.judge is None else judge_rater(estimator.judge),
            None if estimator.similarity is None else similarity_rater(estimator.similarity),
            None if estimator.entailment is None else entailment_rater(estimator.entailment),
            whole.after_first is not None and estimator is whole.members[0],
            whole.samples,
        )


@dataclass(slots=True)
class _Set:
    """A sample set in a pass: the number of each of its measurements there, or the reason why it has none."""

    drawn: SampleSet
    answers: list[str]
    tasks: dict[str, int | Missing] = field(default_factory=dict)
    pieces: dict[Level, tuple[tuple[Piece, ...], ...] | Missing] = field(default_factory=dict)

    @classmethod
    def of(cls, drawn: SampleSet) -> _Set:
        return cls(drawn, [sample.comparable for sample in drawn.samples])

    def read_by(self, want: _Wants) -> _Set:
        """The part that an estimator reads."""
        if want.first:
            return _Set.of(primary_alone(self.drawn))
        if want.samples is None or len(self.drawn.samples) <= want.samples:
            return self
        return _Set.of(self.drawn.model_copy(update={"samples": self.drawn.samples[: want.samples]}))


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
            sample_set = whole.read_by(want)
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
        estimator, question = want.estimator, sample_set.drawn.question
        if want.judge is not None and (key := _clusters_key(want)) not in sample_set.tasks:
            assert sample_set.drawn.primary is not None  # _unusable
            answers = (
                [*sample_set.answers, sample_set.drawn.primary.comparable]
                if estimator.needs.primary
                else sample_set.answers
            )
            steps: Steps[Any, Any] = clustering(answers, estimator.judge, estimator.clustering)
            sample_set.tasks[key] = self._judging.add(want.judge, question, steps)
        if want.similarity is not None:
            if estimator.needs.similarity and (key := _matrix_key(want)) not in sample_set.tasks:
                sample_set.tasks[key] = self._judging.add(
                    want.similarity, question, graph(sample_set.answers, estimator.similarity)
                )
            if estimator.needs.likeness and (key := _likeness_key(want)) not in sample_set.tasks:
                assert sample_set.drawn.primary is not None  # _unusable
                steps = likeness(sample_set.drawn.primary.comparable, sample_set.answers, estimator.similarity)
                sample_set.tasks[key] = self._judging.add(want.similarity, question, steps)
            if estimator.relevance is not None and (key := _relevance_key(want)) not in sample_set.tasks:
                sample_set.tasks[key] = self._begin_relevance(sample_set, want.similarity, estimator)
        if want.entailment is not None and (key := want.entailment.key) not in sample_set.tasks:
            assert sample_set.drawn.primary is not None  # _unusable
            steps = contradictions(sentences(sample_set.drawn.primary.comparable), sample_set.answers)
            # No question: premise and hypothesis are whole sentences, and equal pairs of any two questions are asked
            # once.
            sample_set.tasks[key] = self._judging.add(want.entailment, "", steps)

    def _begin_relevance(self, sample_set: _Set, rater: Rater, estimator: Estimator) -> int | Missing:
        level = estimator.relevance
        assert level is not None
        if level not in sample_set.pieces:
            sample_set.pieces[level] = all_pieces(sample_set.drawn, level)
        own = sample_set.pieces[level]
        if isinstance(own, Missing):
            return own
        return self._judging.add(
            rater, sample_set.drawn.question, relevance_of(sample_set.answers, own, estimator.similarity)
        )


def _clusters_key(want: _Wants) -> str:
    assert want.judge is not None
    return f"{want.judge.key}/{want.estimator.clustering}/{want.estimator.needs.primary}"


def _matrix_key(want: _Wants) -> str:
    assert want.similarity is not None
    return want.similarity.key


def _likeness_key(want: _Wants) -> str:
    return f"{_matrix_key(want)}/likeness"


def _relevance_key(want: _Wants) -> str:
    assert want.similarity is not None
    return f"{want.similarity.key}/{want.estimator.relevance}"


def _evidence(sample_set: _Set, want: _Wants, results: Sequence[Any]) -> Evidence | Missing:
    """The input of the formula: the results of the pass, or the first reason why one is missing."""
    estimator = want.estimator
    keys = {
        "clusters": _clusters_key(want) if want.judge is not None else None,
        "matrix": _matrix_key(want) if want.similarity is not None and estimator.needs.similarity else None,
        "likeness": _likeness_key(want) if want.similarity is not None and estimator.needs.likeness else None,
        "relevance": _relevance_key(want) if want.similarity is not None and estimator.relevance is not None else None,
        "contradiction": want.entailment.key if want.entailment is not None else None,
    }
    parts: dict[str, Any] = {}
    for name, key in keys.items():
        if key is None:
            continue
        task = sample_set.tasks[key]
        result = task if isinstance(task, Missing) else results[task]
        if isinstance(result, Missing):
            return result
        parts[name] = result
    if estimator.needs.primary and "clusters" in parts:
        *assignment, own = parts["clusters"].assignment
        parts["clusters"] = parts["clusters"].model_copy(update={"assignment": tuple(assignment)})
        # -1 is no cluster's number, so an answer that no sample shares counts no votes.
        parts["primary_cluster"] = own if own in assignment else -1
    if "matrix" in parts:
        parts["matrix"], parts["rows"] = parts["matrix"]
    if "relevance" in parts and estimator.relevance is not None:
        parts["pieces"] = sample_set.pieces[estimator.relevance]
    return Evidence(sample_set.drawn, **parts)


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
    return None
