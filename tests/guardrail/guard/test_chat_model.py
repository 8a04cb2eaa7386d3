"""The guard as a chat model: verdicts, abstention paths, chains, streams and traces. Nothing leaks or fails open."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import ValidationError

from guardrail import (
    ArtifactMismatchError,
    Guardrail,
    Reason,
    Unmeasured,
    UsageError,
    Verdict,
)
from guardrail.explain import next_step
from guardrail.guard.abstention import ABSTENTION
from guardrail.testing import ScriptedChat, make_artifact

SURE, UNSURE, BROKEN = "Capital of France?", "Capital of Atlantis?", "Down?"
MODEL = ScriptedChat(
    script={
        SURE: ["Paris", "Paris", "It is Paris."],
        UNSURE: ["Secretville", "Hiddenton", "Maskburg", "Veilham"],
        BROKEN: ["x", TimeoutError("no answer in 5 s")],
    }
)
ARTIFACT = make_artifact(MODEL, threshold=0.5)
HELD_BACK = ("Secretville", "Hiddenton", "Maskburg", "Veilham")


def guarded(**kwargs: Any) -> Guardrail:
    kwargs.setdefault("remember", 0)  # the tests ask the same again
    return Guardrail(model=MODEL, artifact=ARTIFACT, **kwargs)


GUARD = guarded()


def test_accepts_and_returns_the_primary_answer_with_its_verdict() -> None:
    message = GUARD.invoke(SURE)
    assert message.content == "Paris"
    verdict = message.response_metadata["guardrail"]
    assert (verdict["accepted"], verdict["reason"]) == (True, "within_threshold")
    assert verdict["artifact"] == ARTIFACT.digest
    assert json.loads(json.dumps(verdict)) == verdict


def test_the_metadata_of_an_answer_quotes_no_sample() -> None:
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL, threshold=9.0))  # accepts what the samples deny
    message = guard.invoke(UNSURE)
    assert message.response_metadata["guardrail"]["candidate"]["text"] == message.content == "Secretville"
    assert not any(sample in str(message.model_dump()) for sample in HELD_BACK[1:])
    assert guard.assess(UNSURE).alternatives[0][0] == "Hiddenton"  # the verdict has them


def test_usage_is_summed_over_all_samples() -> None:
    # 11 prompts of one token; "Paris" 1 + five times "Paris" 1 and five times "It is Paris." 3 = 21
    assert GUARD.invoke(SURE).usage_metadata == {"input_tokens": 11, "output_tokens": 21, "total_tokens": 32}


def test_abstains_with_a_message_that_says_why_and_leaks_nothing() -> None:
    message = GUARD.invoke(UNSURE)
    assert message.content == ABSTENTION
    verdict = message.response_metadata["guardrail"]
    assert verdict["reason"] == "above_threshold"
    assert "1.585" not in verdict["detail"]
    assert "> 0.5 nats" in verdict["detail"]
    assert not any(secret in str(message.model_dump()) for secret in HELD_BACK)


class StatusError(Exception):
    """An error of an SDK with the status of the reply."""

    def __init__(self, status: int) -> None:
        super().__init__(f"Error code: {status}")
        self.status_code = status


def wrapped(cause: OSError) -> Exception:
    error = RuntimeError("Connection error.")  # as openai.APIConnectionError over httpx over the system's error
    error.__cause__ = RuntimeError("All connection attempts failed")
    error.__cause__.__cause__ = cause
    return error


REFUSED: dict[str, Exception] = {
    "key": StatusError(401),
    "permission": StatusError(403),
    "model": StatusError(404),
    "port": wrapped(ConnectionRefusedError(111, "Connection refused")),
    "host": wrapped(socket.gaierror(-2, "Name or service not known")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_configuration_is_an_error_in_the_log_and_in_the_verdict(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedChat(default=[REFUSED[name]])
    guard = Guardrail(model=model, artifact=make_artifact(model), abstain_message=next_step)
    for _ in range(3):  # a caller that only shows the text sees a polite abstention, so the operator has to be told
        message = guard.invoke("Capital of France?")
    verdict = message.response_metadata["guardrail"]
    assert verdict["uncertainty"]["reason"] == "misconfigured"
    status = getattr(REFUSED[name], "status_code", None)  # of a reply without its text, which may quote an answer
    shown = str(REFUSED[name]) if status is None else f"StatusError (HTTP status {status}"
    assert shown in verdict["detail"]
    assert message.text.startswith("Check the endpoint's key, model name and address, and that its server runs")
    (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert shown in logged.getMessage()


@pytest.mark.parametrize(
    "error", [StatusError(500), StatusError(429), TimeoutError("late"), ConnectionResetError(104, "reset")]
)
def test_an_outage_is_not_called_a_wrong_configuration(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedChat(default=[error])
    verdict = Guardrail(model=model, artifact=make_artifact(model)).assess("Capital of France?")
    assert verdict.uncertainty.reason is Unmeasured.MODEL_FAILED
    assert not [record for record in caplog.records if record.levelno == logging.ERROR]


def test_one_call_that_a_server_refuses_among_others_is_no_wrong_configuration() -> None:
    model = ScriptedChat(default=["Paris", StatusError(401), TimeoutError("late")])
    verdict = Guardrail(model=model, artifact=make_artifact(model)).assess("Capital of France?")
    assert verdict.uncertainty.reason is Unmeasured.MODEL_FAILED


def test_infeasible_abstains_on_everything_and_draws_no_samples() -> None:
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL, threshold=None))
    verdict = guard.assess(SURE)
    assert (verdict.accepted, verdict.reason, verdict.threshold) == (False, Reason.INFEASIBLE, None)
    assert verdict.cost.calls == 1
    assert verdict.candidate is not None
    assert verdict.candidate.text == "Paris"


def test_assess_gives_all_the_evidence() -> None:
    verdict = GUARD.assess(UNSURE)
    assert verdict.candidate is not None
    assert verdict.candidate.text == "Secretville"
    assert verdict.alternatives == (("Hiddenton", 0.4), ("Maskburg", 0.3), ("Veilham", 0.3))
    assert asyncio.run(GUARD.aassess(UNSURE)).uncertainty == verdict.uncertainty


# -- abstention paths


def test_usage_may_say_something_else_than_tokens() -> None:
    cached: Any = {"total_cost": 0}  # LangChain's, of an answer from a response cache
    answer = AIMessage("Paris").model_copy(update={"usage_metadata": cached})
    model, other = ScriptedChat(default=[answer]), ScriptedChat(name_of_model="other", default=[answer])
    nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    assert Guardrail(model=model, artifact=make_artifact(model)).invoke("?").usage_metadata == nothing
    abstaining = Guardrail(model=model, artifact=make_artifact(model, threshold=None), on_abstain=other)
    assert abstaining.invoke("?").usage_metadata == nothing


def test_another_model_takes_over_and_its_usage_is_added() -> None:
    bigger = ScriptedChat(script={UNSURE: ["There is none"]})
    message = guarded(on_abstain=bigger).invoke(UNSURE)
    assert message.content == "There is none"
    assert message.usage_metadata == {"input_tokens": 12, "output_tokens": 14, "total_tokens": 26}
    assert asyncio.run(guarded(on_abstain=bigger).ainvoke(UNSURE)).content == "There is none"


def test_a_person_receives_the_verdict_with_the_frozen_candidate() -> None:
    verdicts: list[Verdict] = []

    def person(verdict: Verdict) -> str:
        verdicts.append(verdict)
        return f"approved: {verdict.candidate.text if verdict.candidate else ''}"

    assert guarded(on_abstain=person).invoke(UNSURE).content == "approved: Secretville"
    assert verdicts[0].detail.startswith("Held back")
    assert guarded(on_abstain=person).invoke(SURE).content == "Paris"
    assert len(verdicts) == 1


def test_async_person_and_none_for_the_message() -> None:
    async def person(verdict: Verdict) -> None:
        await asyncio.sleep(0)

    guard = guarded(on_abstain=person)
    assert ABSTENTION in str(asyncio.run(guard.ainvoke(UNSURE)).content)
    with pytest.raises(UsageError, match="Use ainvoke"):
        guard.invoke(UNSURE)


def test_a_handler_with_two_required_parameters_receives_the_messages_too() -> None:
    def two(verdict: Verdict, messages: Sequence[BaseMessage]) -> str:
        return f"{verdict.reason.value}: {messages[-1].content}"

    async def awaited(verdict: Verdict, messages: Sequence[BaseMessage], *, mark: str = "!") -> str:
        return two(verdict, messages) + mark

    expected = f"above_threshold: {UNSURE}"
    assert guarded(on_abstain=two).invoke(UNSURE).content == expected
    assert asyncio.run(guarded(on_abstain=two).ainvoke(UNSURE)).content == expected
    assert asyncio.run(guarded(on_abstain=awaited).ainvoke(UNSURE)).content == f"{expected}!"
    assert guarded(on_abstain=lambda verdict, store="mine": store).invoke(UNSURE).content == "mine"
    assert guarded(on_abstain=lambda *given: str(len(given))).invoke(UNSURE).content == "1"


def test_a_slow_sync_person_does_not_block_the_loop() -> None:
    release = threading.Event()

    async def main() -> str:
        task = asyncio.create_task(guarded(on_abstain=lambda verdict: str(release.wait(10))).ainvoke(UNSURE))
        await asyncio.sleep(0)
        release.set()  # reached only if the handler does not hold the loop
        return str((await task).content)

    assert asyncio.run(main()) == "True"


def test_a_handler_must_return_something_usable() -> None:
    with pytest.raises(UsageError, match="on_abstain returned int"):
        guarded(on_abstain=lambda verdict: 3).invoke(UNSURE)


# -- drop-in


def test_stream_yields_one_chunk_after_the_verdict() -> None:
    for question in (SURE, UNSURE):
        chunks = list(GUARD.stream(question))
        assert len(chunks) == 1
        assert chunks[0].content == GUARD.invoke(question).content
        assert "guardrail" in chunks[0].response_metadata

    async def collect() -> list[Any]:
        return [chunk async for chunk in GUARD.astream(SURE)]

    assert [chunk.content for chunk in asyncio.run(collect())] == ["Paris"]


# -- misuse is refused


def test_sampling_cannot_be_changed_at_the_call() -> None:
    with pytest.raises(ArtifactMismatchError, match="temperature"):
        GUARD.invoke(SURE, temperature=0.0)
    with pytest.raises(ArtifactMismatchError, match="stop differs"):
        GUARD.invoke(SURE, stop=["x"])
    with pytest.raises(ArtifactMismatchError, match="without tools"):
        GUARD.bind_tools([Verdict])


def test_streaming_and_caching_cannot_be_switched_on() -> None:
    with pytest.raises(ValidationError):
        guarded(disable_streaming=False)
    with pytest.raises(ValidationError):
        guarded(cache=True)


def test_a_long_script_is_not_in_the_repr_that_langchain_takes_for_every_question() -> None:
    model = ScriptedChat(script={"a question?": ["an answer"]})
    assert "a question?" in model.script
    assert "a question?" not in repr(model)
