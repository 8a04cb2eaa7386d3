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
from typing import Any

from ..errors import MissingDependencyError, UsageError, load_entry_point
from ..types import Bindings
from .base import Entailment, Judge, Role
from .dates import DateJudge
from .json_value import JsonJudge, is_structured
from .numbers import NumericJudge
from .similarity import GuardedJaccard, Jaccard, JudgeSimilarity, RougeL, Similarity
from .text import ExactJudge, TextJudge
from .tool_call import ToolCallJudge

__all__ = ["JUDGES", "SIMILARITIES", "default_judge", "list_judges", "list_similarities", "make_entailment"]
__all__ += ["make_judge", "make_named", "make_similarity"]

JUDGES: dict[str, type[Judge]] = {
    "date": DateJudge,
    "exact": ExactJudge,
    "json": JsonJudge,
    "numeric": NumericJudge,
    "text": TextJudge,
    "tool_call": ToolCallJudge,
}
"""The built-in judges. A new one is one line here."""


def _from_judge(judge: dict[str, Any]) -> JudgeSimilarity:
    return JudgeSimilarity(make_judge(judge["name"], **judge["params"]))


SIMILARITIES: dict[str, Callable[..., Similarity]] = {
    "from_judge": _from_judge,
    "guarded_jaccard": GuardedJaccard,
    "jaccard": Jaccard,
    "rouge_l": RougeL,
}
"""The built-in similarities. A new one is one line here."""
_BUILT_IN: dict[Role, tuple[str, Mapping[str, Callable[..., Any]]]] = {
    "judge": ("acrc_guardrail.judges", JUDGES),
    "similarity": ("acrc_guardrail.similarities", SIMILARITIES),
    "entailment": ("acrc_guardrail.entailments", {}),
}
"""Entry-point group, and what needs no other package, of each role."""


def default_judge(bindings: Bindings | None = None) -> Judge:
    """The judge of an estimator that clusters, if none is named: `json` for answers in a format, else `text`.

    The words of an answer in a format include the names of its fields, which all answers share.

    Args:
        bindings: The plan's tools and answer format.
    """
    return JsonJudge() if is_structured(bindings) else TextJudge()


def list_judges() -> tuple[str, ...]:
    """Names that `make_judge` takes, sorted. Some of them may need packages that are not installed."""
    return _names("judge")


def list_similarities() -> tuple[str, ...]:
    """Names that `make_similarity` takes, as `list_judges`."""
    return _names("similarity")


def make_judge(name: str, **params: Any) -> Judge:
    """Make a judge by name with the parameters of its spec, e.g. ``make_judge("text", threshold=0.8)``.

    Raises:
        UsageError: The name is unknown, or the judge does not take these parameters.
        MissingDependencyError: The package it needs is not installed.
    """
    judge: Judge = make_named("judge", name, params)
    return judge


def make_similarity(name: str, **params: Any) -> Similarity:
    """Make a similarity by name, as `make_judge`."""
    similarity: Similarity = make_named("similarity", name, params)
    return similarity


def make_entailment(name: str, **params: Any) -> Entailment:
    """Make an entailment model by name, as `make_judge`."""
    model: Entailment = make_named("entailment", name, params)
    return model


def make_named(role: Role, name: str, params: Mapping[str, Any]) -> Any:
    """Make what a score of this role takes, by name; see `make_judge`."""
    group, built_in = _BUILT_IN[role]
    factory = built_in.get(name)
    if factory is None:
        offered = next(iter(entry_points(group=group, name=name)), None)
        if offered is None:
            raise UsageError(_unknown(role, name))
        factory = _loaded(offered, role)
    try:
        return factory(**params)
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{role} {name!r} does not take the parameters {dict(params)}: {error}") from error


def _names(role: Role) -> tuple[str, ...]:
    group, built_in = _BUILT_IN[role]
    return tuple(sorted({*built_in, *(entry.name for entry in entry_points(group=group))}))


def _unknown(role: Role, name: str) -> str:
    """The fault and the way out of a name that no object of this role has."""
    if name == "chat":
        return (
            "a chat model can be named as the judge of a score only: semantic_entropy:chat(model=PROVIDER:MODEL). In "
            "Python pass judge=ChatJudge(model) or similarity=from_judge(ChatJudge(model))."
        )
    choice = ", ".join(_names(role)) or "none is installed"
    if role == "similarity" and name in _names("judge"):
        return f"{name} is a judge, not a similarity. Write from_judge({name}), or choose one of: {choice}"
    if role == "judge" and name in _names("similarity"):
        return (
            f"{name} is a similarity, not a judge; choose one of: {choice}. A score that takes both keeps its default "
            f"judge as graded_disagreement::{name}"
        )
    kind = "entailment model" if role == "entailment" else role
    return f"no {kind} named {name!r}; choose one of: {choice}"


def _loaded(entry: EntryPoint, role: Role) -> Callable[..., Any]:
    try:
        factory: Callable[..., Any] = load_entry_point(entry)
    except MissingDependencyError:
        raise
    except (ImportError, AttributeError) as error:
        extra = f"acrc-guardrail[{','.join(entry.extras) or 'local'}]"
        raise MissingDependencyError(
            f"{role} {entry.name!r} ({entry.value}) cannot be loaded: {error}. If a package is missing, install it "
            f"with: pip install '{extra}', or in a clone: pip install '{extra.replace('acrc-guardrail', '.')}'"
        ) from error
    return factory
