"""Conversion between pydantic-ai's messages and LangChain's.

A LangChain message carries the messages it was made from, so the inner model receives what the agent sent, including
images and thinking. Judges and the prompt check read the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic_ai import messages as its
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_jsonable_python

from guardrail.bindings import bindings_for
from guardrail.errors import UsageError
from guardrail.guard.abstention import ABSTAINED
from guardrail.guard.messages import total_usage
from guardrail.sampling.replies.ends import end_of, is_cut
from guardrail.types import Bindings, Cost

from .._agents.calls import ANSWER_TOOL, arguments_of
from .chat import content_of

MESSAGES = "pydantic_ai_messages"
"""Key in a message's ``additional_kwargs`` of the messages it was made from."""
KEPT = ("guardrail", ABSTAINED)
"""Keys of a guard's ``response_metadata``, kept in a response's ``metadata``."""


# -- messages --------------------------------------------------------------------------------------------------------


def from_messages(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> list[BaseMessage]:
    """A request's instructions and history as LangChain messages, without calls that stood for held-back answers.

    Raises:
        UsageError: A part is not a text, tool call or tool result.
    """
    instructions = _instructions(messages, parameters)
    converted: list[BaseMessage] = [] if not instructions else [SystemMessage(instructions)]
    for original in messages:
        message = _without_held(original)
        if message is None:
            continue
        parts = _request(message) if isinstance(message, ModelRequest) else [_response(message)]
        for index, part in enumerate(parts):
            # The first part carries the whole message, so that `to_messages` gives it back once.
            part.additional_kwargs[MESSAGES] = [message] if index == 0 else []
        converted += parts
    return converted


def _without_held(message: ModelMessage) -> ModelMessage | None:
    left: Any = [part for part in message.parts if not _stands(part)]
    if len(left) == len(message.parts):
        return message
    return replace(message, parts=left) if left else None


def _stands(part: object) -> bool:
    """True if a part is a call that stands for a held-back answer, or its result."""
    return getattr(part, "tool_name", None) == ANSWER_TOOL


def last_results(messages: Sequence[ModelMessage]) -> tuple[dict[str, str], list[ModelMessage], bool]:
    """The tools of calls with a result since the last response, by call id; the messages before; whether a prompt came.

    The messages are those before the last response.
    """
    last = max((index for index, message in enumerate(messages) if isinstance(message, ModelResponse)), default=0)
    parts = [part for message in messages[last + 1 :] for part in message.parts]
    done = [part for part in parts if getattr(part, "tool_call_id", None) is not None]
    results = {_call_id(part): str(getattr(part, "tool_name", "")) for part in done}
    return results, list(messages[:last]), any(isinstance(part, its.UserPromptPart) for part in parts)


def _content(text: str, parts: Iterable[Any]) -> Any:
    """Content of a text and its other parts, as JSON: pydantic-ai reads other classes from a stored history."""
    others = [part for part in parts if not isinstance(part, str | its.TextContent | its.CachePoint)]
    return content_of(text, [to_jsonable_python(part, bytes_mode="base64", fallback=repr) for part in others])


def _instructions(messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> str | None:
    if parameters.instruction_parts is not None:
        return InstructionPart.join(parameters.instruction_parts) if parameters.instruction_parts else None
    instructions = [message.instructions for message in messages if isinstance(message, ModelRequest)]
    return next((text for text in reversed(instructions) if text is not None), None)


def _request(message: ModelRequest) -> list[BaseMessage]:
    converted: list[BaseMessage] = []
    for part in message.parts:
        if isinstance(part, its.SystemPromptPart):
            converted.append(SystemMessage(part.content))
        elif isinstance(part, its.UserPromptPart):
            content = [part.content] if isinstance(part.content, str) else part.content
            converted.append(HumanMessage(_content(_text(content), content)))
        elif isinstance(part, its.ToolReturnPart):
            result = _content(part.model_response_str(), part.files)
            converted.append(ToolMessage(result, tool_call_id=part.tool_call_id))
        elif part.part_kind in ("retry-prompt", "retry-feedback"):
            text = str(getattr(part, "content", ""))
            tool = getattr(part, "tool_name", None)
            converted.append(HumanMessage(text) if tool is None else ToolMessage(text, tool_call_id=_call_id(part)))
        else:
            raise _unknown(part)
    return converted


def _call_id(part: Any) -> str:
    return str(part.tool_call_id)


def _text(content: Sequence[Any]) -> str:
    texts = (item if isinstance(item, str) else getattr(item, "content", None) for item in content)
    return "\n".join(text for text in texts if isinstance(text, str))


def _response(message: ModelResponse) -> AIMessage:
    texts = []
    calls = []
    for part in message.parts:
        if isinstance(part, its.TextPart):
            texts.append(part.content)
        elif isinstance(part, its.ToolCallPart):
            args = arguments_of(part.args)
            calls.append({"name": part.tool_name, "args": args, "id": part.tool_call_id, "type": "tool_call"})
        elif not isinstance(part, its.ThinkingPart):
            raise _unknown(part)
    tool_calls: Any = calls
    return AIMessage("".join(texts), tool_calls=tool_calls)


def _unknown(part: Any) -> UsageError:
    return UsageError(
        f"the guard cannot judge a conversation with a part of kind {part.part_kind!r}: only text, function calls and "
        "their results are drawn again the same way. Use function tools instead of native ones."
    )


def to_messages(messages: Sequence[BaseMessage]) -> tuple[str | None, list[ModelMessage]]:
    """LangChain messages as instructions and history: the messages they were made from, or new ones."""
    instructions: str | None = None
    history: list[ModelMessage] = []
    for index, message in enumerate(messages):
        if MESSAGES in message.additional_kwargs:
            history += message.additional_kwargs[MESSAGES]
        elif isinstance(message, SystemMessage) and index == 0:
            instructions = str(message.text)
        elif isinstance(message, AIMessage):
            history.append(to_response(message))
        else:
            history.append(ModelRequest(parts=[_part(message)]))
    return instructions, history


def _part(message: BaseMessage) -> its.ModelRequestPart:
    text = str(message.text)
    if isinstance(message, ToolMessage):
        return its.ToolReturnPart(tool_name=message.name or "tool", content=text, tool_call_id=message.tool_call_id)
    return its.SystemPromptPart(text) if isinstance(message, SystemMessage) else its.UserPromptPart(text)


# -- tools and formats -------------------------------------------------------------------------------------------------


def request_bindings(
    parameters: ModelRequestParameters, settings: ModelSettings | None, profile: Mapping[str, Any]
) -> Bindings:
    """Tools (output tools too), choice and answer format of a request; the profile has the default form of output.

    Raises:
        UsageError: The request has native tools, which run at the provider before any verdict; images as output; or a
            schema in the instructions (`PromptedOutput`), where the prompt check cannot see it.
    """
    if parameters.native_tools or parameters.allow_image_output:
        raise UsageError(
            "native tools and image outputs come from the provider before any verdict. Only function tools, output "
            "tools and text can be guarded."
        )
    parameters = parameters.with_default_output_mode(profile.get("default_structured_output_mode", "tool"))
    if parameters.output_mode == "prompted":
        raise UsageError("PromptedOutput cannot be guarded; use ToolOutput or NativeOutput.")
    output_tools = parameters.output_tools if parameters.output_mode == "tool" else []
    tools = [_described(tool) for tool in [*parameters.function_tools, *output_tools]]
    choice: Any = (settings or {}).get("tool_choice")
    if choice in (None, "auto") and tools and not parameters.allow_text_output:
        choice = "any"
    if choice is not None and not isinstance(choice, str):
        raise UsageError(f"tool_choice {choice!r} cannot be guarded; use 'auto' or 'required'.")
    response_format = None
    if parameters.output_mode == "native" and parameters.output_object is not None:
        output_object = parameters.output_object
        response_format = {
            "type": "json_schema",
            "json_schema": {
                "name": output_object.name or "final_result",
                "schema": output_object.json_schema,
                **_declared(output_object),
            },
        }
    return bindings_for(tools, tool_choice=choice, response_format=response_format)


def _described(tool: ToolDefinition) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return {"type": "function", "function": {**function, **strict}}


def _declared(output: OutputObjectDefinition) -> dict[str, Any]:
    settings = {"description": output.description, "strict": output.strict}
    return {name: value for name, value in settings.items() if value is not None}


def as_parameters(bindings: Bindings, instructions: str | None) -> ModelRequestParameters:
    """Bindings as request parameters, for calls without an agent."""
    tools = [
        ToolDefinition(
            name=tool["function"]["name"],
            description=tool["function"].get("description"),
            parameters_json_schema=tool["function"].get("parameters", {"type": "object", "properties": {}}),
            strict=tool["function"].get("strict"),
        )
        for tool in bindings.tools
    ]
    parts = None if instructions is None else [InstructionPart(content=instructions)]
    response_format = bindings.response_format
    if response_format is None:
        return ModelRequestParameters(
            function_tools=tools, instruction_parts=parts, allow_text_output=bindings.tool_choice is None
        )
    if response_format.get("type") != "json_schema":
        raise UsageError(f"pydantic-ai does not support a response_format of type {response_format.get('type')!r}")
    schema = response_format["json_schema"]
    output_object = OutputObjectDefinition(
        json_schema=schema["schema"],
        name=schema.get("name"),
        description=schema.get("description"),
        strict=schema.get("strict"),
    )
    return ModelRequestParameters(
        function_tools=tools, instruction_parts=parts, output_mode="native", output_object=output_object
    )


# -- responses ---------------------------------------------------------------------------------------------------------


def read_response(response: ModelResponse) -> AIMessage:
    """A model's response as a message, with log-probabilities in OpenAI's form.

    Raises:
        UsageError: A part is neither text nor a tool call.
        ValueError: The arguments of a call are not a JSON object.
    """
    message = _response(response)
    details: Iterable[Any] = [getattr(item, "provider_details", None) for item in (response, *response.parts)]
    logprobs = [item for detail in details if detail for item in detail.get("logprobs") or ()]
    finish = {"tool_call": "tool_calls"}.get(response.finish_reason or "", response.finish_reason)
    metadata: dict[str, Any] = {"model_name": response.model_name, "finish_reason": finish}
    if logprobs:
        metadata["logprobs"] = {"content": logprobs}
    usage = total_usage(Cost(input_tokens=response.usage.input_tokens, output_tokens=response.usage.output_tokens))
    return message.model_copy(update={"response_metadata": metadata, "usage_metadata": usage})


def to_response(message: AIMessage) -> ModelResponse:
    """A message as a model's response, with the verdict, if any, in its ``metadata``."""
    parts: list[its.ModelResponsePart] = []
    if str(message.text) or not message.tool_calls:
        parts.append(its.TextPart(str(message.text)))
    for call in message.tool_calls:
        parts.append(its.ToolCallPart(call["name"], call["args"], tool_call_id=str(call["id"])))
    usage = message.usage_metadata or total_usage(Cost())
    metadata = {name: message.response_metadata[name] for name in KEPT if name in message.response_metadata}
    return ModelResponse(
        parts=parts,
        usage=RequestUsage(input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"]),
        model_name=message.response_metadata.get("model_name"),
        finish_reason="tool_call" if message.tool_calls else "length" if is_cut(end_of(message)) else "stop",
        metadata=metadata or None,
    )
