"""Requests to an upstream whose replies go on byte for byte: one pool of connections for each alias."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from guardrail.errors import require

from .._openai.clients import EndpointState, proxy_of, session_of_loop
from .config import Upstream
from .errors import DOWN, ApiError, upstream_down
from .health import Health

aiohttp = require("aiohttp", extra="serve")
_url = require("yarl", extra="serve").URL
_responses = require("starlette.responses", extra="serve")

KEPT_BACK = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"server", b"date", b"x-request-id",
    }
)  # fmt: skip
"""Headers of the upstream that concern its own connection, or that the gateway sends itself."""
SHORT = 64 * 2**10
"""Bytes of a reply that is read whole before it is sent on."""
PASSED = (
    "accept", "anthropic-beta", "anthropic-version", "content-type", "idempotency-key", "openai-beta",
    "openai-organization", "openai-project", "range", "traceparent", "tracestate",
)  # fmt: skip
"""Headers of a client that are sent upstream."""
log = logging.getLogger("guardrail")


class CutError(Exception):
    """Ends the client's reply, because the upstream did not reply, or broke off."""


class Mask:
    """Hides keys in the headers and the body of a reply, which comes in parts.

    The mask is as long as the key, so that Content-Length stays right.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self.keys = list(filter(None, keys))
        self._held = b""

    def masked(self, content: bytes) -> bytes:
        """Some bytes with the keys masked."""
        for key in self.keys:
            content = content.replace(key, b"*" * len(key))
        return content

    def add(self, part: bytes, *, last: bool) -> bytes:
        """The bytes that may go on after the next part: all but the end in which a key may begin."""
        content = self.masked(self._held + part)
        longest = max(map(len, self.keys), default=0)
        starts = range(len(content) if last else max(0, len(content) - longest + 1), len(content))
        begun = (start for start in starts if any(key.startswith(content[start:]) for key in self.keys))
        cut = next(begun, len(content))
        self._held = content[cut:]
        return content[:cut]


class Forwarding:
    """Requests to the upstream of one alias, over the connections that guarded questions share."""

    def __init__(self, name: str, upstream: Upstream, endpoint: EndpointState, health: Health) -> None:
        self._name, self._upstream, self._endpoint, self._health = name, upstream, endpoint, health

    async def respond(
        self,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        credential: str | None,
        watched: Callable[[int, AsyncIterator[bytes]], AsyncIterator[bytes]] = lambda _, parts: parts,
    ) -> Any:
        """The upstream's reply, byte for byte; an `ApiError` if nothing of one can be sent on.

        The path, with its query, is below the root of the upstream. Of a client's headers `PASSED` are sent on. Without
        a credential, the key of the alias is sent. ``watched`` passes the parts of the reply with its status on.
        """
        try:
            reply = await self._sent(method, path, content, headers, credential or self._upstream.secret)
            parts = watched(reply.status, self._parts(reply))
            if 0 <= int(reply.headers.get("content-length", -1)) <= SHORT:
                response = _responses.Response(b"".join([part async for part in parts]), reply.status)
            else:
                response = _responses.StreamingResponse(parts, reply.status)
        except CutError as error:
            since = self._endpoint.down_since
            if since is not None:
                raise upstream_down(since) from error
            raise ApiError(502, "The model behind the gateway cannot be reached.", "upstream_failed") from error
        lower = [(name.lower(), value) for name, value in reply.raw_headers]  # a name may come more than once
        response.raw_headers = [(name, value) for name, value in lower if name not in KEPT_BACK]
        return response

    async def pass_through(self, request: Any, path: str, content: bytes, credential: str | None) -> Any:
        """`respond` to any request of a client, with ``x-guardrail-guarded: false``."""
        query = request.scope["query_string"].decode("latin-1")
        path = f"{path}?{query}" if query else path
        response = await self.respond(request.method, path, content, request.headers, credential)
        response.raw_headers.append((b"x-guardrail-guarded", b"false"))
        return response

    def renamed(self, body: Mapping[str, Any]) -> bytes:
        """A request's body with the upstream's name of the model."""
        return json.dumps({**body, "model": self._upstream.model}, ensure_ascii=False).encode()

    async def _sent(self, method: str, path: str, content: bytes, headers: Mapping[str, str], secret: str) -> Any:
        """The upstream's reply to a request; its body is not read yet."""
        sent: dict[str, str] = {}
        for name in PASSED:
            try:
                sent |= {name: headers[name].encode("latin-1").decode()} if name in headers else {}
            except UnicodeDecodeError:
                raise ApiError(400, f"The header {name[:100]} is not UTF-8.", "invalid_header") from None
        sent["accept-encoding"] = "identity"  # bytes pass unchanged, and whoever reads a copy must understand it
        if secret:
            sent["authorization"] = f"Bearer {secret}"
            sent |= {"x-api-key": secret} if "anthropic-version" in sent else {}
        timeout = self._upstream.timeout
        url = f"{self._upstream.url.rstrip('/')}/{path}"
        session = await session_of_loop()
        began = time.time()
        try:
            reply = await session.request(
                method,
                _url(url, encoded=True),
                data=content or None,
                headers=sent,
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                proxy=proxy_of(self._upstream.url),
                # A redirect would send questions to an address that nobody configured.
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, connect=timeout, sock_read=timeout),
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            self._endpoint.note(began, error)
            since = self._endpoint.down_since
            text = "the upstream cannot be reached" if since is None else f"the upstream is down (since {since})"
            at = f": {type(error).__name__} at {self._upstream.url}; check the url, and that the server runs there"
            self._health.warn(self._name, DOWN, text, at=at, breaks=True)
            raise CutError from error
        self._endpoint.note(began, None)
        self._health.recover(self._name, DOWN)
        hint = self._upstream.hint
        if reply.status == 404 and hint:
            self._health.warn(self._name, "not_found", f"the upstream's reply is 404 (not found){hint}")
        return reply

    async def _parts(self, reply: Any) -> AsyncIterator[bytes]:
        whole = False
        try:
            async for part in reply.content.iter_any():
                yield part
            whole = True
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("guardrail serve: a reply of %s broke off (%s)", self._name, type(error).__name__)
            raise CutError from error
        finally:
            if whole:
                reply.release()
            else:
                reply.close()
