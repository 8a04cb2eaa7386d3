"""Judges of tool calls, compared by AUROC and acceptance: `python -m benchmarks.tool_calls FILE [--splits 500]`.

FILE is `intercode-sql-agents.jsonl`: for each question a proposed SQL call with what the database returned, and the
first calls of five other agents. Right means that the call returned the reference result. A threshold is fitted by a
rule on a random half of the questions and used on the other half, many times; questions whose score cannot be measured
abstain. The figures of docs/results.md are from its tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.fitting import fit
from calibrate.scoring.metrics import auroc
from guardrail.judges import Judge, ToolCallJudge, canonical_calls
from guardrail.judges.observation import ObservationJudge, ObservationSimilarity
from guardrail.outcome import Feasible, accepts
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall
from guardrail.uncertainty import Estimator, measure
from guardrail.uncertainty import make_estimator as make

ESTIMATORS = ("primary_disagreement", "self_consistency", "discrete_semantic_entropy")
GRADED = "graded_disagreement"
ALPHAS = (0.1, 0.2)
RULES: tuple[tuple[str, float | None], ...] = (("acrc", None), ("certified", 0.1))
PLAN = SamplingPlan(n=5)


@dataclass(frozen=True, slots=True)
class Question:
    """One question: the proposed call, the observation of each call, and whether the proposal is wrong."""

    drawn: SampleSet
    observations: dict[str, str]
    wrong: int
    level: str


def read(path: Path) -> list[Question]:
    """Return the questions of the file."""
    questions = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        observations: dict[str, str] = {}
        primary = None if row["primary"] is None else _sample(row["primary"], observations)
        samples = tuple(_sample(sample, observations) for sample in row["samples"])
        drawn = SampleSet(question=row["question"], primary=primary, samples=samples)
        questions.append(Question(drawn, observations, int(not row["correct"]), row["group"]))
    return questions


def _sample(row: dict[str, Any], observations: dict[str, str]) -> Sample:
    calls = tuple(ToolCall.model_validate(call) for call in row["tool_calls"])
    observations[canonical_calls(calls)] = str(row["observation"])
    return Sample(text="", tool_calls=calls)


def judges(question: Question) -> dict[str, Judge]:
    """Return the comparisons; observations come from the question's database, so every question has its judge."""
    return {
        "canonical form": ToolCallJudge(),
        "canonical form, texts normalised": ToolCallJudge(text=True),
        "observation": observed(question),
    }


def observed(question: Question) -> ObservationJudge:
    """Return the judge that compares observations."""
    return ObservationJudge(observations=question.observations, version="intercode")


def make_estimator(name: str, judge: str, question: Question) -> Estimator:
    """Return the estimator with a comparison; the graded estimator compares observations."""
    similarity = ObservationSimilarity(observed(question)) if name == GRADED else None
    return make(name, judge=judges(question)[judge], similarity=similarity)


def scores(questions: Sequence[Question], estimator: str, judge: str) -> NDArray[np.float64]:
    """Return one score per question, NaN if it could not be measured."""
    values = [measure(q.drawn, make_estimator(estimator, judge, q), PLAN).value for q in questions]
    return np.array([np.nan if value is None else value for value in values])


