"""Signed session cookies, tokens against forged requests, and a limit on wrong tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LIFETIME", "SLOWED", "RateLimit", "Session", "Sessions"]

LIFETIME = 12 * 3600.0
"""Seconds after which a session ends."""
SLOWED = "guardrail.slowed"
"""In the scope of a request with a wrong token while its answer is delayed: the server may close its connection."""
_WITH_PORT = re.compile(r"\[(.*)\](?::\d+)?|([\d.]+):\d+")


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


class RateLimit:
    """A limit on wrong tokens per address and time window; remembers the latest thousand addresses.

    A right token is never refused: people who share an address with somebody who guesses still get in. Above the limit
    each attempt takes longer, right or wrong.

    Args:
        failures: Wrong tokens in a window after which the limit is reached.
        window: Length of the window, in seconds.
        pause: Seconds that an attempt above the limit takes.
        clock: Now, in seconds, from any starting point.
    """

    def __init__(
        self,
        failures: int = 10,
        window: float = 300.0,
        pause: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pause = pause
        self._most, self._window, self._clock = failures, window, clock
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def attempt(self, host: str | None) -> float:
        """Count an attempt, before its token is checked, so that attempts made at the same time are all counted.

        Returns:
            0, or above the limit the seconds until the earliest of the counted attempts is forgotten.
        """
        # One attempt more than the limit shows that the limit is exceeded; a guesser must not fill the memory.
        times = self._seen.setdefault(_address(host), deque(maxlen=self._most + 1))
        self._seen.move_to_end(_address(host))
        while len(self._seen) > 1000:
            self._seen.popitem(last=False)
        now = self._clock()
        while times and times[0] <= now - self._window:
            times.popleft()
        times.append(now)
        return times[0] + self._window - now if len(times) > self._most else 0.0

    def succeeded(self, host: str | None) -> None:
        """Take the latest attempt back, because its token was right."""
        times = self._seen.get(_address(host))
        if times:
            times.pop()


def _address(host: str | None) -> str:
    """The address that is limited, without a port: IPv4, or the /64 of IPv6 that a provider gives one subscriber."""
    port = _WITH_PORT.fullmatch(host or "")  # as some proxies write it in X-Forwarded-For
    try:
        address = ipaddress.ip_address((port and (port[1] or port[2])) or host or "")
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)
