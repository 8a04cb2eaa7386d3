"""Conversion between the OpenAI Agents SDK's items and LangChain's messages.

A message carries the items it was made from, so the inner model receives what the agent sent, including images and
reasoning items. Judges and the prompt check read the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from uuid import uuid4

from agents import AgentOutputSchemaBase, FunctionTool, Handoff, ModelResponse, ModelSettings, Tool, Usage
from agents.items import TResponseInputItem, TResponseOutputItem, TResponseStreamEvent
from agents.models.chatcmpl_converter import Converter
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseReasoningItem,
    ResponseStreamEvent,
)
from pydantic import TypeAdapter

from guardrail.bindings import bindings_for
from guardrail.errors import UsageError
from guardrail.guard.messages import total_usage
from guardrail.types import Bindings, Cost

from .._agents.calls import ANSWER_TOOL, arguments_of
from .._openai.responses import call_item, message_item, stream_events, text_part, usage_of
from .chat import content_of

ITEMS = "openai_agents_items"
"""Key in a message's ``additional_kwargs`` of the items it was made from."""
TEXTS = ("input_text", "output_text", "text", "refusal")
"""Types of the parts of a message that have text."""


# -- messages --------------------------------------------------------------------------------------------------------


def from_items(system: str | None, items: str | Sequence[TResponseInputItem]) -> list[BaseMessage]:
    """A request's instructions and input as messages, without calls that stood for held-back answers.

    Raises:
        UsageError: An item is neither a message nor a function call or its result. Hosted tools run before any verdict.
    """
    messages: list[BaseMessage] = [] if system is None else [SystemMessage(system)]
    if isinstance(items, str):
        return [*messages, HumanMessage(items)]
    pending: list[Any] = []  # reasoning items belong to the next item
    input_items = cast(Sequence[dict[str, Any]], items)
    stood = {item["call_id"] for item in input_items if _stands_for_answer(item)}
    for item in input_items:
        if _stands_for_answer(item) or (item.get("type") == "function_call_output" and item["call_id"] in stood):
            continue
        if item.get("type") == "reasoning":
            pending.append(item)
            continue
        message = _message(item, [*pending, item])
        pending = []
        last = messages[-1] if messages else None
        if isinstance(message, AIMessage) and message.tool_calls and isinstance(last, AIMessage):
            messages[-1] = _merged(last, message)
        else:
            messages.append(message)
    return messages


def _stands_for_answer(item: Mapping[str, Any]) -> bool:
    """True if an item is a call that stands for a held-back answer."""
    return item.get("type") == "function_call" and item.get("name") == ANSWER_TOOL


def last_results(items: str | Sequence[TResponseInputItem]) -> tuple[dict[str, str], list[TResponseInputItem]]:
    """The tools of calls with a result at the end of a request, by call id, and the items before these calls."""
    before: list[Any] = [] if isinstance(items, str) else list(items)
    done = []
    names = {}
    while before and before[-1].get("type") == "function_call_output":
        done.append(before.pop()["call_id"])
    while done and before and before[-1].get("type") == "function_call":
        item = before.pop()
        names[item["call_id"]] = item["name"]
    return {call_id: names.get(call_id, "") for call_id in done}, before


def _message(item: dict[str, Any], raw: list[Any]) -> BaseMessage:
    carried = {ITEMS: raw}
    kind = item.get("type")
    role = item.get("role")
    if kind in (None, "message") and role in ("system", "developer"):
        return SystemMessage(_text(item), additional_kwargs=carried)
    if kind in (None, "message") and role == "user":
        return HumanMessage(_content(item), additional_kwargs=carried)
    if kind in (None, "message") and role == "assistant":
        return AIMessage(_text(item), additional_kwargs=carried)
    if kind == "function_call":
        call = {"name": item["name"], "args": _recorded_arguments(item), "id": item["call_id"]}
        return AIMessage("", tool_calls=[cast(Any, {**call, "type": "tool_call"})], additional_kwargs=carried)
    if kind == "function_call_output":
        return ToolMessage(
            _content({"content": item["output"]}), tool_call_id=item["call_id"], additional_kwargs=carried
        )
    raise UsageError(
        f"the guard cannot judge a conversation with an item of type {kind!r}: only messages, function calls and their "
        "results are drawn again the same way. Use function tools instead of hosted ones."
    )


