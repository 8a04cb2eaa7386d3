"""Samples saved on recorded answers of real models: `python -m benchmarks.early_stopping FOLDER`.

For every file and alpha a threshold is fitted by the paper's rule on one half of the questions; the other half is then
answered from its recorded samples, in random order, with and without early stopping and with an adaptive plan. Figures
are means over random splits. Every early verdict is compared with the full one; a single difference ends the run.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.multi_samples import FILES, load
from calibrate.thresholds import fit
from guardrail.gate import accepts
from guardrail.guard.decide import adaptive_subset
from guardrail.guard.early_stopping import range_of, wave_ends
from guardrail.outcome import Feasible
from guardrail.types import SampleSet, SamplingPlan, Uncertainty
from guardrail.uncertainty import Estimator, measure
from guardrail.uncertainty import make_estimator as make

ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.3)
UNANIMOUS_AT = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One question: its score, the bounds after m samples, the score of the adaptive plan, and whether that stopped."""

    score: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    adaptive: float
    stopped: bool


@dataclass(frozen=True, slots=True)
class Line:
    """Means over splits for one file and alpha; numbers of samples are per question, of at most n."""

    file: str
    judge: str
    n: int
    alpha: float
    feasible: float
    acceptance: float
    error: float
    early: float
    rounds: float
    single: float
    adaptive_acceptance: float
    adaptive_error: float
    adaptive: float
    both: float


def rows(sets: Sequence[SampleSet], estimator: Estimator, n: int, seed: int) -> list[Row]:
    """Scores and bounds of every question, with its samples in a random order."""
    dice = random.Random(seed)
    return [_row(drawn, estimator, n, dice) for drawn in sets]


def _row(drawn: SampleSet, estimator: Estimator, n: int, dice: random.Random) -> Row:
    order = dice.sample(drawn.samples, n)
    whole = drawn.model_copy(update={"samples": tuple(order)})
    plan = SamplingPlan(n=n, unanimous_at=UNANIMOUS_AT)
    score = _value(whole, estimator, n)
    part, own = adaptive_subset(whole, estimator, plan)
    low, high = [], []
    for m in range(2, n + 1):
        ends = range_of(whole.model_copy(update={"samples": whole.samples[:m]}), estimator, n)
        if ends is None or isinstance(ends, Uncertainty) or not ends[0] <= score <= ends[1]:
            raise SystemExit(f"the bounds {ends} after {m} samples do not hold the score {score}")
        low.append(ends[0])
        high.append(ends[1])
    return Row(score, tuple(low), tuple(high), _value(part, estimator, own.n), own.n < n)


def _value(drawn: SampleSet, estimator: Estimator, n: int) -> float:
    uncertainty = measure(drawn, estimator, SamplingPlan(n=n))
    if uncertainty.value is None:
        raise SystemExit(f"not measured: {uncertainty.detail}")
    return uncertainty.value


def stops(row: Row, threshold: float, ends: Sequence[int], n: int) -> int:
    """Return the number of looks until the verdict is certain."""
    for looks, m in enumerate(ends, start=1):
        accepted, possible = accepts(row.high[m - 2], threshold), accepts(row.low[m - 2], threshold)
        if m == n or accepted or not possible:
            if m < n and accepted != accepts(row.score, threshold):
                raise SystemExit("an early verdict differs from the full one")
            return looks
    raise AssertionError("the last look sees all samples")


