"""Watch a promise after deployment: alarms that are valid at any time, however often one looks.

Both monitors bet against a null hypothesis with money that starts at 1. While the hypothesis holds the money is a
non-negative supermartingale, so by Ville's inequality it ever reaches 1/delta with probability at most delta.
A monitor never edits an artifact: it raises an alarm, and whoever holds it decides.

Sources: Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024
(arXiv 2010.09686);
Vovk, Petej, Nouretdinov et al., "Retrain or not retrain: conformal test martingales for change-point detection",
COPA 2021 (the Simple and Composite Jumper).
"""

from __future__ import annotations

import bisect
import json
import math
import os
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self
from uuid import uuid4

import numpy as np
from langchain_core.messages import BaseMessage
from numpy.typing import NDArray

from .artifact import CalibrationArtifact
from .errors import UsageError
from .types import Frozen, Verdict

__all__ = ["Alarm", "DriftMonitor", "DriftState", "RiskMonitor", "RiskState", "SafetySwitch", "jump"]

RISK_BETS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8)
"""Shares of the largest bet that cannot lose everything; 0 keeps the money."""
DRIFT_BETS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Slopes of the betting function 1 + s (p - 1/2), which averages 1 over uniform p and is >= 0 for |s| <= 2."""
JUMPS = (1e-4, 1e-3, 1e-2, 1e-1)
"""Rates at which money is spread over the bets again before each bet; the money is divided equally over the rates.
Without jumps the money of every bet dies during a long quiet time, and a late change would be noticed late."""


def jump(capital: NDArray[np.float64], gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """One step of the composite jumper: spread a share of the money over all bets, then bet.

    Capital_{r,b} <- ((1 - r) Capital_{r,b} + (r / B) sum_b' Capital_{r,b'}) * gain_b for every jump rate r and bet b.

    Args:
        capital: Money by jump rate and bet, shape (..., R, B).
        gains: What a unit of money in each bet becomes, shape (..., B) or (B,); >= 0, expectation <= 1 under the null.

    Returns:
        The money after the bet, same shape as ``capital``. Its sum is the wealth.
    """
    rates = np.array(JUMPS)[:, None]
    spread = (1 - rates) * capital + rates * capital.mean(axis=-1, keepdims=True)
    return np.asarray(spread * gains[..., None, :], dtype=np.float64)


class Alarm(Frozen):
    """What an alarm says."""

    monitor: Literal["risk", "drift"]
    """Which monitor raised it."""
    at: int
    """After how many updates."""
    wealth: float
    """The betting wealth then; the alarm line is 1/delta."""
    delta: float
    """Probability of a false alarm over the whole life of the monitor is at most this."""
    detail: str
    """What was found, and what to do."""


class _State(Frozen):
    """What both monitors remember. Plain JSON."""

    delta: float
    """Probability of ever raising a false alarm."""
    n: int = 0
    """Updates so far."""
    log_wealth: float = 0.0
    """Natural logarithm of the betting wealth; starts at 0."""
    peak_log_wealth: float = 0.0
    """Its largest value so far."""
    shares: tuple[tuple[float, ...], ...]
    """How the wealth is divided over jump rates and bets; sums to 1."""
    alarmed_at: int | None = None
    """Update at which the wealth first reached 1/delta; None while it has not. An alarm stays until a new monitor."""

    @property
    def wealth(self) -> float:
        """The betting wealth; infinity where it exceeds what a float holds."""
        return math.exp(self.log_wealth) if self.log_wealth < 700 else math.inf

    @property
    def alarmed(self) -> bool:
        """Whether the wealth has ever reached 1/delta."""
        return self.alarmed_at is not None

    def _bet(self, gains: NDArray[np.float64]) -> dict[str, Any]:
        """The fields that change with one bet."""
        capital = jump(np.array(self.shares), gains)
        total = float(capital.sum())
        log_wealth = self.log_wealth + math.log(total)
        reached = log_wealth >= -math.log(self.delta)
        return {
            "n": self.n + 1,
            "log_wealth": log_wealth,
            "peak_log_wealth": max(self.peak_log_wealth, log_wealth),
            "shares": tuple(tuple(row) for row in (capital / total).tolist()),
            "alarmed_at": self.n + 1 if reached and self.alarmed_at is None else self.alarmed_at,
        }


class RiskState(_State):
    """What a `RiskMonitor` remembers."""

    alpha: float
    """Error rate among accepted answers that was promised."""
    min_audit_rate: float
    """Smallest probability with which an accepted answer is audited; bets are sized for it."""
    tallies: tuple[tuple[float, int, int], ...] = ()
    """(audit rate, audited answers, wrong ones among them)."""

    def after(self, *, error: bool, audit_rate: float) -> RiskState:
        """The state after one more audited answer; see `RiskMonitor.update`."""
        largest = self.min_audit_rate / self.alpha
        gains = 1 + np.array(RISK_BETS) * largest * (float(error) - self.alpha) / audit_rate
        counts = {rate: (audited, wrong) for rate, audited, wrong in self.tallies}
        audited, wrong = counts.get(audit_rate, (0, 0))
        counts[audit_rate] = (audited + 1, wrong + int(error))
        tallies = tuple((rate, *pair) for rate, pair in sorted(counts.items()))
        return self.model_copy(update={**self._bet(gains), "tallies": tallies})


class DriftState(_State):
    """What a `DriftMonitor` remembers."""

    seed: int
    """Of the randomiser that breaks ties."""
    calibration_digest: str
    """Artifact whose calibration scores the stream is compared with."""
    stream: tuple[float, ...] = ()
    """Scores seen, in order."""
    p_values: tuple[float, ...] = ()
    """Their conformal p-values, in order; uniform and independent while nothing has changed."""


class _Monitor:
    """What both monitors do besides betting: report an alarm once, save, load. Updates are thread-safe."""

    kind: Literal["risk", "drift"]
    state: _State

    def __init__(self, on_alarm: Callable[[Alarm], object] | None) -> None:
        self._on_alarm = on_alarm
        self._lock = threading.Lock()

    @property
    def alarmed(self) -> bool:
        """Whether an alarm was raised."""
        return bool(self.state.alarmed)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the state as JSON, atomically."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.part")
        try:
            temporary.write_text(self.state.model_dump_json() + "\n", encoding="utf-8")
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        return target

    def _report(self, before: _State, detail: Callable[[], str]) -> None:
        state = self.state
        if state.alarmed and not before.alarmed and self._on_alarm is not None:
            self._on_alarm(
                Alarm(monitor=self.kind, at=state.n, wealth=state.wealth, delta=state.delta, detail=detail())
            )


class RiskMonitor(_Monitor):
    """Tests "the error rate among accepted answers is at most alpha" on audited accepted answers, at any time.

    Null hypothesis: whatever happened before, the next accepted answer is wrong with probability at most alpha. For
    answers that are drawn alike this is SCER <= alpha. With bets lambda fixed before the answer is seen, and an audit
    that happens with known probability q independently of whether the answer is wrong (given everything known before
    the audit), the gain of an audited answer with error E in {0, 1} is

        1 + lambda (E - alpha) / q,  0 <= lambda < q_min / alpha,

    and 1 for an answer that was not audited; its expectation is at most 1. Money is divided over a ladder of bets and
    over jump rates (`jump`), which needs no tuning.

    What it does not see: errors among answers that were held back, and auditors' mistakes (an auditor who calls right
    answers wrong with probability r needs alpha + r).

    Args:
        alpha: Promised error rate among accepted answers, in (0, 1).
        delta: Probability of ever raising a false alarm, in (0, 1).
        min_audit_rate: Smallest audit probability that will occur, in (0, 1].
        on_alarm: Called once, with an `Alarm`.
        state: Continue from this state instead (`load`).
    """

    kind = "risk"
    state: RiskState

    def __init__(
        self,
        alpha: float,
        *,
        delta: float = 0.05,
        min_audit_rate: float = 1.0,
        on_alarm: Callable[[Alarm], object] | None = None,
        state: RiskState | None = None,
    ) -> None:
        super().__init__(on_alarm)
        _check_unit("alpha", alpha)
        _check_unit("delta", delta)
        if not 0 < min_audit_rate <= 1:
            raise UsageError(f"min_audit_rate must be in (0, 1], got {min_audit_rate}. Write 0.1 to audit one in ten.")
        if state is not None and (state.alpha, state.delta, state.min_audit_rate) != (alpha, delta, min_audit_rate):
            raise UsageError(
                f"the saved monitor has alpha {state.alpha}, delta {state.delta}, audit rate {state.min_audit_rate}; "
                f"asked for {alpha}, {delta} and {min_audit_rate}. Start a new one, or ask for the same."
            )
        self.state = state or RiskState(
            alpha=alpha, delta=delta, min_audit_rate=min_audit_rate, shares=_even(len(RISK_BETS))
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, on_alarm: Callable[[Alarm], object] | None = None) -> Self:
        """Continue from a saved state."""
        state = RiskState.model_validate(_read_json(path))
        return cls(state.alpha, delta=state.delta, min_audit_rate=state.min_audit_rate, on_alarm=on_alarm, state=state)

    def update(self, error: bool, *, audit_rate: float | None = None) -> RiskState:
        """Take in one audited accepted answer.

        Args:
            error: Whether it was wrong.
            audit_rate: Probability with which *this* answer was chosen for audit; default: ``min_audit_rate``.

        Raises:
            UsageError: An audit rate below the declared smallest one, or above 1.
        """
        rate = self.state.min_audit_rate if audit_rate is None else float(audit_rate)
        if not self.state.min_audit_rate <= rate <= 1:
            raise UsageError(
                f"audit_rate must be in [{self.state.min_audit_rate}, 1], got {audit_rate}: bets are sized for the "
                "declared smallest rate. Declare a smaller min_audit_rate in a new monitor."
            )
        with self._lock:
            before = self.state
            self.state = before.after(error=bool(error), audit_rate=rate)
        self._report(before, self._detail)
        return self.state

    def interval(self, level: float = 0.95) -> tuple[float, float, float] | None:
        """Estimate of the error rate among accepted answers with a confidence sequence: valid at every time.

        The estimate weighs each audited answer by 1 / audit rate. The bounds are the error rates m that betting
        against "at most m" and against "at least m", each at (1 - level) / 2, has not refuted with the audited answers
        so far.

        Returns:
            (estimate, lower, upper), or None before the first audit.
        """
        tallies = self.state.tallies
        if not tallies:
            return None
        weight = sum(audited / rate for rate, audited, _ in tallies)
        estimate = sum(wrong / rate for rate, _, wrong in tallies) / weight
        limit = math.log(2 / (1 - level))
        lower = _bisect(lambda m: self._evidence(tallies, m) > limit, 0.0, 1.0)
        flipped = [(rate, audited, audited - wrong) for rate, audited, wrong in tallies]
        return estimate, lower, 1 - _bisect(lambda m: self._evidence(flipped, m) > limit, 0.0, 1.0)

    def _evidence(self, tallies: Iterable[tuple[float, int, int]], m: float) -> float:
        """Log-wealth of fixed bets against "at most m"; falls as m grows."""
        smallest = self.state.min_audit_rate
        logs = np.zeros(len(RISK_BETS))
        for rate, audited, wrong in tallies:
            bets = np.array(RISK_BETS) * smallest / rate
            logs += wrong * np.log1p(bets * (1 - m) / max(m, 1e-12)) + (audited - wrong) * np.log1p(-bets)
        return float(np.logaddexp.reduce(logs) - math.log(len(RISK_BETS)))

    def _detail(self) -> str:
        found = self.interval()
        seen = "" if found is None else f" Audits suggest {found[0]:.1%} (bounds {found[1]:.1%} to {found[2]:.1%})."
        return (
            f"The error rate among accepted answers exceeds the promised {self.state.alpha:.0%}: {self.state.n} audits "
            f"refute it (false alarm probability {self.state.delta:g}).{seen} Hold answers back or switch to a "
            "stricter threshold, and calibrate again on recent questions."
        )


class DriftMonitor(_Monitor):
    """Tests "run-time uncertainty scores are exchangeable with the calibration scores" without any label.

    Every new score u_t is ranked among the calibration scores and all scores before it:

        p_t = (#{i < t: u_i > u_t} + theta_t (1 + #{i < t: u_i = u_t})) / (n_calibration + t),  theta_t uniform.

    While calibration and stream are exchangeable the p-values are independent and uniform *exactly*, because each new
    score joins those it will be compared with; ranking against the calibration scores alone would not give that. Small
    p means less certain than usual. The money bets on p by the functions 1 + s (p - 1/2) with jumps between slopes.

    An alarm says that questions (or the model) changed, not that errors did: the promise of the artifact has lost its
    ground, whichever way the scores moved.

    Args:
        artifact: Its stored calibration scores are the reference.
        delta: Probability of ever raising a false alarm, in (0, 1).
        seed: Of the randomiser theta.
        on_alarm: Called once, with an `Alarm`.
        state: Continue from this state instead (`load`).
    """

    kind = "drift"
    needs_scores = True
    """Bounds, as early stopping gives them, are no scores."""
    state: DriftState

    def __init__(
        self,
        artifact: CalibrationArtifact,
        *,
        delta: float = 0.05,
        seed: int = 0,
        on_alarm: Callable[[Alarm], object] | None = None,
        state: DriftState | None = None,
    ) -> None:
        super().__init__(on_alarm)
        _check_unit("delta", delta)
        if state is not None and state.calibration_digest != artifact.digest:
            raise UsageError(
                f"the saved monitor compares with artifact {state.calibration_digest}, not {artifact.digest}. Start a "
                "new monitor for a new artifact."
            )
        self.state = state or DriftState(
            delta=delta, seed=seed, calibration_digest=artifact.digest, shares=_even(len(DRIFT_BETS))
        )
        self._known = sorted((*artifact.calibration.uncertainty, *self.state.stream))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        artifact: CalibrationArtifact,
        *,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> Self:
        """Continue from a saved state."""
        state = DriftState.model_validate(_read_json(path))
        return cls(artifact, delta=state.delta, seed=state.seed, on_alarm=on_alarm, state=state)

    def update(self, uncertainty: float) -> DriftState:
        """Take in the score of one question, accepted or not.

        Raises:
            UsageError: A score that is not finite. Questions that could not be measured are left out: count them.
        """
        score = float(uncertainty)
        if not math.isfinite(score):
            raise UsageError(f"uncertainty must be finite, got {uncertainty}. Leave out what could not be measured.")
        with self._lock:
            before = self.state
            p = self._p_value(score)
            bisect.insort(self._known, score)
            gains = 1 + np.array(DRIFT_BETS) * (p - 0.5)
            self.state = before.model_copy(
                update={**before._bet(gains), "stream": (*before.stream, score), "p_values": (*before.p_values, p)}
            )
            after = self.state
        self._report(before, self._detail)
        return after

    def follow(self, state: DriftState) -> None:
        """Take over a later state of this same monitor, e.g. one that another process has written."""
        with self._lock:
            for score in state.stream[self.state.n :]:
                bisect.insort(self._known, score)
            self.state = state

    def watch(self, verdict: Verdict, messages: Sequence[BaseMessage] = ()) -> None:
        """Take in the score of a verdict, accepted or not: ``Guardrail(on_verdict=monitor.watch)``.

        A verdict without a score is left out.
        """
        if verdict.uncertainty.value is not None:
            self.update(verdict.uncertainty.value)

    def _p_value(self, score: float) -> float:
        below, up_to = bisect.bisect_left(self._known, score), bisect.bisect_right(self._known, score)
        theta = random.Random(f"{self.state.seed}:{self.state.n}").random()
        return (len(self._known) - up_to + theta * (1 + up_to - below)) / (len(self._known) + 1)

    def _detail(self) -> str:
        recent = self.state.p_values[-100:]
        way = "less" if sum(recent) / len(recent) < 0.5 else "more"
        return (
            f"Questions are answered {way} certainly than at calibration: {self.state.n} scores refute that they are "
            f"alike (false alarm probability {self.state.delta:g}). The calibrated promise has lost its ground; look "
            "at recent questions, audit accepted answers, and calibrate again on questions like them."
        )


class SafetySwitch:
    """What a guard does after an alarm: nothing, a stricter threshold, or no acceptance at all. Thread-safe.

    Pass it to a guard, ``Guardrail(..., switch=switch)``, and as ``on_alarm=switch.alarm`` to monitors.

    Args:
        then: "abstain" accepts nothing after an alarm; "stricter" accepts at most ``threshold``.
        threshold: For "stricter", computed beforehand, e.g. ``artifact.at(alpha=alpha / 2).threshold``.
    """

    def __init__(self, then: Literal["abstain", "stricter"] = "abstain", *, threshold: float | None = None) -> None:
        if then not in ("abstain", "stricter"):
            raise UsageError(f"then must be 'abstain' or 'stricter', got {then!r}")
        if (then == "stricter") != (threshold is not None):
            raise UsageError(
                "a stricter threshold goes with then='stricter' and only with it; compute one beforehand, e.g. "
                "artifact.at(alpha=0.05).threshold (None there means infeasible: use then='abstain')"
            )
        self._then, self._threshold = then, threshold
        self._lock = threading.Lock()
        self._alarms: tuple[Alarm, ...] = ()

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms received and not reset, oldest first."""
        return self._alarms

    def alarm(self, alarm: Alarm) -> None:
        """Take an alarm; what was decided beforehand applies from now on."""
        with self._lock:
            self._alarms = (*self._alarms, alarm)

    def reset(self) -> None:
        """Go back to normal; for a person who has looked."""
        with self._lock:
            self._alarms = ()

    def allows(self, uncertainty: float) -> bool:
        """Whether an answer that the gate accepts may still pass."""
        return not self._alarms or self._stricter(uncertainty)

    def _stricter(self, uncertainty: float) -> bool:
        return self._then == "stricter" and self._threshold is not None and uncertainty <= self._threshold

    def reason(self) -> str:
        """Why answers are held back, in words; empty when they are not."""
        return self._alarms[-1].detail if self._alarms else ""


def _even(bets: int) -> tuple[tuple[float, ...], ...]:
    return ((1 / (bets * len(JUMPS)),) * bets,) * len(JUMPS)


def _check_unit(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UsageError(f"{name} must be in (0, 1), got {value}.")


def _bisect(above: Callable[[float], bool], low: float, high: float) -> float:
    """Where ``above`` turns from true to false; ``low`` if it never is true."""
    if not above(1e-9):
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low


def _read_json(path: str | os.PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UsageError(f"{path}: no monitor state can be read ({error}). Start a new monitor.") from error
