"""Words and acts of a guard: verdicts, messages, metadata and explanations for every reason, and ways to abstain."""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import ConfigurableField, RunnableBranch, RunnableLambda
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run

from guardrail import (
    AbstainedError,
    Cascade,
    Guardrail,
    Meaning,
    PromptWrapping,
    Reason,
    SafetySwitch,
    Verdict,
    make_judge,
    scorer,
)
from guardrail.artifact import (
    CalibrationArtifact,
    CalibrationScores,
    CascadeArtifact,
    CascadeOutcome,
    Segments,
    StageShare,
)
from guardrail.bindings import bindings_for
from guardrail.errors import PromptTooLongError
from guardrail.guard.decide import decide
from guardrail.guard.endpoint_trust import EndpointProblem, EndpointTrust, agreement_rate, later_repeats, surprising
from guardrail.guard.observe import ObserveQueue, chosen
from guardrail.judges import EntailmentScores, JudgeSpec
from guardrail.monitor import Alarm
from guardrail.outcome import InfeasibleReason
from guardrail.parts.measure import parts_measure
from guardrail.parts.sentences import sentence_spec
from guardrail.sampling.draws import Draws
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, OptionScores, Sample, SampleSet, Uncertainty, Unmeasured
from guardrail.uncertainty import Estimator, Needs, list_estimators, make_estimator, tie_break
from guardrail.verdict import ALL_OTHERS, WAY_OUT, as_html, next_step, score_bar
from tests.golden.core.rendering import error_of, json_lines, listed, number
from tests.golden.core.test_shown_scores import PLAN, SETS, combined_of, default, staged
from tests.golden.shown import same


class StatusError(Exception):
    """An error of an SDK with the status, code and type of a server's reply."""

    def __init__(self, status: int, code: str = "some_code") -> None:
        super().__init__(f"Error code: {status}, and a quoted answer")
        self.status_code = status
        self.body = {"error": {"code": code, "type": "some_type", "message": "quoted"}}


def refused(reason: str) -> AIMessage:
    return AIMessage(content="I must not.", response_metadata={"stop_reason": reason})


CUT = AIMessage(content="Because the", response_metadata={"finish_reason": "length"})
BROKEN_CALL = AIMessage(
    content="", invalid_tool_calls=[{"name": "pay", "args": "{", "id": "1", "error": "x", "type": "invalid_tool_call"}]
)
CALL = AIMessage(content="I pay.", tool_calls=[{"name": "pay", "args": {"to": "bob"}, "id": "1", "type": "tool_call"}])
UNREACHABLE = RuntimeError("Connection error.")
UNREACHABLE.__cause__ = ConnectionRefusedError(111, "Connection refused")
FAILURES: dict[str, Exception] = {
    "timeout?": TimeoutError("no answer in 5 s"),
    "refused connection?": UNREACHABLE,
    "key?": StatusError(401),
    "model name?": StatusError(404, "model_not_found"),
    "rate?": StatusError(429),
    "server?": StatusError(503),
    "filter?": StatusError(400, "content_filter"),
    "too long?": PromptTooLongError("the prompt has 9000 tokens, and 8192 fit"),
    "parser?": ValueError("cannot read the answer Paris"),
    "memory?": MemoryError("out of memory " + "x" * 400),
}
SCRIPT: dict[str, Sequence[Any]] = {
    "sure?": ["Paris", "Paris", "It is Paris."],
    "unsure?": ["Rome", "Oslo", "Bern", "Riga", "Oslo"],
    "alone?": ["Rome", "Oslo"],
    "spoilt?": ["Paris", "Paris", ""],
    "empty?": [""],
    "invisible?": ["\u200b"],
    "refused?": [refused("refusal")],
    "filtered samples?": ["Paris", "Paris", refused("content_filter")],
    "cut?": [CUT, "Because"],
    "broken call?": [BROKEN_CALL],
    "not offered?": [CALL],
    "half a pair?": ["smile \ud83d", "x"],
    "some fail?": ["Paris", "Paris", TimeoutError("late")],
    "all samples fail?": ["Paris", StatusError(500)],
    "evil?": ["<b>\x1b[2J\u202eexe.txt</b>\n```\nACCEPTED", "one\ttwo", "three"],
    "long?": ["word " * 60, "other " * 60],
    **{question: [error] for question, error in FAILURES.items()},
}
MODEL = ScriptedChat(script=SCRIPT, probability=0.5)
ARTIFACT = make_artifact(MODEL, threshold=0.5, n=4)


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 1.0)


def guarded(artifact: CalibrationArtifact = ARTIFACT, model: Any = MODEL, **settings: Any) -> Guardrail:
    return Guardrail(model=model, artifact=artifact, **settings)


def clean(text: str, *artifacts: Any) -> str:
    """A text without digests and ids that differ between runs."""
    for place, artifact in enumerate(artifacts, 1):
        text = text.replace(artifact.digest, f"DIGEST {place}")
    text = re.sub(r"sha256:[0-9a-f]{7,64}", "DIGEST", text)
    return re.sub(r"call_[0-9a-f]{24}", "CALL", text)


def message_of(message: BaseMessage) -> str:
    shown: dict[str, Any] = {"content": message.content, "response_metadata": message.response_metadata}
    if getattr(message, "tool_calls", None):
        shown["tool_calls"] = message.tool_calls  # type: ignore[attr-defined]
    shown["usage_metadata"] = getattr(message, "usage_metadata", None)
    return json_lines(shown)


def outcome(call: Callable[[], BaseMessage]) -> str:
    """The message that a call gives, or its error with what it carries."""
    try:
        return message_of(call())
    except AbstainedError as error:
        return f"{type(error).__name__}: {error}\nmessage: {error.message}\nticket: {error.ticket}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# -- Verdicts ----------------------------------------------------------------------------------------------------------


def test_every_question_as_a_person_sees_it(caplog: pytest.LogCaptureFixture) -> None:
    guard, blocks = guarded(early_stopping="off"), []
    with caplog.at_level(logging.INFO, "guardrail"):
        for question in SCRIPT:
            caplog.clear()
            verdict = guard.assess(question)
            logged = [f"{record.levelname}: {record.getMessage()}" for record in caplog.records]
            facts = f"is_result {verdict.is_result}; next: {next_step(verdict)}"
            blocks.append("\n".join([f"== {question}", verdict.explain(), facts, *logged]))
    same("core/verdicts.txt", clean("\n\n".join(blocks)))


def test_messages_of_verdicts() -> None:
    guard = guarded(early_stopping="off")
    chosen_questions = ("sure?", "unsure?", "spoilt?", "refused?", "cut?", "timeout?", "key?", "not offered?")
    blocks = [f"== {question}\n{outcome(lambda: guard.invoke(question))}" for question in chosen_questions]  # noqa: B023
    raising = guarded(on_abstain="raise")
    blocks += [f"== {question}, raised\n{outcome(lambda: raising.invoke(question))}" for question in chosen_questions]  # noqa: B023
    verdict = guard.assess("unsure?")
    blocks.append(f"== the whole verdict\n{json_lines(verdict)}")
    blocks.append(f"== as HTML\n{as_html(guard.assess('evil?'))}\n{as_html(guard.assess('sure?'))}")
    blocks.append(f"== as Markdown\n{guard.assess('evil?')._repr_markdown_()}")
    same("core/messages.txt", clean("\n\n".join(blocks)))


