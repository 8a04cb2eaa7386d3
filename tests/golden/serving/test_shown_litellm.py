"""Golden story of the guardrail in the LiteLLM proxy, on stand-ins for the classes of LiteLLM that it uses.

LiteLLM needs an environment of its own, where `tests.integrations.frameworks.test_litellm_proxy` runs on it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from guardrail import Bindings
from guardrail.testing import make_artifact
from tests.golden.serving.test_shown_agents import Story
from tests.integrations.openai.scripted_server import PAY, SURE, UNSURE, Upstream

ADDED, UNLIKE = ("mock_response", "cache", "metadata"), ("request_data", "start_time")
MODULE = "integrations.litellm_proxy"


class Hooks:
    """LiteLLM's class of guardrails, as far as the guardrail uses it."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.logged = settings, list[dict[str, Any]]()
        self.default_on = settings.get("default_on", False)

    def should_run_guardrail(self, data: Any, event_type: Any) -> bool:
        return not data.get("opted_out")

    def _event_hook_is_event_type(self, event_type: Any) -> int:
        return int(event_type == "pre_call")

    def add_standard_logging_guardrail_information_to_request_data(self, **logged: Any) -> None:
        self.logged.append(logged)

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> Any:
        return {**kwargs, "passed_by": "litellm"}


class HTTPException(Exception):  # noqa: N818 - FastAPI's name
    def __init__(self, status_code: int, detail: Any) -> None:
        super().__init__(f"{status_code} {detail}")


class Reply(SimpleNamespace):
    """A value of LiteLLM's types."""