def _recorded_arguments(item: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return arguments_of(item["arguments"])
    except ValueError as error:
        raise UsageError(
            f"the conversation has a call of {item['name']!r} (id {item['call_id']!r}) whose arguments are not a JSON "
            f"object ({error}), so the guard cannot judge what follows it. Remove that call and its result from the "
            "input, or the session, and go on."
        ) from error


def _merged(first: AIMessage, second: AIMessage) -> AIMessage:
    raw = [*first.additional_kwargs.get(ITEMS, ()), *second.additional_kwargs[ITEMS]]
    return AIMessage(first.content, tool_calls=[*first.tool_calls, *second.tool_calls], additional_kwargs={ITEMS: raw})


def _content(item: dict[str, Any]) -> Any:
    """Content of an item: its text, and its other parts."""
    parts = item.get("content")
    others = [part for part in parts if part.get("type") not in TEXTS] if isinstance(parts, list) else []
    return content_of(_text(item), others)


def _text(item: dict[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = [part for part in content or () if isinstance(part, dict)]
    return "\n".join(str(part.get("text") or part.get("refusal") or "") for part in parts if part.get("type") in TEXTS)


def to_items(messages: Sequence[BaseMessage]) -> tuple[str | None, list[TResponseInputItem]]:
    """Messages as a request's instructions and input: the items they were made from, or new ones."""
    system: str | None = None
    items: list[Any] = []
    for index, message in enumerate(messages):
        if ITEMS in message.additional_kwargs:
            items += message.additional_kwargs[ITEMS]
        elif isinstance(message, SystemMessage) and index == 0:
            system = str(message.text)
        else:
            items += _items(message)
    return system, items


def _items(message: BaseMessage) -> Iterator[dict[str, Any]]:
    if isinstance(message, ToolMessage):
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": str(message.text)}
        return
    role = {"ai": "assistant", "system": "system"}.get(message.type, "user")
    calls = message.tool_calls if isinstance(message, AIMessage) else []
    if str(message.text) or not calls:
        yield {"role": role, "content": str(message.text)}
    for call in calls:
        yield {
            "type": "function_call",
            "call_id": str(call["id"]),
            "name": call["name"],
            "arguments": json.dumps(call["args"], ensure_ascii=False),
        }


# -- tools and formats -------------------------------------------------------------------------------------------------


def request_bindings(
    tools: Sequence[Tool], handoffs: Sequence[Handoff[Any, Any]], schema: AgentOutputSchemaBase | None, choice: Any
) -> Bindings:
    """Tools (including handoffs, not `ANSWER_TOOL`), choice and answer format of a request.

    Raises:
        UsageError: A tool is hosted: it runs at the provider, before any verdict.
    """
    for tool in tools:
        if not isinstance(tool, FunctionTool):
            raise UsageError(
                f"tool {tool.name!r} ({type(tool).__name__}) runs at the provider, before any verdict. Only function "
                "tools can be guarded."
            )
    described = [Converter.tool_to_openai(tool) for tool in tools if tool.name != ANSWER_TOOL]
    described += map(Converter.convert_handoff_tool, handoffs)
    is_structured = schema is not None and not schema.is_plain_text()
    response_format: Any = Converter.convert_response_format(schema) if is_structured else None
    if choice is not None and not isinstance(choice, str):
        raise UsageError(f"tool_choice {choice!r} names a hosted tool; only function tools can be guarded.")
    return bindings_for(described, tool_choice=choice, response_format=response_format)


def as_tools(described: Sequence[dict[str, Any]]) -> list[Tool]:
    """Described tools as function tools that can be offered but not run."""

    async def never(_context: Any, _arguments: str) -> Any:
        raise UsageError("this tool is only a description for the model and cannot run")

    return [
        FunctionTool(
            name=tool["function"]["name"],
            description=tool["function"].get("description", ""),
            params_json_schema=tool["function"].get("parameters", {"type": "object", "properties": {}}),
            on_invoke_tool=never,
            strict_json_schema=bool(tool["function"].get("strict", False)),
        )
        for tool in described
    ]


class Format(AgentOutputSchemaBase):
    """The answer format of an OpenAI ``response_format``."""

    def __init__(self, response_format: dict[str, Any]) -> None:
        if response_format.get("type") != "json_schema":
            raise UsageError(
                f"the Agents SDK does not support a response_format of type {response_format.get('type')!r}"
            )
        self._wanted = response_format["json_schema"]

    def is_plain_text(self) -> bool:
        """False."""
        return False

    def name(self) -> str:
        """The schema's name."""
        return str(self._wanted.get("name", "final_output"))

    def json_schema(self) -> dict[str, Any]:
        """The schema."""
        return dict(self._wanted["schema"])

    def is_strict_json_schema(self) -> bool:
        """True if the server enforces the schema."""
        return bool(self._wanted.get("strict", False))

    def validate_json(self, json_str: str) -> Any:
        """The parsed JSON."""
        return json.loads(json_str)


# -- responses ---------------------------------------------------------------------------------------------------------


def read_response(response: ModelResponse, settings: ModelSettings, model: str) -> AIMessage:
    """A model's response as a message, with log-probabilities in OpenAI's form.

    Raises:
        UsageError: An item is neither text nor a function call.
        ValueError: The arguments of a call are not a JSON object.
    """
    texts: list[str] = []
    calls: list[Any] = []
    logprobs: list[Any] = []
    refused = None
    for item in response.output:
        if isinstance(item, ResponseOutputMessage):
            for part in item.content:
                if isinstance(part, ResponseOutputRefusal):
                    refused = part.refusal
                else:
                    texts.append(part.text)
                    logprobs += [token.model_dump() for token in part.logprobs or ()]
        elif isinstance(item, ResponseFunctionToolCall):
            arguments = arguments_of(item.arguments)
            calls.append({"name": item.name, "args": arguments, "id": item.call_id, "type": "tool_call"})
        elif not isinstance(item, ResponseReasoningItem):
            raise UsageError(f"the model returned an item of type {item.type!r}, which cannot be judged")
    cut = settings.max_tokens is not None and response.usage.output_tokens >= settings.max_tokens
    # The SDK passes no finish reason on: the length of an answer, and the state of its items, tell a part.
    states = [getattr(item, "status", None) for item in response.output]
    broken = next((state for state in states if state not in (None, "completed")), None)
    metadata: dict[str, Any] = {
        "finish_reason": broken or ("tool_calls" if calls else "length" if cut else "stop"),
        "model_name": model,
    }
    if logprobs:
        metadata["logprobs"] = {"content": logprobs}
    cost = Cost(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens)
    return AIMessage(
        "".join(texts),
        tool_calls=calls,
        additional_kwargs={"refusal": refused} if refused else {},
        response_metadata=metadata,
        usage_metadata=total_usage(cost),
    )


def to_response(message: AIMessage, requests: int) -> ModelResponse:
    """A guard's message as a model's response; ``requests`` counts the calls behind it."""
    output: list[TResponseOutputItem] = []
    if str(message.text) or not message.tool_calls:
        item = message_item(uuid4().hex, text_part(str(message.text)))
        output.append(ResponseOutputMessage.model_validate(item))
    for call in message.tool_calls:
        item = call_item(uuid4().hex, str(call["id"]), call["name"], json.dumps(call["args"], ensure_ascii=False))
        output.append(ResponseFunctionToolCall.model_validate(item))
    tokens = message.usage_metadata or total_usage(Cost())
    usage = Usage(
        requests=requests,
        input_tokens=tokens["input_tokens"],
        output_tokens=tokens["output_tokens"],
        total_tokens=tokens["total_tokens"],
    )
    return ModelResponse(output=output, usage=usage, response_id=None)


_EVENTS: TypeAdapter[TResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def events_of(response: ModelResponse, model: str) -> Iterator[TResponseStreamEvent]:
    """The events of a complete response: each item in one piece."""
    usage = response.usage
    whole = {
        "id": f"resp_{uuid4().hex}",
        "created_at": 0.0,
        "model": model,
        "object": "response",
        "output": [item.model_dump(exclude_none=True) for item in response.output],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "completed",
        "usage": usage_of(usage.input_tokens, usage.output_tokens),
    }
    return map(_EVENTS.validate_python, stream_events(whole))
