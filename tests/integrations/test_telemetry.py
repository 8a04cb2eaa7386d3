"""What leaves through OpenTelemetry: one span and one event a decision, bounded metrics, and no text of anybody."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from guardrail import AbstainedError, Cascade, Guardrail
from guardrail.artifact import CascadeArtifact, CascadeOutcome, StageShare
from guardrail.errors import MissingDependencyError, UsageError
from guardrail.sampling.effects import run
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, Unmeasured
from guardrail.verdict import Reason, Verdict
from integrations import telemetry
from integrations.telemetry import INSTRUMENTS, Telemetry, caller, decision_of, measurements

SURE, UNSURE, DOWN = "MARKER sure?", "MARKER unsure?", "MARKER down?"
APART = ["MARKER one", "MARKER two", "MARKER three", "MARKER four", "MARKER five"]
SCRIPT = {SURE: ["MARKER Paris"], UNSURE: APART, DOWN: [ConnectionError("MARKER")]}
ACCEPTED, ABSTAINED = ("accepted", StatusCode.UNSET, "accept"), ("abstained", StatusCode.UNSET, "abstain")
UNMEASURED = ("unmeasured", StatusCode.ERROR, "unmeasured")


class Watched(ScriptedChat):
    """Notes the span in which it is called."""

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        CALLED_IN.append(trace.get_current_span().get_span_context().span_id)
        return super()._generate(messages, stop, run_manager, **kwargs)


CALLED_IN: list[int] = []
MODEL = Watched(script=SCRIPT)
ARTIFACT = make_artifact(MODEL, n=4)


class Otel:
    """An OpenTelemetry that keeps what it gets."""

    def __init__(self) -> None:
        exporter: Any = InMemoryLogRecordExporter  # it has no types
        self._spans, self._events, self._reader = InMemorySpanExporter(), exporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._loggers = LoggerProvider(shutdown_on_exit=False)
        self._loggers.add_log_record_processor(SimpleLogRecordProcessor(self._events))
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def telemetry(self, model: str = "support") -> Telemetry:
        return Telemetry(
            model, tracer_provider=self.tracers, meter_provider=self._meters, logger_provider=self._loggers
        )

    def app(self) -> Any:
        return self.tracers.get_tracer("app").start_as_current_span("app")

    @property
    def spans(self) -> list[Any]:
        return [span for span in self._spans.get_finished_spans() if span.name != "app"]

    @property
    def events(self) -> list[Any]:
        return [event.log_record for event in self._events.get_finished_logs()]

    def points(self) -> dict[str, dict[frozenset[tuple[str, Any]], Any]]:
        """The data points by metric and labels: a count, or count and sum of a histogram."""
        points: dict[str, dict[frozenset[tuple[str, Any]], Any]] = {}
        data: Any = self._reader.get_metrics_data()
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
            points[metric.name] = {
                frozenset(point.attributes.items()): getattr(point, "value", None) or (point.count, point.sum)
                for point in metric.data.data_points
            }
        return points

    def decided(self) -> list[tuple[str, StatusCode, str]]:
        """Outcome, status and event of each decision, after checking what holds for all of them."""
        events, spans = self.events, self.spans
        assert "MARKER" not in repr([span.to_json() for span in spans]) + repr(events) + repr(self.points())
        assert [event.span_id for event in events] == [span.get_span_context().span_id for span in spans]
        for span, event in zip(spans, events, strict=True):
            attributes: Any = span.attributes
            assert (span.name, event.event_name) == ("guardrail.decide", "gen_ai.evaluation.result")
            assert attributes["annotations.0.annotation.label"] == event.attributes["gen_ai.evaluation.score.label"]
            assert attributes.get("guardrail.uncertainty") == event.attributes.get("gen_ai.evaluation.score.value")
            assert dict(event.attributes).items() <= dict(attributes).items()
            assert (attributes.get("error.type") is None) == (span.status.status_code is StatusCode.UNSET)
        return [
            (
                str(span.attributes and span.attributes["guardrail.outcome"]),
                span.status.status_code,
                event.attributes["gen_ai.evaluation.score.label"],
            )
            for span, event in zip(spans, events, strict=True)
        ]


@pytest.fixture
def otel() -> Otel:
    CALLED_IN.clear()
    return Otel()


def invoked(guard: Any) -> None:
    for question in (SURE, UNSURE):
        guard.invoke(question)


async def ainvoked(guard: Any) -> None:
    for question in (SURE, UNSURE):
        await guard.ainvoke(question)


async def astreamed(guard: Any) -> None:
    for question in (SURE, UNSURE):
        assert [chunk async for chunk in guard.astream(question)]


WAYS: dict[str, Callable[[Any], Any]] = {
    "invoke": invoked,
    "batch": lambda guard: guard.batch([SURE, UNSURE], {"max_concurrency": 1}),
    "stream": lambda guard: [*guard.stream(SURE), *guard.stream(UNSURE)],
    "ainvoke": lambda guard: asyncio.run(ainvoked(guard)),
    "astream": lambda guard: asyncio.run(astreamed(guard)),
    "assess": lambda guard: [guard.assess(SURE), guard.assess(UNSURE)],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_decision_is_one_span_around_its_calls_however_it_is_asked_for(otel: Otel, way: str) -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=otel.telemetry())
    with otel.app() as app:
        WAYS[way](guard)
        assert trace.get_current_span() is app  # nothing stays open
    assert otel.decided() == [ACCEPTED, ABSTAINED]
    assert {span.parent and span.parent.span_id for span in otel.spans} == {app.get_span_context().span_id}
    assert set(CALLED_IN) == {span.get_span_context().span_id for span in otel.spans}


def test_only_what_could_not_be_measured_is_an_error(otel: Otel) -> None:
    raising = Guardrail(model=MODEL, artifact=ARTIFACT, on_abstain="raise", on_verdict=otel.telemetry())
    for question in (UNSURE, DOWN):
        with pytest.raises(AbstainedError):
            raising.invoke(question)
    assert otel.decided() == [ABSTAINED, UNMEASURED]
    attributes: Any = otel.spans[1].attributes
    assert (attributes["guardrail.reason"], attributes["error.type"]) == ("unmeasured.model_failed", "model_failed")
    assert otel.spans[1].events == ()  # the exception's text quotes what was asked


def test_a_remembered_abstention_is_no_new_decision(otel: Otel) -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=otel.telemetry())
    guard.batch([UNSURE, UNSURE], {"max_concurrency": 1})
    assert otel.decided() == [ABSTAINED]


def test_the_last_verdict_on_a_question_is_reported(otel: Otel) -> None:
    def unable(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        raise OSError("MARKER")

    telemetry = otel.telemetry()
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=[telemetry, lambda v, m: telemetry(v, m), unable])
    guard.invoke(SURE)
    assert otel.decided() == [("suspended", StatusCode.UNSET, "abstain")]
    apart = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=lambda verdict, messages: telemetry(verdict, messages))
    apart.invoke(SURE)  # without a span around it
    assert otel.decided()[1:] == [ACCEPTED]


def test_an_observed_answer_is_a_decision_that_nobody_acted_on(otel: Otel) -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=otel.telemetry())
    run(
        guard.served_steps(
            guard.prompt.invoke({"question": UNSURE}).to_messages(), Sample(text="MARKER one", finish_reason="stop")
        )
    )
    assert otel.decided() == [ABSTAINED]
    assert [span.attributes and span.attributes["guardrail.mode"] for span in otel.spans] == ["observe"]


def test_a_cascade_decides_once_and_names_its_stage(otel: Otel) -> None:
    large = ScriptedChat(name_of_model="large", script={UNSURE: ["MARKER known"]})
    stages = (make_artifact(MODEL, n=4), make_artifact(large, n=4))
    shares = tuple(StageShare(threshold=stage.threshold, n_accepted=1, n_errors=0) for stage in stages)
    none: dict[str, Any] = {"rule": "none", "alpha": 0.1, "delta": None, "n": 2, "interval": None}
    outcome = CascadeOutcome(stages=shares, **none)
    artifact = CascadeArtifact(stages=stages, outcome=outcome)
    system = Cascade([MODEL, large], artifact=artifact, on_verdict=otel.telemetry())
    invoked(system)
    asyncio.run(ainvoked(system))
    assert otel.decided() == [ACCEPTED, ACCEPTED] * 2
    assert [span.attributes and span.attributes["guardrail.stage"] for span in otel.spans] == [1, 2, 1, 2]


def test_a_decision_that_raises_ends_its_span_without_the_text(otel: Otel) -> None:
    async def waiting(verdict: Verdict, messages: Sequence[BaseMessage]) -> None: ...

    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=[otel.telemetry(), waiting])
    with pytest.raises(UsageError, match="async"):
        guard.invoke(SURE)
    (span,) = otel.spans
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())
    assert dict(span.attributes or {}) == {"error.type": "UsageError"}
    assert otel.events == []


def test_a_failing_exporter_changes_no_answer(otel: Otel, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise OSError("MARKER")

    otel.tracers.add_span_processor(Broken())
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=otel.telemetry())
    assert guard.invoke(SURE).text == "MARKER Paris"
    assert [record.getMessage() for record in caplog.records] == ["guardrail: telemetry failed with OSError"]


def test_the_api_alone_changes_nothing_and_without_it_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=Telemetry("support"))
    assert guard.model_copy(deep=True).invoke(SURE).text == "MARKER Paris"
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingDependencyError, match=r"acrc-guardrail\[otel\]"):
        Telemetry("support")


def test_a_request_names_the_trace_unless_one_has_begun(otel: Otel) -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=otel.telemetry())
    headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    with caller(headers):
        guard.invoke(SURE)
    with otel.app() as app, caller(headers):
        guard.invoke(SURE)
    with caller({"traceparent": "MARKER"}):
        guard.invoke(SURE)
    traces = [span.get_span_context().trace_id for span in otel.spans]
    assert traces[:2] == [int("ab" * 16, 16), app.get_span_context().trace_id]
    assert otel.spans[2].parent is None


def test_the_page_runs_and_lists_what_is_sent(otel: Otel, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)  # those with a title: tests/providers
    monkeypatch.setattr(telemetry, "Telemetry", otel.telemetry)
    exec(compile(code, "docs/observability.md", "exec"), {"__name__": "page"})
    assert otel.decided() == [ACCEPTED]
    assert re.fullmatch("[0-9a-f]{12}", str((otel.spans[0].attributes or {})["guardrail.artifact"]))
    for name, instrument in INSTRUMENTS.items():
        unit = f", {instrument.unit}" if instrument.unit == "s" else ""
        assert f"|`{name}`|{instrument.kind}{unit}|{', '.join(instrument.labels)}|" in page
    sent = [name.removeprefix("guardrail.") for name in otel.spans[0].attributes or {} if name.startswith("guardrail.")]
    assert [name for name in sent if f".{name}`" not in page] == []


# -- metrics -----------------------------------------------------------------------------------------------------------


def verdict(reason: Reason, code: Unmeasured | None = None) -> Verdict:
    measured = Guardrail(model=MODEL, artifact=ARTIFACT).assess(SURE)
    own = {"value": 0.3} if code is None else {"value": None, "reason": code, "detail": "MARKER"}
    score = measured.uncertainty.model_copy(update=own)
    return measured.model_copy(
        update={"accepted": reason is Reason.WITHIN_THRESHOLD, "reason": reason, "uncertainty": score}
    )


EVERY = [verdict(reason) for reason in Reason if reason is not Reason.UNMEASURED]
EVERY += [verdict(Reason.UNMEASURED, code) for code in Unmeasured]
MODES: tuple[Literal["guard", "observe"], ...] = ("guard", "observe")


def test_every_verdict_gives_few_series_and_words_from_closed_lists() -> None:
    series = {
        (name, frozenset(labels.items()))
        for verdict, mode in product(EVERY, MODES)
        for name, _, labels in measurements(verdict, mode=mode, model="support")
    }
    assert sum(len(INSTRUMENTS[name].buckets) + 3 if INSTRUMENTS[name].buckets else 1 for name, _ in series) < 500
    assert {decision_of(verdict)[0] for verdict in EVERY} == {
        "accepted", "abstained", "unmeasured", "suspended", "unpromised",
    }  # fmt: skip
    words = {*Reason, *(f"unmeasured.{code}" for code in Unmeasured)}
    assert {dict(labels)["reason"] for name, labels in series if name == "guardrail.decisions"} <= words
    assert "MARKER" not in repr(series)


def test_prometheus_has_the_same_metrics_as_opentelemetry(otel: Otel, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client", reason="the `serve` extra is not installed")
    from prometheus_client.parser import text_string_to_metric_families

    from integrations._gateway import metrics

    monkeypatch.setattr(metrics, "Telemetry", otel.telemetry)
    gateway = metrics.Metrics()
    for verdict in EVERY:
        for observer in gateway.observers(mode="guard", model="support"):
            observer(verdict, [])
    page, _ = gateway.exposition(lambda model: True)
    shown: dict[str, dict[frozenset[tuple[str, Any]], Any]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            shown.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    for name, points in otel.points().items():
        spelled = name.replace(".", "_") + ("_seconds" if INSTRUMENTS[name].unit == "s" else "")
        for labels, value in points.items():
            if INSTRUMENTS[name].kind == "counter":
                assert shown[f"{spelled}_total"][labels] == value
            else:
                assert (shown[f"{spelled}_count"][labels], shown[f"{spelled}_sum"][labels]) == pytest.approx(value)
    assert set(otel.points()) == set(INSTRUMENTS)
    assert sum(shown["guardrail_decisions_total"].values()) == len(EVERY)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert len(metrics.Metrics().observers(mode="guard", model="support")) == 1
