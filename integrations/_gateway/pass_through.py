"""Paths of the upstream that the gateway passes through without a verdict, because the configuration names them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .aliases import ServedAlias

__all__ = ["GENERATES", "pass_through", "passed_name"]

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


async def pass_through(
    alias: ServedAlias, request: Any, path: str, content: bytes, body: Mapping[str, Any] | None, credential: str | None
) -> Any:
    """The upstream's reply, byte for byte, with ``x-guardrail-guarded: false``.

    Args:
        alias: The alias, whose upstream answers.
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
        content = json.dumps({**body, "model": alias.upstream.model}, ensure_ascii=False).encode()
    query = request.scope["query_string"].decode("latin-1")
    whole = f"{path}?{query}" if query else path
    response = await alias.forwarding.respond(request.method, whole, content, sent, credential)
    response.raw_headers.append((b"x-guardrail-guarded", b"false"))
    return response
