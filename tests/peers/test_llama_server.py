"""The full peer, llama-server: it supports everything that `OpenAICompatibleChat` uses, and a guard works on it."""

from __future__ import annotations

import asyncio
import functools
import gc
import operator
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import BaseModel

from guardrail import Guardrail
from guardrail.sampling.prober import probe
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.plan import plan_for
from tests.peers import servers
from tests.peers.conftest import questions
from tests.peers.servers import Peer

QUESTION = "Who rules Riadrin?"
VARIED = SamplingPlan(n=8, temperature=1.0, top_p=1.0, max_tokens=12)


def _prompts(count: int) -> list[list[BaseMessage]]:
    return [[HumanMessage(question.question)] for question in questions("open")[:count]]


def test_the_probe_finds_everything_in_order(llama: Peer) -> None:
    plan = SamplingPlan(n=5, logprobs=True)
    report, cost = probe(llama.chat(), plan)
    assert report is not None
    assert report.problem(plan) is None
    assert (report.n, report.temperature, report.seed, report.logprobs) == (True,) * 4
    assert report.basis == "raw"
    assert report.fingerprint
    assert cost.calls == 7  # four, one later, and two greedy answers that show the weights


def test_n_samples_come_in_one_request_once_the_probe_has_seen_it_work(llama: Peer) -> None:
    chat = llama.chat()
    (unprobed,) = chat.draw_samples(_prompts(1), VARIED, seeds=[1])
    probe(chat, VARIED)
    (probed,) = chat.draw_samples(_prompts(1), VARIED, seeds=[1])
    assert [len(unprobed.samples), unprobed.cost.calls] == [8, 9]
    assert [len(probed.samples), probed.cost.calls] == [8, 2]


def test_samples_of_one_request_are_different_draws(llama: Peer) -> None:
    sets = llama.chat(several_per_call=True).draw_samples(_prompts(40), VARIED, seeds=range(40))
    varied = sum(len({sample.text for sample in drawn.samples}) > 1 for drawn in sets)
    assert all(drawn.problem is None and len(drawn.samples) == 8 for drawn in sets)
    assert varied >= 20  # it would be 0 if all samples had the seed of the request


def test_a_seed_repeats_a_sample_set_and_another_seed_does_not(llama: Peer) -> None:
    chat = llama.chat(several_per_call=True)

    def texts(seed: int) -> list[tuple[str, ...]]:
        sets = chat.draw_samples(_prompts(20), VARIED, seeds=[seed] * 20)
        return [tuple(sample.text for sample in drawn.samples) for drawn in sets]

    first, again, other = texts(1), texts(1), texts(2)
    assert sum(a == b for a, b in zip(first, again, strict=True)) >= 19  # rounding depends on what else is in a batch
    assert sum(a == b for a, b in zip(first, other, strict=True)) <= 15


