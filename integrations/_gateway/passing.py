"""Paths that pass through without a verdict, as the configuration names them: which alias takes a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .admission import may_use
from .aliases import ServedAlias
from .config import Key
from .errors import invalid, not_served

SEGMENT = re.compile(r"[\w.:@=,+~-]+", re.ASCII)


def passed_name(path: str, names: tuple[str, ...]) -> str | None:
    """The name in a configuration that passes a path, such as "files" for "files/f-1/content"; None if none does."""
    parts = path.split("/")
    if not all(SEGMENT.fullmatch(part) and part.strip(".") for part in parts):  # ".." would leave the folder
        return None
    for length in range(len(parts), 0, -1):
        start = "/".join(parts[:length])
        if start in names:
            return start
    return None


def passing(aliases: Iterable[ServedAlias], key: Key | None, path: str) -> dict[str, str]:
    """The aliases of a key that pass a path through, each with the name in its configuration that does."""
    names = {alias.name: passed_name(path, alias.config.pass_through) for alias in aliases if may_use(key, alias.name)}
    return {alias: name for alias, name in names.items() if name is not None}


def alias_for(
    method: str, path: str, model: object, names: Mapping[str, str], aliases: Mapping[str, ServedAlias]
) -> str:
    """The alias, one of ``names`` from `passing`, that takes a request which names this model, or None.

    Raises:
        ApiError: The model does not pass this path through, or several do and the request names none of them.
    """
    if model is not None:
        if not isinstance(model, str):
            raise invalid("model", "must be a text.")
        if model in names:
            return model
        if model in aliases:
            raise not_served(f"/v1/{path}", method)
    if len(names) > 1:
        why = f"must be named in the header x-guardrail-model: several pass {path[:100]} through."
        raise invalid("model", why, "model_not_named")
    return next(iter(names))
