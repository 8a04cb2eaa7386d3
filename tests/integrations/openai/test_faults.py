"""Faulty endpoints behind a guard: no acceptance without a score, no hang, no lost or doubled request, nothing left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from guardrail import AbstainedError, Guardrail, SamplingPlan, Unmeasured, Verdict
from guardrail.testing import make_artifact
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, eventually

DEADLINE = 1.0
"""For servers that hang, and for nothing else: a busy machine may lose a second before it sends a request."""
PATIENCE = 60.0
DISCRETE = "discrete_semantic_entropy"


def guarded(endpoint: Endpoint, *, estimator: str = DISCRETE, n: int = 4, **settings: Any) -> Guardrail:
    """A guard that raises its verdict when it abstains."""
    model = OpenAICompatibleChat(**{"model": "m", "base_url": endpoint.url, "timeout": PATIENCE, **settings})
    return Guardrail(
        model=model, artifact=make_artifact(model, estimator=estimator, n=n), on_abstain="raise", remember=0
    )


def test_a_server_that_is_not_there_is_named_and_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    model = OpenAICompatibleChat(model="m", base_url="http://127.0.0.1:1/v1", timeout=PATIENCE)
    verdict = Guardrail(model=model, artifact=make_artifact(model)).assess("sure?")
    assert verdict.uncertainty.reason is Unmeasured.MISCONFIGURED
    assert any(record.levelname == "ERROR" for record in caplog.records)


def by_invoke(guard: Guardrail) -> None:
    guard.invoke("sure?")


def by_ainvoke(guard: Guardrail) -> None:
    asyncio.run(guard.ainvoke("sure?"))


def by_batch(guard: Guardrail) -> None:
    guard.batch(["sure?"])


def by_stream(guard: Guardrail) -> None:
    for chunk in guard.stream("sure?"):
        pytest.fail(f"{chunk.content!r} left the guard")


WAYS = (by_invoke, by_ainvoke, by_batch, by_stream)


def each_way(*modes: str) -> pytest.MarkDecorator:
    """Every mode by every way; `make test` takes two ways for each mode, in turn."""
    return pytest.mark.parametrize(
        ("mode", "way"),
        [
            pytest.param(mode, way, marks=() if (j - i) % len(WAYS) < 2 else pytest.mark.slow)
            for i, mode in enumerate(modes)
            for j, way in enumerate(WAYS)
        ],
    )


HANGING = ("stall", "trickle", "trickle_head")
"""Faults that nothing but the deadline ends."""
FAULTS = {
    "429": Unmeasured.MODEL_FAILED,
    "500": Unmeasured.MODEL_FAILED,
    "400": Unmeasured.REJECTED,
    "reset": Unmeasured.MODEL_FAILED,
    "stall": Unmeasured.MODEL_FAILED,
    "trickle": Unmeasured.MODEL_FAILED,
    "trickle_head": Unmeasured.MODEL_FAILED,
    "deep": Unmeasured.UNREADABLE,
    "truncated": Unmeasured.UNREADABLE,
    "html": Unmeasured.MODEL_FAILED,
    "list": Unmeasured.UNREADABLE,
    "empty": Unmeasured.UNREADABLE,
    "huge": Unmeasured.UNREADABLE,
    "one_too_many": Unmeasured.SAMPLING_SHORTFALL,
    "refusal": Unmeasured.REFUSED,
    "content_filter": Unmeasured.REFUSED,
    "temperature_ignored": Unmeasured.DEGENERATE_SAMPLES,
}


def held_back(way: Callable[[Guardrail], None], guard: Guardrail) -> Verdict:
    with pytest.raises(AbstainedError) as caught:
        way(guard)
    return caught.value.verdict


def counted(endpoint: Endpoint, verdict: Verdict, before: int = 0) -> bool:
    """Whether a verdict counts the requests that arrived. One sent at the deadline's last moment may still be read."""
    return eventually(lambda: verdict.cost.calls == endpoint.requests - before)


@each_way(*FAULTS)
def test_a_fault_from_the_start_is_held_back_and_counted(endpoint: Endpoint, mode: str, way: Any) -> None:
    guard = guarded(endpoint, max_retries=1, timeout=DEADLINE if mode in HANGING else PATIENCE)
    endpoint.mode = mode
    started = time.monotonic()
    verdict = held_back(way, guard)
    assert (verdict.accepted, verdict.uncertainty.value) == (False, None)
    assert counted(endpoint, verdict)
    # A probe and then the one answer that a person may look at: two deadlines, with room for a busy machine.
    assert mode not in HANGING or time.monotonic() - started < 2 * DEADLINE + 5


@each_way(*(mode for mode in FAULTS if mode != "temperature_ignored"))
def test_a_fault_after_the_probe_is_held_back_with_its_reason(endpoint: Endpoint, mode: str, way: Any) -> None:
    guard = guarded(endpoint, max_retries=0)
    before_the_fault = guard.assess("sure?")
    assert before_the_fault.accepted, before_the_fault.detail
    before = endpoint.requests
    endpoint.mode = mode
    if mode in HANGING:
        assert isinstance(guard.model, OpenAICompatibleChat)
        guard.model.timeout = DEADLINE
    verdict = held_back(way, guard)
    assert verdict.uncertainty.reason is FAULTS[mode], verdict.detail
    assert counted(endpoint, verdict, before)


