"""The guard in place of a chat model: Runnable methods, streams, traces, agents, configuration; no sample leaks."""

from __future__ import annotations

import asyncio
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.tools import tool
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run

from guardrail import AbstainedError, ArtifactTamperedError, Guardrail, UsageError, Verdict
from guardrail.bindings import bindings_for
from guardrail.fallback import worded
from guardrail.judges import TokenF1Judge
from guardrail.testing import ScriptedChat, make_artifact

SURE, UNSURE = "Capital of France?", "Capital of Atlantis?"
SECRETS = ("Secretville", "Hiddenton", "Maskburg", "Veilham")
MODEL = ScriptedChat(script={SURE: ["Paris", "Paris", "paris!"], UNSURE: SECRETS})
ARTIFACT = make_artifact(MODEL, threshold=0.5)
TEXT = "I am not sure enough to answer this, so I would rather not guess."


def guarded(**kwargs: Any) -> Guardrail:
    return Guardrail(model=MODEL, artifact=ARTIFACT, **kwargs)


GUARD = guarded()
CHAIN = GUARD.prompt | GUARD | StrOutputParser()


def leaks(found: object) -> bool:
    return any(secret in str(found) for secret in SECRETS)


# -- Runnable methods


def test_batch_as_completed_and_max_concurrency() -> None:
    found = dict(CHAIN.batch_as_completed([{"question": SURE}, {"question": UNSURE}], {"max_concurrency": 1}))
    assert found == {0: "Paris", 1: TEXT}


def test_batch_may_return_exceptions() -> None:
    first, second = guarded(on_abstain="raise").batch([SURE, UNSURE], return_exceptions=True)
    assert first.content == "Paris"
    assert isinstance(second, AbstainedError)


def test_with_config_reaches_the_samples() -> None:
    class Names(BaseCallbackHandler):
        def __init__(self) -> None:
            self.tags: list[Any] = []

        def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
            self.tags.append(kwargs["tags"])

    handler = Names()
    GUARD.with_config(tags=["mine"], callbacks=[handler]).invoke(SURE)
    assert len(handler.tags) > 2
    assert all("mine" in tags for tags in handler.tags)


def test_with_fallbacks_streams_and_batches() -> None:
    other: RunnableLambda[Any, AIMessage] = RunnableLambda(lambda _: AIMessage("bigger"))
    chain = guarded(on_abstain="raise").with_fallbacks([other], exceptions_to_handle=(AbstainedError,))
    assert [one.content for one in chain.batch([SURE, UNSURE])] == ["Paris", "bigger"]
    assert [one.content for one in chain.stream(UNSURE)] == ["bigger"]

    async def run() -> list[Any]:
        return [one.content for one in await chain.abatch([SURE, UNSURE])]

    assert asyncio.run(run()) == ["Paris", "bigger"]


def test_with_retry_draws_again() -> None:
    calls: list[int] = []

    class Flaky(ScriptedChat):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            calls.append(1)
            if len(calls) <= 3:
                raise TimeoutError
            return super()._generate(messages, stop, run_manager, **kwargs)

    model = Flaky(script=MODEL.script)
    guard = Guardrail(model=model, artifact=ARTIFACT, on_abstain="raise", early_stopping="off")
    chain = guard.with_retry(retry_if_exception_type=(AbstainedError,), wait_exponential_jitter=False)
    assert chain.invoke(SURE).content == "Paris"
    assert len(calls) == 22


def test_configurable_fields_are_checked_like_a_new_guard(tmp_path: Path) -> None:
    strict = make_artifact(MODEL, threshold=0.0).save(tmp_path / "strict.json")
    loose = make_artifact(MODEL, threshold=9.0).save(tmp_path / "loose.json")
    other = make_artifact(ScriptedChat(name_of_model="other")).save(tmp_path / "other.json")
    guard = GUARD.configurable_fields(
        on_abstain=ConfigurableField(id="on_abstain"), artifact=ConfigurableField(id="artifact")
    )
    assert guard.invoke(UNSURE).content == TEXT
    assert guard.with_config(configurable={"artifact": str(loose)}).invoke(UNSURE).content == "Secretville"
    assert guard.with_config(configurable={"artifact": str(strict)}).invoke(UNSURE).content == TEXT
    with pytest.raises(AbstainedError):
        guard.invoke(UNSURE, {"configurable": {"on_abstain": "raise"}})
    with pytest.raises(Exception, match="running 'scripted'"):
        guard.with_config(configurable={"artifact": str(other)}).invoke(SURE)


