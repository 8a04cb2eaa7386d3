"""Judges, similarities and entailment models by name: the built-in ones, and those that installed packages offer.

A package offers one through an entry point. Its value is a factory that takes the parameters of the spec as keywords:

    [project.entry-points."acrc_guardrail.judges"]
    nli = "integrations.transformers_judges:NliJudge"

It is not loaded before it is made. The groups are `acrc_guardrail.judges`, `acrc_guardrail.similarities` and
`acrc_guardrail.entailments`. An entry point cannot replace a built-in name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from ..errors import MissingDependencyError, UsageError, load_entry_point
from ..types import Bindings
from .base import Entailment, Judge
from .json_value import JsonJudge, is_structured
from .lexical import ExactJudge, TextJudge
from .numbers import NumericJudge
from .tool_call import ToolCallJudge

__all__ = [
    "JUDGES",
    "Registry",
    "default_judge",
    "list_entailments",
    "list_judges",
    "make_entailment",
    "make_judge",
]

Made = TypeVar("Made")


class Registry(Generic[Made]):
    """Factories by name.

    Args:
        kind: What they make, for messages.
        group: Entry-point group of those that other packages offer.
        built_in: Those that need no other package.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, Callable[..., Made]]) -> None:
        self._kind = kind
        self._group = group
        self._built_in = built_in

    def names(self) -> tuple[str, ...]:
        """Names that can be made, sorted. Those of other packages are not loaded."""
        return tuple(sorted({*self._built_in, *self._offered()}))

    def make(self, name: str, **params: Any) -> Made:
        """Make one by name, with the parameters of its spec.

        Raises:
            UsageError: The name is unknown, or does not take these parameters.
            MissingDependencyError: The package it needs is not installed.
        """
        factory = self._built_in.get(name)
        if factory is None:
            offered = self._offered().get(name)
            if offered is None:
                choice = ", ".join(self.names()) or "none is installed"
                raise UsageError(f"no {self._kind} named {name!r}; choose one of: {choice}")
            factory = self._loaded(offered)
        try:
            return factory(**params)
        except (TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"{self._kind} {name!r} does not take the parameters {params}: {error}") from error

    def _offered(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=self._group)}

    def _loaded(self, entry: EntryPoint) -> Callable[..., Made]:
        try:
            factory: Callable[..., Made] = load_entry_point(entry)
        except MissingDependencyError:
            raise
        except (ImportError, AttributeError) as error:
            extra = f"acrc-guardrail[{','.join(entry.extras) or 'local'}]"
            raise MissingDependencyError(
                f"{self._kind} {entry.name!r} ({entry.value}) cannot be loaded: {error}. If a package is missing, "
                f"install it with: pip install '{extra}', or in a clone: pip install "
                f"'{extra.replace('acrc-guardrail', '.')}'"
            ) from error
        return factory


JUDGES: dict[str, Callable[..., Judge]] = {
    "exact": ExactJudge,
    "json": JsonJudge,
    "numeric": NumericJudge,
    "text": TextJudge,
    "tool_call": ToolCallJudge,
}
"""The built-in judges. A new one is one line here."""
_JUDGES: Registry[Judge] = Registry("judge", "acrc_guardrail.judges", JUDGES)
_ENTAILMENTS: Registry[Entailment] = Registry("entailment model", "acrc_guardrail.entailments", {})


def default_judge(bindings: Bindings | None = None) -> Judge:
    """The judge of an estimator that clusters, if none is named: `json` for answers in a format, else `text`.

    The words of an answer in a format include the names of its fields, which all answers share.

    Args:
        bindings: The plan's tools and answer format.
    """
    return JsonJudge() if is_structured(bindings) else TextJudge()


def list_judges() -> tuple[str, ...]:
    """Names that `make_judge` takes, sorted. Some of them may need packages that are not installed."""
    return _JUDGES.names()


def make_judge(name: str, **params: Any) -> Judge:
    """Make a judge by name, e.g. ``make_judge("text", threshold=0.8)``.

    Raises:
        UsageError: The name is unknown, or the judge does not take these parameters.
        MissingDependencyError: The package it needs is not installed.
    """
    return _JUDGES.make(name, **params)


def list_entailments() -> tuple[str, ...]:
    """Names that `make_entailment` takes, sorted. Some of them may need packages that are not installed."""
    return _ENTAILMENTS.names()


def make_entailment(name: str, **params: Any) -> Entailment:
    """Make an entailment model by name, with the parameters of its spec.

    Raises:
        UsageError: The name is unknown, or the model does not take these parameters.
        MissingDependencyError: The package it needs is not installed.
    """
    return _ENTAILMENTS.make(name, **params)
