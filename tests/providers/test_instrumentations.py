"""`Telemetry` beside the published instrumentations of LangChain; `make test-telemetry` installs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import pytest

SURE, UNSURE = "sure?", "unsure?"
APART = ["one", "two", "three", "four", "five"]


class Instrumentation(NamedTuple):
    """An instrumentation of LangChain.

    Attributes:
        package: Name of its package.
        name: Name of its class.
        guard: Name of the guard's span.
        model: Name of the agent model's span.
        shows_metadata: Whether the guard's span has the verdict.
        interrupt_fails: Whether it reports an interrupt as an error.
    """

    package: str
    name: str
    guard: str
    model: str
    shows_metadata: bool
    interrupt_fails: bool


KNOWN = [
    Instrumentation(
        "openinference.instrumentation.langchain", "LangChainInstrumentor", "Guardrail", "AgentModel", True, False
    ),
    Instrumentation(
        "opentelemetry.instrumentation.langchain",
        "LangchainInstrumentor",
        "Guardrail.chat",
        "AgentModel.chat",
        False,
        True,
    ),
]


class Traced(NamedTuple):
    """An active instrumentation, and its spans."""

    by: Instrumentation
    tracers: Any
    exporter: Any

    def spans(self, scope: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.instrumentation_scope.name == scope]


@pytest.fixture(scope="module", params=KNOWN, ids=lambda instrumentation: instrumentation.package.partition(".")[0])
def instrumented(request: pytest.FixtureRequest) -> Iterator[Traced]:
    by: Instrumentation = request.param
    pytest.importorskip(by.package, reason="make test-telemetry installs it")
    sdk: Any = import_module("opentelemetry.sdk.trace")
    export: Any = import_module("opentelemetry.sdk.trace.export")
    memory: Any = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter, tracers = memory.InMemorySpanExporter(), sdk.TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(export.SimpleSpanProcessor(exporter))
    instrumentor = getattr(import_module(by.package), by.name)()
    instrumentor.instrument(tracer_provider=tracers)
    yield Traced(by, tracers, exporter)
    instrumentor.uninstrument()  # Traceloop's instrumentation works only once in a process


@pytest.fixture
def traced(instrumented: Traced) -> Traced:
    instrumented.exporter.clear()
    return instrumented


@pytest.mark.parametrize("is_async", [False, True])
def test_a_decision_lies_beside_the_guards_run(traced: Traced, is_async: bool) -> None:
    from guardrail import Guardrail
    from guardrail.testing import ScriptedChat, make_artifact
    from integrations.telemetry import Telemetry

    model = ScriptedChat(script={SURE: ["Paris"], UNSURE: APART})
    guard = Guardrail(
        model=model, artifact=make_artifact(model, n=4), on_verdict=Telemetry("m", tracer_provider=traced.tracers)
    )
    for question in (SURE, UNSURE):
        with traced.tracers.get_tracer("app").start_as_current_span("app") as app:
            asyncio.run(guard.ainvoke(question)) if is_async else guard.invoke(question)
        (ours,), theirs = traced.spans("acrc-guardrail"), traced.spans(traced.by.package)
        (run,) = (span for span in theirs if span.name == traced.by.guard)
        assert ours.parent.span_id == run.parent.span_id == app.get_span_context().span_id
        assert ours.attributes["guardrail.outcome"] == ("accepted" if question == SURE else "abstained")
        assert not [span.name for span in (ours, *theirs) if span.status.status_code.name == "ERROR"]
        assert ("guardrail_accepted" in run.attributes.get("metadata", "")) is traced.by.shows_metadata
        traced.exporter.clear()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_that_waits_for_a_person_is_no_error(traced: Traced, is_async: bool) -> None:
    from langchain.agents import create_agent
    from langgraph.checkpoint.memory import InMemorySaver

    from integrations.langchain_agents import GuardrailMiddleware
    from integrations.telemetry import Telemetry
    from tests.integrations.agents.agent_fakes import SYSTEM, TOOLS, AgentChat, artifact_of, sending

    model = AgentChat(steps={("pay bob", 0): [sending(5), *(sending(k) for k in range(4))]})
    gate = GuardrailMiddleware(
        tools={"*": artifact_of(model)}, exempt=["balance"], on_verdict=Telemetry("m", tracer_provider=traced.tracers)
    )
    agent = create_agent(model, tools=TOOLS, system_prompt=SYSTEM, middleware=[gate], checkpointer=InMemorySaver())
    request: Any = {"messages": [("user", "pay bob")]}
    config: Any = {"configurable": {"thread_id": "1"}}
    result = asyncio.run(agent.ainvoke(request, config)) if is_async else agent.invoke(request, config)
    assert result["__interrupt__"]
    (ours,), theirs = traced.spans("acrc-guardrail"), traced.spans(traced.by.package)
    assert (ours.status.status_code.name, ours.attributes["guardrail.outcome"]) == ("UNSET", "abstained")
    assert traced.by.model in {span.name for span in theirs}
    failed = {span.name for span in theirs if span.status.status_code.name == "ERROR"}
    assert traced.by.model not in failed
    assert bool(failed) is traced.by.interrupt_fails
