"""LangChain's requests to an agent's model: translated for the gate, and replayed for a message that was decided.

A decided message goes out through the model node, where every other middleware sees it: the node calls a model that
gives out the message. LangChain parses that model's answer in the agent's response format, so a message that a person
changed must still be readable in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable

from guardrail.bindings import bindings_for
from guardrail.errors import require
from guardrail.types import Bindings

from .gates import AgentStep
from .held import FrozenMessage

__all__ = ["DecidedModel", "has_checkpointer", "name_of", "replaying", "step_of", "structured_names", "this_thread"]

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ModelRequest
    from langchain.agents.structured_output import (
        OutputToolBinding,
        ProviderStrategy,
        ProviderStrategyBinding,
        ToolStrategy,
    )
    from langgraph.config import get_config
else:
    get_config = require("langgraph.config", extra="agents").get_config
    _module = require("langchain.agents.structured_output", extra="agents")
    OutputToolBinding, ProviderStrategy, ProviderStrategyBinding, ToolStrategy = (
        _module.OutputToolBinding,
        _module.ProviderStrategy,
        _module.ProviderStrategyBinding,
        _module.ToolStrategy,
    )


def step_of(request: ModelRequest[Any], *, collects: bool) -> AgentStep:
    """A request in the words of the gate.

    Args:
        request: The request.
        collects: Whether the agent only collects, so that the gate reads the tools of the request.
    """
    return AgentStep(
        model=request.model,
        messages=(*([] if request.system_message is None else [request.system_message]), *request.messages),
        tools=tuple(map(_tool_name, request.tools)),
        answers=structured_names(request.response_format),
        bindings=bindings_for(request.tools, tool_choice=request.tool_choice) if collects else Bindings(),
        thread=this_thread(),
    )


def _tool_name(tool: Any) -> str:
    if isinstance(tool, dict):
        return str(tool.get("function", tool).get("name", tool.get("type")))
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", type(tool).__name__))  # a class or function


def this_thread() -> str | None:
    """Id of the LangGraph thread that runs here; None outside a graph, and in one without a checkpointer."""
    try:
        name = get_config().get("configurable", {}).get("thread_id")
    except RuntimeError:
        return None
    return None if name is None else str(name)


def has_checkpointer() -> bool:
    """Whether the LangGraph run here, or the one around it, keeps checkpoints. True outside a graph, where none pauses.

    LangGraph has no public way to ask for it from within a node.
    """
    try:
        return bool(get_config().get("configurable", {}).get("__pregel_checkpointer"))
    except RuntimeError:
        return True


def structured_names(response_format: Any) -> tuple[str, ...]:
    """Names of the tools whose call is the structured answer."""
    specs = getattr(response_format, "schema_specs", None)
    if specs is not None:
        return tuple(spec.name for spec in specs)
    schema = getattr(response_format, "schema", response_format)
    name = getattr(schema, "__name__", None) or (schema.get("title") if isinstance(schema, dict) else None)
    return () if name is None else (str(name),)


def _readable(response_format: Any, message: AIMessage) -> AIMessage:
    """A decided message, in which a structured answer that no longer fits its schema after an edit becomes text.

    LangChain would raise at such an answer, or ask the model again.
    """
    bad = [call for call in message.tool_calls if not _call_fits(response_format, call)]
    if not bad:
        return message
    texts = [str(message.text), *(json.dumps(call["args"], ensure_ascii=False) for call in bad)]
    left = [call for call in message.tool_calls if call not in bad]
    return message.model_copy(update={"content": "\n".join(filter(None, texts)), "tool_calls": left})


def _call_fits(response_format: Any, call: Any) -> bool:
    if call["name"] not in structured_names(response_format):
        return True
    is_strategy = isinstance(response_format, ToolStrategy)
    schema = getattr(response_format, "schema", response_format)
    strategy = response_format if is_strategy else ToolStrategy(schema=schema)
    try:
        spec = next(spec for spec in strategy.schema_specs if spec.name == call["name"])
        OutputToolBinding.from_schema_spec(spec).parse(call["args"])
    except Exception:  # any error of the schema's own code
        return False
    return True


def _fits(response_format: Any, message: AIMessage) -> bool:
    """Whether LangChain can read a decided message in the agent's response format; otherwise it would always raise.

    A person's own words, and a refusal, are not JSON of the schema. They go out as text, without structured response.
    """
    if response_format is None or message.tool_calls or isinstance(response_format, ToolStrategy):
        return True
    schema = getattr(response_format, "schema", response_format)
    try:
        ProviderStrategyBinding.from_schema_spec(ProviderStrategy(schema=schema).schema_spec).parse(message)
    except Exception:  # any error of the schema's own code
        return False
    return True


def replaying(request: ModelRequest[Any], frozen: FrozenMessage) -> tuple[ModelRequest[Any], AIMessage]:
    """The request to a model that gives out a decided message, and the message, under an id that marks it.

    Args:
        request: The request to the agent's model.
        frozen: The decided message.
    """
    model, response_format = request.model, request.response_format
    # LangChain chooses by name and profile how it asks for a format, so the stand-in has those of the agent's model.
    name, profile = name_of(model), model.profile
    message = _readable(response_format, frozen.to_message().model_copy(update={"id": f"guardrail-{uuid4()}"}))
    request = request.override(model=DecidedModel(message=message, model_name=name, profile=profile))
    return (request if _fits(response_format, message) else request.override(response_format=None)), message


def name_of(model: BaseChatModel) -> str:
    """The model's name where LangChain looks for it; never empty, or LangChain would look further."""
    names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
    return next((name for name in names if name and isinstance(name, str)), "unnamed")


class DecidedModel(BaseChatModel):
    """Gives out one message that a person decided about; draws nothing."""

    message: AIMessage
    model_name: str = ""
    """Name of the agent's model, see `name_of`."""
    cache: Any = False
    """No cache: it knows messages by the prompt, and people decide differently about the same prompt."""

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model unchanged: the message is decided, so bound tools change nothing."""
        return self

    @property
    def _llm_type(self) -> str:
        return "guardrail_frozen"
