"""The parts that the frameworks' guards share: the store of verdicts, and which calls may run."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, SystemMessage
from pydantic import ValidationError

from guardrail import Bindings, Reason, Verdict
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactMismatchError, GuardrailError
from guardrail.guard.abstention import ABSTENTION
from guardrail.judges import ExactJudge, JudgeSpec
from guardrail.prompting import PromptWrapping
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator
from integrations._agents.calls import arguments_of
from integrations._agents.framework_guard import Answer, FrameworkGuard
from integrations._agents.held import MessageNote, ToolCallOrder
from integrations._agents.verdicts import MOST_IN_MEMORY, VerdictStore
from integrations._frameworks.chat import refuse_settings
from integrations._openai.lru import LRU
from integrations.openai_agents_guard import AgentsModelChat
from integrations.pydantic_ai_guard import PydanticAIChat

TOOLS = Bindings(tools=({"type": "function", "function": {"name": "pay", "parameters": {}}},))
ASKED = PromptWrapping().messages("?")


def paying(amount: int) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": amount}, "id": "x", "type": "tool_call"}])


def artifact(model: ScriptedChat, **fields: Any) -> CalibrationArtifact:
    return make_artifact(model, n=4, **{"bindings": TOOLS, **fields})


def gate(*amounts: int, on_abstain: Any = "review", **fields: Any) -> FrameworkGuard:
    model = ScriptedChat(script={"?": [paying(amount) for amount in amounts]})
    return FrameworkGuard(model, artifact(model, **fields), on_abstain=on_abstain)


async def may_run(guard: FrameworkGuard, call_id: str | None, name: str | None, arguments: dict[str, Any]) -> bool:
    return await guard.ruling(call_id, name, arguments) == "run"


def judged_of(answer: Answer) -> Verdict:
    assert answer.verdict is not None
    return answer.verdict


@pytest.fixture
def verdict() -> Verdict:
    return judged_of(asyncio.run(gate(5).ask(ASKED, TOOLS)))


def test_a_store_outlives_its_process_and_is_shared(tmp_path: Path, verdict: Verdict) -> None:
    """A call may wait for days, and be resumed by another process."""
    path, note = tmp_path / "verdicts.sqlite", MessageNote(verdict=verdict)
    first = VerdictStore(path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: first.put(f"call_{i}", note), range(50)))
    second = VerdictStore(path)
    assert all(second.find(f"call_{i}") == note for i in range(50))
    first.close()
    second.close()


def test_memory_is_bounded_and_the_forgotten_is_unknown() -> None:
    """A long-lived process would run out of memory, or run a call that it has forgotten."""
    store = VerdictStore()
    for i in range(MOST_IN_MEMORY + 1):
        store.put(f"call_{i}", MessageNote())
    assert store.find("call_0") is None
    assert store.find("call_1") == MessageNote()
    store.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        store.find("call_1")


def test_a_decision_is_noted_and_deleted_with_its_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that outlives its note would approve a later call."""
    store, note = VerdictStore(), MessageNote(asked="me")
    for key, moment in (("early", 1000.0), ("late", 1050.0)):
        monkeypatch.setattr("time.time", lambda moment=moment: moment)
        store.put(key, note)
    store.decide("early", {"type": "reject"})
    assert (store.find("early"), store.find("late")) == (MessageNote(asked="me", decisions=({"type": "reject"},)), note)
    monkeypatch.setattr("time.time", lambda: 1061.0)
    assert (store.purge(older_than=60), store.find("early"), store.find("late")) == (1, None, note)
    store.decide("early", {"type": "approve"})  # nothing waits under it
    assert store.find("early") is None


