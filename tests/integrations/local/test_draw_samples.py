"""`TransformersChat.draw_samples` against the contract of `NativeSampler`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatResult

from guardrail.errors import PromptTooLongError, UsageError
from guardrail.sampling.sampler import Sampler
from guardrail.types import Sample, SamplingPlan
from integrations.transformers_chat import TransformersChat
from tests.integrations.conftest import byte_tokenizer, tiny_chat, tiny_model
from tests.integrations.local.test_parity import forced_logprobs, generated

PLAN = SamplingPlan(n=4, temperature=1.3, top_p=0.95, max_tokens=12, logprobs=True)
PROMPTS: list[list[BaseMessage]] = [
    [HumanMessage("who are you and the others?")],
    [HumanMessage("yes?")],
    [SystemMessage("be brief"), HumanMessage("the answer is no, and then some more of it")],
]


def prompt_ids(messages: list[BaseMessage]) -> list[int]:
    """The template's prompt, written out by hand."""
    roles = {"system": "system", "human": "user"}
    text = "".join(f"<|{roles[message.type]}|>{message.text}<|end|>" for message in messages) + "<|assistant|>"
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False)
    return ids


def texts(sample_set: Any) -> list[str]:
    return [sample_set.primary.text, *(sample.text for sample in sample_set.samples)]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_primary_is_greedy_and_logprobs_are_teacher_forced(family: str) -> None:
    chat, model = tiny_chat(family), tiny_model(family)
    for messages, drawn in zip(PROMPTS, chat.draw_samples(PROMPTS, PLAN, seeds=[1, 2, 3]), strict=True):
        ids = prompt_ids(messages)
        expected = generated(model, ids, 12)
        special = set(byte_tokenizer().all_special_ids)
        end = byte_tokenizer().eos_token_id
        expected = expected[: expected.index(end)] if end in expected else expected
        values = forced_logprobs(model, ids, expected)
        shown = [(token, value) for token, value in zip(expected, values, strict=True) if token not in special]
        assert drawn.primary is not None
        assert drawn.primary.text == byte_tokenizer().decode([token for token, _ in shown]).strip()
        assert drawn.primary.logprobs == pytest.approx([value for _, value in shown], abs=2e-4)
        assert len(drawn.samples) == 4


def test_a_request_depends_on_its_own_seed_not_on_its_neighbours() -> None:
    chat = tiny_chat()
    together = chat.draw_samples(PROMPTS, PLAN, seeds=[1, 2, 3])
    for place, messages in enumerate(PROMPTS):
        alone = chat.draw_samples([messages], PLAN, seeds=[place + 1])[0]
        assert texts(alone) == texts(together[place])
    backwards = chat.draw_samples(PROMPTS[::-1], PLAN, seeds=[3, 2, 1])[::-1]
    assert list(map(texts, backwards)) == list(map(texts, together))
    other = chat.draw_samples(PROMPTS, PLAN, seeds=[1, 9, 3])
    assert texts(other[0]) == texts(together[0])
    assert texts(other[1])[1:] != texts(together[1])[1:]
    assert texts(other[1])[0] == texts(together[1])[0], "the primary answer is greedy: no seed may move it"


def test_a_primary_answer_may_be_sampled_like_the_others() -> None:
    chat = tiny_chat()
    greedy = chat.draw_samples(PROMPTS, PLAN, seeds=[1, 2, 3])
    sampled_plan = PLAN.model_copy(update={"primary": "sampled"})
    sampled, again, other = (
        chat.draw_samples(PROMPTS, sampled_plan, seeds=seeds) for seeds in ([1, 2, 3],) * 2 + ([7, 8, 9],)
    )
    for mine, usual in zip(sampled, greedy, strict=True):
        assert texts(mine)[1:] == texts(usual)[1:], "the samples are those of a plan with a greedy answer"
        assert texts(mine)[0] not in texts(mine)[1:], "its own draw"
    assert [texts(sample_set)[0] for sample_set in again] == [texts(sample_set)[0] for sample_set in sampled]
    assert [texts(sample_set)[0] for sample_set in other] != [texts(sample_set)[0] for sample_set in sampled]