def test_explanations_of_made_verdicts() -> None:
    """Verdicts of every reason, and the pieces of an explanation that scripted models seldom give."""
    base = guarded(early_stopping="off").assess("unsure?").model_copy(update={"samples": (), "alternatives": ()})
    reasons = [
        base.model_copy(update={"reason": reason, "accepted": reason.value == "within_threshold"}) for reason in Reason
    ]
    unmeasured = [
        base.model_copy(update={
            "reason": Reason.UNMEASURED, "meanings": (),
            "uncertainty": Uncertainty(value=None, unit="nats", estimator="degree", reason=reason, detail="why\nso"),
        })
        for reason in Unmeasured
    ]  # fmt: skip
    shortfall = Uncertainty(value=None, unit="nats", estimator="degree", reason=Unmeasured.SAMPLING_SHORTFALL)
    others: dict[str, dict[str, Any]] = {
        "one meaning without samples": {"meanings": (Meaning(text="Oslo", size=4, share=1.0),)},
        "options": {"meanings": (), "alternatives": (("A", 0.75), ("B", 0.25))},
        "no threshold": {"threshold": None, "reason": Reason.INFEASIBLE},
        "no threshold and no samples": {"threshold": None, "reason": Reason.INFEASIBLE, "uncertainty": shortfall},
        "a count": {"uncertainty": Uncertainty(value=2.0, unit="count", estimator="num_sets", detail="a bound")},
        "a record": {"record": "r1"},
        "no candidate": {"candidate": None},
        "accepted in part": {"accepted": True, "reason": Reason.PARTLY_HELD_BACK},
        "saved": {"cost": Cost(calls=3, input_tokens=30, output_tokens=4, seconds=1.2345, saved=7)},
        "a call": {"candidate": Sample(text="so", tool_calls=bindings_call(to="bob", amount=5))},
        "turns": {"turns": "human,ai,human", "segment": "billing"},
        "shares out of range": {
            "meanings": (Meaning(text="x" * 200, size=1, share=1.5), Meaning(text="y", size=1, share=-1))
        },
    }  # fmt: skip
    made = {name: base.model_copy(update=update) for name, update in others.items()}
    blocks = [f"== {verdict.reason.value}\n{verdict.explain()}\n{verdict.is_result}" for verdict in reasons]
    blocks += [
        f"== {v.uncertainty.reason}\n{v.explain().splitlines()[0]}\n{next_step(v)} {v.is_result}" for v in unmeasured
    ]
    blocks += [f"== {name}\n{v.explain()}\n{json_lines(v.to_metadata())}" for name, v in made.items()]
    bars = [
        f"{value:g} of {threshold:g}: {score_bar(value, threshold)}"
        for value, threshold in (
            (0, 0), (0, 1), (1, 0), (1, 1), (0.5, 0.6), (0.61, 0.6), (-1, 1), (1, -1), (3, 0.1), (0.1, 3), (2, 2.0001),
        )
    ]  # fmt: skip
    same("core/explanations.txt", clean("\n\n".join([*blocks, "\n".join(bars), json_lines(WAY_OUT)])))


def bindings_call(**arguments: Any) -> Any:
    from guardrail import ToolCall

    return (ToolCall(name="pay", arguments=arguments),)


def test_details_of_every_estimator() -> None:
    """The words of a decision, from a set of samples alone: `decide` has no I/O."""

    @scorer(version=1, higher="certain", name="rating")
    def rated(answer: str) -> float:
        return 0.75

    @scorer(version=1, higher="uncertain", unit="nats", name="risk")
    def risky(answer: str) -> float:
        return 2.5

    made: list[Estimator] = [default(name) for name in list_estimators()]
    made += [combined_of("discrete_semantic_entropy", "perplexity"), staged(), rated.estimator, risky.estimator]
    made += [
        tie_break(default("verbalised"), default("sequence_nll")),
        tie_break(default("degree"), default("sequence_nll")),
    ]
    blocks = []
    for estimator in made:
        rows = []
        for name in ("agree", "all differ", "sentences", "tie", "no tokens", "calls"):
            drawn = SETS[name]
            replies = {
                own.follow_up: (SampleSet(question=own.digest, primary=Sample(text=text)),)
                for own, text in ((rated, "0.75"), (risky, "2.5"))
            }
            drawn = drawn.model_copy(update={"follow_ups": {**drawn.follow_ups, **replies}})
            for threshold in (0.3,):
                artifact = make_artifact(MODEL, estimator=estimator, threshold=threshold, n=4, options=("A", "B", "C"))
                verdict = decide(drawn, artifact.model_copy(update={"plan": PLAN}), estimator)
                rows.append(f"  {name}: {verdict.detail}")
        blocks.append("\n".join([estimator.name, *rows]))
    same("core/details.txt", "\n".join(blocks))


def test_decisions_of_odd_artifacts() -> None:
    entropy = default("discrete_semantic_entropy")
    plan = ARTIFACT.plan
    infeasible = make_artifact(MODEL, threshold=None, n=4)

    def because(reason: InfeasibleReason, detail: str) -> CalibrationArtifact:
        own = infeasible.outcome.model_copy(update={"reason": reason, "detail": detail})
        return infeasible.model_copy(update={"outcome": own})

    certified = ARTIFACT.model_copy(
        update={"outcome": ARTIFACT.outcome.model_copy(update={"certifies": True, "rule": "certified", "alpha": 0.05})}
    )
    adaptive = ARTIFACT.model_copy(update={"plan": plan.model_copy(update={"unanimous_at": 2})})
    measuring = ARTIFACT.model_copy(update={"plan": plan.model_copy(update={"cut_off": "measure"})})
    cut = SETS["agree"].model_copy(update={"primary": Sample(text="Par", finish_reason="max_tokens")})
    settled = Uncertainty(value=0.2, unit="nats", estimator=entropy.name, detail="settled by 2 of 4 samples")
    left_out = make_estimator("discrete_semantic_entropy", judge=make_judge("tool_call", arguments=["to"]))
    cases: dict[str, tuple[SampleSet, CalibrationArtifact, Estimator, Uncertainty | None]] = {
        "infeasible": (SETS["agree"], infeasible, entropy, None),
        "not calibrated": (
            SETS["agree"], because(InfeasibleReason.NOT_CALIBRATED, "no artifact yet."), entropy, None
        ),
        "not calibrated and failed": (
            SETS["failed"], because(InfeasibleReason.NOT_CALIBRATED, "no artifact yet."), entropy, None
        ),
        "unknown segment": (SETS["agree"], because(InfeasibleReason.UNKNOWN_SEGMENT, "no segment."), entropy, None),
        "certified": (SETS["agree"], certified, entropy, None),
        "certified, above": (SETS["all differ"], certified, entropy, None),
        "adaptive": (SETS["agree"], adaptive, entropy, None),
        "adaptive, not unanimous": (SETS["tie"], adaptive, entropy, None),
        "adaptive, without samples": (SETS["agree"], adaptive, default("sequence_nll"), None),
        "cut off": (cut, ARTIFACT, entropy, None),
        "cut off, measured": (cut, measuring, entropy, None),
        "cut off, settled": (cut, ARTIFACT, entropy, settled),
        "settled": (SETS["agree"], ARTIFACT, entropy, settled),
        "left out": (SETS["calls"], ARTIFACT, left_out, None),
        "options": (
            SampleSet(
                question="", primary=Sample(text="A"), options=OptionScores(labels=("A", "B"), loglikelihoods=(0, -1))
            ),
            make_artifact(MODEL, estimator="max_softmax", options=("A", "B"), threshold=0.1),
            default("max_softmax"), None,
        ),
    }  # fmt: skip
    blocks = [f"== {name}\n{decide(drawn, artifact, estimator, settled=own).explain()}"
              for name, (drawn, artifact, estimator, own) in cases.items()]  # fmt: skip
    same("core/odd_decisions.txt", clean("\n\n".join(blocks)))


