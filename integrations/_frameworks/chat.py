"""A framework's model as a LangChain chat model, which calibration and the guard call; parameters of all adapters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from guardrail import CalibrationArtifact
from guardrail.bindings import bindings_for, names
from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json, sha256_hex

from .._openai.background import BackgroundLoop

__all__ = ["Approval", "FrameworkChat", "check_call", "guard_settings", "is_reviewed", "settings_revision"]

Approval = Literal["review", "hold"]
"""``on_abstain``: a person decides about a held-back tool call before it runs. "hold" is the older spelling."""

KNOWN = names(allowed_in="frameworks")
"""Settings of a call that every framework knows."""
framework_loop = BackgroundLoop("guardrail-frameworks")
"""Where sync calls of frameworks' models run."""


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


def guard_settings(
    artifact: CalibrationArtifact | str | Path, judge: Any, *options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Keywords of `Guardrail`.

    Args:
        artifact: The artifact that is guarded, or its file.
        judge: The judge object for an artifact whose judge cannot be made by name, or such judges by name; None for
            none.
        *options: Further keywords; later ones replace earlier ones.
    """
    merged: dict[str, Any] = {}
    for given in options:
        merged.update(given or {})
    if isinstance(judge, Mapping):
        loaded = artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)
        spec = loaded.estimator.judge
        judge = None if spec is None else judge.get(spec.name)
    return merged if judge is None else {**merged, "judge": judge}
