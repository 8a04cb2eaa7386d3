"""Thresholds of several models, chosen together: the rules of a cascade, pure.

Stage 1 answers iff its uncertainty is at most its threshold; else stage 2, and so on; else a person.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CascadeOutcome, StageShare
from guardrail.errors import UsageError
from guardrail.gate import accepts
from guardrail.notebook import sure
from guardrail.outcome import InfeasibleReason

from ..rules.certificate import fewest_accepted, interval, tail
from .fitting import DEFAULT_DELTA, check_open_unit
from .rule import TOLERANCE

__all__ = ["RULES", "PathCounts", "StageRule", "Thresholds", "fit_stages", "outcome_at", "path_of"]

Scores = NDArray[np.float64]
Errors = NDArray[np.int64]
Thresholds = tuple[float, ...]
"""One a stage; -inf where a stage never answers."""

DESIGN_SHARE = 0.1
"""Share of the questions that choose the path of thresholds; they are not used for anything else."""
DESIGN_LEAST = 50
"""Fewest of them, if that is no more than a fifth of the questions."""
RATIOS = (0.0, 0.5, 1.0)
"""How far the earlier stages go on each path, as a multiple of the share that the last stage accepts; 0: only the
last stage answers."""
START = 0.1
"""Share of the tested questions that the first test of the certified rule accepts, or more: its zero-error floor."""
POINTS = 200
"""Points of a path."""


def fit_stages(
    uncertainty: Scores,
    error: Errors,
    *,
    alpha: float,
    rule: str = "lec_joint",
    delta: float | None = None,
    seed: int = 0,
    price: float | None = None,
) -> CascadeOutcome:
    """Choose the thresholds of all stages together.

    Both rules are one-dimensional for any number of stages: a random part of the questions chooses one path of
    thresholds (`path_of`), which would answer most at an error rate of alpha there. The other questions choose a point
    on that path.

    * ``lec_joint``: the point that answers most under ``sum S_i (E_i - alpha) <= -1``. It steers the mean error to
      alpha and certifies nothing. (Version 1 took the best of all pairs of thresholds: searching n^2 pairs finds one
      that looks better than it is, and 74 to 86 % of calibrations ended above alpha.)
    * ``certified``: the path is walked outward by exact binomial tests at delta until the first failure. P(error rate
      among answers > alpha) <= delta, any risk curve. It starts where the tests can pass: at the first point that
      answers a tenth of the questions and as many as an error-free run needs, ``ln delta / ln(1 - alpha)``. (Version 1
      walked three paths, each at delta / 3.)

    Args:
        uncertainty: Shape (n, stages); higher is less certain, +inf where it was not measured.
        error: 1 where that stage's answer is wrong, shape (n, stages).
        alpha: Target error rate among the system's answers, in (0, 1).
        rule: One of `RULES`.
        delta: Failure probability, for ``certified``; default 0.1.
        seed: Of the random part that chooses the path. Fix it before looking.
        price: Answers you would give up for each call of a later stage that is saved, at least 0. Among admissible
            thresholds those are taken that give most answers, plus this times the calls saved: an answer saves one call
            of each later stage. Default: 0 for ``lec_joint`` (most answers), 0.1 for ``certified``.

    Raises:
        UsageError: Arrays that do not fit together, or an unknown rule.
    """
    check_open_unit("alpha", alpha)
    u, labels = _checked(uncertainty, error)
    if rule not in RULES:
        raise UsageError(f"unknown rule {rule!r} for a cascade; choose one of {', '.join(RULES)}")
    chosen = RULES[rule]
    price = chosen.price if price is None else price
    if not 0 <= price < math.inf:
        raise UsageError(f"price must be a number of answers, at least 0, got {price}. Use 0 for most answers.")
    if delta is not None and not chosen.certifies:
        raise UsageError(f"rule {rule!r} makes no statement with a delta. Leave delta out, or use 'certified'.")
    delta = DEFAULT_DELTA if delta is None else delta
    check_open_unit("delta", delta)
    needed = chosen.needed(alpha, delta)
    n = len(u)
    # `needed` questions are set aside first: a design part that eats them leaves a rule that cannot pass.
    m = min(max(math.ceil(DESIGN_SHARE * n), min(DESIGN_LEAST, math.ceil(n / 5))), n - needed)
    options: dict[str, Any] = {"version": 4, "design": max(m, 0), "seed": seed, "ratios": list(RATIOS), "price": price}
    common: dict[str, Any] = {
        "alpha": alpha,
        "delta": delta if chosen.certifies else None,
        "rule": rule,
        "options": options,
        "guarantee": chosen.guarantee(alpha, delta, max(m, 0)),
    }
    nobody = (-math.inf,) * u.shape[1]
    if m < 1:
        detail = f"It takes more than {needed} questions without a single error at alpha = {alpha:g}; there are {n}."
        return outcome_at(u, labels, nobody, reason=InfeasibleReason.TOO_FEW_ITEMS, detail=detail, **common)
    # Disjoint parts: a path chosen on the questions it is tested on would void the promise.
    order = np.random.default_rng(seed).permutation(n)
    design, rest = order[:m], order[m:]
    last = u[:, -1]
    # From all questions, not the design part: scores, unlike labels, may be looked at without spending anything.
    largest = float(np.max(last[np.isfinite(last)], initial=-math.inf))
    path, options["ratio"] = _chosen_path(u[design], labels[design], largest, alpha, price)
    walked = _walked(u[rest], labels[rest], path)
    admissible = chosen.admissible(walked, alpha, delta)
    if not admissible.any():
        shares = ", ".join(f"{share:.3g}" for share in labels[rest].mean(axis=0))
        detail = f"No admissible thresholds keep the error rate at {alpha:g}; the stages by themselves err on {shares}."
        reason = InfeasibleReason.RISK_NEVER_LOW_ENOUGH
        return outcome_at(u[rest], labels[rest], nobody, reason=reason, detail=detail, **common)
    # lexsort's last key counts most: the value decides, and on a tie the thresholds that save more calls.
    best = int(np.lexsort((walked.saved, np.where(admissible, walked.answered + price * walked.saved, -1.0)))[-1])
    return outcome_at(u[rest], labels[rest], path[best], **common)


def path_of(design: Scores, largest: float, ratio: float) -> list[Thresholds]:
    """A path of thresholds from scores alone, by matched quantiles.

    At share q the last stage's threshold is the q-quantile of its scores, that of an earlier stage the (ratio * q)-
    quantile of its own, between two scores by linear interpolation. Thresholds grow along a path, so the questions
    accepted do too. At the end the last stage answers everything that it measured.

    Args:
        design: Scores that no threshold is tested on, shape (m, stages).
        largest: Last threshold of the last stage.
        ratio: How far the earlier stages go, in [0, 1].
    """
    shares = np.linspace(0.0, 1.0, POINTS + 1)[1:]
    ratios = [ratio] * (design.shape[1] - 1) + [1.0]
    columns = [_quantiles(column, own * shares) for column, own in zip(design.T, ratios, strict=True)]
    # A repeated point is the same hypothesis: testing it again decides nothing.
    path: list[Thresholds] = [point for point, _ in groupby(zip(*columns, strict=True))]
    return [*path, (*path[-1][:-1], largest)]


def _quantiles(scores: NDArray[np.float64], shares: NDArray[np.float64]) -> list[float]:
    """The threshold that each share of the questions is at or below; -inf for less than one of them."""
    ranked = np.sort(scores[np.isfinite(scores)])
    if not ranked.size:
        return [-math.inf] * shares.size
    # The count is of all questions, measured or not, so that shares mean the same at every stage.
    counts = shares * scores.size
    between = np.interp(counts, np.arange(1, ranked.size + 1), ranked)
    # Below one question interpolation would return the smallest score, which accepts a question already.
    thresholds: list[float] = np.where(counts < 1 - 1e-9, -math.inf, between).tolist()
    return thresholds


@dataclass(frozen=True, slots=True)
class PathCounts:
    """Counts of answered and wrong questions at each point of a path; arrays have one entry a point."""

    n: int
    """Questions."""
    answered: NDArray[np.int64]
    wrong: NDArray[np.int64]
    saved: NDArray[np.int64]
    """Calls of later stages that the answers save: none for an answer of the last stage."""


def _walked(u: Scores, error: Errors, path: Sequence[Thresholds]) -> PathCounts:
    """Counts at every point; thresholds grow along a path, so each stage answers a question on one stretch of it."""
    table, points = np.array(path), len(path)
    counts = np.zeros((3, points + 1))
    until = np.full(len(u), points)  # an earlier stage takes the question over here
    for stage, (scores, thresholds) in enumerate(zip(u.T, table.T, strict=True)):
        begin = np.searchsorted(thresholds, scores, side="left")  # the first threshold that is not below the score
        here = begin < until
        later = len(u.T) - 1 - stage
        for row, weight in ((0, np.ones(len(u))), (1, error[:, stage]), (2, np.full(len(u), later))):
            for end, sign in ((begin, 1), (until, -1)):
                counts[row] += sign * np.bincount(end[here], weights=weight[here], minlength=points + 1)
        until = np.minimum(until, begin)
    answered, wrong, saved = counts[:, :-1].cumsum(axis=1).round().astype(np.int64)
    return PathCounts(len(u), answered, wrong, saved)


def _chosen_path(
    design: Scores, error: Errors, largest: float, alpha: float, price: float
) -> tuple[list[Thresholds], float]:
    """The path, and its ratio, that would answer most on the design questions at an error rate of at most alpha."""
    # All earlier stages share one ratio: some fifty questions choose well among three paths, not among 3^(stages - 1).
    candidates = [path_of(design, largest, ratio) for ratio in RATIOS]
    values = []
    for path in candidates:
        on = _walked(design, error, path)
        # The plug-in rate is enough here: this part only chooses a path, and the promise rests on the other questions.
        value = np.where(on.wrong <= alpha * on.answered + TOLERANCE, on.answered + price * on.saved, 0.0)
        best = int(np.lexsort((on.saved, value))[-1])
        values.append((float(value[best]), int(on.saved[best]) if value[best] else 0))
    # max keeps the first of equal values, so a tie goes to the smaller ratio in every run.
    chosen = max(range(len(candidates)), key=values.__getitem__)
    return candidates[chosen], RATIOS[chosen]


def _under_lec(walked: PathCounts, alpha: float, delta: float) -> NDArray[np.bool_]:
    """LEC's inequality at each point."""
    return walked.wrong - alpha * walked.answered <= -1.0 + TOLERANCE


