"""What a gateway counts, for Prometheus. Labels have few values, and none comes from a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from guardrail.errors import require
from guardrail.guard.observe import Observed

__all__ = ["Metrics"]

FATES = ("served", "chosen", "accepted", "abstained", "unmeasured", "not_comparable", "collected")

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80)
UNCERTAINTY = (0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3)


class _Observations:
    """What observing aliases count by themselves, read when Prometheus asks."""

    def __init__(self, family: Any, observed: Callable[[], Mapping[str, Observed]]) -> None:
        self._family, self._observed = family, observed

    def collect(self) -> Iterator[Any]:
        """The families of counters."""
        fates = self._family("guardrail_observations", "Answers passed through.", labels=("model", "fate"))
        dropped = self._family(
            "guardrail_observations_dropped", "Chosen answers that were lost.", labels=("model", "cause")
        )
        for model, counts in self._observed().items():
            for one in FATES:
                fates.add_metric((model, one), getattr(counts, one))
            for cause, number in counts.dropped.items():
                dropped.add_metric((model, cause), number)
        yield from (fates, dropped)


class Metrics:
    """Counters of one gateway.

    Args:
        observed: The counts of the observing aliases, by name.
    """

    def __init__(self, observed: Callable[[], Mapping[str, Observed]]) -> None:
        self._client = client = require("prometheus_client", extra="serve")
        self._registry = own = client.CollectorRegistry()
        by_model = ("outcome", "model", "estimator")
        self._decisions = client.Counter(
            "guardrail_decisions", "Verdicts.", ("outcome", "reason", "mode", "model", "estimator"), registry=own
        )
        self._seconds = client.Histogram(
            "guardrail_decision_duration_seconds",
            "Seconds to a verdict.",
            ("outcome", "mode", "model"),
            buckets=SECONDS,
            registry=own,
        )
        self._uncertainty = client.Histogram(
            "guardrail_uncertainty", "Measured uncertainties.", by_model, buckets=UNCERTAINTY, registry=own
        )
        self._calls = client.Counter("guardrail_model_calls", "Calls of models.", ("model",), registry=own)
        self._tokens = client.Counter("guardrail_tokens", "Tokens.", ("model", "direction"), registry=own)
        own.register(_Observations(require("prometheus_client.core", extra="serve").CounterMetricFamily, observed))
        self._requests = client.Counter("guardrail_http_requests", "Requests.", ("route", "status"), registry=own)

    def decided(self, verdict: Mapping[str, Any], *, mode: str, model: str, estimator: str) -> None:
        """Count a verdict (``Verdict.to_metadata()``)."""
        reason, cost, measured = verdict["reason"], verdict["cost"], verdict["uncertainty"]["value"]
        outcome = {"within_threshold": "accepted", "unmeasured": "unmeasured", "suspended": "suspended"}
        what = outcome.get(reason, "abstained")
        self._decisions.labels(what, reason, mode, model, estimator).inc()
        self._seconds.labels(what, mode, model).observe(cost["seconds"])
        self._calls.labels(model).inc(cost["calls"])
        self._tokens.labels(model, "input").inc(cost["input_tokens"])
        self._tokens.labels(model, "output").inc(cost["output_tokens"])
        if measured is not None:
            self._uncertainty.labels(what, model, estimator).observe(measured)

    def requested(self, route: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(route, f"{status // 100}xx").inc()

    def exposition(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        page: bytes = self._client.generate_latest(self._registry)
        return page, str(self._client.CONTENT_TYPE_LATEST)
