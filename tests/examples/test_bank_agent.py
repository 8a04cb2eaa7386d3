"""The bank's agent, command by command; across a restart in separate processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("langchain.agents", reason="the `agents` extra is not installed")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="langgraph-checkpoint-sqlite is not installed")
pytest.importorskip("sqlalchemy", reason="the `review` extra is not installed")

from examples.bank_agent.__main__ import main
from examples.bank_agent.calibration import ALPHA, calibrate, recorded
from examples.bank_agent.model import readings
from examples.bank_agent.screen import CONSOLE, show_held, show_line, show_note
from examples.demo.screen import CONSOLE as DEMO
from examples.demo.screen import examples_table
from guardrail import CalibrationArtifact, Feasible

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> CalibrationArtifact:
    return calibrate(tmp_path_factory.mktemp("bank"))


@pytest.fixture
def folder(artifact: CalibrationArtifact, tmp_path: Path) -> Path:
    artifact.save(tmp_path / "transfers.json")
    return tmp_path


def test_no_text_of_the_agent_commands_the_terminal_of_the_person_who_decides() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202exela[bold]"
    call = json.dumps({"name": "transfer", "arguments": {"to": evil, "amount": 40}})
    value = {
        "verdict": {"uncertainty": {"value": 1.0}, "threshold": 0.5},
        "alternatives": [{"text": call, "share": 0.6}, {"text": evil, "share": 0.4}],
        "action_requests": [{"name": "transfer", "args": {"to": evil, "amount": 40}}],
        "question": evil,
    }
    with CONSOLE.capture() as bank:
        show_line("agent", evil)
        show_note(evil)
        show_held(value, "ticket")
    with DEMO.capture() as demo:
        examples_table(evil, [[evil]], [evil])
    shown = bank.get() + demo.get()
    assert not set(shown) & set("\x1b\x07\u202e")
    assert shown.count("]0;owned") >= 6
    assert "[bold]" in shown
    assert shown.count(r"\x1b]0;owned\x07\x1b[2J\u202exela") == 9, "in full: nothing of it is cut off"


def run(folder: Path, *arguments: str, status: int = 0) -> str:
    """Run a command in another process."""
    command = [sys.executable, "-W", "error", "-m", "examples.bank_agent", "--folder", str(folder), *arguments]
    # Strict: a checkpoint with anything but plain types would not load in the next process.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "LANGGRAPH_STRICT_MSGPACK": "true",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def sent(folder: Path) -> list[tuple[str, int]]:
    connection = sqlite3.connect(folder / "bank.db")
    try:
        return list(connection.execute("SELECT payee, euros FROM sent"))
    finally:
        connection.close()


def test_the_artifact_is_fitted_on_what_was_meant(artifact: CalibrationArtifact) -> None:
    outcome = artifact.outcome
    assert isinstance(outcome, Feasible)
    assert outcome.alpha == ALPHA
    assert 300 < outcome.n_accepted < 600
    assert 0 < outcome.n_errors < ALPHA * outcome.n_accepted
    assert artifact.plan.bindings is not None
    assert artifact.plan.bindings.tool_names == ("balance", "transfer")
    assert artifact.correctness.params == {"arguments": {"transfer": ["amount", "to"]}}
    references = [step.references[0] for step in recorded(5)]
    assert references == [step.references[0] for step in recorded(5)]  # seeded


def here(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Run a command in this process, for tests that need no restart."""
    assert main(["--folder", str(folder), *arguments]) == status
    return capsys.readouterr().out


def test_a_clear_transfer_and_a_balance_go_through(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = here(folder, capsys, "ask", "Send 30 euros to Bob Stone, please.")
    assert "Sent 30 euros to Bob Stone." in shown
    assert "held" not in shown
    assert "1170" in here(folder, capsys, "ask", "What is my balance?")
    assert "Nothing waits here." in here(folder, capsys, "resume")


def test_an_unclear_transfer_is_held_and_runs_once_after_a_restart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = run(folder, "ask", "Send 40 euros to Alex")
    assert "held for a person" in shown
    assert "Alex Chen" in shown
    assert "Alex Meyer" in shown
    assert sent(folder) == []
    assert "Nothing was decided yet." in here(folder, capsys, "resume")
    assert "still waits" in here(folder, capsys, "ask", "hello", status=1)
    assert "approve" in here(folder, capsys, "review", "approve")
    assert sent(folder) == []  # decided, not yet run
    assert "Sent 40 euros to Alex Meyer." in run(folder, "resume")
    assert sent(folder) == [("alex.meyer", 40)]
    assert "Nothing waits here." in here(folder, capsys, "resume")
    assert sent(folder) == [("alex.meyer", 40)]


def test_a_person_may_edit_at_the_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["e", "", "alex.chen"])
    monkeypatch.setattr(CONSOLE, "input", lambda _: next(typed))
    here(folder, capsys, "ask", "Send 40 euros to Alex")
    here(folder, capsys, "review")
    assert "Sent 40 euros to Alex Chen." in here(folder, capsys, "resume")
    assert sent(folder) == [("alex.chen", 40)]


def test_a_rejected_transfer_is_not_sent(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONSOLE, "input", lambda _: "x")
    here(folder, capsys, "ask", "Send 40 euros to Alex")
    assert "not a decision" in here(folder, capsys, "review", status=1)
    here(folder, capsys, "review", "reject")
    assert "nothing was sent" in here(folder, capsys, "resume")
    assert sent(folder) == []


def test_a_decision_that_breaks_off_leaves_the_transfer_waiting(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here(folder, capsys, "ask", "Send 40 euros to Alex")
    for typed, message in (
        (["e"], "input ended"),
        ([], "input ended"),
        (["e", "lots"], "'lots' is not a whole number"),
    ):
        lines = iter(typed)

        def read(_: str, lines: Iterator[str] = lines) -> str:
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(CONSOLE, "input", read)
        assert message in here(folder, capsys, "review", status=1)
    here(folder, capsys, "review", "approve")  # nobody holds it


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit) as caught:
        main(["--folder", str(file / below), "review"])
    assert caught.value.code == 2
    message = capsys.readouterr().err
    assert f"--folder {str(file / below)!r}" in message
    assert "Name another one." in message


def test_readings_are_what_a_request_may_mean() -> None:
    assert readings("Send 5 euros to Bob") == [{"to": "bob.stone", "amount": 5}]
    assert [reading["to"] for reading in readings("send 5 to sam")] == ["sam.oak", "sam.reed"]
    assert [reading["amount"] for reading in readings("Pay Yuki the usual")] == [12, 15, 20]
    assert readings("hello") == []
