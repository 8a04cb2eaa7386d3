"""Whether a served answer was drawn as the plan draws."""

from __future__ import annotations

from typing import Any

from guardrail.guard.comparability import unlike_served
from guardrail.types import SamplingPlan


def test_the_settings_of_a_served_answer() -> None:
    greedy, drawn = SamplingPlan(max_tokens=5), SamplingPlan(primary="sampled", temperature=1, top_p=1, max_tokens=5)
    whole: dict[str, Any] = {"finish": "stop", "tokens": 5}
    assert unlike_served({"temperature": 0, "seed": 7, "top_p": None}, greedy, **whole) == []
    assert unlike_served({}, greedy, **whole) == ["temperature"]
    assert unlike_served({}, drawn, **whole) == []
    assert unlike_served({"max_tokens": 99}, drawn, **whole) == []
    for more in ({"tokens": 6}, {"tokens": None}, {"finish": "length"}):
        assert unlike_served({}, drawn, **{**whole, **more}) == ["max_tokens"]
        assert unlike_served({"max_tokens": 5}, drawn, **{**whole, **more}) == []
    assert unlike_served({}, drawn.model_copy(update={"stop": ("x",)}), **whole) == ["stop"]
    assert unlike_served({"top_k": 3, "n": 2}, drawn, **whole) == ["n", "top_k"]
    assert unlike_served({}, drawn, **whole, fixed={"reasoning_effort": "low"}) == ["reasoning_effort"]
    assert unlike_served({"reasoning_effort": "low"}, drawn, **whole, fixed={"reasoning_effort": "low"}) == []
