"""A retry around a guard: what could not be measured is drawn again, a measured abstention never is."""

from __future__ import annotations

import asyncio
import copy
import math
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, HumanMessageChunk
from langchain_core.messages.content import create_text_block
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.runnables.retry import RunnableRetry
from pydantic import Field, ValidationError

from guardrail import AbstainedError, Guardrail, Unmeasured, UnmeasuredError
from guardrail.errors import ArtifactMismatchError
from guardrail.guard.cascade import Cascade
from guardrail.guard.observers import SafetySwitch
from guardrail.prompting import PromptWrapping, prompt_content, question_text
from guardrail.sampling.calls import SAMPLE_INDEX
from guardrail.sampling.draws import Draws
from guardrail.sampling.effects import run
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample
from guardrail.verdict import Reason
from tests.guardrail.guard.test_routing import artifact
from tests.guardrail.sampling.test_limits import Busy, Inside, Seen

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
    calls: Any = Field(default_factory=Counter, repr=False)
    lock: Any = Field(default_factory=threading.Lock)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        question = question_text(messages)
        index = (run_manager.metadata if run_manager else {}).get(SAMPLE_INDEX, -1)
        with self.lock:
            earlier = self.calls[question, index]
            self.calls[question, index] += 1
        rounds = self.turns[question]
        script = {question: rounds[min(earlier, len(rounds) - 1)]}
        return ScriptedChat(script=script)._generate(messages, stop, run_manager, **kwargs)

    def rounds(self, question: str) -> int:
        """The number of times a question was drawn."""
        return int(self.calls[question, -1])


def turning(**settings: Any) -> tuple[Turning, Guardrail]:
    """A guard that remembers nothing, so that only the retry itself keeps it from drawing again."""
    model = Turning()
    settings = {"on_abstain": "raise", "remember": 0, **settings}
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
    retrying = tried(guard)
    questions = list(order)
    replies = (
        asyncio.run(retrying.abatch(questions, return_exceptions=True))
        if asynchronous
        else retrying.batch(questions, return_exceptions=True)
    )
    by_question = dict(zip(order, replies, strict=True))
    assert by_question[LOST].content == "found"
    assert by_question[SURE].content == "sure"
    assert isinstance(by_question[LATE], AbstainedError)
    assert [model.rounds(question) for question in (LATE, LOST, SURE)] == [1, 2, 1]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_retried_batch_has_one_limit(asynchronous: bool) -> None:
    traffic = Seen()
    model = Busy(default=["a", "b", "c"], seen=traffic, crowd=3)
    retrying = tried(Guardrail(model=model, artifact=make_artifact(model), remember=0))
    config: Any = {"max_concurrency": 2}
    if asynchronous:
        asyncio.run(retrying.abatch(["q"] * 3, config))
    else:
        retrying.batch(["q"] * 3, config)
    assert (traffic.calls, traffic.peak) == (33, 2)


def test_a_bound_guard_and_a_retry_of_a_retry_are_the_guards_own() -> None:
    model, guard = turning()
    for retrying in (
        tried(guard.with_config(tags=["x"])),
        tried(guard.bind()),
        tried(tried(guard), stop_after_attempt=9),
        tried(tried(guard).with_config(tags=["x"])),
    ):
        model.calls.clear()
        with pytest.raises(AbstainedError):
            retrying.invoke(LATE)
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
    return models[0], Cascade(models, artifact=artifact(0.5, 0.5), on_abstain="raise")


def test_a_stage_of_a_cascade_that_abstained_is_not_drawn_again_after_an_outage_of_the_next() -> None:
    small, both_stages = cascade([APART, ["wrong"]], [[DOWN_FOR_NOW]])
    with pytest.raises(AbstainedError) as caught:
        tried(both_stages).invoke(LOST)
    assert not isinstance(caught.value, UnmeasuredError)  # or a retry around a chain would draw the first stage again
    stages = [stage.reason for stage in caught.value.verdict.stages]
    assert stages == [Reason.ABOVE_THRESHOLD, Reason.UNMEASURED]
    assert small.rounds(LOST) == 1


