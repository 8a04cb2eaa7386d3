"""The one comparison: equal is accepted, NaN never is, floats and arrays agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from guardrail import Guardrail, accepts
from guardrail.testing import ScriptedChat, make_artifact


@pytest.mark.parametrize(
    ("uncertainty", "expected"), [(0.5, True), (0.5 - 1e-16, True), (math.nextafter(0.5, 1), False), (math.nan, False)]
)
def test_equal_is_accepted_and_nan_never(uncertainty: float, expected: bool) -> None:
    assert accepts(uncertainty, 0.5) is expected
    assert accepts(np.array([uncertainty]), 0.5).tolist() == [expected]


def test_a_question_exactly_on_the_threshold_is_answered() -> None:
    # two clusters of five: ln 2
    model = ScriptedChat(script={"q": ["a1", "a1", "b1"]})
    whole = Guardrail(model=model, artifact=make_artifact(model, threshold=9.0))
    value = whole.assess("q").uncertainty.value
    assert value == pytest.approx(math.log(2))
    assert Guardrail(model=model, artifact=make_artifact(model, threshold=value)).assess("q").accepted
    below = math.nextafter(value or 0.0, 0)
    assert not Guardrail(model=model, artifact=make_artifact(model, threshold=below)).assess("q").accepted
