"""The guard in LiteLLM: the hook on scripted replies, and a real proxy on loopback before a scripted server.

LiteLLM needs other versions of packages than this project's environment has: `make test-litellm` runs these in an
environment of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import time
import types
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litellm", reason="litellm is not installed here; run `make test-litellm`")

from guardrail import Bindings, PromptWrapping, SamplingPlan
from guardrail.artifact import CalibrationArtifact
from guardrail.call_settings import SettingRole, setting_names
from guardrail.errors import UsageError
from guardrail.sampling.sampler import draw
from guardrail.testing import make_artifact
from integrations.litellm_proxy import CalibratedGuardrail, LiteLLMChat
from tests.integrations.openai.scripted_server import PAY, SURE, UNSURE, Served, Upstream

pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM's own, of which there are many

N = 4
KEY = f"sk-{secrets.token_hex(24)}"  # of the proxy; newer ones do not start without


def artifact(**settings: Any) -> CalibrationArtifact:
    return make_artifact(LiteLLMChat(name_of_model="small"), n=N, **settings)


def guardrail(upstream: Upstream, *, bindings: Bindings | None = None, **settings: Any) -> CalibratedGuardrail:
    options = {"probe": "off", **settings.pop("guard_options", {})}
    settings = {"event_hook": "pre_call", "default_on": True, "artifact": artifact(bindings=bindings), **settings}
    return CalibratedGuardrail(
        guardrail_name="calibrated", complete=upstream.complete, guard_options=options, **settings
    )


async def ask(hook: CalibratedGuardrail, question: str, call_type: str = "acompletion", **body: Any) -> dict[str, Any]:
    data = {"model": "small", "messages": [{"role": "user", "content": question}], **body}
    data["proxy_server_request"] = {"body": dict(data)}
    judged: dict[str, Any] = await hook.async_pre_call_hook(None, None, data, call_type)
    return judged


def test_a_client_of_a_proxy_may_send_what_it_could_before_there_was_a_table() -> None:
    assert setting_names(allowed_in="litellm") == {
        *("guardrails", "litellm_metadata", "metadata", "prompt_cache_key", "response_format", "safety_identifier"),
        *("service_tier", "store", "stream", "stream_options", "tags", "timeout", "tool_choice", "tools", "user"),
    }
    assert setting_names(SettingRole.TRANSPORT, SettingRole.BINDING, allowed_in="litellm") == setting_names(
        allowed_in="litellm"
    )


async def test_the_judged_candidate_becomes_the_response_and_nothing_else_is_asked() -> None:
    upstream = Upstream()
    data = await ask(guardrail(upstream), SURE)
    response = data["mock_response"]
    assert response.choices[0].message.content == "Paris is it"
    assert len(upstream.calls) == N + 1
    assert response.usage.completion_tokens == 2 * (N + 1)
    assert all(call["cache"] == {"no-cache": True, "no-store": True} for call in [*upstream.calls, data])
    assert sorted(call["temperature"] for call in upstream.calls) == [0.0, 0.7, 0.7, 0.7, 0.7]
    assert {call["max_tokens"] for call in upstream.calls} == {256}


async def test_an_unsure_answer_abstains_with_200_or_an_error() -> None:
    upstream = Upstream()
    data = await ask(guardrail(upstream, guard_options={"abstain_message": "Not sure."}), UNSURE)
    assert data["mock_response"].choices[0].message.content == "Not sure."
    assert data["metadata"]["guardrail_headers"]["x-guardrail-accepted"] == "false"
    assert "Rome" not in repr(data)
    with pytest.raises(Exception, match="guardrail_above_threshold") as caught:
        await ask(guardrail(upstream, on_abstain="raise"), UNSURE)
    assert caught.value.status_code == 400  # type: ignore[attr-defined]
    assert "Rome" not in str(caught.value)


async def test_a_model_that_fails_is_an_outage_not_a_bad_answer() -> None:
    upstream = Upstream()
    upstream.broken = True
    with pytest.raises(Exception, match="guardrail_unmeasured") as caught:
        await ask(guardrail(upstream, on_abstain="raise"), SURE)
    assert caught.value.status_code == 503  # type: ignore[attr-defined]


async def test_tool_calls_are_judged_canonically() -> None:
    tools = Bindings(tools=(PAY,))
    data = await ask(guardrail(Upstream(), bindings=tools), "Pay 5", tools=[PAY])
    (call,) = data["mock_response"].choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("pay", {"amount": 5})
    data = await ask(guardrail(Upstream(), bindings=tools), "Pay?", tools=[PAY])
    assert not data["mock_response"].choices[0].message.tool_calls
    with pytest.raises(Exception, match="does not offer"):
        await ask(guardrail(Upstream(), bindings=tools), "Pay 5")
    with pytest.raises(Exception, match="without tools"):
        await ask(guardrail(Upstream()), "Pay 5", tools=[PAY])


@pytest.mark.parametrize("name", ["temperature", "n", "seed", "mock_response", "anything_new"])
async def test_wishes_about_drawing_are_refused(name: str) -> None:
    upstream = Upstream()
    body: dict[str, Any] = {name: 2}
    with pytest.raises(Exception, match=name):
        await ask(guardrail(upstream), SURE, **body)
    assert upstream.calls == []


async def test_wishes_can_be_replaced_but_not_n() -> None:
    replacing = guardrail(Upstream(), client_settings="replace")
    assert "mock_response" in await ask(replacing, SURE, temperature=0.3)
    with pytest.raises(Exception, match="n=2"):
        await ask(replacing, SURE, n=2)
    assert "mock_response" in await ask(guardrail(Upstream()), SURE, n=1)


async def test_what_cannot_be_judged_is_refused_and_what_makes_no_text_passes() -> None:
    refusing = guardrail(Upstream())
    for kind in ("anthropic_messages", "aresponses", "atext_completion"):
        with pytest.raises(Exception, match="cannot be judged"):
            await ask(refusing, SURE, kind)
    assert "mock_response" not in await ask(refusing, SURE, "aembedding")
    with pytest.raises(Exception, match="no artifact"):
        await ask(refusing, SURE, model="other")
    assert "mock_response" not in await ask(guardrail(Upstream(), other_models="pass"), SURE, model="other")


async def test_a_client_cannot_write_the_verdicts_headers() -> None:
    passing = guardrail(Upstream(), other_models="pass")
    forged = {"guardrail_headers": {"x-guardrail-accepted": "true"}}
    for model in ("other", "small"):
        data = await ask(passing, UNSURE, model=model, metadata=dict(forged))
        headers = await passing.async_post_call_response_headers_hook(data, None, None)
        assert (headers or {}).get("x-guardrail-accepted") == {"other": None, "small": "false"}[model]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [(None, None), ("any", "required"), ("pay", {"type": "function", "function": {"name": "pay"}})],
)
async def test_a_tool_choice_is_sent_in_openais_words(choice: str | None, sent: Any) -> None:
    upstream = Upstream()
    chat = LiteLLMChat(name_of_model="small", complete=upstream.complete)
    await chat.bind_tools([PAY], tool_choice=choice).ainvoke("Pay 5")
    (call,) = upstream.calls
    assert (call.get("tool_choice"), call["tools"]) == (sent, [PAY])


def test_other_modes_are_refused_and_clients_cannot_opt_out() -> None:
    for mode in ("post_call", "during_call", None):
        with pytest.raises(UsageError, match="pre_call"):
            guardrail(Upstream(), event_hook=mode)
    with pytest.raises(UsageError, match="a request to a proxy cannot"):
        guardrail(Upstream(), on_abstain="review")
    hooks = pytest.importorskip("litellm.types.guardrails").GuardrailEventHooks
    data = {"metadata": {"disable_global_guardrail": True}, "disable_global_guardrail": True}
    assert guardrail(Upstream()).should_run_guardrail(data, hooks.pre_call) is True


def test_samples_are_drawn_through_the_adapter() -> None:
    chat = LiteLLMChat(name_of_model="small", complete=Upstream().complete)
    (drawn,) = draw(chat, [PromptWrapping().messages(UNSURE)], SamplingPlan(n=2, max_tokens=8))
    assert drawn.primary is not None
    assert drawn.primary.text == "Rome"
    assert len({sample.text for sample in drawn.samples}) == 2


# -- ways around the guard through the router, with other_models: pass ---------------------------------------------


class Routed:
    """A router as the proxy has it: a guarded model, another one, and many ways from one to the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        litellm: Any = pytest.importorskip("litellm")
        self.guarded, self.free = Served(), Served()
        self.router = litellm.Router(
            model_list=[
                {**self._model("small", "openai/small-up", self.guarded.url), "model_info": {"id": "first"}},
                self._model("other", "openai/other-up", self.free.url),
                self._model("down", "openai/down-up", "http://127.0.0.1:1/v1"),
                self._model("wild/*", "openai/*", self.guarded.url),
            ],
            model_group_alias={"tiny": "small", "hidden": {"model": "small", "hidden": True}, "free": "other"},
            fallbacks=[{"down": ["small"]}],
            num_retries=0,
        )
        proxy = types.SimpleNamespace(llm_router=self.router, general_settings={})
        monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", proxy)
        options = {"probe": "off"}
        artifacts = {"small": artifact(), "wild/one": make_artifact(LiteLLMChat(name_of_model="wild/one"), n=N)}
        self.guard = CalibratedGuardrail(
            guardrail_name="calibrated",
            event_hook="pre_call",
            default_on=True,
            artifact=artifacts,
            other_models="pass",
            guard_options=options,
        )
        monkeypatch.setattr(litellm, "callbacks", [self.guard])

    @staticmethod
    def _model(name: str, model: str, url: str) -> dict[str, Any]:
        return {"model_name": name, "litellm_params": {"model": model, "api_base": url, "api_key": "none"}}

    async def ask(self, model: str, **body: Any) -> Any:
        route = pytest.importorskip("litellm.proxy.route_llm_request", reason="the proxy's packages are missing")
        data = await ask(self.guard, SURE, model=model, **body)
        return await (await route.route_request(data, self.router, None, "acompletion"))

    @property
    def unjudged(self) -> list[dict[str, Any]]:
        """Calls of the guarded model's server that the guard did not make: they carry no setting of a plan."""
        return [call for call in self.guarded.upstream.calls if "temperature" not in call]

    def close(self) -> None:
        self.guarded.close()
        self.free.close()


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Routed]:
    routed_proxy = Routed(monkeypatch)
    yield routed_proxy
    routed_proxy.close()


