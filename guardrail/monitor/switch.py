"""The safety switch: what an alarm does to a guard."""

from __future__ import annotations

import math
import threading

from ..errors import UsageError
from .state import Alarm

__all__ = ["SafetySwitch"]


class SafetySwitch:
    """The reaction of a guard to an alarm: accept nothing, or apply a stricter threshold. Thread-safe.

    Pass it to a guard, ``Guardrail(..., switch=switch)``. `guardrail.review.Monitors.switch` makes one that follows
    the monitors of a database.

    Args:
        threshold: After an alarm, accept at most this: the threshold of an artifact that was fitted beforehand, e.g. at
            half of alpha. Finite; a guard refuses a value that is not below the threshold of its artifact. None, also
            for an infeasible artifact, accepts nothing.

    Raises:
        UsageError: A threshold that is not finite.
    """

    def __init__(self, *, threshold: float | None = None) -> None:
        if threshold is not None and not math.isfinite(threshold):
            raise UsageError(
                f"threshold must be a finite number, got {threshold}, which accepts everything or nothing. Compute one "
                "beforehand, of an artifact fitted at a smaller alpha; leave it out to accept nothing."
            )
        self._threshold = threshold
        self._lock = threading.Lock()
        self._alarms: tuple[Alarm, ...] = ()

    def check(self, threshold: float | None) -> None:
        """Refuse an artifact for which an alarm would change nothing.

        Args:
            threshold: Threshold of the artifact; None if it accepts nothing.

        Raises:
            UsageError: This switch's threshold is not below it.
        """
        if self._threshold is not None and threshold is not None and self._threshold >= threshold:
            raise UsageError(
                f"the switch's threshold {self._threshold:g} is not stricter than the artifact's {threshold:g}, so an "
                "alarm would hold nothing back. Use a smaller one, of an artifact fitted at a smaller "
                "alpha, or none: SafetySwitch()."
            )

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms received and not reset, oldest first."""
        return self._alarms

    def alarm(self, alarm: Alarm) -> None:
        """Receive an alarm; from now on the guard is stricter or accepts nothing."""
        with self._lock:
            self._alarms = (*self._alarms, alarm)

    def reset(self) -> None:
        """Clear the alarms, after a person has looked at them."""
        with self._lock:
            self._alarms = ()

    def objection(self, uncertainty: float | None) -> str | None:
        """Why an answer that the gate accepts may not pass; None if it may. A gate without a score gives None."""
        # A tuple that is replaced, never changed: a reader needs no lock.
        return self._alarms[-1].detail if self._alarms and not self._stricter(uncertainty) else None

    def _stricter(self, uncertainty: float | None) -> bool:
        return self._threshold is not None and uncertainty is not None and uncertainty <= self._threshold
