"""One HTTP POST within a time that holds for the whole of it. A socket's time-out bounds each read only."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

__all__ = ["post_within"]


def post_within(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> str | None:
    """Post, and follow no redirect.

    The post runs in a thread of its own. One that is too late has its connection cut, so that the thread ends; only a
    name look-up that hangs keeps it a while longer. The caller does not wait for it.

    Args:
        url: http(s) address.
        body: Bytes to send.
        headers: Headers.
        seconds: For everything, from the name look-up to the status line and the headers.

    Returns:
        None when the receiver answered 2xx in time, else the problem in words.
    """
    attempt = _Attempt(url, body, dict(headers), seconds)
    thread = threading.Thread(target=attempt.run, name="guardrail-post", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        attempt.cut()
        return f"TimeoutError: no answer within {seconds:g} s"
    return attempt.problem


class _Attempt:
    def __init__(self, url: str, body: bytes, headers: dict[str, str], seconds: float) -> None:
        self.problem: str | None = None
        self._url, self._body, self._headers, self._seconds = url, body, headers, seconds
        self._connections: list[http.client.HTTPConnection] = []
        self._over = False

    def run(self) -> None:
        opener = urllib.request.build_opener(_NoRedirect, _Http(self._made), _Https(self._made))
        try:
            request = urllib.request.Request(self._url, data=self._body, headers=self._headers, method="POST")
            with opener.open(request, timeout=self._seconds):
                return
        except urllib.error.HTTPError as error:
            error.close()
            self.problem = f"HTTP {error.code}"
        except Exception as error:  # whatever a broken receiver causes must not end the deliverer
            self.problem = f"{type(error).__name__}: {error}"

    def cut(self) -> None:
        self._over = True
        for connection in self._connections:
            _shut(connection)

    def _made(self, connection: http.client.HTTPConnection) -> None:
        self._connections.append(connection)
        if self._over:
            raise TimeoutError("too late to connect")


class _Http(urllib.request.HTTPHandler):
    """Opens as usual, and tells of the connection."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self._told = made

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_telling(http.client.HTTPConnection, self._told), req)


class _Https(urllib.request.HTTPSHandler):
    """Opens as usual, and tells of the connection."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self._told = made

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_telling(http.client.HTTPSConnection, self._told), req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A signed body goes to the address it was signed for, nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse; the redirect becomes an HTTP error."""


def _telling(kind: type[http.client.HTTPConnection], made: Any) -> Any:
    def make(host: str, **settings: Any) -> http.client.HTTPConnection:
        connection = kind(host, **settings)
        made(connection)
        return connection

    return make


def _shut(connection: http.client.HTTPConnection) -> None:
    with contextlib.suppress(AttributeError, OSError):  # not connected yet, or it ended in the meantime
        connection.sock.shutdown(socket.SHUT_RDWR)