@pytest.mark.parametrize("alias", ["small", "tiny", "hidden"])
async def test_an_alias_is_judged_as_the_model_it_stands_for(routed: Routed, alias: str) -> None:
    response = await routed.ask(alias)
    assert response.choices[0].message.content == "Paris is it"
    assert (len(routed.guarded.upstream.calls), routed.unjudged) == (N + 1, [])


WAYS: dict[str, dict[str, Any]] = {
    "id of the deployment": {"model": "first"},
    "list": {"model": "small,other"},
    "list, first to answer": {"model": "down,small", "fastest_response": True},
    "fallbacks of the request": {"model": "down", "fallbacks": ["small"]},
    "alias as fallback": {"model": "down", "fallbacks": ["tiny"]},
    "fallbacks of the router": {"model": "down"},
}


@pytest.mark.parametrize("way", WAYS)
async def test_other_ways_to_a_guarded_deployment_are_refused(routed: Routed, way: str) -> None:
    answered: Any = (await asyncio.gather(routed.ask(**WAYS[way]), return_exceptions=True))[0]
    assert isinstance(answered, Exception) or "without a verdict" in str(answered)  # a list has the others' answers
    assert routed.guarded.upstream.calls == []


async def test_other_models_pass_and_so_do_other_models_of_a_guarded_wildcard(routed: Routed) -> None:
    for name in ("other", "free", "other,free"):
        await routed.ask(name)
    assert (len(routed.free.upstream.calls), routed.guarded.upstream.calls) == (4, [])
    await routed.ask("wild/two")
    assert len(routed.unjudged) == 1
    await routed.ask("wild/one")
    assert (len(routed.guarded.upstream.calls), len(routed.unjudged)) == (1 + N + 1, 1)


