"""Acceptance of a certificate by the number of labels: `python -m benchmarks.labels --data FOLDER`.

Mean share of all questions that is answered, in per cent, over simulated calibrations with 150, 300, 600 and 1,000
labels: by version 1 of the certified rule (only here, for comparison), by version 2, and by version 2 where the labels
are spent on the lowest half of the scores (`calibrate sample --reach 0.5 --fixed-beforehand`); by `acrc` with and
without the reach. Populations are the four of the base paper's tables, in closed form; data sets are recorded outputs,
of which every calibration labels a random part, and acceptance is the share of all scores at or below the threshold.

    python -m benchmarks.labels --data FOLDER --write docs/benchmarks-calibration.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.estimators.sources import sources
from benchmarks.paper.pools import recorded_pools
from benchmarks.paper.printed import POPULATIONS
from calibrate.evaluation.planning import Binormal
from calibrate.scoring.reach import cut_at
from calibrate.thresholds.fit import request_for
from calibrate.thresholds.rule import Prefix, default_min_accept, prefixes
from guardrail.errors import UsageError

Reals = NDArray[np.float64]
Errors = NDArray[np.int8]
Select = Callable[[Prefix], int | None]

SIZES = (150, 300, 600, 1_000)
ALPHAS = (0.15, 0.1)
DELTA = 0.1
REACH = 0.5
POOL = 6_000
"""Unlabelled questions of a population that are scored in each repetition."""
DISCRETE = ("vote", "entropy", "stated", "runs")
"""Scores of few values, which version 1 tested in order, from k_min on."""
MARKS = ("<!-- labels: begin -->", "<!-- labels: end -->")


@dataclass(frozen=True)
class Questions:
    """A set of questions that labels are drawn from."""

    name: str
    score: str
    draw: Callable[[np.random.Generator], tuple[Reals, Errors]]
    """Draws the scores of all questions, and the errors that labels would show."""
    accepted: Callable[[float, Reals], float]
    """Returns the share of all questions at or below a threshold."""
    times: int = 1
    """Calibrations for each calibration of a recorded set: simulated questions are new each time and vary more."""


def populations() -> Iterator[Questions]:
    """Yield the four populations of the paper's tables, each by its first estimator."""
    for population in POPULATIONS:
        score, auroc = next(iter(population.auroc.items()))
        binormal = Binormal(population.accuracy, auroc)
        name = f"{population.dataset}, {population.model} (simulated)"
        yield Questions(name, score, partial(binormal.draw, n=POOL), partial(_in_closed_form, binormal), times=4)


def _in_closed_form(population: Binormal, threshold: float, _: Reals) -> float:
    return population.acceptance(threshold)


def data_sets(folder: Path) -> Iterator[Questions]:
    """Yield every recorded file, by its scores; of the five models of MMLU-Pro, the most accurate."""
    for pool in recorded_pools(folder):
        for score, values in pool.uncertainty.items():
            if score != "MSP" and (pool.dataset != "MMLU-Pro" or pool.model == "gpt-4.1"):
                yield _recorded(f"{pool.dataset}, {pool.model}", score, np.asarray(values), np.asarray(pool.error))
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
    pairs = [
        (value, not record.correct)
        for value, record in zip(source.baseline.values, source.records, strict=True)
        if value is not None and record.correct is not None
    ]
    return "runs", np.array([value for value, _ in pairs]), np.array([wrong for _, wrong in pairs], dtype=np.int8)


def _overlap(path: Path) -> tuple[str, Reals, Errors]:
    """Score the first system's answers: one minus the mean Jaccard overlap of its words with the others' answers."""
    values, errors = [], []
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        (mine, first), *others = (
            (set((answer["text"] or "").lower().split()), answer) for answer in row["answers"].values()
        )
        values.append(1 - float(np.mean([len(mine & other) / max(1, len(mine | other)) for other, _ in others])))
        errors.append(not first["correct"])
    return "overlap", np.array(values), np.array(errors, dtype=np.int8)


# -- Version 1 of the certified rule. For scores of few values: the fixed sequence from k_min. For other scores: anchors
# at all k from k_min to n, whose levels fall like k^-1.5, and then a fixed sequence. Its limits ignore the block ends.


def version_1(alpha: float, delta: float, *, discrete: bool) -> Select:
    """Return version 1 of the rule, without error spending over the block ends."""

    def select(prefix: Prefix) -> int | None:
        k_min = default_min_accept(prefix.n, alpha)
        if k_min > prefix.n:
            return None
        anchor, extension = _limits_1(prefix.n, alpha, delta, k_min)
        ends = np.flatnonzero(prefix.k >= k_min)
        if discrete:
            failed = np.flatnonzero(stats.binom.cdf(prefix.e[ends], prefix.k[ends], alpha) > delta)
            passed = int(failed[0]) if failed.size else ends.size
            return int(ends[passed - 1]) if passed else None
        at, errors = prefix.k[ends] - k_min, prefix.e[ends]
        anchors = np.flatnonzero(errors <= anchor[at])
        if not anchors.size:
            return None
        last = int(anchors[-1])
        failed = np.flatnonzero(errors[last + 1 :] > extension[at[last + 1 :]])
        return int(ends[last + int(failed[0]) if failed.size else -1])

    return select


