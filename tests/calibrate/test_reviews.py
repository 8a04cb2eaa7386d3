"""From people's decisions to labels, estimates and a new threshold: on a real store, and over many simulated ones."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
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
from calibrate.reviews.learning import _record
from calibrate.reviews.pool import settled
from calibrate.rules.certificate import interval
from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.judges import ToolCallJudge
from guardrail.outcome import Feasible
from guardrail.review import Content, Decision, ReviewStore, ticket
from guardrail.review.hooks import AUDIT_RATE, audit_sample, content_of
from guardrail.review.monitors import Monitors
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, Sample, Uncertainty, Unmeasured
from guardrail.uncertainty import make_estimator
from guardrail.verdict import Reason, Verdict
from tests.calibrate.commands import run

MODEL = ScriptedChat()
THRESHOLD, RATE = 0.3, 0.4
ROOT = Path(__file__).parents[2]


def artifact_of(threshold: float | None = THRESHOLD, alpha: float = 0.15) -> CalibrationArtifact:
    """The artifact in force. Its rule has to be a rule that can be fitted again."""
    base = make_artifact(MODEL, threshold=threshold, alpha=alpha)
    return base.model_copy(update={"outcome": base.outcome.model_copy(update={"rule": "empirical"})})


ARTIFACT = artifact_of()


def verdict_of(name: str, u: float | None, artifact: CalibrationArtifact = ARTIFACT) -> Verdict:
    """The verdict of a guard with that artifact on a score."""
    if u is None:
        score = Uncertainty(value=None, unit="nats", estimator="e", reason=Unmeasured.MODEL_FAILED, detail="down")
        reason = Reason.UNMEASURED
    else:
        score = Uncertainty(value=u, unit="nats", estimator="e")
        accepted = artifact.threshold is not None and u <= artifact.threshold
        reason = Reason.WITHIN_THRESHOLD if accepted else Reason.ABOVE_THRESHOLD
    return Verdict(
        accepted=reason is Reason.WITHIN_THRESHOLD,
        reason=reason,
        uncertainty=score,
        threshold=artifact.threshold,
        alpha=artifact.alpha,
        outcome=artifact.outcome,
        basis=Basis.SAMPLES,
        artifact=artifact.digest,
        candidate=Sample(text=f"answer {name}"),
    )


def item(name: str, u: float | None, correct: bool | None, chance: float = 1.0, **changes: object) -> ReviewedItem:
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
    return ReviewPool(tuple(items), {}, 0)


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
        estimate = accepted_error(ReviewPool(tuple(items), {}, 0))
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


def test_what_nobody_decided() -> None:
    items = (item("a", 0.1, True, 0.5), item("b", 0.2, None, 0.5, open=False), item("c", 0.2, None, 0.5))
    pool = ReviewPool((*items, item("d", 0.2, True, 0.5)), {}, 0)

    def counts(missing: str) -> tuple[int, int]:
        result = accepted_error(pool, missing=missing)  # type: ignore[arg-type]
        assert result is not None
        return result.audited, result.wrong

    assert counts("wait") == (3, 2)  # a, b, whose time is over, and c, which ends the sample
    assert counts("wrong") == (4, 2)
    assert counts("leave-out") == (2, 0)
    assert accepted_error(ReviewPool((item("a", 0.9, True),), {}, 0)) is None


def test_the_interval_counts_what_nobody_decided_both_ways() -> None:
    """Ten right answers, two open ones: the first of them ends the sample."""
    items = [*(item(f"{i}", 0.1, True, 0.5) for i in range(10)), item("x", 0.1, None, 0.5), item("y", 0.1, None, 0.5)]
    result = accepted_error(ReviewPool(tuple(items), {}, 0))
    assert result is not None
    assert (result.audited, result.wrong, result.undecided) == (11, 1, 1)
    assert result.estimate == pytest.approx(1 / 11)
    assert result.low == 0.0  # of 0 among 11
    assert result.high == interval(1, 11)[1]
    assert accepted_error(ReviewPool((items[-1], *items[:3]), {}, 0)) is None  # the oldest is the open one


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


def test_an_alarm_needs_no_waiting_but_order(tmp_path: Path) -> None:
    monitors = Monitors(ReviewStore(tmp_path / "reviews.db"))
    monitor = monitors.risk("risk", ARTIFACT, min_audit_rate=0.5)
    items = [item(f"{i}", 0.1, False, 0.5) for i in range(6)]
    waiting = [*items[:2], replace(items[2], correct=None, open=True), *items[3:]]
    assert feed(ReviewPool(tuple(waiting), {}, 0), monitor) == 2
    assert feed(ReviewPool(tuple(waiting), {}, 0), monitor) == 0
    assert feed(ReviewPool(tuple(items), {}, 0), monitor) == 4
    assert monitor.alarm is not None
    assert monitor.state.tallies == ((0.5, 6, 6),)


def test_a_monitor_is_fed_the_audits_of_its_own_artifact(tmp_path: Path) -> None:
    monitors = Monitors(ReviewStore(tmp_path / "reviews.db"))
    other = item("b", 0.1, False, 0.5, verdict=verdict_of("b", 0.1, artifact_of(alpha=0.2)))
    pool = ReviewPool(
        (item("a", 0.1, True, 0.5), replace(other, correct=None, open=True), item("c", 0.1, False, 0.5)), {}, 0
    )
    monitor = monitors.risk("risk", ARTIFACT, min_audit_rate=0.5)
    assert feed(pool, monitor) == 2
    assert monitor.state.tallies == ((0.5, 2, 1),)
    assert monitor.state.artifact == ARTIFACT.digest


def test_what_waits_for_an_open_item_is_counted() -> None:
    first = item("b", 0.1, None, 0.5, arrived=1_750_000_000.0)
    items = [item("a", 0.1, True, 0.5), first, item("c", 0.1, None, 0.5), item("d", 0.1, True), item("e", 0.1, False)]
    queue = waiting(items)
    assert queue == Waiting(decided=2, item="b", arrived=1_750_000_000.0)
    assert "2 decided audits wait behind item b, open since 2025-06-15 15:06 UTC" in queue.describe("decided audits")
    assert "--missing wrong" in queue.describe("decided audits")
    assert "--missing leave-out" in queue.describe("decided audits")
    assert waiting(items, "wrong") is None
    assert waiting(items, "leave-out") is None
    assert waiting(items[:3]) is None  # two are open, and nothing that is decided waits for them
    assert waiting(items[3:]) is None


def test_decisions_that_only_wait_are_named_where_nothing_can_be_used() -> None:
    items = (item("b", 0.1, None), *(item(f"{i}", 0.1, True) for i in range(3)))
    with pytest.raises(UsageError, match=r"1 of them still open.* 3 decisions wait behind item b"):
        thinned(ReviewPool(items, {}, 0))


# -- on a real store --------------------------------------------------------------------------------------------------


def decide(store: ReviewStore, action: Callable[[Content], str | None]) -> None:
    """Scripted people: they claim what there is and decide by its content."""
    while (lease := store.claim("ada")) is not None:
        chosen = action(lease.item.content)
        if chosen is None:
            return
        candidate = lease.item.content.candidate if chosen == "edit" else None
        decision = Decision(
            action=chosen,
            candidate=candidate,
            text="mine" if chosen == "respond" else None,
        )
        store.decide(lease, decision)


def fill(store: ReviewStore, n: int, seed: int = 0, artifact: CalibrationArtifact = ARTIFACT) -> None:
    """The population of `stream`, in a store, decided."""
    rng, sample = np.random.default_rng(seed), audit_sample(store, RATE, key=lambda verdict, _: str(verdict.candidate))
    right: dict[str, bool] = {}
    for i in range(n):
        u = float(rng.random())
        verdict = verdict_of(f"{seed}.{i}", u, artifact)
        right[f"question {seed}.{i}?"] = bool(rng.random() >= 0.6 * u)
        content = content_of(verdict, ())
        named = content.model_copy(update={"question": f"question {seed}.{i}?"})
        if verdict.accepted:
            sample(verdict, [HumanMessage(named.question)])
        else:
            store.enqueue(named, key=f"held:{seed}.{i}")
    decide(store, lambda content: "approve" if right[content.question] else "reject")


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reviews") / "reviews.db"
    with ReviewStore(path) as store:
        fill(store, 500)
    ARTIFACT.save(path.with_name("artifact.json"))
    return path


def test_a_new_artifact_from_reviews(reviewed: Path, tmp_path: Path) -> None:
    old, out, records = reviewed.with_name("artifact.json"), tmp_path / "new.json", tmp_path / "new.records.jsonl"
    before = old.read_bytes()
    shown = run("learn", reviewed, "--artifact", old, "--out", out, "--monitor", "risk")
    new = CalibrationArtifact.load(out)
    assert old.read_bytes() == before
    assert (new.model, new.plan, new.prompt, new.estimator) == (
        ARTIFACT.model,
        ARTIFACT.plan,
        ARTIFACT.prompt,
        ARTIFACT.estimator,
    )
    assert new.correctness.params == {"source": "reviews", "respond": "wrong", "missing": "wait", "rate": RATE}
    assert (new.outcome.rule, new.alpha) == ("empirical", 0.15)
    assert isinstance(new.outcome, Feasible)
    assert new.outcome.threshold > THRESHOLD  # SCER(.5) = .15, and the old one stopped at .3
    file = read_records(records)
    assert len(file.records) == new.data.n_used
    with ReviewStore(reviewed) as store:
        pool = read_reviews(store, [ARTIFACT])
        audits = [reviewed_item for reviewed_item in pool.items if reviewed_item.audited]
        wrong = sum(not reviewed_item.correct for reviewed_item in audits)
        assert Monitors(store).risk("risk", ARTIFACT, min_audit_rate=RATE).state.tallies == (
            (RATE, len(audits), wrong),
        )
    assert f"({wrong} of {len(audits)} audited wrong" in shown
    assert "every question is in it with probability 40 %" in shown
    assert re.search(r"in force \S* ?0\.3\b", shown)
    assert f"Monitor risk: {len(audits)} new audits" in shown
    shown = run("learn", reviewed, "--artifact", old, "--monitor", "risk")
    assert "Monitor risk: 0 new audits" in shown
    strict = ("--alpha", "0.001", "--rule", "certified", "--out", tmp_path / "strict.json")
    shown = run("learn", reviewed, "--artifact", old, *strict)
    assert f"Next: keep {old}, decide about more answers" in shown, "there is no threshold to use"
    again = tmp_path / "again.json"
    run("learn", reviewed, "--artifact", old, "--out", again)
    assert CalibrationArtifact.load(again).outcome == new.outcome


def test_what_the_advice_names_can_be_asked_for(reviewed: Path, tmp_path: Path) -> None:
    """An infeasible refit says "--alpha smallest", and the promise is then what the decisions can certify."""
    out, artifact = tmp_path / "smallest.json", reviewed.with_name("artifact.json")
    command = ("learn", reviewed, "--artifact", artifact, "--rule", "certified", "--out")
    assert "--alpha smallest" in run(*command, tmp_path / "new.json", "--alpha", "0.001")
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
    accepted = [
        record for record in learned.test if (record.scores[ARTIFACT.estimator.name].value or 0.0) <= THRESHOLD
    ]  # fmt: skip
    assert learned.old.n_accepted == len(accepted)
    assert learned.old.n_errors == sum(not record.correct for record in accepted)
    assert learned.used == len(learned.test) + len(learned.file.records)


def test_of_a_gate_on_calls_it_speaks_of_calls(tmp_path: Path) -> None:
    """Nobody knows what "questions answered" counts where an agent's transfers are let through."""
    spec = make_estimator("primary_disagreement", judge=ToolCallJudge()).spec
    own = ARTIFACT.model_copy(update={"estimator": spec})
    store = tmp_path / "reviews.db"
    with ReviewStore(store) as opened:
        fill(opened, 60, artifact=own)
    own.save(tmp_path / "own.json")
    shown = " ".join(run("learn", store, "--artifact", tmp_path / "own.json").split())
    assert "Error among calls let through: " in shown
    assert "of the measured calls were let through." in shown


