"""One judging pass for many measurements: each judge is asked once per round for all of them.

A measurement is a generator (`clustering.Steps`): it yields the pairs it needs next and ends in a result. The pass
collects the pairs of all open measurements, drops those that were asked before (by another estimator, or for the same
question again), and gives each judge the rest in one batch. Connected components, similarity matrices, relevance and
contradictions need one round; greedy clustering needs as many as the question with the most clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import describe_error
from ..judges import Entailment, EntailmentScores, Item, Judge, Similarity
from ..types import Missing, Unmeasured
from .clustering import Pair, Steps
from .graph import checked

__all__ = ["JudgingPass", "Rater", "entailment_rater", "judge_rater", "similarity_rater"]

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


def judge_rater(judge: Judge) -> Rater:
    """A judge as a rater."""
    key = f"judge {judge.spec.model_dump_json()}"
    return Rater(f"judge {judge.spec.name}", key, False, judge.equivalent_batch, _verdict)


def similarity_rater(similarity: Similarity) -> Rater:
    """A similarity as a rater."""
    key = f"similarity {similarity.spec.model_dump_json()}"
    return Rater(f"similarity {similarity.spec.name}", key, False, similarity.similarity_batch, checked)


def entailment_rater(entailment: Entailment) -> Rater:
    """An entailment model as a rater of how far a premise contradicts a hypothesis; see `Evidence.contradiction`."""
    name, key = f"entailment {entailment.spec.name}", f"entailment {entailment.spec.model_dump_json()}"
    return Rater(name, key, True, entailment.entailment_batch, _contradiction)


def _verdict(value: Any) -> bool:
    # Truthiness is not enough: a judge that returns "no" or a probability would call every pair the same.
    if not isinstance(value, bool) and getattr(value, "dtype", None) != "bool":  # numpy's booleans are not Python's
        raise ValueError(f"a verdict must be True, False or None, got a {type(value).__name__}")
    return bool(value)


def _contradiction(scores: EntailmentScores) -> float:
    # A model with two labels cannot tell contradiction from unrelated, and 0 would mean certain.
    if scores.contradiction is None:
        raise ValueError("the model has no label for a contradiction; use one with three labels")
    for share in (scores.entailment, scores.contradiction):
        checked(share)
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


class _Pool:
    """The items that one rater has answered, and those of its next call."""

    def __init__(self, rater: Rater) -> None:
        self.rater = rater
        self.known: dict[Item, Any] = {}
        self.wanted: dict[Item, None] = {}
        self.together: list[list[Item]] = []  # items of each measurement

    def item(self, question: str, pair: Pair) -> Item:
        a, b = pair
        # One orientation for both, so that a symmetric question is asked once and gets one answer.
        return (question, b, a) if b < a and not self.rater.directed else (question, a, b)

    def want(self, items: Iterable[Item]) -> None:
        # An item that raised may have failed for a neighbour in its batch, so it gets another chance.
        new = [item for item in items if item not in self.known or self._raised(item)]
        self.wanted.update(dict.fromkeys(new))
        self.together.append(new)

    def ask(self) -> None:
        # Emptied before asking: measurements that go on add the items of the next round.
        pending, self.wanted = list(self.wanted), {}
        together, self.together = self.together, []
        self._put(pending)
        # The failed items of each measurement on their own: a bad pair fails only the measurements that need it.
        tried = {frozenset(pending)}
        for group in together:
            rest = [item for item in group if self._raised(item)]
            if rest and frozenset(rest) not in tried:
                tried.add(frozenset(rest))
                self._put(rest)

    def _put(self, items: Sequence[Item]) -> None:
        for start in range(0, len(items), BATCH):
            part = items[start : start + BATCH]
            for item, answer in zip(part, self._answers(part), strict=True):
                self.known[item] = self._checked(answer)

    def _raised(self, item: Item) -> bool:
        answer = self.known[item]
        return isinstance(answer, _Failed) and answer.raised

    def _answers(self, items: Sequence[Item]) -> Sequence[Any]:
        try:
            answers = self.rater.batch(list(items))  # the caller's code may change the list in place
        except Exception as error:  # a judge is the caller's code: any exception is a missing measurement
            return [_Failed(f"it raised {describe_error(error)}", raised=True)] * len(items)
        # With a wrong number of answers nobody knows which item each belongs to.
        if len(answers) != len(items):
            return [_Failed(f"{len(answers)} answers for {len(items)} pairs", raised=True)] * len(items)
        return answers

    def _checked(self, answer: Any) -> Any:
        if answer is None:
            return _Failed("no answer for a pair")
        if isinstance(answer, _Failed):
            return answer
        try:
            return self.rater.read(answer)
        except (AttributeError, TypeError, ValueError) as error:
            return _Failed(f"{type(error).__name__}: {error}")


@dataclass(slots=True)
class _Task:
    """An open measurement."""

    pool: _Pool
    question: str
    steps: Steps[Any, Any]
    items: list[Item]
    result: Any = None
    done: bool = False


class JudgingPass:
    """Measurements that are run together."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._tasks: list[_Task] = []

    @property
    def waiting(self) -> int:
        """Number of items that would be asked next."""
        return sum(len(pool.wanted) for pool in self._pools.values())

    def add(self, rater: Rater, question: str, steps: Steps[Any, Any]) -> int:
        """Begin a measurement; returns its number."""
        task = _Task(self._pools.setdefault(rater.key, _Pool(rater)), question, steps, [])
        self._advance(task, None)
        self._tasks.append(task)
        return len(self._tasks) - 1

    def run(self) -> list[Any]:
        """Run all measurements to their ends.

        Returns:
            For each, in order: its result, or `Missing` if a pair that it needed has no answer.
        """
        open_tasks = [task for task in self._tasks if not task.done]
        while open_tasks:
            for pool in self._pools.values():
                pool.ask()
            for task in open_tasks:
                self._answer(task)
            open_tasks = [task for task in open_tasks if not task.done]
        return [task.result for task in self._tasks]

    def _answer(self, task: _Task) -> None:
        answers = [task.pool.known[item] for item in task.items]
        failed = next((answer for answer in answers if isinstance(answer, _Failed)), None)
        if failed is None:
            self._advance(task, answers)
            return
        # Frees what the generator holds; it will never be sent an answer.
        task.steps.close()
        task.done, task.result = True, Missing(Unmeasured.JUDGE_FAILED, f"{task.pool.rater.who}: {failed.detail}")

    def _advance(self, task: _Task, answers: Sequence[Any] | None) -> None:
        """Continue to the next pairs that must be asked, or to the end."""
        try:
            pairs = next(task.steps) if answers is None else task.steps.send(answers)
            # A step without pairs needs no judge, so it must not wait for a round.
            while not pairs:
                pairs = task.steps.send([])
        except StopIteration as end:
            task.done, task.result = True, end.value
            return
        task.items = [task.pool.item(task.question, pair) for pair in pairs]
        task.pool.want(task.items)
