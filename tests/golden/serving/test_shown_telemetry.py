"""Golden text of what leaves through OpenTelemetry: spans, events and metrics of each kind of verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from guardrail import Guardrail
from guardrail.testing import make_artifact
from integrations.telemetry import INSTRUMENTS, measurements
from tests.golden.shown import pretty, rounded, same
from tests.integrations.test_telemetry import DOWN, MODEL, SURE, UNSURE, Otel

TIMED = "guardrail.decision.duration"


def test_spans_events_and_metrics() -> None:
    """Every attribute of the span and the event of each outcome, and the metrics after them."""
    told, otel = list[str](), Otel()
    guards: list[tuple[str, Any]] = [
        ("a guard", lambda **more: Guardrail(model=MODEL, artifact=make_artifact(MODEL, n=4), **more)),
        ("an infeasible artifact", lambda **more: Guardrail(
            model=MODEL, artifact=make_artifact(MODEL, n=4, threshold=None), **more)),
    ]  # fmt: skip
    for name, make in guards:
        for question in (SURE, UNSURE, DOWN):
            before = len(otel.spans)
            make(on_verdict=otel.telemetry()).invoke(question)
            for span, event in zip(otel.spans[before:], otel.events[before:], strict=True):
                told.append(f"## {name}: {question.removeprefix('MARKER ')}\n")
                told.append(f"span {span.name}, {span.status.status_code.name}")
                attributes = dict(sorted((span.attributes or {}).items()))
                attributes["guardrail.artifact"] = f"{len(attributes['guardrail.artifact'])} digits"
                told.append(pretty(rounded(attributes)))
                told.append(f"event {event.event_name} {json.dumps(rounded(dict(event.attributes)), sort_keys=True)}\n")
    told.append("## metrics\n")
    for name, points in sorted(otel.points().items()):
        for labels, value in sorted((sorted(labels), value) for labels, value in points.items()):
            shown = "SECONDS" if name == TIMED else rounded(value)
            told.append(f"{name} {json.dumps(dict(labels))}: {shown}")
    told.append("\n## instruments\n")
    told += [f"{name}: {instrument}" for name, instrument in INSTRUMENTS.items()]
    verdict = Guardrail(model=MODEL, artifact=make_artifact(MODEL, n=4)).assess(UNSURE)
    told.append("\n## measurements of a verdict that is only observed\n")
    told += [
        f"{name}: {'SECONDS' if name == TIMED else rounded(value)} {labels}"
        for name, value, labels in measurements(verdict, mode="observe", model="m")
    ]
    same("models/telemetry.txt", "\n".join(told))
