"""Out of memory: batches are halved, then the rows of a single request; results stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from langchain_core.messages import BaseMessage, HumanMessage

from guardrail.errors import GuardrailError
from guardrail.types import SamplingPlan, Unmeasured
from integrations._local.decoding import Decoder
from integrations._local.engine import automatic_budget
from integrations.transformers_chat import TransformersChat
from tests.integrations.conftest import tiny_chat
from tests.integrations.local.test_draw_samples import texts

PLAN = SamplingPlan(n=7, temperature=1.1, max_tokens=6, options=("yes", "hello"))
PROMPTS: list[list[BaseMessage]] = [[HumanMessage("x" * length)] for length in (3, 9, 4, 8)]
SEEDS = [4, 3, 2, 1]


def limit_rows(monkeypatch: pytest.MonkeyPatch, most: int, error: BaseException) -> list[int]:
    """Let decoding fail with ``error`` for batches of more than ``most`` rows; returns the widths that were tried."""
    tried: list[int] = []

    class Limited(Decoder):
        def __init__(self, prefix: Any, rows: Any, **settings: Any) -> None:
            tried.append(len(rows))
            if len(rows) > most:
                raise error
            super().__init__(prefix, rows, **settings)

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
    found = chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    assert tried == [32, 16, 8, 8, 16, 8, 8]
    assert [texts(sample_set) for sample_set in found] == [texts(sample_set) for sample_set in expected]
    tried.clear()
    chat.draw_samples(PROMPTS, PLAN, seeds=SEEDS)
    assert max(tried) < 32, "the smaller batch must be remembered"


def test_a_single_request_is_split_into_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tiny_chat().draw_samples(PROMPTS[:1], PLAN, seeds=[5])[0]
    tried = limit_rows(monkeypatch, 2, MemoryError())
    found = tiny_chat().draw_samples(PROMPTS[:1], PLAN, seeds=[5])[0]
    assert tried == [8, 4, 2, 2, 4, 2, 2]
    assert texts(found) == texts(expected)
    assert found.options is not None
    assert expected.options is not None
    assert found.options.loglikelihoods == pytest.approx(expected.options.loglikelihoods, abs=1e-4)


def test_when_nothing_is_left_to_halve_the_request_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = tiny_chat()
    limit_rows(monkeypatch, 0, MemoryError())
    found = chat.draw_samples(PROMPTS[:1], PLAN, seeds=[5])[0]
    assert found.problem is Unmeasured.MODEL_FAILED
    assert "lower max_tokens" in found.problem_detail
    assert found.primary is None
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
