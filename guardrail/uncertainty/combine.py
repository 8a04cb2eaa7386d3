"""Scores made of others, as one number each: `then`, `ties` and `rank_mean`.

No label is read: a combination is a fixed function of a question and its draws, so a threshold on it is certified like
one on any other score. What it needs beside its parts (ranks of other questions) is in its spec, so that an artifact
needs no other file. A part is a plain score, never a combination.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Self

from pydantic import Field, ValidationError, model_validator

from ..errors import ArtifactMismatchError, UsageError
from ..files import problem_of
from ..sampling.replies.failures import refused_samples
from ..specs import EstimatorSpec
from ..types import Frozen, Missing, SampleSet, SamplingPlan, Uncertainty, Unit, Unmeasured
from .base import Estimator, Evidence, Needs, Stages
from .training import Training

__all__ = ["COMBINATIONS", "FEWEST", "Parts", "Ranks", "combined", "expanded", "first_stage", "from_combination_spec"]
__all__ += ["needs_ranks", "rank_mean", "ranked_parts", "scale_of", "seen_by", "then", "tie_order", "ties"]
__all__ += ["with_ranks"]

FEWEST = 300
"""Fewest questions that ranks come from: with 300, `then` draws samples for at most a share w + .156 (95 %)."""
_MOST = 2**20
"""Multiples in `ties` beyond which the fraction of a double would no longer keep the second score apart."""
_BELOW_ONE = 1 - 2.0**-30
"""The largest s of `ties`. A multiple below `_MOST` plus this is an exact double below the next multiple."""


class Ranks(Frozen):
    """Scores of other questions, which turn a score into a rank."""

    scores: tuple[tuple[float, ...], ...] = Field(repr=False)
    """For each ranked part, the scores of the questions, ascending."""
    questions: Training
    """The questions: a threshold must be fitted on others. Their labels play no part."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for row in self.scores:
            if len(row) < FEWEST:
                raise ValueError(f"ranks come from at least {FEWEST} questions, got {len(row)}")
            if any(not a <= b for a, b in pairwise(row)):  # NaN is in no order
                raise ValueError("the scores that ranks come from must ascend")
        return self

    def place(self, part: int, score: float) -> float:
        """F(score): the share of the questions whose score by this part is at or below it, in [0, 1]."""
        return bisect_right(self.scores[part], score) / len(self.scores[part])


class Parts(Frozen):
    """The scores and numbers of a combination; stored in `EstimatorSpec.params`."""

    parts: tuple[EstimatorSpec, ...] = Field(min_length=2)
    """The scores."""
    settings: dict[str, float]
    """Its numbers: w and m of `then`, r of `ties`."""
    ranks: Ranks | None = None
    """None for `ties`, which ranks nothing, and before records have been scored."""


# -- The three ---------------------------------------------------------------------------------------------------------


