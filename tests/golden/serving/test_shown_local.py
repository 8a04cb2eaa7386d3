"""Golden texts of local models: settings, prompts, calls in texts, replies in LangChain's form, and what is refused.

Weights are random and tiny, so no sampled text is shown: texts come from token ids that the test chooses.
"""

from __future__ import annotations

import logging
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage

from guardrail.errors import PromptTooLongError
from guardrail.types import SamplingPlan
from integrations._local.decoding import Continuation
from integrations._local.engine import Response
from integrations._local.loading import check_folder
from integrations._local.options import UnreadableOptionError, option_ids
from integrations._local.outputs import SampleReader, as_chunk, chat_result, last_chunk, parse_tool_calls
from integrations._local.prompts import CallSettings, check_length, openai_tools, render, template_messages
from integrations._local.tokens import DecodedText, Detokenizer
from integrations.transformers_chat import TransformersChat, from_text
from tests.golden.serving.conversation import Lines
from tests.golden.serving.test_shown_agents import Story
from tests.golden.shown import same
from tests.integrations.conftest import byte_tokenizer, tiny_chat, tiny_model

FIELDS: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 8}
CALL: Any = {"name": "pay", "args": {"amount": 5}, "id": "c1", "type": "tool_call"}
CALLS = (
    "Paris", '<tool_call>{"name": "pay", "arguments": {"amount": 5}}</tool_call>',
    '<tool_call>{"name": "x"}</tool_call>',
    'Ok. <tool_call>{"name": "a", "parameters": {}}</tool_call> <tool_call>{"name": "b", "arguments": "{}"}',
    "<tool_call>{</tool_call>", "<tool_call>[1]</tool_call>", '{"name": "pay", "arguments": {"amount": 5}}',
    '[{"name": "pay", "parameters": {}}, {"name": "close", "arguments": {}}]', '{"name": "pay", "arguments": {}}; ',
    '{"name": "pay", "arguments": {}}; {"name": "close", "arguments": {}}', '{"name": "other", "arguments": {}}',
    '{"name": "pay", "arguments": 5}', '{"name": 5, "arguments": {}}', '{"name": "pay", "arguments": {}} Done.', "[]",
)  # fmt: skip


def pay(amount: int) -> str:
    """Pay an amount."""
    return str(amount)


def close(account: str) -> str:
    """Close an account."""
    return account


def test_settings_and_prompts() -> None:
    """Settings of a call, messages for a template, and what is refused."""
    story = Story()
    calls: list[dict[str, Any]] = [
        {}, {"temperature": 1.5, "top_p": 0.9, "seed": 3, "logprobs": True, "n": 2, "stop_token_ids": [7]},
        {"stop": "."}, {"stop": ["a", "b"]}, {"tool_choice": "none", "tools": [pay]}, {"tool_choice": "any"},
        {"parallel_tool_calls": False, "seed": None}, {"temperature": -1}, {"temperature": float("inf")}, {"top_p": 0},
        {"top_p": 1.1}, {"max_tokens": 0}, {"n": 0}, {"n": 2}, {"stop": [""]}, {"stop_token_ids": [-1]}, {"top_k": 3},
    ]  # fmt: skip
    for call in calls:
        shown = str(call).replace(repr(pay), "pay")
        story.failure(shown, partial(CallSettings.resolve, FIELDS, None, call))
        if "works" in story._told[-1]:
            story.tell(f"  {CallSettings.resolve(FIELDS, None, call).model_dump(exclude_defaults=True)}")
    story.tell(str(CallSettings.resolve({**FIELDS, "stop": ["own"]}, None, {}).stop))
    story.tell(str(CallSettings.resolve({**FIELDS, "stop": ["own"]}, ["."], {}).stop))
    story.title("messages")
    story.json(template_messages([
        SystemMessage("s"), HumanMessage([{"type": "text", "text": "h"}]), AIMessage("a", tool_calls=[CALL]),
        ToolMessage("t", tool_call_id="c1", name="pay"), ToolMessage("t", tool_call_id="c2"),
        ChatMessage(content="c", role="judge"),
    ]))  # fmt: skip
    picture = HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "audio"}])
    for message in (picture, FunctionMessage(content="f", name="f")):
        story.failure(type(message).__name__, partial(template_messages, [message]))
    tokenizer, question = byte_tokenizer(), [HumanMessage("hi")]
    story.tell(render(tokenizer, question), render(tokenizer, question, tools=openai_tools([pay])))
    story.tell(render(tokenizer, question, chat_template="{{ messages[0].content }}|{{ add_generation_prompt }}"))
    story.failure("a template that ignores tools", partial(
        render, tokenizer, question, tools=openai_tools([pay]), chat_template="{{ messages[0].content }}"))  # fmt: skip
    story.failure("a template that refuses", partial(
        render, tokenizer, question, chat_template="{{ raise_exception('no system message') }}"))  # fmt: skip
    for prompt, answer, limit in ((5, 5, 10), (6, 5, 10), (100, 5, None)):
        try:
            check_length(prompt, answer, limit)
        except PromptTooLongError as error:
            story.tell(str(error))
    same("models/local-prompts.txt", "\n".join(story._told))


def test_calls_in_texts() -> None:
    """Texts of answers, and the tool calls that are read in them."""
    told = [f"{text}\n  {parse_tool_calls(text, {'pay', 'close'})}" for text in CALLS]
    same("models/local-calls.txt", "\n".join(told))


