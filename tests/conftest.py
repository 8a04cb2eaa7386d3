"""Settings for all tests."""

from __future__ import annotations

import gc
import shutil
import signal
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from guardrail.review import ReviewStore

# Without deadlines a busy machine fails no test, and the same code gets the same examples. "explore" draws new ones.
settings.register_profile("untimed", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("untimed")

if find_spec("typer"):  # `CliRunner` rebuilds all commands in every call, which takes longer than most tests
    pytest.MonkeyPatch().setattr("typer.testing._get_command", cache(import_module("typer.main").get_command))

# Ten thousand waits for the disk. A killed process loses nothing that it has written: only a power cut would.
pytest.MonkeyPatch().setattr("os.fsync", lambda descriptor: None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise tests of Ctrl-C would wait forever


gc.disable()  # imports create many objects and free few


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long files, which come last by name, first, so that all processes end together."""
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/test_", "tests/validity/")))


def pytest_collection_finish() -> None:
    """Collect garbage rarely, and never the objects loaded so far: otherwise it takes 15 % of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture
def now() -> list[float]:
    """The time of a store's clock; a test can change it."""
    return [1_800_000_000.0]


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of an empty review store on SQLite; opening a copy is ten times faster than creating the tables."""
    from guardrail.review import ReviewStore  # not every environment has its dependencies

    path = tmp_path_factory.mktemp("store") / "reviews.db"
    ReviewStore(path).close()
    return path


@pytest.fixture
def store(new_store: Path, tmp_path: Path, now: list[float]) -> Iterator[ReviewStore]:
    """An empty review store on SQLite."""
    from guardrail.review import ReviewStore

    with ReviewStore(shutil.copy(new_store, tmp_path), clock=lambda: now[0]) as opened:
        yield opened
