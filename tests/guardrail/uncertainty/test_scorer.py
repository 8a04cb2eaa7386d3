"""Scorers: what they are given, what counts as a score, and what a guard makes of it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from guardrail import Guardrail, PromptWrapping, Scorer, UsageError, plan_for, scorer
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactMismatchError
from guardrail.sampling.effects import run
from guardrail.sampling.follow_ups import Scoring
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Missing, Sample, SampleSet, Uncertainty, Unmeasured
from guardrail.uncertainty import from_spec, measure, unmet_needs
from guardrail.uncertainty.training import Training, hash_of, question_hash
from guardrail.verdict import Reason, Verdict

MODEL = ScriptedChat(script={"q?": ["yes", "no", "yes"]}, probability=0.5)


def rated(value: Any, **settings: Any) -> Scorer:
    """A scorer that always returns this, or raises it."""

    def fixed(answer: str) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return scorer(**{"version": 1, "higher": "certain", **settings})(fixed)


def drawn_with(own: Scorer, prompt: PromptWrapping | None = None, question: str = "q?") -> SampleSet:
    plan = plan_for([own.estimator], n=2)
    return Sampler(MODEL, plan, scoring=Scoring.of([own], prompt)).draw([[HumanMessage(question)]])[0]


def measured(own: Scorer) -> Uncertainty:
    return measure(drawn_with(own), own.estimator, plan_for([own.estimator], n=2))


def artifact_of(own: Scorer, threshold: float | None = 0.5) -> CalibrationArtifact:
    return make_artifact(MODEL, threshold=threshold, estimator=own.estimator, n=2)


def verdict(own: Scorer, **settings: Any) -> Verdict:
    return Guardrail(model=MODEL, artifact=artifact_of(own), using={"scorer": own}, **settings).assess("q?")


# -- Arguments ---------------------------------------------------------------------------------------------------------


def test_the_parameter_names_say_what_is_drawn() -> None:
    free = rated(0.5)
    assert plan_for([free.estimator]).n == 0
    assert not plan_for([free.estimator]).logprobs

    @scorer(version=1, higher="certain")
    def costly(samples: Any, logprobs: Any, answer: str) -> float:
        return 0.5

    assert costly.reads == ("answer", "logprobs", "samples")
    assert plan_for([costly.estimator]).n == 10
    assert plan_for([costly.estimator]).logprobs
    assert plan_for([costly.estimator]).follow_ups == ("score:costly@1",)


def test_every_argument_is_what_its_name_says() -> None:
    seen: dict[str, Any] = {}

    @scorer(version=1, higher="certain")
    def all_of(
        question: Any, answer: Any, messages: Any, slots: Any, tool_calls: Any, logprobs: Any, samples: Any
    ) -> float:
        seen.update(locals())
        return 0.5

    prompt = PromptWrapping(template="Use {context}.\n{question}", slots=("context",), question_slots=("context",))
    model = ScriptedChat(script={"Use this.\nq?": ["yes", "no", "yes"]}, probability=0.5)
    messages = prompt.messages("q?", slots={"context": "this"})
    plan = plan_for([all_of.estimator], n=2)
    Sampler(model, plan, scoring=Scoring.of([all_of], prompt)).draw([messages])
    assert {name: seen[name] for name in ("question", "answer", "messages", "slots", "tool_calls", "samples")} == {
        "question": "q?",
        "answer": "yes",
        "messages": messages,
        "slots": {"context": "this"},
        "tool_calls": (),
        "samples": ("no", "yes"),
    }
    assert seen["logprobs"] == (math.log(0.5),)


def test_tool_calls_are_the_answer_without_the_text_beside_them() -> None:
    seen: dict[str, Any] = {}

    @scorer(version=1, higher="certain")
    def calls(answer: str, tool_calls: Any) -> float:
        seen.update(answer=answer, calls=[(call.name, call.arguments) for call in tool_calls])
        return 0.5

    message = AIMessage("I will.", tool_calls=[{"name": "pay", "args": {"to": "Ann"}, "id": "1", "type": "tool_call"}])
    model = ScriptedChat(default=[message])
    plan = plan_for([calls.estimator], bindings=Bindings(tools=({"type": "function", "function": {"name": "pay"}},)))
    Sampler(model, plan, scoring=Scoring.of([calls], None)).draw([[HumanMessage("pay Ann")]])
    assert seen == {"answer": '[{"arguments":{"to":"Ann"},"name":"pay"}]', "calls": [("pay", {"to": "Ann"})]}


@pytest.mark.parametrize(
    "function",
    [lambda text: 0.5, lambda answer, threshold=0.5: 0.5, lambda *answers: 0.5, lambda **fields: 0.5, lambda: 0.5],
)
def test_another_parameter_name_is_refused(function: Callable[..., float]) -> None:
    with pytest.raises(UsageError, match="a scorer takes any of question, answer"):
        scorer(version=1, higher="certain", name="other")(function)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": 0}, "a version from 1"),
        ({"name": "a b"}, "an identifier"),
        ({"higher": "good"}, "which answers score high"),
        ({"timeout": 0}, "above 0"),
        ({"params": {"model": object()}}, "plain JSON"),
        ({"params": {"cut": math.nan}}, "plain JSON"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rated(0.5, **settings)


def test_an_answer_without_log_probabilities_is_not_rated() -> None:
    @scorer(version=1, higher="certain", unit="nats")
    def surest(logprobs: Any) -> float:
        raise AssertionError("must not be called")

    model = ScriptedChat(default=["yes"])
    drawn = Sampler(model, plan_for([surest.estimator]), scoring=Scoring.of([surest], None)).draw(
        [[HumanMessage("q?")]]
    )
    score = measure(drawn[0], surest.estimator, plan_for([surest.estimator]))
    assert score.reason is Unmeasured.NO_LOGPROBS


# -- Scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "settings", "expected"),
    [
        (0.25, {}, 0.75),
        (0.25, {"higher": "uncertain"}, 0.25),
        (-3.5, {"unit": "nats"}, 3.5),
        (7, {"unit": "count", "higher": "uncertain"}, 7.0),
        (np.float32(0.5), {}, 0.5),
        (0.1 + 0.2, {"higher": "uncertain"}, 0.1 + 0.2),
    ],
)
def test_higher_is_less_certain(value: Any, settings: dict[str, Any], expected: float) -> None:
    score = measured(rated(value, **settings))
    assert score.value == expected
    assert score.estimator == "score:fixed@1"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, Unmeasured.JUDGE_FAILED),
        ("0.9", Unmeasured.JUDGE_FAILED),
        (True, Unmeasured.JUDGE_FAILED),
        (np.bool_(True), Unmeasured.JUDGE_FAILED),
        ([0.9], Unmeasured.JUDGE_FAILED),
        (math.nan, Unmeasured.NOT_FINITE),
        (math.inf, Unmeasured.NOT_FINITE),
        (10**400, Unmeasured.NOT_FINITE),
        (95, Unmeasured.NOT_FINITE),
        (-0.1, Unmeasured.NOT_FINITE),
        (ValueError("no number"), Unmeasured.JUDGE_FAILED),
        (ZeroDivisionError(), Unmeasured.JUDGE_FAILED),
        (RuntimeError("anything"), Unmeasured.JUDGE_FAILED),
    ],
)
def test_anything_but_a_number_is_unmeasured_and_held_back(value: Any, reason: Unmeasured) -> None:
    judged = verdict(rated(value))
    assert (judged.accepted, judged.reason, judged.uncertainty.reason) == (False, Reason.UNMEASURED, reason)
    assert judged.is_result  # it may depend on the answer: nothing scores it again


def status_error(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://judge")
    return httpx.HTTPStatusError("failed", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (status_error(500), Unmeasured.MODEL_FAILED),
        (status_error(429), Unmeasured.MODEL_FAILED),
        (status_error(401), Unmeasured.MISCONFIGURED),
        (ConnectionResetError(), Unmeasured.MODEL_FAILED),
        (TimeoutError(), Unmeasured.MODEL_FAILED),
        (httpx.RemoteProtocolError("gone"), Unmeasured.MODEL_FAILED),
        (status_error(400), Unmeasured.JUDGE_FAILED),
    ],
)
def test_an_outage_is_no_abstention_that_is_remembered(error: Exception, reason: Unmeasured) -> None:
    calls = []

    @scorer(version=1, higher="certain")
    def failing(answer: str) -> float:
        calls.append(answer)
        raise error

    guard = Guardrail(model=MODEL, artifact=artifact_of(failing), using={"scorer": failing})
    first = guard.assess("q?")
    guard.assess("q?")
    assert first.uncertainty.reason is reason
    transport = reason is not Unmeasured.JUDGE_FAILED
    assert first.is_result is not transport
    assert len(calls) == (2 if transport else 1)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_score_that_takes_too_long_is_unmeasured_in_every_driver(kind: str) -> None:
    release = threading.Event()

    @scorer(version=1, higher="certain", timeout=0.05)
    def sync_scorer(answer: str) -> float:
        release.wait(20)
        return 1.0

    @scorer(version=1, higher="certain", timeout=0.05)
    async def async_scorer(answer: str) -> float:
        await asyncio.sleep(20)
        return 1.0

    own = sync_scorer if kind == "sync" else async_scorer
    guard = Guardrail(model=MODEL, artifact=artifact_of(own), using={"scorer": own}, remember=0)
    started = time.perf_counter()
    verdicts = [await guard.aassess("q?"), await asyncio.to_thread(guard.assess, "q?"), guard.assess("q?")]
    assert time.perf_counter() - started < 10
    release.set()
    assert {(each.accepted, each.uncertainty.reason) for each in verdicts} == {(False, Unmeasured.JUDGE_FAILED)}
    assert "no score within 0.05 s" in verdicts[0].detail


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_scorer_that_hangs_leaves_few_threads_behind(asynchronous: bool) -> None:
    """40 questions would otherwise leave 40 threads behind, and so on until the process has none."""
    release = threading.Event()

    @scorer(version=1, higher="certain", timeout=0.05)
    def hanging(answer: str) -> float:
        release.wait(30)
        return 0.9

    def running() -> int:
        return sum(thread.name == "guardrail-scorer" for thread in threading.enumerate())

    model = ScriptedChat(default=["Paris"])
    guard = Guardrail(model=model, artifact=artifact_of(hanging), using={"scorer": hanging}, remember=0)
    questions: list[Any] = [f"q{i}?" for i in range(40)]
    config = RunnableConfig(max_concurrency=4)
    before = running()
    if asynchronous:
        held = asyncio.run(guard.abatch(questions, config, return_exceptions=True))
    else:
        held = guard.batch(questions, config, return_exceptions=True)
    assert 4 <= running() - before <= 8  # max_concurrency that hang, and those that were in flight meanwhile
    assert not any(isinstance(each, AIMessage) and each.text == "Paris" for each in held)
    left = running()
    last = guard.assess("once more?", config).uncertainty
    assert (last.reason, running()) == (Unmeasured.MODEL_FAILED, left)
    assert "calls of hanging hang" in last.detail
    release.set()
    for thread in threading.enumerate():
        if thread.name == "guardrail-scorer":
            thread.join(10)
    assert guard.assess("and now?", config).uncertainty.value == pytest.approx(0.1)


def test_callers_with_limits_of_their_own_do_not_wait_for_each_others_scores() -> None:
    """Each would take the others' healthy calls for hanging ones, and hold good answers back."""
    all_there = threading.Barrier(3)

    @scorer(version=1, higher="certain", timeout=5)
    def slow(answer: str) -> float:
        all_there.wait(4)  # raises unless three calls run at once
        return 0.9

    guard = Guardrail(model=ScriptedChat(default=["Paris"]), artifact=artifact_of(slow), using={"scorer": slow})
    with ThreadPoolExecutor(3) as callers:
        ask = partial(guard.assess, config=RunnableConfig(max_concurrency=1))
        assert all(verdict.uncertainty.measured for verdict in callers.map(ask, ["a?", "b?", "c?"]))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_scorer_that_ends_the_program_holds_its_answer_back_and_no_other(error: type[BaseException]) -> None:
    """It would end the loop of all sync scorers, and every later caller would wait for ever."""

    @scorer(version=1, higher="certain")
    def leaving(question: str) -> float:
        if question == "bad?":
            raise error
        return 0.9

    guard = Guardrail(model=ScriptedChat(default=["Paris"]), artifact=artifact_of(leaving), using={"scorer": leaving})
    assert guard.assess("bad?").uncertainty.reason is Unmeasured.JUDGE_FAILED
    assert guard.assess("good?").uncertainty.measured


