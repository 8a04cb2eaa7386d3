"""A new threshold from reviews, and its comparison with the one in force on reviews kept out of the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.item import Item
from guardrail.specs import CorrectnessSpec
from guardrail.types import SampleSet

from ..data.record import ItemLabels
from ..data.records import GIVEN, Record, RecordFile, RecordHeader
from ..data.split import Groups, split
from ..judging import GateCounts, fitted_on, held_out
from ..ledger import Ledger, counted
from ..pipeline import fit_artifact
from .pool import NOBODY, Missing, ReviewedItem, ReviewPool, usable


@dataclass(frozen=True, slots=True)
class Learned:
    """A refit on reviews.

    Attributes:
        artifact: The new artifact.
        file: The records it was fitted on, with their header.
        test: Records kept out of the fit.
        rate: Probability with which every question came into the sample.
        sample: The reviews of the sample, in order of arrival; those without a decision count as wrong.
        old: What the artifact in force does on the test records; counts of items for a gate of items.
        new: What the new one does on them.
    """

    artifact: CalibrationArtifact
    file: RecordFile
    test: tuple[Record, ...]
    rate: float
    sample: tuple[ReviewedItem, ...]
    old: GateCounts
    new: GateCounts


def thinned(pool: ReviewPool) -> tuple[list[ReviewedItem], float]:
    """Thin a pool until it holds every question with the same probability.

    Returns:
        The items of the sample in order of arrival, decided or not, and that probability.

    Raises:
        UsageError: Answers were accepted and none of them audited.
    """
    from guardrail.review.hooks import chosen

    _refuse_unaudited(pool)
    rate = min((item.chance for item in pool.items), default=1.0)
    return [item for item in pool.items if chosen(item.key, rate / item.chance, salt="thin")], rate


def learn(
    pool: ReviewPool,
    artifact: CalibrationArtifact,
    *,
    name: str,
    alpha: float | Literal["smallest"] | None = None,
    rule: str | None = None,
    missing: Missing = "wait",
    test_fraction: float = 0.3,
    seed: int = 0,
    ledger: Ledger | None = None,
) -> Learned:
    """Fit a new threshold on reviews and hold it against the old one on reviews kept out of the fit.

    The test part is drawn from questions that the artifact in force was not fitted on. A question that several users
    asked is in one part only.

    Args:
        pool: The queue.
        artifact: The artifact in force. It is not changed.
        name: Name of the data, for the new artifact.
        alpha: Target error rate, or "smallest" as in `calibrate.fit`; default: the old one's.
        rule: Threshold rule, with its settings or without; default: the old one's, with its delta.
        missing: How items without a decision are used.
        test_fraction: Share of the sample kept out of the fit.
        seed: Of that split.
        ledger: Fits on the decisions of this queue; default: none before.

    Raises:
        UsageError: Answers were accepted and none of them audited, no decision can be used yet, scores are bounds (see
            `Uncertainty`), or too few items.
    """
    _refuse_bounds(pool)
    kept, rate = thinned(pool)
    sample = usable(kept, missing, "reviews in the sample")
    key = artifact.estimator.name
    groups: Groups = "category" if artifact.calibration.group is None else "cluster"
    records = [_record(item, key) for item in sample]
    met = fitted_on(artifact, records)
    part, test = split(records, test_fraction=test_fraction, seed=seed, groups=groups, kept=met)
    header = _header(artifact, part, name, {"missing": missing, "rate": rate})
    file = RecordFile(Path(name), header, tuple(part))
    in_force = artifact.outcome
    fitted = fit_artifact(
        file,
        score=key,
        alpha=in_force.alpha if alpha is None else alpha,
        rule=rule or in_force.rule,
        delta=in_force.delta if rule in (None, in_force.rule) else None,
        groups=groups,
        repeats="all",  # users repeat questions, and each time is a draw of its own
    )
    fitted = counted(fitted, ledger or Ledger())
    return Learned(
        artifact=fitted,
        file=file,
        test=tuple(test),
        rate=rate,
        sample=tuple(sample),
        old=held_out(artifact, test, key),
        new=held_out(fitted, test, key),
    )


def _refuse_unaudited(pool: ReviewPool) -> None:
    """Refuse a queue without accepted answers, if some were accepted: it says nothing about them."""
    gates = {item.verdict.artifact: item.verdict.threshold for item in pool.items}
    audited = {item.verdict.artifact for item in pool.audits}
    silent_ones = [digest for digest, threshold in gates.items() if threshold is not None and digest not in audited]
    if silent_ones or (pool.partial and not audited):
        which = f" of artifact {silent_ones[0]}" if silent_ones else ""
        raise UsageError(
            f"no accepted answer{which} was audited, so the queue holds only what was held back; "
            "a threshold fitted on that says nothing about answers that are given. Audit a known share: "
            "Guardrail(..., on_verdict=guardrail.review.audit_sample(store, rate=0.1))."
        )


def _refuse_bounds(pool: ReviewPool) -> None:
    bounds = sum(item.verdict.uncertainty.is_bound for item in pool.items)
    if bounds:
        raise UsageError(
            f"the first of two stages decided {bounds} of {len(pool.items)} reviewed verdicts, so their uncertainty is "
            "a bound, not a score. A threshold needs scores: collect and label questions (calibrate run --calls 1.4), "
            "or use a score of one stage."
        )


def _header(
    artifact: CalibrationArtifact, records: Sequence[Record], name: str, params: dict[str, Any]
) -> RecordHeader:
    labels = CorrectnessSpec(name=GIVEN, version=2, params={"source": "reviews", **params})
    answers = all(record.items is None for record in records)  # otherwise people decided about their items
    return RecordHeader.of(
        [record.to_question() for record in records],
        model=artifact.model,
        plan=artifact.plan,
        prompt=artifact.prompt,
        questions_name=name,
        correctness=labels if answers else None,
        estimators={artifact.estimator.name: artifact.estimator},
        item_correctness=None if answers else labels,
    )


def _record(item: ReviewedItem, key: str) -> Record:
    """A record with the score and the label, and the answer that was judged; samples are not kept by the queue."""
    verdict = item.verdict
    drawn = SampleSet(question=item.question, primary=verdict.candidate, cost=verdict.cost)
    judged = verdict.items if verdict.by_items else ()
    items = tuple(Item(**item.model_dump(exclude={"kept"})) for item in judged)
    labels = ItemLabels(right=item.labels or (None,) * len(items))  # no decision in time: undecided, which is wrong
    return Record(
        id=item.id,
        question=item.question,
        messages=item.messages,
        group=item.group,
        drawn=drawn,
        scores={key: verdict.uncertainty},
        items=items or None,
        item_labels=labels if items else None,
        correct=None if items else item.correct,
        label_detail=NOBODY if item.correct is None and not items else "",
    )
