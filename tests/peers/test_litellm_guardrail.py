"""LiteLLM's proxy asks the gateway by its Generic Guardrail API before an answer goes out: `make test-litellm`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("litellm", reason="litellm is not installed here; run `make test-litellm`")

from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.testing import make_artifact
from integrations._gateway.config import new_key
from tests.integrations.gateway.conftest import ANSWERS, MODEL, SURE, UNSURE, Held, Serve, endpoint, serve
from tests.integrations.openai.scripted_server import PAY

__all__ = ["endpoint", "serve"]

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
KEY = "sk-of-the-proxy-0123456789abcdef"


class Proxy:
    """LiteLLM's proxy in front of the scripted endpoint, with the gateway as its guardrail."""

    def __init__(self, folder: Path, upstream: str, guard: str, key: str) -> None:
        params = {
            "guardrail": "generic_guardrail_api", "mode": ["pre_call", "post_call"], "default_on": True,
            "api_base": guard, "api_key": key, "unreachable_fallback": "fail_closed",
            "streaming_end_of_stream_only": True, "streaming_buffer_until_moderated": True,
        }  # fmt: skip
        model = {"model": "together_ai/m", "api_base": upstream, "api_key": "none"}
        names = ("support", "payer", "unknown")
        config = {
            "model_list": [{"model_name": name, "litellm_params": model} for name in names],
            "guardrails": [{"guardrail_name": "calibrated", "litellm_params": params}],
            "router_settings": {"num_retries": 0},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", folder / "log.txt"
        local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY, "LITELLM_TELEMETRY": "False"}
        self._stdout = self.log.open("w")
        self._process = subprocess.Popen(
            [str(Path(sys.executable).with_name("litellm")), "--config", str(folder / "config.yaml"),
             "--host", "127.0.0.1", "--port", str(port)],
            stdout=self._stdout, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, **local, "NO_PROXY": "*"},
        )  # fmt: skip

    def wait(self) -> Proxy:
        for _ in range(1200):
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            try:
                httpx.get(f"{self.url}/health/liveliness", timeout=1)
                return self
            except httpx.HTTPError:
                time.sleep(0.1)  # it says nothing else when it is ready
        raise AssertionError(self.log.read_text()[-3000:])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._stdout.close()

    def ask(self, path: str, question: str, **fields: Any) -> httpx.Response:
        asked = {"input": question} if path == "responses" else {"messages": [{"role": "user", "content": question}]}
        body = {"model": "support", **asked, **({"max_tokens": 256} if path == "messages" else {}), **fields}
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx.post(f"{self.url}/v1/{path}", json=body, headers=headers, timeout=120)


@pytest.fixture
def proxy(serve: Serve, endpoint: Held, tmp_path: Path) -> Iterator[Proxy]:
    endpoint.answers = {**ANSWERS, "other?": ["Rome", "Oslo"]}
    key, line = new_key("proxy")
    entry = {"name": "proxy", "sha256": line.partition("sha256: ")[2].rstrip("}")}
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-upstream"}
    payer = make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for([PAY])).save(tmp_path / "payer.json")
    more = {"payer": {"upstream": upstream, "artifact": payer, "probe": "off"}}
    made = Proxy(tmp_path, endpoint.url, serve(more=more, keys=[entry]).url, key)
    try:
        yield made.wait()
    finally:
        made.close()


def test_only_the_judged_answer_leaves_the_proxy(proxy: Proxy, endpoint: Held) -> None:
    shown = {}
    for path in ("chat/completions", "responses", "messages"):
        for stream in (False, True):
            for question in (SURE, UNSURE):
                reply = proxy.ask(path, question, stream=stream)
                shown[path, stream, question] = reply

    for (path, stream, question), reply in shown.items():
        if question == SURE:
            assert (reply.status_code, "Paris" in reply.text) == (200, True), (path, stream, reply.text)
        else:
            assert not any(city in reply.text for city in ANSWERS[UNSURE]), (path, stream, reply.text)
            assert ABSTENTION in reply.text, (path, stream, reply.text)
