"""A cheap score first, samples only where it does not decide, and one ordering for both: u = F0(c) + w d."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Self

from pydantic import Field, ValidationError, model_validator

from ..errors import ArtifactMismatchError, UsageError
from ..specs import EstimatorSpec
from ..types import Frozen, Missing, SampleSet, Unmeasured
from .base import Estimator, Evidence, Needs
from .ensemble import Training

__all__ = ["FEWEST", "NAME", "TwoStageParams", "from_two_stage_spec", "primary_alone", "two_stage"]

NAME = "two_stage"
"""Name of the estimator in specs. `make_estimator` cannot make one: its scale is made of records."""
FEWEST = 300
"""Fewest scores in a scale: with 300 at most a share w + .156 of the questions draws samples (95 %), ties aside."""


class TwoStageParams(Frozen):
    """The whole ordering; stored in `EstimatorSpec.params`, so that an artifact needs no other file."""

    weight: float = Field(gt=0, le=10)
    """w: how far the samples can move a question. At most about this share of questions draws samples."""
    scale: tuple[float, ...] = Field(min_length=FEWEST, repr=False)
    """The cheap scores of other questions, ascending. Their distribution function is F0."""
    cheap: EstimatorSpec
    """The score c of the primary answer."""
    second: EstimatorSpec
    """The disagreement d of the samples with the primary answer, in [0, 1]."""
    training: Training
    """The questions of the scale: a threshold must be fitted on others."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(not a <= b for a, b in pairwise(self.scale)):  # NaN is in no order
            raise ValueError("the scores of the scale must ascend")
        return self

    def place(self, cheap: float) -> float:
        """F0(c): the share of the scale at or below a cheap score, in [0, 1]."""
        return bisect_right(self.scale, cheap) / len(self.scale)

    def order(self, cheap: float, disagreement: float) -> float:
        """The score F0(c) + w d.

        Every decision, with samples or without, evaluates this one expression: rounding is monotone in d, so no
        decision after the first call can differ from that on the score. (F0(c) <= t - w can: 4 of 600,000 verdicts.)
        """
        return self.place(cheap) + self.weight * disagreement


def two_stage(params: TwoStageParams, cheap: Estimator, second: Estimator) -> Estimator:
    """The estimator u = F0(c) + w d, a share, in [0, 1 + w].

    c is the cheap score of the primary answer, F0 the distribution function of c on other questions, and d the
    disagreement of the samples. u is a fixed function of a question and its draws, so a threshold on it is certified
    like one on any other score. At run time a question with F0(c) + w <= t is accepted and one with F0(c) > t held
    back before a sample is drawn.

    A question is unmeasured only if its primary answer or c is. Whatever fails later (a sample, the judge, the
    transport) counts d = 1, at calibration and at run time: otherwise a question accepted before drawing is one that
    calibration left out.

    Args:
        params: Weight and scale.
        cheap: The estimator of ``params.cheap``.
        second: The estimator of ``params.second``.

    Raises:
        UsageError: The cheap score reads more than the first call gives, or the second one reads no samples.
    """
    if cheap.needs.samples or cheap.needs.options or cheap.needs.follow_up is not None or cheap.is_slow:
        raise UsageError(
            f"{cheap.name} needs more than the first call, so it cannot come before the samples. Use answer_word_nll "
            "or sequence_nll."
        )
    if not (second.needs.samples and second.needs.primary and second.unit == "probability"):
        raise UsageError(
            f"{second.name} does not compare samples with the answer on a scale from 0 to 1. Use primary_disagreement "
            "or graded_disagreement."
        )

    def formula(evidence: Evidence) -> float | Missing:
        if len(evidence.members) != 2:
            return Missing(Unmeasured.NOT_RECORDED, "the stages of the ordering were not measured")
        return params.order(*evidence.members)

    return Estimator(
        NAME,
        1,
        "probability",
        Needs(samples=True, logprobs=cheap.needs.logprobs),
        formula,
        members=(cheap, second),
        params=params.model_dump(mode="json"),
        after_first=lambda score: (params.order(score, 0.0), params.order(score, 1.0)),
    )


def from_two_stage_spec(spec: EstimatorSpec, remake: Callable[[EstimatorSpec], Estimator]) -> Estimator:
    """The ordering that a spec describes; ``remake`` makes its two scores.

    Raises:
        ArtifactMismatchError: The parameters are not those of such an ordering, or a score cannot be remade.
    """
    try:
        params = TwoStageParams.from_stored(spec.params)
    except ValidationError as error:
        raise ArtifactMismatchError(
            f"the spec of a two-stage score is wrong: {error.errors()[0]['msg']}. Make it again: calibrate two-stage."
        ) from error
    return two_stage(params, remake(params.cheap), remake(params.second))


_OF_THE_ENDPOINT = frozenset({Unmeasured.DEGENERATE_SAMPLES, Unmeasured.MISCONFIGURED})
"""Problems found before a question was drawn: they hold back every question."""


def primary_alone(drawn: SampleSet) -> SampleSet:
    """The set as it was after its first call, without samples and their problem."""
    if drawn.primary is None or drawn.problem in _OF_THE_ENDPOINT:
        return drawn
    return drawn.model_copy(update={"samples": (), "problem": None, "problem_detail": ""})
