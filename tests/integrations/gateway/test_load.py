"""Hostile clients and load: what a request may hold, who is let in, and who keeps whom out."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx
import pytest

from integrations._gateway.admission import Room
from integrations._gateway.bodies import has_more_values, read_body
from integrations._gateway.config import Alias, Config, Key, Upstream
from integrations._gateway.errors import ApiError
from tests.integrations.gateway.conftest import SURE, Serve

MANY: list[tuple[str, Any]] = [
    ("messages", [{"role": "user", "content": "x"}] * 2049),
    ("tools", [{"type": "function"}] * 129),
    ("metadata", {str(number): "x" for number in range(17)}),
]


@pytest.mark.parametrize(("name", "value"), MANY)
def test_more_entries_than_the_api_takes_are_refused_before_they_are_read(name: str, value: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], name: value}
    with pytest.raises(ApiError) as error:
        read_body(json.dumps(body).encode(), 50_000)
    assert (error.value.status, error.value.code, error.value.param) == (400, "too_many", name)
    value.popitem() if isinstance(value, dict) else value.pop()
    assert read_body(json.dumps(body).encode(), 50_000)[name] == value


VALUES: list[tuple[str, int]] = [
    ("[1,1]", 3),
    ('{"a":[],"b":{}}', 3),
    (r'{"a,\\":[1,2]}', 4),
    (r'["\",[{,\\\"",1]', 3),
    ("[" + ",".join(['"' + "," * 50 + '"'] * 4) + "]", 5),
    ('[[],[],["x"]]', 5),
]


@pytest.mark.parametrize(("text", "values"), VALUES)
def test_values_are_counted_without_the_commas_of_texts(text: str, values: int) -> None:
    """An empty list counts once more, as if it had an entry; no body with more values passes."""
    empty = text.count("[]") + text.count("{}")
    json.loads(text)
    assert has_more_values(text.encode(), values - 1)
    assert not has_more_values(text.encode(), values + empty)


def test_a_body_of_many_values_is_refused_before_it_is_parsed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(max_values=100)
    assert served.ask(SURE, metadata={"a": "," * 1000}).status_code == 200
    monkeypatch.setattr("integrations._gateway.bodies.jiter.from_json", None)
    reply = served.ask(SURE, x=[1] * 100)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "too_many")
    assert "'max_values'" in reply.json()["error"]["message"]


def test_a_guarded_question_is_shorter_than_a_body_that_passes_through(serve: Serve) -> None:
    served = serve(max_guarded_body=20_000)
    assert served.ask("x" * 15_000).status_code == 200
    reply = served.ask("x" * 25_000)
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")
    assert "'max_guarded_body'" in reply.json()["error"]["message"]


def test_a_large_body_is_read_on_a_thread_and_a_small_one_at_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, off_loop, threads = serve(), list[int](), asyncio.to_thread

    async def to_thread(work: Any, *arguments: Any) -> Any:
        off_loop.append("read_body" in repr(work) or "read_request" in repr(work))
        return await threads(work, *arguments)

    monkeypatch.setattr("integrations._gateway.bodies.asyncio.to_thread", to_thread)
    assert served.ask(SURE).status_code == 200
    assert not sum(off_loop)
    assert served.ask("x" * 200_000).status_code == 200
    assert sum(off_loop) == 2  # parsed, and converted


def test_a_refusal_for_lack_of_room_keeps_no_request_before_it() -> None:
    """An error that is raised twice refers to both calls: under load it would keep every refused body in memory."""
    key = Key(name="ann", sha256="0" * 64, max_concurrency=1)
    upstream = Upstream(url="http://127.0.0.1:1/v1", model="m")
    room = Room(Config(version=1, models={"m": Alias(upstream=(upstream,), mode="observe")}, max_concurrency=2))

    def refused() -> ApiError:
        with pytest.raises(ApiError) as error, room.taken(key):
            pass
        return error.value

    with room.taken(key):
        first, second = refused(), refused()
        assert (first.status, first is second) == (429, False)
        with room.taken(None):
            first, second = refused(), refused()
            assert (first.code, first is second) == ("overloaded", False)


def test_two_lengths_of_one_body_close_the_connection(serve: Serve) -> None:
    address = httpx.URL(serve().url)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.host, address.port or 80), timeout=20) as client:
        client.sendall(head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        reply = b"".join(iter(lambda: client.recv(4096), b""))
    assert reply.startswith(b"HTTP/1.1 400")
