"""An OpenAI-compatible endpoint: its address and credentials, how long it is waited for, and what must not be shown."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from langchain_core.outputs import ChatGenerationChunk

from guardrail.errors import UsageError

from .clients import Clients
from .replies import chunks_of
from .transport import Attempted, DeadlineError, EndpointError, apost, events, status_of

__all__ = ["Endpoint"]

NO_KEY = "no-key-needed"
LONGEST = 400
"""Characters of an error that are shown."""


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """An endpoint as fields and environment name it at this moment. It holds secrets, so it has no representation.

    Attributes:
        model: Name of the model there.
        key: The API key; None where an endpoint wants none.
        url: Root of the API; None for OpenAI's.
        headers: Further HTTP headers of every request.
        timeout: Seconds until a call is given up.
        retries: Further attempts after failures that may pass.
        clients: What talks to it.
    """

    model: str
    key: str | None
    url: str | None
    headers: Mapping[str, str]
    timeout: float
    retries: int
    clients: Clients

    def check(self) -> None:
        """Refuse what could not be used, or not in secret.

        Raises:
            UsageError: Neither a key nor an endpoint of one's own is known, or its address holds credentials.
        """
        if self.key is None and self.url is None:
            raise UsageError(
                "no API key: pass api_key=..., set OPENAI_API_KEY, or name an endpoint of your own with base_url=..."
            )
        if "@" in urlsplit(self.url or "").netloc:
            raise UsageError(
                "the endpoint's address holds a user name or password, which HTTP libraries write to their logs. Pass "
                "the address alone, and credentials as api_key=... or default_headers={'Authorization': ...}."
            )

    async def asend(self, body: Mapping[str, Any], deadline: float | None = None) -> Attempted:
        """Send a request and wait for its reply; whatever fails is in what it came to.

        Args:
            body: The request.
            deadline: Until when (on `time.monotonic`); default: the timeout from now on.
        """
        deadline = time.monotonic() + self.timeout if deadline is None else deadline
        try:
            client = await self._client()
        except Exception as error:  # settings that the SDK cannot use
            return Attempted(None, error, 0)
        return await apost(client, body, deadline=deadline, retries=self.retries)

    async def chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[ChatGenerationChunk, None]:
        """Send a request for a stream, and give its chunks as they come.

        Raises:
            EndpointError: It failed, was no stream of a chat completion, or broke off.
        """
        failed = None
        try:
            stream = events(await self._client(), body, seconds=self.timeout, retries=self.retries)
            async with aclosing(stream), aclosing(chunks_of(stream)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Exception as error:
            failed = self.failure(error)
        if failed is not None:  # not where it is caught: it would know the error that may hold keys
            raise failed

    def failure(self, error: Exception | None) -> EndpointError:
        """An error that may be shown: what went wrong, in words, and nothing of the error that told so."""
        if isinstance(error, DeadlineError):
            return DeadlineError(str(error))
        return EndpointError(f"model {self.model!r}: {self.in_words(error)}", status_of(error))

    def in_words(self, error: Exception | None) -> str:
        """An error in words, without key, headers and address: servers may echo what they were sent."""
        text = type(error).__name__
        with suppress(Exception):  # an error may hold what cannot be shown, e.g. thousands of nested lists
            text = f"{text}: {error}"
        for secret in sorted(self._secrets(), key=len, reverse=True):  # a part of a longer one would break that up
            text = text.replace(secret, "***")
        return text if len(text) <= LONGEST else text[:LONGEST] + "..."

    def _secrets(self) -> set[str]:
        """What must not be shown, also as it looks in a quotation."""
        whole = [self.key, self.url, *self.headers.values()]
        words = [word for value in self.headers.values() for word in value.split() if len(word) >= 8]
        plain = [text for text in (*whole, *words) if text and len(text) >= 4]
        return {form for text in plain for form in (text, repr(text)[1:-1], json.dumps(text)[1:-1])}

    async def _client(self) -> Any:
        """The SDK's client of the running event loop."""
        return await self.clients.running(key=self.key or NO_KEY, url=self.url, headers=self.headers)
