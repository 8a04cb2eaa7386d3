"""`calibrate select`: the file it writes, and the inputs it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.records import RecordFile, write_records
from calibrate.thresholds import conformal_selection

NAME = "discrete_semantic_entropy"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["select", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture
def halves(labelled: RecordFile, tmp_path: Path) -> tuple[Path, Path]:
    """A labelled file, and a batch without labels."""
    known, batch = tmp_path / "known.jsonl", tmp_path / "batch.jsonl"
    write_records(known, labelled.header, labelled.records[:160])
    bare = labelled.header.model_copy(update={"correctness": None})
    write_records(batch, bare, [record.model_copy(update={"correct": None}) for record in labelled.records[160:]])
    return known, batch


def test_the_file_says_what_the_function_selects(
    labelled: RecordFile, halves: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "selection.jsonl"
    code, output = run(*halves, "--alpha", "0.15", "-e", NAME, "-o", out)
    assert code == 0, output
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    scores = np.array([record.scores[NAME].value for record in labelled.records], dtype=float)
    error = np.array([not record.correct for record in labelled.records[:160]], dtype=int)
    expected = conformal_selection(scores[:160], error, scores[160:], 0.15)
    assert [row["selected"] for row in rows] == expected.accepted.tolist()
    assert [row["p_value"] for row in rows] == expected.p_value.tolist()
    assert 0 < expected.n_accepted < 80
    assert f"{expected.n_accepted} of 80 answers selected" in output
    assert "It says nothing about single batches." in output


def test_a_batch_that_calibration_has_seen_is_refused(labelled: RecordFile, halves: tuple[Path, Path]) -> None:
    code, output = run(halves[0], halves[0], "--alpha", "0.3", "-e", NAME)
    assert code == 2
    assert "is in two of the files" in output
    write_records(halves[1], labelled.header, [labelled.records[0].model_copy(update={"id": "other"})])
    code, output = run(*halves, "--alpha", "0.3", "-e", NAME)
    assert code == 2
    assert "1 questions are in both files" in output


def test_calibration_records_without_a_label_are_refused(labelled: RecordFile, halves: tuple[Path, Path]) -> None:
    first = labelled.records[0].model_copy(update={"correct": None, "references": ()})
    write_records(halves[0], labelled.header, [first, *labelled.records[1:160]])
    code, output = run(*halves, "--alpha", "0.3", "-e", NAME)
    assert code == 2
    assert "1 scored records" in output
