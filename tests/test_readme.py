"""The README's commands and code run as they stand, on the embedded model and a few of its questions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "tiny_model" / "orrin-1.5m"
# One thread: with so small a model a second one costs more than it brings, above all on a busy machine.
QUIET = {**os.environ, "OMP_NUM_THREADS": "1"}
QUESTIONS = ROOT / "examples" / "tiny_model" / "questions" / "open.jsonl"


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README assumes it, with `questions.jsonl` and `path/to/model`, calibrated by its command."""
    made = tmp_path_factory.mktemp("readme")
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()[:300]
    (made / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (made / "path" / "to").mkdir(parents=True)
    (made / "path" / "to" / "model").symlink_to(MODEL)
    command = next(line for block in blocks("sh") for line in block.splitlines() if line.startswith("calibrate run"))
    arguments = command.split()[1:]
    ran = subprocess.run(
        [sys.executable, "-m", "calibrate", *arguments],
        cwd=made,
        env=QUIET,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return made


def test_the_command_writes_artifact_and_report(folder: Path) -> None:
    assert (folder / "calibration" / "artifact.json").is_file()
    assert (folder / "calibration" / "report.html").is_file()


def test_the_ten_lines_answer_and_hold_back(folder: Path) -> None:
    code = blocks("python")[0] + (
        "asked = [line['question'] for line in map(__import__('json').loads, open('questions.jsonl'))][:40]\n"
        "answers = chain.batch([{'question': text} for text in asked])\n"
        "held_back = sum('I am not sure enough' in answer for answer in answers)\n"
        "print(held_back, len(answers))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=QUIET, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    held_back, asked = map(int, ran.stdout.split())
    assert 0 < held_back < asked
