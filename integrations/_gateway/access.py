"""Who asks: the keys of clients, what a key may use, and the key that goes upstream."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from .config import Config, Key, Upstream
from .errors import ApiError

__all__ = ["authenticate", "bearer", "credential_of", "may_use"]

LOCAL = ("127.0.0.1", "localhost", "::1")


def authenticate(config: Config, headers: Mapping[str, str]) -> Key | None:
    """The key of a request; None if the configuration has no keys, so that only this machine can ask.

    Raises:
        ApiError: The key is missing or unknown; without keys, the host name is not one of this machine.
    """
    if not config.keys:
        if _hostname(headers) not in (*LOCAL, config.host, *config.allowed_hosts):
            # A web page may point its host name at this machine (DNS rebinding).
            raise ApiError(403, "This host name is not allowed; use 127.0.0.1.", "host_not_allowed")
        return None
    key = config.key_of(headers.get("x-guardrail-key") or bearer(headers) or headers.get("api-key"))
    if key is None:
        raise _unauthorized("The API key is missing or unknown.")
    return key


def may_use(key: Key | None, name: str) -> bool:
    """Whether a key may use a model."""
    return key is None or key.models is None or name in key.models


def credential_of(upstream: Upstream, key: Key | None, headers: Mapping[str, str]) -> str | None:
    """The key that is sent upstream for a request; None for the one in the configuration.

    Raises:
        ApiError: The upstream is called with the client's own key, and the request has none.
    """
    if not upstream.forward_key:
        return None if key is None or key.upstream_key is None else key.upstream_key.get_secret_value()
    own = bearer(headers)
    if own is None or (key is not None and not headers.get("x-guardrail-key")):
        also = ", and the gateway's key in the header x-guardrail-key" if key is not None else ""
        raise _unauthorized(f"This model is called with your own key: send it as Authorization: Bearer KEY{also}.")
    return own


def bearer(headers: Mapping[str, str]) -> str | None:
    """The token of a request, as OpenAI's or as Anthropic's clients send it."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
    return token if token and token.isascii() else None


def _hostname(headers: Mapping[str, str]) -> str | None:
    """The host in the client's Host header, or None if it is malformed; Starlette would put this machine's there."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return None


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
