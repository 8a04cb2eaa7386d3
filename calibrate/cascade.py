"""Calibrating several models as one system: thresholds chosen together, from records of the same questions.

Stage 1 answers iff its uncertainty is at most its threshold; else stage 2, and so on; else a person. Thresholds that
were fitted one by one do not control the system: what reaches stage 2 is the hard rest, not what it was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from guardrail.artifact import GOES_ON, CalibrationArtifact, CascadeArtifact, CascadeOutcome, StageShare
from guardrail.errors import UsageError
from guardrail.outcome import CERTIFIED, Feasible, Infeasible, InfeasibleReason, accepts
from guardrail.types import Unmeasured

from .data.records import Record, RecordFile, read_records
from .data.split import Groups, one_per_cluster
from .data.table import SOUND, RecordTable, table_of
from .fitting import DEFAULT_DELTA, feasible
from .pipeline import fit_artifact
from .rules import Feasible as Certified
from .rules import Infeasible as NotCertified
from .rules import certified
from .rules.certificate import SHARE, interval, walk_of_tests
from .rules.counts import Floats, Ints, items
from .scoring.apart import refuse_overlap
from .scoring.scores import refuse_failed
from .spec_syntax import estimator_flags

RATIO = 0.5
"""How far earlier stages go: half the rank of the last stage's threshold among its own scores."""


# -- A path of policies fixed without labels, and the exact tests walked along it --------------------------------------


def matched_path(u: ArrayLike, ratio: float = RATIO) -> Floats:
    """Policies from strict to loose by matched quantiles of the stages' scores; reads no label.

    At point i of n the last stage's threshold is the i-th smallest of its scores, and that of each earlier stage the
    ceil(ratio i)-th smallest of its scores; ``ratio`` in [0, 1] is declared before labels are seen. ``u`` has shape
    (n, stages); from the scores of unlabelled questions `certified_cascade` is proved, from those of the labelled ones
    tested (.02 to .07 at delta .1). Returns thresholds of shape (policies, stages), not falling, equal rows once; -inf
    where a stage never answers.
    """
    scores = np.asarray(u, dtype=np.float64)
    if scores.ndim != 2 or scores.shape[1] < 2 or not len(scores):
        raise UsageError(f"u must have shape (questions, stages) with two stages or more, got {scores.shape}.")
    if not 0 <= ratio <= 1:
        raise UsageError(f"ratio must be in [0, 1], got {ratio:g}.")
    points = np.arange(1, len(scores) + 1)
    ranks = [np.ceil(ratio * points - 1e-9).astype(np.int64)] * (scores.shape[1] - 1) + [points]
    columns = []
    for column, rank in zip(scores.T, ranks, strict=True):
        ranked = np.append(-np.inf, np.sort(column[column < np.inf]))  # in front for rank 0
        columns.append(ranked[np.minimum(rank, ranked.size - 1)])
    return np.asarray(np.unique(np.column_stack(columns), axis=0))


def path_counts(u: Floats, wrong: Ints, path: Floats) -> tuple[Ints, Ints]:
    """Questions that each policy of a path answers, and wrong answers among them; each of shape (policies,).

    u and wrong have shape (n, stages), wrong is 1 where that stage's answer is wrong, and path does not fall.
    """
    counted = np.zeros((2, len(path) + 1), dtype=np.int64)
    until = np.full(len(u), len(path))  # the policy at which an earlier stage takes the question over
    for scores, errors, thresholds in zip(u.T, wrong.T, path.T, strict=True):
        begin = np.searchsorted(thresholds, scores)  # the first policy at which this stage answers
        here = begin < until
        for row, chosen in enumerate((here, here & (errors == 1))):
            counted[row] += np.bincount(begin[chosen], minlength=len(path) + 1)
            counted[row] -= np.bincount(until[chosen], minlength=len(path) + 1)
        until = np.minimum(until, begin)
    answered, errors = counted[:, :-1].cumsum(axis=1)
    return answered, errors


