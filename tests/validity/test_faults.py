"""Faults in published software, and the tests that fail on each. Every test that the table names must exist.

Tests of other files are named by path; the others are here. Tests of formulas also compute the faulty form: a test
that the faulty form would pass shows nothing.
"""

from __future__ import annotations

import ast
import math
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr, ValidationError

from calibrate.fitting import fit
from calibrate.rules import RULES
from guardrail import Guardrail, Reason, accepts
from guardrail.decision import ThresholdGate
from guardrail.errors import UsageError
from guardrail.judges import ExactJudge, Judge, JudgeSpec
from guardrail.outcome import Feasible
from guardrail.sampling.sampler import draw
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import OptionScores, Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import Estimator, Needs, cluster, measure
from guardrail.uncertainty import list_estimators as available
from guardrail.uncertainty import make_estimator as make
from guardrail.uncertainty.base import Piece
from guardrail.uncertainty.relevance import weighted_nll

TESTS = Path(__file__).parents[1]
HERE = "validity/test_faults.py"
FAULTS = {
    "temperature 0 makes every question certain": [
        "guardrail/test_types.py::test_temperature_zero_is_refused_for_samples",
        "guardrail/sampling/test_sampling.py::test_primary_is_greedy_and_samples_are_not",
        f"{HERE}::test_temperature_zero_cannot_reach_a_sample",
    ],
    "a cached sampler": [
        "guardrail/sampling/test_sampling.py::test_a_global_response_cache_is_bypassed",
        "guardrail/guard/test_chat_model.py::test_a_global_cache_neither_fools_nor_freezes_the_guard",
        f"{HERE}::test_a_cache_on_the_model_itself_is_bypassed",
    ],
    "NaN ranked as most certain": [
        "guardrail/test_gate.py::test_equal_is_accepted_and_nan_never",
        f"{HERE}::test_nan_is_never_accepted_fitted_or_stored",
    ],
    "an answer in two clusters, or re-claimed by a later one": [
        "property/test_uncertainty.py::test_clusters_are_a_partition",
        "property/test_uncertainty.py::test_greedy_does_depend_on_order_and_never_claims_twice",
        f"{HERE}::test_an_answer_like_two_others_is_in_one_cluster",
    ],
    "one-way entailment called equivalence": [
        "integrations/local/test_transformers_judges.py::test_the_verdict_is_entailment_both_ways_with_the_question_on_both_sides",
    ],
    "cluster probability above 1": [
        "guardrail/uncertainty/test_estimators.py::test_cluster_probabilities_are_renormalised_and_do_not_underflow",
        f"{HERE}::test_cluster_probabilities_sum_to_one",
    ],
    "sum over samples where the formula sums over clusters": [
        "guardrail/uncertainty/test_estimators.py::test_sum_over_clusters_not_samples",
        f"{HERE}::test_the_sum_is_over_clusters",
    ],
    "log(sum(exp)) without the max trick": [
        "guardrail/uncertainty/test_estimators.py::test_cluster_probabilities_are_renormalised_and_do_not_underflow",
        "guardrail/test_types.py::test_option_probabilities_do_not_overflow",
        "guardrail/uncertainty/test_relevance.py::test_answers_of_a_thousand_tokens_do_not_underflow",
        f"{HERE}::test_log_sum_exp_is_shifted",
    ],
    "special and end tokens counted in the NLL": [
        "integrations/local/test_draw_samples.py::test_special_and_end_tokens_are_not_part_of_an_answer",
        "integrations/local/test_tokens.py::test_hidden_tokens_are_left_out_of_everything",
    ],
    '"A" and " A" taken for the same token': [
        "integrations/local/test_options.py::test_the_tokenizer_decides_between_a_and_space_a",
    ],
    "an option missing from the top log-probabilities taken as 0": [
        "guardrail/uncertainty/test_estimators.py::test_a_missing_option_is_unmeasured_not_probability_zero",
        f"{HERE}::test_a_missing_option_cannot_be_written_as_a_number",
    ],
    "the caller's temperature changed in place": [
        "guardrail/sampling/test_sampling.py::test_the_callers_model_is_not_changed",
        f"{HERE}::test_two_plans_at_once_keep_their_own_temperature",
    ],
    "precision threshold off by one": [
        "guardrail/test_gate.py::test_a_question_exactly_on_the_threshold_is_answered",
        f"{HERE}::test_the_gate_accepts_exactly_the_items_the_rule_counted",
    ],
    "token and relevance lengths that differ, scored 0": [
        "guardrail/uncertainty/test_relevance.py::test_a_length_mismatch_is_an_error_not_certain",
        "guardrail/uncertainty/test_relevance.py::test_one_answer_that_cannot_be_taken_apart_is_unmeasured_not_certain",
        "guardrail/uncertainty/test_alignment.py::test_a_mismatch_is_unmeasured_not_zero",
        f"{HERE}::test_tokens_that_do_not_spell_the_answer_are_no_measurement",
        f"{HERE}::test_relevance_of_another_length_is_never_cut_to_fit",
    ],
    "streaming usage counted once for n samples": [
        "guardrail/guard/test_chat_model.py::test_usage_is_summed_over_all_samples",
        f"{HERE}::test_a_stream_counts_every_sample",
    ],
    "n = 1 returned where 10 were asked for": [
        "guardrail/uncertainty/test_estimators.py::test_a_server_that_returns_one_sample_is_a_shortfall",
        f"{HERE}::test_too_few_samples_never_score",
    ],
}
"""Tests that fail on each fault."""


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_tests(fault: str) -> None:
    assert FAULTS[fault]
    for name in FAULTS[fault]:
        path, _, function = name.partition("::")
        tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in defined, f"{name} is gone: write another test for {fault!r}"


