"""A framework's model as a LangChain chat model, which calibration and the guard call; parameters of all adapters."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, cast, get_args

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from guardrail.bindings import bindings_for
from guardrail.call_settings import SettingRole, register_settings, setting_names
from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json, sha256_hex

from .._openai.background import BackgroundLoop

__all__ = [
    "LRU",
    "Approval",
    "CarriedItems",
    "FrameworkChat",
    "check_call",
    "guard_settings",
    "is_reviewed",
    "settings_revision",
    "shared_chat",
]

Approval = Literal["review", "hold"]
"""``on_abstain``: a person decides about a held-back tool call before it runs. "hold" is the older spelling."""

register_settings(
    (SettingRole.PLAN, "temperature top_p max_tokens logprobs"),
    (SettingRole.BINDING, "tools tool_choice response_format"),
    allowed_in="frameworks",
)
KNOWN = setting_names(allowed_in="frameworks")
"""Settings of a call that every framework knows."""
framework_loop = BackgroundLoop("guardrail-frameworks")
"""Where sync calls of frameworks' models run."""


Made = TypeVar("Made")


class LRU(Generic[Made]):
    """The things used last, by key; what was not used for longest makes room. Shared by threads and tasks."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[Hashable, Made] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> LRU[Made]:
        return LRU(self._most)

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What is known under a key, or what ``make`` gives now."""
        with self._lock:
            if key not in self._known:
                self._known[key] = make()
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
            return self._known[key]


class CarriedItems(list[Any]):
    """What a message was made from. Only its ``content`` tells questions apart: not ids, times and names of runs."""

    def __init__(self, made_from: Iterable[Any], content: object = ()) -> None:
        super().__init__(made_from)
        self._content = content

    def __repr__(self) -> str:
        return f"CarriedItems({self._content!r})"


class FrameworkChat(BaseChatModel):
    """One answer for each call, from a coroutine of the framework."""

    @abstractmethod
    async def _answer(self, messages: list[BaseMessage], stop: list[str] | None, call: Mapping[str, Any]) -> AIMessage:
        """Call the framework's model once.

        Args:
            messages: The conversation.
            stop: Stop strings.
            call: Settings of the call; tools and choice in the form of `bind_tools`.
        """

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
        return ChatResult(generations=[ChatGeneration(message=await self._answer(messages, stop, kwargs))])


SHARED = 64
"""Adapters of models that are kept for guards that are made later."""
_chats: LRU[FrameworkChat] = LRU(SHARED)
Chat = TypeVar("Chat", bound=FrameworkChat)


def shared_chat(kind: type[Chat], model: object, settings: object) -> Chat:
    """The adapter of a model; guards that are made per run share it, and with it what a probe has shown.

    Args:
        kind: Class of the adapter.
        model: The framework's model; another object is another endpoint.
        settings: Settings of every call.
    """
    # The adapter holds the model, so its id stays its own while the adapter is known.
    key = (kind, id(model), canonical_json(settings, default=repr))
    made: Any = _chats.get(key, lambda: kind(model=model, calibrated_settings=settings))
    return cast(Chat, made)


def check_call(call: Mapping[str, Any], models: str) -> None:
    """Refuse settings of a call that a framework's models do not take.

    Args:
        call: Settings of the call; None means "not given".
        models: How to name the models in the message.

    Raises:
        UsageError: There are such settings; the message names them.
    """
    unknown = sorted(name for name, value in call.items() if name not in KNOWN and value is not None)
    if unknown:
        raise UsageError(f"{models} do not accept {', '.join(unknown)}; use {', '.join(sorted(KNOWN))}.")


def settings_revision(model: str, kept: Mapping[str, Any]) -> str | None:
    """A digest of the settings of every call, as revision of the model; None without settings.

    Args:
        model: Name of the model.
        kept: The settings that can change an answer.
    """
    if not kept:
        return None
    return "settings:" + sha256_hex(canonical_json([model, kept], compact=False, ascii_only=True, default=repr), 12)


def is_reviewed(on_abstain: object) -> bool:
    """Whether a person decides about held-back tool calls; see `Approval`."""
    return isinstance(on_abstain, str) and on_abstain in get_args(Approval)


def guard_settings(*options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keywords of `Guardrail`, from several sources; later ones replace earlier ones."""
    merged: dict[str, Any] = {}
    for given in options:
        merged.update(given or {})
    return merged
