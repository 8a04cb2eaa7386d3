"""The model an agent calls in place of its own: draws, judges the message, and lets out only what may go out.

It is made anew for each model call, so that nothing of a call is shared, and runs where the agent's own model would:
after every other middleware has had its way with the request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from pydantic import ConfigDict, Field

from guardrail.bindings import bindings_for
from guardrail.call_settings import Effect, names
from guardrail.errors import AbstainedError, ArtifactMismatchError
from guardrail.guard.abstention import Abstention, Form, OnAbstain, Wording, afall_back, fall_back
from guardrail.guard.base import is_result
from guardrail.guard.endpoint_trust import Doubt, Trust
from guardrail.guard.messages import _message as sample_message
from guardrail.guard.messages import with_verdict
from guardrail.guard.observers import Watch
from guardrail.guard.structured import form_of
from guardrail.prompting import question_text
from guardrail.sampling.callbacks import child_callbacks, hushed, note_verdict
from guardrail.sampling.calls import acall_concurrently, call_concurrently
from guardrail.sampling.limits import bounded, limit_of
from guardrail.sampling.native import is_native
from guardrail.sampling.replies import only_storable
from guardrail.sampling.sampler import adraw, draw
from guardrail.specs import ModelIdentity, identify
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.verdict import Verdict

from ..langgraph_review import lean
from .artifact_set import ANSWER, Gates, Judgement
from .held import Held, Kept, Order, call_digest, judged_of

__all__ = ["Abstentions", "Frozen", "GatedModel", "HeldBack", "Outcome", "carrying", "name_of", "this_step"]

TRANSPORT = names(Effect.TRANSPORT, allowed_in="langchain")
"""Call settings that say how a request travels, not how an answer is drawn: passed on as they are."""
PLANNED = names(Effect.PLAN)
"""Call settings that the artifact's plan fixes; those with the plan's value pass."""


# -- What one step of an agent has abstained on, so that a retry gets the same verdict and not another draw ------------
# An abstention above the threshold is a result. Middleware that takes its error for a failure asks again, and draws
# until a wrong answer happens to look certain; the error rate among answers is then what the retries make of it.

STEPS = 256
"""Steps that are remembered: those that run at once, and are tried again now."""


def this_step() -> str | None:
    """Name of the LangGraph task that runs here, the same for every retry within it; None outside a graph."""
    try:
        name = get_config().get("metadata", {}).get("langgraph_checkpoint_ns")
    except RuntimeError:
        return None
    return name if isinstance(name, str) and name else None


class Abstentions:
    """The last measured abstention of each step. Shared by threads and tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[list[BaseMessage], AbstainedError]] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> Abstentions:
        """A copy knows nothing yet: it is another middleware's."""
        return Abstentions()

    def check(self, step: str | None, messages: Sequence[BaseMessage]) -> None:
        """Let a question go on that this step has not abstained on.

        Raises:
            AbstainedError: The step has abstained on the very same messages before.
        """
        with self._lock:
            found = None if step is None else self._known.get(step)
        if found is not None and found[0] == list(messages):
            raise AbstainedError(found[1].verdict, found[1].message)

    def note(self, step: str | None, messages: Sequence[BaseMessage], error: AbstainedError) -> None:
        """Remember a measured abstention."""
        if step is None:
            return
        with self._lock:
            self._known[step] = (list(messages), error)
            self._known.move_to_end(step)
            while len(self._known) > STEPS:
                self._known.popitem(last=False)


class HeldBack(Exception):  # noqa: N818 - a signal, raised through the agent's own layers and caught above them
    """Carries a held-back message past everything between the gated model and the middleware."""

    def __init__(self, held: Held) -> None:
        super().__init__("held back for review")
        self.held = held


@dataclass
class Outcome:
    """What a gated model let out last: its message's id, its verdict, and its calls."""

    message_id: str | None = None
    verdict: Verdict | None = None
    orders: dict[str, Order] = field(default_factory=dict)
    held: Held | None = None


