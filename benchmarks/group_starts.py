"""Where the rules of groups should start: `python -m benchmarks.group_starts [--calibrations 40]`.

`group_mean` and `group_total` test thresholds from strict to loose and stop at the first failure. They start where a
share of the groups would pass without an error: a small share starts at a looser threshold, which errs more; a large
one leaves fewer groups to make up for an error. The start reads scores and never labels.

Made populations: groups of 1 to 12 questions whose errors share a term, at two shares of wrong answers, two strengths
of the score and two correlations. Printed: answers accepted, calibrations without a threshold, and the largest share
of calibrations above alpha of any cell.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from calibrate.thresholds.betting import GroupMean, GroupTotal
from calibrate.thresholds.fit import request_for
from calibrate.thresholds.groups import Groups, prepare

SHARES = (0.35, 0.5, 0.65, 0.8, 0.9)
LATER = (0.8, 0.9, 1.0)
"""Where the sequence starts if there are too few groups for a share."""
ALPHAS = (0.05, 0.1, 0.2)
SIZES = {"group_mean": (60, 150, 500), "group_total": (300, 1000)}
DELTA, MOST, POOL = 0.1, 12, 20_000
RULES = {"group_mean": GroupMean, "group_total": GroupTotal}
Figures = tuple[float, float, float]
"""Share of answers accepted, of calibrations without a threshold, and of those above alpha."""


def draw(
    rng: np.random.Generator, groups: int, wrong: float, gap: float, together: float
) -> tuple[NDArray[np.float64], NDArray[np.int8], NDArray[np.intp]]:
    """Scores on a grid, errors and groups of the questions of so many groups."""
    code = np.repeat(np.arange(groups), rng.integers(1, MOST + 1, groups))
    latent = np.sqrt(together) * rng.normal(size=groups)[code] + np.sqrt(1 - together) * rng.normal(size=code.size)
    error = (latent < ndtri(wrong)).astype(np.int8)
    return np.round(rng.normal(size=code.size) + gap * error, 1), error, code


def risk_of(
    rule: str, u: NDArray[np.float64], error: NDArray[np.int8], code: NDArray[np.intp], threshold: float
) -> float:
    """The error rate that the rule's promise names, up to a threshold."""
    kept = u <= threshold
    if rule == "group_total":
        return float(error[kept].mean())
    size = np.bincount(code, kept)
    return float((np.bincount(code, kept * error)[size > 0] / size[size > 0]).mean())


def cell(rule: str, groups: int, alpha: float, shape: tuple[float, float, float], calibrations: int) -> list[Figures]:
    """The figures of each start."""
    large = draw(np.random.default_rng(1), POOL, *shape)
    rng, options = np.random.default_rng(2), {"largest_group": MOST} if rule == "group_total" else {}
    accepted: defaultdict[float, list[float]] = defaultdict(list)
    failed: defaultdict[float, int] = defaultdict(int)
    known: dict[float, float] = {}
    for _ in range(calibrations):
        u, error, code = draw(rng, groups, *shape)
        for share in SHARES:
            chosen = type("Started", (RULES[rule],), {"starts": (share, *(more for more in LATER if more > share))})()
            _, request = request_for(rule, alpha=alpha, delta=DELTA, options=options)
            prefix, reduced = prepare(chosen, request, u, error, Groups.of(code.tolist(), u.size))
            index = chosen.select(prefix, reduced)
            threshold = -np.inf if index is None else float(prefix.score[index])
            accepted[share].append(float(np.mean(large[0] <= threshold)))
            if index is not None:
                if threshold not in known:
                    known[threshold] = risk_of(rule, *large, threshold)
                failed[share] += known[threshold] > alpha
    return [
        (float(np.mean(accepted[share])), float(np.mean(np.array(accepted[share]) == 0)), failed[share] / calibrations)
        for share in SHARES
    ]


def main() -> None:
    """Print the table of each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrations", type=int, default=40)
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    options = parser.parse_args()
    print(f"{'':36}" + "".join(f"{share:>24g}" for share in SHARES))
    for rule in options.rules:
        rows: defaultdict[str, list[list[Figures]]] = defaultdict(list)
        for groups, alpha in product(SIZES[rule], ALPHAS):
            for shape in product((0.1, 0.3), (1.0, 2.0), (0.1, 0.6)):
                figures = cell(rule, groups, alpha, shape, options.calibrations)
                if any(accepted for accepted, _, _ in figures):
                    for name in (f"{groups} groups, alpha {alpha:g}", "all"):
                        rows[name].append(figures)
        for name, cells in rows.items():
            table = np.array(cells)
            shown = zip(table[..., 0].mean(axis=0), table[..., 1].mean(axis=0), table[..., 2].max(axis=0), strict=True)
            print(f"{rule + ', ' + name:36}" + "".join(f"{a:9.1%} {b:6.1%} {c:6.1%}" for a, b, c in shown), flush=True)


if __name__ == "__main__":
    main()
