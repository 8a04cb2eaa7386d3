"""`Watcher`: the model's own answers pass, and verdicts on them come behind."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk

from guardrail import Guardrail, UsageError, Verdict
from guardrail.guard.observers import chosen
from guardrail.review import hooks as audits
from guardrail.testing import ScriptedChat, make_artifact
from integrations.watcher import Observed, ObserveQueue, Watcher

SURE, UNSURE = "sure?", "unsure?"
SCRIPT = {SURE: ["Paris"], UNSURE: ["Rome", "Oslo", "Bern", "Riga", "Lima"]}
GREEDY: dict[str, Any] = {"temperature": 0}


class Streaming(ScriptedChat):
    """Streams its answer word by word."""

    def _stream(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        words = str(self._generate(messages, stop, run_manager, **kwargs).generations[0].text).split()
        for word in words:
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        usage = {"input_tokens": 1, "output_tokens": len(words), "total_tokens": 1 + len(words)}
        end = AIMessageChunk(content="", response_metadata={"finish_reason": "stop"}, usage_metadata=usage)
        yield ChatGenerationChunk(message=end)


def watched(script: Mapping[str, Sequence[Any]] = SCRIPT, **settings: Any) -> tuple[Any, Watcher, list[Verdict]]:
    """A model that is watched in every call, its watcher, and the verdicts so far."""
    model, verdicts = settings.pop("model", None) or ScriptedChat(script=script), list[Verdict]()
    artifact = settings.pop("artifact", None) or make_artifact(model, threshold=0.1, n=4)
    guard = Guardrail(model=model, artifact=artifact, on_verdict=lambda verdict, _: verdicts.append(verdict))
    watcher = Watcher(guard, **settings)
    return model.with_config(callbacks=[watcher]), watcher, verdicts


def test_the_models_own_answer_passes_and_the_verdict_is_on_it() -> None:
    """A user who tries the gate must get what the application got, and a verdict on that very answer."""
    model, watcher, verdicts = watched()
    for question in SCRIPT:
        answer = model.invoke(question, **GREEDY)
        assert answer.content == SCRIPT[question][0]
        assert "guardrail" not in answer.response_metadata
    assert watcher.drain(20)
    assert watcher.observed == Observed(served=2, chosen=2, accepted=1, abstained=1)
    assert watcher.observed.acceptance == 0.5
    by_answer = {verdict.candidate.text: verdict for verdict in verdicts if verdict.candidate is not None}
    assert (by_answer["Paris"].accepted, by_answer["Rome"].accepted) == (True, False)
    assert len(by_answer["Rome"].samples) == 4
    assert by_answer["Rome"].cost.calls == 4  # the answer itself was not drawn again


async def test_async_calls_and_streams_pass_too() -> None:
    """Streams are measured when they end; one that the caller leaves is counted as lost."""
    model, watcher, verdicts = watched(model=Streaming(script={SURE: ["Paris it is"]}))
    assert (await model.ainvoke(SURE, **GREEDY)).content == "Paris it is"
    assert len([chunk async for chunk in model.astream(SURE, **GREEDY)]) > 3
    left: Any = model.stream(SURE, **GREEDY)
    assert next(left).content == "Paris "
    left.close()
    assert watcher.drain(20)
    assert watcher.observed == Observed(served=3, chosen=3, accepted=2, dropped={"incomplete": 1})
    assert {verdict.candidate.text.strip() for verdict in verdicts if verdict.candidate} == {"Paris it is"}


def test_an_answer_that_was_drawn_otherwise_gets_no_verdict() -> None:
    """A verdict on it would be about an answer that the guard never gives."""
    model, watcher, verdicts = watched()
    model.invoke(SURE)  # the model's own temperature, not the plan's 0
    model.invoke(SURE, **GREEDY, stop=["x"])
    model.invoke([HumanMessage(UNSURE), AIMessage("Rome"), HumanMessage(SURE)], **GREEDY)
    model.bind(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]).invoke(SURE, **GREEDY)
    ScriptedChat(script=SCRIPT, name_of_model="other").invoke(SURE, {"callbacks": [watcher]}, **GREEDY)
    assert watcher.drain(20)
    assert watcher.observed == Observed(served=5, chosen=5, not_comparable=5)
    assert watcher.observed.acceptance is None
    assert not verdicts


def test_what_is_measured_is_chosen_beforehand_by_hash() -> None:
    keys = [f"{number}" for number in range(4000)]
    sampled = [key for key in keys if chosen(key, 0.25, salt="observe")]
    assert abs(len(sampled) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    assert set(sampled) <= {key for key in keys if chosen(key, 0.5, salt="observe")}
    assert [chosen(key, 0.25, salt="audit") for key in keys] == [audits.chosen(key, 0.25) for key in keys]
    model, watcher, verdicts = watched(rate=0.5)
    for _ in range(40):
        model.invoke(SURE, **GREEDY)
    assert watcher.drain(20)
    counts = watcher.observed
    assert (counts.served, counts.accepted, len(verdicts)) == (40, counts.chosen, counts.chosen)
    assert 0 < counts.chosen < 40


def test_the_run_id_decides_whether_an_answer_is_measured() -> None:
    for number in range(8):
        model, watcher, _ = watched(rate=0.5)
        run_id = UUID(int=number)
        model.invoke(SURE, {"run_id": run_id}, **GREEDY)
        assert watcher.drain(20)
        assert watcher.observed.chosen == chosen(str(run_id), 0.5, salt="observe")
        model.invoke(SURE, {"run_id": run_id}, **GREEDY)  # a retry
        assert watcher.drain(20)
        assert watcher.observed.chosen in (0, 2)


def test_nothing_is_drawn_behind_an_answer_of_an_endpoint_that_does_not_sample() -> None:
    class Cached(ScriptedChat):
        """Gives one answer to everything, as an endpoint with a cache does."""

        guardrail_trusted: ClassVar[bool] = False

    model, watcher, verdicts = watched(model=Cached(script={}, default=["Paris"]))
    for question in (SURE, UNSURE):
        model.invoke(question, **GREEDY)
        assert watcher.drain(20)
    assert [verdict.uncertainty.reason for verdict in verdicts] == ["degenerate_samples"] * 2
    assert [len(verdict.samples) for verdict in verdicts] == [0, 0]
    assert [verdict.cost.calls for verdict in verdicts] == [4, 0]  # of the probe, once


def test_what_waits_is_bounded_by_bytes() -> None:
    queue, release, begun = ObserveQueue(at_once=1, most_bytes=100), threading.Event(), threading.Event()

    def measure() -> str:
        begun.set()
        release.wait(20)
        return "accepted"

    assert queue.offer(measure, 60)
    assert begun.wait(20)  # it is still held while it is measured
    assert [queue.offer(measure, size) for size in (41, 40, 1)] == [False, True, False]
    release.set()
    assert queue.drain(20)
    assert queue.offer(measure, 100)
    assert queue.drain(20)
    assert queue.observed == Observed(accepted=3, dropped={"queue_full": 2})


def test_a_watcher_holds_no_more_bytes_of_conversations_than_its_queue_may() -> None:
    """An application with long conversations would run out of memory: 1,000 of 1 MB each could wait."""
    model, watcher, _ = watched(model=ScriptedChat(script={}, default=["Paris"]))
    watcher._queue = ObserveQueue(most_bytes=10_000)
    model.invoke("short?", **GREEDY)
    assert watcher.drain(20)
    model.invoke("l" + "o" * 10_000 + "ng?", **GREEDY)
    assert watcher.drain(20)
    assert watcher.observed == Observed(served=2, chosen=2, accepted=1, dropped={"queue_full": 1})


def test_drops_are_counted_and_the_newest_goes() -> None:
    queue, release, order = ObserveQueue(most=2, at_once=1), threading.Event(), list[int]()
    begun = threading.Event()

    def measure(number: int) -> str:
        begun.set()
        release.wait(20)
        order.append(number)
        if number == 1:
            raise RuntimeError("broken")
        return "accepted"

    assert queue.offer(lambda: measure(0), 1)
    assert begun.wait(20)
    assert [queue.offer(partial(measure, number), 1) for number in (1, 2, 3)] == [True, True, False]
    release.set()
    assert queue.drain(20)
    assert order == [0, 1, 2]
    assert queue.observed == Observed(accepted=2, dropped={"queue_full": 1, "failed": 1})


def test_what_waits_at_the_end_is_dropped_and_counted() -> None:
    queue, release, begun = ObserveQueue(at_once=1, most_bytes=3), threading.Event(), threading.Event()

    def measure() -> str:
        begun.set()
        release.wait(20)
        return "accepted"

    for _ in range(3):
        assert queue.offer(measure, 1)
    assert begun.wait(20)
    assert not queue.drain(0)
    release.set()
    assert queue.drain(20)
    assert queue.observed == Observed(accepted=1, dropped={"stopping": 2})
    assert queue.hold(3), "what was dropped holds no bytes"


def test_a_failure_behind_the_answer_never_reaches_the_caller() -> None:
    model, watcher, _ = watched({SURE: ["Paris", ValueError("no")]})
    assert model.invoke(SURE, **GREEDY).content == "Paris"
    assert watcher.drain(20)
    assert watcher.observed == Observed(served=1, chosen=1, unmeasured=1)
    failing, watcher, _ = watched({SURE: [ValueError("down")]})
    with pytest.raises(ValueError, match="down"):  # the model's own error passes, as its answers do
        failing.invoke(SURE)
    assert watcher.observed == Observed(served=1, chosen=1, dropped={"incomplete": 1})


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match=r"rate must be in \(0, 1\]"):
        watched(rate=rate)


def test_answers_are_measured_after_the_threads_have_ended() -> None:
    waiting = ObserveQueue(at_once=2)
    for _ in range(5):
        assert waiting.offer(lambda: "accepted", 1)
        assert waiting.drain(30.0)
    assert waiting.observed.accepted == 5
