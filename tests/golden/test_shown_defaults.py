"""What holds where nobody chooses: defaults, limits and tables of every public name, as the modules state them.

A changed default changes what a user's own code does without a change of that code.
"""

from __future__ import annotations

import enum
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from importlib import import_module
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from tests.golden.shown import same

ELSEWHERE = "integrations.litellm_proxy"
"""Imports a package that has an environment of its own (make test-litellm)."""
PLAIN = (bool, int, float, str, bytes, type(None))


def text(value: object) -> str | None:
    """A value as text that is the same everywhere; None if it has none."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r}"
    if isinstance(value, PurePath):
        return None
    if isinstance(value, dict):
        pairs = [(text(key), text(item)) for key, item in value.items()]
        return None if any(None in pair for pair in pairs) else f"{{{', '.join(f'{a}: {b}' for a, b in pairs)}}}"
    if isinstance(value, tuple | list | set | frozenset):
        items = [text(item) for item in value]
        if None in items:
            return None
        return f"({', '.join(map(str, items if isinstance(value, tuple | list) else sorted(map(str, items))))})"
    if isinstance(value, type | FunctionType):
        return value.__qualname__.replace("<lambda>", "a function")
    return None


def defaults(function: Any) -> str:
    """The parameters of a function that have a default."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown = [(each.name, text(each.default)) for each in given if each.default is not each.empty]
    return ", ".join(f"{name}={value or '...'}" for name, value in shown)


def members(owner: type) -> Iterator[str]:
    """Lines of a class: fields with a default or a limit, members of an enumeration, defaults of methods."""
    if issubclass(owner, enum.Enum):
        yield f"  {', '.join(f'{each.name}={each.value!r}' for each in owner)}"
        return
    if issubclass(owner, BaseModel):
        for name, field in owner.model_fields.items():
            limits = [shown for each in field.metadata if (shown := repr(each)).isprintable() and " at 0x" not in shown]
            given = "required" if field.is_required() else text(field.get_default(call_default_factory=True)) or "..."
            if limits or not field.is_required():
                yield f"  {name}={given} {' '.join(limits)}"
    elif is_dataclass(owner):
        for each in fields(owner):
            if each.default is not MISSING or each.default_factory is not MISSING:
                value = text(each.default if each.default_factory is MISSING else each.default_factory())
                yield f"  {each.name}={value or '...'}"
    for name, member in vars(owner).items():
        inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(inner, FunctionType) and (not name.startswith("_") or name == "__init__"):
            if not (name == "__init__" and (is_dataclass(owner) or issubclass(owner, BaseModel))) and defaults(inner):
                yield f"  {name}({defaults(inner)})"
        elif name.isupper() and (constant := text(member)) is not None:
            yield f"  {name} = {constant}"


def lines(module: ModuleType) -> Iterator[str]:
    """Lines of a module's own public names."""
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, type) and value.__module__ == module.__name__:
            if inner := list(members(value)):
                yield f"class {name}"
                yield from inner
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            if shown := defaults(value):
                yield f"{name}({shown})"
        elif isinstance(value, partial):
            yield f"{name} = partial of {value.func.__qualname__}: {text(value.args)}, {text(value.keywords)}"
        elif (
            name.isupper() and (constant := text(value)) is not None and f"\n{name}" in f"\n{inspect.getsource(module)}"
        ):
            yield f"{name} = {constant}"


@pytest.mark.parametrize("package", ["guardrail", "calibrate", "integrations"])
def test_defaults_limits_and_tables(package: str) -> None:
    found = []
    names = [each.name for each in pkgutil.walk_packages([package], f"{package}.")]
    for name in sorted({package, *names}):
        if name == ELSEWHERE or "migrations" in name or name.endswith("__main__"):
            continue
        if own := list(lines(import_module(name))):
            found += [f"# {name}", *own, ""]
    same(f"defaults/{package}.txt", "\n".join(found))
