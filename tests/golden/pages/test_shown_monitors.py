"""Monitors by themselves: their states and alarms, their files, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the review extra is not installed")

from guardrail.artifact import CalibrationArtifact, CalibrationScores, Reach
from guardrail.monitor import (
    Alarm,
    CanaryMonitor,
    CanaryState,
    DriftMonitor,
    DriftState,
    RiskMonitor,
    RiskState,
    SafetySwitch,
    jump,
)
from guardrail.monitor.base import parse_state, read_state
from guardrail.monitor.betting import amount, even
from guardrail.monitor.drift import Grid, Reference, uniforms
from guardrail.monitor.risk import log_wealth
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Uncertainty
from guardrail.verdict import Reason, Verdict
from tests.golden.pages.test_shown_review import Story, story

__all__ = ["story"]  # a fixture
SCORES = (0.0, 0.25, 0.25, 0.5, 0.5, 0.5, 0.75, 1.0, 1.5)


def artifact(**changes: Any) -> CalibrationArtifact:
    """An artifact with nine calibration scores, of which some are equal."""
    made = make_artifact(ScriptedChat(), threshold=0.7)
    scores = CalibrationScores(uncertainty=SCORES, error=(0,) * len(SCORES))
    return made.model_copy(update={"calibration": scores, **changes})


def said(text: str, *artifacts: CalibrationArtifact) -> str:
    """A text with words in place of digests."""
    for number, each in enumerate(artifacts, 1):
        text = text.replace(each.digest, f"(digest {number})")
    return text


def test_risk(story: Story, tmp_path: Path) -> None:
    did, heard = story.did, list[str]()

    def hear(alarm: Alarm) -> None:
        heard.append(alarm.detail)

    monitor = RiskMonitor(0.1, min_audit_rate=0.25, artifact="sha256:a", on_alarm=hear)
    did("before", lambda: (monitor.state, monitor.alarm, monitor.alarmed, monitor.interval()), whole=True)
    for error, rate in ((False, None), (True, 0.5), (False, 1.0), (True, 0.25), (True, 0.25), (True, 1.0), (1, 0.5)):
        did(f"update {error} at {rate}", lambda e, r: monitor.update(e, audit_rate=r).log_wealth, error, rate)
    did("after", lambda: (monitor.state, monitor.alarm, monitor.alarmed))
    did("interval", lambda: [monitor.interval(level) for level in (0.5, 0.95, 0.99)])
    did("heard", lambda: heard)
    monitor.save(tmp_path / "risk.json")
    did("loaded", lambda: RiskMonitor.load(tmp_path / "risk.json", on_alarm=hear).state.n)
    did("heard", lambda: heard)
    did("only right", lambda: [right.update(False).log_wealth for right in [RiskMonitor(0.1)] for _ in range(5)])
    right = RiskMonitor(0.1)
    for _ in range(5):
        right.update(False)
    did("interval of only right ones", right.interval)
    tallies = [(1.0, 10, 3), (0.5, 4, 1)]
    did("wealth of fixed bets", lambda: [log_wealth(tallies, m, 0.5) for m in (0.0, 0.1, 0.5, 1.0)])
    story.note("refusals:")
    for alpha, how in (
        (0.0, {}), (1.0, {}), (0.1, {"delta": 0}), (0.1, {"delta": 1.5}), (0.1, {"min_audit_rate": 0}),
        (0.1, {"min_audit_rate": 1.1}), (0.2, {"state": monitor.state}),
        (0.1, {"state": monitor.state, "min_audit_rate": 0.25, "artifact": "sha256:b"}),
    ):  # fmt: skip
        did(f"alpha {alpha}, {sorted(how)}", lambda a, h: RiskMonitor(a, **h), alpha, how)
    for wrong, at in ((None, None), (2, None), (True, 0.2), (True, 1.5)):
        did(f"update {wrong} at {at}", lambda e, r: monitor.update(e, audit_rate=r), wrong, at)
    story.same("../monitors/risk.txt")


def test_drift(story: Story, tmp_path: Path) -> None:
    did, heard = story.did, list[str]()
    own = artifact()
    monitor = DriftMonitor(own, delta=0.2, seed=3, on_alarm=lambda alarm: heard.append(alarm.detail))
    did("grid", lambda: monitor.grid, whole=True)
    did("a grid of three cells", lambda: Grid.of(SCORES, 3, cells=3))
    did("before", lambda: monitor.state)
    for score in (0.1, 0.5, 2.0, 3.0, 0.25):
        did(f"update {score}", lambda s: (lambda state: (state.log_wealth, state.recent))(monitor.update(s)), score)
    did("cells", lambda: monitor.grid.cells([0.0, 0.25, 0.5, 0.6, 9.0], [0.1, 0.9, 0.5, 0.5, 0.5]).tolist())
    did(
        "p-values",
        lambda: [each.tolist() for each in monitor.grid.p_values((), np.array([0, 3, 3, 9]), np.full(4, 0.5))],
    )
    did("uniforms", lambda: [uniforms(3, "0"), uniforms(3, "calibration 1"), uniforms(4, "0")])
    for place in range(30):
        if monitor.alarmed:
            break
        monitor.update(5.0 + place)
    did("after", lambda: (monitor.state, monitor.alarm))
    did("heard", lambda: heard)
    certain = DriftMonitor(own, delta=0.2)
    while not certain.alarmed:
        certain.update(-1.0)
    did("more certain", lambda: certain.alarm)
    monitor.save(tmp_path / "drift.json")
    did("loaded", lambda: DriftMonitor.load(tmp_path / "drift.json", own).state.n)
    old = {"format": 1, "delta": 0.05, "seed": 0, "calibration_digest": own.digest, "n": 3, "stream": [0.1, 0.5, 2.0]}
    old |= {"p_values": [0.9, 0.5, 0.1], "shares": even(5)}
    (tmp_path / "old.json").write_text(json.dumps(old))
    did("of the first format", lambda: DriftMonitor.load(tmp_path / "old.json", own).state)
    del old["p_values"], old["format"]
    did("without p-values", lambda: parse_state(json.dumps(old), DriftState, "old.json").recent)
    story.note("verdicts:")
    other = artifact(calibration=CalibrationScores(uncertainty=(0.0, 1.0), error=(0, 1)))
    reached = artifact(
        reach=Reach(estimator="x", share=0.5, cut=1.0, n_pool=9, n_within=8, n=8, seed=0, fixed_beforehand=True)
    )
    verdict = Verdict(
        accepted=True,
        reason=Reason.WITHIN_THRESHOLD,
        detail="",
        uncertainty=Uncertainty(value=0.5, unit="nats", estimator="discrete_semantic_entropy"),
        threshold=0.7,
        alpha=0.1,
        guarantee="None.",
        artifact=own.digest,
        candidate=None,
    )
    bound = Uncertainty(value=0.5, unit="nats", estimator="e", is_bound=True, detail="at most 0.5")
    reference = Reference(own)
    did("a score", lambda: reference.score(verdict))
    did("of another artifact", lambda: reference.score(verdict.model_copy(update={"artifact": "sha256:b"})))
    did("a bound", lambda: reference.score(verdict.model_copy(update={"uncertainty": bound})))
    did("admit the same scores", lambda: reference.admit(own.model_copy(update={"created": "later"})))
    did("admit other scores", lambda: reference.admit(other))
    did("within reach", lambda: [Reference(reached).within_reach(score) for score in (0.9, 1.0, 1.1)])
    did("not finite", lambda: reference.within_reach(float("inf")))
    stages = own.model_copy(
        update={"estimator": own.estimator.model_copy(update={"name": "two_stage", "params": {"scale": [0.0, 0.5]}})}
    )
    two = Uncertainty(value=0.5, unit="nats", estimator="e", first=0.25)
    did("two stages", lambda: (Reference(stages).compared(two), list(Reference(stages).scores)))
    did("two stages, without the first", lambda: Reference(stages).compared(two.model_copy(update={"first": None})))
    watching = DriftMonitor(own)
    did("watch", watching.watch, verdict)
    did("watched", lambda: watching.state.n)
    story.note("refusals:")
    did("another artifact", lambda: DriftMonitor(other, state=monitor.state))
    did("delta", lambda: DriftMonitor(own, delta=1))
    short = monitor.state.model_copy(update={"counts": (1, 2)})
    did("cells of another grid", lambda: DriftMonitor(own, state=short))
    stored = json.loads((tmp_path / "drift.json").read_text())
    (tmp_path / "lost.json").write_text(json.dumps({**stored, "n": stored["n"] + 1}))
    did("a count that was lost", lambda: DriftMonitor.load(tmp_path / "lost.json", own))
    story.lines = [said(line.replace(f"{tmp_path}/", ""), own, other) for line in story.lines]
    story.same("../monitors/drift.txt")


def test_canary(story: Story, tmp_path: Path) -> None:
    did, heard = story.did, list[str]()
    monitor = CanaryMonitor(2, delta=0.2, seed=5, on_alarm=lambda alarm: heard.append(alarm.detail))
    did("before", lambda: (monitor.state, monitor.state.learning))
    for number in range(9):
        monitor.update([number / 10, None if number == 4 else 0.5])
    did("learned", lambda: (monitor.state, monitor.state.learning))
    did("a round", lambda: monitor.state.after([0.05, 0.5])[1])
    for number in range(20):
        if monitor.alarmed:
            break
        monitor.update([2.0 + number, 3.0 + number])
    did("after", lambda: (monitor.state.rounds, monitor.state.n, monitor.alarm))
    did("heard", lambda: heard)
    monitor.save(tmp_path / "canary.json")
    did("loaded", lambda: CanaryMonitor.load(tmp_path / "canary.json").state.rounds)
    did("three scores", lambda: monitor.update([1.0, 2.0, 3.0]))
    did("three questions", lambda: CanaryMonitor(3, state=monitor.state))
    did("delta", lambda: CanaryMonitor(3, delta=0))
    story.same("../monitors/canary.txt")


def test_states(story: Story, tmp_path: Path) -> None:
    """States that no monitor can reach are refused, with the reason."""
    did = story.did
    risk = json.loads(RiskMonitor(0.1).state.model_dump_json())
    canary = json.loads(CanaryMonitor(2, seed=1).state.model_dump_json())
    drift = json.loads(DriftMonitor(artifact()).state.model_dump_json())

    def parsed(kind: Any, content: dict[str, Any], **changes: Any) -> Any:
        return parse_state(json.dumps({**content, **changes}), kind, "state.json").n

    for changes in (
        {"delta": 0}, {"delta": 1}, {"n": -1}, {"log_wealth": float("inf")}, {"peak_log_wealth": float("nan")},
        {"shares": [[1.0]]}, {"shares": [[0.5] * 8] * 4}, {"shares": [[-1 / 32] * 4 + [3 / 32] * 4] * 4},
        {"alarmed_at": 1}, {"n": 3, "alarmed_at": 0}, {"n": 3, "alarmed_at": 3}, {"peak_log_wealth": 3.0},
        {"format": 9}, {"format": "x"}, {"alpha": "x"}, {"format": True}, {"later": 5},
    ):  # fmt: skip
        did(f"risk {changes}", lambda c: parsed(RiskState, risk, **c), changes)
    wrong: tuple[dict[str, Any], ...] = (
        {"baseline": [[]]}, {"baseline": [[0.0] * 9, []]}, {"counts": [[1], []]}, {"n": 1}, {"rounds": -1},
    )  # fmt: skip
    for fields in wrong:
        did(f"canary {fields}", lambda c: parsed(CanaryState, canary, **c), fields)
    did("a risk state as drift", lambda: parsed(DriftState, risk))
    did("a drift state as risk", lambda: parsed(RiskState, drift))
    did("a list", lambda: parse_state("[]", RiskState, "state.json"))
    did("not JSON", lambda: parse_state("{", RiskState, "state.json"))
    (tmp_path / "bytes.json").write_bytes(b"\xff")
    did("bytes", lambda: read_state(tmp_path / "bytes.json", RiskState))
    did("no file", lambda: read_state(tmp_path / "none.json", RiskState))
    did("jump", lambda: jump(np.array(even(3)), np.array([0.5, 1.0, 1.5])).round(6).tolist())
    did("jump, again", lambda: jump(np.array([[1.0, 0.0]] * 4), np.array([2.0, 1.0])).round(6).tolist())
    did("amounts", lambda: [amount(0.0), amount(1.0), str(amount(700.0)), amount(699.0) > 1e300])
    story.lines = [line.replace(f"{tmp_path}/", "") for line in story.lines]
    story.same("../monitors/states.txt")


def test_switches(story: Story) -> None:
    did = story.did
    alarm = Alarm(monitor="risk", at=3, wealth=20.0, delta=0.05, detail="The error rate exceeds 10 %.")
    for switch in (SafetySwitch(), SafetySwitch("stricter", threshold=0.5)):
        did("before", lambda s: ([s.allows(score) for score in (0.4, 0.6)], s.reason(), s.alarms), switch)
        switch.alarm(alarm)
        did("after", lambda s: ([s.allows(score) for score in (0.4, 0.5, 0.6)], s.reason(), s.alarms), switch)
        did("for parts", lambda s: s.check(0.7, by_part=True), switch)
        did("not stricter", lambda s: s.check(0.5), switch)
        did("stricter", lambda s: s.check(0.7), switch)
        did("of nothing", lambda s: s.check(None), switch)
        switch.reset()
        did("reset", lambda s: (s.allows(9.0), s.reason()), switch)
    did("another word", lambda: SafetySwitch("stop"))  # type: ignore[arg-type]
    did("without a threshold", lambda: SafetySwitch("stricter"))
    did("a threshold for nothing", lambda: SafetySwitch(threshold=0.5))
    did("a threshold without end", lambda: SafetySwitch("stricter", threshold=float("inf")))
    story.same("../monitors/switches.txt")
