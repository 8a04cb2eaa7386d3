"""Trust in a guard's endpoint: a probe at first use, a watch afterwards, and another probe now and then.

The watch is a heuristic with a documented error rate: it counts how often all samples of a question agree. If in the
last `WINDOW` questions this happened so often that, at the calibration's own rate, the chance of it is below
`SURPRISE`, the endpoint is probed again. The same holds if the later samples of `REPEATS` questions in a row repeat the
first ones word by word. Only a probe can condemn an endpoint; the watch asks for one and logs the reason. An endpoint
that a probe refused is probed again every `UNFIT_FOR` seconds.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel

from ..artifact import CalibrationArtifact
from ..sampling.effects import Steps, run
from ..sampling.limits import new_lock
from ..sampling.probe import ProbeReport
from ..sampling.prober import needs_probe, probe_steps
from ..types import Cost, SampleSet, SamplingPlan, Unmeasured
from ..uncertainty import Needs
from ..verdict import Verdict, next_step

__all__ = ["EndpointProblem", "EndpointTrust", "agreement_rate", "later_repeats", "surprising"]

WINDOW = 50
"""Questions the watch looks back on."""
SURPRISE = 1e-6
"""Chance of a false alarm in one window, when questions are like the calibration's."""
FIRST = 3
"""Samples that the later ones are compared with."""
REPEATS = 30
"""Questions in a row whose later samples repeat the first, after which the endpoint is probed again. An honest one with
two equally likely answers does so in at most three of four questions: once in .75 ** 30, about 5,600 such rows."""
UNFIT_FOR = 60.0
"""Seconds after which an endpoint that a probe refused is probed again."""
MOST_LOGGED = 20
"""Causes of a wrong configuration that count as logged already."""
PROBE_AGAIN_AFTER = 1000
"""Questions after which an endpoint is probed again without a cause: 5 calls among thousands."""

_LOGGED: dict[Unmeasured | None, str] = {
    Unmeasured.MISCONFIGURED: "answers no call",
    Unmeasured.DEGENERATE_SAMPLES: "cannot be measured, so every question is held back",
}
"""Faults that an operator has to correct, in words."""

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
    """Probes and watches one guard's model. Shared by threads and tasks; keeps counts only, never a prompt."""

    def __init__(
        self,
        model: BaseChatModel,
        plan: SamplingPlan,
        *,
        rate: float | None,
        enabled: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._plan, self._rate, self._clock = model, plan, rate, clock
        self._enabled = enabled and needs_probe(model)
        self._lock = new_lock(self)
        self._agreed: deque[bool] = deque(maxlen=WINDOW)
        self._repeated = 0
        self._since = 0
        self._again = False
        self._unfit_until: float | None = None
        self._logged: set[str] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> EndpointTrust:
        # The counts are about this model object, and a lock cannot be copied: a copy starts afresh with its own.
        return EndpointTrust(
            copy.deepcopy(self._model, memo), self._plan, rate=self._rate, enabled=self._enabled, clock=self._clock
        )

    def check(self) -> EndpointProblem:
        """Probe if it is time to; a report that is known already costs nothing."""
        return run(self.check_steps())

    def check_steps(self) -> Steps[EndpointProblem]:
        """`check` as steps of a larger computation."""
        if not self._enabled:
            return EndpointProblem()
        due, report, cost = self._due(), None, Cost()
        try:
            report, cost = yield from probe_steps(self._model, self._plan, again=due)
        finally:  # also when cancelled: the probe that was due must be made by the next caller
            self._note(report, due)
        problem = None if report is None else report.problem(self._plan)
        return EndpointProblem(cost=cost) if problem is None else EndpointProblem(*problem, cost)

    def record(self, verdict: Verdict, problem: EndpointProblem) -> Verdict:
        """Count the agreement that a verdict shows, and add the cost of the probe that came before it.

        An endpoint that answers no call, or that cannot be measured, is an error in the log, once for each cause.
        """
        self._log_configuration(verdict)
        if self._enabled and verdict.alternatives and problem.reason is None:
            with self._lock:
                self._since += 1
                self._agreed.append(len(verdict.alternatives) == 1)
                repeated = later_repeats(verdict.samples)
                self._repeated = self._repeated if repeated is None else (self._repeated + 1 if repeated else 0)
                if surprising(sum(self._agreed), len(self._agreed), self._rate):
                    log.warning(
                        "guardrail: all samples agreed in %d of the last %d questions, far more often than at "
                        "calibration (%.0f %%); the endpoint is probed again. Questions may also have changed: audit "
                        "the calibration.", sum(self._agreed), len(self._agreed), 100 * (self._rate or 0),
                    )  # fmt: skip
                    self._agreed.clear()
                    self._again = True
                elif self._repeated >= REPEATS:
                    log.warning(
                        "guardrail: the later samples of %d questions in a row repeat the first ones, as a cache that "
                        "fills up does; the endpoint is probed again.", self._repeated,
                    )  # fmt: skip
                    self._again = True
                elif self._since >= PROBE_AGAIN_AFTER:
                    self._again = True
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
        """Whether to probe again now; True for one caller at a time."""
        with self._lock:
            now = self._clock()
            if self._unfit_until is not None and now >= self._unfit_until:
                self._again, self._unfit_until = True, now + UNFIT_FOR
            due, self._again = self._again, False
            if due:
                self._since = self._repeated = 0
            return due

    def _note(self, report: ProbeReport | None, due: bool) -> None:
        """Have a failed or cancelled probe made again, and a probe that refused the endpoint repeated after a while."""
        with self._lock:
            if report is None or report.failed:
                self._again = self._again or due
            elif report.problem(self._plan) is None:
                self._unfit_until = None
            elif self._unfit_until is None or due:
                self._unfit_until = self._clock() + UNFIT_FOR


def agreement_rate(artifact: CalibrationArtifact, needs: Needs) -> float | None:
    """An upper estimate of how often all samples agreed at calibration, or None where scores do not tell.

    Samples that are all equal have the lowest score an estimator over meanings can give, so the share of the lowest
    score bounds their share. Where the primary answer is compared with them, they may also agree against it: then
    every vote is against it, and such scores count too. (k + 1) / (n + 2), so that it is never 0.
    """
    if not (needs.samples and (needs.judge or needs.similarity)) or artifact.threshold is None:
        return None
    if artifact.plan.n < 2:  # a single sample always agrees with itself
        return None
    scores = artifact.calibration.uncertainty
    highest = min(scores)
    n = artifact.plan.n
    against = n / (n + 1) - 1e-9 if needs.primary else math.inf
    return (sum(score <= highest + 1e-9 or score >= against for score in scores) + 1) / (len(scores) + 2)


def later_repeats(samples: Sequence[str], first: int = FIRST) -> bool | None:
    """Whether the later samples repeat the first wave, either in the same order or as one of its texts throughout.

    None if that shows nothing: fewer than two samples came later, or all samples of the first wave agree.
    """
    early, late = samples[:first], samples[first:]
    if len(late) < 2 or len(set(early)) < 2:
        return None
    in_order = all(text == early[place % first] for place, text in enumerate(late))
    return in_order or (len(set(late)) == 1 and late[0] in early)


def surprising(agreed: int, questions: int, rate: float | None) -> bool:
    """Whether a full window has more agreement than chance explains: P(Bin(seen, rate) >= agreed) < `SURPRISE`."""
    if rate is None or questions < WINDOW or agreed <= questions * rate:
        return False
    tail = (math.comb(questions, k) * rate**k * (1 - rate) ** (questions - k) for k in range(agreed, questions + 1))
    return math.fsum(tail) < SURPRISE
