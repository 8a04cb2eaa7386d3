"""Trust in a guard's endpoint: a probe at first use, and again where it refused the endpoint or failed.

A refused endpoint is probed again every `UNFIT_FOR` seconds. Samples are not watched: how often they agree depends on
the questions.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel

from ..explain import next_step
from ..sampling.effects import Steps, run
from ..sampling.limits import new_lock
from ..sampling.probe import ProbeReport, unlike
from ..sampling.prober import needs_probe, probe_steps
from ..types import Cost, Fingerprint, SampleSet, SamplingPlan, Unmeasured
from ..verdict import Verdict

__all__ = ["EndpointProblem", "EndpointTrust"]

UNFIT_FOR = 60.0
"""Seconds after which an endpoint that a probe refused is probed again."""
SLOW_PROBE = 5.0
"""Seconds beyond which a probe stands in the log: the questions of its time waited for it."""
MOST_LOGGED = 20
"""Causes of a wrong configuration that count as logged already."""

_LOGGED: dict[Unmeasured | None, str] = {
    Unmeasured.MISCONFIGURED: "answers no call",
    Unmeasured.DEGENERATE_SAMPLES: "cannot be measured, so every question is held back",
}
"""Faults that an operator has to correct, in words."""

DOCTOR = "Compare again with `guardrail doctor` while it is idle"
log = logging.getLogger("guardrail")


@dataclass(frozen=True, slots=True)
class EndpointProblem:
    """The state of a guard's endpoint before a question is asked.

    Attributes:
        reason: The reason why no sample of it can be measured, or None.
        detail: The same in words.
        cost: The cost of the probe made just now.
    """

    reason: Unmeasured | None = None
    detail: str = ""
    cost: Cost = Cost()  # noqa: RUF009 - frozen

    def apply_to(self, drawn: SampleSet) -> SampleSet:
        """The sample set with this problem, unless it already has one."""
        if self.reason is None or drawn.problem is not None:
            return drawn
        return drawn.model_copy(update={"problem": self.reason, "problem_detail": self.detail})


class EndpointTrust:
    """Probes one guard's model. Shared by threads and tasks; keeps no prompt and no answer.

    Args:
        model: The model.
        plan: The plan that it is asked by.
        enabled: Whether to probe.
        clock: Seconds.
        fingerprint: That of the calibrated weights: if a probe finds other weights, the log says so.
    """

    def __init__(
        self,
        model: BaseChatModel,
        plan: SamplingPlan,
        *,
        enabled: bool,
        clock: Callable[[], float] = time.monotonic,
        fingerprint: Fingerprint | None = None,
    ) -> None:
        self._model, self._plan, self._clock, self._fingerprint = model, plan, clock, fingerprint
        self._enabled = enabled and needs_probe(model)
        self._lock = new_lock(self)
        self._unfit_until: float | None = None
        self._logged: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> EndpointTrust:
        # The state is about this model object, and a lock cannot be copied: a copy starts afresh with its own.
        model, kept = copy.deepcopy(self._model, memo), self._fingerprint
        return EndpointTrust(model, self._plan, enabled=self._enabled, clock=self._clock, fingerprint=kept)

    def check(self) -> EndpointProblem:
        """Probe if it is time to; a report that is known already costs nothing."""
        return run(self.check_steps())

    def check_steps(self) -> Steps[EndpointProblem]:
        """`check` as steps of a larger computation."""
        if not self._enabled:
            return EndpointProblem()
        again, report, cost, began = self._due(), None, Cost(), self._clock()
        try:
            report, cost = yield from probe_steps(self._model, self._plan, again=again)
        finally:  # also when cancelled: the probe that was due must be made by the next caller
            self._note(report, again)
        if cost.calls and (seconds := self._clock() - began) > SLOW_PROBE:
            log.warning("guardrail: the probe of the endpoint took %.0f s, and questions waited for it", seconds)
        now = report.greedy if report is not None and cost.calls else None
        if self._fingerprint and now and (difference := unlike(self._fingerprint, now)):
            log.warning("guardrail: the endpoint may not have the calibrated weights: %s. %s", difference, DOCTOR)
        problem = None if report is None else report.problem(self._plan)
        return EndpointProblem(cost=cost) if problem is None else EndpointProblem(*problem, cost)

    def record(self, verdict: Verdict, problem: EndpointProblem) -> Verdict:
        """The verdict with the cost of the probe that came before it.

        An endpoint that answers no call, or that cannot be measured, is an error in the log, once for each cause.
        """
        self._log_configuration(verdict)
        if not problem.cost.calls:
            return verdict
        return verdict.model_copy(update={"cost": verdict.cost + problem.cost})

    def _log_configuration(self, verdict: Verdict) -> None:
        """Log a fault that an operator has to correct: the user reads only the text of an abstention."""
        if verdict.uncertainty.reason not in _LOGGED:
            if verdict.uncertainty.measured:
                self._logged.clear()  # corrected: the next time is news again
            return
        cause = verdict.uncertainty.detail
        with self._lock:
            if cause in self._logged:
                return
            if len(self._logged) >= MOST_LOGGED:
                self._logged.clear()
            self._logged.add(cause)
        fault = _LOGGED[verdict.uncertainty.reason]
        log.error("guardrail: the endpoint %s (%s). %s", fault, cause, next_step(verdict))

    def _due(self) -> bool:
        """Whether to probe a refused endpoint again now; True for one caller at a time."""
        with self._lock:
            now = self._clock()
            due = self._unfit_until is not None and now >= self._unfit_until
            if due:
                self._unfit_until = now + UNFIT_FOR
            return due

    def _note(self, report: ProbeReport | None, again: bool) -> None:
        """Set when to probe a refused endpoint again: after a while, or at the next question if this probe failed."""
        with self._lock:
            if report is None or report.failed:
                self._unfit_until = self._clock() if again else self._unfit_until
            elif report.problem(self._plan) is None:
                self._unfit_until = None
            elif self._unfit_until is None or again:
                self._unfit_until = self._clock() + UNFIT_FOR
