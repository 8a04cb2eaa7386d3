"""From people's decisions to labels, estimates and a new threshold: on a real store, and over many simulated ones."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from scipy import stats

from calibrate.data.records import read_records
from calibrate.data.table import table_of
from calibrate.fitting import fit
from calibrate.judging import GateCounts
from calibrate.reviews import (
    Missing,
    Respond,
    ReviewedItem,
    ReviewPool,
    Waiting,
    accepted_error,
    feed,
    learn,
    read_reviews,
    thinned,
    waiting,
)
from calibrate.reviews.pool import settled
from calibrate.rules.certificate import interval
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.judges import ToolCallJudge
from guardrail.outcome import Feasible
from guardrail.review import Content, Decision, ReviewStore, RiskMonitor, ticket
from guardrail.review.hooks import AUDIT_RATE, audit_sample, content_of
from guardrail.review.monitors import Monitors
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Sample, Uncertainty
from guardrail.uncertainty import make_estimator
from guardrail.verdict import Reason, Verdict
from tests.calibrate.commands import run

MODEL = ScriptedChat()
THRESHOLD, RATE = 0.3, 0.4


def artifact_of(threshold: float | None = THRESHOLD, alpha: float = 0.15) -> CalibrationArtifact:
    """The artifact in force. Its rule has to be a rule that can be fitted again."""
    base = make_artifact(MODEL, threshold=threshold, alpha=alpha)
    return base.model_copy(update={"outcome": base.outcome.model_copy(update={"rule": "empirical"})})


ARTIFACT = artifact_of()


def verdict_of(name: str, u: float, artifact: CalibrationArtifact = ARTIFACT) -> Verdict:
    """The verdict of a guard with that artifact on a score."""
    accepted = artifact.threshold is not None and u <= artifact.threshold
    return Verdict(
        accepted=accepted,
        reason=Reason.WITHIN_THRESHOLD if accepted else Reason.ABOVE_THRESHOLD,
        uncertainty=Uncertainty(value=u, unit="nats", estimator="e"),
        threshold=artifact.threshold,
        alpha=artifact.alpha,
        outcome=artifact.outcome,
        basis=Basis.SAMPLES,
        artifact=artifact.digest,
        candidate=Sample(text=f"answer {name}"),
    )


def item(name: str, u: float, correct: bool | None, chance: float = 1.0, **changes: object) -> ReviewedItem:
    reviewed_item = ReviewedItem(
        key=name,
        name=name,
        question=f"question {name}?",
        group=None,
        verdict=verdict_of(name, u),
        chance=chance,
        correct=correct,
        open=correct is None,
        action=None if correct is None else "approve" if correct else "reject",
    )
    return replace(reviewed_item, **changes)  # type: ignore[arg-type]


def pool_of(*items: ReviewedItem) -> ReviewPool:
    return ReviewPool(items, {}, 0)


@pytest.fixture
def store(tmp_path: Path) -> ReviewStore:
    return ReviewStore(tmp_path / "reviews.db")


@pytest.fixture
def monitor(store: ReviewStore) -> RiskMonitor:
    return Monitors(store).risk("risk", ARTIFACT, min_audit_rate=0.5)


TEMPLATES = {accepted: item("template", 0.0 if accepted else 1.0, True) for accepted in (True, False)}


def simulated(name: str, u: float, correct: bool, chance: float) -> ReviewedItem:
    """`item`, without validating each verdict anew."""
    template = TEMPLATES[u <= THRESHOLD]
    score = template.verdict.uncertainty.model_copy(update={"value": u})
    verdict = template.verdict.model_copy(update={"uncertainty": score})
    return replace(template, key=name, name=name, verdict=verdict, correct=correct, chance=chance)


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
    assert feed(one_open, monitor) == 2
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
    first = item("b", 0.1, None, 0.5, arrived=1_750_000_000.0)
    items = [item("a", 0.1, True, 0.5), first, item("c", 0.1, None, 0.5), item("d", 0.1, True), item("e", 0.1, False)]
    queue = waiting(items)
    assert queue == Waiting(decided=2, item="b", arrived=1_750_000_000.0)
    told = queue.describe("decided audits")
    assert "2 decided audits wait behind item b, open since 2025-06-15 15:06 UTC" in told
    assert "--missing wrong" in told
    assert "--missing leave-out" in told
    assert waiting(items, "wrong") is None
    assert waiting(items, "leave-out") is None
    assert waiting(items[:3]) is None  # two are open, and nothing that is decided waits for them
    assert waiting(items[3:]) is None


def test_decisions_that_only_wait_are_named_where_nothing_can_be_used() -> None:
    items = (item("b", 0.1, None), *(item(f"{i}", 0.1, True) for i in range(3)))
    with pytest.raises(UsageError, match=r"1 of them still open.* 3 decisions wait behind item b"):
        thinned(pool_of(*items))


# -- on a real store --------------------------------------------------------------------------------------------------


def decide(store: ReviewStore, action: Callable[[Content], str]) -> None:
    """Scripted people: they claim what there is and decide by its content."""
    while (lease := store.claim("ada")) is not None:
        content = lease.item.content
        chosen = action(content)
        edited = content.candidate if chosen == "edit" else None
        own = "mine" if chosen == "respond" else None
        store.decide(lease, Decision(action=chosen, candidate=edited, text=own))


def fill(store: ReviewStore, n: int, seed: int = 0, artifact: CalibrationArtifact = ARTIFACT) -> None:
    """The population of `stream`, in a store, decided."""
    rng, sample = np.random.default_rng(seed), audit_sample(store, RATE, key=lambda verdict, _: str(verdict.candidate))
    right: dict[str, bool] = {}
    for i in range(n):
        u = float(rng.random())
        verdict, question = verdict_of(f"{seed}.{i}", u, artifact), f"question {seed}.{i}?"
        right[question] = bool(rng.random() >= 0.6 * u)
        if verdict.accepted:
            sample(verdict, [HumanMessage(question)])
        else:
            store.enqueue(content_of(verdict, [HumanMessage(question)]), key=f"held:{seed}.{i}")
    decide(store, lambda content: "approve" if right[content.question] else "reject")


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 decided questions; the artifact in force lies beside the store."""
    path = tmp_path_factory.mktemp("reviews") / "reviews.db"
    with ReviewStore(path) as store:
        fill(store, 500)
    ARTIFACT.save(path.with_name("artifact.json"))
    return path