# -- Ways to abstain ---------------------------------------------------------------------------------------------------


class Queue:
    """A handler that takes the whole abstention."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, verdict: Verdict) -> str:
        return "not called"

    def on_abstention(self, abstention: Any) -> str:
        self.seen.append(f"{abstention.verdict.reason.value} {abstention.form} {len(abstention.messages)}")
        return f"queued: {abstention.error()}"

    async def aon_abstention(self, abstention: Any) -> str:
        return f"queued later: {abstention.verdict.reason.value}"


def test_ways_to_abstain() -> None:
    async def later(verdict: Verdict) -> str:
        return f"later: {verdict.reason.value}"

    other = ScriptedChat(name_of_model="other", script={"unsure?": ["Vienna"]})
    nested = guarded(make_artifact(other, threshold=0.5, n=2), other)
    queue = Queue()
    ways: dict[str, Any] = {
        "message": "message",
        "raise": "raise",
        "a function": lambda verdict: f"held back: {verdict.reason.value}",
        "of the messages": lambda verdict, messages: f"{len(messages)}: {messages[-1].text}",
        "with a default": lambda verdict, more="x": f"more {more}",
        "a message of its own": lambda verdict: AIMessage(
            content="ask Bob", usage_metadata={"input_tokens": 5, "output_tokens": 6, "total_tokens": 11}
        ),
        "nothing": lambda verdict: None,
        "a number": lambda verdict: 5,
        "an error": lambda verdict: (_ for _ in ()).throw(RuntimeError("no queue")),
        "async": later,
        "a runnable": RunnableLambda(lambda messages: f"{len(messages)} messages"),
        "another model": other,
        "another guard": nested,
        "a queue": queue,
    }
    blocks = []
    for name, path in ways.items():
        guard = guarded(on_abstain=path, remember=0)
        blocks.append(f"== {name}\n{outcome(lambda: guard.invoke('unsure?'))}")  # noqa: B023
        if name in ("async", "a queue", "a function", "another model"):
            blocks.append(f"== {name}, in async code\n{outcome(lambda: asyncio.run(guard.ainvoke('unsure?')))}")  # noqa: B023
    handler = guarded(on_abstain=lambda verdict: (_ for _ in ()).throw(AbstainedError(verdict, "text", "T-1")))
    blocks.append(f"== an error of its own\n{outcome(lambda: handler.invoke('timeout?'))}\n{queue.seen}")
    same("core/ways_to_abstain.txt", _without_metadata(clean("\n\n".join(blocks))))


def _without_metadata(text: str) -> str:
    """The metadata of a message are the same for each way."""
    return re.sub(r'\n  "guardrail": \{\n.*?\n  \}', '\n  "guardrail": ...', text, flags=re.DOTALL)


def test_texts_of_abstentions() -> None:
    every = "{reason} | {detail} | {uncertainty} | {threshold} | {alpha} | {estimator} | {calls} | {next} | {other} {"
    texts: dict[str, Any] = {
        "every word": every,
        "a function": lambda verdict: f"calls: {verdict.cost.calls}",
        "a function without a text": lambda verdict: 5,
    }
    blocks = [
        f"{name}, {question} {guard.invoke(question).content if name != 'a function without a text' else ''}"
        f"{'' if name != 'a function without a text' else error_of(lambda: guard.invoke(question))}"  # noqa: B023
        for name, text in texts.items()
        for question in ("unsure?", "timeout?")
        for guard in (guarded(abstain_message=text),)
    ]
    infeasible = guarded(make_artifact(MODEL, threshold=None, n=4), abstain_message=every)
    blocks.append(f"infeasible: {infeasible.invoke('sure?').content}")
    same("core/texts_of_abstentions.txt", "\n".join(blocks))


# -- Drawing less, remembering, retrying -------------------------------------------------------------------------------


def test_drawing_stops_early() -> None:
    answers = ["Paris", *["Paris"] * 10]
    script: dict[str, Sequence[Any]] = {
        "same?": answers,
        "differ?": ["a", *"abcdefghij"],
        "open?": ["a", *"aab" * 3, "a"],
        "late failure?": ["Paris", *["Paris"] * 8, TimeoutError("late")],
        "early failure?": ["Paris", TimeoutError("early")],
    }
    model = ScriptedChat(script=script, probability=0.5)
    rows = []
    for name in ("discrete_semantic_entropy", "graded_disagreement", "semantic_entropy", "eigenvalue", "sequence_nll"):
        for setting in ("auto", "on", "off"):
            guard = guarded(make_artifact(model, estimator=name, threshold=0.5, n=10), model, early_stopping=setting)
            for question in script:
                verdict = guard.assess(question)
                rows.append(f"{name}, {setting}, {question} {verdict.cost.calls} calls, {verdict.cost.saved} saved: "
                            f"{number(verdict.uncertainty.value or 0.0)} {verdict.detail}")  # fmt: skip
    for unanimous_at in (2, 3):
        for setting in ("auto", "off"):
            artifact = make_artifact(model, threshold=0.5, n=10)
            plan = artifact.plan.model_copy(update={"unanimous_at": unanimous_at})
            guard = guarded(artifact.model_copy(update={"plan": plan}), model, early_stopping=setting)
            for question in script:
                verdict = guard.assess(question)
                rows.append(
                    f"adaptive at {unanimous_at}, {setting}, {question} {verdict.cost.calls} calls: {verdict.detail}"
                )
    few = artifact.data.model_copy(update={"n_questions": 100, "n_unmeasured": 1})
    guard = guarded(artifact.model_copy(update={"data": few}), model)
    rows.append(f"calibration left questions out: {guard.assess('same?').cost}")
    same("core/early_stopping.txt", "\n".join(rows))


def test_two_stages() -> None:
    model = ScriptedChat(
        script={
            "short?": ["Oslo"],
            "long?": ["the city of Oslo in Norway", "Oslo", "Bern"],
            "longest?": ["a b c d " * 9],
        },
        probability=0.9,
    )
    rows = []
    for threshold in (0.05, 0.6, 1.4):
        for early in ("auto", "off"):
            estimator = staged()
            guard = guarded(
                make_artifact(model, estimator=estimator, threshold=threshold, n=2), model, early_stopping=early
            )
            for question in model.script:
                verdict = guard.assess(question)
                score = json_lines(verdict.uncertainty)
                rows.append(f"at {threshold:g}, {early}, {question} {score} {verdict.cost.calls} calls")
                rows.append(f"  {verdict.detail}")
    same("core/two_stages.txt", "\n".join(rows))


def test_the_vote_of_samples_and_sampled_answers() -> None:
    artifact = make_artifact(MODEL, threshold=2.0, n=4)
    rows = []
    for primary in ("greedy", "sampled", "majority"):
        plan = artifact.plan.model_copy(update={"primary": primary})
        own = artifact.model_copy(update={"plan": plan})
        guard = guarded(own, early_stopping="on")
        rows += [f"{primary}, {question} {guard.assess(question).candidate} {guard.assess(question).detail}"
                 for question in ("unsure?", "sure?", "spoilt?", "timeout?")]  # fmt: skip
        rows.append(f"{primary}, observed: {error_of(lambda: guarded(own, mode='observe')._llm_type)}")  # noqa: B023
    same("core/primary_answers.txt", "\n".join(rows))


class Counted(ScriptedChat):
    """A scripted model that fails a number of times before it answers, and lists what it was asked."""

    asked: ClassVar[list[str]] = []
    failures: ClassVar[dict[str, int]] = {}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        question = messages[-1].text
        index = (run_manager.metadata if run_manager else {}).get("guardrail_sample", -1)
        type(self).asked.append(f"{question}{index}")
        if type(self).failures.get(f"{question}{index}", 0) > 0:
            type(self).failures[f"{question}{index}"] -= 1
            raise StatusError(503)
        return super()._generate(messages, stop, run_manager, **kwargs)


def test_what_is_remembered() -> None:
    Counted.asked.clear()
    Counted.failures.update({"sure?1": 1, "unsure?-1": 1})
    model = Counted(script=SCRIPT)
    clock = itertools.count()
    memory = Draws(100.0, clock=lambda: float(next(clock)))
    guard = guarded(
        make_artifact(model, threshold=0.5, n=4), model, remember=memory, early_stopping="off", max_concurrency=1
    )
    rows = []
    for question in ("sure?", "sure?", " Sure?", "sure?", "unsure?", "unsure?", "unsure?", "cut?", "cut?"):
        verdict = guard.assess(question)
        rows.append(f"{question!r}: asked {sorted(Counted.asked)}, cost {verdict.cost}\n  {verdict.detail}")
        Counted.asked.clear()
    small = Draws(most_bytes=300, clock=lambda: 1.0)
    rows += [
        f"{small.add('a', 'x')} {small.add('a', 'y')} {small.get('a')} {small.get('b')} {small.evicted}",
        f"{small.add('b', 'x' * 300)[:3]} {small.get('a')} {small.get('b')} {small.evicted}",
        f"{small.scoped('other').get('a')} {small.is_slow} {small.seconds}",
        f"{Draws(0).add('a', 'x')} {Draws(0).get('a')}",
    ]
    shared = guarded(make_artifact(model, threshold=0.1, n=4), model, remember=memory)
    rows.append(f"another artifact: {shared.assess('sure?').cost.calls} calls")
    same("core/memory.txt", "\n".join(rows))


def test_retries_and_fallbacks() -> None:
    Counted.asked.clear()
    Counted.failures.update({"sure?-1": 2, "unsure?-1": 1, "cut?-1": 9})
    model = Counted(script=SCRIPT)
    guard = guarded(make_artifact(model, threshold=0.5, n=2), model, on_abstain="raise", max_concurrency=1, remember=0)
    rows = []
    retrying = guard.with_retry(wait_exponential_jitter=False, stop_after_attempt=3)
    for question in ("sure?", "unsure?", "empty?", "cut?"):
        text = outcome(lambda: retrying.invoke(question)).splitlines()[0]  # noqa: B023
        rows.append(f"{question} {text}: asked {Counted.asked.count(f'{question}-1')} times")
    narrow = guard.with_retry(retry_if_exception_type=(KeyError,), stop_after_attempt=3)
    Counted.failures.update({"sure?-1": 1})
    rows.append(f"another error: {outcome(lambda: narrow.invoke('sure?')).splitlines()[0]}")
    batch = retrying.batch(["sure?", "unsure?"], return_exceptions=True)
    rows.append(f"batch: {[each.content if isinstance(each, AIMessage) else type(each).__name__ for each in batch]}")
    twice = retrying.with_retry(stop_after_attempt=1, retry_if_exception_type=lambda error: False)
    rows.append(f"again: {twice.invoke('sure?').content}")
    other = ScriptedChat(name_of_model="other", default=["Vienna"])
    falling = guard.with_fallbacks([other], exceptions_to_handle=(AbstainedError,))
    rows.append(f"fallback: {falling.invoke('unsure?').content}")
    rows.append(f"to itself: {error_of(lambda: guard.with_fallbacks([guard]))}")
    rows.append(f"on_abstain to itself: {error_of(lambda: guard.model_copy(update={'on_abstain': guard}))}")
    chain = RunnableLambda(lambda x: x) | guard
    rows.append(f"within a chain: {error_of(lambda: guard.model_copy(update={'on_abstain': chain}))}")
    same("core/retries.txt", "\n".join(rows))


# -- Streams and batches -----------------------------------------------------------------------------------------------


def test_streams_and_batches() -> None:
    guard = guarded(remember=0)
    chunks = list(guard.stream("sure?"))

    async def later() -> list[str]:
        rows = [f"astream: {[chunk.content async for chunk in guard.astream('unsure?')]}"]
        rows.append(f"abatch: {[each.content for each in await guard.abatch(['sure?', 'unsure?'])]}")
        done = [pair async for pair in guard.abatch_as_completed(["sure?", "unsure?"], {"max_concurrency": 1})]
        rows.append(f"abatch_as_completed: {sorted((place, each.content) for place, each in done)}")
        rows.append(f"aassess: {(await guard.aassess('unsure?')).detail}")
        return rows

    completed = sorted((place, each.content) for place, each in guard.batch_as_completed(["sure?", "unsure?"]))
    limited = {"max_concurrency": 2}
    rows = [
        f"stream: {[type(chunk).__name__ for chunk in chunks]} {message_of(chunks[0])} {chunks[0].chunk_position}",
        f"batch: {[each.content for each in guard.batch(['sure?', 'unsure?'], limited)]}",  # type: ignore[arg-type]
        f"batch_as_completed: {completed}",
        *asyncio.run(later()),
        f"no limit: {error_of(lambda: guard.invoke('sure?', {'max_concurrency': 0}))}",
        f"no number: {error_of(lambda: guard.batch(['sure?'], [{'max_concurrency': 'two'}]))}",  # type: ignore[typeddict-item]
        f"types: {guard._llm_type} {sorted(guard._identifying_params)} {guard._get_ls_params()} "
        f"{guard.is_lc_serializable()}",
        f"prompt: {guard.prompt.invoke({'question': 'sure?'}).to_messages()[0].text}",
    ]
    assert isinstance(chunks[0], AIMessageChunk)
    same("core/streams.txt", clean("\n".join(rows)))


class Traced(BaseTracer):
    """A tracer that keeps runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.runs.append(run)


