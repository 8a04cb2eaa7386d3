"""`TransformersChat` as a plain LangChain chat model: calls, streams, several answers, tools."""

from __future__ import annotations

import copy
import functools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import examples.tiny_model
from guardrail.errors import UsageError
from guardrail.sampling.replies.ends import end_of
from guardrail.sampling.replies.read import part_of_an_answer
from guardrail.types import SamplingPlan, ToolCall, Unmeasured
from integrations._local.outputs import parse_tool_calls
from integrations.transformers_chat import TransformersChat
from tests.integrations.conftest import COMMON, byte_tokenizer, tiny_chat, tiny_model
from tests.integrations.local.test_draw_samples import one_token_model, prompt_ids
from tests.integrations.local.test_parity import forced_logprobs, generated

QUESTION: list[BaseMessage] = [HumanMessage("who is the best of them?")]


def test_invoke_is_greedy_by_default() -> None:
    message = tiny_chat(max_tokens=10).invoke(QUESTION)
    expected = generated(tiny_model(), prompt_ids(QUESTION), 10)
    tokenizer = byte_tokenizer()
    if tokenizer.eos_token_id in expected:
        expected = expected[: expected.index(tokenizer.eos_token_id)]
    assert message.content == tokenizer.decode(expected, skip_special_tokens=True).strip()
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == len(prompt_ids(QUESTION))
    assert message.usage_metadata["output_tokens"] == 10
    assert message.response_metadata["finish_reason"] == "length"
    assert message.response_metadata["model_name"] == "tiny-llama"


def test_settings_of_the_call_override_those_of_the_model_and_leave_it_alone() -> None:
    chat = tiny_chat(max_tokens=6)
    before = chat.model_dump()
    sampled = [chat.invoke(QUESTION, temperature=1.5, top_p=0.9, seed=seed, max_tokens=9) for seed in (1, 1, 2)]
    assert sampled[0].content == sampled[1].content != sampled[2].content
    assert sampled[0].usage_metadata is not None
    assert sampled[0].usage_metadata["output_tokens"] == 9
    assert chat.model_dump() == before
    with pytest.raises(UsageError, match="frequency_penalty"):
        chat.invoke(QUESTION, frequency_penalty=1.0)
    with pytest.raises(UsageError, match="top_p"):
        chat.invoke(QUESTION, top_p=0.0)


def test_logprobs_have_the_openai_format() -> None:
    message = tiny_chat(max_tokens=8).invoke(QUESTION, logprobs=True)
    entries = message.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries).strip() == message.content
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert spelled.decode(errors="replace") == "".join(entry["token"] for entry in entries)
    assert {frozenset(entry) for entry in entries} == {frozenset({"token", "bytes", "logprob", "top_logprobs"})}
    ids = generated(tiny_model(), prompt_ids(QUESTION), 8)
    shown = set(byte_tokenizer().all_special_ids)
    expected = [
        v for t, v in zip(ids, forced_logprobs(tiny_model(), prompt_ids(QUESTION), ids), strict=True) if t not in shown
    ]
    assert [entry["logprob"] for entry in entries] == pytest.approx(expected, abs=2e-4)
    assert "logprobs" not in tiny_chat(max_tokens=8).invoke(QUESTION).response_metadata


def test_n_answers_come_from_one_call() -> None:
    chat = tiny_chat(temperature=1.2, max_tokens=8)
    result = chat.generate([QUESTION], n=4, seed=3, logprobs=True)
    assert len(result.generations[0]) == 4
    assert len({generation.text for generation in result.generations[0]}) == 4
    for generation in result.generations[0]:
        assert generation.generation_info is not None
        assert generation.generation_info["logprobs"]["content"]
    assert result.llm_output is not None
    assert result.llm_output["token_usage"]["completion_tokens"] <= 32
    with pytest.raises(UsageError, match="temperature above 0"):
        tiny_chat().generate([QUESTION], n=4)


@functools.cache
def embedded_chat() -> TransformersChat:
    """Random weights under the shipped tokenizer, whose ids 2 to 6 are special without a role."""
    tokenizer = AutoTokenizer.from_pretrained(str(Path(examples.tiny_model.__file__).parent / "orrin-1.5m"))
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "initializer_range": 0.1}
    model = LlamaForCausalLM(LlamaConfig(**{**COMMON, **sizes}))
    with torch.no_grad():
        model.lm_head.weight[2:7] *= 4  # so that one in some tokens is special
    return TransformersChat.from_model(model, tokenizer, max_tokens=12, temperature=2.0)


@given(seed=st.integers(0, 10**6), stop=st.sampled_from([[], [" "], [" a", "e"], ["A)", "1"]]))
@settings(max_examples=25)
def test_any_stream_equals_invoke(seed: int, stop: list[str]) -> None:
    chat = embedded_chat()
    whole = chat.invoke(QUESTION, seed=seed, stop=stop, logprobs=True)
    chunks = list(chat.stream(QUESTION, seed=seed, stop=stop, logprobs=True))
    assert "".join(str(chunk.content) for chunk in chunks) == whole.content
    for name in ("finish_reason", "logprobs"):
        assert chunks[-1].response_metadata[name] == whole.response_metadata[name]
    assert chunks[-1].usage_metadata == whole.usage_metadata