async def test_the_loop_runs_while_the_store_waits(verdict: Verdict) -> None:
    """All users would wait for one slow disk."""
    store, loop = VerdictStore(), asyncio.get_running_loop()
    ran = threading.Event()

    def slowly(_: str) -> None:
        loop.call_soon_threadsafe(ran.set)
        assert ran.wait(10), "the event loop was blocked"

    guard = gate(5)
    guard.verdicts = store
    order = ToolCallOrder.of({"name": "pay", "args": {}}, "accepted")
    store.put("x", MessageNote(orders={"x": order}, verdict=verdict))
    store.find = lambda key: slowly(key) or VerdictStore.find(store, key)  # type: ignore[func-returns-value,method-assign]
    assert await may_run(guard, "x", "pay", {}) is True
    put = store.put
    store.put = lambda *arguments: slowly("") or put(*arguments)  # type: ignore[func-returns-value,method-assign]
    ran.clear()
    assert judged_of(await guard.ask(ASKED, TOOLS)).accepted


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_its_verdicts(tmp_path: Path, verdict: Verdict) -> None:
    """A connection carried across a fork would make the child believe that it holds locks, and lose what it writes."""
    store = VerdictStore(tmp_path / "verdicts.sqlite")
    note = MessageNote(verdict=verdict)
    store.put("parent", note)
    child = multiprocessing.get_context("fork").Process(target=store.put, args=("child", note))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert store.find("child") == store.find("parent") == note


async def test_a_text_beside_calls_is_withheld() -> None:
    """It is not what was judged."""
    spoken = paying(5).model_copy(update={"content": "Secretly, I pay."})
    model = ScriptedChat(script={"?": [spoken]})
    guard = FrameworkGuard(model, artifact(model), on_abstain="review")
    answer = await guard.ask(ASKED, TOOLS)
    assert (answer.message.content, len(answer.message.tool_calls)) == ("", 1)
    assert "Secretly" not in str(answer.message.model_dump())
    assert judged_of(answer).turns is None


async def test_turns_of_no_calibration_are_held_by_each_gate_for_itself() -> None:
    """A threshold of first turns let calls of later turns run, and one gate's calibration vouched for another's."""
    model = ScriptedChat(script={"?": [paying(5)]})
    second = [*ASKED, AIMessage("Paid."), *ASKED]
    first, both = artifact(model), artifact(model, turns=("human", "human,ai,human"))
    for gates, reason in (
        ({"tools": {"pay": both}, "artifact": first}, Reason.WITHIN_THRESHOLD),
        ({"tools": {"pay": first}, "artifact": both}, Reason.OTHER_TURNS),
        ({"artifact": first}, Reason.OTHER_TURNS),
    ):
        guard = FrameworkGuard(model, on_abstain="review", **gates)
        answer = await guard.ask(second, TOOLS, holdable={"pay"})
        (call,) = answer.message.tool_calls
        assert judged_of(answer).reason is reason
        assert await may_run(guard, call["id"], "pay", {"amount": 5}) is (reason is Reason.WITHIN_THRESHOLD)
        assert judged_of(await guard.ask(ASKED, TOOLS, holdable={"pay"})).accepted


async def test_an_acceptance_by_one_agents_gate_is_not_remembered_for_another_agents() -> None:
    """Both have the same artifact for answers, and share draws: what the lax gate accepted ran past the strict one."""
    model = ScriptedChat(script={"?": [paying(amount) for amount in (5, 5, 5, 6, 7)]})
    answers, lax, strict = artifact(model), artifact(model, threshold=2.0), artifact(model, threshold=0.1)
    for tool, accepted in ((lax, True), (strict, False)):
        guard = FrameworkGuard(model, answers, tools={"pay": tool}, on_abstain="review")
        assert judged_of(await guard.ask(ASKED, TOOLS, holdable={"pay"})).accepted is accepted


async def test_only_the_judged_call_may_run() -> None:
    """Another call under the same id is another payment."""
    guard = gate(5)
    answer = await guard.ask(ASKED, TOOLS, holdable={"pay"})
    (call,) = answer.message.tool_calls
    assert judged_of(answer).accepted
    assert await may_run(guard, call["id"], "pay", {"amount": 5})
    assert await may_run(guard, call["id"], "pay", {"amount": 5.0})
    assert not await may_run(guard, call["id"], "pay", {"amount": 6})
    assert not await may_run(guard, "another id", "pay", {"amount": 5})
    assert not await may_run(guard, call["id"], "quote", {"amount": 5})
    assert await may_run(guard, call["id"], None, {"amount": 5})  # the framework does not say which tool
    assert not await may_run(guard, None, "pay", {"amount": 5})


async def test_a_held_call_is_the_candidate_and_may_not_run() -> None:
    """A person decides about this very call."""
    guard = gate(5, 50, 500, 55, 505)
    answer = await guard.ask(ASKED, TOOLS, holdable={"pay"})
    (call,) = answer.message.tool_calls
    assert (call["args"], judged_of(answer).accepted) == ({"amount": 5}, False)
    assert not await may_run(guard, call["id"], "pay", {"amount": 5})


