"""From messages to a `SampleSet`: native samplers, and separate calls of every other chat model.

A chat model that can draw all samples of a prompt at once (one prefill, exact log-probabilities, option read-out)
implements `NativeSampler`. Every other `BaseChatModel` is called n + 1 times, side by side.

Honest sampling: no response cache is used, the caller's model is never changed, a shortfall is reported, not padded.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ..bindings import binding_settings, native_settings
from ..errors import UsageError, describe_error
from ..prompting import question_text
from ..types import Cost, Sample, SampleSet, SamplingPlan, Unmeasured
from .calls import Call, Reply, make_calls
from .effects import Effect, Steps, arun, run
from .follow_ups import NO_SCORERS, Round, Scoring, ask_follow_ups
from .native import NativeSampler, call_seed, is_native, request_seed
from .prober import needs_probe, seeded
from .replies import cause_of, failed_calls, only_readable

__all__ = ["Sampler", "adraw", "draw", "refuse_majority"]


def refuse_majority(plan: SamplingPlan, purpose: str) -> None:
    """Refuse a plan whose primary answer is the vote of the samples.

    Args:
        plan: The plan.
        purpose: The use that needs the answer of a single call, in words.

    Raises:
        UsageError: The primary answer is the vote.
    """
    if plan.primary == "majority":
        raise UsageError(
            f"this plan cannot {purpose}: its primary answer is the most frequent of {plan.n} samples, and one answer "
            "alone is wrong more often. Use a guard, which draws the samples and gives out their vote, or calibrate "
            "the answers that are served (`calibrate collect`, or name their column: `calibrate import --primary`)."
        )


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draws the sample sets of prompts, all in the same way.

    Attributes:
        model: Any chat model. It is not changed; a response cache and streaming are switched off on a copy.
        plan: What to draw.
        callbacks: For the calls of a model without a native sampler.
        max_concurrency: Calls in flight at once for such a model (default 16).
        name: What the primary answers are for, in traces.
        first: What is drawn first: -1 for the primary answer; from 0 on only the samples ``first`` to n - 1, for a set
            that has its primary answer. A native sampler draws that answer all the same if its methods do not take the
            keyword ``primary``.
        wave: Number of the wave in which a set is drawn: a native sampler has a seed for each, so that it draws no
            sample twice.
        question: What judges read as the question, of all prompts; None for the last human message of each.
        transport: Settings that say how a request travels (``user``, ``metadata``), passed on with every call. A local
            model has no use for them.
    """

    model: BaseChatModel
    plan: SamplingPlan
    callbacks: Callbacks = None
    max_concurrency: int | None = None
    name: str = "primary"
    first: int = -1
    wave: int = 0
    question: str | None = None
    transport: Mapping[str, Any] = field(default_factory=dict)
    scoring: Scoring = NO_SCORERS

    def draw(self, prompts: Sequence[Sequence[BaseMessage]]) -> list[SampleSet]:
        """Draw one sample set for each prompt, and ask the plan's follow-ups about it.

        A model that fails on a prompt does not raise: its set says so in ``problem`` and will abstain. A follow-up
        that fails leaves the drawn answers alone.

        Raises:
            UsageError: The plan asks for option likelihoods, which only a native sampler can read, for stop token ids,
                which only a local model takes, or for an unknown follow-up.
        """
        return run(self.draw_steps(prompts))

    async def adraw(self, prompts: Sequence[Sequence[BaseMessage]]) -> list[SampleSet]:
        """`draw` without blocking the event loop."""
        return await arun(self.draw_steps(prompts))

    def draw_steps(self, prompts: Sequence[Sequence[BaseMessage]]) -> Steps[list[SampleSet]]:
        """`draw` as steps of a larger computation."""
        drawn = yield from self._answers(prompts)
        if self.question is not None:
            drawn = [sample_set.model_copy(update={"question": self.question}) for sample_set in drawn]
        return (yield from self._asked(prompts, drawn))

    def draw_behind_steps(self, messages: Sequence[BaseMessage], primary: Sample) -> Steps[SampleSet]:
        """The samples for a prompt whose primary answer was given already, and the follow-ups about that answer.

        Raises:
            UsageError: The plan's primary answer is the vote of the samples, so none was given already.
        """
        refuse_majority(self.plan, "measure an answer that was served")
        drawn = SampleSet(question=question_text(messages), primary=None)
        if self.plan.n or self.plan.options is not None:
            (drawn,) = yield from replace(self, first=0)._answers([messages])
        question = drawn.question if self.question is None else self.question
        whole = drawn.model_copy(update={"primary": primary, "question": question})
        (complete,) = yield from self._asked([messages], [whole])
        return complete

    def _asked(self, prompts: Sequence[Sequence[BaseMessage]], drawn: list[SampleSet]) -> Steps[list[SampleSet]]:
        """The sets with the replies of the model and of the scorers."""
        replied = yield from ask_follow_ups(prompts, drawn, self.plan, self._follow_up)
        return (yield from self.scoring.ask(prompts, replied, self.plan, self.max_concurrency))

    def _follow_up(self, one_round: Round) -> Steps[list[SampleSet]]:
        return replace(self, plan=one_round.plan, name=one_round.name)._answers(one_round.prompts)

    def _answers(self, prompts: Sequence[Sequence[BaseMessage]]) -> Steps[list[SampleSet]]:
        if not prompts:
            return []
        if self.plan.primary == "majority" and self.first < 0:
            # Fail closed: until the caller has counted the vote, the set has no answer that could be given out.
            drawn = yield from replace(self, first=0)._answers(prompts)
            return [sample_set.model_copy(update={"primary": None}) for sample_set in drawn]
        if self.plan.stop_token_ids and "stop_token_ids" not in type(self.model).model_fields:
            raise UsageError(
                f"{type(self.model).__name__} does not take stop_token_ids, got {self.plan.stop_token_ids}. Use stop "
                "strings, or a local model (integrations.transformers_chat.TransformersChat)."
            )
        if is_native(self.model):
            return (yield from self._natively(self.model, prompts))
        if self.plan.options is not None:
            raise UsageError(
                f"{type(self.model).__name__} cannot read the likelihood of answer options {self.plan.options}. Use a "
                "local model (integrations.transformers_chat.TransformersChat), or an estimator for open answers."
            )
        calls = self._calls(prompts)
        replies = yield from make_calls(self.model, calls, self.callbacks, self.max_concurrency)
        each, pairs = len(calls) // len(prompts), list(zip(calls, replies, strict=True))
        return [_sample_set(messages, pairs[i * each : (i + 1) * each]) for i, messages in enumerate(prompts)]

    def _natively(self, model: NativeSampler, prompts: Sequence[Sequence[BaseMessage]]) -> Steps[list[SampleSet]]:
        plan = self.plan.model_copy(update={"n": self.plan.n - max(self.first, 0)})
        seeds = [request_seed(plan, messages, self.wave) for messages in prompts]

        def drawing(draw: Callable[..., Any]) -> Callable[[], Any]:
            return lambda: draw(prompts, plan, seeds=seeds, **self._native_settings(draw))

        try:
            sets: list[SampleSet] = yield Effect(drawing(model.draw_samples), drawing(model.adraw_samples))
            return [only_readable(drawn) for drawn in sets]
        except UsageError:
            raise
        except Exception as error:
            if len(prompts) == 1:
                return [_failed(prompts[0], error)]
        each_alone = []  # one bad prompt must not fail the others: it is found by drawing one at a time
        for messages in prompts:
            each_alone += yield from self._natively(model, [messages])
        return each_alone

    def _native_settings(self, draw: Callable[..., Any]) -> dict[str, Any]:
        """Keywords of a native sampler's method beside prompts, plan and seeds."""
        settings = native_settings(self.model, draw, self.plan.bindings)
        if self.first >= 0 and "primary" in inspect.signature(draw).parameters:
            settings["primary"] = False
        return {**(self.transport if needs_probe(self.model) else {}), **settings}

    def _calls(self, prompts: Sequence[Sequence[BaseMessage]]) -> list[Call]:
        """The separate calls, equally many for each prompt, in order."""
        plan = self.plan
        bound = binding_settings(self.model, plan.bindings)
        common: dict[str, Any] = {**self.transport, **bound, "max_tokens": plan.max_tokens}
        if plan.stop:
            common["stop"] = list(plan.stop)
        if plan.logprobs:
            common["logprobs"] = True
        sampled = {**common, "temperature": plan.temperature, "top_p": plan.top_p}
        greedy = None if plan.primary == "sampled" else {**common, "temperature": 0.0}
        return [
            Call(list(messages), greedy if index < 0 and greedy else {**sampled, **seeds(index)}, index, self.name)
            for messages in prompts
            for seeds in [self._seeds(messages)]
            for index in range(self.first, plan.n)
        ]

    def _seeds(self, messages: Sequence[BaseMessage]) -> Callable[[int], dict[str, int]]:
        """The seed of each sample, by its number: a cache that answers equal requests alike cannot answer two of them.

        None for models that cannot be sent one (`guardrail.sampling.prober.seeded`).
        """
        if not seeded(self.model):
            return lambda index: {}
        fixed = request_seed(self.plan, messages)
        seed = secrets.randbits(63) if fixed is None else fixed
        return lambda index: {"seed": call_seed(seed, 1 + index)}


