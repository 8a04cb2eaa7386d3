"""Starts and stops the real servers that ``scripts/peers.py`` fetched; each has a separate port on the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integrations.openai_chat import OpenAICompatibleChat

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
WEIGHTS = ROOT / "examples" / "tiny_model" / "orrin-1.5m"
QUESTIONS = ROOT / "examples" / "tiny_model" / "questions"
GGUF = PEERS / "orrin-1.5m.gguf"
SERVING = PEERS / "serving"
NAME = "orrin-1.5m"
SLOTS, CONTEXT = 16, 512
STARTING = 180.0
"""Longest wait for a server in seconds; on an idle machine it takes a few."""
# Sample from the model's own distribution: by default llama-server keeps 40 tokens, drops those below 5 % of the
# likeliest token's probability, and applies top_p before the temperature.
AS_TRANSFORMERS = ("--samplers", "temperature;top_p")
# Without these, llama-server would round the cache to 16 bits.
EXACT = ("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off")


@dataclass(frozen=True, slots=True)
class Peer:
    """A running server.

    Attributes:
        root: Its address.
        model: Name of the model on the server.
    """

    root: str
    model: str

    @property
    def url(self) -> str:
        """Root of its OpenAI-compatible API."""
        return f"{self.root}/v1"

    def chat(self, **settings: Any) -> OpenAICompatibleChat:
        """Return our chat model for it."""
        return OpenAICompatibleChat(model=self.model, base_url=self.url, max_concurrency=SLOTS, **settings)


def llama_server() -> Path | None:
    """Return the llama-server to test with, or None."""
    preset = os.environ.get("LLAMA_SERVER")
    binary = Path(preset) if preset else PEERS / "llama.cpp" / "bin" / "llama-server"
    return binary if binary.is_file() and GGUF.is_file() else None


def serving() -> Path | None:
    """Return the folder of packages that ``transformers serve`` needs beyond the environment, or None."""
    return SERVING if (SERVING / ".done").is_file() else None


@contextmanager
def running_llama(binary: Path, folder: Path, *more: str) -> Iterator[Peer]:
    """Run llama-server with the embedded model.

    Args:
        binary: The server.
        folder: Folder for its log.
        *more: Further arguments.
    """
    libraries = ":".join(filter(None, [str(binary.parent), os.environ.get("LD_LIBRARY_PATH")]))
    slots = ("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * CONTEXT), "--no-kv-unified", "--threads", "1")
    command = [str(binary), "--model", str(GGUF), "--alias", NAME, "--offline", "--no-webui", *slots, *EXACT, *more]
    with _running(command, {"LD_LIBRARY_PATH": libraries}, folder / "llama-server.log") as root:
        yield Peer(root, NAME)


@contextmanager
def running_transformers(folder: Path) -> Iterator[Peer]:
    """Run ``transformers serve`` with the embedded model.

    Args:
        folder: Folder for its log.
    """
    program = "from transformers.cli.transformers import main; main()"
    command = [sys.executable, "-c", program, "serve", str(WEIGHTS), "--device", "cpu"]
    path = os.pathsep.join(filter(None, [str(SERVING), os.environ.get("PYTHONPATH")]))
    extra = {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    with _running(command, extra, folder / "transformers-serve.log") as root:
        yield Peer(root, str(WEIGHTS))


@contextmanager
def _running(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    port = _free_port()
    root = f"http://127.0.0.1:{port}"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            _wait(process, f"{root}/health", log)
            yield root
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    until = time.monotonic() + STARTING
    while process.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(health, timeout=5):
                return
        except OSError:  # not listening yet, or still loading the model (503)
            time.sleep(0.1)
    ending = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise RuntimeError(f"the server did not come up ({process.args!r}):\n{ending}")
