"""Drawing in waves: how many calls are made, which samples they are, and that sync, async and native agree."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage

from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.guard.cascade import Cascade
from guardrail.guard.decide import Gate, adaptive_subset
from guardrail.guard.early_stopping import Drawn, draw_until_decided, saves_calls
from guardrail.judges import ExactJudge, JudgeSpec
from guardrail.sampling.effects import Steps, arun, run
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator, make_estimator, measure
from guardrail.uncertainty.ensemble import Training
from guardrail.uncertainty.two_stage import TwoStageParams, two_stage
from tests.guardrail.guard.test_routing import artifact as cascade_artifact

EXACT = make_estimator("discrete_semantic_entropy", judge=ExactJudge())
SPREAD, EQUAL, LATE, BROKEN = "spread?", "equal?", "late?", "broken?"
MODEL = ScriptedChat(
    script={
        SPREAD: ["x", "a", "b", "c", "d"],
        EQUAL: ["x", "same"],
        LATE: ["x", "a", "a", "a", "a", "b", "c", "d", "e", "f", "g"],
        BROKEN: ["x", "a", TimeoutError("gone"), "a"],
    }
)
PLAN = SamplingPlan(n=10)
DATA = make_artifact(MODEL).data


def drawing(
    model: Any, question: str, plan: SamplingPlan, threshold: float | None, estimator: Estimator = EXACT
) -> Steps[Drawn]:
    """The waves for one gate; without a threshold only an adaptive plan stops them."""
    early = threshold is not None
    gate = Gate(make_artifact(model, threshold=threshold or 0.0), estimator, "all" if early else "none")
    return draw_until_decided(Sampler(model, plan), [HumanMessage(question)], lambda _: [gate], early=early)


def ask(question: str, threshold: float, model: Any = MODEL, plan: SamplingPlan = PLAN) -> tuple[SampleSet, Any]:
    outcome = run(drawing(model, question, plan, threshold))
    return outcome.drawn, next(iter(outcome.settled.values()), None)


@pytest.mark.parametrize(
    ("question", "threshold", "samples"),
    [
        (SPREAD, 0.5, 3),  # three meanings: at least .639 nats ({8, 1, 1} of 10)
        (SPREAD, 0.7, 5),  # {2, 1, 1, 1} of 5: at least .940 ({7, 1, 1, 1}); after 3 still within reach of .639
        (EQUAL, 0.5, 10),  # seven equal ones may still become {7, 1, 1, 1}: .940 nats
        (EQUAL, 1.3, 7),  # after five, {5, 1, 1, 1, 1, 1} was still possible: 1.498
        (EQUAL, 2.0, 3),  # {3, 1 x 7}: 1.97 nats at most
        (LATE, 0.5, 7),  # {4, 1, 1, 1} of 7 reads {7, 1, 1, 1} at best; {4, 1} of 5 might have read {9, 1}: .325
    ],
)
def test_draws_only_as_many_samples_as_it_takes(question: str, threshold: float, samples: int) -> None:
    drawn, uncertainty = ask(question, threshold)
    assert len(drawn.samples) == samples
    assert drawn.cost.calls == 1 + samples
    assert drawn.cost.saved == 10 - samples
    assert (uncertainty is None) == (samples == 10)


def test_the_samples_are_those_of_the_whole_plan() -> None:
    whole, _ = ask(SPREAD, 1.3)  # {2, 2, 2, 1} of 7 may become {5, 2, 2, 1}: 1.22, or {3, 3, 2, 2}, as it does: 1.37
    assert [sample.text for sample in whole.samples] == ["a", "b", "c", "d", "a", "b", "c", "d", "a", "b"]
    assert whole.primary == Sample(text="x", finish_reason="stop")


def test_a_failure_in_the_first_wave_ends_the_drawing() -> None:
    drawn, uncertainty = ask(BROKEN, 5.0)
    assert uncertainty.reason is Unmeasured.MODEL_FAILED
    assert drawn.cost.saved == 7


def test_async_is_the_same() -> None:
    outcome = asyncio.run(arun(drawing(MODEL, SPREAD, PLAN, 0.7)))
    assert outcome.drawn.samples == ask(SPREAD, 0.7)[0].samples
    assert [*outcome.settled.values()] == [ask(SPREAD, 0.7)[1]]


# -- in the guard ------------------------------------------------------------------------------------------------------


class Calls(BaseCallbackHandler):
    def __init__(self) -> None:
        self.count = 0

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.count += 1


def guard(threshold: float, **settings: Any) -> Guardrail:
    artifact = make_artifact(MODEL, threshold=threshold).model_copy(update={"estimator": EXACT.spec})
    return Guardrail(model=MODEL, artifact=artifact, **settings)


@pytest.mark.parametrize("threshold", [0.0, 0.325, 0.6, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("question", [SPREAD, EQUAL, LATE])
def test_the_guard_decides_the_same_with_and_without(question: str, threshold: float) -> None:
    early = guard(threshold).assess(question)
    full = guard(threshold, early_stopping="off").assess(question)
    assert (early.accepted, early.reason, early.candidate) == (full.accepted, full.reason, full.candidate)
    assert full.cost.saved == 0
    assert early.cost.calls + early.cost.saved == full.cost.calls
    again = asyncio.run(guard(threshold).aassess(question))
    assert again.model_dump(exclude={"cost"}) == early.model_dump(exclude={"cost"})


def test_the_guard_saves_calls_and_says_so() -> None:
    calls = Calls()
    message = guard(0.5).invoke(SPREAD, config={"callbacks": [calls]})
    verdict = message.response_metadata["guardrail"]
    assert calls.count == 1 + 1 + 3  # the guard, the primary answer, three samples
    assert verdict["cost"]["saved"] == 7
    assert "settled by 3 of 10 samples" in verdict["detail"]
    assert verdict["uncertainty"]["value"] == pytest.approx(0.6390318597)


def test_auto_leaves_unknown_judges_and_native_samplers_alone() -> None:
    class Odd:
        spec = JudgeSpec(name="odd", version=1, params={})

        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [False for _ in pairs]

    assert saves_calls(MODEL, PLAN, EXACT, DATA)
    assert not saves_calls(MODEL, PLAN, make_estimator("discrete_semantic_entropy", judge=Odd()), DATA)
    assert not saves_calls(MODEL, PLAN, make_estimator("eigenvalue"), DATA)
    assert not saves_calls(MODEL, SamplingPlan(n=3), EXACT, DATA)
    assert not saves_calls(MODEL, SamplingPlan(n=10, follow_ups=("p_true",)), EXACT, DATA)
    assert not saves_calls(Native(), PLAN, EXACT, DATA)


class Native(ScriptedChat):
    """Draws natively: its samples are its seeds, so that two waves with one seed would show."""

    def draw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        samples = tuple(Sample(text=f"{seeds[0]}-{i}") for i in range(plan.n))
        answer = Sample(text="x", finish_reason="stop")
        return [SampleSet(question="q", primary=answer, samples=samples, cost=Cost(calls=1))]

    async def adraw_samples(
        self, prompts: Sequence[Sequence[BaseMessage]], plan: SamplingPlan, *, seeds: Sequence[int | None]
    ) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds)


def test_waves_of_a_native_sampler_have_seeds_of_their_own_and_are_reproducible() -> None:
    drawn, _ = ask("q", 9.0, Native(), PLAN)
    assert len(drawn.samples) == 3  # ln 10 = 2.3 nats is the most there can be
    whole, _ = ask("q", 2.0, Native(), PLAN)  # seven meanings of 7 may still become {4, 1 x 6}: 1.75
    again = asyncio.run(arun(drawing(Native(), "q", PLAN, 2.0))).drawn
    assert len({sample.text for sample in whole.samples}) == 10
    assert again.samples == whole.samples
    assert len({sample.text.split("-")[0] for sample in whole.samples}) == 4


class Sparing(Native):
    """Can leave the primary answer out."""

    def draw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        primary: bool = True,
    ) -> list[SampleSet]:
        (drawn,) = super().draw_samples(prompts, plan, seeds=seeds)
        return [drawn.model_copy(update={"primary": drawn.primary if primary else None, "cost": Cost(calls=primary)})]

    async def adraw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        primary: bool = True,
    ) -> list[SampleSet]:
        return self.draw_samples(prompts, plan, seeds=seeds, primary=primary)


def test_a_native_sampler_that_can_leave_the_primary_answer_out_draws_it_once() -> None:
    whole, _ = ask("q", 2.0, Native(), PLAN)
    spared, _ = ask("q", 2.0, Sparing(), PLAN)
    again = asyncio.run(arun(drawing(Sparing(), "q", PLAN, 2.0))).drawn
    assert (spared.primary, spared.samples) == (again.primary, again.samples) == (whole.primary, whole.samples)
    assert (spared.cost.calls, again.cost.calls, whole.cost.calls) == (1, 1, 4)


# -- adaptive plans ----------------------------------------------------------------------------------------------------

ADAPTIVE = SamplingPlan(n=10, unanimous_at=3)


def test_an_adaptive_plan_stops_when_its_first_samples_agree_and_not_otherwise() -> None:
    agreed = run(drawing(MODEL, EQUAL, ADAPTIVE, None))
    assert (len(agreed.drawn.samples), agreed.drawn.cost.saved, agreed.settled) == (3, 7, {})
    native = run(drawing(Native(), EQUAL, ADAPTIVE, None))
    assert (len(native.drawn.samples), native.drawn.cost.saved) == (10, 0)
    apart = run(drawing(MODEL, SPREAD, ADAPTIVE, None))
    assert (len(apart.drawn.samples), apart.drawn.cost.saved) == (10, 0)


@pytest.mark.parametrize("early_stopping", ["auto", "off"])
@pytest.mark.parametrize("question", [SPREAD, EQUAL, LATE])
def test_an_adaptive_guard_measures_what_calibration_measured(question: str, early_stopping: Any) -> None:
    base = make_artifact(MODEL, threshold=1.3)
    artifact = base.model_copy(update={"estimator": EXACT.spec, "plan": ADAPTIVE})
    verdict = Guardrail(model=MODEL, artifact=artifact, early_stopping=early_stopping).assess(question)
    recorded = run(drawing(MODEL, question, PLAN, None)).drawn  # all ten
    part, plan = adaptive_subset(recorded, EXACT, ADAPTIVE)
    full = measure(part, EXACT, plan)
    assert full.value is not None
    assert verdict.accepted == (full.value <= 1.3)
    if early_stopping == "off":
        assert verdict.uncertainty == full
    if question == LATE:  # three equal, then {4, 1, 1, ...}: measured on the three
        assert full.value == 0


def test_a_set_that_is_short_of_its_adaptive_plan_is_not_measured() -> None:
    short = SampleSet(question="q", primary=Sample(text="x"), samples=tuple(Sample(text=text) for text in "aab"))
    part, plan = adaptive_subset(short, EXACT, ADAPTIVE)
    assert measure(part, EXACT, plan).reason is Unmeasured.SAMPLING_SHORTFALL


def test_the_rule_must_leave_something_to_draw() -> None:
    with pytest.raises(ValueError, match=r"unanimous_at must be below n = 10, got 10. Use 3"):
        SamplingPlan(n=10, unanimous_at=10)


# -- where calibration left questions out


def left_out(n_unmeasured: int, of: int = 1000) -> Any:
    artifact = make_artifact(MODEL, threshold=2.0).model_copy(update={"estimator": EXACT.spec})
    data = artifact.data.model_copy(update={"n_questions": of, "n_unmeasured": n_unmeasured})
    return artifact.model_copy(update={"data": data})


FAILS_LATE = ScriptedChat(default=["x", *["same"] * 6, ""])
"""Accepted early at a threshold of 2; unmeasured as a whole."""


@pytest.mark.parametrize(("n_unmeasured", "stops"), [(0, True), (5, True), (6, False), (1000, False)])
def test_auto_stops_early_only_where_calibration_could_measure_nearly_all(n_unmeasured: int, stops: bool) -> None:
    artifact = left_out(n_unmeasured)
    verdict = Guardrail(model=FAILS_LATE, artifact=artifact).assess("q")
    assert (verdict.accepted, verdict.cost.saved > 0) == (stops, stops)
    if not stops:
        assert verdict.uncertainty.reason is Unmeasured.EMPTY_ANSWER
    asked_for = Guardrail(model=FAILS_LATE, artifact=artifact, early_stopping="on").assess("q")
    assert asked_for.accepted  # the caller's choice, which the promise does not cover
    never = Guardrail(model=FAILS_LATE, artifact=artifact, early_stopping="off").assess("q")
    assert not never.accepted


@pytest.mark.parametrize("n_unmeasured", [0, 6])
def test_stages_of_a_cascade_do_the_same(n_unmeasured: int) -> None:
    base = cascade_artifact(2.0, 2.0)
    stages = [
        stage.model_copy(update={"data": left_out(n_unmeasured).data, "estimator": EXACT.spec}) for stage in base.stages
    ]
    models = [FAILS_LATE.model_copy(update={"name_of_model": name}) for name in ("small", "large")]
    verdict = Cascade(models, artifact=base.model_copy(update={"stages": tuple(stages)})).assess("q")
    assert verdict.accepted == (n_unmeasured == 0)


# -- two stages


def two_stage_artifact(model: ScriptedChat, threshold: float) -> CalibrationArtifact:
    """Scale 0, .01, ..., 2.99: F0 of an answer of -ln p = 1.495 is .5; w = .2 and two samples."""
    cheap, second = make_estimator("sequence_nll"), make_estimator("primary_disagreement", judge=ExactJudge())
    scale = tuple(i / 100 for i in range(300))
    none = Training(ids=(), questions=())
    params = TwoStageParams(weight=0.2, scale=scale, cheap=cheap.spec, second=second.spec, training=none)
    plan = SamplingPlan(n=2, logprobs=True, cut_off="abstain")
    return make_artifact(model, threshold=threshold).model_copy(
        update={"estimator": two_stage(params, cheap, second).spec, "plan": plan}
    )


@pytest.mark.parametrize(
    ("threshold", "answers", "calls", "accepted", "score"),
    [
        (0.7, ["a", "a", "b"], 1, True, 0.7),  # F0 + w <= t: the samples could only agree more
        (0.49, ["a", "a", "a"], 1, False, 0.5),  # F0 > t: the samples could only disagree
        (0.6, ["a", "a", "b"], 3, True, 0.6),
        (0.6, ["a", "b", "b"], 3, False, 0.7),
        (0.6, ["a", RuntimeError("lost"), "a"], 3, False, 0.7),  # a lost sample disagrees
    ],
)
def test_two_stages_draw_samples_only_where_the_first_call_does_not_decide(
    threshold: float, answers: list[str | Exception], calls: int, accepted: bool, score: float
) -> None:
    model = ScriptedChat(default=answers, probability=math.exp(-1.495))
    artifact = two_stage_artifact(model, threshold)
    verdict = Guardrail(model=model, artifact=artifact, remember=0).assess("q")
    assert (verdict.cost.calls, verdict.accepted) == (calls, accepted)
    assert verdict.uncertainty.value == pytest.approx(score)
    assert verdict.uncertainty.is_bound == (calls == 1)
    assert verdict.cost.saved == (2 if calls == 1 else 0)
    whole = Guardrail(model=model, artifact=artifact, early_stopping="off").assess("q")
    assert (whole.cost.calls, whole.accepted) == (3, accepted)
    assert not whole.uncertainty.is_bound


@pytest.mark.parametrize(
    ("threshold", "answers", "accepted", "score"),
    [
        (0.6, ["a", "a", "b"], 1, 0.6),
        (0.6, ["a", "b", "b"], 0, 0.7),
        (0.6, ["a", ConnectionResetError(), "a"], 0, 0.7),  # a failed sample disagrees here, too
    ],
)
def test_two_stages_observe_the_served_answer_by_the_same_score(
    threshold: float, answers: list[str | Exception], accepted: int, score: float
) -> None:
    model = ScriptedChat(default=answers, probability=math.exp(-1.495))
    verdicts: list[Any] = []
    guard = Guardrail(
        model=model,
        artifact=two_stage_artifact(model, threshold),
        mode="observe",
        on_verdict=lambda verdict, messages: verdicts.append(verdict),
    )
    assert guard.invoke("q", temperature=0.0, logprobs=True).text == "a"
    assert guard.drain(10)
    assert guard.observed.accepted == accepted
    assert verdicts[0].uncertainty.value == pytest.approx(score)


def test_two_stages_without_a_score_of_the_first_call_draw_nothing_more() -> None:
    model = ScriptedChat(default=["a", "a", "a"])  # no log-probabilities
    verdict = Guardrail(model=model, artifact=two_stage_artifact(model, 1.2)).assess("q")
    assert verdict.cost.calls == 1
    assert verdict.uncertainty.reason is Unmeasured.NO_LOGPROBS