def draw(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks = None,
    max_concurrency: int | None = None,
    primary: bool = True,
) -> list[SampleSet]:
    """Draw one sample set for each prompt, and ask the plan's follow-ups about it: `Sampler.draw`.

    Args:
        model: Any chat model. It is not changed; a response cache and streaming are switched off on a copy.
        prompts: One message list for each request.
        plan: What to draw.
        callbacks: For the calls of a model without a native sampler.
        max_concurrency: Calls in flight at once for such a model (default 16).
        primary: False for further samples of a set that has its primary answer, so that it need not be drawn again. A
            native sampler whose methods do not take this keyword draws it all the same.

    Raises:
        UsageError: The plan asks for option likelihoods, which only a native sampler can read, or names an unknown
            follow-up.
    """
    return Sampler(model, plan, callbacks, max_concurrency, first=-1 if primary else 0).draw(prompts)


async def adraw(
    model: BaseChatModel,
    prompts: Sequence[Sequence[BaseMessage]],
    plan: SamplingPlan,
    *,
    callbacks: Callbacks = None,
    max_concurrency: int | None = None,
    primary: bool = True,
) -> list[SampleSet]:
    """`draw` without blocking the event loop."""
    return await Sampler(model, plan, callbacks, max_concurrency, first=-1 if primary else 0).adraw(prompts)


