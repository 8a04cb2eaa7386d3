"""Models that always stream tokens within ``_generate``: no handler receives a token of a sample."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    dispatch_custom_event,
)
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers import BaseTracer, Run
from langchain_core.tracers.context import register_configure_hook
from pydantic import Field

from guardrail import Guardrail
from guardrail.testing import ScriptedChat, make_artifact

SECRET = "Secretville"
SURE, UNSURE = "sure?", "unsure?"
SCRIPT = {SURE: ["Paris"], UNSURE: [SECRET, *(f"{SECRET} {i}" for i in range(10))]}


class Streaming(ScriptedChat):
    """Reports each word as a token, as ChatOllama does always and many others do with ``streaming=True``."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, stop, run_manager, **kwargs)
        for word in str(result.generations[0].message.content).split():
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
            if run_manager is not None:
                run_manager.on_llm_new_token(word, chunk=chunk)
        return result

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, stop, run_manager, **kwargs)
        for word in str(result.generations[0].message.content).split():
            if run_manager is not None:
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=word))
                await run_manager.on_llm_new_token(word, chunk=chunk)
        return result


class Delegating(ScriptedChat):
    """Leaves the answer to an inner model, which finds the callbacks of the run around it."""

    inner: Any = Field(default=None, exclude=True)
    passes: bool = False

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        config = {"callbacks": run_manager.handlers, "metadata": run_manager.metadata} if self.passes else None
        reply = self.inner.invoke(messages, config)
        result = super()._generate(messages, stop, run_manager, **kwargs)
        result.generations[0].message.content = reply.content
        return result


class Listening(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)


class ListeningAsync(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[str] = []

    async def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)


class Keeping(BaseTracer):
    """Keeps the runs it is given, as LangSmith's tracer does."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)


ANYWHERE: ContextVar[BaseCallbackHandler | None] = ContextVar("anywhere", default=None)
register_configure_hook(ANYWHERE, inheritable=True)


@pytest.fixture
def of_the_process() -> Iterator[Listening]:
    """A handler that LangChain adds to every run."""
    handler = Listening()
    token = ANYWHERE.set(handler)
    yield handler
    ANYWHERE.reset(token)


async def _listed(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": lambda model, config: model.invoke(UNSURE, config),
    "ainvoke": lambda model, config: asyncio.run(model.ainvoke(UNSURE, config)),
    "stream": lambda model, config: list(model.stream(UNSURE, config)),
    "astream": lambda model, config: asyncio.run(_listed(model.astream(UNSURE, config))),
    "batch": lambda model, config: model.batch([UNSURE, SURE], config),
    "abatch": lambda model, config: asyncio.run(model.abatch([UNSURE, SURE], config)),
    "in a chain": lambda model, config: (RunnableLambda(lambda x: x) | model).invoke(UNSURE, config),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_handler_is_given_a_token(way: str, of_the_process: Listening) -> None:
    own, of_the_call, awaited = Listening(), Listening(), ListeningAsync()
    handlers: list[Any] = (
        [of_the_call] if way in ("invoke", "stream", "batch", "in a chain") else [of_the_call, awaited]
    )
    model = Streaming(script=SCRIPT, callbacks=[own])
    guard = Guardrail(model=model, artifact=make_artifact(model))
    WAYS[way](guard, {"callbacks": handlers})
    assert [handler.tokens for handler in (own, of_the_call, awaited, of_the_process)] == [[], [], [], []]
    WAYS[way](model, {"callbacks": handlers})  # the same handlers do get those of the model alone
    assert all(handler.tokens for handler in (own, of_the_process, *handlers))


class Telling(ScriptedChat):
    """Reports what it writes in other events than tokens."""

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, stop, run_manager, **kwargs)
        text = str(result.generations[0].message.content)
        run_manager.on_text(text)
        run_manager.on_stream_event({"event": "content-block-delta", "delta": text})
        dispatch_custom_event("progress", text)
        return result


class Hearing(BaseCallbackHandler):
    """Keeps what it is told while a model runs."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def on_text(self, text: str, **kwargs: Any) -> None:
        self.heard.append(("text", text))

    def on_stream_event(self, event: Any, **kwargs: Any) -> None:
        self.heard.append(("stream", str(event)))

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.heard.append((name, str(data)))


@pytest.mark.parametrize("way", WAYS)
def test_no_handler_is_told_a_sample_in_another_event(way: str) -> None:
    own, of_the_call = Hearing(), Hearing()
    model = Telling(script=SCRIPT, callbacks=[own])
    guard = Guardrail(model=model, artifact=make_artifact(model))
    chain = RunnableLambda(lambda x: x) | guard
    WAYS[way](chain, {"callbacks": [of_the_call]})
    assert (own.heard, of_the_call.heard) == ([], [])
    (RunnableLambda(lambda x: x) | model).invoke(UNSURE, {"callbacks": [of_the_call]})
    assert {name for name, _ in of_the_call.heard} == {"text", "stream", "progress"}


@pytest.mark.parametrize("passes", [False, True])
def test_a_model_within_the_model_finds_no_handler_that_takes_tokens(passes: bool) -> None:
    of_the_call, tracer = Listening(), Keeping()
    inner = Streaming(script=SCRIPT)
    model = Delegating(script=SCRIPT, inner=inner, passes=passes)
    guard = Guardrail(model=model, artifact=make_artifact(model))
    (RunnableLambda(lambda x: x) | guard).invoke(UNSURE, {"callbacks": [of_the_call, tracer]})
    assert of_the_call.tokens == []
    (RunnableLambda(lambda x: x) | model).invoke(UNSURE, {"callbacks": [of_the_call]})
    assert SECRET in of_the_call.tokens


def test_the_callers_model_and_handlers_stay_as_they_are() -> None:
    own = Listening()
    model = Streaming(script=SCRIPT, callbacks=[own])
    Guardrail(model=model, artifact=make_artifact(model)).invoke(UNSURE)
    assert model.callbacks == [own]
    assert "_generate" not in vars(model)
    assert model.invoke(SURE).content == "Paris"
    assert own.tokens == ["Paris"]


@pytest.mark.parametrize("version", ["v2", "v3"])
@pytest.mark.filterwarnings("ignore:The v3 streaming protocol", "ignore:.*beta")
def test_events_show_no_token_of_a_model_that_streams_by_itself(version: Any) -> None:
    model = Streaming(script=SCRIPT)
    guard = Guardrail(model=model, artifact=make_artifact(model))

    async def events(question: str) -> list[Any]:
        stream: Any = guard.astream_events(question, version=version)
        return [event async for event in (await stream if asyncio.iscoroutine(stream) else stream)]

    held = asyncio.run(events(UNSURE))
    assert SECRET not in str(held)
    if version == "v2":  # the guard's own events, and no sample's
        assert [e["event"] for e in held] == ["on_chat_model_start", "on_chat_model_end"]
    assert "Paris" in str(asyncio.run(events(SURE)))
