"""Shared fixtures: a population that was collected, scored and labelled once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO

import pytest

from calibrate.cli.frame.terminal import errors
from calibrate.correctness import Exact, label_records
from calibrate.data.collect import collect_records
from calibrate.data.formats.questions import read_questions
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.evaluation.planning import labels_needed
from calibrate.scoring.compute import score_records, supported
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.plan import plan_for
from tests.calibrate import fakes


@pytest.fixture(autouse=True)
def _wide_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of temporary folders differ in length from machine to machine, and must not be broken by a box."""
    monkeypatch.setattr(errors, "width", 400)


@pytest.fixture
def whole_figures() -> None:
    """For tests that look at what a report draws."""


@pytest.fixture(autouse=True)
def _outlined_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are put together, but not rendered, which takes longer than the rest of most commands."""
    if "whole_figures" not in request.fixturenames:
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", outline)


@pytest.fixture
def whole_forecasts() -> None:
    """For tests of how many labels would do."""


@pytest.fixture(autouse=True)
def _short_forecasts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit without a certificate simulates 60 calibrations at each of seven sizes, a fifth of the time of commands."""
    if "whole_forecasts" not in request.fixturenames:
        monkeypatch.setattr("calibrate.report.assessment.labels_needed", partial(labels_needed, repetitions=3))


def outline(_: object, stream: IO[bytes], *, format: str, **__: object) -> None:
    stream.write(b"<svg></svg>" if format == "svg" else b"\x89PNG\r\n\x1a\n")


@pytest.fixture(scope="session")
def plan() -> SamplingPlan:
    return plan_for([make("semantic_entropy")])


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory, plan: SamplingPlan) -> RecordFile:
    """The fakes' population with every score and labels, on disk."""
    folder = tmp_path_factory.mktemp("population")
    questions = read_questions(fakes.write_questions(folder / "questions.jsonl"))
    path = folder / "records.jsonl"
    collect_records(questions, fakes.model(), plan, path, name="questions.jsonl")
    file = score_records(read_records(path), supported(plan))
    header = file.header.model_copy(update={"correctness": Exact().spec})
    write_records(path, header, label_records(file.records, Exact()))
    return read_records(path)


@pytest.fixture
def records_path(labelled: RecordFile, tmp_path: Path) -> Path:
    """A private copy of the labelled record file."""
    copy = tmp_path / "records.jsonl"
    copy.write_bytes(labelled.path.read_bytes())
    return copy
