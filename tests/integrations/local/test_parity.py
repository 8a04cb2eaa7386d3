"""Decoded rows against plain ``generate`` and against teacher forcing; `test_families` has every model family."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

from integrations._local.decoding import Continuation, Decoder, Row, plain, uniforms
from tests.integrations.conftest import tiny_model

# Longer than the sliding window of 8, of three lengths, so that padding and windows meet.
PROMPTS = [[7, 3, 9, 30, 31, 32, 5, 77, 78, 79, 80, 2], [5, 5, 200], list(range(40, 63))]


def generated(model: Any, prompt: list[int], length: int) -> list[int]:
    tokens = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=length,
        eos_token_id=None,
        pad_token_id=0,
    )
    new: list[int] = tokens[0, len(prompt) :].tolist()
    return new


def forced_logprobs(model: Any, prompt: list[int], answer: list[int]) -> list[float]:
    """log softmax of one whole forward pass, without any cache."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer]), use_cache=False).logits[0].double()
    values = torch.log_softmax(logits, dim=-1)
    return [float(values[len(prompt) - 1 + place, token]) for place, token in enumerate(answer)]


def decoded(model: Any, prompts: list[list[int]], rows: list[Row], order: list[int]) -> list[Continuation]:
    return Decoder(plain(model), prompts, rows, order).run()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_rows_that_end_leave_the_batch_and_change_nothing(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Rows of very different lengths and of all kinds: the batch becomes smaller several times on the way."""
    model = tiny_model(family)
    lengths, kinds = [1, 2, 3, 4, 9, 20], [(1.0, 1.0), (0.0, 1.0), (1.5, 0.8)]
    rows = [Row(length, *kinds[place % 3], uniforms(place, 1, 20)[0]) for place, length in enumerate(lengths)]
    widths: list[int] = []
    choose = Decoder._choose

    def counted(self: Decoder, ids: Any, logits: Any) -> Any:
        widths.append(len(logits))
        return choose(self, ids, logits)

    monkeypatch.setattr(Decoder, "_choose", counted)
    results = decoded(model, PROMPTS[:2], rows, [0, 1, 0, 1, 0, 1])
    # 6 rows, 5 after the first step; gone at three quarters or less: 3 of 5 (after the third), 2 of 3, 1 of 2.
    assert widths == [6, 5, 5, 3, *[2] * 5, *[1] * 11]
    for place, row in enumerate(rows):
        alone = decoded(model, [PROMPTS[place % 2]], [row], [0])[0]
        assert results[place].ids == alone.ids
        assert len(alone.ids) == lengths[place]


def test_given_tokens_are_read_and_nothing_is_chosen() -> None:
    """An option is such a row: its log-probabilities are those of its tokens, whatever the model would have written."""
    model = tiny_model()
    given = (9, 1, 1, 30)  # 1 is an end token, which ends no option
    option, answer = Decoder(
        plain(model), PROMPTS[:1], [Row(4, given=given), Row(6)], [0, 0], end_ids=frozenset({1})
    ).run()
    assert option.ids == list(given)
    assert option.logprobs == pytest.approx(forced_logprobs(model, PROMPTS[0], list(given)), abs=2e-4)
    assert answer.ids == generated(model, PROMPTS[0], 6)


def test_settings_of_the_models_generation_config_are_not_applied() -> None:
    """A penalty would move every log-probability, and the caller's model keeps its settings."""
    model = copy.copy(tiny_model())
    model.generation_config = transformers.GenerationConfig(
        repetition_penalty=5.0, top_k=1, suppress_tokens=list(range(100)), min_new_tokens=5, forced_eos_token_id=107
    )
    row = Row(12, 1.0, 1.0, uniforms(1, 1, 12)[0])
    assert decoded(model, PROMPTS[:1], [row], [0]) == decoded(tiny_model(), PROMPTS[:1], [row], [0])
    assert model.generation_config.repetition_penalty == 5.0
