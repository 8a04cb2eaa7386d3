"""Calibrating several models as one system: thresholds chosen together, from records of the same questions.

Stage 1 answers iff its uncertainty is at most its threshold; else stage 2, and so on; else a person. Thresholds that
were fitted one by one do not control the system: what reaches stage 2 is the hard rest, not what it was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import GOES_ON, CalibrationArtifact, CascadeArtifact, CascadeOutcome, StageShare
from guardrail.errors import UsageError
from guardrail.gate import accepts
from guardrail.outcome import CERTIFIED, Feasible, Infeasible, InfeasibleReason
from guardrail.types import Unmeasured

from .data.records import Record, RecordFile, package_versions, read_records
from .data.split import Groups, one_per_cluster
from .fitting import DEFAULT_DELTA
from .pipeline import FitSettings, fit_artifact
from .rules.cascade import RATIO, Policy, certified_cascade
from .rules.certificate import SHARE, certified, fewest_accepted, interval
from .rules.counts import Feasible as Certified
from .scoring.apart import refuse_overlap
from .scoring.scores import refuse_failed
from .spec_syntax import estimator_flags

__all__ = ["Matched", "counts", "fit_cascade", "matched"]


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
    uncertainty: NDArray[np.float64]
    error: NDArray[np.int64]
    last: tuple[NDArray[np.float64], NDArray[np.int64]]

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
    ratio: float = RATIO,
    groups: Groups = "category",
    part: Sequence[str] | None = None,
    without_failed: bool = False,
) -> CascadeArtifact:
    """Calibrate several models as one system, from records of the same questions.

    The thresholds of all stages lie on one path, which their scores fix without labels; exact tests walk it outward
    (`calibrate.rules.cascade.certified_cascade`).

    Args:
        records: One scored and labelled record file a stage, cheapest model first.
        alpha: Target error rate among the system's answers, in (0, 1).
        scores: Key of the score of each stage.
        delta: Failure probability, in (0, 1).
        share: Share of the questions from which policies are tested, declared before labels are seen.
        ratio: How far earlier stages go: their share of their own scores, per share of the last stage's. In [0, 1].
        groups: Whether groups are categories, or clusters of dependent questions, of which one each is used.
        part: Ids to fit on (a calibration part); default: all.
        without_failed: As in `calibrate.pipeline.FitSettings`, at each stage.

    Raises:
        UsageError: More than 1 % of the questions failed at a stage, files of different questions, prompts or labelling
            rules, both sides of which are named; or questions that a stage's score was made from.
    """
    files = [file if isinstance(file, RecordFile) else read_records(file) for file in records]
    n_failed = max(
        refuse_failed(_chosen(file, groups, part), key, allowed=without_failed)
        for file, key in zip(files, scores, strict=True)
    )
    pool = matched(files, scores, groups=groups, part=part)
    used_ids = set(pool.ids)
    for file, key in zip(files, scores, strict=True):
        # Here and not only in `fit_artifact` below, which compares no clusters: it gets one question of each.
        spec = file.header.estimators.get(key)
        if spec is not None:
            refuse_overlap(spec, [record for record in file.records if record.id in used_ids], groups=groups)
    outcome = _outcome(pool, alpha, delta, share, ratio)
    stages = []
    for stage, (file, key) in enumerate(zip(files, scores, strict=True)):
        used = [record for record in file.records if record.id in used_ids]
        single = fit_artifact(file, score=key, alpha=alpha, part=used, settings=FitSettings(without_failed=True))
        stages.append(_stage(single, outcome, stage, pool.uncertainty[:, stage]))
    return CascadeArtifact(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        stages=tuple(stages),
        outcome=outcome,
        packages=package_versions(),
        n_unmeasured=pool.n_unmeasured,
        n_failed=n_failed,
    )


def counts(
    uncertainty: NDArray[np.float64], error: NDArray[np.int64], thresholds: Sequence[float | None]
) -> tuple[StageShare, ...]:
    """What each stage answers of some questions, and how many of these answers are wrong.

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


