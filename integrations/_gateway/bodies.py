"""Bodies of requests: as much as may be read, as JSON that upstream and gateway read alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from guardrail.errors import require
from guardrail.plain_json import json_fault

from .errors import ApiError, invalid

jiter = require("jiter", extra="serve")
T = TypeVar("T")
LARGE = 32_000
"""Bytes of a body above which it is read off the event loop."""
MOST = {"messages": 2048, "input": 2048, "tools": 128, "functions": 128, "metadata": 16}
"""Entries that OpenAI's API takes: reading more of them would take seconds."""


async def content_of(request: Any, most: int) -> bytes:
    """The body of a request; an `ApiError` if it has more bytes than ``most``."""
    too_large = ApiError(413, f"The body is larger than {most} bytes.", "request_too_large")
    declared, content = request.headers.get("content-length", "0"), bytearray()
    if not declared.isdecimal() or int(declared) > most:
        raise too_large
    async for part in request.stream():
        content += part
        if len(content) > most:
            raise too_large
    return bytes(content)


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether a body is declared as JSON, which no form of a web page is."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def refuse_other_types(headers: Mapping[str, str]) -> None:
    """Raise an `ApiError` for a body that is not declared as JSON."""
    if not is_json(headers):
        raise ApiError(415, "Content-Type must be application/json.", "unsupported_media_type")


class Reader:
    """Reads large bodies on a thread, one at a time, while others are served."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)

    async def read(self, content: bytes, work: Callable[[], T]) -> T:
        """The result of ``work``, which reads a body of this content."""
        if len(content) <= LARGE:
            return work()
        async with self._turn:
            return await asyncio.to_thread(work)


def read_body(content: bytes, most_values: int, *, model: bool = True) -> dict[str, Any]:
    """A request's body as a JSON object, which must name a model unless ``model`` is false.

    Raises:
        ApiError: It is not JSON, is too deep, repeats a name, has numbers or characters that JSON or UTF-8 lack, or
            more values than ``most_values``, or more messages, tools or metadata than OpenAI's API takes.
    """
    if has_more_values(content, most_values):
        way_out = "Send fewer, or ask the operator for a larger 'max_values' in the configuration."
        raise ApiError(400, f"The body has more than {most_values} JSON values. {way_out}", "too_many")
    try:
        # A repeated name is refused: the upstream could read its other value and answer that.
        body = jiter.from_json(content, allow_inf_nan=False, catch_duplicate_keys=True)
        for name, most in MOST.items() if isinstance(body, dict) else ():
            value = body.get(name)
            if isinstance(value, list | dict) and len(value) > most:
                raise invalid(name, f"has {len(value)} entries; at most {most} are served.", "too_many")
        fault = json_fault(body, packed=True)
    except (ValueError, RecursionError) as error:
        fault = str(error)
    if fault is not None:
        raise ApiError(400, f"The body cannot be read as JSON: {fault}.", "invalid_json")
    if not isinstance(body, dict) or (model and not isinstance(body.get("model"), str)):
        raise ApiError(400, "The body must be a JSON object with a text 'model'.", "missing_field", "model")
    return body


def has_more_values(content: bytes, most: int) -> bool:
    """Whether a body has more JSON values than ``most``, or as many texts as only such a body has.

    It counts bytes before anything is parsed: a parser does not let other threads run until it has made all values.
    Each value but the first follows a comma or a bracket. Commas in texts count only if the exact count is needed.
    """

    def separators(text: bytes) -> int:
        return text.count(b",") + text.count(b"[") + text.count(b"{")

    if separators(content) < most:
        return False
    unescaped = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if unescaped.count(b'"') > 4 * most:  # two quotes a text, and each value may have a name
        return True
    return separators(b"".join(unescaped.split(b'"')[::2])) >= most
