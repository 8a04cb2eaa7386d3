"""From scored, labelled records to an artifact, and what a fitted gate does on questions it has not seen."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from guardrail.artifact import (
    CalibrationArtifact,
    CalibrationScores,
    DataFingerprint,
    EstimatorChoice,
)
from guardrail.errors import UsageError
from guardrail.gate import accepts
from guardrail.items.spec import ITEMS
from guardrail.outcome import CERTIFIED, Feasible, Infeasible
from guardrail.sampling.follow_ups import SCORE
from guardrail.types import Frozen, SamplingPlan
from guardrail.uncertainty import EstimatorSpec, Needs, list_estimators, make_estimator
from guardrail.uncertainty.combine import COMBINATIONS, Parts, union_of_needs

from .data.collect import package_versions
from .data.columns import open_records
from .data.labels import refuse_contradictions
from .data.questions import fingerprint
from .data.records import Record, RecordFile, RecordHeader
from .data.split import Groups, Repeats, all_grouped, one_per_cluster, one_per_question, split
from .data.table import CUT, ENDED, RecordTable, among, table_of
from .fitting import fit, rule_named
from .rules import Rule
from .rules.certificate import interval
from .scope import check_labelled_part, draw_digest
from .scoring.apart import refuse_overlap, without_ranked
from .scoring.scores import Scored, arrays, refuse_failed, units_of, unmeasured_among
from .spec_syntax import estimator_flags

__all__ = [
    "FitSettings",
    "GateCounts",
    "Groups",
    "accepted_of",
    "asked_with",
    "at_calibration",
    "calibration_part",
    "fit_artifact",
    "hashes_of_fit",
    "held_out",
    "narrowed_plan",
    "now",
    "part_header",
    "refuse_choice",
    "refuse_fitted",
    "require_same",
    "split",
    "turns_of_records",
    "without",
    "without_choice",
]


class GateCounts(Frozen):
    """Counts of a gate on labelled questions that it was not fitted on. Intervals are 95 % Clopper-Pearson."""

    n: int
    """Labelled questions."""
    n_asked: int
    """Questions asked: those labelled, and those that could not be measured and so have no label."""
    n_accepted: int
    """Answers accepted."""
    n_errors: int
    """Wrong answers among the accepted."""
    n_correct: int
    """Right answers among all."""
    error_rate: tuple[float, float, float] | None
    """Errors among accepted answers (SCER) with its interval; None when nothing was accepted."""
    acceptance: tuple[float, float, float]
    """Share of the questions asked that are answered, with its interval."""
    power: tuple[float, float, float] | None
    """Share of the right answers that were accepted, with its interval; None when no answer was right."""

    @classmethod
    def count(cls, *, n: int, n_accepted: int, n_errors: int, n_correct: int, n_asked: int | None = None) -> GateCounts:
        """From counts; n is at least 1, and all were measured unless ``n_asked`` says otherwise."""
        n_asked = n if n_asked is None else max(n, n_asked)
        return cls(
            n=n,
            n_asked=n_asked,
            n_accepted=n_accepted,
            n_errors=n_errors,
            n_correct=n_correct,
            error_rate=_proportion(n_errors, n_accepted),
            # n is at least 1, so the second half only satisfies the type.
            acceptance=_proportion(n_accepted, n_asked) or (0.0, 0.0, 0.0),
            power=_proportion(n_accepted - n_errors, n_correct),
        )


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Rare settings of a fit.

    Attributes:
        options: Settings of the rule other than ``share``, e.g. ``{"most": 20}`` of certified_groups.
        repeats: Equal questions (same text, options and tools) are no independent draws: of each one record is used,
            the one whose id has the smallest hash. "all" uses every record.
        without_failed: Fit without the questions that have no score because a server, a rate limit or a time-out
            failed, however many there are. The promise then states their share.
        choice: How the score was chosen (`calibrate.evaluation.choice.choose_score`); None: it was named.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    repeats: Repeats = "once"
    without_failed: bool = False
    choice: EstimatorChoice | None = None


def fit_artifact(
    records: RecordFile | str | Path,
    *,
    score: str,
    alpha: float | Literal["smallest"],
    rule: str | Rule = CERTIFIED,
    delta: float | None = None,
    share: float | None = None,
    groups: Groups = "category",
    part: Sequence[Record] | None = None,
    settings: FitSettings = FitSettings(),
) -> CalibrationArtifact:
    """Fit a threshold on records and bind it to everything it is valid for.

    Questions without a score count among all, and no threshold accepts them. This function remembers nothing: of
    several fits on the same labels each one states its delta. `calibrate.ledger` counts them.

    Args:
        records: A record file, scored and labelled.
        score: Key of the score in the file, e.g. "semantic_entropy".
        alpha: Target error rate among accepted answers, in (0, 1); "smallest" as in `calibrate.fit`.
        rule: Threshold rule: a name of `calibrate.rules.RULES`, or one of your own.
        delta: Failure probability, for rules that have one (default 0.1 for "certified").
        share: Share of the questions from which rule certified tests thresholds; default .25. Declare it before labels
            are seen: about half of what you expect to be answered.
        groups: Whether the records' groups are categories, or clusters of dependent items. Of clusters one item each is
            used, or, by rule "certified_groups", all of them.
        part: Fit on these records only (a calibration part); default: all of the file.
        settings: Rare settings.

    Returns:
        The artifact. An infeasible outcome is a result: it loads as a gate that abstains on everything.

    Raises:
        UsageError: More than 1 % of the questions failed, records without scores or labels, a question that is labelled
            both ways, labels on a selected part of the questions, a cluster rule without groups, or a rule that cannot
            be used.
    """
    file = records if isinstance(records, RecordFile) else open_records(records)
    used = file.records if part is None else table_of(part)
    if (named := file.header.estimators.get(score)) is not None:
        used = without_ranked(named, used, groups=groups)
    if groups == "cluster":
        # A rule that reads dependent items takes them all; the others get one of each cluster.
        used = all_grouped(used) if rule_named(rule).reads_groups else one_per_cluster(used)
    if settings.repeats == "once":
        used = one_per_question(used)
    header = file.header
    if header.correctness is None:
        raise UsageError(f"{file.path} has no labels. Run: calibrate label {file.typed}")
    # Over the whole file and not the part: a question labelled both ways spoils the fit wherever its twin lies.
    refuse_contradictions(file.records)
    n_failed = refuse_failed(used, score, allowed=settings.without_failed)
    scored = arrays(used, score)
    usable = used.take(used.usable(score))
    spec = header.estimators.get(score)
    if spec is None:
        raise UsageError(
            f"the header of {file.path} does not describe the score {score!r} (it has "
            f"{', '.join(sorted(header.estimators)) or 'none'}). Run: calibrate score {file.typed} "
            f"{estimator_flags(score)}"
        )
    if spec.name == ITEMS:
        raise UsageError(
            f"{score} measures the items of answers, which have a gate of their own: calibrate fit {file.typed} "
            f"--items --alpha {alpha}."
        )
    refuse_overlap(spec, used, groups=groups)
    scope = check_labelled_part(file, used, score)
    calibration = CalibrationScores(
        uncertainty=array("d", scored.uncertainty.tobytes()),
        error=array("b", scored.error.tobytes()),
        group=tuple(scored.group) if groups == "cluster" and scored.group is not None else None,
    )
    units = units_of(used, score, groups=calibration.group is not None)
    options = {**settings.options, **({} if share is None else {"share": share})}
    outcome = fit(units.u, units.wrong, alpha=alpha, rule=rule, delta=delta, groups=units.group, **options)
    return CalibrationArtifact(
        created=now(),
        model=header.model,
        plan=narrowed_plan(header.plan, spec),
        prompt=header.prompt,
        estimator=spec,
        correctness=header.correctness,
        data=_fingerprint(file, used, usable, scored, n_failed, settings.choice),
        outcome=outcome.model_copy(update={"scope": scope}),
        calibration=calibration,
        packages=package_versions(),
        fingerprint=header.probe.greedy if header.probe is not None else None,
    )


def require_same(artifact: CalibrationArtifact, file: RecordFile, estimator: str) -> None:
    """Refuse records that were not made as the artifact says.

    Raises:
        UsageError: Another model, prompt, plan, estimator or correctness rule; both sides are named.
    """
    header = file.header
    differences = artifact.model.differences(header.model)
    spec = header.estimators.get(estimator)
    sides: list[tuple[str, object, object]] = [
        ("prompt", artifact.prompt, header.prompt),
        ("score", artifact.estimator, spec),
        ("plan", artifact.plan, narrowed_plan(header.plan, artifact.estimator)),
        ("correctness rule", artifact.correctness, header.correctness),
    ]
    differences += unlike(sides)
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(
            f"{file.path} does not fit the artifact:\n  {listed}\nCollect, score and label both alike, or name the "
            "right scores with --score."
        )


def unlike(sides: Iterable[tuple[str, object, object]]) -> list[str]:
    """The differences of an artifact from records: (name, the artifact's, the records'), models field by field."""
    lines = []
    for name, ours, theirs in sides:
        if isinstance(ours, BaseModel) and type(ours) is type(theirs):
            fields = (
                (f"{name}.{field}", getattr(ours, field), getattr(theirs, field)) for field in type(ours).model_fields
            )
            lines += unlike(fields)
        elif ours != theirs:
            lines.append(f"{name}: artifact {ours!r}, records {theirs!r}")
    return lines


def part_header(header: RecordHeader, part: Sequence[Record]) -> RecordHeader:
    """The header of a file that holds only a part of the records."""
    questions = [record.to_question() for record in part]
    scope = header.scope
    if scope.is_drawn:
        scope = scope.model_copy(update={"n": len(part), "drawn_sha256": draw_digest(part, scope.score)})
    return header.model_copy(
        update={"questions_sha256": fingerprint(questions), "n_questions": len(questions), "scope": scope}
    )


def held_out(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> GateCounts:
    """Counts of the artifact's gate on labelled records; undecided answers are wrong, others without a label left out.

    Raises:
        UsageError: No record has a label, or the estimator was chosen on some of them.
    """
    table = table_of(records)
    labelled = table.take(table.counted_labels() >= 0)
    if not labelled:
        raise UsageError("no test record has a label. Run: calibrate label RECORDS")
    refuse_overlap(artifact.estimator, labelled, what="test")
    refuse_choice(artifact, labelled, "test")
    refuse_fitted(artifact, labelled, "test")
    right, accepted = labelled.labels() == 1, accepted_of(artifact, labelled, estimator)
    return GateCounts.count(
        n=len(labelled),
        n_accepted=int(np.count_nonzero(accepted)),
        n_errors=int(np.count_nonzero(accepted & ~right)),
        n_correct=int(np.count_nonzero(right)),
        n_asked=asked_with(table, estimator),
    )


def asked_with(records: Sequence[Record], estimator: str) -> int:
    """The questions asked that the labelled and measured ones stand for: they, and their part of the unmeasured."""
    table = table_of(records)
    measured = ~np.isnan(table.scores(estimator))
    n_measured, n_labelled = (int(np.count_nonzero(mask)) for mask in (measured, table.usable(estimator)))
    if not n_measured:
        return len(table)
    return n_labelled + unmeasured_among(n_labelled, n_measured - n_labelled, len(table) - n_measured)


def at_calibration(artifact: CalibrationArtifact) -> GateCounts:
    """The same counts on the items it was fitted on. Its threshold was chosen on them, so they flatter it."""
    outcome, error = artifact.outcome, artifact.calibration.error
    return GateCounts.count(
        n=len(error),
        n_accepted=outcome.n_accepted,
        n_errors=outcome.n_errors,
        n_correct=len(error) - sum(error),
        n_asked=round(outcome.n / outcome.scope.measured),
    )


def without_choice(artifact: CalibrationArtifact, records: Sequence[Record]) -> RecordTable:
    """The records without those that the artifact's estimator was chosen on, or takes its ranks from."""
    table = without_ranked(artifact.estimator, records)
    if artifact.data.choice is None:
        return table
    hashes = np.array([int(digits, 16) for digits in artifact.data.choice.questions], dtype=np.uint64)
    return table.take(~among(table.id_hashes(), np.sort(hashes)))


