"""A threshold for each segment at run time: the call names it, or a function of the messages does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda

from guardrail import Guardrail, Reason, UsageError
from guardrail.artifact import (
    CalibrationArtifact,
    CalibrationScores,
    CascadeArtifact,
    CascadeOutcome,
    Segments,
    StageShare,
)
from guardrail.doctor import examine
from guardrail.errors import ArtifactMismatchError
from guardrail.monitor import DriftMonitor, SafetySwitch
from guardrail.outcome import InfeasibleReason
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.verdict import ALL_OTHERS
from integrations._agents.artifact_set import load

HALF = "Is it open?"  # two meanings, equally often: ln 2 = .69
MODEL = ScriptedChat(script={HALF: ["yes"] + ["yes", "no"] * 5})
OUTCOME = {t: make_artifact(MODEL, threshold=t).outcome for t in (None, 0.1, 1.0)}
UNKNOWN = OUTCOME[None].model_copy(
    update={"reason": InfeasibleReason.UNKNOWN_SEGMENT, "detail": "The question is of none of the segments."}
)


def artifact(*, unknown: str = "others", model: ScriptedChat = MODEL) -> CalibrationArtifact:
    """ "easy" accepts two meanings, "hard" and all others do not, in "closed" nothing is accepted."""
    return make_artifact(model).model_copy(
        update={
            "outcome": OUTCOME[0.1] if unknown == "others" else UNKNOWN,
            "segments": Segments(
                outcomes={"easy": OUTCOME[1.0], "hard": OUTCOME[0.1], "closed": OUTCOME[None]},
                delta=0.1,
                share="together",
                unknown="others" if unknown == "others" else "abstain",
                min_labels=1,
            ),
            "calibration": CalibrationScores(
                uncertainty=(0.2, 0.3, 0.4, 0.5), error=(0, 0, 1, 1), segment=("easy", "hard", "closed", None)
            ),
        }
    )


ARTIFACT = artifact()


def named(segment: Any) -> RunnableConfig:
    return {"configurable": {"guardrail_segment": segment}}


def decided(message: BaseMessage) -> tuple[str, float | None, bool]:
    verdict = message.response_metadata["guardrail"]
    return verdict["segment"], verdict["threshold"], verdict["accepted"]


EASY, HARD, CLOSED = ("easy", 1.0, True), ("hard", 0.1, False), ("closed", None, False)
WAYS: dict[str, Callable[[Any, RunnableConfig | None], AIMessage]] = {
    "invoke": lambda guard, config: guard.invoke(HALF, config),
    "ainvoke": lambda guard, config: asyncio.run(guard.ainvoke(HALF, config)),
    "stream": lambda guard, config: next(iter(guard.stream(HALF, config))),
    "batch": lambda guard, config: guard.batch([HALF], config)[0],
    "abatch": lambda guard, config: asyncio.run(guard.abatch([HALF], config))[0],
    "chain": lambda guard, config: (RunnableLambda(lambda text: text) | guard).invoke(HALF, config),
    "with_config": lambda guard, config: guard.with_config(config or {}).invoke(HALF),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_call_names_the_segment(way: str) -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, remember=0)
    assert decided(WAYS[way](guard, named("easy"))) == EASY
    assert decided(WAYS[way](guard, named("hard"))) == HARD
    assert decided(WAYS[way](guard, named("closed"))) == CLOSED
    assert decided(WAYS[way](guard, named("never seen"))) == (ALL_OTHERS, 0.1, False)


@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_the_messages_names_it_and_the_call_comes_first(way: str) -> None:
    def topic(messages: Sequence[BaseMessage]) -> str:
        return "easy" if "open" in str(messages[-1].content) else "hard"

    guard = Guardrail(model=MODEL, artifact=ARTIFACT, segment=topic)
    assert decided(WAYS[way](guard, None)) == EASY
    assert decided(WAYS[way](guard, named("hard"))) == HARD
    none = Guardrail(model=MODEL, artifact=ARTIFACT, segment=lambda messages: None)
    assert decided(WAYS[way](none, None)) == (ALL_OTHERS, 0.1, False)


def test_each_call_of_a_batch_has_its_own_segment() -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, remember=0)
    configs = [named("easy"), named("hard"), named("closed")]
    assert [decided(message) for message in guard.batch([HALF] * 3, configs)] == [EASY, HARD, CLOSED]
    assert [decided(message) for message in asyncio.run(guard.abatch([HALF] * 3, configs))] == [EASY, HARD, CLOSED]


def test_unknown_segments_abstain_where_the_artifact_says_so() -> None:
    guard = Guardrail(model=MODEL, artifact=artifact(unknown="abstain"))
    verdict = guard.assess(HALF, named("never seen"))
    assert (verdict.reason, verdict.segment, verdict.cost.calls) == (Reason.INFEASIBLE, ALL_OTHERS, 1)
    assert verdict.detail == "Held back: The question is of none of the segments. Segment: all others."
    assert guard.assess(HALF, named("easy")).accepted


def test_verdicts_are_of_the_whole_artifact() -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, remember=0)
    verdicts = [guard.assess(HALF, named(name)) for name in ("easy", "hard")]
    assert [verdict.accepted for verdict in verdicts] == [True, False]
    assert {verdict.artifact for verdict in verdicts} == {ARTIFACT.digest}
    assert asyncio.run(guard.aassess(HALF, named("easy"))).segment == "easy"


def test_a_call_without_a_segment_is_refused_and_draws_nothing() -> None:
    model = ScriptedChat(script={HALF: ["yes"] * 11})
    guard = Guardrail(model=model, artifact=artifact(model=model))
    configs: list[RunnableConfig | None] = [None, {}, {"configurable": {"thread_id": "1"}}, named(None)]
    for config in configs:
        with pytest.raises(ArtifactMismatchError, match="guardrail_segment"):
            guard.invoke(HALF, config)
    assert guard.assess(HALF, named("easy")).cost.calls == 11


def test_what_names_no_segment_raises() -> None:
    def broken(messages: Sequence[BaseMessage]) -> str:
        raise KeyError("intent")

    async def later(messages: Sequence[BaseMessage]) -> str:
        return "easy"

    for function in (broken, lambda messages: 3):
        with pytest.raises(UsageError, match=r"segment\(messages\)"):
            Guardrail(model=MODEL, artifact=ARTIFACT, segment=function).invoke(HALF)
    with pytest.raises(UsageError, match="must be the name of a segment or None, got int: 7"):
        Guardrail(model=MODEL, artifact=ARTIFACT).invoke(HALF, named(7))
    with pytest.raises(ValueError, match="not async"):
        Guardrail(model=MODEL, artifact=ARTIFACT, segment=later)
    with pytest.raises(ValueError, match="one threshold for all questions"):
        Guardrail(model=MODEL, artifact=make_artifact(MODEL), segment=lambda messages: "easy")


def test_one_threshold_ignores_the_segment_of_a_shared_configuration() -> None:
    message = Guardrail(model=MODEL, artifact=make_artifact(MODEL, threshold=1.0)).invoke(HALF, named("hard"))
    verdict = message.response_metadata["guardrail"]
    assert verdict["accepted"]
    assert "segment" not in verdict


def test_an_abstention_in_one_segment_counts_in_all() -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT)
    assert [guard.assess(HALF, named(name)).accepted for name in ("hard", "easy", "hard")] == [False] * 3
    assert guard.assess(HALF, named("easy")).cost.calls == 0


def test_an_acceptance_in_one_segment_is_no_acceptance_in_another() -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT)
    verdicts = [guard.assess(HALF, named(name)) for name in ("easy", "hard", "easy")]
    assert [verdict.accepted for verdict in verdicts] == [True, False, False]
    assert [verdict.cost.calls for verdict in verdicts] == [11, 0, 0]  # one draw, compared with each threshold


def test_a_guard_on_the_abstention_path_gets_the_segment() -> None:
    bigger = ScriptedChat(script={HALF: ["yes"] * 11}, name_of_model="bigger")
    other = artifact(model=bigger)
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_abstain=Guardrail(model=bigger, artifact=other))
    assert guard.invoke(HALF, named("hard")).content == "yes"


def test_monitors_and_switches_see_all_segments() -> None:
    monitor = DriftMonitor(ARTIFACT)
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=monitor.watch, remember=0)
    for name in ("easy", "hard", "other"):
        guard.assess(HALF, named(name))
    assert monitor.state.n == 3
    with pytest.raises(ValueError, match="not stricter"):  # than that of "hard", though than that of "easy"
        Guardrail(model=MODEL, artifact=ARTIFACT, switch=SafetySwitch("stricter", threshold=0.5))
    Guardrail(model=MODEL, artifact=ARTIFACT, switch=SafetySwitch("stricter", threshold=0.05))


def test_what_cannot_tell_segments_apart_refuses_the_artifact_and_takes_a_part() -> None:
    with pytest.raises(UsageError, match=r"in_segment\(NAME\)"):
        load(ARTIFACT)  # agents, and guards of agent frameworks
    assert load(ARTIFACT.in_segment("easy")).threshold == 1.0
    share = StageShare(threshold=0.1, n_accepted=1, n_errors=0)
    system = CascadeOutcome(rule="none", alpha=0.1, delta=None, n=1, guarantee="", stages=(share, share), interval=None)
    with pytest.raises(ValueError, match="a stage of a cascade has one threshold"):
        CascadeArtifact(created="", stages=(ARTIFACT, ARTIFACT), outcome=system, certificate=system, packages={})


def test_an_artifact_with_segments_survives_a_file_and_binds_them(tmp_path: Path) -> None:
    read = CalibrationArtifact.load(ARTIFACT.save(tmp_path / "artifact.json"))
    assert (read, read.digest) == (ARTIFACT, ARTIFACT.digest)
    assert read.segments is not None
    changed = read.segments.model_copy(update={"outcomes": {**read.segments.outcomes, "hard": OUTCOME[1.0]}})
    assert read.model_copy(update={"segments": changed}).digest != read.digest
    part = read.in_segment("hard")
    assert (part.threshold, part.calibration.uncertainty, part.segments) == (0.1, (0.3,), None)
    assert part.lineage == (read.digest,)
    assert read.in_segment("never seen").calibration.uncertainty == (0.5,)
    content = {**read.content, "calibration": {**read.content["calibration"], "segment": ["easy", "hard", "x", None]}}
    with pytest.raises(ValueError, match="not those that have a threshold"):
        CalibrationArtifact.model_validate(content)


def test_an_artifact_with_one_threshold_has_no_segments() -> None:
    plain = make_artifact(MODEL)
    with pytest.raises(UsageError, match="one threshold for all"):
        plain.in_segment("easy")
    assert plain.refuse_segments("anything") is plain


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "langchain.md").read_text(encoding="utf-8")
    block = next(
        example
        for example in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
        if "guardrail_segment" in example
    )
    chat = ScriptedChat(script={"When is invoice 7 due?": ["yes"] + ["yes", "no"] * 5})
    own = artifact(model=chat)
    assert own.segments is not None
    outcomes = {"billing": OUTCOME[1.0], "shipping": OUTCOME[0.1]}
    scores = CalibrationScores(uncertainty=(0.2, 0.3, 0.4), error=(0, 0, 0), segment=("billing", "shipping", None))
    segments = own.segments.model_copy(update={"outcomes": outcomes})
    names: dict[str, Any] = {
        "chat": chat, "by_intent": own.model_copy(update={"segments": segments, "calibration": scores})
    }  # fmt: skip
    exec(block, names)
    assert decided(names["answer"]) == ("billing", 1.0, True)
    assert decided(names["other"]) == ("shipping", 0.1, False)
    assert names["billing"].threshold == 1.0


def test_the_doctor_names_the_segments_without_a_threshold(tmp_path: Path) -> None:
    finding = next(
        candidate
        for candidate in examine(str(ARTIFACT.save(tmp_path / "artifact.json")))
        if candidate.check == "threshold"
    )
    assert finding.status == "warn"
    assert finding.detail == "3 of 4 segments have one; everything is held back in: closed"


def test_a_guards_configuration_asks_for_the_function_again() -> None:
    guard = Guardrail(model=MODEL, artifact=ARTIFACT, segment=lambda messages: "easy")
    config = guard.to_config()
    assert config["needs"] == ["segment"]
    again = Guardrail.from_config(config, model=MODEL, segment=lambda messages: "hard")
    assert decided(again.invoke(HALF)) == HARD
