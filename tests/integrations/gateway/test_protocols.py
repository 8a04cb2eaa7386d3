"""What holds in every protocol of clients: refusals name its fields, and nothing that was held back leaves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from tests.integrations.gateway.conftest import MODEL, SURE, Held, Serve
from tests.integrations.gateway.test_gateway import ADD
from tests.integrations.gateway.test_messages import TOOL
from tests.integrations.gateway.test_responses import FUNCTION
from tests.integrations.gateway.test_texts import ANSWER, PYTHON, USER

ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "support", "messages": [USER]},
    "responses": {"model": "support", "input": SURE},
    "messages": {"model": "support", "messages": [USER], "max_tokens": 4096},
}
TOOLS: dict[str, Any] = {"chat/completions": ADD, "responses": FUNCTION, "messages": TOOL}
each = pytest.mark.parametrize("protocol", ASKED)

CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "system", "content": "Be brief."}, USER]}, "messages"),
    ({"messages": [USER, ANSWER, USER]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"tools": [ADD]}, "tools"),
    ({"tools": [5]}, "tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format"),
    ({"response_format": 5}, "response_format"),
    ({"temperature": "hot"}, "temperature"),
    ({"n": 2}, "n"),
    ({"n": {"x": 1}}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"max_tokens": {"x": 1}}, "max_tokens"),
    ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ({"stop": "x"}, "stop"),
    ({"stop": 7}, "stop"),
    ({"frequency_penalty": 1}, "frequency_penalty"),
    ({"logit_bias": {"1": 2}}, "logit_bias"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"functions": [{"name": "add"}]}, "functions"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"logprobs": True}, "logprobs"),
    ({"top_k": 5}, "top_k"),
    ({"store": True}, "store"),
]
RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"store": True}, "store"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"background": True}, "background"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"temperature": "hot"}, "temperature"),
    ({"max_output_tokens": 5}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"more": 1}}, "reasoning.more"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"text": []}, "text"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": [("message.output_text.logprobs")]}, "include"),
    ({"include": 5}, "include"),
    ({"messages": [{"role": "user", "content": SURE}]}, "messages"),
    ({"n": 2}, "n"),
    ({"max_tool_calls": 1}, "max_tool_calls"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [FUNCTION]}, "tools"),
    ({"tools": 5}, "tools"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"instructions": 5}, "instructions"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input[0].content[0]"),
    ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    ({"input": [{"type": ["x"]}]}, "input[0].type"),
    ({"input": [{"type": "function_call", "name": "add", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
]  # fmt: skip


MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 5}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_k": 5}, "top_k"),
    ({"stop_sequences": ["x"]}, "stop_sequences"),
    ({"thinking": {"type": "adaptive"}}, "thinking"),
    ({"output_config": {"effort": "high"}}, "output_config.effort"),
    ({"output_config": {"more": 1}}, "output_config.more"),
    ({"output_config": {"format": 5}}, "output_config.format"),
    ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ({"container": "c"}, "container"),
    ({"metadata": 5}, "metadata"),
    ({"n": 2}, "n"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"user": "x"}, "user"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL]}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": []}}, "tool_choice.type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "tool_choice.disable_parallel_tool_use"),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system[0].source"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
     "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "c"}]}]},
     "messages[0].content[0].input"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
     "messages[0].content[0]"),
]  # fmt: skip
"""Requests that are refused, with the field that the reply names."""


COMMON = "|".join(
    [r"\bresponse_format\b", r"\breasoning_effort\b", r"\bmax_completion_tokens\b", r"\btool_call_id\b", "chat"]
)
FOREIGN = {
    "chat/completions": r"\bmax_output_tokens\b|\bstop_sequences\b",
    "responses": rf"{COMMON}|\bmessages\b|\bmax_tokens\b",
    "messages": rf"{COMMON}|\bstop=|\bparallel_tool_calls\b",
}
"""Names that the other protocols spell differently."""
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    *(("chat/completions", *row) for row in CHAT),
    *(("responses", *row) for row in RESPONSES),
    ("responses", {"input": [USER, ANSWER, USER]}, "input"),
    ("responses", {"instructions": "Be brief."}, "input"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "n", "schema": 5}}}, "text.format"),
    ("responses", {"tool_choice": "required"}, "tool_choice"),
    *(("messages", *row) for row in MESSAGES),
    ("messages", {"messages": [USER, ANSWER, USER]}, "messages"),
    ("messages", {"system": "Be brief."}, "messages"),
]


@pytest.mark.parametrize(("protocol", "fields", "param"), OTHERS)
def test_a_refusal_has_the_names_of_its_protocol(
    serve: Serve, endpoint: Held, protocol: str, fields: dict[str, Any], param: str
) -> None:
    """A client sees which of the fields that it sent is wrong, and the model is not asked."""
    reply = serve().http.post(f"/v1/{protocol}", json={**ASKED[protocol], **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert (error["message"] > "", endpoint.requests) == (True, 0)
    assert not PYTHON.search(error["message"]), error["message"]
    if param in fields and not re.search(FOREIGN[protocol], param):  # the client may have sent that name itself
        assert not re.search(FOREIGN[protocol], error["message"]), error["message"]


@each
def test_an_answer_without_a_promise_is_not_accepted_and_says_why(serve: Serve, protocol: str) -> None:
    """Programs read ``accepted``; the promise of a threshold for single questions does not cover a second one."""
    turns = {"input": [USER, ANSWER, USER]} if protocol == "responses" else {"messages": [USER, ANSWER, USER]}
    body = {"model": "support", **turns, **({"max_tokens": 4096} if protocol == "messages" else {})}
    artifact = make_artifact(MODEL, threshold=0.1, n=4, prompt=PromptWrapping(other_turns="mark"))
    reply = serve({}, artifact).http.post(f"/v1/{protocol}", json=body)
    shown = reply.json()["guardrail"]
    assert "Paris" in reply.text
    assert (shown["accepted"], shown["abstained"], shown["reason"]) == (False, False, "other_turns")
    assert reply.headers["x-guardrail-accepted"] == "false"
    assert shown["turns"] == "human,ai,human"
    assert shown["explanation"].startswith("The promise does not cover this conversation")


@each
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_of_an_abstention_never_leaves(serve: Serve, endpoint: Held, protocol: str, stream: bool) -> None:
    """A client would run it."""
    endpoint.mode = "tool"
    served = serve(artifact=make_artifact(MODEL, threshold=-1.0, n=4, bindings=bindings_for([ADD])))  # accepts nothing
    body = {**ASKED[protocol], "tools": [TOOLS[protocol]], "stream": stream}
    reply = served.http.post(f"/v1/{protocol}", json=body).text
    assert ABSTENTION in reply
    assert not any(word in reply.replace("\\", "") for word in ('"call_id"', '"tool_use"', '"tool_calls"', '"b": 2'))


@pytest.mark.parametrize(
    ("protocol", "field", "part"),
    [
        ("responses", "input", {"type": "input_image", "image_url": "data:image/png;base64,AA=="}),
        ("messages", "messages", {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}),
    ],
)
def test_images_are_refused_unless_they_were_calibrated(
    serve: Serve, endpoint: Held, protocol: str, field: str, part: Any
) -> None:
    turn = {"role": "user", "content": [{"type": "input_text" * (field == "input") or "text", "text": SURE}, part]}
    reply = serve().http.post(f"/v1/{protocol}", json={**ASKED[protocol], field: [turn]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_as_calibrated")
    assert "image" in reply.json()["error"]["message"]
    assert endpoint.requests == 0


@each
def test_an_error_after_a_stream_began_is_an_event(serve: Serve, endpoint: Held, protocol: str) -> None:
    """The status has gone out by then; without an event a client would take it for an empty answer."""
    endpoint.mode = "echo_401"
    reply = serve(stream_hold=0).http.post(f"/v1/{protocol}", json={**ASKED[protocol], "stream": True})
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert reply.status_code == 200
    assert "cannot be reached with its configuration" in json.loads(events[0])["error"]["message"]
