"""Equality with the reference code of the method on random sets, and with its published thresholds and check values.

The reference lies in a folder ``shared`` beside or above the repository; without it these sets are skipped.
"""

from __future__ import annotations

from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.rules import RULES, Feasible
from calibrate.rules.capital import capital, p_capital
from calibrate.rules.certificate import start, tail, walk
from calibrate.rules.count import count_threshold
from calibrate.rules.counts import counts
from tests.golden.oracle import call, cases

FOUND = [path for folder in Path(__file__).parents if (path := folder / "shared" / "method_reference.py").is_file()]
ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.4)


@pytest.fixture(scope="module")
def reference() -> Any:
    if not FOUND:
        pytest.skip("no method_reference.py in a folder `shared` beside this repository")
    spec = spec_from_file_location("method_reference", FOUND[0])
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.floor_k = cache(module.floor_k)  # it counts up to k one by one
    return module


def random_sets(number: int) -> list[tuple[np.ndarray, np.ndarray, float, float]]:
    """Untied and tied scores, some unmeasured, with errors that the scores explain or not; also alpha and delta."""
    rng = np.random.default_rng(20)
    sets = []
    for i in range(number):
        n = int(rng.choice([1, 2, 5, 20, 60, 150, 400]))
        u = rng.normal(size=n) if i % 2 else rng.integers(0, 1 + n // 4, n).astype(float)
        wrong = (rng.random(n) < rng.choice([0.0, 0.03, 0.1, 0.3]) + (i % 3 > 0) * 0.15 * (u > np.median(u))).astype(
            int
        )
        u[rng.random(n) < rng.choice([0.0, 0.0, 0.1, 0.9])] = np.inf
        sets.append((u, wrong, float(rng.choice(ALPHAS)), float(rng.choice([0.05, 0.1]))))
    return sets


def ours(rule: str, *data: Any, **settings: Any) -> float | None:
    outcome = RULES[rule].choose(*data, **settings)
    return outcome.threshold if isinstance(outcome, Feasible) else None


PAPER = {
    "fixed_quantile": "fixed",
    "empirical": "empirical",
    "lec": "lec",
    "acrc": "acrc",
    "hoeffding": "ucb-hfd",
    "clopper_pearson": "ucb-clp",
}


def test_every_rule_is_the_reference_on_a_thousand_sets(reference: Any) -> None:
    """Another threshold than the method's is another promise than the one that the guarantees page proves."""
    feasible = dict.fromkeys(["certified", *PAPER], 0)
    for u, wrong, alpha, delta in random_sets(1000):
        for rule, name in PAPER.items():
            expected = reference.plug_in(u, wrong, alpha, rule=name, delta=delta)
            assert ours(rule, u, wrong, alpha, delta) == expected, rule
            feasible[rule] += expected is not None
        assert ours("acrc", u, wrong, alpha, k_min=1) == reference.plug_in(u, wrong, alpha, k_min=1)
        for share in (0.1, 0.25):
            expected = reference.certify(u, wrong, alpha, delta, share)
            assert ours("certified", u, wrong, alpha, delta, share=share) == expected
        feasible["certified"] += expected is not None
        s = np.where(wrong == 1, u, np.inf)
        for level in (None, delta):
            assert count_threshold(s, alpha, level) == reference.count_threshold(s, alpha, level)
    assert min(feasible.values()) >= 100, feasible  # equality is not that of rules that never accept


def test_every_part_is_the_reference(reference: Any) -> None:
    rng = np.random.default_rng(21)
    for u, wrong, alpha, delta in random_sets(200):
        at, (threshold, k, e) = counts(u, wrong), reference.counts(u, wrong)
        assert (at.threshold.tolist(), at.k.tolist(), at.e.tolist()) == (threshold.tolist(), k.tolist(), e.tolist())
        assert tail(e, k, alpha) == pytest.approx(reference.tail(e, k, alpha), rel=1e-9)
        n = int(rng.integers(1, 3000))
        assert start(n, alpha, delta) == reference.start(n, alpha, delta)
        p = rng.choice([0.02, 0.05, 0.5], size=int(rng.integers(0, 6)), p=[0.45, 0.45, 0.1])
        first = int(rng.integers(0, 3))
        assert walk(p <= delta, first) == reference.walk(p, delta, first)
        z = rng.choice([-alpha, 0.0, 1 - alpha], size=(int(rng.integers(1, 40)), 3))
        planned = None if rng.random() < 0.5 else 100
        assert capital(z, 1 - alpha, delta, planned) == pytest.approx(reference.capital(z, 1 - alpha, delta, planned))
        assert p_capital(z, 1 - alpha, delta, planned) == pytest.approx(
            reference.p_capital(z, 1 - alpha, delta, planned)
        )


CASES = cases()
KEYS = sorted(
    key for key in CASES[0].expected if call(key)[0] in RULES and not key.startswith(("cp_", "anchored", "fixed_s"))
)


@pytest.mark.parametrize("key", KEYS)
def test_published_thresholds(key: str) -> None:
    """36 seeded sets with the thresholds of an independent implementation, which needs no folder beside this one."""
    rule, settings = call(key)
    if "min_accept" in settings:
        settings["k_min"] = settings.pop("min_accept")
    for case in CASES:
        outcome = RULES[rule].choose(case.uncertainty, case.error, case.alpha, **settings)
        found = {"threshold": outcome.threshold, "n_accepted": outcome.k} if isinstance(outcome, Feasible) else None
        assert found == case.expected[key]
    assert len(KEYS) == 10


START = {
    100: {0.05: 45, 0.1: 38, 0.15: 25, 0.2: 25},
    300: {0.05: 77, 0.1: 78, 0.15: 77, 0.2: 75},
    1000: {0.05: 258, 0.1: 152, 0.15: 100, 0.2: 75},
    3000: {0.05: 306, 0.1: 152, 0.15: 100, 0.2: 75},
    25: {0.15: 15},
}


@pytest.mark.parametrize("n", START)
def test_published_starts(n: int) -> None:
    """Starts at delta .1, published beside the method."""
    assert {alpha: start(n, alpha) for alpha in START[n]} == START[n]