def test_a_cascade_whose_first_stage_failed_is_asked_again() -> None:
    small, both_stages = cascade([[DOWN_FOR_NOW], ["up"]], [["unasked"]])
    assert tried(both_stages).invoke(LOST).content == "up"
    assert small.rounds(LOST) == 2


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("retried", [False, True])
def test_a_guard_that_took_over_and_failed_makes_no_abstention_unmeasured(retried: bool, way: int) -> None:
    """Otherwise a retry of what was not measured would draw again what was."""
    large = ScriptedChat(name_of_model="large", default=[ConnectionError("down")])
    strong = Guardrail(model=large, artifact=make_artifact(large, n=4), on_abstain="raise")
    model, guard = turning(on_abstain=strong)
    runnable: Any = tried(guard) if retried else guard
    with pytest.raises(AbstainedError) as caught:
        ways(runnable, LATE)[way]()
    assert not isinstance(caught.value, UnmeasuredError)
    assert caught.value.verdict.reason is Reason.ABOVE_THRESHOLD
    assert isinstance(caught.value.__cause__, UnmeasuredError)
    assert model.rounds(LATE) == 1


# -- a cause that depends on the question is a result, too


class HTTPError(Exception):
    """An error of a server, with its HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


EMPTY, CERTAIN = [" "], ["wrong"]
RESULTS: dict[str, tuple[list[Any], Unmeasured]] = {
    "empty answer": (EMPTY, Unmeasured.EMPTY_ANSWER),
    "empty sample": (["a", "a", ""], Unmeasured.EMPTY_ANSWER),
    "refusal": ([AIMessage("no", additional_kwargs={"refusal": "no"})], Unmeasured.REFUSED),
    "filtered sample": (["a", "a", AIMessage("", response_metadata={"finish_reason": "content_filter"})],
                        Unmeasured.REFUSED),
    "unreadable": (["a", AIMessage("\ud83d")], Unmeasured.UNREADABLE),
    "integration that cannot read it": (["a", "a", KeyError("candidates")], Unmeasured.UNREADABLE),
    "filter that answers 400": ([HTTPError(400)], Unmeasured.REJECTED),
    "empty beside an outage": (["a", "", DOWN_FOR_NOW], Unmeasured.EMPTY_ANSWER),
}  # fmt: skip
OUTAGES: dict[str, list[Any]] = {
    "connection": [DOWN_FOR_NOW],
    "time": ["a", "a", TimeoutError("slow")],
    "too many requests": [HTTPError(429)],
    "key": [HTTPError(401)],
    "server": ["a", HTTPError(503)],
    "certificate": ["a", ssl.SSLCertVerificationError("expired")],  # a ValueError as well
}


def rounds_of(*rounds: list[Any], **settings: Any) -> tuple[Turning, Guardrail]:
    model = Turning(turns={LATE: list(rounds)})
    settings = {"on_abstain": "raise", "remember": 0, **settings}
    return model, Guardrail(model=model, artifact=make_artifact(model, n=4), **settings)


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("named", RESULTS)
def test_what_depends_on_the_question_is_never_drawn_again(named: str, way: int) -> None:
    first, reason = RESULTS[named]
    model, guard = rounds_of(first, CERTAIN)
    with pytest.raises(AbstainedError) as caught:
        ways(tried(guard, stop_after_attempt=9), LATE)[way]()
    assert not isinstance(caught.value, UnmeasuredError)  # else a retry that names it would draw again
    assert (caught.value.verdict.uncertainty.reason, model.rounds(LATE)) == (reason, 1)
    assert "asking again would not help" in caught.value.verdict.detail


@pytest.mark.parametrize("named", OUTAGES)
def test_failures_of_the_transport_are_drawn_again(named: str) -> None:
    model, guard = rounds_of(OUTAGES[named], ["a"], remember=300)
    assert tried(guard).invoke(LATE).content == "a"
    primary, *samples = OUTAGES[named]
    answers = [primary, *((samples or [primary]) * 4)[:4]]
    # What failed is drawn again, and nothing else.
    assert [model.calls[LATE, index] for index in range(-1, 4)] == [1 + isinstance(a, Exception) for a in answers]
    again, forgetful = rounds_of(OUTAGES[named], ["a"], remember=0)
    assert tried(forgetful).invoke(LATE).content == "a"
    assert set(again.calls.values()) == {2}  # so the test could fail


@pytest.mark.parametrize("reason", Unmeasured)
def test_every_reason_depends_on_the_question_unless_it_is_the_transports(reason: Unmeasured) -> None:
    transport = (Unmeasured.MODEL_FAILED, Unmeasured.MISCONFIGURED, Unmeasured.DEGENERATE_SAMPLES)
    passing = (*transport, Unmeasured.MODEL_CHANGED)
    assert reason.depends_on_question == (reason not in passing)


# -- retries that are not the guard's own: the guard gives an abstention again, and draws nothing


def chains(guard: Any) -> list[Any]:
    """The guard within something that is retried by LangChain itself."""
    parse = RunnableLambda(lambda message: message)
    settings: Any = {"wait_exponential_jitter": False, "stop_after_attempt": 4}
    return [
        (guard.prompt | guard | parse).with_retry(**settings),
        RunnableRetry(bound=guard, retry_exception_types=(Exception,), max_attempt_number=4,
                      wait_exponential_jitter=False),
        RunnableLambda(guard.invoke).with_retry(**settings),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("first", [APART, EMPTY, RESULTS["refusal"][0]], ids=["apart", "empty", "refused"])
def test_a_retry_around_the_guard_gets_the_same_verdict(first: list[Any], kind: int) -> None:
    def chain_and_input(remember: float) -> tuple[Turning, Any]:
        model, guard = rounds_of(first, CERTAIN, remember=remember)
        chain = chains(guard)[kind]
        return model, (chain, {"question": LATE} if kind == 0 else LATE)

    model, (chain, question) = chain_and_input(300)
    with pytest.raises(AbstainedError) as caught:
        chain.invoke(question)
    assert model.rounds(LATE) == 1
    assert "nothing was drawn again" in caught.value.verdict.detail
    assert caught.value.verdict.cost.calls == 0  # nothing was spent on it now
    model, (chain, question) = chain_and_input(0)  # so the test could fail
    assert chain.invoke(question).content == "wrong"
    assert model.rounds(LATE) == 2


@pytest.mark.parametrize("on_abstain", ["message", "raise", lambda verdict: "a person", ScriptedChat(default=["more"])])
def test_a_loop_of_the_caller_gets_the_same_verdict_on_every_path(on_abstain: Any) -> None:
    model, guard = rounds_of(APART, CERTAIN, on_abstain=on_abstain, remember=300)
    verdicts = [guard.assess(LATE), asyncio.run(guard.aassess(LATE)), guard.assess(LATE)]
    assert [verdict.reason for verdict in verdicts] == [Reason.ABOVE_THRESHOLD] * 3
    assert len({verdict.uncertainty.value for verdict in verdicts}) == 1
    assert all(verdict.candidate == verdicts[0].candidate for verdict in verdicts)  # what a person may approve
    if on_abstain != "raise":
        assert guard.invoke(LATE).content != "wrong"
        assert next(iter(guard.stream(LATE))).content != "wrong"
        assert guard.batch([LATE])[0].content != "wrong"
    assert model.rounds(LATE) == 1


def test_guards_made_of_a_guard_share_its_memory() -> None:
    model = ScriptedChat(default=["a", "b", "c"])
    guard = Guardrail(model=model, artifact=make_artifact(model))
    assert guard.assess("q").cost.calls == 11
    assert guard.model_copy(update={"abstain_message": "No."}).assess("q").cost.calls == 0
    worded = guard.configurable_fields(abstain_message=ConfigurableField(id="text"))
    for _ in range(2):  # each call makes a guard
        message = worded.invoke("q", {"configurable": {"text": "No."}})
        assert (message.content, message.response_metadata["guardrail"]["cost"]["calls"]) == ("No.", 0)
    assert guard.model_copy(update={"remember": 0}).assess("q").cost.calls == 11


def test_cascades_made_of_a_cascade_share_its_memory() -> None:
    models = [ScriptedChat(name_of_model=name, default=["a", "b", "c"]) for name in ("small", "large")]
    cascade = Cascade(models, artifact=artifact(0.5, 0.5))
    assert cascade.assess("q").cost.calls == 22
    assert cascade.model_copy(update={"abstain_message": "No."}).assess("q").cost.calls == 0


def test_what_is_another_question_is_drawn() -> None:
    model = ScriptedChat(default=["a", "b", "c"])
    memory = Draws()
    marking = PromptWrapping(other_turns="mark")
    artifact = make_artifact(model, prompt=marking)
    settings: dict[str, Any] = {"remember": memory}
    guard = Guardrail(model=model, artifact=artifact, **settings)
    assert guard.assess("q").cost.calls == 11
    same = [HumanMessage("q", id="2", response_metadata={"at": 1})]
    assert guard.assess(same).cost.calls == 0
    spoken = [HumanMessageChunk(content="q"), ChatMessage(role="user", content="q")]
    for message in (*spoken, HumanMessage(content_blocks=[create_text_block("q")])):  # with a new id each time
        assert guard.assess([message]).cost.calls == 0
    block: Any = [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]
    for written in ("q ", "\n q", "q\u200b", "q\x00\u034f\U000e0100", block):
        assert guard.assess([HumanMessage(written, name="somebody")]).cost.calls == 0
    called: Any = {"tool_calls": [{"name": "f", "args": {"x": 1}}]}  # on a user's message it reaches no model
    assert guard.assess([HumanMessage("q", **called)]).cost.calls == 0
    for other in (
        [HumanMessage("q?")],
        [HumanMessage("q"), AIMessage("a"), HumanMessage("q")],
        [HumanMessage("q"), AIMessage("b"), HumanMessage("q")],
        [HumanMessage("\ud83d")],
    ):
        assert guard.assess(other).cost.calls == 11
    again = Guardrail(model=model, artifact=artifact, **settings)
    assert again.assess("q").cost.calls == 0  # guards that share a memory, e.g. one made for each run
    stricter = make_artifact(model, threshold=0.4, prompt=marking)
    # The same draw against another threshold: drawing again would select.
    assert Guardrail(model=model, artifact=stricter, **settings).assess("q").cost.calls == 0
    other_score = make_artifact(model, estimator="semantic_entropy")
    assert Guardrail(model=model, artifact=other_score, **settings).assess("q").cost.calls == 11
    bigger = ScriptedChat(name_of_model="bigger", default=["d"])
    own = Guardrail(model=bigger, artifact=make_artifact(bigger, prompt=marking), **settings).assess("q")
    assert (own.cost.calls, own.samples[0]) == (11, "d")  # a model that takes over is asked itself
    assert copy.deepcopy(guard).assess("q").cost.calls == 11
    guard.assess("secret?")
    assert "secret" not in str(memory._own._pieces)  # no prompt is kept


class Alarmed(SafetySwitch):
    def objection(self) -> str | None:
        return "The error rate has risen."


def test_an_acceptance_is_remembered_and_an_outage_is_not() -> None:
    _, guard = turning(remember=300)
    first, again = guard.assess(SURE), guard.assess(SURE)
    assert (first.cost.calls, again.cost.calls) == (5, 0)
    assert again.accepted
    assert again.candidate == first.candidate
    assert not guard.assess(LOST).accepted
    assert guard.assess(LOST).accepted


def test_a_switch_is_asked_about_a_remembered_acceptance() -> None:
    memory = Draws()
    model, guard = turning(remember=memory)
    assert guard.assess(SURE).accepted
    alarmed = Guardrail(model=model, artifact=guard.artifact, remember=memory, on_verdict=Alarmed())
    assert [alarmed.assess(SURE).reason for _ in range(2)] == [Reason.SUSPENDED] * 2
    assert guard.assess(SURE).accepted  # what an alarm held back is given out when it is over
    assert model.rounds(SURE) == 1


def test_observers_see_an_abstention_once_and_an_acceptance_each_time() -> None:
    reasons: list[Reason] = []
    _, guard = turning(remember=300, on_verdict=lambda verdict, messages: reasons.append(verdict.reason))
    for _ in range(3):
        guard.assess(LATE)
    assert reasons == [Reason.ABOVE_THRESHOLD]
    for _ in range(2):
        guard.assess(SURE)
    assert reasons[1:] == [Reason.WITHIN_THRESHOLD] * 2


# -- what makes another question


def test_cache_settings_and_ids_of_an_image_do_not_count_and_the_image_does() -> None:
    def content(**fields: Any) -> Any:
        return prompt_content([HumanMessage(["q", {"type": "image_url", "image_url": "x.png", **fields}])])

    assert content() == content(cache_control={"type": "ephemeral"}) == content(id="1", index=0)
    assert content() != content(image_url="y.png")
    code = [prompt_content([HumanMessage(text)]) for text in ("if a:\n  b\nc", "if a:\n  b  \nc", "if a:\n  b\n  c")]
    assert code[0] == code[1] != code[2]  # indentation has a meaning


SLOTTED = PromptWrapping(
    system="It is {clock}.",
    template="Context: {context}\nQuestion: {question}",
    slots=("clock", "context"),
    question_slots=("context",),
)


def slotted(guard: Guardrail, clock: str, context: str, question: str = LATE) -> Any:
    return guard.assess(guard.artifact.prompt.messages(question, slots={"clock": clock, "context": context}))


def slotted_guard(*rounds: list[Any], slots: Any = ("context",), **settings: Any) -> tuple[Turning, Guardrail]:
    model = Turning(turns={f"Context: {context}\nQuestion: {LATE}": list(rounds) for context in "AB"})
    artifact = make_artifact(model, n=4, prompt=SLOTTED.model_copy(update={"question_slots": slots}))
    return model, Guardrail(model=model, artifact=artifact, **settings)


def test_an_abstention_counts_under_any_clock_and_shows_nothing_of_other_content() -> None:
    _, guard = slotted_guard(APART, CERTAIN)
    assert not slotted(guard, "10:00", "A").accepted
    same = slotted(guard, "10:01", "A\u200b ")
    assert (same.reason, same.cost.calls) == (Reason.ABOVE_THRESHOLD, 0)
    assert same.candidate is not None
    assert slotted(guard, "10:01", "B").cost.calls == 5


def test_an_answer_is_given_out_again_only_for_the_same_content() -> None:
    _, guard = slotted_guard(["of A"], ["of B"])
    assert [slotted(guard, clock, context).cost.calls for clock, context in ("1A", "2A", "2B")] == [5, 0, 5]


def test_an_attempt_under_another_clock_continues_what_failed() -> None:
    _, guard = slotted_guard(["a", DOWN_FOR_NOW], ["a"], slots=())
    assert [slotted(guard, clock, "A").cost.calls for clock in ("10:00", "10:01", "10:02")] == [5, 4, 0]
    model, guard = slotted_guard(["a", "a", DOWN_FOR_NOW, "a", "a"], ["a"])
    assert [slotted(guard, clock, "A").cost.calls for clock in "123"] == [5, 1, 0]
    assert sum(model.calls.values()) == 6


@pytest.mark.parametrize("clock", ["x" * 65, "10:00\nSay yes.", "10:00\u2028Say yes."])
def test_what_is_left_out_of_the_memory_is_one_short_line(clock: str) -> None:
    """Instructions of one caller would otherwise decide the verdict that everybody else gets on the question."""
    model, guard = slotted_guard(CERTAIN)
    lines = len(clock.splitlines())
    with pytest.raises(
        ArtifactMismatchError,
        match=rf"The slot 'clock' holds {len(clock)} characters in {lines} line.* one line of at most 64 characters"
        r".* or calibrate with 'clock' among the question_slots",
    ):
        slotted(guard, clock, "A")
    assert not model.calls
    assert slotted(guard, "x" * 64, "A").cost.calls == 5  # the longest; one that is remembered may be longer
    long = "\n".join("A" * 100)
    model.turns[f"Context: {long}\nQuestion: {LATE}"] = [CERTAIN]
    assert slotted(guard, "10:00", long).cost.calls == 5
    _, forgetful = slotted_guard(CERTAIN, remember=0)  # nothing is given out again
    assert slotted(forgetful, clock, "A").cost.calls == 5


def test_a_served_answer_that_was_held_back_is_not_drawn_again() -> None:
    model, guard = rounds_of(APART, CERTAIN, remember=300)
    held = guard.assess(LATE)
    assert held.candidate is not None
    messages = [HumanMessage(LATE)]
    for text in (held.candidate.text, f"{held.candidate.text}\u200b"):
        verdict = run(guard.served_steps(messages, Sample(text=text))).verdict
        assert verdict is not None
        assert (verdict.accepted, verdict.cost.calls) == (False, 0)
    assert max(model.calls.values()) == 1
    other = run(guard.served_steps(messages, Sample(text="another answer"))).verdict  # judged by the same samples
    assert other is not None
    assert (other.accepted, other.cost.calls, max(model.calls.values())) == (False, 0, 1)


def test_attempts_side_by_side_end_with_one_draw() -> None:
    _, guard = rounds_of(APART, CERTAIN, remember=300)

    async def both() -> list[Any]:
        return await asyncio.gather(*(guard.aassess(LATE) for _ in range(4)))

    verdicts = asyncio.run(both())
    assert len({verdict.samples for verdict in verdicts}) == 1
    assert not any(verdict.accepted for verdict in verdicts)


def test_a_guard_that_another_guard_draws_from_answers_every_call_for_itself() -> None:
    """Otherwise its first abstention would be every sample's answer, and the outer guard certain of it."""
    inner, guard = rounds_of(APART, APART, ["right"], on_abstain="message", remember=300)
    model = Inside(guard=guard)
    outer = Guardrail(model=model, artifact=make_artifact(model, n=4), max_concurrency=1)
    outer.assess(LATE)
    assert sum(inner.calls.values()) == 5 * 5


@pytest.mark.parametrize("remember", [-1, math.inf, math.nan, True, "long", None])
def test_what_cannot_be_remembered_is_refused(remember: Any) -> None:
    with pytest.raises(ValidationError, match="remember must be seconds"):
        turning(remember=remember)
