"""The audit of a gate's promise: an exact test of its error rate on freshly labelled answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact
from guardrail.describe import judges_of
from guardrail.errors import UsageError
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.uncertainty import from_spec

from ..cascade import counts, matched
from ..correctness import label_file, make_rule
from ..data.records import GIVEN, Record, RecordFile
from ..data.split import Repeats, one_per_cluster, one_per_question
from ..data.table import table_of
from ..items.answers import label_items, measure_records
from ..judging import (
    Judged,
    accepted_of,
    at_calibration,
    fitted_on,
    judged_by,
    keys_of_score,
    refuse_seen,
    require_same,
)
from ..router import by_route
from ..rules import RULES, Rule
from ..rules.capital import excess_mean, excess_total, p_capital
from ..rules.counts import check_share
from ..scoring.compute import score_records
from ..scoring.metrics import fisher_exact, ks_two_sample
from ..scoring.names import estimator_key
from ..spec_syntax import items_flag
from .promise_test import LEVEL, Audit, CascadeAudit, RateTest, Shift


def audit(
    artifact: CalibrationArtifact,
    records: Sequence[Record],
    estimator: str,
    *,
    level: float = LEVEL,
    anytime: bool = False,
    repeats: Repeats = "once",
) -> Audit:
    """Test an artifact's error rate on labelled records it was not fitted on.

    Exact and one-sided: with k labelled accepted answers, e of them wrong, ``refuted`` iff P(Bin(k, alpha) >= e) <=
    level, ``supported`` iff P(Bin(k, alpha) <= e) <= level (the upper Clopper-Pearson bound is then at most alpha).
    Both are over independent fresh questions, for this one gate. One look a data set: of gates whose
    error rate is exactly .1, twenty tests, one after every 50 labels, ever refute 18 % and ever support 19 % of them.
    With ``anytime`` both verdicts come from betting, and hold however often the audit is repeated on a growing file.

    Args:
        artifact: The artifact.
        records: Fresh records with scores; labels at least on a random part. See :func:`prepared`.
        estimator: Key of the artifact's estimator in the records.
        level: False-alarm probability, in (0, .5).
        anytime: Whether the verdicts hold at any time, as the file grows; they need more labels.
        repeats: "once": the test reads one of equal questions, as the fit does; "all": they are independent draws.
            Of an artifact whose calibration questions were in clusters it reads one of each cluster, if all records
            name theirs.

    Returns:
        The result; ``print`` shows what ``calibrate audit`` prints.

    Raises:
        UsageError: No labels or scores, or a level out of range.
    """
    _check_level(level)
    refuse_untestable(records, estimator)
    table = table_of(records)
    with_label = table.take(table.labelled(estimator))
    refuse_seen(artifact, with_label, "test")
    n_records = len(records)
    records = _independent(artifact, records, repeats)
    refuse_untestable(records, estimator)  # those that are left
    judged = judged_by(artifact, records, estimator)
    n_accepted = int(np.count_nonzero(accepted_of(artifact, records, estimator)))
    fresh, before = judged.counts, at_calibration(artifact)
    error_p = None
    if before.n_accepted and fresh.n_accepted:
        error_p = fisher_exact(before.n_errors, before.n_accepted, fresh.n_errors, fresh.n_accepted)
    values = table_of(records).compared(estimator)
    return Audit(
        **dict(_by_rule(artifact, judged, level, anytime=anytime)),
        population=_population(artifact),
        artifact=artifact.digest,
        judges=judges_of(artifact),
        rule=artifact.outcome.rule,
        n_unlabelled=n_accepted - fresh.n_accepted,
        held_out=fresh,
        at_calibration=before,
        error_p=error_p,
        base_error_p=_base_error_p(artifact, judged, estimator),
        shift=shift_of(artifact, values[~np.isnan(values)], n_accepted),
        n_repeated=n_records - len(records),
    )


def _population(artifact: CalibrationArtifact) -> Literal["accepted", "all", "items"]:
    """What the promise of an artifact's rule is a share of."""
    rule = RULES.get(artifact.outcome.rule)
    return "accepted" if rule is None else rule.population


def _by_rule(artifact: CalibrationArtifact, judged: Judged, level: float, *, anytime: bool) -> RateTest:
    """The test of a rule's promise on labelled answers: of a share of answers exact, of a share of items by betting."""
    target, population, counts = artifact.alpha, _population(artifact), judged.counts
    if population != "items":
        n = counts.n if population == "all" else counts.n_accepted
        return RateTest.of(counts.n_errors, n, target, level, anytime=anytime)
    rule = RULES[artifact.outcome.rule]
    if anytime:
        raise UsageError(f"a share of items (rule {rule.name}) is tested once on a file: leave --anytime out.")
    p_refute, p_support = _by_betting(rule, judged, artifact.outcome.options["cap"], target, level)
    return RateTest(
        target=target,
        level=level,
        n=int(judged.accepted.sum()),
        n_errors=int(judged.errors.sum()),
        rate=rule.risk_of(judged.accepted, judged.errors),
        p_refute=p_refute,
        p_support=p_support,
    )