@pytest.fixture(scope="module")
def learning(reviewed: Path) -> tuple[object, ...]:
    """The words of a refit on the 500 questions."""
    return ("learn", reviewed, "--artifact", reviewed.with_name("artifact.json"))


@pytest.fixture(scope="module")
def refit(reviewed: Path, learning: tuple[object, ...]) -> tuple[str, CalibrationArtifact]:
    """The output of the refit, and the new artifact, which lies beside the store."""
    new = reviewed.with_name("new.json")
    return run(*learning, "--out", new), CalibrationArtifact.load(new)


def test_a_refit_changes_the_threshold_and_not_the_procedure(refit: tuple[str, CalibrationArtifact]) -> None:
    """Otherwise the new threshold would be used on scores of another kind."""
    shown, new = refit
    for part in ("model", "plan", "prompt", "estimator"):
        assert getattr(new, part) == getattr(ARTIFACT, part)
    assert new.correctness.params == {"source": "reviews", "respond": "wrong", "missing": "wait", "rate": RATE}
    assert (new.outcome.rule, new.alpha) == ("empirical", 0.15)
    assert isinstance(new.outcome, Feasible)
    assert new.outcome.threshold > THRESHOLD  # SCER(.5) = .15, and the old one stopped at .3
    assert "every question is in it with probability 40 %" in shown
    assert re.search(r"in force \S* ?0\.3\b", shown)
    assert "fits have used" not in shown


def test_a_second_refit_finds_the_same(
    reviewed: Path, learning: tuple[object, ...], refit: tuple[str, CalibrationArtifact], tmp_path: Path
) -> None:
    """The first one left the artifact in force alone, and the records of its fit beside the new one."""
    run(*learning, "--out", tmp_path / "again.json")
    assert CalibrationArtifact.load(tmp_path / "again.json").outcome == refit[1].outcome
    before = ARTIFACT.save(tmp_path / "before.json").read_bytes()
    assert reviewed.with_name("artifact.json").read_bytes() == before
    assert len(read_records(reviewed.with_name("new.records.jsonl")).records) == refit[1].data.n_used


