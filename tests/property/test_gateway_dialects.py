"""Malformed requests of every protocol are 400 with a field, and never reach a model; replies are what was judged."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from guardrail.testing import make_artifact
from integrations._gateway.bodies import read_body
from integrations._gateway.config import Alias, Upstream
from integrations._gateway.errors import ApiError
from integrations._gateway.protocols.messages import MESSAGES
from integrations._gateway.protocols.responses import RESPONSES
from integrations._gateway.requests import Question, read_request
from tests.integrations.gateway.conftest import MODEL

UPSTREAM = (Upstream(url="http://127.0.0.1:1/v1", model="m"),)
PLAN = make_artifact(MODEL, threshold=0.1, n=4).plan
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "role", "content", "text", "name", "input", "id", "tools", "x"]), inner, max_size=3
    ),
    max_leaves=6,
)  # fmt: skip
PARTS = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,"}]
RESPONSE: dict[str, Any] = {
    "model": "support", "instructions": "b", "stream": True, "store": False, "metadata": {"a": "b"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 256, "temperature": 0,
    "input": [
        {"role": "user", "content": PARTS},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    ],
}  # fmt: skip
MESSAGE: dict[str, Any] = {
    "model": "support", "max_tokens": 256, "system": [{"type": "text", "text": "b"}], "metadata": {"user_id": "u"},
    "stream": True, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "f"},
    "output_config": {"format": {"type": "json_schema", "schema": {}}, "effort": "low"}, "stop_sequences": ["x"],
    "thinking": {"type": "disabled"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "3"}]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "a", "data": "b"}}]},
    ],
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    dialect, base = draw(st.sampled_from([(RESPONSES, RESPONSE), (MESSAGES, MESSAGE)]))
    body = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from([place for place in places(body) if place and place != ("model",)]))
        target: Any = body
        for key in path:
            target = target[key]
        if draw(st.booleans()):
            target[last] = draw(VALUES)
        else:
            del target[last]
    return dialect, body


@settings(max_examples=400, deadline=None)
@given(mutated(), st.sampled_from(["refuse", "replace"]))
def test_a_request_is_read_or_refused_with_its_field(case: tuple[Any, dict[str, Any]], how: Any) -> None:
    dialect, body = case
    read_body(json.dumps(body).encode(), 50_000)
    question = Question("r", body, 0, dialect, None, None, {})
    alias = Alias(upstream=UPSTREAM, artifact=Path("a.json"), settings=how)
    try:
        request = read_request(question, PLAN, alias)
    except ApiError as error:
        refused = error
    else:
        assert request.messages
        assert not request.call  # nothing was calibrated with tools or a format
        return
    assert refused.status == 400
    assert refused.param
    assert json.dumps(dialect.error(refused))


def test_the_whole_requests_are_read() -> None:
    """Otherwise every mutation would be refused for another reason."""
    for dialect, body in ((RESPONSES, RESPONSE), (MESSAGES, MESSAGE)):
        asked = dialect.read(body, PLAN)
        assert [message["role"] for message in asked["messages"]][:2] == ["system", "user"]
        assert asked["tools"][0]["function"]["name"] == "f"
        assert asked["response_format"]["type"] == "json_schema"
