"""Faults that end a request early and must not end another: no memory, a full window, an error, a cancelled call."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from langchain_core.messages import BaseMessage, HumanMessage

from guardrail.errors import GuardrailError
from guardrail.types import SamplingPlan, Unmeasured
from integrations._local.decoding import Decoder, Row, uniforms
from integrations._local.engine import DecodingRequest, automatic_budget
from integrations.transformers_chat import TransformersChat
from tests.integrations.conftest import byte_tokenizer, tiny_chat, tiny_model
from tests.integrations.local.test_coalescing import holding, wait_until_queued
from tests.integrations.local.test_draw_samples import texts

PLAN = SamplingPlan(n=7, temperature=1.1, max_tokens=6)
PROMPTS: list[list[BaseMessage]] = [[HumanMessage("x" * length)] for length in (3, 9, 4, 8)]
SEEDS = [4, 3, 2, 1]


def limit_rows(monkeypatch: pytest.MonkeyPatch, most: int, error: BaseException) -> list[int]:
    """Let decoding fail with ``error`` for batches of more than ``most`` rows; returns the widths that were tried."""
    tried: list[int] = []

    class Limited(Decoder):
        def __init__(self, model: Any, prompts: Any, rows: Any, prompt_of: Any, **settings: Any) -> None:
            tried.append(len(rows))
            if len(rows) > most:
                raise error
            super().__init__(model, prompts, rows, prompt_of, **settings)

    monkeypatch.setattr("integrations._local.engine.Decoder", Limited)
    return tried


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
        MemoryError(),
    ],
)
def test_the_batch_is_halved_and_work_goes_on(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    expected = tiny_chat().draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    chat = tiny_chat()
    tried = limit_rows(monkeypatch, 8, error)
    drawn = chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    assert tried == [32, 16, 8, 8, 16, 8, 8]
    assert [texts(sample_set) for sample_set in drawn] == [texts(sample_set) for sample_set in expected]
    tried.clear()
    chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    assert max(tried) < 32, "the smaller batch must be remembered"


def test_a_single_request_is_split_into_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows: a greedy answer, seven samples and two options."""
    plan = PLAN.model_copy(update={"options": ("yes", "hello")})
    expected = tiny_chat().draw_samples(PROMPTS[:1], plan, seeds=[5])[0]
    chat = tiny_chat()
    tried = limit_rows(monkeypatch, 3, MemoryError())
    drawn = chat.draw_samples(PROMPTS[:1], plan, seeds=[5])[0]
    assert tried == [10, 5, 3, 2, 5, 3, 2]
    assert texts(drawn) == texts(expected)
    assert drawn.options is not None
    assert expected.options is not None
    assert drawn.options.loglikelihoods == pytest.approx(expected.options.loglikelihoods, abs=1e-4)


def test_when_nothing_is_left_to_halve_the_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = tiny_chat()
    limit_rows(monkeypatch, 0, MemoryError())
    drawn = chat.draw_samples(PROMPTS[:1], PLAN, seeds=[5])[0]
    assert drawn.problem is Unmeasured.MODEL_FAILED
    assert "lower max_tokens" in drawn.problem_detail
    assert drawn.primary is None
    with pytest.raises(GuardrailError, match=r"out of memory .* lower max_tokens"):
        chat.invoke("hello")


def calls_that_raise(chat: TransformersChat) -> list[Callable[[], object]]:
    return [lambda: chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS), lambda: chat.invoke("hello")]


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = limit_rows(monkeypatch, 0, RuntimeError("a bug"))
    for call in calls_that_raise(tiny_chat()):
        tried.clear()
        with pytest.raises(RuntimeError, match="a bug"):
            call()
        assert len(tried) == 1, "an error that is not about memory must not be retried"


