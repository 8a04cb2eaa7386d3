"""Measure sample sets with estimators: one judging pass for many questions and many estimators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..judges import ExactJudge, normalise
from ..sampling.follow_ups import sentences
from ..types import Missing, SampleSet, SamplingPlan, Uncertainty, Unmeasured, answer_text
from .base import Estimator, Evidence, Level
from .clustering import Clusters, Steps, clustering
from .ensemble import combined
from .graph import graph, likeness
from .judging import JudgingPass, Rater, entailment_rater, judge_rater, similarity_rater
from .relevance import Piece, pieces

__all__ = ["all_pieces", "contradictions", "measure", "measure_all", "measure_many", "measure_stream", "relevance_of"]

QUESTIONS = 64
"""Most questions in one pass."""
ITEMS = 16384
"""Pairs that are enough for one pass; the question that reaches them is the last of it."""


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

    Fails closed: whatever the plan asks for and a set lacks makes the estimators that need it unmeasured, with the
    reason. A judge that raises, or gives no verdict on a pair, makes only the sets that need that pair unmeasured.

    Each judge, similarity and entailment model is asked once a round for all sets and estimators together, and about
    equal pairs of equal questions once. `measure_stream` does the same for sets that do not fit in memory.

    Args:
        drawns: What was drawn, one set a prompt.
        estimators: What to compute.
        plan: The plan the sets were drawn by.

    Returns:
        For each set, in order, one `Uncertainty` an estimator, in order.
    """
    return list(measure_stream(drawns, estimators, plan))


def measure_stream(
    drawns: Iterable[SampleSet],
    estimators: Sequence[Estimator],
    plan: SamplingPlan,
    *,
    seen: list[Evidence] | None = None,
    adaptive: bool = False,
) -> Iterator[list[Uncertainty]]:
    """`measure_many` as a stream: reads at most 64 sets ahead (fewer when they need many pairs), yields in order.

    Memory does not grow with the number of sets. Nothing is asked before the first result is taken.

    Args:
        drawns: What was drawn, one set a prompt.
        estimators: What to compute.
        plan: The plan the sets were drawn by.
        seen: Receives the evidence that formulas read.
        adaptive: Measure of each set what `adaptive_subset` says: the first ``plan.unanimous_at`` samples
            where they all mean the same to an estimator. Each pass then asks about these first, about the rest next.
    """
    wants = [
        _Wants.of(member, estimator, adaptive)
        for estimator in estimators
        for member in estimator.members or (estimator,)
    ]
    batch = _Batch(wants, plan, seen, adaptive)
    for drawn in drawns:
        batch.add(drawn)
        if batch.full:
            yield from batch.scores(estimators)
            batch = _Batch(wants, plan, seen, adaptive)
    yield from batch.scores(estimators)


@dataclass(frozen=True, slots=True)
class _Wants:
    """An estimator and whom its evidence is asked of, worked out once.

    Attributes:
        estimator: What to compute.
        judge: Asked whether answers are the same.
        similarity: Asked how alike they are.
        entailment: Asked what they contradict.
        stops: Decides for an adaptive plan: the estimator itself, or the ensemble that it is a member of.
        unanimity: Asked by ``stops`` whether the first samples mean the same; None without an adaptive plan.
    """

    estimator: Estimator
    judge: Rater | None
    similarity: Rater | None
    entailment: Rater | None
    stops: Estimator
    unanimity: Rater | None

    @classmethod
    def of(cls, estimator: Estimator, stops: Estimator, adaptive: bool) -> _Wants:
        return cls(
            estimator,
            None if estimator.judge is None else judge_rater(estimator.judge),
            None if estimator.similarity is None else similarity_rater(estimator.similarity),
            None if estimator.entailment is None else entailment_rater(estimator.entailment),
            stops,
            judge_rater(stops.judge or ExactJudge()) if adaptive else None,
        )