def compare(name: str, folder: Path, estimator_name: str, judge: str | None, splits: int) -> list[Line]:
    """Return the lines of all alphas for one file."""
    recorded = load(folder, name, judge=judge)
    n, error = recorded.n, recorded.error
    needs_judge = make(estimator_name).needs.judge
    estimator = make(estimator_name, judge=recorded.judge if needs_judge else None)
    measured = rows(recorded.sets, estimator, n, seed=0)
    full = np.array([row.score for row in measured])
    adaptive = np.array([row.adaptive for row in measured])
    waves, singly = wave_ends(n), tuple(range(2, n + 1))
    lines = []
    for alpha in ALPHAS:
        figures: list[tuple[float, ...]] = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(measured))
            train, test = order[: len(measured) // 2], order[len(measured) // 2 :]
            tau, tau_adaptive = _threshold(full, error, train, alpha), _threshold(adaptive, error, train, alpha)
            ours = [measured[i] for i in test]
            looks = [stops(row, tau, waves, n) if tau >= 0 else 1 for row in ours]
            early = [waves[look - 1] if tau >= 0 else 0 for look in looks]
            single = [singly[stops(row, tau, singly, n) - 1] if tau >= 0 else 0 for row in ours]
            plan = [(UNANIMOUS_AT if row.stopped else n) if tau_adaptive >= 0 else 0 for row in ours]
            both = [
                UNANIMOUS_AT if row.stopped else waves[stops(row, tau_adaptive, waves, n) - 1] for row in ours
            ] if tau_adaptive >= 0 else [0]  # fmt: skip
            figures.append(
                (
                    float(tau >= 0), *_accepted(full, error, test, tau), float(np.mean(early)), float(np.mean(looks)),
                    float(np.mean(single)), *_accepted(adaptive, error, test, tau_adaptive), float(np.mean(plan)),
                    float(np.mean(both)),
                )
            )  # fmt: skip
        lines.append(Line(name, recorded.judge.spec.name, n, alpha, *_means(figures)))
    return lines


def _threshold(scores: NDArray[np.float64], error: NDArray[np.int64], part: NDArray[np.int64], alpha: float) -> float:
    outcome = fit(scores[part], error[part], alpha=alpha)
    return outcome.threshold if isinstance(outcome, Feasible) else -1.0


def _accepted(
    scores: NDArray[np.float64], error: NDArray[np.int64], part: NDArray[np.int64], threshold: float
) -> tuple[float, float]:
    """Acceptance, and errors as a share of all questions (to be divided at the end)."""
    inside = accepts(scores[part], threshold)
    return float(inside.mean()), float((error[part] * inside).mean())


def _means(figures: Sequence[tuple[float, ...]]) -> list[float]:
    """Means over splits; samples only over splits with a threshold (nothing is sampled without one)."""
    table = np.array(figures)
    mean = table.mean(axis=0)
    feasible, feasible_adaptive = table[:, 0] > 0, table[:, 6] > 0
    for column in (3, 4, 5):
        mean[column] = table[feasible, column].mean() if feasible.any() else np.nan
    for column in (8, 9):
        mean[column] = table[feasible_adaptive, column].mean() if feasible_adaptive.any() else np.nan
    mean[2] = mean[2] / mean[1] if mean[1] else np.nan
    mean[7] = mean[7] / mean[6] if mean[6] else np.nan
    return [float(value) for value in mean]


def shown(lines: Sequence[Line]) -> str:
    """Return a table in Markdown; alphas at which nothing was accepted are left out."""
    head = (
        "| file, judge | n | alpha | accepted % | samples, early | looks | samples, one at a time "
        "| adaptive: accepted % | samples | with early stopping |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    body = [
        f"| {line.file}, {line.judge} | {line.n} | {line.alpha:g} "
        f"| {100 * line.acceptance:.1f} ({100 * line.error:.1f}) | {line.early:.2f} | {line.rounds:.2f} "
        f"| {line.single:.2f} "
        f"| {100 * line.adaptive_acceptance:.1f} ({100 * line.adaptive_error:.1f}) | {line.adaptive:.2f} "
        f"| {line.both:.2f} |"
        for line in lines
        if line.acceptance > 0.005
    ]
    return head + "\n".join(body).replace("nan", "-")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the recorded answers")
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--estimator", default="discrete_semantic_entropy")
    arguments = parser.parse_args()
    runs = [(name, None) for name in FILES] + [("triviaqa-20samples", "exact")]
    lines = [
        line
        for name, judge in runs
        for line in compare(name, arguments.folder, arguments.estimator, judge, arguments.splits)
    ]
    print(shown(lines))


if __name__ == "__main__":
    main()