def test_log_probabilities_come_with_the_bytes_of_the_answer(llama: Peer) -> None:
    message = llama.chat(temperature=0.0, logprobs=True).invoke(QUESTION)
    tokens = message.response_metadata["logprobs"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == message.text
    assert all(token["logprob"] <= 0 for token in tokens)


class Answer(BaseModel):
    """A schema of short values only, so that the longest answer is known."""

    letter: Literal["A", "B"]
    sure: bool


def test_structured_output_is_held_to_its_schema(llama: Peer) -> None:
    chat = llama.chat(max_tokens=250)  # the model pads with white space, of which the schema's grammar allows a lot
    for seed in range(5):
        assert isinstance(chat.with_structured_output(Answer).invoke(QUESTION, seed=seed), Answer)


class Text(BaseModel):
    """A schema whose text has no limit."""

    text: str


def test_structured_output_cut_short_is_an_error_and_not_an_answer(llama: Peer) -> None:
    asking = llama.chat(max_tokens=40).with_structured_output(Text, include_raw=True)
    replies = [asking.invoke(QUESTION, seed=seed) for seed in range(8)]
    cut = [
        reply
        for reply in replies
        if isinstance(reply, dict) and reply["raw"].response_metadata["finish_reason"] == "length"
    ]
    assert cut
    for reply in cut:  # LangChain's parser alone would close the text and return it
        assert reply["parsed"] is None
        assert "cut off" in str(reply["parsing_error"])


async def test_streaming_gives_the_same_answer_in_pieces(llama: Peer) -> None:
    chat = llama.chat(temperature=0.0)
    whole = chat.invoke(QUESTION)
    for chunks in (list(chat.stream(QUESTION)), [chunk async for chunk in chat.astream(QUESTION)]):
        joined = functools.reduce(operator.add, chunks)
        assert len(chunks) > 2
        assert joined.text == whole.text
        assert joined.usage_metadata == whole.usage_metadata
        assert joined.response_metadata["finish_reason"] == "stop"


def test_a_prompt_that_does_not_fit_abstains(llama: Peer) -> None:
    (drawn,) = llama.chat().draw_samples([[HumanMessage("word " * 900)]], VARIED, seeds=[1])
    assert drawn.problem is Unmeasured.REJECTED
    assert "exceed" in drawn.problem_detail


def test_a_guard_accepts_by_threshold_and_counts_its_requests(llama: Peer) -> None:
    chat = llama.chat()
    guard = Guardrail(model=chat, artifact=make_artifact(chat, estimator="semantic_entropy", threshold=99.0))
    first, second = guard.assess("Compute 20 times 2."), guard.assess(QUESTION)
    assert first.accepted
    assert first.cost.calls == 7 + 2  # the probe, the greedy answer, and ten samples in one
    assert second.cost.calls == 2
    strict = Guardrail(model=chat, artifact=make_artifact(chat, estimator="semantic_entropy", threshold=-1.0))
    assert not strict.assess(QUESTION).accepted


async def test_concurrent_async_verdicts_equal_the_sync_ones(llama: Peer) -> None:
    chat = llama.chat()
    guard = Guardrail(model=chat, artifact=make_artifact(chat, threshold=0.5))
    texts = [question.question for question in questions("open")[:16]]
    together = await asyncio.gather(*(guard.aassess(question) for question in texts))
    alone = [guard.assess(question) for question in texts]
    assert all(verdict.uncertainty.value is not None for verdict in together)
    # The seed is the question's, so the samples are; rounding may move one.
    assert sum(a.samples == b.samples for a, b in zip(together, alone, strict=True)) >= 15


def test_connections_close_with_the_loop_also_when_their_model_went_first(llama: Peer) -> None:
    async def ask() -> None:
        chat = llama.chat()
        await asyncio.gather(*(chat.ainvoke(QUESTION) for _ in range(8)))

    async def main() -> None:
        await ask()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(main())
        gc.collect()
    assert not warned


def test_a_server_that_dies_abstains(llama: Peer, tmp_path: Path) -> None:
    binary = servers.llama_server()
    assert binary is not None
    with servers.running_llama(binary, tmp_path) as peer:
        chat = peer.chat(max_retries=0)
        guard = Guardrail(model=chat, artifact=make_artifact(chat, threshold=99.0), remember=0)
        assert guard.assess(QUESTION).accepted
    verdict = guard.assess(QUESTION)
    assert not verdict.accepted
    assert verdict.uncertainty.reason is Unmeasured.MISCONFIGURED


@pytest.mark.parametrize("name", ["discrete_semantic_entropy", "semantic_entropy"])
def test_langchains_own_class_works_through_the_generic_sampler(llama: Peer, name: str) -> None:
    chat_openai: Any = pytest.importorskip("langchain_openai").ChatOpenAI
    model = chat_openai(model=llama.model, base_url=llama.url, api_key="none")
    guard = Guardrail(model=model, artifact=make_artifact(model, estimator=name, threshold=99.0), remember=0)
    first, second = guard.assess(QUESTION), guard.assess(QUESTION)
    assert first.accepted
    assert len(first.samples) == 10
    assert len(set(first.samples) | set(second.samples)) > 1
    assert second.cost.calls == 11
    assert plan_for([make(name)]).logprobs == (name == "semantic_entropy")