def test_traces_of_a_guarded_call() -> None:
    blocks = []
    for question in ("sure?", "unsure?", "timeout?"):
        tracer = Traced()
        guarded(max_concurrency=1, remember=0, early_stopping="off").invoke(
            question, {"callbacks": [tracer], "tags": ["mine"]}
        )
        (run,) = tracer.runs
        own = {name: value for name, value in run.metadata.items() if name.startswith("guardrail")}
        children = [f"{child.name} {child.tags} {child.metadata.get('guardrail_sample')}" for child in run.child_runs]
        blocks.append(f"{question} {run.name}\n{json_lines(own)}\n" + "\n".join(children))
    same("core/traces.txt", clean("\n\n".join(blocks)))


# -- Prompts, slots, turns and segments --------------------------------------------------------------------------------

SLOTTED = PromptWrapping(
    system="Today is {day}.", template="Context: {context}\n\nQuestion: {question}", slots=("day", "context")
)


def test_prompts_with_slots() -> None:
    model = ScriptedChat(script={}, default=["Paris"])
    artifact = make_artifact(model, prompt=SLOTTED, n=2)
    slots = {"day": "Monday", "context": "Paris is nice."}
    guard = guarded(artifact, model, remember_slots=["context"])
    own = SLOTTED.messages("Capital?", slots=slots)
    rows = [
        f"asked: {[f'{each.type}: {each.text}' for each in own]}",
        f"answered: {guard.assess(own).detail}",
        f"another day: {guard.assess(SLOTTED.messages('Capital?', slots={**slots, 'day': 'Friday'})).cost.calls} calls",
        f"another text: {guard.assess(SLOTTED.messages('Capital?', slots={**slots, 'context': 'x'})).cost.calls} calls",
        f"question {SLOTTED.question_of(own)!r}, slots {SLOTTED.slots_of(own)}",
        f"prompt {guard.prompt.input_variables} "
        f"{guard.prompt.invoke({'question': 'q', **slots}).to_messages()[1].text!r}",
    ]
    wrong: dict[str, Callable[[], object]] = {
        "nothing said": lambda: guarded(artifact, model),
        "an unknown slot": lambda: guarded(artifact, model, remember_slots=["contxt"]),
        "a text": lambda: guarded(artifact, model, remember_slots="context"),
        "slots of a bare prompt": lambda: guarded(remember_slots=["context"]),
        "nothing remembered": lambda: guarded(artifact, model, remember=0)._slots,
        "no system message": lambda: guard.assess(own[1:]),
        "two system messages": lambda: guard.assess([own[0], *own]),
        "the system message last": lambda: guarded(
            make_artifact(model, prompt=PromptWrapping(system="S")), model
        ).assess([HumanMessage("q"), SystemMessage("S")]),
        "another system message": lambda: guard.assess([SystemMessage("Tomorrow"), own[1]]),
        "another template": lambda: guard.assess([own[0], HumanMessage("Capital?")]),
        "a separator in a slot": lambda: guard.assess(
            SLOTTED.messages("q", slots={**slots, "context": "\n\nQuestion: x"})
        ),
        "no messages": lambda: guard.assess([]),
        "a slot without a text": lambda: SLOTTED.messages("q", slots={"day": "x"}),
        "a text without a slot": lambda: PromptWrapping().messages("q", slots={"day": "x"}),
        "two questions": lambda: PromptWrapping(template="{question} {question}"),
        "no question": lambda: PromptWrapping(template="Q"),
        "a slot named question": lambda: PromptWrapping(slots=("question",)),
        "a slot with a dash": lambda: PromptWrapping(slots=("a-b",)),
        "a slot twice": lambda: PromptWrapping(template="{a} {question}", slots=("a", "a")),
        "a slot nowhere": lambda: PromptWrapping(slots=("a",)),
        "a slot in two places": lambda: PromptWrapping(system="{a}", template="{a} {question}", slots=("a",)),
        "slots side by side": lambda: PromptWrapping(template="{a}{question}", slots=("a",)),
    }
    options = PromptWrapping(template="Q: {question}\nA:")
    asked = options.messages("Which?", {"A": "x", "B": "y"})
    wrong |= {
        "options": lambda: options.check(asked, ("A", "B")),
        "an option missing": lambda: options.check(asked, ("A", "B", "C")),
        "options in another order": lambda: options.check(asked, ("B", "A")),
        "options without a question": lambda: options.check([HumanMessage("Q: \nA) x\nB) y\nA:")], ("A", "B")),
        "an empty option": lambda: options.check([HumanMessage("Q: q\nA) \nB) y\nA:")], ("A", "B")),
        "options with the text first": lambda: PromptWrapping(option_template="{text} ({label})").check(
            [HumanMessage("q\nx (A)\ny (B)")], ("A", "B")
        ),
    }
    same(
        "core/prompts_and_slots.txt",
        "\n".join([*rows, "", listed((name, error_of(make)) for name, make in wrong.items())]),
    )