def _outcome(pool: Matched, alpha: float, delta: float, share: float, ratio: float) -> CascadeOutcome:
    """The loosest certified policy, or the reason why no policy passes; and the last model alone, certified alike."""
    u, error = pool.uncertainty, pool.error
    result = certified_cascade(u, error, alpha, delta, share=share, ratio=ratio)
    alone = certified(*pool.last, alpha, delta, share=share)
    thresholds: list[float | None] = [None] * u.shape[1]
    reason: InfeasibleReason | None = None
    needed: int | None = None
    if isinstance(result, Policy):
        thresholds = [None if threshold == -math.inf else threshold for threshold in result.thresholds]
    elif fewest_accepted(0, alpha, delta) > result.n:
        needed = int(fewest_accepted(0, alpha, delta))
        reason = InfeasibleReason.TOO_FEW_ITEMS
    else:
        reason = InfeasibleReason.RISK_NEVER_LOW_ENOUGH
    stages = counts(u, error, thresholds)
    k, e = sum(stage.n_accepted for stage in stages), sum(stage.n_errors for stage in stages)
    return CascadeOutcome(
        rule=CERTIFIED,
        alpha=alpha,
        delta=delta,
        options={"share": share, "ratio": ratio},
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
    part: Sequence[str] | None = None,
) -> Matched:
    """Scores and labels of the questions that all files have, matched by id.

    Questions where a stage has a score but no label are left out. They are sorted by id, so that the order in which
    answers arrived plays no part.

    Raises:
        UsageError: As `fit_cascade`.
    """
    if len(files) < 2 or len(files) != len(estimators):
        raise UsageError(f"a cascade has at least two stages with a score each, got {len(files)} files and "
                         f"{len(estimators)} scores.")  # fmt: skip
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
    chosen_ids = {record.id for record in _chosen(first, groups, part)}
    by_id = [{record.id: record for record in file.records} for file in files]
    ids, scores, errors, last = [], [], [], []
    for name in sorted(chosen_ids):
        row = _row([table[name] for table in by_id], estimators)
        values, wrong = zip(*row, strict=True)
        alone = _item(by_id[-1][name], estimators[-1])
        # A stage that answers at run time but has no label here would drop out of the error count, so the question
        # goes.
        if None in wrong or alone[1] is None:
            continue
        ids.append(name)
        scores.append(values)
        errors.append(wrong)
        last.append(alone)
    u = np.array(scores, dtype=np.float64)
    if not np.isfinite(u).any():
        raise UsageError("no question has scores and labels in all files. Run `calibrate score` and `calibrate label`.")
    of_last = np.array(last, dtype=np.float64).T
    return Matched(tuple(ids), u, np.array(errors, dtype=np.int64), (of_last[0], of_last[1].astype(np.int64)))


def _chosen(file: RecordFile, groups: Groups, part: Sequence[str] | None) -> list[Record]:
    """The records to fit on."""
    ids = None if part is None else set(part)
    chosen = one_per_cluster(file.records) if groups == "cluster" else file.records
    return [record for record in chosen if ids is None or record.id in ids]


def _row(records: Sequence[Record], keys: Sequence[str]) -> list[tuple[float, int | None]]:
    """Score and error of one question at each stage, as a cascade would get to them at run time."""
    row: list[tuple[float, int | None]] = []
    ended = False
    for record, key in zip(records, keys, strict=True):
        item = _item(record, key)
        # What an earlier stage ends at run time never gets to this one, even if the records have a score for it.
        row.append((math.inf, 0) if ended else item)
        ended = ended or (not math.isfinite(item[0]) and _reason(record, key) not in GOES_ON)
    return row


def _reason(record: Record, key: str) -> Unmeasured | None:
    """Why a record's uncertainty was not measured; None where it was never drawn."""
    score = record.scores.get(key)
    if score is not None:
        return score.reason
    return None if record.drawn is None else record.drawn.problem


def _item(record: Record, key: str) -> tuple[float, int | None]:
    """Score (+inf: not measured) and error (None: measured, but not labelled); an undecided answer is an error."""
    score = record.scores.get(key)
    if score is None and record.drawn is not None and record.drawn.problem is None:
        raise UsageError(
            f"record {record.id!r} has no {key!r} score. Run: calibrate score RECORDS {estimator_flags(key)}"
        )
    if score is None or score.value is None:
        return math.inf, 0
    labelled = record.correct is not None or record.is_undecided
    return score.value, int(not record.correct) if labelled else None


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
    for field, how in sides:
        a, b = getattr(first.header, field), getattr(other.header, field)
        if a != b:
            raise UsageError(f"questions were {how} differently: {a!r} in {first.path}, {b!r} in {other.path}.")


def _stage(
    single: CalibrationArtifact,
    outcome: CascadeOutcome,
    stage: int,
    scores: NDArray[np.float64],
) -> CalibrationArtifact:
    """A stage's artifact: its own binding, with the threshold of the system."""
    return single.model_copy(
        update={
            "outcome": _stage_outcome(single, outcome, stage, scores),
        }
    )


def _stage_outcome(
    single: CalibrationArtifact, outcome: CascadeOutcome, stage: int, scores: NDArray[np.float64]
) -> Feasible | Infeasible:
    share = outcome.stages[stage]
    common = {
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
    k, e = share.n_accepted, share.n_errors
    return Feasible(
        threshold=share.threshold,
        n_accepted=k,
        n_errors=e,
        # A stage may answer none of the questions left; the exact interval of 0 in 0 is all of [0, 1].
        interval=interval(e, k) if k else (0.0, 1.0),
        tie_block=int((scores == share.threshold).sum()),
        **common,
    )
