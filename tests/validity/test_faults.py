"""Faults that were found in published software: each would make an uncertain answer look certain."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr, ValidationError

from calibrate.fitting import fit
from guardrail import Guardrail, Reason, accepts
from guardrail.decision import ThresholdGate
from guardrail.errors import UsageError
from guardrail.judges import ExactJudge
from guardrail.sampling.sampler import Sampler
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import OptionScores, Sample, SampleSet, SamplingPlan, Uncertainty, Unmeasured
from guardrail.uncertainty import Estimator, Needs, measure
from guardrail.uncertainty import list_estimators as available
from guardrail.uncertainty import make_estimator as make


def answers(*texts: str, logprobs: Sequence[float] | None = None) -> SampleSet:
    samples = tuple(
        Sample(text=text) if logprobs is None else Sample(text=text, tokens=(text,), logprobs=(logprobs[i],))
        for i, text in enumerate(texts)
    )
    primary = Sample(text="x") if logprobs is None else Sample(text="x", tokens=("x",), logprobs=(-1.0,))
    return SampleSet(question="q", primary=primary, samples=samples)


def score(name: str, drawn: SampleSet) -> Uncertainty:
    estimator = make(name, judge=ExactJudge()) if make(name).needs.judge else make(name)
    return measure(drawn, estimator, SamplingPlan(n=len(drawn.samples), logprobs=True))


# -- sampling


class Recording(ScriptedChat):
    """A model that records the temperature of each call."""

    _requests: list[tuple[str, Any]] = PrivateAttr(default_factory=list)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        self._requests.append((str(messages[-1].content), kwargs.get("temperature")))
        return super()._generate(messages, stop, run_manager, **kwargs)


def test_a_cache_on_the_model_itself_is_bypassed() -> None:
    """With the cache the ten samples would be one answer ten times: entropy 0, accepted."""
    model = Recording(script={"q": ["a", "b1", "c1", "d1"]}, cache=True)
    (drawn,) = Sampler(model, SamplingPlan(n=10)).draw([[HumanMessage("q")]])
    assert len(model._requests) == 11
    assert len({sample.text for sample in drawn.samples}) == 3
    assert (score("self_consistency", drawn).value or 0) > 0.5


def test_two_plans_at_once_keep_their_own_temperature() -> None:
    """The faulty form sets `model.temperature`, draws, and sets it back: calls that overlap swap settings."""
    together = threading.Barrier(2, timeout=10)

    class Meeting(Recording):
        temperature: float = 0.123

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
            together.wait()  # both questions are being asked now
            return super()._generate(messages, stop, run_manager, **kwargs)

    model = Meeting(script={"cold": ["a"], "hot": ["b"]})
    plans = {"cold": SamplingPlan(n=4, temperature=0.3), "hot": SamplingPlan(n=4, temperature=1.3)}
    threads = [
        threading.Thread(target=Sampler(model, plan, max_concurrency=1).draw, args=([[HumanMessage(question)]],))
        for question, plan in plans.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert Counter(model._requests) == {("cold", 0.0): 1, ("cold", 0.3): 4, ("hot", 0.0): 1, ("hot", 1.3): 4}
    assert model.temperature == 0.123


@pytest.mark.parametrize("received", [0, 1, 9])
def test_too_few_samples_never_score(received: int) -> None:
    """One sample always agrees with itself, so every estimator that reads samples reports a shortfall."""
    drawn = answers(*["Paris"] * received, logprobs=[-0.1] * received)
    plan = SamplingPlan(n=10, logprobs=True)
    for name in available():
        if make(name).needs.samples:
            uncertainty = measure(drawn, make(name), plan)
            assert uncertainty.value is None, name
            assert uncertainty.reason is Unmeasured.SAMPLING_SHORTFALL, name


def test_a_stream_counts_every_sample() -> None:
    """Eleven calls with one prompt token and one answer token each; the faulty form reports the last call only."""
    model = ScriptedChat(script={"q": ["Paris"]})
    guard = Guardrail(model=model, artifact=make_artifact(model, threshold=0.5))
    whole: AIMessageChunk | None = None
    for chunk in guard.stream("q"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] == 11
    assert whole.usage_metadata["output_tokens"] == 11
    assert whole.response_metadata["guardrail"]["cost"]["calls"] == 11


# -- formulas


def test_nan_is_never_accepted_fitted_or_stored() -> None:
    broken = Estimator("broken", 1, "nats", Needs(), lambda evidence: math.nan)
    uncertainty = measure(answers("a1", "a1"), broken, SamplingPlan(n=2))
    assert (uncertainty.value, uncertainty.reason) == (None, Unmeasured.NOT_FINITE)
    model = ScriptedChat(script={"q": ["a"]})
    verdict = ThresholdGate(make_artifact(model, threshold=1e9, n=2), broken).decide(answers("a1", "a1"))
    assert (verdict.accepted, verdict.reason) == (False, Reason.UNMEASURED)
    assert not accepts(math.nan, math.inf)
    assert not accepts(np.array([math.nan]), math.inf).any()
    with pytest.raises(ValidationError, match="finite"):
        Uncertainty(value=math.nan, unit="nats", estimator="broken")
    with pytest.raises(UsageError):  # sorted first or last, it would move every threshold
        fit(np.array([0.1, math.nan, 0.3]), np.array([0, 0, 1]), alpha=0.2, rule="acrc")


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_missing_option_cannot_be_written_as_a_number(value: float) -> None:
    """p = 0 for a missing option overstates the certainty of the others: .6 and .4 of the listed mass."""
    with pytest.raises(ValidationError, match="must be finite"):
        OptionScores(labels=("A", "B", "C"), loglikelihoods=(math.log(0.3), math.log(0.2), value))
    listed = OptionScores(labels=("A", "B"), loglikelihoods=(math.log(0.3), math.log(0.2)))
    drawn = SampleSet(question="q", primary=Sample(text="A"), options=listed)
    for name in ("predictive_entropy", "max_softmax"):
        uncertainty = measure(drawn, make(name), SamplingPlan(n=0, options=("A", "B", "C")))
        assert (uncertainty.value, uncertainty.reason) == (None, Unmeasured.NO_OPTIONS)


@pytest.mark.parametrize("tokens", [("New",), ("New", " York", "!"), ("new", " york")])
def test_tokens_that_do_not_spell_the_answer_are_no_measurement(tokens: tuple[str, ...]) -> None:
    """Weights and log-probabilities of different pieces are unmeasured; a score of 0 would be the most certain."""
    good = Sample(text="New York", tokens=("New", " York"), logprobs=(-0.5, -0.25))
    bad = Sample(text="New York", tokens=tokens, logprobs=(-0.5,) * len(tokens))
    weighted = [name for name in available() if make(name).needs.relevance is not None]
    assert {"word_sequence_entropy", "token_sar", "sar"} <= set(weighted)
    for name in weighted:
        plan = SamplingPlan(n=2, logprobs=True)
        assert measure(SampleSet(question="q", primary=good, samples=(good, good)), make(name), plan).value is not None
        uncertainty = measure(SampleSet(question="q", primary=good, samples=(good, bad)), make(name), plan)
        assert uncertainty.value is None, name