def test_learn_feeds_a_monitor_every_audit_once(reviewed: Path, learning: tuple[object, ...]) -> None:
    shown = run(*learning, "--monitor", "risk")
    with ReviewStore(reviewed) as store:
        audits = [one.correct for one in read_reviews(store, [ARTIFACT]).items if one.audited]
        tallies = Monitors(store).risk("risk", ARTIFACT, min_audit_rate=RATE).state.tallies
    wrong = audits.count(False)
    assert tallies == ((RATE, len(audits), wrong),)
    assert f"({wrong} of {len(audits)} audited wrong" in shown
    assert f"Monitor risk: {len(audits)} new audits" in shown
    assert "Monitor risk: 0 new audits" in run(*learning, "--monitor", "risk")


def test_a_refit_without_a_threshold_says_what_to_do(learning: tuple[object, ...], tmp_path: Path) -> None:
    """ "--alpha smallest", which it names, then promises what the decisions can certify."""
    out, command = tmp_path / "smallest.json", (*learning, "--rule", "certified", "--out")
    shown = run(*command, tmp_path / "strict.json", "--alpha", "0.001")
    assert f"Next: keep {learning[-1]}, decide about more answers" in shown
    assert "--alpha smallest" in shown
    run(*command, out, "--alpha", "smallest")
    outcome = CalibrationArtifact.load(out).outcome
    assert isinstance(outcome, Feasible)
    assert (outcome.options["alpha"], 0.001 < outcome.alpha < 0.5) == ("smallest", True)


def test_the_table_shows_both_on_the_same_questions(reviewed: Path) -> None:
    with ReviewStore(reviewed) as store:
        pool = read_reviews(store, [ARTIFACT])
    learned = learn(pool, ARTIFACT, name="reviews")
    assert isinstance(learned.old, GateCounts)
    assert isinstance(learned.new, GateCounts)
    assert learned.old.n == learned.new.n == len(learned.test)
    assert {record.id for record in learned.test}.isdisjoint({record.id for record in learned.file.records})
    scores = [(record.scores[ARTIFACT.estimator.name].value or 0.0, record.correct) for record in learned.test]
    accepted = [correct for score, correct in scores if score <= THRESHOLD]
    assert learned.old.n_accepted == len(accepted)
    assert learned.old.n_errors == accepted.count(False)
    assert learned.used == len(learned.test) + len(learned.file.records)


def test_of_a_gate_on_calls_it_speaks_of_calls(store: ReviewStore, tmp_path: Path) -> None:
    """Nobody knows what "questions answered" counts where an agent's transfers are let through."""
    spec = make_estimator("primary_disagreement", judge=ToolCallJudge()).spec
    own = ARTIFACT.model_copy(update={"estimator": spec})
    fill(store, 60, artifact=own)
    shown = run("learn", tmp_path / "reviews.db", "--artifact", own.save(tmp_path / "own.json"))
    assert "Error among calls let through: " in shown
    assert "of the measured calls were let through." in shown


