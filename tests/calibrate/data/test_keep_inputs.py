"""No command writes over what it reads; changing records in place stays as documented."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.cli.frame.files import keep_inputs
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.pipeline import part_header
from guardrail.errors import UsageError

MODEL = "python:tests.calibrate.fakes:model"


@pytest.fixture(scope="module")
def filled(labelled: RecordFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of every kind, each with its own name."""
    here = tmp_path_factory.mktemp("filled")
    records_path, few = here / "records.jsonl", labelled.records[:100]
    write_records(records_path, part_header(labelled.header, few), few)
    others = ("a.test.jsonl", "a.human.jsonl", "a.rest.jsonl", "a.records.jsonl")
    for name in (*others, "large.jsonl", "r.jsonl"):
        shutil.copy(records_path, here / name)
    for name in ("q.jsonl", "a.skipped.jsonl"):
        shutil.copy(labelled.path.with_name("questions.jsonl"), here / name)
    (here / "people.jsonl").write_text('{"id": "p1", "correct": true}\n')
    assert _run(f"fit {records_path} --alpha 0.15 --out {here / 'artifact.json'}")[0] == 0
    (here / "link.jsonl").symlink_to("r.jsonl")
    return here


@pytest.fixture
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; the commands run there."""
    here = shutil.copytree(filled, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "240")
    return here


def _run(command: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, command.split())
    return result.exit_code, " ".join(result.output.replace("\u2502", " ").split())


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.mark.parametrize(
    "command",
    [
        "fit r.jsonl --alpha 0.15 --out r.jsonl",
        "fit r.jsonl --alpha 0.15 --out ./r.jsonl",
        "fit r.jsonl --alpha 0.15 --out link.jsonl",
        "fit r.jsonl --alpha 0.15 --test large.jsonl --out large.jsonl",
        "fit r.jsonl --alpha 0.15 --human-labels people.jsonl --out people.jsonl",
        "fit a.test.jsonl --alpha 0.15 --test-fraction 0.3 --out a.json",
        "fit a.human.jsonl --alpha 0.15 --human-labels people.jsonl --out a.json",
        "fit r.jsonl large.jsonl --cascade --alpha 0.15 --out r.jsonl",
        "fit r.jsonl large.jsonl --cascade --alpha 0.15 --out large.jsonl",
        "report r.jsonl --artifact artifact.json --out r.jsonl --splits 0",
        "report r.jsonl --artifact artifact.json --out artifact.json --splits 0",
        "report r.jsonl --artifact artifact.json --test large.jsonl --out large.jsonl --splits 0",
        "evaluate r.jsonl large.jsonl --splits 2 --csv large.jsonl",
        "evaluate r.jsonl --splits 2 --json r.jsonl",
        "evaluate r.jsonl --table main --splits 2 --figure r.jsonl",
        "import q.jsonl --replace --out q.jsonl",
        "import a.skipped.jsonl --replace --out a.jsonl",
        f"collect q.jsonl --model {MODEL} --out q.jsonl",
        f"collect q.jsonl --model {MODEL} --tools people.jsonl --out people.jsonl",
        f"run --questions records.jsonl --model {MODEL} --out .",
        "label r.jsonl --labels people.jsonl --out people.jsonl",
        "label r.jsonl --labels r.jsonl --interactive",
        "label r.jsonl --interactive --out r.labels.jsonl",
        "score r.jsonl --pair-cache r.jsonl",
        "learn r.jsonl --artifact a.records.jsonl --out a.json",
        "learn a.records.jsonl --artifact artifact.json --out a.json",
        "learn sqlite:///a.records.jsonl --artifact artifact.json --out a.json",
        "learn r.jsonl --artifact artifact.json --earlier a.records.jsonl --out a.json",
        "learn r.jsonl --tool a --records a.records.jsonl --alpha 0.1 --out a.json",
    ],
)
def test_no_command_writes_over_what_it_reads(folder: Path, command: str) -> None:
    before = _contents(folder)
    code, shown = _run(command)
    assert (code, "would overwrite" in shown) == (2, True), shown
    assert _contents(folder) == before


def test_a_name_that_follows_from_out_is_refused_with_the_way_out(folder: Path) -> None:
    """ "Name another file to write" named no option: the user had not named the file."""
    shown = _run("learn r.jsonl --tool a --records a.records.jsonl --alpha 0.1 --out a.json")[1]
    assert "writing a.records.jsonl would overwrite a.records.jsonl, which is read here." in shown
    assert "give --out another name" in shown


def test_records_are_changed_in_place_where_that_is_documented(folder: Path) -> None:
    for command in (
        "score r.jsonl -s degree --out ./r.jsonl",
        "score r.jsonl -s lexical_similarity",
        "label r.jsonl --labels people.jsonl --out ./r.jsonl",
        "label r.jsonl --rule token_f1 --out r.jsonl",
    ):
        assert _run(command)[0] == 0
    header = read_records(Path("r.jsonl")).header
    assert {"degree", "lexical_similarity"} <= set(header.estimators)
    assert header.correctness is not None
    assert header.correctness.name == "token_f1"


@pytest.mark.parametrize(
    ("command", "folder_of"),
    [
        ("fit r.jsonl --alpha 0.15 --out kept", "kept"),
        ("fit r.jsonl --alpha 0.15 --test-fraction 0.3 --out kept.json", "kept.test.jsonl"),
        ("label r.jsonl --rule exact --out kept", "kept"),
        ("report r.jsonl --artifact artifact.json --out kept", "kept"),
    ],
)
def test_a_folder_in_place_of_an_output_is_named_before_anything_is_written(
    folder: Path, command: str, folder_of: str
) -> None:
    Path(folder_of).mkdir()
    before = _contents(folder)
    code, shown = _run(command)
    assert (code, f"{folder_of} is a folder" in shown) == (2, True), shown
    assert _contents(folder) == before


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A pipe with a name, a link to it, and with a reader, so that nobody who writes to it waits."""
    if not hasattr(os, "mkfifo"):
        pytest.skip("there are no pipes with names here")
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    path.with_name("to-pipe").symlink_to(path)
    yield path
    os.close(reader)


