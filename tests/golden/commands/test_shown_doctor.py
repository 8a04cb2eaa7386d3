"""`guardrail doctor`: what it finds, and how to fix it."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from guardrail import doctor
from guardrail.__main__ import main
from guardrail.artifact import CalibrationArtifact, CascadeArtifact, CascadeOutcome, StageShare
from guardrail.judges import JudgeSpec
from guardrail.outcome import InfeasibleReason
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator, make_estimator
from tests.golden.commands import plants
from tests.golden.commands.terminal import Terminal
from tests.golden.shown import same
from tests.guardrail.test_doctor import MODEL, OTHER, BadRequestError, Leaving, Refusing, Stubborn, Stuck, at_zero, sure

HERE = "python:tests.golden.commands.test_shown_doctor"
TESTS = "python:tests.guardrail.test_doctor"
NOW = datetime(2026, 7, 1, tzinfo=UTC)
STUBBORN = Stubborn(script=MODEL.script, own={"temperature": 0.2, "stop": ["!"], "frequency_penalty": 0.5, "seed": 0})
LEAVING = Leaving(script=MODEL.script)
STUCK = Stuck(script=MODEL.script)
HOT = Refusing(script=MODEL.script, refuses=at_zero("`temperature` is deprecated for this model."))
FULL = Refusing(script=MODEL.script, refuses=lambda settings: BadRequestError("the prompt is too long"))
LONG = Refusing(script=MODEL.script, longest=40)
ONE = "What is the capital of France?"


class Today(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return NOW


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Terminal:
    """A terminal in an empty folder, on a fixed day, in an environment that has no other packages of our names."""
    monkeypatch.setattr(doctor, "datetime", Today)
    monkeypatch.setattr(doctor, "_shared_names", lambda: iter(()))
    monkeypatch.setattr("tests.guardrail.test_doctor.NUMBERS", itertools.count())
    return Terminal(monkeypatch, tmp_path)


class Doctor:
    """Runs the command and writes down what it prints."""

    def __init__(self, terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
        self.terminal, self.capsys = terminal, capsys

    def __call__(self, line: str) -> None:
        code = main(["doctor", *line.split()])
        out, err = self.capsys.readouterr()
        text = re.sub(r"\d+\.\d\d s\b", "0.00 s", out + err)
        self.terminal.say(f"$ guardrail doctor {line}\n{text}" + (f"exit code {code}\n" if code else ""))


@pytest.fixture
def run(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command."""
    return Doctor(terminal, capsys)


def save(name: str, *, created: datetime = NOW, model: Any = MODEL, **changed: Any) -> None:
    """Write an artifact."""
    settings = {key: changed.pop(key) for key in ("threshold", "estimator", "alpha") if key in changed}
    artifact = make_artifact(model, **settings).model_copy(update={"created": created.isoformat(), **changed})
    artifact.save(name)


def test_artifacts(terminal: Terminal, run: Doctor) -> None:
    save("a.json")
    run(f"a.json --model {TESTS}:MODEL")
    run(f"a.json --model {TESTS}:MODEL --json")
    run("a.json")
    run("none.json")
    Path("broken.json").write_text('{"schema_version": 1', encoding="utf-8")
    run("broken.json")
    save("none.json", threshold=None)
    run("none.json")
    save("old.json", created=datetime(2025, 1, 1, tzinfo=UTC), packages={"numpy": "0.1", "nothing": "1"})
    run("old.json --max-age-days 30")
    text = re.sub(r"numpy \S+ is running", "numpy VERSION is running", terminal.lines[-1])
    terminal.lines[-1] = text
    save("undated.json")
    made = make_artifact(MODEL)
    made.model_copy(update={"created": "yesterday"}).save("undated.json")
    run("undated.json")
    cut = made.data.model_copy(update={"n_questions": 100, "n_cut_off": 3})
    save("cut.json", data=cut)
    run("cut.json")
    save("few.json", data=cut.model_copy(update={"n_cut_off": 1}), plan=made.plan.primary_only())
    run("few.json")
    save("majority.json", plan=made.plan.model_copy(update={"primary": "majority"}))
    run(f"majority.json --model {TESTS}:MODEL --question {ONE.split()[0]}")
    save("similar.json", estimator="graded_disagreement")
    run(f"similar.json --model {TESTS}:MODEL")
    same("commands/doctor_artifacts.txt", terminal.text)


