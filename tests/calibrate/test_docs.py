"""Every command in docs/calibrating.md and docs/data.md runs, in order, in a fresh folder; so does the notebook."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from guardrail.artifact import CalibrationArtifact

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', flags=re.MULTILINE | re.DOTALL)


def run_page(name: str) -> dict[str, str]:
    """Run the commands of a page in the current folder, and write its titled blocks; outputs by command, in order."""
    outputs = {}
    for language, title, text in BLOCK.findall((ROOT / "docs" / name).read_text(encoding="utf-8")):
        if title:
            Path(title).write_text(text, encoding="utf-8")
        elif language == "bash":
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                if program == "python":
                    runpy.run_path(arguments[0], run_name="__main__")
                    outputs[line] = ""
                    continue
                assert program == "calibrate"
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == 0, (line, result.output, result.exception)
                outputs[line] = " ".join(result.output.split())
    return outputs


@pytest.mark.slow
def test_every_command_on_the_pages_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        commands = {**run_page("calibrating.md"), **run_page("data.md")}
    finally:
        sys.modules.pop("demo", None)
    assert len(commands) > 20
    assert CalibrationArtifact.load("results/artifact.json").outcome.rule == "certified"
    assert Path("report.html").is_file()
    assert CalibrationArtifact.load("people.json").outcome.rule == "prediction_powered"
    assert Path("panels.png").is_file()


def test_from_unlabelled_questions_to_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    run_page("label-where-it-matters.md")
    artifact = CalibrationArtifact.load("artifact.json")
    assert artifact.acceptance >= 0.3
    assert artifact.outcome.scope.is_drawn
    assert artifact.threshold is not None
    assert artifact.outcome.scope.covers(artifact.threshold)


def test_the_page_of_items_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = run_page("items.md")
    fitted = next(shown for line, shown in outputs.items() if " fit " in line)
    assert "at most 5 % of the items kept are wrong, with 90 % confidence" in fitted
    assert CalibrationArtifact.load("artifact.json").threshold is not None
    assert Path("report.html").is_file()
    for language, title, text in BLOCK.findall((ROOT / "docs" / "items.md").read_text(encoding="utf-8")):
        if language == "python" and not title:
            exec(compile(text, "items.md", "exec"), {})


def test_the_notebook_runs_and_shows_tables_and_figures() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "examples" / "calibrate.ipynb", as_version=4)
    where = {"metadata": {"path": str(ROOT / "examples")}}
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=120, resources=where).execute()
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert (shown.count("text/html"), shown.count("image/png")) == (3, 2)


def test_the_page_of_a_chat_app_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A system prompt, a slot and second turns, calibrated and answered as the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        run_page("chat.md")
        assert CalibrationArtifact.load("chat/artifact.json").data.turns == ("human", "human,ai,human")
        capsys.readouterr()
        for language, title, text in BLOCK.findall((ROOT / "docs" / "chat.md").read_text(encoding="utf-8")):
            if language == "python" and not title:
                exec(compile(text, "chat.md", "exec"), {})
        assert capsys.readouterr().out == "Yes.\n"
    finally:
        sys.modules.pop("shop", None)
