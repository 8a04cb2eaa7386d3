"""A gateway on a real socket of the loopback, in front of a scripted endpoint."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
import uvicorn
from starlette.testclient import TestClient

from guardrail.artifact import CascadeArtifact, CascadeOutcome, StageShare
from guardrail.testing import make_artifact
from integrations._gateway.config import Config
from integrations.gateway import Gateway
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

SURE, UNSURE = "sure?", "unsure?"
ANSWERS = {SURE: ["Paris"], UNSURE: ["Rome", "Oslo", "Bern", "Riga", "Lima", "Kiel"]}
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of the loopback: reading the certificates of the system takes longer than most tests."""
LOCAL = "http://127.0.0.1"
MODEL = OpenAICompatibleChat(model="m", base_url="http://127.0.0.1:1/v1", api_key="unused")


def cascade() -> CascadeArtifact:
    """The artifact of a cascade: "m", then "large"."""
    models = (MODEL, MODEL.model_copy(update={"model": "large"}))
    stages = tuple(make_artifact(model, threshold=0.1, n=4) for model in models)
    shares = tuple(StageShare(threshold=0.1, n_accepted=1, n_errors=0) for _ in stages)
    outcome = CascadeOutcome(rule="none", alpha=0.1, delta=None, n=2, stages=shares, interval=None, reason=None)
    return CascadeArtifact(stages=stages, outcome=outcome)


class Served:
    """A gateway that serves in this process, with clients for it; on a socket once `url` is read, which comes first."""

    def __init__(self, gateway: Gateway, stack: ExitStack) -> None:
        self.gateway, self._stack = gateway, stack
        self._running: Running | None = None
        self._http: httpx.Client | None = None

    @property
    def running(self) -> Running:
        """The server on a socket: for clients that leave, read slowly, or are not Python's."""
        if self._running is None:
            assert self._http is None, "read `url` before the first request"
            self._running = self._stack.enter_context(running(self.gateway))
        return self._running

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def http(self) -> httpx.Client:
        if self._http is None:
            client: Any = TestClient(self.gateway, LOCAL, raise_server_exceptions=False)
            if self._running is not None:
                client = httpx.Client(base_url=self.url, timeout=30, verify=PLAIN)
            self._http = self._stack.enter_context(client)
        return self._http

    def openai(self, key: str = "any", **settings: Any) -> openai.OpenAI:
        settings = {"max_retries": 0, "http_client": self.http, **settings}
        return openai.OpenAI(base_url=f"{self.http.base_url}".rstrip("/") + "/v1", api_key=key, **settings)

    def ask(
        self, question: str = SURE, headers: Mapping[str, str | bytes] | None = None, **fields: Any
    ) -> httpx.Response:
        body = {"model": "support", "messages": [{"role": "user", "content": question}], **fields}
        sent = [
            (name.encode(), text.encode() if isinstance(text, str) else text) for name, text in (headers or {}).items()
        ]
        return self.http.post("/v1/chat/completions", json=body, headers=sent)

    def leave(self, question: str, when: Callable[[], None]) -> None:
        """Ask, close the connection at a certain moment, and wait until the gateway has seen it. On a socket alone."""
        address = httpx.URL(self.url)
        body = json.dumps({"model": "support", "messages": [{"role": "user", "content": question}]})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        with socket.create_connection((address.host, address.port or 80), timeout=20) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            when()
            left = self._left()
        deadline = time.monotonic() + 20
        while self._left() == left:
            assert time.monotonic() < deadline, "the gateway has not seen that its client left"
            time.sleep(0.01)

    def _left(self) -> float:
        """The number of questions whose client was gone before its reply, by the gateway's metrics."""
        page, _ = self.gateway.metrics.exposition(lambda model: True)
        counted = r'^guardrail_http_requests_total{route="/v1/chat/completions",status="4xx"} (\S+)'
        return sum(map(float, re.findall(counted, page.decode(), flags=re.MULTILINE)))


class Running(NamedTuple):
    """A server on a free port."""

    url: str
    server: uvicorn.Server
    thread: threading.Thread


@contextmanager
def running(app: Any, **settings: Any) -> Iterator[Running]:
    """Serve an application on a free port."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    common: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "log_level": "error", "timeout_graceful_shutdown": 5}
    server = Server(uvicorn.Config(app, **common, **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(20)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield Running(url, server, thread)
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@dataclass
class Held(Endpoint):
    """An endpoint that answers when it is released, where ``holding`` is set."""

    holding: bool = False
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Counts the requests that have arrived."""
    released: threading.Event = field(default_factory=threading.Event)

    async def _answer(self, body: dict[str, Any], reader: Any, writer: Any) -> bool:
        self.arrived.release()
        if self.holding:
            await asyncio.to_thread(self.released.wait, 20)
        return await super()._answer(body, reader, writer)

    def wait_for(self, requests: int) -> None:
        """Wait until so many more requests have arrived."""
        assert all(self.arrived.acquire(timeout=20) for _ in range(requests))


@pytest.fixture
def endpoint() -> Iterator[Held]:
    upstream = Held(answers=ANSWERS)
    with serving(upstream):
        yield upstream
        upstream.released.set()


Serve = Callable[..., Served]


@pytest.fixture
def serve(endpoint: Held, tmp_path: Path) -> Iterator[Serve]:
    """Makes a gateway of one alias, "support"; ``alias`` and ``settings`` come on top of the defaults.

    Each of ``more`` aliases has the same artifact if it says so, or its own.
    """
    with ExitStack() as stack:

        def start(
            alias: dict[str, Any] | None = None, artifact: Any = None, more: Any = None, **settings: Any
        ) -> Served:
            to_serve = make_artifact(MODEL, threshold=0.1, n=4) if artifact is None else artifact
            path = to_serve.save(tmp_path / "artifact.json")
            upstream = {"url": endpoint.url, "model": "m", "key": "sk-upstream", "timeout": 10, "max_retries": 0}
            fields = {"upstream": upstream, "artifact": path, "probe": "off", **(alias or {})}
            more = {
                name: {**other, "artifact": path if other.get("artifact") is True else other.get("artifact") or None}
                for name, other in (more or {}).items()
            }
            models = {"support": fields, **more}
            gateway = Gateway(Config.checked({"version": 1, "models": models, "drain": 5, **settings}, "test"))
            return Served(gateway, stack)

        yield start
