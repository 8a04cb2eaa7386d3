"""What a certificate accepts for each number of labels: `python -m benchmarks.labels --data FOLDER`.

Mean share of all questions that is answered, in per cent, over simulated calibrations with 150, 300, 600 and 1,000
labels: by `certified` and by `acrc`, each with labels drawn from all questions and from the lowest half of the scores
(`calibrate sample --scope 0.5`). Populations are the four of the base paper's tables, in closed
form; data sets are recorded outputs, of which every calibration labels a random part, and acceptance is the share of
all scores at or below the threshold.

    python -m benchmarks.labels --data FOLDER --write docs/results.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.estimators.sources import sources
from benchmarks.paper.pools import recorded_pools
from benchmarks.paper.printed import POPULATIONS
from calibrate.evaluation.populations import Population
from calibrate.fitting import Target
from calibrate.rules import Feasible, Result
from calibrate.scope import cut_at
from guardrail.errors import UsageError

Reals = NDArray[np.float64]
Errors = NDArray[np.int8]
Select = Callable[[Reals, NDArray[np.int8]], Result]

SIZES = (150, 300, 600, 1_000)
ALPHAS = (0.15,)
DELTA = 0.1
SCOPE = 0.5
POOL = 6_000
"""Unlabelled questions of a population that are scored in each repetition."""
MARKS = ("<!-- labels: begin -->", "<!-- labels: end -->")


@dataclass(frozen=True)
class Questions:
    """Where labels are drawn from."""

    name: str
    score: str
    draw: Callable[[np.random.Generator], tuple[Reals, Errors]]
    """Scores of all questions, and the errors that labels would show."""
    accepted: Callable[[float, Reals], float]
    """Share of all questions at or below a threshold."""
    times: int = 1
    """Calibrations for each of a data set's: fresh questions vary more."""


def populations() -> Iterator[Questions]:
    """The four of the paper's tables, by its first estimator of each."""
    for population in POPULATIONS:
        score, auroc = next(iter(population.auroc.items()))
        binormal = Population.binormal(population.accuracy, auroc)
        name = f"{population.dataset}, {population.model} (simulated)"
        yield Questions(name, score, partial(binormal.draw, n=POOL), partial(_accepted, binormal), times=4)


def _accepted(population: Population, threshold: float, _: Reals) -> float:
    return population.acceptance(threshold)


def data_sets(folder: Path) -> Iterator[Questions]:
    """Every recorded file, by its scores; of MMLU-Pro's five models the most accurate one."""
    for pool in recorded_pools(folder):
        for score, values in pool.uncertainty.items():
            if score != "MSP" and (pool.dataset != "MMLU-Pro" or pool.model == "gpt-4.1"):
                yield _recorded(f"{pool.dataset}, {pool.model}", score, values, pool.error)
    for name, title, read in (
        ("cruxeval", "CRUXEval, 10 samples", _votes),
        ("intercode-observation", "InterCode SQL, 5 runs", _runs),
    ):
        yield _recorded(title, *read(folder, name))
    yield _recorded("NQ-open, one system of five", *_overlap(folder / "nq-human-labels.jsonl"))


def _recorded(name: str, score: str, values: Reals, error: NDArray[np.generic]) -> Questions:
    errors = np.asarray(error, dtype=np.int8)
    return Questions(name, score, lambda _: (values, errors), lambda t, scores: float((scores <= t).mean()))


def _votes(folder: Path, name: str) -> tuple[str, Reals, Errors]:
    values, errors = [], []
    for record in sources(folder, [name])[0]().records:
        if record.correct is not None and record.drawn is not None and record.drawn.samples:
            counts = Counter(sample.text for sample in record.drawn.samples)
            values.append(1 - max(counts.values()) / counts.total())
            errors.append(not record.correct)
    return "vote", np.array(values), np.array(errors, dtype=np.int8)


