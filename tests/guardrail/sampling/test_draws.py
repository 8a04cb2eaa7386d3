"""The memory of draws: the first value stays, time and bytes bound it, and native samplers continue what failed."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from guardrail.errors import GuardrailError
from guardrail.review.keys import ExpiringKeys
from guardrail.review.store import ReviewStore
from guardrail.sampling.draws import NOTHING, Draw, Draws
from guardrail.sampling.effects import run
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat
from guardrail.types import Cost, Sample, SampleSet, SamplingPlan, Unmeasured

PROMPT = [HumanMessage("q")]


def answer(text: str, **fields: Any) -> SampleSet:
    return SampleSet(question="q", primary=Sample(text=text), cost=Cost(calls=1), **fields)


def test_the_first_value_stays_until_its_time_is_over() -> None:
    now = [0.0]
    draws = Draws(60, clock=lambda: now[0])
    assert (draws.add("a", "1"), draws.add("a", "2"), draws.get("a"), draws.get("b")) == ("1", "1", "1", None)
    now[0] = 59.9
    assert draws.get("a") == "1"
    now[0] = 60
    assert draws.get("a") is None
    assert draws.add("a", "2") == "2"
    assert draws.evicted == 0  # its time was over


def test_scopes_and_copies_share_nothing_but_a_scoped_memory_has_one_limit() -> None:
    draws = Draws(most_bytes=1000)
    ann, bob = draws.scoped("ann"), draws.scoped("bob")
    ann.add("a", "1")
    assert (bob.get("a"), draws.get("a"), ann.get("a")) == (None, None, "1")
    assert copy.deepcopy(ann).get("a") is None
    bob.add("b", "x" * 900)
    assert (ann.get("a"), ann.evicted, bob.evicted) == (None, 1, 1)


def test_0_seconds_remember_nothing() -> None:
    draws = Draws(0)
    assert (draws.add("a", "1"), draws.add("a", "2"), draws.get("a")) == ("1", "2", None)
    assert run(NOTHING.note("a", answer("x"))) == answer("x")
    assert run(NOTHING.piece("a")) is None


@pytest.mark.parametrize("reason", Unmeasured)
def test_a_failure_of_the_transport_is_not_kept_and_a_result_is(reason: Unmeasured) -> None:
    draw = Draw(Draws(), "key")
    failed = SampleSet(question="q", primary=None, problem=reason, problem_detail="\ud83d", cost=Cost(calls=1))
    assert run(draw.note("piece", failed)).problem is reason
    kept = run(draw.piece("piece"))
    assert (kept is not None) == reason.depends_on_question
    assert kept is None or (kept.problem, kept.cost.calls) == (reason, 0)


def test_of_a_part_that_failed_the_answers_are_kept() -> None:
    draw = Draw(Draws(), "key")
    part = answer("a", problem=Unmeasured.MODEL_FAILED, problem_detail="down")
    assert run(draw.note("part", part)) is part
    kept = run(draw.piece("part"))
    assert kept is not None
    assert (kept.primary, kept.problem, kept.problem_detail) == (part.primary, None, "")


class Unsteady(ExpiringKeys):
    """Keys of a database that takes no write for a while."""

    down = False
    reads = True

    def get(self, name: str) -> str | None:
        if not self.reads:
            raise GuardrailError("down")
        return super().get(name)

    def add(self, name: str, value: str, seconds: float) -> str | None:
        if self.down:
            raise GuardrailError("down")
        return super().add(name, value, seconds)


def test_processes_share_a_store(tmp_path: Path) -> None:
    with ReviewStore(str(tmp_path / "reviews.db")) as store:
        keys, told = Unsteady(store.database), list[Any]()
        one, two = Draws(shared=keys, report=told.append), Draws(shared=ExpiringKeys(store.database))
        assert one.add("a" * 500, "1") == "1"
        assert (two.get("a" * 500), two.add("a" * 500, "2"), one.get("b")) == ("1", "1", None)
        keys.reads = False
        assert one.get("a" * 500) == "1"
        with pytest.raises(GuardrailError):  # whether another process has drawn is not known
            one.get("b")
        assert told == [None]


def test_what_the_store_did_not_take_is_given_out_once_the_other_processes_know_it(tmp_path: Path) -> None:
    with ReviewStore(str(tmp_path / "reviews.db")) as store:
        keys, told = Unsteady(store.database), list[Any]()
        one, two = Draws(shared=keys, report=told.append), Draws(shared=ExpiringKeys(store.database))
        keys.down = True
        for name in ("a", "b"):
            with pytest.raises(GuardrailError):
                one.add(name, "1")
            with pytest.raises(GuardrailError):
                one.get(name)
        assert two.add("b", "2") == "2"
        keys.down = False
        assert (one.get("a"), two.get("a"), one.get("b"), one.add("b", "3")) == ("1", "1", "2", "2")
        assert [error is None for error in told] == [False] * 4 + [True] * 2


class Native(ScriptedChat):
    """Draws natively; each call fails after so many samples, or before its answer."""

    outcomes: Any = ()
    asked: Any = None

    def draw_samples(
        self, prompts: Sequence[Any], plan: SamplingPlan, *, seeds: Sequence[int | None], primary: bool = True
    ) -> list[SampleSet]:
        number = len(self.asked)
        self.asked.append((plan.n, primary, seeds[0]))
        has_primary, count = self.outcomes[number] if number < len(self.outcomes) else (True, plan.n)
        failed = count < plan.n or (primary and not has_primary)
        return [
            SampleSet(
                question="q",
                primary=Sample(text="p", finish_reason="stop") if primary and has_primary else None,
                samples=tuple(Sample(text=f"{number}.{place}") for place in range(count)),
                problem=Unmeasured.MODEL_FAILED if failed else None,
                cost=Cost(calls=1),
            )
            for _ in prompts
        ]

    async def adraw_samples(self, *args: Any, **kwargs: Any) -> list[SampleSet]:
        return self.draw_samples(*args, **kwargs)


class Doubtful(Native):
    """Gives all samples, and says that something is wrong with them."""

    reason: Unmeasured = Unmeasured.MODEL_FAILED

    def draw_samples(self, *args: Any, **kwargs: Any) -> list[SampleSet]:
        whole = super().draw_samples(*args, **kwargs)
        return [drawn.model_copy(update={"problem": self.reason}) for drawn in whole]


@pytest.mark.parametrize(("reason", "calls"), [(Unmeasured.MODEL_FAILED, 3), (Unmeasured.EMPTY_ANSWER, 1)])
def test_a_whole_set_with_a_failure_stays_one_and_a_result_is_kept(reason: Unmeasured, calls: int) -> None:
    model = Doubtful(asked=[], reason=reason)
    sampler = Sampler(model, SamplingPlan(n=3), memory=Draw(Draws(), "key"))
    for _ in range(3):
        (drawn,) = sampler.draw([PROMPT])
        assert (drawn.problem, len(drawn.samples)) == (reason, 3)
    assert len(model.asked) == calls


def test_a_native_sampler_is_asked_for_what_is_missing_with_another_seed() -> None:
    model = Native(asked=[], outcomes=[(False, 2), (True, 1), (True, 2)])
    sampler = Sampler(model, SamplingPlan(n=5, seed=0), memory=Draw(Draws(), "key"))
    first, second, whole, again = (sampler.draw([PROMPT])[0] for _ in range(4))
    assert [drawn.problem for drawn in (first, second)] == [Unmeasured.MODEL_FAILED] * 2
    assert (whole.problem, again.problem) == (None, None)
    assert [(n, primary) for n, primary, _ in model.asked] == [(5, True), (3, True), (2, False)]
    assert len({seed for *_, seed in model.asked}) == 3  # equal seeds would give equal samples
    assert [sample.text for sample in whole.samples] == ["0.0", "0.1", "1.0", "2.0", "2.1"]
    assert (again.samples, again.primary, again.cost.calls) == (
        whole.samples,
        Sample(text="p", finish_reason="stop"),
        0,
    )
    forgetful = Native(asked=[], outcomes=[(False, 2)])
    for _ in range(2):
        Sampler(forgetful, SamplingPlan(n=5)).draw([PROMPT])
    assert [(n, primary) for n, primary, _ in forgetful.asked] == [(5, True)] * 2


@pytest.mark.parametrize("primary", ["greedy", "sampled", "majority"])
def test_samples_behind_an_answer_are_continued_with_another_seed(primary: Any) -> None:
    """Equal seeds would give equal samples, and the answer would look certain."""
    model = Native(asked=[], outcomes=[(False, 2), (True, 3)])
    sampler = Sampler(model, SamplingPlan(n=5, seed=0, primary=primary), primary=False, memory=Draw(Draws(), "key"))
    for _ in range(2):
        sampler.draw([PROMPT])
    assert len({seed for *_, seed in model.asked}) == len(model.asked) == 2


def test_two_stages_of_a_native_sampler_are_parts_of_one_draw() -> None:
    model, draw = Native(asked=[]), Draw(Draws(), "key")
    first = Sampler(model, SamplingPlan(n=0), memory=draw).draw([PROMPT])[0]
    later = Sampler(model, SamplingPlan(n=5), primary=False, memory=draw).draw([PROMPT])[0]
    whole = asyncio.run(Sampler(model, SamplingPlan(n=5), memory=draw).adraw([PROMPT]))[0]
    assert (whole.primary, whole.samples, len(whole.samples)) == (first.primary, later.samples, 5)
    assert [(n, primary) for n, primary, _ in model.asked] == [(0, True), (5, False)]
