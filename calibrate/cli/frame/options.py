"""Options that several commands have, and how their texts are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer

from ...data.records import RecordFile
from ...reviews import Missing, Respond
from ...scoring.scores import key_of
from .terminal import print_line

__all__ = [
    "ASKING",
    "FILES",
    "MODEL_HELP",
    "PROMISE",
    "SCORES",
    "USUAL",
    "WHAT",
    "WITHOUT_FAILED_HELP",
    "CallsOption",
    "CutOption",
    "EstimatorOption",
    "ItemsOption",
    "MaxTokensOption",
    "MissingOption",
    "OptionalModelOption",
    "PrimaryOption",
    "RecordsArgument",
    "RespondOption",
    "SamplesOption",
    "SetOption",
    "SystemOption",
    "TemperatureOption",
    "ToolsOption",
    "WithoutFailedOption",
    "chosen_estimator",
    "declared",
    "flag",
    "with_flags",
]


WITHOUT_FAILED_HELP = (
    "Fit although more than 1 % of the questions have no score because a server, a rate limit or a time-out failed; "
    "the promise states their share."
)
WithoutFailedOption = Annotated[bool, typer.Option("--without-failed", help=WITHOUT_FAILED_HELP)]
MODEL_HELP = (
    "transformers:PATH, openai-compatible:NAME@URL, python:MODULE:NAME or as in LangChain, e.g. openai:gpt-4o-mini."
)


WHAT, ASKING, SCORES, PROMISE, FILES = "Questions and model", "Asking", "Scores and labels", "Promise", "Files"
"""Headings of options in the help of commands."""

OptionalModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help=f"{MODEL_HELP}", rich_help_panel=WHAT, metavar="MODEL")
]
CallsOption = Annotated[
    float | None, typer.Option(help="Calls for each question: 1, 1.4, 3, 11.", rich_help_panel=ASKING)
]
SamplesOption = Annotated[
    int | None, typer.Option("--n", help="Samples for each question (10).", rich_help_panel=ASKING)
]
TemperatureOption = Annotated[float | None, typer.Option(help="Of the samples, above 0 (0.7).", rich_help_panel=ASKING)]
MaxTokensOption = Annotated[int | None, typer.Option(help="Longest answer, in tokens (256).", rich_help_panel=ASKING)]
PrimaryOption = Annotated[
    str | None,
    typer.Option(help="The answer given: greedy, or sampled too.", rich_help_panel=ASKING, metavar="HOW"),
]
SystemOption = Annotated[str | None, typer.Option(help="System message.", rich_help_panel=ASKING)]
ToolsOption = Annotated[
    Path | None, typer.Option(help="JSON: tools, or tools and format.", rich_help_panel=ASKING, metavar="FILE")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A rare setting: seed=1, stop=END, ...", rich_help_panel=ASKING, metavar="NAME=VALUE"),
]
ItemsOption = Annotated[
    bool,
    typer.Option("--items", help="Keep or hold back each item (field of JSON).", rich_help_panel=SCORES),
]


CutOption = Annotated[
    float | None,
    typer.Option(
        help="With --items, of labels by people: largest uncertainty of an item that they are asked about. Items above "
        "it count as wrong, so nearly none is kept, and answers without an item up to it cost no label."
    ),
]


RecordsArgument = Annotated[list[Path], typer.Argument(help="Record files; several are read as one.")]


USUAL = (
    "Default: semantic_entropy, or predictive_entropy with options; without log-probabilities graded_disagreement, or, "
    "if the answer is the vote of the samples, discrete_semantic_entropy."
)
EstimatorOption = Annotated[str | None, typer.Option("--score", "-s", help=USUAL)]


def chosen_estimator(file: RecordFile, name: str | None) -> str:
    """The estimator a user named, or the default for this kind of question and answer."""
    key = key_of(file, name)
    if name is not None and key != name and not name.endswith(".json"):
        print_line(f"--score {name}: the scores of {key}.")
    return key


RespondOption = Annotated[
    Respond,
    typer.Option(help='What "respond" (the reviewer wrote another answer) says about the candidate.'),
]


MissingOption = Annotated[
    Missing,
    typer.Option(
        help="Items without a decision. wait: use what arrived up to the oldest open one; it and expired ones are "
        "wrong; wrong: all count as wrong; leave-out: only if what was not decided is like what was."
    ),
]


# -- Flags from dataclasses --------------------------------------------------------------------------------------------


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one flag for each field of its parameters that are dataclasses, whose values it gets as one.

    typer reads flags from the parameters of a function only. Fields are declared as its parameters are.
    """
    groups: dict[str, type[Any]] = {}
    flags: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not is_dataclass(group):
            flags.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = cast("type[Any]", group)
        annotations = get_type_hints(group, include_extras=True)
        flags += [flag(field.name, annotations[field.name], field.default) for field in fields(group)]

    @wraps(command)
    def grouped(**values: Any) -> None:
        options = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **options)

    return declared(grouped, flags)


def flag(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """A flag as typer reads it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def declared(command: Callable[..., None], flags: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """The command, with these flags as its signature."""
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in flags} | {"return": None}
    return command
