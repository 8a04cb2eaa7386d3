"""Settings from which a command's flags follow: read from flags, from a YAML file, and from `--set`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticUndefined
from typer.models import ArgumentInfo

from guardrail.errors import UsageError, did_you_mean, require
from guardrail.types import Frozen

from .options import HEADINGS


def flag(
    panel: str,
    description: str,
    default: Any = None,
    short: str = "",
    metavar: str = "",
    *,
    name: str = "",
    **limits: Any,
) -> Any:
    """A field that is also a flag, under a heading of the help (one of `HEADINGS`); its description is the help.

    ``short`` is its short form, "-o", and ``name`` its name, "--json", where that is not the field's with hyphens.
    """
    extra: dict[str, Any] = {"panel": panel, "short": short, "metavar": metavar, "name": name}
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


def with_flags(kind: type[Frozen]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each setting that is one; its parameter ``given`` takes them by name, None if left out.

    Typer reads options from a signature, so the decorated command has one with a parameter for each flag (`_options`).
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        flags = _options(kind)
        parameters = [p for p in signature(command, eval_str=True).parameters.values() if p.name != "given"]
        first = [p for p in parameters if p.default is Parameter.empty or _is_argument(p)]
        last = [p for p in parameters if p not in first]

        def with_given(**values: Any) -> None:
            given = {name: values.pop(name) for name in flags}
            command(**values, given=given)

        with_given.__doc__ = command.__doc__
        with_given.__name__ = command.__name__
        with_given.__module__ = command.__module__
        with_given.__signature__ = Signature([*first, *flags.values(), *last])  # type: ignore[attr-defined]
        return with_given

    return decorated


def _is_argument(parameter: Parameter) -> bool:
    return any(isinstance(argument, ArgumentInfo) for argument in get_args(parameter.annotation))


def _options(kind: type[Frozen]) -> dict[str, Parameter]:
    """The flags of settings by name, in the order of their headings.

    The field ``splits: PositiveInt = flag("", "Random splits.", 100)`` becomes the parameter
    ``splits: Annotated[int | None, typer.Option("--splits", help="Random splits (100).")] = None``, and a field with
    several values one of type ``list[str] | None``: the settings, not typer, read and check what the texts mean.
    """
    options: dict[tuple[str, str], Parameter] = {}
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict):
            continue
        panel = str(extra["panel"])
        several = get_origin(field.annotation) is tuple
        has_default = not several and field.default not in (None, False, PydanticUndefined)
        names = [str(extra["name"]) or "--" + name.replace("_", "-"), str(extra["short"])]
        option = typer.Option(
            *filter(None, names),
            help=str(field.description).removesuffix(".") + (f" ({field.default})." if has_default else "."),
            rich_help_panel=panel or None,
            metavar=str(extra["metavar"]) or None,
        )
        # Typer reads these types by itself; others, such as a choice of words, are read by the settings.
        types = set(get_args(field.annotation) or (field.annotation,)) - {NoneType}
        read_as = types.pop() if len(types) == 1 and types <= {bool, int, float, Path} else str
        value_type: Any = list[str] if several else read_as
        annotation = Annotated[value_type | None, option]
        options[panel, name] = Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    ordered = sorted(options, key=lambda option: HEADINGS.index(option[0]))
    return {name: options[panel, name] for panel, name in ordered}


def listed(value: Any) -> Any:
    """One value as a list of one; a list as `--set` takes it, ["a", "b"], is read."""
    if isinstance(value, str) and value.startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return [value]
    return [value] if isinstance(value, str | int) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(listed)]
"""Texts of which one may stand alone."""


Settings = TypeVar("Settings", bound=Frozen)


def load_settings(
    kind: type[Settings], path: Path | None, flags: Mapping[str, Any], assigned: Sequence[str] = ()
) -> Settings:
    """Settings from a YAML file, overridden by `--set NAME=VALUE` and by flags, of which None is not given.

    Raises:
        UsageError: Not YAML, an unknown name (the nearest is suggested), or a bad value.
    """
    stored = {} if path is None else _read_yaml(path)
    values = dict(stored)
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set must be NAME=VALUE, got {text!r}. Write for instance --set seed=1.")
        values[name] = value
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A name that does not exist says why another one is missing.
        first = next((detail for detail in errors if detail["type"] == "extra_forbidden"), errors[0])
        name = str(first["loc"][0])
        fields = kind.model_fields
        if first["type"] == "extra_forbidden":
            where = path if name in stored else "--set"
            hint = did_you_mean(name, fields) or f"Known: {', '.join(sorted(fields))}."
            raise UsageError(f"{where}: there is no setting {name!r}. {hint}") from error
        if first["type"] == "missing":
            in_file = "" if path is None else f", or '{name}:' in {path}"
            raise UsageError(f"{name} is missing. Give --{name.replace('_', '-')}{in_file}.") from error
        raise UsageError(f"{name}: got {first['input']!r}; {first['msg']}. {fields[name].description}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    yaml = require("yaml", extra="calibrate")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no settings file at {path}. Write one, or give flags; `calibrate run --help`.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:  # of thousands of brackets
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(settings, dict):
        kind = type(settings).__name__
        raise UsageError(f"{path} must hold settings such as 'questions: questions.jsonl', got {kind}")
    return {str(name): value for name, value in settings.items()}