def test_a_changed_copy_is_checked_too() -> None:
    assert GUARD.model_copy(update={"on_abstain": "raise"}).on_abstain == "raise"
    loose = GUARD.model_copy(update={"artifact": make_artifact(MODEL, threshold=9.0)})
    assert loose.invoke(UNSURE).content == "Secretville"
    with pytest.raises(Exception, match="running 'other'"):
        GUARD.model_copy(update={"model": ScriptedChat(name_of_model="other")})


# -- streams show nothing before the verdict, and no sample ever


def test_events_v2_and_v3_show_no_sample() -> None:
    async def v2(question: str) -> list[Any]:
        return [event async for event in CHAIN.astream_events({"question": question}, version="v2")]

    events = asyncio.run(v2(UNSURE))
    model_events = [event["event"] for event in events if "chat_model" in event["event"]]
    assert model_events == ["on_chat_model_start", "on_chat_model_end"]  # the guard's own, and no sample's
    assert not leaks(events)

    async def v3(question: str) -> list[Any]:
        stream: Any = GUARD.astream_events(question, version="v3")
        stream = await stream if asyncio.iscoroutine(stream) else stream
        return [event async for event in stream]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v3 is a beta
        found = asyncio.run(v3(UNSURE))
        accepted = asyncio.run(v3(SURE))
    assert found
    assert not leaks(found)
    assert "Paris" in str(accepted)


def test_a_graphs_message_stream_shows_the_guards_message_once() -> None:
    graph = pytest.importorskip("langgraph.graph")

    def ask(state: Any) -> Any:
        return {"messages": [GUARD.invoke(state["messages"])]}

    built = graph.StateGraph(graph.MessagesState).add_node("ask", ask).add_edge(graph.START, "ask").compile()
    for question, content in ((SURE, "Paris"), (UNSURE, TEXT)):
        shown = [
            chunk.content for chunk, _ in built.stream({"messages": [("human", question)]}, stream_mode="messages")
        ]
        assert shown == [content]
        assert not leaks(shown)


# -- traces


