"""Progress outside a terminal: a line a minute, and nothing for short work."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from calibrate.data.progress import bar


def test_long_work_outside_a_terminal_prints_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    out = io.StringIO()
    with bar(Console(file=out, width=200), "asking") as report:
        for done in range(20, 121):  # 20 were there at the start; 3 seconds a question
            report(done, 220, "2 failed" if done > 100 else "")
            now[0] += 3.0
    assert out.getvalue().splitlines() == [
        "asking: 40 of 220 questions, about 9 min left",
        "asking: 60 of 220 questions, about 8 min left",
        "asking: 80 of 220 questions, about 7 min left",
        "asking: 100 of 220 questions, about 6 min left",
        "asking: 120 of 220 questions, about 5 min left (2 failed)",
    ]


def test_short_work_outside_a_terminal_prints_nothing() -> None:
    out = io.StringIO()
    with bar(Console(file=out), "asking") as report:
        for done in range(101):
            report(done, 100)
    assert out.getvalue() == ""


def test_a_terminal_keeps_the_bar() -> None:
    out = io.StringIO()
    with bar(Console(file=out, force_terminal=True, width=120), "asking") as report:
        report(0, 2)
        report(2, 2)
    assert "2/2" in out.getvalue()
