"""Verdicts as scores in Langfuse and MLflow: the snippets of docs/observability.md with the published packages.

`make test-adoption` installs both. Nothing leaves: Langfuse's client gets a transport in memory, MLflow a local file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from guardrail import Guardrail
from guardrail.testing import ScriptedChat, make_artifact
from integrations.telemetry import Telemetry

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
SURE, UNSURE, DOWN = "sure?", "unsure?", "down?"
SCRIPT: dict[str, Any] = {SURE: ["Paris"], UNSURE: ["one", "two", "three", "four", "five"], DOWN: [ConnectionError()]}


def run(title: str, **names: Any) -> dict[str, Any]:
    """Run a titled snippet of the page with these names, and return all its names."""
    (code,) = re.findall(rf'```python title="{title}"\n(.*?)```', PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), names)
    return names


def guard(**settings: Any) -> Guardrail:
    model = ScriptedChat(script=SCRIPT)
    return Guardrail(model=model, artifact=make_artifact(model, n=4), **settings)


@pytest.mark.parametrize(
    ("question", "scores"),
    [
        (SURE, {"guardrail.accepted": 1.0, "guardrail.uncertainty": 0.0}),
        (UNSURE, {"guardrail.accepted": 0.0, "guardrail.uncertainty": pytest.approx(1.386, abs=0.001)}),  # ln 4
        (DOWN, {"guardrail.accepted": 0.0}),
    ],
)
def test_langfuse_keeps_the_span_and_gets_the_verdict_as_scores(question: str, scores: dict[str, float]) -> None:
    langfuse = pytest.importorskip("langfuse", reason="langfuse is not installed")
    httpx = pytest.importorskip("httpx")
    tracing = pytest.importorskip("opentelemetry.sdk.trace")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    sent: list[dict[str, Any]] = []

    def receive(request: Any) -> Any:
        sent.extend(json.loads(request.read()))
        return httpx.Response(207, json={"successes": [], "errors": []})

    exporter, tracers = memory.InMemorySpanExporter(), tracing.TracerProvider(shutdown_on_exit=False)
    client = langfuse.Langfuse(
        public_key=f"pk-lf-{question}",  # a client for each key
        secret_key="sk-lf",
        base_url="http://127.0.0.1:9",
        httpx_client=httpx.Client(transport=httpx.MockTransport(receive)),
        span_exporter=exporter,
        tracer_provider=tracers,
    )
    run("langfuse", langfuse=client, question=question, guard=guard(on_verdict=Telemetry("s", tracer_provider=tracers)))
    tracers.get_tracer("another library").start_span("not about a model").end()
    client.flush()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"answer", "guardrail.decide"}  # the default filter drops the other library's span
    trace = spans["answer"].context.trace_id
    assert spans["guardrail.decide"].context.trace_id == trace
    assert {score["name"]: score["value"] for score in sent} == scores
    assert {score["traceId"] for score in sent} == {f"{trace:032x}"}


@pytest.mark.parametrize(("question", "accepted"), [(SURE, True), (UNSURE, False), (DOWN, False)])
def test_mlflow_gets_the_verdict_as_feedback(
    question: str, accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow makes a folder for files there
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    source = pytest.importorskip("mlflow.entities").AssessmentSource
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    names = run("mlflow", mlflow=mlflow, AssessmentSource=source, question=question, guard=guard())
    mlflow.flush_trace_async_logging()
    (feedback,) = mlflow.get_trace(names["span"].trace_id).info.assessments
    assert (feedback.name, feedback.value) == ("guardrail.accepted", accepted)
    assert (feedback.rationale, feedback.source.source_id) == (names["verdict"]["reason"], "acrc-guardrail")
    assert feedback.metadata["artifact"] == names["verdict"]["artifact"]
