"""The condition of a gate, as users read it."""

from __future__ import annotations

from typing import Any

import pytest

from guardrail import describe
from guardrail.specs import EstimatorSpec


@pytest.mark.parametrize(
    ("spec", "threshold", "condition"),
    [
        # A confidence is stored as 1 - value: "conf <= 0.0859" was printed for answers from 0.9141 on.
        ({"name": "imported:conf", "params": {"column": "conf", "stored": "1 - value"}}, 0.25, "conf >= 0.75"),
        ({"name": "imported:conf", "params": {"column": "conf", "stored": "-value"}}, -3.5, "conf >= 3.5"),
        ({"name": "imported:conf", "params": {"column": "conf", "stored": "value"}}, 0.25, "conf <= 0.25"),
        ({"name": "semantic_entropy", "unit": "nats"}, 0.5, "semantic_entropy <= 0.5 nats"),
        ({"name": "score:sure@1", "params": {"higher": "certain"}}, 0.25, "score:sure@1 >= 0.75"),
    ],
)
def test_a_condition_is_in_the_direction_of_the_users_own_score(
    spec: dict[str, Any], threshold: float, condition: str
) -> None:
    score = EstimatorSpec(**{"version": 1, "unit": "probability", **spec})
    assert describe.condition(score, threshold) == condition