class GatedModel(BaseChatModel):
    """One model call of an agent, gated.

    It returns the accepted candidate, or takes the abstention path, or raises `held_back` with the frozen candidate.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: BaseChatModel
    """The agent's model. Not changed."""
    gates: Any = Field(repr=False)
    """`Gates`."""
    trust: Any = Field(repr=False)
    """`Trust` in this model."""
    watch: Any = Field(repr=False)
    """`Watch`: the switch and the observers."""
    outcome: Any = Field(repr=False)
    """`Outcome`, filled by the call."""
    abstentions: Any = Field(default_factory=Abstentions, repr=False)
    """`Abstentions` of the middleware."""
    step: str | None = None
    """The step of the agent that calls; see `this_step`."""
    held_back: Any = Field(repr=False)
    """What is raised with a `Held`, where a person is to decide; None takes ``on_abstain``."""
    on_abstain: Any = "message"
    abstain_message: Any = Field(repr=False)
    answers: tuple[str, ...] = ()
    """Tools whose call is the answer (structured output)."""
    settings: Mapping[str, Any] = Field(default_factory=dict)
    """Call settings the artifact's answers were collected with."""
    max_concurrency: int | None = None
    disable_streaming: bool = True
    cache: Any = False

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """What may go out, within ``max_concurrency`` of the agent's configuration."""
        with bounded(limit_of(config)):
            return super().invoke(input, config, stop=stop, **kwargs)

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        """`invoke` without blocking the event loop."""
        with bounded(limit_of(config)):
            return await super().ainvoke(input, config, stop=stop, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        form, model = self._checked(messages, stop, kwargs)
        self._check_before(messages)
        callbacks = child_callbacks(run_manager)
        with hushed():
            doubt = self._trust.examine()
            drawn = only_storable(self._drawn(model, messages, doubt, callbacks))
            judgement = self._gates.judge(drawn, self.answers)
            if judgement.verdict is not None:
                verdict = self._watch.final(self._trust.noted(judgement.verdict, doubt), messages)
                judgement = Judgement(verdict, judgement.by_name)
                note_verdict(run_manager, verdict)
        message = self._settled(judgement, drawn, messages)
        if message is None:
            assert judgement.verdict is not None, "a message that no gate concerns is accepted"
            with self._remembered(messages, judgement.verdict):
                message = fall_back(self._abstention(judgement, messages, callbacks, form))
            message = self._noted(message, judgement)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        form, model = self._checked(messages, stop, kwargs)
        self._check_before(messages)
        callbacks = child_callbacks(run_manager)
        with hushed():
            doubt = await self._trust.aexamine()
            drawn = only_storable(await self._adrawn(model, messages, doubt, callbacks))
            judgement = await self._gates.ajudge(drawn, self.answers)
            if judgement.verdict is not None:
                verdict = await self._watch.afinal(self._trust.noted(judgement.verdict, doubt), messages)
                judgement = Judgement(verdict, judgement.by_name)
                note_verdict(run_manager, verdict)
        message = self._settled(judgement, drawn, messages)
        if message is None:
            assert judgement.verdict is not None, "a message that no gate concerns is accepted"
            with self._remembered(messages, judgement.verdict):
                message = await afall_back(self._abstention(judgement, messages, callbacks, form))
            message = self._noted(message, judgement)
        return ChatResult(generations=[ChatGeneration(message=message)])

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _drawn(
        self, model: BaseChatModel, messages: Sequence[BaseMessage], doubt: Doubt, callbacks: Callbacks
    ) -> SampleSet:
        """The candidate and, where it is gated and could be accepted, the samples it is judged by."""
        limit = self.max_concurrency
        if doubt.problem is not None:
            return doubt.mark(draw(model, [messages], self._plan.primary_only(), callbacks=callbacks)[0])
        if not self._primary_first(model):
            return draw(model, [messages], self._plan, callbacks=callbacks, max_concurrency=limit)[0]
        drawn = draw(model, [messages], self._plan.primary_only(), callbacks=callbacks)[0]
        if drawn.problem is not None or not self._gates.gated(drawn.primary, self.answers):
            return drawn
        more = call_concurrently(model, [messages], self._plan, callbacks=callbacks, max_concurrency=limit, first=0)
        return joined(drawn, more[0])

    async def _adrawn(
        self, model: BaseChatModel, messages: Sequence[BaseMessage], doubt: Doubt, callbacks: Callbacks
    ) -> SampleSet:
        """`_drawn` without blocking the event loop."""
        limit = self.max_concurrency
        if doubt.problem is not None:
            return doubt.mark((await adraw(model, [messages], self._plan.primary_only(), callbacks=callbacks))[0])
        if not self._primary_first(model):
            return (await adraw(model, [messages], self._plan, callbacks=callbacks, max_concurrency=limit))[0]
        drawn = (await adraw(model, [messages], self._plan.primary_only(), callbacks=callbacks))[0]
        if drawn.problem is not None or not self._gates.gated(drawn.primary, self.answers):
            return drawn
        more = await acall_concurrently(
            model, [messages], self._plan, callbacks=callbacks, max_concurrency=limit, first=0
        )
        return joined(drawn, more[0])

    # -- before the call ---------------------------------------------------------------------------------------------

    @property
    def _gates(self) -> Gates:
        gates: Gates = self.gates
        return gates

    @property
    def _trust(self) -> Trust:
        trust: Trust = self.trust
        return trust

    @property
    def _watch(self) -> Watch:
        watch: Watch = self.watch
        return watch

    @property
    def _plan(self) -> SamplingPlan:
        """The common plan; without samples where nothing can be accepted anyway."""
        hopeless = all(artifact.threshold is None for artifact in self._gates.artifacts)
        return self._gates.plan.primary_only() if hopeless else self._gates.plan

    def _primary_first(self, model: BaseChatModel) -> bool:
        """Whether the samples wait for the primary answer, which may be nothing that is gated."""
        plan = self._plan
        return self._gates.passes_something and bool(plan.n) and not plan.follow_ups and not is_native(model)

    def _checked(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, kwargs: Mapping[str, Any]
    ) -> tuple[Form, BaseChatModel]:
        """What the caller can read, and the model with the request's settings; refuses what was not calibrated."""
        self._gates.check_messages(messages)
        plan = self._gates.plan
        given = {name: value for name, value in kwargs.items() if value is not None}
        own = {name: given.pop(name) for name in list(given) if name in TRANSPORT}
        for name in list(given):
            if name in self.settings and given[name] == self.settings[name]:
                own[name] = given.pop(name)
            elif name in PLANNED and given[name] == getattr(plan, name, None):
                del given[name]
        missing = sorted(name for name in self.settings if name not in own)
        if missing:
            raise ArtifactMismatchError(
                f"the artifact's answers were collected with the settings {dict(self.settings)}, but the agent's call "
                f"has no {', '.join(missing)}. Set them in the request, or leave them out of settings=."
            )
        known = plan.bindings
        if known is not None and known.tools and not given.get("tools"):
            raise ArtifactMismatchError(
                f"this agent has no tools, but its artifacts were calibrated with the tools {known.tool_names}. "
                "Give it these tools, or calibrate it without."
            )
        return form_of(plan, stop, given), carrying(self.model, own)

    # -- after the call ----------------------------------------------------------------------------------------------

    def _settled(self, judgement: Judgement, drawn: SampleSet, messages: Sequence[BaseMessage]) -> AIMessage | None:
        """The message that goes out; None where the abstention path says what does.

        Raises:
            Exception: `held_back`, where a person decides.
        """
        candidate = drawn.primary
        if judgement.accepted and candidate is not None:
            return self._noted(self._message(candidate, judgement, drawn), judgement)
        if self.held_back is None:
            return None
        assert judgement.verdict is not None, "a message that no gate concerns is accepted"
        message = self._message(candidate or Sample(text=""), judgement, drawn)
        held = Held(
            question=question_text(messages),
            message=Kept.of(message),
            judged=judged_of(message, self._verdicts(judgement), self.answers, lean(judgement.verdict)),
            verdict=lean(judgement.verdict),
        )
        self._outcome.held = held
        raise self.held_back(held)

    def _verdicts(self, judgement: Judgement) -> dict[str, Verdict]:
        """What the gates say about each call, by the tool's name; a structured answer's call is the answer."""
        lean_ones = {name: lean(verdict) for name, verdict in judgement.by_name.items()}
        answer = lean_ones.pop(ANSWER, None)
        return lean_ones if answer is None else {**lean_ones, **dict.fromkeys(self.answers, answer)}

    def _message(self, candidate: Sample, judgement: Judgement, drawn: SampleSet) -> AIMessage:
        """A candidate as a message with its verdict (without its content, where it was held back) and the usage."""
        verdict = judgement.verdict
        message = sample_message(candidate, self._gates.artifacts[0].model.model)
        if verdict is not None:
            return with_verdict(message, verdict)
        given, made = drawn.cost.input_tokens, drawn.cost.output_tokens
        usage = UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)
        return message.model_copy(update={"usage_metadata": usage})

    @property
    def _outcome(self) -> Outcome:
        outcome: Outcome = self.outcome
        return outcome

    def _check_before(self, messages: Sequence[BaseMessage]) -> None:
        """Draw nothing for whoever took a hold or an abstention for a failure and tries again.

        Raises:
            Exception: `held_back` with what is held, or the abstention.
        """
        if self._outcome.held is not None and self.held_back is not None:
            raise self.held_back(self._outcome.held)
        self.abstentions.check(self.step, messages)

    @contextmanager
    def _remembered(self, messages: Sequence[BaseMessage], verdict: Verdict) -> Iterator[None]:
        """Note an abstention whose path raised, for whoever tries again."""
        try:
            yield
        except Exception:
            if is_result(verdict):
                self.abstentions.note(self.step, messages, AbstainedError(verdict))
            raise

    def _abstention(
        self, judgement: Judgement, messages: Sequence[BaseMessage], callbacks: Callbacks, form: Form
    ) -> Abstention:
        assert judgement.verdict is not None, "a message that no gate concerns is accepted"
        path: OnAbstain = self.on_abstain
        wording: Wording = self.abstain_message
        bound = self._gates.plan.bindings
        return Abstention(judgement.verdict, messages, path, wording, callbacks, bound, form)

    def _noted(self, message: AIMessage, judgement: Judgement) -> AIMessage:
        """The message under an id by which the middleware knows it again."""
        if judgement.verdict is not None and not judgement.accepted:
            message = with_verdict(message, judgement.verdict)
        message = message.model_copy(update={"id": f"guardrail-{uuid4()}"})
        outcome = self._outcome
        outcome.message_id, outcome.verdict, outcome.held = message.id, judgement.verdict, None
        outcome.orders = {
            str(call["id"]): Order(
                digest=call_digest(call),
                decision="accepted" if call["name"] in judgement.by_name else "exempt",
            )
            for call in message.tool_calls
        }
        return message

    # -- LangChain plumbing ------------------------------------------------------------------------------------------

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: Any = None,
        strict: bool | None = None,
        response_format: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The request's tools, to be compared with the artifacts'; its settings go along."""
        asked = bindings_for(tools, tool_choice=tool_choice, response_format=response_format, strict=strict)
        bound: Runnable[LanguageModelInput, AIMessage] = self.bind(**asked.model_dump(exclude_defaults=True), **kwargs)
        return bound

    @property
    def model_name(self) -> str:
        """Name of the agent's model: LangChain chooses by it how structured output is asked for."""
        return name_of(self.model)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop)

    @property
    def _llm_type(self) -> str:
        return "guardrail_agent"


