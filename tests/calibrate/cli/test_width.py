"""A terminal of 80 columns: help shows every option name whole, and tables fit."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.cli.frame.terminal import VisibleConsole, console
from calibrate.data.records import RecordFile, write_records
from calibrate.pipeline import part_header
from guardrail.__main__ import list_commands, main
from guardrail.artifact import RouterArtifact
from tests.calibrate.test_cascade import better

ROOT = Path(__file__).parents[3]
GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}


def cut_names(text: str, names: Iterator[str]) -> list[str]:
    """Names that do not stand whole in the text."""
    words = set(re.split(r"[\s,|\[\]]+", text))
    return [name for name in names if name not in words]


def help_of_calibrate(*command: str) -> str:
    """The help in a terminal of 80 columns."""
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert max(map(len, shown.splitlines())) <= 80
    return shown


def test_help_of_calibrate_shows_whole_names_of_commands() -> None:
    """A user copies the name of a command: half of one is "no such command"."""
    assert cut_names(help_of_calibrate(), iter(COMMANDS)) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_whole_names_of_options_and_an_example(command: str) -> None:
    """A user copies options and follows the link: a cut name, or a heading that is gone, leads nowhere."""
    shown = help_of_calibrate(command)
    assert len(shown.splitlines()) <= 45, "a screen"
    page, anchor = re.findall(r"Documentation: ([\w/.-]+)#?([\w-]*)", shown)[0]
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert anchor in ("", *(re.sub(r"\W+", "-", heading.lower()) for heading in headings))
    names = (name for option in COMMANDS[command].params for name in (*option.opts, *option.secondary_opts))
    assert cut_names(shown, (name for name in names if "-" in name)) == []
    assert "\u2026" not in shown
    assert f"Example: calibrate {command}" in " ".join(shown.split()) or command == "sample"


@pytest.mark.parametrize("command", [None, *list_commands()])
def test_help_of_guardrail_shows_whole_names(
    command: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"] if command is None else [command, "--help"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    names = iter(list_commands()) if command is None else iter(FLAGS[command])
    assert cut_names(shown, names) == []


FLAGS = {
    "doctor": ("--model", "-m", "--scorer"),
    "monitor": ("--db",),
    "review": ("--allowed-host", "--add-token", "--role", "--purge", "--dry-run"),
    "serve": ("--config", "--upstream", "--artifact", "--set", "--new-key"),
}


def test_a_cut_name_is_noticed() -> None:
    assert cut_names("--test-frac\u2026  <path>\n-m, --model <str>", iter(["--test-fraction", "--model", "-m"])) == [
        "--test-fraction"
    ]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Width, in a terminal of 80 columns, of every table that a command prints, by its title."""
    widths: dict[str, int] = {}
    printed = VisibleConsole.print

    def measured(self: VisibleConsole, *objects: Any, **options: Any) -> None:
        for table in objects:
            if isinstance(table, Table):
                narrow = VisibleConsole(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
                printed(narrow, table)
                lines = narrow.file.getvalue().splitlines()  # type: ignore[attr-defined]
                widths[" ".join(str(table.title).split()[:2])] = max(map(len, lines))
        printed(self, *objects, **options)

    monkeypatch.setattr(VisibleConsole, "print", measured)
    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "width", 80)
    return widths


NAMES = {"trees": "t" * 60, "shrubs": "a group of all shrubs " * 3, "herbs": f"herbs/{'h' * 54}"}
"""Names of groups with 60 characters: in one word, in several, and behind a slash."""
LONG_NAMES = {
    "score": "score R -s degree",
    "all scores": "score R -s all -s semantic_entropy:text(threshold=0.7)",
    "choice": "fit R -a 0.15 --rule acrc --score auto --test-fraction 0.3 -o OUT",
    "fit": "fit R -a 0.3 -s degree --by group --test-fraction 0.3 -o OUT",
    "promise": "report A",
    "audit": "audit --records T --artifact A",
    "evaluate": "evaluate R -a 0.3 -s degree --splits 2",
    "paper": "evaluate R --table all --splits 2 -s semantic_entropy -s degree",
    "guesses": "plan -a 0.1 --accuracy 0.8 --auroc 0.8 --repetitions 2",
    "plan": "plan -a 0.3 --records R --pilot R --labels 40 --repetitions 2 -s degree",
    "report": "report R --artifact B --test T --out OUT.html --splits 0",
    "sample": "sample --records U --n 40 -s degree -o OUT.jsonl",
    "cascade": "fit R L --cascade -a 0.3 -s degree -o OUT",
}


@pytest.fixture(scope="module")
def long_names(labelled: RecordFile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files whose groups have long names: records, those of a better model, an artifact and a router."""
    folder = tmp_path_factory.mktemp("long")
    records = [record.model_copy(update={"group": NAMES[str(record.group)][:60]}) for record in labelled.records]
    file = RecordFile(folder / "records.jsonl", part_header(labelled.header, records), tuple(records))
    paths = {"R": file.path, "L": folder / "large.jsonl", "A": folder / "a.json", "U": folder / "u.jsonl"}
    paths["T"] = folder / "a.test.jsonl"
    write_records(file.path, file.header, file.records)
    unlabelled = [record.model_copy(update={"correct": None}) for record in records]
    write_records(paths["U"], file.header.model_copy(update={"correctness": None}), unlabelled)
    write_records(paths["L"], better(file).header, better(file).records)
    command = f"fit {file.path} -a 0.3 -s degree --by group --test-fraction 0.3 -o {paths['A']}".split()
    assert CliRunner().invoke(app, command).exit_code == 0
    paths["B"] = RouterArtifact.load(paths["A"]).artifacts[NAMES["trees"]].save(folder / "b.json")
    return paths


@pytest.mark.parametrize("name", LONG_NAMES)
def test_tables_with_names_of_60_characters_fit(
    name: str, long_names: dict[str, Path], tables: dict[str, int], tmp_path: Path
) -> None:
    assert {len(group[:60]) for group in NAMES.values()} == {60}
    files = long_names | {name: tmp_path / name.lower() for name in ("OUT", "OUT.html", "OUT.jsonl")}
    command = [str(files.get(word, word)) for word in LONG_NAMES[name].split()]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "80"})
    assert result.exit_code in (0, 1), result.output
    assert not (result.exit_code and "Error" in result.output), result.output
    assert {title: width for title, width in tables.items() if width > 80} == {}
    has_groups = any(title.startswith("Groups") for title in tables)
    assert has_groups == (name in ("fit", "promise", "audit")), tables
    assert tables or name in ("report", "sample")
