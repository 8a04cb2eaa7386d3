"""One judging pass for many measurements: each judge is asked once for all of them.

The pass collects the pairs of all measurements, drops those that were asked before (by another estimator, or for the
same question again), and gives each judge the rest in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..foreign_errors import describe_error
from ..judges import Entailment, EntailmentScores, Item, Judge, Similarity
from ..types import Missing, Unmeasured
from .comparing import Asking, Pair

__all__ = ["JudgingPass", "Rater", "rater_of"]

BATCH = 4096
"""Most pairs that a judge gets at once."""


@dataclass(frozen=True, slots=True)
class Rater:
    """A judge, a similarity or an entailment model, in one form.

    Attributes:
        who: Kind and name, for messages.
        key: Equal for raters that give equal answers: kind and spec.
        directed: Whether (a, b) and (b, a) are different items.
        batch: Answers to items of several questions.
        read: Checks one answer; raises ValueError if it is invalid.
    """

    who: str
    key: str
    directed: bool
    batch: Callable[[Sequence[Item]], Sequence[Any]]
    read: Callable[[Any], Any]


def rater_of(model: Judge | Similarity | Entailment) -> Rater:
    """A judge or similarity as a rater, or an entailment model as one of contradiction (`Evidence.contradiction`)."""
    batch: Callable[[Sequence[Item]], Sequence[Any]]
    read: Callable[[Any], Any]
    if isinstance(model, Judge):
        kind, batch, read = "judge", model.equivalent_batch, _verdict
    elif isinstance(model, Similarity):
        kind, batch, read = "similarity", model.similarity_batch, _rating
    else:
        kind, batch, read = "entailment", model.entailment_batch, _contradiction
    key = f"{kind} {model.spec.model_dump_json()}"
    return Rater(f"{kind} {model.spec.name}", key, kind == "entailment", batch, read)


def _verdict(value: Any) -> bool:
    # Truthiness is not enough: a judge that returns "no" or a probability would call every pair the same.
    if not isinstance(value, bool) and getattr(value, "dtype", None) != "bool":  # numpy's booleans are not Python's
        raise ValueError(f"a verdict must be True, False or None, got a {type(value).__name__}")
    return bool(value)


def _rating(value: float) -> float:
    """A rating as a float.

    Raises:
        ValueError: It is not in [0, 1].
    """
    # Written so that NaN, which compares false with everything, is refused too.
    if not 0 <= value <= 1:
        raise ValueError(f"a similarity must be in [0, 1], got {value}")
    return float(value)


def _contradiction(scores: EntailmentScores) -> float:
    # A model with two labels cannot tell contradiction from unrelated, and 0 would mean certain.
    if scores.contradiction is None:
        raise ValueError("the model has no label for a contradiction; use one with three labels")
    for share in (scores.entailment, scores.contradiction):
        _rating(share)
    total = scores.contradiction + scores.entailment
    # Everything is neutral: the ratio does not exist, and 0 would count as no contradiction at all.
    if total <= 0:
        raise ValueError("neither entailment nor contradiction has any probability")
    return scores.contradiction / total


@dataclass(frozen=True, slots=True)
class _Failed:
    """The reason why an item has no answer.

    Attributes:
        detail: What went wrong.
        raised: Whether the judge raised; another item of the same batch may be the cause.
    """

    detail: str
    raised: bool = False


@dataclass(frozen=True, slots=True)
class _Task:
    """A measurement, with its pairs as items of its rater."""

    rater: Rater
    items: list[Item]
    read: Callable[[Sequence[Any]], Any]

    def result(self, known: dict[Item, Any]) -> Any:
        """The measurement, from the answers of the pass, or `Missing`."""
        failed = {item for item in self.items if isinstance(known[item], _Failed) and known[item].raised}
        if failed and len(failed) < len(known):
            # Asked on their own: a bad pair fails only the measurements that need it.
            known = {**known, **_asked(self.rater, [item for item in dict.fromkeys(self.items) if item in failed])}
        answers = [known[item] for item in self.items]
        fault = next((answer for answer in answers if isinstance(answer, _Failed)), None)
        if fault is not None:
            return Missing(Unmeasured.JUDGE_FAILED, f"{self.rater.who}: {fault.detail}")
        return self.read(answers)


class JudgingPass:
    """Measurements that are run together."""

    def __init__(self) -> None:
        self._wanted: dict[str, dict[Item, None]] = {}
        self._tasks: list[_Task] = []

    @property
    def waiting(self) -> int:
        """Number of items that will be asked."""
        return sum(map(len, self._wanted.values()))

    def add(self, rater: Rater, question: str, asking: Asking) -> int:
        """Add a measurement; returns its number."""
        items = [_item(rater, question, pair) for pair in asking.pairs]
        self._wanted.setdefault(rater.key, {}).update(dict.fromkeys(items))
        self._tasks.append(_Task(rater, items, asking.read))
        return len(self._tasks) - 1

    def run(self) -> list[Any]:
        """Ask about all items.

        Returns:
            The result of each measurement, in order, or `Missing` if a pair that it needs has no answer.
        """
        raters = {task.rater.key: task.rater for task in self._tasks}
        known = {key: _asked(rater, self._wanted[key]) for key, rater in raters.items()}
        return [task.result(known[task.rater.key]) for task in self._tasks]


def _item(rater: Rater, question: str, pair: Pair) -> Item:
    a, b = pair
    # One orientation for both, so that a symmetric question is asked once and gets one answer.
    return (question, b, a) if b < a and not rater.directed else (question, a, b)


def _asked(rater: Rater, items: Collection[Item]) -> dict[Item, Any]:
    """The answer to each item, or `_Failed`."""
    known: dict[Item, Any] = {}
    pending = list(items)
    for start in range(0, len(pending), BATCH):
        part = pending[start : start + BATCH]
        try:
            answers = rater.batch(list(part))  # the caller's code may change the list in place
            # With a wrong number of answers nobody knows which item each belongs to.
            fault = f"{len(answers)} answers for {len(part)} pairs" if len(answers) != len(part) else ""
        except Exception as error:  # a judge is the caller's code: any exception is a missing measurement
            fault = f"it raised {describe_error(error)}"
        if fault:
            known.update(dict.fromkeys(part, _Failed(fault, raised=True)))
        else:
            known.update((item, _checked(rater, answer)) for item, answer in zip(part, answers, strict=True))
    return known


def _checked(rater: Rater, answer: Any) -> Any:
    if answer is None:
        return _Failed("no answer for a pair")
    try:
        return rater.read(answer)
    except (AttributeError, TypeError, ValueError) as error:
        return _Failed(f"{type(error).__name__}: {error}")
