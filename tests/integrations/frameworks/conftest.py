"""Fixtures of the frameworks' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def no_traces() -> Iterator[None]:
    """The OpenAI Agents SDK would send a trace of each run to OpenAI."""
    from agents import set_tracing_disabled

    set_tracing_disabled(True)
    yield
    set_tracing_disabled(False)
