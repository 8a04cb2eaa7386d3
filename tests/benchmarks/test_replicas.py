"""Guards and pages on one PostgreSQL under faults: every answer is counted exactly once, and all recover."""

from __future__ import annotations

import pytest

from tests import postgres


@pytest.mark.slow
@pytest.mark.skipif(postgres.missing() is not None, reason="needs PostgreSQL")
def test_replicas_survive_kills_a_stopped_server_a_crash_and_too_many_connections() -> None:
    from benchmarks.replicas import run

    report = run(3, 1, killed=1, stop=3.0, say=lambda line: None)
    assert (report.unwatched, report.doubled) == (0, 0)
    assert report.accepted > 20
    assert report.folded >= report.accepted
    assert len(report.recovered) == 4