def _by_betting(rule: Rule, judged: Judged, cap: int, target: float, level: float) -> tuple[float, float]:
    """p-values of "the share of wrong items is at most the target" and of "it is at least that"; 1 if none is kept."""
    K, W = judged.accepted, judged.errors
    if not K.any():
        return 1.0, 1.0
    excess, largest = (excess_total(K, W, target), cap) if rule.risk is None else (excess_mean(K, W, target), 1)
    # By a hash of the id: read by length, the capital would grow before the first wrong answer comes.
    order = np.argsort([hashlib.sha256(name.encode()).hexdigest() for name in judged.records.ids])
    read = excess[order][:, None]
    against = p_capital(-read, target * largest, level)
    return float(against[0]), float(p_capital(read, (1 - target) * largest, level)[0])


def audit_router(
    artifact: RouterArtifact, records: Sequence[Record], estimator: str, *, level: float = LEVEL, **settings: Any
) -> dict[str, Audit]:
    """Test the promise of each group of a router on its own questions; see `audit`.

    Each test has an equal part of the level: one refuted promise refutes, and a router of good gates is refuted with
    probability at most ``level``.

    Args:
        artifact: The router.
        records: Fresh records with scores, labels and groups.
        estimator: Key of the score in the records.
        level: False-alarm probability of all tests together, in (0, .5).
        **settings: Others, as for `audit`.

    Returns:
        The audit of each group with a threshold and an accepted answer that has a label, by its name.

    Raises:
        UsageError: As `audit`; or no group has such an answer.
    """
    refuse_untestable(records, estimator)
    routed = by_route(artifact, records)
    testable = {
        name: part
        for name, part in routed.items()
        if (accepted_of(artifact.artifacts[name], part, estimator) & table_of(part).labelled(estimator)).any()
    }
    if not testable:
        raise UsageError("no accepted answer of any group has a label, so no promise can be tested. Label more.")
    return {
        name: audit(artifact.artifacts[name], part, estimator, level=level / len(testable), **settings)
        for name, part in testable.items()
    }


def audit_cascade(
    artifact: CascadeArtifact,
    files: Sequence[RecordFile],
    *,
    level: float = LEVEL,
    anytime: bool = False,
) -> CascadeAudit:
    """Test the error rate of a system's answers on labelled questions that it was not fitted on.

    The test is that of `audit`, with the answers that the stages would give together.

    Args:
        artifact: The cascade's artifact.
        files: Fresh records of the same questions, one file a stage in the artifact's order. Scores and labels that
            are missing are made as each stage's artifact says.
        level: False-alarm probability, in (0, .5).
        anytime: Whether the verdict holds at any time, as the files grow; it needs more labels.

    Raises:
        UsageError: Another number of files than stages, calibration questions, or files that do not fit each other or
            their stage.
    """
    _check_level(level)
    if len(files) != len(artifact.stages):
        raise UsageError(
            f"the cascade has {len(artifact.stages)} stages, got {len(files)} record files. Give one --records a "
            "stage, cheapest model first."
        )
    ready = [prepared(file, stage) for file, stage in zip(files, artifact.stages, strict=True)]
    pool = matched([file for file, _ in ready], [key for _, key in ready])
    stages = counts(pool.uncertainty, pool.error, [stage.threshold for stage in artifact.outcome.stages])
    n, errors = sum(stage.n_accepted for stage in stages), sum(stage.n_errors for stage in stages)
    return CascadeAudit(
        **dict(RateTest.of(errors, n, artifact.alpha, level, anytime=anytime)),
        artifact=artifact.digest,
        judges=judges_of(artifact),
        population="accepted",
        n_questions=len(pool.ids),
        stages=stages,
    )


def _check_level(level: float) -> None:
    check_share("level", level)
    if level >= 0.5:
        raise UsageError(f"level must be below 0.5, got {level}. 0.05 is usual.")


# -- Fresh records against those of the calibration --------------------------------------------------------------------


def _independent(artifact: CalibrationArtifact, records: Sequence[Record], repeats: Repeats) -> Sequence[Record]:
    """The records that may be taken as independent draws; see `audit`."""
    table = table_of(records)
    if artifact.calibration.group is not None and None not in table.coded("group")[1]:
        table = one_per_cluster(table)
    return one_per_question(table) if repeats == "once" else table


