"""The plan that an artifact needs at run time, of all that a collection drew."""

from __future__ import annotations

from guardrail.items.spec import ITEMS
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import SamplingPlan
from guardrail.uncertainty import EstimatorSpec, list_estimators, make_estimator
from guardrail.uncertainty.combine import COMBINATIONS, Parts


def narrowed_plan(plan: SamplingPlan, spec: EstimatorSpec) -> SamplingPlan:
    """The plan that run time needs for this one estimator: a collection may have drawn more, for others.

    Nothing that moves the score or the primary answer is dropped: samples, log-probabilities and follow-ups that the
    estimator does not read. With options n and log-probabilities stay, because n decides there what the primary answer
    is. Imported scores keep all: what they were computed from is unknown.
    """
    read = _read_by(spec)
    if read is None:  # imported scores: what they need is unknown, so nothing may be left out
        return plan
    samples, logprobs, asked = read
    plan = plan.model_copy(update={"follow_ups": tuple(name for name in plan.follow_ups if name in asked)})
    if plan.options is not None:
        return plan
    n = plan.n if samples or plan.primary == "majority" else 0
    if spec.name == "then":  # it reads the first m samples, whatever else was drawn
        n = int(spec.params["settings"]["m"])
    return plan.model_copy(update={"n": n, "logprobs": plan.logprobs and logprobs})


def _read_by(spec: EstimatorSpec) -> tuple[bool, bool, set[str]] | None:
    """Whether an estimator reads samples and log-probabilities, and its follow-ups; None where that is unknown."""
    if spec.name in COMBINATIONS:
        samples = logprobs = False
        follow_ups: set[str] = set()
        for part in Parts.from_stored(spec.params).parts:
            read = _read_by(part)
            if read is None:
                return None
            samples |= read[0]
            logprobs |= read[1]
            follow_ups |= read[2]
        return samples, logprobs, follow_ups
    if spec.name.startswith(SCORE):
        return "samples" in spec.params["reads"], "logprobs" in spec.params["reads"], {spec.name}
    if spec.name == ITEMS:
        return True, False, set()
    if spec.name in list_estimators():
        needs = make_estimator(spec.name).needs
        return needs.samples, needs.logprobs, set() if needs.follow_up is None else {needs.follow_up.name}
    return None
