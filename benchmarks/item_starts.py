"""Where `wrong_share` should start: `python -m benchmarks.item_starts [--calibrations 150]`.

The rule tests thresholds from strict to loose and stops at the first failure. A start at share s is the first threshold
at which s n answers would do without an error: a small s starts at a looser threshold, where more items are wrong; a
large s leaves fewer answers to make up for an error. The start reads scores and never labels, so the promise holds for
every s; only what passes depends on it.

Made populations with known risk: the wrong share of items, the number of items of an answer, how much the items of an
answer fail together, and how well the score ranks wrong items. Scores are shares of ten samples. Printed: right items
passed and infeasible calibrations by share, means over populations, and the largest share of calibrations above alpha.
The last populations are adversarial: the share of wrong items is just above alpha at every threshold, so that every
threshold is a failure.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from calibrate.items.rules import AnswerItems, Per, start_wrong_share, wrong_share

SHARES = (0.5, 0.65, 0.8, 0.9)
SIZES = (100, 300, 1000)
ALPHAS = (0.05, 0.1, 0.2)
DELTA = 0.1
SAMPLES, POOL = 10, 20_000
UNITS: tuple[Per, ...] = ("item", "answer")


@dataclass(frozen=True, slots=True)
class Population:
    """A population of answers.

    Attributes:
        wrong: Share of wrong items.
        fewest: Fewest items of an answer.
        most: Most items of an answer; the cap.
        together: Correlation of the items' failures within an answer, in [0, 1].
        score: "sharp", "fair", "weak" or "useless".
    """

    wrong: float
    fewest: int
    most: int
    together: float
    score: str

    def draw(self, rng: np.random.Generator, n: int) -> AnswerItems:
        """Draw answers: latent normal failures that share a term by answer, then samples that disagree or not."""
        size = rng.integers(self.fewest, self.most + 1, n)
        answer = np.repeat(np.arange(n), size)
        latent = np.sqrt(self.together) * rng.standard_normal(n)[answer]
        latent += np.sqrt(1 - self.together) * rng.standard_normal(answer.size)
        wrong = (latent < ndtri(self.wrong)).astype(np.int64)
        # The chance that a sample disagrees falls with the latent ease of the item; its noise makes the score worse.
        ease, noise = {"sharp": (2.5, 0.5), "fair": (2.0, 1.5), "weak": (1.0, 1.5), "useless": (0.0, 1.5)}[self.score]
        centred = latent - ndtri(self.wrong)
        disagrees = expit(-ease * centred + noise * rng.standard_normal(answer.size))
        scores = rng.binomial(SAMPLES, disagrees) / SAMPLES
        edges = np.cumsum(size)[:-1]
        split: list[NDArray[np.float64]] = np.split(scores, edges)
        return AnswerItems.of([u.tolist() for u in split], [w.tolist() for w in np.split(wrong, edges)], cap=self.most)


POPULATIONS = (
    Population(0.02, 1, 1, 0.0, "fair"),
    Population(0.02, 3, 6, 0.0, "weak"),
    Population(0.02, 6, 12, 0.5, "useless"),
    Population(0.05, 2, 4, 0.2, "fair"),
    Population(0.05, 3, 6, 0.5, "weak"),
    Population(0.05, 1, 12, 0.8, "weak"),
    Population(0.1, 1, 1, 0.0, "weak"),
    Population(0.1, 3, 6, 0.2, "sharp"),
    Population(0.1, 3, 6, 0.8, "fair"),
    Population(0.1, 6, 12, 0.5, "weak"),
    Population(0.1, 3, 6, 0.5, "useless"),
    Population(0.2, 2, 4, 0.2, "fair"),
    Population(0.2, 3, 6, 0.5, "sharp"),
    Population(0.2, 1, 12, 0.8, "fair"),
    Population(0.3, 1, 4, 0.2, "sharp"),
    Population(0.3, 3, 6, 0.5, "fair"),
    Population(0.3, 6, 12, 0.8, "sharp"),
    Population(0.4, 2, 4, 0.2, "sharp"),
    Population(0.4, 3, 12, 0.5, "fair"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One start share in one cell of the study, over calibrations.

    Attributes:
        passed: Right items passed, as a share of all right items.
        infeasible: Share of calibrations without a threshold.
        violated: Share of calibrations whose true risk is above alpha.
        possible: Whether any start passed anything in any calibration of the cell.
    """

    passed: float
    infeasible: float
    violated: float
    possible: bool = True


def risks(pool: AnswerItems, per: Per) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the pool's scores, and its risk and the share of right items passed at each."""
    kept, wrong = pool.counts(pool.scores)
    right = (kept - wrong).sum(axis=0) / max(1, int((pool.wrong == 0).sum()))
    if per == "item":
        return pool.scores, wrong.sum(axis=0) / kept.sum(axis=0), right
    shown = kept > 0
    return pool.scores, (wrong / np.maximum(kept, 1)).sum(axis=0) / shown.sum(axis=0), right


