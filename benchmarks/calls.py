"""Scores of recorded draws by the calls that each needs, and one fit on them; see `benchmarks.cost`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.fitting import Target
from calibrate.rules import Infeasible
from calibrate.scoring.names import usual_estimator
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, make_estimator, measure_stream
from guardrail.uncertainty.combine import first_stage

__all__ = ["Score", "certified_once", "ordered", "score_of", "scores_of_draws"]

Reals = NDArray[np.float64]
WEIGHT = 0.2
"""w of two stages, as `then` has it by default."""


@dataclass(frozen=True, slots=True)
class Score:
    """One score of every question of a pool.

    Attributes:
        name: Row of the table.
        calls: Calls a question; of two stages those of the first.
        values: The score, shape (n,); NaN where it is unmeasured. Of two stages the cheap score.
        tokens: Output tokens a question, of its calls; NaN where the data do not tell.
        second: Of two stages: the disagreement in [0, 1], shape (n,).
        weight: Of two stages: w.
        more: Of two stages: further calls where the first do not decide.
        more_tokens: Of two stages: output tokens of those, a question that draws them.
        seconds: Seconds a question, where they were measured.
    """

    name: str
    calls: float
    values: Reals
    tokens: float = float("nan")
    second: Reals | None = None
    weight: float = 0.0
    more: int = 0
    more_tokens: float = float("nan")
    seconds: float = float("nan")


def ordered(score: Score, scale: Reals) -> tuple[Reals, Reals]:
    """The score that is certified, and the place of the first stage on a scale of other questions' cheap scores."""
    if score.second is None:
        return score.values, score.values
    ranked = np.sort(scale[~np.isnan(scale)])
    place = np.searchsorted(ranked, score.values, side="right") / ranked.size
    place[np.isnan(score.values)] = np.nan
    # A failed sample disagrees (see `guardrail.uncertainty.then`).
    return place + score.weight * np.nan_to_num(score.second, nan=1.0), place


def certified_once(
    score: Score,
    orders: tuple[Reals, Reals],
    error: NDArray[np.int64],
    labelled: NDArray[np.int64],
    target: Target,
) -> tuple[NDArray[np.bool_], float]:
    """Fit on the labelled questions; which of the pool are accepted, and the calls a question.

    Args:
        score: The score.
        orders: Its `ordered`.
        error: 0 or 1, of the pool.
        labelled: Places of the labelled questions in the pool; one may occur several times.
        target: Rule and error rate.
    """
    u, place = orders
    result = target.choose(np.nan_to_num(u[labelled], nan=np.inf), error[labelled])
    if isinstance(result, Infeasible):
        return np.zeros(u.size, dtype=np.bool_), score.calls
    undecided = (place <= result.threshold) & ~(place + score.weight <= result.threshold)
    return u <= result.threshold, score.calls + score.more * float(undecided.mean())


def score_of(sets: Sequence[SampleSet], estimator: Estimator, n: int, plan: SamplingPlan, name: str = "") -> Score:
    """An estimator on the first n samples of each draw, with the calls and tokens that it pays for."""
    alone = n == 0 and plan.primary != "majority"
    cut = [
        first_stage(drawn, 0, plan) if alone else drawn.model_copy(update={"samples": drawn.samples[:n]})
        for drawn in sets
    ]
    measured = list(measure_stream(cut, [estimator], plan.model_copy(update={"n": n})))
    values = np.array([np.nan if score.value is None else score.value for (score,) in measured])
    tokens = _tokens([drawn.primary for drawn in sets]) + (n * _sample_tokens(sets) if n else 0.0)
    return Score(name or estimator.name, n + 1, values, tokens)


def staged_on(cheap: Score, sets: Sequence[SampleSet], votes: Estimator, plan: SamplingPlan) -> Score:
    """Two stages: a score of one call, and two samples where it does not decide."""
    second = make_estimator("primary_disagreement", judge=votes.judge)
    return replace(
        cheap,
        name=f"two stages, {cheap.name}",
        second=score_of(sets, second, 2, plan).values,
        weight=WEIGHT,
        more=2,
        more_tokens=2 * _sample_tokens(sets),
    )


def scores_of_draws(sets: Sequence[SampleSet], plan: SamplingPlan, votes: Estimator) -> list[Score]:
    """The scores that these draws support, by the calls that each needs.

    Args:
        sets: The draws.
        plan: The plan they were drawn by.
        votes: The disagreement of samples with the answer: graded, or primary for answers that are numbers.
    """
    scores = []
    # A majority is the answer of all samples, so fewer of them have another answer.
    apart = plan.primary != "majority"
    if plan.logprobs and apart:
        usual = usual_estimator(1, options=False, bindings=plan.bindings)
        scores = [score_of(sets, make_estimator(name), 0, plan) for name in dict.fromkeys([usual, "sequence_nll"])]
        scores += [staged_on(scores[0], sets, votes, plan)] if plan.n >= 2 else []
    if plan.n >= 2:
        entropy = "semantic_entropy" if plan.logprobs else "discrete_semantic_entropy"
        scores.append(score_of(sets, make_estimator(entropy, bindings=plan.bindings), plan.n, plan))
    if plan.n >= 2 and apart:
        scores += [score_of(sets, votes, n, plan, f"{votes.name}, n = {n}") for n in sorted({2, plan.n})]
    return scores


def _sample_tokens(sets: Sequence[SampleSet]) -> float:
    return _tokens([sample for drawn in sets for sample in drawn.samples])


def _tokens(samples: Sequence[Sample | None]) -> float:
    counts = [np.nan if each.tokens is None else len(each.tokens) for each in samples if each is not None]
    return float(np.mean(counts)) if counts else float("nan")