def _base_error_p(artifact: CalibrationArtifact, judged: Judged, estimator: str) -> float:
    """P-value of a difference in the share of wrong answers, over records with a score within the artifact's scope."""
    right = judged.right[artifact.outcome.scope.covers(table_of(judged.records).scores(estimator))]
    before = artifact.calibration
    return fisher_exact(before.n_wrong, before.n, int(np.count_nonzero(~right)), right.size) if right.size else 1.0


def shift_of(artifact: CalibrationArtifact, values: NDArray[np.float64], accepted: int) -> Shift:
    """Fresh scores, ``accepted`` of them within the threshold, against those of the calibration."""
    before, within = np.array(artifact.calibration.of_answers), None
    covered = artifact.outcome.scope.covers(values)
    if 0 < covered.sum() < values.size:
        within = float(covered.mean())
        values = values[covered]  # as at calibration, scores above the cut are not compared
    distance, ks_p = ks_two_sample(before, values)
    share = acceptance_p = None
    if artifact.threshold is not None:
        n_accepted = artifact.outcome.n_accepted
        share = n_accepted / before.size
        acceptance_p = fisher_exact(n_accepted, before.size, accepted, values.size)
    return Shift(
        calibration=share,
        fresh=accepted / values.size,
        acceptance_p=acceptance_p,
        ks=distance,
        ks_p=ks_p,
        within=within,
    )


# -- Fresh records made ready ------------------------------------------------------------------------------------------


def prepared(file: RecordFile, artifact: CalibrationArtifact, *, labels: bool = True) -> tuple[RecordFile, str]:
    """Make fresh records ready for an audit: add missing scores and labels as the artifact says.

    Args:
        file: The fresh records.
        artifact: The artifact.
        labels: Whether labels are needed; without, none are made, and those there are need not be by the same rule.

    Returns:
        The records, without questions that the artifact was fitted on, and the key of the estimator in them.

    Raises:
        UsageError: Another model, plan, prompt, estimator or correctness rule than the artifact's (both sides are
            named), no question but those of the fit, or labels that only people can give.
    """
    spec = artifact.estimator
    key = next(iter(keys_of_score(file.header, spec)), None)
    if key is None and artifact.kind == "items":
        file, key = measure_records(file, items_measure(ItemsSpec.of(spec))), ITEMS
    elif key is None:
        measure = from_spec(spec)
        file = score_records(file, [measure])
        key = estimator_key(measure)
    if file.header.label_rule(key) is None and labels:
        file = label_items(file) if artifact.kind == "items" else _labelled(file, artifact)
    same = file.header.label_rule(key)
    if not labels or (same is not None and same.name == artifact.correctness.name == GIVEN):
        # Labels of people on other answers have another spec; that people labelled both is all that can be compared.
        same = artifact.correctness
    header = file.header.model_copy(update={"correctness": same, "item_correctness": same})
    require_same(artifact, RecordFile(file.path, header, file.records), key)
    file = _without_fitted(file, artifact)
    refuse_seen(artifact, file.records, "fresh")
    return file, key


def _without_fitted(file: RecordFile, artifact: CalibrationArtifact) -> RecordFile:
    """The file without the questions that the artifact was fitted on: a threshold chosen on them fits them.

    Raises:
        UsageError: The file has no other questions.
    """
    fitted = fitted_on(artifact, file.records)
    if fitted.all():
        raise UsageError(
            f"{file.path} holds only questions that the artifact was fitted on ({artifact.data.name}). A threshold "
            "chosen on them fits them: label new questions."
        )
    return RecordFile(file.path, file.header, file.records.take(~fitted)) if fitted.any() else file


def _labelled(file: RecordFile, artifact: CalibrationArtifact) -> RecordFile:
    spec = artifact.correctness
    try:
        rule = make_rule(spec.name, **spec.params)
    except UsageError as error:
        raise UsageError(
            f"{file.path} has no labels, and the artifact's are by {spec.name!r}, which cannot be made here ({error}). "
            f"Label the file first: calibrate label {file.typed}, with --labels FILE for labels by people."
        ) from error
    return label_file(file, rule)


def refuse_untestable(records: Sequence[Record], estimator: str) -> None:
    """Refuse records that test nothing.

    Raises:
        UsageError: None of them has a label, or none has a score.
    """
    table = table_of(records)
    flag = items_flag(estimator)
    if not table.labelled(estimator).any():
        raise UsageError(f"no fresh record has a label. Run: calibrate label RECORDS{flag}")
    if np.isnan(table_of(records).scores(estimator)).all():
        raise UsageError(f"no fresh record has a {estimator!r} score. Run: calibrate score RECORDS{flag}")