def certified_cascade(
    u: ArrayLike,
    wrong: ArrayLike,
    alpha: float,
    delta: float = DEFAULT_DELTA,
    *,
    share: float = SHARE,
    path: Floats | None = None,
) -> tuple[float, ...] | NotCertified:
    """The loosest policy that `walk` reaches by exact tests: P(error rate of the system's answers > alpha) <= delta.

    `calibrate.rules.certified` with policies instead of thresholds: k questions answered, e answered wrongly. Returns a
    threshold for each stage, -inf where it never answers. Print beside it what the last model alone would answer.

    ``u`` and ``wrong`` have shape (n, stages), cheapest stage first; ``path`` has policies fixed elsewhere, such as
    `matched_path` of unlabelled questions; by default it is that of ``u``.
    """
    policies = matched_path(u) if path is None else np.asarray(path, dtype=np.float64)
    shape = np.shape(u)
    scores, labels = items(np.ravel(u), np.ravel(wrong))
    k, e = path_counts(scores.reshape(shape), labels.reshape(shape), policies)
    reached = walk_of_tests(shape[0], k, e, alpha, delta, share)
    return reached if isinstance(reached, NotCertified) else tuple(policies[reached[0]].tolist())


# -- Records of the same questions, and the artifact -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matched:
    """Questions with scores and labels of every stage.

    Attributes:
        ids: Of the questions, shape (n,).
        uncertainty: Shape (n, stages); +inf where a stage never answers: its uncertainty was not measured, or an
            earlier stage ends the question at run time (it could not decide, for another reason than `GOES_ON`).
        error: 1 where the stage's answer is wrong, shape (n, stages); 0 where it was not measured.
        last: Score and error of the last model where nobody is asked before it, each of shape (n,).
    """

    ids: tuple[str, ...]
    uncertainty: Floats
    error: Ints
    last: tuple[Floats, Ints]

    @property
    def n_unmeasured(self) -> int:
        """Questions that no stage could measure; the system abstains on them."""
        return int((~np.isfinite(self.uncertainty).any(axis=1)).sum())


def fit_cascade(
    records: Sequence[RecordFile | str | Path],
    *,
    alpha: float,
    scores: Sequence[str],
    delta: float = DEFAULT_DELTA,
    share: float = SHARE,
    groups: Groups = "category",
    without_failed: bool = False,
) -> CascadeArtifact:
    """Calibrate several models as one system, from records of the same questions.

    The thresholds of all stages lie on one path, which their scores fix without labels; exact tests walk it outward
    (`certified_cascade`).

    Args:
        records: One scored and labelled record file a stage, cheapest model first.
        alpha: Target error rate among the system's answers, in (0, 1).
        scores: Key of the score of each stage.
        delta: Failure probability, in (0, 1).
        share: Share of the questions from which policies are tested, declared before labels are seen.
        groups: Whether groups are categories, or clusters of dependent questions, of which one each is used.
        without_failed: As for `fit_artifact`, at each stage.

    Raises:
        UsageError: Fewer than two stages, or another number of scores; more than 1 % of the questions failed at a
            stage; files of different questions, prompts or labelling
            rules, both sides of which are named; or questions that a stage's score was made from.
    """
    if len(records) < 2 or len(records) != len(scores):
        raise UsageError(f"a cascade has at least two stages with a score each, got {len(records)} files and "
                         f"{len(scores)} scores.")  # fmt: skip
    files = [file if isinstance(file, RecordFile) else read_records(file) for file in records]
    n_failed = max(
        refuse_failed(_chosen(file, groups), key, allowed=without_failed)
        for file, key in zip(files, scores, strict=True)
    )
    pool = matched(files, scores, groups=groups)
    used = [_by_id(file.records, set(pool.ids)) for file in files]
    for file, key, part in zip(files, scores, used, strict=True):
        # Here and not only in `fit_artifact` below, which compares no clusters: it gets one question of each.
        spec = file.header.estimators.get(key)
        if spec is not None:
            refuse_overlap(spec, part, groups=groups)
    outcome = _outcome(pool, alpha, delta, share)
    stages = []
    for stage, (file, key) in enumerate(zip(files, scores, strict=True)):
        single = fit_artifact(file, score=key, alpha=alpha, part=used[stage], without_failed=True)
        stage_outcome = _stage_outcome(single, outcome, stage, pool.uncertainty[:, stage])
        stages.append(single.model_copy(update={"outcome": stage_outcome}))
    return CascadeArtifact(
        stages=tuple(stages),
        outcome=outcome,
        n_unmeasured=pool.n_unmeasured,
        n_failed=n_failed,
    )


