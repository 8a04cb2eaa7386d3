"""Every type of transformers' causal-LM mapping: exact where it is served, refused where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from guardrail.errors import UsageError
from integrations._local.decoding import Row, uniforms
from integrations._local.engine import Engine, Request, Response
from integrations._local.self_check import Support, self_check
from tests.integrations.local.test_parity import forced_logprobs, generated
from tests.integrations.local.tiny_families import TYPES, VOCABULARY, tiny_family

IDS = [(37 * place) % (VOCABULARY - 20) + 10 for place in range(15)]
LENGTHS = (5, 70, 300)
NEW = 12


def requests(support: Support) -> list[Request]:
    """Prompts of 5, 70 and 300 tokens, each with a greedy answer, a sample and options of one to three tokens."""
    found = []
    for place, length in enumerate(LENGTHS):
        prompt = tuple((31 * place + 7 * step * step + 3) % (VOCABULARY - 20) + 10 for step in range(length))
        rows = (Row(NEW), Row(NEW, 1.0, 0.9, uniforms(place, 1, NEW)[0]))
        options = ((20, 21, 22), (30,), (25, 40)) if support.options else ((20,), (30,))
        found.append(Request(prompt, rows, options))
    return found


def answers(model: Any, wanted: list[Request]) -> list[Response]:
    engine: Any = Engine(model, None, frozenset())  # type: ignore[arg-type]
    return engine.submit(wanted)


def check(model: Any, support: Support) -> None:
    wanted = requests(support)
    found = answers(model, wanted)
    for request, response in zip(wanted, found, strict=True):
        prompt = list(request.prompt)
        assert response.continuations[0].ids == generated(model, prompt, NEW)
        for continuation in response.continuations:
            expected = forced_logprobs(model, prompt, continuation.ids)
            assert continuation.logprobs == pytest.approx(expected, abs=2e-4)
        for ids, scores in zip(request.options, response.options, strict=True):
            assert scores == pytest.approx(forced_logprobs(model, prompt, list(ids)), abs=2e-4)
        alone = answers(model, [request])[0]
        assert [one.ids for one in alone.continuations] == [one.ids for one in response.continuations]
