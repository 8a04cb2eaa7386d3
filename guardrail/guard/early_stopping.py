"""Drawing in waves, and stopping as soon as no further sample can change the verdict.

The promise: for every sample set whose samples can all be measured, the decision (accept or abstain) with early
stopping is the decision without it. Two consequences are stated rather than hidden:

* Where a sample that was *not* drawn would have failed (an empty answer, a judge without a verdict), the full set would
  have been unmeasured, hence held back, while an early acceptance stands. Calibration left such items out, so its
  promise says nothing about them either way. An early abstention is always the full set's.
* The uncertainty of an early verdict is a bound, not the score: the largest value still possible when it accepts, the
  smallest when it abstains. Whatever compares run-time scores with calibration scores needs ``early_stopping="off"``.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ..gate import accepts
from ..judges import ExactJudge
from ..sampling.calls import acall_concurrently, call_concurrently
from ..sampling.native import is_native, request_seed
from ..sampling.sampler import adraw, draw
from ..types import SampleSet, SamplingPlan, Uncertainty, Unmeasured
from ..uncertainty import Estimator, Evidence, Missing, cluster, measure
from ..uncertainty.early_bounds import attainable_scores, has_useful_bounds

__all__ = [
    "Drawn",
    "adapted",
    "adraw_until_decided",
    "draw_until_decided",
    "range_of",
    "settled",
    "wave_ends",
    "worthwhile",
]

FIRST_WAVE = 3
"""Samples drawn at first."""
NEXT_WAVE = 2
"""Samples drawn at a time after that; a rest of one joins the wave before it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn, and its uncertainty where that was settled before all samples were there.

    Attributes:
        drawn: The samples that were drawn; ``cost.saved`` counts those that were not.
        uncertainty: A bound that is on the same side of the threshold as the score (or the reason why there is no
            score); None when the set is complete and is to be measured as usual.
    """

    drawn: SampleSet
    uncertainty: Uncertainty | None = None


def wave_ends(n: int, first: int = FIRST_WAVE, step: int = NEXT_WAVE) -> tuple[int, ...]:
    """Numbers of samples after which to look, ending with n: (3, 6, 10) for n = 10."""
    ends = list(range(first, n, step))
    if ends and n - ends[-1] < 2:
        ends.pop()
    return (*ends, n)


def worthwhile(model: BaseChatModel, plan: SamplingPlan, estimator: Estimator) -> bool:
    """Whether drawing in waves can save anything worth its waiting: what ``early_stopping="auto"`` means.

    Not for models that draw all samples in one go, nor for judges about which nothing is known (`has_useful_bounds`).
    """
    return _possible(plan, estimator) and has_useful_bounds(estimator) and not is_native(model)


def _possible(plan: SamplingPlan, estimator: Estimator) -> bool:
    whole = plan.options is None and not plan.follow_ups
    return whole and estimator.bounds is not None and len(wave_ends(plan.n)) > 1


def range_of(drawn: SampleSet, estimator: Estimator, n: int) -> tuple[float, float] | Uncertainty | None:
    """The smallest and the largest score that n samples can have, given the first of them.

    Args:
        drawn: The first m samples, m >= 2.
        estimator: Measures them.
        n: Samples in the full set.

    Returns:
        Both ends; or an unmeasured `Uncertainty`, if the full set can have no score either; or None where nothing is
        known.
    """
    found: list[Evidence] = []

    def keep(evidence: Evidence) -> float:
        found.append(evidence)
        return 0.0

    m = len(drawn.samples)
    seen = measure(drawn, replace(estimator, formula=keep), SamplingPlan(n=max(m, 2)))
    if not seen.measured:
        return seen
    if not found:
        return None
    judged = [*drawn.samples, drawn.primary] if estimator.needs.primary and drawn.primary else drawn.samples
    ends = attainable_scores(found[0], tuple(sample.comparable for sample in judged), estimator, n)
    return estimator.unmeasured(ends.reason, ends.detail) if isinstance(ends, Missing) else ends


def settled(drawn: SampleSet, estimator: Estimator, n: int, threshold: float) -> Uncertainty | None:
    """The uncertainty that decides already, or None when further samples could still change the verdict.

    Args:
        drawn: The first m samples of n.
        estimator: Measures them.
        n: Samples in the full set.
        threshold: Of the gate.
    """
    m = len(drawn.samples)
    if drawn.problem is not None:
        return estimator.unmeasured(drawn.problem, drawn.problem_detail)
    if m < 2:
        return estimator.unmeasured(Unmeasured.SAMPLING_SHORTFALL, f"received {m} samples")
    ends = range_of(drawn, estimator, n)
    if isinstance(ends, Uncertainty):
        # A judge may find its voice again when it sees another text for the same answer, so this is not settled.
        return None if ends.reason is Unmeasured.JUDGE_FAILED else ends
    if ends is None:
        return None
    low, high = ends
    if not accepts(high, threshold) and accepts(low, threshold):
        return None
    accepted = accepts(high, threshold)
    value = max(0.0, high if accepted else low)
    told = f"settled by {m} of {n} samples: between {max(0.0, low):.4g} and {high:.4g} whatever the others say"
    return Uncertainty(value=value, unit=estimator.unit, estimator=estimator.name, detail=told, is_bound=True)


def adapted(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> tuple[SampleSet, SamplingPlan]:
    """What an adaptive plan measures of a set, and the plan that part was drawn by.

    The first ``plan.unanimous_at`` samples where they all mean the same, else everything. "The same" is what the
    estimator's judge says, or equal normalised strings for an estimator without one. Applied to recorded sets at
    calibration and to drawn ones at run time, so both measure the same thing.
    """
    k = plan.unanimous_at
    if k is None or not estimator.needs.samples or len(drawn.samples) < k:
        return drawn, plan
    part = drawn.model_copy(update={"samples": drawn.samples[:k]})
    if not _unanimous(part, estimator):
        return drawn, plan
    return part, plan.model_copy(update={"n": k, "unanimous_at": None})


def _unanimous(part: SampleSet, estimator: Estimator) -> bool:
    """Whether all samples mean the same; False where that cannot be told (then all n are drawn)."""
    answers = [sample.comparable for sample in part.samples]
    if part.problem is not None or not all(answers):
        return False
    try:
        found = cluster(part.question, answers, estimator.judge or ExactJudge(), estimator.clustering)
    except Exception:  # a judge is somebody else's code; measuring will say what is wrong with it
        return False
    return found is not None and len(found.sizes) == 1


@dataclass(frozen=True, slots=True)
class _Wave:
    """One wave to draw.

    Attributes:
        plan: Of the wave alone, for a native sampler or a first wave.
        upto: Of all samples so far and the wave, for separate calls that are numbered.
        first: Number of the wave's first call; -1 for the primary answer.
    """

    plan: SamplingPlan
    upto: SamplingPlan
    first: int


def _waves(
    messages: Sequence[BaseMessage], plan: SamplingPlan, estimator: Estimator, threshold: float | None
) -> Generator[_Wave, SampleSet, Drawn]:
    """The waves of one request, and what comes of them: no I/O, so that sync and async callers share it."""
    bounded = threshold is not None and _possible(plan, estimator)
    stop = plan.unanimous_at if plan.n and plan.options is None and not plan.follow_ups else None
    unbounded = (plan.n,) if stop is None else (stop, plan.n)
    ends = wave_ends(plan.n, stop or FIRST_WAVE) if bounded else unbounded
    whole = plan.model_copy(update={"n": ends[0], "unanimous_at": None})
    drawn = yield _Wave(whole, whole, -1)
    for number, (done, end) in enumerate(pairwise(ends), start=1):
        if done == stop and _unanimous(drawn, estimator):
            return Drawn(_short(drawn, plan.n - done))
        if bounded and threshold is not None:
            found = settled(drawn, estimator, plan.n, threshold)
            if found is not None:
                return Drawn(_short(drawn, plan.n - done), found)
        upto = plan.model_copy(update={"n": end, "unanimous_at": None})
        more = yield _Wave(_apart(upto, messages, number, end - done), upto, done)
        drawn = _joined(drawn, more)
    return Drawn(drawn)


def draw_until_decided(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    plan: SamplingPlan,
    estimator: Estimator,
    threshold: float | None,
    *,
    callbacks: Callbacks = None,
    max_concurrency: int | None = None,
) -> Drawn:
    """Draw a plan's samples in waves and stop as soon as the verdict is certain, or an adaptive plan says so.

    The samples are the plan's: the same calls with the same settings, or, from a native sampler, independent draws with
    a seed of their own for each wave, made from the request's seed.

    Args:
        model: Any chat model.
        messages: The prompt.
        plan: What to draw.
        estimator: Measures the samples; without bounds only an adaptive plan stops.
        threshold: Of the gate; None: only an adaptive plan stops.
        callbacks: For the calls of a model without a native sampler.
        max_concurrency: Calls in flight at once for such a model.
    """
    limit = max_concurrency
    waves = _waves(messages, plan, estimator, threshold)
    wave = next(waves)
    while True:
        if wave.first < 0 or is_native(model):
            made = draw(
                model, [messages], wave.plan, callbacks=callbacks, max_concurrency=limit, primary=wave.first < 0
            )
        else:
            made = call_concurrently(
                model, [messages], wave.upto, callbacks=callbacks, max_concurrency=limit, first=wave.first
            )
        step = _next(waves, made[0])
        if isinstance(step, Drawn):
            return step
        wave = step


async def adraw_until_decided(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    plan: SamplingPlan,
    estimator: Estimator,
    threshold: float | None,
    *,
    callbacks: Callbacks = None,
    max_concurrency: int | None = None,
) -> Drawn:
    """`draw_until_decided` without blocking the event loop: a judge that may take time is asked in a thread."""
    limit, slow = max_concurrency, estimator.is_slow
    waves = _waves(messages, plan, estimator, threshold)
    wave = next(waves)
    while True:
        if wave.first < 0 or is_native(model):
            made = await adraw(
                model, [messages], wave.plan, callbacks=callbacks, max_concurrency=limit, primary=wave.first < 0
            )
        else:
            made = await acall_concurrently(
                model, [messages], wave.upto, callbacks=callbacks, max_concurrency=limit, first=wave.first
            )
        step = await asyncio.to_thread(_next, waves, made[0]) if slow else _next(waves, made[0])
        if isinstance(step, Drawn):
            return step
        wave = step


def _next(waves: Generator[_Wave, SampleSet, Drawn], drawn: SampleSet) -> _Wave | Drawn:
    """What to draw after a wave, or what came of all of them."""
    try:
        return waves.send(drawn)
    except StopIteration as done:
        found: Drawn = done.value
        return found


def _apart(plan: SamplingPlan, messages: Sequence[BaseMessage], number: int, n: int) -> SamplingPlan:
    """A later wave of a native sampler: its own seed, from the request's, so that no sample is drawn twice."""
    seed = request_seed(plan, messages)
    if seed is not None:
        seed = int.from_bytes(hashlib.sha256(f"{seed}/wave {number}".encode()).digest()[:8], "big") >> 1
    return plan.model_copy(update={"n": n, "seed": seed})


def _joined(drawn: SampleSet, more: SampleSet) -> SampleSet:
    """Two waves as one set: the first one's primary answer, all samples, the first problem."""
    problem = drawn if drawn.problem is not None else more
    return drawn.model_copy(
        update={
            "samples": (*drawn.samples, *more.samples),
            "cost": drawn.cost + more.cost,
            "problem": problem.problem,
            "problem_detail": problem.problem_detail,
        }
    )


def _short(drawn: SampleSet, saved: int) -> SampleSet:
    return drawn.model_copy(update={"cost": drawn.cost.model_copy(update={"saved": saved})})