async def test_a_call_of_a_tool_that_cannot_wait_is_not_proposed() -> None:
    """The framework would run it at once."""
    answer = await gate(5, 50, 500, 55, 505).ask(ASKED, TOOLS, holdable={"other"})
    assert answer.message.tool_calls == []


async def test_a_call_a_person_gave_may_run() -> None:
    """The call on the abstention path is a person's own."""
    guard = gate(5, 50, 500, 55, 505, on_abstain=lambda verdict: paying(7))
    (call,) = (await guard.ask(ASKED, TOOLS)).message.tool_calls
    assert await may_run(guard, call["id"], "pay", {"amount": 7})
    assert not await may_run(guard, call["id"], "pay", {"amount": 5})


async def test_answers_are_known_by_content_and_an_abstention_wins() -> None:
    """The output guardrail would pass an abstention for an answer."""
    sure = gate(5, bindings=None)
    model = ScriptedChat(script={"sure": ["Paris"], "unsure": ["a", "b", "c", "d", "e"]})
    calibrated = artifact(model, bindings=None)
    guard = FrameworkGuard(model, calibrated, on_abstain="message", verdicts=sure.verdicts)
    sure_question, unsure_question = PromptWrapping().messages("sure"), PromptWrapping().messages("unsure")
    for messages in (sure_question, unsure_question):
        answer = await guard.ask(messages, Bindings())
        await guard.note_answer(messages, str(answer.message.text), answer)
    assert (guard.given_out(sure_question, "Paris"))[0] is True
    passed, verdict = guard.given_out(unsure_question, ABSTENTION)
    assert (passed, verdict is not None and verdict.accepted) == (False, False)
    assert guard.given_out(sure_question, "never seen") == (False, None)
    await guard.note_answer(unsure_question, ABSTENTION, await guard.ask(sure_question, Bindings()))
    assert (guard.given_out(unsure_question, ABSTENTION))[0] is False


async def test_an_answer_that_goes_out_again_is_known_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the output guardrail stops an answer that was given out a second ago, because the first time is old."""
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    model = ScriptedChat(default=["Paris"])
    guard = FrameworkGuard(model, artifact(model, bindings=None), on_abstain="message", verdicts=VerdictStore())
    for moment in (1000.0, 1100.0):
        now[0] = moment
        await guard.note_answer(ASKED, "Paris", await guard.ask(ASKED, Bindings()))
    guard.verdicts.purge(older_than=50)
    assert guard.given_out(ASKED, "Paris")[0] is True


async def test_an_abstention_is_marked_and_not_known_by_its_wording() -> None:
    """A wording that differs each time, such as one with the time in it, must not pass for an answer."""
    clock = itertools.count()
    options: Any = {"abstain_message": lambda verdict: f"Not sure at {next(clock)}."}
    model = ScriptedChat(script={"?": ["a", "b", "c", "d", "e"]})
    calibrated = artifact(model, bindings=None)
    guard = FrameworkGuard(model, calibrated, on_abstain="message", **options)
    answer = await guard.ask(ASKED, Bindings())
    text = str(answer.message.text)
    await guard.note_answer(ASKED, text, answer)
    assert answer.abstained
    assert (guard.given_out(ASKED, text))[0] is False
    person = FrameworkGuard(model, calibrated, on_abstain=lambda verdict: text, **options)
    answer = await person.ask(ASKED, Bindings())  # the same words, but a person's answer
    await person.note_answer(ASKED, text, answer)
    assert not answer.abstained
    assert (person.given_out(ASKED, text))[0] is True


async def test_agents_made_for_each_request_probe_and_draw_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request would pay for a probe, and a client that asks again would draw until the gate accepts."""
    model = ScriptedChat(default=["Paris"])
    calibrated = artifact(model, bindings=None)

    async def calls_of_a_new_one(**settings: Any) -> int:
        guard = FrameworkGuard(model, calibrated, on_abstain="message", **settings)
        return (await guard.ask(PromptWrapping().messages("the same"), Bindings())).calls

    # An application that makes its agent per request would otherwise draw until the gate accepts.
    assert [await calls_of_a_new_one(), await calls_of_a_new_one()] == [5, 0]
    assert await calls_of_a_new_one(remember=0) == 5, "nothing is remembered where that is said"
    monkeypatch.setattr("integrations._agents.gates._shared", LRU[Any](1))
    for chat in (model, ScriptedChat(default=["Rome"])):
        FrameworkGuard(chat, artifact(chat, bindings=None), on_abstain="message")
    assert await calls_of_a_new_one() == 5, "the memory of models is bounded"
    latest: LRU[int] = LRU(2)
    assert [latest.get(key, partial(int, key)) for key in (1, 2, 1, 3)] == [1, 2, 1, 3]
    assert latest.get(1, lambda: 0) == 1  # used later than 2
    assert latest.get(2, lambda: 0) == 0