def test_without_a_seed_every_draw_is_fresh() -> None:
    chat = tiny_chat()
    first, second = (chat.draw_samples([PROMPTS[0]], PLAN, seeds=[None])[0] for _ in range(2))
    assert texts(first)[1:] != texts(second)[1:]


@pytest.mark.parametrize("n", [0, 2, 7])
def test_n_and_cost(n: int) -> None:
    plan = PLAN.model_copy(update={"n": n})
    drawn = tiny_chat().draw_samples([PROMPTS[0]], plan, seeds=[0])[0]
    assert drawn.primary is not None
    assert len(drawn.samples) == n
    assert len(set(texts(drawn)[1:])) == n, "samples of one request must differ from each other"
    assert drawn.cost.calls == 1
    assert drawn.cost.input_tokens == len(prompt_ids(PROMPTS[0]))
    assert drawn.cost.output_tokens <= 12 * (n + 1)
    assert drawn.cost.output_tokens >= sum(len(s.tokens or ()) for s in (drawn.primary, *drawn.samples))
    assert drawn.cost.seconds > 0
    assert drawn.problem is None
    assert drawn.question == PROMPTS[0][0].text


def test_logprobs_only_when_asked_for() -> None:
    drawn = tiny_chat().draw_samples([PROMPTS[0]], PLAN.model_copy(update={"logprobs": False}), seeds=[0])[0]
    with_logprobs = tiny_chat().draw_samples([PROMPTS[0]], PLAN, seeds=[0])[0]
    assert drawn.primary is not None
    assert drawn.primary.tokens is None
    assert drawn.primary.logprobs is None
    assert texts(drawn) == texts(with_logprobs)


def one_token_model(monkeypatch: pytest.MonkeyPatch, script: str) -> Any:
    """A chat model that answers every question with ``script``: the decoding loop sees one-hot logits."""
    ids = byte_tokenizer().encode(script, add_special_tokens=False)
    chat = tiny_chat()
    engine = chat._engine
    original = engine._run_together

    def scripted(requests: Any) -> Any:
        responses = original(requests)
        for response in responses:
            for result in response.continuations:
                result.ids, result.logprobs = list(ids), [-0.5] * len(ids)
                result.ended = ids[-1] in engine.end_ids
        return responses

    monkeypatch.setattr(engine, "_run_together", scripted)
    return chat


def test_special_and_end_tokens_are_not_part_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = one_token_model(monkeypatch, "yes<|tool|> 😀<|end|>")
    sample = chat.draw_samples([PROMPTS[0]], PLAN, seeds=[0])[0].primary
    assert sample == Sample(
        text="yes 😀",
        tokens=("yes", " ", "", "", "", "😀"),  # the emoji's four bytes are a token each
        logprobs=(-0.5,) * 6,
        finish_reason="stop",
    )


def test_stop_strings_are_cut_off_text_and_tokens() -> None:
    """The stop is taken from an answer the model really gives, so that it is met while decoding."""
    chat = tiny_chat()
    free = chat.draw_samples([PROMPTS[0]], PLAN, seeds=[0])[0]
    pieces = [sample.tokens for sample in free.samples]
    stop = next(
        piece for tokens in pieces if tokens for piece in tokens[3:6] if piece.strip() and "\ufffd" not in piece
    )
    plan = PLAN.model_copy(update={"stop": (stop,)})
    cut = chat.draw_samples([PROMPTS[0]], plan, seeds=[0])[0]
    stopped = 0
    for before, after in zip(free.samples, cut.samples, strict=True):
        assert before.tokens is not None
        assert after.tokens is not None
        assert after.logprobs is not None
        whole = "".join(before.tokens)
        assert "".join(after.tokens) == whole.split(stop)[0]
        assert after.text == whole.split(stop)[0].strip()
        if stop in whole:
            stopped += 1
            assert after.finish_reason == "stop"
            assert len(after.logprobs) == len(after.tokens) < len(before.tokens)
    assert stopped
    assert cut.cost.output_tokens < free.cost.output_tokens, "decoding went on after the stop string"


