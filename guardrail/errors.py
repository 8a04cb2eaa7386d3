"""All errors that this library raises on purpose.

* GuardrailError
  x UsageError              the caller asked for something that cannot be done (also a ValueError)
  x MissingDependencyError  an optional package is not installed (also an ImportError)
  x ArtifactError           a calibration artifact cannot be trusted
    - ArtifactFormatError   not JSON, truncated, wrong schema, or from a future version
    - ArtifactTamperedError the digest does not match the content
    - ArtifactMismatchError it was made for another model, plan, prompt, estimator or judge
      TurnsMismatchError    ... or for prompts with other turns
  x RecordError             a question or record file has a bad row (file, line and field are named)
  x PromptTooLongError      the prompt does not fit the model's context window (also a ValueError)
  x AbstainedError          the guard abstained under on_abstain="raise"; carries the verdict (`guardrail.verdict`)
    - UnmeasuredError       because the model, its server or its endpoint failed; another attempt may succeed
* UnreadableReplyError      of a model's reply; never leaves the library, because an unmeasured reply abstains
  x BrokenOffReplyError     the server failed while it answered

Misuse and a bad artifact raise. A failed measurement never raises: it abstains, with the reason in the verdict.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from langchain_core.exceptions import LangChainException

__all__ = [
    "ArtifactError",
    "ArtifactFormatError",
    "ArtifactMismatchError",
    "ArtifactTamperedError",
    "GuardrailError",
    "MissingDependencyError",
    "PromptTooLongError",
    "RecordError",
    "TurnsMismatchError",
    "UnreadableReplyError",
    "UsageError",
    "did_you_mean",
    "load_entry_point",
    "refuse_unknown",
    "require",
]


class GuardrailError(LangChainException):
    """Base of every error this library raises on purpose."""


class UsageError(GuardrailError, ValueError):
    """The caller asked for something that cannot be done. The message names the value, the rule and the way out."""


class MissingDependencyError(GuardrailError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class ArtifactError(GuardrailError):
    """A calibration artifact cannot be trusted."""


class ArtifactFormatError(ArtifactError):
    """The file is not a complete artifact of a version this library reads."""


class ArtifactTamperedError(ArtifactError):
    """The content does not match the digest written with it."""


class ArtifactMismatchError(ArtifactError):
    """Made for another model, plan, prompt, estimator or judge than the running one; the message names both.

    Attributes:
        fault: The message without the way out in Python, for callers who do not write Python.
        way_out: The way out.
        public: What a stranger who sent the request may read, in a sentence that quotes nothing of the calibration;
            empty without such a sentence.
    """

    def __init__(self, fault: str, way_out: str = "", *, public: str = "") -> None:
        super().__init__(f"{fault} {way_out}".rstrip())
        self.fault, self.way_out, self.public = fault, way_out, public


class TurnsMismatchError(ArtifactMismatchError):
    """A conversation has turns that no calibration prompt had, and its artifact answers no others."""


class RecordError(GuardrailError):
    """A row of a question or record file is malformed; file, line and field are named."""


class PromptTooLongError(GuardrailError, ValueError):
    """The prompt (plus room for the answer) exceeds the model's context window."""


class UnreadableReplyError(ValueError):
    """A model's reply contains values that cannot be judged and returned unchanged."""


class BrokenOffReplyError(UnreadableReplyError):
    """The server failed while it answered any question: a failed call, as one with HTTP status 503."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A sentence with the nearest of the known names, followed by a space; empty if none is near."""
    near = get_close_matches(str(name), list(known), n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def refuse_unknown(name: str, known: Collection[str], where: str, what: str) -> None:
    """Refuse a name that does not exist.

    Args:
        name: The name.
        known: The names that exist.
        where: The argument that holds it, for the message.
        what: The kind of name, with its article.

    Raises:
        UsageError: The name is none of ``known``; the message lists them.
    """
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise UsageError(f"{where} name {name!r}, which is not {what}. {did_you_mean(name, known)}There are: {listed}.")


def require(package: str, *, extra: str) -> Any:
    """Import an optional package, or say which extra brings it.

    Args:
        package: Dotted module name, e.g. ``"torch"``.
        extra: The extra of this distribution that installs it, e.g. ``"local"``.

    Returns:
        The imported module.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        is_missing = error.name is not None and f"{package}.".startswith(f"{error.name}.")
        problem = f"{error.name} is not installed" if is_missing else f"{package} cannot be imported ({error})"
        way = f"Install it with: pip install 'acrc-guardrail[{extra}]', or in a clone: pip install '.[{extra}]'"
        message = f"{problem}. {way}"
        raise MissingDependencyError(message) from error


def load_entry_point(entry: EntryPoint) -> Any:
    """The object that an entry point names. Ours lie in ``integrations``, a name that other packages have, too.

    Raises:
        MissingDependencyError: Another package of that name is found first; the message names its path.
    """
    try:
        return entry.load()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        first = sys.modules.get(package)
        places = [*getattr(first, "__path__", ())] or [str(getattr(first, "__file__", None))]
        if first is None or not entry.module.startswith(f"{package}.") or error.name != entry.module:
            raise
        raise MissingDependencyError(
            f"{entry.name!r} needs {entry.module}, but Python finds another package named {package!r} first, at "
            f"{', '.join(places)}. Rename it, or start where it is not on the path (the current folder comes first)."
        ) from error