async def test_a_question_that_utf_8_cannot_write_has_answers() -> None:
    """Half of an emoji in a question would be an error of the service."""
    model = ScriptedChat(default=["Yes"])
    guard = FrameworkGuard(model, artifact(model, bindings=None), on_abstain="message")
    messages = PromptWrapping().messages("half \ud800 of a pair")
    await guard.note_answer(messages, "Yes", await guard.ask(messages, Bindings()))
    assert (guard.given_out(messages, "Yes"))[0] is True


async def test_the_same_words_to_another_question_are_another_answer() -> None:
    """ "Yes" was right about another question."""
    model = ScriptedChat(script={"sure": ["Yes"]})
    guard = FrameworkGuard(model, artifact(model, bindings=None), on_abstain="message")
    messages = PromptWrapping().messages("sure")
    await guard.note_answer(messages, "Yes", await guard.ask(messages, Bindings()))
    other = PromptWrapping().messages("another")
    assert guard.given_out(other, "Yes") == (False, None)
    assert guard.given_out([*messages, AIMessage("Yes"), *other], "Yes") == (False, None)
    assert guard.given_out([*other, AIMessage("No"), *messages], "Yes") == (False, None)
    assert guard.given_out([], "Yes") == (False, None)
    assert (guard.given_out([SystemMessage("Be brief."), *messages, paying(5)], "Yes"))[0] is True


def several(on_abstain: Any = "message") -> FrameworkGuard:
    """Payments have an artifact of their own; a quote only reads, and answers pass."""
    pay, quote, close = ({"type": "function", "function": {"name": n, "parameters": {}}} for n in TOOL_NAMES)
    model = ScriptedChat(
        script={
            "sure": [paying(5)],
            "unsure": [paying(n) for n in (5, 50, 500, 55, 505)],
            "look": [calling("quote")],
            "both": [calling("quote", "pay", amount=n) for n in (5, 50, 500, 55, 505)],
        }
    )
    calibrated = artifact(model, bindings=Bindings(tools=(pay, quote, close)))
    options: Any = {"tools": {"pay": calibrated, "close": calibrated}, "exempt": ["quote"]}
    return FrameworkGuard(model, None, on_abstain=on_abstain, **options)


TOOL_NAMES = ("pay", "quote", "close")


def calling(*names: str, amount: int = 5) -> AIMessage:
    tool_calls: list[Any] = [{"name": n, "args": {"amount": amount}, "id": n, "type": "tool_call"} for n in names]
    return AIMessage("", tool_calls=tool_calls)


async def ask_guard(guard: FrameworkGuard, question: str, **options: Any) -> Any:
    bindings = guard.artifacts.plan.bindings
    assert bindings is not None
    return await guard.ask(PromptWrapping().messages(question), bindings, **options)


async def test_each_tool_has_its_artifact_and_exempt_ones_pass() -> None:
    """A threshold for one tool promises nothing for another."""
    guard = several()
    sure, unsure, look = [await ask_guard(guard, question) for question in ("sure", "unsure", "look")]
    assert [call["name"] for call in sure.message.tool_calls] == ["pay"]
    assert (unsure.abstained, unsure.message.tool_calls) == (True, [])
    assert [call["name"] for call in look.message.tool_calls] == ["quote"]
    assert (look.verdict, look.calls) == (None, 1)  # no samples were drawn for it
    for answer in (sure, look):
        (call,) = answer.message.tool_calls
        assert await may_run(guard, call["id"], call["name"], call["args"])


