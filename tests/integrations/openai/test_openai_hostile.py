"""Replies that no server should give: every one is held back, none is raised, accepted or left out of the count."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from guardrail import Guardrail, Unmeasured, Verdict
from guardrail.testing import make_artifact
from guardrail.types import SamplingPlan
from integrations._openai.endpoint import Attempted
from integrations._openai.endpoint import Endpoint as Address
from integrations._openai.sampling import SAMPLES, Ask, outcome_of, sample_set
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

ESTIMATORS = ("discrete_semantic_entropy", "semantic_entropy")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
"""Anything that JSON, as Python reads it, can say: NaN and halves of characters as well."""


def by_assess(guard: Guardrail) -> Verdict:
    guard.invoke("q")  # also what makes a message of the verdict
    return guard.assess("q")


def by_aassess(guard: Guardrail) -> Verdict:
    async def both() -> Verdict:
        await guard.ainvoke("q")
        return await guard.aassess("q")

    return asyncio.run(both())


WAYS = (by_assess, by_aassess)


def completion(body: Mapping[str, Any], word: Iterator[int]) -> dict[str, Any]:
    """A reply to an honest request, whose answers are all different, so that none may be accepted."""
    listed = {"token": "w", "logprob": -1.5, "bytes": [119], "top_logprobs": [{"token": "w", "logprob": -1.5}]}

    def call() -> dict[str, Any]:
        return {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": next(word)})}}

    return {
        "id": "x",
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": index,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": f"w{next(word)}", "refusal": None, "tool_calls": [call()]},
                "logprobs": {"content": [listed]},
            }
            for index in range(int(body.get("n") or 1))
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a reply."""
    yield way
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*way, key))


PLACES = list(places(completion({}, itertools.count())))


def put(reply: dict[str, Any], place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    *way, last = place
    inner: Any = reply
    for key in way:
        inner = inner[key]
    inner[last] = value
    return reply


def answering(place: tuple[Any, ...], value: Any, *, spare: int) -> Callable[..., Any]:
    """An endpoint that says something else at one place of its replies, from a certain request on."""
    word, requests = itertools.count(), itertools.count()

    async def send(_: Address, body: Mapping[str, Any], __: float | None = None) -> Attempted:
        reply: Any = completion(body, word)
        if next(requests) >= spare:
            reply = put(reply, place, copy.deepcopy(value))
        return Attempted(json.dumps(reply).encode(), None, 1)

    return send


@contextmanager
def answered_by(send: Callable[..., Any]) -> Iterator[OpenAICompatibleChat]:
    """A model whose requests are answered by a function instead of a server."""
    with patch.object(Address, "asend", send):
        yield OpenAICompatibleChat(model="m", base_url="http://localhost:1/v1")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(place=st.sampled_from(PLACES), value=JSON, spare=st.sampled_from([0, 5]))
@example(place=("choices", 0, "logprobs"), value=[1], spare=0)
@example(place=("choices", 0, "logprobs"), value="x", spare=0)
@example(place=("choices", 0, "logprobs", "content"), value=[1, 2], spare=0)
@example(place=("choices", 0, "logprobs", "content"), value=5, spare=0)
@example(place=("choices", 0, "logprobs", "content", 0, "top_logprobs", 0, "logprob"), value=10**400, spare=0)
@example(place=("system_fingerprint",), value="\ud800", spare=0)
@example(place=("choices", 0, "message", "content"), value="\ud800", spare=5)
@example(place=("choices", 0, "finish_reason"), value="\ud800", spare=5)
@example(place=("choices", 0, "message", "tool_calls", 0, "function", "name"), value="\ud800", spare=5)
@example(
    place=("choices", 0, "message", "tool_calls", 0, "function", "arguments"),
    value='{"a": ' + "[" * 400 + "]" * 400 + "}",
    spare=5,
)
@example(place=("usage", "prompt_tokens"), value=10**400, spare=5)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_stands_anywhere_in_a_reply_is_held_back(
    way: Callable[[Guardrail], Verdict], estimator: str, place: tuple[Any, ...], value: Any, spare: int
) -> None:
    with answered_by(answering(place, value, spare=spare)) as model:
        artifact = make_artifact(model, estimator=estimator, n=3)
        verdict = way(Guardrail(model=model, artifact=artifact, remember=0))
    # The same words or calls every time: such a server is believed, once it has passed its probe.
    assert not verdict.accepted or place[:3] == ("choices", 0, "message")
    assert verdict.cost.calls > 0
    json.dumps(verdict.to_metadata(), allow_nan=False)
    verdict.model_dump_json()


@pytest.mark.parametrize("mode", ["deep", "html", "list", "empty", "truncated"])
def test_a_plain_call_says_what_was_wrong(mode: str) -> None:
    with serving(Endpoint(mode=mode)) as endpoint:
        model = OpenAICompatibleChat(model="m", base_url=endpoint.url, timeout=20)
        with pytest.raises(Exception, match=r"model 'm': (Malformed|Foreign)ReplyError: the endpoint's reply"):
            model.invoke("q")
        with pytest.raises(Exception, match=r"model 'm': (Malformed|Foreign)ReplyError: the endpoint's reply"):
            asyncio.run(model.ainvoke("q"))


def test_one_answer_that_cannot_be_read_does_not_hide_the_others_of_its_request() -> None:
    """Requests with fewer answers, as those of the first of two stages, would measure a question left out before."""
    endings = ["stop", "stop", "pause", "stop"]
    choices = [
        {"index": i, "message": {"role": "assistant", "content": "a"}, "finish_reason": end}
        for i, end in enumerate(endings)
    ]
    ask = Ask(SAMPLES, {"n": 4, "max_tokens": 16})
    attempted = Attempted(json.dumps({"model": "m", "choices": choices}).encode(), None, 1)
    outcome = outcome_of(ask, attempted, 0.0, describe_error=str)
    drawn = sample_set([HumanMessage("q")], SamplingPlan(n=4), [(ask, outcome)])
    assert [sample.text for sample in drawn.samples] == ["a", "a", "a"]
    assert drawn.problem is Unmeasured.UNREADABLE