def test_a_prompt_that_is_too_long_names_the_numbers() -> None:
    chat = tiny_chat()
    messages: list[BaseMessage] = [HumanMessage("x" * 300)]
    with pytest.raises(PromptTooLongError, match=r"303 tokens .* 12 \(max_tokens\).* 256.*by 59 tokens"):
        chat.draw_samples([messages], PLAN, seeds=[0])
    with pytest.raises(PromptTooLongError):
        chat.invoke("x" * 300)


def test_the_last_prompt_that_fits_is_accepted() -> None:
    fits = 256 - 12 - 3
    plan = PLAN.model_copy(update={"n": 0})
    assert tiny_chat().draw_samples([[HumanMessage("x" * fits)]], plan, seeds=[0])[0].primary
    with pytest.raises(PromptTooLongError):
        tiny_chat().draw_samples([[HumanMessage("x" * (fits + 1))]], plan, seeds=[0])


def test_misuse_is_named() -> None:
    chat = tiny_chat()
    with pytest.raises(UsageError, match="2 seeds"):
        chat.draw_samples([PROMPTS[0]], PLAN, seeds=[1, 2])
    with pytest.raises(UsageError, match="at least one message"):
        chat.draw_samples([[]], PLAN, seeds=[1])
    image: list[Any] = [HumanMessage([{"type": "image_url", "image_url": {"url": "data:"}}])]
    with pytest.raises(UsageError, match=r"text only, got content blocks of type .'image_url'"):
        chat.draw_samples([image], PLAN, seeds=[1])
    assert chat.draw_samples([], PLAN, seeds=[]) == []


def test_a_conversation_with_tools_goes_through_the_template() -> None:
    call = {"name": "add", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    messages = [HumanMessage("1+1"), AIMessage("", tool_calls=[call]), ToolMessage("2", tool_call_id="1")]
    _, ids = tiny_chat()._encode(messages, [])
    text = byte_tokenizer().decode(ids)
    assert text == (
        '<|user|>1+1<|end|><|assistant|>{"name": "add", "arguments": {"a": 1}}<|end|><|tool|>2<|end|><|assistant|>'
    )


async def test_async_draws_the_same_without_blocking_the_event_loop() -> None:
    """The loop keeps ticking while the model works: it must advance between submitting and receiving."""
    chat = tiny_chat()
    plan = PLAN.model_copy(update={"max_tokens": 100})
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    drawn = await chat.adraw_samples(PROMPTS, plan, seeds=[1, 2, 3])
    during = ticks
    await chat.ainvoke("hello", max_tokens=100)
    after_invoke = ticks
    chunks = [chunk async for chunk in chat.astream("hello", max_tokens=100)]
    ticker.cancel()
    assert during > 20
    assert after_invoke - during > 20
    assert ticks - after_invoke > 20
    assert len(chunks) > 3
    assert list(map(texts, drawn)) == list(map(texts, chat.draw_samples(PROMPTS, plan, seeds=[1, 2, 3])))


async def test_a_stream_in_one_piece_is_drawn_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tools the whole answer comes at once; the event loop would stand still as long as it takes."""
    drawn_in: list[threading.Thread] = []
    generate = TransformersChat._generate

    def noted(*args: Any, **settings: Any) -> ChatResult:
        drawn_in.append(threading.current_thread())
        return generate(*args, **settings)

    monkeypatch.setattr(TransformersChat, "_generate", noted)
    add = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}
    assert [chunk async for chunk in tiny_chat().astream("hello", max_tokens=5, tools=[add])]
    assert drawn_in
    assert threading.main_thread() not in drawn_in


def test_the_second_stage_is_reproducible_and_differs_from_the_answer() -> None:
    """A sample drawn with the seed of the answer would agree with it, and the answer would look certain."""
    chat, plan = tiny_chat(), PLAN.model_copy(update={"primary": "sampled"})
    (first,) = Sampler(chat, plan.model_copy(update={"n": 0})).draw([PROMPTS[0]])
    (rest,) = Sampler(chat, plan, primary=False).draw([PROMPTS[0]])
    (again,) = asyncio.run(Sampler(chat, plan, primary=False).adraw([PROMPTS[0]]))
    assert first.primary is not None
    drawn = [sample.text for sample in rest.samples]
    assert drawn == [sample.text for sample in again.samples]
    # A random model repeats itself in 8 tokens with negligible probability.
    assert len({first.primary.text, *drawn}) == 5
