"""Options that several commands have, and how their texts are read."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ...data.formats.field_map import ImportSettings, parse_map
from ...data.records import RecordFile
from ...scoring.names import key_of
from .terminal import print_line

MODEL_HELP = "transformers:PATH, openai-compatible:NAME@URL, python:MODULE:NAME, openai:gpt-4o-mini, ..."


WHAT, ASKING, SCORES = "Questions and model", "Asking", "Scores and labels"
PROMISE, LABELS, FILES = "Promise", "Labels and test", "Files"
ANSWERS, CALLS = "About answers (--artifact)", "About calls (--tool)"
BY_RULE, BY_PEOPLE = "By a rule", "By people"
COLUMNS = "Columns of a table"
HEADINGS = ("", WHAT, ASKING, SCORES, ANSWERS, CALLS, BY_RULE, BY_PEOPLE, PROMISE, LABELS, COLUMNS)
"""Headings of options in the help of commands, in order."""


def flags_under(heading: str) -> Callable[..., Any]:
    """`typer.Option` for the options under a heading."""
    return partial(typer.Option, rich_help_panel=heading)


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A rare setting: seed=1, stop=END, ...", rich_help_panel=ASKING, metavar="NAME=VALUE"),
]
WithoutFailedOption = Annotated[
    bool,
    typer.Option(
        "--without-failed", help="Fit although more than 1 % of the questions failed.", rich_help_panel=LABELS
    ),
]


ItemsOption = Annotated[
    bool,
    typer.Option("--items", help="Keep or hold back each item (field of JSON)."),
]


MapOption = Annotated[
    list[str] | None,
    typer.Option("--map", help="FIELD=COLUMN or FIELD=PATH.", metavar="FIELD=COLUMN", rich_help_panel=COLUMNS),
]
RightOption = Annotated[
    list[str] | None,
    typer.Option(help="A label that says right (yes, pass, 1).", metavar="WORD", rich_help_panel=COLUMNS),
]
CutOption = Annotated[
    float | None, typer.Option(help="Labels are grades, right from here on.", rich_help_panel=COLUMNS)
]


@dataclass(frozen=True, slots=True)
class TableFlags:
    """The options about the columns of a table, as a user gave them."""

    map: Sequence[str] | None = None
    right: Sequence[str] | None = None
    cut: float | None = None

    @property
    def settings(self) -> ImportSettings:
        """What they say, for a reader of tables."""
        return ImportSettings(columns=parse_map(self.map or ()), right=tuple(self.right or ()), cut=self.cut)

    @property
    def typed(self) -> str:
        """The options for a command that is shown, beginning with a space; empty without them."""
        flags = [*(("--map", each) for each in self.map or ()), *(("--right", each) for each in self.right or ())]
        if self.cut is not None:
            flags.append(("--cut", f"{self.cut:g}"))
        return "".join(f" {name} {shlex.quote(value)}" for name, value in flags)


RecordsArgument = Annotated[list[Path], typer.Argument(help="Record files; several are read as one.")]
RewriteOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Default: the record file itself.", show_default=False)
]

EstimatorOption = Annotated[
    str | None,
    typer.Option("--score", "-s", help="Which score, if the file has several.", rich_help_panel=SCORES, metavar="NAME"),
]


def chosen_estimator(file: RecordFile, name: str | None) -> str:
    """The estimator a user named, or the default for this kind of question and answer."""
    key = key_of(file, name)
    if name not in (None, key):
        print_line(f"--score {name}: the scores of {key}.")
    return key
