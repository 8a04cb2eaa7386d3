"""Clusters of samples that mean the same: always a partition, order-free by default."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from ..judges import Judge, is_canonical_call, is_refusal
from ..judges.base import Comparer
from ..specs import Clustering
from ..types import Frozen

__all__ = ["Asking", "Clusters", "Pair", "cluster", "clustering", "fold"]

Pair = tuple[str, str]
_REFUSAL = "\x00refusal"


class Asking(NamedTuple):
    """A measurement: the pairs of texts that a judge, a similarity or an entailment model must rate, and its result."""

    pairs: Sequence[Pair]
    """The pairs."""
    read: Callable[[Sequence[Any]], Any]
    """The result, from one value for each pair, in order."""


class Clusters(Frozen):
    """A partition of the samples."""

    assignment: tuple[int, ...]
    """Cluster number of each sample; numbered 0, 1, ... in order of first appearance."""

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
    """Keys that must be judged, in order of first appearance; refusals and tool calls equal no other key."""

    def pairs(self, *, ordered: bool = True) -> list[Pair]:
        """Every two of the judged keys, once; ordered, so that the order of the answers does not count."""
        keys = sorted(self.judged) if ordered else self.judged
        return [(a, b) for i, a in enumerate(keys) for b in keys[i + 1 :]]

    def texts(self, pairs: Sequence[Pair]) -> list[Pair]:
        """The texts of pairs of keys."""
        return [(self.text_of[a], self.text_of[b]) for a, b in pairs]


def fold(answers: Sequence[str], judge: Comparer) -> Folded:
    """Merge answers with equal strings.

    Equal means equal by ``judge.identity``, of a judge or similarity: no judge can
    separate equal answers afterwards. Refusals, which say nothing else, share one key. Tool calls (canonical JSON) are
    compared exactly with every judge: common words do not show whether two calls do the same. Only a judge that knows
    what calls do (``judge.judges_tool_calls`` is True, as for `ObservationJudge`) is asked about calls that differ.
    """
    key_of, text_of, judged = dict[str, str](), dict[str, str](), dict[str, None]()
    for answer in answers:
        if answer in key_of:
            continue
        if is_refusal(answer):
            key = _REFUSAL
        elif is_canonical_call(answer):
            # Calls are canonical JSON already; a judge's identity (case, punctuation) could make two different calls
            # equal.
            key = answer
            if judge.judges_tool_calls:
                judged.setdefault(key)
        else:
            judged.setdefault(key := judge.identity(answer))
        key_of[answer] = key
        text_of[key] = min(answer, text_of.get(key, answer))  # the same text for any order of the answers
    return Folded(keys=tuple(key_of[answer] for answer in answers), text_of=text_of, judged=tuple(judged))


def cluster(question: str, answers: Sequence[str], judge: Judge, method: Clustering = "components") -> Clusters | None:
    """Group answers that mean the same.

    Equal strings (white space aside) are one before anything is judged. Refusals ("I don't know") form a separate
    cluster and are not judged either, and tool calls are the same only if their canonical JSON is equal (`fold`).

    Args:
        question: The question they answer, for judges that read it.
        answers: One text for each sample.
        judge: Decides pairs: of u distinct strings u (u - 1) / 2, unordered, in one batch.
        method: How pairwise verdicts become clusters: connected components, or "greedy" (each answer joins the first
            cluster, in the order of the samples, whose first answer it equals).

    Returns:
        A partition, or None if the judge gave no verdict on a pair.
    """
    pairs, partition = clustering(answers, judge, method)
    verdicts = judge.equivalent(question, pairs) if pairs else []
    clusters: Clusters | None = None if None in verdicts else partition(verdicts)
    return clusters


def clustering(answers: Sequence[str], judge: Judge, method: Clustering) -> Asking:
    """The pairs that `cluster` asks about, and the partition that follows from the verdicts."""
    folded = fold(answers, judge)
    pairs = folded.pairs(ordered=method == "components")

    def partition(verdicts: Sequence[bool]) -> Clusters:
        same = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict]
        root_of = _components(same) if method == "components" else _first_match(folded.judged, frozenset(same))
        roots = [root_of.get(key, key) for key in folded.keys]
        number = {root: i for i, root in enumerate(dict.fromkeys(roots))}
        return Clusters(assignment=tuple(number[root] for root in roots))

    return Asking(folded.texts(pairs), partition)


def _components(same: Sequence[Pair]) -> dict[str, str]:
    """One key of its component for each key of the pairs."""
    root_of = {key: key for pair in same for key in pair}

    def find(key: str) -> str:
        while root_of[key] != key:
            key = root_of[key]
        return key

    for a, b in same:
        root_of[find(b)] = find(a)
    return {key: find(key) for key in root_of}


def _first_match(keys: Sequence[str], same: Collection[Pair]) -> dict[str, str]:
    """The founder of each key's cluster: the first founder before it that it equals, or itself.

    The Nature code lets a founder take over later answers that already have a cluster.
    """
    founder_of: dict[str, str] = {}
    for key in keys:
        founders = (founder for founder, own in founder_of.items() if founder == own)
        founder_of[key] = next((founder for founder in founders if (founder, key) in same), key)
    return founder_of
