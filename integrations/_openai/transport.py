"""One request to an endpoint: attempts, waiting and a deadline that holds.

The SDK's own retries sleep without regard to a deadline (up to 120 s for a Retry-After) and hide how many requests were
made. So the SDK makes one attempt, and this file repeats it by the same rules: connection errors, 408, 409, 429 and 5xx
are tried again after Retry-After or an exponential wait with jitter, but never past the deadline.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from guardrail.errors import GuardrailError, require

from .clients import counting

__all__ = ["Attempted", "DeadlineError", "EndpointError", "apost", "events", "status_of"]

openai = require("openai", extra="openai")

PATH = "/chat/completions"
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
RETRIED = frozenset({408, 409, 429})
END = object()
TOO_LATE = "no complete reply before the deadline"


class EndpointError(GuardrailError):
    """A plain call failed. It says in words why; what caused it is left out, since it may hold keys.

    Attributes:
        status_code: HTTP status of the last reply, if there was one that told of an error.
    """

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class DeadlineError(EndpointError, TimeoutError):
    """The time for a request is over, retries included."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """What a request came to.

    Attributes:
        content: Bytes of the reply, or None.
        error: Why there is none.
        attempts: HTTP requests that were sent.
    """

    content: bytes | None
    error: Exception | None
    attempts: int


async def apost(client: Any, body: Mapping[str, Any], *, deadline: float, retries: int) -> Attempted:
    """Send a request and wait for its reply, at most until ``deadline`` (on `time.monotonic`).

    A call that runs out of time, or is cancelled, closes its connection.
    """
    patience, wait = Patience(deadline - time.monotonic()), 0.0
    with counting() as sent:
        for attempt in range(1, retries + 2):
            try:
                async with patience.waiting(wait):
                    content = await client.post(PATH, cast_to=bytes, body=body)
                return Attempted(content, None, sent.count)
            except Exception as error:  # whatever fails is reported; the caller abstains
                again = _wait(error, attempt, retries, patience.left)
                if again is None:
                    return Attempted(None, error, sent.count)
                wait = again
    raise AssertionError("unreachable")


async def events(client: Any, body: Mapping[str, Any], *, seconds: float, retries: int) -> AsyncGenerator[Any, None]:
    """The events of a streamed reply, each as its JSON.

    Args:
        client: Where to.
        body: The request.
        seconds: How long the server is waited for, all in all: attempts, waits between them, and between the events.
            What the caller does with an event does not count.
        retries: Further attempts; there is none once an event has come.
    """
    patience, wait = Patience(seconds), 0.0
    for attempt in range(1, retries + 2):
        try:
            async with patience.waiting(wait):
                stream = await client.post(
                    PATH, cast_to=object, body=body, stream=True, stream_cls=openai.AsyncStream[object]
                )
        except Exception as error:
            again = _wait(error, attempt, retries, patience.left)
            if again is None:
                raise
            wait = again
            continue
        async with stream:
            came = False
            try:
                while True:
                    async with patience.waiting():
                        event = await anext(stream, END)
                    if event is END:
                        return
                    came = True
                    yield event
            except Exception as error:
                again = None if came else _wait(error, attempt, retries, patience.left)
                if again is None:
                    raise
                wait = again


class Patience:
    """Time to wait for a server.

    Args:
        seconds: How much there is.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    @asynccontextmanager
    async def waiting(self, first: float = 0.0) -> AsyncIterator[None]:
        """A wait, which is cut off when the time is over.

        Args:
            first: Seconds to do nothing before.

        Raises:
            DeadlineError: It was cut off.
        """
        began = time.monotonic()
        if self.left <= 0:
            raise DeadlineError(TOO_LATE)
        late = False
        try:
            async with asyncio.timeout(self.left):
                if first:
                    await asyncio.sleep(first)
                yield
        except TimeoutError:
            late = True
        finally:
            self.left -= time.monotonic() - began
        if late:
            raise DeadlineError(TOO_LATE)


def status_of(error: Exception | None) -> int | None:
    """HTTP status of an error reply."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _wait(error: Exception, attempt: int, retries: int, left: float) -> float | None:
    """Seconds until the next attempt, or None when there shall be none."""
    status = status_of(error)
    again = isinstance(error, openai.APIConnectionError) or status in RETRIED or (status or 0) >= 500
    if not again or attempt > retries:
        return None
    asked = _retry_after(getattr(getattr(error, "response", None), "headers", {}))
    wait = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.75, 1.0) if asked is None else asked
    return wait if wait < left else None


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
