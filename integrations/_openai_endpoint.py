"""An OpenAI-compatible endpoint: its address and credentials, how long it is waited for, and what must not be shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from guardrail.errors import UsageError

from ._openai_clients import Clients
from ._openai_transport import Attempted, apost, post

__all__ = ["Endpoint"]

NO_KEY = "no-key-needed"


@dataclass(frozen=True, slots=True, repr=False)
class Endpoint:
    """An endpoint as fields and environment name it at this moment. It holds secrets, so it has no representation.

    Attributes:
        key: The API key; None where an endpoint wants none.
        url: Root of the API; None for OpenAI's.
        headers: Further HTTP headers of every request.
        timeout: Seconds until a call is given up.
        retries: Further attempts after failures that may pass.
        clients: What talks to it.
    """

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

    def client(self) -> Any:
        """The SDK's client for threads."""
        return self.clients.sync(self._settings())

    async def aclient(self) -> Any:
        """The SDK's client of the running event loop."""
        return await self.clients.running(self._settings())

    def send(self, body: Mapping[str, Any], deadline: float | None = None) -> Attempted:
        """Send a request and wait for its reply.

        Args:
            body: The request.
            deadline: Until when (on `time.monotonic`); default: the timeout from now on.
        """
        deadline = time.monotonic() + self.timeout if deadline is None else deadline
        return post(self.client(), body, deadline=deadline, retries=self.retries)

    async def asend(self, body: Mapping[str, Any], deadline: float | None = None) -> Attempted:
        """`send` on the event loop; a cancelled call closes its connection."""
        deadline = time.monotonic() + self.timeout if deadline is None else deadline
        return await apost(await self.aclient(), body, deadline=deadline, retries=self.retries)

    def in_words(self, error: Exception | None) -> str:
        """An error in words, without key, headers and address: servers may echo what they were sent."""
        text = f"{type(error).__name__}: {error}"
        for secret in (self.key, self.url, *self.headers.values()):
            if secret and len(secret) >= 4:
                text = text.replace(secret, "***")
        return text

    def _settings(self) -> dict[str, Any]:
        return {
            "api_key": self.key or NO_KEY,
            "base_url": self.url,
            "max_retries": 0,  # see _openai_transport
            "timeout": self.timeout,
            "default_headers": self.headers,
        }