def test_an_empty_stop_string_is_refused() -> None:
    """It occurs in every text, so every answer would be empty."""
    for stop in ([""], ["\n", ""]):
        with pytest.raises(UsageError, match="stop"):
            tiny_chat().invoke(QUESTION, stop=stop)
        with pytest.raises(UsageError, match="stop"):
            tiny_chat(stop=stop).invoke(QUESTION)
        with pytest.raises(ValueError, match="stop"):
            SamplingPlan(stop=tuple(stop))


def test_one_stop_string_may_stand_alone() -> None:
    """Not as one stop string for each of its letters, of which the second comes earlier."""
    chat = tiny_chat(max_tokens=40)
    free = str(chat.invoke(QUESTION).content)
    place = next(
        place for place in range(2, 40) if free[place + 1] in free[1:place] and free[place : place + 2].strip()
    )
    stop = free[place : place + 2]
    message = chat.bind(stop=stop).invoke(QUESTION)
    assert message.content == free.split(stop)[0].strip()
    assert message.response_metadata["finish_reason"] == "stop"
    assert tiny_chat(max_tokens=40, stop=[stop]).invoke(QUESTION).content == message.content


def test_stop_token_ids_end_calls_streams_and_samples_alike() -> None:
    """The token is the fifth of the greedy answer; it is counted, but not part of the answer."""
    chat = tiny_chat(max_tokens=20)
    ids = generated(tiny_model(), prompt_ids(QUESTION), 20)
    end = next(place for place, token in enumerate(ids) if place > 3 and token not in ids[:place])
    text = byte_tokenizer().decode(ids[:end], skip_special_tokens=True).strip()
    message = chat.invoke(QUESTION, stop_token_ids=[ids[end]], logprobs=True)
    assert message.content == text
    assert "".join(entry["token"] for entry in message.response_metadata["logprobs"]["content"]).strip() == text
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata is not None
    assert message.usage_metadata["output_tokens"] == end + 1
    assert "".join(str(chunk.content) for chunk in chat.stream(QUESTION, stop_token_ids=[ids[end]])) == text
    assert tiny_chat(max_tokens=20, stop_token_ids=[ids[end]]).invoke(QUESTION).content == text
    plan = SamplingPlan(n=2, max_tokens=20, logprobs=True, stop_token_ids=(ids[end],))
    primary = chat.draw_samples([QUESTION], plan, seeds=[0])[0].primary
    assert primary is not None
    assert (primary.text, primary.finish_reason) == (text, "stop")
    assert len(primary.logprobs or ()) == len(primary.tokens or ())
    with pytest.raises(UsageError, match="stop_token_ids"):
        chat.invoke(QUESTION, stop_token_ids=[-1])


def test_a_stream_leaves_the_model_free_between_tokens() -> None:
    """A reader that calls the model in the middle of a stream must neither deadlock nor disturb it."""
    chat = tiny_chat(max_tokens=12)
    expected = chat.invoke(QUESTION).content
    shown = ""
    for chunk in chat.stream(QUESTION):
        chat.invoke("something else", max_tokens=2)
        shown += str(chunk.content)
    assert shown == expected


async def test_async_calls_equal_sync_ones() -> None:
    chat = tiny_chat(max_tokens=10)
    expected = chat.invoke(QUESTION).content
    assert (await chat.ainvoke(QUESTION)).content == expected
    assert "".join([str(chunk.content) async for chunk in chat.astream(QUESTION)]) == expected
    assert [m.content for m in await chat.abatch([QUESTION] * 8)] == [expected] * 8


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    "answer",
    [
        f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
        json.dumps({"name": "add", "parameters": {"a": 1, "b": 2}}),
        json.dumps([CALL]),
        json.dumps({"name": "add", "arguments": '{"a": 1, "b": 2}'}),
    ],
)
def test_tool_calls_are_read_from_the_text(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    chat = one_token_model(monkeypatch, answer + "<|end|>")
    message = chat.bind_tools([add]).invoke(QUESTION)
    assert isinstance(message, AIMessage)
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("add", {"a": 1, "b": 2})]
    assert message.content == ""
    assert message.response_metadata["finish_reason"] == "tool_calls"
    streamed = list(chat.bind_tools([add]).stream(QUESTION))
    assert [call["name"] for chunk in streamed for call in chunk.tool_calls] == ["add"]
    drawn = chat.draw_samples([QUESTION], SamplingPlan(n=0, max_tokens=16), seeds=[0], tools=[add])[0]
    assert drawn.primary is not None
    assert drawn.primary.tool_calls == (ToolCall(name="add", arguments={"a": 1, "b": 2}),)
    assert chat.invoke(QUESTION).tool_calls == [], "without bound tools JSON is an answer like any other"
    assert chat.invoke(QUESTION).content == answer