def counts(uncertainty: Floats, error: Ints, thresholds: Sequence[float | None]) -> tuple[StageShare, ...]:
    """The questions that each stage answers, and the wrong answers among them, counted.

    Args:
        uncertainty: Shape (n, stages), +inf where a stage never answers; as in `Matched`.
        error: Shape (n, stages).
        thresholds: One a stage; None where it never answers.
    """
    inside = np.column_stack(
        [
            np.zeros(len(scores), dtype=np.bool_) if threshold is None else accepts(scores, threshold)
            for scores, threshold in zip(uncertainty.T, thresholds, strict=True)
        ]
    )
    answering = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
    return tuple(
        StageShare(
            threshold=threshold,
            n_accepted=int((answering == stage).sum()),
            n_errors=int(error[answering == stage, stage].sum()),
        )
        for stage, threshold in enumerate(thresholds)
    )


def _outcome(pool: Matched, alpha: float, delta: float, share: float) -> CascadeOutcome:
    """The loosest certified policy, or the reason why no policy passes; and the last model alone, certified alike."""
    u, error = pool.uncertainty, pool.error
    result = certified_cascade(u, error, alpha, delta, share=share)
    alone = certified(*pool.last, alpha, delta, share=share)
    reason: InfeasibleReason | None = None
    needed: int | None = None
    if isinstance(result, NotCertified):
        reason = InfeasibleReason(result.reason)
        needed = result.start if reason is InfeasibleReason.TOO_FEW_ITEMS else None
        result = (-math.inf,) * u.shape[1]
    stages = counts(u, error, [None if threshold == -math.inf else threshold for threshold in result])
    k, e = sum(stage.n_accepted for stage in stages), sum(stage.n_errors for stage in stages)
    return CascadeOutcome(
        rule=CERTIFIED,
        alpha=alpha,
        delta=delta,
        options={"share": share},
        n=len(u),
        stages=stages,
        last_alone=(
            StageShare(threshold=alone.threshold, n_accepted=alone.k, n_errors=alone.e)
            if isinstance(alone, Certified)
            else StageShare(threshold=None, n_accepted=0, n_errors=0)
        ),
        interval=interval(e, k) if k else None,
        reason=reason,
        needed=needed,
    )


def matched(
    files: Sequence[RecordFile],
    estimators: Sequence[str],
    *,
    groups: Groups = "category",
) -> Matched:
    """Scores and labels of the questions that all files have, matched by id.

    Questions where a stage has a score but no label are left out. They are sorted by id, so that the order in which
    answers arrived plays no part.

    Raises:
        UsageError: As `fit_cascade`.
    """
    first, *others = files
    for other in others:
        _refuse_others(first, other)
    for file in files:
        # The labelled questions would all be easy for one model, and the next stage sees the hard ones.
        if file.header.scope.leaves_out:
            raise UsageError(
                f"the questions of {file.path} have the lowest scores of one model, and a cascade asks the next model "
                "about the others. Label questions from all scores: calibrate sample --scope 1."
            )
    chosen = {record.id for record in _chosen(first, groups)}
    tables = [_by_id(file.records, chosen) for file in files]
    n = len(tables[0])
    u, error = np.full((n, len(files)), np.inf), np.zeros((n, len(files)), dtype=np.int64)
    ended, unlabelled = np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    for stage, (table, key) in enumerate(zip(tables, estimators, strict=True)):
        if table.unscored(key):
            at = int(np.argmax(~table.scored(key) & ((table.flags() & SOUND) != 0)))
            raise UsageError(
                f"record {table[at].id!r} has no {key!r} score. Run: calibrate score RECORDS {estimator_flags(key)}"
            )
        values, label = table.scores(key), table.counted_labels()
        measured = ~np.isnan(values)
        # What an earlier stage ends at run time never gets to this one, even if the records have a score for it.
        asked = measured & ~ended
        u[asked, stage], error[asked, stage] = values[asked], label[asked] == 0
        # A stage that answers at run time but has no label here would drop out of the error count: the question goes.
        unlabelled |= asked & (label < 0)
        for index in np.flatnonzero(~measured & ~ended).tolist():
            ended[index] = _reason(table[index], key) not in GOES_ON
    # After the loop these are of the last stage.
    last = np.where(measured, values, np.inf), (measured & (label == 0)).astype(np.int64)
    used = ~(unlabelled | (measured & (label < 0)))
    if not np.isfinite(u[used]).any():
        raise UsageError("no question has scores and labels in all files. Run `calibrate score` and `calibrate label`.")
    ids = tuple(tables[0].take(used).ids)
    return Matched(ids, u[used], error[used], (last[0][used], last[1][used]))


