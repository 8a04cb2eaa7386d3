"""``max_concurrency`` bounds the requests to an endpoint, wherever it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from guardrail import Guardrail
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

QUESTIONS = [f"Question {number}?" for number in range(6)]
MOST = 4


@dataclass
class Counting(Endpoint):
    """An endpoint that counts the requests in flight."""

    in_flight: int = 0
    most: int = 0

    async def _answer(self, *args: Any) -> bool:
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            return await super()._answer(*args)
        finally:
            self.in_flight -= 1


@pytest.fixture
def endpoint() -> Iterator[Counting]:
    with serving(Counting(latency=0.01)) as running:
        assert isinstance(running, Counting)
        yield running


def chat(endpoint: Counting, **settings: Any) -> OpenAICompatibleChat:
    return OpenAICompatibleChat(model="m", base_url=endpoint.url, api_key="k", **settings)


def guard(model: OpenAICompatibleChat, **settings: Any) -> Guardrail:
    return Guardrail(model=model, artifact=make_artifact(model, n=5), probe="off", **settings)


def test_without_a_limit_the_requests_of_a_question_are_sent_together(endpoint: Counting) -> None:
    """The control: a limit that is always there would make every answer slow."""
    guard(chat(endpoint)).assess(QUESTIONS[0])
    assert endpoint.most == 6


def test_the_limit_of_a_model_holds_for_all_questions_in_threads_and_on_loops(endpoint: Counting) -> None:
    """Sixteen questions at once had 64 requests in flight with 4 asked for, and servers answered 429."""
    model = chat(endpoint, max_concurrency=MOST)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(guard(model).assess, QUESTIONS))
    assert endpoint.most == MOST

    async def together() -> None:
        await asyncio.gather(*map(guard(model, remember=0).aassess, QUESTIONS))

    asyncio.run(together())
    asyncio.run(model.abatch(["q"] * 9))
    assert (endpoint.most, endpoint.requests) == (MOST, 2 * 6 * 6 + 9)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_limit_of_a_guard_holds_for_one_question(endpoint: Counting, asynchronous: bool) -> None:
    guarded = guard(chat(endpoint), max_concurrency=MOST)
    verdict = asyncio.run(guarded.aassess("q")) if asynchronous else guarded.assess("q")
    assert (endpoint.most, verdict.cost.calls) == (MOST, 6)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_limit_of_a_configuration_holds_for_a_whole_batch(endpoint: Counting, asynchronous: bool) -> None:
    guarded, config = guard(chat(endpoint)), {"max_concurrency": MOST}
    if asynchronous:
        asyncio.run(guarded.abatch(QUESTIONS, config))  # type: ignore[arg-type]
    else:
        guarded.batch(QUESTIONS, config)  # type: ignore[arg-type]
    assert (endpoint.most, endpoint.requests) == (MOST, 36)


async def test_a_question_in_a_thread_of_a_loop_does_not_wait_for_the_loop(endpoint: Counting) -> None:
    """A blocking call on the loop that waits for a slot of a task on that loop would wait for ever."""
    verdict = guard(chat(endpoint)).assess("q", {"max_concurrency": 1})
    assert (endpoint.most, verdict.cost.calls) == (1, 6)


def test_the_limit_of_a_collection_holds(endpoint: Counting, tmp_path: Path) -> None:
    """``calibrate collect max_concurrency`` was ignored for endpoints."""
    questions = [Question(id=text, question=text) for text in QUESTIONS]
    plan = SamplingPlan(n=5, cut_off="abstain")
    collect_records(questions, chat(endpoint), plan, tmp_path / "r.jsonl", max_concurrency=MOST, probe="off")
    assert (endpoint.most, endpoint.requests) == (MOST, 36)
    endpoint.most = 0
    collect_records(questions[:1], chat(endpoint), plan, tmp_path / "probed.jsonl", max_concurrency=2)
    assert endpoint.most == 2  # the four calls of the probe, too


def test_time_that_a_request_waits_for_its_turn_does_not_count(endpoint: Counting) -> None:
    """Otherwise a limit would turn the last samples of a busy hour into failures."""
    endpoint.latency = 0.2
    verdict = guard(chat(endpoint, max_concurrency=1, timeout=0.6, max_retries=0)).assess("q")
    assert (verdict.uncertainty.measured, verdict.cost.calls) == (True, 6)