def test_a_message_that_was_cut_off_after_a_whole_call_is_no_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a guard accepts the first of two calls, and an agent pays without the check that was to follow."""
    whole = f"<tool_call>{json.dumps(CALL)}</tool_call>"
    for answer in (whole, f'{whole}<tool_call>{{"name": "ad', whole.removesuffix("</tool_call>"), json.dumps(CALL)):
        chat = one_token_model(monkeypatch, answer)
        message = chat.bind_tools([add]).invoke(QUESTION)
        assert ([call["name"] for call in message.tool_calls], end_of(message)) == (["add"], "length")
        plan = SamplingPlan(n=0, max_tokens=16)
        drawn = chat.draw_samples([QUESTION], plan, seeds=[0], tools=[add])[0]
        missing = part_of_an_answer(drawn, plan)
        assert missing is not None
        assert missing.reason is Unmeasured.CUT_OFF


def test_tools_are_shown_to_the_model_unless_the_choice_is_none() -> None:
    chat = tiny_chat(max_tokens=1)
    plain = chat.invoke(QUESTION).usage_metadata
    shown = chat.bind_tools([add]).invoke(QUESTION).usage_metadata
    hidden = chat.bind_tools([add], tool_choice="none").invoke(QUESTION).usage_metadata
    assert plain is not None
    assert shown is not None
    assert hidden is not None
    assert shown["input_tokens"] > plain["input_tokens"] == hidden["input_tokens"]
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UsageError, match="ignores tools"):
        tiny_chat(chat_template=template).bind_tools([add]).invoke(QUESTION)


@pytest.mark.parametrize(
    ("text", "calls", "invalid", "left"),
    [
        ("<tool_call>{broken</tool_call>", 0, 1, "<tool_call>{broken</tool_call>"),
        ('<tool_call>{"name": "add"}</tool_call>', 0, 1, '<tool_call>{"name": "add"}</tool_call>'),
        ('Sure. <tool_call>{"name": "x", "arguments": {}}</tool_call>', 1, 0, "Sure."),
        ('<tool_call>{"name": "x", "arguments": {}}', 1, 0, ""),
        ('{"name": "other", "arguments": {}}', 0, 0, '{"name": "other", "arguments": {}}'),
        ('{"answer": 3}', 0, 0, '{"answer": 3}'),
        ('{"name": "add", "parameters": {}}; {"name": "add", "parameters": {"a": 1}}', 2, 0, ""),
        ('{"name": "add", "parameters": {}} and more', 0, 0, '{"name": "add", "parameters": {}} and more'),
        ("no call", 0, 0, "no call"),
        ("", 0, 0, ""),
    ],
)
def test_tool_call_formats(text: str, calls: int, invalid: int, left: str) -> None:
    parsed = parse_tool_calls(text, {"add"})
    assert (len(parsed.calls), len(parsed.invalid), parsed.text) == (calls, invalid, left)


def test_broken_calls_are_reported_and_stay_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = one_token_model(monkeypatch, "<tool_call>{no</tool_call><|end|>")
    message: Any = chat.bind_tools([add]).invoke(QUESTION)
    assert message.tool_calls == []
    assert message.content == "<tool_call>{no</tool_call>"
    assert [call["args"] for call in message.invalid_tool_calls] == ["{no"]


def test_a_template_that_refuses_is_quoted() -> None:
    template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UsageError, match=r"roles \['user'\]: System role not supported"):
        tiny_chat(chat_template=template).invoke(QUESTION)


def test_a_copy_shares_the_loaded_model() -> None:
    """The guard samples on a copy without LangChain's response cache; that must not load the weights twice."""
    chat = tiny_chat()
    copy: TransformersChat = chat.model_copy(update={"cache": False})
    assert copy._engine is chat._engine
    assert copy._local.model is tiny_model()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda chat: chat.model_copy(deep=True)])
def test_a_deep_copy_has_settings_of_its_own_and_shares_the_weights(copied: Any) -> None:
    chat = tiny_chat(max_tokens=6, stop=["!"])
    other = copied(chat)
    other.stop.append("?")
    other.max_tokens = 3
    assert (chat.stop, chat.max_tokens) == (["!"], 6)
    assert other._local.model is chat._local.model
    assert other.guardrail_identity() == chat.guardrail_identity()
    assert str(chat.invoke(QUESTION).content).startswith(str(other.invoke(QUESTION).content))


def test_a_model_of_a_folder_is_loaded_again_where_it_is_unpickled(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    chat = TransformersChat(model=str(tmp_path), max_tokens=6)
    again = pickle.loads(pickle.dumps(chat))
    assert again.guardrail_identity() == chat.guardrail_identity()
    assert again.invoke(QUESTION).content == chat.invoke(QUESTION).content


def test_a_model_in_memory_is_not_pickled() -> None:
    with pytest.raises(UsageError, match=r"save_pretrained\(FOLDER\)"):
        pickle.dumps(tiny_chat())
