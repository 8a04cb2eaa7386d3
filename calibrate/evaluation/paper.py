"""The paper's experiments as settings of `calibrate.evaluation.grid.evaluate_grid`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .results import EvaluationRow

ALPHA, ALPHAS = 0.15, (0.05, 0.1, 0.15, 0.2, 0.25)
"""The paper's alpha, and those of its risk levels."""
DELTA = 0.05
"""The paper's delta."""
N_CALIBRATION, SIZES = 1000, (100, 250, 500, 1000, 1500)
"""The paper's calibration size, and those of its table of sizes; a quarter of a pool is left to test on."""
METHODS = ("fixed_quantile", "empirical", "hoeffding", "clopper_pearson", "lec", "acrc", "certified")
"""The paper's methods, and the certificate at the same delta."""
VARIANTS = ("acrc:monotone=false", "acrc:correction=false", "acrc:envelope=true", "acrc:k_min=1", "acrc")
"""The paper's ablations, the method as it is printed, and the method itself."""
TABLES = {
    "main": "Main results",
    "risk-levels": "A-CRC across target risk levels",
    "scores": "A-CRC by score",
    "sizes": "A-CRC by calibration size",
    "ablation": "Ablation",
}
"""The paper's tables with their titles, in its order."""
FIGURE = "figure"
"""The name of the paper's figure: every method at every target."""
NAMES = {
    "fixed_quantile": "Fixed-50",
    "empirical": "Empirical",
    "hoeffding": "UCB-HFD",
    "clopper_pearson": "UCB-CLP",
    "lec": "LEC-Direct",
    "acrc": "A-CRC-QA",
    "acrc:monotone=false": "Without monotonization",
    "acrc:correction=false": "Without correction",
    "acrc:envelope=true": "Instance-wise envelope",
    "acrc:k_min=1": "As printed",
}
"""Rules as a command takes them, with their names in the paper."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The comparison of one of the paper's tables.

    Attributes:
        rules: Its rules.
        alphas: Its targets.
        sizes: Its calibration sizes.
        every_score: Whether it compares scores; otherwise it takes the main one.
    """

    rules: Sequence[str]
    alphas: Sequence[float]
    sizes: Sequence[int]
    every_score: bool = False


def experiment(name: str, n: int, *, alphas: Sequence[float] = (), sizes: Sequence[int] = ()) -> Experiment:
    """The settings of a table.

    Args:
        name: One of `TABLES`, or `FIGURE`.
        n: Questions of the pool.
        alphas: Targets across risk levels; the first one is also the target elsewhere. Default: the paper's.
        sizes: Calibration sizes of that table; a single one is the size elsewhere. Default: the paper's that fit, or of
            a small pool an eighth, a quarter and a half.
    """
    alpha = alphas[:1] or [ALPHA]
    levels = alphas if len(alphas) > 1 else ALPHAS
    size = [N_CALIBRATION if 3 * n >= 4 * N_CALIBRATION else n // 2]
    if len(sizes) == 1:
        size = [sizes[0]]
    match name:
        case "main":
            return Experiment(METHODS, alpha, size)
        case "risk-levels":
            return Experiment(["acrc"], levels, size)
        case "scores":
            return Experiment(["acrc"], alpha, size, every_score=True)
        case "sizes":
            fit = [each for each in SIZES if 4 * each <= 3 * n]
            small = sorted({max(1, n // part) for part in (8, 4, 2)})
            return Experiment(["acrc"], alpha, sizes or (fit if len(fit) > 1 else small))
        case "ablation":
            return Experiment(VARIANTS, alpha, size)
        case _:
            return Experiment(METHODS, levels, size)


def rule_with_name(row: EvaluationRow) -> str:
    """A rule as a command takes it, with its name in the paper if it has one there."""
    return f"{row.name} ({NAMES[row.name]})" if row.name in NAMES else row.name
