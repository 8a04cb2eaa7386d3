"""Anthropic's Messages API in front of the gate, on a real socket. Its SDK is in `tests.peers.test_gateway_clients`."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from guardrail.bindings import bindings_for, json_format
from guardrail.guard.abstention import ABSTENTION
from guardrail.testing import make_artifact
from tests.integrations.gateway.conftest import MODEL, SURE, UNSURE, Held, Serve, Served
from tests.integrations.gateway.test_gateway import ADD, key_named

TOOL = {"name": "add", "description": "Add.", "input_schema": ADD["function"]["parameters"]}
WITH_TOOL = make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for([ADD]))
KEYS = {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}


def ask(served: Served, question: str = SURE, headers: Any = None, **fields: Any) -> httpx.Response:
    body = {"model": "support", "max_tokens": 4096, "messages": [{"role": "user", "content": question}], **fields}
    return served.http.post("/v1/messages", json=body, headers=headers)


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    frames = [frame.split("\n") for frame in reply.text.strip().split("\n\n")]
    read: list[dict[str, Any]] = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in read]
    return read


def test_answer_and_abstention_are_texts(serve: Serve, endpoint: Held) -> None:
    served = serve()
    answer = ask(served).json()
    assert (answer["type"], answer["role"], answer["content"]) == (
        "message",
        "assistant",
        [{"type": "text", "text": "Paris"}],
    )
    assert (answer["stop_reason"], answer["usage"]["input_tokens"]) == ("end_turn", 35)
    assert answer["guardrail"]["accepted"]
    abstained = ask(served, UNSURE)
    assert abstained.json()["content"] == [{"type": "text", "text": ABSTENTION}]
    assert (abstained.json()["stop_reason"], abstained.json()["guardrail"]["abstained"]) == ("refusal", True)
    assert abstained.headers["x-guardrail-reason"] == "above_threshold"
    assert "Rome" not in abstained.text
    assert {body["max_tokens"] for body in endpoint.bodies} == {256}
    assert ask(serve({"finish_reason": "stop"}), UNSURE).json()["stop_reason"] == "end_turn"


def test_streams_have_the_events_of_the_api_in_order(serve: Serve, endpoint: Held) -> None:
    served = serve()
    for question, text, stop in ((SURE, "Paris", "end_turn"), (UNSURE, ABSTENTION, "refusal")):
        sent = events(ask(served, question, stream=True))
        assert [event["type"] for event in sent] == [
            *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
            *("message_delta", "message_stop"),
        ]
        assert sent[2]["delta"] == {"type": "text_delta", "text": text}
        assert sent[0]["message"]["usage"]["output_tokens"] == 0
        assert (sent[4]["delta"]["stop_reason"], sent[4]["usage"]["output_tokens"]) == (stop, 5)
        assert sent[0]["message"]["guardrail"]["accepted"] == (question == SURE)
        assert (sent[0]["message"]["content"], sent[0]["message"]["stop_reason"]) == ([], None)


def test_a_conversation_with_tools_goes_on(serve: Serve, endpoint: Held) -> None:
    served = serve(artifact=WITH_TOOL)
    endpoint.mode = "tool"
    first = ask(served, tools=[TOOL], tool_choice={"type": "auto"}).json()
    (call,) = first["content"]
    assert (call["type"], call["name"], first["stop_reason"]) == ("tool_use", "add", "tool_use")
    sent = events(ask(served, tools=[TOOL], stream=True))
    assert sent[1]["content_block"] == {**call, "id": sent[1]["content_block"]["id"], "input": {}}
    assert json.loads(sent[2]["delta"]["partial_json"]) == call["input"]
    endpoint.mode, endpoint.answers = "ok", {"3": ["Paris"]}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": SURE, "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "?", "signature": "s"}, *first["content"]]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "3"}]}],
        },
    ]
    reply = ask(served, tools=[TOOL], messages=turns)
    assert reply.json()["content"][0]["text"] == "Paris"
    user, said, result = endpoint.bodies[-1]["messages"]
    assert (user["content"], result["content"], result["tool_call_id"]) == (SURE, "3", call["id"])
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == call["input"]


def test_a_tool_call_of_an_abstention_never_leaves(serve: Serve, endpoint: Held) -> None:
    endpoint.mode = "tool"
    served = serve(artifact=make_artifact(MODEL, threshold=-1.0, n=4, bindings=bindings_for([ADD])))  # accepts nothing
    for stream in (False, True):
        reply = ask(served, tools=[TOOL], stream=stream)
        assert ABSTENTION in reply.text
        assert "tool_use" not in reply.text


def test_the_system_prompt_is_the_calibrated_one(serve: Serve, endpoint: Held) -> None:
    served = serve()
    assert ask(served, system="Be brief.").status_code == 400
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert (
        ask(served, system=blocks).json()["error"]["message"]
        == ask(served, system="Be brief.").json()["error"]["message"]
    )
    assert endpoint.requests == 0


def test_a_format_has_the_calibrated_name_and_its_abstention_has_no_content(serve: Serve, endpoint: Held) -> None:
    form = json_format({"title": "City", "type": "object", "properties": {"name": {"type": "string"}}})
    endpoint.answers = {SURE: ['{"name": "Paris"}'], UNSURE: [f'{{"name": "{city}"}}' for city in "ABCDEF"]}
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for(response_format=form)))
    output = {"format": {"type": "json_schema", "schema": form["json_schema"]["schema"]}}
    assert json.loads(ask(served, output_config=output).json()["content"][0]["text"]) == {"name": "Paris"}
    abstained = ask(served, UNSURE, output_config=output).json()
    assert (abstained["content"], abstained["stop_reason"]) == ([], "refusal")
    assert abstained["stop_details"]["explanation"] == ABSTENTION
    output["format"]["schema"] = {"type": "object"}
    assert ask(served, output_config=output).json()["error"]["param"] == "output_config.format"


REFUSED: list[tuple[dict[str, Any], str]] = [
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


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_cannot_be_guarded_is_refused_with_its_field(
    serve: Serve, endpoint: Held, fields: dict[str, Any], param: str
) -> None:
    reply = ask(serve(), **fields)
    assert (reply.status_code, reply.json()["error"].get("param")) == (400, param)
    assert (reply.json()["type"], reply.json()["error"]["type"]) == ("error", "invalid_request_error")
    assert endpoint.requests == 0


def test_a_token_limit_below_the_calibrated_one_names_the_least(serve: Serve) -> None:
    message = ask(serve(), max_tokens=10).json()["error"]["message"]
    assert "Send at least 256 " in message
    assert "Leave it out" not in message  # no request may


def test_images_are_refused_unless_they_were_calibrated(serve: Serve, endpoint: Held) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    reply = ask(serve(), messages=[{"role": "user", "content": [{"type": "text", "text": SURE}, image]}])
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_as_calibrated")
    assert "image" in reply.json()["error"]["message"]
    assert endpoint.requests == 0


def test_errors_have_anthropics_form_and_keys_its_header(serve: Serve, endpoint: Held) -> None:
    key, entry = key_named("ann", models=["support"])
    served = serve({"on_abstain": "error"}, keys=[entry])
    assert ask(served).json() == {
        "type": "error",
        "error": {
            "type": "authentication_error",
            "message": "The API key is missing or unknown.",
            "code": "invalid_api_key",
            "param": None,
        },
    }
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    assert ask(served, headers=headers).json()["content"][0]["text"] == "Paris"
    assert ask(served, UNSURE, headers=headers).json()["error"]["code"] == "above_threshold"
    endpoint.mode = "500"
    failed = ask(served, "other", headers=headers)
    assert (failed.status_code, failed.json()["error"]["type"]) == (503, "overloaded_error")


def test_an_error_after_a_stream_began_is_an_event(serve: Serve, endpoint: Held) -> None:
    endpoint.mode = "echo_401"
    (event,) = [
        json.loads(line.removeprefix("data: "))
        for line in ask(serve(stream_hold=0), stream=True).text.splitlines()
        if line.startswith("data: ")
    ]
    assert (event["type"], event["error"]["type"]) == ("error", "api_error")


def test_models_are_listed_in_both_forms(serve: Serve) -> None:
    listed = serve().http.get("/v1/models").json()
    assert (listed["has_more"], listed["first_id"]) == (False, "support")
    assert (listed["data"][0]["type"], listed["data"][0]["display_name"]) == ("model", "support")
