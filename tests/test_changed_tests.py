"""`make check` finds the tests near a change, and a test that fails there fails the command."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grimp", reason="import-linter is not installed")

ROOT = Path(__file__).parents[1]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "changed_tests.py"))
FIRST = SCRIPT["FILES"]


def selected(*changed: str) -> list[str]:
    tests: list[str] = SCRIPT["selection"](changed)
    return tests


@pytest.mark.parametrize(
    ("changed", "near", "far"),
    [
        # the file of its name, and the folder
        ("calibrate/rules/certificate.py", "calibrate/rules/test_certificate.py", "guardrail/judges/test_vote.py"),
        (
            "integrations/_gateway/protocols/messages.py",
            "integrations/gateway/test_messages.py",
            "calibrate/test_fits.py",
        ),
        # a name with a word before it, in the nearest folder that has tests
        ("guardrail/review/store.py", "guardrail/review/test_review_store.py", "calibrate/test_fits.py"),
        # commands are imported when they are called
        ("calibrate/cli/import_.py", "calibrate/cli/test_import_cli.py", "guardrail/judges/test_vote.py"),
        ("calibrate/cli/fit.py", "calibrate/cli/test_cli.py", "guardrail/judges/test_vote.py"),
    ],
)
def test_the_nearest_tests_come_first(changed: str, near: str, far: str) -> None:
    first = selected(changed)[:FIRST]
    assert f"tests/{near}" in first
    assert f"tests/{far}" not in first


def test_a_public_name_is_its_module(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text("from guardrail import Guardrail\nfrom calibrate import fit_artifact\n")
    assert {"guardrail.guard.chat_model", "calibrate.pipeline"} <= SCRIPT["imports_of"](path)


def test_what_is_not_a_module_selects_the_tests_that_name_it_and_its_folder() -> None:
    assert "tests/test_readme.py" in selected("README.md")
    assert "tests/guardrail/review/test_review_page.py" in selected("guardrail/review/web/templates/queue.html")
    assert selected("docs/no-such-" + "page.md") == []  # written apart: this file would name it


def test_tests_and_their_helpers_select_tests() -> None:
    assert selected("tests/test_wheel.py") == ["tests/test_wheel.py"]
    assert "tests/browser/test_review.py" in selected("tests/review_pages.py")


def test_what_takes_too_long_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = SCRIPT["pytest_runtest_setup"]
    times = iter([(0.0,) * 5, (0.0,) * 5, (10.0, 0.0, 16.0, 0.0, 99.0)])
    monkeypatch.setattr("os.times", lambda: next(times))
    leave()
    with pytest.raises(pytest.skip.Exception, match="make test"):
        leave()


@pytest.mark.slow
def test_the_command_fails_with_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test_two.py"
    test.write_text("def test_right():\n    assert True\n\n\ndef test_wrong():\n    assert False\n")
    monkeypatch.setitem(SCRIPT["main"].__globals__, "changed_files", lambda base: [])
    monkeypatch.setitem(SCRIPT["main"].__globals__, "selection", lambda changed: [str(test)])
    monkeypatch.setattr("sys.argv", ["changed_tests.py", "--run"])
    assert SCRIPT["main"]() == 1
    assert "1 failed, 1 passed" in capfd.readouterr().out
