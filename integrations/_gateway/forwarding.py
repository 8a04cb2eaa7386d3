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
LARGEST = 4 * 2**20
"""Bytes of an error."""
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
    """Ends the client's reply, because the upstream's reply broke off."""


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
        """The upstream's reply, byte for byte; in an error, which may quote it, our key is masked.

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
            masked = reply.status >= 400 and secret
            if masked or 0 <= int(reply.headers.get("content-length", -1)) <= SHORT:
                body = await self._whole(reply, listener)
                response = _responses.Response(body.replace(secret.encode(), b"***") if masked else body, reply.status)
            else:
                response = _responses.StreamingResponse(self._parts(reply, listener), reply.status)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("guardrail serve: a reply of %s failed (%s)", self._name, type(error).__name__)
            raise ApiError(
                502, "The model behind the gateway cannot be reached.", "upstream_failed", kind="server_error"
            ) from error
        lower = [(name.lower(), value) for name, value in reply.raw_headers]  # a name may come more than once
        left_out = KEPT_BACK | ({b"content-length"} if masked else frozenset())
        response.raw_headers = [(name, value) for name, value in lower if name not in left_out]
        if masked:
            response.raw_headers.append((b"content-length", str(len(response.body)).encode()))
        return response

    async def pass_through(
        self, request: Any, path: str, content: bytes, body: Mapping[str, Any] | None, credential: str | None
    ) -> Any:
        """The upstream's reply to any request, byte for byte, with ``x-guardrail-guarded: false``.

        Args:
            request: The client's request.
            path: Path below the upstream's root.
            content: The request's body.
            body: The parsed body if its model is the alias, which the upstream knows by another name.
            credential: Key for the upstream; None for the key of the alias.
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

    async def _whole(self, reply: Any, listener: Listener) -> bytes:
        content = bytearray()
        try:
            async for part in reply.content.iter_any():
                content += part
                if len(content) > LARGEST:  # no error is that long
                    raise aiohttp.ClientPayloadError
        except (aiohttp.ClientError, TimeoutError):
            await listener.end(whole=False)
            raise
        finally:
            reply.release()
        body = bytes(content)
        listener.part(body)
        await listener.end(whole=True)
        return body

    async def _parts(self, reply: Any, listener: Listener) -> AsyncIterator[bytes]:
        whole = False
        try:
            async for part in reply.content.iter_any():
                listener.part(part)
                yield part
            whole = True
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("guardrail serve: a reply of %s broke off (%s)", self._name, type(error).__name__)
            raise CutError from error
        finally:
            reply.release() if whole else reply.close()
            await listener.end(whole=whole)
