"""Replies and errors as HTTP responses in the client's protocol, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from guardrail.errors import require
from guardrail.explain import without_quotes

from .admission import Result
from .answers import headers_of
from .errors import ApiError, no_model, unavailable
from .protocols.chat import completion
from .protocols.dialect import Dialect
from .requests import Asked

_responses = require("starlette.responses", extra="serve")

KEEP_ALIVE = 15.0
"""Seconds between the comments that keep a stream open until its verdict."""
STOPPING = unavailable("The gateway is stopping.", "stopping")
STREAMED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that tell proxies not to buffer a stream."""
log = logging.getLogger("guardrail")


def response_of(asked: Asked, task: asyncio.Task[Result]) -> Any:
    """The response to a question that is done, with a status of its own."""
    sent, headers = _spelled(asked, task)
    if isinstance(sent, ApiError):
        return error_response(sent, asked.question.dialect)
    if not asked.stream:
        return _responses.JSONResponse(sent, headers=headers)
    events = _frames(asked.question.dialect.events(sent, asked.include_usage))
    return _responses.Response(events, media_type="text/event-stream", headers={**headers, **STREAMED})


def late_stream(asked: Asked, task: asyncio.Task[Result]) -> Any:
    """The stream of a question whose verdict is late: comments keep it open until then, and an error is an event."""

    async def frames() -> AsyncIterator[bytes]:
        while not task.done():
            yield b": keep-alive\n\n"
            await asyncio.wait({task}, timeout=KEEP_ALIVE)
        (sent, _), dialect = _spelled(asked, task), asked.question.dialect
        yield _frames(
            [dialect.error(sent)] if isinstance(sent, ApiError) else dialect.events(sent, asked.include_usage)
        )

    return _responses.StreamingResponse(frames(), media_type="text/event-stream", headers=STREAMED)


def _spelled(asked: Asked, task: asyncio.Task[Result]) -> tuple[Any, dict[str, str]]:
    """The error, or the reply with its headers, in the client's protocol. An abstention stands in the log."""
    question, headers = asked.question, dict[str, str]()
    result: Result = STOPPING if task.cancelled() else task.result()
    sent: Any
    if isinstance(result, ApiError):
        # An outage is logged once a minute.
        why = None if result.verdict is None or result.status >= 500 else without_quotes(result.verdict)
        sent = question.dialect.spelled(result)
    else:
        whole = completion(
            result,
            formatted="response_format" in asked.call,
            logprobs=asked.logprobs,
            request_id=question.number,
            model=question.model,
        )
        why = whole["guardrail"]["explanation"] if result.abstained else None
        sent = question.dialect.reply(whole, question.body)
        headers = headers_of(whole["guardrail"], asked.replaced)
    if why is not None:
        log.warning("guardrail serve: %s held request %s back: %s", question.model, question.number, why)
    return sent, headers


def _frames(listed: Iterable[Mapping[str, Any]]) -> bytes:
    """Server-sent events. Those with a ``type`` are named by it; without one, the protocol has a last event."""
    frames = [(event.get("type"), json.dumps(event, ensure_ascii=False)) for event in listed]
    frames += [] if frames[-1][0] else [(None, "[DONE]")]
    lines = [(f"event: {kind}\n" if kind else "") + f"data: {data}\n\n" for kind, data in frames]
    return "".join(lines).encode()


def models_response(names: Sequence[str], wanted: str, started: int) -> Any:
    """The list of models, or the ``wanted`` one; with the fields of OpenAI's list beside those of Anthropic's."""
    common = {
        "object": "model",
        "type": "model",
        "created": started,
        "created_at": datetime.fromtimestamp(started, UTC).isoformat(),
        "owned_by": "acrc-guardrail",
        "lifecycle": "active",
    }
    models = [{"id": name, "display_name": name, **common} for name in names]
    if not wanted:
        ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return _responses.JSONResponse({"object": "list", "data": models, "has_more": False, **ends})
    if wanted not in names:
        raise no_model(wanted)
    return _responses.JSONResponse(models[names.index(wanted)])


def error_response(error: ApiError, dialect: Dialect) -> Any:
    """The response for an error, in the form of a protocol."""
    status = dialect.error_status or error.status
    return _responses.JSONResponse(dialect.error(error), status, headers=dict(error.headers))


def failed(what: str, error: Exception) -> ApiError:
    """The error for a fault of the gateway itself, which stands in the log."""
    log.error("guardrail serve: %s failed with %s", what, type(error).__name__)  # its text may quote an answer
    log.debug("guardrail serve: %s", what, exc_info=error)
    return ApiError(500, "The gateway failed.", "internal_error")
