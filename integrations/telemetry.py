"""A guard's verdicts as OpenTelemetry spans, events and metrics (extra ``otel``: opentelemetry-api alone).

    guard = Guardrail(model=model, artifact="calibration.json", on_verdict=Telemetry("support"))

`Telemetry` is an observer of any guard: `Guardrail`, `Cascade`, ``GuardrailMiddleware`` and the guards of frameworks.
It sets no provider and no exporter: without OpenTelemetry's SDK it does nothing. No text of a question, an answer, a
sample or an error leaves through it, and no label of a metric comes from a user. See docs/observability.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage

from guardrail.errors import require
from guardrail.verdict import Reason, Verdict

__all__ = ["INSTRUMENTS", "Instrument", "Telemetry", "caller", "decision_of", "measurements"]

Mode = Literal["guard", "observe"]
SCOPE = "acrc-guardrail"
SPAN = "guardrail.decide"
EVENT = "gen_ai.evaluation.result"
SCORE = "guardrail.uncertainty"
_HELD = {Reason.UNMEASURED: "unmeasured", Reason.SUSPENDED: "suspended", Reason.OTHER_TURNS: "unpromised"}
log = logging.getLogger("guardrail")


class Instrument(NamedTuple):
    """A metric. Prometheus has the same name with underscores, and its suffixes."""

    kind: Literal["counter", "histogram"]
    unit: str
    description: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


INSTRUMENTS: Mapping[str, Instrument] = {
    "guardrail.decisions": Instrument(
        "counter", "{decision}", "Verdicts.", ("outcome", "reason", "mode", "model", "score")
    ),
    "guardrail.decision.duration": Instrument(
        "histogram",
        "s",
        "Seconds from the first call to the last answer.",
        ("outcome", "mode", "model"),
        (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80),
    ),
    SCORE: Instrument(
        "histogram",
        "1",
        "Measured uncertainties; bounds of them where the first of two stages decided.",
        ("outcome", "model", "score"),
        (0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3),
    ),
    "guardrail.model.calls": Instrument("counter", "{call}", "Calls of models.", ("model",)),
    "guardrail.tokens": Instrument("counter", "{token}", "Tokens.", ("model", "direction")),
}
"""Metrics of every verdict, by name."""


def decision_of(verdict: Verdict) -> tuple[str, str, str | None]:
    """Outcome, reason (e.g. "unmeasured.refused"), and the cause of a failed measurement; each from a closed list."""
    code = verdict.uncertainty.reason if verdict.reason is Reason.UNMEASURED else None
    outcome = "accepted" if verdict.accepted else _HELD.get(verdict.reason, "abstained")
    if code is None:
        return outcome, verdict.reason.value, None
    return outcome, f"{verdict.reason}.{code}", code.value


def measurements(verdict: Verdict, *, mode: Mode, model: str) -> Iterator[tuple[str, float, dict[str, str]]]:
    """Name, value and labels of each measurement of a verdict; `INSTRUMENTS` has the names.

    Args:
        verdict: The verdict.
        mode: Whether the guard acted on the verdict.
        model: The configured name of the guarded model.
    """
    cost = verdict.cost
    score = verdict.uncertainty
    outcome, reason, _ = decision_of(verdict)
    labels = {"outcome": outcome, "reason": reason, "mode": mode, "model": model, "score": score.estimator}
    values: list[tuple[str, float | None, dict[str, str]]] = [
        ("guardrail.decisions", 1, {}),
        ("guardrail.decision.duration", cost.seconds, {}),
        (SCORE, score.value, {}),
        ("guardrail.model.calls", cost.calls, {}),
        ("guardrail.tokens", cost.input_tokens, {"direction": "input"}),
        ("guardrail.tokens", cost.output_tokens, {"direction": "output"}),
    ]
    for name, value, direction in values:
        if value is not None:
            yield name, value, {label: {**labels, **direction}[label] for label in INSTRUMENTS[name].labels}


class Telemetry:
    """An observer that reports every verdict to OpenTelemetry.

    Each decision is a span ``guardrail.decide``, current while the model and the judge work. Its status is an error
    only if the uncertainty could not be measured: an abstention is a result. The event ``gen_ai.evaluation.result`` has
    the score; the span has it under the same names, and as an OpenInference annotation. `INSTRUMENTS` are the metrics.

    Args:
        model: A name for the guarded model, in spans and metrics. Never take it from a request: each name is a series.
        tracer_provider: Replaces the global provider.
        meter_provider: Replaces the global provider.
        logger_provider: Replaces the global provider.

    Raises:
        MissingDependencyError: opentelemetry-api is not installed.
    """

    is_slow = False
    """Async guards call it without a thread: it only notes the verdict, which the end of the span reports."""

    def __init__(
        self, model: str, *, tracer_provider: Any = None, meter_provider: Any = None, logger_provider: Any = None
    ) -> None:
        self._model = model
        self._trace = require("opentelemetry.trace", extra="otel")
        self._context = require("opentelemetry.context", extra="otel")
        self._key = self._context.create_key(SCOPE)
        self._tracer = self._trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        logs = require("opentelemetry._logs", extra="otel")
        self._logger = logs.get_logger(SCOPE, logger_provider=logger_provider)
        meter = require("opentelemetry.metrics", extra="otel").get_meter(SCOPE, meter_provider=meter_provider)
        self._add: dict[str, Any] = {}
        for name, (kind, unit, description, _, buckets) in INSTRUMENTS.items():
            if kind == "counter":
                self._add[name] = meter.create_counter(name, unit, description).add
            else:
                histogram = meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=buckets)
                self._add[name] = histogram.record

    def __deepcopy__(self, memo: dict[int, Any]) -> Telemetry:
        # A copy of a guard reports to the same instruments: these hold locks, which cannot be copied.
        return self

    def __call__(self, verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        """Note a verdict; the span reports the last verdict on a question."""
        verdicts: list[Verdict] | None = self._context.get_value(self._key)
        if verdicts is not None:
            verdicts.append(verdict)
            return
        with self.around("guard"):  # no span is open: another observer called this object
            self(verdict, messages)

    @contextmanager
    def around(self, mode: Mode) -> Iterator[None]:
        """The span of one decision; guards open it."""
        verdicts: list[Verdict] = []
        span = self._tracer.start_span(SPAN)
        token = self._context.attach(
            self._context.set_value(self._key, verdicts, self._trace.set_span_in_context(span))
        )
        try:
            yield
            if verdicts:
                self._report(span, verdicts[-1], mode)
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)  # its text may quote an answer
            span.set_status(self._trace.StatusCode.ERROR)
            raise
        finally:
            self._context.detach(token)
            with _verdict_stands():
                span.end()

    def _report(self, span: Any, verdict: Verdict, mode: Mode) -> None:
        with _verdict_stands():
            for name, value, labels in measurements(verdict, mode=mode, model=self._model):
                self._add[name](value, labels)
            attributes, score = _attributes(verdict, mode, self._model)
            span.set_attributes(attributes)
            if verdict.reason is Reason.UNMEASURED:
                span.set_status(self._trace.StatusCode.ERROR)
            self._logger.emit(event_name=EVENT, attributes=score)


@contextmanager
def _verdict_stands() -> Iterator[None]:
    """Log an error of a processor or exporter: it must not change the guard's decision."""
    try:
        yield
    except Exception as error:
        log.warning("guardrail: telemetry failed with %s", type(error).__name__)


