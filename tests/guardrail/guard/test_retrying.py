"""A retry around a guard: what could not be measured is drawn again, a measured abstention never is."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from pydantic import Field

from guardrail import AbstainedError, Guardrail, UnmeasuredError
from guardrail.guard.base import is_result
from guardrail.guard.cascade import Cascade
from guardrail.monitor import SafetySwitch
from guardrail.prompting import question_text
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.verdict import Reason
from tests.guardrail.guard.test_routing import artifact
from tests.guardrail.sampling.test_limits import Busy, Seen

APART = ["one", "two", "three", "four", "five"]
LATE, LOST, SURE = "late?", "lost?", "sure?"
"""Certain of something wrong when asked again; an outage that ends when asked again; certain at once."""
DOWN_FOR_NOW = ConnectionError("down")
ROUNDS: dict[str, list[list[Any]]] = {
    LATE: [APART, ["wrong"]],
    LOST: [[DOWN_FOR_NOW], ["found"]],
    SURE: [["sure"]],
}


class Turning(ScriptedChat):
    """Answers by question and by how often it was asked before."""

    turns: Any = ROUNDS
    calls: Any = Field(default_factory=Counter)
    lock: Any = Field(default_factory=threading.Lock)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        question = question_text(messages)
        index = (run_manager.metadata if run_manager else {}).get(SAMPLE_INDEX, -1)
        with self.lock:
            asked = self.calls[question, index]
            self.calls[question, index] += 1
        rounds = self.turns[question]
        script = {question: rounds[min(asked, len(rounds) - 1)]}
        return ScriptedChat(script=script)._generate(messages, stop, run_manager, **kwargs)

    def rounds(self, question: str) -> int:
        """How often a question was drawn."""
        return int(self.calls[question, -1])


def turning(**settings: Any) -> tuple[Turning, Guardrail]:
    """A guard that remembers nothing, so that only the retry itself keeps it from drawing again."""
    model = Turning()
    settings = {"on_abstain": "raise", "early_stopping": "off", "remember": 0, **settings}
    return model, Guardrail(model=model, artifact=make_artifact(model, n=4), **settings)


def tried(guard: Any, **settings: Any) -> Any:
    return guard.with_retry(wait_exponential_jitter=False, **settings)


def ways(asked: Any, question: str) -> list[Callable[[], Any]]:
    return [
        lambda: asked.invoke(question),
        lambda: asyncio.run(asked.ainvoke(question)),
        lambda: asked.batch([question])[0],
        lambda: asyncio.run(asked.abatch([question]))[0],
    ]


NAMED: dict[str, dict[str, Any]] = {
    "default": {},
    "abstentions": {"retry_if_exception_type": (AbstainedError,)},
    "all": {"retry_if_exception_type": (BaseException,)},
    "function": {"retry_if_exception_type": lambda error: True},
}


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("named", NAMED)
def test_a_measured_abstention_is_not_drawn_again_whatever_the_retry_names(named: str, way: int) -> None:
    model, guard = turning()
    with pytest.raises(AbstainedError) as caught:
        ways(tried(guard, stop_after_attempt=9, **NAMED[named]), LATE)[way]()
    assert not isinstance(caught.value, UnmeasuredError)
    assert model.rounds(LATE) == 1


def test_the_very_question_is_answered_wrongly_when_it_is_asked_again() -> None:
    _, guard = turning()
    with pytest.raises(AbstainedError):
        guard.invoke(LATE)
    assert guard.invoke(LATE).content == "wrong"  # so the tests here could fail


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("named", NAMED)
def test_what_could_not_be_measured_is_drawn_again(named: str, way: int) -> None:
    model, guard = turning()
    assert ways(tried(guard, **NAMED[named]), LOST)[way]().content == "found"
    assert model.rounds(LOST) == 2


def test_the_retry_still_names_what_it_retries_and_how_often() -> None:
    model, guard = turning()
    with pytest.raises(UnmeasuredError):
        tried(guard, retry_if_exception_type=(OSError,)).invoke(LOST)
    assert model.rounds(LOST) == 1
    model, guard = turning()
    with pytest.raises(UnmeasuredError):
        tried(guard, stop_after_attempt=1).invoke(LOST)
    assert model.rounds(LOST) == 1


@pytest.mark.parametrize("order", [(LATE, LOST, SURE), (LOST, LATE, SURE), (SURE, LOST, LATE)])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_each_question_of_a_batch_is_retried_by_itself(order: tuple[str, ...], asynchronous: bool) -> None:
    model, guard = turning()
    asked = tried(guard)
    given = list(order)
    found = (
        asyncio.run(asked.abatch(given, return_exceptions=True))
        if asynchronous
        else asked.batch(given, return_exceptions=True)
    )
    by_question = dict(zip(order, found, strict=True))
    assert by_question[LOST].content == "found"
    assert by_question[SURE].content == "sure"
    assert isinstance(by_question[LATE], AbstainedError)
    assert [model.rounds(question) for question in (LATE, LOST, SURE)] == [1, 2, 1]


def test_no_question_of_a_batch_gets_the_answer_to_another() -> None:
    _, guard = turning()
    sure, lost = tried(guard, stop_after_attempt=1).batch([SURE, LOST], return_exceptions=True)
    assert sure.content == "sure"
    assert isinstance(lost, UnmeasuredError)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_retried_batch_has_one_limit(asynchronous: bool) -> None:
    seen = Seen()
    model = Busy(default=["a", "b", "c"], seen=seen, crowd=3)
    asked = tried(Guardrail(model=model, artifact=make_artifact(model), early_stopping="off", remember=0))
    config: Any = {"max_concurrency": 2}
    if asynchronous:
        asyncio.run(asked.abatch(["q"] * 3, config))
    else:
        asked.batch(["q"] * 3, config)
    assert (seen.calls, seen.peak) == (33, 2)


def test_a_bound_guard_and_a_retry_of_a_retry_are_the_guards_own() -> None:
    model, guard = turning()
    for asked in (
        tried(guard.with_config(tags=["x"])),
        tried(guard.bind()),
        tried(tried(guard), stop_after_attempt=9),
        tried(tried(guard).with_config(tags=["x"])),
    ):
        model.calls.clear()
        with pytest.raises(AbstainedError):
            asked.invoke(LATE)
        assert model.rounds(LATE) == 1


@pytest.mark.parametrize("path", [RunnableLambda, lambda function: function])
def test_an_error_of_the_abstention_path_draws_no_more_samples(path: Any) -> None:
    def unreachable(_: Any) -> str:
        raise ConnectionError("nobody there")

    model, guard = turning(on_abstain=path(unreachable))
    with pytest.raises(ConnectionError):
        tried(guard).invoke(LATE)
    assert model.rounds(LATE) == 1


def cascade(small: list[list[Any]], large: list[list[Any]]) -> tuple[Turning, Cascade]:
    """A cascade that is asked LOST, by what its stages answer in each round; and its first model."""
    models = [Turning(name_of_model="small", turns={LOST: small}), Turning(name_of_model="large", turns={LOST: large})]
    settings: list[dict[str, Any]] = [{"early_stopping": "off"}, {"early_stopping": "off"}]
    return models[0], Cascade(models, artifact=artifact(0.5, 0.5), on_abstain="raise", stage_settings=settings)


def test_a_stage_of_a_cascade_that_abstained_is_not_drawn_again_after_an_outage_of_the_next() -> None:
    small, asked = cascade([APART, ["wrong"]], [[DOWN_FOR_NOW]])
    with pytest.raises(AbstainedError) as caught:
        tried(asked).invoke(LOST)
    assert not isinstance(caught.value, UnmeasuredError)  # or a retry around a chain would draw the first stage again
    stages = [one.reason for one in caught.value.verdict.stages]  # type: ignore[attr-defined]
    assert stages == [Reason.ABOVE_THRESHOLD, Reason.UNMEASURED]
    assert small.rounds(LOST) == 1


def test_a_cascade_whose_first_stage_failed_is_asked_again() -> None:
    small, asked = cascade([[DOWN_FOR_NOW], ["up"]], [["unasked"]])
    assert tried(asked).invoke(LOST).content == "up"
    assert small.rounds(LOST) == 2


def test_what_a_switch_holds_back_and_what_calibration_forbids() -> None:
    model, guard = turning(switch=SafetySwitch())
    assert not is_result(guard.assess(SURE).model_copy(update={"accepted": False, "reason": Reason.SUSPENDED}))
    forbidden = Guardrail(model=model, artifact=make_artifact(model, threshold=None))
    assert is_result(forbidden.assess(SURE))


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("retried", [False, True])
def test_a_guard_that_took_over_and_failed_makes_no_abstention_unmeasured(retried: bool, way: int) -> None:
    """Otherwise a retry of what was not measured would draw again what was."""
    large = ScriptedChat(name_of_model="large", default=[ConnectionError("down")])
    strong = Guardrail(model=large, artifact=make_artifact(large, n=4), on_abstain="raise")
    model, guard = turning(on_abstain=strong)
    asked: Any = tried(guard) if retried else guard
    with pytest.raises(AbstainedError) as caught:
        ways(asked, LATE)[way]()
    assert not isinstance(caught.value, UnmeasuredError)
    assert caught.value.verdict.reason is Reason.ABOVE_THRESHOLD
    assert isinstance(caught.value.__cause__, UnmeasuredError)
    assert model.rounds(LATE) == 1