def test_the_second_turn_tests_on_what_the_gate_in_force_has_not_met(tmp_path: Path) -> None:
    """Answers of two gates: `--artifact a1 --earlier a0`, where a1 was fitted on reviews of a0."""
    store, a0, a1, a2 = (tmp_path / name for name in ("reviews.db", "a0.json", "a1.json", "a2.json"))
    ARTIFACT.save(a0)
    with ReviewStore(store) as opened:
        fill(opened, 200)
    first = run("learn", store, "--artifact", a0, "--out", a1)
    assert "fits have used" not in first
    assert "Error among answers given: " in first
    with ReviewStore(store) as opened:
        fill(opened, 300, seed=1, artifact=CalibrationArtifact.load(a1))
    command = ("learn", store, "--artifact", a1, "--earlier", a0, "--out")
    shown = run(*command, a2)
    assert "Error among answers given by a1.json: " in shown
    assert "Error among answers given by a0.json: " in shown
    new, old = CalibrationArtifact.load(a2), CalibrationArtifact.load(a1)
    assert new.outcome.rule == "empirical"
    with ReviewStore(store) as opened:
        learned = learn(read_reviews(opened, [old, ARTIFACT]), old, name="reviews")
    tested = set(table_of(learned.test).asked_hashes().tolist())
    assert tested.isdisjoint(old.data.hashes)
    assert tested.isdisjoint(new.data.hashes)
    assert len(tested) > 30
    # It is a second fit on the decisions of the first turn, which is counted; rule empirical certifies nothing.
    assert "fits have used" not in shown
    assert new.spent is not None
    assert (new.spent.fits, new.spent.delta) == (2, 0.0)