def test_automatic_budget_counts_cache_bytes() -> None:
    """2 layers x (keys + values) x 2 heads x 16 numbers x 4 bytes = 512 bytes a token: the upper bound applies."""
    model = tiny_chat()._local.model
    assert automatic_budget(model) == 32768
    huge = type("Config", (), {"num_hidden_layers": 80, "num_key_value_heads": 8, "head_dim": 128})
    config = type("Outer", (), {"get_text_config": lambda self, decoder: huge})
    fake = type("Model", (), {"config": config(), "dtype": torch.float32, "device": torch.device("cpu")})
    assert automatic_budget(fake) == (2 << 30) // (2 * 80 * 8 * 128 * 4)


# -- the end of the context window ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_model_that_was_used_before_a_fork_answers_in_the_child() -> None:
    """A server that forks its workers after a first answer would otherwise wait for threads that the child lacks."""
    chat = tiny_chat(max_tokens=3)
    expected = chat.invoke("x").content

    def serve() -> None:
        assert chat.invoke("x").content == expected
        assert asyncio.run(chat.ainvoke("x")).content == expected

    child = multiprocessing.get_context("fork").Process(target=serve)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0


def gpt2_chat() -> TransformersChat:
    """A model with a table of 32 positions."""
    torch.manual_seed(0)
    ids = {"vocab_size": len(byte_tokenizer()), "bos_token_id": None, "eos_token_id": byte_tokenizer().eos_token_id}
    config = transformers.GPT2Config(n_positions=32, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3, **ids)
    return TransformersChat.from_model(transformers.GPT2LMHeadModel(config), byte_tokenizer())


def test_finished_rows_stay_in_the_window() -> None:
    """Four rows decode 28 tokens; a fifth, whose prompt leaves room for two, stays in their batch meanwhile."""
    engine = gpt2_chat()._engine
    short = [DecodingRequest((place, 4, 5, 6), (Row(28, 1.0, 1.0, uniforms(place, 1, 28)[0]),)) for place in range(4)]
    options = (Row(25, given=(1,) * 25), Row(2, given=(2, 3)))
    requests = [DecodingRequest(tuple(range(30)), (Row(2),)), *short, DecodingRequest((7,), options)]
    for request, together in zip(requests, engine.submit(requests), strict=True):
        alone = engine.submit([request])[0]
        assert together.failure is None
        for one, other in zip(together.continuations, alone.continuations, strict=True):
            assert one.ids == other.ids
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert len(one.ids) in {2, 25, 28}


# -- one request's error ----------------------------------------------------------------------------------------------