def answers(*texts: str, logprobs: Sequence[float] | None = None) -> SampleSet:
    samples = tuple(
        Sample(text=text) if logprobs is None else Sample(text=text, tokens=(text,), logprobs=(logprobs[i],))
        for i, text in enumerate(texts)
    )
    primary = Sample(text="x") if logprobs is None else Sample(text="x", tokens=("x",), logprobs=(-1.0,))
    return SampleSet(question="q", primary=primary, samples=samples)


def score(name: str, drawn: SampleSet) -> Uncertainty:
    estimator = make(name, judge=ExactJudge()) if make(name).needs.judge else make(name)
    return measure(drawn, estimator, SamplingPlan(n=len(drawn.samples), logprobs=True))


# -- sampling


class Recording(ScriptedChat):
    """A model that records the temperature of each call."""

    _requests: list[tuple[str, Any]] = PrivateAttr(default_factory=list)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self._requests.append((str(messages[-1].content), kwargs.get("temperature")))
        return super()._generate(messages, stop, run_manager, **kwargs)


@pytest.mark.parametrize("temperature", [0, 0.0, -0.0])
def test_temperature_zero_cannot_reach_a_sample(temperature: float) -> None:
    with pytest.raises(ValidationError, match="temperature must be above 0"):
        SamplingPlan(n=10, temperature=temperature)
    model = Recording(script={"q": ["a", "b"]})
    draw(model, [[HumanMessage("q")]], SamplingPlan(n=10))
    assert Counter(at for _, at in model._requests) == {0.0: 1, 0.7: 10}  # the primary answer alone is greedy


def test_a_cache_on_the_model_itself_is_bypassed() -> None:
    """With the cache the ten samples would be one answer ten times: entropy 0, accepted."""
    model = Recording(script={"q": ["a", "b1", "c1", "d1"]}, cache=True)
    (drawn,) = draw(model, [[HumanMessage("q")]], SamplingPlan(n=10))
    assert len(model._requests) == 11
    assert len({sample.text for sample in drawn.samples}) == 3
    assert (score("self_consistency", drawn).value or 0) > 0.5


