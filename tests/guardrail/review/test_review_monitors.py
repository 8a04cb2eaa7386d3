"""Monitors in the review store: shared by processes, exact over restarts, and told to every process."""

from __future__ import annotations

import logging
import math
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import HumanMessage
from pydantic import ValidationError
from sqlalchemy import event

from guardrail import Guardrail, Reason
from guardrail.__main__ import main
from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.errors import UsageError
from guardrail.monitor import Drift
from guardrail.review import ReviewStore, StoreUnavailableError
from guardrail.review.hooks import AUDIT_RATE, audit_sample, chosen
from guardrail.review.monitors import Monitors, RiskMonitor
from guardrail.testing import ScriptedChat, make_artifact

SURE, UNSURE = "Capital of France?", "Capital of Atlantis?"
MODEL = ScriptedChat(script={SURE: ["Paris"], UNSURE: ["Hiddenton", "Maskburg", "Veilham", "Secretville"]})


def artifact_with(scores: list[float]) -> CalibrationArtifact:
    calibration = CalibrationScores(uncertainty=tuple(scores), error=(0,) * len(scores))
    return make_artifact(MODEL).model_copy(update={"calibration": calibration})


ARTIFACT, OTHER = artifact_with(np.random.default_rng(0).normal(size=100).tolist()), artifact_with([0.0])


@pytest.fixture
def store(store_url: str) -> Iterator[ReviewStore]:
    with ReviewStore(store_url) as opened:
        yield opened


def replayed(scores: list[float], seed: int = 0) -> Any:
    test = Drift(ARTIFACT, seed=seed)
    return test.take(test.start, *scores)[0]


def test_a_drift_monitor_is_one_over_objects_and_restarts(store: ReviewStore, store_url: str) -> None:
    scores = np.random.default_rng(1).normal(0.3, 1, size=60).tolist()
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
    assert first.state == replayed(scores, seed=3)
    history = monitors.history("drift")
    assert [step.value for step in history] == scores
    assert history[-1].log_wealth == first.state.log_wealth
    assert len(monitors.history("drift", most=10)) == 10


def test_a_key_counts_once(store: ReviewStore) -> None:
    for rate in (0.5, 1.0, 0.5, 0.5):
        for _ in range(2):
            Monitors(store).risk("risk", ARTIFACT, min_audit_rate=0.5).update(
                rate == 1.0, audit_rate=rate, key=f"item {rate}"
            )
    (view,) = Monitors(store).all()
    assert (view.name, view.state.n, view.acknowledged) == ("risk", 2, False)
    assert view.state.model_dump()["tallies"] == ((0.5, 1, 0), (1.0, 1, 1))


def test_an_alarm_is_stored_in_numbers_and_goes_with_its_acknowledgement(store: ReviewStore) -> None:
    monitors = Monitors(store)
    risk = alarmed(monitors)
    assert risk.alarm is not None
    assert risk.alarm == risk.update(False).alarm
    assert monitors.risk("risk", ARTIFACT).alarm == risk.alarm
    (event,) = [event for event in store.trail() if event.what == "alarm"]
    assert event.detail == {"name": "risk", **risk.alarm.numbers}
    monitors.acknowledge("risk", who="ada")
    assert store.trail()[-1].who == "ada"
    later = monitors.risk("risk", ARTIFACT)
    assert later.alarm is None
    assert later.state.alarm is not None, "the monitor stays alarmed"


def alarmed(monitors: Monitors, name: str = "risk") -> RiskMonitor:
    """A fifth of the money grows by 5.5 with each error: 33 after three, above the line at 20."""
    risk = monitors.risk(name, ARTIFACT)
    for _ in range(3):
        risk.update(True)
    return risk


def test_a_switch_follows_the_database(store: ReviewStore) -> None:
    monitors = Monitors(store)
    monitors.risk("other", ARTIFACT)
    switch, deaf = monitors.switch(every=0.0), monitors.switch(names=["other"], every=0.0)
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL), on_verdict=switch)
    assert guard.invoke(SURE).content == "Paris"
    alarmed(monitors)
    assert guard.assess(SURE).reason is Reason.SUSPENDED
    assert "promised 10 %" in guard.assess(SURE).detail
    assert deaf.objection() is None
    monitors.acknowledge("risk", who="ada")
    assert guard.assess(SURE).accepted


