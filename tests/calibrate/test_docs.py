"""Every command in docs/cli.md runs, in order, in a fresh folder."""

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

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', flags=re.MULTILINE | re.DOTALL)


def test_every_command_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    commands = []
    try:
        for language, title, text in BLOCK.findall(PAGE):
            if title:
                Path(title).write_text(text, encoding="utf-8")
            elif language == "bash":
                commands += text.splitlines()
                for line in text.splitlines():
                    program, *arguments = shlex.split(line)
                    if program == "python":
                        runpy.run_path(arguments[0], run_name="__main__")
                        continue
                    assert program == "calibrate"
                    result = CliRunner().invoke(app, arguments)
                    assert result.exit_code == 0, (line, result.output, result.exception)
    finally:
        sys.modules.pop("demo", None)
    assert len(commands) == 26
    assert CalibrationArtifact.load("results/artifact.json").outcome.rule == "certified"
    assert Path("report.html").is_file()
    assert CalibrationArtifact.load("people.json").outcome.rule == "prediction_powered"
    assert Path("panels.png").is_file()