@dataclass(slots=True)
class _Set:
    """A sample set on its way through a pass: what each measurement of it is called there, or why there is none."""

    drawn: SampleSet
    answers: list[str]
    tasks: dict[str, int | Missing] = field(default_factory=dict)
    pieces: dict[Level, tuple[tuple[Piece, ...], ...] | Missing] = field(default_factory=dict)

    @classmethod
    def of(cls, drawn: SampleSet) -> _Set:
        return cls(drawn, [answer_text(sample) for sample in drawn.samples])


_Measured = list[tuple[_Set, Missing | None]]
"""What each estimator measures, and why it cannot."""


class _Batch:
    """Sample sets that are judged together."""

    def __init__(
        self, wants: Sequence[_Wants], plan: SamplingPlan, seen: list[Evidence] | None, adaptive: bool
    ) -> None:
        self._wants = wants
        self._seen = seen
        self._plan = plan
        self._first = plan.unanimous_at if adaptive else None
        self._judging = JudgingPass()
        self._added: list[tuple[_Set, _Set | None]] = []
        self._sets: list[_Measured] = []

    @property
    def full(self) -> bool:
        return len(self._added) >= QUESTIONS or self._judging.waiting >= ITEMS

    def add(self, drawn: SampleSet) -> None:
        """Begin what has to be judged of a set; of an adaptive plan whether the first samples mean the same."""
        whole, part = _Set.of(drawn), self._part(drawn)
        self._added.append((whole, part))
        if part is None:
            self._sets.append(self._begun([(whole, self._plan.n) for _ in self._wants]))
            return
        self._sets.append([])
        for want in self._wants:
            assert want.unanimity is not None  # adaptive
            key = _unanimity_key(want)
            if want.stops.needs.samples and key not in part.tasks:
                steps: Steps[Any, Any] = clustering(
                    part.answers, want.stops.judge or ExactJudge(), want.stops.clustering
                )
                part.tasks[key] = self._judging.add(want.unanimity, drawn.question, steps)

    def scores(self, estimators: Sequence[Estimator]) -> Iterator[list[Uncertainty]]:
        """Judge, then apply the formulas."""
        results = self._judging.run()
        if self._first is not None:
            for place, (whole, part) in enumerate(self._added):
                if part is not None:
                    self._sets[place] = self._begun([self._chosen(whole, part, want, results) for want in self._wants])
            results = self._judging.run()
        for (whole, _), measured in zip(self._added, self._sets, strict=True):
            found = []
            for want, (one, gap) in zip(self._wants, measured, strict=True):
                evidence = gap or _evidence(one, want, results)
                if isinstance(evidence, Missing):
                    found.append(want.estimator.unmeasured(evidence.reason, evidence.detail))
                else:
                    if self._seen is not None:
                        self._seen.append(evidence)
                    found.append(want.estimator.score(evidence))
            yield combined(whole.drawn, estimators, found)

    def _part(self, drawn: SampleSet) -> _Set | None:
        """The first samples, where an adaptive plan looks at them and they may mean the same."""
        k = self._first
        if k is None or len(drawn.samples) < k or _unusable(drawn) is not None:
            return None
        part = _Set.of(drawn.model_copy(update={"samples": drawn.samples[:k]}))
        return part if all(part.answers) else None

    def _chosen(self, whole: _Set, part: _Set, want: _Wants, results: Sequence[Any]) -> tuple[_Set, int]:
        """What an adaptive plan measures, and the number of samples it then asks for."""
        task = part.tasks.get(_unanimity_key(want)) if want.stops.needs.samples else None
        found = results[task] if isinstance(task, int) else None
        if isinstance(found, Clusters) and len(found.sizes) == 1:
            return part, len(part.answers)
        return whole, self._plan.n

    def _begun(self, chosen: Sequence[tuple[_Set, int]]) -> _Measured:
        """Begin what has to be judged for each estimator."""
        measured: _Measured = []
        problem = _unusable(chosen[0][0].drawn) if chosen else None
        for want, (one, n) in zip(self._wants, chosen, strict=True):
            gap = problem or _gap(one, want.estimator, self._plan, n)
            if gap is None:
                self._begin(one, want)
            measured.append((one, gap))
        return measured

    def _begin(self, one: _Set, want: _Wants) -> None:
        estimator, question = want.estimator, one.drawn.question
        if want.judge is not None and (key := _clusters_key(want)) not in one.tasks:
            assert one.drawn.primary is not None  # _unusable
            answers = [*one.answers, answer_text(one.drawn.primary)] if estimator.needs.primary else one.answers
            steps: Steps[Any, Any] = clustering(answers, estimator.judge, estimator.clustering)
            one.tasks[key] = self._judging.add(want.judge, question, steps)
        if want.similarity is not None:
            if estimator.needs.similarity and (key := _matrix_key(want)) not in one.tasks:
                one.tasks[key] = self._judging.add(want.similarity, question, graph(one.answers, estimator.similarity))
            if estimator.needs.likeness and (key := _likeness_key(want)) not in one.tasks:
                assert one.drawn.primary is not None  # _unusable
                steps = likeness(answer_text(one.drawn.primary), one.answers, estimator.similarity)
                one.tasks[key] = self._judging.add(want.similarity, question, steps)
            if estimator.relevance is not None and (key := _relevance_key(want)) not in one.tasks:
                one.tasks[key] = self._begin_relevance(one, want.similarity, estimator)
        if want.entailment is not None and (key := want.entailment.key) not in one.tasks:
            assert one.drawn.primary is not None  # _unusable
            steps = contradictions(sentences(answer_text(one.drawn.primary)), one.answers)
            one.tasks[key] = self._judging.add(want.entailment, "", steps)

    def _begin_relevance(self, one: _Set, rater: Rater, estimator: Estimator) -> int | Missing:
        level = estimator.relevance
        assert level is not None
        if level not in one.pieces:
            one.pieces[level] = all_pieces(one.drawn, level)
        own = one.pieces[level]
        if isinstance(own, Missing):
            return own
        return self._judging.add(rater, one.drawn.question, relevance_of(one.answers, own, estimator.similarity))


