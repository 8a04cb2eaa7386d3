"""Early stopping cannot change a verdict: the score of the full set lies within the bounds of every part of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardrail.errors import GuardrailError
from guardrail.gate import accepts
from guardrail.guard.early_stopping import decide_early, range_of, wave_ends
from guardrail.judges import ExactJudge, Judge, JudgeSpec, TextJudge, from_judge, make_judge
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Uncertainty
from guardrail.uncertainty import Estimator, measure
from guardrail.uncertainty import list_estimators as available
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.early_bounds import has_useful_bounds

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PRIMARY = ("graded_disagreement", "primary_disagreement")
CLUSTERING = ("discrete_semantic_entropy", "num_sets", "self_consistency", "semantic_entropy", *PRIMARY)
LEVELS = st.floats(-6, 0, allow_nan=False)


class Relation:
    """A judge by any symmetric relation between raw texts, transitive or not."""

    def __init__(self, same: set[frozenset[str]]) -> None:
        self.same = same

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="relation", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return [frozenset(pair) in self.same for pair in pairs]


def drawn(texts: Sequence[str], logprobs: Sequence[float] | None = None, primary: str = "x") -> SampleSet:
    values = logprobs or [-1.0] * len(texts)
    samples = [Sample(text=text, tokens=("t",), logprobs=(value,)) for text, value in zip(texts, values, strict=True)]
    return SampleSet(question="q", primary=Sample(text=primary), samples=tuple(samples))


def first(whole: SampleSet, m: int) -> SampleSet:
    return whole.model_copy(update={"samples": whole.samples[:m]})


def check(whole: SampleSet, estimator: Estimator) -> None:
    """Bounds hold at every m, and the verdict is the same at every threshold that could separate the two scores."""
    n = len(whole.samples)
    full = measure(whole, estimator, SamplingPlan(n=n))
    assert full.value is not None
    for m in range(2, n + 1):
        ends = range_of(first(whole, m), estimator, n)
        assert not isinstance(ends, Uncertainty)
        if ends is None:
            continue
        low, high = ends
        assert low <= full.value <= max(high, 0.0), (m, low, full.value, high)
        for threshold in (low, full.value, high, (low + high) / 2):
            early = decide_early(first(whole, m), estimator, n, threshold)
            if early is not None:
                assert early.value is not None
                assert accepts(early.value, threshold) == accepts(full.value, threshold)


# "A b" and "a b." share a key and are told apart by a judge that reads raw text; refusals are never judged.
RAW = ["A b", "a b.", "a b", "c", "C!", "d", "e", "7", "8", "I don't know"]


@given(
    st.lists(st.tuples(st.sampled_from(RAW), LEVELS), min_size=2, max_size=9),
    st.sets(st.frozensets(st.sampled_from(RAW), min_size=2, max_size=2), max_size=12),
    st.sampled_from(CLUSTERING),
    st.sampled_from(["components", "greedy"]),
    st.sampled_from([*RAW, "x"]),
)
@settings(max_examples=120)
def test_bounds_hold_for_any_judge(
    answers: list[tuple[str, float]], same: set[frozenset[str]], name: str, clustering: Any, primary: str
) -> None:
    texts, levels = zip(*answers, strict=True)
    check(drawn(texts, levels, primary), make(name, judge=Relation(same), clustering=clustering))


WORDS = st.lists(st.sampled_from(["red", "blue", "not", "5", "6", "green"]), min_size=1, max_size=4).map(" ".join)
NUMBERS = st.one_of(
    st.sampled_from(["1", "1.0000000009", "1.0000000018", "2", "50%", "0.5", "none", "None", "I don't know", "10:30"]),
    # 5 = 5 km = 5000 m = 5000 = 5000 m/s = 18000 km/h: chains through numbers without a unit, at most two changes long.
    st.sampled_from(["5", "5 km", "5 m", "5000", "5000 m", "5000 m/s", "18000 km/h", "18000", "18000 s", "5 h", "-5"]),
)


@given(
    st.one_of(
        st.tuples(st.lists(st.tuples(WORDS, LEVELS), min_size=2, max_size=9), st.sampled_from(["text", "exact"])),
        st.tuples(st.lists(st.tuples(NUMBERS, LEVELS), min_size=2, max_size=9), st.sampled_from(["numeric", "exact"])),
    ),
    st.sampled_from(CLUSTERING),
    st.sampled_from(["components", "greedy"]),
    st.one_of(WORDS, NUMBERS),
)
@settings(max_examples=120)
def test_bounds_hold_for_the_light_judges(
    given_: tuple[list[tuple[str, float]], str], name: str, clustering: Any, primary: str
) -> None:
    answers, judge = given_
    texts, levels = zip(*answers, strict=True)
    check(drawn(texts, levels, primary), make(name, judge=make_judge(judge), clustering=clustering))


@given(
    st.lists(WORDS, min_size=2, max_size=9),
    st.sampled_from(["degree", "lexical_similarity"]),
    st.sampled_from([None, TextJudge(), ExactJudge()]),
)
@settings(max_examples=100)
def test_bounds_hold_for_mean_similarities(texts: list[str], name: str, judge: Judge | None) -> None:
    check(drawn(texts), make(name) if judge is None else make(name, similarity=from_judge(judge)))


@pytest.mark.parametrize("name", CLUSTERING)
def test_bounds_are_reached_with_an_exact_judge(name: str) -> None:
    """The bounds are tight, not only valid: the test tries every completion of 3 of 5 samples over 5 texts."""
    estimator = make(name, judge=ExactJudge())
    texts = "abcde"
    for start in (("a", "a", "a"), ("a", "a", "b"), ("a", "b", "c")):
        reached = []
        for end in product(texts, repeat=2):
            value = measure(drawn([*start, *end], [0.0] * 5, "a"), estimator, SamplingPlan(n=5)).value
            assert value is not None
            reached.append(value)
        ends = range_of(drawn(start, [0.0] * 3, "a"), estimator, 5)
        assert isinstance(ends, tuple)
        assert ends == pytest.approx((min(reached), max(reached)), abs=2e-9)


def test_a_bridge_is_reckoned_with_exactly_where_the_judge_allows_one() -> None:
    # "red blue" and "green blue ..." can be joined by a third answer; answers with other numbers never can.
    estimator = make("discrete_semantic_entropy", judge=TextJudge())
    low = range_of(drawn(["red", "blue", "green"]), estimator, 10)
    assert isinstance(low, tuple)
    assert low[0] == 0
    apart = range_of(drawn(["red 1", "blue 2", "green 3"]), estimator, 10)
    assert isinstance(apart, tuple)
    assert apart[0] == pytest.approx(0.6390318597)  # {8, 1, 1} of 10: -.8 ln .8 - .2 ln .1


def test_a_number_between_two_others_may_join_them() -> None:
    # 1 and 1 + 1.8e-9 differ by more than 1e-9; 1 + 0.9e-9 equals both.
    check(drawn(["1", "1.0000000018", "1.0000000009"]), make("discrete_semantic_entropy", judge=make_judge("numeric")))


@pytest.mark.parametrize(
    "answers",
    [
        ["5 km", "5 m", "5"],
        ["5", "5000", "5 km", "5000 m"],
        ["5", "5000 m", "5 km"],
        ["5 km", "5000", "5000 m"],
        ["5", "5 s", "5 h", "18000", "18000 s"],
        ["5", "18000", "5 km", "5000 m", "5000", "5000 m/s", "18000 km/h"],  # two changes
        ["1", "420", "1 h", "60 min", "60", "60 min", "3600 s", "1 week", "7 days", "7", "7 min", "420 s"],
    ],
)
def test_units_may_join_what_differs(answers: list[str]) -> None:
    """The other answers join the first two, through a number without a unit, in any order."""
    estimator = make("discrete_semantic_entropy", judge=make_judge("numeric"))
    for order in (answers, answers[::-1], [*answers[1:], answers[0]]):
        check(drawn(order), estimator)


def test_numbers_that_no_unit_can_join_stay_apart() -> None:
    estimator = make("discrete_semantic_entropy", judge=make_judge("numeric"))
    apart = range_of(drawn(["5", "-5", "0"]), estimator, 10)
    assert isinstance(apart, tuple)
    assert apart[0] == pytest.approx(0.6390318597)  # {8, 1, 1} of 10: -.8 ln .8 - .2 ln .1
    near = range_of(drawn(["13", "17", "19", "23"]), estimator, 6)  # two to come: one change, by a ratio of two units
    assert isinstance(near, tuple)
    assert near[0] == pytest.approx(1.2424533249)  # {3, 1, 1, 1} of 6: -.5 ln .5 - .5 ln(1/6)


def test_a_judge_that_reads_raw_text_may_split_what_it_joined() -> None:
    # Both "a b" and "a  b" have one key, and the smaller text is judged: the fifth answer breaks {4} into {3, 2}.
    judge = Relation({frozenset({"a b", "c"})})
    whole = drawn(["a b", "c", "a b", "c", "a  b"])
    estimator = make("discrete_semantic_entropy", judge=judge)
    assert measure(first(whole, 4), estimator, SamplingPlan(n=4)).value == 0
    assert measure(whole, estimator, SamplingPlan(n=5)).value == pytest.approx(0.6730116671)  # -.6 ln .6 - .4 ln .4
    check(whole, estimator)


def test_an_unseen_failure_is_the_one_difference_and_only_after_an_acceptance() -> None:
    """Early stopping accepts; the full set has an empty sample, is unmeasured, and is held back."""
    estimator = make("discrete_semantic_entropy", judge=ExactJudge())
    whole = drawn(["a"] * 9 + [""])
    accepted_early = decide_early(first(whole, 9), estimator, 10, threshold=0.4)
    assert accepted_early is not None
    assert accepted_early.value is not None
    assert not measure(whole, estimator, SamplingPlan(n=10)).measured
    with_failure = drawn(["a", "", "a"])
    # A failure among the samples so far holds the answer back at once.
    early = decide_early(with_failure, estimator, 10, threshold=5.0)
    assert early is not None
    assert early.value is None


@given(st.integers(2, 60))
def test_waves_end_with_all_samples_and_hold_at_least_two_each(n: int) -> None:
    ends = wave_ends(n)
    assert ends[-1] == n
    steps = [b - a for a, b in zip((0, *ends), ends, strict=False)]
    assert all(step >= 2 for step in steps)


# -- recorded answers of real models -----------------------------------------------------------------------------------


def _texts(row: dict[str, Any]) -> list[Sample]:
    answers = row.get("samples") or list(row["answers"].values())
    return [
        Sample(
            text=str(answer.get("text", "")).strip(),
            tool_calls=tuple(ToolCall(**call) for call in answer.get("tool_calls", ())),
        )
        for answer in answers
    ]


REAL = (
    "triviaqa-20samples",
    "gsm8k-13variants",
    "cruxeval-output-10samples",
    "nq-human-labels",
    "intercode-sql-agents",
)
"""Every recorded file with several answers to a question."""
LONG = ("triviaqa-20samples", "gsm8k-13variants", "nq-human-labels")
JUDGED = ("discrete_semantic_entropy", "num_sets", "self_consistency", *PRIMARY)
RATED = ("degree", "lexical_similarity")


def _bounded() -> list[Estimator]:
    """Return every estimator with bounds that can measure recorded texts, with every light judge."""
    judges = [make_judge(name) for name in ("exact", "numeric", "text", "tool_call")]
    ways: tuple[Any, ...] = ("components", "greedy")
    judged = [make(name, judge=judge, clustering=way) for way in ways for judge in judges for name in JUDGED]
    rated = [make(name, similarity=from_judge(judge)) for judge in judges for name in RATED]
    return [*judged, *rated, *map(make, RATED)]


def test_no_estimator_with_bounds_is_left_out() -> None:
    """The exception is semantic entropy, which needs log-probabilities: recorded answers have none."""
    bounded = set()
    for name in available():
        try:
            estimator = make(name, judge=ExactJudge()) if name in CLUSTERING else make(name)
        except GuardrailError:  # needs a model, or members
            continue
        if has_useful_bounds(estimator):
            bounded.add(name)
    assert bounded == {*JUDGED, *RATED, "semantic_entropy"}


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=pytest.mark.slow) if file in LONG else file for file in REAL]
)
def test_verdicts_on_recorded_answers_do_not_change(file: str) -> None:
    """The full score lies within the bounds after every wave, so the verdict is the same at every threshold.

    Every line, in a random order of its answers, by two of the combinations of estimator and judge in turn, so that
    every file meets each combination.
    """
    path = DATA / f"{file}.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} is not on this machine")
    turns = cycle(_bounded())
    shuffle = random.Random(file)
    lines = path.read_text(encoding="utf-8").splitlines()
    looked = 0
    met: Counter[str] = Counter()
    for line in lines:
        samples = [sample for sample in _texts(json.loads(line)) if sample.text or sample.tool_calls]
        assert len(samples) >= 3  # one that answers and two that vary
        shuffle.shuffle(samples)
        whole = SampleSet(question="q", primary=samples[0], samples=tuple(samples[1:]))
        n = len(whole.samples)
        for estimator in islice(turns, 2):
            full = measure(whole, estimator, SamplingPlan(n=n)).value
            assert full is not None
            met[str(estimator.spec)] += 1
            for m in (end for end in (2, *wave_ends(n)) if end <= n):
                ends = range_of(first(whole, m), estimator, n)
                assert isinstance(ends, tuple)
                assert ends[0] <= full <= ends[1], (estimator.spec, m, ends, full, line[:200])
                looked += 1
    assert (len(met), min(met.values()) >= 20) == (len(_bounded()), True)
    assert looked >= 4 * len(lines)