class Router:
    """The proxy's router."""

    def __init__(self, upstream: Upstream) -> None:
        self.model_group_alias = {"tiny": "small", "hidden": {"model": "small"}}
        self.acompletion = upstream.complete

    def get_deployment(self, model_id: str) -> Any:
        models = {"first": "openai/small-up", "wild": "openai/*"}
        return SimpleNamespace(litellm_params=SimpleNamespace(model=models[model_id])) if model_id in models else None

    def get_model_list(self, model_name: str) -> list[dict[str, Any]]:
        first = {"model_info": {"id": "first"}, "litellm_params": {"model": "openai/small-up"}}
        return [first, {"model_info": {"id": "wild"}, "litellm_params": {"model": "openai/one"}}]


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported with the stand-ins."""
    stand_ins: dict[str, dict[str, Any]] = {
        "litellm": {"OPENAI_CHAT_COMPLETION_PARAMS": ["temperature", "n", "seed"], "ModelResponse": Reply},
        "litellm.integrations": {}, "litellm.integrations.custom_guardrail": {"CustomGuardrail": Hooks},
        "litellm.types": {}, "litellm.proxy": {}, "litellm.proxy.proxy_server": {},
        "litellm.types.utils": dict.fromkeys(("Message", "ModelResponse", "Choices", "Usage"), Reply),
        "fastapi": {"HTTPException": HTTPException},
    }  # fmt: skip
    for name, content in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield import_module(MODULE)
    sys.modules.pop(MODULE, None)


def asked(question: str, **body: Any) -> dict[str, Any]:
    data = {"model": "small", "messages": [{"role": "user", "content": question}], **body}
    return {**data, "proxy_server_request": {"body": dict(data)}}


class Scene:
    """A story of requests through the guardrail."""

    def __init__(self, proxy: Any) -> None:
        self.proxy, self.story, self.upstream = proxy, Story(), Upstream()

    def guard(self, bindings: Bindings | None = None, threshold: float | None = 0.5, **settings: Any) -> Any:
        chat = self.proxy.LiteLLMChat(name_of_model="small")
        fields = {
            "event_hook": "pre_call",
            "default_on": True,
            "complete": self.upstream.complete,
            "guard_options": {"probe": "off", "early_stopping": "off", "remember": 0},
            "artifact": make_artifact(chat, n=4, bindings=bindings, threshold=threshold),
        }
        return self.proxy.CalibratedGuardrail(**{**fields, **settings})

    def ask(self, name: str, own: Any, data: dict[str, Any], call_type: str = "acompletion") -> None:
        tell, before = self.story.tell, len(self.upstream.calls)
        try:
            found = asyncio.run(own.async_pre_call_hook(None, None, data, call_type))
        except HTTPException as error:
            tell(f"{name}\n  {error}")
        else:
            reply = re.sub(r"created=\d{10}", "created=TIME", str(found.get("mock_response")))
            tell(f"{name}\n  {reply}, cache {found.get('cache')}")
            left = {key: value for key, value in found.items() if key not in ADDED}
            tell(f"  {left}" if left != data else "  the request is as it was")
        headers = asyncio.run(own.async_post_call_response_headers_hook(data, None, None))
        tell(f"  headers {headers}, {len(self.upstream.calls) - before} calls")
        for logged in own.logged:
            shown = {key: value for key, value in logged.items() if key not in UNLIKE}
            tell(f"  logged {shown}")
        own.logged.clear()


def test_answers(proxy: Any) -> None:
    """Answers and abstentions: responses, headers, log entries and errors."""
    scene = Scene(proxy)
    guard, ask, upstream = scene.guard, scene.ask, scene.upstream
    ask("accepted", guard(), asked(SURE))
    calls = sorted({str({k: v for k, v in call.items() if k != "messages"}) for call in upstream.calls})
    scene.story.tell(str(calls))
    ask("abstained", guard(), asked(UNSURE))
    ask("raised", guard(on_abstain="raise"), asked(UNSURE))
    ask("infeasible", guard(threshold=None, on_abstain="raise"), asked(SURE))
    ask("a tool call", guard(Bindings(tools=(PAY,))), asked("Pay 5", tools=[PAY]))
    upstream.broken = True
    ask("an outage", guard(), asked(SURE))
    ask("an outage, raised", guard(on_abstain="raise"), asked(SURE))
    scene.story.ends_as("litellm-answers")


def test_refusals(proxy: Any) -> None:
    """What is refused, what is replaced, and what passes."""
    scene = Scene(proxy)
    guard, ask, story = scene.guard, scene.ask, scene.story
    sent: list[tuple[str, Any]] = [("temperature", 0.3), ("n", 2), ("n", 1), ("mock_response", "x"), ("stream", True)]
    for name, value in sent:
        ask(f"{name}={value}", guard(), asked(SURE, **{name: value}))
        ask(f"{name}={value}, replaced", guard(client_settings="replace"), asked(SURE, **{name: value}))
    direct = {"model": "small", "messages": [{"role": "user", "content": SURE}], "seed": 3, "api_base": "x"}
    ask("without the body of a request", guard(), direct)
    ask("other tools", guard(), asked("Pay 5", tools=[PAY]))
    system = {"role": "system", "content": "s"}
    ask("a system prompt", guard(), asked(SURE, messages=[system, {"role": "user", "content": SURE}]))
    for kind in ("completion", "aembedding", "aresponses", "speech", "call_mcp_tool"):
        ask(kind, guard(), asked(SURE), kind)
    for other in ("refuse", "pass"):
        ask(f"another model, {other}", guard(other_models=other), asked(SURE, model="other"))
    story.title("When it is made")
    wrong: list[dict[str, Any]] = [{"event_hook": "post_call"}, {"event_hook": None}, {"on_abstain": "review"}]
    for settings in wrong:
        story.failure(str(settings), partial(guard, **settings))
    story.tell(str(guard(artifact={"a": make_artifact(proxy.LiteLLMChat(name_of_model="a"), n=4)})._gates.keys()))
    for on in (True, False):
        runs = [guard(default_on=on).should_run_guardrail({"opted_out": True}, event) for event in ("pre_call", "x")]
        story.tell(f"default_on={on}: an opt-out runs {runs}")
    story.ends_as("litellm-refusals")


def test_routes(proxy: Any) -> None:
    """Ways of the router to a guarded deployment, and the model that the guard calls."""
    scene = Scene(proxy)
    guard, ask, story, upstream = scene.guard, scene.ask, scene.story, scene.upstream
    vars(sys.modules["litellm.proxy.proxy_server"])["llm_router"] = Router(upstream)
    for alias in ("tiny", "hidden", "unknown"):
        ask(f"alias {alias}", guard(), asked(SURE, model=alias))
    ask("through the router", guard(complete=None), asked(SURE))
    story.tell(str({name: upstream.calls[-1][name] for name in ("model", "cache", "disable_fallbacks")}))
    ways: list[dict[str, Any]] = [
        {}, {"model_info": {"id": "first"}}, {"metadata": {"model_info": {"id": "first"}}},
        {"model_info": {"id": "other"}},
        {"litellm_metadata": {"model_info": {"id": "wild"}}, "model": "openai/one"},
        {"model_info": {"id": "wild"}, "model": "openai/two"},
        {"model_info": {"id": "first"}, "mock_response": Reply()},
    ]  # fmt: skip
    embedding: Any = SimpleNamespace(value="aembedding")
    for way in ways:
        for own, kind in ((guard(), "acompletion"), (guard(), embedding), (guard(default_on=False), "x")):
            try:
                found = asyncio.run(own.async_pre_call_deployment_hook(dict(way), kind))
            except HTTPException as error:
                found = error
            story.tell(f"{way} {kind if isinstance(kind, str) else kind.value} {own.default_on}: {found}")
    story.title("The model")
    chat = proxy.LiteLLMChat(name_of_model="small", complete=upstream.complete)
    story.json(chat.guardrail_identity().model_dump())
    for choice in (None, "any", "pay"):
        asyncio.run(chat.bind_tools([PAY], tool_choice=choice).ainvoke("Pay 5"))
        story.tell(f"{choice}: {upstream.calls[-1].get('tool_choice')}")
    asyncio.run(chat.ainvoke([HumanMessage("a"), AIMessage("b"), HumanMessage(SURE)], stop=["."]))
    story.tell(str(upstream.calls[-1]), chat._llm_type, str(proxy._response(AIMessage(""), "m").choices[0].message))
    story.ends_as("litellm-routes")
