"""Counters of a gateway for Prometheus. Labels have few values, and no value comes from a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from guardrail.errors import MissingDependencyError, require
from guardrail.guard.observers import Observer
from guardrail.verdict import Verdict

from ..telemetry import INSTRUMENTS, Telemetry, caller, measurements

COUNTED = {
    "passed_through": ("Requests passed through without a verdict.", ("model", "path")),
    "upstream_changed": ("Fields of replies that differ from the pin.", ("model", "field")),
    "canary_questions": ("Questions of the canary.", ("model", "outcome")),
    "http_requests": ("Requests.", ("route", "status")),
    "observations": ("Answers passed through.", ("model", "fate")),
    "observations_dropped": ("Chosen answers that were lost.", ("model", "cause")),
    "observations_missed": ("Answers that were not measured.", ("model", "fate", "reason")),
}
"""Counters with their labels."""
SHOWN: dict[str, tuple[str, tuple[str, ...]]] = {
    "canary_alarm": ("1 while the canary finds its questions answered otherwise than at first.", ("model",)),
    "configuration_stale": ("1 while a reload has failed and the former configuration serves.", ()),
}
"""Gauges with their labels."""


class Metrics:
    """Counters of one gateway. Verdicts have the instruments of `integrations.telemetry`, as with OpenTelemetry.

    Args:
        evicted: The number of remembered pieces of draws that made room before their time was over.
    """

    def __init__(self, evicted: Callable[[], int] = lambda: 0) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._family = require("prometheus_client.core", extra="serve").CounterMetricFamily
        self._registry = registry = client.CollectorRegistry()
        self._evicted = evicted
        try:
            self._traces = bool(require("opentelemetry.trace", extra="otel"))
        except MissingDependencyError:
            self._traces = False
        self._made: dict[str, Any] = {}
        for name, (kind, unit, description, labels, buckets) in INSTRUMENTS.items():
            spelled = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
            if kind == "counter":
                self._made[name] = client.Counter(spelled, description, labels, registry=registry)
            else:
                self._made[name] = client.Histogram(spelled, description, labels, buckets=buckets, registry=registry)
        registry.register(self)
        for made, listed in ((client.Counter, COUNTED), (client.Gauge, SHOWN)):
            for name, (text, names) in listed.items():
                self._made[name] = made(f"guardrail_{name}", text, names, registry=registry)

    def collect(self) -> Iterator[Any]:
        """The count that the memory of draws keeps itself, for Prometheus."""
        text = "Remembered pieces of draws that made room too early."
        yield self._family("guardrail_draws_evicted", text, value=self._evicted())

    def observers(self, *, mode: Literal["guard", "observe"], model: str) -> list[Observer]:
        """The observers that count the verdicts of an alias; with the extra ``otel``, OpenTelemetry's too."""

        def count(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
            for name, value, labels in measurements(verdict, mode=mode, model=model):
                metric = self._made[name].labels(**labels)
                add = metric.inc if INSTRUMENTS[name].kind == "counter" else metric.observe
                add(value)

        count.is_slow = False  # type: ignore[attr-defined]  # no thread for a counter
        return [count, Telemetry(model)] if self._traces else [count]

    def trace_of(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """The trace that a request names, for OpenTelemetry."""
        return caller(headers) if self._traces else nullcontext()

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to one of the counters of `COUNTED`."""
        self._made[name].labels(*labels).inc(by)

    def show(self, name: str, value: float, *labels: str) -> None:
        """Set one of the gauges of `SHOWN`."""
        gauge = self._made[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def exposition(self, may_use: Callable[[str | None], bool]) -> tuple[bytes, str]:
        """Prometheus's page of what ``may_use`` allows (None: counts of no model), and its content type."""

        def shown() -> Iterator[Any]:
            for family in self._registry.collect():  # made anew each time
                family.samples = [sample for sample in family.samples if may_use(sample.labels.get("model"))]
                yield family

        page: bytes = self._client.generate_latest(SimpleNamespace(collect=shown))
        return page, str(self._client.CONTENT_TYPE_LATEST)
