"""The gate of items: what could not be measured is never kept, nor are more than `cap` items."""

import math

from hypothesis import given
from hypothesis import strategies as st

from guardrail.items.spec import kept, measured

VALUES = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.1, 0.3, 1.0, math.nan, math.inf])), max_size=12)


def test_items_that_were_not_measured_are_never_kept() -> None:
    assert kept([None, math.nan, math.inf, -math.inf, 0.0, 1.0], 1.0, 9) == [False] * 4 + [True] * 2
    assert not any(kept([0.0, 0.0], None, 9))
    assert not any(kept([math.inf], math.inf, 9))


def test_equal_items_beyond_the_cap_go_in_the_order_of_the_text() -> None:
    assert measured([0.2, 0.1, 0.2, 0.1, 0.2], 3) == [0.2, 0.1, math.inf, 0.1, math.inf]
    assert kept([0.2, 0.1, 0.2, 0.1, 0.2], 0.2, 3) == [True, True, False, True, False]


def test_the_cap_counts_measured_items_first() -> None:
    assert kept([None, 0.4, None, 0.0], 1.0, 2) == [False, True, False, True]


@given(VALUES, st.integers(1, 12), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_more_is_kept_at_a_larger_threshold_and_never_more_than_the_cap(
    values: list[float | None], cap: int, threshold: float
) -> None:
    before = list(values)
    few, many = kept(values, threshold, cap), kept(values, 1.0, cap)
    assert sum(few) <= cap
    assert not any(one and not other for one, other in zip(few, many, strict=True))
    assert repr(values) == repr(before)


@given(VALUES, st.integers(1, 12))
def test_it_is_the_preparation_of_the_reference(values: list[float | None], cap: int) -> None:
    # By definition u is infinite unless it is finite and among the first `cap` by (u, place).
    finite = [(value, place) for place, value in enumerate(values) if value is not None and math.isfinite(value)]
    among = {place for _, place in sorted(finite)[:cap]}
    expected = [value if place in among else math.inf for place, value in enumerate(values)]
    assert measured(values, cap) == expected
