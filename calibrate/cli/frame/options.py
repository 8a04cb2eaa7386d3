"""Options that several commands have, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from guardrail.errors import UsageError

from ...data.records import RecordFile
from ...scoring.names import key_of
from .app import COLUMNS as COLUMNS
from .terminal import print_line

MODEL_HELP = "transformers:PATH, openai-compatible:NAME@URL, python:MODULE:NAME, openai:gpt-4o-mini, ..."

WHAT, ASKING, SCORES = "Questions and model", "Asking", "Scores and labels"
PROMISE, LABELS, FILES = "Promise", "Labels and test", "Files"
ANSWERS, CALLS = "About answers (--artifact)", "About calls (--tool)"
BY_RULE, BY_PEOPLE = "By a rule", "By people"
HEADINGS = ("", WHAT, ASKING, SCORES, ANSWERS, CALLS, BY_RULE, BY_PEOPLE, PROMISE, LABELS, COLUMNS)
"""Headings of options in the help of commands, in order."""


def flags_under(heading: str) -> Callable[..., Any]:
    """`typer.Option` for the options under a heading."""
    return partial(typer.Option, rich_help_panel=heading)


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A rare setting: seed=1, stop=END, ...", rich_help_panel=ASKING, metavar="NAME=VALUE"),
]
ItemsOption = Annotated[bool, typer.Option("--items", help="Keep or hold back each item (field of JSON).")]
RecordsArgument = Annotated[list[Path], typer.Argument(help="Record files; several are read as one.")]
RewriteOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Default: the record file itself.", show_default=False)
]


def refuse_options(why: str, /, **options: object) -> None:
    """Refuse the first option that is given and has no effect here, and say why: "--cap is about items: ..."."""
    for name, value in options.items():
        if value is None or value is False or value in ([], ()):  # but not 0: --cut 0 is given
            continue
        raise UsageError(f"--{name.replace('_', '-')} {why}")


refuse_with_items = partial(refuse_options, "is about whole answers: leave it out with --items.")
refuse_without_items = partial(refuse_options, "is about items: add --items, or leave it out.")


def chosen_estimator(file: RecordFile, name: str | None) -> str:
    """The estimator a user named, or the default for this kind of question and answer."""
    key = key_of(file, name)
    if name not in (None, key):
        print_line(f"--score {name}: the scores of {key}.")
    return key
