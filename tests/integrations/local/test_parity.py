"""The decoding loop against ``generate`` and against teacher forcing, on every model family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from integrations._local.decoding import Decoder, Row, prefill, uniforms
from tests.integrations.conftest import FAMILIES, tiny_model

# Longer than the sliding window of 8, of three lengths, so that padding and windows meet.
PROMPTS = [[7, 3, 9, 30, 31, 32, 5, 77, 78, 79, 80, 2], [5, 5, 200], list(range(40, 63))]
NO_END: frozenset[int] = frozenset()


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


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_token_by_token(family: str) -> None:
    model = tiny_model(family)
    expected = [generated(model, prompt, 20) for prompt in PROMPTS]
    rows = [Row(20) for _ in PROMPTS]
    batched = Decoder(prefill(model, PROMPTS), rows, end_ids=NO_END).run()
    assert [result.ids for result in batched] == expected
    assert len({token for ids in expected for token in ids}) > 5, "the model repeats itself: parity would prove little"
    for prompt, ids in zip(PROMPTS, expected, strict=True):
        alone = Decoder(prefill(model, [prompt]), [Row(20)], end_ids=NO_END).run()
        assert alone[0].ids == ids


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_samples_equal_teacher_forcing(family: str) -> None:
    model = tiny_model(family)
    order = [0, 0, 1, 2, 2]
    rows = [Row(14, 1.5, 0.9 if place % 2 else 1.0, uniforms(place, 1, 14)[0]) for place in range(5)]
    results = Decoder(prefill(model, PROMPTS).expand(order, room=14), rows, end_ids=NO_END).run()
    for prompt, result in zip(order, results, strict=True):
        expected = forced_logprobs(model, PROMPTS[prompt], result.ids)
        assert result.logprobs == pytest.approx(expected, abs=2e-4)
    assert results[0].ids != results[1].ids


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_dropping_finished_rows_changes_nothing(family: str) -> None:
    """Rows of very different lengths: the batch is compacted several times on the way."""
    model = tiny_model(family)
    lengths = [1, 2, 3, 4, 9, 20]
    rows = [Row(length, 1.0, 1.0, uniforms(place, 1, 20)[0]) for place, length in enumerate(lengths)]
    widths: list[int] = []
    decoder = Decoder(prefill(model, PROMPTS[:2]).expand([0, 1, 0, 1, 0, 1], room=6), rows, end_ids=NO_END)
    while decoder.running:
        decoder.step()
        widths.append(decoder._prefix.logits.shape[0])
    assert widths[0] == 6
    assert widths[-2] == 1, "finished rows were kept to the end"
    for place, row in enumerate(rows):
        alone = Decoder(prefill(model, [PROMPTS[place % 2]]), [row], end_ids=NO_END).run()[0]
        assert decoder.results[place].ids == alone.ids
        assert len(alone.ids) == lengths[place]


def test_looking_rarely_changes_no_result() -> None:
    """On accelerators the host looks every few steps; what was computed in vain must not show."""
    model = tiny_model()
    rows = [Row(13, 1.0, 0.8, uniforms(place, 1, 13)[0]) for place in range(4)]
    often, rarely = (
        Decoder(
            prefill(model, PROMPTS[:1]).expand([0] * 4), rows, end_ids=frozenset(range(0, 271, 7)), sync_every=k
        ).run()
        for k in (1, 8)
    )
    assert [(result.ids, result.ended) for result in often] == [(result.ids, result.ended) for result in rarely]
    assert {len(result.ids) for result in often} != {13}, "no row met an end token"
    assert all(result.ids[-1] % 7 == 0 for result in often if result.ended)
