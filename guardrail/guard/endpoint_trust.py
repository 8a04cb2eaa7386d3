"""Trust in a guard's endpoint: a probe at first use, and again where it refused the endpoint or failed.

Samples are not watched: how often they agree depends on the questions.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic

from langchain_core.language_models import BaseChatModel

from ..explain import next_step
from ..sampling.effects import Steps, run
from ..sampling.probe import unlike
from ..sampling.prober import probe_steps
from ..types import Cost, Fingerprint, SampleSet, SamplingPlan, Unmeasured
from ..verdict import Verdict

SLOW_PROBE = 5.0
"""Seconds beyond which a probe stands in the log: the questions of its time waited for it."""

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


@dataclass(eq=False, slots=True)
class EndpointTrust:
    """Probes one guard's model. Shared by threads and tasks; keeps no prompt and no answer.

    Attributes:
        model: The model.
        plan: The plan that it is asked by.
        enabled: Whether to probe.
        fingerprint: That of the calibrated weights: if a probe finds other weights, the log says so.
        logged: The cause of a wrong configuration that was logged last; "" since one was measured.
    """

    model: BaseChatModel
    plan: SamplingPlan
    enabled: bool = True
    fingerprint: Fingerprint | None = None
    logged: str = ""

    def check(self) -> EndpointProblem:
        """Probe if it is time to; a report that is known already costs nothing."""
        return run(self.check_steps())

    def check_steps(self) -> Steps[EndpointProblem]:
        """`check` as steps of a larger computation."""
        if not self.enabled:
            return EndpointProblem()
        began = monotonic()
        report, cost = yield from probe_steps(self.model, self.plan, again=False)
        if cost.calls and (seconds := monotonic() - began) > SLOW_PROBE:
            log.warning("guardrail: the probe of the endpoint took %.0f s, and questions waited for it", seconds)
        now = report.greedy if report is not None and cost.calls else None
        if self.fingerprint and now and (difference := unlike(self.fingerprint, now)):
            log.warning("guardrail: the endpoint may not have the calibrated weights: %s. %s", difference, DOCTOR)
        problem = None if report is None else report.problem(self.plan)
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
                self.logged = ""  # corrected: the next time is news again
            return
        cause = verdict.uncertainty.detail
        if cause != self.logged:
            self.logged, fault = cause, _LOGGED[verdict.uncertainty.reason]
            log.error("guardrail: the endpoint %s (%s). %s", fault, cause, next_step(verdict))
