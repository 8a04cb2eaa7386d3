"""Clusters of samples that mean the same: always a partition, order-free by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..judges import Judge, is_refusal, normalise
from ..types import Frozen

__all__ = ["Clustering", "Clusters", "cluster"]

Clustering = Literal["components", "greedy"]
"""How pairwise verdicts become clusters.

* components: connected components of the equivalence graph. Does not depend on the order of the samples (default).
* greedy: each answer is compared with the first member of every cluster so far (Farquhar et al., Nature 2024).
  Depends on the order when the judge is not transitive; first match wins and nothing is claimed twice.
"""

_REFUSAL = "\x00refusal"


class Clusters(Frozen):
    """A partition of the samples."""

    assignment: tuple[int, ...]
    """Cluster number of each sample; numbered 0, 1, ... in order of first appearance."""
    judged_pairs: int = 0
    """Pairs that were put to the judge (after exact-string deduplication)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples in each cluster; they sum to the number of samples."""
        return tuple(self.assignment.count(label) for label in range(max(self.assignment, default=-1) + 1))


def cluster(question: str, answers: Sequence[str], judge: Judge, method: Clustering = "components") -> Clusters | None:
    """Group answers that mean the same.

    Answers with equal normalised strings are one before anything is judged; refusals ("I don't know") form one cluster
    of their own and are not judged either.

    Args:
        question: The question they answer, for judges that read it.
        answers: One text a sample.
        judge: Decides pairs. For u distinct strings it sees at most u (u - 1) / 2 pairs, in one batch ("components"),
            or one batch for each distinct string ("greedy").
        method: How pairwise verdicts become clusters.

    Returns:
        A partition, or None when the judge gave no verdict on a pair that was needed.
    """
    keys = [_REFUSAL if is_refusal(answer) else normalise(answer) for answer in answers]
    # The smallest raw text stands for its normalised string, so that sample order cannot choose what is judged.
    text_of: dict[str, str] = {}
    for key, answer in zip(keys, answers, strict=True):
        text_of[key] = min(answer, text_of.get(key, answer))
    distinct = [key for key in dict.fromkeys(keys) if key != _REFUSAL]
    if method == "components":
        merged = _components(question, sorted(distinct), text_of, judge)
    else:
        merged = _greedy(question, distinct, text_of, judge)
    if merged is None:
        return None
    root_of, judged = merged
    roots = [root_of.get(key, key) for key in keys]
    number = {root: i for i, root in enumerate(dict.fromkeys(roots))}
    return Clusters(assignment=tuple(number[root] for root in roots), judged_pairs=judged)


def _components(
    question: str, keys: list[str], text_of: dict[str, str], judge: Judge
) -> tuple[dict[str, str], int] | None:
    pairs = [(a, b) for i, a in enumerate(keys) for b in keys[i + 1 :]]
    verdicts = judge.equivalent(question, [(text_of[a], text_of[b]) for a, b in pairs]) if pairs else []
    root_of = {key: key for key in keys}

    def find(key: str) -> str:
        while root_of[key] != key:
            key = root_of[key]
        return key

    for (a, b), same in zip(pairs, verdicts, strict=True):
        if same is None:
            return None
        if same:
            root_of[find(b)] = find(a)
    return {key: find(key) for key in keys}, len(pairs)


def _greedy(question: str, keys: list[str], text_of: dict[str, str], judge: Judge) -> tuple[dict[str, str], int] | None:
    heads: list[str] = []
    root_of: dict[str, str] = {}
    judged = 0
    for key in keys:
        verdicts = judge.equivalent(question, [(text_of[head], text_of[key]) for head in heads]) if heads else []
        judged += len(heads)
        if any(same is None for same in verdicts):
            return None
        root_of[key] = next((head for head, same in zip(heads, verdicts, strict=True) if same), key)
        if root_of[key] == key:
            heads.append(key)
    return root_of, judged
