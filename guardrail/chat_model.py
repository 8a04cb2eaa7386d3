"""`Guardrail`: a chat model that wraps a chat model and answers only when the gate accepts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ._callbacks import child_callbacks
from .artifact import CalibrationArtifact
from .errors import ArtifactMismatchError, UsageError
from .fallback import ABSTENTION, OnAbstain, afall_back, fall_back
from .identity import identify
from .sampling import adraw, draw
from .types import Cost, Sample, SamplingPlan, Verdict
from .uncertainty import Estimator, from_spec
from .verdict import decide

__all__ = ["Guardrail"]


class Guardrail(BaseChatModel):
    """A drop-in chat model that returns an answer only when its calibrated uncertainty is low enough.

    Example:
        >>> guard = Guardrail(model=chat, artifact="calibration.json")      # doctest: +SKIP
        >>> chain = guard.prompt | guard | StrOutputParser()                # doctest: +SKIP
        >>> chain.invoke({"question": "Who wrote Faust?"})                  # doctest: +SKIP

    Each call draws the artifact's samples, measures their disagreement, compares it once with the threshold, and then
    returns the primary answer or takes the abstention path. Whatever cannot be measured abstains.

    The verdict is plain JSON in ``response_metadata["guardrail"]``; ``usage_metadata`` sums over all samples.

    Streaming: nothing can be shown before the verdict, so ``stream`` yields one chunk, after it. Callbacks that stream
    tokens see no sample; tracers see them as child runs.

    Current limitations: tools and structured output are refused (the artifact binds prompts without tools). The guard
    checks the system message and the last human message against the calibrated wrapping; it does not check that the
    question is like the calibration questions, nor that earlier turns of a conversation were there at calibration.

    Raises:
        ArtifactError: The artifact cannot be read, or was made for another model, estimator, judge or prompt.
    """

    model: BaseChatModel
    """The chat model to guard. It is never changed."""
    artifact: CalibrationArtifact
    """The calibration artifact, or the path of its JSON file."""
    on_abstain: Any = "message"
    """What to do with an abstention: "message" returns `abstain_message`; "raise" raises `AbstainedError`; a Runnable
    (another model, a chain) is invoked with the same messages; any other callable is a human hook: it receives the
    `Verdict` (and may be async) and returns a text, an AIMessage, or None for the message."""
    abstain_message: str = ABSTENTION
    """Text for the user under "message". May use {reason}, {uncertainty}, {threshold} and {alpha}."""
    judge: Any = Field(default=None, repr=False)
    """The judge object, for artifacts whose judge cannot be made by name."""
    similarity: Any = Field(default=None, repr=False)
    """The similarity object, for artifacts whose similarity cannot be made by name."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Calls in flight at once for models without a native sampler (default 16)."""
    disable_streaming: Literal[True] = True
    """Fixed: a guard that streams would leak. `stream` yields one chunk after the verdict."""
    cache: Literal[False] = False
    """Fixed: a cached verdict would outlive the cause of an abstention."""

    _estimator: Estimator = PrivateAttr()

    @field_validator("artifact", mode="before")
    @classmethod
    def _load(cls, value: Any) -> Any:
        return CalibrationArtifact.load(value) if isinstance(value, str | Path) else value

    @field_validator("on_abstain")
    @classmethod
    def _known_path(cls, value: OnAbstain) -> OnAbstain:
        if value in ("message", "raise") or (not isinstance(value, str) and callable(getattr(value, "invoke", value))):
            return value
        raise ValueError(
            f'on_abstain must be "message", "raise", a Runnable or a callable that takes the verdict, got {value!r}'
        )

    @model_validator(mode="after")
    def _same_procedure(self) -> Self:
        self.artifact.check_model(identify(self.model))
        self._estimator = from_spec(self.artifact.estimator, judge=self.judge, similarity=self.similarity)
        return self

    @property
    def prompt(self) -> ChatPromptTemplate:
        """The calibrated prompt, with the one variable ``question``: use ``guard.prompt | guard``."""
        return self.artifact.prompt.to_prompt()

    # -- assessing ---------------------------------------------------------------------------------------------------

    def assess(self, question: LanguageModelInput, config: RunnableConfig | None = None) -> Verdict:
        """The verdict on one prompt, without acting on it.

        Args:
            question: A string, messages or a prompt value, as for ``invoke``.
            config: Callbacks for the sampling calls.
        """
        messages = self._convert_input(question).to_messages()
        return self._assess(messages, (config or {}).get("callbacks"))

    async def aassess(self, question: LanguageModelInput, config: RunnableConfig | None = None) -> Verdict:
        """`assess` without blocking the event loop."""
        messages = self._convert_input(question).to_messages()
        return await self._aassess(messages, (config or {}).get("callbacks"))

    def _assess(self, messages: Sequence[BaseMessage], callbacks: Callbacks) -> Verdict:
        self.artifact.prompt.check(messages)
        drawn = draw(self.model, [messages], self._plan, callbacks=callbacks, max_concurrency=self.max_concurrency)
        return decide(drawn[0], self.artifact, self._estimator)

    async def _aassess(self, messages: Sequence[BaseMessage], callbacks: Callbacks) -> Verdict:
        self.artifact.prompt.check(messages)
        drawn = await adraw(
            self.model, [messages], self._plan, callbacks=callbacks, max_concurrency=self.max_concurrency
        )
        return decide(drawn[0], self.artifact, self._estimator)

    @cached_property
    def _plan(self) -> SamplingPlan:
        """The calibrated plan; without samples when nothing can be accepted anyway."""
        plan = self.artifact.plan
        return plan if self.artifact.threshold is not None else plan.primary_only()

    # -- acting ------------------------------------------------------------------------------------------------------

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self._refuse_overrides(stop, kwargs)
        callbacks = child_callbacks(run_manager)
        verdict = self._assess(messages, callbacks)
        if verdict.accepted:
            return _result(_answer(verdict), verdict)
        return _result(fall_back(verdict, messages, self.on_abstain, self.abstain_message, callbacks), verdict)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self._refuse_overrides(stop, kwargs)
        callbacks = child_callbacks(run_manager)
        verdict = await self._aassess(messages, callbacks)
        if verdict.accepted:
            return _result(_answer(verdict), verdict)
        message = await afall_back(verdict, messages, self.on_abstain, self.abstain_message, callbacks)
        return _result(message, verdict)

    def _refuse_overrides(self, stop: list[str] | None, kwargs: dict[str, Any]) -> None:
        """Run time repeats calibration: sampling parameters cannot be changed call by call."""
        if stop is not None and tuple(stop) != self.artifact.plan.stop:
            raise ArtifactMismatchError(
                f"stop differs: calibrated with {self.artifact.plan.stop}, called with {tuple(stop)}. "
                "Calibrate with the stop strings you want."
            )
        if kwargs:
            raise ArtifactMismatchError(
                f"call arguments {sorted(kwargs)} would change how answers are drawn; the artifact fixes that "
                f"({self.artifact.plan!r}). Leave them out, or calibrate with the settings you want."
            )

    # -- streaming: one chunk, after the verdict -----------------------------------------------------------------------

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """Yield the result of `invoke` as one chunk: nothing is shown before the verdict."""
        yield _chunk(self.invoke(input, config, stop=stop, **kwargs))

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """Yield the result of `ainvoke` as one chunk."""
        yield _chunk(await self.ainvoke(input, config, stop=stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        result = self._generate(messages, stop, run_manager, **kwargs)
        yield ChatGenerationChunk(message=_chunk(result.generations[0].message))

    # -- LangChain plumbing ------------------------------------------------------------------------------------------

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Refused: an artifact binds prompts without tools.

        Raises:
            UsageError: Always, with the way out.
        """
        raise UsageError(
            "this guard is calibrated for answers without tools, so binding tools would void its threshold. "
            "Bind them to the unguarded model."
        )

    @property
    def _llm_type(self) -> str:
        return "guardrail"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"artifact": self.artifact.digest, "model": self.model._identifying_params}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop, **kwargs)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """False: the wrapped model may hold weights or keys."""
        return False


def _answer(verdict: Verdict) -> AIMessage:
    candidate = verdict.candidate
    assert candidate is not None, "the gate accepts only what was measured"
    return _message(candidate)


def _message(candidate: Sample) -> AIMessage:
    """The very candidate that was judged: its text and, should the model have made any, its tool calls."""
    calls = [
        {"name": call.name, "args": call.arguments, "id": f"call_{i}", "type": "tool_call"}
        for i, call in enumerate(candidate.tool_calls)
    ]
    metadata = {"finish_reason": candidate.finish_reason}
    return AIMessage(content=candidate.text, tool_calls=calls, response_metadata=metadata)


def _result(message: AIMessage, verdict: Verdict) -> ChatResult:
    """The message with the verdict in its metadata and the usage of everything that was drawn."""
    metadata = {**message.response_metadata, "guardrail": verdict.to_metadata()}
    update = {"response_metadata": metadata, "usage_metadata": _usage(verdict.cost, message.usage_metadata)}
    return ChatResult(generations=[ChatGeneration(message=message.model_copy(update=update))])


def _usage(cost: Cost, more: UsageMetadata | None) -> UsageMetadata:
    """Tokens of the samples plus those the abstention path reported itself."""
    given = cost.input_tokens + (more["input_tokens"] if more else 0)
    made = cost.output_tokens + (more["output_tokens"] if more else 0)
    return UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)


def _chunk(message: BaseMessage) -> AIMessageChunk:
    fields = message.model_dump(exclude={"type"})
    return AIMessageChunk(**fields, chunk_position="last")
