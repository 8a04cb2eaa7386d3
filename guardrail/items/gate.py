"""The gate of items: the verdict on each, and what is left of the answer. `gate_of` alone asks which gate it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..artifact import CalibrationArtifact
from ..decision import Gate, ThresholdGate, verdict_by
from ..errors import ArtifactMismatchError
from ..judges import Similarity
from ..judges.base import Entailment, Judge
from ..types import SampleSet, Uncertainty
from ..uncertainty import Scorer, from_spec
from ..uncertainty.base import Estimator
from ..verdict import Reason, Verdict
from .item import Item, ItemVerdict
from .measure import items_estimator, items_measure, measure_of, measured_items
from .paths import named_path, schema_of
from .spec import ItemsSpec, kept

# -- The gate ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ItemsGate:
    """A `guardrail.decision.Gate` on items: each is kept or held back by itself.

    Attributes:
        artifact: An artifact of items.
        estimator: Its estimator, the uncertainty of the most certain item.
    """

    artifact: CalibrationArtifact
    estimator: Estimator

    def decide(self, drawn: SampleSet, *, settled: Uncertainty | None = None) -> Verdict:
        """As `Gate.decide`; accepted iff some item is kept."""
        uncertainty, items = measured_items(drawn, self.estimator, self.artifact.plan)
        verdict = verdict_by(uncertainty, drawn, self)
        return _by_items(verdict, items, measure_of(self.estimator).spec, schema_of(self.artifact.plan.bindings))


def gate_of(
    artifact: CalibrationArtifact,
    *,
    judge: Judge | Mapping[str, Judge] | None = None,
    similarity: Similarity | None = None,
    entailment: Entailment | None = None,
    scorer: Scorer | None = None,
) -> Gate:
    """The gate of an artifact, on a score of whole answers or on items; see `guardrail.uncertainty.from_spec`.

    It stands in this room because that of whole answers (`guardrail.decision`) lies below and knows no items.

    Args:
        artifact: The artifact.
        judge: For whole answers the judge object; for items the judge objects by path, as ``{"/total": judge}``.
        similarity: The similarity object.
        entailment: The entailment model object.
        scorer: The scorer.

    Raises:
        ArtifactMismatchError: The estimator, a judge or a model differs from the calibrated one.
    """
    if artifact.kind == "threshold":
        if isinstance(judge, Mapping):
            raise ArtifactMismatchError("judge by path is for artifacts with items; this one gates whole answers.")
        running = from_spec(
            artifact.estimator, judge=judge, similarity=similarity, entailment=entailment, scorer=scorer
        )
        return ThresholdGate(artifact, running)
    if (similarity, entailment, scorer) != (None, None, None) or not (judge is None or isinstance(judge, Mapping)):
        raise ArtifactMismatchError(
            "this artifact gates items of answers: it takes no similarity, no entailment model and no scorer, and "
            "judges by the path of a field, using={'judge': {'/total': ...}}."
        )
    running = items_estimator(items_measure(ItemsSpec.of(artifact.estimator), judges=judge))
    if running.spec != artifact.estimator:
        raise ArtifactMismatchError(
            f"score differs: calibrated with {artifact.estimator.model_dump()}, running "
            f"{running.spec.model_dump()}. Calibrate again, or install the version that made the artifact."
        )
    return ItemsGate(artifact, running)


def judges_among(artifact: CalibrationArtifact, judges: Mapping[str, Judge]) -> Judge | Mapping[str, Judge] | None:
    """The ``judge`` of `gate_of`, of judge objects by the name of their spec: one, or one for each field."""
    if artifact.kind == "items":
        by_path = ItemsSpec.of(artifact.estimator).judges
        return {path: judges[spec.name] for path, spec in by_path.items() if spec.name in judges}
    return None if artifact.estimator.judge is None else judges.get(artifact.estimator.judge.name)


# -- The verdict -------------------------------------------------------------------------------------------------------


def _by_items(
    verdict: Verdict, items: Sequence[Item], spec: ItemsSpec, schema: Mapping[str, Any] | None = None
) -> Verdict:
    """The verdict on the whole answer, with the verdict on each item.

    Accepted iff some item is kept. A tool call of which an argument is held back is not accepted: it must not run
    without it.

    Args:
        verdict: The verdict by the most certain item.
        items: The items of its candidate.
        spec: The way answers become items.
        schema: The JSON schema of the answers, if they have one: other keys are words of the model.
    """
    flags = kept([item.uncertainty for item in items], verdict.threshold, spec.cap)
    judged = tuple(
        ItemVerdict(**item.model_dump(), kept=verdict.accepted and bool(flag), named=_named(item, spec, schema))
        for item, flag in zip(items, flags, strict=True)
    )
    if not verdict.accepted or all(item.kept for item in judged):
        return verdict.model_copy(update={"items": judged})
    calls = verdict.candidate is not None and bool(verdict.candidate.tool_calls)
    return verdict.model_copy(update={"items": judged, "reason": Reason.PARTLY_HELD_BACK, "accepted": not calls})


def _named(item: Item, spec: ItemsSpec, schema: Mapping[str, Any] | None) -> str | None:
    """The path without words of the model; None if it has none, as most paths."""
    named = named_path(item.path, spec, schema)
    return None if named == item.path else named


# What becomes of a verdict whose items are partly held back depends on the caller, who names one of two policies.


def undivided(verdict: Verdict) -> Verdict:
    """All or nothing, for callers that can use no item of an answer: an abstention unless everything is kept."""
    if not verdict.accepted or verdict.reason is not Reason.PARTLY_HELD_BACK:
        return verdict
    return verdict.model_copy(update={"accepted": False})


def released_call(verdict: Verdict) -> Verdict:
    """What is kept, for callers that read the arguments of a call and never run it: these arguments, accepted."""
    if verdict.accepted or verdict.reason is not Reason.PARTLY_HELD_BACK:
        return verdict
    return verdict.model_copy(update={"accepted": True})
