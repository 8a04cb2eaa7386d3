"""A file of another kind than the command reads: each error shows what is there, and a way out that works."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.dataframe import from_frame
from guardrail.errors import RecordError, UsageError

ROWS = [{"prompt": f"{i}?", "gold": f"{i}", "gen1": f"{i}", "gen2": "x", "sure": 0.9} for i in range(4)]


def table(path: Path, separator: str = ",") -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ROWS[0], delimiter=separator)
        writer.writeheader()
        writer.writerows(ROWS)
    return path


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "400"})
    assert result.exit_code in (1, 2), result.output
    return " ".join(result.output.replace("\u2502", " ").split())


@pytest.mark.parametrize("samples", ["gen1,gen3", "gen9", "generations"])
def test_wrong_sample_columns_show_the_columns(tmp_path: Path, samples: str) -> None:
    path = table(tmp_path / "a.csv")
    for more in ((), ("--skip-bad", "0.1")):
        shown = refused("import", path, "--map", "question=prompt", "--map", f"samples={samples}", *more)
        assert f"has a column '{samples.split(',')[-1]}'; there are gen1, gen2, gold, prompt, sure." in shown
        assert "Did you mean" in shown or samples == "generations"


def test_a_cell_that_is_empty_is_no_missing_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,gen1,gen2\na,x,y\nb,,\n")
    shown = refused("import", path, "--map", "question=prompt", "--map", "samples=gen1,gen2", "--map", "score=gen2")
    assert "has a column" not in shown


def test_a_csv_file_given_to_a_command_for_records(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    for command in (("score", path), ("label", path)):
        shown = refused(*command)
        assert f"{path} is a table with the columns prompt,gold,gen1,gen2,sure, not a record file." in shown
        assert f"calibrate import {path} --map question=COLUMN" in shown


def test_one_answer_without_samples(tmp_path: Path) -> None:
    path, out = table(tmp_path / "a.csv"), tmp_path / "r.jsonl"
    shown = refused("import", path, "--map", "question=prompt", "--map", "samples=gen1")
    assert "there is one sample a question" in shown
    assert "--map answer=COLUMN" in shown
    assert "There are the columns gen1, gen2, gold, prompt, sure." in shown
    mapped = ("--map", "question=prompt", "--map", "answer=gen1", "--map", "references=gold")
    assert CliRunner().invoke(app, ["import", str(path), "--out", str(out), *mapped]).exit_code == 0
    shown = refused("score", out)
    assert "one answer a question and no samples" in shown
    assert "--map confidence=NAME:COLUMN" in shown


def test_errors_of_python_name_arguments_of_python() -> None:
    good = {"question": "prompt", "samples": ["gen1", "gen2"]}
    calls = (
        ({**good, "samples": "answers"}, "there are gen1, gen2, gold, prompt, sure."),
        ({**good, "samples": ["gen1", "gen3"]}, "Did you mean 'gen2'?"),
        ({**good, "samples": "gen1"}, 'samples=["COLUMN", "COLUMN"]'),
        ({**good, "references": "golden"}, "Did you mean 'gold'?"),
        ({**good, "logprobs": "sure"}, "drop the column logprobs"),
        ({"question": "prompt"}, 'confidence="COLUMN" if high is sure, score="COLUMN" if high is unsure'),
        ({"samples": ["gen1", "gen2"]}, 'question="COLUMN"'),
        ({**good, "question": "prompt", "confidence": "gold"}, 'certainty="gold"'),
        ({**good, "model": "gold"}, 'frame[frame["gold"] == "'),
    )
    for arguments, way_out in calls:
        with pytest.raises((RecordError, UsageError)) as caught:
            from_frame(ROWS, **arguments)
        assert way_out in str(caught.value)
        assert "--" not in str(caught.value)
    assert not any("--" in note for note in from_frame(ROWS, question="prompt", samples=["gen1", "gen2"]).notes)