class Recorder(BaseTracer):
    """Keeps finished root runs, with their children, as exporters do."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_verdict_is_run_metadata_and_samples_are_child_runs(asynchronous: bool) -> None:
    tracer = Recorder()
    for question in (SURE, UNSURE):
        if asynchronous:
            asyncio.run(GUARD.ainvoke(question, {"callbacks": [tracer]}))
        else:
            GUARD.invoke(question, {"callbacks": [tracer]})
    accepted, held = tracer.roots
    for run, reason in ((accepted, "within_threshold"), (held, "above_threshold")):
        metadata = (run.extra or {})["metadata"]
        assert metadata["guardrail_reason"] == reason
        assert metadata["guardrail_artifact"] == ARTIFACT.digest
        assert all(isinstance(value, str | int | float | bool) for k, value in metadata.items() if "guardrail_" in k)
        assert {child.name for child in run.child_runs} >= {"guardrail_primary", "guardrail_sample_0"}
        assert len(run.child_runs) == metadata["guardrail_calls"]
    assert not leaks(held.extra)
    assert not leaks(held.outputs)


def test_the_verdict_is_traced_when_the_abstention_raises() -> None:
    tracer = Recorder()
    with pytest.raises(AbstainedError):
        guarded(on_abstain="raise").invoke(UNSURE, {"callbacks": [tracer]})
    (run,) = tracer.roots
    assert run.error is not None
    assert (run.extra or {})["metadata"]["guardrail_accepted"] is False
    assert not leaks(run.error)


# -- agents


@tool
def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is a city"


def agent_parts(answers: list[str]) -> tuple[ScriptedChat, Any]:
    def asked(city: str) -> AIMessage:
        call: Any = {"name": "look_up", "args": {"city": city}, "id": "x", "type": "tool_call"}
        return AIMessage(content="", tool_calls=[call])

    class TwoTurns(ScriptedChat):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            if messages[-1].type == "tool":
                return ScriptedChat(default=["Done"])._generate(messages)
            return super()._generate(messages, stop, run_manager, **kwargs)

    model = TwoTurns(default=[asked(answer) for answer in answers])
    return model, make_artifact(model, threshold=0.5, bindings=bindings_for([look_up]))


def test_an_agent_calls_tools_only_when_the_guard_accepts() -> None:
    agents = pytest.importorskip("langchain.agents")
    model, artifact = agent_parts(["Rome"])
    agent = agents.create_agent(Guardrail(model=model, artifact=artifact), tools=[look_up])
    turns = agent.invoke({"messages": [("human", "Rome?")]})["messages"]
    assert [turn.type for turn in turns] == ["human", "ai", "tool", "ai"]
    assert (turns[2].content, turns[3].content) == ("Rome is a city", "Done")
    model, artifact = agent_parts(["Rome", "Oslo", "Bern"])
    agent = agents.create_agent(Guardrail(model=model, artifact=artifact), tools=[look_up])
    turns = agent.invoke({"messages": [("human", "Rome?")]})["messages"]
    assert [turn.type for turn in turns] == ["human", "ai"]
    assert turns[1].content == TEXT


def test_model_fallback_middleware_takes_over_after_an_abstention() -> None:
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    bigger = ScriptedChat(default=["bigger"])
    agent = agents.create_agent(
        guarded(on_abstain="raise"), tools=[], middleware=[middleware.ModelFallbackMiddleware(bigger)]
    )
    assert agent.invoke({"messages": [("human", UNSURE)]})["messages"][-1].content == "bigger"
    assert agent.invoke({"messages": [("human", SURE)]})["messages"][-1].content == "Paris"


# -- abstention messages and errors


def test_wording() -> None:
    verdict = GUARD.assess(UNSURE)
    assert worded("{reason}/{alpha}/{estimator}/{{x}}/{other}", verdict) == (
        "above_threshold/0.1/discrete_semantic_entropy/{{x}}/{other}"
    )
    assert worded("{next}", verdict).startswith("Hand the question")
    mine: Callable[[Verdict], str] = lambda found: f"Sorry ({found.cost.calls} calls)"  # noqa: E731
    assert guarded(abstain_message=mine).invoke(UNSURE).content == f"Sorry ({verdict.cost.calls} calls)"
    broken: Any = lambda found: 3  # noqa: E731
    with pytest.raises(UsageError, match="abstain_message returned int"):
        guarded(abstain_message=broken).invoke(UNSURE)


def test_the_error_survives_another_process() -> None:
    with pytest.raises(AbstainedError) as caught:
        guarded(on_abstain="raise", abstain_message="Sorry.").invoke(UNSURE)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.verdict, copied.message, str(copied)) == (
        caught.value.verdict,
        "Sorry.",
        caught.value.verdict.detail,
    )


# -- configuration


def test_configuration_round_trip(tmp_path: Path) -> None:
    guard = guarded(on_abstain="raise", abstain_message="No.", max_concurrency=3, early_stopping="off")
    config = json.loads(json.dumps(guard.to_config()))
    again = Guardrail.from_config(config, model=MODEL)
    assert again.to_config() == config
    assert (again.on_abstain, again.max_concurrency, again.artifact.digest) == ("raise", 3, ARTIFACT.digest)
    path = ARTIFACT.save(tmp_path / "a.json")
    small = guard.to_config(artifact=path)
    assert "calibration" not in json.dumps(small)
    assert Guardrail.from_config(small, model=MODEL, on_abstain="message").invoke(UNSURE).content == "No."
    make_artifact(MODEL, threshold=9.0).save(path)
    with pytest.raises(ArtifactTamperedError, match="the config was written for"):
        Guardrail.from_config(small, model=MODEL)


def test_configuration_holds_no_secret_and_asks_for_objects_again() -> None:
    class Keyed(ScriptedChat):
        key: str = "sk-very-secret"

    model = Keyed(script=MODEL.script)
    guard = Guardrail(
        model=model,
        artifact=make_artifact(model),
        on_abstain=model,
        abstain_message=lambda v: "x",
        judge=TokenF1Judge(),
    )
    config = guard.to_config()
    assert "sk-very-secret" not in json.dumps(config)
    assert config["needs"] == ["abstain_message", "judge", "on_abstain"]
    with pytest.raises(UsageError, match="give abstain_message, judge, on_abstain again"):
        Guardrail.from_config(config, model=model)
    given: dict[str, Any] = {"on_abstain": "raise", "abstain_message": "x", "judge": TokenF1Judge()}
    assert Guardrail.from_config(config, model=model, **given).on_abstain == "raise"


def broken_configs() -> Iterator[tuple[dict[str, Any], str]]:
    good = GUARD.to_config()
    yield {}, "has the format None"
    yield {**good, "settings": {"temperature": 0}}, "unknown settings"
    yield {**good, "artifact": {}}, "neither a path nor a content"


@pytest.mark.parametrize(("config", "message"), list(broken_configs()))
def test_broken_configurations(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Guardrail.from_config(config, model=MODEL)


def test_a_tampered_configuration_is_refused() -> None:
    config = GUARD.to_config()
    config["artifact"]["content"]["outcome"]["threshold"] = 9.0
    with pytest.raises(ArtifactTamperedError):
        Guardrail.from_config(config, model=MODEL)
