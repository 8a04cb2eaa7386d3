"""llama-server runs the very model that transformers runs: the same token ids, answers and probabilities."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

from calibrate import Question
from guardrail.prompting import PromptWrapping
from guardrail.types import SampleSet, SamplingPlan
from tests.peers.conftest import questions
from tests.peers.servers import WEIGHTS, Peer

ROUNDING = 1e-3
"""Nats. Both compute in 32-bit floats, in another order: 3.3e-5 was the largest difference measured."""
AGREEING = 0.99
"""Share of greedy answers that must be equal. All were; two tokens equally likely may be ordered by rounding."""


def _post(peer: Peer, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(peer.root + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


@pytest.mark.parametrize("name", ["open", "choice"])
def test_prompts_have_the_same_token_ids(llama: Peer, name: str) -> None:
    tokenizer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(WEIGHTS)
    for question in questions(name)[:200]:
        (message,) = PromptWrapping().messages(question.question, question.options)
        turns = [{"role": "user", "content": message.content}]
        ours = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        prompt = _post(llama, "/apply-template", {"messages": turns})["prompt"]
        request = {"content": prompt, "add_special": False, "parse_special": True}
        assert _post(llama, "/tokenize", request)["tokens"] == ours, message.content


def _both(llama: Peer, local: Any, rows: list[Question], plan: SamplingPlan) -> list[tuple[SampleSet, SampleSet]]:
    prompts = [PromptWrapping().messages(question.question, question.options) for question in rows]
    seeds = [0] * len(prompts)
    here = local.draw_samples(prompts, plan, seeds=seeds)
    return list(zip(here, llama.chat().draw_samples(prompts, plan, seeds=seeds), strict=True))


def test_greedy_answers_and_their_log_probabilities_agree(llama: Peer, local: Any) -> None:
    plan = SamplingPlan(n=0, max_tokens=16, temperature=1.0, top_p=1.0, logprobs=True)
    pairs = _both(llama, local, questions("open")[:200], plan)
    answers = [(here.primary, there.primary) for here, there in pairs]
    equal = [(a, b) for a, b in answers if a is not None and b is not None and a.text == b.text]
    assert len(equal) >= AGREEING * len(pairs)
    for here, there in equal:
        assert there.logprobs == pytest.approx(here.logprobs, abs=ROUNDING)


def test_option_probabilities_agree(llama: Peer, local: Any) -> None:
    plan = SamplingPlan(n=0, max_tokens=4, temperature=1.0, top_p=1.0, options=("A", "B", "C", "D"))
    for here, there in _both(llama, local, questions("choice")[:200], plan):
        assert here.options is not None
        assert there.options is not None
        assert there.options.loglikelihoods == pytest.approx(here.options.loglikelihoods, abs=ROUNDING)
