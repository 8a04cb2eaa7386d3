"""An OpenAI-compatible endpoint: its address and credentials, and requests with retries and a deadline that holds.

Requests go over aiohttp. One takes .16 ms of the processor; of OpenAI's SDK .47 (over aiohttp) to 1.2 (over httpx), and
a guarded question makes up to n + 1. The SDK's retries also sleep without regard to a deadline (up to 120 s for a
Retry-After) and hide how many requests were made. The rules are the SDK's: connection errors, 408, 409, 429 and 5xx are
tried again after Retry-After or an exponential wait with jitter, but never past the deadline. Only batches use the SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from langchain_core.outputs import ChatGenerationChunk

from guardrail.errors import GuardrailError, UsageError, require
from guardrail.foreign_errors import IN_FULL, log, reply_facts, server_words

from .clients import EndpointState, LargeReplyError, proxy_of, session_of_loop
from .streams import chunks_of, data_of

aiohttp = require("aiohttp", extra="openai")
multidict = require("multidict", extra="openai")

T = TypeVar("T")
OPENAI = "https://api.openai.com/v1"
PATH = "/chat/completions"
NO_KEY = "no-key-needed"
OF_OPENAI = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
"""Headers from variables of the environment."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
RETRIED = frozenset({408, 409, 429})
END = object()
TOO_LATE = "no complete reply within the time-out of {timeout:g} s"
LONGEST_ERROR = 400
"""Characters of an error that are shown."""


