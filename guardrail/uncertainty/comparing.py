"""Comparisons behind scores: the pairs of texts to rate, and the evidence that follows from the ratings.

Clusters are a partition that does not depend on the order of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ..judges import Judge, Similarity, is_canonical_call, is_refusal
from ..judges.base import Comparer
from ..types import Frozen, Missing, SampleSet, Unmeasured
from .alignment import Level, spans, without, words

__all__ = ["Asking", "Clusters", "Pair", "cluster", "clusters_of", "fold", "likeness", "matrix", "relevance"]

Pair = tuple[str, str]
_REFUSAL = "\x00refusal"


class Asking(NamedTuple):
    """A measurement: the pairs of texts that a judge, a similarity or an entailment model must rate, and its result."""

    pairs: Sequence[Pair]
    """The pairs."""
    read: Callable[[Sequence[Any]], dict[str, Any]]
    """Fields of `guardrail.uncertainty.Evidence`, from one value for each pair, in order."""


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

    def pairs(self) -> list[Pair]:
        """Every two of the judged keys, once; sorted, so that the order of the answers does not count."""
        keys = sorted(self.judged)
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


def cluster(question: str, answers: Sequence[str], judge: Judge) -> Clusters | None:
    """Group answers that mean the same: connected components of the judge's verdicts.

    Equal strings (white space aside) are one before anything is judged. Refusals ("I don't know") form a separate
    cluster and are not judged either, and tool calls are the same only if their canonical JSON is equal (`fold`).

    Args:
        question: The question they answer, for judges that read it.
        answers: One text for each sample.
        judge: Decides pairs: of u distinct strings u (u - 1) / 2, unordered, in one batch.

    Returns:
        A partition, or None if the judge gave no verdict on a pair.
    """
    pairs, partition = _clustering(answers, judge)
    verdicts = judge.equivalent(question, pairs) if pairs else []
    return None if None in verdicts else partition(verdicts)


def clusters_of(drawn: SampleSet, judge: Judge, *, primary: bool) -> Asking:
    """The clusters of the samples, and with ``primary`` the cluster of the primary answer."""
    answers = _answers(drawn)
    if not primary:
        pairs, partition = _clustering(answers, judge)
        return Asking(pairs, lambda verdicts: {"clusters": partition(verdicts)})
    pairs, partition = _clustering([*answers, _primary(drawn)], judge)

    def split(verdicts: Sequence[bool]) -> dict[str, Any]:
        *assignment, label = partition(verdicts).assignment
        # -1 is no cluster's number, so an answer that no sample shares counts no votes.
        primary_cluster = label if label in assignment else -1
        return {"clusters": Clusters(assignment=tuple(assignment)), "primary_cluster": primary_cluster}

    return Asking(pairs, split)


def _answers(drawn: SampleSet) -> list[str]:
    return [sample.comparable for sample in drawn.samples]


def _primary(drawn: SampleSet) -> str:
    assert drawn.primary is not None, "a set without an answer is not measured"
    return drawn.primary.comparable


def _clustering(answers: Sequence[str], judge: Judge) -> tuple[list[Pair], Callable[[Sequence[Any]], Clusters]]:
    """The pairs that `cluster` asks about, and the partition that follows from the verdicts."""
    folded = fold(answers, judge)
    pairs = folded.pairs()

    def partition(verdicts: Sequence[bool]) -> Clusters:
        root_of = _components([pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict])
        roots = [root_of.get(key, key) for key in folded.keys]
        number = {root: i for i, root in enumerate(dict.fromkeys(roots))}
        return Clusters(assignment=tuple(number[root] for root in roots))

    return folded.texts(pairs), partition


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


# -- Graded similarity -------------------------------------------------------------------------------------------------


def matrix(drawn: SampleSet, similarity: Similarity) -> Asking:
    """Similarity of every two samples, shape (n, n), symmetric, unit diagonal, and the row of each sample in it.

    Rows are sorted by (folded) string. Equal strings have similarity 1 and are asked once; refusals are alike to each
    other and to nothing else; tool calls are alike only if their canonical JSON is equal (see `fold`). For u distinct
    strings the similarity sees at most u (u - 1) / 2 pairs, in one batch.
    """
    folded = fold(_answers(drawn), similarity)
    pairs = folded.pairs()

    def read(rated: Sequence[float]) -> dict[str, Any]:
        between = {frozenset(pair): value for pair, value in zip(pairs, rated, strict=True)}
        # Stable, so that equal answers keep their order and every sample has one row.
        order = sorted(range(len(folded.keys)), key=folded.keys.__getitem__)
        keys = [folded.keys[i] for i in order]
        # 0 between different keys is right for those that are not judged: refusals and calls are like nothing else.
        rows = tuple(tuple(1.0 if a == b else between.get(frozenset((a, b)), 0.0) for b in keys) for a in keys)
        return {"matrix": rows, "rows": tuple(sorted(range(len(order)), key=order.__getitem__))}

    return Asking(folded.texts(pairs), read)


def likeness(drawn: SampleSet, similarity: Similarity) -> Asking:
    """Similarity of the primary answer to each sample, in order. For u strings that differ, u pairs.

    The rules of `matrix` decide which texts are equal or unlike without being rated.
    """
    folded = fold([_primary(drawn), *_answers(drawn)], similarity)
    answer, *keys = folded.keys
    # A refusal or a call as the primary answer is like equal texts only, so nothing has to be rated.
    others = [key for key in sorted(folded.judged) if key != answer] if answer in folded.judged else []

    def read(values: Sequence[float]) -> dict[str, Any]:
        likeness_of = {answer: 1.0, **dict(zip(others, values, strict=True))}
        return {"likeness": tuple(likeness_of.get(key, 0.0) for key in keys)}

    return Asking(folded.texts([(answer, other) for other in others]), read)


def relevance(drawn: SampleSet, similarity: Similarity, level: Level) -> Asking:
    """Similarity of each sample to itself without each of its words or tokens.

    It is 0 if nothing is left, and 1 if the rest is the same string to the similarity (`fold`); the similarity is not
    asked about either.

    Raises:
        Missing: A sample has no tokens that spell it.
    """
    # The text that the model wrote for a call is not known, so its tokens cannot be laid on words.
    if any(sample.tool_calls for sample in drawn.samples):
        raise Missing(Unmeasured.NO_LOGPROBS, "a tool call has no words whose log-probabilities could be weighed")
    parts = [(sample.text.strip(), words(sample) if level == "word" else spans(sample)) for sample in drawn.samples]
    by_answer = [[(text, without(text, span, level)) for span in spans_of_text] for text, spans_of_text in parts]
    known: dict[Pair, float] = {}
    for answer, rest in dict.fromkeys(chain(*by_answer)):
        if not rest.strip():
            known[answer, rest] = 0.0
        elif similarity.identity(rest) == similarity.identity(answer):
            known[answer, rest] = 1.0
    unrated = [pair for pair in dict.fromkeys(chain(*by_answer)) if pair not in known]

    def read(values: Sequence[float]) -> dict[str, Any]:
        rating_of = {**known, **dict(zip(unrated, values, strict=True))}
        return {
            "costs": tuple(tuple(span.nll for span in spans_of_text) for _, spans_of_text in parts),
            "relevance": tuple(tuple(rating_of[pair] for pair in pairs) for pairs in by_answer),
        }

    return Asking(unrated, read)
