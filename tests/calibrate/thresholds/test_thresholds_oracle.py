"""Agreement with an independent reference implementation, and with values published beside the method."""

from __future__ import annotations

import numpy as np
import pytest

from calibrate.thresholds import fit
from calibrate.thresholds.anchored import anchored_limits
from calibrate.thresholds.rule import default_min_accept
from calibrate.thresholds.simultaneous import simultaneous_limits
from tests.golden.oracle import call, cases

CASES = cases()


@pytest.mark.parametrize("key", sorted(CASES[0].expected))
def test_every_oracle_case(key: str) -> None:
    rule, settings = call(key)
    feasible = 0
    for case in CASES:
        outcome = fit(case.uncertainty, case.error, alpha=case.alpha, rule=rule, diagnose="fast", **settings)
        expected = case.expected[key]
        if outcome.status == "infeasible":
            assert expected is None
        else:
            assert expected == {"threshold": outcome.threshold, "n_accepted": outcome.n_accepted}
            feasible += 1
    assert len(CASES) == 36
    assert (feasible > 0) == (key != "acrc min_accept=1")


def test_simultaneous_levels() -> None:
    assert simultaneous_limits(100, 0.15, 0.05, 34).scale == pytest.approx(0.0187, abs=5e-5)
    assert simultaneous_limits(1000, 0.15, 0.05, 50).scale == pytest.approx(0.0059, abs=5e-5)


def test_anchored_limits_at_1000() -> None:
    table = anchored_limits(1000, 0.15, 0.1, 50)
    rows = np.searchsorted(table.k, [50, 250, 500, 1000])
    assert table.scale == pytest.approx(0.0652, abs=5e-5)
    assert table.anchor[rows].tolist() == [3, 23, 52, 114]
    assert table.extension[rows].tolist() == [3, 29, 64, 135]


def test_anchored_limits_at_100() -> None:
    table = anchored_limits(100, 0.15, 0.1, 19)
    assert table.scale == pytest.approx(0.1132, abs=5e-5)
    assert table.anchor[50 - 19] == 2
    assert table.extension[[50 - 19, 100 - 19]].tolist() == [3, 10]


def test_default_min_accept() -> None:
    # ln .05 / ln .85 = 18.43 -> 19; .05 * 1000 = 50; ln .05 / ln .99 = 298.07 -> 299; .05 * 380 = 19 exactly.
    assert [default_min_accept(n, 0.15) for n in (10, 380, 1000)] == [19, 19, 50]
    assert default_min_accept(1000, 0.01) == 299
