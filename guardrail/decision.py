"""The gate: from a sample set to a verdict, without I/O. Guards and agents know a `Gate`, and never ask which one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .artifact import CalibrationArtifact
from .items.item import ItemVerdict
from .judges import default_judge
from .outcome import accepts
from .types import Note, NoteKind, Reason, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from .uncertainty import Clusters, Estimator, Evidence, cluster, measure
from .uncertainty.combine import first_stage
from .verdict import Meaning, Verdict


@runtime_checkable
class Gate(Protocol):
    """Decides about answers by a calibrated threshold. `guardrail.items.gate.gate_of` makes that of an artifact."""

    @property
    def artifact(self) -> CalibrationArtifact:
        """The artifact that has the threshold."""

    @property
    def estimator(self) -> Estimator:
        """The artifact's estimator, whose values are compared with the threshold."""

    def decide(self, drawn: SampleSet, *, settled: Uncertainty | None = None) -> Verdict:
        """Measure, compare once, and explain.

        Args:
            drawn: The sample set of the prompt, drawn by the artifact's plan.
            settled: The uncertainty by which the first of two stages decided; see `by_first_call`.
        """


@dataclass(frozen=True, slots=True)
class ThresholdGate:
    """A `Gate` on a score: the whole answer is accepted or held back.

    Attributes:
        artifact: The artifact that has the threshold.
        estimator: The artifact's estimator.
    """

    artifact: CalibrationArtifact
    estimator: Estimator

    def decide(self, drawn: SampleSet, *, settled: Uncertainty | None = None) -> Verdict:
        """As `Gate.decide`."""
        meanings: tuple[Meaning, ...] = ()
        uncertainty = settled
        if uncertainty is None:
            uncertainty, clusters = _measured(drawn, self.estimator, self.artifact.plan)
            texts = [sample.comparable for sample in drawn.samples]
            meanings = () if clusters is None else _meanings(texts, clusters)
        verdict = verdict_by(uncertainty, drawn, self)
        notes = (*_alone(drawn, self.estimator, self.artifact), *verdict.notes)
        return verdict.model_copy(update={"meanings": meanings, "notes": notes})


def verdict_by(uncertainty: Uncertainty, drawn: SampleSet, gate: Gate) -> Verdict:
    """The verdict on a measured answer: the one comparison, and its evidence.

    Args:
        uncertainty: The measurement, or why it failed.
        drawn: The sample set.
        gate: The gate.
    """
    artifact, estimator = gate.artifact, gate.estimator
    reason = _reason(uncertainty, artifact)
    return Verdict(
        accepted=reason is Reason.WITHIN_THRESHOLD,
        reason=reason,
        uncertainty=uncertainty,
        threshold=artifact.threshold,
        alpha=artifact.alpha,
        outcome=artifact.outcome,
        basis=estimator.basis,
        artifact=artifact.digest,
        candidate=drawn.primary,
        items=_whole_answer(uncertainty, kept=reason is Reason.WITHIN_THRESHOLD) if drawn.primary is not None else (),
        meanings=_options(drawn),
        samples=tuple(sample.comparable for sample in drawn.samples),
        cost=drawn.cost,
        notes=_not_compared(drawn, estimator),
    )


def first_samples(plan: SamplingPlan, estimators: Iterable[Estimator]) -> int | None:
    """Samples of the first of two stages, which may decide, so that the plan's others need not be drawn.

    The most that a score reads there; None if no score has stages, or the plan draws more than samples.
    """
    staged = plan.n > 0 and plan.options is None and not plan.follow_ups and plan.primary != "majority"
    return max((each.stages.first for each in estimators if staged and each.stages is not None), default=None)


def by_first_call(
    drawn: SampleSet, gates: Sequence[Gate], *, accept_only: bool = False
) -> Mapping[str, Uncertainty] | None:
    """The uncertainties by which the first call decides for every gate, or None if samples are needed.

    Each is a bound on the side of the threshold that the score has for any samples, or the reason why the
    score is missing. One gate that needs samples decides for all: they judge the same draw.

    Args:
        drawn: A set with its primary answer.
        gates: The gates that judge it; at least one.
        accept_only: Whether samples are needed for what is held back, because a person sees them.

    Returns:
        The uncertainties by the digest of each gate's artifact.
    """
    settled = {}
    for gate in gates:
        bound = _first_call(drawn, gate)
        if bound is None or (accept_only and _reason(bound, gate.artifact) is not Reason.WITHIN_THRESHOLD):
            return None
        settled[gate.artifact.digest] = bound
    return settled


