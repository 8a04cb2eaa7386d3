"""Labels by a judge everywhere and by people on a random sample: an asymptotic test, no certificate.

Prediction-powered inference (Science 2023; power tuning: arXiv 2311.01453): the judge's error rate on everything,
corrected by how judge and people differ on the sample. A judge that agrees with people narrows the test; one that errs
costs nothing but its help. The certificate is `calibrate.rules.certified` on the people's sample alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import PEOPLE
from guardrail.errors import UsageError
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason

from . import rules
from .data.labels import GivenLabels, apply_labels
from .data.records import RecordFile
from .fitting import DEFAULT_DELTA, feasible, fit
from .pipeline import fit_artifact, part_header
from .rules.certificate import fewest_accepted, passes, walk
from .rules.counts import TOLERANCE, check_share, items
from .scope import FEWEST_COMPARED, SELECTED, check_labelled_part
from .scoring.apart import refuse_overlap
from .scoring.metrics import fisher_exact, ks_two_sample
from .scoring.scores import Scored, arrays, refuse_failed, units_of, unmeasured_among

STEPS = 20  # thresholds tested: those that accept 1/20, 2/20, ... of all answers
FEWEST_PEOPLE = 30  # accepted answers labelled by people behind a tested threshold, for the normal approximation


def p_people(people: ArrayLike, judge: ArrayLike, judge_only: ArrayLike, alpha: float) -> float:
    """The asymptotic p-value of "the error rate by people's standard is above alpha": Phi((estimate - alpha) / se).

    With k answers labelled by people (H) and judge (J), and K by the judge alone::

        estimate = w mean_K(J) + mean_{k+1}(H - w J)
        se^2     = w^2 var_K(J) / K + var_{k+1}(H - w J) / (k + 1)

    One adverse answer (wrong, called right by the judge) is added to the k: without it a sample without disagreement
    would have no variance. With it, no error among k bounds the rate by (1 + z) / (k + 1), within a percent of the
    exact bound at delta = .1. w has the least variance, cov(H, J) / ((1 + k/K) var J), held in [0, 1].

    ``people`` has H and ``judge`` J, shape (k,), k >= 2; ``judge_only`` J of the others, shape (K,), maybe none.
    """
    h = np.asarray(people, dtype=np.float64)
    j = np.asarray(judge, dtype=np.float64)
    rest = np.asarray(judge_only, dtype=np.float64)
    w = 0.0
    # A judge that always says the same corrects nothing, and without other answers nothing can be carried over.
    spread = float(j.var())
    if rest.size and spread > 0:
        w = float(np.clip(((h - h.mean()) * (j - j.mean())).mean() / ((1 + h.size / rest.size) * spread), 0.0, 1.0))
    residual = np.append(h - w * j, 1.0)  # the last is the adverse answer
    estimate = float(residual.mean())
    variance = float(residual.var(ddof=1)) / residual.size
    if w:
        estimate += w * float(rest.mean())
        variance += w**2 * float(rest.var()) / rest.size
    # No variance: all are wrong, as the adverse answer is.
    return float(special.ndtr((estimate - alpha) / math.sqrt(variance))) if variance else 1.0


def prediction_powered(
    u: ArrayLike, wrong: ArrayLike, alpha: float, delta: float = 0.1, *, judge: ArrayLike, sampled: ArrayLike
) -> rules.Result:
    """The last threshold of a fixed sequence with `p_people` at most delta.

    The sequence begins at the first of the thresholds that accept 1/20, 2/20, ... of all answers with enough labels by
    people behind it: 30, or twice what the exact test needs without an error. P(error rate by people's standard >
    alpha) tends to at most delta as both label sets grow, if people labelled a random sample.

    ``wrong`` has people's labels where ``sampled`` (0 elsewhere), ``judge`` the judge's, all of shape (N,). n, k and e
    of the result count the answers that people labelled; an infeasible one has the first tested threshold.
    """
    scores, people = items(u, wrong)
    _, machine = items(u, judge)
    looked = items(u, sampled)[1] == 1
    n = int(looked.sum())
    fewest = max(FEWEST_PEOPLE, 2 * int(fewest_accepted(0, alpha, delta)))
    ranks = np.ceil(np.arange(1, STEPS + 1) * scores.size / STEPS - TOLERANCE).astype(np.int64) - 1
    below = [scores <= cut for cut in np.unique(np.sort(scores)[ranks]) if cut < np.inf]
    below = [accepted for accepted in below if np.count_nonzero(accepted & looked) >= fewest]
    if not below:
        return rules.Infeasible(n, "too_few_items", fewest)
    p = [p_people(people[a & looked], machine[a & looked], machine[a & ~looked], alpha) for a in below]
    index = walk(passes(p, delta), 0)
    reached = below[index or 0]
    accepted = reached & looked
    at = rules.Feasible(float(scores[reached].max()), n, int(accepted.sum()), int(people[accepted].sum()), fewest)
    return rules.Infeasible(n, "risk_never_low_enough", fewest, at) if index is None else at


def fit_prediction_powered(
    u: ArrayLike, judge: ArrayLike, people: Sequence[int | None], *, alpha: float, delta: float = DEFAULT_DELTA
) -> Feasible | Infeasible:
    """The largest threshold whose error rate, by people's standard, is shown to be at most alpha.

    Asymptotic: the probability of a threshold with an error rate above alpha tends to at most delta as both label sets
    grow. People must have labelled a *random* sample of the answers.

    Args:
        u: Scores of all items, shape (n,); +inf where it was not measured.
        judge: 0 or 1 by the judge, shape (n,).
        people: 0 or 1 by people, None where they did not look, length n.
        alpha: Target error rate among accepted answers.
        delta: Failure probability.

    Returns:
        ``Feasible`` or ``Infeasible`` with rule "prediction_powered". Counts, interval and diagnostics are of the items
        that people labelled, and of the part of the unmeasured that belongs to them.

    Raises:
        UsageError: As :func:`calibrate.fit`; or lengths that differ, or fewer than two labels by people.
    """
    check_share("alpha", alpha)
    check_share("delta", delta)
    scores, machine = items(u, judge)
    if len(people) != scores.size:
        raise UsageError(
            f"people has {len(people)} entries and u has {scores.size}. Pass None where people did not look."
        )
    # `is not None`: a label of 0 is a label.
    sampled = np.array([label is not None for label in people])
    if sampled.sum() < 2:
        raise UsageError(
            f"people labelled {int(sampled.sum())} of these answers; at least 2 are needed, and hundreds help."
        )
    wrong = np.array([label or 0 for label in people], dtype=np.int64)
    result = prediction_powered(scores, wrong, alpha, delta, judge=machine, sampled=sampled)
    k = result.n
    others = int(np.count_nonzero(np.isfinite(scores) & ~sampled))
    # A plain fit on people's labels supplies n and the diagnostics. Unmeasured questions have no label; in their place
    # stands 0, which no figure reads: they count in n, and what is said of errors is of the measured ones.
    unmeasured = unmeasured_among(k, others, int(np.count_nonzero(np.isinf(scores))))
    sample_scores = np.append(scores[sampled], np.full(unmeasured, np.inf))
    sample_wrong = np.append(wrong[sampled], np.zeros(unmeasured, dtype=np.int64))
    plain = fit(sample_scores, sample_wrong, alpha=alpha, delta=delta)
    common: dict[str, Any] = {
        "rule": PEOPLE,
        "alpha": alpha,
        "delta": delta,
        "options": {"people": k, "judge_only": others},
        "n": plain.n,
        "diagnostics": plain.diagnostics,
        "certifies": False,
    }
    if isinstance(result, rules.Feasible):
        return feasible(result, int(np.count_nonzero(scores[sampled] == result.threshold)), **common)
    first = result.first
    if first is None:
        return Infeasible(reason=InfeasibleReason.TOO_FEW_ITEMS, n_measured=k, needed=result.start, **common)
    reason = InfeasibleReason.RISK_NEVER_LOW_ENOUGH
    return Infeasible(reason=reason, n_measured=k, closest=(first.k, first.e), **common)


def artifact_with_people(
    file: RecordFile,
    labels: GivenLabels,
    *,
    score: str,
    alpha: float,
    delta: float = DEFAULT_DELTA,
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
    sample = _labelled_by_people(file, labels)
    errors = {record.id: int(not record.correct) for record in sample.records}
    if why := _unlike_a_sample(pool, np.array([name in errors for name in pool.ids]), labels):
        raise UsageError(
            f"{why}: they are not a random sample, and only a random one corrects the judge. Draw what people label at "
            f"random from all of {file.path}, or have the rest labelled as well."
        )
    outcome = _fit_on_both(file, [errors.get(name) for name in pool.ids], score=score, alpha=alpha, delta=delta)
    used = set(pool.ids)
    part = [record for record in sample.records if record.id in used]
    artifact = fit_artifact(sample, score=score, alpha=alpha, part=part, repeats="all")
    # Shares are of all questions, also of those that nobody labelled and that could not be measured.
    data = artifact.data.model_copy(
        update={
            "n_questions": len(file.records),
            "n_unmeasured": pool.n_unmeasured,
            "n_failed": n_failed,
            "n_unlabelled": len(pool.ids) + pool.n_unlabelled - artifact.data.n_used,
        }
    )
    return artifact.model_copy(update={"outcome": outcome, "data": data}), sample


def _labelled_by_people(file: RecordFile, labels: GivenLabels) -> RecordFile:
    """The records that people looked at, with their labels.

    An answer that they skipped is part of their random sample: without it the answers that err most are missing.
    """
    looked_at = tuple(
        record for record in apply_labels(file.records, labels) if record.correct is not None or record.is_undecided
    )
    header = file.header.model_copy(update={"correctness": labels.spec})
    return RecordFile(file.path, part_header(header, looked_at), looked_at)


def _fit_on_both(
    file: RecordFile, people: Sequence[int | None], *, score: str, alpha: float, delta: float
) -> Feasible | Infeasible:
    """The fit on the judge's labels and those of people, which come in the order of the measured records."""
    units = units_of(file.records, score)
    unmeasured = [None] * (units.u.size - len(people))  # they stand last, and need no label
    outcome = fit_prediction_powered(units.u, units.wrong, [*people, *unmeasured], alpha=alpha, delta=delta)
    judge = file.header.correctness
    assert judge is not None, "checked by the caller"
    options = {**outcome.options, "judge": judge.name, "judge_version": judge.version}
    return outcome.model_copy(update={"options": options})


