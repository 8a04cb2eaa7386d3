"""Make a two-stage score from records: the scale of its cheap score, on questions that calibration leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from guardrail.errors import UsageError
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator, measure_stream
from guardrail.uncertainty.two_stage import FEWEST, TwoStageParams, two_stage

from ..data.records import Record
from ..data.split import Groups
from .ensemble import cut_for_training, training_of

__all__ = ["WEIGHT", "cut_for_scale", "make_two_stage"]

WEIGHT = 0.2
"""w by default: samples can move a question by a fifth of the scale, and about a fifth of the questions draws them."""


def cut_for_scale(
    records: Sequence[Record], *, size: int = FEWEST, groups: Groups = "category", seed: int = 0
) -> tuple[list[Record], list[Record]]:
    """Cut records in the questions of a scale and the rest, at random; no label is looked at.

    A scale needs no labels: where enough records have none, the questions come from those. Equal questions stay
    together, and so do clusters.

    Raises:
        UsageError: Too few records, or the cut leaves none for the fit.
    """
    # Undecided answers count as wrong in the fit: to spend them here would leave out the answers that err most.
    unlabelled = [record for record in records if record.correct is None and not record.is_undecided]
    # 10 % more than asked for: an answer that cannot be measured has no place on the scale.
    wanted = round(1.1 * max(size, FEWEST))
    pool = unlabelled if wanted <= len(unlabelled) < len(records) else list(records)
    if wanted >= len(records):
        raise UsageError(
            f"a scale takes {wanted} questions that the fit does not use, and there are {len(records)}. Ask more "
            "questions; those of the scale need no labels."
        )
    if wanted == len(pool):
        scaled = list(pool)
    else:
        scaled, _ = cut_for_training(pool, train_fraction=wanted / len(pool), groups=groups, seed=seed)
    hashes = training_of(scaled)
    ids, questions = set(hashes.ids), set(hashes.questions)
    clusters = set(hashes.groups) if groups == "cluster" else set[str]()
    rest = []
    for record in records:
        own = training_of([record])
        if ids.isdisjoint(own.ids) and questions.isdisjoint(own.questions) and clusters.isdisjoint(own.groups):
            rest.append(record)
    return scaled, rest


def make_two_stage(
    scaled: Sequence[Record], plan: SamplingPlan, cheap: Estimator, second: Estimator, *, weight: float = WEIGHT
) -> Estimator:
    """The ordering u = F0(c) + w d with the scale of these records.

    Args:
        scaled: Records of questions that no threshold is fitted on. Their labels and samples are not read.
        plan: The plan they were drawn by.
        cheap: The score c of the primary answer.
        second: The disagreement d of the samples with it.
        weight: w, above 0.

    Raises:
        UsageError: Too few of the records have a cheap score, or the two scores cannot be stages.
    """
    alone = plan.primary_only()
    drawn = (
        record.drawn.model_copy(update={"samples": (), "problem": None, "problem_detail": ""})
        for record in scaled
        if record.drawn is not None and record.drawn.primary is not None
    )
    scores = [score.value for (score,) in measure_stream(drawn, [cheap], alone) if score.value is not None]
    if len(scores) < FEWEST:
        raise UsageError(
            f"{len(scores)} of {len(scaled)} answers have a score by {cheap.name}, and a scale needs {FEWEST}. Take "
            "more questions, or collect with log-probabilities."
        )
    if not (np.isfinite(weight) and weight > 0):
        raise UsageError(f"the weight must be a number above 0, got {weight}. Use 0.2.")
    params = TwoStageParams(
        weight=weight,
        scale=tuple(sorted(scores)),
        cheap=cheap.spec,
        second=second.spec,
        training=training_of(scaled),
    )
    return two_stage(params, cheap, second)
