"""From a sample set and an artifact to a verdict: pure, no I/O, the same for sync and async callers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from ..artifact import CalibrationArtifact
from ..gate import accepts
from ..judges import normalise
from ..outcome import Infeasible
from ..types import SampleSet, SamplingPlan, Uncertainty
from ..uncertainty import Clusters, Estimator, Evidence, Needs, measure
from ..verdict import Meaning, Reason, Verdict
from .early_stopping import adapted

__all__ = ["adecide", "decide"]


def decide(
    drawn: SampleSet, artifact: CalibrationArtifact, estimator: Estimator, *, settled: Uncertainty | None = None
) -> Verdict:
    """Measure, compare once, and explain.

    Args:
        drawn: What was drawn for the prompt, by the artifact's plan.
        artifact: The calibrated threshold.
        estimator: The artifact's estimator.
        settled: The uncertainty, where drawing stopped early because it was certain (see `early_stopping`).
    """
    texts = [sample.comparable for sample in drawn.samples]
    meanings: tuple[Meaning, ...] = ()
    if settled is not None:
        uncertainty = settled
    else:
        part, plan = adapted(drawn, estimator, artifact.plan)
        uncertainty, clusters = _measured(part, estimator, plan)
        meanings = () if clusters is None else _meanings(texts, clusters)
    reason = _reason(uncertainty, artifact)
    return Verdict(
        accepted=reason is Reason.WITHIN_THRESHOLD,
        reason=reason,
        detail=_explain(reason, uncertainty, artifact, estimator.needs) + _early(settled),
        uncertainty=uncertainty,
        threshold=artifact.threshold,
        alpha=artifact.alpha,
        guarantee=artifact.outcome.guarantee,
        artifact=artifact.digest,
        candidate=drawn.primary,
        alternatives=_alternatives(drawn, texts),
        meanings=meanings,
        samples=tuple(texts),
        cost=drawn.cost,
    )


async def adecide(
    drawn: SampleSet, artifact: CalibrationArtifact, estimator: Estimator, *, settled: Uncertainty | None = None
) -> Verdict:
    """`decide` for async callers: in a thread where measuring may take noticeable time, else right here."""
    if settled is None and estimator.is_slow:
        return await asyncio.to_thread(decide, drawn, artifact, estimator)
    return decide(drawn, artifact, estimator, settled=settled)


def _measured(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> tuple[Uncertainty, Clusters | None]:
    """The uncertainty, and the clusters its formula read: the judge is asked once."""
    seen: list[Evidence] = []
    uncertainty = measure(drawn, estimator, plan, seen=seen)
    return uncertainty, seen[0].clusters if seen and estimator.judge is not None else None


def _meanings(texts: Sequence[str], clusters: Clusters) -> tuple[Meaning, ...]:
    """Clusters with their most frequent wording, largest first (in order of first appearance on a tie).

    An adaptive plan measures the first samples only, and these are grouped.
    """
    groups: list[list[str]] = [[] for _ in clusters.sizes]
    for text, label in zip(texts, clusters.assignment, strict=False):
        groups[label].append(text)
    n = len(clusters.assignment)
    found = [
        Meaning(text=Counter(group).most_common(1)[0][0], size=len(group), share=len(group) / n) for group in groups
    ]
    return tuple(sorted(found, key=lambda meaning: -meaning.size))


def _reason(uncertainty: Uncertainty, artifact: CalibrationArtifact) -> Reason:
    if artifact.threshold is None:
        return Reason.INFEASIBLE
    if uncertainty.value is None:
        return Reason.UNMEASURED
    return Reason.WITHIN_THRESHOLD if accepts(uncertainty.value, artifact.threshold) else Reason.ABOVE_THRESHOLD


def _explain(reason: Reason, uncertainty: Uncertainty, artifact: CalibrationArtifact, needs: Needs) -> str:
    name = f"{uncertainty.estimator} {uncertainty.value:.4g}" if uncertainty.value is not None else ""
    unit = " nats" if uncertainty.unit == "nats" else ""
    outcome = artifact.outcome
    if isinstance(outcome, Infeasible):
        return (
            f"Held back: calibration found no threshold that keeps the error among answers at {outcome.alpha:g}, so "
            f"nothing is accepted ({outcome.reason.value}: {outcome.detail}) Route these questions elsewhere, or "
            "calibrate with a larger alpha, more questions, or a better model."
        )
    if reason is Reason.UNMEASURED:
        return (
            f"Held back: the uncertainty could not be measured ({uncertainty.reason}: {uncertainty.detail}). This says "
            "nothing about the answer itself; mend the cause and ask again, or hand it to a person."
        )
    if reason is Reason.WITHIN_THRESHOLD:
        return f"Accepted: {name} <= {outcome.threshold:.4g}{unit}, calibrated for {outcome.alpha:.0%} error."
    return (
        f"Held back: {name} > {outcome.threshold:.4g}{unit}, the threshold calibrated for {outcome.alpha:.0%} error "
        f"among answers that are given. {_sign(needs)}; hand the question to a person, a stronger model, or ask it "
        "more precisely."
    )


def _early(settled: Uncertainty | None) -> str:
    if settled is None or settled.value is None:
        return ""
    return f" The score itself was not needed: {settled.detail}."


def _sign(needs: Needs) -> str:
    """What a high uncertainty looks like, by what the estimator reads."""
    if needs.follow_up is not None:
        return "Asked about its own answer, the model did not stand by it clearly enough"
    if needs.samples and needs.logprobs and not needs.judge:
        return "The model gave its own answers too little probability"
    if needs.samples:
        return "The model's own answers disagree too much"
    if needs.options:
        return "No option stands out clearly enough"
    return "The model gave its own answer too little probability"


def _alternatives(drawn: SampleSet, texts: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Distinct sampled answers (by normalised string) with their share, or the options with their probability."""
    if texts:
        keys = [normalise(text) for text in texts]
        counts = Counter(keys)
        shown = dict(zip(reversed(keys), reversed(texts), strict=True))  # the first wording of each
        return tuple((shown[key], count / len(texts)) for key, count in counts.most_common())
    return () if drawn.options is None else drawn.options.shares()
