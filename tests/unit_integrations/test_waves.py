"""A local model drawn in waves: reproducible, no sample drawn twice, and the first wave is the plan's own."""

from __future__ import annotations

import asyncio

from langchain_core.messages import HumanMessage

from guardrail.guard.early_stopping import adraw_until_decided, draw_until_decided
from guardrail.judges import ExactJudge
from guardrail.sampling.sampler import draw
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make
from tests.unit_integrations.conftest import tiny_chat

PLAN = SamplingPlan(n=7, temperature=1.0, top_p=1.0, max_tokens=8)
ASKED = [HumanMessage("Who wrote Faust?")]
NUM_SETS = make("num_sets", judge=ExactJudge())


def test_waves_are_reproducible_and_differ_from_each_other() -> None:
    chat = tiny_chat()
    # A random model repeats itself in 8 tokens with negligible probability: 7 meanings, undecided at 6.5 until the end.
    whole = draw_until_decided(chat, ASKED, PLAN, NUM_SETS, 6.5).drawn
    again = asyncio.run(adraw_until_decided(chat, ASKED, PLAN, NUM_SETS, 6.5)).drawn
    texts = [sample.text for sample in whole.samples]
    assert texts == [sample.text for sample in again.samples]
    assert len(set(texts)) == len(texts) == 7
    first = draw(chat, [ASKED], PLAN.model_copy(update={"n": 3}))[0]
    assert texts[:3] == [sample.text for sample in first.samples]
    assert whole.primary == first.primary


def test_it_stops_where_the_verdict_is_certain() -> None:
    found = draw_until_decided(tiny_chat(), ASKED, PLAN, NUM_SETS, 2.0)
    assert (len(found.drawn.samples), found.drawn.cost.saved) == (3, 4)
    assert found.uncertainty is not None
    assert found.uncertainty.value == 3
