"""Base of the chat models that guard: settings are checked, calls are bounded, a stream is one chunk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import field_validator, model_validator, with_config
from typing_extensions import TypedDict

from ..artifact import Artifact, CalibrationArtifact
from ..errors import UsageError
from ..sampling.callbacks import child_callbacks, note_verdict
from ..sampling.effects import Steps, arun, run
from ..sampling.limits import bounded, limit_of
from ..sampling.models import resolve_model
from .abstention import Abstention, FullHandler, complete, take_path
from .messages import accepted_answer, as_chunk, chat_result
from .structured import form_of

if TYPE_CHECKING:
    from langchain_core.prompts import ChatPromptTemplate

    from ..verdict import Verdict

_ABSENT = object()
_FIXED = frozenset({"cache", "disable_streaming"})  # fields of any chat model that a guard fixes
_STREAMING = "streaming"  # LangChain gives it to any chat model; a guard's stream is always one chunk


@with_config(extra="forbid")
class Using(TypedDict, total=False):
    """Objects of the score that cannot be made by name, or that no artifact can hold."""

    judge: Any
    """The judge; for JSON fields, judges by path."""
    similarity: Any
    """The similarity."""
    entailment: Any
    """The entailment model."""
    scorer: Any
    """The scorer of an artifact that was calibrated with one (docs/scores.md)."""


class SteppedChatModel(BaseChatModel):
    """A chat model whose answers are steps (`guardrail.sampling.effects`), within the call's ``max_concurrency``."""

    guardrail_quiet: ClassVar[bool] = True
    """It has no cache, and draws through `guardrail.sampling` itself."""

    @abstractmethod
    def _answer(
        self,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        run_manager: Any,
        arguments: Mapping[str, Any],
    ) -> Steps[ChatResult]:
        """The steps to the result of one call.

        Args:
            messages: The prompt.
            stop: Stop strings of the call.
            run_manager: Callbacks of the call's run.
            arguments: Other arguments of the call.
        """

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return run(self._answer(messages, stop, run_manager, kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await arun(self._answer(messages, stop, run_manager, kwargs))

    def invoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:
        """The accepted answer, or what the abstention path gives."""
        with self._calling(config):
            return super().invoke(input, config, **kwargs)

    async def ainvoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AIMessage:
        """`invoke` without blocking the event loop."""
        with self._calling(config):
            return await super().ainvoke(input, config, **kwargs)

    @contextmanager
    def _calling(self, config: RunnableConfig | None) -> Iterator[None]:
        """The limit that holds during one call, by its configuration."""
        with bounded(limit_of(config)):
            yield


class GuardedChatModel(SteppedChatModel):
    """Base of the chat models that answer only behind a gate."""

    guardrail_judges: ClassVar[bool] = True
    """Its answers are judged already, and remembered: drawn as samples they would agree, whatever the model thinks."""

    disable_streaming: Literal[True] = True
    """Fixed: a guard that streams would leak. `stream` yields one chunk after the verdict."""
    cache: Literal[False] = False
    """Fixed: a cached verdict would outlive the cause of an abstention."""

    # -- assessing ---------------------------------------------------------------------------------------------------

    def assess(self, question: LanguageModelInput, config: RunnableConfig | None = None) -> Verdict:
        """The verdict on one prompt, without acting on it; of a cascade with those of its stages.

        Args:
            question: A string, messages or a prompt value, as for ``invoke``.
            config: Callbacks for the sampling calls, and ``max_concurrency``.
        """
        messages = self._convert_input(question).to_messages()
        with self._calling(config):
            return run(self._verdict(messages, (config or {}).get("callbacks")))

    async def aassess(self, question: LanguageModelInput, config: RunnableConfig | None = None) -> Verdict:
        """`assess` without blocking the event loop."""
        messages = self._convert_input(question).to_messages()
        with self._calling(config):
            return await arun(self._verdict(messages, (config or {}).get("callbacks")))

    @abstractmethod
    def _verdict(
        self, messages: Sequence[BaseMessage], callbacks: Callbacks, arguments: Mapping[str, Any] | None = None
    ) -> Steps[Verdict]:
        """The steps to the verdict on one prompt; ``arguments`` are those of the call."""

    def _answer(
        self,
        messages: Sequence[BaseMessage],
        stop: Sequence[str] | None,
        run_manager: Any,
        arguments: Mapping[str, Any],
    ) -> Steps[ChatResult]:
        """The accepted answer, or what the abstention path gives, with the verdict of the guard or the cascade."""
        guard: Any = self  # guards and cascades have both fields
        artifacts = self._artifacts()
        plan = artifacts[0].plan
        form = form_of(plan, stop, arguments)
        callbacks = child_callbacks(run_manager)
        verdict = yield from self._verdict(messages, callbacks, arguments)
        note_verdict(run_manager, verdict.trace_fields())
        abstention = Abstention(
            verdict, messages, guard.on_abstain, guard.abstain_message, callbacks, plan.bindings, form
        )
        if not verdict.passes:
            message = yield from take_path(abstention)
            return chat_result(message, verdict)
        stage = verdict.stage or 1  # of a cascade, the one that answered
        message = accepted_answer(verdict, artifacts[stage - 1].model.model)
        if verdict.held_back:
            message = yield from complete(abstention, message)
        return chat_result(message, verdict)

    # -- settings ----------------------------------------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _known_settings(cls, settings: Any) -> Any:
        """Refuse unknown settings: a misspelt one would silently keep its default."""
        if isinstance(settings, Mapping):
            for name in settings:
                if name not in cls.model_fields and name != _STREAMING:
                    raise UsageError(f"{cls.__name__} has no setting {name!r}; {cls._way_out(str(name))}")
        return settings

    @classmethod
    def _way_out(cls, name: str) -> str:
        if name in Using.__annotations__:
            return f"give the object among those of the score: using={{{name!r}: ...}}."
        settings = [field for field in cls.model_fields if field not in BaseChatModel.model_fields]
        near = get_close_matches(name, settings, n=1)
        return f"did you mean {near[0]!r}?" if near else f"its own settings are {', '.join(settings)}."

    @field_validator("on_abstain", check_fields=False)
    @classmethod
    def _known_path(cls, value: Any) -> Any:
        return known_path(value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field of LangChain's (``callbacks``, ``tags``, ...); refuse the guard's settings.

        The settings were checked together when the guard was made, and its parts were built from them.

        Raises:
            UsageError: One of the guard's settings.
        """
        if name in type(self).model_fields and (name not in BaseChatModel.model_fields or name in _FIXED):
            raise UsageError(
                f"{type(self).__name__}.{name} is fixed: its settings were checked together. Make another guard: "
                f"guard.model_copy(update={{{name!r}: ...}})."
            )
        super().__setattr__(name, value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy; one with changed fields is checked like a new guard."""
        if not update or all(getattr(self, name, _ABSENT) is value for name, value in update.items()):
            return super().model_copy(deep=deep)
        return type(self)(**{**self._given(), **self._memory(), **update})

    def _given(self) -> dict[str, Any]:
        """The fields that the caller set."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def _memory(self) -> dict[str, Any]:
        """Fields that make another guard remember the draws of this one, too."""
        return {}

    @property
    def _remembers(self) -> bool:
        """Whether a question that is asked again gets its first verdict."""
        return False

    def configurable_fields(self, **kwargs: Any) -> Any:
        """`Runnable.configurable_fields`; the guards made by it share one memory of draws."""
        return super(GuardedChatModel, type(self)(**{**self._given(), **self._memory()})).configurable_fields(**kwargs)

    def with_fallbacks(self, fallbacks: Sequence[Any], **settings: Any) -> Any:
        """`Runnable.with_fallbacks`; a guard of the same model and calibration is refused.

        Raises:
            UsageError: A fallback leads to such a guard, which would draw the same question again.
        """
        known = self._memory() if self._remembers else None
        for fallback in fallbacks:
            refuse_same_guard(fallback, self._artifacts(), place="with_fallbacks", remembered=known)
        return super().with_fallbacks(fallbacks, **settings)

    @property
    def prompt(self) -> ChatPromptTemplate:
        """The calibrated prompt, of the variable ``question`` and its slots, if any: use ``guard.prompt | guard``.

        Raises:
            UsageError: The guards of a router have several prompts.
        """
        first, *others = (artifact.prompt for artifact in self._artifacts())
        if any(prompt != first for prompt in others):
            raise UsageError("the guards of this router have several prompts. Take that of one: router.guards[NAME].")
        return first.to_prompt()

    def _paths(self) -> tuple[Any, ...]:
        """The Runnables to which an abstention of this guard may lead."""
        return (getattr(self, "on_abstain", None),)

    def _artifacts(self) -> tuple[CalibrationArtifact, ...]:
        """This guard's artifacts."""
        artifact: Artifact = getattr(self, "artifact")  # noqa: B009 - a field of the classes below
        return artifact.gates

    # -- calls: `max_concurrency` of the configuration bounds them all -----------------------------------------------

    def batch(self, inputs: list[LanguageModelInput], config: Any = None, **kwargs: Any) -> list[AIMessage]:
        """`invoke` for several inputs at once, under one common limit."""
        with bounded(limit_of(config)):
            return super().batch(inputs, config, **kwargs)

    async def abatch(self, inputs: list[LanguageModelInput], config: Any = None, **kwargs: Any) -> list[AIMessage]:
        """`batch` without blocking the event loop."""
        with bounded(limit_of(config)):
            return await super().abatch(inputs, config, **kwargs)

    def batch_as_completed(
        self, inputs: Sequence[LanguageModelInput], config: Any = None, **kwargs: Any
    ) -> Iterator[tuple[int, Any]]:
        """`batch`, each result with its number as soon as it arrives."""
        results = super().batch_as_completed(inputs, config, **kwargs)
        with bounded(limit_of(config)):  # the first result starts all calls, and they inherit the limit
            result = next(results, None)
        while result is not None:
            yield result
            result = next(results, None)

    async def abatch_as_completed(
        self, inputs: Sequence[LanguageModelInput], config: Any = None, **kwargs: Any
    ) -> AsyncIterator[tuple[int, Any]]:
        """`batch_as_completed` without blocking the event loop."""
        results = super().abatch_as_completed(inputs, config, **kwargs)
        with bounded(limit_of(config)):  # as above
            result = await anext(results, None)
        while result is not None:
            yield result
            result = await anext(results, None)

    def with_retry(self, **settings: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """A guard that is asked again if the transport failed (`UnmeasuredError`), and after nothing else.

        Any other abstention is a result, even if ``retry_if_exception_type`` names it: a question is measured once, and
        drawing again until the gate accepts would void the artifact's promise. Errors of a Runnable or a handler as
        ``on_abstain`` may come after an abstention; a Runnable can have its own ``with_retry``. With
        ``on_abstain="message"`` nothing is raised that could be retried.

        A retry around a chain that holds the guard is LangChain's: if it asks within the time of ``remember``, it gets
        the same verdict without another draw. After a failure of the transport only the missing answers are drawn.

        Args:
            **settings: Those of LangChain's ``with_retry``; ``retry_if_exception_type`` can only narrow the rule above.
        """
        from .retry import Retry  # which loads LangChain's retries

        return Retry.of(self, **settings)

    # -- streaming: one chunk, after the verdict -----------------------------------------------------------------------

    def stream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[AIMessageChunk]:
        """Yield the result of `invoke` as one chunk: nothing is shown before the verdict."""
        yield as_chunk(self.invoke(input, config, **kwargs))

    async def astream(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[AIMessageChunk]:
        """Yield the result of `ainvoke` as one chunk."""
        yield as_chunk(await self.ainvoke(input, config, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        result = self._generate(messages, stop, run_manager, **kwargs)
        yield ChatGenerationChunk(message=as_chunk(result.generations[0].message))

    # -- LangChain plumbing ------------------------------------------------------------------------------------------

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """False: a wrapped model may hold weights or keys."""
        return False


def known_path(value: Any) -> Any:
    """The path after an abstention as a caller gives it; the model, if it is a model's name.

    Raises:
        ValueError: It is none.
    """
    if value in ("message", "raise"):
        return value
    if isinstance(value, str) and ":" in value:
        return resolve_model(value)
    known = isinstance(value, Runnable | FullHandler)
    if known or (not isinstance(value, str) and callable(getattr(value, "invoke", value))):
        return value
    near = get_close_matches(str(value), ("message", "raise"), n=1)
    raise ValueError(
        'on_abstain must be "message", "raise", a Runnable, the name of a chat model (PROVIDER:NAME) or a callable '
        f"that takes the verdict (and the messages), got {value!r}{f'; did you mean {near[0]!r}?' if near else ''}"
    )


def refuse_same_guard(
    path: Any,
    artifacts: Sequence[CalibrationArtifact],
    *,
    place: str = "on_abstain",
    remembered: Mapping[str, Any] | None = None,
) -> None:
    """Refuse a path after an abstention in which a guard would ask the same model the same question again.

    Args:
        path: The path.
        artifacts: The artifacts of the guard that abstains.
        place: The argument that gave the path.
        remembered: The memory of the guard that abstains; a guard that shares it draws nothing again.

    Raises:
        UsageError: The path has a guard of one of these artifacts, or of an artifact fitted on the same scores.
    """
    for guard in _guards_in(path):
        if remembered is not None and remembered == guard._memory():
            continue
        if any(a.model == b.model and a.calibration == b.calibration for a in artifacts for b in guard._artifacts()):
            raise UsageError(
                f"{place} leads to a guard of the same model and calibration: it would draw the same question "
                "again until the gate accepts, which voids the promise. Give another model, a person, or "
                '"message".'
            )


def _guards_in(path: Any) -> Iterator[GuardedChatModel]:
    """The guards that an abstention path leads to, except those that only a function refers to."""
    if isinstance(path, GuardedChatModel):
        yield path
        for held_path in path._paths():
            yield from _guards_in(held_path)
    elif isinstance(path, Runnable):
        inner = [getattr(path, name, None) for name in ("bound", "runnable", "default", "mapper")]
        lists = [getattr(path, name, ()) for name in ("steps", "fallbacks")]
        tables = [vars(path).get(name) or {} for name in ("steps__", "alternatives", "runnables")]
        for held_path in (*inner, *chain(*lists), *chain(*(table.values() for table in tables))):
            yield from _guards_in(held_path)
        for _, held_path in getattr(path, "branches", ()):
            yield from _guards_in(held_path)