def _tested(walked: PathCounts, alpha: float, delta: float) -> NDArray[np.bool_]:
    """Points before the first failed test, from the start on."""
    ahead = walked.answered >= _start(walked.n, alpha, delta)
    failed = ahead & (tail(walked.wrong, walked.answered, alpha) > delta)
    # Everything from the first failure on is lost, even a point that passes alone: the sequence is fixed.
    return ahead & ~np.logical_or.accumulate(failed)


def _lec_guarantee(alpha: float, delta: float, m: int) -> str:
    return (
        f"The thresholds keep the error rate of the system's answers near {alpha:g} on average over calibrations. They "
        "certify nothing: a single calibration exceeds the target about as often as not."
    )


def _certified_guarantee(alpha: float, delta: float, m: int) -> str:
    return (
        f"With probability at least {sure(delta)} over calibrations the error rate among the system's answers is at "
        f"most {alpha:g}, in finite samples and whatever the shape of the risk curve, if questions are independent "
        f"draws from the same source. The path of thresholds was chosen by {m} questions, not tested."
    )


def _start(n: int, alpha: float, delta: float) -> int:
    """Answers at which the first test is made: the next number from a tenth of n on at which one more error passes.

    Just before it the test has a level far below delta: of 35 answers none may be wrong at alpha = delta = .1, which a
    rate of alpha passes with probability .025; of 38 one may be, with .095.
    """
    floor = int(fewest_accepted(0, alpha, delta))
    least = math.ceil(START * n)
    if least <= floor:
        return int(floor)
    k = np.arange(least - 1, min(n, least + math.ceil(3 / alpha)) + 1)
    errors = np.arange(least)
    # The number of error counts that pass at each k, for all k at once; it grows by one where one more error is
    # allowed.
    passing = (np.asarray(tail(errors[:, None], k[None, :], alpha)) <= delta).sum(axis=0)
    more = np.flatnonzero(passing[1:] > passing[0])
    return int(k[1 + more[0]]) if more.size else least


