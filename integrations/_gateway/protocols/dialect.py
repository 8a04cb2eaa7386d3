"""A protocol of clients as a translation of chat completions, and what translations have in common. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from guardrail.types import SamplingPlan

from ..errors import ApiError, invalid

T = TypeVar("T")
_SHAPES = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """A protocol of clients, as a translation of chat completions: the gate behind it is the same."""

    path: str
    """Path below the root of an API."""
    translate: Callable[[Mapping[str, Any], SamplingPlan | None], Mapping[str, Any]]
    """The fields of a request that chat completions spell otherwise; null leaves one out."""
    reply: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    """A completion as the reply to a request."""
    events: Callable[[Mapping[str, Any], bool], Iterator[Mapping[str, Any]]]
    """A reply as the events of a stream; with the token counts of chat completions, if the client wants them."""
    error: Callable[[ApiError], dict[str, Any]]
    """An error as a body, and as an event."""
    observed: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]] | None = None
    """An upstream's reply, or the events of its stream, as a chat completion."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Fields of chat completions, by the names of this protocol."""
    own: AbstractSet[str] = frozenset()
    """Fields that chat completions spell otherwise, or lack."""
    unknown: AbstractSet[str] = frozenset()
    """Fields of chat completions that this protocol lacks: a request that has them would be read in two ways."""
    error_status: int | None = None
    """HTTP status of errors, if the protocol has only one."""
    mandatory: str = ""
    """The token limit, if every request must have one; a larger one than calibrated is left out."""

    def read(self, body: Mapping[str, Any], plan: SamplingPlan | None) -> dict[str, Any]:
        """A request of this protocol as one for a chat completion."""
        fields = present(body)
        for name in sorted(self.unknown & fields.keys()):
            raise invalid(name, "is not a field of this API.", "unknown_field")
        return present({**fields, **dict.fromkeys(self.own), **self.translate(fields, plan)})

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
    """A field's value; an `ApiError` that names the field if it has another type."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise invalid(where, f"must be {_SHAPES[kind]}.")
    return value


def need_texts(fields: Mapping[str, Any], where: str, *names: str) -> list[str]:
    return [need(fields.get(name), str, f"{where}.{name}") for name in names]


def objects_in(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The entries of a list of objects, each with its place in the request."""
    for place, entry in enumerate(need(value, list, where)):
        yield f"{where}[{place}]", need(entry, dict, f"{where}[{place}]")


def inner_fields(fields: Mapping[str, Any], name: str, known: AbstractSet[str]) -> dict[str, Any]:
    """A field that is an object, all of whose fields are known."""
    inner = present(need(fields.get(name, {}), dict, name))
    for unknown in sorted(inner.keys() - known):
        raise invalid(f"{name}.{unknown}", "is unknown here.", "unknown_field")
    return inner


def content_of(
    value: Any, where: str, part: Callable[[Any, Mapping[str, Any], str], dict[str, Any] | None]
) -> str | list[dict[str, Any]]:
    """A content of texts and parts in the form of chat completions; a single text is a text.

    ``part`` gives the form of a part, or None for a type that chat completions lack, which is an `ApiError`.
    """
    if isinstance(value, str):
        return value
    parts = []
    for at, entry in objects_in(value, where):
        kind = entry.get("type")
        spelled = part(kind, entry, at)
        if spelled is None:
            raise invalid(at, f"of type {str(kind)[:60]!r} cannot be guarded.", "unsupported_content")
        parts.append(spelled)
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def text_of(parts: str | list[dict[str, Any]]) -> str:
    """The texts of a content as one, as an assistant's message has them."""
    return parts if isinstance(parts, str) else "".join(part.get("text", "") for part in parts)


def image(url: str, detail: Any = None) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **({} if detail in (None, "auto") else {"detail": detail})}}


def function_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tools_of(value: Any, kind: str, default: str | None = None) -> list[dict[str, Any]]:
    """The tools of a request, all of the ``kind`` that clients run: others run at the provider, and are refused."""
    tools = []
    for at, tool in objects_in(value, "tools"):
        function = present(tool)
        if function.pop("type", default) != kind:
            rule = f'must be "{kind}": tools that run at the provider cannot be guarded.'
            raise invalid(f"{at}.type", rule, "unsupported_tool")
        if function.get("strict") is False:  # what chat completions do without it
            del function["strict"]
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
