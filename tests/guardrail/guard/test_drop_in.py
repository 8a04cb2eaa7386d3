"""The guard in place of a chat model: Runnable methods, streams, traces, agents, configuration; no sample leaks."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import tool
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run

from guardrail import AbstainedError, Guardrail, UsageError, Verdict
from guardrail.bindings import bindings_for
from guardrail.guard.abstention import ABSTENTION
from guardrail.judges import Judge, JudgeSpec
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.uncertainty import make_estimator

SURE, UNSURE = "Capital of France?", "Capital of Atlantis?"
SECRETS = ("Secretville", "Hiddenton", "Maskburg", "Veilham")
MODEL = ScriptedChat(script={SURE: ["Paris", "Paris", "paris!"], UNSURE: SECRETS})
ARTIFACT = make_artifact(MODEL, threshold=0.5)
BIGGER = ScriptedChat(default=["bigger"])
TEXT = ABSTENTION


def guarded(**kwargs: Any) -> Guardrail:
    kwargs.setdefault("remember", 0)  # the tests ask the same again
    return Guardrail(model=MODEL, artifact=ARTIFACT, **kwargs)


GUARD = guarded()
CHAIN = GUARD.prompt | GUARD | StrOutputParser()


def leaks(found: object) -> bool:
    return any(secret in str(found) for secret in SECRETS)


# -- Runnable methods


def test_batch_as_completed_and_max_concurrency() -> None:
    results = dict(CHAIN.batch_as_completed([{"question": SURE}, {"question": UNSURE}], {"max_concurrency": 1}))
    assert results == {0: "Paris", 1: TEXT}


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
    assert [message.content for message in chain.batch([SURE, UNSURE])] == ["Paris", "bigger"]
    assert [message.content for message in chain.stream(UNSURE)] == ["bigger"]

    async def run() -> list[Any]:
        return [message.content for message in await chain.abatch([SURE, UNSURE])]

    assert asyncio.run(run()) == ["Paris", "bigger"]


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


# -- streams show nothing before the verdict, and no sample ever


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_assessing_in_a_graph_shows_no_sample(asynchronous: bool, passed: bool) -> None:
    graph = pytest.importorskip("langgraph.graph")
    reply = AIMessage("held back")

    # The config is passed on, or found in the run around the node.
    def ask(state: Any, config: RunnableConfig) -> Any:
        GUARD.assess(state["messages"], config if passed else None)
        return {"messages": [reply]}

    async def aask(state: Any, config: RunnableConfig) -> Any:
        await GUARD.aassess(state["messages"], config if passed else None)
        return {"messages": [reply]}

    node = aask if asynchronous else ask
    built = graph.StateGraph(graph.MessagesState).add_node("ask", node).add_edge(graph.START, "ask").compile()
    state_in = {"messages": [("human", UNSURE)]}

    async def shown() -> list[Any]:
        return [chunk.content async for chunk, _ in built.astream(state_in, stream_mode="messages")]

    async def everything() -> list[Any]:
        return [chunk async for chunk in built.astream(state_in, stream_mode=["values", "updates", "tasks", "debug"])]

    assert asyncio.run(shown()) == ["held back"]
    assert not leaks(asyncio.run(everything()))
    assert not leaks(asyncio.run(events_of(built, state_in, "v2")))


async def events_of(runnable: Any, given: Any, version: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v1 is deprecated
        return [event async for event in runnable.astream_events(given, version=version)]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("passed", [False, True])
def test_assessing_in_a_lambda_shows_no_sample_in_events(version: str, passed: bool) -> None:
    def ask(question: str, config: RunnableConfig) -> bool:
        around = var_child_runnable_config.get()
        accepted = GUARD.assess(question, config if passed else None).accepted
        assert var_child_runnable_config.get() is around  # what follows in the node is streamed as before
        return accepted

    async def aask(question: str, config: RunnableConfig) -> bool:
        return (await GUARD.aassess(question, config if passed else None)).accepted

    events = asyncio.run(events_of(RunnableLambda(ask, aask), UNSURE, version))
    assert RunnableLambda(ask).invoke(UNSURE) is False
    assert events[-1]["data"]["output"] is False
    assert not leaks(events)
    assert not leaks(asyncio.run(events_of(GUARD, UNSURE, version)))


class Whispering(Judge):
    """A judge that asks its own chat model and quotes the texts it compares."""

    spec = JudgeSpec(name="whispering", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        model = ScriptedChat(default=[f"are these the same: {pairs}"])
        return [bool(model.invoke("?").content) and a == b for a, b in pairs]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_judge_that_asks_a_model_is_in_no_stream(asynchronous: bool) -> None:
    judge = Whispering()
    spec = make_estimator("discrete_semantic_entropy", judge=judge).spec
    guard = Guardrail(model=MODEL, artifact=ARTIFACT.model_copy(update={"estimator": spec}), using={"judge": judge})

    async def aask(question: str) -> Any:
        return (await guard.ainvoke(question)).content

    ask = RunnableLambda(aask if asynchronous else lambda question: guard.invoke(question).content)
    tracer = Recorder()
    events = asyncio.run(events_of(ask.with_config(callbacks=[tracer]), UNSURE, "v2"))
    assert events[-1]["data"]["output"] == TEXT
    assert not leaks(events)
    judge_runs = [run for run in tracer.everything() if run.inputs == {"prompts": ["Human: ?"]}]
    assert leaks([run.outputs for run in judge_runs])  # traces do show it


def test_an_observer_that_asks_a_model_is_in_no_stream() -> None:
    def second_look(verdict: Verdict, messages: Any) -> None:
        ScriptedChat(default=["noted"]).invoke(f"{verdict.samples}")

    guard = guarded(on_verdict=second_look)
    ask: RunnableLambda[str, Any] = RunnableLambda(lambda question: guard.invoke(question).content)
    events = asyncio.run(events_of(ask, UNSURE, "v2"))
    assert events[-1]["data"]["output"] == TEXT
    assert not leaks(events)


# -- traces


class Recorder(BaseTracer):
    """Keeps finished root runs, with their children, as exporters do."""

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[Run] = []

    def _persist_run(self, run: Run) -> None:
        self.roots.append(run)

    def everything(self) -> Iterator[Run]:
        waiting = list(self.roots)
        while waiting:
            run = waiting.pop()
            waiting += run.child_runs
            yield run


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_verdict_is_run_metadata_and_samples_are_child_runs(asynchronous: bool) -> None:
    tracer = Recorder()
    for question in (SURE, UNSURE):
        if asynchronous:
            asyncio.run(GUARD.ainvoke(question, {"callbacks": [tracer]}))
        else:
            GUARD.invoke(question, {"callbacks": [tracer]})
    accepted, abstained = tracer.roots
    for run, reason in ((accepted, "within_threshold"), (abstained, "above_threshold")):
        metadata = (run.extra or {})["metadata"]
        assert metadata["guardrail_reason"] == reason
        assert metadata["guardrail_artifact"] == ARTIFACT.digest
        assert all(isinstance(value, str | int | float | bool) for k, value in metadata.items() if "guardrail_" in k)
        assert {child.name for child in run.child_runs} >= {"guardrail_primary", "guardrail_sample_0"}
        assert len(run.child_runs) == metadata["guardrail_calls"]
    assert not leaks(abstained.extra)
    assert not leaks(abstained.outputs)


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
    def tool_call(city: str) -> AIMessage:
        call: Any = {"name": "look_up", "args": {"city": city}, "id": "x", "type": "tool_call"}
        return AIMessage(content="", tool_calls=[call])

    class TwoTurns(ScriptedChat):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            if messages[-1].type == "tool":
                return ScriptedChat(default=["Done"])._generate(messages)
            return super()._generate(messages, stop, run_manager, **kwargs)

    model = TwoTurns(default=[tool_call(answer) for answer in answers])
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
    assert guarded(abstain_message="Sorry {name}").invoke(UNSURE).content == "Sorry {name}"
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_abstian": "raise"}, "Guardrail has no setting 'on_abstian'; did you mean 'on_abstain'?"),
        ({"max_concurency": 2}, "did you mean 'max_concurrency'?"),
        ({"temperature": 0}, "its own settings are model, artifact, on_abstain"),
    ],
)
def test_a_setting_that_is_none_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        guarded(**settings)
    with pytest.raises(ValueError, match=re.escape(message)):
        GUARD.model_copy(update=settings)


def test_what_langchain_sets_on_any_chat_model_stays() -> None:
    guard = guarded(
        name="mine", tags=["t"], metadata={"m": 1}, callbacks=[], verbose=False, cache=False, streaming=True
    )
    assert (guard.get_name(), guard.tags) == ("mine", ["t"])
    assert len(list(guard.stream(SURE))) == 1


def test_a_copy_without_changes_is_the_same_guard() -> None:
    copied = GUARD.model_copy(update={"cache": False, "disable_streaming": True})
    assert copied._assessor is GUARD._assessor
    assert GUARD.model_copy(update={"probe": "off"})._assessor is not GUARD._assessor


def test_no_messages() -> None:
    for ask in (GUARD.invoke, GUARD.assess, lambda none: asyncio.run(GUARD.ainvoke(none))):
        with pytest.raises(UsageError, match="no messages to answer"):
            ask([])


def test_a_model_that_takes_over_may_be_named() -> None:
    assert guarded(on_abstain=f"python:{__name__}:BIGGER").invoke(UNSURE).content == "bigger"
    with pytest.raises(ValueError, match="Check the name"):
        guarded(on_abstain="python:nowhere:at_all")


class CountingJudge(Judge):
    """Compares strings, and counts the pairs."""

    spec = JudgeSpec(name="counting", version=1, params={})

    def __init__(self) -> None:
        self.pairs = 0

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.pairs += len(pairs)
        return [first == second for first, second in pairs]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda guard: guard.model_copy(deep=True)])
def test_a_deep_copy_asks_its_own_judge(copied: Callable[[Guardrail], Guardrail]) -> None:
    judge, model = CountingJudge(), ScriptedChat(default=["a", "b", "c"])
    spec = make_estimator("discrete_semantic_entropy", judge=judge).spec
    artifact = make_artifact(model).model_copy(update={"estimator": spec})
    duplicate = copied(Guardrail(model=model, artifact=artifact, using={"judge": judge}))
    duplicate.assess("q")
    assert (judge.pairs, duplicate.using["judge"].pairs > 0) == (0, True)
