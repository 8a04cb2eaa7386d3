"""Drawing in waves, and stopping as soon as no further sample can change the verdict.

The promise: for every sample set whose samples can all be measured, the decision (accept or abstain) with early
stopping is the decision without it. Two consequences are stated rather than hidden:

* Where a sample that was *not* drawn would have failed (an empty answer, a judge without a verdict), the full set would
  have been unmeasured, hence held back, while an early acceptance stands. Calibration left such items out, so its
  promise does not cover them: with more than `MOST_UNMEASURED` of them ``"auto"`` draws all. An early abstention is
  always the full set's.
* The uncertainty of an early verdict is a bound, not the score: the largest value still possible when it accepts, the
  smallest when it abstains. Anything that compares run-time scores with calibration scores needs
  ``early_stopping="off"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ..artifact import DataFingerprint
from ..gate import accepts
from ..judges import with_majority
from ..sampling.effects import Steps, computation
from ..sampling.native import is_native
from ..sampling.sampler import Sampler, joined
from ..types import Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from ..uncertainty import Estimator, Evidence, Missing, measure
from ..uncertainty.early_bounds import attainable_scores, has_useful_bounds
from ..uncertainty.two_stage import primary_alone
from .decide import Gate, unanimous

__all__ = [
    "Drawn",
    "can_stop_early",
    "decide_after_first",
    "decide_early",
    "draw_until_decided",
    "range_of",
    "saves_calls",
    "wave_ends",
]

FIRST_WAVE = 3
"""Samples drawn at first."""
NEXT_WAVE = 2
"""Samples drawn at a time after that; a rest of one joins the wave before it."""

Gates = Callable[[Sample | None], Sequence[Gate]]
"""The gates that judge a candidate."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn set, and the uncertainties that were settled before all samples were drawn.

    Attributes:
        drawn: The samples; ``cost.saved`` counts those that were not drawn.
        settled: By the digest of each gate's artifact, a bound on the same side of the threshold as the score (or the
            reason for a missing score). Empty if the set is measured as usual.
    """

    drawn: SampleSet
    settled: Mapping[str, Uncertainty] = field(default_factory=dict)


def wave_ends(n: int, first: int = FIRST_WAVE, step: int = NEXT_WAVE) -> tuple[int, ...]:
    """Numbers of samples after which the verdict is checked, ending with n: (3, 6, 10) for n = 10."""
    ends = list(range(first, n, step))
    if ends and n - ends[-1] < 2:
        ends.pop()
    return (*ends, n)


def saves_calls(model: BaseChatModel, plan: SamplingPlan, estimator: Estimator, data: DataFingerprint) -> bool:
    """Whether the promise covers drawing in waves and it saves enough calls: the meaning of ``early_stopping="auto"``.

    False if calibration left out questions that a guard would accept early (`DataFingerprint.covers_early_stopping`),
    for models that draw all samples in one call, and for judges without known bounds (`has_useful_bounds`).
    """
    if estimator.after_first is not None:
        # A failure after the first call counts as disagreement on both sides, so the promise covers every stop.
        return can_stop_early(plan, estimator)
    useful = can_stop_early(plan, estimator) and has_useful_bounds(estimator) and not is_native(model)
    return useful and data.covers_early_stopping


def can_stop_early(plan: SamplingPlan, estimator: Estimator) -> bool:
    """Whether some of the plan's samples can decide before all are drawn: the meaning of ``early_stopping="on"``."""
    whole = plan.options is None and not plan.follow_ups and plan.primary != "majority"
    if estimator.after_first is not None:
        return whole and plan.n > 0
    return whole and estimator.bounds is not None and len(wave_ends(plan.n)) > 1


def range_of(drawn: SampleSet, estimator: Estimator, n: int) -> tuple[float, float] | Uncertainty | None:
    """The smallest and the largest score that n samples can have, given the first of them.

    Args:
        drawn: The first m samples, m >= 2.
        estimator: The estimator that measures them.
        n: Samples in the full set.

    Returns:
        Both ends; or an unmeasured `Uncertainty`, if the full set cannot have a score either; or None if the estimator
        has no bounds.
    """
    evidence_read: list[Evidence] = []

    def keep(evidence: Evidence) -> float:
        evidence_read.append(evidence)
        return 0.0

    m = len(drawn.samples)
    # The estimator's own path builds the evidence, so bounds and score can never read different data.
    score = measure(drawn, replace(estimator, formula=keep), SamplingPlan(n=max(m, 2)))
    if not score.measured:
        return score
    if not evidence_read:
        return None
    judged = [*drawn.samples, drawn.primary] if estimator.needs.primary and drawn.primary else drawn.samples
    ends = attainable_scores(evidence_read[0], tuple(sample.comparable for sample in judged), estimator, n)
    return estimator.unmeasured(ends.reason, ends.detail) if isinstance(ends, Missing) else ends


