"""Settings from which a command's flags follow: read from flags, from a YAML file, and from `--set`."""

from __future__ import annotations

import json
import shlex
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

from ...data.formats.field_map import ImportSettings, parse_map
from .options import COLUMNS, HEADINGS


def flag(panel: str, description: str, default: Any = None, short: str = "", metavar: str = "", **limits: Any) -> Any:
    """A field that is also a flag, under a heading of the help; its description is the help.

    ``short`` is its short form, or where it begins with two hyphens its name, if that is not the field's.
    """
    extra: dict[str, Any] = {"panel": panel, "short": short, "metavar": metavar}
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


def with_flags(kind: type[Frozen]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each setting that is one; its parameter ``given`` takes them by name, None if left out.

    Args:
        kind: The settings of the command. Their flags stand before its own options.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        flags = _options(kind)
        own = [each for each in signature(command, eval_str=True).parameters.values() if each.name != "given"]
        first = [each for each in own if each.default is Parameter.empty or _is_argument(each)]

        def with_given(**values: Any) -> None:
            given = {name: values.pop(name) for name in flags}
            command(**values, given=given)

        parameters = [*first, *flags.values(), *(each for each in own if each not in first)]
        with_given.__doc__, with_given.__name__ = command.__doc__, command.__name__
        with_given.__module__ = command.__module__
        with_given.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return with_given

    return decorated


def _is_argument(parameter: Parameter) -> bool:
    return any(isinstance(each, ArgumentInfo) for each in get_args(parameter.annotation))


def _options(kind: type[Frozen]) -> dict[str, Parameter]:
    """The flags of settings by name, in the order of their headings."""
    options: dict[tuple[str, str], Parameter] = {}
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict):
            continue
        several, usual = get_origin(field.annotation) is tuple, field.default
        shown = "" if several or usual in (None, False, PydanticUndefined) else f" ({usual})"
        option = typer.Option(
            *_names(name, str(extra["short"])),
            help=f"{str(field.description).removesuffix('.')}{shown}.",
            rich_help_panel=str(extra["panel"]) or None,
            metavar=str(extra["metavar"]) or None,
        )
        # What typer reads by itself; other types, such as a choice of words, are read by the settings.
        kinds = set(get_args(field.annotation) or (field.annotation,)) - {NoneType}
        plain = kinds.pop() if len(kinds) == 1 and kinds <= {bool, int, float, Path} else str
        taken: Any = list[str] if several else plain
        annotation = Annotated[taken | None, option]
        options[str(extra["panel"]), name] = Parameter(
            name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )
    ordered = sorted(options, key=lambda key: HEADINGS.index(key[0]))
    return {name: options[panel, name] for panel, name in ordered}


def _names(field: str, short: str) -> list[str]:
    return [short] if short.startswith("--") else [*filter(None, ("--" + field.replace("_", "-"), short))]


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


class TableFlags(Frozen):
    """The options about the columns of a table, which commands read like records."""

    map: Texts = flag(COLUMNS, "FIELD=COLUMN or FIELD=PATH.", (), metavar="FIELD=COLUMN")
    right: Texts = flag(COLUMNS, "A label that says right (yes, pass, 1).", (), metavar="WORD")
    cut: float | None = flag(COLUMNS, "Labels are grades, right from here on.")

    @property
    def columns(self) -> ImportSettings:
        """What they say, for a reader of tables."""
        return ImportSettings(columns=parse_map(self.map), right=self.right, cut=self.cut)

    @property
    def typed(self) -> str:
        """The options for a command that is shown, beginning with a space; empty without them."""
        flags = [*(("--map", each) for each in self.map), *(("--right", each) for each in self.right)]
        if self.cut is not None:
            flags.append(("--cut", f"{self.cut:g}"))
        return "".join(f" {name} {shlex.quote(value)}" for name, value in flags)


Settings = TypeVar("Settings", bound=Frozen)


def load_settings(
    kind: type[Settings], path: Path | None, flags: Mapping[str, Any], assigned: Sequence[str] = ()
) -> Settings:
    """Settings from a YAML file, overridden by `--set` and by flags.

    Args:
        kind: A class of settings, such as `RunSettings`.
        path: YAML file with fields of `RunSettings`, or None.
        flags: Values by field name; None means not given.
        assigned: NAME=VALUE, as given to `--set`.

    Raises:
        UsageError: Not YAML, an unknown name (the nearest is suggested), or a bad value.
    """
    values = stored = {} if path is None else _read_yaml(path)
    for text in assigned:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set must be NAME=VALUE, got {text!r}. Write for instance --set seed=1.")
        values = {**values, name: value}
    values = values | {name: value for name, value in flags.items() if value is not None}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A name that does not exist says why another one is missing.
        first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
        name, fields = str(first["loc"][0]), kind.model_fields
        if first["type"] == "extra_forbidden":
            where = path if name in stored else "--set"
            hint = did_you_mean(name, fields) or f"Known: {', '.join(sorted(fields))}."
            raise UsageError(f"{where}: there is no setting {name!r}. {hint}") from error
        if first["type"] == "missing":
            stands = "" if path is None else f", or '{name}:' in {path}"
            raise UsageError(f"{name} is missing. Give --{name.replace('_', '-')}{stands}.") from error
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
