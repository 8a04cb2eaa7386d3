"""Paths that pass through without a verdict: only those that the configuration names, and never silently."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from guardrail.errors import UsageError
from integrations._gateway.forwarding import Mask
from integrations._gateway.passing import passed_name
from tests.integrations.gateway.conftest import Held, Serve, running
from tests.integrations.gateway.test_gateway import key_named


class Upstream:
    """An API that says what it was sent."""

    def __init__(self) -> None:
        self.url, self.seen, self.go_on = "", list[str](), threading.Event()

    async def answer(self, request: Request) -> Response:
        content = (await request.body()).decode("latin-1")
        self.seen.append(f"{request.method} {request.url.path}")
        headers = dict(request.headers)
        reply = {"method": request.method, "url": str(request.url), "headers": headers, "content": content}
        if request.url.path.endswith("/stream"):
            return StreamingResponse(self._quoting(headers["authorization"].removeprefix("Bearer ")))
        status = 401 if request.url.path.endswith("/refused") else 200
        quoted = {"x-quoted": headers.get("authorization", "").removeprefix("Bearer ")}
        return JSONResponse(reply, status, headers={"x-upstream": "yes", **quoted})

    async def _quoting(self, key: str) -> AsyncIterator[str]:
        """A stream that quotes a key whole, and in pieces."""
        yield "data: 0\n\n"
        await asyncio.to_thread(self.go_on.wait, 20)
        for part in (f"data: {key}, {key[:3]}", key[3:9], f"{key[9:]}\n\n", key[:8]):
            yield part
            await asyncio.sleep(0.02)  # or they arrive as one


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    methods = ["GET", "POST", "DELETE", "PUT"]
    with running(Starlette(routes=[Route("/{path:path}", made.answer, methods=methods)])) as served:
        made.url = f"{served.url}/v1"
        yield made


def alias(upstream: Upstream, *paths: str, key: str = "sk-up") -> dict[str, Any]:
    return {"upstream": {"url": upstream.url, "model": "m", "key": key}, "pass_through": list(paths)}


def test_the_log_names_the_paths_that_pass(serve: Serve, upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    """An operator sees at the start what no gate judges."""
    with caplog.at_level(logging.WARNING, "guardrail"):
        serve(alias(upstream, "embeddings", "files"))
    (line,) = [record.getMessage() for record in caplog.records if "without a verdict" in record.getMessage()]
    assert "models.support passes /v1/embeddings, /v1/files" in line


def test_a_passed_request_goes_on_as_it_came_under_the_upstreams_name_and_key(serve: Serve, upstream: Upstream) -> None:
    """A client of embeddings notices the gateway by one header only."""
    served = serve(alias(upstream, "embeddings"))
    reply = served.http.post("/v1/embeddings?x=1", json={"model": "support", "input": "é"})
    sent = reply.json()
    assert json.loads(sent["content"].encode("latin-1")) == {"model": "m", "input": "é"}
    assert sent["url"].endswith("/v1/embeddings?x=1")
    assert sent["headers"]["authorization"] == "Bearer sk-up"
    assert (reply.headers["x-guardrail-guarded"], reply.headers["x-upstream"]) == ("false", "yes")
    other = served.openai().embeddings.with_raw_response.create(model="text-embedding-3-small", input="a")
    assert json.loads(other.http_response.json()["content"])["model"] == "text-embedding-3-small"


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [("POST", "files", "--x--"), ("DELETE", "files/f-1", ""), ("GET", "files/f/content", "")],
)
def test_uploads_and_other_methods_pass(serve: Serve, upstream: Upstream, method: str, path: str, content: str) -> None:
    """A body that is no JSON names no model, and is not read."""
    head = {"authorization": "Bearer any", "content-type": "multipart/form-data; boundary=x"}
    served = serve(alias(upstream, "files"))
    reply = served.http.request(method, f"/v1/{path}", content=content.encode(), headers=head).json()
    assert (reply["method"], reply["content"], reply["headers"]["content-type"]) == (
        method,
        content,
        head["content-type"],
    )
    assert reply["url"].endswith(f"/v1/{path}")
    assert 'guardrail_passed_through_total{model="support",path="files"} 1.0' in served.http.get("/metrics").text


def test_an_error_that_quotes_our_key_reaches_no_client(serve: Serve, upstream: Upstream) -> None:
    served = serve(alias(upstream, "files"))
    reply = served.http.get("/v1/files/refused")
    assert (reply.status_code, reply.json()["headers"]["authorization"]) == (401, "Bearer *****")
    assert "sk-up" not in reply.text


KEY = "sk-of-an-upstream-0123456789"


def test_a_reply_of_any_status_that_quotes_our_key_is_masked(serve: Serve, upstream: Upstream) -> None:
    """Some servers quote the request; the upstream's key would then be every client's."""
    observed = {**alias(upstream, key=KEY), "mode": "observe"}
    served, masked = serve(alias(upstream, "files", key=KEY), more={"watched": observed}), "*" * len(KEY)
    whole = served.http.get("/v1/files/quoted")
    assert (whole.json()["headers"]["authorization"], whole.headers["x-quoted"]) == (f"Bearer {masked}", masked)
    reply = served.http.post("/v1/chat/completions", json={"model": "watched", "messages": []})
    assert reply.json()["headers"]["authorization"] == f"Bearer {masked}"


def test_a_stream_that_quotes_our_key_in_pieces_is_masked(serve: Serve, upstream: Upstream) -> None:
    """What may begin a key is held back until it is none, and nothing else is."""
    served, masked = serve(alias(upstream, "uploads", key=KEY)), "*" * len(KEY)
    with served.http.stream("GET", "/v1/uploads/stream", headers={"authorization": "Bearer any"}) as reply:
        parts = reply.iter_raw()
        first = next(parts)
        assert first == b"data: 0\n\n"
        upstream.go_on.set()
        assert first + b"".join(parts) == f"data: 0\n\ndata: {masked}, {masked}\n\nsk-of-an".encode()


def test_a_clients_own_key_and_a_key_that_is_none_are_not_masked(serve: Serve, upstream: Upstream) -> None:
    """Masking "EMPTY", as servers without keys are given, would break texts that say it."""
    own = {"upstream": {"url": upstream.url, "model": "m", "forward_key": True}, "pass_through": ["embeddings"]}
    served = serve(own, more={"p": {**alias(upstream, "videos", key="EMPTY"), "mode": "observe"}})
    head = {"authorization": "Bearer sk-of-a-client-0123456789"}
    assert (
        served.http.post("/v1/embeddings", json={}, headers=head).json()["headers"]["authorization"]
        == head["authorization"]
    )
    assert served.http.get("/v1/videos").json()["headers"]["authorization"] == "Bearer EMPTY"


@given(
    st.binary(min_size=1, max_size=6).filter(lambda key: b"*" not in key),
    st.lists(st.binary(max_size=9), max_size=6),
    st.data(),
)
def test_a_key_is_masked_wherever_the_parts_of_a_body_end(key: bytes, texts: list[bytes], data: st.DataObject) -> None:
    body = key.join(texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    mask = Mask([key])
    shown = b"".join(mask.add(body[a:b], last=False) for a, b in pairwise([0, *cuts, len(body)]))
    shown += mask.add(b"", last=True)
    assert shown == body.replace(key, b"*" * len(key))


ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "key?"}]},
    "responses": {"input": "key?"},
    "messages": {"messages": [{"role": "user", "content": "key?"}], "max_tokens": 4096},
}


@pytest.mark.parametrize("hold", [10, 0])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ASKED)
def test_a_guarded_answer_that_quotes_our_key_is_masked(
    serve: Serve, endpoint: Held, protocol: str, stream: bool, hold: float
) -> None:
    """A model that was told its key gives it to nobody, judged or not."""
    endpoint.answers = {"key?": [f"It is {KEY}."]}
    served = serve({"upstream": {"url": endpoint.url, "model": "m", "key": KEY}}, stream_hold=hold)
    reply = served.http.post(f"/v1/{protocol}", json={"model": "support", **ASKED[protocol], "stream": stream})
    assert reply.status_code == 200
    assert f"It is {'*' * len(KEY)}." in reply.text
    assert KEY not in reply.text


def test_the_key_of_a_model_that_takes_over_is_masked(serve: Serve, endpoint: Held) -> None:
    """A fallback has a key of its own, which is no client's either."""
    endpoint.answers = {"key?": [f"It is {KEY}: {letter}" for letter in "abcdef"]}
    upstream = {"url": endpoint.url, "model": "m", "key": KEY}
    more = {"other": {"upstream": upstream, "mode": "observe"}}
    reply = serve({"fallback": "other"}, more=more).ask("key?")
    assert reply.json()["guardrail"]["fallback"] == "other"
    assert f"It is {'*' * len(KEY)}" in reply.text
    assert KEY not in reply.text