def _without_errors(alpha: float, delta: float) -> int:
    return int(fewest_accepted(0, alpha, delta))


@dataclass(frozen=True, slots=True)
class StageRule:
    """A rule of a cascade, and what it states about itself."""

    admissible: Callable[[PathCounts, float, float], NDArray[np.bool_]]
    """From what each point of a path does, alpha and delta to the points that may be chosen."""
    guarantee: Callable[[float, float, int], str]
    """From alpha, delta and the number of design questions to the promise."""
    needed: Callable[[float, float], int]
    """From alpha and delta to the fewest questions, all of them answered without an error, that suffice."""
    price: float
    """Answers given up by default for each call of a later stage that is saved."""
    certifies: bool
    """Whether it keeps the system's error rate at alpha with probability 1 - delta, at finite n."""


RULES: Final[dict[str, StageRule]] = {
    "certified": StageRule(_tested, _certified_guarantee, _without_errors, price=0.1, certifies=True),
    "lec_joint": StageRule(
        _under_lec, _lec_guarantee, lambda alpha, delta: math.ceil(1 / alpha - 1e-9), price=0.0, certifies=False
    ),
}
"""The rules of a cascade by name. A new one is its functions and one line here."""


def _answering(u: Scores, thresholds: Thresholds) -> NDArray[np.int64]:
    """Index of the stage that answers each question, -1 for a person; by the gate's own comparison."""
    inside = np.column_stack([accepts(column, threshold) for column, threshold in zip(u.T, thresholds, strict=True)])
    return np.where(inside.any(axis=1), inside.argmax(axis=1), -1)