def without(records: Sequence[Record], others: Sequence[Record]) -> RecordTable:
    """The records whose ids are not among the others'."""
    table = table_of(records)
    if not others:
        return table
    return table.take(~among(table.id_hashes(), np.sort(table_of(others).id_hashes())))


def calibration_part(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str
) -> tuple[RecordTable, RecordTable]:
    """The records of the calibration part, and the others but those that the estimator was chosen on.

    Clusters belong to the part as a whole, although most rules use one question of each.
    """
    table = without_choice(artifact, records)
    clusters = artifact.calibration.group
    if clusters is not None:
        groups = set(clusters)
        codes, names = table.coded("group")
        ours = np.array([name in groups for name in names], dtype=np.bool_)[codes]
    else:
        ours = among(table.asked_hashes(), hashes_of_fit(artifact))
    return table.take(ours), table.take(~ours)


def hashes_of_fit(artifact: CalibrationArtifact) -> NDArray[np.uint64]:
    """Hashes of the questions of the calibration part (`RecordTable.asked_hashes`), sorted."""
    return np.sort(np.array(artifact.data.hashes, dtype=np.uint64))


def refuse_fitted(artifact: CalibrationArtifact, records: Sequence[Record], what: str) -> None:
    """Refuse to test on questions that the threshold was chosen on: it fits them.

    Questions are compared by what was asked, under any id.

    Raises:
        UsageError: Naming how many there are.
    """
    table = table_of(records)
    shared = table.take(among(table.asked_hashes(), hashes_of_fit(artifact)))
    if shared:
        raise UsageError(
            f"{len(shared)} of {len(records)} {what} records are questions that the artifact was fitted on, e.g. "
            f"{shared[0].id!r}. A threshold chosen on them fits them: leave them out, or test on other questions."
        )


