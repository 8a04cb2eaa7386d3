"""One threshold for all questions against one for each segment: `python -m benchmarks.segments FOLDER`.

Recorded answers of real models: MMLU-Pro by subject, MMBench by category. Half of the questions calibrate, the other
half measures, over random splits. A segment lies above the target where its error rate among accepted test answers is
above alpha; its test questions are finite, so some segments lie above by chance. The second figure of the tables
therefore counts only segments above alpha by an exact binomial test at .01.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from calibrate.fitting import fit
from calibrate.router import ByGroup
from guardrail.outcome import Feasible, Outcome

DELTA, SPLITS, SURE = 0.1, 10, 0.01
MODELS = ("gpt-4.1", "gpt-4o-mini-2024-07-18")


@dataclass(frozen=True, slots=True)
class Data:
    """Scores, errors and segments of one model."""

    name: str
    alpha: float
    u: NDArray[np.float64]
    error: NDArray[np.int64]
    segment: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Row:
    """One way to choose thresholds; figures are means over splits.

    Attributes:
        way: Its name.
        acceptance: Share of test questions accepted.
        error: Share of wrong answers among the accepted ones.
        above: Segments whose error rate on the test questions is above alpha.
        surely: Segments above alpha by the binomial test.
        worst: Highest error rate of a segment with at least 30 accepted test answers.
        silent: Segments in which nothing is accepted.
    """

    way: str
    acceptance: float
    error: float
    above: float
    surely: float
    worst: float
    silent: float


def read(folder: Path) -> list[Data]:
    """Return the shared data sets whose groups are subjects or categories."""
    data_sets = []
    with (folder / "mmlu-pro-confidence.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for model in MODELS:
        complete = [row for row in rows if row[f"{model}/logit_confidence"] and row[f"{model}/error"]]
        data_sets.append(
            Data(
                f"MMLU-Pro, {model}",
                0.2,
                1 - np.array([float(row[f"{model}/logit_confidence"]) for row in complete]),
                np.array([int(float(row[f"{model}/error"])) for row in complete]),
                np.array([row["group"] for row in complete]),
            )
        )
    for model in ("v1.6-34b", "v1.5-7b"):
        lines = (folder / f"mmbench-llava-{model}-options.jsonl").read_text(encoding="utf-8").splitlines()
        items = [json.loads(line) for line in lines]
        logits = np.array([[item["options"][label] for label in "ABCDEF"] for item in items])
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        right = np.array(["ABCDEF".index(item["reference"]) for item in items])
        data_sets.append(
            Data(
                f"MMBench, LLaVA {model}",
                0.1,
                -np.sum(p * np.log(np.maximum(p, 1e-300)), axis=1),
                (p.argmax(axis=1) != right).astype(np.int64),
                np.array([item["group"] for item in items]),
            )
        )
    return data_sets


def compare(data: Data, splits: int = SPLITS) -> list[Row]:
    """Compare one threshold with one for each segment, on the same splits."""
    names = ("one threshold", "by segment, delta together", "by segment, delta each")
    results: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(data.u.size)
        half, test = order[: data.u.size // 2], order[data.u.size // 2 :]
        outcome = fit(data.u[half], data.error[half], alpha=data.alpha, rule="certified", delta=DELTA)
        together, each = (_by_group(data, half, share) for share in ("together", "each"))
        segments = np.unique(data.segment).tolist()
        for name, outcomes in zip(names, (dict.fromkeys(segments, outcome), together, each), strict=True):
            results[name].append(_measured(data, test, outcomes))
    return [Row(name, *(float(value) for value in np.nanmean(results[name], axis=0))) for name in names]


def _by_group(data: Data, half: NDArray[np.int64], share: str) -> dict[str, Outcome]:
    """The outcome of each segment, by certificates for those with enough labels and one for all others."""
    names, counts = np.unique(data.segment[half], return_counts=True)
    large = set(names[counts >= ByGroup().min_labels].tolist())
    place = np.array([name if name in large else "" for name in data.segment[half].tolist()])
    groups = np.unique(place).tolist()
    delta = DELTA / len(groups) if share == "together" else DELTA
    outcomes = {
        name: fit(data.u[half][place == name], data.error[half][place == name], alpha=data.alpha, delta=delta)
        for name in groups
    }
    others = outcomes.get("")
    found = {name: outcomes.get(name, others) for name in np.unique(data.segment).tolist()}
    return {name: outcome for name, outcome in found.items() if outcome is not None}


def _measured(data: Data, test: NDArray[np.int64], outcomes: dict[str, Outcome]) -> tuple[float, ...]:
    accepted = wrong = above = surely = silent = 0
    worst = 0.0
    for segment, outcome in outcomes.items():
        own = test[data.segment[test] == segment]
        threshold = outcome.threshold if isinstance(outcome, Feasible) else -np.inf
        accepted_errors = data.error[own][data.u[own] <= threshold]
        k, e = accepted_errors.size, int(accepted_errors.sum())
        accepted, wrong = accepted + k, wrong + e
        silent += threshold == -np.inf
        if k:
            above += e / k > data.alpha
            surely += bool(stats.binom.sf(e - 1, k, data.alpha) <= SURE)
            worst = max(worst, e / k) if k >= 30 else worst
    return accepted / test.size, wrong / accepted if accepted else np.nan, above, surely, worst, silent


def markdown(data: Data, rows: Sequence[Row]) -> str:
    """Return one table in Markdown."""
    lines = [
        f"{data.name}, alpha = {data.alpha:g}, {np.unique(data.segment).size} segments, {data.u.size // 2:,} labels, "
        f"{data.error.mean():.1%} wrong without a gate:",
        "",
        "| | accepted | wrong among these | segments above alpha | surely above | worst segment | segments without a "
        "threshold |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row.way} | {row.acceptance:.1%} | {row.error:.1%} | {row.above:.1f} | {row.surely:.1f} | {row.worst:.1%} "
        f"| {row.silent:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Folder of the shared data.")
    parser.add_argument("--splits", type=int, default=SPLITS)
    arguments = parser.parse_args(argv)
    for data in read(arguments.folder):
        print(markdown(data, compare(data, arguments.splits)) + "\n")


if __name__ == "__main__":
    main()