def outcome_at(
    u: Scores,
    error: Errors,
    thresholds: Thresholds,
    *,
    alpha: float,
    delta: float | None,
    rule: str,
    options: dict[str, Any],
    guarantee: str,
    reason: InfeasibleReason | None = None,
    detail: str = "",
) -> CascadeOutcome:
    """Counts of the questions that some thresholds (-inf for none) answer, or the reason for the lack of thresholds."""
    answering = _answering(u, thresholds)
    stages = tuple(
        StageShare(
            threshold=None if threshold == -math.inf else threshold,
            n_accepted=int((answering == stage).sum()),
            n_errors=int(error[answering == stage, stage].sum()),
        )
        for stage, threshold in enumerate(thresholds)
    )
    k, e = sum(stage.n_accepted for stage in stages), sum(stage.n_errors for stage in stages)
    return CascadeOutcome(
        rule=rule,
        alpha=alpha,
        delta=delta,
        options=options,
        n=len(u),
        guarantee=guarantee,
        stages=stages,
        interval=interval(e, k) if k else None,
        reason=reason,
        detail=detail,
    )


def _checked(uncertainty: Scores, error: Errors) -> tuple[Scores, Errors]:
    u, labels = np.asarray(uncertainty, dtype=np.float64), np.asarray(error)
    if u.ndim != 2 or u.shape[1] < 2 or labels.shape != u.shape or not len(u):
        raise UsageError(
            "uncertainty and error must both have shape (questions, stages), with at least one question and two "
            f"stages, got {u.shape} and {labels.shape}."
        )
    bad = np.isnan(u) | (u == -np.inf)
    if bad.any():
        row, stage = np.argwhere(bad)[0]
        raise UsageError(f"uncertainty[{row}, {stage}] is {u[row, stage]}; write inf where a stage was not measured.")
    if not np.isin(labels, (0, 1)).all():
        row, stage = np.argwhere(~np.isin(labels, (0, 1)))[0]
        raise UsageError(f"error[{row}, {stage}] must be 0 (correct) or 1 (wrong), got {labels[row, stage]}.")
    return u, labels.astype(np.int64)