def _clusters_key(want: _Wants) -> str:
    assert want.judge is not None
    return f"{want.judge.key}/{want.estimator.clustering}/{want.estimator.needs.primary}"


def _unanimity_key(want: _Wants) -> str:
    assert want.unanimity is not None  # adaptive
    return f"{want.unanimity.key}/{want.stops.clustering}/unanimity"


def _matrix_key(want: _Wants) -> str:
    assert want.similarity is not None
    return want.similarity.key


def _likeness_key(want: _Wants) -> str:
    return f"{_matrix_key(want)}/likeness"


def _relevance_key(want: _Wants) -> str:
    assert want.similarity is not None
    return f"{want.similarity.key}/{want.estimator.relevance}"


def _evidence(one: _Set, want: _Wants, results: Sequence[Any]) -> Evidence | Missing:
    """What the formula reads: what the pass found for it, or the first reason why something is not there."""
    estimator = want.estimator
    keys = {
        "clusters": _clusters_key(want) if want.judge is not None else None,
        "matrix": _matrix_key(want) if want.similarity is not None and estimator.needs.similarity else None,
        "likeness": _likeness_key(want) if want.similarity is not None and estimator.needs.likeness else None,
        "relevance": _relevance_key(want) if want.similarity is not None and estimator.relevance is not None else None,
        "contradiction": want.entailment.key if want.entailment is not None else None,
    }
    found: dict[str, Any] = {}
    for name, key in keys.items():
        if key is None:
            continue
        task = one.tasks[key]
        result = task if isinstance(task, Missing) else results[task]
        if isinstance(result, Missing):
            return result
        found[name] = result
    if estimator.needs.primary and "clusters" in found:
        *assignment, own = found["clusters"].assignment
        found["clusters"] = found["clusters"].model_copy(update={"assignment": tuple(assignment)})
        found["primary_cluster"] = own if own in assignment else -1
    if "matrix" in found:
        found["matrix"], found["rows"] = found["matrix"]
    if "relevance" in found and estimator.relevance is not None:
        found["pieces"] = one.pieces[estimator.relevance]
    return Evidence(one.drawn, **found)


