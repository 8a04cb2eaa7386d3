"""A framework's model as a LangChain chat model, which calibration and the guard call; parameters of all adapters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import ConfigDict

from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.sampling.background import BackgroundLoop
from guardrail.specs import ModelIdentity

from .._agents.gates import SHARED
from .._openai.lru import LRU

KNOWN = frozenset({"temperature", "top_p", "max_tokens", "logprobs", "tools", "tool_choice", "response_format"})
"""Settings of a call that every framework knows."""
framework_loop = BackgroundLoop("guardrail-frameworks")
"""Runs sync calls of frameworks' models."""


def content_of(text: str, others: Iterable[Any]) -> Any:
    """The content of a message: its text, followed by a block for each part of it that is not text.

    A block names the kind of its part and a digest of it, which tells pictures apart for the memory, the turns and a
    reviewer. The model gets the framework's own items.

    Args:
        text: The text.
        others: The other parts, as JSON objects with their kind under "type" or "kind".
    """
    blocks = [
        {"type": str(part.get("type") or part.get("kind")), "sha256": sha256_hex(canonical_json(part, default=repr))}
        for part in others
    ]
    return [{"type": "text", "text": text}, *blocks] if blocks else text


class FrameworkChat(BaseChatModel):
    """A framework's model, one answer for each call; settings are per call, the model's own are never changed.

    Calibrate with it (``python:my_module:chat`` on the command line), so that calibration and run time make the same
    calls.
    """

    # An unknown argument is refused: a misspelled setting would otherwise be left out of every call in silence.
    model_config = ConfigDict(extra="forbid")

    framework: ClassVar[str]
    """Name of the framework."""
    harmless: ClassVar[frozenset[str]]
    """Settings of its requests that cannot change an answer, or that have their own check."""
    model: Any
    """The framework's model."""
    calibrated_settings: Any
    """Settings of every call in addition to the artifact's plan."""

    @property
    @abstractmethod
    def model_label(self) -> str:
        """Name of the model."""

    @property
    def model_kind(self) -> str:
        """The class of the model, and what else tells its provider."""
        return type(self.model).__name__

    @abstractmethod
    def kept(self) -> dict[str, Any]:
        """Settings of every call in addition to the artifact's plan, by name.

        Raises:
            UsageError: A fixed seed, with which all samples would be equal.
        """

    @abstractmethod
    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        """Call the framework's model once; tools and choice of ``call`` are in the form of `bind_tools`."""

    @property
    def _llm_type(self) -> str:
        return self.framework

    def guardrail_identity(self) -> ModelIdentity:
        """Provider, name, and a digest of the settings that may change answers as revision."""
        label = self.model_label
        settings = {name: value for name, value in self.kept().items() if name not in self.harmless}
        revision = None
        if settings:
            text = canonical_json([label, settings], compact=False, ascii_only=True, default=repr)
            revision = f"settings:{sha256_hex(text, 12)}"
        return ModelIdentity(provider=f"{self.framework}:{self.model_kind}", model=label, revision=revision)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Tools for each call, in OpenAI's form; the choice is None, "any" or the name of a tool."""
        described = bindings_for(tools, tool_choice=kwargs.pop("tool_choice", None))
        return self.bind(tools=list(described.tools), tool_choice=described.tool_choice, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return framework_loop.run(self._agenerate(messages, stop, None, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        unknown = sorted(name for name, value in kwargs.items() if name not in KNOWN and value is not None)
        if unknown:
            models = f"models of {self.framework}"
            raise UsageError(f"{models} do not accept {', '.join(unknown)}; use {', '.join(sorted(KNOWN))}.")
        return ChatResult(generations=[ChatGeneration(message=await self._answer(messages, stop, kwargs))])


_chats: LRU[FrameworkChat] = LRU(SHARED)
Chat = TypeVar("Chat", bound=FrameworkChat)


def shared_chat(kind: type[Chat], model: object, settings: object) -> Chat:
    """The adapter of a model; guards that are made per run share it, and with it the result of a probe.

    Another model object is another endpoint.
    """
    # The adapter holds the model, so its id belongs to no other object while the adapter is cached.
    key = (kind, id(model), canonical_json(settings, default=repr))
    fields: dict[str, Any] = {"model": model, "calibrated_settings": settings}
    return cast(Chat, _chats.get(key, lambda: kind(**fields)))


def refuse_settings(
    calibrated: Mapping[str, Any], sent: Mapping[str, Any], harmless: Collection[str], where: str
) -> None:
    """Refuse run-time settings that change how answers are drawn.

    Args:
        calibrated: Settings the model was calibrated with, in addition to the artifact's plan.
        sent: Settings of the request; None means "not given".
        harmless: Names of settings that cannot change an answer.
        where: The user's name for the settings.

    Raises:
        ArtifactMismatchError: Naming them.
    """
    wrong = sorted(
        name
        for name, value in sent.items()
        if value is not None and name not in harmless and calibrated.get(name) != value
    )
    if wrong:
        raise ArtifactMismatchError(
            f"{where} {', '.join(f'{name}={sent[name]!r}' for name in wrong)} would change how answers are drawn; the "
            "artifact fixes that. Leave them out, or calibrate with them and pass calibrated_settings=."
        )
