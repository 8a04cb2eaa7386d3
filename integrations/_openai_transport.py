"""One request to an endpoint: attempts, waiting and a deadline that holds.

The SDK's own retries sleep without regard to a deadline (up to 120 s for a Retry-After) and hide how many requests were
made. So the SDK makes one attempt, and this file repeats it by the same rules: connection errors, 408, 409, 429 and 5xx
are tried again after Retry-After or an exponential wait with jitter, but never past the deadline.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from guardrail.errors import GuardrailError, require

__all__ = ["Attempted", "DeadlineError", "apost", "is_rejection", "post"]

openai = require("openai", extra="openai")

PATH = "/chat/completions"
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
RETRIED = frozenset({408, 409, 429})


class DeadlineError(GuardrailError, TimeoutError):
    """The time for a request is over, retries included."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """What a request came to.

    Attributes:
        content: Bytes of the reply, or None.
        error: Why there is none.
        attempts: HTTP requests that were made.
    """

    content: bytes | None
    error: Exception | None
    attempts: int


def post(client: Any, body: Mapping[str, Any], *, deadline: float, retries: int) -> Attempted:
    """Send a request and wait for its reply, at most until ``deadline`` (on `time.monotonic`)."""
    for attempt in range(1, retries + 2):
        try:
            return Attempted(_send(client, body, deadline), None, attempt)
        except Exception as error:  # whatever fails is reported; the caller abstains
            wait = _wait(error, attempt, retries, deadline)
            if wait is None:
                return Attempted(None, error, attempt)
            time.sleep(wait)
    raise AssertionError("unreachable")


async def apost(client: Any, body: Mapping[str, Any], *, deadline: float, retries: int) -> Attempted:
    """`post` on the event loop; a cancelled call closes its connection."""
    for attempt in range(1, retries + 2):
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                content = await client.post(PATH, cast_to=bytes, body=body)
            return Attempted(content, None, attempt)
        except TimeoutError:
            return Attempted(None, DeadlineError("no complete reply before the deadline"), attempt)
        except Exception as error:
            wait = _wait(error, attempt, retries, deadline)
            if wait is None:
                return Attempted(None, error, attempt)
            await asyncio.sleep(wait)
    raise AssertionError("unreachable")


def _send(client: Any, body: Mapping[str, Any], deadline: float) -> bytes:
    """One attempt, read piece by piece: a server that trickles must not outlast the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineError("no time was left for this request")
    fields = dict(body)
    required = {name: fields.pop(name) for name in ("messages", "model")}
    create = client.chat.completions.with_streaming_response.create
    pieces = []
    with create(**required, extra_body=fields, timeout=left) as response:
        for piece in response.iter_bytes():
            pieces.append(piece)
            if time.monotonic() > deadline:
                raise DeadlineError("no complete reply before the deadline")
    return b"".join(pieces)


def is_rejection(error: Exception | None) -> bool:
    """Whether the endpoint understood the request and refused it (4xx other than those worth a retry)."""
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in RETRIED


def _wait(error: Exception, attempt: int, retries: int, deadline: float) -> float | None:
    """Seconds until the next attempt, or None when there shall be none."""
    status = getattr(error, "status_code", None)
    again = isinstance(error, openai.APIConnectionError) or status in RETRIED or (status or 0) >= 500
    if not again or attempt > retries:
        return None
    asked = _retry_after(getattr(getattr(error, "response", None), "headers", {}))
    wait = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.75, 1.0) if asked is None else asked
    return wait if time.monotonic() + wait < deadline else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait, as number (of seconds or, in OpenAI's own header, milliseconds) or as date."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            try:
                moment = parsedate_to_datetime(text)
            except ValueError:
                continue
            seconds = (moment - datetime.now(UTC)).total_seconds() if moment.tzinfo is not None else -1.0
        if 0 <= seconds < float("inf"):
            return seconds
    return None
