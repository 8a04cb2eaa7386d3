"""The samples of a second stage, from a local model: reproducible, and none is the sampled answer over again."""

from __future__ import annotations

import asyncio

from langchain_core.messages import HumanMessage

from guardrail.sampling.sampler import Sampler
from guardrail.types import SamplingPlan
from tests.integrations.conftest import tiny_chat

PLAN = SamplingPlan(n=4, temperature=1.0, top_p=1.0, max_tokens=8, primary="sampled")
PROMPT = [HumanMessage("Who wrote Faust?")]


def test_the_second_stage_is_reproducible_and_differs_from_the_answer() -> None:
    """A sample drawn with the seed of the answer would agree with it, and the answer would look certain."""
    chat = tiny_chat()
    (first,) = Sampler(chat, PLAN.model_copy(update={"n": 0})).draw([PROMPT])
    (rest,) = Sampler(chat, PLAN, primary=False).draw([PROMPT])
    (again,) = asyncio.run(Sampler(chat, PLAN, primary=False).adraw([PROMPT]))
    assert first.primary is not None
    texts = [sample.text for sample in rest.samples]
    assert texts == [sample.text for sample in again.samples]
    # A random model repeats itself in 8 tokens with negligible probability.
    assert len({first.primary.text, *texts}) == 5
