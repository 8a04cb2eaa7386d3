"""One judging pass for many measurements: each judge is asked once for all of them.

The pass collects the pairs of all measurements, drops those that were asked before (by another estimator, or for the
same question again), and gives each judge the rest in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ..foreign_errors import describe_error
from ..judges import Item
from ..judges.base import Comparer
from ..types import Missing, Unmeasured
from .comparing import Asking, Pair

__all__ = ["JudgingPass", "Result"]

BATCH = 4096
"""Most pairs that a judge gets at once."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """The reason why an item has no answer.

    Attributes:
        detail: What went wrong.
        raised: Whether the judge raised; another item of the same batch may be the cause.
    """

    detail: str
    raised: bool = False


Result: TypeAlias = Callable[[], dict[str, Any] | Missing]
"""The fields of `Evidence` that a measurement gives, or why it gives none; for after the pass."""


class JudgingPass:
    """Measurements that are run together. Raters are judges, similarities and entailment models."""

    def __init__(self) -> None:
        self._raters: dict[str, Comparer] = {}
        self._answers: dict[str, dict[Item, Any]] = {}
        """By rater: the answer to each item; None before it is asked."""

    @property
    def waiting(self) -> int:
        """Number of items that will be asked."""
        return sum(map(len, self._answers.values()))

    def add(self, key: str, rater: Comparer, question: str, asking: Asking) -> Result:
        """Add a measurement by a rater; raters that give equal answers have one key."""
        items = [_item(rater, question, pair) for pair in asking.pairs]
        self._raters[key] = rater
        self._answers.setdefault(key, {}).update(dict.fromkeys(items))
        return cache(lambda: self._result(key, items, asking.read))

    def run(self) -> None:
        """Ask about all items."""
        for key, rater in self._raters.items():
            self._answers[key] = _asked(rater, self._answers[key])

    def _result(
        self, key: str, items: Sequence[Item], read: Callable[[Sequence[Any]], dict[str, Any]]
    ) -> dict[str, Any] | Missing:
        rater, known = self._raters[key], self._answers[key]
        failed = [item for item in dict.fromkeys(items) if isinstance(known[item], _Failed) and known[item].raised]
        if failed and len(failed) < len(known):
            # Asked on their own: a bad pair fails only the measurements that need it.
            known = {**known, **_asked(rater, failed)}
        answers = [known[item] for item in items]
        fault = next((answer for answer in answers if isinstance(answer, _Failed)), None)
        if fault is not None:
            return Missing(Unmeasured.JUDGE_FAILED, f"{rater.role} {rater.spec.name}: {fault.detail}")
        return read(answers)


def _item(rater: Comparer, question: str, pair: Pair) -> Item:
    a, b = pair
    # One orientation for both, so that a symmetric question is asked once and gets one answer.
    return (question, b, a) if b < a and rater.role != "entailment" else (question, a, b)


def _asked(rater: Comparer, items: Collection[Item]) -> dict[Item, Any]:
    """The answer to each item, or `_Failed`."""
    known: dict[Item, Any] = {}
    pending = list(items)
    for start in range(0, len(pending), BATCH):
        part = pending[start : start + BATCH]
        try:
            answers = rater.compare(list(part))  # the caller's code may change the list in place
            # With a wrong number of answers nobody knows which item each belongs to.
            fault = f"{len(answers)} answers for {len(part)} pairs" if len(answers) != len(part) else ""
        except Exception as error:  # a judge is the caller's code: any exception is a missing measurement
            fault = f"it raised {describe_error(error)}"
        if fault:
            known.update(dict.fromkeys(part, _Failed(fault, raised=True)))
        else:
            known.update((item, _checked(rater, answer)) for item, answer in zip(part, answers, strict=True))
    return known


def _checked(rater: Comparer, answer: Any) -> Any:
    if answer is None:
        return _Failed("no answer for a pair")
    try:
        return rater.read(answer)
    except (AttributeError, TypeError, ValueError) as error:
        return _Failed(f"{type(error).__name__}: {error}")
