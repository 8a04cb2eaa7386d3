"""An exact adversarial search against the certificate, where no proof covers it: tied scores, several bad stretches.

A population is a few atoms of the score, each with a mass and an error rate; what is left of the mass is unmeasured.
The probability that `certified` ends on a threshold whose error rate is above alpha is a finite sum, computed exactly
and driven up by random search. Found at n = 24, alpha = .25, delta = .1: at most .063.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from calibrate.rules import Feasible, certified
from calibrate.rules.certificate import most_errors, start

N, ALPHA, DELTA = 24, 0.25, 0.1
Reals = NDArray[np.float64]


def pmf(m: NDArray[np.int64], n: NDArray[np.int64], p: Reals) -> Reals:
    """P(Bin(n, p) = m), 0 where m > n."""
    return np.where(m <= n, special.binom(n, m) * p**m * (1 - p) ** np.maximum(n - m, 0), 0.0)


def false_certificates(mass: Reals, risk: Reals, *, scan: bool = False) -> Reals:
    """Exact probability of a false certificate, for each of many populations.

    The atoms are gone through from strict to loose. State: (walk not begun, last passed is good, is bad) x items k
    so far x errors e so far, where errors above the most that any k can pass are counted as one more than these.

    Args:
        mass: Of the atoms, shape (populations, atoms), row sums at most 1.
        risk: Error rates, same shape.
        scan: The negative control: the last threshold that passes its own test, wherever it lies.
    """
    k, limit = np.arange(N + 1), most_errors(N, ALPHA, DELTA)
    top = int(limit[-1]) + 1
    passes = np.arange(top + 1) <= limit[:, None]
    begun = (k >= (0 if scan else start(N, ALPHA, DELTA)))[:, None]
    before = np.cumsum(mass, axis=1) - mass
    is_bad = np.cumsum(mass * risk, axis=1) > ALPHA * (before + mass) * (1 + 1e-12)
    state = np.zeros((3, len(mass), N + 1, top + 1))
    state[0, :, 0, 0] = 1.0
    false = np.zeros(len(mass))
    for atom in range(mass.shape[1]):
        share = np.clip(mass[:, atom] / np.maximum(1 - before[:, atom], 1e-300), 0, 1)[:, None]
        more = np.zeros_like(state)  # with at least one item on this atom: only then it is a threshold
        for items in range(1, N + 1):
            arrived = state[:, :, : N + 1 - items] * pmf(np.array(items), N - k[: N + 1 - items], share)[..., None]
            wrong = pmf(np.arange(top), np.array(items), risk[:, atom, None])
            wrong = np.append(wrong, 1 - wrong.sum(axis=1, keepdims=True), axis=1)[..., None, None]
            for errors in range(top + 1):
                for e in range(top + 1):
                    more[:, :, items:, min(top, e + errors)] += arrived[..., e] * wrong[:, errors, :, 0]
        state = state * ((1 - share) ** (N - k))[:, :, None]
        passed, bad = (more[0] * begun + more[1] + more[2]) * passes, is_bad[:, atom, None, None]
        state[0] += more[0] * ~begun
        state[1] += passed * ~bad
        state[2] += passed * bad
        if scan:
            state[1:] += more[1:] * ~passes
            state[0] += more[0] * begun * ~passes
        else:
            false += (more[2] * ~passes).sum(axis=(1, 2))
    return np.asarray(false + state[2].sum(axis=(1, 2)))


def search(seed: int, atoms: int, rounds: int) -> float:
    """The largest probability that a random search with mutations finds."""
    rng = np.random.default_rng(seed)
    mass = rng.dirichlet(np.ones(atoms + 1), 120)[:, :atoms]
    risk = np.where(rng.random(mass.shape) < 0.4, rng.choice([0.0, 1.0, ALPHA, ALPHA + 0.01], mass.shape), 0.0)
    risk = np.where(risk == 0, rng.random(mass.shape), risk)
    value = false_certificates(mass, risk)
    for _ in range(rounds):
        best = np.argsort(-value)[:20]
        tried = [(mass[best], risk[best])]
        for step in rng.choice([0.01, 0.03, 0.1, 0.3], 3):
            heavier = mass[best] * np.exp(step * rng.normal(size=(20, atoms)))
            riskier = risk[best] + step * rng.normal(size=(20, atoms)) * (rng.random((20, atoms)) < 0.5)
            tried.append((heavier / np.maximum(1, heavier.sum(axis=1, keepdims=True)), np.clip(riskier, 0, 1)))
        mass, risk = (np.concatenate(arrays) for arrays in zip(*tried, strict=True))
        value = false_certificates(mass, risk)
    return float(value.max())


def test_the_exact_probability_is_that_of_drawing_calibrations() -> None:
    """What the search climbs is the failure of `certified` itself, here for a falling, then rising risk."""
    mass, risk = np.array([[0.1, 0.7, 0.15]]), np.array([[0.6, 0.22, 0.5]])
    rate = np.cumsum(mass * risk) / np.cumsum(mass)  # .6, .2675, .304: every threshold is bad
    exact = float(false_certificates(mass, risk)[0])
    rng, failed = np.random.default_rng(1), 0
    for _ in range(2_000):
        u = rng.choice(4, N, p=[0.1, 0.7, 0.15, 0.05]).astype(float)
        wrong = rng.random(N) < np.append(risk[0], 1.0)[u.astype(int)]
        found = certified(np.where(u == 3, np.inf, u), wrong, ALPHA, DELTA)
        failed += isinstance(found, Feasible) and rate[int(found.threshold)] > ALPHA
    assert failed / 2_000 == pytest.approx(exact, abs=4 * (exact / 2_000) ** 0.5)
    assert exact > 0.03


@pytest.mark.parametrize(
    ("atoms", "rounds"),
    [(2, 10), *(pytest.param(atoms, 40, marks=pytest.mark.slow) for atoms in (3, 4, 5))],
)
def test_no_population_is_found_that_breaks_the_certificate(atoms: int, rounds: int) -> None:
    """A population with probability above delta would make the guarantees page false for tied scores."""
    found = search(0, atoms, rounds)
    assert 0.055 < found <= 0.063  # the search climbs, and ends far below delta = .1


def test_negative_control_a_flat_risk_breaks_the_scan() -> None:
    mass, risk = np.full((1, 24), 1 / 24), np.full((1, 24), ALPHA + 1e-6)
    assert false_certificates(mass, risk, scan=True)[0] > 1.3 * DELTA
    assert false_certificates(mass, risk)[0] <= DELTA
