"""Clusters of samples that mean the same: always a partition, order-free by default."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from ..judges import Judge, is_canonical_call, is_refusal
from ..judges.base import Comparer
from ..specs import Clustering
from ..types import Frozen

__all__ = ["Clusters", "Steps", "cluster", "clustering", "fold", "unordered_pairs"]

Pair = tuple[str, str]
Value = TypeVar("Value")
Result = TypeVar("Result")
Steps = Generator[list[Pair], Sequence[Value | None], Result | None]
"""A measurement as a generator: it yields the pairs it needs next, is sent one value for each, and returns its result,
or None if a pair it needed has no value. Its driver may ask about many questions at once."""


_REFUSAL = "\x00refusal"


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


def unordered_pairs(keys: Sequence[str]) -> list[Pair]:
    """Every two of the keys, once."""
    return [(a, b) for i, a in enumerate(keys) for b in keys[i + 1 :]]


def cluster(question: str, answers: Sequence[str], judge: Judge, method: Clustering = "components") -> Clusters | None:
    """Group answers that mean the same.

    Equal strings (white space aside) are one before anything is judged. Refusals ("I don't know") form a separate
    cluster and are not judged either, and tool calls are the same only if their canonical JSON is equal (`fold`).

    Args:
        question: The question they answer, for judges that read it.
        answers: One text for each sample.
        judge: Decides pairs. For u distinct strings it sees at most u (u - 1) / 2 unordered pairs: in one batch
            ("components"), or in one batch for each cluster ("greedy").
        method: How pairwise verdicts become clusters.

    Returns:
        A partition, or None if the judge gave no verdict on a pair that was needed.
    """
    return drive(clustering(answers, judge, method), lambda pairs: judge.equivalent(question, pairs))


def drive(steps: Steps[Value, Result], ask: Callable[[list[Pair]], Sequence[Value | None]]) -> Result | None:
    """Run one measurement to its end, one call of ``ask`` for each round."""
    try:
        pairs = next(steps)
        while True:
            pairs = steps.send(ask(pairs) if pairs else [])
    except StopIteration as done:
        result: Result | None = done.value
        return result


def clustering(answers: Sequence[str], judge: Judge, method: Clustering) -> Steps[bool, Clusters]:
    """The steps of `cluster`: what must be judged next, given the verdicts so far."""
    folded = fold(answers, judge)
    if method == "components":
        # Sorted, so that the judge gets the same pairs in the same order for any order of the samples.
        root_of = yield from _components(sorted(folded.judged), folded.text_of)
    else:
        # Not sorted: greedy clustering is defined by the order of the samples.
        root_of = yield from _greedy(folded.judged, folded.text_of)
    if root_of is None:
        return None
    # Refusals and calls that nobody judged are not in the dict: each is a cluster with its key.
    roots = [root_of.get(key, key) for key in folded.keys]
    number = {root: i for i, root in enumerate(dict.fromkeys(roots))}
    return Clusters(assignment=tuple(number[root] for root in roots))


def _components(keys: Sequence[str], text_of: dict[str, str]) -> Steps[bool, dict[str, str]]:
    pairs = unordered_pairs(keys)
    verdicts = yield _texts(pairs, text_of)
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
    return {key: find(key) for key in keys}


def _greedy(keys: Sequence[str], text_of: dict[str, str]) -> Steps[bool, dict[str, str]]:
    """One round for each cluster: the first answer without one founds it and is compared with the other such answers.

    So every answer is compared with the founders in order, up to the first match, in as few judgements as possible. The
    Nature code compares a founder with *all* later answers, and lets it take over those that already have a cluster.
    """
    root_of: dict[str, str] = {}
    left = list(keys)
    while left:
        head, *others = left
        pairs = [(head, other) for other in others]
        verdicts = yield _texts(pairs, text_of)
        root_of[head] = head
        left = []
        for other, same in zip(others, verdicts, strict=True):
            if same is None:
                return None
            if same:
                root_of[other] = head
            else:
                left.append(other)
    return root_of


def _texts(pairs: Iterable[Pair], text_of: dict[str, str]) -> list[Pair]:
    return [(text_of[a], text_of[b]) for a, b in pairs]