def test_edits_and_own_answers_and_disagreement(tmp_path: Path) -> None:
    store = ReviewStore(tmp_path / "reviews.db")
    actions = {"a": "approve", "b": "edit", "c": "reject", "d": "respond"}
    for name in actions:
        content = content_of(verdict_of(name, 0.9), ())
        store.enqueue(content.model_copy(update={"question": name}), key=name)
    decide(store, lambda content: actions[content.question])
    twice = content_of(verdict_of("a", 0.9), ()).model_copy(update={"question": "a"})
    labels = {reviewed_item.key: reviewed_item.correct for reviewed_item in read_reviews(store, [ARTIFACT]).items}
    assert labels == {"a": True, "b": False, "c": False, "d": False}
    left = {
        reviewed_item.key: reviewed_item.correct
        for reviewed_item in read_reviews(store, [ARTIFACT], respond="leave-out").items
    }
    assert left["d"] is None
    store.enqueue(twice, key="a2")  # nobody has decided it, but the same answer was approved
    assert [
        reviewed_item.correct
        for reviewed_item in read_reviews(store, [ARTIFACT]).items
        if reviewed_item.question == "a"
    ] == [True, True]
    decide(store, lambda _: "reject")
    pool = read_reviews(store, [ARTIFACT])
    assert pool.both_ways == 2
    assert [reviewed_item.correct for reviewed_item in pool.items if reviewed_item.question == "a"] == [False, False]


