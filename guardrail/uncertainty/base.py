"""Estimators: pure functions from a `SampleSet` to an `Uncertainty`, and what they declare about themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..errors import UsageError
from ..judges import Entailment, Judge, Similarity
from ..judges.base import Comparer
from ..sampling.follow_ups import SCORE, AnswerScorer, FollowUp
from ..specs import EstimatorSpec
from ..types import Basis, Missing, Sample, SampleSet, Uncertainty, Unit, Unmeasured
from .alignment import Level
from .comparing import Clusters

__all__ = ["Estimator", "Evidence", "Needs", "Stages"]


@dataclass(frozen=True, slots=True)
class Needs:
    """The data that must be drawn for an estimator; `guardrail.plan_for` turns it into a plan."""

    samples: bool = False
    """The n sampled responses."""
    logprobs: bool = False
    """Token log-probabilities (of the samples if it needs samples, else of the primary answer)."""
    options: bool = False
    """Option log-likelihoods."""
    judge: bool = False
    """An equivalence judge, and the clusters it gives."""
    primary: bool = False
    """True if the primary answer is compared with the samples: a judge groups it with them."""
    similarity: bool = False
    """A graded similarity, and the matrix it gives."""
    likeness: bool = False
    """A graded similarity, and how alike it finds the primary answer and each sample."""
    entailment: bool = False
    """An entailment model, and how far each sample contradicts each sentence of the primary answer."""
    relevance: Level | None = None
    """A graded similarity, and how alike each sample is to itself without each of its pieces."""
    follow_up: FollowUp | None = None
    """A question to the model about what was drawn; see `guardrail.sampling.follow_ups`."""


_NO_CLUSTERS = Clusters(assignment=())


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of a formula: the sample set, and the data that it declared in its needs (otherwise empty).

    Attributes:
        drawn: The sample set.
        clusters: The samples by meaning.
        primary_cluster: Cluster that the primary answer belongs to; -1 if no sample means the same.
        matrix: Similarity of samples, shape (n, n), symmetric with unit diagonal. Rows are in canonical order (sorted
            by string), not in the order of the samples, so that no formula can depend on that order.
        likeness: Similarity of the primary answer to each sample, in sample order, in [0, 1].
        rows: Row of each sample in ``matrix``, in sample order; a permutation of 0, ..., n - 1.
        costs: NLL of each piece of each sample, in nats, in sample order.
        relevance: For each of these pieces, the similarity of the sample to itself without that piece, in [0, 1]; 0
            if nothing is left.
        contradiction: P(contradiction) / (P(contradiction) + P(entailment)) with a sample as premise and a sentence of
            the primary answer as hypothesis: for each sentence all samples in their order.
        members: Scores of the parts, in their order, for a combination.
    """

    drawn: SampleSet
    clusters: Clusters = _NO_CLUSTERS
    primary_cluster: int = -1
    matrix: tuple[tuple[float, ...], ...] = ()
    rows: tuple[int, ...] = ()
    likeness: tuple[float, ...] = ()
    costs: tuple[tuple[float, ...], ...] = ()
    relevance: tuple[tuple[float, ...], ...] = ()
    contradiction: tuple[float, ...] = ()
    members: tuple[float, ...] = ()

    @property
    def answer(self) -> Sample:
        """The primary answer; raises `Missing` if there is none."""
        if self.drawn.primary is None:
            raise Missing(Unmeasured.EMPTY_ANSWER, "there is no primary answer")
        return self.drawn.primary


_LONG = 20_000
"""Characters of all samples beyond which even comparing words takes milliseconds."""

