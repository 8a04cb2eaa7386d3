"""Replies and errors as HTTP responses, whole or as a stream of events."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from guardrail.errors import require
from guardrail.explain import without_quotes

from .answers import GuardReply, completion, headers_of
from .chat_requests import ChatRequest
from .dialects import Dialect
from .errors import ApiError

_responses = require("starlette.responses", extra="serve")

__all__ = ["STREAMED", "Asked", "error_response", "failed"]

STREAMED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that tell proxies not to buffer a stream."""
log = logging.getLogger("guardrail")


class Asked(NamedTuple):
    """A client's question, in the form in which its reply is sent."""

    chat: ChatRequest
    body: Mapping[str, Any]
    dialect: Dialect
    number: str
    """The request's id."""
    model: str

    def response(self, result: GuardReply | ApiError) -> Any:
        """The response with a status of its own."""
        sent, headers = self._sent(result)
        if isinstance(sent, ApiError):
            return error_response(sent, self.dialect)
        if not self.chat.stream:
            return _responses.JSONResponse(sent, headers=headers)
        events = _frames(self.dialect.events(sent, self.chat))
        return _responses.Response(events, media_type="text/event-stream", headers={**headers, **STREAMED})

    def frames(self, result: GuardReply | ApiError) -> bytes:
        """The frames of a stream whose response has begun: an error is an event."""
        sent, _ = self._sent(result)
        if isinstance(sent, ApiError):
            return _frames([self.dialect.error(sent)])
        return _frames(self.dialect.events(sent, self.chat))

    def _sent(self, result: GuardReply | ApiError) -> tuple[Any, dict[str, str]]:
        """The error, or the reply with its headers, in the client's protocol. An abstention stands in the log."""
        if isinstance(result, ApiError):
            if result.verdict is not None and result.status < 500:  # an outage is logged once a minute
                self._log(without_quotes(result.verdict))
            return self.dialect.spelled(result), {}
        whole = completion(result, self.chat, request_id=self.number, model=self.model)
        if result.abstained:
            self._log(whole["guardrail"]["explanation"])
        return self.dialect.reply(whole, self.body), headers_of(whole["guardrail"], self.chat.replaced)

    def _log(self, why: str) -> None:
        log.warning("guardrail serve: %s held request %s back: %s", self.model, self.number, why)


def _frames(listed: Iterable[Mapping[str, Any]]) -> bytes:
    """Server-sent events. Those with a ``type`` are named by it; without one, the protocol has a last event."""
    frames = [(event.get("type"), json.dumps(event, ensure_ascii=False)) for event in listed]
    frames += [] if frames[-1][0] else [(None, "[DONE]")]
    return "".join(f"event: {kind}\n" * bool(kind) + f"data: {data}\n\n" for kind, data in frames).encode()


def error_response(error: ApiError, dialect: Dialect) -> Any:
    """The response for an error, in the form of a protocol."""
    status = dialect.error_status or error.status
    return _responses.JSONResponse(dialect.error(error), status, headers=dict(error.headers))


def failed(what: str, error: Exception) -> ApiError:
    """The error for a fault of the gateway itself, which stands in the log."""
    log.error("guardrail serve: %s failed with %s", what, type(error).__name__)  # its text may quote an answer
    log.debug("guardrail serve: %s", what, exc_info=error)
    return ApiError(500, "The gateway failed.", "internal_error", kind="server_error")