def test_turns_and_segments() -> None:
    conversation = [HumanMessage("hi"), AIMessage("hello"), HumanMessage("sure?")]
    rows = [
        f"refused: {error_of(lambda: guarded().assess(conversation))}",
        f"marked: {json_lines(guarded(turns='mark', early_stopping='off').assess(conversation).to_metadata())}",
        f"known: {guarded(make_artifact(MODEL, n=2, turns=['human', 'human,ai,human'])).assess(conversation).turns}",
        f"image: {error_of(lambda: guarded().assess([HumanMessage([{'type': 'image_url', 'image_url': 'x'}])]))}",
    ]
    outcomes = {t: make_artifact(MODEL, threshold=t).outcome for t in (None, 0.1, 2.0)}
    segments = Segments(
        outcomes={"easy": outcomes[2.0], "hard": outcomes[0.1], "closed": outcomes[None]},
        delta=0.1, share="together", unknown="others", min_labels=1,
    )  # fmt: skip
    scores = CalibrationScores(
        uncertainty=(0.2, 0.3, 0.4, 0.5), error=(0, 0, 1, 1), segment=("easy", "hard", "closed", None)
    )
    artifact = make_artifact(MODEL, n=4).model_copy(
        update={"segments": segments, "calibration": scores, "outcome": outcomes[0.1]}
    )
    guard = guarded(artifact, remember=0, early_stopping="off")
    for name in ("easy", "hard", "closed", "other", None):
        verdict = error_of(lambda: guard.assess("unsure?", {"configurable": {"guardrail_segment": name}}).detail)  # noqa: B023
        rows.append(f"segment {name}: {verdict}")
    named = guarded(artifact, segment=lambda messages: "easy" if "un" in messages[-1].text else None, remember=0)
    for question in ("unsure?", "sure?"):
        own = named.assess(question)
        rows.append(f"by a function, {question} {own.segment} {own.threshold} {own.detail}")
    assert named.assess("sure?").segment == ALL_OTHERS
    wrong: dict[str, Callable[[], object]] = {
        "a number": lambda: guard.assess("sure?", {"configurable": {"guardrail_segment": 5}}),
        "a function that fails": lambda: guarded(artifact, segment=lambda messages: 1 / 0).assess("sure?"),
        "a function of a number": lambda: guarded(artifact, segment=lambda messages: 5).assess("sure?"),
        "a function for one threshold": lambda: guarded(segment=lambda messages: "easy"),
        "no function": lambda: guarded(artifact, segment="easy"),
        "in one segment of none": lambda: ARTIFACT.in_segment("easy"),
        "refused segments": lambda: artifact.refuse_segments("The gateway"),
        "in the segment": lambda: artifact.in_segment("easy").answer_if,
        "in another": lambda: artifact.in_segment("nobody").answer_if,
        "rule": lambda: artifact.answer_if,
    }
    same("core/turns_and_segments.txt", clean("\n".join(
        [*rows, "", listed((name, error_of(make)) for name, make in wrong.items())]
    )))  # fmt: skip


# -- Observers, switches, cascades -------------------------------------------------------------------------------------


