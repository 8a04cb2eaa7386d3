"""The safety switch: what an alarm does to a guard."""

from __future__ import annotations

import math
import threading
from typing import Literal

from ..errors import UsageError
from .base import Alarm

__all__ = ["SafetySwitch"]


class SafetySwitch:
    """The reaction of a guard to an alarm: apply a stricter threshold, or accept nothing. Thread-safe.

    Pass it to a guard, ``Guardrail(..., switch=switch)``, and as ``on_alarm=switch.alarm`` to monitors.

    Args:
        then: "abstain" accepts nothing after an alarm; "stricter" accepts at most ``threshold``.
        threshold: For "stricter", of an artifact that was fitted beforehand, e.g. at half of alpha. Finite; a guard
            refuses a value that is not below the threshold of its artifact.

    Raises:
        UsageError: A threshold that is missing, not finite, or not needed.
    """

    def __init__(self, then: Literal["abstain", "stricter"] = "abstain", *, threshold: float | None = None) -> None:
        if then not in ("abstain", "stricter"):
            raise UsageError(f"then must be 'abstain' or 'stricter', got {then!r}")
        # Both ways: without a threshold nothing would be stricter, and beside "abstain" it would never be read.
        if (then == "stricter") != (threshold is not None):
            raise UsageError(
                "a stricter threshold goes with then='stricter' and only with it: that of an artifact fitted at a "
                "smaller alpha (None there means infeasible: use then='abstain')"
            )
        if threshold is not None and not math.isfinite(threshold):
            raise UsageError(
                f"threshold must be a finite number, got {threshold}, which accepts everything or nothing. Compute one "
                "beforehand, of an artifact fitted at a smaller alpha; to accept nothing use then='abstain'."
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
                "alpha, or SafetySwitch('abstain')."
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

    def allows(self, uncertainty: float) -> bool:
        """Whether an answer that the gate accepts may pass."""
        return self.objection(uncertainty) is None

    def _stricter(self, uncertainty: float | None) -> bool:
        return self._threshold is not None and uncertainty is not None and uncertainty <= self._threshold