def name_of(model: BaseChatModel) -> str:
    """The model's name where LangChain looks for it; never empty, or it would look further."""
    names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
    return next((name for name in names if name and isinstance(name, str)), "unnamed")


class Frozen(BaseChatModel):
    """Gives out one message that was decided about before; draws nothing."""

    message: AIMessage
    model_name: str = ""
    """Name of the model in whose place it stands, see `name_of`."""
    cache: Any = False
    """No cache: it knows messages by the prompt, and people decide differently about the same prompt."""

    @classmethod
    def in_place_of(cls, model: BaseChatModel, message: AIMessage) -> Frozen:
        """One that LangChain treats as it treats the model."""
        return cls(message=message, model_name=name_of(model), profile=model.profile)

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Itself: whatever is bound, the message is decided."""
        return self

    @property
    def _llm_type(self) -> str:
        return "guardrail_frozen"


class _Carrying(BaseChatModel):
    """A model whose every call carries more settings."""

    model: BaseChatModel
    settings: Mapping[str, Any]
    cache: Any = False

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return self.model._generate(messages, stop, run_manager, **{**self.settings, **kwargs})

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return await self.model._agenerate(messages, stop, run_manager, **{**self.settings, **kwargs})

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        bound: Any = self.model.bind_tools(tools, **kwargs)
        return self.bind(**bound.kwargs)

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop)

    def guardrail_identity(self) -> ModelIdentity:
        return identify(self.model)

    @property
    def _llm_type(self) -> str:
        return self.model._llm_type


def carrying(model: BaseChatModel, settings: Mapping[str, Any]) -> BaseChatModel:
    """The model, or one whose calls carry these settings besides; the model itself is never changed.

    Raises:
        ArtifactMismatchError: A local sampler has no use for them.
    """
    if not settings:
        return model
    if is_native(model):
        raise ArtifactMismatchError(
            f"{type(model).__name__} takes no call settings such as {sorted(settings)}. Leave them out."
        )
    return _Carrying(model=model, settings=dict(settings), rate_limiter=model.rate_limiter)


def joined(primary: SampleSet, rest: SampleSet) -> SampleSet:
    """A primary answer and the samples drawn after it, as one set."""
    problem = primary if primary.problem is not None else rest
    return primary.model_copy(
        update={
            "samples": rest.samples,
            "cost": primary.cost + rest.cost,
            "problem": problem.problem,
            "problem_detail": problem.problem_detail,
        }
    )