def then(
    cheap: Estimator, dear: Estimator, *, w: float = 0.2, m: int = 2, first: int = 0, ranks: Ranks | None = None
) -> Estimator:
    """A cheap score first, more samples only where it does not decide: u = F(c) + w d, in [0, 1 + w].

    c is the cheap score of the primary answer and of as many samples as ``first`` says, F its distribution function on
    other questions, and d the disagreement of the first m samples. At run time a question with F(c) + w <= t is
    accepted, and one with F(c) > t held back, before the other samples are drawn; at most about a share w of the
    questions draws them.

    A question is unmeasured only if its primary answer or c is. Any later failure (a sample, the judge, the
    transport) counts d = 1, at calibration and at run time: otherwise a question accepted before drawing is one that
    calibration left out.

    Args:
        cheap: A score of the first call, or with ``first`` of so many samples beside it.
        dear: Disagreement of the samples with the primary answer, in [0, 1].
        w: How far the samples can move a question, in (0, 10].
        m: Samples, at least 1.
        first: Samples of the first stage, below m: 0 for a score of the first call alone; 2 where an endpoint gives no
            log-probabilities and the cheap score is a disagreement itself.
        ranks: Cheap scores of at least 300 other questions. Default: scoring a record file takes them from there.

    Raises:
        UsageError: The cheap score reads more than the first call gives, the dear one does not compare samples with the
            answer, or a number is out of its range.
    """
    if cheap.needs.options or cheap.needs.follow_up is not None or cheap.is_slow or (cheap.needs.samples and not first):
        raise UsageError(
            f"{cheap.name} needs more than the first call, so it cannot come before the samples. Use answer_word_nll "
            "or sequence_nll; or graded_disagreement with first=2, for two samples and then the others (m=10)."
        )
    if not (dear.needs.samples and dear.needs.primary and dear.unit == "probability"):
        raise UsageError(
            f"{dear.name} does not compare samples with the answer on a scale from 0 to 1. Use primary_disagreement "
            "or graded_disagreement."
        )
    if not 0 < w <= 10:  # NaN compares false
        raise UsageError(f"w must be in (0, 10], got {w!r}. Use 0.2: about a fifth of the questions draws samples.")
    if m != int(m) or m < 1:
        raise UsageError(f"m must be a whole number of samples from 1, got {m!r}. Use 2.")
    if first != int(first) or not 0 <= first < m or bool(first) != cheap.needs.samples or first < cheap.fewest:
        raise UsageError(
            f"first must be the number of samples that {cheap.name} reads, below m = {m:g}, got {first!r}. Use "
            f"{max(2, cheap.fewest) if cheap.needs.samples else 0}."
        )
    if cheap is dear:
        cheap = replace(cheap)  # the first stage is recognised by its object

    def order(score: float, disagreement: float) -> float:
        return then_order(_known(ranks), w, score, disagreement)

    return _made(
        "then",
        (cheap, dear),
        order,
        "probability",
        {"w": w, "m": int(m)} | ({"first": int(first)} if first else {}),
        ranks,
        Stages(int(first), int(m), lambda score: (order(score, 0.0), order(score, 1.0))),
    )


def scale_of(spec: EstimatorSpec) -> tuple[float, ...] | None:
    """The cheap scores of other questions that `then` ranks by, ascending; None for other scores."""
    return tuple(spec.params["ranks"]["scores"][0]) if spec.name == "then" else None


def then_order(ranks: Ranks, w: float, cheap: float, disagreement: float) -> float:
    """The score F(c) + w d of `then`.

    Every decision, with samples or without, evaluates this one expression: rounding is monotone in d, so no decision
    after the first call can differ from that on the score. (F(c) <= t - w can: 4 of 600,000 verdicts.)
    """
    return ranks.place(0, cheap) + w * disagreement


def ties(first: Estimator, second: Estimator, *, r: float = 1e-3) -> Estimator:
    """The order of one score, and that of another one where the first ties: u = r (round(a / r) + s(b)).

    A confidence that a model states in words has few values, so that a threshold accepts or holds back many questions
    at once; the probability of the answer's tokens orders these. The score has the unit of the first one, which it
    exceeds by at most 1.5 r. If either score is unmeasured, so is this one.

    Args:
        first: The score a, whose order counts.
        second: The score b, which orders ties.
        r: First scores that round to the same multiple of r are ties; below every real step of the first score, and
            above the noise of its arithmetic.

    Raises:
        UsageError: r is not above 0, or the two scores are the same.
    """
    if not (math.isfinite(r) and r > 0):
        raise UsageError(f"r must be a number above 0, got {r!r}. Leave it out for 0.001.")
    if first.spec == second.spec:
        raise UsageError(f"{first.name} cannot break its own ties. Name another second score.")

    return _made("ties", (first, second), partial(tie_order, r), first.unit, {"r": r})


def tie_order(r: float, first: float, second: float) -> float:
    """The score r (round(a / r) + s(b)) of `ties`, with s(b) = (1 + b / (1 + |b|)) / 2 in [0, 1).

    A question with a smaller multiple has the smaller score for every b, and among equal multiples the score does
    not fall as b grows. Rounding cannot break either: multiples are whole numbers below 2**20, s is at most
    1 - 2**-30, and multiplication by r is monotone. Where b is so large that s no longer moves, ties stay ties.
    """
    multiple = first / r
    if not abs(multiple) < _MOST:
        raise Missing(Unmeasured.NOT_FINITE, f"the score {first:.4g} is more than {_MOST:,} times r = {r:g} of ties")
    return r * (round(multiple) + min((1 + second / (1 + abs(second))) / 2, _BELOW_ONE))