def test_two_plans_at_once_keep_their_own_temperature() -> None:
    """The faulty form sets `model.temperature`, draws, and sets it back: calls that overlap swap settings."""
    together = threading.Barrier(2, timeout=10)

    class Meeting(Recording):
        temperature: float = 0.123

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            together.wait()  # both questions are being asked now
            return super()._generate(messages, stop, run_manager, **kwargs)

    model = Meeting(script={"cold": ["a"], "hot": ["b"]})
    plans = {"cold": SamplingPlan(n=4, temperature=0.3), "hot": SamplingPlan(n=4, temperature=1.3)}
    threads = [
        threading.Thread(target=draw, args=(model, [[HumanMessage(question)]], plan), kwargs={"max_concurrency": 1})
        for question, plan in plans.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert Counter(model._requests) == {("cold", 0.0): 1, ("cold", 0.3): 4, ("hot", 0.0): 1, ("hot", 1.3): 4}
    assert model.temperature == 0.123


@pytest.mark.parametrize("received", [0, 1, 9])
def test_too_few_samples_never_score(received: int) -> None:
    """One sample always agrees with itself, so every estimator that reads samples reports a shortfall."""
    drawn = answers(*["Paris"] * received, logprobs=[-0.1] * received)
    plan = SamplingPlan(n=10, logprobs=True)
    for name in available():
        if make(name).needs.samples:
            uncertainty = measure(drawn, make(name), plan)
            assert uncertainty.value is None, name
            assert uncertainty.reason is Unmeasured.SAMPLING_SHORTFALL, name


def test_a_stream_counts_every_sample() -> None:
    """Eleven calls with one prompt token and one answer token each; the faulty form reports the last call only."""
    model = ScriptedChat(script={"q": ["Paris"]})
    guard = Guardrail(model=model, artifact=make_artifact(model, threshold=0.5))
    whole: AIMessageChunk | None = None
    for chunk in guard.stream("q"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] == 11
    assert whole.usage_metadata["output_tokens"] == 11
    assert whole.response_metadata["guardrail"]["cost"]["calls"] == 11


# -- formulas


def test_nan_is_never_accepted_fitted_or_stored() -> None:
    broken = Estimator("broken", 1, "nats", Needs(), lambda evidence: math.nan)
    uncertainty = measure(answers("a1", "a1"), broken, SamplingPlan(n=2))
    assert (uncertainty.value, uncertainty.reason) == (None, Unmeasured.NOT_FINITE)
    model = ScriptedChat(script={"q": ["a"]})
    verdict = ThresholdGate(make_artifact(model, threshold=1e9, n=2), broken).decide(answers("a1", "a1"))
    assert (verdict.accepted, verdict.reason) == (False, Reason.UNMEASURED)
    assert not accepts(math.nan, math.inf)
    assert not accepts(np.array([math.nan]), math.inf).any()
    with pytest.raises(ValidationError, match="finite"):
        Uncertainty(value=math.nan, unit="nats", estimator="broken")
    with pytest.raises(UsageError):  # sorted first or last, it would move every threshold
        fit(np.array([0.1, math.nan, 0.3]), np.array([0, 0, 1]), alpha=0.2, rule="acrc")


class Chain(Judge):
    """A judge with a ~ c and b ~ c, but not a ~ b: both clusters claim c."""

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="chain", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return ["c1" in pair for pair in pairs]


@pytest.mark.parametrize("method", ["components", "greedy"])
@pytest.mark.parametrize("order", [("a1", "b1", "c1"), ("c1", "a1", "b1"), ("a1", "c1", "b1")])
def test_an_answer_like_two_others_is_in_one_cluster(method: Any, order: tuple[str, ...]) -> None:
    # the faulty form {a, c}, {b, c} has shares 2/3 and 2/3
    clusters = cluster("q", order, Chain(), method)
    assert clusters is not None
    assert sum(clusters.sizes) == 3
    assert len(clusters.assignment) == 3
    if method == "components":
        assert clusters.sizes == (3,)


def test_cluster_probabilities_sum_to_one() -> None:
    """Four samples of probability .9 in one cluster, one of .1 alone."""
    drawn = answers("x1", "x1", "x1", "x1", "y1", logprobs=[math.log(0.9)] * 4 + [math.log(0.1)])
    p = np.array([3.6, 0.1])
    faulty = -(p * np.log(p)).sum()  # "probabilities" 3.6 and .1: more certain than certainty
    right = -(p / 3.7 * np.log(p / 3.7)).sum()
    assert faulty < 0 < right
    assert score("semantic_entropy", drawn).value == pytest.approx(right)


def test_the_sum_is_over_clusters() -> None:
    """Three of one meaning, one of another: -3/4 ln 3/4 - 1/4 ln 1/4, not that for each sample."""
    shares = np.array([0.75, 0.25])
    right = -(shares * np.log(shares)).sum()
    each = np.array([0.75, 0.75, 0.75, 0.25])
    faulty = -(each * np.log(each)).sum()
    assert faulty > right + 0.4
    for name in ("discrete_semantic_entropy", "semantic_entropy"):
        assert score(name, answers("x1", "x1", "x1", "y1", logprobs=[-1.0] * 4)).value == pytest.approx(right)


def test_log_sum_exp_is_shifted() -> None:
    """Log-likelihoods far below the range of exp: only differences matter."""
    weights = np.array([1.0, 3.0]) / 4
    right = -(weights * np.log(weights)).sum()
    low = -745.0  # the least that is read as a log-probability; exp of it has no digits left

    faulty = np.log(np.exp(np.array([low, low + math.log(3)])).sum())
    assert abs(faulty - (low + math.log(4))) > 0.1
    uncertainty = score("semantic_entropy", answers("x1", "y1", logprobs=[low, low + math.log(3)]))
    assert uncertainty.value == pytest.approx(right)
    scores = OptionScores(labels=("A", "B"), loglikelihoods=(low, low + math.log(3)))
    drawn = SampleSet(question="q", primary=Sample(text="B"), options=scores)
    entropy = measure(drawn, make("predictive_entropy"), SamplingPlan(n=0, options=("A", "B")))
    assert entropy.value == pytest.approx(right)


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_missing_option_cannot_be_written_as_a_number(value: float) -> None:
    """p = 0 for a missing option overstates the certainty of the others: .6 and .4 of the listed mass."""
    with pytest.raises(ValidationError, match="must be finite"):
        OptionScores(labels=("A", "B", "C"), loglikelihoods=(math.log(0.3), math.log(0.2), value))
    listed = OptionScores(labels=("A", "B"), loglikelihoods=(math.log(0.3), math.log(0.2)))
    drawn = SampleSet(question="q", primary=Sample(text="A"), options=listed)
    for name in ("predictive_entropy", "max_softmax"):
        uncertainty = measure(drawn, make(name), SamplingPlan(n=0, options=("A", "B", "C")))
        assert (uncertainty.value, uncertainty.reason) == (None, Unmeasured.NO_OPTIONS)


@pytest.mark.parametrize("tokens", [("New",), ("New", " York", "!"), ("new", " york")])
def test_tokens_that_do_not_spell_the_answer_are_no_measurement(tokens: tuple[str, ...]) -> None:
    """Weights and log-probabilities of different pieces are unmeasured; a score of 0 would be the most certain."""
    good = Sample(text="New York", tokens=("New", " York"), logprobs=(-0.5, -0.25))
    bad = Sample(text="New York", tokens=tokens, logprobs=(-0.5,) * len(tokens))
    weighted = [name for name in available() if make(name).needs.relevance is not None]
    assert {"word_sequence_entropy", "token_sar", "sar"} <= set(weighted)
    for name in weighted:
        plan = SamplingPlan(n=2, logprobs=True)
        assert measure(SampleSet(question="q", primary=good, samples=(good, good)), make(name), plan).value is not None
        uncertainty = measure(SampleSet(question="q", primary=good, samples=(good, bad)), make(name), plan)
        assert uncertainty.value is None, name


def test_relevance_of_another_length_is_never_cut_to_fit() -> None:
    """The fault itself: zip() over two pieces and one similarity scores the first piece alone, or nothing at all."""
    pieces = [Piece("New", "York", 0.5), Piece("York", "New", 0.25)]
    for likeness in ([], [0.5], [0.5, 0.5, 0.5]):
        with pytest.raises(ValueError, match="2 pieces"):
            weighted_nll(pieces, likeness)


# -- thresholds


CLUSTERED = [name for name in sorted(RULES) if RULES[name].reads_groups]
GROUPS = [f"g{i}" for i in range(400)]  # one item each


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("distinct", [5, 400])
def test_the_gate_accepts_exactly_the_items_the_rule_counted(rule: str, distinct: int) -> None:
    """Off by one, in a list of thresholds or in the comparison, the item at the edge is accepted without being counted.

    A well-separated population, so that most rules find a threshold; other rules have nothing to count.
    """
    rng = np.random.default_rng(5)
    error = (rng.random(400) < 0.3).astype(np.int64)
    scores = np.floor((0.5 * rng.random(400) + 0.5 * error) * distinct) / distinct
    groups = GROUPS if rule in CLUSTERED else None
    outcome = fit(scores, error, alpha=0.2, rule=rule, groups=groups)
    if isinstance(outcome, Feasible):
        accepted = accepts(scores, outcome.threshold)
        assert accepted.sum() == outcome.n_accepted
        assert error[accepted].sum() == outcome.n_errors
        assert outcome.threshold in scores
        assert scores[~accepted].min(initial=math.inf) > outcome.threshold


def test_most_rules_had_something_to_count() -> None:
    rng = np.random.default_rng(5)
    error = (rng.random(400) < 0.3).astype(np.int64)
    scores = 0.5 * rng.random(400) + 0.5 * error
    outcomes = {
        name: isinstance(
            fit(
                scores,
                error,
                alpha=0.2,
                rule=name,
                groups=GROUPS if name in CLUSTERED else None,
            ),
            Feasible,
        )
        for name in sorted(RULES)
    }
    assert sum(outcomes.values()) >= 8, outcomes