def selection_p(judge: ArrayLike, sampled: ArrayLike) -> float:
    """p-value of "where people looked does not depend on the judge's labels": Fisher's exact test, two-sided.

    Args:
        judge: Errors (0 or 1) by the judge, shape (n,).
        sampled: Whether people labelled the answer, shape (n,).
    """
    wrong = np.asarray(judge, dtype=np.bool_)
    looked = np.asarray(sampled, dtype=np.bool_)
    at_people, elsewhere = wrong[looked], wrong[~looked]
    return fisher_exact(int(at_people.sum()), at_people.size, int(elsewhere.sum()), elsewhere.size)


def group_unlike_sample(groups: Sequence[str], sampled: NDArray[np.bool_]) -> str | None:
    """The group whose share among the sampled answers differs most from its share among the others; None if none does.

    Fisher's exact test of each group with at least `FEWEST_COMPARED` answers, at `SELECTED` over all groups together.

    Args:
        groups: Of the answers, length n.
        sampled: Whether people labelled the answer, shape (n,).
    """
    names, group_of = np.unique(np.asarray(groups), return_inverse=True)
    large = np.flatnonzero(np.bincount(group_of) >= FEWEST_COMPARED)
    # The test of a share is that of the judge's labels, with "is of this group" in place of "is called wrong".
    tested = [(selection_p(group_of == number, sampled), str(names[number])) for number in large]
    p, name = min(tested, default=(1.0, ""))
    return name if p < SELECTED / max(1, large.size) else None


