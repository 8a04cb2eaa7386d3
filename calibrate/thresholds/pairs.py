"""The best pair of thresholds for two stages: ``lec_joint`` in O(n log n)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .prefix import TOLERANCE

__all__ = ["Pair", "best_pair"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Thresholds of two stages and what they accept; a threshold of None accepts nothing."""

    first: float | None
    second: float | None
    n_accepted: int
    n_first: int


def best_pair(
    u: NDArray[np.float64], error: NDArray[np.int64], alpha: float, *, margin: float = 1.0, price: float = 0.0
) -> Pair | None:
    """The pair of thresholds that accepts most under ``sum_i S_i (E_i - alpha) <= -margin``.

    S = S_a + (1 - S_a) S_b with S_a = 1[u_a <= tau_a], S_b = 1[u_b <= tau_b]; E is the error of the stage that answers.
    Among pairs that accept equally many, the one whose first stage answers more (it saves calls), then the one with the
    smaller second threshold.

    The first threshold moves outward once over the sorted scores of stage a. A question that stage a takes over leaves
    the pool of stage b, which is kept as a segment tree over the sorted scores of stage b: sums of E - alpha, counts,
    and the smallest prefix sum below each node, so that the last admissible threshold is found by one descent.
    Ties are accepted or rejected together in both stages.

    Args:
        u: Scores, shape (n, 2); +inf where a stage has none, and then it never answers.
        error: 0 or 1, shape (n, 2); read only where the score is finite.
        alpha: Target, in (0, 1).
        margin: Slack in errors; 1 is LEC's.
        price: Answers given up for a call of stage b that is saved: what is made largest is the number of answers plus
            this times the number that stage a gives.

    Returns:
        The pair, or None when no pair satisfies the rule.
    """
    n = len(u)
    block_of, pool = _pool(u[:, 1], error[:, 1], alpha)
    order = np.argsort(u[:, 0], kind="stable")
    best: Pair | None = None
    most = (-1.0, -1)
    taken, excess, i = 0, 0.0, 0
    first: float | None = None
    while True:
        found = pool.last_at_most(-margin - excess + TOLERANCE)
        if found is not None:
            count = taken + found.count
            value = (count + price * taken, taken)
            if count and value > most:
                best, most = Pair(first, found.score, count, taken), value
        if i == n or not np.isfinite(u[order[i], 0]):
            return best
        first = float(u[order[i], 0])
        while i < n and u[order[i], 0] == first:
            item = int(order[i])
            excess += float(error[item, 0]) - alpha
            taken += 1
            if block_of[item] >= 0:
                pool.remove(int(block_of[item]), float(error[item, 1]) - alpha)
            i += 1


def _pool(u: NDArray[np.float64], error: NDArray[np.int64], alpha: float) -> tuple[NDArray[np.int64], _Pool]:
    finite = np.isfinite(u)
    scores, block = np.unique(u[finite], return_inverse=True)
    block_of = np.full(len(u), -1, dtype=np.int64)
    block_of[finite] = block
    weight = np.bincount(block, weights=error[finite] - alpha, minlength=len(scores))
    count: NDArray[np.int64] = np.bincount(block, minlength=len(scores)).astype(np.int64)
    return block_of, _Pool(scores, weight.astype(np.float64), count)


@dataclass(frozen=True, slots=True)
class _Found:
    score: float | None
    count: int


class _Pool:
    """Blocks of equal scores in increasing order, with sums, counts and smallest prefix sums in a binary tree."""

    def __init__(self, scores: NDArray[np.float64], weight: NDArray[np.float64], count: NDArray[np.int64]) -> None:
        self._scores = scores
        self._size = size = 1 << max(0, int(len(scores) - 1).bit_length())
        self._sum = [0.0] * (2 * size)
        self._count = [0] * (2 * size)
        self._low = [0.0] * (2 * size)
        for i in range(len(scores)):
            self._sum[size + i] = self._low[size + i] = float(weight[i])
            self._count[size + i] = int(count[i])
        for node in range(size - 1, 0, -1):
            self._update(node)

    def _update(self, node: int) -> None:
        left, right = 2 * node, 2 * node + 1
        self._sum[node] = self._sum[left] + self._sum[right]
        self._count[node] = self._count[left] + self._count[right]
        self._low[node] = min(self._low[left], self._sum[left] + self._low[right])

    def remove(self, block: int, weight: float) -> None:
        """Take one question out of a block."""
        node = self._size + block
        self._count[node] -= 1
        # A block that is empty weighs exactly nothing, whatever was rounded on the way.
        self._sum[node] = self._sum[node] - weight if self._count[node] else 0.0
        self._low[node] = self._sum[node]
        while node > 1:
            node //= 2
            self._update(node)

    def last_at_most(self, limit: float) -> _Found | None:
        """The longest prefix of blocks (or none of them) whose sum is at most ``limit``."""
        if self._low[1] > limit:
            return _Found(None, 0) if limit >= 0 else None
        node, before, count = 1, 0.0, 0
        while node < self._size:
            left, right = 2 * node, 2 * node + 1
            if before + self._sum[left] + self._low[right] <= limit:
                before, count, node = before + self._sum[left], count + self._count[left], right
            else:
                node = left
        count += self._count[node]
        return _Found(self._filled(node - self._size), count)

    def _filled(self, block: int) -> float | None:
        """Score of the last block up to this one that is not empty: a threshold among empty ones accepts no more."""
        while block >= 0 and not self._count[self._size + block]:
            block -= 1
        return float(self._scores[block]) if block >= 0 else None