def _unusable(drawn: SampleSet) -> Missing | None:
    """Why nothing can be measured of a set."""
    if drawn.problem is not None:
        return Missing(drawn.problem, drawn.problem_detail)
    if drawn.primary is None:
        return Missing(Unmeasured.MODEL_FAILED, "there is no primary answer")
    if drawn.primary.refusal:
        return Missing(Unmeasured.REFUSED, "the model refused to answer")
    if not answer_text(drawn.primary):
        return Missing(Unmeasured.EMPTY_ANSWER, "the primary answer is empty")
    return None


def _gap(one: _Set, estimator: Estimator, plan: SamplingPlan, n: int) -> Missing | None:
    """What the estimator needs and the set lacks, where n samples were asked for."""
    needs, drawn = estimator.needs, one.drawn
    if needs.samples:
        if len(drawn.samples) < max(n, 2):
            return Missing(Unmeasured.SAMPLING_SHORTFALL, f"asked for {n} samples, received {len(drawn.samples)}")
        if not all(one.answers):
            return Missing(Unmeasured.EMPTY_ANSWER, "a sample is empty")
    if needs.options and (drawn.options is None or drawn.options.labels != plan.options):
        read = None if drawn.options is None else drawn.options.labels
        return Missing(Unmeasured.NO_OPTIONS, f"asked to read options {plan.options}, received {read}")
    if needs.entailment and estimator.entailment is None:
        return Missing(Unmeasured.JUDGE_FAILED, f"{estimator.name} needs an entailment model, and none was given")
    return None


# -- What has to be asked about the pieces of answers, and about the sentences of one: the steps of a measurement ------


def all_pieces(drawn: SampleSet, level: Level) -> tuple[tuple[Piece, ...], ...] | Missing:
    """The pieces of every sample, or why one of them has none."""
    found = []
    for sample in drawn.samples:
        if sample.tool_calls:
            return Missing(Unmeasured.NO_LOGPROBS, "a tool call has no words whose log-probabilities could be weighed")
        own = pieces(sample, level)
        if isinstance(own, Missing):
            return own
        found.append(own)
    return tuple(found)


def relevance_of(
    answers: Sequence[str], own: Sequence[Sequence[Piece]], similarity: object
) -> Steps[float, tuple[tuple[float, ...], ...]]:
    """Similarity of each answer to itself without each of its pieces.

    It is 0 where nothing is left, and 1 where what is left is the same string to the similarity (`clustering.fold`);
    neither is asked.
    """
    identity = getattr(similarity, "identity", normalise)
    known: dict[tuple[str, str], float] = {}
    asked: dict[tuple[str, str], None] = {}
    for answer, parts in zip(answers, own, strict=True):
        itself = identity(answer)
        for piece in parts:
            pair = (answer, piece.without)
            if not piece.without.strip():
                known[pair] = 0.0
            elif identity(piece.without) == itself:
                known[pair] = 1.0
            else:
                asked[pair] = None
    rated = yield list(asked)
    for pair, value in zip(asked, rated, strict=True):
        if value is None:
            return None
        known[pair] = value
    return tuple(
        tuple(known[answer, piece.without] for piece in parts) for answer, parts in zip(answers, own, strict=True)
    )


def contradictions(hypotheses: Sequence[str], premises: Sequence[str]) -> Steps[float, NDArray[np.float64]]:
    """How far each premise contradicts each hypothesis, shape (hypotheses, premises)."""
    pairs = [(premise, hypothesis) for hypothesis in hypotheses for premise in premises]
    found = yield pairs
    if any(value is None for value in found):
        return None
    return np.array(found, dtype=np.float64).reshape(len(hypotheses), len(premises))