async def test_a_sample_does_not_come_from_a_fallback(routed: Routed) -> None:
    routed.router.fallbacks = [{"small": ["other"]}]
    routed.guarded.server.shutdown()
    routed.guarded.server.server_close()
    data = await ask(routed.guard, SURE)
    assert data["metadata"]["guardrail_headers"]["x-guardrail-accepted"] == "false"
    assert routed.free.upstream.calls == []


async def test_replaced_wishes_do_not_reach_the_router() -> None:
    replacing = guardrail(Upstream(), client_settings="replace")
    data = await ask(replacing, SURE, temperature=0.3, fallbacks=["other"], mock_testing_fallbacks=True)
    assert not {"temperature", "fallbacks", "mock_testing_fallbacks"} & set(data)


async def test_the_text_of_an_abstention_is_marked() -> None:
    for on_abstain, marked in (("message", "true"), (lambda verdict: "Rome, says a person", "false")):
        data = await ask(guardrail(Upstream(), on_abstain=on_abstain), UNSURE)
        assert data["metadata"]["guardrail_headers"]["x-guardrail-abstained"] == marked
    data = await ask(guardrail(Upstream()), SURE)
    assert data["metadata"]["guardrail_headers"]["x-guardrail-abstained"] == "false"


async def test_an_empty_answer_is_a_result_which_clients_do_not_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = Upstream()
    monkeypatch.setattr(upstream, "reply", lambda request: {**Upstream.reply(upstream, request), "choices": EMPTY})
    with pytest.raises(Exception, match="guardrail_unmeasured") as caught:
        await ask(guardrail(upstream, on_abstain="raise"), SURE)
    assert caught.value.status_code == 400  # type: ignore[attr-defined]


