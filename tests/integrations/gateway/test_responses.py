"""OpenAI's Responses API in front of the gate, on a real socket: what openai-python sends and gets."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel, TypeAdapter

from guardrail.bindings import bindings_for, json_format
from guardrail.guard.abstention import ABSTENTION
from guardrail.testing import make_artifact
from integrations._gateway.protocols.messages import MESSAGES
from integrations._gateway.protocols.responses import RESPONSES
from tests.integrations.gateway.conftest import MODEL, SURE, UNSURE, Held, Serve
from tests.integrations.gateway.test_gateway import ADD

FUNCTION = {"type": "function", **ADD["function"]}
EVENTS: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)


class City(BaseModel):
    name: str


def test_answer_and_abstention_are_texts(serve: Serve, endpoint: Held) -> None:
    client = serve().openai()
    answer = client.responses.with_raw_response.create(model="support", input=SURE, metadata={"a": "b"}, user="ann")
    parsed: Any = answer.parse()
    assert (parsed.output_text, parsed.status, parsed.store) == ("Paris", "completed", False)
    assert (parsed.usage.input_tokens, parsed.usage.output_tokens, parsed.metadata) == (35, 5, {"a": "b"})
    assert parsed.guardrail["accepted"]
    assert parsed.id == f"resp_{answer.headers['x-request-id']}"
    abstained: Any = client.responses.create(model="support", input=UNSURE)
    assert (abstained.output_text, abstained.status) == (ABSTENTION, "completed")
    assert (abstained.guardrail["abstained"], abstained.guardrail["reason"]) == (True, "above_threshold")
    assert "Rome" not in abstained.model_dump_json()
    assert endpoint.requests == 10
    assert all(body["messages"][-1]["content"] in (SURE, UNSURE) for body in endpoint.bodies)


def test_streams_have_the_events_of_the_api_in_order(serve: Serve, endpoint: Held) -> None:
    served = serve()
    for question, text in ((SURE, "Paris"), (UNSURE, ABSTENTION)):
        with served.openai().responses.stream(model="support", input=question) as stream:
            kinds = [event.type for event in stream]
            final: Any = stream.get_final_response()
        assert (final.output_text, final.guardrail["accepted"]) == (text, question == SURE)
        assert kinds == [
            *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
            *("response.output_text.delta", "response.output_text.done", "response.content_part.done"),
            *("response.output_item.done", "response.completed"),
        ]
    raw = served.http.post("/v1/responses", json={"model": "support", "input": SURE, "stream": True})
    frames = [frame.split("\n") for frame in raw.text.strip().split("\n\n")]
    assert raw.headers["x-guardrail-accepted"] == "true"
    for number, (name, data) in enumerate(frames):
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENTS.validate_python(event, strict=True)
    assert not any(body.get("stream") for body in endpoint.bodies)


def test_what_is_sent_is_what_the_sdk_describes(serve: Serve, endpoint: Held) -> None:
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for([ADD])))
    for mode, question, kind, text in (
        ("ok", SURE, "message", "Paris"),
        ("ok", UNSURE, "message", ABSTENTION),
        ("tool", "Add 1 and 2.", "function_call", ""),
    ):
        endpoint.mode = mode
        body = {"model": "support", "input": question, "tools": [FUNCTION], "instructions": None, "user": "ann"}
        sent = served.http.post("/v1/responses", json=body).json()
        read = Response.model_validate(sent, strict=True)
        assert ([item.type for item in read.output], read.output_text, read.user) == ([kind], text, "ann")
        assert [(tool["name"], tool["parameters"]) for tool in sent["tools"]] == [("add", FUNCTION["parameters"])]


def test_a_conversation_with_tools_goes_on(serve: Serve, endpoint: Held) -> None:
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for([ADD])))
    endpoint.mode = "tool"
    client = served.openai()
    first: Any = client.responses.create(model="support", input=SURE, tools=[FUNCTION])  # type: ignore[list-item]
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1, "b": 2})
    with client.responses.stream(model="support", input=SURE, tools=[FUNCTION]) as stream:  # type: ignore[list-item]
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output[0].type == "function_call"
    assert "response.function_call_arguments.done" in kinds
    endpoint.mode, endpoint.answers = "ok", {"3": ["Paris"]}
    rest = [
        {"role": "user", "content": [{"type": "input_text", "text": SURE}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {**call.model_dump(), "status": "completed"},
        {"type": "function_call_output", "call_id": call.call_id, "output": "3"},
    ]
    second = client.responses.create(model="support", input=rest, tools=[FUNCTION])  # type: ignore[arg-type, list-item]
    assert second.output_text == "Paris"
    (user, said, result) = endpoint.bodies[-1]["messages"]
    assert (user["content"], result["content"], result["tool_call_id"]) == (SURE, "3", call.call_id)
    assert said["tool_calls"][0]["function"]["name"] == "add"


def test_a_format_is_parsed_and_its_abstention_is_a_refusal(serve: Serve, endpoint: Held) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    form = {**json_format({"title": "City", **schema})}
    endpoint.answers = {SURE: ['{"name": "Paris"}'], UNSURE: [f'{{"name": "{city}"}}' for city in "ABCDEF"]}
    client = serve(
        artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for(response_format=form))
    ).openai()
    text: Any = {"format": {"type": "json_schema", **form["json_schema"]}}
    answer = client.responses.create(model="support", input=SURE, text=text)
    assert City.model_validate_json(answer.output_text).name == "Paris"
    abstained: Any = client.responses.create(model="support", input=UNSURE, text=text)
    assert (abstained.output_text, abstained.output[0].content[0].refusal) == ("", ABSTENTION)
    with client.responses.stream(model="support", input=UNSURE, text=text) as stream:
        assert [event.delta for event in stream if event.type == "response.refusal.delta"] == [ABSTENTION]
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="support", input=SURE)
    assert error.value.param == "text.format"


def test_errors_have_the_statuses_of_chat_completions(serve: Serve, endpoint: Held) -> None:
    served = serve({"on_abstain": "error"})
    with pytest.raises(openai.BadRequestError) as error:
        served.openai().responses.create(model="support", input=UNSURE)
    assert (error.value.type, error.value.code) == ("guardrail_abstained", "above_threshold")
    endpoint.mode = "500"
    assert served.http.post("/v1/responses", json={"model": "support", "input": "other"}).status_code == 503


def test_a_repeated_question_joins_across_protocols(serve: Serve, endpoint: Held) -> None:
    served = serve()
    served.ask(UNSURE)
    assert served.openai().responses.create(model="support", input=UNSURE).output_text == ABSTENTION
    assert endpoint.requests == 5


def test_a_ticket_is_in_the_reply(serve: Serve, tmp_path: Any) -> None:
    served = serve({"on_abstain": "ticket"}, reviews=str(tmp_path / "reviews.db"))
    reply: Any = served.openai().responses.create(model="support", input=UNSURE)
    assert reply.output_text
    assert served.http.get(f"/guardrail/v1/tickets/{reply.guardrail['ticket']}").json()["state"] == "open"


# -- observing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["responses", "messages"])
def test_an_observed_answer_is_measured_in_every_protocol(
    serve: Serve, endpoint: Held, path: str, stream: bool
) -> None:
    """The upstream is a gateway, too: it has all protocols."""
    inner = {"upstream": {"url": endpoint.url, "model": "m", "key": "k"}, "artifact": True, "probe": "off"}
    upstream = serve(more={"m": {**inner, "settings": "replace"}}).url
    served = serve(
        {
            "mode": "observe",
            "settings": "replace",
            "upstream": {"url": f"{upstream}/v1", "model": "m", "key": "k"},
        }
    )
    asked: dict[str, Any] = (
        {"input": SURE} if path == "responses" else {"messages": [{"role": "user", "content": SURE}]}
    )
    limit = {"max_tokens": 256} if path == "messages" else {"max_output_tokens": 256}
    body = {"model": "support", **asked, **limit, "temperature": 0, "stream": stream}
    passed = served.http.post(f"/v1/{path}", json=body, headers={"anthropic-version": "2023-06-01"})
    assert "Paris" in passed.text
    served.http.get("/healthz")  # its connection takes it when the gateway is done with the answer before
    served.gateway.observing["support"].queue.drain(20)
    counts = served.http.get("/guardrail/v1/observed").json()["support"]
    assert (counts["accepted"], counts["not_comparable"], counts["dropped"]) == (1, 0, {})
    if path == "responses":  # its upstream has none; the gateway refuses nothing here, and measures nothing
        served.http.post("/v1/responses", json={**body, "previous_response_id": "resp_1"})
        served.gateway.observing["support"].queue.drain(20)
        counts = served.http.get("/guardrail/v1/observed").json()["support"]
        assert (counts["accepted"], counts["dropped"]) == (1, {"upstream_error": 1})


def test_what_no_guard_would_give_is_not_measured() -> None:
    """A search, or any other item of the upstream's own tools, is more than text and calls."""
    text = {"type": "output_text", "text": "Paris"}
    response = {"output": [{"type": "message", "content": [text]}], "status": "completed", "model": "m"}
    message: dict[str, Any] = {"content": [{"type": "text", "text": "Paris"}], "stop_reason": "end_turn", "model": "m"}
    for dialect, whole, listed in ((RESPONSES, response, "output"), (MESSAGES, message, "content")):
        assert dialect.observed is not None
        usage = {"usage": {"input_tokens": 1, "output_tokens": 1}, "type": "message"}
        assert dialect.observed([{**whole, **usage}])["choices"][0]["message"]["content"] == "Paris"
        searched = [{"type": "web_search_call"}, *whole[listed]]
        with pytest.raises(ValueError, match="web_search_call is not part of an answer"):
            dialect.observed([{**whole, **usage, listed: searched}])
