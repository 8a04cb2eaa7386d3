"""The proxies of examples/deploy with TLS in front of a gateway: their files as they stand."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from guardrail.guard.abstention import ABSTENTION
from tests.integrations.gateway.conftest import SURE, UNSURE, Held, Serve

DEPLOY = Path(__file__).resolve().parents[3] / "examples" / "deploy"
SITE = "guard.example.com"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of our own for the site, and its key."""
    pem, key = folder / "guard.pem", folder / "guard.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-days", "1", "-subj", f"/CN={SITE}", "-addext", f"subjectAltName=DNS:{SITE}"]
    subprocess.run([*command, *names, "-keyout", key, "-out", pem], check=True, capture_output=True)
    return pem, key


def behind(backend: str, text: str) -> str:
    """The text of a file with one gateway in place of its two."""
    assert "127.0.0.1:8702" in text
    return re.sub(r"\s*(server )?127\.0\.0\.1:8702;?", "", text).replace("127.0.0.1:8701", backend)


def nginx(folder: Path, backend: str, port: int) -> list[str]:
    pem, key = certificate(folder)
    text = behind(backend, (DEPLOY / "nginx.conf").read_text(encoding="utf-8"))
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    text = text.replace("/etc/ssl/guard.pem", str(pem)).replace("/etc/ssl/guard.key", str(key))
    folders = "".join(
        f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = (
        f"daemon off; pid {folder / 'pid'}; error_log stderr; events {{}} http {{ access_log off; {folders}\n{text}}}"
    )
    (folder / "nginx.conf").write_text(whole, encoding="utf-8")
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, backend: str, port: int) -> list[str]:
    pem, key = certificate(folder)
    text = behind(backend, (DEPLOY / "Caddyfile").read_text(encoding="utf-8"))
    text = text.replace(f"{SITE} {{", f"{SITE}:{port} {{\n    bind 127.0.0.1\n    tls {pem} {key}", 1)
    (folder / "Caddyfile").write_text(
        f"{{\n    admin off\n    auto_https disable_redirects\n}}\n{text}", encoding="utf-8"
    )
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


@contextmanager
def proxied(command: list[str], folder: Path, port: int) -> Iterator[httpx.Client]:
    """A client of the site, whose name leads to the proxy on this machine."""
    context = ssl.create_default_context(cafile=str(folder / "guard.pem"))
    environment = {"HOME": str(folder), "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            if process.poll() is not None:
                pytest.fail(str(process.communicate()[1]))
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        headers = {"host": SITE}
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, headers=headers, timeout=10) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=20)


@pytest.mark.parametrize("proxy", [nginx, caddy])
def test_answers_and_streams_pass_the_documented_proxy(
    serve: Serve, endpoint: Held, tmp_path: Path, proxy: Callable[[Path, str, int], list[str]]
) -> None:
    if shutil.which(proxy.__name__) is None or shutil.which("openssl") is None:
        pytest.skip(f"{proxy.__name__} is not installed")
    served = serve(stream_hold=0, allowed_hosts=[SITE])
    port = free_port()
    with proxied(proxy(tmp_path, served.url.removeprefix("http://"), port), tmp_path, port) as client:
        extensions = {"sni_hostname": SITE}

        def ask(question: str, *, stream: bool = False) -> httpx.Request:
            body = {"model": "support", "messages": [{"role": "user", "content": question}], "stream": stream}
            return client.build_request("POST", "/v1/chat/completions", json=body, extensions=extensions)

        for question, text in ((SURE, "Paris"), (UNSURE, ABSTENTION)):
            reply = client.send(ask(question))
            assert reply.json()["choices"][0]["message"]["content"] == text
            assert reply.headers["x-guardrail-accepted"] == str(question == SURE).lower()
        # The first bytes of a stream arrive before there is a verdict, so nothing on the way keeps them back.
        endpoint.holding = True
        stream = client.send(ask("another?", stream=True), stream=True)
        lines = stream.iter_lines()
        assert next(lines) == ": keep-alive"
        endpoint.released.set()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert (json.loads(events[0])["object"], events[-1]) == ("chat.completion.chunk", "[DONE]")
        stream.close()
        too_large = client.request(
            "POST", "/v1/chat/completions", content=b"x" * (11 * 2**20), extensions=extensions,
            headers={"content-type": "application/json"},
        )  # fmt: skip
        assert too_large.status_code == 413
        if proxy is nginx:
            assert client.get("/metrics", extensions=extensions).status_code == 403
