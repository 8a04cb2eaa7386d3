"""Two stages in a guard: which calls are made, and that sync, async and native samplers agree."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatResult
from pydantic import Field

from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.judges import ExactJudge
from guardrail.sampling.effects import run
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Cost, Sample, SampleSet, SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator, measure, then
from guardrail.uncertainty.registry import from_spec
from tests.combinations import ranks_of


def two_stage_artifact(model: ScriptedChat, threshold: float) -> CalibrationArtifact:
    """Scale 0, .01, ..., 2.99: F0 of an answer of -ln p = 1.495 is .5; w = .2 and two samples."""
    cheap, second = make_estimator("sequence_nll"), make_estimator("primary_disagreement", judge=ExactJudge())
    staged = then(cheap, second, ranks=ranks_of(i / 100 for i in range(300)))
    plan = SamplingPlan(n=2, logprobs=True, cut_off="abstain")
    return make_artifact(model, threshold=threshold).model_copy(update={"estimator": staged.spec, "plan": plan})


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
    again = asyncio.run(Guardrail(model=model, artifact=artifact, remember=0).aassess("q"))
    assert again.model_dump(exclude={"cost"}) == verdict.model_dump(exclude={"cost"})


def counted_stages(model: Any, threshold: float) -> CalibrationArtifact:
    """Without log-probabilities: two samples, then four; c of 0, .5 or 1, F of .25, .75 or 1, and w = .2."""
    votes = make_estimator("primary_disagreement", judge=ExactJudge())
    staged = then(votes, votes, m=4, first=2, ranks=ranks_of([0.0] * 75 + [0.5] * 150 + [1.0] * 75))
    plan = SamplingPlan(n=4, cut_off="abstain")
    return make_artifact(model, threshold=threshold).model_copy(update={"estimator": staged.spec, "plan": plan})


@pytest.mark.parametrize("remember", [0.0, 300.0])
@pytest.mark.parametrize(
    ("threshold", "answers", "calls", "accepted", "score"),
    [
        (0.5, ["a", "a", "a", "b", "b"], 3, True, 0.45),  # F(0) + w <= t
        (0.5, ["a", "a", "b", "a", "a"], 3, False, 0.75),  # F(.5) > t
        (0.8, ["a", "b", "a", "a", "a"], 5, True, 0.8),  # F(.5) + w / 4: one of four disagrees
        (0.8, ["a", "a", "b", "b", "a"], 5, False, 0.85),
        (0.8, ["a", "a", "b", RuntimeError("lost"), "a"], 5, False, 0.95),  # a lost sample of the second stage
    ],
)
def test_two_samples_and_then_the_others_where_there_are_no_log_probabilities(
    threshold: float, answers: list[str | Exception], calls: int, accepted: bool, score: float, remember: float
) -> None:
    """Each sample is drawn once, whether or not the guard remembers; the score is that of all samples together."""
    model = ScriptedChat(default=answers)
    artifact = counted_stages(model, threshold)
    verdict = Guardrail(model=model, artifact=artifact, remember=remember).assess("q")
    assert (verdict.cost.calls, verdict.accepted) == (calls, accepted)
    assert verdict.uncertainty.value == pytest.approx(score)
    assert verdict.cost.saved == 5 - calls
    again = asyncio.run(Guardrail(model=model, artifact=artifact, remember=remember).aassess("q"))
    assert again.model_dump(exclude={"cost"}) == verdict.model_dump(exclude={"cost"})
    if not isinstance(answers[3], Exception):
        drawn = SampleSet(
            question="q", primary=Sample(text="a"), samples=tuple(Sample(text=str(text)) for text in answers[1:])
        )
        offline = measure(drawn, from_spec(artifact.estimator), artifact.plan).value
        assert offline is not None
        assert (offline <= threshold) == accepted


def test_a_first_stage_that_fails_holds_back_and_draws_nothing_more() -> None:
    model = ScriptedChat(default=["a", RuntimeError("lost"), "a", "a", "a"])
    verdict = Guardrail(model=model, artifact=counted_stages(model, 5.0)).assess("q")
    assert (verdict.accepted, verdict.cost.calls) == (False, 3)
    assert verdict.uncertainty.value is None


@pytest.mark.parametrize("threshold", [0.44, 0.46])
def test_an_unreadable_sample_of_the_first_stage_counts_as_in_a_set_drawn_at_once(threshold: float) -> None:
    """Otherwise answers would be held back for their samples that calibration counted: F(0) + w of the next two."""
    model = ScriptedChat(default=["a", ValueError("not JSON"), "a", "a", "b"])
    artifact = counted_stages(model, threshold)
    offline = measure(
        Sampler(model, artifact.plan).draw([[HumanMessage("q")]])[0], from_spec(artifact.estimator), artifact.plan
    )
    verdict = Guardrail(model=model, artifact=artifact).assess("q")
    assert offline.value == verdict.uncertainty.value == pytest.approx(0.45)
    assert verdict.accepted == (threshold == 0.46)


@pytest.mark.parametrize("end", ["length", "stop"])
def test_the_first_stage_does_not_let_a_part_pass(end: str) -> None:
    """The first call decides without samples: nothing after it would look at how the answer ended."""
    model = ScriptedChat(default=[AIMessage("a", response_metadata={"finish_reason": end, **LIKELY})])
    verdict = Guardrail(model=model, artifact=two_stage_artifact(model, 5.0)).assess("q")
    assert (verdict.accepted, verdict.cost.calls) == (end == "stop", 1)
    assert verdict.uncertainty.reason is (Unmeasured.CUT_OFF if end == "length" else None)


LIKELY = {"logprobs": {"content": [{"token": "a", "logprob": -1.0}]}}


class WithoutEnd(ScriptedChat):
    """Says of no answer why it ended."""

    def _generate(self, *args: Any, **settings: Any) -> ChatResult:
        result = super()._generate(*args, **settings)
        for generation in result.generations:
            generation.message.response_metadata.pop("finish_reason", None)
        return result


def test_an_answer_that_may_be_a_part_is_held_back_by_the_first_stage_too() -> None:
    """A proxy that loses the end of an answer loses its finish reason; no threshold is above that."""
    model = WithoutEnd(default=["a"] * 5, probability=math.exp(-1.495))
    for artifact in (counted_stages(model, 5.0), two_stage_artifact(model, 5.0)):
        verdict = Guardrail(model=model, artifact=artifact).assess("q")
        assert verdict.uncertainty.reason is Unmeasured.UNREADABLE
        drawn = Sampler(model, artifact.plan).draw([[HumanMessage("q")]])
        assert measure(drawn[0], from_spec(artifact.estimator), artifact.plan).reason is Unmeasured.UNREADABLE


class Unprobed(ScriptedChat):
    """Loses every call of a probe."""

    guardrail_trusted: ClassVar[bool] = False

    def _generate(self, messages: list[BaseMessage], *args: Any, **settings: Any) -> ChatResult:
        if messages[-1].text != "q":
            raise ConnectionResetError
        return super()._generate(messages, *args, **settings)


def test_the_first_stage_accepts_nothing_of_an_endpoint_that_could_not_be_probed() -> None:
    """Its samples are not drawn, and are not samples that disagree: no score is measured."""
    model = Unprobed(default=["a"] * 3, probability=math.exp(-1.495))
    verdict = Guardrail(model=model, artifact=two_stage_artifact(model, 5.0)).assess("q")
    assert (verdict.accepted, verdict.uncertainty.reason) == (False, Unmeasured.MODEL_FAILED)


def test_the_words_of_an_early_decision_name_what_it_read() -> None:
    """A person who sees three calls is not told that the first one decided."""
    model = ScriptedChat(default=["a"] * 5, probability=math.exp(-1.495))
    by_samples = Guardrail(model=model, artifact=counted_stages(model, 0.5)).assess("q")
    assert "settled by the answer and its first 2 samples" in by_samples.detail
    assert (
        "settled by the first call"
        in Guardrail(model=model, artifact=two_stage_artifact(model, 0.7)).assess("q").detail
    )


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
    guard = Guardrail(model=model, artifact=two_stage_artifact(model, threshold))
    served = read_reply(model.invoke("q", temperature=0.0, logprobs=True))
    verdict = run(guard.served_steps([HumanMessage("q")], served)).verdict
    assert verdict is not None
    assert verdict.accepted == bool(accepted)
    assert verdict.uncertainty.value == pytest.approx(score)


def test_two_stages_without_a_score_of_the_first_call_draw_nothing_more() -> None:
    model = ScriptedChat(default=["a", "a", "a"])  # no log-probabilities
    verdict = Guardrail(model=model, artifact=two_stage_artifact(model, 1.2)).assess("q")
    assert verdict.cost.calls == 1
    assert verdict.uncertainty.reason is Unmeasured.NO_LOGPROBS


class Native(ScriptedChat):
    """Draws natively: the next texts of a list, or else its seeds, so that two draws with one seed would show."""

    texts: list[str] = Field(default_factory=list)
    unreadable: bool = False
    """Whether the first sample beside an answer is."""

    def draw_samples(
        self,
        prompts: Sequence[Sequence[BaseMessage]],
        plan: SamplingPlan,
        *,
        seeds: Sequence[int | None],
        primary: bool = True,
    ) -> list[SampleSet]:
        def drawn(broken: bool = False, **fields: Any) -> Sample:
            text = "\ud83d" if broken else self.texts.pop(0) if self.texts else f"{seeds[0]}"
            return Sample(text=text, finish_reason="stop", **fields)

        answer = drawn(tokens=("x",), logprobs=(-1.495,)) if primary else None
        samples = tuple(drawn(broken=self.unreadable and primary and not place) for place in range(plan.n))
        return [SampleSet(question="q", primary=answer, samples=samples, cost=Cost(calls=1))]

    async def adraw_samples(self, *args: Any, **settings: Any) -> list[SampleSet]:
        return self.draw_samples(*args, **settings)


def faulty() -> Native:
    """A sampler of which the first sample cannot be read."""
    return Native(texts=["a", "\ud83d", "a", "a", "b"])


@pytest.mark.parametrize("remember", [0, 300])
@pytest.mark.parametrize("threshold", [0.44, 0.46])
def test_an_unreadable_sample_of_a_native_sampler_counts_as_in_a_set_drawn_at_once(
    threshold: float, remember: float
) -> None:
    """As above: the guard drew as many samples in two calls as calibration in one."""
    artifact = counted_stages(faulty(), threshold)
    (drawn,) = Sampler(faulty(), artifact.plan).draw([[HumanMessage("q")]])
    offline = measure(drawn, from_spec(artifact.estimator), artifact.plan)
    verdict = Guardrail(model=faulty(), artifact=artifact, remember=remember).assess("q")
    assert offline.value == verdict.uncertainty.value == pytest.approx(0.45)
    assert (verdict.accepted, verdict.cost.calls) == (threshold == 0.46, 2)


@pytest.mark.parametrize("remember", [0, 300])
def test_the_rest_of_such_a_set_has_another_seed(remember: float) -> None:
    """With the same seed the samples would be drawn twice, and agree."""
    model = Native(unreadable=True)
    artifact = counted_stages(model, 0.46)
    seeded = artifact.model_copy(update={"plan": artifact.plan.model_copy(update={"seed": 7})})
    verdict = Guardrail(model=model, artifact=seeded, remember=remember).assess("q")
    assert verdict.candidate is not None
    assert [text == verdict.candidate.text for text in verdict.samples] == [True, False, False]


@pytest.mark.parametrize("remember", [0, 300])
def test_a_native_sampler_draws_the_second_stage_with_another_seed(remember: float) -> None:
    """With the same seed a sampled answer would agree with its own samples, and look certain."""
    model = Native()
    artifact = two_stage_artifact(model, 0.6)
    sampled = artifact.model_copy(update={"plan": artifact.plan.model_copy(update={"primary": "sampled"})})
    verdict = Guardrail(model=model, artifact=sampled, remember=remember).assess("q")
    assert (verdict.cost.calls, len(verdict.samples)) == (2, 2)
    assert verdict.candidate is not None
    assert verdict.candidate.text not in verdict.samples
    assert verdict.uncertainty.value == pytest.approx(0.7)


@pytest.mark.parametrize("remember", [0, 300])
def test_a_native_sampler_continues_the_samples_of_the_first_stage(remember: float) -> None:
    """Its answer and two samples have one seed and agree: c = 0. The other two disagree: d = .5."""
    model = Native()
    verdict = Guardrail(model=model, artifact=counted_stages(model, 0.4), remember=remember).assess("q")
    assert verdict.candidate is not None
    same = [text == verdict.candidate.text for text in verdict.samples]
    assert (verdict.cost.calls, same) == (2, [True, True, False, False])
    assert verdict.uncertainty.value == pytest.approx(0.35)


def test_the_second_stage_is_the_plans_samples_without_the_primary_answer() -> None:
    """Otherwise an answer that another call gave would be measured."""
    plan, prompt = SamplingPlan(n=2), [[HumanMessage("q")]]
    model = ScriptedChat(default=["x", "a", "b"])
    (whole,), (rest,) = Sampler(model, plan).draw(prompt), Sampler(model, plan, primary=False).draw(prompt)
    assert (rest.primary, rest.samples, rest.cost.calls) == (None, whole.samples, 2)


@pytest.mark.parametrize(("threshold", "calls"), [(0.7, 1), (0.49, 3)])
def test_a_list_of_candidates_has_the_samples_of_everything_that_is_held_back(threshold: float, calls: int) -> None:
    """The promise of the list is about all questions that are held back, and a list without samples is not shown."""

    def hook(verdict: Any) -> None:
        return None

    hook.candidates = object()  # type: ignore[attr-defined]
    model = ScriptedChat(default=["a", "a", "b"], probability=math.exp(-1.495))
    guard = Guardrail(model=model, artifact=two_stage_artifact(model, threshold), on_abstain=hook)
    assert guard.assess("q").cost.calls == calls
