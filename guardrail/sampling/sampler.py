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
from functools import reduce
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from ..bindings import binding_settings, native_settings
from ..errors import UsageError
from ..plain_json import sha256_hex
from ..prompting import question_text
from ..types import Cost, Sample, SampleSet, SamplingPlan
from .calls import Call, Reply, failed, make_calls
from .draws import NOTHING, Draw
from .effects import Effect, Steps, arun, run
from .follow_ups import NO_SCORERS, Scoring, ask_follow_ups
from .limits import bounded
from .native import NativeSampler, call_seed, is_native, request_seed
from .prober import needs_probe, seeded
from .replies.failures import failed_calls, refused_samples
from .replies.read import only_ended, only_offered, only_readable


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
        max_concurrency: Calls in flight at once (default 16 for a model without a native sampler; an endpoint's has its
            own limit). A local model draws all at once.
        name: What the primary answers are for, in traces and in the names of pieces.
        primary: Whether the primary answer is drawn; False for the samples of a set that has it. A native sampler draws
            it all the same if its methods do not take the keyword ``primary``.
        question: What judges read as the question, of all prompts; None for the last human message of each.
        transport: Settings that say how a request travels (``user``, ``metadata``), passed on with every call. A local
            model has no use for them.
    """

    model: BaseChatModel
    plan: SamplingPlan
    callbacks: Callbacks = None
    max_concurrency: int | None = None
    name: str = "primary"
    primary: bool = True
    question: str | None = None
    transport: Mapping[str, Any] = field(default_factory=dict)
    scoring: Scoring = NO_SCORERS
    memory: Draw = NOTHING

    def __post_init__(self) -> None:
        if getattr(self.model, "guardrail_judges", False):
            raise UsageError(
                f"this model is a {type(self.model).__name__}, which judges its answers itself. Give the model that it "
                "guards; to ask one after the other, give this one as on_abstain of the other."
            )

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
        answered = yield from self._answers(prompts)
        drawn = [self._sound(sample_set) for sample_set in answered]
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
            (drawn,) = yield from replace(self, primary=False)._answers([messages])
        question = drawn.question if self.question is None else self.question
        whole = drawn.model_copy(update={"primary": primary, "question": question})
        (complete,) = yield from self._asked([messages], [self._sound(whole)])
        return complete

    def _sound(self, drawn: SampleSet) -> SampleSet:
        """The set; its problem says if its answer calls what was not offered, or may not be whole."""
        return only_offered(only_ended(drawn, self.plan), self.plan.bindings)

    def _asked(self, prompts: Sequence[Sequence[BaseMessage]], drawn: list[SampleSet]) -> Steps[list[SampleSet]]:
        """The sets with the replies of the model and of the scorers."""
        replied = yield from ask_follow_ups(prompts, drawn, self.plan, self._follow_up)
        return (yield from self.scoring.ask(prompts, replied, self.plan, self.max_concurrency, self.memory))

    def _follow_up(
        self, name: str, plan: SamplingPlan, prompts: Sequence[Sequence[BaseMessage]]
    ) -> Steps[list[SampleSet]]:
        return replace(self, plan=plan, name=name)._answers(prompts)

    def _answers(self, prompts: Sequence[Sequence[BaseMessage]]) -> Steps[list[SampleSet]]:
        if not prompts:
            return []
        if self.plan.primary == "majority" and self.primary:
            # Fail closed: until the caller has counted the vote, the set has no answer that could be given out.
            drawn = yield from replace(self, primary=False)._answers(prompts)
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
                "local model (integrations.transformers_chat.TransformersChat), or a score for open answers."
            )
        calls = self._calls(prompts)
        replies = yield from make_calls(self.model, calls, self.callbacks, self.max_concurrency, self.memory)
        calls_of_prompt = len(calls) // len(prompts)
        pairs = list(zip(calls, replies, strict=True))
        return [
            _sample_set(messages, pairs[i * calls_of_prompt : (i + 1) * calls_of_prompt])
            for i, messages in enumerate(prompts)
        ]

    def _natively(self, model: NativeSampler, prompts: Sequence[Sequence[BaseMessage]]) -> Steps[list[SampleSet]]:
        """The sets of a native sampler: the parts that have arrived, and one call for what they lack."""
        n, names = self.plan.n, self._pieces(prompts)
        sets: list[SampleSet] = []
        counts: list[int] = []
        for name, messages in zip(names, prompts, strict=True):
            parts = yield from self._parts(name)
            whole = reduce(joined, parts, SampleSet(question=question_text(messages), primary=None))
            sets.append(whole.model_copy(update={"samples": whole.samples[:n]}))
            counts.append(len(parts))
        places = [index for index, drawn in enumerate(sets) if self._lacks(drawn)]
        if not places:
            return sets
        # All lack the same: several prompts are follow-ups, which have no samples.
        lacking = sets[places[0]]
        needs_primary = self.primary and lacking.primary is None
        missing = n - len(lacking.samples)
        # A set without samples would have the likeliest option as its answer, against the plan.
        missing = max(missing, int(needs_primary and n > 0 and self.plan.options is not None))
        asking = replace(self, plan=self.plan.model_copy(update={"n": missing}), primary=needs_primary)
        # Each part has another seed. The first one is taken by the samples that these continue under another name, or,
        # where nothing is remembered, by a sampled primary answer.
        taken = self.name != "primary" or (self.plan.primary == "sampled" and self.memory.draws.seconds <= 0)
        number = max(int(taken and not self.primary), *(counts[index] for index in places))
        fresh = yield from asking._native_call(model, [prompts[index] for index in places], number)
        overtaken = False
        for index, part in zip(places, fresh, strict=True):
            lost = part.problem is not None and not part.problem.depends_on_question
            if lost and not self._lacks(joined(sets[index], part.model_copy(update={"problem": None}))):
                # The memory keeps answers and no failure of the transport: the next attempt would find a whole set.
                sets[index] = joined(sets[index], part)
                continue
            noted = yield from self.memory.note(f"{names[index]}:part {counts[index]}", part)
            overtaken |= noted is not part  # another attempt has drawn this part meanwhile, and perhaps less of it
            whole = joined(sets[index], noted)
            sets[index] = whole.model_copy(update={"samples": whole.samples[:n]})
        return (yield from self._natively(model, prompts)) if overtaken else sets

    def _parts(self, name: str) -> Steps[list[SampleSet]]:
        """The parts of a native sampler's set that have arrived, in order."""
        parts: list[SampleSet] = []
        while (part := (yield from self.memory.piece(f"{name}:part {len(parts)}"))) is not None:
            parts.append(part)
        return parts

    def _lacks(self, drawn: SampleSet) -> bool:
        """Whether something of the plan is missing, and no result says that it will stay so."""
        missing = len(drawn.samples) < self.plan.n
        unread = self.plan.options is not None and drawn.options is None
        return drawn.problem is None and (missing or unread or (self.primary and drawn.primary is None))

    def _pieces(self, prompts: Sequence[Sequence[BaseMessage]]) -> list[str]:
        """Names of the prompts within a draw, which has one prompt; follow-ups differ with the answers they quote."""
        if self.name == "primary":
            return [self.name for _ in prompts]
        texts = [repr([(message.type, message.content) for message in messages]) for messages in prompts]
        return [
            f"{self.name}:{index}:{sha256_hex(text.encode('utf-8', 'surrogatepass'), 16)}"
            for index, text in enumerate(texts)
        ]

    def _native_call(
        self, model: NativeSampler, prompts: Sequence[Sequence[BaseMessage]], number: int
    ) -> Steps[list[SampleSet]]:
        seeds = [request_seed(self.plan, messages, number) for messages in prompts]

        def drawn() -> list[SampleSet]:
            with bounded(self.max_concurrency):
                return model.draw_samples(prompts, self.plan, seeds=seeds, **self._native_settings(model.draw_samples))

        async def adrawn() -> list[SampleSet]:
            with bounded(self.max_concurrency):
                settings = self._native_settings(model.adraw_samples)
                return await model.adraw_samples(prompts, self.plan, seeds=seeds, **settings)

        try:
            sets: list[SampleSet] = yield Effect(drawn, adrawn)
            return [only_readable(drawn) for drawn in sets]
        except UsageError:
            raise
        except Exception as error:
            if len(prompts) == 1:
                return [failed(error, question_text(prompts[0]), calls=0)]
        each_alone = []  # one bad prompt must not fail the others: it is found by drawing one at a time
        for messages in prompts:
            each_alone += yield from self._native_call(model, [messages], number)
        return each_alone

    def _native_settings(self, draw: Callable[..., Any]) -> dict[str, Any]:
        """Keywords of a native sampler's method beside prompts, plan and seeds."""
        settings = native_settings(self.model, draw, self.plan.bindings)
        if not self.primary and "primary" in inspect.signature(draw).parameters:
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
            Call(
                list(messages),
                greedy if index < 0 and greedy else {**sampled, **seeds(index)},
                index,
                self.name,
                f"{piece}:{index}",
            )
            for messages, piece in zip(prompts, self._pieces(prompts), strict=True)
            for seeds in [self._seeds(messages)]
            for index in range(-1 if self.primary else 0, plan.n)
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


