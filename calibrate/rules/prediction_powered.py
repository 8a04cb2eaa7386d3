"""Labels by a judge everywhere and by people on a random sample: an asymptotic test, no certificate.

Prediction-powered inference (Science 2023; power tuning: arXiv 2311.01453): the judge's error rate on everything,
corrected by how judge and people differ on the sample. The certificate is `certified` on the people's sample alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from .certificate import fewest_accepted, passes, walk
from .counts import TOLERANCE, Feasible, Infeasible, Result, items

__all__ = ["p_people", "prediction_powered"]

STEPS = 20  # thresholds tested: those that accept 1/20, 2/20, ... of all answers
FEWEST_PEOPLE = 30  # accepted answers labelled by people behind a tested threshold, for the normal approximation


def p_people(people: ArrayLike, judge: ArrayLike, judge_only: ArrayLike, alpha: float) -> float:
    """The asymptotic p-value of "the error rate by people's standard is above alpha": Phi((estimate - alpha) / se).

    With k answers labelled by people (H) and judge (J), and K by the judge alone::

        estimate = w mean_K(J) + mean_{k+1}(H - w J)
        se^2     = w^2 var_K(J) / K + var_{k+1}(H - w J) / (k + 1)

    One adverse answer (wrong, called right by the judge) is added to the k: without it a sample without disagreement
    would have no variance. With it, no error among k bounds the rate by (1 + z) / (k + 1), within a percent of the
    exact bound at delta = .1. w has the least variance, cov(H, J) / ((1 + k/K) var J), held in [0, 1].

    ``people`` has H and ``judge`` J, shape (k,), k >= 2; ``judge_only`` J of the others, shape (K,), maybe none.
    """
    h, j = np.asarray(people, dtype=np.float64), np.asarray(judge, dtype=np.float64)
    rest = np.asarray(judge_only, dtype=np.float64)
    w = 0.0
    # A judge that always says the same corrects nothing, and without other answers nothing can be carried over.
    if rest.size and (spread := float(j.var())) > 0:
        w = float(np.clip(((h - h.mean()) * (j - j.mean())).mean() / ((1 + h.size / rest.size) * spread), 0.0, 1.0))
    residual = np.append(h - w * j, 1.0)
    estimate, variance = float(residual.mean()), float(residual.var(ddof=1)) / residual.size
    if w:
        estimate += w * float(rest.mean())
        variance += w**2 * float(rest.var()) / rest.size
    # No variance: all are wrong, as the adverse answer is.
    return float(special.ndtr((estimate - alpha) / math.sqrt(variance))) if variance else 1.0


def prediction_powered(
    u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1, *, judge: ArrayLike, sampled: ArrayLike
) -> Result:
    """The last threshold of a fixed sequence with `p_people` at most delta.

    The sequence begins at the first of the thresholds that accept 1/20, 2/20, ... of all answers with enough labels by
    people behind it: 30, or twice what the exact test needs without an error. P(error rate by people's standard >
    alpha) tends to at most delta as both label sets grow, if people labelled a random sample.

    ``wrong`` has people's labels where ``sampled`` (0 elsewhere), ``judge`` the judge's, all of shape (N,). n, k and e
    of the result count the answers that people labelled; an infeasible one has the first tested threshold.
    """
    scores, people = items(u, wrong)
    machine, looked = items(u, judge)[1], items(u, sampled)[1] == 1
    n, fewest = int(looked.sum()), max(FEWEST_PEOPLE, 2 * int(fewest_accepted(0, alpha, delta)))
    ranks = np.ceil(np.arange(1, STEPS + 1) * scores.size / STEPS - TOLERANCE).astype(np.int64) - 1
    below = [scores <= cut for cut in np.unique(np.sort(scores)[ranks]) if cut < np.inf]
    below = [accepted for accepted in below if np.count_nonzero(accepted & looked) >= fewest]
    if not below:
        return Infeasible(n, "too_few_items", fewest)
    p = [p_people(people[a & looked], machine[a & looked], machine[a & ~looked], alpha) for a in below]
    index = walk(passes(p, delta), 0)
    reached = below[index or 0]
    accepted = reached & looked
    at = Feasible(float(scores[reached].max()), n, int(accepted.sum()), int(people[accepted].sum()), fewest)
    return Infeasible(n, "risk_never_low_enough", fewest, at) if index is None else at
