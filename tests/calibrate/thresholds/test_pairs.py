"""`best_pair` against trying every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrate.thresholds.stages import Pair, best_pair

Scores = NDArray[np.float64]
Errors = NDArray[np.int64]


def every_pair(u: Scores, error: Errors, alpha: float) -> tuple[int, int] | None:
    """Most questions accepted, and of those most by the first stage, by trying all pairs of thresholds."""
    levels = [[-np.inf, *sorted({x for x in u[:, stage] if np.isfinite(x)})] for stage in (0, 1)]
    best = None
    for a in levels[0]:
        for b in levels[1]:
            first = u[:, 0] <= a
            second = ~first & (u[:, 1] <= b)
            count = int(first.sum() + second.sum())
            wrong = int(error[first, 0].sum() + error[second, 1].sum())
            if count and wrong - alpha * count <= -1 + 1e-9:
                best = max(best or (0, 0), (count, int(first.sum())))
    return best


def accepted(pair: Pair, u: Scores, error: Errors) -> tuple[int, int, int]:
    first = u[:, 0] <= (-np.inf if pair.first is None else pair.first)
    second = ~first & (u[:, 1] <= (-np.inf if pair.second is None else pair.second))
    return int((first | second).sum()), int(first.sum()), int(error[first, 0].sum() + error[second, 1].sum())


LEVEL = st.one_of(st.integers(0, 6).map(float), st.just(float("inf")))


@given(
    st.lists(st.tuples(LEVEL, LEVEL, st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=25),
    st.sampled_from([0.05, 0.1, 0.25, 0.3, 0.5, 0.9]),
)
@settings(max_examples=500)
def test_it_is_the_best_of_all_pairs(rows: list[tuple[float, float, int, int]], alpha: float) -> None:
    table = np.array(rows, dtype=np.float64)
    u, error = table[:, :2], table[:, 2:].astype(np.int64)
    pair, expected = best_pair(u, error, alpha), every_pair(u, error, alpha)
    assert (pair is None) == (expected is None)
    if pair is not None:
        count, first, wrong = accepted(pair, u, error)
        assert (count, first) == expected == (pair.n_accepted, pair.n_first)
        assert wrong - alpha * count <= -1 + 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_best_of_all_pairs_without_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(120, 2))
    error = (rng.random((120, 2)) < 1 / (1 + np.exp(1.5 - u))).astype(np.int64)
    for alpha in (0.05, 0.1, 0.2):
        pair = best_pair(u, error, alpha)
        assert (None if pair is None else (pair.n_accepted, pair.n_first)) == every_pair(u, error, alpha)


def test_a_stage_that_only_errs_answers_no_more_than_the_target_has_room_for() -> None:
    u = np.array([[float(i), float(i)] for i in range(30)])
    error = np.array([[1, 0]] * 30)
    # All 30 accepted allow 3 errors, one of which is the margin: two cheap wrong answers, by hand 2 - 3 = -1.
    assert best_pair(u, error, 0.1) == Pair(1.0, 29.0, 30, 2)
    assert best_pair(u, error, 0.05) == Pair(None, 29.0, 30, 0)
    assert best_pair(u, 1 - error, 0.1) == Pair(29.0, None, 30, 30)
    assert best_pair(u, np.ones_like(error), 0.1) is None
