"""The sampling plan that gives estimators what they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ..errors import UsageError
from ..judges import ToolCallJudge
from ..types import MAX_TOKENS, Bindings, SamplingPlan
from .base import Estimator
from .combine import expanded

__all__ = ["TWO_STAGES", "check_arguments", "plan_for", "samples_of", "unmet_needs"]

TWO_STAGES = 1.4
"""Calls of a question in two stages: one, and two more where the first does not decide; 1.4 on average."""
CALLS = {1.0: 0, TWO_STAGES: 2, 3.0: 2, 11.0: 10}
"""Samples by the calls that a question costs."""


def samples_of(calls: float) -> int:
    """Samples of a plan that costs so many calls a question.

    Raises:
        UsageError: Not one of `CALLS`.
    """
    if calls not in CALLS:
        raise UsageError(
            f"calls must be one of {', '.join(f'{known:g}' for known in CALLS)}, got {calls:g}. Or give n."
        )
    return CALLS[calls]


def plan_for(
    estimators: Iterable[Estimator],
    *,
    options: Sequence[str] | None = None,
    n: int = 10,
    temperature: float = 0.7,
    top_p: float = 0.9,
    max_tokens: int = MAX_TOKENS,
    stop: Sequence[str] = (),
    seed: int | None = 0,
    bindings: Bindings | None = None,
    primary: Literal["greedy", "sampled"] = "greedy",
    cut_off: Literal["abstain", "measure"] = "abstain",
    stop_token_ids: Sequence[int] = (),
    calls: float | None = None,
) -> SamplingPlan:
    """The cheapest plan that gives every estimator what it declares it needs.

    Args:
        estimators: What will be computed.
        options: Option labels, for closed-ended questions.
        n: Samples, if any estimator needs samples; otherwise none are drawn. `then` names the number itself: at least
            so many are drawn, and no more if nothing else needs them.
        temperature: Sampling temperature; above 0.
        top_p: Nucleus mass.
        max_tokens: Longest answer.
        stop: Stop strings.
        seed: Base seed; None for fresh randomness every time.
        bindings: Tools and answer format; `guardrail.bindings.bindings_for` makes them.
        primary: "sampled" for models that take no other temperature than 1; pass ``temperature=1, top_p=1`` with it.
        cut_off: What an answer that was cut off at ``max_tokens`` is: unmeasured, or an answer like others.
        stop_token_ids: Tokens that end an answer, by their ids in the tokenizer of a local model.
        calls: Calls that a question costs, one of `CALLS`; replaces ``n``. 1.4 is for two stages.

    Raises:
        UsageError: No estimator is given, one needs options and none are given, one needs more samples, or a judge
            compares arguments that the tools do not have.
    """
    n = n if calls is None else samples_of(calls)
    named = list(estimators)
    n = samples_for(named, n)
    # A combination's own needs name one follow-up only; its parts name them all.
    estimators = expanded(named)
    if not estimators:
        raise UsageError("no score given, so there is nothing to plan for. Name one, e.g. semantic_entropy.")
    check_arguments(estimators, bindings)
    hungry = [estimator.name for estimator in estimators if estimator.needs.options]
    if hungry and options is None:
        raise UsageError(
            f"{', '.join(hungry)} reads the likelihood of answer options, but no option labels were given. "
            "Pass options=('A', 'B', 'C', 'D'), or use a score for open answers such as semantic_entropy."
        )
    few = [estimator.name for estimator in estimators if n < estimator.fewest]
    if few and calls is not None:
        raise UsageError(
            f"{', '.join(few)} needs samples, and calls = {calls:g} draws {n}. Give more calls, or a score of the "
            "primary answer alone (answer_word_nll, sequence_nll)."
        )
    if few and n:
        raise UsageError(
            f"{', '.join(few)} needs at least 2 samples, got n = {n}: one sample cannot disagree with itself. Use "
            "n=10, or compare the sample with the answer (graded_disagreement, primary_disagreement)."
        )
    asked = [estimator.needs.follow_up for estimator in estimators]
    return SamplingPlan(
        n=n if any(estimator.needs.samples for estimator in estimators) else 0,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        stop=tuple(stop),
        logprobs=any(estimator.needs.logprobs for estimator in estimators),
        follow_ups=tuple(sorted({each.name for each in asked if each is not None})),
        options=tuple(options) if hungry and options is not None else None,
        seed=seed,
        bindings=bindings,
        primary=primary,
        cut_off=cut_off,
        stop_token_ids=tuple(stop_token_ids),
    )


def samples_for(estimators: Sequence[Estimator], n: int) -> int:
    """Samples that the estimators read where a user asks for n: `then` reads as many as it says, others all."""
    of_stages = [estimator.stages.samples for estimator in estimators if estimator.stages is not None]
    others = any(each.needs.samples for each in estimators if each.stages is None)
    return max([*of_stages, n if others or not of_stages else 0])


def check_arguments(estimators: Iterable[Estimator], bindings: Bindings | None) -> None:
    """Refuse judges that compare arguments which the tools do not have; see `ToolCallJudge.check`."""
    for estimator in expanded(list(estimators)):
        if isinstance(estimator.judge, ToolCallJudge):
            estimator.judge.check(bindings)


def unmet_needs(estimator: Estimator, plan: SamplingPlan) -> list[tuple[str, str]]:
    """The data that an estimator, or a part of a combination, reads and a plan does not draw.

    Returns:
        Pairs of the need and the way out, in words; empty if the plan draws all.
    """
    unmet = dict[str, str]()
    if estimator.stages is not None and plan.n < estimator.stages.samples:
        unmet[f"{estimator.stages.samples} samples"] = "collect with this score, or with one that draws more"
    for member in expanded([estimator]):
        needs = member.needs
        if needs.options and plan.options is None:
            unmet["option log-likelihoods"] = "questions with options, and a model that reads them"
        if needs.follow_up is not None and needs.follow_up.name not in plan.follow_ups:
            if member.scorer is None:
                unmet["a further question to the model"] = f"collect with --score {estimator.name}"
            else:
                unmet[f"the scorer {needs.follow_up.name}"] = "collect or score with --scorer"
        if plan.n < member.fewest:
            unmet["samples"] = "collect with a score that draws them"
        if needs.logprobs and not plan.logprobs:
            unmet["token log-probabilities"] = "collect with a score that reads them, from a model that gives them"
        if needs.entailment and member.entailment is None:
            unmet["an entailment model"] = f"--score '{member.name}:nli(model=PATH)'"
        if plan.options is not None and plan.n == 0 and not needs.options and needs.follow_up is None:
            unmet["an answer in words"] = "nothing was generated, the answer is an option"
    return list(unmet.items())
