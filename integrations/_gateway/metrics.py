"""Counters of a gateway for Prometheus. Labels have few values, and no value comes from a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from guardrail.errors import MissingDependencyError, require
from guardrail.guard.observe import Observed
from guardrail.guard.observers import Observer
from guardrail.verdict import Verdict

from ..telemetry import INSTRUMENTS, Telemetry, caller, measurements

__all__ = ["Metrics"]

Missed = Callable[[], Mapping[str, Mapping[tuple[str, str], int]]]
"""Numbers of answers by model, and then by fate and reason."""
FATES = ("served", "chosen", "accepted", "abstained", "unmeasured", "not_comparable", "collected")


class _Observations:
    """Counts of the observing aliases and of the memory, read when Prometheus asks."""

    def __init__(
        self, family: Any, observed: Callable[[], Mapping[str, Observed]], evicted: Callable[[], int], missed: Missed
    ) -> None:
        self._family, self._observed, self._evicted, self._missed = family, observed, evicted, missed

    def collect(self) -> Iterator[Any]:
        """The families of counters."""
        fates = self._family("guardrail_observations", "Answers passed through.", labels=("model", "fate"))
        dropped = self._family(
            "guardrail_observations_dropped", "Chosen answers that were lost.", labels=("model", "cause")
        )
        for model, counts in self._observed().items():
            for fate in FATES:
                fates.add_metric((model, fate), getattr(counts, fate))
            for cause, number in counts.dropped.items():
                dropped.add_metric((model, cause), number)
        evicted = self._family("guardrail_draws_evicted", "Remembered pieces of draws that made room too early.")
        evicted.add_metric((), self._evicted())
        missed = self._family(
            "guardrail_observations_missed", "Answers that were not measured.", labels=("model", "fate", "reason")
        )
        for model, reasons in self._missed().items():
            for (fate, reason), number in reasons.items():
                missed.add_metric((model, fate, reason), number)
        yield from (fates, dropped, evicted, missed)


class Metrics:
    """Counters of one gateway. Verdicts have the instruments of `integrations.telemetry`, as with OpenTelemetry.

    Args:
        observed: The counts of the observing aliases, by name.
        evicted: The number of remembered pieces of draws that made room before their time was over.
        missed: The reasons why observed answers were not measured.
    """

    def __init__(
        self,
        observed: Callable[[], Mapping[str, Observed]],
        evicted: Callable[[], int] = lambda: 0,
        missed: Missed = dict,
    ) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._registry = own = client.CollectorRegistry()
        try:
            self._traces = bool(require("opentelemetry.trace", extra="otel"))
        except MissingDependencyError:
            self._traces = False
        self._made: dict[str, Any] = {}
        for name, (kind, unit, description, labels, buckets) in INSTRUMENTS.items():
            spelled = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
            if kind == "counter":
                self._made[name] = client.Counter(spelled, description, labels, registry=own)
            else:
                self._made[name] = client.Histogram(spelled, description, labels, buckets=buckets, registry=own)
        own.register(
            _Observations(
                require("prometheus_client.core", extra="serve").CounterMetricFamily, observed, evicted, missed
            )
        )
        self._passed = client.Counter(
            "guardrail_passed_through", "Requests passed through without a verdict.", ("model", "path"), registry=own
        )
        self._changed = client.Counter(
            "guardrail_upstream_changed", "Fields of replies that differ from the pin.", ("model", "field"),
            registry=own,
        )  # fmt: skip
        self._canary = client.Counter(
            "guardrail_canary_questions", "Questions of the canary.", ("model", "outcome"), registry=own
        )
        self._canary_alarm = client.Gauge(
            "guardrail_canary_alarm", "1 while the canary finds its questions answered otherwise than at first.",
            ("model",), registry=own,
        )  # fmt: skip
        self._stale = client.Gauge(
            "guardrail_configuration_stale", "1 while a reload has failed and the former configuration serves.",
            registry=own,
        )  # fmt: skip
        self._requests = client.Counter("guardrail_http_requests", "Requests.", ("route", "status"), registry=own)

    def observers(self, *, mode: Literal["guard", "observe"], model: str) -> list[Observer]:
        """The observers that count the verdicts of an alias; with the extra ``otel``, OpenTelemetry's too."""

        def count(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
            for name, value, labels in measurements(verdict, mode=mode, model=model):
                metric = self._made[name].labels(**labels)
                metric.inc(value) if INSTRUMENTS[name].kind == "counter" else metric.observe(value)

        return [count, Telemetry(model)] if self._traces else [count]

    def trace_of(self, headers: Mapping[str, str]) -> AbstractContextManager[None]:
        """The trace that a request names, for OpenTelemetry."""
        return caller(headers) if self._traces else nullcontext()

    def reloaded(self, *, stale: bool) -> None:
        """Say whether the last reload failed, so that an older configuration serves."""
        self._stale.set(stale)

    def changed(self, model: str, field: str) -> None:
        """Count a reply of another model than the pinned one."""
        self._changed.labels(model, field).inc()

    def canary(self, model: str, measured: int, missing: int, alarmed: bool) -> None:
        """Count a round of a canary."""
        self._canary.labels(model, "measured").inc(measured)
        self._canary.labels(model, "unmeasured").inc(missing)
        self._canary_alarm.labels(model).set(alarmed)

    def passed_through(self, model: str, path: str) -> None:
        """Count a request that no gate judges."""
        self._passed.labels(model, path).inc()

    def requested(self, route: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(route, f"{status // 100}xx").inc()

    def exposition(self, may_use: Callable[[str | None], bool]) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type.

        Args:
            may_use: Whether the page may show a model; called with None for counts that belong to no model.
        """

        def shown() -> Iterator[Any]:
            for family in self._registry.collect():  # made anew each time
                family.samples = [sample for sample in family.samples if may_use(sample.labels.get("model"))]
                yield family

        page: bytes = self._client.generate_latest(SimpleNamespace(collect=shown))
        return page, str(self._client.CONTENT_TYPE_LATEST)
