"""Several models as one system: a path of policies fixed without labels, and the exact tests walked along it.

Stage 1 answers iff its uncertainty is at most its threshold; else stage 2, and so on; else a person. Thresholds that
are fitted one by one do not control the system: what reaches stage 2 is the hard rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError

from .certificate import SHARE, walk_of_tests
from .counts import Floats, Infeasible, Ints, items

__all__ = ["RATIO", "Policy", "certified_cascade", "matched_path", "path_counts"]

RATIO = 0.5
"""How far earlier stages go: half the rank of the last stage's threshold among its own scores."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A threshold for each stage (-inf: it never answers), and the rest as in `counts.Feasible`."""

    thresholds: tuple[float, ...]
    n: int
    k: int
    e: int
    start: int
    bound: float


def matched_path(u: ArrayLike, ratio: float = RATIO) -> Floats:
    """Policies from strict to loose by matched quantiles of the stages' scores; reads no label.

    At point i of n the last stage's threshold is the i-th smallest of its scores, and that of each earlier stage the
    ceil(ratio i)-th smallest of its scores; ``ratio`` in [0, 1] is declared before labels are seen. ``u`` has shape
    (n, stages); from the scores of unlabelled questions `certified_cascade` is proved, from those of the labelled ones
    tested (.02 to .07 at delta .1). Returns shape (policies, stages), not falling, equal rows once.
    """
    scores = np.asarray(u, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2 or not len(scores):
        raise UsageError(f"u must have shape (questions, stages) with two stages or more, got {scores.shape}.")
    if not 0 <= ratio <= 1:
        raise UsageError(f"ratio must be in [0, 1], got {ratio:g}.")
    points = np.arange(1, len(scores) + 1)
    ranks = [np.ceil(ratio * points - 1e-9).astype(np.int64)] * (scores.shape[1] - 1) + [points]
    columns = []
    for column, rank in zip(scores.T, ranks, strict=True):
        ranked = np.append(-np.inf, np.sort(column[column < np.inf]))  # in front for rank 0
        columns.append(ranked[np.minimum(rank, ranked.size - 1)])
    return np.asarray(np.unique(np.column_stack(columns), axis=0))


def path_counts(u: Floats, wrong: Ints, path: Floats) -> tuple[Ints, Ints]:
    """Questions that each policy of a path answers, and wrong answers among them; each of shape (policies,).

    u and wrong have shape (n, stages), wrong is 1 where that stage's answer is wrong, and path does not fall.
    """
    counted = np.zeros((2, len(path) + 1), dtype=np.int64)
    until = np.full(len(u), len(path))  # the policy at which an earlier stage takes the question over
    for scores, errors, thresholds in zip(u.T, wrong.T, path.T, strict=True):
        begin = np.searchsorted(thresholds, scores)  # the first policy at which this stage answers
        here = begin < until
        for row, chosen in enumerate((here, here & (errors == 1))):
            counted[row] += np.bincount(begin[chosen], minlength=len(path) + 1)
            counted[row] -= np.bincount(until[chosen], minlength=len(path) + 1)
        until = np.minimum(until, begin)
    answered, errors = counted[:, :-1].cumsum(axis=1)
    return answered, errors


def certified_cascade(
    u: ArrayLike,
    wrong: ArrayLike,
    alpha: float,
    delta: float = 0.1,
    *,
    share: float = SHARE,
    ratio: float = RATIO,
    path: Floats | None = None,
) -> Policy | Infeasible:
    """The loosest policy that `walk` reaches by exact tests: P(error rate of the system's answers > alpha) <= delta.

    `certified` with policies instead of thresholds: k questions answered, e answered wrongly. Print beside it what the
    last model alone would answer: ``certified(u[:, -1], wrong[:, -1], ...)``.

    ``u`` and ``wrong`` have shape (n, stages), cheapest stage first; ``path`` has policies fixed elsewhere, such as
    `matched_path` of unlabelled questions, and by default that of ``u`` with this ``ratio``.
    """
    policies = matched_path(u, ratio) if path is None else np.asarray(path, dtype=np.float64)
    shape = np.shape(u)
    scores, labels = items(np.ravel(u), np.ravel(wrong))
    k, e = path_counts(scores.reshape(shape), labels.reshape(shape), policies)
    reached = walk_of_tests(shape[0], k, e, alpha, delta, share)
    if isinstance(reached, Infeasible):
        return reached
    index, begin = reached
    return Policy(tuple(policies[index].tolist()), shape[0], int(k[index]), int(e[index]), begin, alpha)
