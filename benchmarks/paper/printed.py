"""The numbers printed in "Asymptotic Risk Calibration for Selective Question Answering".

SCER and AUROC are proportions, everything else is in percent.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ABLATION", "ESTIMATORS", "MAIN", "POPULATIONS", "RISK_LEVELS", "SIZES", "Population", "Printed"]

LLAMA, QWEN = "LLaMA-3.1-8B", "Qwen2.5-7B"


@dataclass(frozen=True, slots=True)
class Printed:
    """One printed row; a field is None if its table lacks the column."""

    dataset: str
    """CoQA or MedMCQA."""
    label: str
    """Method, target level, estimator, calibration size or variant."""
    scer: float
    """Error rate among accepted answers."""
    acceptance: float
    """AR, percent."""
    model: str | None = None
    """None if the table averages over both models."""
    power: float | None = None
    """Percent."""
    violation_rate: int | None = None
    """VR, percent."""
    infeasible_rate: int | None = None
    """IF, percent."""
    scer_sd: float | None = None
    """Standard deviation of SCER over splits."""
    auroc: float | None = None
    """AUROC of the uncertainty for errors."""


@dataclass(frozen=True, slots=True)
class Population:
    """Accuracy and AUROC of one model on one data set, according to the tables."""

    dataset: str
    """CoQA or MedMCQA."""
    model: str
    """Name as printed."""
    accuracy: float
    """AR x (1 - SCER) / Power of its rows agrees on this to three digits."""
    auroc: dict[str, float]
    """Printed AUROC by estimator; the estimator of the main table comes first."""


POPULATIONS = (
    Population("CoQA", LLAMA, 0.682, {"WSE": 0.735, "SemEnt": 0.691}),
    Population("CoQA", QWEN, 0.714, {"WSE": 0.762, "SemEnt": 0.724}),
    Population("MedMCQA", LLAMA, 0.579, {"PE": 0.746, "MSP": 0.719}),
    Population("MedMCQA", QWEN, 0.614, {"PE": 0.781, "MSP": 0.756}),
)


def _main(dataset: str, model: str, rows: dict[str, tuple[float, float, float, int]]) -> tuple[Printed, ...]:
    return tuple(
        Printed(dataset, label, scer, ar, model=model, power=power, violation_rate=vr)
        for label, (scer, ar, power, vr) in rows.items()
    )


MAIN = (
    *_main(
        "CoQA",
        LLAMA,
        {
            "Fixed-50": (0.168, 50.0, 61.0, 79),
            "Empirical": (0.166, 55.8, 68.2, 67),
            "UCB-HFD": (0.111, 30.1, 39.2, 1),
            "UCB-CLP": (0.126, 35.4, 45.4, 3),
            "LEC-Direct": (0.148, 45.8, 57.2, 27),
            "A-CRC-QA": (0.145, 42.6, 53.4, 14),
        },
    ),
    *_main(
        "CoQA",
        QWEN,
        {
            "Fixed-50": (0.156, 50.0, 59.1, 68),
            "Empirical": (0.161, 61.4, 72.1, 61),
            "UCB-HFD": (0.108, 36.4, 45.5, 0),
            "UCB-CLP": (0.122, 42.7, 52.5, 2),
            "LEC-Direct": (0.147, 53.2, 63.6, 24),
            "A-CRC-QA": (0.141, 49.8, 59.9, 11),
        },
    ),
    *_main(
        "MedMCQA",
        LLAMA,
        {
            "Fixed-50": (0.191, 50.0, 69.9, 93),
            "Empirical": (0.170, 62.0, 88.9, 72),
            "UCB-HFD": (0.103, 41.2, 63.8, 0),
            "UCB-CLP": (0.119, 47.8, 72.7, 2),
            "LEC-Direct": (0.146, 58.7, 86.6, 20),
            "A-CRC-QA": (0.139, 55.3, 82.2, 9),
        },
    ),
    *_main(
        "MedMCQA",
        QWEN,
        {
            "Fixed-50": (0.174, 50.0, 67.3, 88),
            "Empirical": (0.164, 66.5, 90.5, 65),
            "UCB-HFD": (0.102, 48.6, 71.1, 0),
            "UCB-CLP": (0.116, 54.9, 79.0, 1),
            "LEC-Direct": (0.145, 65.2, 90.8, 18),
            "A-CRC-QA": (0.137, 62.1, 87.3, 7),
        },
    ),
)
"""Table "main results": alpha .15, 1,000 calibration items, WSE on CoQA and PE on MedMCQA."""


def _level(dataset: str, alpha: str, scer: float, ar: float, power: float, vr: int, infeasible: int) -> Printed:
    return Printed(dataset, alpha, scer, ar, power=power, violation_rate=vr, infeasible_rate=infeasible)


RISK_LEVELS = (
    _level("CoQA", "0.05", 0.043, 11.6, 15.9, 12, 16),
    _level("CoQA", "0.10", 0.093, 28.4, 36.9, 13, 3),
    _level("CoQA", "0.15", 0.143, 46.2, 56.7, 13, 0),
    _level("CoQA", "0.20", 0.192, 64.1, 74.2, 13, 0),
    _level("CoQA", "0.25", 0.241, 78.6, 85.5, 14, 0),
    _level("MedMCQA", "0.05", 0.044, 9.8, 15.7, 10, 22),
    _level("MedMCQA", "0.10", 0.093, 34.7, 52.8, 9, 4),
    _level("MedMCQA", "0.15", 0.138, 58.7, 84.8, 8, 0),
    _level("MedMCQA", "0.20", 0.188, 70.5, 96.0, 9, 0),
    _level("MedMCQA", "0.25", 0.236, 76.5, 98.0, 10, 0),
)
"""Table "target risk levels": A-CRC-QA, averaged over both models."""


def _estimator(dataset: str, model: str, label: str, auroc: float, scer: float, ar: float, power: float) -> Printed:
    return Printed(dataset, label, scer, ar, model=model, power=power, auroc=auroc)


ESTIMATORS = (
    _estimator("CoQA", LLAMA, "SemEnt", 0.691, 0.144, 39.1, 49.1),
    _estimator("CoQA", LLAMA, "WSE", 0.735, 0.145, 42.6, 53.4),
    _estimator("CoQA", QWEN, "SemEnt", 0.724, 0.142, 46.3, 55.6),
    _estimator("CoQA", QWEN, "WSE", 0.762, 0.141, 49.8, 59.9),
    _estimator("MedMCQA", LLAMA, "MSP", 0.719, 0.140, 51.4, 76.4),
    _estimator("MedMCQA", LLAMA, "PE", 0.746, 0.139, 55.3, 82.2),
    _estimator("MedMCQA", QWEN, "MSP", 0.756, 0.138, 58.8, 82.6),
    _estimator("MedMCQA", QWEN, "PE", 0.781, 0.137, 62.1, 87.3),
)
"""Table "uncertainty estimators": A-CRC-QA at alpha .15."""


def _size(dataset: str, n: int, scer: float, sd: float, ar: float, vr: int, infeasible: int) -> Printed:
    return Printed(dataset, f"{n:,}", scer, ar, scer_sd=sd, violation_rate=vr, infeasible_rate=infeasible)


SIZES = (
    _size("CoQA", 100, 0.127, 0.036, 30.8, 26, 8),
    _size("CoQA", 250, 0.135, 0.027, 37.2, 21, 3),
    _size("CoQA", 500, 0.139, 0.021, 41.8, 17, 1),
    _size("CoQA", 1000, 0.143, 0.016, 46.2, 13, 0),
    _size("CoQA", 1500, 0.145, 0.013, 48.0, 12, 0),
    _size("MedMCQA", 100, 0.124, 0.032, 42.1, 20, 5),
    _size("MedMCQA", 250, 0.131, 0.024, 49.7, 16, 1),
    _size("MedMCQA", 500, 0.135, 0.019, 54.3, 12, 0),
    _size("MedMCQA", 1000, 0.138, 0.014, 58.7, 8, 0),
    _size("MedMCQA", 1500, 0.141, 0.012, 60.2, 8, 0),
)
"""Table "calibration-set size": A-CRC-QA at alpha .15, averaged over both models."""

ABLATION = (
    Printed("CoQA", "Without monotonization", 0.164, 55.7, violation_rate=65),
    Printed("CoQA", "Without correction", 0.151, 49.4, violation_rate=41),
    Printed("CoQA", "Instance-wise envelope", 0.073, 12.8, violation_rate=0),
    Printed("CoQA", "Full A-CRC-QA", 0.143, 46.2, violation_rate=13),
    Printed("MedMCQA", "Without monotonization", 0.171, 69.4, violation_rate=72),
    Printed("MedMCQA", "Without correction", 0.154, 61.5, violation_rate=46),
    Printed("MedMCQA", "Instance-wise envelope", 0.068, 18.9, violation_rate=0),
    Printed("MedMCQA", "Full A-CRC-QA", 0.138, 58.7, violation_rate=8),
)
"""Table "ablation": alpha .15, averaged over both models."""
