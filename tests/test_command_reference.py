"""The command reference of the site names every command, option and default, as the commands state them."""

from __future__ import annotations

import re
import runpy
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from calibrate.cli import app
from guardrail.__main__ import list_commands
from tests.test_journeys import CONFIG

ROOT = Path(__file__).resolve().parent.parent
HOOK = runpy.run_path(str(ROOT / "scripts" / "command_reference.py"))
PAGE: str = HOOK["on_page_markdown"]((ROOT / "docs" / "cli.md").read_text(encoding="utf-8"))
GROUP: Any = typer.main.get_command(app)
CALIBRATE: dict[str, Any] = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}


def section(page: str, title: str) -> str:
    """The text under a heading, up to the next; empty without the heading."""
    start = re.search(rf"^## {re.escape(title)} .*$", page, flags=re.MULTILINE)
    return page[start.end() :].partition("\n## ")[0] if start else ""


def missing(page: str) -> list[str]:
    """Commands and options without a row or line in the section of their command."""
    absent = []
    for name, command in CALIBRATE.items():
        text = section(page, f"calibrate {name}")
        rows = " ".join(re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE))
        flags = [flag for each in command.params if each.param_type_name == "option" for flag in each.opts]
        absent += [f"calibrate {name}"] * (not text)
        absent += [f"calibrate {name} {flag}" for flag in flags if flag not in re.split(r"[ ,/]+", rows)]
    for name, (module, _) in list_commands().items():
        parser = ArgumentParser()
        import_module(module).add_arguments(parser)
        text = section(page, f"guardrail {name}")
        flags = [flag for action in parser._actions for flag in action.option_strings]
        absent += [f"guardrail {name}"] * (not text)
        absent += [f"guardrail {name} {flag}" for flag in flags if not re.search(rf"^  (-.*, )?{flag}\b", text, re.M)]
    return absent


def test_every_command_and_option_is_on_the_page() -> None:
    assert len(CALIBRATE) + len(list_commands()) >= 12
    assert missing(PAGE) == []


@pytest.mark.parametrize(
    ("line", "absent"),
    [
        (r"^\| `--test-fraction <float>.*\n(?=\| `--test FILE)", ["calibrate fit --test-fraction"]),
        (r"^\| `--human-labels <.*\n", ["calibrate fit --human-labels"]),
        (r"^  --dry-run .*\n", ["guardrail review --dry-run"]),
    ],
)
def test_a_missing_option_is_noticed(line: str, absent: list[str]) -> None:
    cut, times = re.subn(line, "", PAGE, flags=re.MULTILINE)
    assert times == 1
    assert missing(cut) == absent


def test_a_missing_command_is_noticed() -> None:
    assert "calibrate audit" in missing(PAGE.replace("## calibrate audit", "## calibrate"))


def test_help_and_defaults_are_those_of_the_commands() -> None:
    fit = section(PAGE, "calibrate fit")
    assert "Choose alpha before you look at results." in fit
    assert "| Artifact to write (artifact.json). |" in fit
    assert "Example: `calibrate fit records.jsonl --alpha 0.1 --test-fraction 0.3`" in fit


def test_no_style_of_the_terminal_is_left_and_the_site_uses_the_hook() -> None:
    assert not re.search(r"\[/?(cyan|bold|italic|dim)\]", PAGE)
    assert HOOK["MARKER"] not in PAGE
    assert HOOK["on_page_markdown"]("# Another page") == "# Another page"
    assert CONFIG["hooks"] == ["scripts/command_reference.py"]
