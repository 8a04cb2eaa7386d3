"""An agent of LangChain: what its request is in the words of the gate, and what its model node returns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable

from guardrail.bindings import bindings_for
from guardrail.errors import require
from guardrail.types import Bindings

from .gates import AgentStep

require("langgraph.config", extra="agents")
require("langchain.agents", extra="agents")

from langchain.agents.middleware.types import ModelRequest, ModelResponse  # noqa: E402
from langchain.agents.structured_output import (  # noqa: E402
    OutputToolBinding,
    ProviderStrategy,
    ProviderStrategyBinding,
    ToolStrategy,
)
from langgraph.config import get_config  # noqa: E402


def step_of(request: ModelRequest[Any]) -> AgentStep:
    """A request in the words of the gate."""
    answers = tuple(_specs(request.response_format))
    return AgentStep(
        model=request.model,
        messages=(*([] if request.system_message is None else [request.system_message]), *request.messages),
        answers=answers,
        # The tools of structured answers are not among those of the request, and so cannot be its choice.
        bindings=bindings_for(
            request.tools, tool_choice=None if request.tool_choice in answers else request.tool_choice
        ),
        thread=_this_thread(),
    )


def _configurable() -> Mapping[str, Any] | None:
    """The configuration of the LangGraph run here, or of the one around it; None outside a graph."""
    try:
        return cast("Mapping[str, Any]", get_config().get("configurable", {}))
    except RuntimeError:
        return None


def _this_thread() -> str | None:
    """Id of the LangGraph thread that runs here; None outside a graph, and in one without a checkpointer."""
    name = (_configurable() or {}).get("thread_id")
    return None if name is None else str(name)


def has_checkpointer() -> bool:
    """True if the LangGraph run here, or the one around it, keeps checkpoints, and outside a graph, where none pauses.

    LangGraph has no public way to ask for it from within a node.
    """
    known = _configurable()
    return known is None or bool(known.get("__pregel_checkpointer"))


def _specs(response_format: Any) -> dict[str, Any]:
    """The schemas of a response format, by the name of the tool whose call is such an answer."""
    if response_format is None:
        return {}
    schema = getattr(response_format, "schema", response_format)
    strategy = response_format if isinstance(response_format, ToolStrategy) else ToolStrategy(schema=schema)
    return {spec.name: spec for spec in strategy.schema_specs}


def decided_response(response_format: Any, message: AIMessage) -> ModelResponse[Any]:
    """A decided message as the model node returns it, except that LangChain neither raises nor asks the model again.

    A structured answer that no longer fits its schema after an edit becomes text. A person's own words, and a refusal,
    are not JSON of the schema: they go out as text without a structured response.
    """
    specs = _specs(response_format)
    answer_calls = [call for call in message.tool_calls if call["name"] in specs]
    if len(answer_calls) == 1:
        (call,) = answer_calls
        answer = _parsed(OutputToolBinding, specs[call["name"]], call["args"])
        if answer is not None:
            wording = getattr(response_format, "tool_message_content", None)
            content = wording or f"Returning structured response: {answer}"
            result = ToolMessage(content=content, tool_call_id=str(call["id"]), name=call["name"])
            return ModelResponse(result=[message, result], structured_response=answer)
    if answer_calls:
        return ModelResponse(result=[_as_text(message, answer_calls)])
    if response_format is None or message.tool_calls or isinstance(response_format, ToolStrategy):
        return ModelResponse(result=[message])
    spec = ProviderStrategy(schema=getattr(response_format, "schema", response_format)).schema_spec
    return ModelResponse(result=[message], structured_response=_parsed(ProviderStrategyBinding, spec, message))


def _as_text(message: AIMessage, answer_calls: Sequence[Any]) -> AIMessage:
    """The message with the arguments of calls that are answers as lines of its text, in place of these calls."""
    arguments = [json.dumps(call["args"], ensure_ascii=False) for call in answer_calls]
    text = "\n".join(filter(None, [str(message.text), *arguments]))
    others = [call for call in message.tool_calls if call not in answer_calls]
    return message.model_copy(update={"content": text, "tool_calls": others})


def _parsed(binding: Any, spec: Any, value: Any) -> Any:
    """The structured answer; None if the value does not fit."""
    try:
        return binding.from_schema_spec(spec).parse(value)
    except Exception:  # any error of the schema's own code
        return None


def name_of(model: BaseChatModel) -> str:
    """The model's name where LangChain looks for it; never empty, or LangChain would look further."""
    names = [getattr(model, field, None) for field in ("model_name", "model", "model_id")]
    return next((name for name in names if name and isinstance(name, str)), "unnamed")


class Offered(Exception):  # noqa: N818 - a signal, not an error
    """Signal that a model was offered these `Bindings`, its argument, raised in place of an answer."""


class OfferRecorder(BaseChatModel):
    """Raises `Offered` when it is asked; stands for an agent's model, under its name and profile."""

    model_name: str = ""

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, strict: bool | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Raise what is offered."""
        form = kwargs.get("response_format")
        raise Offered(bindings_for(tools, tool_choice=tool_choice, response_format=form, strict=strict))

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        raise Offered(Bindings())

    @property
    def _llm_type(self) -> str:
        return "guardrail_recorder"
