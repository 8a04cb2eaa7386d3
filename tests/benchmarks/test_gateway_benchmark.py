"""A gateway under upstream faults leaks nothing, and the check itself finds a leak."""

from __future__ import annotations

import asyncio
import sys

import pytest

from benchmarks.gateway import Footprint, leaks, soak


@pytest.mark.parametrize(
    ("after", "grown"),
    [
        (Footprint(100, 40, 30, 20), []),
        (Footprint(119, 50, 40, 30), []),  # growth by chance
        (Footprint(100, 51, 30, 20), ["files"]),
        (Footprint(121, 51, 41, 31), ["files", "sockets", "threads", "memory"]),
    ],
)
def test_a_leak_is_found(after: Footprint, grown: list[str]) -> None:
    assert leaks(Footprint(100, 40, 30, 20), after) == grown


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_gateway_leaks_nothing_under_faults() -> None:
    before, after, replies = asyncio.run(soak(60.0, say=lambda line: None))
    assert leaks(before, after) == []
    assert replies["200"] > 100
    assert sum(replies[fault] for fault in ("500", "502", "503", "RemoteProtocolError"))  # the faults arrived
    assert replies["TimeoutError"]  # clients have left
