"""Real servers on the loopback. Every test here is marked `peers`, which `make test` leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrate import Question, read_questions
from tests.peers import servers
from tests.peers.servers import Peer

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test in this folder."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("peers")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The full peer: llama-server."""
    binary = servers.llama_server()
    if binary is None:
        pytest.skip("no llama-server in .peers/: run `make peers`")
    with servers.running_llama(binary, tmp_path_factory.mktemp("llama"), *servers.AS_TRANSFORMERS) as peer:
        yield peer


@pytest.fixture(scope="session")
def degraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """The degraded peer: transformers serve, which silently ignores n, temperature and logprobs."""
    if servers.serving() is None:
        pytest.skip("what transformers serve needs is not in .peers/: run `make peers`")
    with servers.running_transformers(tmp_path_factory.mktemp("serving")) as peer:
        yield peer


@pytest.fixture(scope="session")
def local() -> Any:
    """The same weights in this process."""
    transformers_chat = pytest.importorskip("integrations.transformers_chat")
    return transformers_chat.TransformersChat(model=str(servers.WEIGHTS), device="cpu")


def questions(name: str) -> list[Question]:
    """An embedded question file; any prefix is a fair sample."""
    return list(read_questions(servers.QUESTIONS / f"{name}.jsonl"))
