"""Options that several commands have, and how their texts are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer

from guardrail.errors import UsageError

from ...data.records import RecordFile
from ...reviews import Missing, Respond
from ...scoring.scores import key_of
from .terminal import print_line

__all__ = [
    "MODEL_HELP",
    "USUAL",
    "WITHOUT_FAILED_HELP",
    "AddressOption",
    "CutOption",
    "EstimatorOption",
    "ItemsOption",
    "MissingOption",
    "RecordsArgument",
    "RespondOption",
    "WithoutFailedOption",
    "check_engine",
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
    "transformers:PATH_OR_ID (local weights), openai-compatible:MODEL@BASE_URL (an "
    "endpoint), python:MODULE:NAME (a chat model, or a function that makes one, importable from here), "
    "or a LangChain name such as openai:gpt-4o-mini."
)


ItemsOption = Annotated[
    bool,
    typer.Option(
        "--items",
        help="Work on the items of answers, each kept or held back on its own: the fields of JSON answers and of "
        "tools' arguments (docs: Items).",
    ),
]


CutOption = Annotated[
    float | None,
    typer.Option(
        help="With --items, of labels by people: largest uncertainty of an item that they are asked about. Items above "
        "it count as wrong, so nearly none is kept, and answers without an item up to it cost no label."
    ),
]


AddressOption = Annotated[
    str | None,
    typer.Option(
        help="With --engine ray: HOST:PORT of a Ray cluster. Default: auto, the one that this machine is part of."
    ),
]


RecordsArgument = Annotated[list[Path], typer.Argument(help="Record files; several are read as one.")]


def check_engine(engine: str, address: str | None) -> None:
    """Refuse an address without the engine that it belongs to.

    Raises:
        UsageError: An address is given with another engine.
    """
    if address is not None and engine != "ray":
        raise UsageError(f"--address {address} belongs to --engine ray, which runs on a cluster. Add that, too.")


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
