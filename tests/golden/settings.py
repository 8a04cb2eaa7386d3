"""Print limits, words and defaults of all modules as JSON: a text for each package.

In a process of its own, because some values depend on what other code has loaded or changed before.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from pydantic import BaseModel

from guardrail.errors import MissingDependencyError

PACKAGES = ("calibrate", "guardrail", "integrations")
CACHES = {
    *("calibrate.ray_engine._MADE", "guardrail.judges.text._SHAPES", "guardrail.sampling.prober._known"),
    *("guardrail.call_settings.TABLE", "guardrail.sampling.follow_ups.FOLLOW_UPS"),
}
"""Filled while the code runs, or by modules that are imported later."""
RANDOM = re.compile(r"\b[0-9a-f]{64}\b")


def plain(value: Any) -> str | None:
    """A value as text, if it is made of numbers, words and names of functions; None for other objects."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | str | bytes):
        return repr(value)
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, re.Pattern):
        return f"pattern {value.pattern!r}"
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return fields_of(type(value).__name__, fields)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return fields_of(type(value).__name__, fields)
    if inspect.isfunction(value) or inspect.isclass(value):
        return None if "<" in value.__qualname__ else value.__qualname__
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, tuple | list):
        each = [plain(part) for part in value]
        return None if None in each else f"({', '.join(filter(None, each))})"
    if isinstance(value, dict):
        pairs = [(plain(key), plain(part)) for key, part in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return f"{{{', '.join(f'{key}: {part}' for key, part in pairs)}}}"
    return None


def fields_of(name: str, fields: dict[str, Any]) -> str:
    """The fields of a value that are plain."""
    words = [(field, plain(value)) for field, value in fields.items()]
    return f"{name}({', '.join(f'{field}={word}' for field, word in words if word is not None)})"


def defaults_of(what: Any) -> str:
    """Parameters with a default that is plain."""
    try:
        parameters = inspect.signature(what).parameters.values()
    except (TypeError, ValueError):
        return ""
    words = [(each.name, plain(each.default)) for each in parameters if each.default is not each.empty]
    return ", ".join(f"{name} = {word}" for name, word in words if word is not None)


def assigned(module: ModuleType) -> set[str]:
    """Names that a module gives a value to, without those it imports."""
    names = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            names |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    return {name for name in names if f"{module.__name__}.{name}" not in CACHES}


def class_lines(name: str, kind: type) -> Iterator[str]:
    """Values and defaults of a class."""
    if issubclass(kind, enum.Enum):
        yield f"{name}: {', '.join(f'{each.name} {each.value!r}' for each in kind)}"
        return
    own = vars(kind)
    if issubclass(kind, BaseModel):
        named = [key for key in inspect.get_annotations(kind) if key in kind.model_fields]
        known = {key: plain(kind.model_fields[key].get_default()) for key in named}
        given = {key: f"{key} = {word}" for key, word in known.items() if word not in (None, "PydanticUndefined")}
        limits = {key: [repr(each) for each in kind.model_fields[key].metadata] for key in named}
        limited = {key: " ".join(word for word in words if " at 0x" not in word) for key, words in limits.items()}
        words = ", ".join(
            f"{given.get(key, key)} {limited[key]}".rstrip() for key in named if key in given or limited[key]
        )
    else:
        words = defaults_of(kind) if {"__init__", "__new__"} & set(own) else ""
    if words:
        yield f"{name}: {words}"
    values = [(key, plain(value)) for key, value in own.items() if not key.startswith(("_", "model_", "abc"))]
    hidden = set(getattr(kind, "__dataclass_fields__", ()))
    shown = [
        f"{key} {word}" for key, word in values if word is not None and key not in hidden and not callable(own[key])
    ]
    if shown:
        yield f"{name} has {', '.join(shown)}"
    for key, value in own.items():
        method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if key != "__init__" and inspect.isfunction(method) and (words := defaults_of(method)):
            yield f"{name}.{key}: {words}"


def constant_lines(name: str, value: Any, word: str) -> Iterator[str]:
    """A constant; a long one with a line for each entry."""
    if len(word) <= 110 or not isinstance(value, dict | tuple | list | set | frozenset):
        yield f"{name} = {word}"
        return
    yield f"{name}:"
    if isinstance(value, dict):
        yield from (f"  {plain(key)}: {plain(part)}" for key, part in value.items())
    else:
        ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        yield from (f"  {plain(part)}" for part in ordered)


def settings_of(module: ModuleType) -> Iterator[str]:
    """Constants of a module, and the defaults of its functions, classes and methods."""
    named = assigned(module)
    for name, value in sorted(vars(module).items()):
        here = getattr(value, "__module__", None) == module.__name__
        if here and inspect.isclass(value):
            yield from class_lines(name, value)
        elif here and inspect.isfunction(value):
            if words := defaults_of(value):
                yield f"{name}: {words}"
        elif name in named and not name.startswith("__") and (word := plain(value)) is not None:
            yield from constant_lines(name, value, word)


def packages() -> list[str]:
    """The packages, and the packages and modules in them."""
    listed = []
    for top in PACKAGES:
        module = importlib.import_module(top)
        listed += [top, *(f"{top}.{found.name}" for found in pkgutil.iter_modules(module.__path__))]
    return [name for name in listed if not name.endswith("__main__")]


def listed(package: str) -> str:
    """The settings of a package's modules."""
    top = importlib.import_module(package)
    paths = getattr(top, "__path__", []) if "." in package else []
    names = [found.name for found in pkgutil.walk_packages(paths, f"{package}.")]
    modules = [importlib.import_module(name) for name in (package, *sorted(names)) if ".migrations" not in name]
    lines = []
    for module in modules:
        settings = [f"  {RANDOM.sub('(64 digits)', line)}" for line in settings_of(module)]
        if settings:
            lines += ["", module.__name__, *settings]
    return "\n".join(lines)


def main() -> None:
    """Print ``{package: [kind, text]}``, where the kind is "listed", "missing" or "failed"."""
    if importlib.util.find_spec("litellm") is None:  # it needs an environment of its own
        sys.modules["litellm.integrations.custom_guardrail"] = SimpleNamespace(CustomGuardrail=object)  # type: ignore[assignment]
    found: dict[str, tuple[str, str]] = {}
    for package in packages():
        try:
            found[package] = "listed", listed(package)
        except (ImportError, MissingDependencyError) as error:
            found[package] = "missing", str(error)
        except Exception:
            found[package] = "failed", traceback.format_exc()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
