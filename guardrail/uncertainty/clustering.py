"""Clusters of samples that mean the same: always a partition, order-free by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ..judges import Judge, is_canonical_call, is_refusal, normalise
from ..types import Frozen

__all__ = ["Clustering", "Clusters", "Folded", "cluster", "fold"]

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


class Folded(Frozen):
    """Answers after equal strings became one, before anything is judged."""

    keys: tuple[str, ...]
    """Key of each answer; answers with the same key are the same."""
    text_of: dict[str, str]
    """The text that stands for a key: the smallest one, so that sample order cannot choose what is judged."""
    judged: tuple[str, ...]
    """Keys that have to be judged, in order of first appearance. The others, refusals and tool calls, are the same as
    nothing else."""


def fold(answers: Sequence[str], judge: object) -> Folded:
    """Make answers with equal strings one.

    Equal means equal after `normalise`, or after ``judge.identity`` where the judge (or similarity) has one. Refusals
    share one key. Tool calls (canonical JSON) are compared exactly, whatever the judge: words in common say nothing
    about whether two calls do the same, and `normalise` would take ``[1,200]`` for ``[1200]``.
    """
    identity: Callable[[str], str] = getattr(judge, "identity", normalise)
    keys, text_of, judged = [], dict[str, str](), dict[str, None]()
    for answer in answers:
        if is_refusal(answer):
            key = _REFUSAL
        elif is_canonical_call(answer):
            key = answer
        else:
            judged.setdefault(key := identity(answer))
        keys.append(key)
        text_of[key] = min(answer, text_of.get(key, answer))
    return Folded(keys=tuple(keys), text_of=text_of, judged=tuple(judged))


def cluster(question: str, answers: Sequence[str], judge: Judge, method: Clustering = "components") -> Clusters | None:
    """Group answers that mean the same.

    Answers with equal normalised strings are one before anything is judged; refusals ("I don't know") form one cluster
    of their own and are not judged either, and tool calls are the same only when their canonical JSON is (`fold`).

    Args:
        question: The question they answer, for judges that read it.
        answers: One text a sample.
        judge: Decides pairs. For u distinct strings it sees at most u (u - 1) / 2 pairs, in one batch ("components"),
            or one batch for each distinct string ("greedy").
        method: How pairwise verdicts become clusters.

    Returns:
        A partition, or None when the judge gave no verdict on a pair that was needed.
    """
    folded = fold(answers, judge)
    if method == "components":
        merged = _components(question, sorted(folded.judged), folded.text_of, judge)
    else:
        merged = _greedy(question, list(folded.judged), folded.text_of, judge)
    if merged is None:
        return None
    root_of, judged = merged
    roots = [root_of.get(key, key) for key in folded.keys]
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