def test_an_error_of_one_request_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the model does not have is an IndexError of the embedding."""
    chat = tiny_chat(max_tokens=6)
    expected = chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    ids = chat._ids
    monkeypatch.setattr(
        TransformersChat, "_ids", lambda self, text: ids(text.replace("Z", "")) + [9999] * ("Z" in text)
    )
    prompts: list[list[BaseMessage]] = [*PROMPTS, [HumanMessage("Z")]]
    drawn = chat.draw_samples(prompts, PLAN, seeds=[*SEEDS, 0])
    assert [texts(sample_set) for sample_set in drawn[:4]] == [texts(sample_set) for sample_set in expected]
    assert (drawn[4].problem, drawn[4].primary) == (Unmeasured.UNREADABLE, None), "the question may be the cause"
    assert drawn[4].problem_detail.startswith("IndexError")
    with pytest.raises(GuardrailError, match=r"tiny-llama.*IndexError") as raised:
        chat.invoke("Z")
    assert isinstance(raised.value.__cause__, IndexError)
    chat._engine.budget = 10**6
    chat.draw_samples(prompts, PLAN, seeds=[*SEEDS, 0])
    assert chat._engine.budget == 10**6, "an error that is not about memory makes no batch smaller"


def nan_chat(**settings: Any) -> TransformersChat:
    """A model whose logits are NaN wherever it has read a "Z"."""
    model = copy.deepcopy(tiny_model())
    model.model.embed_tokens.weight.data[byte_tokenizer().convert_tokens_to_ids("Z")] = float("nan")
    return TransformersChat.from_model(model, byte_tokenizer(), name="tiny", max_tokens=6, **settings)


def test_logits_that_are_not_finite_concern_one_request_and_are_never_an_answer() -> None:
    chat = nan_chat()
    expected = chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    odd: list[BaseMessage] = [HumanMessage("Z")]
    drawn = chat.draw_samples([*PROMPTS, odd], PLAN, seeds=[*SEEDS, 0])
    assert [texts(sample_set) for sample_set in drawn[:4]] == [texts(sample_set) for sample_set in expected]
    assert drawn[4].problem is Unmeasured.NOT_FINITE
    calls: list[Callable[[], object]] = [
        lambda: chat.invoke("Z"),
        lambda: chat.invoke("Z", temperature=1.0, top_p=0.9),
        lambda: list(chat.stream("Z")),
    ]
    for call in calls:
        with pytest.raises(GuardrailError, match="logits are not finite"):
            call()


# -- cancelled calls --------------------------------------------------------------------------------------------------


class Passes:
    """Counts the forward passes of a chat model, and holds the pass of a given number until it is released."""

    def __init__(self, hold: int = 0, **settings: Any) -> None:
        self.widths, self.hold = list[int](), hold
        self.held, self.release = threading.Event(), threading.Event()
        model = copy.deepcopy(tiny_model())
        self.chat = TransformersChat.from_model(model, byte_tokenizer(), **{"max_tokens": 16, **settings})
        model.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, _: Any, __: Any, inputs: dict[str, Any]) -> None:
        self.widths.append(len(inputs["input_ids"]))
        if len(self.widths) == self.hold:
            self.held.set()
            assert self.release.wait(60)

    async def cancel_while_held(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task in the middle of the held pass, and let the pass end."""
        await asyncio.to_thread(self.held.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self.release.set()


async def streamed(chat: TransformersChat, **settings: Any) -> str:
    return "".join([str(chunk.content) async for chunk in chat.astream("hello", **settings)])


CALLS: dict[str, Callable[[TransformersChat], Any]] = {
    "ainvoke": lambda chat: chat.ainvoke("hello", max_tokens=100),
    "astream": lambda chat: streamed(chat, max_tokens=100),
    "astream with a stop string that never comes": lambda chat: streamed(chat, max_tokens=100, stop=["\n\n\n\n"]),
    "abatch": lambda chat: chat.abatch(["hello", "and you"], max_tokens=100),
    "adraw_samples": lambda chat: chat.adraw_samples(
        PROMPTS, SamplingPlan(n=3, max_tokens=100, options=("yes", "hello")), seeds=SEEDS
    ),
}


@pytest.mark.parametrize("hold", [1, 2, 4])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_cancelled_call_leaves_the_model_at_once(call: Callable[[TransformersChat], Any], hold: int) -> None:
    """While the prompt is read (1) and later; no pass follows."""
    passes = Passes(hold)
    await passes.cancel_while_held(asyncio.ensure_future(call(passes.chat)))
    passes.chat._engine.threads.shutdown()  # waits for them
    assert len(passes.widths) == hold


async def test_a_cancelled_call_does_not_disturb_the_others_of_its_batch() -> None:
    """And costs them nothing: the rows of the cancelled one are gone at the next step."""
    passes = Passes(hold=3, max_tokens=40)
    chat, engine = passes.chat, passes.chat._engine
    with holding(engine):
        other = asyncio.ensure_future(chat.ainvoke("hello"))
        # Seeded: an unseeded row may end with its first token.
        task = asyncio.ensure_future(chat.agenerate([[HumanMessage("who")]], n=5, temperature=1.0, seed=1))
        await asyncio.to_thread(wait_until_queued, engine, 2)
    await passes.cancel_while_held(task)
    assert (await other).content == tiny_chat(max_tokens=40).invoke("hello").content
    assert passes.widths == [2, 6, 6, *[1] * 37]  # two prompts, two steps of all rows, and those of the other call


async def test_a_call_that_is_cancelled_while_it_waits_takes_no_pass() -> None:
    passes = Passes()
    chat = passes.chat
    with holding(chat._engine):
        tasks = [asyncio.ensure_future(chat.ainvoke("hello")), asyncio.ensure_future(streamed(chat))]
        await asyncio.to_thread(wait_until_queued, chat._engine, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    chat._engine.threads.shutdown()
    assert passes.widths == []
