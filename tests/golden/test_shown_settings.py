"""Limits, words and defaults of all modules, in one list for each package.

Each is a promise to somebody: how long a lease lasts, how much a form may hold, how many samples a plan draws.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.golden.settings import packages
from tests.golden.shown import same


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[str, str]]:
    """What a fresh process finds, by package."""
    words = [sys.executable, "-m", "tests.golden.settings"]
    return dict(json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout))


@pytest.mark.parametrize("package", packages())
def test_settings(found: dict[str, tuple[str, str]], package: str) -> None:
    kind, text = found[package]
    if kind == "missing":
        pytest.skip(f"an extra is not installed: {text}")
    assert kind == "listed", text
    if text:
        same(f"settings/{package}.txt", text)
