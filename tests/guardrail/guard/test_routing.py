"""The cascade at run time: who is asked, what comes back, and that nothing held back leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from pydantic import ValidationError

from guardrail import AbstainedError, ArtifactMismatchError, UnmeasuredError, UsageError
from guardrail.artifact import CascadeArtifact, CascadeOutcome, StageShare
from guardrail.guard.abstention import ABSTENTION
from guardrail.guard.cascade import Cascade
from guardrail.guard.observers import SafetySwitch
from guardrail.outcome import InfeasibleReason
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.verdict import Reason, Verdict

EASY, HARD, LOST, DOWN, EMPTY, REFUSED = "easy?", "hard?", "lost?", "down?", "empty?", "refused?"
APART = ["one", "two", "three", "four", "five"]
BLOCKED = AIMessage(content="secret", response_metadata={"stop_reason": "refusal"})
SMALL = ScriptedChat(
    name_of_model="small",
    script={
        EASY: ["easy"],
        HARD: ["secret", *APART],
        LOST: ["secret", *APART],
        DOWN: [ConnectionError("down")],
        EMPTY: ["secret", ""],
        REFUSED: [BLOCKED],
    },
)
LARGE = ScriptedChat(
    name_of_model="large",
    script={
        EASY: ["wrong"],
        HARD: ["hard"],
        LOST: ["veiled", *APART],
        DOWN: ["up"],
        EMPTY: ["full"],
        REFUSED: ["given"],
    },
)


def artifact(*thresholds: float | None) -> CascadeArtifact:
    stages = tuple(
        make_artifact(model, threshold=threshold) for model, threshold in zip((SMALL, LARGE), thresholds, strict=True)
    )
    shares = tuple(StageShare(threshold=threshold, n_accepted=1, n_errors=0) for threshold in thresholds)
    none = all(threshold is None for threshold in thresholds)
    outcome = CascadeOutcome(
        rule="none",
        alpha=0.1,
        delta=None,
        n=2,
        stages=shares,
        interval=None,
        reason=InfeasibleReason.TOO_FEW_ITEMS if none else None,
    )
    return CascadeArtifact(stages=stages, outcome=outcome)


def system(*thresholds: float | None, first: ScriptedChat = SMALL, **settings: Any) -> Cascade:
    return Cascade([first, LARGE], artifact=artifact(*(thresholds or (0.5, 0.5))), **settings)


def both_ways(asked: Cascade, question: str) -> list[Verdict]:
    return [asked.assess(question), asyncio.run(asked.aassess(question))]


@pytest.mark.parametrize(
    ("question", "answer", "stage", "asked"),
    [(EASY, "easy", 1, 1), (HARD, "hard", 2, 2), (EMPTY, "full", 2, 2), (REFUSED, "given", 2, 2)],
)
def test_the_first_stage_that_is_certain_answers(question: str, answer: str, stage: int, asked: int) -> None:
    message = system().invoke(question)
    assert message.content == answer
    metadata = message.response_metadata["guardrail"]
    assert (metadata["accepted"], metadata["stage"], len(metadata["stages"])) == (True, stage, asked)
    assert metadata["guarantee"] == "None: nothing was calibrated."
    assert metadata["cost"]["calls"] == sum(stage["cost"]["calls"] for stage in metadata["stages"])


class Unmeasurable(ScriptedChat):
    """Draws nothing that can be measured, for this reason."""

    problem: Unmeasured

    def draw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        return [SampleSet(question=EASY, primary=Sample(text="easy"), problem=self.problem) for _ in prompts]

    async def adraw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds)


@pytest.mark.parametrize("problem", Unmeasured)
def test_a_stage_that_cannot_decide_is_not_passed_over(problem: Unmeasured) -> None:
    """The large model would answer, and be wrong: it was calibrated for what the small one is not certain about."""
    goes_on = problem in (Unmeasured.CUT_OFF, Unmeasured.EMPTY_ANSWER, Unmeasured.REFUSED)
    for verdict in both_ways(system(first=Unmeasurable(name_of_model="small", problem=problem)), EASY):
        assert (verdict.accepted, verdict.stage, len(verdict.stages)) == ((True, 2, 2) if goes_on else (False, 1, 1))
        assert ("Stage 2 was not asked instead" in verdict.detail) is not goes_on
        assert goes_on or (verdict.reason, verdict.uncertainty.reason) == (Reason.UNMEASURED, problem)


def test_an_outage_of_the_first_stage_takes_the_abstention_path() -> None:
    assert ABSTENTION in str(system().invoke(DOWN).content)
    with pytest.raises(UnmeasuredError, match=r"Stage 2 was not asked instead.* guard of its own around the model of"):
        system(on_abstain="raise").invoke(DOWN)
    person: RunnableLambda[Any, str] = RunnableLambda(lambda messages: "a person")
    assert asyncio.run(system(on_abstain=person).ainvoke(DOWN)).content == "a person"


def test_a_stage_that_is_held_back_is_not_passed_over() -> None:
    def unable(verdict: Verdict, messages: object) -> None:
        raise OSError("disk full")

    switch = SafetySwitch()
    switch.hold("Too many errors.")
    for own in ({"on_verdict": switch}, {"on_verdict": unable}):
        cascade = system(stage_settings=[own, {}])
        for verdict in both_ways(cascade, EASY):
            assert (verdict.reason, verdict.stage, len(verdict.stages)) == (Reason.SUSPENDED, 1, 1)
            assert "Stage 2 was not asked instead" in verdict.detail
        assert cascade.assess(HARD).stage == 2  # uncertain as ever: nothing was held back


def test_after_the_last_stage_there_is_nothing_to_explain() -> None:
    assert "was not asked" not in system().assess(LOST).detail
    assert "was not asked" not in system(0.5, None).assess(DOWN).detail
    assert system(None, 0.5).assess(DOWN).candidate == Sample(text="up", finish_reason="stop")


def test_nobody_is_certain() -> None:
    message = system().invoke(LOST)
    assert ABSTENTION in str(message.content)
    assert not any(text in str(message.model_dump()) for text in ("secret", "veiled", "three", "five"))
    verdict = system().assess(LOST)
    assert verdict.candidate is not None
    assert verdict.candidate.text == "veiled"  # a person sees the last stage's answer
    with pytest.raises(AbstainedError):
        system(on_abstain="raise").invoke(LOST)
    person: RunnableLambda[Any, str] = RunnableLambda(lambda messages: "a person")
    assert system(on_abstain=person).invoke(LOST).content == "a person"


def test_a_stage_that_never_answers_is_not_asked() -> None:
    verdict: Any = system(None, 0.5).assess(EASY)
    assert (verdict.stage, len(verdict.stages)) == (2, 1)
    verdict = system(0.5, None).assess(HARD)
    assert (verdict.accepted, verdict.stage, len(verdict.stages)) == (False, 1, 1)
    verdict = system(None, None).assess(HARD)
    assert (verdict.accepted, verdict.stage, verdict.reason.value) == (False, 2, "infeasible")


def test_async_chains_and_streams_agree() -> None:
    chain = system().prompt | system() | StrOutputParser()
    assert chain.invoke({"question": HARD}) == "hard"
    assert asyncio.run(chain.ainvoke({"question": HARD})) == "hard"
    assert [chunk.content for chunk in system().stream(HARD)] == ["hard"]
    exclude = {"cost", "stages"}
    again = asyncio.run(system().aassess(HARD))
    assert again.model_dump(exclude=exclude) == system().assess(HARD).model_dump(exclude=exclude)

    async def chunks() -> list[Any]:
        return [chunk.content async for chunk in system().astream(LOST)]

    assert len(asyncio.run(chunks())) == 1


def test_models_and_the_fallback_may_be_named() -> None:
    named = f"python:{__name__}:"
    cascade = Cascade([f"{named}SMALL", LARGE], artifact=artifact(0.5, 0.5), on_abstain=f"{named}LARGE")
    assert cascade.invoke(EASY).content == "easy"
    assert cascade.invoke(LOST).content == "veiled"


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="Cascade has no setting 'on_abstian'; did you mean 'on_abstain'"):
        system(on_abstian="raise")
    with pytest.raises(ValueError, match=r"switch.*stage_settings"):
        system(on_verdict=SafetySwitch())
    with pytest.raises(ValueError, match="Guardrail has no setting 'jugde'"):
        system(stage_settings=[{"jugde": None}, {}])
    with pytest.raises(AbstainedError):
        system().model_copy(update={"on_abstain": "raise"}).invoke(LOST)
    with pytest.raises(UsageError, match="models was given twice"):
        Cascade([SMALL, LARGE], models=[SMALL], artifact=artifact(0.5, 0.5))
    for one in ("small", SMALL):
        with pytest.raises(ValueError, match=r"one a stage, got \w+\. Write models=\[small, large\]"):
            Cascade(cast(Any, one), artifact=artifact(0.5, 0.5))
    with pytest.raises(UsageError, match="no messages to answer"):
        system().invoke([])


def test_another_model_or_another_number_of_models_is_refused() -> None:
    with pytest.raises(ArtifactMismatchError, match="2 stages, got 1 models"):
        Cascade(models=[SMALL], artifact=artifact(0.5, 0.5))
    with pytest.raises(ArtifactMismatchError, match="calibrated 'small', running 'large'"):
        Cascade(models=[LARGE, SMALL], artifact=artifact(0.5, 0.5))
    with pytest.raises(ValueError, match="on_abstain must be"):
        system(on_abstain="shrug")
    with pytest.raises(UsageError, match="without tools"):
        system().bind_tools([])
    with pytest.raises(ArtifactMismatchError, match="temperature"):
        system().invoke(EASY, temperature=1)


def test_thresholds_of_stages_and_outcome_must_agree() -> None:
    first, second = artifact(0.5, 0.5), artifact(0.5, 0.7)
    with pytest.raises(ValidationError, match=r"stage 2 has threshold 0\.5, the outcome says 0\.7"):
        CascadeArtifact.model_validate({**first.model_dump(), "outcome": second.outcome.model_dump()})


@pytest.mark.parametrize("path", ["message", "raise"])
def test_what_a_stage_accepted_and_an_observer_held_is_in_no_metadata(path: Any) -> None:
    """A database that fails holds the answer back; the stage's own verdict would give it out all the same."""

    def failing(verdict: Any, messages: Any) -> None:
        raise OSError("the disk is full")

    models = [ScriptedChat(name_of_model=each.name_of_model, default=["Lima"]) for each in (SMALL, LARGE)]
    system = Cascade(models, artifact=artifact(0.5, 0.5), on_verdict=failing, on_abstain=path)
    try:
        said = system.invoke("q?").model_dump_json()
    except AbstainedError as error:
        said = f"{error} {error.message}"
    assert "Lima" not in said
    assert "Lima" in Cascade(models, artifact=artifact(0.5, 0.5)).invoke("q?").model_dump_json()