def _sample_set(messages: Sequence[BaseMessage], pairs: Sequence[tuple[Call, Reply]]) -> SampleSet:
    replies = [reply for _, reply in pairs]
    samples = tuple(reply.sample for call, reply in pairs if call.index >= 0 and reply.sample is not None)
    primary = next((reply.sample for call, reply in pairs if call.index < 0), None)
    problem, detail = _problem(replies, samples, primary)
    used = [reply.usage for reply in replies if reply.usage is not None]
    return SampleSet(
        question=question_text(messages),
        primary=primary,
        samples=samples,
        cost=Cost(
            calls=len(replies),
            input_tokens=sum(usage.get("input_tokens", 0) for usage in used),
            output_tokens=sum(usage.get("output_tokens", 0) for usage in used),
            seconds=max(reply.ended for reply in replies) - min(reply.started for reply in replies),
        ),
        problem=problem,
        problem_detail=detail,
    )


def _problem(
    replies: Sequence[Reply], samples: Sequence[Sample], primary: Sample | None
) -> tuple[Unmeasured | None, str]:
    errors = [reply.error for reply in replies if reply.error is not None]
    if errors:
        first = describe_error(errors[0], asking=True)
        reason = failed_calls(map(cause_of, errors), samples if primary is None else (primary, *samples))
        return reason, f"{len(errors)} of {len(replies)} calls failed, the first with {first}"
    refused = sum(sample.refusal for sample in samples)
    if refused:
        return Unmeasured.REFUSED, f"{refused} of {len(samples)} samples are refusals or were filtered"
    return None, ""


def _failed(messages: Sequence[BaseMessage], error: Exception) -> SampleSet:
    return SampleSet(
        question=question_text(messages),
        primary=None,
        problem=cause_of(error),
        problem_detail=describe_error(error, asking=True),
    )
