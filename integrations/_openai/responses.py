"""Items, usage and events of OpenAI's Responses API as plain JSON, for every place that answers in this form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def text_part(text: str, logprobs: list[Any] | None = None) -> dict[str, Any]:
    """The part of a message with a text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def message_item(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's whole message of one part; ``name`` makes its id."""
    return {"id": f"msg_{name}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}


def call_item(name: str, call_id: str, tool: str, arguments: str) -> dict[str, Any]:
    """A whole call of a function, with its arguments as JSON text; ``name`` makes the item's id."""
    spelled = {"call_id": call_id, "name": tool, "arguments": arguments}
    return {"id": f"fc_{name}", "type": "function_call", "status": "completed", **spelled}


def usage_of(input_tokens: int, output_tokens: int) -> dict[str, Any]:
    """The usage of a response."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }


def stream_events(response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a complete response: each item in one piece, because it goes out only when it was judged."""
    return ({**event, "sequence_number": number} for number, event in enumerate(_unnumbered(response)))


def _unnumbered(response: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**response, "status": "in_progress", "completed_at": None, "incomplete_details": None, "output": []}
    begun["usage"] = None
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": begun}
    for index, item in enumerate(response["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        opened = {**item, "status": "in_progress"} | empty
        yield {"type": "response.output_item.added", "output_index": index, "item": opened}
        if item["type"] == "function_call":
            yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **at, **done}
        else:
            yield from _part_events(item["content"][0], {**at, "content_index": 0})
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _part_events(part: Mapping[str, Any], at: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part["type"]
    field = "text" if kind == "output_text" else "refusal"
    empty = {**part, field: ""} | ({"logprobs": []} if kind == "output_text" else {})
    more = {"logprobs": part["logprobs"]} if kind == "output_text" else {}
    yield {"type": "response.content_part.added", **at, "part": empty}
    if part[field]:
        yield {"type": f"response.{kind}.delta", **at, "delta": part[field], **more}
    yield {"type": f"response.{kind}.done", **at, field: part[field], **more}
    yield {"type": "response.content_part.done", **at, "part": part}
