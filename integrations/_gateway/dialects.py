"""Protocols of clients as translations of chat completions, and what these translations share. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from guardrail.types import SamplingPlan

from .protocol import ApiError, ChatRequest, chunks, invalid

__all__ = ["CHAT", "Dialect"]

T = TypeVar("T")
_SHAPES = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A protocol of clients, as a translation of chat completions: the gate behind it is the same.

    Attributes:
        path: Path below the root of an API.
        read: A request of this protocol as one for a chat completion.
        reply: A completion as the reply to a request.
        events: A reply as the events of a request's stream.
        error: An error as a body, and as an event.
        observed: An upstream's reply, or the events of its stream, as a chat completion.
        names: Fields of chat completions, by the names of this protocol.
        error_status: HTTP status of errors, if the protocol has only one.
        mandatory: The token limit, if every request must have one; a larger one than calibrated is left out.
    """

    path: str
    read: Callable[[Mapping[str, Any], SamplingPlan | None], Mapping[str, Any]]
    reply: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    events: Callable[[Mapping[str, Any], ChatRequest], Iterator[Mapping[str, Any]]]
    error: Callable[[ApiError], dict[str, Any]]
    observed: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    error_status: int | None = None
    mandatory: str = ""

    def spelled(self, error: ApiError) -> ApiError:
        """An error that names a field of chat completions, by this protocol's name of the field."""
        name = self.names.get(error.param or "")
        if name is None:
            return error
        return replace(error, param=name, message=re.sub(rf"\b{error.param}\b", name, error.message))


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not null: null counts as absent, since some clients send nulls."""
    return {name: value for name, value in fields.items() if value is not None}


def need(value: Any, kind: type[T], where: str) -> T:
    """A field's value, if it has the right type.

    Raises:
        ApiError: It has another type; the message names the field.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise invalid(where, f"must be {_SHAPES[kind]}.")
    return value


def need_texts(fields: Mapping[str, Any], where: str, *names: str) -> list[str]:
    """The values of fields that must be texts."""
    return [need(fields.get(name), str, f"{where}.{name}") for name in names]


def shared(fields: Mapping[str, Any], unknown: AbstractSet[str], own: AbstractSet[str], name: str) -> dict[str, Any]:
    """The fields of a request that chat completions call the same, and those that neither protocol knows.

    Args:
        fields: The request.
        unknown: Fields of chat completions that the protocol lacks: a request with them would be read in two ways.
        own: Fields that are translated.
        name: The protocol, for messages.
    """
    for field_name in sorted(unknown & fields.keys()):
        raise ApiError(400, f"/v1/{name} has no field {field_name!r}.", "unknown_field", field_name)
    return {key: value for key, value in fields.items() if key not in own}


def content_of(
    value: Any, where: str, part: Callable[[Any, Mapping[str, Any], str], dict[str, Any] | None]
) -> str | list[dict[str, Any]]:
    """A content of texts and parts in the form of chat completions; a single text is a text.

    Args:
        value: The content.
        where: Its place in the request.
        part: Gives a part's form in chat completions, or None for a type that they lack.

    Raises:
        ApiError: It is malformed, or has a part of another type.
    """
    if isinstance(value, str):
        return value
    parts = []
    for place, entry in enumerate(need(value, list, where)):
        at = f"{where}[{place}]"
        kind = need(entry, dict, at).get("type")
        spelled = part(kind, entry, at)
        if spelled is None:
            raise invalid(at, f"of type {str(kind)[:60]!r} cannot be guarded.", "unsupported_content")
        parts.append(spelled)
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def text_of(parts: str | list[dict[str, Any]]) -> str:
    """The texts of a content as one, as an assistant's message has them."""
    return parts if isinstance(parts, str) else "".join(part.get("text", "") for part in parts)


def image(url: str, detail: Any = None) -> dict[str, Any]:
    """An image in a content."""
    return {"type": "image_url", "image_url": {"url": url, **({} if detail in (None, "auto") else {"detail": detail})}}


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function in a message."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tools_of(value: Any, kind: str, default: str | None = None, left_out: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The tools of a request.

    Args:
        value: The field ``tools``.
        kind: The ``type`` of tools that the client runs.
        default: The type of a tool that names none.
        left_out: Fields of a tool without a meaning for a chat completion.

    Raises:
        ApiError: A tool is malformed, or runs at the provider.
    """
    tools = []
    for place, tool in enumerate(need(value, list, "tools")):
        fields = present(need(tool, dict, f"tools[{place}]"))
        if fields.pop("type", default) != kind:
            rule = f'must be "{kind}": tools that run at the provider cannot be guarded.'
            raise invalid(f"tools[{place}].type", rule, "unsupported_tool")
        if fields.get("strict") is False:  # what chat completions do without it
            del fields["strict"]
        function = {name: value for name, value in fields.items() if name not in left_out}
        tools.append({"type": "function", "function": function})
    return tools


def observed_completion(
    reply: Mapping[str, Any], texts: Sequence[str], calls: Sequence[Any], finish: str | None, refusal: str | None = None
) -> dict[str, Any]:
    """An upstream's reply in another protocol as a chat completion, of which the guard measures the answer."""
    message = {"role": "assistant", "content": "".join(texts), "refusal": refusal, "tool_calls": calls}
    usage = reply.get("usage") or {}
    return {
        "model": reply.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")},
    }


CHAT = Dialect(
    "chat/completions",
    read=lambda body, plan: body,
    reply=lambda completion, body: dict(completion),
    events=lambda reply, request: chunks(reply, include_usage=request.include_usage),
    error=lambda error: error.body,
)
"""OpenAI's chat completions."""