def _first_call(drawn: SampleSet, gate: Gate) -> Uncertainty | None:
    estimator, threshold, stages = gate.estimator, gate.artifact.threshold, gate.estimator.stages
    if stages is None or threshold is None:
        return None
    stage = gate.artifact.plan.model_copy(update={"n": stages.first})
    cheap = measure(first_stage(drawn, stages.first, stage), estimator.members[0], stage)
    if cheap.value is None:
        return estimator.unmeasured(cheap.reason or Unmeasured.NOT_FINITE, f"{cheap.estimator}: {cheap.detail}")
    low, high = stages.bounds(cheap.value)
    accepted = accepts(high, threshold)
    if not accepted and accepts(low, threshold):
        return None
    return Uncertainty(
        value=high if accepted else low,
        unit=estimator.unit,
        estimator=estimator.name,
        is_bound=True,
        first=cheap.value,
    )


def _measured(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> tuple[Uncertainty, Clusters | None]:
    """The uncertainty, and the clusters its formula read: the judge is asked once."""
    evidence: list[Evidence] = []
    uncertainty = measure(drawn, estimator, plan, seen=evidence)
    return uncertainty, evidence[0].clusters if evidence and estimator.judge is not None else None


def _meanings(texts: Sequence[str], clusters: Clusters) -> tuple[Meaning, ...]:
    """Clusters with their most frequent wording, largest first (in order of first appearance on a tie)."""
    groups: list[list[str]] = [[] for _ in clusters.sizes]
    for text, label in zip(texts, clusters.assignment, strict=True):
        groups[label].append(text)
    n = len(clusters.assignment)
    return tuple(
        Meaning(text=Counter(group).most_common(1)[0][0], size=len(group), share=len(group) / n)
        for group in sorted(groups, key=len, reverse=True)
    )


def _reason(uncertainty: Uncertainty, artifact: CalibrationArtifact) -> Reason:
    if artifact.threshold is None:
        return Reason.INFEASIBLE
    if uncertainty.value is None:
        return Reason.UNMEASURED
    return Reason.WITHIN_THRESHOLD if accepts(uncertainty.value, artifact.threshold) else Reason.ABOVE_THRESHOLD


def _alone(drawn: SampleSet, estimator: Estimator, artifact: CalibrationArtifact) -> tuple[Note, ...]:
    """A note if the answer means the same as none of the samples; none otherwise, and where only a model knows."""
    answers = [sample.comparable for sample in drawn.samples]
    primary = "" if drawn.primary is None else drawn.primary.comparable
    judge = estimator.judge or default_judge(artifact.plan.bindings)
    if not primary or not answers or primary in answers or judge.is_slow:
        return ()
    try:
        clusters = cluster(drawn.question, [*answers, primary], judge)
    except Exception:  # a judge may be the user's code, and this note decides nothing
        return ()
    if clusters is None or clusters.assignment[-1] in clusters.assignment[:-1]:
        return ()
    return (Note(kind=NoteKind.AGREES_WITH_NONE, about=() if estimator.reads_answer else (estimator.name,)),)


def _not_compared(drawn: SampleSet, estimator: Estimator) -> tuple[Note, ...]:
    """A note about arguments of the answer that the judge never compares, if there are some."""
    if drawn.primary is None or estimator.judge is None:
        return ()
    names = estimator.judge.left_out(drawn.primary.comparable)
    return (Note(kind=NoteKind.NOT_COMPARED, about=tuple(names)),) if names else ()


def _whole_answer(uncertainty: Uncertainty, *, kept: bool) -> tuple[ItemVerdict, ...]:
    """A whole answer as its one item."""
    return (ItemVerdict(path="", text="", uncertainty=uncertainty.value, kept=kept),)


def _options(drawn: SampleSet) -> tuple[Meaning, ...]:
    """The options with their probability, of a question that has some."""
    shares = () if drawn.options is None or drawn.samples else drawn.options.shares()
    return tuple(Meaning(text=text, share=share) for text, share in shares)