class EndpointError(GuardrailError):
    """A plain call failed. The message says why; the original error is left out, since it may hold keys.

    Attributes:
        status_code: HTTP status of the last reply, if it was an error reply.
    """

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class ReplyError(Exception):
    """The server's reply is an error, in a stream that had begun without a status. Its text may hold anything."""

    def __init__(self, status_code: int | None, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP status {status_code}: {body}")
        self.status_code, self.body, self.headers = status_code, body, headers


class DeadlineError(EndpointError, TimeoutError):
    """The time for a request is over, retries included."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """The result of a request."""

    content: Any
    """Bytes of the reply (of a stream: its events), or None."""
    error: Exception | None
    """Cause of a missing reply."""
    attempts: int
    """HTTP requests that were sent."""


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """An endpoint by a model's fields and the environment. It holds secrets, so it has no representation."""

    model: str
    key: str | None
    url: str | None
    """Root of the API; None for OpenAI's."""
    headers: Mapping[str, str]
    timeout: float
    retries: int
    largest: int
    """Bytes of a reply; a longer reply is a failure without a retry."""
    state: EndpointState

    def check(self) -> None:
        """Refuse an endpoint that cannot be used, or that has a password in its address.

        Raises:
            UsageError: There is neither a key nor an address of the user's own, or the address holds credentials.
        """
        if self.key is None and self.url is None:
            raise UsageError(
                "no API key: pass api_key=..., set OPENAI_API_KEY, or name an endpoint of your own with base_url=..."
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise UsageError(f"base_url must begin with http:// or https://, got {self.url[:100]!r}.")
        if "@" in urlsplit(self.url or "").netloc:
            raise UsageError(
                "the endpoint's address holds a user name or password, which HTTP libraries write to their logs. Pass "
                "the address alone, and credentials as api_key=... or default_headers={'Authorization': ...}."
            )

    async def asend(self, body: Mapping[str, Any], deadline: float | None = None) -> Attempted:
        """Send a request and wait for its reply. Failures are part of the result; nothing is raised.

        A late or cancelled call closes its connection.

        Args:
            body: The request.
            deadline: End of the wait on `time.monotonic`; default: the timeout from now on.
        """
        left = self.timeout if deadline is None else deadline - time.monotonic()
        budget, began = TimeBudget(left, self.timeout), time.time()

        async def whole() -> bytes:
            async with self._reply(body) as reply:
                content = b"".join([part async for part in _parts(reply, self.largest)])
            _refuse_error(content, reply.headers)
            return content

        attempted = await self._attempted(whole, budget)
        self.state.note(began, attempted.error)
        return attempted

    async def _attempted(self, attempt: Callable[[], Awaitable[Any]], budget: TimeBudget) -> Attempted:
        """The result of the first attempt that succeeds, or the last error."""
        sent, wait = 0, 0.0
        for number in range(1, self.retries + 2):
            try:
                async with budget.spend(wait):
                    sent += 1
                    return Attempted(await attempt(), None, sent)
            except Exception as error:  # every failure is reported; the caller abstains
                sent -= isinstance(error, aiohttp.ClientConnectorError)  # nobody was there
                again = _wait(error, number, self.retries, budget.left)
                if again is None:
                    return Attempted(None, error, sent)
                wait = again
        raise AssertionError("unreachable")

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[ChatGenerationChunk, None]:
        """Send a request for a stream, and yield its chunks as they arrive.

        Raises:
            EndpointError: The request failed, or its reply is not a stream of a chat completion, or is incomplete.
        """
        failed = None
        try:
            events = self._events(body)
            async with aclosing(events), aclosing(chunks_of(events)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Exception as error:
            failed = self.failure(error)
        if failed is not None:  # outside the handler: otherwise its context would be the error that may hold keys
            raise failed

    def failure(self, error: Exception | None) -> EndpointError:
        """An error that is safe to show: it describes the original error and does not refer to it."""
        if isinstance(error, DeadlineError):
            return DeadlineError(str(error))
        return EndpointError(f"model {self.model!r}: {self.describe_error(error)}", status_of(error))

    def describe_error(self, error: Exception | None) -> str:
        """Describe an error without key, headers, address and the text of a reply: servers echo requests and answers.

        Of a reply it names status, code and type; its text goes to the log at level DEBUG, without the secrets. If
        there was no connection, it names the host, without the rest of the address.
        """
        text = type(error).__name__
        with suppress(Exception):  # some errors have no text, e.g. of thousands of nested lists
            text = f"{text}: {error}"
        for secret in self._secrets():
            text = text.replace(secret, "***")
        facts = [] if error is None else reply_facts(error)
        if facts and not isinstance(error, GuardrailError):
            log.debug("guardrail: model %r: %s", self.model, text)
            return f"{type(error).__name__} ({'; '.join([*facts, IN_FULL])})"
        text = text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + "..."
        if isinstance(error, aiohttp.ClientConnectionError):
            parts = urlsplit(self.url or OPENAI)
            where = f"{parts.scheme}://{parts.netloc}"
            text = f"{text.rstrip('.')}. No connection to {where}: check base_url, and that the server runs there."
        return text

    def said(self, error: Exception | None) -> str:
        """The words of the server in an error, without the secrets; empty if no server replied."""
        return server_words(error, self._secrets()) if error is not None and reply_facts(error) else ""

    def _secrets(self) -> list[str]:
        """Texts that must not be shown, also in quoted form; the longest first, since it may contain a shorter one."""
        whole = [self.key, self.url, *self.headers.values()]
        words = [word for value in self.headers.values() for word in value.split() if len(word) >= 8]
        plain = [text for text in (*whole, *words) if text and len(text) >= 4]
        forms = {form for text in plain for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1])}
        return sorted(forms, key=len, reverse=True)

    @asynccontextmanager
    async def _reply(self, body: Mapping[str, Any]) -> AsyncIterator[Any]:
        """The reply to one request; its body is not read yet.

        Raises:
            ReplyError: It is an error.
        """
        url = (self.url or OPENAI).rstrip("/") + PATH
        headers = multidict.CIMultiDict({"Authorization": f"Bearer {self.key or NO_KEY}"})
        headers.update({name: os.environ[variable] for name, variable in OF_OPENAI.items() if variable in os.environ})
        headers.update({"Content-Type": "application/json", "Accept": "application/json", **self.headers})
        session = await session_of_loop()
        async with session.post(
            url,
            data=json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(),
            headers=headers,
            proxy=proxy_of(url),
            # A redirect would send questions to an address that nobody configured.
            allow_redirects=False,
        ) as reply:
            if not 200 <= reply.status < 300:
                text = b"".join([part async for part in _parts(reply, self.largest)]).decode(errors="replace")
                error: Any = text
                with suppress(ValueError, RecursionError):
                    error = json.loads(text)
                raise ReplyError(reply.status, error, reply.headers)
            yield reply

    async def _events(self, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """The events of a streamed reply, each as its JSON; a request is sent again until the first one has arrived.

        The timeout limits the wait for the server in total: attempts, waits between them, and between the events. The
        time that the caller takes for an event does not count.
        """
        budget = TimeBudget(self.timeout, self.timeout)
        async with AsyncExitStack() as stack:

            async def begun() -> tuple[Any, AsyncGenerator[bytes, None], Any]:
                await stack.aclose()  # the reply of an attempt before
                reply = await stack.enter_async_context(self._reply(body))
                events = await stack.enter_async_context(aclosing(data_of(_parts(reply, self.largest))))
                return reply, events, await anext(events, END)

            first = await self._attempted(begun, budget)
            if first.error is not None:
                raise first.error
            reply, events, data = first.content
            while data not in (END, b"[DONE]"):
                event = json.loads(data)
                if isinstance(event, dict) and event.get("error"):
                    raise ReplyError(None, event["error"], reply.headers)
                yield event
                async with budget.spend():
                    data = await anext(events, END)


# -- one reply --------------------------------------------------------------------------------------------------------


async def _parts(reply: Any, most: int) -> AsyncGenerator[bytes, None]:
    """The bytes of a reply as they arrive, counted unpacked, since a short reply may unpack to a huge one.

    Raises:
        LargeReplyError: There are more than ``most``.
    """
    size = 0
    async for part in reply.content.iter_any():
        size += len(part)
        if size > most:
            raise LargeReplyError(f"the reply is longer than max_reply={most} bytes")
        yield part


class TimeBudget:
    """Seconds that are left to wait for a server, of a whole time-out."""

    def __init__(self, left: float, timeout: float) -> None:
        self.left, self._timeout = left, timeout

    @asynccontextmanager
    async def spend(self, pause: float = 0.0) -> AsyncIterator[None]:
        """Run the body within the time that is left, after a pause in seconds, and subtract the duration of both.

        Raises:
            DeadlineError: The time is over.
        """
        began = time.monotonic()
        if self.left <= 0:
            raise DeadlineError(TOO_LATE.format(timeout=self._timeout))
        try:
            async with asyncio.timeout(self.left):
                if pause:
                    await asyncio.sleep(pause)
                yield
        except TimeoutError:
            raise DeadlineError(TOO_LATE.format(timeout=self._timeout)) from None
        finally:
            self.left -= time.monotonic() - began


def status_of(error: Exception | None) -> int | None:
    """HTTP status of an error reply."""
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def is_of_route(error: Exception | None) -> bool:
    """Whether a refusal is about log-probabilities: behind a router, the next provider may give them."""
    return status_of(error) in (400, 422) and "logprob" in server_words(error).lower()


def _refuse_error(content: bytes, headers: Mapping[str, str]) -> None:
    """Refuse a reply of status 200 that reports an error: the code in it is the status, 502 if it names none.

    Raises:
        ReplyError: It reports an error, and has no answer.
    """
    if b'"error"' not in content:
        return
    try:
        reply = json.loads(content)
    except (ValueError, RecursionError):
        return
    if not isinstance(reply, dict) or not reply.get("error") or reply.get("choices"):
        return
    code = reply["error"].get("code") if isinstance(reply["error"], dict) else None
    raise ReplyError(code if isinstance(code, int) and 400 <= code < 600 else 502, reply, headers)


def _wait(error: Exception, attempt: int, retries: int, left: float) -> float | None:
    """Seconds until the next attempt, or None to give up."""
    status = status_of(error)
    again = isinstance(error, aiohttp.ClientError) or status in RETRIED or (status or 0) >= 500 or is_of_route(error)
    if not again or attempt > retries:
        return None
    pause = _retry_after(getattr(error, "headers", None) or {})
    wait = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.75, 1.0) if pause is None else pause
    return wait if wait < left else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, from a number (in OpenAI's header of milliseconds) or a date."""
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