async def test_a_message_goes_out_only_if_the_artifact_of_every_gated_call_accepts() -> None:
    """One sure call would carry an unsure one through."""
    guard = several(on_abstain="review")
    answer = await ask_guard(guard, "both", holdable={"pay"})
    quote, pay = answer.message.tool_calls
    assert not answer.verdict.accepted
    assert await may_run(guard, quote["id"], "quote", quote["args"])  # it only reads
    assert not await may_run(guard, pay["id"], "pay", pay["args"])


async def test_a_request_must_offer_what_was_calibrated() -> None:
    """With other tools the model answers otherwise."""
    with pytest.raises(ArtifactMismatchError, match="does not offer"):
        await gate(5).ask(ASKED, Bindings())
    forced = TOOLS.model_copy(update={"tool_choice": "any"})
    with pytest.raises(ArtifactMismatchError, match="leaves to the model"):
        await gate(5, bindings=forced).ask(ASKED, TOOLS)
    formed = Bindings(response_format={"type": "json_object"})
    with pytest.raises(ArtifactMismatchError, match="structured"):
        await gate(5, bindings=formed).ask(ASKED, Bindings())


class NamedJudge(ExactJudge):
    """A judge that no registry knows."""

    spec = JudgeSpec(name="ours", version=1, params={})


def test_judges_are_given_one_or_several_by_name() -> None:
    """A gate would compare with another judge than at calibration."""
    model, judge = ScriptedChat(default=["Paris"]), NamedJudge()
    spec = make_estimator("discrete_semantic_entropy", judge=judge).spec
    calibrated = artifact(model).model_copy(update={"estimator": spec})
    for judges in (judge, {"ours": judge, "another": ExactJudge()}):
        (own,) = FrameworkGuard(model, calibrated, using={"judge": judges}).gate.gates.values()
        assert own.estimator.judge is judge
    with pytest.raises(GuardrailError, match="judge"):
        FrameworkGuard(model, calibrated, using={"judge": {"another": judge}})


@pytest.mark.parametrize("kind", [AgentsModelChat, PydanticAIChat])
@pytest.mark.parametrize("name", ["inner", "settings"])
def test_a_misspelt_setting_of_a_chat_is_not_left_out_in_silence(kind: Any, name: str) -> None:
    """Calibration would be about another setting than the user believes."""
    with pytest.raises(ValidationError, match=name):
        kind(**{"model": object(), name: {}})


def test_settings_and_arguments() -> None:
    """A setting that changes answers must not pass as transport."""
    refuse_settings({"a": 1}, {"a": 1, "timeout": 3, "b": None}, {"timeout"}, "settings")
    with pytest.raises(ArtifactMismatchError, match="a=2"):
        refuse_settings({"a": 1}, {"a": 2}, (), "settings")
    assert (arguments_of('{"a": 1}'), arguments_of(""), arguments_of(None)) == ({"a": 1}, {}, {})
    for wrong in ("[1]", '"x"', "{", 0, False, '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', "[" * 9999):
        with pytest.raises(ValueError):
            arguments_of(wrong)


TIMED = PromptWrapping(system="It is {clock}.", slots=("clock",), question_slots=("clock",))


def timed(model: ScriptedChat, question_slots: tuple[str, ...]) -> FrameworkGuard:
    prompt = TIMED.model_copy(update={"question_slots": question_slots})
    return FrameworkGuard(model, make_artifact(model, n=4, prompt=prompt, bindings=TOOLS), on_abstain="message")


async def test_guards_with_equal_slots_share_what_was_drawn() -> None:
    """An agent that is made for each request would otherwise draw again, and select."""
    model = ScriptedChat(default=["a"])
    asked = TIMED.messages("?", slots={"clock": "10:00"})
    answers = [await timed(model, ("clock",)).ask(asked, TOOLS) for _ in range(2)]
    assert [answer.calls for answer in answers] == [5, 0]
    forgetful = timed(model, ())
    assert (await forgetful.ask(asked, TOOLS)).calls == 5
    with pytest.raises(ArtifactMismatchError, match="The slot 'clock' holds 65 characters in 1 line"):
        await forgetful.ask(TIMED.messages("?", slots={"clock": "x" * 65}), TOOLS)