EMPTY = [{"index": 0, "message": {"role": "assistant", "content": ""}, "finish_reason": "stop"}]


# -- a real proxy ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Upstream]]:
    pytest.importorskip("fastapi", reason="the proxy's packages are not installed; run `make test-litellm`")
    program = Path(sys.executable).with_name("litellm")
    if not program.is_file():
        pytest.skip("the proxy's program is not installed; run `make test-litellm`")
    folder = tmp_path_factory.mktemp("proxy")
    served = Served()
    artifact().save(folder / "artifact.json")
    payer = LiteLLMChat(name_of_model="payer")
    make_artifact(payer, n=N, bindings=Bindings(tools=(PAY,))).save(folder / "payer.json")
    (folder / "guard.py").write_text("from integrations.litellm_proxy import CalibratedGuardrail\n")
    model = {"model": "openai/small-upstream", "api_base": served.url, "api_key": "none"}
    params = {
        "guardrail": "guard.CalibratedGuardrail",
        "mode": "pre_call",
        "default_on": True,
        "other_models": "pass",
        "artifact": {"small": str(folder / "artifact.json"), "payer": str(folder / "payer.json")},
        "guard_options": {"probe": "off", "abstain_message": "Not sure."},
    }
    config = {
        "model_list": [
            *({"model_name": name, "litellm_params": model} for name in ("small", "payer")),
            {"model_name": "down", "litellm_params": {**model, "api_base": "http://127.0.0.1:1/v1"}},
        ],
        "router_settings": {
            "model_group_alias": {"tiny": "small"},
            "fallbacks": [{"down": ["small"]}],
            "num_retries": 0,
        },
        "guardrails": [{"guardrail_name": "calibrated", "litellm_params": params}],
        "litellm_settings": {"cache": True, "cache_params": {"type": "local"}},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder / "log.txt").open("w")
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY, "LITELLM_TELEMETRY": "False"}
    environment = {**os.environ, **local, "NO_PROXY": "*"}
    process = subprocess.Popen(
        [str(program), "--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", str(port)],
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=folder,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_up(url, process, folder / "log.txt")
        yield url, served.upstream
    finally:
        process.terminate()
        process.wait(30)
        log.close()
        served.close()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the proxy answers; it says nothing else when it is ready."""
    for _ in range(1200):
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=1).read()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def post(url: str, question: str, **body: Any) -> tuple[int, dict[str, str], str]:
    content = json.dumps({"model": "small", "messages": [{"role": "user", "content": question}], **body}).encode()
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", content, {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, dict(reply.headers), reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def test_a_proxy_gives_the_judged_candidate(proxy: tuple[str, Upstream]) -> None:
    url, upstream = proxy
    for drawn in (N + 1, 0):  # the second time the guard has the draw; the proxy's cache would repeat the usage
        before = len(upstream.calls)
        status, headers, text = post(url, SURE)
        assert status == 200, text
        reply = json.loads(text)
        assert reply["choices"][0]["message"]["content"] == "Paris is it"
        assert reply["usage"]["completion_tokens"] == 2 * drawn
        assert headers["x-guardrail-accepted"] == "true"
        assert len(upstream.calls) - before == drawn


def test_a_proxy_abstains_and_shows_no_candidate(proxy: tuple[str, Upstream]) -> None:
    status, headers, text = post(proxy[0], UNSURE)
    assert (status, headers["x-guardrail-accepted"]) == (200, "false")
    assert json.loads(text)["choices"][0]["message"]["content"] == "Not sure."
    assert "Rome" not in text + str(headers)


@pytest.mark.parametrize(("question", "whole"), [(SURE, "Paris is it"), (UNSURE, "Not sure.")])
def test_a_proxy_streams_after_the_verdict_only(proxy: tuple[str, Upstream], question: str, whole: str) -> None:
    url, upstream = proxy
    before = len(upstream.calls)
    status, headers, text = post(url, question, stream=True, stream_options={"include_usage": True})
    assert status == 200, text
    chunks = [json.loads(line) for line in re.findall(r"^data: (\{.*)$", text, flags=re.MULTILINE)]
    deltas = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == whole
    assert text.rstrip().endswith("data: [DONE]")
    assert headers["x-guardrail-accepted"] == str(question == SURE).lower()
    assert len(upstream.calls) - before in (0, N + 1)  # 0: the guard has the draw of a test before
    assert not any(call.get("stream") for call in upstream.calls)
    assert question == SURE or "Rome" not in text


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_a_proxy_gives_accepted_tool_calls_only(proxy: tuple[str, Upstream], sure: bool, stream: bool) -> None:
    status, _, text = post(proxy[0], "Pay 5" if sure else "Pay?", model="payer", tools=[PAY], stream=stream)
    assert status == 200, text
    listed = re.findall(r"^data: (\{.*)$", text, flags=re.MULTILINE) if stream else [text]
    choices = [choice for line in listed for choice in json.loads(line)["choices"]]
    calls = [call for choice in choices for call in choice["delta" if stream else "message"].get("tool_calls") or []]
    finish = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls] == (
        [("pay", {"amount": 5})] if sure else []
    )
    assert finish == ["tool_calls" if sure else "stop"]


def test_a_proxy_judges_an_alias_and_lets_no_way_around_the_guard(proxy: tuple[str, Upstream]) -> None:
    url, upstream = proxy
    status, headers, text = post(url, SURE, model="tiny")
    assert status == 200, text
    assert (status, headers["x-guardrail-accepted"]) == (200, "true")
    before = len(upstream.calls)
    for body in ({"model": "small,payer"}, {"model": "down"}, {"model": "down", "fallbacks": ["small"]}):
        status, _, text = post(url, SURE, **body)
        assert status >= 400 or "Paris" not in text
    assert len(upstream.calls) == before


def test_a_proxy_refuses_wishes_and_other_endpoints(proxy: tuple[str, Upstream]) -> None:
    status, _, text = post(proxy[0], SURE, temperature=0.1)
    assert status == 400
    assert "temperature=0.1" in text
    request = urllib.request.Request(
        f"{proxy[0]}/v1/completions",
        json.dumps({"model": "small", "prompt": SURE}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    assert caught.value.code == 400
    caught.value.close()
