"""Details, metadata, messages, errors and logs quote no answer that was held back."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from pydantic import BaseModel

from guardrail import AbstainedError, Guardrail, scorer
from guardrail.guard.cascade import Cascade
from guardrail.guard.observers import SafetySwitch
from guardrail.judges import Judge, make_judge
from guardrail.judges.chat import ChatJudge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from guardrail.uncertainty import list_estimators, make_estimator, measure
from guardrail.uncertainty.plan import plan_for
from guardrail.verdict import Reason, Verdict
from tests.guardrail.guard.test_routing import artifact as cascade_artifact

SECRET = "Secretville"
QUESTION = "Capital?\nA) Paris\nB) Rome"
SURE, UNSURE = [SECRET], [f"{SECRET}{i}" for i in range(11)]


class Shape(BaseModel):
    """The schema by which a careful client reads replies: its errors quote the reply."""

    number: int


def unreadable() -> Exception:
    try:
        Shape.model_validate({"number": SECRET})
    except ValueError as error:
        return error
    raise AssertionError


class BadRequestError(Exception):
    """Like that of a server that quotes the generation it could not read."""

    status_code = 400


class UnauthorizedError(Exception):
    """Like that of a server that does not know the key."""

    status_code = 401


class Asked(ScriptedChat):
    """Answers the question from its script, and further questions with the secret."""

    default: Sequence[str | Exception | AIMessage] = (f"I think {SECRET}.",)


class Cached(ScriptedChat):
    """An endpoint, which is probed."""

    guardrail_trusted = False


class Native(ScriptedChat):
    """Draws this one sample, as many times as it wants to."""

    sample: Any = Sample(text=SECRET, finish_reason="stop")
    count: int | None = None
    error: Any = None
    problem: Unmeasured | None = None

    def draw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        if self.error is not None:
            raise self.error
        count = plan.n if self.count is None else self.count
        drawn = SampleSet(question=QUESTION, primary=self.sample, samples=(self.sample,) * count, problem=self.problem)
        return [drawn for _ in prompts]

    async def adraw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds)


class Quoting(Judge):
    """A judge that fails, and says with what; or that gives another answer than yes or no."""

    spec = make_judge("text").spec

    def __init__(self, error: type[Exception] | None) -> None:
        self._error = error

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> Any:
        if self._error is not None:
            raise self._error(f"cannot compare {pairs}")
        return [a for a, _ in pairs]


def guarded(model: ScriptedChat, *, threshold: float | None = 0.5, estimator: str = "", **settings: Any) -> Guardrail:
    name = estimator or "discrete_semantic_entropy"
    options = ("A", "B") if name == "max_softmax" else None
    artifact = make_artifact(model, threshold=threshold, estimator=name, options=options)
    return Guardrail(model=model, artifact=artifact, **settings)


def saying(*answers: Any) -> ScriptedChat:
    return Asked(script={QUESTION: list(answers)})


def spelled(*tokens: str, logprob: float = -1.0) -> Sample:
    return Sample(text=SECRET, finish_reason="stop", tokens=tokens, logprobs=(logprob,) * len(tokens))


@scorer(version=1, higher="uncertain")
def nowhere(answer: str) -> float:
    return math.nan


def scored() -> Guardrail:
    model = saying(SECRET)
    return Guardrail(model=model, artifact=make_artifact(model, estimator=nowhere.estimator), using={"scorer": nowhere})


def switched_off() -> SafetySwitch:
    switch = SafetySwitch()
    switch.hold("Too many errors.")
    return switch


def unable(verdict: Verdict, messages: object) -> None:
    raise RuntimeError(f"cannot store {verdict!r}")


def calling(**fields: Any) -> AIMessage:
    return AIMessage(content=SECRET, **fields)


BAD_CALL: Any = {"name": "pay", "args": f'{{"to": "{SECRET}', "id": "1", "error": None, "type": "invalid_tool_call"}
NAN_CALL: Any = {"name": "pay", "args": {"to": SECRET, "amount": float("nan")}, "id": "1", "type": "tool_call"}
BLOCKED = calling(response_metadata={"stop_reason": "refusal"}, additional_kwargs={"refusal": SECRET})

HELD: list[tuple[Reason, Callable[[], Guardrail]]] = [
    (Reason.ABOVE_THRESHOLD, lambda: guarded(saying(*UNSURE))),
    (Reason.ABOVE_THRESHOLD, lambda: guarded(saying(*UNSURE))),
    (Reason.INFEASIBLE, lambda: guarded(saying(*SURE), threshold=None)),
    (Reason.SUSPENDED, lambda: guarded(saying(*SURE), on_verdict=switched_off())),
    (Reason.SUSPENDED, lambda: guarded(saying(*SURE), on_verdict=unable)),
]
MISSING: list[tuple[Unmeasured, Callable[[], Guardrail]]] = [
    (Unmeasured.MODEL_FAILED, lambda: guarded(saying(SECRET, ConnectionError("down")))),
    (Unmeasured.UNREADABLE, lambda: guarded(saying(SECRET, unreadable()))),
    (Unmeasured.REJECTED, lambda: guarded(saying(SECRET, BadRequestError(f"failed_generation: {SECRET}")))),
    (Unmeasured.UNREADABLE, lambda: guarded(saying(SECRET, calling(invalid_tool_calls=[BAD_CALL])))),
    (Unmeasured.UNREADABLE, lambda: guarded(saying(SECRET, calling(tool_calls=[NAN_CALL])))),
    (Unmeasured.UNREADABLE, lambda: guarded(saying(SECRET, f"{SECRET}\ud83d"))),
    (Unmeasured.UNREADABLE, lambda: guarded(Native(error=unreadable()))),
    (Unmeasured.UNREADABLE, lambda: guarded(Native(sample=Sample(text=f"{SECRET}\ud83d")))),
    (Unmeasured.MODEL_FAILED, lambda: guarded(Cached(script={QUESTION: SURE}, default=[unreadable()]))),
    (Unmeasured.MISCONFIGURED, lambda: guarded(saying(*[UnauthorizedError("no such key")] * 11))),
    (Unmeasured.SAMPLING_SHORTFALL, lambda: guarded(Native(count=1))),
    (Unmeasured.MODEL_CHANGED, lambda: guarded(Native(count=0, problem=Unmeasured.MODEL_CHANGED))),
    (Unmeasured.DEGENERATE_SAMPLES, lambda: guarded(Cached(default=SURE))),
    (Unmeasured.NO_LOGPROBS, lambda: guarded(Native(), estimator="semantic_entropy")),
    (Unmeasured.NO_LOGPROBS, lambda: guarded(Native(sample=spelled(SECRET, "<end>")), estimator="token_sar")),
    (Unmeasured.NO_LOGPROBS, lambda: guarded(Native(sample=spelled(f"Not {SECRET}")), estimator="sar")),
    (Unmeasured.NO_OPTIONS, lambda: guarded(Native(), estimator="max_softmax")),
    (Unmeasured.NO_OPTIONS, lambda: guarded(saying(*SURE), estimator="p_true")),
    (Unmeasured.EMPTY_ANSWER, lambda: guarded(saying(SECRET, ""))),
    (Unmeasured.REFUSED, lambda: guarded(saying(BLOCKED))),
    (Unmeasured.REFUSED, lambda: guarded(saying(SECRET, BLOCKED))),
    (Unmeasured.CUT_OFF, lambda: guarded(Native(sample=Sample(text=SECRET, finish_reason="length")))),
    (Unmeasured.JUDGE_FAILED, lambda: guarded(saying(*SURE), estimator="verbalised")),
    (Unmeasured.JUDGE_FAILED, lambda: guarded(saying(*SURE), estimator="selfcheck_prompt")),
    (Unmeasured.JUDGE_FAILED, lambda: guarded(saying(*UNSURE), using={"judge": Quoting(ValueError)})),
    (Unmeasured.JUDGE_FAILED, lambda: guarded(saying(*UNSURE), using={"judge": Quoting(ConnectionError)})),
    (Unmeasured.JUDGE_FAILED, lambda: guarded(saying(*UNSURE), using={"judge": Quoting(None)})),
    (Unmeasured.NOT_FINITE, scored),
]


GUARDS = [build for _, build in [*HELD, *MISSING]]


def test_every_reason_is_among_the_cases() -> None:
    imported = {Unmeasured.NOT_RECORDED}  # of records that came without a score, which no guard draws
    assert {reason for reason, _ in MISSING} == set(Unmeasured) - imported
    # These two pass something on: the kept items (tests/guardrail/items look at the others), and an answer without a
    # promise.
    shown = {Reason.PARTLY_HELD_BACK, Reason.OTHER_TURNS}
    assert {reason for reason, _ in HELD} == set(Reason) - {Reason.WITHIN_THRESHOLD, Reason.UNMEASURED} - shown
    assert [build().assess(QUESTION).reason for _, build in HELD] == [reason for reason, _ in HELD]
    assert [build().assess(QUESTION).uncertainty.reason for _, build in MISSING] == [reason for reason, _ in MISSING]


@pytest.mark.parametrize("made", GUARDS)
def test_nothing_that_is_told_of_an_abstention_quotes_an_answer(
    made: Callable[[], Guardrail], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        guard = made()
        for verdict in (guard.assess(QUESTION), asyncio.run(guard.aassess(QUESTION))):
            assert not verdict.accepted
            assert verdict.detail
            assert SECRET not in f"{verdict.detail} {verdict.uncertainty.detail} {verdict.to_metadata()}"
        for message in (guard.invoke(QUESTION), asyncio.run(guard.ainvoke(QUESTION))):
            assert SECRET not in repr(message)
        raising = guard.model_copy(update={"on_abstain": "raise"})
        with pytest.raises(AbstainedError) as caught:
            raising.invoke(QUESTION)
    assert SECRET not in f"{caught.value} {caught.value.message}"
    assert SECRET not in caplog.text


@pytest.mark.parametrize("name", list_estimators())
def test_no_estimator_quotes_what_it_cannot_measure(name: str) -> None:
    estimator = make_estimator(name)
    plan = plan_for([estimator], options=("A", "B"), n=3)
    reply = SampleSet(question=QUESTION, primary=Sample(text=SECRET))
    broken = [
        Sample(text=SECRET),
        Sample(text=SECRET, tool_calls=(ToolCall(name="pay", arguments={"to": SECRET}),)),
        spelled(),
        spelled(f"Not {SECRET}"),
        spelled(SECRET).model_copy(update={"token_bytes": (SECRET,)}),
    ]
    for sample in broken:
        replies = {followed: (reply,) for followed in plan.follow_ups}
        drawn = SampleSet(question=QUESTION, primary=sample, samples=(sample,) * 3, follow_ups=replies)
        assert SECRET not in measure(drawn, estimator, plan).detail


def test_a_stage_of_a_cascade_quotes_nothing_either() -> None:
    small, large = (ScriptedChat(name_of_model=name, default=[SECRET, unreadable()]) for name in ("small", "large"))
    message = Cascade([small, large], artifact=cascade_artifact(0.5, 0.5)).invoke(QUESTION)
    assert message.response_metadata["guardrail"]["uncertainty"]["reason"] == "unreadable"
    assert SECRET not in repr(message)


def test_a_judge_that_asks_a_model_logs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedChat):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            raise unreadable()

    with caplog.at_level(logging.INFO):
        assert ChatJudge(Broken()).equivalent(QUESTION, [(SECRET, "Rome")]) == [None]
    assert "1 of 1 judgements failed: 1 of 1 calls failed, the first with ValidationError" in caplog.text
    assert SECRET not in caplog.text


def test_the_whole_exception_is_in_the_log_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="guardrail"):
        verdict = guarded(saying(SECRET, BadRequestError(f"failed_generation: {SECRET}"))).assess(QUESTION)
    assert "BadRequestError (HTTP status 400; in full in the log, at level DEBUG)" in verdict.detail
    assert f"failed_generation: {SECRET}" in caplog.text


class QuotaError(Exception):
    """An error reply of a provider."""

    status_code = 429


class StatusError(Exception):
    """Another one, whose type holds text."""

    status_code, code, type = 400, "bad", f"about {SECRET}"


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (RuntimeError("CUDA out of memory"), "RuntimeError: CUDA out of memory"),
        (ConnectionError("connection refused"), "ConnectionError: connection refused"),
        (QuotaError(f"you exceeded your quota with {SECRET}"), "QuotaError (HTTP status 429; in full in the log"),
        (StatusError(f"error parsing tool call: raw={SECRET}"), "StatusError (HTTP status 400; code bad; in full in"),
        (RuntimeError("x" * 1000), f"RuntimeError: {'x' * 300}..."),
        (ValueError(f"cannot read {SECRET}"), "ValueError (in full in the log, at level DEBUG)"),
        (KeyError(SECRET), "KeyError (in full in the log, at level DEBUG)"),
    ],
)
def test_why_a_model_could_not_be_asked_is_told(error: Exception, found: str) -> None:
    detail = guarded(saying(SECRET, error)).assess(QUESTION).detail
    assert found in detail
    assert SECRET not in detail
