"""Signed session cookies, and tokens against forged requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LIFETIME", "Session", "Sessions"]

LIFETIME = 12 * 3600.0
"""Seconds after which a session ends."""


@dataclass(frozen=True, slots=True)
class Session:
    """The content of a session cookie.

    Attributes:
        nonce: Random; the token against forged requests is derived from it.
        since: Time of its beginning, in seconds since 1970.
        name: Account that signed in; empty before the sign-in.
        sha256: Hash of its token, so that withdrawing the token ends the session.
    """

    nonce: str
    since: float
    name: str = ""
    sha256: str = ""


class Sessions:
    """Makes and reads session cookies. A forged, altered or expired cookie reads as None.

    Args:
        secret: Key of the signature; sessions end when it changes. Default: a new random key.
        clock: Now, in seconds since 1970.
    """

    def __init__(self, secret: bytes | None = None, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._clock = clock

    def begin(self, name: str = "", sha256: str = "") -> Session:
        """A new session, independent of any earlier one."""
        return Session(secrets.token_hex(16), self._clock(), name, sha256)

    def write(self, session: Session) -> str:
        """The cookie's value."""
        content = json.dumps([session.nonce, session.since, session.name, session.sha256]).encode()
        body = base64.urlsafe_b64encode(content).decode()
        return f"{body}.{self._mac('session', body)}"

    def read(self, cookie: str | None) -> Session | None:
        """The session of a cookie that was signed here and has not expired."""
        body, _, mac = (cookie or "").rpartition(".")
        if not hmac.compare_digest(self._mac("session", body).encode(), mac.encode("utf-8", "surrogatepass")):
            return None
        session = Session(*json.loads(base64.urlsafe_b64decode(body)))
        return session if 0 <= self._clock() - session.since < LIFETIME else None

    def form_token(self, session: Session) -> str:
        """The token in every form of this session; another site cannot know it."""
        return self._mac("form", session.nonce)

    def genuine(self, session: Session, token: str) -> bool:
        """Whether a form was sent by one of our pages."""
        return hmac.compare_digest(self.form_token(session).encode(), token.encode("utf-8", "surrogatepass"))

    def _mac(self, purpose: str, text: str) -> str:
        message = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
