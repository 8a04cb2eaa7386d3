"""Probes on hidden states against scores of one call, at equal labels: `python -m benchmarks.probe CACHE`.

CACHE is a folder with ``NAME.npz`` for each pool: ``states`` (questions, layers, width), the mean hidden state over the
answer's tokens from one forward pass over prompt and recorded answer; ``error``; and the scores of `BASELINES`, NaN
where unmeasured. A probe is ridge regression on the mean of the upper two thirds of the layers. The error probe takes
its training questions from the labelled ones; the entropy probe learns from 500 questions without labels.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.scoring.metrics import auroc
from calibrate.thresholds import fit
from guardrail.outcome import Feasible

Reals = NDArray[np.float64]
ALPHAS = (0.15, 0.2, 0.25)
BASELINES = ("sequence_nll", "answer_word_nll", "semantic_entropy")
UNLABELLED = 500
SHARES = {300: (1 / 6, 1 / 3, 1 / 2), 1_000: (0.2, 0.35, 0.5)}
PENALTIES = np.logspace(0, 5, 11)


def ridge(states: Reals, target: Reals) -> Callable[[Reals], Reals]:
    """Fit ridge regression on standardised states; the penalty has the least leave-one-out error in training."""
    mean, scale, centre = states.mean(0), states.std(0), target.mean()
    scale = np.where(scale > 1e-6, scale, 1.0)
    left, size, right = np.linalg.svd((states - mean) / scale, full_matrices=False)
    along = left.T @ (target - centre)

    def missed(penalty: float) -> float:
        shrink = size**2 / (size**2 + penalty)
        leverage = (left**2) @ shrink + 1 / target.size
        rest = target - centre - left @ (shrink * along)
        return float(np.mean((rest / np.maximum(1 - leverage, 1e-3)) ** 2))

    penalty = min(PENALTIES, key=missed)
    weights = right.T @ (size / (size**2 + penalty) * along)
    return lambda other: (other - mean) / scale @ weights + centre


def measure(path: Path, splits: int) -> None:
    """Print acceptance on questions that neither training nor calibration used, for one pool."""
    pool = np.load(path)
    usable = ~np.isnan(pool["sequence_nll"])
    hidden = pool["states"][usable].astype(np.float64)
    states, error = hidden[:, round(hidden.shape[1] / 3) :].mean(1), pool["error"][usable].astype(np.int64)
    baselines = {name: pool[name][usable] for name in BASELINES}
    entropy = np.nan_to_num(baselines["semantic_entropy"], nan=np.nanmax(baselines["semantic_entropy"]))
    print(f"\n{path.stem}: {error.size} questions, {100 * error.mean():.1f} % wrong")
    for labels, shares in SHARES.items():
        cells: dict[str, list[list[float]]] = {}
        for split in range(splits):
            order = np.random.default_rng(split).permutation(error.size)
            labelled, test = order[:labels], order[labels + UNLABELLED :]
            free, nothing = order[labels : labels + UNLABELLED], order[:0]
            scores = {name: (values, labelled, nothing) for name, values in baselines.items()}
            scores["entropy probe"] = (ridge(states[free], entropy[free])(states), labelled, free)
            for share in shares:
                train, rest = np.split(labelled, [round(share * labels)])
                probe = ridge(states[train], error[train].astype(np.float64))
                scores[f"error probe, {share:.0%} of the labels"] = (probe(states), rest, train)
            for name, (u, calibration, trained) in scores.items():
                cells.setdefault(name, []).append(_cells(u, error, calibration, trained, test))
        for name, rows in cells.items():
            area, *by_alpha = np.mean(rows, axis=0).tolist()
            shown = " | ".join("{:.1f} ({:.2f}, {:.2f})".format(*by_alpha[i : i + 3]) for i in range(0, 9, 3))
            print(f"| {labels} | {name} | {area:.3f} | {shown} |", flush=True)


def _cells(
    u: Reals,
    error: NDArray[np.int64],
    calibration: NDArray[np.int64],
    trained: NDArray[np.int64],
    test: NDArray[np.int64],
) -> list[float]:
    """AUROC, then for each alpha: acceptance in %, nothing certified, error above alpha outside training."""
    known = test[~np.isnan(u[test])]
    cells = [auroc(u[known], error[known]) or 0.0]
    calibration = calibration[~np.isnan(u[calibration])]
    for alpha in ALPHAS:
        out = fit(u[calibration], error[calibration], alpha=alpha, delta=0.1, rule="certified", diagnose="fast")
        accepted = u <= out.threshold if isinstance(out, Feasible) else np.zeros(u.size, dtype=np.bool_)
        others = accepted.copy()
        others[trained] = False
        above = bool(others.any() and error[others].mean() > alpha)
        cells += [100 * float(accepted[test].mean()), not accepted.any(), above]
    return cells


def main() -> None:
    """Print a table for each pool of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--splits", type=int, default=80)
    arguments = parser.parse_args()
    print(
        f"Cells: acceptance in % (share that certifies nothing, share above alpha); alpha {ALPHAS}; third column AUROC."
    )
    for path in sorted(arguments.cache.glob("*.npz")):
        measure(path, arguments.splits)


if __name__ == "__main__":
    main()
