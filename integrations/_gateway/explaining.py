"""Why an answer was held back and what to do, in a sentence that quotes neither prompt nor answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guardrail.verdict import Reason, Verdict, next_step

__all__ = ["explanation"]

_NEEDED = ("accepted", "reason", "uncertainty", "threshold", "alpha", "guarantee", "artifact")
_WHY = {
    Reason.WITHIN_THRESHOLD: "The answer is certain enough",
    Reason.SUSPENDED: "An alarm, or a failure to record the verdict, holds all answers back",
    Reason.PARTLY_HELD_BACK: "Parts of the answer are not certain enough",
    Reason.INFEASIBLE: "The calibration found no threshold that keeps the error rate, so no answer is given",
}


def explanation(verdict: Mapping[str, Any]) -> str:
    """The reason of a verdict and the next step.

    Args:
        verdict: Its metadata (`Verdict.to_metadata`). Its texts are left out: a server's error may quote a prompt.
    """
    read = Verdict.model_validate({"detail": "", "candidate": None, **{name: verdict[name] for name in _NEEDED}})
    measured, why = read.uncertainty, _WHY.get(read.reason)
    if read.reason is Reason.ABOVE_THRESHOLD:
        value = "The uncertainty" if measured.value is None else f"The uncertainty {measured.value:.4g}"
        why = f"{value} is above the calibrated threshold {read.threshold or 0:.4g}"
    elif why is None:
        why = f"The uncertainty could not be measured ({measured.reason or read.reason})"
    return f"{why}. {next_step(read)}"
