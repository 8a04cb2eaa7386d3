"""Calibration sets with their thresholds according to an independent reference implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Case:
    """One calibration set and its expected thresholds."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.alpha = float(row["alpha"])
        self.uncertainty: NDArray[np.float64] = np.array(row["uncertainty"], dtype=np.float64)
        self.error: NDArray[np.int64] = np.array(row["error"], dtype=np.int64)
        self.expected: dict[str, dict[str, Any] | None] = row["expected"]


def cases() -> list[Case]:
    """Return all cases, in file order."""
    text = (Path(__file__).parent / "thresholds.json").read_text(encoding="utf-8")
    return [Case(row) for row in json.loads(text)]


def call(key: str) -> tuple[str, dict[str, Any]]:
    """Return the rule and keyword arguments of a key such as "acrc min_accept=1" or "anchored delta=.1"."""
    rule, *settings = key.split(" ")
    pairs = [setting.split("=") for setting in settings]
    return rule, {name: int(value) if name == "min_accept" else float(value) for name, value in pairs}