def test_a_slow_look_does_not_replace_what_a_later_one_saw(store: ReviewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the next five seconds answers would pass despite the alarm."""
    monitors = Monitors(store)
    switch = monitors.switch(every=3600.0)
    read = switch._read

    def overtaken() -> Any:
        before = read()
        alarmed(monitors)
        monkeypatch.setattr(switch, "_read", read)
        assert switch.objection(), "another thread looks, and sees the alarm"
        return before

    monkeypatch.setattr(switch, "_read", overtaken)
    switch.objection()
    assert switch.objection()


def test_a_known_alarm_is_told_while_nothing_new_can_be_seen(store: ReviewStore) -> None:
    monitors = Monitors(store)
    alarmed(monitors)
    switch = monitors.switch(every=0.0)
    assert switch.objection()
    with store.database.write() as transaction:
        transaction.connection.exec_driver_sql("DROP TABLE review_monitors")
    why = switch.objection()
    assert why is not None
    assert "promised 10 %" in why
    assert "cannot be read" in why


def test_one_name_is_one_monitor_and_an_unknown_one_holds_back_until_it_is_there(store: ReviewStore) -> None:
    monitors = Monitors(store)
    switch = monitors.switch(names="desk-1 risk", every=0.0)
    both = monitors.switch(names=["desk-1 risk", "desk-1 drift"], every=0.0)
    assert switch.objection()
    assert "follows 'desk-1 risk', but" in str(switch.objection())
    assert "Monitors.switch(names=...)" in str(switch.objection())
    monitors.risk("desk-1 risk", ARTIFACT)
    assert switch.objection() is None
    assert both.objection()
    assert "follows 'desk-1 drift', but" in str(both.objection())
    alarmed(monitors, "desk-1 risk")
    assert switch.objection()
    assert "promised 10 %" in str(switch.objection())
    monitors.acknowledge("desk-1 risk", who="ada")
    assert switch.objection() is None


def test_a_switch_that_would_follow_nothing_is_refused(store: ReviewStore) -> None:
    for names in ([], "", ["x" * 129]):
        with pytest.raises(UsageError, match=r"names? must|characters"):
            Monitors(store).switch(names=names)


def test_feeding_a_monitor_whose_alarm_was_acknowledged_is_said_loudly(
    store: ReviewStore, caplog: pytest.LogCaptureFixture
) -> None:
    monitors = Monitors(store)
    risk = alarmed(monitors)
    with caplog.at_level(logging.WARNING, logger="guardrail"):
        risk.update(True)
        assert not caplog.messages
        monitors.acknowledge("risk", who="ada")
        risk.update(True)
        risk.update(True)
    (line,) = caplog.messages
    assert "'risk' was acknowledged, so it never alarms again" in line
    assert monitors.switch().objection() is None


def test_a_stored_drift_monitor_takes_in_whole_scores_of_its_own_artifact_only(store: ReviewStore) -> None:
    model = ScriptedChat(script={SURE: ["Paris"]})
    own, lenient = make_artifact(model, threshold=1.0), make_artifact(model, threshold=1.0, alpha=0.2)
    drift = Monitors(store).drift("drift", own)
    for artifact in (own, lenient):  # with the same scores
        Guardrail(model=model, artifact=artifact, on_verdict=drift.watch).invoke(SURE)
    assert drift.state.n == 2
    other = own.model_copy(update={"calibration": ARTIFACT.calibration})
    with pytest.raises(ValidationError, match="another calibration scores: it would watch nothing"):
        Guardrail(model=model, artifact=other, on_verdict=drift.watch)
    drift.watch(Guardrail(model=model, artifact=other).assess(SURE))  # as in an agent with two artifacts
    assert drift.state.n == 2


def test_an_update_that_fails_changes_nothing(store: ReviewStore) -> None:
    drift = Monitors(store).drift("drift", ARTIFACT)
    drift.update(0.1)
    with store.database.write() as transaction:
        transaction.connection.exec_driver_sql("ALTER TABLE review_monitor_steps RENAME TO away")
    with pytest.raises(Exception, match="review_monitor_steps"):
        drift.update(0.2)
    with store.database.write() as transaction:
        transaction.connection.exec_driver_sql("ALTER TABLE away RENAME TO review_monitor_steps")
    assert drift.update(0.3).n == 2


def _updates(path: str, worker: int, each: int) -> None:
    with ReviewStore(path) as store:
        monitors = Monitors(store)
        risk, drift = monitors.risk("risk", ARTIFACT, alpha=0.5), monitors.drift("drift", ARTIFACT)
        for i in range(each):
            risk.update(i % 4 == 0)
            drift.update(worker + i / each)


def test_processes_and_threads_lose_nothing(store: ReviewStore, store_url: str) -> None:
    """This process, in a thread, is one of the two."""
    each = 25
    monitors = Monitors(store)
    drift, risk = monitors.drift("drift", ARTIFACT), monitors.risk("risk", ARTIFACT, alpha=0.5)
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=_updates, args=(store_url, 0, each))
    threads = [threading.Thread(target=drift.update, args=(5.0 + i,)) for i in range(5)]
    workers: list[Any] = [other, threading.Thread(target=_updates, args=(store_url, 1, each)), *threads]
    other.start()
    while not risk.state.tallies and other.is_alive():
        threading.Event().wait(0.01)  # until the other process is at it
    for worker in workers[1:]:
        worker.start()
    for worker in workers:
        worker.join()
    assert other.exitcode == 0
    assert risk.state.tallies == ((1.0, 2 * each, 2 * 7),)  # 0, 4, ..., 24
    expected = sorted([worker + i / each for worker in range(2) for i in range(each)] + [5.0 + i for i in range(5)])
    stream = [step.value for step in monitors.history("drift")]
    assert sorted(stream) == expected
    assert drift.state == replayed(stream)


# -- guards that watch -----------------------------------------------------------------------------------------------


def test_what_a_guard_watches_is_in_the_history_and_counts_once_under_a_key(store: ReviewStore) -> None:
    artifact = make_artifact(MODEL)
    drift = Monitors(store).drift("drift", artifact)
    guard = Guardrail(model=MODEL, artifact=artifact, on_verdict=drift.watch)
    scores = [guard.assess(question).uncertainty.value for question in (SURE, UNSURE, SURE)]
    assert [step.value for step in Monitors(store).history("drift")] == scores
    for _ in range(2):  # the answer to the first update was lost
        assert drift.update(0.5, key="the same score").n == 4


def test_threads_that_watch_at_the_same_time_share_a_commit_and_each_learns_of_a_failure(store: ReviewStore) -> None:
    """Otherwise a disk that takes 10 ms for a commit would allow 100 questions a second."""
    drift, commits = Monitors(store).drift("drift", ARTIFACT), list[object]()
    verdict = Guardrail(model=MODEL, artifact=make_artifact(MODEL)).assess(SURE)
    seen = verdict.model_copy(update={"artifact": ARTIFACT.digest})
    event.listen(store.database.engine, "commit", commits.append)

    def watched_at_once() -> list[BaseException | None]:
        with ThreadPoolExecutor(8) as threads:
            with drift._turn:  # as if another thread were writing
                futures = [threads.submit(drift.watch, seen) for _ in range(8)]
                while drift._waiting.qsize() < 8:
                    threading.Event().wait(0.001)
            return [future.exception() for future in futures]

    assert watched_at_once() == [None] * 8
    assert (len(commits), len(Monitors(store).history("drift"))) == (1, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drift, "_update", unavailable)
        assert {type(error) for error in watched_at_once()} == {StoreUnavailableError}
    assert len(Monitors(store).history("drift")) == 8


def unavailable(*_: object, **__: object) -> Any:
    raise StoreUnavailableError("it does not answer")


def test_what_cannot_be_written_is_held_back(store: ReviewStore, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = make_artifact(MODEL)
    monitors = Monitors(store)
    for observer in (monitors.drift("drift", artifact).watch, audit_sample(store, 1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(type(store.database), "write", unavailable)
            verdict = Guardrail(model=MODEL, artifact=artifact, on_verdict=observer).assess(SURE)
        assert verdict.reason is Reason.SUSPENDED
    assert [view.state.n for view in monitors.all()] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_process_killed_after_any_statement_loses_nothing_and_counts_nothing_twice(
    store: ReviewStore, store_url: str
) -> None:
    drift = Monitors(store).drift("drift", ARTIFACT)
    ran = subprocess.run([sys.executable, "-c", _DYING, store_url], check=True, stdout=subprocess.PIPE, text=True)
    assert int(ran.stdout) >= 6, "killed after each statement and commit of an update"
    scores = [step.value for step in Monitors(store).history("drift")]
    assert scores == [0.0, 1.0, 2.0]
    assert drift.state == replayed(scores)


# Each child makes three updates, and kills itself after one more statement than the child before it.
_DYING = """
import itertools, os, signal, sys
from sqlalchemy import event
from guardrail.review import Monitors, ReviewStore
from tests.guardrail.review.test_review_monitors import ARTIFACT

def run(url, deadly):
    seen = itertools.count(1)
    def die(*_):
        if next(seen) == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
    with ReviewStore(url) as store:
        drift = Monitors(store).drift("drift", ARTIFACT)
        for moment in ("after_cursor_execute", "commit"):
            event.listen(store.database.engine, moment, die)
        for score in (0.0, 1.0, 2.0):
            drift.update(score, key=f"score {score}")

for deadly in itertools.count(1):
    child = os.fork()
    if not child:
        run(sys.argv[1], deadly)
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        break
print(deadly - 1)
"""


def test_the_command_shows_the_monitors_and_ends_with_1_while_an_alarm_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reviews.db"
    assert main(["monitor", "--db", str(path)]) == 1
    assert "there is no review store" in capsys.readouterr().err
    with ReviewStore(path) as store:
        monitors = Monitors(store)
        monitors.drift("desk\x1b[2J", ARTIFACT).update(0.0)
        assert main(["monitor", "--db", str(path)]) == 0
        assert r"desk\x1b[2J (drift): 1 updates" in capsys.readouterr().out, "a name cannot command a terminal"
        alarmed(monitors)
        assert main(["monitor", "--db", str(path)]) == 1
        monitors.acknowledge("risk", who="ada")
    assert main(["monitor", "--db", str(path)]) == 0
    assert "acknowledged alarm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("again", "refused"),
    [
        (lambda m: m.risk("risk", ARTIFACT, alpha=0.2), r"monitor 'risk' .* has alpha 0\.1, not 0\.2\."),
        (lambda m: m.risk("risk", OTHER), rf"has artifact {ARTIFACT.digest}, not {OTHER.digest}.*under a new name"),
        (lambda m: m.known_risk("risk", OTHER), "has artifact"),
        (lambda m: m.drift("drift", ARTIFACT, seed=1), "has seed 0, not 1"),
        (lambda m: m.drift("drift", OTHER), "has artifact"),
        (lambda m: m.drift("risk", ARTIFACT), "is a risk monitor, not a drift monitor"),
        (lambda m: m.canary("canary", 4), "has questions 3, not 4"),
        (lambda m: m.acknowledge("risk", who="ada"), "no monitor 'risk' with an alarm"),
    ],
)
def test_a_name_stays_with_its_artifact_and_settings(
    store: ReviewStore, again: Callable[[Monitors], object], refused: str
) -> None:
    """Evidence against one artifact says nothing about another."""
    monitors = Monitors(store)
    monitors.risk("risk", ARTIFACT)
    monitors.drift("drift", ARTIFACT)
    monitors.canary("canary", 3)
    with pytest.raises(UsageError, match=refused):
        again(monitors)


def test_audits_take_a_known_share_of_accepted_answers_and_repeat(store: ReviewStore) -> None:
    names = iter(f"request {i}" for i in range(120))
    sample = audit_sample(store, 0.25, key=lambda _verdict, _messages: next(names))
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL), on_verdict=sample)
    for _ in range(10):
        guard.invoke(SURE)
    verdict = Guardrail(model=MODEL, artifact=make_artifact(MODEL)).assess(SURE)
    for _ in range(90):  # the same without the guard's work
        sample(verdict, [HumanMessage(SURE)])
    guard.invoke(UNSURE)
    audits = store.items(limit=200)
    assert [item.key for item in audits] == [
        f"audit:request {i}" for i in range(100) if chosen(f"audit:request {i}", 0.25)
    ]
    assert 10 <= len(audits) <= 41  # binomial(100, .25): outside with probability below .0003
    assert {item.content.kind for item in audits} == {"audit"}
    assert {item.content.metadata[AUDIT_RATE] for item in audits} == {0.25}
    assert audits[0].content.allowed == ("approve", "edit", "reject")
    assert audits[0].content.question == SURE
    names = iter(f"request {i}" for i in range(30))
    for _ in range(30):
        sample(verdict, [HumanMessage(SURE)])
    assert len(store.items(limit=200)) == len(audits)


def test_the_hash_is_uniform_and_independent_of_another_salt() -> None:
    keys = [f"key {i}" for i in range(4_000)]
    first = np.array([chosen(key, 0.3) for key in keys])
    two = np.array([chosen(key, 0.3, salt="other") for key in keys])
    bound = 4 * math.sqrt(0.3 * 0.7 / first.size)
    assert abs(first.mean() - 0.3) < bound
    assert abs((first & two).mean() - 0.09) < bound
    assert all(chosen(key, 0.4) for key, hit in zip(keys, first, strict=True) if hit)
    assert chosen("any", 1.0)


def test_a_rate_out_of_range_is_refused(store: ReviewStore) -> None:
    with pytest.raises(UsageError, match="one answer in ten"):
        audit_sample(store, 0.0)
