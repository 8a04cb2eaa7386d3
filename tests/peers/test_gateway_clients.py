"""The clients of `guardrail serve`: answer, abstention, error and stream, each as its users see it.

They need other versions of packages than this project's environment has: `make test-clients` runs these in a
separate environment. Node's clients are run by ``gateway_clients.mjs``.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from guardrail.guard.abstention import ABSTENTION
from tests.integrations.gateway.conftest import SURE, UNSURE, Held, Serve, endpoint, serve

__all__ = ["endpoint", "serve"]

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]
NODE = Path(os.environ.get("CLIENTS_NODE", "build/clients-node")).resolve()
NODES = (
    "openai-node", "ai-sdk-openai", "ai-sdk-compatible",
    "openai-node-responses", "ai-sdk-responses", "ai-sdk-anthropic", "anthropic-node",
)  # fmt: skip
Ask = Callable[[str, str, bool], str]
"""Asks a gateway a question, as a stream or not; returns the text or raises the client's error."""


def by_openai(url: str, question: str, stream: bool) -> str:
    with import_module("openai").OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        request: Any = {"model": "support", "messages": [{"role": "user", "content": question}]}
        if not stream:
            return str(client.chat.completions.create(**request).choices[0].message.content)
        events = client.chat.completions.create(**request, stream=True)
        return "".join(event.choices[0].delta.content or "" for event in events)


def by_async_openai(url: str, question: str, stream: bool) -> str:
    async def ask() -> str:
        async with import_module("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            request: Any = {"model": "support", "messages": [{"role": "user", "content": question}]}
            if not stream:
                return str((await client.chat.completions.create(**request)).choices[0].message.content)
            events = await client.chat.completions.create(**request, stream=True)
            return "".join([event.choices[0].delta.content or "" async for event in events])

    return asyncio.run(ask())


def by_langchain(url: str, question: str, stream: bool) -> str:
    chat = import_module("langchain_openai").ChatOpenAI(base_url=f"{url}/v1", api_key="any", model="support")
    return "".join(str(chunk.text) for chunk in (chat.stream(question) if stream else [chat.invoke(question)]))


def by_litellm(url: str, question: str, stream: bool) -> str:
    request: Any = {"model": "openai/support", "messages": [{"role": "user", "content": question}]}
    reply = import_module("litellm").completion(**request, api_base=f"{url}/v1", api_key="any", stream=stream)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join(event.choices[0].delta.content or "" for event in reply)


def by_llama_index(url: str, question: str, stream: bool) -> str:
    chat = import_module("llama_index.llms.openai_like").OpenAILike(
        model="support", api_base=f"{url}/v1", api_key="any", is_chat_model=True, temperature=0.0, max_tokens=None
    )
    messages = [import_module("llama_index.core.llms").ChatMessage(role="user", content=question)]
    if stream:
        return "".join(chunk.delta or "" for chunk in chat.stream_chat(messages))
    return str(chat.chat(messages).message.content)


def by_pydantic_ai(url: str, question: str, stream: bool) -> str:
    ai, openai = import_module("pydantic_ai"), import_module("pydantic_ai.models.openai")
    provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{url}/v1", api_key="any")
    agent = ai.Agent(openai.OpenAIChatModel("support", provider=provider))

    async def ask() -> str:
        if not stream:
            return str((await agent.run(question)).output)
        async with agent.run_stream(question) as run:
            return str(await run.get_output())

    return asyncio.run(ask())


def by_openai_responses(url: str, question: str, stream: bool) -> str:
    with import_module("openai").OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        if not stream:
            return str(client.responses.create(model="support", input=question).output_text)
        with client.responses.stream(model="support", input=question) as events:
            deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
            assert "".join(deltas) == events.get_final_response().output_text
        return "".join(deltas)


def by_async_openai_responses(url: str, question: str, stream: bool) -> str:
    async def ask() -> str:
        async with import_module("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            if not stream:
                return str((await client.responses.create(model="support", input=question)).output_text)
            events = await client.responses.create(model="support", input=question, stream=True)
            return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])

    return asyncio.run(ask())


