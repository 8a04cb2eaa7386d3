"""The audit of a gate of items: a test of its promise on labelled answers that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.measure import items_measure
from guardrail.items.spec import ItemFigures, ItemsThreshold
from guardrail.notebook import percent

from ..data.records import RecordFile
from ..data.split import one_per_cluster, one_per_question
from ..rules.capital import p_capital
from ..rules.certificate import tail
from .answers import MeasuredItems, label_items, measure_records
from .figures import kept_of
from .fit import held_out_items, require_same_items, thresholds_of
from .rules import AnswerItems, Reals, reading_order

__all__ = ["LEVEL", "ItemsAudit", "Tested", "audit_items", "check_on", "check_promise", "measured_alike"]

LEVEL = 0.05
"""Default probability of refuting a gate whose risk is exactly its target."""


@dataclass(frozen=True, slots=True)
class Tested:
    """The test of a promise on labelled answers that the gate was not fitted on.

    Attributes:
        verdict: "refuted" or "supported" at the level of the test, else "undecided".
        sentence: The result in words.
        p_refuted: p-value of "the promise holds".
        p_supported: p-value of "the promise does not hold".
    """

    verdict: Literal["refuted", "supported", "undecided"]
    sentence: str
    p_refuted: float
    p_supported: float


def check_promise(
    gate: ItemsThreshold,
    items: AnswerItems,
    limits: Sequence[float | None],
    *,
    level: float = LEVEL,
    target: float | None = None,
) -> Tested:
    """Test a gate's promise on answers that it was not fitted on.

    The share of wrong items is tested by betting, in both directions; rules over answers by exact binomial tails. A
    gate whose risk is exactly its target is refuted with probability ``level`` at most.

    Args:
        gate: The gate.
        items: Labelled answers.
        limits: The threshold of each answer.
        level: Level of each of the two tests.
        target: Share to test instead of the gate's.
    """
    kept = kept_of(items, limits)
    K = np.bincount(items.answer, weights=kept, minlength=items.n).astype(np.float64)
    W = np.bincount(items.answer, weights=kept & (items.wrong == 1), minlength=items.n).astype(np.float64)
    if not K.sum():
        return Tested("undecided", "Nothing is kept of these answers, so the promise cannot be tested.", 1.0, 1.0)
    alpha = gate.alpha if target is None else target
    results = []
    if gate.rule in ("wrong_share", "both"):
        results.append(_share_tested(gate, items, K, W, alpha, level))
    if gate.rule != "wrong_share":
        limit = gate.options.get("clean_alpha", alpha) if target is None else target
        results.append(_broken_tested(gate, K, W, limit))
    p_refuted = min(1.0, len(results) * min(p for p, _, _ in results))
    p_supported = max(p for _, p, _ in results)
    facts_in_words = "; ".join(words for _, _, words in results)
    if p_refuted <= level:
        return Tested(
            "refuted", f"They refute the promise: {facts_in_words} (p = {p_refuted:.2g}).", p_refuted, p_supported
        )
    if p_supported <= level:
        words = f"They support the promise: {facts_in_words} (p = {p_supported:.2g})."
        return Tested("supported", words, p_refuted, p_supported)
    words = f"They neither refute nor support the promise: {facts_in_words}. More labelled answers would."
    return Tested("undecided", words, p_refuted, p_supported)


def _share_tested(
    gate: ItemsThreshold, items: AnswerItems, K: Reals, W: Reals, alpha: float, level: float
) -> tuple[float, float, str]:
    excess = W - alpha * K
    shown = K > 0
    most, least, share = (1 - alpha) * items.cap, alpha * items.cap, W.sum() / K.sum()
    if gate.per == "answer":
        excess = np.where(shown, excess / np.maximum(K, 1), 0.0)
        most, least, share = 1 - alpha, alpha, float((W[shown] / K[shown]).mean())
    read = excess[reading_order(items.ids)][:, None]
    against = float(p_capital(-read, least, level)[0])
    supports = float(p_capital(read, most, level)[0])
    return against, supports, f"{percent(share)} of what is kept is wrong, and the target is {percent(alpha)}"


def _broken_tested(gate: ItemsThreshold, K: Reals, W: Reals, alpha: float) -> tuple[float, float, str]:
    broken = int((gate.allowed < W).sum())
    n = int((K > 0).sum()) if gate.rule == "clean_shown" else K.size
    of = "answers that show something" if gate.rule == "clean_shown" else "answers"
    against = 1.0 if broken == 0 else float(1 - tail(broken - 1, n, alpha))
    words = f"{broken} of {n} {of} are broken ({percent(broken / n)}), and the target is {percent(alpha)}"
    return against, float(tail(broken, n, alpha)), words


@dataclass(frozen=True, slots=True)
class ItemsAudit(Tested):
    """The test of a promise, with its counts.

    Attributes:
        figures: Counts of the gate on these answers.
        data: The answers.
    """

    figures: ItemFigures
    data: MeasuredItems = field(repr=False)


def check_on(
    artifact: CalibrationArtifact, file: RecordFile, *, level: float = LEVEL, target: float | None = None
) -> ItemsAudit:
    """Test the promise on labelled answers that the gate was not fitted on.

    The figures count all of them. The test reads one of equal questions and, where the calibration answers were in
    clusters, one of each cluster: it takes answers as independent.

    Args:
        artifact: An artifact of items.
        file: Records with labelled items, measured as the artifact says.
        level: Probability of refuting a gate whose risk is exactly its target; and of supporting it.
        target: Share to test instead of the artifact's alpha.

    Raises:
        UsageError: As `held_out_items`.
    """
    figures, data = held_out_items(artifact, file)
    gate = artifact.items
    assert gate is not None, "held_out_items looks"
    clustered = gate.scores.group is not None
    units = one_per_question(one_per_cluster(data.records) if clustered else data.records)
    fewer = len(units) < len(data.records)
    items = held_out_items(artifact, file, units)[1].items if fewer else data.items
    tested = check_promise(gate, items, thresholds_of(gate, items), level=level, target=target)
    if fewer:
        which = "one of each cluster" if clustered else "one of equal questions"
        tested = replace(tested, sentence=f"{tested.sentence} Tested on {items.n} of these answers, {which}.")
    return ItemsAudit(**{each.name: getattr(tested, each.name) for each in fields(tested)}, figures=figures, data=data)


def audit_items(
    artifact: CalibrationArtifact, file: RecordFile, *, level: float = LEVEL, target: float | None = None
) -> ItemsAudit:
    """`check_on` on records that may lack items or labels: they are measured and labelled as the artifact says.

    Raises:
        UsageError: As `measured_alike`, `label_items` and `check_on`.
    """
    file, key = measured_alike(artifact, file)
    if key not in file.header.item_correctness:
        file = label_items(file, key)
    return check_on(artifact, file, level=level, target=target)


def measured_alike(artifact: CalibrationArtifact, file: RecordFile) -> tuple[RecordFile, str]:
    """Records with their items as the artifact says, and the key of these.

    Raises:
        UsageError: The artifact gates whole answers, or the records were made otherwise.
    """
    gate = artifact.items
    if gate is None:
        raise UsageError("this artifact gates whole answers; audit it with `calibrate.audit`.")
    key = f"items_{gate.spec.kind}"
    if key not in file.header.estimators:
        file = measure_records(file, items_measure(gate.spec))
    require_same_items(artifact, file, key)
    return file, key