def _chosen(file: RecordFile, groups: Groups) -> Sequence[Record]:
    """The records to fit on."""
    return one_per_cluster(file.records) if groups == "cluster" else file.records


def _by_id(records: Sequence[Record], chosen: Collection[str]) -> RecordTable:
    """The records with these ids, in their order."""
    table = table_of(records)
    places = sorted((name, index) for index, name in enumerate(table.ids) if name in chosen)
    return table.take(np.array([index for _, index in places], dtype=np.int64))


def _reason(record: Record, key: str) -> Unmeasured | None:
    """The reason why a record's uncertainty was not measured; None where it was never drawn."""
    score = record.scores.get(key)
    if score is not None:
        return score.reason
    return None if record.drawn is None else record.drawn.problem


def _refuse_others(first: RecordFile, other: RecordFile) -> None:
    """Refuse files that are not about the same questions, asked and labelled alike."""
    ours = {record.id: record for record in first.records}
    theirs = {record.id: record for record in other.records}
    if ours.keys() != theirs.keys():
        only = [sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())]
        listed = "; ".join(
            f"{len(names)} only in {file.path}, e.g. {names[0]!r}"
            for names, file in zip(only, (first, other), strict=True)
            if names
        )
        raise UsageError(
            f"the files hold different questions ({listed}). Collect the same question file with both models."
        )
    for name, record in ours.items():
        for field in ("question", "references", "options"):
            a, b = getattr(record, field), getattr(theirs[name], field)
            if a != b:
                raise UsageError(f"question {name!r} has {field} {a!r} in {first.path} and {b!r} in {other.path}.")
    sides: list[tuple[Literal["prompt", "correctness"], str]] = [("prompt", "asked"), ("correctness", "labelled")]
    for field, verb in sides:
        a, b = getattr(first.header, field), getattr(other.header, field)
        if a != b:
            raise UsageError(f"questions were {verb} differently: {a!r} in {first.path}, {b!r} in {other.path}.")


def _stage_outcome(
    single: CalibrationArtifact, outcome: CascadeOutcome, stage: int, scores: Floats
) -> Feasible | Infeasible:
    """A stage's share of the outcome of the system, with the threshold in force."""
    share = outcome.stages[stage]
    common: dict[str, Any] = {
        "rule": outcome.rule,
        "alpha": outcome.alpha,
        "delta": outcome.delta,
        "options": {**outcome.options, "stage": stage + 1, "stages": len(outcome.stages)},
        "n": outcome.n,
        "diagnostics": single.outcome.diagnostics,
    }
    if share.threshold is None:
        reason = outcome.reason or InfeasibleReason.STAGE_NOT_USED
        return Infeasible(reason=reason, n_measured=outcome.n, needed=outcome.needed, **common)
    accepted = Certified(share.threshold, outcome.n, share.n_accepted, share.n_errors)
    return feasible(accepted, int((scores == share.threshold).sum()), **common)