def _runs(folder: Path, name: str) -> tuple[str, Reals, Errors]:
    source = sources(folder, [name])[0]()
    assert source.baseline is not None
    starts = [
        (value, not record.correct)
        for value, record in zip(source.baseline.values, source.records, strict=True)
        if value is not None and record.correct is not None
    ]
    return "runs", np.array([value for value, _ in starts]), np.array([wrong for _, wrong in starts], dtype=np.int8)


def _overlap(path: Path) -> tuple[str, Reals, Errors]:
    """The first system's answers: one minus the mean Jaccard overlap of its words with the others' answers."""
    values, errors = [], []
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        (mine, first), *others = (
            (set((row_answer["text"] or "").lower().split()), row_answer) for row_answer in row["answers"].values()
        )
        values.append(1 - float(np.mean([len(mine & other) / max(1, len(mine | other)) for other, _ in others])))
        errors.append(not first["correct"])
    return "overlap", np.array(values), np.array(errors, dtype=np.int8)


def rule(name: str, alpha: float) -> Select:
    """A rule of the library."""
    return Target.of(name, alpha=alpha, delta=DELTA if name == "certified" else None).choose


def acceptance(questions: Questions, select: Select, n: int, share: float, repetitions: int) -> float | None:
    """Mean acceptance; None where fewer than n questions lie within the scope."""
    rng, total = np.random.default_rng(n), 0.0
    for _ in range(repetitions):
        scores, errors = questions.draw(rng)
        try:
            within = np.flatnonzero(scores <= cut_at(scores, share))
        except UsageError:  # ties: no cut at so small a share
            return None
        if within.size < n:
            return None
        drawn = rng.choice(within, n, replace=False)
        result = select(scores[drawn], errors[drawn])
        total += questions.accepted(result.threshold, scores) if isinstance(result, Feasible) else 0.0
    return total / repetitions


def table(groups: Sequence[Questions], alpha: float, sizes: Sequence[int], repetitions: int) -> str:
    """One Markdown table; each cell is `certified`, `certified` within the scope, `acrc`, `acrc` within the scope."""
    lines = [
        "|questions|score|" + "|".join(f"{n:,} labels" for n in sizes) + "|",
        "|:--|:--|" + "--:|" * len(sizes),
    ]
    jobs = [(rule(name, alpha), share) for name in ("certified", "acrc") for share in (1.0, SCOPE)]
    for questions in groups:
        cells = [
            "/".join(
                _cell(acceptance(questions, select, n, share, questions.times * repetitions)) for select, share in jobs
            )
            for n in sizes
        ]
        lines.append(f"|{questions.name}|{questions.score}|{'|'.join(cells)}|")
        print(alpha, lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def page(questions: Sequence[Questions], sizes: Sequence[int], repetitions: int) -> str:
    """All tables with their headings."""
    parts = [
        f"Answered, % of all questions, mean of {repetitions} calibrations (simulated: {4 * repetitions}): `certified` "
        f"at delta {DELTA:g}/`certified` within the scope/`acrc`/`acrc` within the scope. A dash: fewer questions than "
        "labels within the scope, or ties that leave no cut there."
    ]
    for alpha in ALPHAS:
        parts += [f"alpha {alpha:g}:", table(questions, alpha, sizes, repetitions)]
    return "\n\n".join(parts)


def main() -> None:
    """Print the tables, or write them into a page between two marks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.labels", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the recorded outputs; without it populations only")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of labels")
    parser.add_argument(
        "--repetitions", type=int, default=100, help="calibrations of each cell; of the simulated four times as many"
    )
    parser.add_argument("--write", type=Path, help="page to write the tables into")
    arguments = parser.parse_args()
    questions = [*populations(), *([] if arguments.data is None else data_sets(arguments.data))]
    text = page(questions, arguments.sizes, arguments.repetitions)
    if arguments.write is None:
        print(text)
        return
    before, rest = arguments.write.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    arguments.write.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