def test_equal_words_in_two_conversations_are_two_questions(tmp_path: Path) -> None:
    """Else one "And there?" of the calibration would keep every other one out of the test part."""
    store = ReviewStore(tmp_path / "reviews.db")
    for city in ("Rome", "Oslo"):
        turns = [HumanMessage(f"Sights of {city}?"), AIMessage("Many."), HumanMessage("And there?")]
        store.enqueue(content_of(verdict_of(city, 0.9), turns), key=city)
    decide(store, lambda _: "approve")
    records = [_record(reviewed_item, "key") for reviewed_item in read_reviews(store, [ARTIFACT]).items]
    assert [record.question for record in records] == ["And there?", "And there?"]
    assert len(set(table_of(records).asked_hashes().tolist())) == 2


def test_end_to_end_with_a_guard(tmp_path: Path) -> None:
    script = {f"sure {i}?": ["yes"] for i in range(8)} | {f"unsure {i}?": [*"abcdefghijk"] for i in range(4)}
    model = ScriptedChat(script=script)
    artifact = make_artifact(model, threshold=0.5)
    store = ReviewStore(tmp_path / "reviews.db")
    guard = Guardrail(
        model=model,
        artifact=artifact,
        on_verdict=audit_sample(store, 1.0),
        on_abstain=ticket(store),
    )
    for question in script:
        guard.invoke(question)
    decide(store, lambda content: "approve" if content.question.startswith("sure") else "reject")
    learned = learn(read_reviews(store, [artifact]), artifact, name="reviews", rule="empirical", test_fraction=0.5)
    assert (learned.rate, learned.used) == (1.0, 12)
    assert isinstance(learned.artifact.outcome, Feasible)
    assert learned.artifact.outcome.threshold == 0.0
    assert isinstance(learned.new, GateCounts)
    assert (learned.new.n + len(learned.file.records), learned.new.n_errors) == (12, 0)