def test_nothing_else_passes(serve: Serve, upstream: Upstream) -> None:
    """A path that generates text, or leads out of a named folder, would go round the gate."""
    served = serve(alias(upstream, "audio/speech", "files", "messages/count_tokens"), more={"other": {
        "upstream": {"url": upstream.url, "model": "m", "key": "k"}, "mode": "observe"}})  # fmt: skip
    for path in (
        "embeddings", "completions", "audio/transcriptions", "chat/completions/x", "responses/resp_1",
        "messages/batches",
        "files/../completions", "files/%2e%2e/completions", "files/..%2fcompletions", "files/%2e/x", "files//x",
        "files/a%00b", "files/a%5cb", "files/a%20b", "files\\..\\completions", "filesystem", "%66iles/../completions",
    ):  # fmt: skip
        for method in ("POST", "GET"):
            reply = served.http.request(method, f"/v1/{path}", json={"model": "support"})
            assert (reply.status_code, reply.json()["error"].get("code")) == (404, "unknown_endpoint"), path
    assert served.http.post("/v1/files", json={"model": "other"}).status_code == 404
    assert served.http.post("/v1/files", content=b"a", headers={"content-type": "text/plain"}).status_code == 415
    assert served.http.post("/v1/audio/speech", json={"model": []}).status_code == 400
    assert upstream.seen == []
    assert served.http.post("/v1/messages/count_tokens", json={"model": "support"}).status_code == 200