@dataclass(frozen=True, slots=True)
class Line:
    """Figures over splits: mean and the middle 95 % of the splits."""

    feasible: float
    acceptance: tuple[float, float, float]
    error: tuple[float, float, float] | None
    above: float


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the 2.5 % and 97.5 % quantiles."""
    low, high = np.quantile(values, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def simulate(
    u: NDArray[np.float64],
    wrong: NDArray[np.int64],
    rule: str,
    delta: float | None,
    alpha: float,
    splits: int,
) -> Line:
    """Fit on one half and act on the other; questions without a score abstain."""
    rng = np.random.default_rng(0)
    acceptance, errors, feasible = [], [], 0
    for _ in range(splits):
        order = rng.permutation(u.size)
        fitting, acting = order[: u.size // 2], order[u.size // 2 :]
        measured = fitting[np.isfinite(u[fitting])]
        outcome = fit(u[measured], wrong[measured], rule=rule, alpha=alpha, delta=delta)
        accepted = (
            accepts(u[acting], outcome.threshold) if isinstance(outcome, Feasible) else np.zeros(acting.size, bool)
        )
        feasible += isinstance(outcome, Feasible)
        acceptance.append(float(accepted.mean()))
        if accepted.any():
            errors.append(float(wrong[acting][accepted].mean()))
    above = sum(error > alpha for error in errors) / splits
    return Line(feasible / splits, spread(acceptance), spread(errors) if errors else None, above)


def ranked(u: NDArray[np.float64], wrong: NDArray[np.int64]) -> tuple[float, float, float]:
    """Return the AUROC for errors among the measured questions, with a 95 % bootstrap interval over questions."""
    measured = np.isfinite(u)
    u, wrong = u[measured], wrong[measured]
    rng = np.random.default_rng(1)
    resampled = []
    for _ in range(1000):
        at = rng.integers(0, u.size, u.size)
        value = auroc(u[at], wrong[at])
        if value is not None:
            resampled.append(value)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(auroc(u, wrong) or np.nan), float(low), float(high)


def percent(values: tuple[float, float, float] | None) -> str:
    """Format an interval, such as ``12.3 % (10.1 to 14.2)``."""
    return (
        "-"
        if values is None
        else f"{values[0]:.1%} ({100 * values[1]:.1f} to {100 * values[2]:.1f})".replace("%", " %")
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--splits", type=int, default=500)
    args = parser.parse_args()
    questions = read(args.file)
    wrong = np.array([question.wrong for question in questions])
    compared = tuple(judges(questions[0]))
    rows = [(GRADED, "observation"), *((estimator, judge) for estimator in ESTIMATORS for judge in compared)]
    table = {(estimator, judge): scores(questions, estimator, judge) for estimator, judge in rows}
    print(f"{len(questions)} questions, {wrong.mean():.1%} wrong\n".replace("%", " %"))
    print("| score | calls are the same by | AUROC (95 %) | measured | score 0 |\n|---|---|---|---|---|")
    for (estimator, judge), u in table.items():
        ranking = ranked(u, wrong)
        measured = np.isfinite(u)
        print(
            f"| `{estimator}` | {judge} | {ranking[0]:.3f} ({ranking[1]:.3f} to {ranking[2]:.3f}) "
            f"| {measured.mean():.1%} | {np.mean(u[measured] <= 1e-9):.1%} |".replace("%", " %")
        )
    print(f"\n{args.splits} random halves; in brackets the middle 95 % of them\n")
    print("| alpha | rule | scores | feasible | accepted | wrong among accepted | halves above alpha |")
    print("|---|---|---|---|---|---|---|")
    shown = [*(("primary_disagreement", judge) for judge in compared), (GRADED, "observation")]
    for alpha in ALPHAS:
        for rule, delta in RULES:
            for name, judge in shown:
                line = simulate(table[name, judge], wrong, rule, delta, alpha, args.splits)
                comparison = judge if name != GRADED else f"{judge}, graded"
                print(
                    f"| {alpha:g} | `{rule}` | {comparison} | {100 * line.feasible:.0f} % "
                    f"| {percent(line.acceptance)} | {percent(line.error)} | {100 * line.above:.0f} % |"
                )
    print("\n| hardness | questions | wrong | " + " | ".join(f"accepted, wrong at {a:g}" for a in ALPHAS) + " |")
    print("|---|---|---|" + "---|" * len(ALPHAS))
    u = table["primary_disagreement", "observation"]
    measured = np.isfinite(u)
    limits = [fit(u[measured], wrong[measured], alpha=alpha) for alpha in ALPHAS]
    for level in ("easy", "medium", "hard", "extra"):
        own = np.array([question.level == level for question in questions])
        cells = []
        for limit in limits:
            accepted = own & accepts(u, limit.threshold) if isinstance(limit, Feasible) else np.zeros(u.size, bool)
            error = f"{wrong[accepted].mean():.1%}" if accepted.any() else "-"
            cells.append(f"{accepted.sum() / own.sum():.1%}, {error}")
        print(f"| {level} | {own.sum()} | {wrong[own].mean():.1%} | {' | '.join(cells)} |".replace("%", " %"))


if __name__ == "__main__":
    main()
