"""LiteLLM's Generic Guardrail API on a real socket. The proxy itself is in `tests.peers.test_litellm_guardrail`."""

from __future__ import annotations

from typing import Any

import pytest

from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.testing import make_artifact
from integrations._gateway.protocols.litellm_api import PATH
from tests.integrations.gateway.conftest import MODEL, SURE, UNSURE, Held, Serve, Served
from tests.integrations.gateway.test_gateway import ADD, key_named


def ask(served: Served, kind: str, call: Any = "c1", headers: Any = None, **fields: Any) -> dict[str, Any]:
    body = {
        "input_type": kind,
        "litellm_call_id": call,
        "request_data": {},
        "model": "support",
        "images": None,
        **fields,
    }
    reply = served.http.post(PATH, json=body, headers=headers)
    assert reply.status_code == 200
    action: dict[str, Any] = reply.json()
    return action


def prompt(question: str) -> dict[str, Any]:
    return {"structured_messages": [{"role": "user", "content": question, "name": None}], "texts": [question]}


def test_only_the_judged_answer_passes(serve: Serve, endpoint: Held) -> None:
    served = serve()
    for call, question, text, action in (
        ("c1", SURE, "Paris", "NONE"),
        ("c2", SURE, "Rome", "BLOCKED"),
        ("c3", UNSURE, "Rome", "BLOCKED"),
    ):
        assert ask(served, "request", call, **prompt(question)) == {"action": "NONE"}
        reply = ask(served, "response", call, texts=[text], model="m")
        assert reply["action"] == action
        assert reply["guardrail"]["accepted"] == (question == SURE)
    assert reply["blocked_reason"] == ABSTENTION
    assert endpoint.requests == 10  # the second SURE has the verdict of the first


@pytest.mark.parametrize(
    "answer",
    [
        {"texts": []},
        {"texts": None},
        {"texts": ["Paris", "Rome"]},
        {"texts": ["Paris"], "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]},
        {"texts": ["Paris"], "images": ["AA=="]},
        {"texts": ["Paris"], "audio": {"data": "AA=="}},
        {"texts": [ABSTENTION]},
        {"texts": 5},
        {"texts": [0, "Paris"]},  # not a text, so not judged
        {"texts": ["Paris", {}]},
        {"texts": ["Paris"], "tool_calls": [5]},
        {"texts": ["Paris"], "tool_calls": {"a": 1}},
    ],
)
def test_every_other_answer_is_blocked(serve: Serve, answer: dict[str, Any]) -> None:
    served = serve()
    ask(served, "request", **prompt(SURE))
    assert ask(served, "response", **answer)["action"] == "BLOCKED"


def test_tool_calls_are_compared_by_their_arguments(serve: Serve, endpoint: Held) -> None:
    endpoint.mode = "tool"
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, bindings=bindings_for([ADD])))
    ask(served, "request", tools=[ADD], **prompt(SURE))
    for arguments, action in (
        ('{"b": 2, "a": 1}', "NONE"),
        ('{"a": 1, "b": 3}', "BLOCKED"),
        ("{", "BLOCKED"),
        ('{"a": 1.0, "b": 2}', "BLOCKED"),  # 1, 1.0 and true are equal to Python, and not to a tool
        ('{"a": true, "b": 2}', "BLOCKED"),
        ('{"a": 5, "a": 1, "b": 2}', "BLOCKED"),  # a tool may read the first
    ):
        calls = [{"id": "x", "type": "function", "function": {"name": "add", "arguments": arguments}}]
        assert ask(served, "response", texts=[], tool_calls=calls)["action"] == action
        function: dict[str, Any] = {"name": "add", "arguments": arguments, "body": "rm"}
        for unlike in ({"type": "custom"}, {"custom": {"input": "rm"}}, {"function": function}):  # nobody judged these
            assert ask(served, "response", texts=[], tool_calls=[{**calls[0], **unlike}])["action"] == "BLOCKED"
    assert ask(served, "response", texts=["Paris"])["action"] == "BLOCKED"