def joined(drawn: SampleSet, more: SampleSet) -> SampleSet:
    """Two parts of a set as one: all samples, the first primary answer and options, the first problem.

    A failure of the transport in the first part does not hide a problem of the second that depends on the question.
    """
    hidden = more.problem is not None and more.problem.depends_on_question
    # A problem of the question is final, one of the transport may pass: the final one must survive the merge.
    first = drawn.problem is not None and (drawn.problem.depends_on_question or not hidden)
    problem = drawn if first else more
    return drawn.model_copy(
        update={
            "primary": drawn.primary or more.primary,
            "samples": (*drawn.samples, *more.samples),
            "options": drawn.options or more.options,
            "cost": drawn.cost + more.cost,
            "problem": problem.problem,
            "problem_detail": problem.problem_detail,
        }
    )


def _sample_set(messages: Sequence[BaseMessage], pairs: Sequence[tuple[Call, Reply]]) -> SampleSet:
    answers = [reply.answer for _, reply in pairs]
    samples = tuple(
        reply.answer.primary for call, reply in pairs if call.index >= 0 and reply.answer.primary is not None
    )
    primary = next((reply.answer.primary for call, reply in pairs if call.index < 0), None)
    failures = [(answer.problem, answer.problem_detail) for answer in answers if answer.problem is not None]
    answered = samples if primary is None else (primary, *samples)
    problem, detail = failed_calls(failures, len(answers), answered) or refused_samples(samples) or (None, "")
    cost = sum((answer.cost for answer in answers), start=Cost())
    calls_made = [reply for _, reply in pairs if reply.answer.cost.calls]
    if calls_made:  # calls are made side by side
        seconds = max(reply.ended for reply in calls_made) - min(reply.started for reply in calls_made)
        cost = cost.model_copy(update={"seconds": seconds})
    return SampleSet(
        question=question_text(messages),
        primary=primary,
        samples=samples,
        cost=cost,
        problem=problem,
        problem_detail=detail,
    )
