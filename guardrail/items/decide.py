"""From measured items to the verdict, and what is left of the answer: pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..types import Missing, SampleSet, SamplingPlan, Uncertainty
from ..uncertainty.base import Estimator
from ..verdict import Reason, Verdict
from .gate import kept
from .item import Item, ItemVerdict
from .json_fields import named_path
from .measure import measure_of, smallest
from .release import release
from .spec import ItemsThreshold

__all__ = ["LISTED", "by_items", "measured_items", "released_call", "undivided"]

LISTED = 12
"""Most places that a verdict's detail lists."""


def measured_items(drawn: SampleSet, estimator: Estimator, plan: SamplingPlan) -> tuple[Uncertainty, tuple[Item, ...]]:
    """The items of the answer, and the uncertainty of the most certain one; no items if the answer is unmeasured."""
    items = measure_of(estimator).items(drawn, plan)
    value = smallest(items)
    if isinstance(value, Missing):
        uncertainty = estimator.unmeasured(value.reason, value.detail)
    else:
        uncertainty = Uncertainty(value=value, unit=estimator.unit, estimator=estimator.name)
    return uncertainty, () if isinstance(items, Missing) else items


def by_items(
    verdict: Verdict, items: Sequence[Item], gate: ItemsThreshold, schema: Mapping[str, Any] | None = None
) -> Verdict:
    """The verdict on the whole answer, with the verdict on each item.

    Accepted iff some item is kept; the candidate then has the kept items only. A tool call of which an argument is held
    back is not accepted: it must not run without it.

    Args:
        verdict: The verdict by the most certain item.
        items: The items of its candidate.
        gate: The artifact's gate; the threshold is the verdict's, or that of the answer's band of the number of items.
        schema: The JSON schema of the answers, if they have one: other keys are words of the model.
    """
    if gate.bands:
        verdict = _in_band(verdict, gate.threshold_for(len(items)), len(items))
    flags = kept([item.uncertainty for item in items], verdict.threshold, gate.spec.cap)
    judged = tuple(
        ItemVerdict(**item.model_dump(), kept=verdict.accepted and bool(flag), named=_named(item, gate, schema))
        for item, flag in zip(items, flags, strict=True)
    )
    answer = verdict.candidate
    if not verdict.accepted or answer is None:
        return verdict.model_copy(update={"items": judged})
    held = [item for item in judged if not item.kept]
    counted = f"{len(judged) - len(held)} of {len(judged)} items"
    if not held:
        whole = {"candidate": release(answer, judged), "detail": f"{verdict.detail} Kept: all {len(judged)} items."}
        return verdict.model_copy(update={"items": judged, **whole})
    names = [_name(item, number) for number, item in enumerate(judged, start=1) if not item.kept]
    places = ", ".join(names[:LISTED])
    more = f" and {len(held) - LISTED} more" if len(held) > LISTED else ""
    partly = {"items": judged, "reason": Reason.PARTLY_HELD_BACK}
    if answer.tool_calls:
        detail = (
            f"Held back: {counted} are certain enough (uncertainty <= {verdict.threshold:.4g}), but a call must not "
            f"run without the others: {places}{more}. A person decides about them."
        )
        return verdict.model_copy(update={**partly, "accepted": False, "detail": detail})
    detail = f"Accepted in item: kept {counted} (uncertainty <= {verdict.threshold:.4g}). Held back: {places}{more}."
    detail += " Have a person decide about these, or do without them."
    return verdict.model_copy(
        update={**partly, "candidate": release(answer, judged), "whole": answer, "detail": detail}
    )


def _named(item: Item, gate: ItemsThreshold, schema: Mapping[str, Any] | None) -> str | None:
    """The path without words of the model; None if it has none, as most paths."""
    named = None if item.path is None else named_path(item.path, gate.spec, schema)
    return None if named == item.path else named


def _name(item: ItemVerdict, number: int) -> str:
    """The path of a field, without words of the model, or the number of a sentence as the review page counts them."""
    if item.span is None:
        return item.named_place or "(the whole value)"
    return f"sentence {number}"


def _in_band(verdict: Verdict, limit: float | None, n_parts: int) -> Verdict:
    """The verdict by the threshold for answers with so many items, which is at most the one that was compared."""
    value = verdict.uncertainty.value
    if not verdict.accepted or (limit is not None and value is not None and value <= limit):
        return verdict.model_copy(update={"threshold": limit})
    reason = Reason.INFEASIBLE if limit is None else Reason.ABOVE_THRESHOLD
    least = "none was found" if limit is None else f"{limit:.4g}"
    detail = (
        f"Held back: for answers of {n_parts} items the threshold is another one ({least}), and the uncertainty of the "
        f"most certain item is {value:.4g}. Hand the question to a person."
    )
    return verdict.model_copy(update={"accepted": False, "reason": reason, "threshold": limit, "detail": detail})


def undivided(verdict: Verdict) -> Verdict:
    """For callers that can use no part of an answer: an abstention unless everything is kept."""
    if not verdict.accepted or verdict.reason is not Reason.PARTLY_HELD_BACK:
        return verdict
    detail = f"{verdict.detail} The caller takes a whole answer only, so nothing is given out."
    return verdict.model_copy(
        update={"accepted": False, "candidate": verdict.original, "whole": None, "detail": detail}
    )


def released_call(verdict: Verdict) -> Verdict:
    """For callers that read the arguments of a call and never run it: a call of the kept arguments, accepted."""
    answer = verdict.candidate
    if verdict.accepted or verdict.reason is not Reason.PARTLY_HELD_BACK or answer is None:
        return verdict
    left = release(answer, verdict.items)
    detail = verdict.detail.replace("Held back:", "Accepted in item:", 1)
    return verdict.model_copy(update={"accepted": True, "candidate": left, "whole": answer, "detail": detail})