def test_stored_responses_pass_to_an_observed_upstream_and_never_to_a_guarded_one(
    serve: Serve, upstream: Upstream
) -> None:
    served = serve(more={"watched": {**alias(upstream, "responses", "conversations"), "mode": "observe"}})
    for method, path in (("GET", "responses/r_1"), ("DELETE", "responses/r_1"), ("GET", "conversations/c_1/items")):
        reply = served.http.request(method, f"/v1/{path}", headers={"authorization": "Bearer any"})
        assert reply.headers["x-guardrail-guarded"] == "false"
    assert upstream.seen == ["GET /v1/responses/r_1", "DELETE /v1/responses/r_1", "GET /v1/conversations/c_1/items"]
    for path in ("responses", "responses/compact", "responses/"):
        reply = served.http.post(f"/v1/{path}", json={"model": "support", "input": "sure?", "stream": False})
        assert "x-guardrail-guarded" not in reply.headers
    assert len(upstream.seen) == 3


def test_a_key_passes_its_models_only_and_several_need_a_name(serve: Serve, upstream: Upstream) -> None:
    """A client reads no files of a model that its key is not for."""
    (ann, one), (bob, two) = key_named("ann", models=["support"]), key_named("bob")
    more = {"other": {**alias(upstream, "files"), "mode": "observe"}}
    served = serve(alias(upstream, "embeddings"), more=more, keys=[one, two])

    def status(key: str, path: str, **headers: str) -> int:
        return served.http.get(f"/v1/{path}", headers={"authorization": f"Bearer {key}", **headers}).status_code

    assert (status(ann, "embeddings"), status(ann, "files"), status(bob, "files")) == (200, 404, 200)
    assert status("wrong", "embeddings") == 401
    assert upstream.seen == ["GET /v1/embeddings", "GET /v1/files"]
    served = serve(alias(upstream, "files"), more=more, keys=[two])
    assert (status(bob, "files"), status(bob, "files", **{"x-guardrail-model": "other"})) == (400, 200)


def test_a_path_passes_by_its_own_segments() -> None:
    """Dots, empty segments and escapes would leave the folder at the upstream."""
    assert passed_name("files/f-1/content", ("files",)) == "files"
    assert passed_name("filesystem", ("files",)) is None
    for path in ("files/../completions", "files/./x", "files//x", "files/a\\b", "files/a?b", "files/é", "files/a\n"):
        assert passed_name(path, ("files",)) is None


@pytest.mark.parametrize(
    "path", ["chat/completions", "responses", "messages", "models", "completions", "threads", "", "/files", "../x"]
)
def test_a_guarded_or_malformed_path_is_refused(serve: Serve, path: str) -> None:
    with pytest.raises(UsageError, match="must name paths that generate no text"):
        serve({"pass_through": [path]})
