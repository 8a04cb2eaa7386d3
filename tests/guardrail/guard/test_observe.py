"""`Guardrail(mode="observe")`: the model's own answers pass, and verdicts on them come behind."""

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
from guardrail.guard.comparability import unlike_plan
from guardrail.guard.observe import Observed, ObserveQueue, chosen
from guardrail.review import audits
from guardrail.testing import ScriptedChat, make_artifact

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


def guard(script: Mapping[str, Sequence[Any]] = SCRIPT, **settings: Any) -> tuple[Guardrail, list[Verdict]]:
    model, verdicts = settings.pop("model", None) or ScriptedChat(script=script), list[Verdict]()

    def watch(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        verdicts.append(verdict)

    artifact = settings.pop("artifact", None) or make_artifact(model, threshold=0.1, n=4)
    return Guardrail(model=model, artifact=artifact, mode="observe", on_verdict=watch, **settings), verdicts


def without_id(message: BaseMessage) -> dict[str, Any]:
    return message.model_dump(exclude={"id"})


def test_the_models_own_answer_passes_and_the_verdict_is_on_it() -> None:
    observing, verdicts = guard()
    for question in SCRIPT:
        answer = observing.invoke(question, **GREEDY)
        assert without_id(answer) == without_id(observing.model.invoke(question, **GREEDY))
        assert "guardrail" not in answer.response_metadata
    assert observing.drain(20)
    assert observing.observed == Observed(served=2, chosen=2, accepted=1, abstained=1)
    assert observing.observed.acceptance == 0.5
    by_answer = {verdict.candidate.text: verdict for verdict in verdicts if verdict.candidate is not None}
    assert (by_answer["Paris"].accepted, by_answer["Rome"].accepted) == (True, False)
    assert len(by_answer["Rome"].samples) == 4
    assert by_answer["Rome"].cost.calls == 4  # the answer itself was not drawn again


async def test_async_calls_and_streams_pass_too() -> None:
    observing, verdicts = guard()
    assert (await observing.ainvoke(SURE, **GREEDY)).content == "Paris"
    left: Any = observing.stream(UNSURE, **GREEDY)
    assert next(left).content == "Rome"
    left.close()
    assert observing.drain(20)
    assert observing.observed == Observed(served=2, chosen=2, accepted=1, dropped={"incomplete": 1})
    streaming, verdicts = guard(model=Streaming(script={SURE: ["Paris it is"]}))
    own = [chunk.content for chunk in streaming.model.stream(SURE, **GREEDY)]
    assert len(own) > 3
    assert [chunk.content for chunk in streaming.stream(SURE, **GREEDY)] == own
    assert [chunk.content async for chunk in streaming.astream(SURE, **GREEDY)] == own
    assert streaming.drain(20)
    assert streaming.observed == Observed(served=2, chosen=2, accepted=2)
    assert {verdict.candidate.text for verdict in verdicts if verdict.candidate is not None} == {"Paris it is"}


def test_an_answer_that_was_drawn_otherwise_gets_no_verdict() -> None:
    observing, verdicts = guard()
    observing.invoke(SURE)  # the model's own temperature, not the plan's 0
    observing.invoke(SURE, **GREEDY, stop=["x"])
    observing.invoke([HumanMessage(UNSURE), AIMessage("Rome"), HumanMessage(SURE)], **GREEDY)
    observing.bind_tools([unlike_plan]).invoke(SURE, **GREEDY)
    assert observing.drain(20)
    assert observing.observed == Observed(served=4, chosen=4, not_comparable=4)
    assert observing.observed.acceptance is None
    assert not verdicts


def test_what_is_measured_is_chosen_beforehand_by_hash() -> None:
    keys = [f"{number}" for number in range(4000)]
    sampled = [key for key in keys if chosen(key, 0.25, salt="observe")]
    assert abs(len(sampled) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5
    assert set(sampled) <= {key for key in keys if chosen(key, 0.5, salt="observe")}
    assert [chosen(key, 0.25, salt="audit") for key in keys] == [audits.chosen(key, 0.25) for key in keys]
    observing, verdicts = guard(observe_rate=0.5)
    for _ in range(40):
        observing.invoke(SURE, **GREEDY)
    assert observing.drain(20)
    counts = observing.observed
    assert (counts.served, counts.accepted, len(verdicts)) == (40, counts.chosen, counts.chosen)
    assert 0 < counts.chosen < 40


def test_the_run_id_decides_whether_an_answer_is_measured() -> None:
    for number in range(8):
        observing, _ = guard(observe_rate=0.5)
        run_id = UUID(int=number)
        observing.invoke(SURE, {"run_id": run_id}, **GREEDY)
        assert observing.drain(20)
        assert observing.observed.chosen == chosen(str(run_id), 0.5, salt="observe")
        observing.invoke(SURE, {"run_id": run_id}, **GREEDY)  # a retry
        assert observing.drain(20)
        assert observing.observed.chosen in (0, 2)


def test_nothing_is_drawn_behind_an_answer_of_an_endpoint_that_does_not_sample() -> None:
    class Cached(ScriptedChat):
        """Gives one answer to everything, as an endpoint with a cache does."""

        guardrail_trusted: ClassVar[bool] = False

    model = Cached(script={}, default=["Paris"])
    observing, verdicts = guard(model=model, artifact=make_artifact(model, threshold=0.1, n=4))
    for question in (SURE, UNSURE):
        observing.invoke(question, **GREEDY)
        assert observing.drain(20)
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

    assert queue.offer(lambda: measure(0))
    assert begun.wait(20)
    assert [queue.offer(partial(measure, number)) for number in (1, 2, 3)] == [True, True, False]
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
    observing, _ = guard({SURE: ["Paris", ValueError("no")]})
    assert observing.invoke(SURE, **GREEDY).content == "Paris"
    assert observing.drain(20)
    assert observing.observed == Observed(served=1, chosen=1, unmeasured=1)
    with pytest.raises(ValueError, match="down"):  # the model's own error passes, as its answers do
        guard({SURE: [ValueError("down")]})[0].invoke(SURE)
    with pytest.raises(UsageError, match="observe"):
        observing.with_structured_output(dict)


def test_the_mode_is_part_of_a_guards_configuration() -> None:
    model = ScriptedChat()
    config = Guardrail(model=model, artifact=make_artifact(model), mode="observe", observe_rate=0.5).to_config()
    again = Guardrail.from_config(config, model=model)
    assert (again.mode, again.observe_rate) == ("observe", 0.5)


def test_answers_are_measured_after_the_threads_have_ended() -> None:
    waiting = ObserveQueue(at_once=2)
    for _ in range(5):
        assert waiting.offer(lambda: "accepted")
        assert waiting.drain(30.0)
    assert waiting.observed.accepted == 5
