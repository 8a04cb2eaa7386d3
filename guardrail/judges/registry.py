"""Judges, similarities and entailment models by name: the light ones, and those that installed packages offer.

A package offers one by an entry point whose value is a factory that takes the parameters of its spec as keywords:

    [project.entry-points."acrc_guardrail.judges"]
    nli = "integrations.transformers_judges:NliJudge"

It is loaded when it is made, not before. The groups are `acrc_guardrail.judges`, `acrc_guardrail.similarities` and
`acrc_guardrail.entailments`. Light ones cannot be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from ..errors import MissingDependencyError, UsageError
from ..types import Bindings
from .base import Entailment, Judge
from .json_value import JsonJudge, is_structured
from .numbers import NumericJudge
from .text import ExactJudge, TokenF1Judge
from .tool_call import ToolCallJudge

__all__ = ["Registry", "available", "available_entailments", "default_judge", "is_light", "make", "make_entailment"]

Made = TypeVar("Made")


class Registry(Generic[Made]):
    """Factories by name.

    Args:
        kind: What it makes, for messages.
        group: Entry-point group for those that other packages offer.
        light: The ones that need no other package.
    """

    def __init__(self, kind: str, group: str, light: Mapping[str, Callable[..., Made]]) -> None:
        self._kind = kind
        self._group = group
        self._light = light

    def is_light(self, name: str) -> bool:
        """Whether one needs no other package, no model and no noticeable time."""
        return name in self._light

    def available(self) -> tuple[str, ...]:
        """Names that can be made, sorted. Those of other packages are not loaded."""
        return tuple(sorted({*self._light, *self._offered()}))

    def make(self, name: str, **params: Any) -> Made:
        """Make one by name, with the parameters of its spec.

        Raises:
            UsageError: No such name, or parameters that it does not take.
            MissingDependencyError: The package that it needs is not installed.
        """
        factory = self._light.get(name)
        if factory is None:
            offered = self._offered().get(name)
            if offered is None:
                choice = ", ".join(self.available()) or "none is installed"
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
            factory: Callable[..., Made] = entry.load()
        except MissingDependencyError:
            raise
        except (ImportError, AttributeError) as error:
            extra = f"acrc-guardrail[{','.join(entry.extras) or 'local'}]"
            raise MissingDependencyError(
                f"{self._kind} {entry.name!r} ({entry.value}) cannot be loaded: {error}. If a package is missing, "
                f"install it with: pip install '{extra}'"
            ) from error
        return factory


_JUDGES: Registry[Judge] = Registry(
    "judge",
    "acrc_guardrail.judges",
    {
        "exact": ExactJudge,
        "json": JsonJudge,
        "numeric": NumericJudge,
        "token_f1": TokenF1Judge,
        "tool_call": ToolCallJudge,
    },
)
_ENTAILMENTS: Registry[Entailment] = Registry("entailment model", "acrc_guardrail.entailments", {})


def default_judge(bindings: Bindings | None = None) -> Judge:
    """The judge of an estimator that clusters, where none is named: for answers in a format `json`, else `token_f1`.

    Among the words of an answer in a format are the names of its fields, which all answers share.

    Args:
        bindings: The plan's tools and answer format.
    """
    return JsonJudge() if is_structured(bindings) else TokenF1Judge()


def available() -> tuple[str, ...]:
    """Names of the judges that can be made by name, sorted. Not all of their packages need be installed."""
    return _JUDGES.available()


def make(name: str, **params: Any) -> Judge:
    """Make a judge by name, e.g. ``make("token_f1", threshold=0.6)``.

    Raises:
        UsageError: No judge of that name, or parameters that it does not take.
        MissingDependencyError: The package that it needs is not installed.
    """
    return _JUDGES.make(name, **params)


def is_light(name: str) -> bool:
    """Whether the judge of that name needs no model: asking it is cheaper than looking a verdict up."""
    return _JUDGES.is_light(name)


def available_entailments() -> tuple[str, ...]:
    """Names of the entailment models that can be made by name, sorted. Not all of their packages need be installed."""
    return _ENTAILMENTS.available()


def make_entailment(name: str, **params: Any) -> Entailment:
    """Make an entailment model by name, with the parameters of its spec.

    Raises:
        UsageError: No entailment model of that name, or parameters that it does not take.
        MissingDependencyError: The package that it needs is not installed.
    """
    return _ENTAILMENTS.make(name, **params)
