"""No failure selects: retries, time limits and repetitions end with the draw that an undisturbed call would have had.

The model answers each sample of a question differently whenever it is asked again, so that a guard that draws again
accepts other questions than a guard whose calls never fail. Nine in ten hard questions are answered wrongly.

Under time limits answers are drawn in two stages: an answer that the first call accepts needs 1 call instead of 11, so
that it survives more often. In two stages a call that fails counts as disagreement, so failures are tested on a plan of
one stage.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from guardrail import AbstainedError, Guardrail
from guardrail.judges import ExactJudge
from guardrail.prompting import PromptWrapping, question_text
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.sampling.draws import Draws
from guardrail.testing import ScriptedChat, ended, make_artifact
from guardrail.uncertainty import Estimator, make_estimator, then
from tests.combinations import ranks_of

pytestmark = pytest.mark.slow

QUESTIONS = [f"{'hard' if number % 2 else 'easy'} {number}" for number in range(200)]
AGREEMENT = {"hard": 0.62, "easy": 0.93}
"""Chance that a sample gives the most frequent answer of its question; others differ from each other."""
AT_ONCE = {"hard": 0.2, "easy": 0.5}
"""Chance that the first call of a question decides."""
PER_ATTEMPT = 6
"""Calls for which a caller's time suffices: more than the first stage needs, and fewer than both."""
ATTEMPTS = 8
"""Attempts within such a time."""


class NoVerdictError(Exception):
    """No attempt lived to its verdict."""


class Failing(ScriptedChat):
    """Fails with a fixed chance at each call, or hangs when a caller's time is over; otherwise it answers."""

    rate: float = 0.0
    limit: int | None = None
    tried: Any = Field(default_factory=Counter, repr=False)  # LangChain writes the fields out at every call
    given: Any = Field(default_factory=Counter, repr=False)
    left: Any = Field(default_factory=lambda: [0])
    hanging: Any = None

    def _answered(self, messages: Any, run_manager: Any) -> ChatResult:
        question, index = question_text(messages).partition(" (")[0], run_manager.metadata.get(SAMPLE_INDEX, -1)
        self.tried[question, index] += 1
        if random.Random(f"fails {question} {index} {self.tried[question, index]}").random() < self.rate:
            raise ConnectionError("down")
        self.given[question, index] += 1
        draw = random.Random(f"{question} {index} {self.given[question, index]}").random()
        kind = question.split()[0]
        text = "usual" if index < 0 or draw < AGREEMENT[kind] else f"other {draw}"
        nll = 0.1 if draw < AT_ONCE[kind] else 0.375
        logprobs = {"content": [{"token": text, "logprob": -nll}]}
        message = AIMessage(content=text, response_metadata={"logprobs": logprobs} if index < 0 else {})
        return ChatResult(generations=[ChatGeneration(message=ended(message))])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return self._answered(messages, run_manager)

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.limit is not None:
            if self.left[0] == 0:
                self.hanging.set()
                await asyncio.Event().wait()
            self.left[0] -= 1
        return self._answered(messages, run_manager)


def two_stages() -> Estimator:
    """u = F(c) + .2 d, of which F(c), the share of the scale 1/300, ..., 1 up to the nll c, is c up to 1/300."""
    cheap, second = make_estimator("sequence_nll"), make_estimator("primary_disagreement", judge=ExactJudge())
    return then(cheap, second, m=10, ranks=ranks_of(i / 300 for i in range(1, 301)))


TWO_STAGES = two_stages()


def guard_of(
    model: Failing, *, staged: bool = True, prompt: PromptWrapping | None = None, **settings: Any
) -> Guardrail:
    """At .1 the first call accepts: .1 + .2 <= .4. At .375 it takes samples of which at least nine in ten agree."""
    estimator: Any = TWO_STAGES if staged else "discrete_semantic_entropy"
    artifact = make_artifact(model, threshold=0.4, n=10, estimator=estimator, prompt=prompt or PromptWrapping())
    return Guardrail(model=model, artifact=artifact, on_abstain="raise", max_concurrency=1, **settings)


def accepted(ask: Callable[[str], Any]) -> set[str]:
    """The questions that were answered."""
    answered = set()
    for question in QUESTIONS:
        try:
            ask(question)
        except (AbstainedError, NoVerdictError):
            continue
        answered.add(question)
    return answered


def error_rate(answered: set[str]) -> float:
    """P(wrong | answered), by the share of wrong answers in each kind: .9 and .02."""
    return sum(0.9 if question.startswith("hard") else 0.02 for question in answered) / len(answered)


@cache
def undisturbed(*, staged: bool = True) -> set[str]:
    return accepted(guard_of(Failing(), staged=staged).invoke)


def test_retries_after_failures_accept_nothing_that_an_undisturbed_call_would_not() -> None:
    model = Failing(rate=0.1)
    answered = accepted(
        guard_of(model, staged=False).with_retry(wait_exponential_jitter=False, stop_after_attempt=3).invoke
    )
    once = undisturbed(staged=False)
    assert answered <= once
    assert len(answered) > 0.9 * len(once)  # one of eleven calls fails three times for .011 of the questions
    assert error_rate(answered) < error_rate(once) + 0.01
    assert set(model.given.values()) == {1}  # no call that gave an answer was made again


CLOCK = PromptWrapping(template="{question} (asked at {clock})", slots=("clock",), question_slots=())
QUESTION_SLOTS = ("clock",)
"""The negative control: a prompt whose clock makes another question, so that each attempt draws again."""


def at(second: int, question: str) -> Any:
    return CLOCK.messages(question, slots={"clock": f"10:00:{second:02}"})