@contextmanager
def caller(headers: Mapping[str, str]) -> Iterator[None]:
    """Make spans part of the trace of a request's caller (W3C ``traceparent``), unless a trace has begun already.

    Args:
        headers: Headers of the request, by lower-case names.

    Raises:
        MissingDependencyError: opentelemetry-api is not installed.
    """
    trace = require("opentelemetry.trace", extra="otel")
    context = require("opentelemetry.context", extra="otel")
    w3c = require("opentelemetry.trace.propagation.tracecontext", extra="otel").TraceContextTextMapPropagator()
    begun = trace.get_current_span().get_span_context().is_valid
    token = context.attach(context.get_current() if begun else w3c.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


def _attributes(verdict: Verdict, mode: Mode, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes of the span, and of the event (OpenTelemetry's conventions for generative AI)."""
    outcome, reason, code = decision_of(verdict)
    value = verdict.uncertainty.value
    label = {"accepted": "accept", "unmeasured": "unmeasured"}.get(outcome, "abstain")
    of_span = {
        "guardrail.outcome": outcome,
        "guardrail.reason": reason,
        "guardrail.mode": mode,
        "guardrail.model": model,
        "guardrail.score": verdict.uncertainty.estimator,
        "guardrail.artifact": verdict.artifact.removeprefix("sha256:")[:12],
        "guardrail.uncertainty": value,
        "guardrail.threshold": verdict.threshold,
        "guardrail.alpha": verdict.alpha,
        "guardrail.stage": getattr(verdict, "stage", None),  # of a cascade
        "guardrail.calls": verdict.cost.calls,
        "guardrail.calls.saved": verdict.cost.saved,
        "error.type": code,
        "openinference.span.kind": "GUARDRAIL",
        "annotations.0.annotation.name": SCORE,  # OpenInference, spec/annotations.md
        "annotations.0.annotation.score": value,
        "annotations.0.annotation.label": label,
        "annotations.0.annotation.annotator_kind": "CODE",
    }
    of_event = {
        "gen_ai.evaluation.name": SCORE,
        "gen_ai.evaluation.score.value": value,
        "gen_ai.evaluation.score.label": label,
        "error.type": code,
    }
    of_span |= of_event  # Langfuse, among others, keeps only spans with an attribute gen_ai.*
    return _measured(of_span), _measured(of_event)


def _measured(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