def test_what_is_not_known_is_blocked_with_status_200(serve: Serve, endpoint: Held) -> None:
    (ann, one), (bob, two) = key_named("ann"), key_named("bob")
    more = {"watched": {"upstream": {"url": endpoint.url, "model": "m", "key": "k"}, "mode": "observe"}}
    served = serve(keys=[one, two], more=more)
    as_ann, as_bob = {"x-api-key": ann}, {"x-api-key": bob}
    ask(served, "request", headers=as_ann, **prompt(SURE))
    answer = {"texts": ["Paris"]}
    assert ask(served, "response", headers=as_ann, **answer)["action"] == "NONE"
    for reply, word in (
        (ask(served, "response", **answer), "API key"),
        (ask(served, "response", headers=as_bob, **answer), "mode: [pre_call, post_call]"),
        (ask(served, "response", "other", headers=as_ann, **answer), "mode: [pre_call, post_call]"),
        (ask(served, "response", headers=as_ann, request_data={"user_api_key_hash": "h"}, **answer), "unknown"),
        (ask(served, "request", headers=as_ann, **prompt(UNSURE)), "Another prompt"),
        (ask(served, "request", None, headers=as_ann, **prompt(SURE)), "litellm_call_id"),
        (ask(served, "request", "c4", headers=as_ann, structured_messages=5), "structured_messages"),
        (ask(served, "request", "c5", headers=as_ann, **{**prompt(SURE), "model": None}), "model"),
    ):
        assert reply["action"] == "BLOCKED"
        assert word in reply["blocked_reason"], reply
    for model, word in (("none", "does not exist"), ("watched", "observes")):
        ask(served, "request", model, headers={**as_ann, "x-guardrail-model": model}, **prompt(SURE))
        assert word in ask(served, "response", model, headers=as_ann, **answer)["blocked_reason"]
    ask(served, "request", "empty", headers=as_ann, texts=["to embed"])
    assert ask(served, "response", "empty", headers=as_ann, **answer)["action"] == "BLOCKED"
    endpoint.mode = "500"
    ask(served, "request", "down", headers=as_ann, **prompt("another?"))
    assert "failed" in ask(served, "response", "down", headers=as_ann, **answer)["blocked_reason"]


@pytest.mark.parametrize("kind", [None, "output", "post_call", "Response ", "RESPONSE", True, ["response"]])
def test_an_unknown_kind_of_request_is_refused(serve: Serve, kind: Any) -> None:
    """It was taken for a prompt, so the proxy gave the answer out."""
    served = serve()
    ask(served, "request", **prompt(SURE))
    reply = ask(served, kind, **prompt(SURE), model="m")
    assert (reply["action"], reply["code"]) == ("BLOCKED", "unknown_input_type")
    assert 'must be "request" or "response"' in reply["blocked_reason"]


def test_names_with_spaces_do_not_share_an_answer(serve: Serve) -> None:
    """The answer to one user's question passed for another's."""
    served = serve()
    mine, other = {"user_api_key_hash": "a"}, {"user_api_key_hash": "a b"}
    ask(served, "request", "b c", request_data=mine, **prompt(SURE))
    assert ask(served, "response", "c", request_data=other, texts=["Paris"])["action"] == "BLOCKED"
    assert ask(served, "response", "b c", request_data=mine, texts=["Paris"])["action"] == "NONE"


def test_a_prompt_that_no_guard_would_take_is_not_remembered(serve: Serve) -> None:
    served = serve(max_guarded_body=2000)
    refused = ask(served, "request", **prompt("why? " * 400))
    assert refused["action"] == "BLOCKED"
    assert "'max_guarded_body'" in str(refused)
    assert ask(served, "response", texts=["Paris"])["action"] == "BLOCKED"
