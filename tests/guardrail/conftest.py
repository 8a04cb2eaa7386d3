"""Shared fixtures: a database for a review store, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardrail.review import ReviewStore
from tests import postgres


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    reason = postgres.missing()
    if reason:
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


def _database(server: str, template: str) -> str:
    import psycopg

    name = f"t{random.randrange(10**12)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")  # type: ignore[arg-type, unused-ignore]
    return server.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture(scope="session")
def postgres_store(postgres_url: str) -> str:
    """Name of a database with an empty review store; to copy it takes a quarter of the time of making its tables."""
    url = _database(postgres_url, "template1")
    ReviewStore(url).close()
    return url.rsplit("/", 1)[1]


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/reviews.db"
    return _database(request.getfixturevalue("postgres_url"), "template1")


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with the tables of a review store."""
    if request.param == "sqlite":
        return f"sqlite:///{shutil.copy(request.getfixturevalue('new_store'), tmp_path)}"
    template = request.getfixturevalue("postgres_store")
    return _database(request.getfixturevalue("postgres_url"), template)
