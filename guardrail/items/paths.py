"""Paths of items and the JSON schemas that name them. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..types import Bindings
from .spec import ItemsSpec

UNNAMED = "*"
"""Stands for a key that is the model's word, in a path that is shown without it."""


def escaped(name: str) -> str:
    """A name as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def unescaped(step: str) -> str:
    """The name behind a step of a JSON pointer."""
    return step.replace("~1", "/").replace("~0", "~")


@dataclass(frozen=True, slots=True)
class Fields:
    """The leaf fields of a JSON schema.

    Attributes:
        most: Most items that an answer can have; None if a list has no ``maxItems``.
        optional: Paths of fields that an answer may leave out.
        unbounded: Paths of the lists without ``maxItems``.
        paths: Paths of the leaf fields, with "*" for the items of a list that are compared one by one.
    """

    most: int | None
    optional: tuple[str, ...]
    unbounded: tuple[str, ...]
    paths: tuple[str, ...]


def leaf_fields(schema: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> Fields:
    """The leaf fields of a JSON schema; ``$ref`` within it and unions with null are followed.

    Args:
        schema: A JSON schema of an object.
        keys: Key field of lists of objects, by path.
    """
    optional: list[str] = []
    unbounded: list[str] = []
    paths: list[str] = []

    def count(subschema: Any, path: str, refs: tuple[str, ...]) -> int:
        subschema, refs = _resolved(subschema, schema, refs)
        properties = subschema.get("properties")
        if properties:
            required = set(subschema.get("required", ()))
            optional.extend(f"{path}/{escaped(name)}" for name in properties if name not in required)
            return sum(count(inner, f"{path}/{escaped(name)}", refs) for name, inner in properties.items())
        items = subschema.get("items") if subschema.get("type") == "array" else None
        item, _ = _resolved(items, schema, refs) if isinstance(items, Mapping) else ({}, refs)
        if not isinstance(items, Mapping) or (item.get("type") in ("object", "array") and path not in (keys or {})):
            paths.append(path)
            return 1
        if "maxItems" not in subschema:
            unbounded.append(path)
        return max(1, int(subschema.get("maxItems", 1))) * count(items, f"{path}/*", refs)

    most = count(schema, "", ())
    return Fields(None if unbounded else most, tuple(optional), tuple(unbounded), tuple(paths))


def _resolved(
    subschema: Any, schema: Mapping[str, Any], refs: tuple[str, ...]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """A subschema behind its reference or its one alternative to null; {} if it refers to itself."""
    while isinstance(subschema, Mapping):
        if (ref := subschema.get("$ref")) is not None:
            if ref in refs:
                return {}, refs
            refs, subschema = (*refs, ref), schema
            for step in str(ref).removeprefix("#").strip("/").split("/"):
                subschema = subschema.get(unescaped(step), {}) if isinstance(subschema, Mapping) else {}
            continue
        either = subschema.get("anyOf") or subschema.get("oneOf") or subschema.get("allOf")
        real = [each for each in either or () if not (isinstance(each, Mapping) and each.get("type") == "null")]
        if len(real) != 1:
            return subschema, refs
        subschema = real[0]
    return {}, refs


def schema_of(bindings: Bindings | None) -> Mapping[str, Any] | None:
    """The JSON schema of answers: that of their format, or the parameters of the one tool; None without one."""
    if bindings is None:
        return None
    if bindings.response_format is not None:
        schema = (bindings.response_format.get("json_schema") or {}).get("schema")
    else:
        schema = bindings.tools[0]["function"].get("parameters") if len(bindings.tools) == 1 else None
    return schema if isinstance(schema, Mapping) else None


def named_path(path: str, spec: ItemsSpec, schema: Mapping[str, Any] | None) -> str:
    """A path without the model's words: "*" stands for a key that neither the schema nor the specification names.

    Such keys (of ``additionalProperties``, of answers without a schema) are the answer, too: {"cancer": true} says
    by its key what the value says elsewhere. Places in a list are numbers, and no words.

    Args:
        path: JSON pointer of an item.
        spec: The items; paths of their judges, key fields and optional fields count as named.
        schema: The JSON schema of the answers, or None.
    """
    listed = {*spec.optional, *spec.judges, *spec.keys, *(f"{at}/*/{escaped(key)}" for at, key in spec.keys.items())}
    named = {"/".join(whole.split("/")[:end]) for whole in listed for end in range(2, whole.count("/") + 2)}
    here: list[Any] = [] if schema is None else [schema]
    pattern = shown = ""
    for step in path.split("/")[1:]:
        there = [branch for subschema in here for branch in _branches(subschema, schema or {}, ())]
        fields = [_fields_of(branch)[unescaped(step)] for branch in there if unescaped(step) in _fields_of(branch)]
        items = [branch["items"] for branch in there if branch.get("type") == "array" and "items" in branch]
        listing = step.isdecimal() and (bool(items) or f"{pattern}/*" in named)
        pattern = f"{pattern}/{'*' if listing else step}"
        known = listing or bool(fields) or pattern in named
        shown = f"{shown}/{step if known else UNNAMED}"
        here = fields or items if known else [branch.get("additionalProperties") for branch in there]
    return shown


def _fields_of(branch: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = branch.get("properties")
    return fields if isinstance(fields, Mapping) else {}


def _branches(subschema: Any, schema: Mapping[str, Any], refs: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """A subschema behind its references, and its alternatives."""
    subschema, refs = _resolved(subschema, schema, refs)
    yield subschema
    for name in ("anyOf", "oneOf", "allOf"):
        for each in subschema.get(name) or ():
            yield from _branches(each, schema, refs)