def test_models(terminal: Terminal, run: Doctor) -> None:
    save("a.json")
    run(f"a.json --model {TESTS}:OTHER")
    run(f"a.json --model {TESTS}:MODEL --model {TESTS}:OTHER")
    run("a.json --model python:no.such:model")
    run(f"a.json --model {TESTS}:leaves")
    for name in ("STUBBORN", "LEAVING", "STUCK", "HOT", "FULL", "LONG"):
        run(f"a.json --model {HERE}:{name}")
    save("sampled.json", plan=SamplingPlan(n=10, temperature=1.0, top_p=1.0, primary="sampled", logprobs=True))
    run(f"sampled.json --model {HERE}:LONG")
    run(f"--model {HERE}:STUCK")
    run(f"--model {HERE}:LONG --model {TESTS}:MODEL")
    run("--model python:no.such:model")
    run("")
    save("scorer.json", estimator=sure.estimator)
    run(f"scorer.json --model {TESTS}:MODEL")
    run(f"scorer.json --model {TESTS}:MODEL --scorer tests.guardrail.test_doctor:sure")
    run(f"scorer.json --model {TESTS}:MODEL --scorer tests.guardrail.test_doctor:failing")
    save("tokens.json", estimator="semantic_entropy")
    run(f"tokens.json --model {TESTS}:MODEL")
    same("commands/doctor_models.txt", terminal.text)


def cascade(name: str, *thresholds: float | None) -> None:
    """Write a cascade of two models; infeasible where no stage has a threshold."""
    stages = tuple(make_artifact(model, threshold=at) for model, at in zip((MODEL, OTHER), thresholds, strict=True))
    shares = tuple(StageShare(threshold=at, n_accepted=0 if at is None else 50, n_errors=0) for at in thresholds)
    outcome = CascadeOutcome(
        rule="lec_joint", alpha=0.1, delta=None, n=200, guarantee="", stages=shares, interval=None,
        reason=None if any(at is not None for at in thresholds) else InfeasibleReason.TOO_FEW_ITEMS, detail="few",
    )  # fmt: skip
    created = NOW.isoformat()
    CascadeArtifact(created=created, stages=stages, outcome=outcome, certificate=outcome, packages={}).save(name)


def fit(terminal: Terminal, options: str, name: str) -> None:
    """Write an artifact of r.jsonl, made on the day of the tests by no package."""
    shown = len(terminal.lines)
    terminal.run(f"fit r.jsonl -e semantic_entropy {options} --out {name}")
    del terminal.lines[shown:]
    made = CalibrationArtifact.load(name)
    made.model_copy(update={"created": NOW.isoformat(), "packages": {}}).save(name)


def test_cascades_segments_and_records(terminal: Terminal, run: Doctor) -> None:
    cascade("c.json", 0.5, None)
    run(f"c.json --model {TESTS}:MODEL --model {TESTS}:OTHER")
    run(f"c.json --model {TESTS}:MODEL")
    run("c.json --records r.jsonl")
    cascade("none.json", None, None)
    run("none.json")
    plants.labelled("r.jsonl", 150)
    plants.labelled("fresh.jsonl", 110, "f")
    fit(terminal, "-a 0.2 --by group --min-labels 50", "by.json")
    run("by.json")
    fit(terminal, "-a 0.05 --rule certified --delta 0.01 --by group", "strict.json")
    run("strict.json")
    fit(terminal, "-a 0.1", "a.json")
    run("a.json --records fresh.jsonl")
    run("a.json --records r.jsonl")
    run("a.json --records none.jsonl")
    same("commands/doctor_others.txt", terminal.text)


def test_judges_and_similarities(terminal: Terminal) -> None:
    class Broken:
        """A judge, and a similarity, with fixed replies."""

        spec = JudgeSpec(name="broken", version=1, params={})

        def __init__(self, *replies: Any) -> None:
            self.replies = replies

        def equivalent(self, question: str, pairs: Any) -> Any:
            if isinstance(self.replies[0], Exception):
                raise self.replies[0]
            return list(self.replies)

        similarity = equivalent

    base = make_estimator("graded_disagreement")
    verdicts: list[tuple[Any, ...]] = [(True, True), (None, False), (True, False), (RuntimeError("no weights"),)]
    for replies in verdicts:
        estimator = Estimator(**{**vars_of(base), "judge": Broken(*replies), "similarity": None})
        terminal.say("\n".join(map(str, doctor._judge(estimator))))
    rates: list[tuple[Any, ...]] = [(0.5, 0.5), (None, 0.1), (0.9, 0.1), (RuntimeError("no weights"),)]
    for replies in rates:
        estimator = Estimator(**{**vars_of(base), "judge": None, "similarity": Broken(*replies)})
        terminal.say("\n".join(map(str, doctor._judge(estimator))))
    terminal.lines = [re.sub(r"\d+\.\d\d s\b", "0.00 s", line) for line in terminal.lines]
    same("commands/doctor_judges.txt", terminal.text)


def vars_of(estimator: Estimator) -> dict[str, Any]:
    """The fields of an estimator."""
    return {name: getattr(estimator, name) for name in estimator.__dataclass_fields__}