def clock_guard(model: Failing, slots: tuple[str, ...] = (), **settings: Any) -> Guardrail:
    return guard_of(model, prompt=CLOCK.model_copy(update={"question_slots": slots}), **settings)


def with_a_clock(attempts: int, slots: tuple[str, ...] = (), *, rate: float = 0.0, **settings: Any) -> set[str]:
    """A loop around a prompt whose slot holds the time, until an answer is accepted."""
    guard = clock_guard(Failing(rate=rate), slots, **settings)

    def ask(question: str) -> None:
        for second in range(attempts):
            verdict = guard.assess(at(second, question))
            if verdict.accepted:
                return
        raise AbstainedError.of(verdict, "")

    return accepted(ask)


def test_a_clock_in_a_slot_is_no_reason_to_draw_again() -> None:
    assert with_a_clock(6) == with_a_clock(1)
    answered, once = with_a_clock(6, rate=0.1, staged=False), undisturbed(staged=False)
    assert answered <= once
    assert len(answered) > 0.95 * len(once)  # one of eleven calls fails six times for .00001 of them


def test_negative_control_a_clock_selects_if_it_makes_another_question() -> None:
    once = with_a_clock(1, staged=False)
    again = with_a_clock(6, QUESTION_SLOTS, staged=False)
    # At least nine of ten samples agree for .06 of the hard questions and .85 of the easy ones, and once in six times
    # for .31 and all: the rate grows from .08 to .23.
    assert error_rate(again) > error_rate(once) + 0.05


# -- time limits, and processes that are killed


async def within_time(guard: Guardrail, model: Failing, prompts: list[Any]) -> Any:
    """`asyncio.wait_for` in a loop, with calls in the place of seconds."""
    for prompt in prompts:
        model.left[0], model.hanging = PER_ATTEMPT, asyncio.Event()
        task = asyncio.ensure_future(guard.ainvoke(prompt))
        late = asyncio.ensure_future(model.hanging.wait())
        await asyncio.wait({task, late}, return_when=asyncio.FIRST_COMPLETED)
        late.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    raise NoVerdictError


def in_a_loop(*, clock: tuple[str, ...] | None = None, **settings: Any) -> set[str]:
    """Attempts within a time limit each; ``clock``: the slots that make another question, None for no clock."""
    model = Failing(limit=PER_ATTEMPT)
    guard = guard_of(model, **settings) if clock is None else clock_guard(model, clock, **settings)

    def prompts(question: str) -> list[Any]:
        return [question if clock is None else at(second, question) for second in range(ATTEMPTS)]

    with asyncio.Runner() as runner:
        return accepted(lambda question: runner.run(within_time(guard, model, prompts(question))))


class Killed(BaseException):
    """The end of a process."""


class Process(Failing):
    """The model of a process that is killed after some calls; whatever its code does afterwards is lost."""

    calls_left: int = PER_ATTEMPT
    keys: Any

    def _answered(self, messages: Any, run_manager: Any) -> ChatResult:
        if self.calls_left == 0:
            self.keys.dead = True
            raise Killed
        self.calls_left -= 1
        return super()._answered(messages, run_manager)


class ProcessKeys:
    """The keys that processes share, as one of them sees them."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values, self.dead = values, False

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    def add(self, name: str, value: str, seconds: float) -> str | None:
        before = self.values.get(name)
        if before is None and not self.dead:
            self.values[name] = value
        return before


def in_processes_that_are_killed(slots: tuple[str, ...] = ()) -> set[str]:
    """A question goes from process to process, each with another time in its prompt, until one lives to its verdict."""
    values: dict[str, str] = {}
    given = Counter[Any]()

    def ask(question: str) -> None:
        for second in range(ATTEMPTS):
            keys = ProcessKeys(values)
            model = Process(keys=keys, given=given)
            with suppress(Killed):
                clock_guard(model, slots, remember=Draws(shared=keys)).invoke(at(second, question))
                return
        raise NoVerdictError

    return accepted(ask)


INTERRUPTED: dict[str, Callable[[], set[str]]] = {
    "time limits": in_a_loop,
    "time limits under a clock": partial(in_a_loop, clock=()),
    "killed processes": in_processes_that_are_killed,
}
DRAWN_AGAIN: dict[str, Callable[[], set[str]]] = {
    "time limits, and a guard that forgets": partial(in_a_loop, remember=0),
    "time limits, and a clock that makes another question": partial(in_a_loop, clock=QUESTION_SLOTS),
    "killed processes, and a clock that makes another question": partial(in_processes_that_are_killed, QUESTION_SLOTS),
}


@pytest.mark.parametrize("interruption", INTERRUPTED)
def test_what_is_interrupted_accepts_what_an_undisturbed_call_would(interruption: str) -> None:
    """A caller with a time limit would otherwise get more wrong answers than one who waits."""
    assert INTERRUPTED[interruption]() == undisturbed()


@pytest.mark.parametrize("interruption", DRAWN_AGAIN)
def test_negative_control_interruptions_select_where_answers_are_drawn_again(interruption: str) -> None:
    """Undisturbed 117 of 200 are expected (standard deviation 5), at a rate of .21; in eight attempts 183 (4), at .42.

    Undisturbed: of the hard ones .2 at once, and of the others .06; of the easy ones .5 and .85. An attempt has time
    for the first call alone: 1 - .8^8 and 1 - .5^8.
    """
    answered = DRAWN_AGAIN[interruption]()
    once = undisturbed()
    assert len(answered) > 1.4 * len(once)
    assert error_rate(answered) > error_rate(once) + 0.1
