"""Paths of the upstream that the gateway passes through without a verdict, because the configuration names them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from guardrail.errors import require

from .aliases import ServedAlias
from .observing import KEPT_BACK, CutError
from .protocol import ApiError

httpx = require("httpx", extra="serve")
_responses = require("starlette.responses", extra="serve")

__all__ = ["GENERATES", "PassThrough", "passed_name"]

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


class PassThrough:
    """Sends requests to the upstream of one alias as they come, with the upstream's key.

    Args:
        alias: The alias.
    """

    def __init__(self, alias: ServedAlias) -> None:
        self.alias = alias
        self._client = httpx.AsyncClient(timeout=alias.upstream.timeout, limits=httpx.Limits(max_connections=None))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def respond(
        self, request: Any, path: str, content: bytes, body: Mapping[str, Any] | None, credential: str | None
    ) -> Any:
        """The upstream's reply, byte for byte, with ``x-guardrail-guarded: false``.

        Args:
            request: The client's request.
            path: Path below the upstream's root.
            content: The request's body.
            body: The parsed body if its model is the alias, which the upstream knows by another name.
            credential: Key for the upstream; None for the key of the alias.
        """
        upstream = self.alias.upstream
        own = upstream.key.get_secret_value() if upstream.key is not None else os.environ.get("OPENAI_API_KEY", "")
        sent = {
            name: value
            for name, value in request.headers.items()
            if name not in MINE and not name.startswith(("x-guardrail", "x-api-key", "api-key", "proxy-", "transfer-"))
        }
        if used := credential or own:
            sent["authorization"] = f"Bearer {used}"
            sent |= {"x-api-key": used} if "anthropic-version" in sent else {}
        if body is not None:
            content = json.dumps({**body, "model": upstream.model}, ensure_ascii=False).encode()
        url = httpx.URL(f"{upstream.url.rstrip('/')}/{path}", query=request.scope["query_string"] or None)
        try:
            reply = await self._client.send(
                self._client.build_request(request.method, url, content=content or None, headers=sent), stream=True
            )
        except httpx.HTTPError as error:
            raise ApiError(502, "The upstream cannot be reached.", "upstream_failed", kind="server_error") from error

        async def parts() -> AsyncIterator[bytes]:
            try:
                async for part in reply.aiter_raw():
                    yield part
            except httpx.HTTPError as error:
                raise CutError from error
            finally:
                await reply.aclose()

        response = _responses.StreamingResponse(parts(), reply.status_code)
        lower = [(name.lower(), value) for name, value in reply.headers.raw]
        response.raw_headers = [(name, value) for name, value in lower if name not in KEPT_BACK]
        response.raw_headers.append((b"x-guardrail-guarded", b"false"))
        return response