def audited_store(path: Path, artifact: CalibrationArtifact, n: int) -> tuple[ReviewStore, Path]:
    """A store with n audits of answers that an artifact accepted, and the artifact's file."""
    store = ReviewStore(path / "reviews.db")
    more_audits(store, artifact, n)
    return store, artifact.save(path / "artifact.json")


def more_audits(store: ReviewStore, artifact: CalibrationArtifact, n: int) -> None:
    sample = audit_sample(store, 1.0)
    for i in range(n):
        name = f"{artifact.digest} {i}"
        sample(verdict_of(name, 0.1, artifact), [HumanMessage(f"question {name}?")])


def test_one_open_audit_is_named_with_what_waits_behind_it(tmp_path: Path) -> None:
    store, artifact = audited_store(tmp_path, ARTIFACT, 20)
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda _: "approve")
    command = ("learn", tmp_path / "reviews.db", "--artifact", artifact)
    shown = run(*command, "--monitor", "risk")
    assert f"19 decided audits wait behind item {hard.item.id}, open since 20" in shown
    assert f"Decide that item (/items/{hard.item.id} on the review page" in shown
    assert "No audited answer has been decided" not in shown
    assert "The oldest audit is still open, so nothing is known" in shown
    assert f"0 new audits, 0 in all; 19 decided ones wait behind item {hard.item.id};" in shown
    store.decide(hard, Decision(action="approve"))
    shown = run(*command, "--monitor", "risk")
    assert "20 new audits, 20 in all; wealth" in shown
    assert "wait behind" not in shown


def test_no_decided_audit_is_called_that(tmp_path: Path) -> None:
    _, artifact = audited_store(tmp_path, ARTIFACT, 3)
    assert "No audited answer has been decided" in run(
        "learn", tmp_path / "reviews.db", "--artifact", artifact
    )  # fmt: skip


def test_the_line_of_the_sample_says_what_waits(tmp_path: Path) -> None:
    """40 audits, of which the 31st stays open: 30 are used, and that one as wrong; 9 wait."""
    store, artifact = audited_store(tmp_path, ARTIFACT, 30)
    decide(store, lambda content: "approve")
    sample = audit_sample(store, 1.0)
    for i in range(10):
        sample(verdict_of(f"late {i}", 0.1), [HumanMessage(f"late {i}?")])
    hard = store.claim("ada")
    assert hard is not None
    decide(store, lambda _: "approve")
    shown = run("learn", tmp_path / "reviews.db", "--artifact", artifact, "--out", tmp_path / "new.json")
    assert "Sample: 30 of 39 decisions, and 1 undecided, counted as wrong, so that" in shown
    assert "Error among answers given: 3.2 % (1 of 31 audited wrong, 1 of them undecided; 95 % interval 0 %" in shown
    assert f"9 more decisions of the sample wait behind item {hard.item.id}" in shown


def test_a_monitor_of_another_artifact_is_not_fed(tmp_path: Path) -> None:
    store, first = audited_store(tmp_path, ARTIFACT, 5)
    second = artifact_of(threshold=0.2)
    more_audits(store, second, 5)
    decide(store, lambda _: "approve")
    command = ("learn", tmp_path / "reviews.db", "--ignore-others", "--monitor", "risk", "--artifact")
    assert "5 new audits, 5 in all" in run(*command, first)
    shown = run(*command, second.save(tmp_path / "second.json"), code=2)
    assert ARTIFACT.digest in shown
    assert second.digest in shown
    assert "new name" in shown
    monitor = Monitors(store).known_risk("risk", ARTIFACT)
    assert monitor is not None
    assert (monitor.state.n, monitor.state.artifact) == (5, ARTIFACT.digest)


def test_an_acknowledged_monitor_that_is_fed_says_that_it_never_alarms_again(tmp_path: Path) -> None:
    store, artifact = audited_store(tmp_path, ARTIFACT, 20)
    decide(store, lambda _: "reject")
    command = ("learn", tmp_path / "reviews.db", "--artifact", artifact, "--monitor", "risk")
    assert "never alarms again" not in run(*command)
    Monitors(store).acknowledge("risk", who="ada")
    more_audits(store, artifact_of(), 1)
    assert "was acknowledged: it never alarms again" in run(*command)


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_the_queue_of_another_procedure_is_refused(reviewed: Path, tmp_path: Path) -> None:
    other = artifact_of(alpha=0.2)
    other.save(tmp_path / "other.json")
    shown = run("learn", reviewed, "--artifact", tmp_path / "other.json", code=2)
    assert ARTIFACT.digest in shown
    assert "--earlier" in shown
    run(
        "learn",
        reviewed,
        "--artifact",
        tmp_path / "other.json",
        "--earlier",
        reviewed.with_name("artifact.json"),
    )
    stranger = make_artifact(ScriptedChat(name_of_model="other"))
    with ReviewStore(reviewed) as store, pytest.raises(UsageError, match="model model: calibrated 'scripted'"):
        read_reviews(store, [ARTIFACT, stranger])
    with ReviewStore(reviewed) as store, pytest.raises(UsageError, match="plan"):
        read_reviews(store, [ARTIFACT, make_artifact(MODEL, n=5)])


