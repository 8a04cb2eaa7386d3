"""Two models as one system against each alone, on recorded scores: `python -m benchmarks.routing FOLDER --png FILE`.

For every pair of models and alpha: 1,000 questions to calibrate, the rest to test, over random splits that all
rules share. "Calls" is the share of test questions that the large model is asked, over splits with an answer.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from calibrate.cascade import certified_cascade
from calibrate.rules import Feasible, certified
from guardrail.outcome import accepts

ALPHAS = (0.05, 0.1, 0.15, 0.2)
CALIBRATION = 1_000
SYSTEMS = ("small alone", "large alone", "cascade")
# Colours of Okabe & Ito; the markers tell the systems apart without colour.
STYLES = {"small alone": ("#E69F00", "s"), "large alone": ("#0072B2", "^"), "cascade": ("#D55E00", "o")}


@dataclass(frozen=True, slots=True)
class Pair:
    """Scores and errors of two models on the same questions, shape (n, 2), the small one first."""

    name: str
    uncertainty: NDArray[np.float64]
    error: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """Means over splits."""

    pair: str
    alpha: float
    system: str
    acceptance: float
    error: float
    """Errors of all splits over answers of all splits."""
    exceeded: float
    """Share of splits whose test error exceeds alpha."""
    calls: float


def mmbench(folder: Path) -> Pair:
    """LLaVA 7B and 34B: 1 - largest option probability, and whether the likeliest option is wrong."""
    tables = []
    for name in ("v1.5-7b", "v1.6-34b"):
        path = folder / f"mmbench-llava-{name}-options.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        tables.append({row["id"]: _option_score(row["options"], row["reference"]) for row in rows})
    small, large = tables
    if small.keys() != large.keys():
        raise SystemExit("the two files hold different questions")
    both = np.array([[small[name], large[name]] for name in small])
    return Pair("MMBench, LLaVA 7B to 34B", both[:, :, 0], both[:, :, 1].astype(np.int64))


def _option_score(options: dict[str, float], reference: str) -> tuple[float, int]:
    values = np.array(list(options.values()))
    shares = np.exp(values - values.max())
    best = list(options)[int(values.argmax())]
    return float(1 - shares.max() / shares.sum()), int(best != reference)


def mmlu_pro(folder: Path, small: str, large: str, column: str = "logit_confidence") -> Pair:
    """Two models of the table; questions where either lacks a confidence are left out."""
    scores, errors = [], []
    with (folder / "mmlu-pro-confidence.csv").open(encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            cells = [(row[f"{model}/{column}"], row[f"{model}/error"]) for model in (small, large)]
            if all(confidence and error for confidence, error in cells):
                scores.append([1 - float(confidence) for confidence, _ in cells])
                errors.append([int(float(error)) for _, error in cells])
    name = f"MMLU-Pro, {small.removesuffix('-2024-07-18')} to {large}"
    return Pair(name, np.array(scores), np.array(errors))


def compare(pair: Pair, alpha: float, splits: int) -> list[Line]:
    """Return the lines of the three systems at one alpha, each certified (delta .1)."""
    results: dict[str, list[tuple[float, float, float]]] = {system: [] for system in SYSTEMS}
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(pair.error))
        fitted, test = order[:CALIBRATION], order[CALIBRATION:]
        u, error = pair.uncertainty[fitted], pair.error[fitted]
        joint = certified_cascade(u, error, alpha)
        pairs = {"cascade": list(joint) if isinstance(joint, tuple) else [-np.inf, -np.inf]}
        for stage, system in enumerate(SYSTEMS[:2]):
            alone = certified(u[:, stage], error[:, stage], alpha)
            pairs[system] = [-np.inf, -np.inf]
            pairs[system][stage] = alone.threshold if isinstance(alone, Feasible) else -np.inf
        for system, thresholds in pairs.items():
            results[system].append(_tested(pair, test, thresholds, system))
    return [
        Line(
            pair.name,
            alpha,
            system,
            float(np.mean([share for share, _, _ in rows])),
            float(sum(wrong for _, wrong, _ in rows) / max(1e-12, sum(share for share, _, _ in rows))),
            float(np.mean([wrong > alpha * share for share, wrong, _ in rows])),
            float(np.mean([calls for share, _, calls in rows if share] or [0.0])),
        )
        for system, rows in results.items()
    ]


def _tested(
    pair: Pair, test: NDArray[np.int64], thresholds: Sequence[float], system: str
) -> tuple[float, float, float]:
    """Return the shares of test questions that are answered, answered wrongly, and passed to the large model."""
    first = accepts(pair.uncertainty[test, 0], thresholds[0])
    second = ~first & accepts(pair.uncertainty[test, 1], thresholds[1])
    wrong = (pair.error[test, 0] * first + pair.error[test, 1] * second).mean()
    large_share = {"small alone": 0.0, "large alone": 1.0}.get(system, float((~first).mean()))
    if system == "cascade" and thresholds[1] == -np.inf:
        large_share = 0.0  # a stage that never answers is not asked
    return float((first | second).mean()), float(wrong), large_share


def shown(lines: Sequence[Line]) -> str:
    """Return a table in Markdown."""
    head = (
        "| models | alpha | small alone | large alone | cascade | calls to the large model |\n"
        "|---|---|---|---|---|---|\n"
    )
    rows = []
    for i in range(0, len(lines), 3):
        by_system = {line.system: line for line in lines[i : i + 3]}
        cells = [_cell(by_system[system]) for system in SYSTEMS]
        first = lines[i]
        calls = f"{100 * by_system['cascade'].calls:.0f} %"
        rows.append(f"| {first.pair} | {first.alpha:g} | {' | '.join(cells)} | {calls} |")
    return head + "\n".join(rows)


def _cell(line: Line) -> str:
    if line.acceptance == 0:
        return "-"
    return f"{100 * line.acceptance:.1f} ({100 * line.error:.1f}; {line.exceeded:.2f})"


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draw acceptance against calls to the large model, one panel per pair; a line joins the systems of one alpha."""
    names = list(dict.fromkeys(line.pair for line in lines))
    figure = Figure(figsize=(5.2 * len(names), 4.2), layout="constrained", facecolor="white")
    panels = np.atleast_1d(figure.subplots(1, len(names), sharey=True))
    for axes, name in zip(panels, names, strict=True):
        label_at = -np.inf
        for alpha in ALPHAS:
            own = {line.system: line for line in lines if line.pair == name and line.alpha == alpha}
            ordered = sorted(own.values(), key=lambda line: line.calls)
            axes.plot(
                [100 * line.calls for line in ordered],
                [100 * line.acceptance for line in ordered],
                color="#9aa3ad",
                linewidth=1,
                zorder=1,
            )
            label_at = max(label_at + 6, 100 * own["large alone"].acceptance)  # labels must not overlap
            axes.annotate(f"alpha {alpha:g}", (104, label_at), fontsize=9, va="center", color="#1c2127")
            for system, line in own.items():
                colour, marker = STYLES[system]
                label = system if alpha == ALPHAS[0] else None
                axes.scatter(100 * line.calls, 100 * line.acceptance, color=colour, marker=marker, s=48, label=label)
        axes.set(title=name, xlabel="questions the large model is asked, %", xlim=(-4, 128), ylim=(-3, 108))
        axes.set_xticks([0, 25, 50, 75, 100])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dfe3e8", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("questions answered, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, format="png", dpi=110, metadata={"Software": None})


def main() -> None:
    """Print the table and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with the recorded scores")
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--png", type=Path, default=None)
    arguments = parser.parse_args()
    pairs = [mmbench(arguments.folder), mmlu_pro(arguments.folder, "gpt-4o-mini-2024-07-18", "gpt-4.1")]
    lines = [line for pair in pairs for alpha in ALPHAS for line in compare(pair, alpha, arguments.splits)]
    print(shown(lines))
    if arguments.png is not None:
        draw(lines, arguments.png)


if __name__ == "__main__":
    main()