def rank_mean(*parts: Estimator, ranks: Ranks | None = None) -> Estimator:
    """The mean of the ranks of several scores: u = (F_1(a) + F_2(b) + ...) / k, in [0, 1].

    F_j is the distribution function of score j on other questions, so that scores of any unit count alike and nothing
    is fitted. It does not choose: where one score is useless it costs a little, and no labels are spent to find out
    which. If any score is unmeasured, so is this one.

    Args:
        parts: Two scores or more.
        ranks: Their scores of at least 300 other questions. Default: scoring a record file takes them from there.

    Raises:
        UsageError: Fewer than two scores, or one twice.
    """
    if len(parts) < 2 or any(a.spec == b.spec for i, a in enumerate(parts) for b in parts[:i]):
        named = ", ".join(part.name for part in parts) or "none"
        raise UsageError(f"rank_mean takes two different scores or more, got {named}.")

    def mean(*scores: float) -> float:
        return math.fsum(_known(ranks).place(part, score) for part, score in enumerate(scores)) / len(scores)

    return _made("rank_mean", parts, mean, "probability", {}, ranks)


COMBINATIONS: dict[str, Callable[..., Estimator]] = {"then": then, "ties": ties, "rank_mean": rank_mean}
"""The combinations by name, as expressions and specs name them. A new one is a function above and a word here, and in
`ranked_parts` if it ranks."""


def _known(ranks: Ranks | None) -> Ranks:
    if ranks is None:
        raise Missing(
            Unmeasured.NOT_RECORDED, "its ranks are missing: score a record file with it, which takes them from there"
        )
    return ranks


def _made(
    name: str,
    parts: Sequence[Estimator],
    value: Callable[..., float],
    unit: Unit,
    settings: dict[str, float],
    ranks: Ranks | None = None,
    stages: Stages | None = None,
) -> Estimator:
    """The combination whose ``value`` is a function of the scores of its parts."""
    nested = [part.name for part in parts if part.members]
    if nested:
        raise UsageError(f"{nested[0]} is a combination itself, and a part of {name} is not. Name plain scores.")
    if len({part.scorer.follow_up for part in parts if part.scorer is not None}) > 1:
        raise UsageError(
            "a guard takes one scorer. Combine it with other scores, or return one number from one scorer."
        )
    stored = Parts(parts=tuple(part.spec for part in parts), settings=settings, ranks=ranks)
    return Estimator(
        name,
        1,
        unit,
        Needs(samples=any(part.needs.samples for part in parts), logprobs=any(part.needs.logprobs for part in parts)),
        lambda evidence: value(*evidence.members),
        members=tuple(parts),
        params=stored.model_dump(mode="json"),
        stages=stages,
    )


# -- Ranks and specs ---------------------------------------------------------------------------------------------------


def needs_ranks(estimator: Estimator) -> bool:
    """Return whether the score cannot be computed yet, because its ranks are missing."""
    return bool(ranked_parts(estimator)) and estimator.params["ranks"] is None


def ranked_parts(estimator: Estimator) -> tuple[Estimator, ...]:
    """The parts of a combination that are ranked."""
    ranked = {"then": estimator.members[:1], "rank_mean": estimator.members}
    return ranked.get(estimator.name, ())


def with_ranks(estimator: Estimator, ranks: Ranks) -> Estimator:
    """The combination with ranks."""
    return COMBINATIONS[estimator.name](*estimator.members, **estimator.params["settings"], ranks=ranks)


