"""A chat model whose every call carries the settings of an agent's request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable

from guardrail.errors import ArtifactMismatchError
from guardrail.sampling.native import is_native
from guardrail.specs import ModelIdentity, identify

__all__ = ["carrying"]


def carrying(model: BaseChatModel, settings: Mapping[str, Any]) -> BaseChatModel:
    """The model, or a wrapper whose calls also carry these settings; the model itself is never changed.

    Raises:
        ArtifactMismatchError: A local sampler cannot take them.
    """
    if not settings:
        return model
    if is_native(model):
        raise ArtifactMismatchError(
            f"{type(model).__name__} takes no call settings such as {sorted(settings)}. Leave them out."
        )
    return _Carrying(model=model, settings=dict(settings), rate_limiter=model.rate_limiter)


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