def test_a_process_without_threads_holds_back_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure says nothing about the question, and takes no place from the next one."""

    @scorer(version=1, higher="certain")
    def rated(question: str) -> float:
        return 0.9

    guard = Guardrail(model=ScriptedChat(default=["Paris"]), artifact=artifact_of(rated), using={"scorer": rated})
    config = RunnableConfig(max_concurrency=1)
    assert guard.assess("first?", config).uncertainty.measured  # the loop of sync code has its thread
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", Mock(side_effect=RuntimeError("can't start")))
        assert guard.assess("q?", config).uncertainty.reason is Unmeasured.MODEL_FAILED
    assert guard.assess("q?", config).uncertainty.measured


async def test_sync_and_async_functions_are_asked_in_sync_and_async_guards() -> None:
    loops = set()

    @scorer(version=1, higher="certain")
    async def waiting(answer: str) -> float:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return 0.75

    class Called:
        async def __call__(self, answer: str) -> float:
            return 0.75

    own_object = scorer(version=1, higher="certain", name="called")(Called())
    for own in (waiting, rated(0.75), own_object):
        guard = Guardrail(model=MODEL, artifact=artifact_of(own), using={"scorer": own}, remember=0)
        verdicts = [guard.assess("q?"), await guard.aassess("q?"), await asyncio.to_thread(guard.assess, "q?")]
        assert [each.uncertainty.value for each in verdicts] == [0.25] * 3
    # This loop, and the one loop of sync code: a client's connections stay usable.
    assert len(loops) == 2


def test_the_cost_of_a_verdict_counts_the_scorers_calls() -> None:
    assert verdict(rated(0.9)).cost.calls == 2
    assert verdict(rated(0.9, calls=0)).cost.calls == 1


def test_an_infeasible_guard_asks_no_scorer() -> None:
    own = rated(AssertionError("must not be asked"))
    guard = Guardrail(model=MODEL, artifact=artifact_of(own, threshold=None), using={"scorer": own})
    assert guard.assess("q?").cost.calls == 1


# -- Binding -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        rated(0.5, version=2),
        rated(0.5, higher="uncertain"),
        rated(0.5, params={"model": "b"}),
        rated(0.5, timeout=5),
        rated(0.5, unit="nats"),
        rated(0.5, name="renamed"),
        scorer(version=1, higher="certain", name="fixed")(lambda question, answer: 0.5),
    ],
)
def test_a_guard_refuses_another_scorer(other: Scorer) -> None:
    with pytest.raises(ArtifactMismatchError, match="scorer differs"):
        Guardrail(model=MODEL, artifact=artifact_of(rated(0.5)), using={"scorer": other})


def test_a_guard_refuses_a_missing_and_a_needless_scorer() -> None:
    with pytest.raises(ArtifactMismatchError, match=r"Pass it: Guardrail\(\.\.\., using=\{'scorer': \.\.\.\}\)"):
        Guardrail(model=MODEL, artifact=artifact_of(rated(0.5)))
    with pytest.raises(ArtifactMismatchError, match="Leave scorer out"):
        Guardrail(model=MODEL, artifact=make_artifact(MODEL), using={"scorer": rated(0.5)})


def test_a_reply_of_another_scorer_of_the_same_name_is_not_read() -> None:
    drawn = drawn_with(rated(0.9, params={"model": "a"}))
    score = measure(drawn, rated(0.9, params={"model": "b"}).estimator, plan_for([rated(0.9).estimator]))
    assert score.reason is Unmeasured.NOT_RECORDED
    assert measure(drawn, rated(0.9, params={"model": "a"}).estimator, plan_for([rated(0.9).estimator])).value


def test_a_plan_without_the_scorer_says_so() -> None:
    own = rated(0.5)
    assert unmet_needs(own.estimator, plan_for([own.estimator])) == []
    ((need, _),) = unmet_needs(own.estimator, plan_for([own.estimator]).primary_only())
    assert need == "the scorer score:fixed@1"
    with pytest.raises(UsageError, match="asks the scorer score:fixed@1, which was not given"):
        Sampler(MODEL, plan_for([own.estimator])).draw([[HumanMessage("q?")]])


def test_training_questions_are_not_compared_where_answers_are_served(tmp_path: Path) -> None:
    trained = rated(0.5, trained_on=["q1", "What is it?"])
    assert isinstance(from_spec(trained.estimator.spec, scorer=rated(0.5)).params["training"], dict)
    with pytest.raises(UsageError, match="cannot be read"):
        rated(0.5, trained_on=tmp_path / "missing.txt")
    with pytest.raises(UsageError, match="names no question"):
        rated(0.5, trained_on=[])


def test_training_is_read_from_lines_and_from_records(tmp_path: Path) -> None:
    lines = tmp_path / "ids.txt"
    lines.write_text("id-1\n\n  What IS it?\n")
    training = Training.of(lines)
    assert hash_of("id-1") in training.ids
    for same in ("what is  it?", "what\u200b is it?\ufeff"):  # what looks the same to a reader is the same question
        assert question_hash(same, None) in training.questions
    rows = tmp_path / "fit.jsonl"
    rows.write_text("{not JSON\n")
    with pytest.raises(UsageError, match="cannot be read"):
        Training.of(rows)
    rows.write_text('{"header": {}}\n{"id": "a", "question": "Which?", "options": {"A": "x"}, "group": "g"}\n')
    assert Training.of(rows) == Training(
        ids=(hash_of("a"),), questions=(question_hash("Which?", {"A": "x"}),), groups=(hash_of("g"),)
    )


# -- Observing ---------------------------------------------------------------------------------------------------------


def test_observing_rates_the_served_answer_without_a_model_call() -> None:
    answers = []

    @scorer(version=1, higher="certain")
    def noted(answer: str) -> float:
        answers.append(answer)
        return 0.9

    guard = Guardrail(model=MODEL, artifact=artifact_of(noted), using={"scorer": noted})
    served = Sample(text="yes", finish_reason="stop")
    verdict = run(guard.served_steps([HumanMessage("q?")], served)).verdict
    assert verdict is not None
    assert (answers, verdict.accepted) == (["yes"], True)
    assert verdict.cost.calls == 1  # the scorer's


def test_only_sets_with_an_answer_are_rated() -> None:
    own = rated(AssertionError("must not be asked"))
    model = ScriptedChat(default=["   "])
    drawn = Sampler(model, plan_for([own.estimator]), scoring=Scoring.of([own], None)).draw([[HumanMessage("q?")]])
    assert drawn[0].follow_ups == {}
    with pytest.raises(Missing, match="was not asked"):
        own.estimator.needs.follow_up.reply(drawn[0])  # type: ignore[union-attr]