def by_agents_sdk(url: str, question: str, stream: bool) -> str:
    agents = import_module("agents")
    agents.set_tracing_disabled(True)

    async def ask() -> str:
        client = import_module("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key="any")
        agent = agents.Agent(name="a", model=agents.OpenAIResponsesModel(model="support", openai_client=client))
        if not stream:
            return str((await agents.Runner.run(agent, question)).final_output)
        run = agents.Runner.run_streamed(agent, question)
        _ = [event async for event in run.stream_events()]
        return str(run.final_output)

    return asyncio.run(ask())


def by_langchain_responses(url: str, question: str, stream: bool) -> str:
    chat = import_module("langchain_openai").ChatOpenAI(
        base_url=f"{url}/v1", api_key="any", model="support", use_responses_api=True
    )
    return "".join(str(chunk.text) for chunk in (chat.stream(question) if stream else [chat.invoke(question)]))


def by_langchain_anthropic(url: str, question: str, stream: bool) -> str:
    chat = import_module("langchain_anthropic").ChatAnthropic(base_url=url, api_key="any", model="support")
    return "".join(str(chunk.text) for chunk in (chat.stream(question) if stream else [chat.invoke(question)]))


def by_litellm_responses(url: str, question: str, stream: bool) -> str:
    request: Any = {"model": "openai/support", "input": question, "api_base": f"{url}/v1", "api_key": "any"}
    reply = import_module("litellm").responses(**request, stream=stream)
    if not stream:
        return str(reply.output[0].content[0].text)
    return "".join(event.delta for event in reply if event.type == "response.output_text.delta")


def by_litellm_anthropic(url: str, question: str, stream: bool) -> str:
    request: Any = {"model": "anthropic/support", "messages": [{"role": "user", "content": question}]}
    reply = import_module("litellm").completion(**request, api_base=url, api_key="any", stream=stream)
    if not stream:
        return str(reply.choices[0].message.content)
    return "".join(event.choices[0].delta.content or "" for event in reply)


def by_pydantic_ai_model(of: str, url: str, question: str, stream: bool) -> str:
    ai = import_module("pydantic_ai")
    if of == "anthropic":
        client = import_module("anthropic").AsyncAnthropic(base_url=url, api_key="any")
        provider = import_module("pydantic_ai.providers.anthropic").AnthropicProvider(anthropic_client=client)
        model = import_module("pydantic_ai.models.anthropic").AnthropicModel("support", provider=provider)
    else:
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{url}/v1", api_key="any")
        model = import_module("pydantic_ai.models.openai").OpenAIResponsesModel("support", provider=provider)

    async def ask() -> str:
        if not stream:
            return str((await ai.Agent(model).run(question)).output)
        async with ai.Agent(model).run_stream(question) as run:
            return str(await run.get_output())

    return asyncio.run(ask())


def by_anthropic(url: str, question: str, stream: bool) -> str:
    with import_module("anthropic").Anthropic(base_url=url, api_key="any") as client:
        request: Any = {"model": "support", "max_tokens": 1024, "messages": [{"role": "user", "content": question}]}
        if not stream:
            return str(client.messages.create(**request).content[0].text)
        with client.messages.stream(**request) as events:
            text = "".join(events.text_stream)
            assert text == events.get_final_text()
        return text


def by_async_anthropic(url: str, question: str, stream: bool) -> str:
    async def ask() -> str:
        async with import_module("anthropic").AsyncAnthropic(base_url=url, api_key="any") as client:
            request: Any = {"model": "support", "max_tokens": 1024, "messages": [{"role": "user", "content": question}]}
            if not stream:
                return str((await client.messages.create(**request)).content[0].text)
            async with client.messages.stream(**request) as events:
                return "".join([text async for text in events.text_stream])

    return asyncio.run(ask())


def by_curl(url: str, question: str, stream: bool) -> str:
    body = {"model": "support", "messages": [{"role": "user", "content": question}], "stream": stream}
    head = ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    command = ["curl", "-sSN", "--fail-with-body", *head, f"{url}/v1/chat/completions"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if result.returncode:
        raise RuntimeError(result.stdout)
    if not stream:
        return str(json.loads(result.stdout)["choices"][0]["message"]["content"])
    data = [line.removeprefix("data: ") for line in result.stdout.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    events = [json.loads(line) for line in data]
    if "error" in events[-1]:
        raise RuntimeError(events[-1]["error"]["message"])
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


def by_node(client: str, url: str, question: str, stream: bool) -> str:
    script = Path(__file__).with_name("gateway_clients.mjs")
    command = ["node", str(script), str(NODE), client, f"{url}/v1", question, str(stream)]
    reply = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    if "error" in reply:
        raise RuntimeError(reply["error"])
    return str(reply["text"])


CLIENTS: dict[str, tuple[str, Ask]] = {
    "openai": ("openai", by_openai),
    "openai-async": ("openai", by_async_openai),
    "langchain-openai": ("langchain_openai", by_langchain),
    "litellm": ("litellm", by_litellm),
    "llama-index": ("llama_index.llms.openai_like", by_llama_index),
    "pydantic-ai": ("pydantic_ai.models.openai", by_pydantic_ai),
    "openai-responses": ("openai", by_openai_responses),
    "openai-responses-async": ("openai", by_async_openai_responses),
    "agents-sdk": ("agents", by_agents_sdk),
    "langchain-responses": ("langchain_openai", by_langchain_responses),
    "litellm-responses": ("litellm", by_litellm_responses),
    "pydantic-ai-responses": ("pydantic_ai.models.openai", partial(by_pydantic_ai_model, "openai")),
    "anthropic": ("anthropic", by_anthropic),
    "anthropic-async": ("anthropic", by_async_anthropic),
    "langchain-anthropic": ("langchain_anthropic", by_langchain_anthropic),
    "litellm-anthropic": ("litellm", by_litellm_anthropic),
    "pydantic-ai-anthropic": ("pydantic_ai.models.anthropic", partial(by_pydantic_ai_model, "anthropic")),
    "curl": ("curl", by_curl),
    **{name: ("node", partial(by_node, name)) for name in NODES},
}


@pytest.fixture(params=CLIENTS)
def ask(request: pytest.FixtureRequest) -> Ask:
    needs, client = CLIENTS[request.param]
    if needs == "node" and not (NODE / "node_modules").is_dir():
        pytest.skip(f"no packages in {NODE}: run `make test-clients`")
    if needs in ("node", "curl"):
        if shutil.which(needs) is None:
            pytest.skip(f"{needs} is not installed")
    else:
        why = f"{needs} is not installed here; run `make test-clients`"
        pytest.importorskip(needs, reason=why, exc_type=ImportError)  # pydantic-ai raises it without the provider
    return client


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_answer_and_abstention_are_shown(ask: Ask, serve: Serve, endpoint: Held, stream: bool) -> None:
    url = serve({"settings": "replace"}).url
    assert ask(url, SURE, stream) == "Paris"
    assert ask(url, UNSURE, stream) == ABSTENTION
    assert endpoint.requests == 10


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_abstention_as_an_error_is_raised_and_not_drawn_again(
    ask: Ask, serve: Serve, endpoint: Held, stream: bool
) -> None:
    url = serve({"settings": "replace", "on_abstain": "error"}).url
    with pytest.raises(Exception, match=r"guardrail|threshold|sure enough"):
        ask(url, UNSURE, stream)
    assert endpoint.requests == 5  # the clients retry, and the gateway draws nothing again


def test_the_stream_helper_of_openai_takes_an_abstention_for_an_error(serve: Serve, endpoint: Held) -> None:
    """It raises on ``content_filter``; ``finish_reason: stop`` is for programs that use it."""
    openai: Any = pytest.importorskip("openai")
    request: Any = {"model": "support", "messages": [{"role": "user", "content": UNSURE}]}

    def finished(url: str) -> Any:
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client,
            client.chat.completions.stream(**request) as on,
        ):
            return on.get_final_completion().choices[0].message.content

    with pytest.raises(openai.ContentFilterFinishReasonError):
        finished(serve().url)
    assert finished(serve({"finish_reason": "stop"}).url) == ABSTENTION


def test_an_error_after_a_stream_began_is_raised(ask: Ask, serve: Serve, endpoint: Held) -> None:
    endpoint.mode = "echo_401"  # not retried by the guard
    url = serve({"settings": "replace"}, stream_hold=0).url
    with pytest.raises(Exception, match="cannot be reached with its configuration"):
        ask(url, SURE, True)


def test_openais_own_tests(serve: Serve, endpoint: Held) -> None:
    """openai-python's tests of chat completions and models, observed: none of their questions could be guarded."""
    if "OPENAI_PYTHON" not in os.environ:
        pytest.skip("OPENAI_PYTHON is not set to the source of openai-python: see `make test-clients`")
    folder, installed = Path(os.environ["OPENAI_PYTHON"]), pytest.importorskip("openai").__version__
    version = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if version != installed:
        pytest.skip(f"the source is of openai-python {version}, and {installed} is installed")
    upstream = {"url": endpoint.url, "model": "m", "key": "k", "timeout": 10, "max_retries": 0}
    other = {"upstream": upstream, "mode": "observe", "artifact": True, "probe": "off"}
    source = folder / "tests" / "api_resources"
    files = [source / "chat" / "test_completions.py", source / "test_models.py"]
    names = set(re.findall(r'model="([^"]+)"|retrieve\(\s*"([^"]+)"', "".join(file.read_text() for file in files)))
    url = serve(more={created or two: other for created, two in names}).url
    selection = "(create or (models and list) or (models and retrieve)) and not path_params and not aiohttp"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-o", "addopts="]
    command += [*map(str, files), "-k"]
    result = subprocess.run(
        [*command, selection], capture_output=True, text=True, check=False, cwd=folder, timeout=300,
        env={**os.environ, "PYTHONPATH": "", "TEST_API_BASE_URL": f"{url}/v1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
    assert int(re.findall(r"(\d+) passed", result.stdout)[0]) >= 20
