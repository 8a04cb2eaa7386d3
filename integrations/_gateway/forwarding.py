"""Requests to an upstream whose replies go on byte for byte: one pool of connections for each alias."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from guardrail.errors import require

from .._openai.clients import Clients, proxy_of
from .config import Upstream
from .protocol import ApiError

aiohttp = require("aiohttp", extra="serve")
_url = require("yarl", extra="serve").URL
_responses = require("starlette.responses", extra="serve")

__all__ = ["CutError", "Forwarding", "Listener", "passed_name"]

KEPT_BACK = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
        b"transfer-encoding", b"upgrade", b"server", b"date", b"x-request-id",
    }
)  # fmt: skip
"""Headers of the upstream that concern its own connection, or that the gateway sends itself."""
SECRET = 16
"""Bytes from which a key is masked in every reply: a shorter one is a placeholder such as EMPTY, a word of answers."""
SHORT = 64 * 2**10
"""Bytes of a reply that is read whole before it is sent on."""
GENERATES = frozenset(
    {
        "assistants", "audio/transcriptions", "audio/translations", "batches", "complete", "completions",
        "conversations", "edits", "evals", "generate", "infill", "messages/batches", "realtime", "threads",
    }
)  # fmt: skip
"""Paths whose replies hold text of a model: only their own names pass them, not that of a folder above."""
MINE = frozenset({"authorization", "connection", "content-length", "cookie", "host", "keep-alive", "te", "upgrade"})
"""Headers of a client that concern its own connection, or its key for the gateway."""
SEGMENT = re.compile(r"[\w.:@=,+~-]+", re.ASCII)
log = logging.getLogger("guardrail")


def passed_name(path: str, names: tuple[str, ...]) -> str | None:
    """The name in a configuration that passes a path, such as "files" for "files/f-1/content"; None if none does."""
    parts = path.split("/")
    if not all(SEGMENT.fullmatch(part) and part.strip(".") for part in parts):  # ".." would leave the folder
        return None
    for length in range(len(parts), 0, -1):
        start = "/".join(parts[:length])
        if start in names or start in GENERATES:
            return start if start in names else None
    return None


class CutError(Exception):
    """Ends the client's reply, because there is no reply of the upstream, or it broke off."""


class Listener:
    """Sees one reply pass; this one does nothing with it."""

    def begin(self, status: int) -> None:
        """The reply begins."""

    def part(self, content: bytes) -> None:
        """The next bytes of its body."""

    async def end(self, *, whole: bool) -> None:
        """The reply is over, or broke off."""


