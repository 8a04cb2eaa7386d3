"""The audit of a gate's promise: an exact test of its error rate on freshly labelled answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import special

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact, StageShare
from guardrail.errors import UsageError
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.monitor.risk import log_wealth
from guardrail.outcome import Outcome
from guardrail.specs import EstimatorSpec
from guardrail.types import Frozen
from guardrail.uncertainty import from_spec

from ..binding import hashes_of_fit, refuse_fitted
from ..cascade import counts, matched
from ..correctness import label_file, make_rule
from ..data.records import GIVEN, Record, RecordFile
from ..data.split import Repeats, one_per_cluster, one_per_question
from ..data.table import among, table_of
from ..items.answers import label_items, measure_records
from ..pipeline import (
    GateCounts,
    Judged,
    accepted_of,
    at_calibration,
    judged_by,
    keys_of_score,
    refuse_choice,
    require_same,
)
from ..router import by_route
from ..rules import RULES, Rule, certifies
from ..rules.capital import excess_mean, excess_total, p_capital
from ..rules.certificate import tail, upper_bound
from ..rules.counts import check_share
from ..scoring.apart import refuse_overlap
from ..scoring.metrics import fisher_exact, ks_two_sample
from ..scoring.scores import estimator_key, score_records, taken, values_of
from ..spec_syntax import items_flag

__all__ = [
    *(
        "LEVEL",
        "Audit",
        "CascadeAudit",
        "PromiseTest",
        "Shift",
        "audit",
        "audit_cascade",
        "audit_counts",
        "labelled_needed",
        "prepared",
        "refuse_untestable",
    ),
]

Reals = NDArray[np.float64]

LEVEL = 0.05
"""Default probability of refuting a gate whose error rate is exactly the target."""
DIFFERENT = 0.01
"""Fresh questions are of another kind than the calibration questions where a p-value lies below this."""
MOST_NEEDED = 10_000_000
"""Larger numbers of labels are not reported."""


class Shift(Frozen):
    """Fresh questions against the calibration questions. Information only: it refutes nothing by itself."""

    calibration: float | None
    """Share accepted at calibration; None when the artifact accepts nothing."""
    fresh: float
    """Share accepted among the fresh records with a score (within the artifact's scope, as at calibration)."""
    acceptance_p: float | None
    """Fisher's exact p-value of "the same share"; approximate, because the threshold was chosen on one of the two."""
    ks: float
    """Largest distance between the two distributions of uncertainty (Kolmogorov-Smirnov)."""
    ks_p: float
    """Its asymptotic p-value; too large when scores have ties."""
    within: float | None = None
    """Share of the fresh scores within the artifact's scope, the only ones compared; None if all are."""

    @property
    def scores_differ(self) -> bool:
        """Whether the scores show that the fresh questions are of another kind (at the level `DIFFERENT`)."""
        return min(self.ks_p, 1.0 if self.acceptance_p is None else self.acceptance_p) < DIFFERENT


class PromiseTest(Frozen):
    """A promise against fresh labels."""

    verdict: Literal["refuted", "supported", "undecided"]
    """Refuted: errors as many as these have probability at most ``level`` at an error rate of ``target``. Supported:
    errors as few as these have. Undecided: neither."""
    artifact: str
    """Digest of the artifact."""
    target: float
    """The error rate that was tested, by default alpha."""
    level: float
    """Probability of refuting a gate whose error rate is exactly the target; and of supporting it."""
    population: Literal["accepted", "all", "items"]
    """What the rate is a share of, by the rule: accepted answers, all questions, or items kept."""
    n: int
    """Units the rate is over: labelled accepted answers, all labelled questions, or items kept."""
    n_errors: int
    """Accepted answers, or items, among them that are wrong."""
    rate: float | None
    """The rate on these units; None without any."""
    p_refute: float
    """p-value of "the rate is at most the target": P(Bin(n, target) >= n_errors), of a share of items by betting."""
    p_support: float
    """p-value of "the rate is at least the target": P(Bin(n, target) <= n_errors), of a share of items by betting."""
    upper: float | None
    """Exact upper confidence bound of the rate at ``1 - level``; of a share of items the target, if that is supported.
    None where there is none."""
    needed: int | None
    """More labels that would decide it if the rate stayed as seen; None when decided, when none would, or unknown."""
    anytime: bool = Field(default=False, exclude_if=lambda anytime: not anytime)
    """Whether the verdicts, p-values and the bound are by betting: they hold however often the audit is repeated."""


class Audit(PromiseTest):
    """The promise of a gate of whole answers, calls or items against fresh labels."""

    rule: str
    """Its rule."""
    n_unlabelled: int
    """Accepted answers without a label; they count neither way."""
    held_out: GateCounts
    """Counts and 95 % intervals on all labelled fresh records."""
    at_calibration: GateCounts
    """The same on the calibration items. Post-selection: the threshold was chosen on them."""
    base_error_p: float
    """Fisher's exact p-value of "the same share of all answers is wrong as at calibration"."""
    error_p: float | None
    """Fisher's exact p-value of "accepted answers are wrong as often as at calibration"; None without any."""
    shift: Shift
    """Acceptance and uncertainty against calibration."""
    n_repeated: int = Field(default=0, exclude_if=lambda n: not n)
    """Records that were not read, because another one asks the same question or is of the same cluster."""

    @property
    def cause(self) -> Literal["questions", "labels", "chance"]:
        """The most likely cause of a refutation.

        "questions": their scores differ from those at calibration. "labels": the scores do not differ, but the share
        of wrong answers does. "chance": neither differs; the calibration ended above its target.
        """
        if self.shift.scores_differ:
            return "questions"
        return "labels" if self.base_error_p < DIFFERENT else "chance"

    @property
    def contradicts_calibration(self) -> bool:
        """Whether a refuted gate breaks its promise; its rule may let some gates end above the target.

        A rule that certifies promises each gate. Others promise an average over gates, of which many end somewhat above
        alpha: theirs is broken where accepted answers are wrong more often than they were at calibration.
        """
        if self.verdict != "refuted":
            return False
        return certifies(self.rule) or self.cause != "chance" or (self.error_p is not None and self.error_p <= LEVEL)


def audit(
    artifact: CalibrationArtifact,
    records: Sequence[Record],
    estimator: str,
    *,
    level: float = LEVEL,
    target: float | None = None,
    anytime: bool = False,
    repeats: Repeats = "once",
) -> Audit:
    """Test an artifact's error rate on labelled records it was not fitted on.

    Exact and one-sided: with k labelled accepted answers, e of them wrong, ``refuted`` iff P(Bin(k, target) >= e) <=
    level, ``supported`` iff P(Bin(k, target) <= e) <= level (the upper Clopper-Pearson bound is then at most the
    target). Both are over independent fresh questions, for this one gate. One look a data set: of gates whose
    error rate is exactly .1, twenty tests, one after every 50 labels, ever refute 18 % and ever support 19 % of them.
    With ``anytime`` both verdicts come from betting, and hold however often the audit is repeated on a growing file.

    Args:
        artifact: The artifact.
        records: Fresh records with scores; labels at least on a random part. See :func:`prepared`.
        estimator: Key of the artifact's estimator in the records.
        level: False-alarm probability, in (0, .5).
        target: Error rate to test; default: the artifact's alpha.
        anytime: Whether the verdicts hold at any time, as the file grows; they need more labels.
        repeats: "once": the test reads one of equal questions, as the fit does; "all": they are independent draws.
            Of an artifact whose calibration questions were in clusters it reads one of each cluster, if all records
            name theirs.

    Raises:
        UsageError: No labels or scores, or a level or target out of range.
    """
    rate = _rate(artifact, level, target)
    refuse_untestable(records, estimator)
    with_label = taken(records, table_of(records).labelled(estimator))
    refuse_overlap(artifact.estimator, with_label, what="test")
    refuse_fitted(artifact, with_label, "test")
    given = len(records)
    records = _independent(artifact, records, repeats)
    refuse_untestable(records, estimator)  # those that are left
    judged, accepted = judged_by(artifact, records, estimator), accepted_of(artifact, records, estimator)
    counts, before = judged.counts, at_calibration(artifact)
    values = table_of(records).compared(estimator)
    compared = before.n_accepted and counts.n_accepted
    return Audit(
        **_by_rule(artifact.outcome, judged, rate, level, anytime=anytime),
        artifact=artifact.digest,
        rule=artifact.outcome.rule,
        n_unlabelled=int(np.count_nonzero(accepted)) - counts.n_accepted,
        held_out=counts,
        at_calibration=before,
        error_p=fisher_exact(before.n_errors, before.n_accepted, counts.n_errors, counts.n_accepted)
        if compared
        else None,
        base_error_p=_base_error_p(artifact, judged, estimator),
        shift=_shift(artifact, values[~np.isnan(values)], int(np.count_nonzero(accepted))),
        n_repeated=given - len(records),
    )


def _by_rule(outcome: Outcome, judged: Judged, target: float, level: float, *, anytime: bool) -> dict[str, Any]:
    """The test of a rule's promise on labelled answers: of a share of answers exact, of a share of items by betting."""
    rule, counts = RULES.get(outcome.rule), judged.counts
    if rule is None or rule.population != "items":
        population = "accepted" if rule is None else rule.population
        n = counts.n if population == "all" else counts.n_accepted
        return _tested(counts.n_errors, n, target, level, anytime=anytime) | {"population": population}
    if anytime:
        raise UsageError(f"a share of items (rule {rule.name}) is tested once on a file: leave --anytime out.")
    p_refute, p_support = _by_betting(rule, judged, outcome.options["cap"], target, level)
    verdict = "refuted" if p_refute <= level else "supported" if p_support <= level else "undecided"
    return {
        **{"verdict": verdict, "target": target, "level": level, "population": "items", "needed": None},
        **{"n": int(judged.accepted.sum()), "n_errors": int(judged.errors.sum())},
        **{"p_refute": p_refute, "p_support": p_support, "upper": target if verdict == "supported" else None},
        "rate": rule.risk_of(judged.accepted, judged.errors),
    }


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
    tested = {}
    for name, own in by_route(artifact, records).items():
        gate = artifact.artifacts[name]
        if bool((accepted_of(gate, own, estimator) & table_of(own).labelled(estimator)).any()):
            tested[name] = own
    if not tested:
        raise UsageError("no accepted answer of any group has a label, so no promise can be tested. Label more.")
    return {
        name: audit(artifact.artifacts[name], own, estimator, level=level / len(tested), **settings)
        for name, own in tested.items()
    }


def _independent(artifact: CalibrationArtifact, records: Sequence[Record], repeats: Repeats) -> Sequence[Record]:
    """The records that may be taken as independent draws; see `audit`."""
    table = table_of(records)
    if artifact.calibration.group is not None and None not in table.coded("group")[1]:
        table = one_per_cluster(table)
    return one_per_question(table) if repeats == "once" else table


def _base_error_p(artifact: CalibrationArtifact, judged: Judged, estimator: str) -> float:
    """P-value of a difference in the share of wrong answers, over records with a score within the artifact's scope."""
    right = judged.right[artifact.outcome.scope.covers(values_of(judged.records, estimator))]
    before = artifact.calibration
    return fisher_exact(before.n_wrong, before.n, int(np.count_nonzero(~right)), right.size) if right.size else 1.0


def audit_counts(
    errors: int, n: int, target: float, level: float, *, anytime: bool = False
) -> tuple[Literal["refuted", "supported", "undecided"], float, float, int | None]:
    """Verdict, p-value for refuting, p-value for supporting, and the number of further items that would decide.

    Args:
        errors: Wrong ones.
        n: Items.
        target: Error rate that is tested.
        level: Probability of each false verdict.
        anytime: By betting, which holds however often the counts are looked at; else by the binomial, for one look.
    """
    p_refute, p_support = _p_values(errors, n, target, anytime)
    if n and p_refute <= level:
        return "refuted", p_refute, p_support, None
    if n and p_support <= level:
        return "supported", p_refute, p_support, None
    return "undecided", p_refute, p_support, labelled_needed(errors, n, target, level, anytime=anytime)


def _tested(errors: int, n: int, rate: float, level: float, *, anytime: bool) -> dict[str, Any]:
    """The fields of `PromiseTest` that follow from the counts."""
    verdict, p_refute, p_support, needed = audit_counts(errors, n, rate, level, anytime=anytime)
    bound = _anytime_upper if anytime else upper_bound
    return {
        **{"verdict": verdict, "target": rate, "level": level, "n": n, "n_errors": errors, "needed": needed},
        **{"p_refute": p_refute, "p_support": p_support, "anytime": anytime},
        "upper": bound(errors, n, level) if n else None,
        "rate": errors / n if n else None,
    }


def _p_values(errors: int, n: int, target: float, anytime: bool) -> tuple[float, float]:
    """p-values of "at most the target is wrong" and of "at least the target is wrong"."""
    if not anytime:
        return _at_least(errors, n, target), float(tail(errors, n, target))
    # 1 / wealth: by Ville's inequality it is ever at most the level with a probability of at most the level. A rate of
    # right answers above 1 - target is bet on alike.
    against = (log_wealth([(1.0, n, errors)], target), log_wealth([(1.0, n, n - errors)], 1 - target))
    refute, support = (min(1.0, float(np.exp(-logs))) for logs in against)
    return refute, support


def _anytime_upper(errors: int, n: int, level: float) -> float:
    """Smallest error rate that betting shows not to be exceeded, to 1e-4; 1 if none."""
    low, high = errors / n, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if _p_values(errors, n, middle, True)[1] <= level else (middle, high)
    return high


def labelled_needed(errors: int, n: int, target: float, level: float, *, anytime: bool = False) -> int | None:
    """The number of further items that decide at this error rate; None without items, or if the rate is the target.

    Errors are counted to the unfavourable side of a half item (up for supporting, down for refuting), so the number is
    a good guess, not a promise.
    """
    if n == 0:
        return None
    rate = errors / n
    if rate == target:
        return None

    def decided(size: int) -> bool:
        if rate < target:
            return _p_values(int(np.ceil(rate * size - 1e-9)), size, target, anytime)[1] <= level
        return _p_values(int(np.floor(rate * size + 1e-9)), size, target, anytime)[0] <= level

    size = _first(decided, n)
    return None if size is None else size - n


def prepared(
    file: RecordFile,
    artifact: CalibrationArtifact,
    estimator: str | None = None,
    *,
    labels: bool = True,
) -> tuple[RecordFile, str]:
    """Make fresh records ready for an audit: add missing scores and labels as the artifact says.

    Args:
        file: The fresh records.
        artifact: The artifact.
        estimator: Key of its estimator in the records; default: the one whose specification is the artifact's.
        labels: Whether labels are needed; without, none are made, and those there are need not be by the same rule.

    Returns:
        The records, without questions that the artifact was fitted on, and the key of the estimator in them.

    Raises:
        UsageError: Another model, plan, prompt, estimator or correctness rule than the artifact's (both sides are
            named), no question but those of the fit, or labels that only people can give.
    """
    header, spec = file.header, artifact.estimator
    keys = keys_of_score(header, spec)
    if estimator is None and not keys:
        file, made = _SCORED[artifact.kind](file, spec)
        keys = [made]
    key = estimator or keys[0]
    if header.label_rule(key) is None and labels:
        file = _LABELLED[artifact.kind](file, artifact)
    same = file.header.label_rule(key)
    if not labels or (same is not None and same.name == artifact.correctness.name == GIVEN):
        # Labels of people on other answers have another spec; that people labelled both is all that can be compared.
        same = artifact.correctness
    header = file.header.model_copy(update={"correctness": same, "item_correctness": same})
    require_same(artifact, RecordFile(file.path, header, file.records, file.torn), key)
    refuse_overlap(artifact.estimator, file.records, what="fresh")
    refuse_choice(artifact, file.records, "fresh")
    return _without_fitted(file, artifact), key


def _scored(file: RecordFile, spec: EstimatorSpec) -> tuple[RecordFile, str]:
    estimator = from_spec(spec)
    return score_records(file, [estimator]), estimator_key(estimator)


def _scored_by_item(file: RecordFile, spec: EstimatorSpec) -> tuple[RecordFile, str]:
    return measure_records(file, items_measure(ItemsSpec.of(spec))), ITEMS


_SCORED = {"threshold": _scored, "items": _scored_by_item}


def _without_fitted(file: RecordFile, artifact: CalibrationArtifact) -> RecordFile:
    """The file without the questions that the artifact was fitted on: a threshold chosen on them fits them.

    Raises:
        UsageError: The file has no other questions.
    """
    fitted = among(file.records.asked_hashes(), hashes_of_fit(artifact))
    if fitted.all():
        raise UsageError(
            f"{file.path} holds only questions that the artifact was fitted on ({artifact.data.name}). A threshold "
            "chosen on them fits them: label new questions."
        )
    return RecordFile(file.path, file.header, file.records.take(~fitted), file.torn) if fitted.any() else file


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


def _labelled_by_item(file: RecordFile, artifact: CalibrationArtifact) -> RecordFile:
    return label_items(file)


_LABELLED = {"threshold": _labelled, "items": _labelled_by_item}


def refuse_untestable(records: Sequence[Record], estimator: str) -> None:
    """Refuse records that test nothing.

    Raises:
        UsageError: None of them has a label, or none has a score.
    """
    table, flag = table_of(records), items_flag(estimator)
    if not table.labelled(estimator).any():
        raise UsageError(f"no fresh record has a label. Run: calibrate label RECORDS{flag}")
    if np.isnan(values_of(records, estimator)).all():
        raise UsageError(f"no fresh record has a {estimator!r} score. Run: calibrate score RECORDS{flag}")


def _shift(artifact: CalibrationArtifact, values: Reals, accepted: int) -> Shift:
    before = np.array(artifact.calibration.of_answers)
    within = None
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


def _at_least(errors: int, n: int, rate: float) -> float:
    """P(Bin(n, rate) >= errors) = I_rate(e, n - e + 1), without the rounding of a complement."""
    return float(special.betainc(errors, n - errors + 1.0, rate)) if errors else 1.0


def _first(decided: Callable[[int], bool], after: int) -> int | None:
    """The first size past ``after`` that decides, by doubling and bisection (exact up to the steps of the binomial)."""
    # Doubling first, since the answer may be tens or hundreds of thousands.
    step, low = 1, after
    while not decided(low + step):
        low, step = low + step, 2 * step
        if low > MOST_NEEDED:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


def _rate(artifact: CalibrationArtifact | CascadeArtifact, level: float, target: float | None) -> float:
    """The error rate that is tested, after a check of it and of the level."""
    check_share("level", level)
    if level >= 0.5:
        raise UsageError(f"level must be below 0.5, got {level}. 0.05 is usual.")
    rate = artifact.alpha if target is None else target
    check_share("target", rate)
    return rate


# -- Cascades ----------------------------------------------------------------------------------------------------------


class CascadeAudit(PromiseTest):
    """A cascade's promise against fresh labels: the test is of the answers of the whole system."""

    n_questions: int
    """Fresh questions with scores and labels of every stage that would answer them."""
    stages: tuple[StageShare, ...]
    """What each stage answers of them, and how many of these answers are wrong."""


def audit_cascade(
    artifact: CascadeArtifact,
    files: Sequence[RecordFile],
    *,
    level: float = LEVEL,
    target: float | None = None,
    anytime: bool = False,
) -> CascadeAudit:
    """Test the error rate of a system's answers on labelled questions that it was not fitted on.

    The test is that of `audit`, with the answers that the stages would give together.

    Args:
        artifact: The cascade's artifact.
        files: Fresh records of the same questions, one file a stage in the artifact's order. Scores and labels that
            are missing are made as each stage's artifact says.
        level: False-alarm probability, in (0, .5).
        target: Error rate to test; default: the artifact's alpha.
        anytime: Whether the verdict holds at any time, as the files grow; it needs more labels.

    Raises:
        UsageError: Another number of files than stages, calibration questions, or files that do not fit each other or
            their stage.
    """
    rate = _rate(artifact, level, target)
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
        **_tested(errors, n, rate, level, anytime=anytime),
        artifact=artifact.digest,
        population="accepted",
        n_questions=len(pool.ids),
        stages=stages,
    )
