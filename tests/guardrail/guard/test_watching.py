"""A guard under watch: the switch holds back after an alarm, observers see every verdict, and none fails open."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from pydantic import ValidationError

from guardrail import Guardrail, Reason, UsageError, Verdict
from guardrail.artifact import CalibrationScores
from guardrail.guard.observers import Observers, SafetySwitch
from guardrail.review import Monitors, ReviewStore
from guardrail.sampling.effects import run
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample

SURE, UNSURE, BROKEN = "Capital of France?", "Capital of Atlantis?", "Down?"
MODEL = ScriptedChat(
    script={
        SURE: ["Paris"],
        UNSURE: ["Secretville", "Hiddenton", "Maskburg", "Veilham"],
        BROKEN: ["x", TimeoutError("no answer in 5 s")],
    }
)
ARTIFACT = make_artifact(MODEL, threshold=0.5)
WHY = "Too many errors."


def guarded(**kwargs: Any) -> Guardrail:
    return Guardrail(model=MODEL, artifact=ARTIFACT, **kwargs)


class Seen:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.questions: list[str] = []

    def __call__(self, verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        self.verdicts.append(verdict)
        self.questions.append(str(messages[-1].content))


def both_ways(guard: Guardrail, question: str) -> list[Verdict]:
    return [guard.assess(question), asyncio.run(guard.aassess(question))]


def test_without_an_alarm_a_switch_changes_nothing() -> None:
    for verdict in both_ways(guarded(on_verdict=SafetySwitch(), remember=0), SURE):
        assert verdict == guarded().assess(SURE).model_copy(update={"cost": verdict.cost})


def test_after_an_alarm_nothing_is_accepted_and_the_verdict_says_why() -> None:
    switch = SafetySwitch()
    switch.hold(WHY)
    guard = guarded(on_verdict=switch)
    for verdict in both_ways(guard, SURE):
        assert (verdict.accepted, verdict.reason) == (False, Reason.SUSPENDED)
        assert f"because of an alarm. {WHY} Look into the alarm" in verdict.detail
        assert "candidate" not in verdict.to_metadata()
        assert "docs/monitoring.md" in verdict.explain()
    assert "Paris" not in str(guard.invoke(SURE).model_dump())
    assert guard.assess(UNSURE).reason is Reason.ABOVE_THRESHOLD
    switch.release()
    assert guard.invoke(SURE).content == "Paris"


def test_observers_see_every_final_verdict_with_its_messages() -> None:
    switch, observer = SafetySwitch(), Seen()
    switch.hold(WHY)
    guard = guarded(on_verdict=[observer, switch])
    guard.invoke(SURE)
    asyncio.run(guard.ainvoke(UNSURE))
    guard.invoke(BROKEN)
    assert observer.questions == [SURE, UNSURE, BROKEN]
    assert [verdict.reason for verdict in observer.verdicts] == [
        Reason.SUSPENDED,
        Reason.ABOVE_THRESHOLD,
        Reason.UNMEASURED,
    ]


def test_an_answer_that_cannot_be_recorded_is_not_given() -> None:
    def broken(_verdict: Verdict, _messages: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    observer = Seen()
    for verdict in both_ways(guarded(on_verdict=[broken, observer]), SURE):
        assert verdict.reason is Reason.SUSPENDED
        assert "OSError: No space left on device" in verdict.detail
    assert [verdict.accepted for verdict in observer.verdicts] == [False, False]
    assert guarded(on_verdict=broken).assess(UNSURE).reason is Reason.ABOVE_THRESHOLD


@pytest.fixture
def monitors(tmp_path: Path) -> Monitors:
    return Monitors(ReviewStore(tmp_path / "reviews.db"))


def test_the_last_verdict_that_an_observer_sees_is_the_caller_s(monitors: Monitors) -> None:
    """The first one saw an acceptance; then the second one failed, and the answer was held back."""

    def broken(_verdict: Verdict, _messages: object) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    observer, monitor = Seen(), monitors.drift("drift", ARTIFACT)
    guard = guarded(on_verdict=[observer, monitor.watch, broken])
    sync, awaited = both_ways(guard, SURE)
    assert [verdict.accepted for verdict in observer.verdicts] == [True, False] * 2
    assert (observer.verdicts[1], observer.verdicts[3]) == (sync, awaited)
    assert monitor.state.n == 2  # a score counts once
    observer.verdicts.clear()
    guarded(on_verdict=[observer, lambda *_: None]).assess(SURE)
    guarded(on_verdict=[observer, broken]).assess(UNSURE)  # held back anyway
    assert [verdict.accepted for verdict in observer.verdicts] == [True, False]


def test_async_observers_are_awaited_and_refused_in_sync_calls() -> None:
    recorded = Seen()

    async def observer(verdict: Verdict, messages: Sequence[BaseMessage]) -> None:
        await asyncio.sleep(0)
        recorded(verdict, messages)

    guard = guarded(on_verdict=observer)
    assert asyncio.run(guard.aassess(SURE)).accepted
    assert len(recorded.verdicts) == 1
    with pytest.raises(UsageError, match="ainvoke"):
        guard.assess(SURE)


def test_a_drift_monitor_gets_every_measured_score(monitors: Monitors) -> None:
    guard = guarded(on_verdict=monitors.drift("drift", ARTIFACT).watch)
    for question in (SURE, UNSURE, BROKEN, SURE):
        guard.invoke(question)
    # three clusters of 4, 3, 3 among 10: -.4 ln .4 - .6 ln .3 = 1.0889
    assert [step.value for step in monitors.history("drift")] == pytest.approx([0.0, 1.0889, 0.0], abs=1e-4)


def test_a_guard_refuses_a_drift_monitor_that_would_leave_its_verdicts_out(monitors: Monitors) -> None:
    other = ARTIFACT.calibration.model_copy(update={"uncertainty": (9.0, *ARTIFACT.calibration.uncertainty[1:])})
    monitor = monitors.drift("scores", ARTIFACT.model_copy(update={"calibration": other}))
    with pytest.raises(ValidationError, match="another calibration scores: it would watch nothing"):
        guarded(on_verdict=[Seen(), monitor.watch])
    prompt = ARTIFACT.model_copy(update={"prompt": ARTIFACT.prompt.model_copy(update={"system": "Be brief."})})
    with pytest.raises(ValidationError, match="another prompt: it"):
        guarded(on_verdict=monitors.drift("prompt", prompt).watch)


def test_a_drift_monitor_watches_the_same_scores_at_another_alpha(monitors: Monitors) -> None:
    calibration = CalibrationScores(uncertainty=(0.0, 1.0) * 50, error=(0, 1) * 50)
    fitted = ARTIFACT.model_copy(update={"calibration": calibration})
    outcome = fitted.outcome.model_copy(update={"alpha": 0.2})
    monitor, stricter = monitors.drift("drift", fitted), fitted.model_copy(update={"outcome": outcome})
    assert stricter.digest != fitted.digest
    guard = Guardrail(model=MODEL, artifact=stricter, on_verdict=monitor.watch)
    guard.invoke(SURE)
    assert (monitor.state.n, guard.assess(SURE).artifact) == (1, stricter.digest)


@pytest.mark.parametrize("given", [5, "watch", object(), [object()]])
def test_what_cannot_be_called_is_no_observer(given: object) -> None:
    with pytest.raises(UsageError, match=r"on_verdict takes functions .*, got .*monitor\.watch"):
        Observers.of(given)


@pytest.mark.parametrize("ends", [("stop", "length"), ("length", "stop")])
def test_a_served_answer_that_was_cut_off_is_another_than_the_whole_one(ends: tuple[str, str]) -> None:
    """The one would get the other's verdict: a part would be called good, or a good answer not measured."""
    guard = guarded()
    served = [run(guard.served_steps([HumanMessage(SURE)], Sample(text="Paris", finish_reason=end))) for end in ends]
    assert [each.accepted for each in served] == [end == "stop" for end in ends]
    other = guarded()
    assert other.assess(SURE).accepted  # the guard's own answer, which was whole
    assert not run(other.served_steps([HumanMessage(SURE)], Sample(text="Paris", finish_reason="length"))).accepted
