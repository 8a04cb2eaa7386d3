"""Fixtures of the agents' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in an empty folder, where guards and commands leave their files, with nothing sent yet."""
    from tests.integrations.agents.collecting_agents import SENT

    monkeypatch.chdir(tmp_path)
    SENT.clear()
