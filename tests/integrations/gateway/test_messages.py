"""Anthropic's Messages API in front of the gate, on a real socket. Its SDK is in `tests.peers.test_gateway_clients`."""

from __future__ import annotations

import json
from typing import Any

import httpx

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


def test_a_token_limit_below_the_calibrated_one_names_the_least(serve: Serve) -> None:
    message = ask(serve(), max_tokens=10).json()["error"]["message"]
    assert "Send at least 256 " in message
    assert "Leave it out" not in message  # no request may


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


def test_models_are_listed_in_both_forms(serve: Serve) -> None:
    listed = serve().http.get("/v1/models").json()
    assert (listed["has_more"], listed["first_id"]) == (False, "support")
    assert (listed["data"][0]["type"], listed["data"][0]["display_name"]) == ("model", "support")
