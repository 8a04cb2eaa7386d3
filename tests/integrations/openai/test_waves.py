"""A local model drawn in waves: reproducible, no sample drawn twice, and the first wave is the plan's own."""

from __future__ import annotations

import asyncio

from langchain_core.messages import HumanMessage

from guardrail.judges import ExactJudge
from guardrail.sampling.effects import arun, run
from guardrail.sampling.sampler import draw
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator as make
from tests.guardrail.guard.test_stopping import drawing
from tests.integrations.conftest import tiny_chat

PLAN = SamplingPlan(n=7, temperature=1.0, top_p=1.0, max_tokens=8)
QUESTION = "Who wrote Faust?"
NUM_SETS = make("num_sets", judge=ExactJudge())


def test_waves_are_reproducible_and_differ_from_each_other() -> None:
    chat = tiny_chat()
    # A random model repeats itself in 8 tokens with negligible probability: 7 meanings, undecided at 6.5 until the end.
    whole = run(drawing(chat, QUESTION, PLAN, 6.5, NUM_SETS)).drawn
    again = asyncio.run(arun(drawing(chat, QUESTION, PLAN, 6.5, NUM_SETS))).drawn
    texts = [sample.text for sample in whole.samples]
    assert texts == [sample.text for sample in again.samples]
    assert len(set(texts)) == len(texts) == 7
    first = draw(chat, [[HumanMessage(QUESTION)]], PLAN.model_copy(update={"n": 3}))[0]
    assert texts[:3] == [sample.text for sample in first.samples]
    assert whole.primary == first.primary


def test_it_stops_where_the_verdict_is_certain() -> None:
    drawn = run(drawing(tiny_chat(), QUESTION, PLAN, 2.0, NUM_SETS))
    assert (len(drawn.drawn.samples), drawn.drawn.cost.saved) == (3, 4)
    assert [uncertainty.value for uncertainty in drawn.settled.values()] == [3]