@lru_cache
def _limits_1(n: int, alpha: float, delta: float, k_min: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    k = np.arange(k_min, n + 1)
    decay = (k_min / k) ** 1.5
    low, high = delta / k.size, delta / float(decay[-1])
    for _ in range(40):
        middle = (low + high) / 2
        crossed = _crossing(_most(k, alpha, np.minimum(delta, middle * decay)), k, alpha)
        low, high = (middle, high) if crossed <= delta else (low, middle)
    anchor = _most(k, alpha, np.minimum(delta, low * decay))
    extension = np.empty_like(anchor)
    s = np.arange(int(anchor.max()) + int(6 * np.sqrt(n * alpha)) + 30)
    h = np.zeros(s.size)
    for i in range(k.size - 1, -1, -1):
        h = (1 - alpha) * h + alpha * np.append(h[1:], h[-1])
        h[: anchor[i] + 1] = 1.0
        weight = stats.binom.pmf(s, k[i], alpha)
        spent = weight @ h + np.cumsum(weight * (1 - h))
        extension[i] = max(int(np.searchsorted(spent, delta, side="right")) - 1, anchor[i])
    return anchor, extension


def _most(k: NDArray[np.int64], alpha: float, level: Reals) -> NDArray[np.int64]:
    """Return the largest c with P(Bin(k, alpha) <= c) <= level."""
    return np.asarray(stats.binom.ppf(level, k, alpha), dtype=np.int64) - 1


def _crossing(limit: NDArray[np.int64], k: NDArray[np.int64], alpha: float) -> float:
    """Return P(a walk with error rate alpha has at most limit errors at some k)."""
    mass = stats.binom.pmf(np.arange(int(limit.max()) + 2), k[0], alpha)
    crossed = 0.0
    for i, c in enumerate(limit.tolist()):
        if i:
            mass = (1 - alpha) * mass + alpha * np.append(0.0, mass[:-1])
        crossed += float(mass[: c + 1].sum())
        mass[: c + 1] = 0.0
    return crossed


# -- The tables --------------------------------------------------------------------------------------------------------


def rule(name: str, alpha: float) -> Select:
    """Return a rule of the library."""
    chosen, request = request_for(name, alpha=alpha, delta=DELTA if name == "certified" else None, options={})
    return partial(chosen.select, request=request)


def acceptance(questions: Questions, select: Select, n: int, share: float, repetitions: int) -> float | None:
    """Return the mean acceptance; None if fewer than n questions lie within reach."""
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
        prefix = prefixes(scores[drawn], errors[drawn])
        index = select(prefix)
        total += 0.0 if index is None else questions.accepted(float(prefix.score[index]), scores)
    return total / repetitions


def table(question_sets: Sequence[Questions], alpha: float, sizes: Sequence[int], repetitions: int, kind: str) -> str:
    """Return one Markdown table: "certified" (version 1 / version 2 / within reach) or "acrc" (all / within reach)."""
    lines = [
        "| questions | score | " + " | ".join(f"{n:,} labels" for n in sizes) + " |",
        "| :-- | :-- |" + " --: |" * len(sizes),
    ]
    for questions in question_sets:
        new = rule(kind, alpha)
        jobs = [(new, 1.0), (new, REACH)]
        if kind == "certified":
            jobs.insert(0, (version_1(alpha, DELTA, discrete=questions.score in DISCRETE), 1.0))
        cells = [
            " / ".join(
                _cell(acceptance(questions, select, n, share, questions.times * repetitions)) for select, share in jobs
            )
            for n in sizes
        ]
        lines.append(f"| {questions.name} | {questions.score} | {' | '.join(cells)} |")
        print(kind, alpha, lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def page(question_sets: Sequence[Questions], sizes: Sequence[int], repetitions: int) -> str:
    """Return all tables with their headings."""
    parts = [
        f"Answered, % of all questions, mean of {repetitions} calibrations (simulated: {4 * repetitions}). A dash: "
        "fewer questions than labels within reach, or ties that leave no cut there."
    ]
    for kind, columns in (
        ("certified", "version 1 / version 2 / version 2 within reach"),
        ("acrc", "all / within reach"),
    ):
        for alpha in ALPHAS:
            title = f"`{kind}`, alpha {alpha:g}" + (f", delta {DELTA:g}" if kind == "certified" else "")
            parts += [f"{title}: {columns}", table(question_sets, alpha, sizes, repetitions, kind)]
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
    question_sets = [*populations(), *([] if arguments.data is None else data_sets(arguments.data))]
    text = page(question_sets, arguments.sizes, arguments.repetitions)
    if arguments.write is None:
        print(text)
        return
    before, rest = arguments.write.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    arguments.write.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
