"""An endpoint on loopback that can misbehave, and short waits between attempts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integrations.openai.faulty_endpoint import Endpoint, serving

ANSWERS = {"sure?": ["Paris"], "other?": ["Rome"], "unsure?": ["Rome", "Oslo", "Bern", "Riga", "Lima", "Kiel"]}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Serves until the test ends."""
    with serving(Endpoint(answers=ANSWERS)) as served:
        yield served


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("integrations._openai.endpoint.FIRST_WAIT", 0.01)
