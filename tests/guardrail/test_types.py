"""Values refuse what would later look certain by accident."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Basis, OptionScores, Sample, SamplingPlan, Uncertainty, Unmeasured
from guardrail.verdict import Reason, Verdict


def test_temperature_zero_is_refused_for_samples() -> None:
    with pytest.raises(ValidationError, match="temperature must be above 0 for samples, got 0"):
        SamplingPlan(n=10, temperature=0.0)


def test_temperature_zero_is_fine_without_samples() -> None:
    assert SamplingPlan(n=0, temperature=0.0).n == 0


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -0.1])
def test_temperature_must_be_a_finite_number_above_zero(temperature: float) -> None:
    with pytest.raises(ValidationError, match="temperature must be a finite number"):
        SamplingPlan(temperature=temperature)


def test_stop_token_ids_are_part_of_a_plan() -> None:
    plan = SamplingPlan(stop_token_ids=(7, 9))
    assert SamplingPlan.from_stored(plan.model_dump_json()) == plan != SamplingPlan()
    with pytest.raises(ValidationError, match="stop_token_ids"):
        SamplingPlan(stop_token_ids=(-1,))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"stop\.1\n.*at least 1 character"):
        SamplingPlan(stop=("END", ""))


@pytest.mark.parametrize("options", [("A",), ("A", "A")])
def test_options_are_at_least_two_distinct_labels(options: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="two distinct labels"):
        SamplingPlan(options=options)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.5, -9999.0])
def test_a_log_probability_is_finite_and_not_positive(value: float) -> None:
    with pytest.raises(ValidationError, match=r"logprobs\[1\]"):
        Sample(text="a b", tokens=("a", "b"), logprobs=(-0.1, value))


def test_tokens_and_log_probabilities_go_together() -> None:
    with pytest.raises(ValidationError, match="go together"):
        Sample(text="a", tokens=("a",))
    with pytest.raises(ValidationError, match="1 tokens but 2 log-probabilities"):
        Sample(text="a", tokens=("a",), logprobs=(-1.0, -1.0))


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_option_scores_are_finite(value: float) -> None:
    with pytest.raises(ValidationError, match="option 'B'"):
        OptionScores(labels=("A", "B"), loglikelihoods=(-1.0, value))


def test_options_of_which_one_has_a_placeholder_are_refused() -> None:
    """The other would have probability 1, and its entropy of 0 would be accepted."""
    with pytest.raises(ValidationError, match="-9999, which is a placeholder"):
        OptionScores(labels=("A", "B"), loglikelihoods=(-1.0, -9999.0))


def test_option_probabilities_do_not_overflow() -> None:
    # softmax(-1000, -1000 - ln 3) = (3/4, 1/4), although exp(-1000) underflows to 0
    scores = OptionScores(labels=("A", "B"), loglikelihoods=(-1000.0, -1000.0 - math.log(3)))
    assert scores.probabilities == pytest.approx((0.75, 0.25))
    assert scores.best == "A"


def test_an_uncertainty_has_a_value_or_a_reason() -> None:
    with pytest.raises(ValidationError, match="never both or neither"):
        Uncertainty(value=None, unit="nats", estimator="e")
    with pytest.raises(ValidationError, match="never both or neither"):
        Uncertainty(value=0.1, unit="nats", estimator="e", reason=Unmeasured.NOT_FINITE)
    with pytest.raises(ValidationError, match="must be finite"):
        Uncertainty(value=math.nan, unit="nats", estimator="e")


def _verdict(accepted: bool) -> Verdict:
    return Verdict(
        accepted=accepted,
        reason=Reason.WITHIN_THRESHOLD if accepted else Reason.ABOVE_THRESHOLD,
        uncertainty=Uncertainty(value=0.1, unit="nats", estimator="e"),
        threshold=0.2,
        alpha=0.1,
        outcome=make_artifact(ScriptedChat(), threshold=0.2).outcome,
        basis=Basis.SAMPLES,
        artifact="",
        candidate=Sample(text="the secret answer"),
        samples=("another secret",),
    )


def test_metadata_of_an_abstention_does_not_leak_the_candidate() -> None:
    assert "secret" not in str(_verdict(accepted=False).to_metadata())
    assert "the secret answer" in str(_verdict(accepted=True).to_metadata())


def test_a_verdict_stores_no_sentence_and_is_read_back_from_what_other_programs_are_shown() -> None:
    """A stored sentence would go out of date with the words; a shown one must not make the JSON unreadable."""
    verdict = _verdict(accepted=False)
    assert not {"detail", "guarantee"} & verdict.model_dump().keys()
    assert {"detail": verdict.detail, "guarantee": verdict.guarantee}.items() <= verdict.shown().items()
    assert Verdict.from_stored(verdict.shown()) == verdict
