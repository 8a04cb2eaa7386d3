"""The command `guardrail review`: what is wrong with its address is said in one line; and it serves."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from guardrail.__main__ import main
from guardrail.review import Destination
from guardrail.review.web.accounts import add_token
from tests.guardrail.review.test_review_outbox import SECRET

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def somebody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    add_token(tmp_path / "review-tokens.json", "ann", "reviewer")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["review", *arguments]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert not Path("reviews.db").exists(), "it made a database before it knew whether it can serve"
    return output.err


@pytest.mark.parametrize("port", ["99999", "65536", "-1"])
def test_a_port_that_cannot_be(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert f"--port must be from 0 to 65535 (0: any free port), got {port}" in refused(capsys, f"--port={port}")


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = refused(capsys, "--port", str(port))
    assert f"cannot listen on 127.0.0.1 port {port}: [Errno 98] Address already in use. Use another --port" in message


def test_an_address_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    # 192.0.2.0/24 is for documentation, so nobody has it (RFC 5737).
    assert "Cannot assign requested address. Use another" in refused(capsys, "--host", "192.0.2.1", "--port", "0")
    assert "cannot listen on name.invalid" in refused(capsys, "--host", "name.invalid")


def test_what_runs_while_it_serves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    observed: dict[str, Any] = {}

    def delivers(*_: Any, destinations: tuple[Destination, ...], hosts: tuple[str, ...]) -> Mock:
        observed["formats"] = [destination.format for destination in destinations]
        return Mock()

    def server_of(_: Any) -> SimpleNamespace:
        return SimpleNamespace(run=lambda sockets: None)

    monkeypatch.setattr("guardrail.review.web.app.server_of", server_of)
    monkeypatch.setattr("guardrail.review.command.Deliverer", delivers)
    monkeypatch.setenv("GUARDRAIL_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("GUARDRAIL_NOTIFY", "slack=http://127.0.0.1:9/a teams=http://127.0.0.1:9/b")
    assert main(["review", "--port", "0"]) == 0
    assert observed["formats"] == ["slack", "teams"]
    assert "Review page: http://127.0.0.1:" in capsys.readouterr().out


def test_it_serves_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "guardrail", "review", "--port", "0", "--db", str(tmp_path / "served.db")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"Review page: http://127\.0\.0\.1:(\d+)  \(Ctrl-C stops it\)\n", line)
        assert match is not None, line
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=60)
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in errors
    assert process.returncode == 0, errors