def test_observers_and_switches() -> None:
    seen: list[str] = []

    def watch(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        seen.append(f"{verdict.reason.value} of {len(messages)}")

    def fails(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        raise OSError(28, "No space left on device")

    async def later(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        seen.append("later")

    switch = SafetySwitch()
    rows = []
    watching: dict[str, dict[str, Any]] = {
        "one": {"on_verdict": watch},
        "two": {"on_verdict": [watch, watch]},
        "failing": {"on_verdict": [watch, fails]},
        "async": {"on_verdict": later},
        "switch": {"switch": switch, "on_verdict": watch},
    }
    for name, settings in watching.items():
        guard = guarded(remember=0, **settings)
        for question in ("sure?", "unsure?"):
            seen.clear()
            rows.append(f"{name}, {question} {error_of(lambda: guard.assess(question).detail)} {seen}")  # noqa: B023
    switch.alarm(Alarm(monitor="drift", at=7, wealth=21.5, delta=0.05, detail="scores moved."))
    rows += [
        f"after an alarm, {question} {guard.assess(question).detail} {seen[-1]}" for question in ("sure?", "unsure?")
    ]
    rows += [
        f"not callable: {error_of(lambda: guarded(on_verdict=5))}",
        f"a text: {error_of(lambda: guarded(on_verdict='x'))}",
    ]
    same("core/observers.txt", "\n".join(rows))


SMALL = ScriptedChat(
    name_of_model="small",
    script={
        "easy?": ["easy"],
        "hard?": ["one", "two", "three"],
        "lost?": ["one", "two", "three"],
        "down?": [StatusError(503)],
        "empty?": [""],
        "cut?": [CUT],
    },
)
LARGE = ScriptedChat(name_of_model="large", script={"lost?": ["a", "b", "c"]}, default=["large answer"])


def cascade_of(*thresholds: float | None, **changes: Any) -> CascadeArtifact:
    stages = tuple(
        make_artifact(model, threshold=own, n=2) for model, own in zip((SMALL, LARGE), thresholds, strict=True)
    )
    shares = tuple(StageShare(threshold=own, n_accepted=1, n_errors=0) for own in thresholds)
    whole = CascadeOutcome(
        rule="lec_joint", alpha=0.1, delta=None, n=4, guarantee="At most 10 % of the answers are wrong.", stages=shares,
        interval=(0.0, 0.6), **changes,
    )  # fmt: skip
    return CascadeArtifact(created="1970", stages=stages, outcome=whole, certificate=whole, packages={})


def test_cascades() -> None:
    both = cascade_of(0.5, 0.5)
    system = Cascade([SMALL, LARGE], artifact=both, stage_settings=[{"early_stopping": "off"}, {}])
    questions = ("easy?", "hard?", "lost?", "down?", "empty?", "cut?")
    blocks = [f"== {question}\n{outcome(lambda: system.invoke(question))}" for question in questions]  # noqa: B023
    one = Cascade([SMALL, LARGE], artifact=cascade_of(None, 0.5))
    none = Cascade(
        [SMALL, LARGE], artifact=cascade_of(None, None, reason=InfeasibleReason.TOO_FEW_ITEMS, detail="few.")
    )
    blocks += [f"== {name}: {each.assess('easy?').stage} {each.assess('easy?').detail}"
               for name, each in (("the second only", one), ("no threshold", none))]  # fmt: skip
    raising = Cascade([SMALL, LARGE], artifact=both, fallback="raise")
    blocks += [f"== raised, {question}\n{outcome(lambda: raising.invoke(question))}" for question in ("lost?", "down?")]  # noqa: B023
    traced = Traced()
    system.invoke("hard?", {"callbacks": [traced]})
    blocks.append(f"traced stage: {traced.runs[0].metadata.get('guardrail_stage')}")
    wrong: dict[str, Callable[[], object]] = {
        "models twice": lambda: Cascade([SMALL], models=[SMALL], artifact=both),
        "fallback twice": lambda: Cascade([SMALL], artifact=both, fallback="raise", on_abstain="raise"),
        "one model": lambda: Cascade([SMALL], artifact=both),
        "a model instead of a list": lambda: Cascade(models=SMALL, artifact=both),
        "one dict of settings": lambda: Cascade([SMALL, LARGE], artifact=both, stage_settings=[{}]),
        "a setting of a stage": lambda: Cascade([SMALL, LARGE], artifact=both, early_stopping="off"),
        "an unknown setting": lambda: Cascade([SMALL, LARGE], artifact=both, abstain_mesage="x"),
        "models in another order": lambda: Cascade([LARGE, SMALL], artifact=both),
        "tools": lambda: system.bind_tools([]),
        "a temperature": lambda: system.invoke("easy?", temperature=1),
        "stop strings": lambda: system.invoke("easy?", stop=["x"]),
        "itself": lambda: Cascade([SMALL, LARGE], artifact=both, fallback=system),
        "types": lambda: f"{system._llm_type} {sorted(system._identifying_params)} {system.prompt.input_variables}",
        "promises": lambda: "\n".join(both.promises),
        "warning": lambda: both.warning,
        "other thresholds": lambda: CascadeArtifact.model_validate(
            {**both.model_dump(), "outcome": cascade_of(0.1, 0.5).outcome.model_dump()}
        ),
        "three thresholds": lambda: CascadeArtifact.model_validate(
            {**both.model_dump(), "stages": [stage.model_dump() for stage in (*both.stages, both.stages[0])]}
        ),
    }
    text = listed((name, error_of(make)) for name, make in wrong.items())
    same("core/cascades.txt", clean("\n\n".join([*blocks, text]), both, *both.stages))


# -- Trust in an endpoint, and answers that are observed ---------------------------------------------------------------


class Endpoint(ScriptedChat):
    """A scripted model that is probed."""

    guardrail_trusted: ClassVar[bool] = False


def test_trust_in_an_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    words = itertools.count()

    class Varied(Endpoint):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            if "sixteen random" in messages[-1].text and kwargs.get("temperature"):
                return ScriptedChat(default=[f"word {next(words)}"])._generate(messages)
            return super()._generate(messages, stop, run_manager, **kwargs)

    rows = []
    models: dict[str, ScriptedChat] = {
        "equal samples": Endpoint(script=SCRIPT, default=["same words"]),
        "varied": Varied(script=SCRIPT),
        "down": Endpoint(script=SCRIPT, default=[StatusError(503)]),
        "silent": Endpoint(
            script=SCRIPT, default=[AIMessage(content="", response_metadata={"finish_reason": "length"})]
        ),
    }
    with caplog.at_level(logging.WARNING, "guardrail"):
        for name, model in models.items():
            guard = guarded(make_artifact(model, threshold=0.5, n=4), model, early_stopping="off")
            for question in ("sure?", "unsure?"):
                caplog.clear()
                verdict = guard.assess(question)
                logged = [record.getMessage() for record in caplog.records]
                rows.append(f"{name}, {question} {verdict.cost.calls} calls, {len(verdict.samples)} samples: "
                            f"{verdict.detail}" + "".join(f"\n  {line}" for line in logged))  # fmt: skip
        off = guarded(
            make_artifact(models["down"], threshold=0.5, n=4), models["down"], probe="off", early_stopping="off"
        )
        rows.append(f"without a probe: {off.assess('sure?').cost.calls} calls")
        agreeing = guarded(early_stopping="off").assess("sure?").model_copy(update={"alternatives": (("Paris", 1.0),)})
        trust = EndpointTrust(Endpoint(), ARTIFACT.plan, rate=0.5, enabled=True, clock=lambda: 0.0)
        caplog.clear()
        for _ in range(60):
            trust.record(agreeing, EndpointProblem())
        repeating = agreeing.model_copy(
            update={"samples": ("a", "b", "c", "a", "b", "c"), "alternatives": (("a", 0.5), ("b", 0.5))}
        )
        watch = EndpointTrust(Endpoint(), ARTIFACT.plan, rate=None, enabled=True, clock=lambda: 0.0)
        for _ in range(30):
            watch.record(repeating, EndpointProblem())
        rows += [record.getMessage() for record in caplog.records][:2]
    rates = {
        "votes": (ARTIFACT, Needs(samples=True, judge=True, primary=True)),
        "clusters": (ARTIFACT, Needs(samples=True, judge=True)),
        "likelihood": (ARTIFACT, Needs(logprobs=True)),
        "infeasible": (make_artifact(MODEL, threshold=None), Needs(samples=True, judge=True)),
        "one sample": (make_artifact(MODEL, n=1, estimator="primary_disagreement"), Needs(samples=True, judge=True)),
    }
    scored = CalibrationScores(uncertainty=(0.0, 0.0, 0.2, 0.4, 0.6, 0.9), error=(0, 0, 0, 1, 1, 1))
    for name, (artifact, needs) in rates.items():
        own = artifact.model_copy(update={"calibration": scored})
        rows.append(f"{name}: {[agreement_rate(own, needs, stops_early=early) for early in (False, True)]}")
    texts = ["abc", "abcabc", "abcab", "abca", "aaabb", "abcaa", "abcaaa", "abcddd", "abcacb", "aab aab"]
    rows += [f"{text}: {later_repeats(list(text))}" for text in texts]
    windows = [(50, 50, 0.5), (50, 49, 0.5), (25, 50, 0.5), (40, 50, 0.5), (45, 50, 0.5), (50, 50, 0.9), (50, 50, 0.7)]
    for agreed, questions, rate in (*windows, (50, 50, None)):
        rows.append(f"{agreed} of {questions} at {rate}: {surprising(agreed, questions, rate)}")
    same("core/endpoint_trust.txt", clean("\n".join(rows)))


def test_observed_answers() -> None:
    model = ScriptedChat(script=SCRIPT)
    artifact = make_artifact(model, threshold=0.5, n=4)
    seen: list[str] = []
    guard = guarded(
        artifact,
        model,
        mode="observe",
        on_verdict=lambda verdict, messages: seen.append(verdict.detail),
        early_stopping="off",
    )
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 256}
    rows = []
    for question in ("sure?", "unsure?", "empty?", "sure?"):
        rows.append(f"{question} {guard.invoke(question, **greedy).content!r}")
        assert guard.drain(20), "measured one after the other, so that the second draw is remembered"
    calls: dict[str, Callable[[], object]] = {
        "another temperature": lambda: guard.invoke("sure?").content,
        "stop strings": lambda: guard.invoke("sure?", stop=["x"], **greedy).content,
        "a stream": lambda: [chunk.content for chunk in guard.stream("sure?", **greedy)],
        "a broken call": lambda: guard.invoke("broken call?", **greedy).content,
        "a failure": lambda: guard.invoke("timeout?", **greedy),
        "tools": lambda: guard.bind_tools([rate_of], tool_choice="any").kwargs["tool_choice"],  # type: ignore[attr-defined]
        "structured output": lambda: guard.with_structured_output({"title": "T", "type": "object", "properties": {}}),
        "a rate of 0": lambda: guarded(artifact, model, mode="observe", observe_rate=0),
    }
    for name, call in calls.items():
        rows.append(f"{name}: {error_of(call)}")
        assert guard.drain(20)
    rows += [json_lines({name: getattr(guard.observed, name) for name in guard.observed.__dataclass_fields__}),
             f"acceptance {guard.observed.acceptance}", *sorted(seen)]  # fmt: skip
    served = guard.assess_served([HumanMessage("sure?")], Sample(text="Rome", finish_reason="stop"))
    rows.append(f"served: {served.accepted} {served.is_result} {served.verdict and served.verdict.detail}")
    rows.append(
        "served in a conversation: "
        + error_of(lambda: guard.assess_served([AIMessage("x"), HumanMessage("y")], Sample(text="")))
    )
    queue = ObserveQueue(most=1, at_once=0, most_bytes=10)
    rows += [f"offered: {queue.offer(lambda: 'accepted', size)}" for size in (11, 4, 4)]
    rows.append(f"drained: {queue.drain(0)} {queue.observed}")
    rows.append(
        f"chosen: {[key for key in 'abcdefghij' if chosen(key, 0.3)]} "
        f"{[key for key in 'abcdefghij' if chosen(key, 0.3, salt='x')]}"
    )
    same("core/observed.txt", clean("\n".join(rows)))


def rate_of(city: str) -> float:
    """The rate of a city."""
    return 0.5


def test_costs_of_calls_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    guard = guarded(early_stopping="off", max_concurrency=1)
    costs: Mapping[str, Any] = {question: guard.assess(question).cost for question in ("sure?", "some fail?", "sure?")}

    @scorer(version=1, higher="certain", calls=2)
    def slow(answer: str) -> float:
        return 0.9

    own = guarded(make_artifact(MODEL, estimator=slow.estimator, threshold=0.5), scorer=slow, max_concurrency=1)
    same(
        "core/costs.txt",
        listed((question, repr(cost)) for question, cost in {**costs, "scored": own.assess("sure?").cost}.items()),
    )


# -- Rare states of a guard --------------------------------------------------------------------------------------------


class Parts:
    """A handler for parts of answers."""

    def __call__(self, verdict: Verdict) -> str:
        return "not called"

    def on_abstention(self, abstention: Any) -> None:
        return None

    async def aon_abstention(self, abstention: Any) -> None:
        return None

    def on_partial(self, abstention: Any, message: AIMessage) -> AIMessage:
        return message.model_copy(update={"content": f"{message.content} + T-1"})

    async def aon_partial(self, abstention: Any, message: AIMessage) -> AIMessage:
        return message.model_copy(update={"content": f"{message.content} + T-2"})


class Flaky:
    """A judge that fails, or that gives no verdict."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.spec = JudgeSpec(name="flaky", version=1, params={})
        self.is_slow = False

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer] * len(pairs)


class Watching:
    """An observer that is fast, async on demand, and keeps something open around a measurement."""

    is_slow = False

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def around(self, mode: str) -> Iterator[None]:
        self.seen.append(f"begin {mode}")
        yield
        self.seen.append("end")

    def __call__(self, verdict: Verdict, messages: Sequence[BaseMessage]) -> Any:
        self.seen.append(verdict.reason.value)

        async def nothing() -> None:
            self.seen.append("awaited")

        return nothing() if asyncio_runs() else None


def asyncio_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_rare_states_of_a_guard() -> None:
    rows: list[str] = []
    sentences = parts_measure(sentence_spec(5, entailment=Halves()), entailment=Halves())
    model = ScriptedChat(script={"q": ["One is so. Two is so.", "One is so. Two may be."]})
    partly = make_artifact(model, parts=sentences, threshold=0.2, n=2)
    guard = guarded(partly, model, on_abstain=Parts(), entailment=Halves())
    rows += [f"parts: {guard.invoke('q').content}", f"parts, later: {asyncio.run(guard.ainvoke('q')).content}"]
    rows.append(f"parts as text: {guard.assess('q').explain()}")
    for name, answer in {"a judge that fails": RuntimeError("x"), "no verdict": None, "never the same": False}.items():
        judge = Flaky(answer)
        own = make_estimator("discrete_semantic_entropy", judge=judge)
        artifact = make_artifact(MODEL, estimator=own, threshold=2.0, n=3)
        plan = artifact.plan.model_copy(update={"unanimous_at": 2})
        for setting, each in (("all", artifact), ("adaptive", artifact.model_copy(update={"plan": plan}))):
            verdict = guarded(each, judge=judge).assess("unsure?")
            rows.append(f"{name}, {setting}: {verdict.cost.calls} calls: {verdict.detail}")
    ensemble = combined_of("discrete_semantic_entropy", "degree")
    for estimator in (ensemble, default("verbalised")):
        artifact = make_artifact(MODEL, estimator=estimator, threshold=-5.0, n=4)
        drawn = SETS["tie"]
        rows.append(f"{estimator.name}: {decide(drawn, artifact, estimator).detail}")
    tools = bindings_for([rate_of])
    calls = ScriptedChat(script={"rate?": [CALL, "a", "b"]})
    bound = make_artifact(calls, threshold=0.1, n=2, bindings=tools)
    other = ScriptedChat(name_of_model="other", default=["Vienna"])
    falling = guarded(bound, calls, on_abstain=other)
    rows.append(f"another model with tools: {falling.bind_tools([rate_of]).invoke('rate?').content}")
    down = ScriptedChat(name_of_model="down", default=[TimeoutError("late")])
    raising = guarded(make_artifact(down, n=2), down, on_abstain="raise")
    rows.append(f"a fallback that fails: {outcome(lambda: guarded(on_abstain=raising).invoke('unsure?'))}")
    rows.append(f"after a failure: {outcome(lambda: guarded(on_abstain=raising).invoke('timeout?'))}")
    watching = Watching()
    watched = guarded(on_verdict=watching, remember=0)
    watched.invoke("sure?")
    asyncio.run(watched.ainvoke("unsure?"))
    rows.append(f"observer: {watching.seen}")
    later = guarded(on_verdict=lambda verdict, messages: watching.seen.append("thread"), remember=0)
    asyncio.run(later.ainvoke("sure?"))
    rows.append(f"observer in a thread: {watching.seen[-1]}")
    rows.append(f"user: {guarded(remember=0).bind(user='bob').invoke('sure?').content}")
    named = ScriptedChat(script=SCRIPT)
    renamed = guarded(make_artifact(named, n=2), named)
    named.name_of_model = "renamed"
    rows.append(f"a model renamed later: {error_of(lambda: renamed.assess('sure?'))}")
    rows.append(f"copied: {copy.deepcopy(guarded()).invoke('sure?').content}")
    by_name = guarded().configurable_fields(tags=ConfigurableField(id="tags"))
    configured = by_name.with_config(configurable={"tags": ["x"]})
    rows.append(f"configurable: {configured.invoke('sure?').content}")
    chunks = [chunk.message.content for chunk in guarded()._stream([HumanMessage("sure?")])]
    rows.append(f"streamed by LangChain: {chunks}")
    branch = RunnableBranch((lambda x: True, guarded()), other)
    rows.append(f"a branch to itself: {error_of(lambda: guarded(on_abstain=branch))}")
    retrying = guarded(on_abstain=lambda verdict: (_ for _ in ()).throw(OSError("x"))).with_retry(stop_after_attempt=2)
    rows.append(f"retry of a handler: {error_of(lambda: retrying.invoke('unsure?'))}")
    batch = asyncio.run(guarded(on_abstain="raise").with_retry().abatch(["sure?", "unsure?"], return_exceptions=True))
    rows.append(f"retry of a batch: {[type(each).__name__ for each in batch]}")
    cascade = Cascade([SMALL, LARGE], artifact=cascade_of(0.5, 0.5), fallback="raise")
    rows.append(f"cascade, later: {asyncio.run(cascade.aassess('hard?')).detail}")
    rows.append(
        f"cascade copy: {cascade.model_copy(update={'on_abstain': 'message'}).assess('hard?').cost.calls} calls"
    )
    rows.append(f"cascade as its fallback: {type(cascade.with_fallbacks([cascade])).__name__}")
    forgetful = Cascade([SMALL, LARGE], artifact=cascade_of(0.5, 0.5), stage_settings=[{"remember": 0}, {}])
    rows.append(f"forgetful cascade: {error_of(lambda: forgetful.with_fallbacks([forgetful]))}")
    rows.append(f"HTML: {guarded().assess('sure?')._repr_html_()[:60]}")
    same("core/rare_states.txt", clean("\n".join(rows)))


class Halves:
    """An entailment model that knows the first sentence only."""

    spec = JudgeSpec(name="halves", version=1, params={})

    def entailment_batch(self, items: Sequence[Any]) -> list[EntailmentScores | None]:
        return [EntailmentScores(1.0 if piece.startswith("One") else 0.0) for _, _, piece in items]


def test_rare_states_of_observing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedChat(script=SCRIPT)
    artifact = make_artifact(model, threshold=0.5, n=2)
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 256}
    guard = guarded(artifact, model, mode="observe", remember=0)

    async def later() -> list[str]:
        return [str(chunk.content) async for chunk in guard.astream("sure?", **greedy)]

    rows = [f"streamed: {asyncio.run(later())}"]
    left = guard.stream("sure?", **greedy)
    next(left)
    left.close()  # type: ignore[attr-defined]
    rows.append(f"with tools: {guard.bind_tools([rate_of]).invoke('sure?', **greedy).content}")
    segmented = guarded(by_segments(), mode="observe", remember=0, segment=lambda messages: 1 / 0)
    segmented.invoke("sure?", **greedy)
    assert guard.drain(20)
    assert segmented.drain(20)
    rows += [f"{guard.observed}", f"{segmented.observed}", f"{copy.deepcopy(guard).observed}"]
    broken = guarded(artifact, model, mode="observe", remember=0)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "guardrail"):
        patched.setattr(type(broken._assessor), "served_verdict", _no_verdict)
        broken.invoke("sure?", **greedy)
        assert broken.drain(20)
    rows += [f"{broken.observed}", *(record.getMessage() for record in caplog.records)]
    queue = ObserveQueue()
    queue.observe(None, lambda answer: None, key="k", rate=1.0)
    queue.observe(AIMessage("x"), lambda answer: None, key="k", rate=0.0)
    queue.observe(AIMessage("x"), lambda answer: 1 / 0, key="k", rate=1.0)  # type: ignore[arg-type, return-value]
    queue.observe(AIMessage("x"), lambda answer: None, key="k", rate=1.0)
    rows += [f"{queue.observed} {queue.observed.acceptance} {queue.drain(0)}"]
    limited = ObserveQueue(most_bytes=10)
    rows += [f"{[limited.hold(size) for size in (6, 6, 4, 1)]}"]
    limited.free(5)
    rows += [f"{limited.hold(5)} {limited.hold(1)}"]
    same("core/rare_observing.txt", "\n".join(rows))


def _no_verdict(self: Any, *arguments: Any) -> Verdict:
    raise RuntimeError("quotes an answer")


def by_segments() -> CalibrationArtifact:
    segments = Segments(outcomes={"a": ARTIFACT.outcome}, delta=0.1, share="each", unknown="others", min_labels=5)
    scores = CalibrationScores(uncertainty=(0.5, 0.5), error=(0, 0), segment=("a", None))
    return ARTIFACT.model_copy(update={"segments": segments, "calibration": scores})