@each_way("nan", "-inf", "no_logprobs", "scaled")
def test_log_probabilities_that_cannot_be_used(endpoint: Endpoint, mode: str, way: Any) -> None:
    guard = guarded(endpoint, estimator="semantic_entropy")
    endpoint.mode = mode
    verdict = held_back(way, guard)
    assert verdict.uncertainty.reason is Unmeasured.NO_LOGPROBS
    assert verdict.cost.calls == endpoint.requests


def test_n_ignored_costs_single_calls_and_is_measured(endpoint: Endpoint) -> None:
    endpoint.mode = "n_ignored"
    guard = guarded(endpoint)
    verdict = guard.assess("sure?")
    assert verdict.accepted
    assert verdict.cost.calls == endpoint.requests == 6 + 1 + 4  # the probe asks once more without n


def test_n_ignored_after_the_probe_is_a_shortfall(endpoint: Endpoint) -> None:
    guard = guarded(endpoint)
    assert guard.assess("sure?").accepted
    endpoint.mode = "n_ignored"
    verdict = held_back(by_invoke, guard)
    assert verdict.uncertainty.reason is Unmeasured.SAMPLING_SHORTFALL
    assert "asked for 4 answers in a call, received 1" in verdict.detail


def test_one_bad_request_of_many_does_not_accept(endpoint: Endpoint) -> None:
    guard = guarded(endpoint, several_per_call=False, max_retries=0)
    assert guard.assess("sure?").accepted
    endpoint.mode, endpoint.faults = "500", 1
    verdict = held_back(by_invoke, guard)
    assert "1 of 5 calls failed, the first with ReplyError (HTTP status 500" in verdict.detail
    assert guard.assess("sure?").accepted  # it is well again


def test_a_passing_fault_is_ridden_out_by_retries(endpoint: Endpoint) -> None:
    guard = guarded(endpoint, timeout=20)
    assert guard.assess("sure?").accepted
    for mode in ("429", "500", "reset"):
        before = endpoint.requests
        endpoint.mode, endpoint.faults = mode, 1
        verdict = guard.assess("sure?")
        assert verdict.accepted
        assert verdict.cost.calls == endpoint.requests - before == 3


@pytest.mark.parametrize("pairs", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_many_guarded_calls_at_once(endpoint: Endpoint, pairs: int) -> None:
    guard = guarded(endpoint, n=2, timeout=120)
    questions = ["sure?", "other?"] * pairs

    async def main() -> list[Any]:
        return await asyncio.gather(*(guard.ainvoke(question) for question in questions))

    messages = asyncio.run(main())
    assert [message.content for message in messages] == ["Paris", "Rome"] * pairs
    calls = [message.response_metadata["guardrail"]["cost"]["calls"] for message in messages]
    assert sum(calls) == endpoint.requests == pairs * 4 + 5
    assert eventually(lambda: endpoint.open == 0)


def test_cancellation_frees_everything(endpoint: Endpoint) -> None:
    guard = guarded(endpoint, timeout=60)

    async def main() -> None:
        assert (await guard.aassess("sure?")).accepted
        idle = endpoint.open
        endpoint.mode = "stall"
        endpoint.stalled.clear()
        others = asyncio.all_tasks()
        task = asyncio.create_task(guard.ainvoke("sure?"))
        await asyncio.to_thread(endpoint.stalled.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == others
        assert await asyncio.to_thread(eventually, lambda: endpoint.open <= idle)
        endpoint.mode = "ok"
        assert (await guard.aassess("sure?")).accepted

    asyncio.run(main())
    assert eventually(lambda: endpoint.open == 0)


def test_two_guards_on_one_model_do_not_mix(endpoint: Endpoint) -> None:
    model = OpenAICompatibleChat(model="m", base_url=endpoint.url, timeout=60, temperature=0.3)
    plans = [SamplingPlan(n=3, temperature=0.5, max_tokens=11), SamplingPlan(n=2, temperature=1.1, max_tokens=22)]
    guards = []
    for plan in plans:
        artifact = make_artifact(model, estimator=DISCRETE)
        guards.append(Guardrail(model=model, artifact=artifact.model_copy(update={"plan": plan}), remember=0))
    before = model.model_dump()

    async def main() -> None:
        await guards[0].aassess("sure?")
        endpoint.bodies.clear()
        calls = [guard.aassess(question) for guard in guards for question in ("sure?", "unsure?") for _ in range(20)]
        await asyncio.gather(*calls)

    asyncio.run(main())
    settings = sorted((body["max_tokens"], body["temperature"], body.get("n", 1)) for body in endpoint.bodies)
    assert settings == sorted([(11, 0.0, 1), (11, 0.5, 3), (22, 0.0, 1), (22, 1.1, 2)] * 40)
    assert model.model_dump() == before
