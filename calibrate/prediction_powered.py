"""A threshold from many answers labelled by a judge and a random few labelled by people.

Prediction-powered inference (Angelopoulos et al., Science 2023; power tuning: arXiv 2311.01453): the judge's error rate
on everything, corrected by how judge and people differ on the sample. A judge that agrees narrows the bound; a judge
that errs costs nothing but its help, because the correction removes its bias. Asymptotic: no certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason

from .data.labels import GivenLabels, apply_labels
from .data.records import RecordFile
from .fitting import DEFAULT_DELTA, check_open_unit, fit
from .pipeline import FitSettings, fit_artifact, part_header
from .rules.certificate import fewest_accepted, interval
from .rules.counts import items
from .scope import FEWEST_COMPARED, SELECTED, check_labelled_part
from .scoring.apart import refuse_overlap
from .scoring.metrics import fisher_exact, ks_two_sample
from .scoring.scores import Scored, arrays, refuse_failed, unmeasured_among

__all__ = [
    "NAME",
    "RateBound",
    "artifact_with_people",
    "fit_prediction_powered",
    "group_unlike_sample",
    "rate_bound",
    "selection_p",
]

NAME = "prediction_powered"
"""Name of the rule in outcomes."""
STEPS = 20
"""Thresholds tested: those that accept 1/20, 2/20, ... of all answers, fixed before any label is read."""
FEWEST_PEOPLE = 30
"""Fewest accepted answers with a label by people behind a threshold; the normal approximation needs some."""


@dataclass(frozen=True, slots=True)
class RateBound:
    """An error rate estimated from judge and people.

    Attributes:
        estimate: The error rate by people's standard.
        upper: Its one-sided upper confidence bound, asymptotic.
        weight: How much the judge counts: 0 not at all (people only), 1 fully.
    """

    estimate: float
    upper: float
    weight: float


def rate_bound(people: ArrayLike, judge: ArrayLike, judge_only: ArrayLike, delta: float) -> RateBound:
    """Upper bound of an error rate from a random sample with both labels and the rest with the judge's only.

    With H by people, J by the judge, k items with both and K with the judge's only::

        estimate = w mean_K(J) + mean_{k+1}(H - w J)        upper = estimate + z_{1-delta} se
        se^2     = w^2 var_K(J) / K + var_{k+1}(H - w J) / (k + 1)

    where one adverse item (wrong, and the judge says right) is added to the k. It vanishes as k grows, and without it a
    sample without disagreement would have no variance at all: with it, no error among k gives (1 + z) / (k + 1), within
    a percent of the exact bound at delta = .1. The weight w is the one with the least variance, cov(H, J) / ((1 + k/K)
    var(J)), held in [0, 1].

    Args:
        people: Errors (0 or 1) by people, shape (k,), k >= 2.
        judge: Errors of the same items by the judge, shape (k,).
        judge_only: Errors of the other items by the judge, shape (K,); may be empty.
        delta: 1 - confidence.
    """
    h, j = np.asarray(people, dtype=np.float64), np.asarray(judge, dtype=np.float64)
    rest = np.asarray(judge_only, dtype=np.float64)
    weight = _weight(h, j, rest.size)
    # The adverse item: wrong by people, right by the judge, so H - w J = 1 at any weight.
    residual = np.append(h - weight * j, 1.0)
    variance = float(residual.var(ddof=1)) / residual.size
    estimate = float(residual.mean())
    # At weight 0 the rest may be empty, and the mean of nothing is NaN.
    if weight:
        estimate += weight * float(rest.mean())
        variance += weight**2 * float(rest.var()) / rest.size
    return RateBound(estimate, estimate + float(special.ndtri(1 - delta)) * math.sqrt(variance), weight)


def fit_prediction_powered(
    uncertainty: ArrayLike,
    judge_error: ArrayLike,
    people_error: Sequence[int | None],
    *,
    alpha: float,
    delta: float | None = None,
) -> Feasible | Infeasible:
    """The largest threshold whose error rate, by people's standard, is shown to be at most alpha.

    A fixed sequence: thresholds that accept 1/20, 2/20, ... of all answers, from the first with enough labels by people
    behind it (30, or twice the zero-error floor of alpha and delta if that is more), each tested at delta, until the
    first whose bound (:func:`rate_bound`) exceeds alpha. Scores, and which items people labelled, decide where to
    begin; labels do not.

    Asymptotic: the probability of a threshold with an error rate above alpha tends to at most delta as both label sets
    grow. People must have labelled a *random* sample of the answers.

    Args:
        uncertainty: Scores of all items, shape (n,).
        judge_error: 0 or 1 by the judge, shape (n,).
        people_error: 0 or 1 by people, None where they did not look, length n.
        alpha: Target error rate among accepted answers.
        delta: Failure probability; 0.1 when left out.

    Returns:
        ``Feasible`` or ``Infeasible`` with rule "prediction_powered". Counts, interval and diagnostics are of the items
        that people labelled.

    Raises:
        UsageError: As :func:`calibrate.fit`; or lengths that differ, or fewer than two labels by people.
    """
    check_open_unit("alpha", alpha)
    delta = DEFAULT_DELTA if delta is None else delta
    check_open_unit("delta", delta)
    scores, judge = items(uncertainty, judge_error)
    if len(people_error) != scores.size:
        raise UsageError(
            f"people_error has {len(people_error)} entries and uncertainty has {scores.size}. Pass None where people "
            "did not look."
        )
    # `is not None`: a label of 0 is a label.
    sampled = np.array([label is not None for label in people_error])
    if sampled.sum() < 2:
        raise UsageError(
            f"people labelled {int(sampled.sum())} of these answers; at least 2 are needed, and hundreds help."
        )
    people = np.array([label for label in people_error if label is not None], dtype=np.int64)
    tested = _walk(scores, judge, sampled, people, alpha, delta)
    return _outcome(tested, scores, sampled, people, alpha, delta)


def artifact_with_people(
    file: RecordFile,
    labels: GivenLabels,
    *,
    score: str,
    alpha: float,
    delta: float | None = None,
    without_failed: bool = False,
) -> tuple[CalibrationArtifact, RecordFile]:
    """An artifact from judge-labelled records and the labels people gave to a random sample of them.

    It is bound to the people's labels: its scores, its counts and its certificate are those of the sample alone, so the
    certificate stays exact. Only the outcome leans on the judge.

    Returns:
        The artifact, and the sample as a record file with the people's labels: what a report on it reads.

    Raises:
        UsageError: More than 1 % of the questions failed, records without labels by a judge, labels of unknown records,
            no usable one, or labels on a part that is not random: the judge's labels, or the scores, differ between it
            and the rest (p < .001).
    """
    if file.header.correctness is None:
        raise UsageError(f"{file.path} has no labels by a judge or rule. Run: calibrate label {file.typed}")
    n_failed = refuse_failed(file.records, score, allowed=without_failed)
    pool = arrays(file.records, score)
    check_labelled_part(file, file.records, score)
    if score in file.header.estimators:
        refuse_overlap(file.header.estimators[score], file.records)
    labelled = RecordFile(
        file.path,
        file.header.model_copy(update={"correctness": labels.spec}),
        tuple(
            record for record in apply_labels(file.records, labels) if record.correct is not None or record.is_undecided
        ),
    )
    sample = RecordFile(labelled.path, part_header(labelled.header, labelled.records), labelled.records)
    # An answer that people skipped is part of their random sample: without it the answers that err most are missing.
    errors = {record.id: int(not record.correct) for record in labelled.records}
    people = [errors.get(name) for name in pool.ids]
    _refuse_selected(file, pool, np.array([error is not None for error in people]), labels)
    spent = DEFAULT_DELTA if delta is None else delta
    outcome = fit_prediction_powered(pool.uncertainty, pool.error, people, alpha=alpha, delta=spent)
    used = set(pool.ids)
    part = [record for record in sample.records if record.id in used]
    artifact = fit_artifact(sample, score=score, alpha=alpha, part=part, settings=FitSettings(repeats="all"))
    judge = file.header.correctness
    options = {**outcome.options, "judge": judge.name, "judge_version": judge.version}
    # Shares are of all questions, also of those that nobody labelled and that could not be measured.
    asked = {
        "n_questions": len(file.records),
        "n_unmeasured": pool.n_unmeasured,
        "n_failed": n_failed,
        "n_unlabelled": len(pool.ids) + pool.n_unlabelled - artifact.data.n_used,
    }
    unmeasured = unmeasured_among(outcome.n, len(pool.ids) + pool.n_unlabelled - outcome.n, pool.n_unmeasured)
    n = outcome.n + unmeasured
    most = outcome.diagnostics.max_acceptance * outcome.n / n
    figures = outcome.diagnostics.model_copy(update={"max_acceptance": most})
    outcome = outcome.model_copy(update={"options": options, "n": n, "diagnostics": figures})
    data = artifact.data.model_copy(update=asked)
    return artifact.model_copy(update={"outcome": outcome, "data": data}), sample


def selection_p(judge: ArrayLike, sampled: ArrayLike) -> float:
    """p-value of "where people looked does not depend on the judge's labels": Fisher's exact test, two-sided.

    Args:
        judge: Errors (0 or 1) by the judge, shape (n,).
        sampled: Whether people labelled the answer, shape (n,).
    """
    wrong, looked = np.asarray(judge, dtype=np.bool_), np.asarray(sampled, dtype=np.bool_)
    at_people, elsewhere = (wrong[part] for part in (looked, ~looked))
    return fisher_exact(int(at_people.sum()), at_people.size, int(elsewhere.sum()), elsewhere.size)


def group_unlike_sample(groups: Sequence[str], sampled: NDArray[np.bool_]) -> str | None:
    """The group whose share among the sampled answers differs most from its share among the others; None if none does.

    Fisher's exact test of each group with at least `FEWEST_COMPARED` answers, at `SELECTED` over all groups together.

    Args:
        groups: Of the answers, length n.
        sampled: Whether people labelled the answer, shape (n,).
    """
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    large = np.flatnonzero(np.bincount(place) >= FEWEST_COMPARED)
    # The test of a share is that of the judge's labels, with "is of this group" in place of "is called wrong".
    tested = [(selection_p(place == number, sampled), str(names[number])) for number in large]
    p, name = min(tested, default=(1.0, ""))
    return name if p < SELECTED / max(1, large.size) else None


def _refuse_selected(file: RecordFile, pool: Scored, sampled: NDArray[np.bool_], labels: GivenLabels) -> None:
    """Refuse people's labels on answers that the judge's labels, or the scores, had a part in choosing.

    The judge's own labels are compared, of the answers that people labelled against the others: a random sample has as
    many wrong ones, by any label of people (Fisher's exact test). Scores are compared by Kolmogorov-Smirnov.

    Raises:
        UsageError: One of them, or the shares of groups, has a p-value below .001: at most three honest fits in a
            thousand are refused.
    """
    inside, outside = pool.error[sampled], pool.error[~sampled]
    if not min(inside.size, outside.size):
        return
    p = selection_p(pool.error, sampled)
    if p < SELECTED:
        raise UsageError(
            f"the judge calls {int(inside.sum())} of the {inside.size} answers in {labels.path} wrong, and "
            f"{int(outside.sum())} of the other {outside.size} (p = {p:.1g}): they are not a random sample, and only a "
            f"random one corrects the judge. Draw what people label at random from all of {file.path}, or have the "
            "rest labelled as well."
        )
    if min(inside.size, outside.size) < FEWEST_COMPARED:
        return
    if pool.group is not None and (unlike := group_unlike_sample(pool.group, sampled)) is not None:
        raise UsageError(
            f"the answers in {labels.path} hold too many or too few of group {unlike!r}: they are not a random sample, "
            "and a judge that errs in one group only is corrected only by labels of all groups. Draw what people label "
            f"at random from all of {file.path}, or have the rest labelled as well."
        )
    distance, p = ks_two_sample(pool.uncertainty[sampled], pool.uncertainty[~sampled])
    if p < SELECTED:
        raise UsageError(
            f"the answers in {labels.path} differ in their scores from the others (largest distance {distance:.2f}, p "
            f"= {p:.1g}): they are not a random sample, and only a random one corrects the judge. Draw what people "
            f"label at random from all of {file.path}, or have the rest labelled as well."
        )


@dataclass(frozen=True, slots=True)
class _Tested:
    fewest: int
    threshold: float | None = None
    """The last threshold that passed."""
    passed: RateBound | None = None
    failed: RateBound | None = None
    """The bound at which the sequence stopped; None when all thresholds passed, or none could be tested."""


def _walk(
    scores: NDArray[np.float64],
    judge: NDArray[np.int64],
    sampled: NDArray[np.bool_],
    people: NDArray[np.int64],
    alpha: float,
    delta: float,
) -> _Tested:
    # Twice the floor, because a normal approximation needs more than the exact test's least number.
    fewest = max(FEWEST_PEOPLE, 2 * int(fewest_accepted(0, alpha, delta)))
    threshold = passed = None
    for cut in _cuts(scores):
        below = scores <= cut
        judged = below & sampled
        # Skipped, not failed: where people looked is known without labels, so the start may depend on it.
        if np.count_nonzero(judged) < fewest:
            continue
        bound = rate_bound(people[below[sampled]], judge[judged], judge[below & ~sampled], delta)
        if bound.upper > alpha:
            return _Tested(fewest, threshold, passed, bound)
        threshold, passed = float(cut), bound
    return _Tested(fewest, threshold, passed, None)


def _cuts(scores: NDArray[np.float64]) -> list[float]:
    """Scores at the shares 1/20, 2/20, ... 1, each once."""
    ranked = np.sort(scores)
    # 1e-9, so that a share that is a whole number of answers is not rounded up to the next one.
    at = np.ceil(np.arange(1, STEPS + 1) * ranked.size / STEPS - 1e-9).astype(int) - 1
    return [float(value) for value in np.unique(ranked[at])]


def _weight(h: NDArray[np.float64], j: NDArray[np.float64], others: int) -> float:
    spread = float(j.var())
    # A judge that always says the same corrects nothing, and without other answers nothing can be carried over.
    if spread == 0 or others == 0:
        return 0.0
    best = float(((h - h.mean()) * (j - j.mean())).mean()) / ((1 + h.size / others) * spread)
    return min(1.0, max(0.0, best))


def _outcome(
    tested: _Tested,
    scores: NDArray[np.float64],
    sampled: NDArray[np.bool_],
    people: NDArray[np.int64],
    alpha: float,
    delta: float,
) -> Feasible | Infeasible:
    """The result in the usual form; a plain fit on the people's labels supplies the diagnostics."""
    plain = fit(scores[sampled], people, alpha=alpha, rule="certified", delta=delta)
    bound = tested.passed or tested.failed
    options: dict[str, Any] = {"people": people.size, "judge_only": int(np.count_nonzero(~sampled))}
    if bound is not None:
        options |= {"estimate": bound.estimate, "upper": bound.upper, "weight": bound.weight}
    common: dict[str, Any] = {
        "rule": NAME,
        "alpha": alpha,
        "delta": delta,
        "options": options,
        "n": people.size,
        "diagnostics": plain.diagnostics,
        "certifies": False,
    }
    if tested.threshold is None:
        reason, detail = _why(tested, people.size, alpha)
        return Infeasible(reason=reason, detail=detail, **common)
    accepted = scores[sampled] <= tested.threshold
    k, errors = int(np.count_nonzero(accepted)), int(people[accepted].sum())
    return Feasible(
        threshold=tested.threshold,
        n_accepted=k,
        n_errors=errors,
        interval=interval(errors, k),
        tie_block=int(np.count_nonzero(scores[sampled] == tested.threshold)),
        **common,
    )


def _why(tested: _Tested, people: int, alpha: float) -> tuple[InfeasibleReason, str]:
    if tested.failed is None:
        return InfeasibleReason.TOO_FEW_ITEMS, (
            f"People labelled {people} answers; a threshold needs {tested.fewest} accepted ones among them. Have more "
            "labelled, drawn at random."
        )
    return InfeasibleReason.RISK_NEVER_LOW_ENOUGH, (
        f"At the first threshold tested people's error rate is estimated at {tested.failed.estimate:.3f} "
        f"and bounded by {tested.failed.upper:.3f}, above alpha = {alpha:g}. Label more by hand, or use a larger "
        "alpha or a better score."
    )