class Forwarding:
    """Requests to the upstream of one alias.

    Args:
        name: The alias, for the log.
        upstream: Its upstream.
        clients: The connections, which guarded questions share.
    """

    def __init__(self, name: str, upstream: Upstream, clients: Clients) -> None:
        self._name, self._upstream, self._clients = name, upstream, clients

    async def respond(
        self,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        credential: str | None,
        listener: Listener | None = None,
    ) -> Any:
        """The upstream's reply, byte for byte; our key is masked, should the upstream quote it.

        Args:
            method: Method of the request.
            path: Path below the root of the upstream, with its query.
            content: The request's body.
            headers: The client's headers that are sent on.
            credential: Key for the upstream; None for the key of the alias.
            listener: Sees the reply.

        Raises:
            ApiError: There is no reply, or it broke off before anything of it was sent on.
        """
        own, listener = self._upstream.key, listener or Listener()
        secret = credential or (os.environ.get("OPENAI_API_KEY", "") if own is None else own.get_secret_value())
        try:
            reply = await self._sent(method, path, content, headers, secret)
            listener.begin(reply.status)
            ours = not self._upstream.forward_key and len(secret) >= SECRET
            mask = _Mask(secret.encode() if ours or reply.status >= 400 else b"")
            parts = self._parts(reply, listener, mask)
            if 0 <= int(reply.headers.get("content-length", -1)) <= SHORT:
                response = _responses.Response(b"".join([part async for part in parts]), reply.status)
            else:
                response = _responses.StreamingResponse(parts, reply.status)
        except CutError as error:
            raise ApiError(
                502, "The model behind the gateway cannot be reached.", "upstream_failed", kind="server_error"
            ) from error
        lower = [(name.lower(), value) for name, value in reply.raw_headers]  # a name may come more than once
        response.raw_headers = [(name, mask.masked(value)) for name, value in lower if name not in KEPT_BACK]
        return response

    async def pass_through(
        self, request: Any, path: str, content: bytes, body: Mapping[str, Any] | None, credential: str | None
    ) -> Any:
        """`respond` to any request of a client, with ``x-guardrail-guarded: false``.

        ``body`` is the parsed content if its model is the alias, which the upstream knows by another name.
        """
        sent = {
            name: value
            for name, value in request.headers.items()
            if name not in MINE and not name.startswith(("x-guardrail", "x-api-key", "api-key", "proxy-", "transfer-"))
        }
        if body is not None:
            content = json.dumps({**body, "model": self._upstream.model}, ensure_ascii=False).encode()
        query = request.scope["query_string"].decode("latin-1")
        whole = f"{path}?{query}" if query else path
        response = await self.respond(request.method, whole, content, sent, credential)
        response.raw_headers.append((b"x-guardrail-guarded", b"false"))
        return response

    async def _sent(self, method: str, path: str, content: bytes, headers: Mapping[str, str], secret: str) -> Any:
        """The upstream's reply to a request; its body is not read yet."""
        sent = {}
        for name, value in headers.items():
            try:
                sent[name] = value.encode("latin-1").decode()
            except UnicodeDecodeError:
                raise ApiError(400, f"The header {name[:100]} is not UTF-8.", "invalid_header") from None
        sent["accept-encoding"] = "identity"  # bytes pass unchanged, and whoever reads a copy must understand it
        if secret:
            sent["authorization"] = f"Bearer {secret}"
            sent |= {"x-api-key": secret} if "anthropic-version" in sent else {}
        timeout, url = self._upstream.timeout, f"{self._upstream.url.rstrip('/')}/{path}"
        session = await self._clients.session()
        try:
            return await session.request(
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
            raise self._cut("failed", error) from error

    async def _parts(self, reply: Any, listener: Listener, mask: _Mask) -> AsyncIterator[bytes]:
        whole = False
        try:
            async for part in reply.content.iter_any():
                if shown := mask.add(part):
                    listener.part(shown)
                    yield shown
            if mask.held:
                listener.part(mask.held)
                yield mask.held
            whole = True
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._cut("broke off", error) from error
        finally:
            reply.release() if whole else reply.close()
            await listener.end(whole=whole)

    def _cut(self, how: str, error: Exception) -> CutError:
        log.warning("guardrail serve: a reply of %s %s (%s)", self._name, how, type(error).__name__)
        return CutError()


class _Mask:
    """Hides a key in a body that comes in parts. The mask is as long as the key, so that Content-Length stays right.

    Args:
        key: The key; empty to hide nothing.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._stars = key, b"*" * len(key)
        self.held = b""
        """The end of the body so far if the key may begin there."""

    def masked(self, content: bytes) -> bytes:
        """Some bytes with the key masked."""
        return content.replace(self._key, self._stars) if self._key else content

    def add(self, part: bytes) -> bytes:
        """The bytes that may go on after the next part."""
        if not self._key:
            return part
        content, first = self.masked(self.held + part), self._key[:1]
        start = content.find(first, max(0, len(content) - len(self._key) + 1))
        while start >= 0 and not self._key.startswith(content[start:]):
            start = content.find(first, start + 1)
        cut = start if start >= 0 else len(content)
        self.held = content[cut:]
        return content[:cut]
