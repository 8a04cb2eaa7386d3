"""How far further samples can still move a score: what early stopping rests on.

After m of n samples a score is not known, but often its side of the threshold is. Each bound is over *every* way the
remaining n - m samples could turn out, provided that all of them can be measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from ..judges import JudgeSpec
from ..judges.numbers import may_join, parse_number
from ..judges.text import guards_hold
from ..types import Missing
from .base import Estimator, Evidence
from .clustering import Clusters, fold
from .likelihood import mean_logprob

__all__ = ["Bounds", "Reach", "by_pairs", "by_partition", "by_primary", "declares", "reach", "semantic_entropy_bounds"]

Bridges: TypeAlias = Callable[[str, str, int], bool]
"""Whether two answers that are not the same could become so through a chain of at most that many further answers."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the first m samples show, and what the remaining ones could make of it.

    Attributes:
        evidence: Of the m samples, in sample order.
        n: Samples in the full set; at least m.
        coarse: Cluster of each of the m samples after every merger that n - m further answers could bring about; empty
            for estimators without a judge.
        fine: Cluster of each of the m samples after every split that they could bring about.
        own: Clusters of the primary answer in ``coarse`` and in ``fine``, for estimators that group it too.
    """

    evidence: Evidence
    n: int
    coarse: tuple[int, ...] = ()
    fine: tuple[int, ...] = ()
    own: tuple[int, int] | None = None

    @property
    def left(self) -> int:
        """Samples still to come."""
        return self.n - len(self.evidence.drawn.samples)


Bounds: TypeAlias = Callable[[Reach], "tuple[float, float] | Missing"]
"""The smallest and the largest value that the full set can have."""
Formula: TypeAlias = Callable[[Evidence], "float | Missing"]

# -- what judges and similarities declare ------------------------------------------------------------------------------


def _never(a: str, b: str, further: int) -> bool:
    """Exact comparison is an equivalence relation: what differs stays different."""
    return False


def _same_guards(a: str, b: str, further: int) -> bool:
    """token_f1 is not transitive, but its guards are: other numbers, marks or negation never become the same."""
    return guards_hold(a, b)


def _by_numbers(a: str, b: str, further: int) -> bool:
    """Numbers may be joined by rounding, or through one without a unit (5 km, 5, 5 m); all else is an equivalence."""
    ours, theirs = parse_number(a), parse_number(b)
    return ours is not None and theirs is not None and may_join(ours, theirs, further)


_BRIDGES: dict[tuple[str, int], Bridges] = {
    ("exact", 2): _never,
    ("json", 1): _never,
    ("numeric", 3): _by_numbers,
    ("token_f1", 2): _same_guards,
    ("tool_call", 1): _never,
    ("tool_call", 2): _never,
}
"""By name and version of a judge: a new version has to be looked at again before it may stop early."""
_STABLE_SIMILARITIES = {("guarded_jaccard", 2), ("jaccard", 2), ("rouge_l", 2)}


def _bridges(judge: object) -> Bridges | None:
    """What a judge declares: its own ``bridges(a, b, further)``, or what is known of the light judges by name."""
    own: Bridges | None = getattr(judge, "bridges", None)
    if own is not None:
        return own
    spec: JudgeSpec = judge.spec  # type: ignore[attr-defined]
    return _BRIDGES.get((spec.name, spec.version))


def _stable(spec: JudgeSpec) -> bool:
    """Whether ratings depend on the words of the two answers alone, so that further answers cannot move them."""
    if spec.name == "from_judge":
        inner = JudgeSpec.model_validate(spec.params["judge"])
        return (inner.name, inner.version) in _BRIDGES
    return (spec.name, spec.version) in _STABLE_SIMILARITIES


def declares(estimator: Estimator) -> bool:
    """Whether everything an estimator rests on is known well enough for bounds that are worth asking for.

    A judge that declares nothing (a model, say) still has valid bounds, but ones that seldom decide.
    """
    if estimator.bounds is None:
        return False
    judged = estimator.judge is None or _bridges(estimator.judge) is not None
    return judged and (estimator.similarity is None or _stable(estimator.similarity.spec))


def reach(evidence: Evidence, answers: tuple[str, ...], estimator: Estimator, n: int) -> Reach | None:
    """What further samples could make of the evidence; None where nothing is known about them.

    Args:
        evidence: Of the first m samples.
        answers: Their texts, as judges read them; then the primary answer's, if the estimator groups that too.
        estimator: Whose evidence it is.
        n: Samples in the full set.
    """
    if estimator.similarity is not None and not _stable(estimator.similarity.spec):
        return None
    if estimator.judge is None or evidence.clusters is None:
        return Reach(evidence, n)
    found, m = evidence.clusters.assignment, len(evidence.clusters.assignment)
    if evidence.primary_cluster is not None:
        found += (evidence.primary_cluster if evidence.primary_cluster >= 0 else m,)
    folded = fold(answers, estimator.judge)
    bridges = _bridges(estimator.judge)
    # A string that stands for several answers may be replaced by a smaller one with the same key, and a judge that is
    # not known to see through that may then judge anew: only equal keys are sure to stay together.
    fine = found if bridges is not None else _numbered(folded.keys)
    merges = estimator.clustering == "components" or bridges is None
    coarse = _merged(found, folded.keys, folded.text_of, set(folded.judged), bridges, n - m) if merges else found
    own = None if evidence.primary_cluster is None else (coarse[m], fine[m])
    return Reach(evidence, n, coarse=coarse[:m], fine=fine[:m], own=own)


def _merged(
    found: tuple[int, ...],
    keys: tuple[str, ...],
    text_of: dict[str, str],
    judged: set[str],
    bridges: Bridges | None,
    left: int,
) -> tuple[int, ...]:
    """Clusters joined wherever further answers could build a bridge; what is not judged joins nothing."""
    if left == 0:
        return found
    root = list(range(len(found)))
    for j, key in enumerate(keys):
        for i in range(j):
            same = found[i] == found[j]
            if not same and keys[i] in judged and key in judged:
                same = bridges is None or bridges(text_of[keys[i]], text_of[key], left)
            if same and root[i] != root[j]:
                old, new = root[j], root[i]
                root = [new if label == old else label for label in root]
    return _numbered(root)


def _numbered(labels: Any) -> tuple[int, ...]:
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return tuple(number[label] for label in labels)


# -- bounds, by what a formula reads -----------------------------------------------------------------------------------


def by_partition(formula: Formula) -> Bounds:
    """Bounds of a formula over cluster sizes: entropy, 1 - share of the largest, number of clusters.

    It must never fall when a cluster splits, and never rise when a sample moves to a larger cluster (Schur-concave).
    Largest: every further sample is a meaning of its own, and whatever can split has split. Smallest: whatever can
    merge has merged, and every further sample joins the largest cluster. Both ends are partitions, and the formula
    itself is applied to them.
    """

    def bounds(reach: Reach) -> tuple[float, float] | Missing:
        largest = max(set(reach.coarse), key=reach.coarse.count)
        first = max(reach.fine) + 1
        low = _scored(formula, reach, (*reach.coarse, *[largest] * reach.left))
        high = _scored(formula, reach, (*reach.fine, *range(first, first + reach.left)))
        if isinstance(low, Missing):
            return low
        return high if isinstance(high, Missing) else (low, high)

    return bounds


def _scored(formula: Formula, reach: Reach, assignment: tuple[int, ...]) -> float | Missing:
    return formula(replace(reach.evidence, clusters=Clusters(assignment=assignment)))


def by_primary(formula: Formula) -> Bounds:
    """Bounds of a formula over how many samples mean the same as the primary answer, and how alike they are to it.

    It must never rise when a sample joins the primary's cluster, nor with any likeness. Smallest: whatever can merge
    has merged, and every further sample is the primary answer again. Largest: whatever can split has split, and no
    further sample has anything in common with it.
    """

    def bounds(reach: Reach) -> tuple[float, float] | Missing:
        assert reach.own is not None, "declared by the estimator"
        alike, alone = reach.own
        other = max(*reach.fine, alone) + 1
        low = _compared(formula, reach, (*reach.coarse, *[alike] * reach.left), alike, 1.0)
        high = _compared(formula, reach, (*reach.fine, *[other] * reach.left), alone, 0.0)
        if isinstance(low, Missing):
            return low
        return high if isinstance(high, Missing) else (low, high)

    return bounds


def _compared(
    formula: Formula, reach: Reach, assignment: tuple[int, ...], own: int, likeness: float
) -> float | Missing:
    seen = reach.evidence.likeness
    return formula(
        replace(
            reach.evidence,
            clusters=Clusters(assignment=assignment),
            primary_cluster=own,
            likeness=None if seen is None else (*seen, *[likeness] * reach.left),
        )
    )


def by_pairs(formula: Formula) -> Bounds:
    """Bounds of a formula that never rises with any entry of the similarity matrix: mean pairwise dissimilarities.

    Pairs with a further sample have a similarity of 1 (smallest) or 0 (largest).
    """

    def bounds(reach: Reach) -> tuple[float, float] | Missing:
        seen = reach.evidence.matrix
        assert seen is not None, "declared by the estimator"
        m = len(seen)
        alike, unlike = np.ones((reach.n, reach.n)), np.eye(reach.n)
        alike[:m, :m] = unlike[:m, :m] = seen
        low = formula(replace(reach.evidence, matrix=alike))
        high = formula(replace(reach.evidence, matrix=unlike))
        if isinstance(low, Missing):
            return low
        return high if isinstance(high, Missing) else (low, high)

    return bounds


def semantic_entropy_bounds(reach: Reach) -> tuple[float, float] | Missing:
    """Bounds of `semantic_entropy`: weights p(s) of further samples are unknown, anywhere in (0, 1].

    Let W_C be the weights of the clusters, T their sum, H their entropy, r the samples to come.

    * Smallest: all r join the largest cluster (after mergers), each with weight 1: moving weight to the largest
      cluster, and adding weight to it, never raises entropy.
    * Largest: r meanings of their own. With equal weights w the entropy is largest at w = T / exp(H), where it is
      ln(exp(H) + r); a weight is at most 1, and below that point entropy rises with w.

    Widened by 1e-9 for rounding.
    """
    means = [mean_logprob(sample) for sample in reach.evidence.drawn.samples]
    missing = next((mean for mean in means if isinstance(mean, Missing)), None)
    if missing is not None:
        return missing
    weights = [math.exp(mean) for mean in means if not isinstance(mean, Missing)]
    if min(weights) == 0.0:
        return (0.0, math.log(reach.n))  # too unlikely for a float: nothing is known, but entropy has a range
    coarse, fine = _masses(reach.coarse, weights), _masses(reach.fine, weights)
    coarse[coarse.index(max(coarse))] += reach.left
    low = _entropy(coarse)
    spread, total = _entropy(fine), math.fsum(fine)
    if total <= math.exp(spread):
        high = math.log(math.exp(spread) + reach.left)
    else:
        high = _entropy([*fine, *[1.0] * reach.left])
    return (low - 1e-9, high + 1e-9)


def _masses(labels: tuple[int, ...], weights: list[float]) -> list[float]:
    return [
        math.fsum(weight for own, weight in zip(labels, weights, strict=True) if own == label)
        for label in range(max(labels) + 1)
    ]


def _entropy(masses: list[float]) -> float:
    total = math.fsum(masses)
    return -math.fsum(mass / total * math.log(mass / total) for mass in masses if mass > 0)
