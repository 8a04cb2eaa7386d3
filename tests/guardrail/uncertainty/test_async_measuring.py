"""The event loop is free while a judge thinks; a judge that costs nothing stays on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from guardrail import Guardrail
from guardrail.judges import ExactJudge, Judge, JudgeSpec, RougeL, Similarity, TextJudge, from_judge
from guardrail.judges.chat import ChatJudge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator

PATIENCE = 10
MODEL = ScriptedChat(script={"q": [*"aabcdefghij"]})


class Patient(Judge):
    """A judge that thinks until the event loop has shown that it runs."""

    spec = JudgeSpec(name="exact", version=1, params={})  # its name says nothing: it is somebody else's

    def __init__(self) -> None:
        self.thinking, self.loop_ran = threading.Event(), threading.Event()
        self.threads: set[int] = set()
        self.held_up = False

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.threads.add(threading.get_ident())
        self.thinking.set()
        if not self.loop_ran.wait(PATIENCE):
            self.held_up = True
            self.loop_ran.set()
        return [a == b for a, b in pairs]


@pytest.mark.parametrize("way", ["ainvoke", "aassess", "abatch"])
def test_the_loop_runs_while_a_judge_thinks(way: str) -> None:
    judge = Patient()
    spec = make_estimator("discrete_semantic_entropy", judge=judge).spec
    artifact = make_artifact(MODEL).model_copy(update={"estimator": spec})
    guard = Guardrail(model=MODEL, artifact=artifact, using={"judge": judge}, remember=0)

    async def run() -> None:
        task = asyncio.create_task(getattr(guard, way)(["q"] if way == "abatch" else "q"))
        while not judge.thinking.is_set():
            await asyncio.sleep(0.001)
        judge.loop_ran.set()  # reached only if the judge does not hold the loop up
        await asyncio.wait_for(task, PATIENCE)

    asyncio.run(run())
    assert not judge.held_up
    assert threading.get_ident() not in judge.threads
    judge.threads.clear()
    assert not guard.invoke("q").response_metadata["guardrail"]["accepted"]
    assert judge.threads == {threading.get_ident()}  # a sync caller waits anyway


class Alike(Similarity):
    spec = JudgeSpec(name="rouge_l", version=1, params={})

    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        return [float(np.mean([a == b])) for a, b in pairs]


def test_what_counts_as_slow() -> None:
    name = "discrete_semantic_entropy"
    assert not make_estimator(name).is_slow
    assert not make_estimator(name, judge=TextJudge()).is_slow
    assert make_estimator(name, judge=ChatJudge(MODEL)).is_slow
    assert not make_estimator("degree", similarity=RougeL()).is_slow
    assert not make_estimator("degree", similarity=from_judge(ExactJudge())).is_slow
    assert make_estimator("degree", similarity=Alike()).is_slow
    assert make_estimator("degree", similarity=from_judge(ChatJudge(MODEL))).is_slow


class Noting(Judge):
    """A judge that asks no model, and notes the threads it runs in."""

    is_slow = False
    spec = JudgeSpec(name="exact", version=1, params={})

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.threads.add(threading.get_ident())
        return [a == b for a, b in pairs]


@pytest.mark.parametrize(("length", "on_loop"), [(10, True), (10_000, False)])
def test_long_answers_are_measured_off_the_loop(length: int, on_loop: bool) -> None:
    model = ScriptedChat(script={"q": [letter * length for letter in "aabcdefghij"]})
    judge = Noting()
    spec = make_estimator("discrete_semantic_entropy", judge=judge).spec
    artifact = make_artifact(model).model_copy(update={"estimator": spec})
    asyncio.run(Guardrail(model=model, artifact=artifact, using={"judge": judge}).aassess("q"))
    assert (threading.get_ident() in judge.threads) is on_loop