def cells(
    pool: AnswerItems, per: Per, n: int, alpha: float, calibrations: int, shares: Sequence[float] = SHARES
) -> dict[float, Cell]:
    """Calibrate many times on n answers of the pool, the same ones for every share."""
    scores, risk, right = risks(pool, per)
    rng = np.random.default_rng(n)
    taken: dict[float, list[float | None]] = {share: [] for share in shares}
    for _ in range(calibrations):
        some = replace(pool.take(rng.integers(0, pool.n, n)), ids=tuple(map(str, range(n))))
        known: dict[float | None, float | None] = {}
        for share in shares:
            start = start_wrong_share(some, n, alpha=alpha, delta=DELTA, per=per, share=share)
            if start not in known:
                known[start] = wrong_share(some, alpha=alpha, delta=DELTA, per=per, start=start).threshold
            taken[share].append(known[start])
    possible = any(tau is not None for some in taken.values() for tau in some)
    found = {}
    for share, taus in taken.items():
        at = np.searchsorted(scores, [tau for tau in taus if tau is not None])
        found[share] = Cell(
            float(right[at].sum()) / calibrations,
            taus.count(None) / calibrations,
            float((risk[at] > alpha).sum()) / calibrations,
            possible,
        )
    return found


def adversaries(alpha: float) -> dict[str, AnswerItems]:
    """Populations of which the share of wrong items is just above alpha at every threshold.

    Of the items of a long answer one has each score, and the scores of short answers are spread evenly, so that every
    threshold keeps the same share of both.
    """
    scores = [k / SAMPLES for k in range(8)]
    rate = alpha + 0.002
    bad = int(np.ceil(rate * POOL))
    wholly = [(scores, [int(i < bad)] * len(scores)) for i in range(POOL)]
    few = int(np.ceil(POOL * rate / (len(scores) * (1 - rate) + rate)))
    rarely = [(scores, [1] * len(scores)) if i < few else (scores[i % 8 :][:1], [0]) for i in range(POOL)]
    return {
        name: AnswerItems.of([u for u, _ in some], [w for _, w in some], cap=len(scores))
        for name, some in (("wholly wrong or right", wholly), ("rarely, but wholly wrong", rarely))
    }


Row = tuple[Population, Per, int, float, dict[float, Cell]]


def study(sizes: Sequence[int], calibrations: int, *, each: bool) -> list[Row]:
    """Run every cell of the made populations."""
    rows: list[Row] = []
    for population in POPULATIONS:
        pool = population.draw(np.random.default_rng(1), POOL)
        for n, alpha, per in product(sizes, ALPHAS, UNITS):
            row = (population, per, n, alpha, cells(pool, per, n, alpha, calibrations))
            rows.append(row)
            if each:
                _print(f"{population} {per} n={n} alpha={alpha:g}", row[-1])
    return rows


def compare(rows: Sequence[Row]) -> None:
    """Print means over the cells, and how far each share is from the best one."""
    groups: defaultdict[str, list[dict[float, Cell]]] = defaultdict(list)
    for _, per, n, alpha, some in rows:
        if next(iter(some.values())).possible:
            for name in (f"per {per}", f"n {n}", f"alpha {alpha:g}", f"n {n}, alpha {alpha:g}", "all"):
                groups[name].append(some)
    print("\nMeans over the cells in which any start passed anything; then the largest share above alpha of any cell")
    for name, items in sorted(groups.items()):
        _print(f"{name} ({len(items)} cells)", {share: _mean([some[share] for some in items]) for share in SHARES})
    print("\nRight items passed, against the best share of each cell")
    best = [max(cell.passed for cell in some.values()) for some in groups["all"]]
    for share in SHARES:
        loss = [top - some[share].passed for some, top in zip(groups["all"], best, strict=True)]
        near = np.mean([lost <= 0.005 for lost in loss])
        print(f"{share:5g}: within .5 points in {near:.1%} of the cells; loses at most {max(loss):.1%}")


def attack(sizes: Sequence[int], calibrations: int) -> None:
    """Print how often the adversarial populations, where every threshold is a failure, get one."""
    print("\nAdversarial, every threshold is a failure: the last figure is the share of calibrations with a threshold")
    for alpha in ALPHAS:
        for name, pool in adversaries(alpha).items():
            for per, n in product(UNITS, sizes):
                if risks(pool, per)[1].min() > alpha:
                    _print(f"{name}, per {per}, n={n} alpha={alpha:g}", cells(pool, per, n, alpha, calibrations))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrations", type=int, default=150)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="calibration answers")
    parser.add_argument("--only", nargs="+", choices=["populations", "adversaries"])
    parser.add_argument("--each", action="store_true", help="print every population")
    options = parser.parse_args()
    items = options.only or ["populations", "adversaries"]
    if "populations" in items:
        compare(study(options.sizes, options.calibrations, each=options.each))
    if "adversaries" in items:
        attack(options.sizes, options.calibrations)


def _mean(some: Sequence[Cell]) -> Cell:
    return Cell(
        float(np.mean([cell.passed for cell in some])),
        float(np.mean([cell.infeasible for cell in some])),
        max(cell.violated for cell in some),
    )


def _print(name: str, some: dict[float, Cell]) -> None:
    figures = "  ".join(
        f"{share:g}: {cell.passed:6.1%} {cell.infeasible:6.1%} {cell.violated:5.1%}" for share, cell in some.items()
    )
    print(f"{name:60} {figures}", flush=True)


if __name__ == "__main__":
    main()
