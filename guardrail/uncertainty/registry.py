"""Estimators by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import ArtifactMismatchError, UsageError
from ..judges import Entailment, Judge, JudgeSpec, Similarity, default_judge
from ..judges.base import Role
from ..judges.registry import make_named
from ..sampling.follow_ups import FOLLOW_UPS, SCORE
from ..specs import EstimatorSpec
from ..types import Bindings
from . import entropy, graph, likelihood, relevance, selfcheck
from .base import Estimator
from .combine import COMBINATIONS, from_combination_spec
from .scorer import Scorer

__all__ = ["ESTIMATORS", "from_spec", "list_estimators", "make_estimator"]

ESTIMATORS: dict[str, Estimator] = {
    estimator.name: estimator
    for family in (entropy, graph, likelihood, relevance, selfcheck)
    for estimator in family.ESTIMATORS
}
"""Every estimator by name, with its default similarity and without a judge. A new one is one line in ``ESTIMATORS`` of
its family's file; a new family is one name here."""
_ASKED = [each.needs.follow_up for each in ESTIMATORS.values()]
FOLLOW_UPS.update({each.name: each for each in _ASKED if each is not None})  # plans name them


def list_estimators() -> tuple[str, ...]:
    """Names of the estimators, sorted."""
    return tuple(sorted(ESTIMATORS))


def make_estimator(
    name: str,
    *,
    judge: Judge | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
    bindings: Bindings | None = None,
) -> Estimator:
    """Make an estimator by name.

    Args:
        name: One of `list_estimators()`.
        judge: Equivalence judge, for estimators that cluster. Default: `default_judge` of the bindings: `text`,
            or `json` if answers have a format.
        similarity: Graded similarity, for estimators over a graph or over pieces of an answer. Default:
            `guarded_jaccard`; `rouge_l` for `lexical_similarity`; `jaccard` for `graded_disagreement`.
        entailment: Entailment model, for estimators that look for contradictions. It has no default: without one
            they are unmeasured.
        bindings: The plan's tools and answer format, which decide the default judge.

    Raises:
        UsageError: The name is unknown, or the estimator does not use the judge, similarity or entailment model given.
    """
    if name not in ESTIMATORS:
        way_out = f"choose one of {', '.join(list_estimators())}"
        if ":" in name:  # as commands write it
            way_out = "in Python the judge is an argument: judge=, similarity= or bindings="
        raise UsageError(f"no score named {name!r}; {way_out}")
    estimator = ESTIMATORS[name]
    rates = estimator.similarity is not None
    if similarity is not None and not rates:
        raise UsageError(f"{name} does not rate pairs of answers and takes no similarity; leave similarity out")
    if entailment is not None and not estimator.needs.entailment:
        raise UsageError(f"{name} does not look for contradictions and takes no entailment model; leave entailment out")
    estimator = replace(estimator, similarity=similarity or estimator.similarity, entailment=entailment)
    if not estimator.needs.judge:
        if judge is not None:
            instead = "pass similarity=from_judge(judge)" if rates else "leave judge out"
            raise UsageError(f"{name} does not group answers and takes no judge; {instead}")
        return estimator
    return replace(estimator, judge=judge or default_judge(bindings))


def from_spec(
    spec: EstimatorSpec,
    *,
    judge: Judge | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
    scorer: Scorer | None = None,
) -> Estimator:
    """The estimator an artifact was calibrated with.

    Args:
        spec: What the artifact stores.
        judge: The judge object, for judges that cannot be made by name. Its spec must equal the stored one.
        similarity: The similarity object, likewise.
        entailment: The entailment model, likewise.
        scorer: The scorer, for artifacts that were calibrated with one.

    Raises:
        ArtifactMismatchError: The estimator, judge or scorer differs from the calibrated one; both are named.
        MissingDependencyError: The package of a judge that is made by name is not installed.
    """
    if spec.name.startswith("imported:"):
        raise ArtifactMismatchError(
            f"calibrated on {spec.name!r}: scores that came from a file, which a guard cannot compute. Such an "
            "artifact is for study only. For a guard, write the score as a @scorer and fit on it (docs/scores.md), or "
            "start with `calibrate collect`."
        )
    if spec.name in COMBINATIONS:
        by_role = {"judge": judge, "similarity": similarity, "entailment": entailment, "scorer": scorer}
        remake = partial(_part, objects={role: one for role, one in by_role.items() if one is not None})
        running = from_combination_spec(spec, remake)
        if scorer is not None and scorer.follow_up not in {each.name for each in running.members}:
            raise _unused(spec, scorer)
        return running
    if spec.name.startswith(SCORE):
        if scorer is None:
            raise ArtifactMismatchError(
                f"calibrated with the scorer {spec.name}, a function that no artifact can hold. Pass it: "
                "Guardrail(..., using={'scorer': ...})."
            )
        return scorer.serving(spec)
    if scorer is not None:
        raise _unused(spec, scorer)
    if spec.name not in ESTIMATORS:
        raise ArtifactMismatchError(f"calibrated with score {spec.name!r}, which this version does not have")
    objects: dict[Role, Any] = {"judge": judge, "similarity": similarity, "entailment": entailment}
    chosen: dict[str, Any] = {role: one or _remade(role, getattr(spec, role)) for role, one in objects.items()}
    running = make_estimator(spec.name, **chosen)
    if running.spec != spec:
        raise ArtifactMismatchError(
            f"score differs: calibrated with {spec.model_dump()}, running {running.spec.model_dump()}. "
            "Scores are not comparable: calibrate again, or install the version that made the artifact."
        )
    return running


def _unused(spec: EstimatorSpec, scorer: Scorer) -> ArtifactMismatchError:
    return ArtifactMismatchError(
        f"calibrated with {spec.name}, got the scorer {scorer.follow_up}. Leave scorer out, or calibrate with it."
    )


def _remade(role: Role, spec: JudgeSpec | None) -> Any:
    """The judge, similarity or entailment model of a spec, made by name."""
    if spec is None:
        return None
    try:
        return make_named(role, spec.name, spec.params)
    except UsageError as error:
        raise ArtifactMismatchError(
            f"calibrated with {role} {spec.name!r} {spec.params}, which cannot be made by name here ({error}). "
            f"Pass the {role} object: Guardrail(..., using={{{role!r}: ...}})."
        ) from error


def _part(spec: EstimatorSpec, objects: Mapping[str, Any]) -> Estimator:
    """A part of a combination, with those of the given objects that match its spec."""
    fitting = {
        role: one
        for role, one in objects.items()
        if (one.follow_up == spec.name if role == "scorer" else one.spec == getattr(spec, role))
    }
    return from_spec(spec, **fitting)
