"""Bounds on the score of a full sample set, given its first samples: what early stopping rests on.

After m of n samples the score is not known, but often its side of the threshold is. Each bound holds for *every* way
the remaining n - m samples could turn out, provided that all of them can be measured.

`by_partition`, `by_primary` and `by_pairs` bound any formula of a kind. An estimator's entry in ``ESTIMATORS`` says
which of them holds for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

import numpy as np

from ..judges.base import CanMerge, merging_of
from ..types import Missing
from .base import Estimator, Evidence, Formula, PartialEvidence
from .clustering import Clusters, fold

__all__ = [
    "attainable_scores",
    "by_pairs",
    "by_partition",
    "by_primary",
    "has_useful_bounds",
]


def has_useful_bounds(estimator: Estimator) -> bool:
    """Whether the estimator has bounds, and what it compares answers with states enough for them to decide early.

    With a judge that states nothing (a model, say) bounds are valid, but seldom decide.
    """
    if estimator.bounds is None:
        return False
    judged = estimator.judge is None or merging_of(estimator.judge) is not None
    return judged and _is_stable(estimator)


def attainable_scores(
    evidence: Evidence, answers: tuple[str, ...], estimator: Estimator, n: int
) -> tuple[float, float] | Missing | None:
    """The smallest and the largest score that n samples can have, given the evidence of the first m.

    Args:
        evidence: Of the first m samples.
        answers: Their texts, as judges read them; then the primary answer's, if the estimator groups that too.
        estimator: Measures the samples.
        n: Samples in the full set.

    Returns:
        Both ends; or why the full set cannot have a score either; or None if nothing is known.
    """
    if estimator.bounds is None or not _is_stable(estimator):
        return None
    try:
        return estimator.bounds(estimator.formula, _attainable(evidence, answers, estimator, n))
    except ArithmeticError:
        return None


def _is_stable(estimator: Estimator) -> bool:
    """Whether further answers cannot move a rating between two answers."""
    return estimator.similarity is None or getattr(estimator.similarity, "is_stable", False) is True


def _attainable(evidence: Evidence, answers: tuple[str, ...], estimator: Estimator, n: int) -> PartialEvidence:
    if estimator.judge is None or evidence.clusters is None:
        return PartialEvidence(evidence, n)
    labels, m = evidence.clusters.assignment, len(evidence.clusters.assignment)
    # A primary answer that agrees with no sample has cluster -1; m is a number that no sample's cluster has.
    if evidence.primary_cluster is not None:
        labels += (evidence.primary_cluster if evidence.primary_cluster >= 0 else m,)
    folded = fold(answers, estimator.judge)
    can_merge = merging_of(estimator.judge)
    # A string that stands for several answers may be replaced by a smaller one with the same key. A judge that does not
    # state that its verdicts depend on the key may then judge anew: only equal keys are sure to stay together.
    fine = labels if can_merge is not None else _numbered(folded.keys)
    # Greedy clusters compare with founders only, so a further answer cannot join two of them if verdicts are stable.
    merges = estimator.clustering == "components" or can_merge is None
    coarse = _merged(labels, folded.keys, folded.text_of, set(folded.judged), can_merge, n - m) if merges else labels
    own = None if evidence.primary_cluster is None else (coarse[m], fine[m])
    return PartialEvidence(evidence, n, coarse=coarse[:m], fine=fine[:m], own=own)


def _merged(
    labels: tuple[int, ...],
    keys: tuple[str, ...],
    text_of: dict[str, str],
    judged: set[str],
    can_merge: CanMerge | None,
    left: int,
) -> tuple[int, ...]:
    """Clusters joined wherever a chain of further answers could join them; answers that are not judged join nothing."""
    if left == 0:
        return labels
    root = list(range(len(labels)))
    for j, key in enumerate(keys):
        for i in range(j):
            same = labels[i] == labels[j]
            if not same and keys[i] in judged and key in judged:
                same = can_merge is None or can_merge(text_of[keys[i]], text_of[key], left)
            if same and root[i] != root[j]:
                old, new = root[j], root[i]
                root = [new if label == old else label for label in root]
    return _numbered(root)


def _numbered(labels: Iterable[Hashable]) -> tuple[int, ...]:
    labels = tuple(labels)
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return tuple(number[label] for label in labels)


# -- Bounds, by what a formula reads -----------------------------------------------------------------------------------


def by_partition(formula: Formula, partial: PartialEvidence) -> tuple[float, float] | Missing:
    """Bounds of a formula over cluster sizes: entropy, 1 - share of the largest, number of clusters.

    The formula must never fall when a cluster splits, and never rise when a sample moves to a larger cluster
    (Schur-concave).
    Largest: every further sample is a new meaning, and everything that can split has split. Smallest: everything
    that can merge has merged, and every further sample joins the largest cluster. Both ends are partitions, and the
    formula itself is applied to them.
    """
    # Which of several largest clusters does not matter: formulas read sizes.
    largest = max(set(partial.coarse), key=partial.coarse.count)
    first = max(partial.fine) + 1
    return _ends(
        formula(_grouped(partial, (*partial.coarse, *[largest] * partial.left))),
        formula(_grouped(partial, (*partial.fine, *range(first, first + partial.left)))),
    )


def by_primary(formula: Formula, partial: PartialEvidence) -> tuple[float, float] | Missing:
    """Bounds of a formula over how many samples mean the same as the primary answer, and how alike they are to it.

    The formula must never rise when a sample joins the primary's cluster, nor with any likeness. Smallest: everything
    that can merge has merged, and every further sample is the primary answer again. Largest: everything that can split
    has split, and no further sample has anything in common with it.
    """
    assert partial.own is not None, "declared by the estimator"
    alike, alone = partial.own
    other = max(*partial.fine, alone) + 1
    return _ends(
        formula(_compared(partial, (*partial.coarse, *[alike] * partial.left), alike, 1.0)),
        formula(_compared(partial, (*partial.fine, *[other] * partial.left), alone, 0.0)),
    )


def by_pairs(formula: Formula, partial: PartialEvidence) -> tuple[float, float] | Missing:
    """Bounds of a formula that never rises with any entry of the similarity matrix: mean pairwise dissimilarities.

    Pairs with a further sample have a similarity of 1 (smallest) or 0 (largest).
    """
    drawn = partial.evidence.matrix
    assert drawn is not None, "declared by the estimator"
    m = len(drawn)
    # The unit diagonal holds at both ends: every sample is like itself.
    alike, unlike = np.ones((partial.n, partial.n)), np.eye(partial.n)
    alike[:m, :m] = unlike[:m, :m] = drawn
    return _ends(formula(replace(partial.evidence, matrix=alike)), formula(replace(partial.evidence, matrix=unlike)))


def _grouped(partial: PartialEvidence, assignment: tuple[int, ...]) -> Evidence:
    return replace(partial.evidence, clusters=Clusters(assignment=assignment))


def _compared(partial: PartialEvidence, assignment: tuple[int, ...], own: int, likeness: float) -> Evidence:
    drawn = partial.evidence.likeness
    return replace(
        _grouped(partial, assignment),
        primary_cluster=own,
        likeness=None if drawn is None else (*drawn, *[likeness] * partial.left),
    )


def _ends(low: float | Missing, high: float | Missing) -> tuple[float, float] | Missing:
    if isinstance(low, Missing):
        return low
    return high if isinstance(high, Missing) else (low, high)