def test_replies() -> None:
    """Decoded answers as samples, results and chunks."""
    story = Story()
    answer = DecodedText(text=" Paris ", finish_reason="stop", tokens=("Pa", "ris"), logprobs=(-0.5, -1.0))
    calling = DecodedText(text=CALLS[1], finish_reason="length", tokens=None, logprobs=None)
    broken = DecodedText(text=CALLS[2], finish_reason="stop", tokens=None, logprobs=None)
    result = chat_result([answer, calling, broken], prompt=7, generated=[2, 5, 1], tools={"pay"}, model="m")
    for generation in result.generations:
        message: Any = generation.message
        story.tell(f"{message.content!r} {message.tool_calls} {message.invalid_tool_calls} {message.usage_metadata}")
        story.tell(f"  {message.response_metadata} {generation.generation_info}")
        chunk: Any = as_chunk(generation)
        story.tell(f"  chunk {chunk.message.content!r} {chunk.message.tool_calls} {chunk.message.usage_metadata}")
    story.tell(str(result.llm_output))
    last: Any = last_chunk("ris", answer, prompt=7, generated=2, model="m")
    story.tell(f"{last.message.content!r} {last.message.response_metadata} {last.message.usage_metadata}")
    story.title("sample sets")
    chat = tiny_chat()
    detokenizer, tokenizer = Detokenizer(chat._local.tokenizer, chat._local.hidden_ids), byte_tokenizer()
    ids = tokenizer.encode("the yes", add_special_tokens=False)
    good = Continuation(ids=ids, logprobs=[-0.5] * len(ids), ended=True)
    request: Any = type("Request", (), {"prompt": [1, 2, 3], "options": ((5,), (6,))})
    responses = {
        "answers": Response(continuations=[good, Continuation(ids=ids[:1], logprobs=[-1.0])]),
        "not finite": Response(continuations=[Continuation(ids=ids[:1], logprobs=[float("nan")])]),
        "a failure": Response(failure=RuntimeError("out of memory")),
    }
    for name, response in responses.items():
        for logprobs in (False, True):
            reader = SampleReader(SamplingPlan(n=1, logprobs=logprobs), detokenizer, {"pay"})
            found = reader.read([HumanMessage("q")], request, response, 0.0)
            story.tell(f"{name} {logprobs}: {found.model_dump(mode='json', exclude_defaults=True)}")
    reader = SampleReader(SamplingPlan(n=0, options=("A", "B")), detokenizer, ())
    chosen = reader.read([HumanMessage("q")], request, Response(options=((-2.0, -1.0), (-0.5,))), 0.0)
    story.tell(f"options: {chosen.model_dump(mode='json', exclude_defaults=True)}")
    same("models/local-replies.txt", "\n".join(story._told))


def test_models(tmp_path: Path) -> None:
    """Fields of a local model, what it says of itself and of an answer, and models and folders that are refused."""
    story, log = Story(), Lines()
    story.words.add(str(tmp_path), "FOLDER")
    for name in TransformersChat.__annotations__:
        field = TransformersChat.model_fields.get(name)
        if field is not None:
            limits = [repr(limit) for limit in field.metadata]
            default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
            story.tell(", ".join([f"{name}: {default}", *limits]))
    chat = tiny_chat(max_tokens=3)
    message = chat.invoke("who is the best of them?")
    shown = {name: value for name, value in message.response_metadata.items() if name != "finish_reason"}
    story.tell(f"{shown} {sorted(message.usage_metadata or {})}")
    identity = chat.guardrail_identity()
    story.tell(identity.provider, identity.model, re.sub(r"[0-9a-f]{8,}", "DIGEST", str(identity.revision)))
    story.tell(str(chat.support), chat._llm_type, str({k: v for k, v in chat._identifying_params.items()}))
    story.failure("several answers", lambda: chat.generate([[HumanMessage("q")]], n=2))
    story.failure("a stream of several", lambda: list(chat.stream("q", n=2, temperature=1.0)))
    story.failure("pickle", lambda: pickle.dumps(chat))
    story.failure(
        "seeds", lambda: chat.draw_samples([[HumanMessage("q")]], SamplingPlan(n=1, max_tokens=4), seeds=[1, 2])
    )
    story.failure("too long", lambda: chat.invoke("x" * 300))
    story.failure("a bad field", lambda: tiny_chat(temperature=-1))
    for name in (str(tmp_path / "none"), "none.gguf"):
        story.failure(f"model {name}", partial(from_text, name))
    (tmp_path / "bad.gguf").write_bytes(b"hello")
    story.failure("no GGUF file", partial(TransformersChat, model=str(tmp_path / "bad.gguf")))
    for files in ([], ["config.json"], ["config.json", "a.safetensors"], ["config.json", "a.bin", "vocab.txt"]):
        folder = tmp_path / "-".join(["folder", *files])
        folder.mkdir()
        for file in files:
            (folder / file).write_text("{}", encoding="utf-8")
        story.failure(str(files), partial(check_folder, folder))
    tokenizer = byte_tokenizer()
    template, tokenizer.chat_template = tokenizer.chat_template, None
    story.failure("no template", lambda: TransformersChat.from_model(tiny_model(), tokenizer))
    tokenizer.chat_template = template
    logging.getLogger().addHandler(log)
    model = tiny_model()
    try:
        model.generation_config.repetition_penalty = 1.2
        TransformersChat.from_model(model, tokenizer, name="tiny")
    finally:
        model.generation_config.repetition_penalty = 1.0
        logging.getLogger().removeHandler(log)
    story.tell(*(f"log: {line}" for line in log.lines))
    story.title("options")
    encode = partial(tokenizer.encode, add_special_tokens=False)
    for labels in (["A", "B"], ["yes", "no"], ["A", "A"], [""]):
        try:
            found: Any = option_ids("<|assistant|>", labels, encode=encode, decode=tokenizer.decode)
        except (UnreadableOptionError, ValueError) as error:
            found = error
        story.tell(f"{labels}: {found}")
    same("models/local.txt", "\n".join(story._told))
