"""Contents and decisions as the texts that are stored: what is read back is what was written, or it is said.

A model can write what no database of text holds: half of a surrogate pair becomes U+FFFD, a number that JSON has not
(NaN) null. Where the candidate holds such a thing it is shown like this; but it is then no longer what was judged, so
it can be rejected or answered, not approved or edited. In an audit all is allowed: nothing goes out, and a right answer
must not be labelled wrong for a character. What is nested deeper than a reader goes is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from .errors import UnstorableError
from .item import Action, Content, Decision
from .limits import mended

__all__ = ["frozen", "writable"]

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
_LEFT: tuple[Action, ...] = ("reject", "respond")


def frozen(content: Content) -> Content:
    """The content as it will be read from the database.

    Raises:
        UnstorableError: It cannot be written or read back, or its candidate cannot and nothing is left to decide.
    """
    try:
        read = _through(content.model_dump_json())
    except ValueError:
        read = _mended(content)
    if content.kind == "audit" or _plain(read.candidate) == _plain(content.candidate):
        return read
    allowed = tuple(action for action in content.allowed if action in _LEFT)
    if not allowed:
        raise UnstorableError(
            "the candidate holds what cannot be stored (half of a surrogate pair, or a number like NaN), so it can "
            f"only be rejected or answered; but allowed is {', '.join(content.allowed)}."
        )
    return read.model_copy(update={"allowed": allowed})


def writable(decision: Decision) -> Decision:
    """The decision, if what is read back of it is what was decided.

    Raises:
        UnstorableError: It is not.
    """
    try:
        if _plain(Decision.model_validate_json(decision.model_dump_json())) == _plain(decision):
            return decision
    except (ValueError, RecursionError) as error:
        raise UnstorableError(f"this decision cannot be stored: {_first(error)}.") from error
    raise UnstorableError("this decision cannot be stored: a number of it is not finite.")


def _mended(content: Content) -> Content:
    try:
        return _through(json.dumps(_clean(content.model_dump()), ensure_ascii=False))
    except (ValueError, TypeError, RecursionError) as error:
        raise UnstorableError(f"this content cannot be stored: {_first(error)}.") from error


def _through(text: str) -> Content:
    return Content.model_validate_json(text)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return mended(value)
    if isinstance(value, dict):
        return {mended(str(name)): _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _jsonable(value)


def _jsonable(value: Any) -> Any:
    """As pydantic writes it, e.g. a date."""
    return _ANYTHING.dump_python(value, mode="json")


def _plain(value: BaseModel | None) -> str:
    """A text that is the same for values that are the same in JSON, and tells NaN from null."""
    return "" if value is None else json.dumps(value.model_dump(), default=_jsonable)


def _first(error: Exception) -> str:
    if "surrogates not allowed" in str(error):
        return "it holds half of a surrogate pair, which is no character"
    if "depth" in str(error) or "recursion" in str(error):
        return "it is nested too deeply"
    if isinstance(error, ValidationError):
        one = error.errors()[0]
        return " ".join(filter(None, (".".join(str(part) for part in one["loc"]), one["msg"])))
    return str(error).splitlines()[0].removesuffix(".") if str(error) else type(error).__name__
