"""A terminal in a folder of its own, for golden files of what commands print and write."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.cli.frame.terminal import console, errors
from calibrate.evaluation.planning import with_labels_needed
from calibrate.report.figures import Figure

WIDTH = 110
VARYING = (
    re.compile(r"(?<=sha256[: ])[0-9a-f]{6,}"),
    re.compile(r"\b([0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})\b"),
    re.compile(r"(?<=\bensemble:)[0-9a-f]{8}\b"),
    re.compile(r"(?<=\btwo_stage:)[0-9a-f]{8}\b"),
    re.compile(r"\b20\d\d-\d\d-\d\dT[\d:.]+(\+00:00|Z)?"),
)
FLAT = re.compile(r"\[[^\[\]{}]*\]|\{[^\[\]{}]{0,160}\}")
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{5,}(?:e-?\d+)?")
UNSTABLE = ("packages", "created", "digest", "python")
"""Fields that differ from machine to machine, or from one run to the next."""


class Terminal:
    """Runs commands in the current folder, and keeps all that a person sees.

    Attributes:
        lines: The transcript so far.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", str(WIDTH))
        for each in (console, errors):
            monkeypatch.setattr(each, "width", WIDTH)
        for module in ("pipeline", "cascade", "data.collect"):
            monkeypatch.setattr(
                f"calibrate.{module}.package_versions", lambda: {"acrc-guardrail": "1.0"}, raising=False
            )
        for module in ("report.figures", "report.panels", "parts.page"):  # tests of reports look at figures
            monkeypatch.setattr(f"calibrate.{module}.render", undrawn)
        monkeypatch.setitem(with_labels_needed.__kwdefaults__ or {}, "repetitions", 3)
        self.folder = str(folder)
        self.lines: list[str] = []

    def run(self, line: str, *, typed: str = "") -> None:
        """Run one command line; what it prints on both streams, and its exit code unless it is 0."""
        result = CliRunner().invoke(app, shlex.split(line), input=typed, env={"COLUMNS": str(WIDTH)})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.say(f"$ calibrate {line}" + (f"\n  typed: {' '.join(typed.split())}" if typed else ""))
        self.say(compact(json.loads(result.stdout)) if result.stdout.startswith("{") else result.output)
        if result.exit_code:
            self.say(f"exit code {result.exit_code}")
        self.say("")

    def refused(self, line: str, *, typed: str = "") -> None:
        """Run a command line that is refused: what is wrong, in one paragraph, and the exit code."""
        result = CliRunner().invoke(app, shlex.split(line), input=typed, env={"COLUMNS": str(WIDTH)})
        if not isinstance(result.exception, SystemExit):
            raise AssertionError(f"{line}: {result.output}") from result.exception
        text = " ".join(re.sub("[\u2500\u2502\u256d-\u2570]", " ", result.output).split())
        self.say(f"$ calibrate {line}\n{text} [{result.exit_code}]\n")

    def forget(self) -> None:
        """Forget the fits on all labels in the folder: delete what remembers them."""
        for path in [*Path().glob("*.fits.jsonl"), *Path().glob("*.json")]:
            path.unlink()

    def say(self, text: str) -> None:
        """Add a text to the transcript."""
        self.lines.append(stable(text.replace(self.folder, "FOLDER")).rstrip())

    def show(self, path: str, *names: str) -> None:
        """Add a JSON file, or some of its fields, to the transcript."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        self.say(f"# {path}\n{compact({name: content[name] for name in names} if names else content)}\n")

    def show_text(self, path: str, lines: int | None = None) -> None:
        """Add a text file, or its first lines."""
        text = Path(path).read_text(encoding="utf-8").splitlines()
        self.say("\n".join([f"# {path}", *text[:lines], ""]))

    def files(self) -> None:
        """Add the names of the files in the folder."""
        self.say(
            "# files: "
            + " ".join(sorted(str(path) for path in Path().rglob("*") if path.is_file() and ".db-" not in path.name))
            + "\n"
        )

    @property
    def text(self) -> str:
        """The transcript."""
        return "\n".join(self.lines)


def undrawn(*_: object, **__: object) -> Figure:
    """A figure without content."""
    return Figure(svg="<svg></svg>", png=b"")


def compact(content: Any) -> str:
    """A JSON value with lists of single values and short objects on one line."""
    text = json.dumps(rounded(content), indent=1, ensure_ascii=False)
    return FLAT.sub(lambda found: " ".join(found[0].split()), text)


def stable(text: str) -> str:
    """A text without what differs from machine to machine."""
    for pattern in VARYING:
        text = pattern.sub(lambda found: "x" * len(found[0]), text)
    return NUMBER.sub(lambda found: f"{float(found[0]):.5g}", text)


def rounded(value: Any) -> Any:
    """A JSON value with numbers of five digits, and without fields that differ from machine to machine."""
    if isinstance(value, dict):
        return {name: "..." if name in UNSTABLE else rounded(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
