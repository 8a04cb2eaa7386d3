"""From a sample set and an artifact to a verdict: pure, no I/O, the same for sync and async callers."""

from __future__ import annotations

from collections import Counter

from .artifact import CalibrationArtifact
from .gate import accepts
from .judges import normalise
from .outcome import Infeasible
from .types import Reason, SampleSet, Uncertainty, Verdict
from .uncertainty import Estimator, Needs, answer_text, measure

__all__ = ["decide"]


def decide(drawn: SampleSet, artifact: CalibrationArtifact, estimator: Estimator) -> Verdict:
    """Measure, compare once, and explain.

    Args:
        drawn: What was drawn for the prompt, by the artifact's plan.
        artifact: The calibrated threshold.
        estimator: The artifact's estimator.
    """
    uncertainty = measure(drawn, estimator, artifact.plan)
    reason = _reason(uncertainty, artifact)
    return Verdict(
        accepted=reason is Reason.WITHIN_THRESHOLD,
        reason=reason,
        detail=_explain(reason, uncertainty, artifact, estimator.needs),
        uncertainty=uncertainty,
        threshold=artifact.threshold,
        alpha=artifact.alpha,
        guarantee=artifact.outcome.guarantee,
        artifact=artifact.digest,
        candidate=drawn.primary,
        alternatives=_alternatives(drawn),
        cost=drawn.cost,
    )


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


def _sign(needs: Needs) -> str:
    """What a high uncertainty looks like, by what the estimator reads."""
    if needs.samples and needs.logprobs and not needs.judge:
        return "The model gave its own answers too little probability"
    if needs.samples:
        return "The model's own answers disagree too much"
    if needs.options:
        return "No option stands out clearly enough"
    return "The model gave its own answer too little probability"


def _alternatives(drawn: SampleSet) -> tuple[tuple[str, float], ...]:
    """Distinct sampled answers (by normalised string) with their share, or the options with their probability."""
    if drawn.samples:
        texts = [answer_text(sample) for sample in drawn.samples]
        counts = Counter(normalise(text) for text in texts)
        shown = {normalise(text): text for text in reversed(texts)}
        return tuple((shown[key], count / len(texts)) for key, count in counts.most_common())
    return () if drawn.options is None else drawn.options.shares()