Formula: TypeAlias = Callable[[Evidence], float]
"""Raises `Missing` where there is no score."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of `guardrail.uncertainty.then`.

    Attributes:
        first: Number of samples that its first part reads, the first of those drawn.
        samples: Number of samples that its second part reads, likewise.
        bounds: From the score of the first part to the smallest and the largest score that the second one can still
            make of it.
    """

    first: int
    samples: int
    bounds: Callable[[float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Estimator:
    """A named uncertainty estimator. Higher is less certain, always.

    Attributes:
        name: Name, as in `guardrail.uncertainty.list_estimators()`.
        version: Raised by any change that can move a score.
        unit: Unit of the score.
        needs: The data that must be drawn.
        formula: The pure function itself.
        judge: Equivalence judge, for estimators that cluster.
        similarity: Graded similarity, for estimators over a graph of samples or over pieces of an answer.
        entailment: Entailment model, for estimators that look for contradictions.
        members: The scores that it combines, for a combination (`guardrail.uncertainty.combine`).
        params: Parameters of the formula, as the spec stores them.
        stages: Of `then`: what each of its two parts reads; None for scores that read all samples at once.
        scorer: The scorer whose replies it reads, for an estimator that a scorer made.
    """

    name: str
    version: int
    unit: Unit
    needs: Needs
    formula: Formula
    judge: Judge | None = None
    similarity: Similarity | None = None
    entailment: Entailment | None = None
    members: tuple[Estimator, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    stages: Stages | None = None
    scorer: AnswerScorer | None = None

    def __post_init__(self) -> None:
        for role, base in (("judge", Judge), ("similarity", Similarity), ("entailment", Entailment)):
            member = getattr(self, role)
            if member is not None and not (isinstance(member, base) and member.role == role):
                raise UsageError(
                    f"the base class of {role} must be guardrail.judges.{base.__name__}, got a {type(member).__name__}."
                )

    @property
    def slow_models(self) -> dict[str, Any]:
        """The models behind it that may take noticeable time, by role: all that do not state otherwise."""
        models: tuple[Comparer | None, ...] = (self.judge, self.similarity, self.entailment)
        return {model.role: model for model in models if model is not None and model.is_slow}

    @property
    def is_slow(self) -> bool:
        """True if measuring may take noticeable time (it asks a model, or an object of unknown cost).

        Async callers then measure in a thread.
        """
        # A combination has no judge: its cost is that of its members. A formula that asks a model itself says so.
        of_members = any(member.is_slow for member in self.members)
        return bool(self.slow_models) or of_members or getattr(self.formula, "is_slow", False) is True

    @property
    def reads_answer(self) -> bool:
        """True if the score depends on the primary answer, or on samples alone.

        Without samples it is about the primary answer: its likelihood, that of the options, or a reply about it.
        """
        needs = self.needs
        compared = needs.primary or needs.likeness or needs.entailment or needs.follow_up is not None
        return not needs.samples or compared or any(member.reads_answer for member in self.members)

    @property
    def basis(self) -> Basis:
        """The kind of data that the score reads, for the words of a verdict."""
        needs = self.needs
        if self.stages is not None:
            return Basis.SAMPLES if self.stages.first else Basis.TWO_STAGES
        if self.name == "ties":  # the second score only orders equal ones, and the sum is not the first one's number
            first = self.members[0].basis
            return Basis.SCORER if first is Basis.CONFIDENCE else first
        if self.members:
            return Basis.SEVERAL
        if needs.follow_up is not None and needs.follow_up.name.startswith(SCORE):
            return Basis.CONFIDENCE if self.params.get("higher") == "certain" else Basis.SCORER
        if needs.follow_up is not None:
            return Basis.QUESTION_ABOUT_ANSWER
        if needs.samples:
            return Basis.SAMPLE_LIKELIHOOD if needs.logprobs and not needs.judge else Basis.SAMPLES
        return Basis.OPTIONS if needs.options else Basis.ANSWER_LIKELIHOOD

    @property
    def scorers(self) -> tuple[AnswerScorer, ...]:
        """The scorers whose replies it or its members read."""
        return tuple(each.scorer for each in (self, *self.members) if each.scorer is not None)

    @property
    def fewest(self) -> int:
        """Samples below which nothing is measured; 0 if none are read.

        One sample may contradict the primary answer. Among the samples alone it only agrees with itself.
        """
        if not self.needs.samples:
            return 0
        return 1 if self.needs.primary else 2

    def takes_time(self, drawn: SampleSet) -> bool:
        """Return whether measuring a set may take noticeable time: the estimator is slow, or the answers are long."""
        return self.is_slow or sum(len(sample.text) for sample in drawn.samples) > _LONG

    @property
    def spec(self) -> EstimatorSpec:
        """The identity that an artifact stores."""
        return EstimatorSpec(
            name=self.name,
            version=self.version,
            unit=self.unit,
            judge=self.judge.spec if self.judge is not None else None,
            similarity=self.similarity.spec if self.similarity is not None else None,
            entailment=self.entailment.spec if self.entailment is not None else None,
            params=dict(self.params),
        )

    def score(self, evidence: Evidence) -> Uncertainty:
        """Apply the formula; anything that is not a finite number becomes a reason.

        Rounding residue just below zero (an entropy of -1e-17) is set to 0.
        """
        try:
            score = self.formula(evidence)
        except Missing as missing:
            return self.unmeasured(missing.reason, missing.detail)
        except (ArithmeticError, ValueError) as error:  # the domain of a logarithm, say
            return self.unmeasured(Unmeasured.NOT_FINITE, f"{self.name}: {type(error).__name__}: {error}")
        if not math.isfinite(score):
            return self.unmeasured(Unmeasured.NOT_FINITE, f"{self.name} gave {score}")
        value = 0.0 if -1e-9 < score <= 0 else float(score)
        return Uncertainty(value=value, unit=self.unit, estimator=self.name)

    def unmeasured(self, reason: Unmeasured, detail: str) -> Uncertainty:
        """An `Uncertainty` without a value."""
        return Uncertainty(value=None, unit=self.unit, estimator=self.name, reason=reason, detail=detail)