def _unlike_a_sample(pool: Scored, sampled: NDArray[np.bool_], labels: GivenLabels) -> str | None:
    """What shows that the judge's labels, the groups or the scores had a part in choosing what people labelled.

    Each is compared on the answers that people labelled against the others; in a random sample they are alike, by any
    label of people. The judge's labels and groups by Fisher's exact test, scores by Kolmogorov-Smirnov, each at
    p < .001: at most three honest fits in a thousand are refused.
    """
    inside, outside = pool.error[sampled], pool.error[~sampled]
    people = f"the answers in {labels.path}"
    if not min(inside.size, outside.size):
        return None
    p = selection_p(pool.error, sampled)
    if p < SELECTED:
        wrong = f"{int(inside.sum())} of the {inside.size}", f"{int(outside.sum())} of the other {outside.size}"
        return f"of {people} the judge calls {wrong[0]} wrong, and {wrong[1]} (p = {p:.1g})"
    if min(inside.size, outside.size) < FEWEST_COMPARED:
        return None
    if pool.group is not None and (unlike := group_unlike_sample(pool.group, sampled)) is not None:
        return f"{people} hold too many or too few of group {unlike!r}, in which alone the judge may err"
    distance, p = ks_two_sample(pool.uncertainty[sampled], pool.uncertainty[~sampled])
    if p < SELECTED:
        return f"{people} differ in their scores from the others (largest distance {distance:.2f}, p = {p:.1g})"
    return None
