"""Further questions end to end on the small trained model of the examples: measured or unmeasured, never assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langchain_core.messages import BaseMessage, HumanMessage

import examples.tiny_model
from guardrail.sampling.sampler import Sampler
from guardrail.types import SampleSet, Unmeasured
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty import measure
from guardrail.uncertainty.plan import plan_for
from guardrail.uncertainty.selfcheck import stated_confidence
from integrations.transformers_chat import TransformersChat

HERE = Path(examples.tiny_model.__file__).parent
PLAN = plan_for([make(name) for name in ("p_true", "verbalised", "word_sequence_entropy", "sar")], n=4)
COUNT = 6


@pytest.fixture(scope="module")
def model() -> TransformersChat:
    return TransformersChat(model=str(HERE / "orrin-1.5m"))


def prompts() -> list[list[BaseMessage]]:
    lines = (HERE / "questions" / "open.jsonl").read_text(encoding="utf-8").splitlines()[:COUNT]
    return [[HumanMessage(json.loads(line)["question"])] for line in lines]


@pytest.fixture(scope="module")
def sets(model: TransformersChat) -> list[SampleSet]:
    return Sampler(model, PLAN).draw(prompts())


def test_every_question_is_asked_about_and_the_cost_is_counted(sets: list[SampleSet]) -> None:
    assert [sample_set.problem for sample_set in sets] == [None] * COUNT
    assert [{name: len(replies) for name, replies in sample_set.follow_ups.items()} for sample_set in sets] == [
        {"p_true": 1, "verbalised": 1}
    ] * COUNT
    assert [sample_set.cost.calls for sample_set in sets] == [3] * COUNT


def test_p_true_is_measured_exactly(model: TransformersChat, sets: list[SampleSet]) -> None:
    values = [measure(sample_set, make("p_true"), PLAN).value for sample_set in sets]
    assert all(value is not None and 0 < value < 1 for value in values)
    assert len(set(values)) == COUNT, "exact probabilities, not answers"
    for sample_set, value in zip(sets, values, strict=True):
        (reply,) = sample_set.follow_ups["p_true"]
        assert reply.options is not None
        assert value == 1 - reply.options.probabilities[0]


def test_a_stated_confidence_is_a_number_or_unmeasured(sets: list[SampleSet]) -> None:
    for sample_set in sets:
        (reply,) = sample_set.follow_ups["verbalised"]
        assert reply.primary is not None
        stated = stated_confidence(reply.primary.text)
        measured = measure(sample_set, make("verbalised"), PLAN)
        if stated is None:
            assert measured.reason is Unmeasured.JUDGE_FAILED
        else:
            assert measured.value == 1 - stated


def test_follow_ups_leave_the_answers_as_they_are(model: TransformersChat, sets: list[SampleSet]) -> None:
    without = Sampler(model, PLAN.model_copy(update={"follow_ups": ()})).draw(prompts())
    assert [(sample_set.primary, sample_set.samples) for sample_set in without] == [
        (sample_set.primary, sample_set.samples) for sample_set in sets
    ]