def test_an_existing_artifact_and_a_missing_store_are_refused(reviewed: Path, tmp_path: Path) -> None:
    old = reviewed.with_name("artifact.json")
    assert "exists" in run("learn", reviewed, "--artifact", old, "--out", old, code=2)
    assert "no review store" in run("learn", tmp_path / "no.db", "--artifact", old, code=2)
    assert not (tmp_path / "no.db").exists()


def test_a_monitor_is_told_of_open_audits_neither_by_the_command_nor_else(reviewed: Path, tmp_path: Path) -> None:
    artifact = reviewed.with_name("artifact.json")
    shown = run("learn", reviewed, "--artifact", artifact, "--monitor", "new", "--missing", "wrong", code=2)
    assert "count open audits as wrong forever" in shown
    with ReviewStore(reviewed) as store:
        assert Monitors(store).known_risk("new", ARTIFACT) is None
    monitors = Monitors(ReviewStore(tmp_path / "reviews.db"))
    monitor = monitors.risk("risk", ARTIFACT, min_audit_rate=0.5)
    with pytest.raises(UsageError, match="wrong forever"):
        feed(ReviewPool((item("a", 0.1, None, 0.5),), {}, 0), monitor, missing="wrong")
    assert monitor.state.n == 0


def test_a_queue_without_audits_is_refused() -> None:
    with pytest.raises(UsageError, match="was audited"):
        thinned(ReviewPool((item("a", 0.9, True),), {}, 0))
    nothing = artifact_of(threshold=None)
    held_back = item("a", 0.9, True, verdict=verdict_of("a", 0.9, nothing))
    assert thinned(ReviewPool((held_back,), {}, 0)) == ([held_back], 1.0)


def test_bounds_instead_of_scores_are_refused() -> None:
    score = Uncertainty(value=0.1, unit="probability", estimator="two_stage", is_bound=True, first=0.1)
    bound = item("a", 0.1, True, 0.5, verdict=verdict_of("a", 0.1).model_copy(update={"uncertainty": score}))
    with pytest.raises(UsageError, match="the first of two stages decided 1 of 1"):
        learn(ReviewPool((bound,), {}, 0), ARTIFACT, name="x")


def test_an_accepted_answer_without_its_rate_is_refused(tmp_path: Path) -> None:
    store = ReviewStore(tmp_path / "reviews.db")
    store.enqueue(content_of(verdict_of("a", 0.1), (), kind="audit", metadata={AUDIT_RATE: 0}))
    with pytest.raises(UsageError, match="audit rate"):
        read_reviews(store, [ARTIFACT])


@pytest.mark.slow
def test_a_kill_leaves_the_new_artifact_whole_or_not_at_all(reviewed: Path, tmp_path: Path) -> None:
    """The process kills itself inside `os.replace`, and just before the file is flushed."""
    out = tmp_path / "new.json"
    code = (
        "import os, signal, sys\n"
        "def die(*_): os.kill(os.getpid(), signal.SIGKILL)\n"
        "import calibrate.reviews.learning\n"
        "from calibrate.cli import app\n"
        "for where in ('replace', 'fsync'):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        setattr(os, where, die)\n"
        f"        app(['learn', {str(reviewed)!r}, '--artifact', {str(reviewed.with_name('artifact.json'))!r}, "
        f"'--out', {str(out)!r}])\n"
        "        os._exit(1)\n"
        f"    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.path.exists({str(out)!r})\n"
        "    print('ended', *ended, file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "COLUMNS": "200"}, capture_output=True, check=False)
    ended = [line for line in ran.stderr.decode().splitlines() if line.startswith("ended")]
    assert ended == [f"ended {-signal.SIGKILL} False"] * 2, ran.stderr