@pytest.fixture(scope="module")
def second_turn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Answers of two gates: `--artifact a1 --earlier a0`, where a1 was fitted on reviews of a0. Output and folder."""
    folder = tmp_path_factory.mktemp("turns")
    store, a0, a1, a2 = (folder / name for name in ("reviews.db", "a0.json", "a1.json", "a2.json"))
    ARTIFACT.save(a0)
    with ReviewStore(store) as opened:
        fill(opened, 200)
        run("learn", store, "--artifact", a0, "--out", a1)
        fill(opened, 300, seed=1, artifact=CalibrationArtifact.load(a1))
    return run("learn", store, "--artifact", a1, "--earlier", a0, "--out", a2), folder


def test_the_second_turn_is_a_second_fit_and_shows_the_error_of_each_gate(second_turn: tuple[str, Path]) -> None:
    shown, folder = second_turn
    assert "Error among answers given by a1.json: " in shown
    assert "Error among answers given by a0.json: " in shown
    new = CalibrationArtifact.load(folder / "a2.json")
    assert new.spent is not None
    assert (new.outcome.rule, new.spent.fits, new.spent.delta) == ("empirical", 2, 0.0)
    assert "fits have used" not in shown  # rule empirical certifies nothing, so that no confidence is lost


def test_the_second_turn_tests_on_what_the_gate_in_force_has_not_met(second_turn: tuple[str, Path]) -> None:
    """On its own calibration questions the gate in force would look better than it is."""
    _, folder = second_turn
    old, new = (CalibrationArtifact.load(folder / name) for name in ("a1.json", "a2.json"))
    with ReviewStore(folder / "reviews.db") as store:
        learned = learn(read_reviews(store, [old, ARTIFACT]), old, name="reviews")
    tested = set(table_of(learned.test).asked_hashes().tolist())
    assert tested.isdisjoint(old.data.hashes)
    assert tested.isdisjoint(new.data.hashes)
    assert len(tested) > 30


def labels(store: ReviewStore, respond: Respond = "wrong") -> list[bool | None]:
    return [one.correct for one in read_reviews(store, [ARTIFACT], respond=respond).items]


def test_only_an_approved_answer_is_right(store: ReviewStore) -> None:
    for action in ("approve", "edit", "reject", "respond"):
        store.enqueue(content_of(verdict_of(action, 0.9), [HumanMessage(action)]), key=action)
    decide(store, lambda content: content.question)
    assert labels(store) == [True, False, False, False]
    assert labels(store, respond="leave-out") == [True, False, False, None]


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


def test_end_to_end_with_a_guard(store: ReviewStore) -> None:
    script = {f"sure {i}?": ["yes"] for i in range(8)} | {f"unsure {i}?": [*"abcdefghijk"] for i in range(4)}
    model = ScriptedChat(script=script)
    artifact = make_artifact(model, threshold=0.5)
    guard = Guardrail(model=model, artifact=artifact, on_verdict=audit_sample(store, 1.0), on_abstain=ticket(store))
    for question in script:
        guard.invoke(question)
    decide(store, lambda content: "approve" if content.question.startswith("sure") else "reject")
    learned = learn(read_reviews(store, [artifact]), artifact, name="reviews", rule="empirical", test_fraction=0.5)
    assert (learned.rate, learned.used) == (1.0, 12)
    assert isinstance(learned.artifact.outcome, Feasible)
    assert learned.artifact.outcome.threshold == 0.0
    assert isinstance(learned.new, GateCounts)
    assert (learned.new.n + len(learned.file.records), learned.new.n_errors) == (12, 0)


def audit(store: ReviewStore, numbers: Iterable[int], artifact: CalibrationArtifact = ARTIFACT) -> None:
    """Queue an audit of an answer that the artifact accepted, for each number."""
    sample = audit_sample(store, 1.0)
    for i in numbers:
        name = f"{artifact.digest} {i}"
        sample(verdict_of(name, 0.1, artifact), [HumanMessage(f"question {name}?")])


@pytest.fixture
def on_audits(store: ReviewStore, tmp_path: Path) -> tuple[object, ...]:
    """The words of a refit on the queue of `store`."""
    return ("learn", tmp_path / "reviews.db", "--artifact", ARTIFACT.save(tmp_path / "artifact.json"))


def test_one_open_audit_is_named_with_what_waits_behind_it(store: ReviewStore, on_audits: tuple[object, ...]) -> None:
    audit(store, range(20))
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda _: "approve")
    shown = run(*on_audits, "--monitor", "risk")
    assert f"19 decided audits wait behind item {hard.item.id}, open since 20" in shown
    assert f"Decide that item (/items/{hard.item.id} on the review page" in shown
    assert "No audited answer has been decided" not in shown
    assert "The oldest audit is still open, so nothing is known" in shown
    assert f"0 new audits, 0 in all; 19 decided ones wait behind item {hard.item.id};" in shown
    store.decide(hard, Decision(action="approve"))
    shown = run(*on_audits, "--monitor", "risk")
    assert "20 new audits, 20 in all; wealth" in shown
    assert "wait behind" not in shown


def test_no_decided_audit_is_called_that(store: ReviewStore, on_audits: tuple[object, ...]) -> None:
    audit(store, range(3))
    assert "No audited answer has been decided" in run(*on_audits)


def test_the_line_of_the_sample_says_what_waits(
    store: ReviewStore, on_audits: tuple[object, ...], tmp_path: Path
) -> None:
    """40 audits, of which the 31st stays open: 30 are used, and that one as wrong; 9 wait."""
    audit(store, range(30))
    decide(store, lambda _: "approve")
    audit(store, range(30, 40))
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda _: "approve")
    shown = run(*on_audits, "--out", tmp_path / "new.json")
    assert "Sample: 30 of 39 decisions, and 1 undecided, counted as wrong, so that" in shown
    assert "Error among answers given: 3.2 % (1 of 31 audited wrong, 1 of them undecided; 95 % interval 0 %" in shown
    assert f"9 more decisions of the sample wait behind item {hard.item.id}" in shown


def test_a_monitor_of_another_artifact_is_not_fed(
    store: ReviewStore, on_audits: tuple[object, ...], tmp_path: Path
) -> None:
    second = artifact_of(threshold=0.2)
    audit(store, range(5))
    audit(store, range(5), second)
    decide(store, lambda _: "approve")
    command = (*on_audits, "--ignore-others", "--monitor", "risk")
    assert "5 new audits, 5 in all" in run(*command)
    shown = run(*command, "--artifact", second.save(tmp_path / "second.json"), code=2)
    assert ARTIFACT.digest in shown
    assert second.digest in shown
    assert "new name" in shown
    monitor = Monitors(store).known_risk("risk", ARTIFACT)
    assert monitor is not None
    assert (monitor.state.n, monitor.state.artifact) == (5, ARTIFACT.digest)


def test_an_acknowledged_monitor_that_is_fed_says_that_it_never_alarms_again(
    store: ReviewStore, on_audits: tuple[object, ...]
) -> None:
    audit(store, range(20))
    decide(store, lambda _: "reject")
    assert "never alarms again" not in run(*on_audits, "--monitor", "risk")
    Monitors(store).acknowledge("risk", who="ada")
    audit(store, [0])
    assert "was acknowledged: it never alarms again" in run(*on_audits, "--monitor", "risk")


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_the_queue_of_another_artifact_is_refused_unless_it_is_named(reviewed: Path, tmp_path: Path) -> None:
    other = artifact_of(alpha=0.2).save(tmp_path / "other.json")
    shown = run("learn", reviewed, "--artifact", other, code=2)
    assert ARTIFACT.digest in shown
    assert "--earlier" in shown
    run("learn", reviewed, "--artifact", other, "--earlier", reviewed.with_name("artifact.json"))


@pytest.mark.parametrize(
    ("stranger", "message"),
    [
        (make_artifact(ScriptedChat(name_of_model="other")), "model model: calibrated 'scripted'"),
        (make_artifact(MODEL, n=5), "plan"),
    ],
)
def test_artifacts_of_two_procedures_are_refused(reviewed: Path, stranger: CalibrationArtifact, message: str) -> None:
    with ReviewStore(reviewed) as store, pytest.raises(UsageError, match=message):
        read_reviews(store, [ARTIFACT, stranger])


def test_an_existing_artifact_and_a_missing_store_are_refused(learning: tuple[object, ...], tmp_path: Path) -> None:
    old = learning[-1]
    assert "exists" in run(*learning, "--out", old, code=2)
    assert "no review store" in run("learn", tmp_path / "no.db", "--artifact", old, code=2)
    assert not (tmp_path / "no.db").exists()


def test_learn_tells_no_monitor_that_an_open_audit_is_wrong(reviewed: Path, learning: tuple[object, ...]) -> None:
    """A monitor forgets nothing: the decision that comes later could not correct it."""
    shown = run(*learning, "--monitor", "new", "--missing", "wrong", code=2)
    assert "count open audits as wrong forever" in shown
    with ReviewStore(reviewed) as store:
        assert Monitors(store).known_risk("new", ARTIFACT) is None


def test_feed_tells_no_monitor_that_an_open_audit_is_wrong(monitor: RiskMonitor) -> None:
    with pytest.raises(UsageError, match="wrong forever"):
        feed(pool_of(item("a", 0.1, None, 0.5)), monitor, missing="wrong")
    assert monitor.state.n == 0


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


def test_an_accepted_answer_without_its_rate_is_refused(store: ReviewStore) -> None:
    store.enqueue(content_of(verdict_of("a", 0.1), (), kind="audit", metadata={AUDIT_RATE: 0}))
    with pytest.raises(UsageError, match="audit rate"):
        read_reviews(store, [ARTIFACT])


def test_a_crash_leaves_no_artifact_without_its_records(
    learning: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stops just before the records get their name; `test_artifact.py` has the save of an artifact."""
    replace_file = os.replace

    def crash(source: Path, target: Path) -> None:
        if Path(target).name == "new.records.jsonl":
            raise OSError("killed")
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", crash)
    run(*learning, "--out", tmp_path / "new.json", code=1)
    assert not (tmp_path / "new.json").exists()