def refuse_choice(artifact: CalibrationArtifact, records: Sequence[Record], what: str) -> None:
    """Refuse to test on questions that the artifact's estimator was chosen on: it looks better there than it is.

    Raises:
        UsageError: Naming how many there are.
    """
    shared = len(records) - len(without_choice(artifact, records))
    if shared:
        raise UsageError(
            f"{shared} of {len(records)} {what} records are among those that the score was chosen on, or takes its "
            "ranks from, where it looks better than on new questions. Leave them out, or test on other questions."
        )


def accepted_of(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> NDArray[np.bool_]:
    """Which records the artifact's gate accepts. A record without a score is not accepted."""
    table = table_of(records)
    # A record that was not measured has the score NaN, which is not below any threshold.
    scores = table.scores(estimator)
    return accepts(scores, _cut(artifact.outcome))


def _cut(outcome: Feasible | Infeasible) -> float:
    # No score is at or below -inf, so an infeasible gate accepts nothing.
    return outcome.threshold if isinstance(outcome, Feasible) else -np.inf


def narrowed_plan(plan: SamplingPlan, spec: EstimatorSpec) -> SamplingPlan:
    """The plan that run time needs for this one estimator: a collection may have drawn more, for others.

    Nothing that moves the score or the primary answer is dropped: samples, log-probabilities and follow-ups that the
    estimator does not read. With options n and log-probabilities stay, because n decides there what the primary answer
    is. Imported scores keep all: what they were computed from is unknown.
    """
    read = _read_by(spec)
    if read is None:  # imported scores: what they need is unknown, so nothing may be left out
        return plan
    needs, asked = read
    plan = plan.model_copy(update={"follow_ups": tuple(name for name in plan.follow_ups if name in asked)})
    if plan.options is not None:
        return plan
    reads_samples = needs.samples or plan.primary == "majority"
    n = spec.samples or plan.n  # `then` reads the first m samples, whatever else was drawn
    return plan.model_copy(update={"n": n if reads_samples else 0, "logprobs": plan.logprobs and needs.logprobs})


def _read_by(spec: EstimatorSpec) -> tuple[Needs, set[str]] | None:
    """The needs of an estimator and its follow-ups by name; None where they are unknown."""
    if spec.name in COMBINATIONS:
        read = [_read_by(part) for part in Parts.from_stored(spec.params).parts]
        known = [each for each in read if each is not None]
        if len(known) < len(read):
            return None
        return union_of_needs([needs for needs, _ in known]), set[str]().union(*(asked for _, asked in known))
    if spec.name.startswith(SCORE):
        reads = spec.params["reads"]
        return Needs(samples="samples" in reads, logprobs="logprobs" in reads), {spec.name}
    if spec.name == ITEMS:
        return Needs(samples=True), set()
    if spec.name in list_estimators():
        needs = make_estimator(spec.name).needs
        return needs, set() if needs.follow_up is None else {needs.follow_up.name}
    return None


def _fingerprint(
    file: RecordFile,
    used: RecordTable,
    usable: RecordTable,
    scored: Scored,
    n_failed: int,
    choice: EstimatorChoice | None,
) -> DataFingerprint:
    return DataFingerprint(
        name=file.header.questions_name,
        sha256=usable.fingerprint(),
        n_questions=len(used),
        n_used=len(scored.ids),
        n_unmeasured=scored.n_unmeasured,
        n_failed=n_failed,
        n_unlabelled=scored.n_unlabelled,
        n_undecided=scored.n_undecided,
        n_cut_off=_cut_off(used),
        questions=DataFingerprint.stored(array("Q", np.sort(used.asked_hashes()).tobytes())),
        turns=turns_of_records(usable),
        choice=choice,
    )


def _cut_off(used: RecordTable) -> int | None:
    """Answers that were cut off; None where nothing says how answers ended."""
    flags = used.flags()
    return int(np.count_nonzero(flags & CUT)) if (flags & ENDED).any() else None


def turns_of_records(usable: RecordTable) -> tuple[str, ...] | None:
    """Turns of the prompts that the threshold was fitted on; None if those of some prompt are unknown."""
    names = usable.coded("turns")[1]
    distinct = sorted(turns for turns in names if turns is not None)
    return tuple(distinct) if distinct and len(distinct) == len(names) else None


def _proportion(k: int, n: int) -> tuple[float, float, float] | None:
    if n == 0:
        return None
    low, high = interval(k, n)
    return (k / n, low, high)


def now() -> str:
    """The time for ``created``, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
