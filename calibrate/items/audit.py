"""The audit of a gate of items: a test of its promise on labelled answers that it was not fitted on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemFigures, ItemsSpec
from guardrail.notebook import percent

from ..data.records import RecordFile
from ..data.split import one_per_cluster, one_per_question
from ..rules.capital import excess_mean, excess_total, p_capital
from ..rules.certificate import tail
from .answers import LabelledItems, label_items, measure_records
from .figures import item_figures
from .fit import held_out_items, require_same_items
from .rules import AnswerItems

__all__ = ["LEVEL", "ItemsAudit", "audit_items", "check_on", "check_promise", "measured_alike"]

LEVEL = 0.05
"""Default probability of refuting a gate whose risk is exactly its target."""


@dataclass(frozen=True, slots=True)
class ItemsAudit:
    """The test of a promise on labelled answers that the gate was not fitted on.

    Attributes:
        verdict: "refuted" or "supported" at the level of the test, else "undecided".
        sentence: The result in words.
        p_refuted: p-value of "the promise holds".
        p_supported: p-value of "the promise does not hold".
        figures: Counts of the gate on these answers.
        data: The answers.
    """

    verdict: Literal["refuted", "supported", "undecided"]
    sentence: str
    p_refuted: float
    p_supported: float
    figures: ItemFigures
    data: LabelledItems = field(repr=False)


def check_promise(
    rule: str, threshold: float | None, items: AnswerItems, *, alpha: float, level: float = LEVEL
) -> tuple[float, float, str]:
    """The p-values of "the promise holds" and of "it does not" on answers that the gate was not fitted on, in words.

    The share of wrong items is tested by betting, in both directions; rules over answers by exact binomial tails. A
    gate whose risk is exactly its target is refuted with probability ``level`` at most.
    """
    K, W = items.counts(threshold)
    if not K.any():
        return 1.0, 1.0, "nothing is kept of these answers, so the promise cannot be tested"
    if rule.startswith("wrong_share"):
        by_item = rule == "wrong_share"
        excess = (excess_total if by_item else excess_mean)(K, W, alpha)
        largest = items.cap if by_item else 1
        share = W.sum() / K.sum() if by_item else (W[K > 0] / K[K > 0]).mean()
        # By a hash of the id: read by length, the capital would grow before the first wrong answer comes.
        order = sorted(range(items.n), key=lambda i: hashlib.sha256(items.ids[i].encode()).digest())
        read = np.asarray(excess)[order][:, None]
        against = float(p_capital(-read, alpha * largest, level)[0])
        supports = float(p_capital(read, (1 - alpha) * largest, level)[0])
        return against, supports, f"{percent(share)} of what is kept is wrong, and the target is {percent(alpha)}"
    shown_only = rule == "clean_shown"
    broken, n = int((W > 0).sum()), int((K > 0).sum()) if shown_only else items.n
    against = 1.0 if broken == 0 else float(1 - tail(broken - 1, n, alpha))
    of = "answers that show something" if shown_only else "answers"
    words = f"{broken} of {n} {of} keep a wrong item ({percent(broken / n)}), and the target is {percent(alpha)}"
    return against, float(tail(broken, n, alpha)), words


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
    require_same_items(artifact, file)
    data = held_out_items(artifact, file.records)
    clustered = artifact.calibration.group is not None
    units = one_per_question(one_per_cluster(data.records) if clustered else data.records)
    fewer = len(units) < len(data.records)
    items = held_out_items(artifact, units).items if fewer else data.items
    alpha = artifact.alpha if target is None else target
    p_refuted, p_supported, words = check_promise(
        artifact.outcome.rule, artifact.threshold, items, alpha=alpha, level=level
    )
    if p_refuted <= level:
        verdict, sentence = "refuted", f"They refute the promise: {words} (p = {p_refuted:.2g})."
    elif p_supported <= level:
        verdict, sentence = "supported", f"They support the promise: {words} (p = {p_supported:.2g})."
    else:
        verdict = "undecided"
        sentence = f"They neither refute nor support the promise: {words}. More labelled answers would."
    if fewer:
        which = "one of each cluster" if clustered else "one of equal questions"
        sentence += f" Tested on {items.n} of these answers, {which}."
    figures = item_figures(data.items, artifact.threshold, data.columns)
    return ItemsAudit(verdict, sentence, p_refuted, p_supported, figures, data)  # type: ignore[arg-type]


def audit_items(
    artifact: CalibrationArtifact, file: RecordFile, *, level: float = LEVEL, target: float | None = None
) -> ItemsAudit:
    """`check_on` on records that may lack items or labels: they are measured and labelled as the artifact says.

    Raises:
        UsageError: As `measured_alike` and `check_on`.
    """
    return check_on(artifact, measured_alike(artifact, file), level=level, target=target)


def measured_alike(artifact: CalibrationArtifact, file: RecordFile, *, labels: bool = True) -> RecordFile:
    """Records with their items as the artifact says, and their labels if they are needed.

    Raises:
        UsageError: The artifact gates whole answers, the records were made otherwise, or as `label_items`.
    """
    if ITEMS not in file.header.estimators:
        file = measure_records(file, items_measure(ItemsSpec.of(artifact.estimator)))
    require_same_items(artifact, file)
    return label_items(file) if labels and file.header.item_correctness is None else file