@pytest.mark.parametrize("name", ["pipe", "to-pipe"])
@pytest.mark.parametrize(
    "command",
    [
        "fit r.jsonl --alpha 0.15 --out FILE",
        "label r.jsonl --rule exact --out FILE",
        "report r.jsonl --artifact artifact.json --out FILE --splits 0",
    ],
)
def test_a_special_file_in_place_of_an_output_is_refused_and_stays(
    folder: Path, pipe: Path, command: str, name: str
) -> None:
    """Written by name, a device or the pipe of another program would be replaced by a file."""
    before = _contents(folder)
    code, shown = _run(command.replace("FILE", str(pipe.with_name(name))))
    assert (code, f"{name} is not a regular file" in shown) == (2, True), shown
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert pipe.with_name("to-pipe").is_symlink()
    assert _contents(folder) == before


@pytest.mark.skipif(not Path("/dev/stdout").is_symlink(), reason="there is no such link here")
def test_the_links_of_the_system_are_no_outputs(tmp_path: Path) -> None:
    keep_inputs([], [tmp_path / "new.json"])
    with pytest.raises(UsageError, match="/dev/stdout is not a regular file"):
        keep_inputs([], [Path("/dev/stdout")])


@pytest.mark.parametrize("command", ["fit r.jsonl --alpha 0.15 --out FILE", "label r.jsonl --rule exact --out FILE"])
def test_an_output_that_cannot_be_written_has_the_name_that_was_given(folder: Path, command: str) -> None:
    name = 124 * "\u00e9"  # 248 bytes; the part written first has a longer name, too long for a file system
    code, shown = _run(command.replace("FILE", name))
    assert (code, f"{name} cannot be written" in shown, ".part" in shown) == (1, True, False), shown
