"""Monitors in the review store: shared by processes, exact over restarts, and told to every process."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from guardrail import Guardrail, Reason
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.errors import UsageError
from guardrail.monitor import Alarm, DriftMonitor, RiskMonitor
from guardrail.review import ReviewStore
from guardrail.review.auditing import AUDIT_RATE, audit_sample, chosen
from guardrail.review.monitors import Monitors
from guardrail.testing import ScriptedChat, make_artifact

SURE, UNSURE = "Capital of France?", "Capital of Atlantis?"
MODEL = ScriptedChat(script={SURE: ["Paris"], UNSURE: ["Hiddenton", "Maskburg", "Veilham", "Secretville"]})


def artifact_with(scores: list[float]) -> CalibrationArtifact:
    calibration = CalibrationScores(uncertainty=tuple(scores), error=(0,) * len(scores))
    return make_artifact(MODEL).model_copy(update={"calibration": calibration})


ARTIFACT = artifact_with(np.random.default_rng(0).normal(size=100).tolist())


@pytest.fixture
def store(store_url: str) -> Iterator[ReviewStore]:
    with ReviewStore(store_url) as made:
        yield made


def test_a_stored_drift_monitor_is_the_one_in_memory(store: ReviewStore, store_url: str) -> None:
    scores = np.random.default_rng(1).normal(0.3, 1, size=60).tolist()
    plain = DriftMonitor(ARTIFACT, seed=3)
    for score in scores:
        plain.update(score)
    monitors = Monitors(store)
    first = monitors.drift("drift", ARTIFACT, seed=3)
    second = monitors.drift("drift", ARTIFACT, seed=3)  # another process, as far as the database can tell
    for i, score in enumerate(scores[:40]):
        (first if i % 3 else second).update(score)
    store.close()
    with ReviewStore(store_url) as reopened:
        third = Monitors(reopened).drift("drift", ARTIFACT, seed=3)
        for score in scores[40:]:
            third.update(score)
        assert third.state == plain.state
    assert first.state == plain.state
    history = monitors.history("drift")
    assert [step.value for step in history] == scores
    assert history[-1].log_wealth == plain.state.log_wealth
    assert len(monitors.history("drift", most=10)) == 10


def test_a_stored_risk_monitor_is_the_one_in_memory_and_counts_a_key_once(store: ReviewStore) -> None:
    errors = (np.random.default_rng(2).random(50) < 0.2).tolist()
    plain = RiskMonitor(0.1, min_audit_rate=0.5)
    monitors = Monitors(store)
    for i, error in enumerate(errors):
        plain.update(error, audit_rate=0.5 if i % 2 else 1.0)
        stored = monitors.risk("risk", 0.1, min_audit_rate=0.5)
        for _ in range(2):
            stored.update(error, audit_rate=0.5 if i % 2 else 1.0, key=f"item {i}")
    assert stored.state == plain.state
    assert stored.interval() == plain.interval()
    (view,) = monitors.all()
    assert (view.kind, view.n, view.alpha, view.estimate) == ("risk", 50, 0.1, plain.interval())


def test_an_alarm_reaches_the_trail_every_process_and_the_next_start(store: ReviewStore) -> None:
    monitors = Monitors(store)
    heard: list[Alarm] = []
    told: list[Alarm] = []
    one = monitors.risk("risk", 0.1, on_alarm=heard.append)
    other = monitors.risk("risk", 0.1, on_alarm=told.append)
    updates = 0
    while not heard:
        one.update(True)
        updates += 1
    # the top bet alone multiplies its eighth of the money by 1 + .8 * 9: after three errors it is 69 > 20
    assert updates <= 3
    one.update(True)
    other.update(False)
    assert (len(heard), len(told)) == (1, 1)
    (event,) = [event for event in store.trail() if event.what == "alarm"]
    assert event.detail["name"] == "risk"
    assert event.detail["at"] == updates
    late: list[Alarm] = []
    monitors.risk("risk", 0.1, on_alarm=late.append)
    assert late == heard
    monitors.acknowledge("risk", who="ada")
    assert store.trail()[-1].who == "ada"
    later: list[Alarm] = []
    monitors.risk("risk", 0.1, on_alarm=later.append)
    assert later == []


def test_a_switch_follows_the_database(store: ReviewStore) -> None:
    monitors = Monitors(store)
    switch, deaf = monitors.switch(every=0.0), monitors.switch(names=["other"], every=0.0)
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL), switch=switch)
    assert guard.invoke(SURE).content == "Paris"
    risk = monitors.risk("risk", 0.1)
    while not risk.state.alarmed:
        risk.update(True)
    assert guard.assess(SURE).reason is Reason.SUSPENDED
    assert "promised 10%" in guard.assess(SURE).detail
    assert deaf.allows(0.0)
    monitors.acknowledge("risk", who="ada")
    assert guard.assess(SURE).accepted


def test_a_switch_that_cannot_read_allows_nothing(store: ReviewStore) -> None:
    switch = Monitors(store).switch(every=0.0)
    with store.database.write() as connection:
        connection.exec_driver_sql("DROP TABLE review_monitors")
    assert not switch.allows(0.0)
    assert "cannot be read" in switch.reason()


def test_an_update_that_fails_changes_nothing(store: ReviewStore) -> None:
    drift = Monitors(store).drift("drift", ARTIFACT)
    drift.update(0.1)
    with store.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE review_monitor_steps RENAME TO away")
    with pytest.raises(Exception, match="review_monitor_steps"):
        drift.update(0.2)
    with store.database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE away RENAME TO review_monitor_steps")
    assert drift.update(0.3).stream == (0.1, 0.3)


def _updates(path: str, worker: int, each: int) -> None:
    with ReviewStore(path) as store:
        monitors = Monitors(store)
        risk, drift = monitors.risk("risk", 0.5), monitors.drift("drift", ARTIFACT)
        for i in range(each):
            risk.update(i % 4 == 0)
            drift.update(worker + i / each)


def test_processes_and_threads_lose_nothing(store: ReviewStore, store_url: str) -> None:
    each = 25
    monitors = Monitors(store)
    shared = monitors.drift("drift", ARTIFACT)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_updates, args=(store_url, worker, each)) for worker in range(3)]
    threads = [threading.Thread(target=shared.update, args=(5.0 + i,)) for i in range(5)]
    workers: list[Any] = [*processes, *threads]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert monitors.risk("risk", 0.5).state.tallies == ((1.0, 3 * each, 3 * 7),)  # 0, 4, ..., 24
    wanted = sorted([worker + i / each for worker in range(3) for i in range(each)] + [5.0 + i for i in range(5)])
    assert sorted(shared.state.stream) == wanted
    replayed = DriftMonitor(ARTIFACT)
    for score in shared.state.stream:
        replayed.update(score)
    assert replayed.state == shared.state


def test_other_settings_under_the_same_name_are_refused(store: ReviewStore) -> None:
    monitors = Monitors(store)
    monitors.risk("risk", 0.1)
    monitors.drift("drift", ARTIFACT)
    with pytest.raises(UsageError, match=r"alpha 0\.1"):
        monitors.risk("risk", 0.2)
    with pytest.raises(UsageError, match="seed 0"):
        monitors.drift("drift", ARTIFACT, seed=1)
    with pytest.raises(UsageError, match="compares with artifact"):
        monitors.drift("drift", artifact_with([0.0]))
    with pytest.raises(UsageError, match="is a risk monitor"):
        monitors.drift("risk", ARTIFACT)
    with pytest.raises(UsageError, match="no monitor"):
        monitors.acknowledge("risk", who="ada")


def test_audits_take_a_known_share_of_accepted_answers_and_repeat(store: ReviewStore) -> None:
    names = iter(f"request {i}" for i in range(120))
    guard = Guardrail(
        model=MODEL,
        artifact=make_artifact(MODEL),
        on_verdict=audit_sample(store, 0.25, key=lambda _verdict, _messages: next(names)),
    )
    for _ in range(100):
        guard.invoke(SURE)
    guard.invoke(UNSURE)
    found = store.items(limit=200)
    assert [item.key for item in found] == [
        f"audit:request {i}" for i in range(100) if chosen(f"audit:request {i}", 0.25)
    ]
    assert 10 <= len(found) <= 41  # binomial(100, .25): outside with probability below .0003
    assert {item.content.kind for item in found} == {"audit"}
    assert {item.content.metadata[AUDIT_RATE] for item in found} == {0.25}
    assert found[0].content.allowed == ("approve", "edit", "reject")
    assert found[0].content.question == SURE
    names = iter(f"request {i}" for i in range(100))
    for _ in range(100):
        guard.invoke(SURE)
    assert len(store.items(limit=200)) == len(found)


def test_the_hash_is_uniform_and_independent_of_another_salt() -> None:
    keys = [f"key {i}" for i in range(4_000)]
    one = np.array([chosen(key, 0.3) for key in keys])
    two = np.array([chosen(key, 0.3, salt="other") for key in keys])
    bound = 4 * math.sqrt(0.3 * 0.7 / one.size)
    assert abs(one.mean() - 0.3) < bound
    assert abs((one & two).mean() - 0.09) < bound
    assert all(chosen(key, 0.4) for key, hit in zip(keys, one, strict=True) if hit)
    assert chosen("any", 1.0)


def test_a_rate_out_of_range_is_refused(store: ReviewStore) -> None:
    with pytest.raises(UsageError, match="one answer in ten"):
        audit_sample(store, 0.0)
