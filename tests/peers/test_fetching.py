"""The script that gets the servers: safe to run again, with clear errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.peers import servers

SCRIPTS = servers.ROOT / "scripts"


@pytest.fixture
def to_gguf(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return pytest.importorskip("to_gguf")  # type: ignore[no-any-return]


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LLAMA_SERVER"}
    command = [sys.executable, str(SCRIPTS / "peers.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_running_it_again_changes_nothing() -> None:
    binary = servers.llama_server()
    if binary is None or servers.serving() is None:
        pytest.skip("nothing was fetched yet: run `make peers`")
    files = [binary, servers.GGUF, servers.SERVING / ".done"]
    assert _run().returncode == 0  # updates outdated files
    before = [file.stat().st_mtime_ns for file in files]
    assert _run().returncode == 0
    assert [file.stat().st_mtime_ns for file in files] == before


def test_a_binary_that_does_not_start_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "llama-server"
    wrong.write_text("#!/bin/sh\nexit 3\n", "utf-8")
    wrong.chmod(0o755)
    for binary in (wrong, tmp_path / "absent"):
        result = _run("--server", str(binary))
        assert result.returncode == 1
        assert "is not a llama-server that starts" in result.stderr


def test_the_converted_model_is_the_same_file_every_time(to_gguf: ModuleType, tmp_path: Path) -> None:
    for name in ("a", "b"):
        to_gguf.write_gguf(servers.WEIGHTS, tmp_path / name)
    first = (tmp_path / "a").read_bytes()
    assert first[:4] == b"GGUF"
    assert first == (tmp_path / "b").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_another_architecture_is_refused(to_gguf: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(servers.WEIGHTS, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gemma"}), "utf-8")
    with pytest.raises(ValueError, match="gemma"):
        to_gguf.write_gguf(folder, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
