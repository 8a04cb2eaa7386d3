"""From people's decisions to labels, estimates and a new threshold: by hand, over simulated queues, and on a store."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from scipy import stats

from calibrate.data.record import Record
from calibrate.data.table import table_of
from calibrate.fitting import fit
from calibrate.judging import GateCounts
from calibrate.reviews import (
    Missing,
    ReviewPool,
    accepted_error,
    feed,
    learn,
    read_reviews,
    thinned,
    waiting,
)
from calibrate.reviews.pool import settled
from calibrate.reviews.steps import reviews_of_store
from calibrate.rules.certificate import interval
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.outcome import Feasible
from guardrail.review import Candidate, Content, Decision, ReviewStore, RiskMonitor, ticket
from guardrail.review.hooks import AUDIT_RATE, audit_sample, content_of
from guardrail.review.monitors import Monitors
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, SampleSet, ToolCall, Uncertainty
from tests.calibrate.reviewing import (
    ARTIFACT,
    RATE,
    TEMPLATES,
    THRESHOLD,
    artifact_of,
    audit,
    decide,
    item,
    pool_of,
    simulated,
    verdict_of,
)
from tests.review_pages import verdict


@pytest.fixture
def store(tmp_path: Path) -> ReviewStore:
    return ReviewStore(tmp_path / "reviews.db")


@pytest.fixture
def monitor(store: ReviewStore) -> RiskMonitor:
    return Monitors(store).risk("risk", ARTIFACT, min_audit_rate=0.5)


def stream(rng: np.random.Generator, n: int, rates: tuple[float, ...] = (RATE,)) -> ReviewPool:
    """n questions with u uniform and P(wrong | u) = .6 u: SCER(t) = .3 t. Held back: all; accepted: audited."""
    items = []
    for i in range(n):
        u = float(rng.random())
        correct = bool(rng.random() >= 0.6 * u)
        rate = rates[i % len(rates)] if u <= THRESHOLD else 1.0
        if rng.random() < rate:
            items.append(simulated(f"{rng.integers(2**60)}", u, correct, rate))
    return pool_of(*items)


def means(values: list[float]) -> tuple[float, float]:
    """Mean and four standard errors of it: missed with probability below .0001."""
    return float(np.mean(values)), 4 * float(np.std(values)) / math.sqrt(len(values))


@pytest.mark.parametrize("rates", [pytest.param((0.4,), marks=pytest.mark.slow), (0.2, 0.8)])
def test_the_accepted_error_is_estimated_without_bias(rates: tuple[float, ...]) -> None:
    rng = np.random.default_rng(1)
    results = [accepted_error(stream(rng, 400, rates)) for _ in range(150)]
    estimates = [result.estimate for result in results if result is not None]
    mean, margin = means(estimates)
    truth = 0.3 * THRESHOLD
    assert len(estimates) == 150
    assert abs(mean - truth) < margin
    missed = sum(result is not None and not result.low <= truth <= result.high for result in results)
    assert missed <= 16  # at most 7.5 are expected; binomial(150, .05) exceeds 16 with probability .002
    shares = [result.acceptance for result in results if result is not None]
    mean, margin = means(shares)
    assert abs(mean - THRESHOLD) < margin


def test_unweighted_audits_of_two_rates_would_be_biased_where_rates_go_with_errors() -> None:
    """The negative control: the surer half is audited rarely, so plain shares see too many errors."""
    rng = np.random.default_rng(2)
    plain, weighted = [], []
    for _ in range(80):
        items = []
        for i in range(400):
            u = float(rng.random()) * THRESHOLD
            rate = 0.2 if u < THRESHOLD / 2 else 1.0
            if rng.random() < rate:
                items.append(simulated(f"{i}", u, bool(rng.random() >= 0.6 * u), rate))
        plain.append(float(np.mean([not audited.correct for audited in items])))
        estimate = accepted_error(pool_of(*items))
        assert estimate is not None
        weighted.append(estimate.estimate)
    mean, margin = means(weighted)
    assert abs(mean - 0.3 * THRESHOLD) < margin
    mean, margin = means(plain)
    assert mean - 0.3 * THRESHOLD > 2 * margin


@pytest.mark.parametrize("rates", [pytest.param((0.4,), marks=pytest.mark.slow), (0.2, 0.8)])
def test_the_thinned_sample_is_like_the_questions_and_the_pool_is_not(rates: tuple[float, ...]) -> None:
    rng = np.random.default_rng(3)
    errors, scores, pooled, sizes = [], [], [], []
    for _ in range(100):
        pool = stream(rng, 400, rates)
        sample, rate = thinned(pool)
        assert rate == min(rates)
        sizes.append(len(sample))
        errors += [float(not reviewed_item.correct) for reviewed_item in sample]
        scores += [reviewed_item.verdict.uncertainty.value or 0.0 for reviewed_item in sample]
        pooled += [float(not reviewed_item.correct) for reviewed_item in pool.items]
    mean, margin = means(errors)
    assert abs(mean - 0.3) < margin  # .6 E[u]
    mean, margin = means(scores)
    assert abs(mean - 0.5) < margin
    mean, margin = means([float(size) for size in sizes])
    assert abs(mean - 400 * min(rates)) < margin
    mean, margin = means(pooled)
    assert mean - 0.3 > 3 * margin


def test_a_certified_rule_on_the_sample_keeps_its_promise() -> None:
    rng, broken, answered, runs = np.random.default_rng(4), 0, 0, 80
    for _ in range(runs):
        sample, _ = thinned(stream(rng, 500))
        u = np.array([reviewed_item.verdict.uncertainty.value for reviewed_item in sample])
        error = np.array([not reviewed_item.correct for reviewed_item in sample], dtype=int)
        outcome = fit(u, error, alpha=0.15, rule="certified", delta=0.1)
        if isinstance(outcome, Feasible):
            answered += 1
            broken += 0.3 * outcome.threshold > 0.15
    assert answered > 27
    assert broken / runs <= 0.1 + 3.1 * math.sqrt(0.09 / runs)


@pytest.mark.parametrize(
    ("missing", "audited", "wrong"),
    [
        ("wait", 3, 2),  # a, b, whose time is over, and c, which ends the sample
        ("wrong", 4, 2),
        ("leave-out", 2, 0),
    ],
)
def test_what_nobody_decided_counts_as_asked(missing: Missing, audited: int, wrong: int) -> None:
    a, d = item("a", 0.1, True, 0.5), item("d", 0.2, True, 0.5)
    b, c = item("b", 0.2, None, 0.5, open=False), item("c", 0.2, None, 0.5)
    result = accepted_error(pool_of(a, b, c, d), missing=missing)
    assert result is not None
    assert (result.audited, result.wrong) == (audited, wrong)


def test_the_interval_counts_what_nobody_decided_both_ways() -> None:
    """Ten right answers, two open ones: the first of them ends the sample."""
    items = [*(item(f"{i}", 0.1, True, 0.5) for i in range(10)), item("x", 0.1, None, 0.5), item("y", 0.1, None, 0.5)]
    result = accepted_error(pool_of(*items))
    assert result is not None
    assert (result.audited, result.wrong, result.undecided) == (11, 1, 1)
    assert result.estimate == pytest.approx(1 / 11)
    assert result.low == 0.0  # of 0 among 11
    assert result.high == interval(1, 11)[1]
    assert accepted_error(pool_of(items[-1], *items[:3])) is None  # the oldest is the open one


def test_a_sample_that_ends_with_an_open_item_keeps_the_promise() -> None:
    """Wrong answers are decided after 30 arrivals, right ones after 2, at a rate of alpha: any threshold is a failure.

    A certified fit may end with one in at most delta = .1 of queues; a rule that fails in exactly 10 % exceeds the
    limit with probability .0001. Negative control: without the open item the tail is a run of right answers.
    """
    rng, runs, n, alpha = np.random.default_rng(5), 800, 60, 0.15
    accepted = {"with": 0, "without": 0}
    estimates: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(runs):
        wrong = rng.random(n) < alpha
        still_open = np.where(wrong, 30, 2) > np.arange(n, 0, -1)
        queue = [
            replace(TEMPLATES[True], correct=None if one_open else not one_wrong, open=one_open)
            for one_wrong, one_open in zip(wrong.tolist(), still_open.tolist(), strict=True)
        ]
        error = np.array([not reviewed_item.correct for reviewed_item in settled(queue, "wait")], dtype=int)
        if not error.size:  # the oldest item is open
            continue
        u = rng.random(len(error))
        for kind, end in (("with", len(error)), ("without", len(error) - still_open.any())):
            outcome = fit(u[:end], error[:end], alpha=alpha, rule="certified", delta=0.1)
            accepted[kind] += isinstance(outcome, Feasible)
            estimates[kind].append(float(error[:end].mean()))
    limit = int(stats.binom.ppf(1 - 1e-4, runs, 0.1))
    assert accepted["with"] <= limit
    assert accepted["with"] < accepted["without"]
    mean, margin = means(estimates["without"])
    assert mean + margin < alpha < means(estimates["with"])[0] + margin  # too low, and not too low


def test_a_monitor_takes_each_audit_once_and_in_order(monitor: RiskMonitor) -> None:
    """The decided audits behind an open one would mislead it: which are decided first may depend on their labels."""
    items = [item(f"{i}", 0.1, False, 0.5) for i in range(6)]
    one_open = pool_of(*items[:2], item("2", 0.1, None, 0.5), *items[3:])
    assert (
        feed(one_open, monitor, missing="wrong") == 2
    )  # a monitor takes nothing back, so no open audit is wrong to it
    assert feed(one_open, monitor) == 0
    assert feed(pool_of(*items), monitor) == 4
    assert monitor.alarm is not None
    assert monitor.state.tallies == ((0.5, 6, 6),)


def test_a_monitor_is_fed_the_audits_of_its_own_artifact(monitor: RiskMonitor) -> None:
    other = item("b", 0.1, None, 0.5, verdict=verdict_of("b", 0.1, artifact_of(alpha=0.2)))
    pool = pool_of(item("a", 0.1, True, 0.5), other, item("c", 0.1, False, 0.5))
    assert feed(pool, monitor) == 2
    assert monitor.state.tallies == ((0.5, 2, 1),)
    assert monitor.state.artifact == ARTIFACT.digest


def test_what_waits_for_an_open_item_is_counted_with_the_ways_out() -> None:
    items = [
        item("a", 0.1, True, 0.5),
        item("b", 0.1, None, 0.5),
        item("c", 0.1, None, 0.5),
        item("d", 0.1, True),
        item("e", 0.1, False),
    ]
    told = waiting(items, "wait", "decided audits")
    assert told is not None
    assert "2 decided audits wait behind item b, open since 2025-06-15 15:06 UTC" in told
    assert "--missing wrong" in told
    assert "--missing leave-out" in told
    assert waiting(items, "wrong") is None
    assert waiting(items, "leave-out") is None
    assert waiting(items[:3], "wait") is None  # two are open, and nothing that is decided waits for them
    assert waiting(items[3:], "wait") is None


def labels(store: ReviewStore) -> list[bool | None]:
    return [one.correct for one in read_reviews(store, [ARTIFACT]).items]


def test_only_an_approved_answer_is_right(store: ReviewStore) -> None:
    for action in ("approve", "edit", "reject", "respond"):
        store.enqueue(content_of(verdict_of(action, 0.9), [HumanMessage(action)]), key=action)
    decide(store, lambda content: content.question)
    assert labels(store) == [True, False, False, False]


def test_the_same_answer_has_one_label_and_the_worse_of_two(store: ReviewStore) -> None:
    """Else the same answer would be right and wrong in one fit."""
    content = content_of(verdict_of("a", 0.9), [HumanMessage("a")])
    store.enqueue(content, key="a1")
    decide(store, lambda _: "approve")
    store.enqueue(content, key="a2")
    assert labels(store) == [True, True]  # nobody has decided the second one yet
    decide(store, lambda _: "reject")
    assert labels(store) == [False, False]
    assert read_reviews(store, [ARTIFACT]).both_ways == 2


def test_of_two_people_who_disagree_about_one_answer_in_two_threads_the_stricter_counts(store: ReviewStore) -> None:
    """The fit refused two labels of one answer, and nothing in a review store could be removed."""
    audit(store, range(40))
    decide(store, lambda _: "approve")
    for thread in ("a", "b", "c"):
        content = content_of(verdict_of("x", 0.9), [HumanMessage("x")], metadata={"thread_id": thread})
        store.enqueue(content, key=thread)
    for action in ("approve", "reject"):
        lease = store.claim("ada")
        assert lease is not None
        store.decide(lease, Decision(action=action))
    pool = read_reviews(store, [ARTIFACT])
    assert [one.correct for one in pool.items[40:]] == [False, False, None], "nobody has decided in the third thread"
    assert pool.both_ways == 2
    assert learn(pool, ARTIFACT, name="reviews", missing="leave-out").rate == 1.0


def test_equal_words_in_two_conversations_are_two_questions(store: ReviewStore) -> None:
    """Else one "And there?" of the calibration would keep every other one out of the test part."""
    sample = audit_sample(store, 1.0)
    for i in range(20):
        turns = [HumanMessage(f"Sights of city {i}?"), AIMessage("Many."), HumanMessage("And there?")]
        sample(verdict_of(f"{i}", 0.1), turns)
    decide(store, lambda _: "approve")
    learned = learn(read_reviews(store, [ARTIFACT]), ARTIFACT, name="reviews")
    records = [*learned.test, *learned.file.records]
    assert {record.question for record in records} == {"And there?"}
    assert len(set(table_of(records).asked_hashes().tolist())) == 20


def test_a_question_that_users_repeat_is_in_the_fit_or_in_the_test() -> None:
    """With users who ask the same things every day nothing could be learned: the test met questions of the fit."""
    items = [item(f"{i}", i % 10 / 10, i % 3 > 0, question=f"Question {i % 20}?") for i in range(60)]
    learned = learn(pool_of(*items), ARTIFACT, name="reviews")
    tested, fitted = ({record.question for record in part} for part in (learned.test, learned.file.records))
    assert (len(tested), len(fitted), tested & fitted) == (6, 14, set())  # 30 % of 20 questions
    assert len(learned.test) + len(learned.file.records) == 60


def test_end_to_end_with_a_guard(store: ReviewStore) -> None:
    script = {f"sure {i}?": ["yes"] for i in range(8)} | {f"unsure {i}?": [*"abcdefghijk"] for i in range(4)}
    model = ScriptedChat(script=script)
    artifact = make_artifact(model, threshold=0.5)
    guard = Guardrail(model=model, artifact=artifact, on_verdict=audit_sample(store, 1.0), on_abstain=ticket(store))
    for question in script:
        guard.invoke(question)
    decide(store, lambda content: "approve" if content.question.startswith("sure") else "reject")
    learned = learn(read_reviews(store, [artifact]), artifact, name="reviews", rule="empirical", test_fraction=0.5)
    assert (learned.rate, len(learned.sample)) == (1.0, 12)
    assert isinstance(learned.artifact.outcome, Feasible)
    assert learned.artifact.outcome.threshold == 0.0
    assert isinstance(learned.new, GateCounts)
    assert (learned.new.n + len(learned.file.records), learned.new.n_errors) == (12, 0)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make_artifact(ScriptedChat(name_of_model="other")), "model model: calibrated 'scripted'"),
        (make_artifact(ScriptedChat(), n=5), "plan"),
    ],
)
def test_artifacts_of_two_procedures_are_refused(store: ReviewStore, other: CalibrationArtifact, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_reviews(store, [ARTIFACT, other])


def test_held_back_answers_alone_are_refused_where_some_were_accepted() -> None:
    pool = pool_of(item("a", 0.9, True))
    assert accepted_error(pool) is None
    with pytest.raises(UsageError, match="was audited"):
        thinned(pool)


def test_held_back_answers_alone_are_enough_where_none_was_accepted() -> None:
    held_back = item("a", 0.9, True, verdict=verdict_of("a", 0.9, artifact_of(threshold=None)))
    assert thinned(pool_of(held_back)) == ([held_back], 1.0)


def test_bounds_instead_of_scores_are_refused() -> None:
    score = Uncertainty(value=0.1, unit="probability", estimator="two_stage", is_bound=True, first=0.1)
    bound = item("a", 0.1, True, 0.5, verdict=verdict_of("a", 0.1).model_copy(update={"uncertainty": score}))
    with pytest.raises(UsageError, match="the first of two stages decided 1 of 1"):
        learn(pool_of(bound), ARTIFACT, name="x")


def test_reviews_of_two_procedures_are_not_pooled(store: ReviewStore) -> None:
    """Their scores are not comparable, so one threshold on both would mean nothing."""
    other = ARTIFACT.model_copy(update={"plan": ARTIFACT.plan.model_copy(update={"max_tokens": 7})})
    with pytest.raises(UsageError, match=rf"max_tokens: {ARTIFACT.digest[:19]} \d+, {other.digest[:19]} 7"):
        read_reviews(store, [ARTIFACT, other])


def test_an_accepted_answer_without_its_rate_is_refused(store: ReviewStore) -> None:
    store.enqueue(content_of(verdict_of("a", 0.1), (), kind="audit", metadata={AUDIT_RATE: 0}))
    with pytest.raises(UsageError, match="audit rate"):
        read_reviews(store, [ARTIFACT])


@pytest.mark.parametrize(
    "instead",
    [
        Candidate(text="I will not transfer anything."),
        Candidate(text="", tool_calls=(ToolCall(name="pay", arguments={"to": "a"}),) * 2),
    ],
)
def test_a_call_that_a_person_replaced_by_something_else_was_wrong(tmp_path: Path, instead: Candidate) -> None:
    """It would be learned as right, and the gate would let such calls through."""
    call = ToolCall(name="pay", arguments={"to": "a"})
    drawn = SampleSet(question="q", primary=Sample(text="", tool_calls=(call,)))
    asked = Record(id="1", question="q", messages=({"role": "user", "content": "q"},), drawn=drawn)
    with ReviewStore(tmp_path / "reviews.db") as store:
        shown = Candidate(text="", tool_calls=(call,))
        content = Content(question="q", kind="tool_call", candidate=shown, verdict=verdict(record=asked.id))
        store.enqueue(content)
        claimed = store.claim("ann")
        assert claimed is not None
        store.decide(claimed, Decision(action="edit", reviewer="ann", candidate=instead))
        (step,), _ = reviews_of_store(store, {asked.id: asked})
    assert step.correct is False
