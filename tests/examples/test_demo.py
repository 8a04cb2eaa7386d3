"""The figures of labels within the scope in the demo; `make demo` itself runs for a minute."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from examples.demo.embedded import certified_with
from tests.calibrate.test_scope import KEY, scored


def test_labels_within_scope_certify_more_than_labels_at_random() -> None:
    rng = np.random.default_rng(0)
    u = rng.random(1400)
    records = scored(u.tolist(), (rng.random(1400) > u * 0.6).tolist()).records
    at_random, within = (certified_with(300, share, records, KEY, draws=10) for share in (1.0, 0.6))
    assert 0.05 < at_random < within < 0.6