def from_combination_spec(spec: EstimatorSpec, remake: Callable[[EstimatorSpec], Estimator]) -> Estimator:
    """The combination that a spec describes; ``remake`` makes its parts.

    Raises:
        ArtifactMismatchError: The spec is not that of such a score, or one of its parts cannot be remade.
    """
    try:
        stored = Parts.from_stored(spec.params)
        ranks = {} if stored.ranks is None else {"ranks": stored.ranks}
        made = COMBINATIONS[spec.name](*map(remake, stored.parts), **stored.settings, **ranks)
        if needs_ranks(made) or len(ranked_parts(made)) != len(() if stored.ranks is None else stored.ranks.scores):
            raise UsageError("its ranks are missing")
    except (ValidationError, UsageError, TypeError) as error:
        fault = problem_of(error) if isinstance(error, ValidationError) else str(error)
        raise ArtifactMismatchError(f"the spec of a score by {spec.name} is wrong: {fault}. Fit it again.") from error
    if (spec.version, spec.unit) != (made.version, made.unit):
        raise ArtifactMismatchError(
            f"score differs: calibrated with {spec.name} version {spec.version} in {spec.unit}, running version "
            f"{made.version} in {made.unit}. Calibrate again."
        )
    return made


# -- Measuring ---------------------------------------------------------------------------------------------------------

_OF_THE_ENDPOINT = frozenset({Unmeasured.DEGENERATE_SAMPLES, Unmeasured.MISCONFIGURED})
"""Problems found before a question was drawn: they hold back every question."""


def seen_by(part: Estimator, whole: Estimator, drawn: SampleSet, plan: SamplingPlan) -> tuple[SampleSet, int]:
    """What a part of a score reads of a set, and of how many samples; the score may be its own and only part."""
    if whole.stages is None:
        return drawn, plan.n
    if part is whole.members[0]:
        return first_stage(drawn, whole.stages.first, plan), whole.stages.first
    n = whole.stages.samples
    return drawn.model_copy(update={"samples": drawn.samples[:n]}) if len(drawn.samples) > n else drawn, n


def first_stage(drawn: SampleSet, samples: int, plan: SamplingPlan) -> SampleSet:
    """The set as it was after its first stage: the primary answer, so many samples, and only a problem of these.

    A sample that was lost is not in the set, so that the next one takes its place here. So it does at run time, unless
    the transport lost it: the first stage then fails. That abstains more often, and not by what the samples say.
    """
    if drawn.primary is None or _before_the_samples(drawn, plan) or len(drawn.samples) < samples:
        return drawn.model_copy(update={"samples": drawn.samples[:samples]})
    kept = drawn.samples[:samples]
    problem, detail = refused_samples(kept) or (None, "")
    return drawn.model_copy(update={"samples": kept, "problem": problem, "problem_detail": detail})


def _before_the_samples(drawn: SampleSet, plan: SamplingPlan) -> bool:
    """Return whether the problem of a set with a primary answer is that of the endpoint, or of this answer.

    An endpoint that could not be probed, or another model in its place, leaves no samples. So does a transport that
    lost them all, which is no loss: it depends on no question.
    """
    if drawn.problem is Unmeasured.UNREADABLE and drawn.primary is not None and drawn.primary.finish_reason is None:
        return plan.cut_off == "abstain"  # see `only_ended`
    lost = not drawn.samples and drawn.problem is not None and not drawn.problem.depends_on_question
    return lost or drawn.problem in _OF_THE_ENDPOINT


def expanded(estimators: Sequence[Estimator]) -> list[Estimator]:
    """The scores that must be measured: combinations are replaced by their parts."""
    return [each for estimator in estimators for each in (estimator.members or (estimator,))]


def combined(whole: Estimator, scores: Sequence[Uncertainty], drawn: SampleSet) -> Uncertainty:
    """The score of a combination from those of its parts."""
    if whole.stages is not None and scores[1].value is None:
        # A failure after the first call counts as full disagreement (see `then`).
        scores = [scores[0], scores[1].model_copy(update={"value": 1.0, "reason": None, "detail": ""})]
    missing = [score for score in scores if score.reason is not None]
    if missing:  # a reason that depends on the question comes first: a guard never draws it again
        score = next((each for each in missing if each.reason and each.reason.depends_on_question), missing[0])
        return whole.unmeasured(score.reason or Unmeasured.NOT_FINITE, f"{score.estimator}: {score.detail}")
    score = whole.score(Evidence(drawn, members=tuple(score.value for score in scores if score.value is not None)))
    return score if whole.stages is None else score.model_copy(update={"first": scores[0].value})