def decide_early(drawn: SampleSet, estimator: Estimator, n: int, threshold: float) -> Uncertainty | None:
    """The uncertainty that decides already, or None when further samples could still change the verdict.

    Args:
        drawn: The first m samples of n.
        estimator: The estimator that measures them.
        n: Samples in the full set.
        threshold: The gate's threshold.
    """
    m = len(drawn.samples)
    if drawn.problem is not None:
        return estimator.unmeasured(drawn.problem, drawn.problem_detail)
    if m < 2:
        return estimator.unmeasured(Unmeasured.SAMPLING_SHORTFALL, f"received {m} samples")
    ends = range_of(drawn, estimator, n)
    if isinstance(ends, Uncertainty):
        # The judge may succeed on another wording of the same answer, so this is not certain.
        return None if ends.reason is Unmeasured.JUDGE_FAILED else ends
    if ends is None:
        return None
    low, high = ends
    # The same comparison as the gate's, so that an early verdict on a tie with the threshold is the later one.
    if not accepts(high, threshold) and accepts(low, threshold):
        return None
    accepted = accepts(high, threshold)
    # Bounds are widened for rounding and may fall just below 0, which no score does.
    value = max(0.0, high if accepted else low)
    detail = f"settled by {m} of {n} samples: between {max(0.0, low):.4g} and {high:.4g} whatever the others say"
    return Uncertainty(value=value, unit=estimator.unit, estimator=estimator.name, detail=detail, is_bound=True)


def decide_after_first(
    drawn: SampleSet, estimator: Estimator, plan: SamplingPlan, threshold: float
) -> Uncertainty | None:
    """The uncertainty by which the first of two stages decides, or None if samples are needed.

    Args:
        drawn: A set with its primary answer.
        estimator: An ordering in two stages.
        plan: The plan of both stages.
        threshold: The gate's threshold.
    """
    assert estimator.after_first is not None
    cheap = measure(primary_alone(drawn), estimator.members[0], plan)
    if cheap.value is None:
        return estimator.unmeasured(cheap.reason or Unmeasured.NOT_FINITE, f"{cheap.estimator}: {cheap.detail}")
    low, high = estimator.after_first(cheap.value)
    if not accepts(high, threshold) and accepts(low, threshold):
        return None
    value = high if accepts(high, threshold) else low
    detail = f"settled by the first call: {cheap.estimator} {cheap.value:.4g}, whatever the samples say"
    return Uncertainty(
        value=value, unit=estimator.unit, estimator=estimator.name, detail=detail, is_bound=True, first=cheap.value
    )


def draw_until_decided(
    sampler: Sampler, messages: Sequence[BaseMessage], gates: Gates, *, early: bool, primary_first: bool = False
) -> Steps[Drawn]:
    """Draw a plan's samples in waves and stop as soon as every verdict is certain, or an adaptive plan says so.

    The samples are the plan's: the same calls with the same settings, or, from a native sampler, independent draws with
    one seed for each wave, derived from the request's seed.

    Args:
        sampler: The sampler.
        messages: The prompt.
        gates: The gates that judge a candidate; without any, no further sample is drawn.
        early: Whether a gate may stop the drawing; otherwise only an adaptive plan does.
        primary_first: Draw the primary answer alone at first. Not for plans with follow-ups.
    """
    plan = sampler.plan
    if plan.primary == "majority":
        (drawn,) = yield from sampler.draw_steps([messages])
        return Drawn(with_majority(drawn))
    stop = plan.unanimous_at if plan.n and plan.options is None and not plan.follow_ups else None
    at_once = (plan.n,) if stop is None else (stop, plan.n)
    in_waves = wave_ends(plan.n, stop or FIRST_WAVE)
    done = 0 if primary_first else (in_waves if early else at_once)[0]
    wave: Sampler = replace(sampler, plan=_up_to(done, plan))
    so_far: SampleSet | None = None
    while True:
        (more,) = yield from wave.draw_steps([messages])
        so_far = drawn = more if so_far is None else joined(so_far, more)
        judging = gates(drawn.primary)
        # A primary draw that failed needs no samples: no gate could accept its answer.
        if done == plan.n or not judging or (not done and drawn.problem is not None):
            return Drawn(drawn)
        # One gate that needs all samples decides for all: they judge the same draw.
        early = all(gate.early != "none" for gate in judging)
        staged = all(gate.estimator.after_first is not None for gate in judging)
        if done or (early and staged):
            look = partial(_certain, drawn, judging, plan.n, early=early, adaptive=done == stop)
            slow = any(gate.estimator.takes_time(drawn) for gate in judging)
            settled: Mapping[str, Uncertainty] | None = yield computation(look, slow=slow)
            if settled is not None:
                cost = drawn.cost.model_copy(update={"saved": plan.n - done})
                return Drawn(drawn.model_copy(update={"cost": cost}), settled)
        end = next(end for end in (in_waves if early and not staged else at_once) if end > done)
        wave = replace(sampler, plan=_up_to(end, plan), first=done, wave=wave.wave + 1)
        done = end


def _certain(
    drawn: SampleSet, gates: Sequence[Gate], n: int, *, early: bool, adaptive: bool
) -> Mapping[str, Uncertainty] | None:
    """The settled uncertainty of each gate, if no more samples are needed; otherwise None."""
    if adaptive and all(unanimous(drawn, gate.estimator) for gate in gates):
        return {}
    settled = {}
    for gate in gates if early else ():
        threshold = gate.artifact.threshold
        if threshold is None:
            return None
        if gate.estimator.after_first is not None:
            bound = decide_after_first(drawn, gate.estimator, gate.artifact.plan, threshold)
        else:
            bound = decide_early(drawn, gate.estimator, n, threshold)
        if bound is None:
            return None
        # An unmeasured bound is no acceptance either: it must not stop the drawing.
        if gate.early == "acceptances" and not (bound.value is not None and accepts(bound.value, threshold)):
            return None
        settled[gate.artifact.digest] = bound
    # An empty mapping would mean an adaptive plan's stop, so no settled gate has to be None.
    return settled or None


def _up_to(n: int, plan: SamplingPlan) -> SamplingPlan:
    return plan.model_copy(update={"n": n, "unanimous_at": None})
