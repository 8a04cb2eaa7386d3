"""A threshold for each segment (intent, topic) of the questions, and what one threshold for all does in each.

One threshold keeps the error rate of all accepted answers at alpha, on average over segments: in a hard one it may be
far above. A certificate for each segment, fitted on its questions alone, holds there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact, Segments
from guardrail.errors import UsageError
from guardrail.gate import accepts
from guardrail.outcome import Diagnostics, Feasible, Infeasible, InfeasibleReason
from guardrail.verdict import ALL_OTHERS

from .thresholds import DEFAULT_DELTA, fit
from .thresholds.registry import rule_named

__all__ = ["BySegment", "SegmentRow", "segment_rows", "with_segments"]


@dataclass(frozen=True, slots=True)
class BySegment:
    """Settings of a fit with a threshold for each segment.

    Attributes:
        share: "together": every certificate spends delta divided by the number of thresholds, so that all of them hold
            at once with probability 1 - delta. "each": every one spends delta; of K certificates up to K * delta fail
            on average.
        unknown: What questions of other segments get: "others", a threshold fitted on the questions that are in no
            named segment, or "abstain", none.
        min_labels: Labelled questions from which on a category gets a threshold; smaller ones are "all others".
    """

    share: Literal["together", "each"] = "together"
    unknown: Literal["others", "abstain"] = "others"
    min_labels: int = 50


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One segment on the calibration questions: under its own threshold, and under one threshold for all.

    Attributes:
        name: The segment, or `ALL_OTHERS`.
        n: Labelled questions.
        base_errors: Wrong answers among them.
        threshold: The segment's; None if nothing is accepted.
        own: Accepted answers, and wrong ones among them, under the segment's threshold.
        one: The same under one threshold for all.
    """

    name: str
    n: int
    base_errors: int
    threshold: float | None
    own: tuple[int, int]
    one: tuple[int, int]


def with_segments(
    artifact: CalibrationArtifact,
    names: Sequence[str | None],
    by: BySegment,
    *,
    delta: float | None = None,
) -> CalibrationArtifact:
    """The artifact with a certificate for each segment, fitted on the questions of that segment.

    Given how many questions each segment has, those of one are draws from its population, so each certificate holds
    with its share of delta; by the union bound all hold at once with probability 1 - delta ("together"). Which
    categories become segments depends on the number of labels, not on what the labels say.

    Args:
        artifact: Fitted on all questions by a rule that certifies.
        names: Category of each calibration item, in the artifact's order; None for items without one.
        by: How to fit.
        delta: Failure probability; default: the one of the artifact's outcome.

    Raises:
        UsageError: A rule that does not certify, clusters, a scope, or no category with enough labels.
    """
    outcome, scores = artifact.outcome, artifact.calibration
    rule = rule_named(outcome.rule)
    if not rule.certifies or not rule.uses_delta:
        raise UsageError(f"rule {outcome.rule!r} certifies nothing, and segments divide delta. Use rule 'certified'.")
    refused = {
        "clusters": scores.group,
        "questions that were drawn by their scores": artifact.outcome.scope.cut,
    }
    for reason, value in refused.items():
        if value is not None:
            raise UsageError(f"a threshold for each segment cannot be fitted on {reason}. Leave out one of the two.")
    if by.min_labels < 1:
        raise UsageError(f"min_labels must be at least 1, got {by.min_labels}. The default is 50.")
    counts = Counter(name for name in names if name)
    segments = sorted(name for name, n in counts.items() if n >= by.min_labels)
    if not segments:
        most = max(counts.items(), key=lambda item: item[1], default=None)
        largest = "no question has a group" if most is None else f"the largest, {most[0]!r}, has {most[1]}"
        raise UsageError(
            f"no category has {by.min_labels} labelled questions: {largest}. Label more questions, lower --min-labels, "
            "or fit one threshold."
        )
    delta = (outcome.delta or DEFAULT_DELTA) if delta is None else delta
    own = [name if name in segments else None for name in names]
    fits_others = by.unknown == "others" and None in own
    spent = delta / (len(segments) + fits_others) if by.share == "together" else delta
    u, error, place = np.array(scores.uncertainty), np.array(scores.error), np.array(own, dtype=object)

    def part(name: str | None) -> Feasible | Infeasible:
        mask = np.array([segment == name for segment in place])
        return fit(u[mask], error[mask], alpha=outcome.alpha, rule=outcome.rule, delta=spent)

    return artifact.model_copy(
        update={
            "outcome": part(None) if fits_others else _nothing_for_others(outcome, own.count(None), spent, segments),
            "calibration": scores.model_copy(update={"segment": tuple(own)}),
            "segments": Segments(
                outcomes={name: part(name) for name in segments},
                delta=delta,
                share=by.share,
                unknown=by.unknown,
                min_labels=by.min_labels,
            ),
        }
    )


def _nothing_for_others(outcome: Feasible | Infeasible, n: int, delta: float, segments: Sequence[str]) -> Infeasible:
    return Infeasible(
        rule=outcome.rule,
        alpha=outcome.alpha,
        delta=delta,
        options={},
        n=n,
        guarantee="Nothing is accepted.",
        diagnostics=Diagnostics(
            base_error=outcome.diagnostics.base_error,
            auroc=None,
            max_acceptance=0.0,
        ),
        certifies=outcome.certifies,
        reason=InfeasibleReason.UNKNOWN_SEGMENT,
        detail=(
            "The question is of none of the segments that have a threshold, so nothing is accepted (they are: "
            f"{', '.join(segments)}). Name its segment, or hand it to a person."
        ),
    )


def segment_rows(artifact: CalibrationArtifact) -> list[SegmentRow]:
    """Each segment on the calibration questions, the one with the highest error under one threshold first.

    One threshold is that of `one_for_all`. Empty without segments.
    """
    scores = artifact.calibration
    if artifact.segments is None or scores.segment is None:
        return []
    common = one_for_all(artifact).threshold
    rows = []
    for name in (*artifact.segments.outcomes, None):
        items = [
            (u, error)
            for u, error, segment in zip(scores.uncertainty, scores.error, scores.segment, strict=True)
            if segment == name
        ]
        outcome = artifact.outcome_in(name)
        threshold = outcome.threshold if isinstance(outcome, Feasible) else None
        if items:
            rows.append(
                SegmentRow(
                    name=ALL_OTHERS if name is None else name,
                    n=len(items),
                    base_errors=sum(error for _, error in items),
                    threshold=threshold,
                    own=_accepted(items, threshold),
                    one=_accepted(items, common),
                )
            )
    return sorted(rows, key=lambda row: (-(row.one[1] / row.one[0] if row.one[0] else 0.0), row.name))


def one_for_all(artifact: CalibrationArtifact) -> Feasible | Infeasible:
    """One threshold for all questions by the same rule, for comparison; the artifact's own without segments."""
    own, scores = artifact.segments, artifact.calibration
    if own is None:
        return artifact.outcome
    u, error = np.asarray(scores.uncertainty), np.asarray(scores.error)
    return fit(u, error, alpha=artifact.alpha, rule=artifact.outcome.rule, delta=own.delta)


def _accepted(items: Sequence[tuple[float, int]], threshold: float | None) -> tuple[int, int]:
    errors = [error for u, error in items if threshold is not None and accepts(u, threshold)]
    return len(errors), sum(errors)
