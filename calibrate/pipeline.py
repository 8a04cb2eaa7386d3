"""From scored, labelled records to an artifact, and what a fitted gate does on questions it has not seen."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact, DataFingerprint, EstimatorChoice
from guardrail.errors import UsageError
from guardrail.items.spec import ItemFigures, ItemsSpec
from guardrail.outcome import accepts
from guardrail.specs import EstimatorSpec
from guardrail.types import Frozen

from .binding import hashes_of_fit, made, narrowed_plan, refuse_fitted, turns_of_records, unlike
from .data.columns import open_records
from .data.labels import refuse_contradictions
from .data.questions import fingerprint
from .data.records import Record, RecordFile, RecordHeader
from .data.split import Groups, Repeats, all_grouped, one_per_cluster, one_per_question, split
from .data.table import CUT, ENDED, RecordTable, among, table_of
from .fitting import fit, rule_for, rule_named
from .items.figures import item_figures
from .rules import Rule
from .rules.certificate import interval
from .scope import check_labelled_part, draw_digest
from .scoring.apart import refuse_overlap, without_ranked
from .scoring.items import ScoredItems, with_cap
from .scoring.scores import Scored, refuse_failed, scored_by, units_of, unmeasured_among
from .spec_syntax import estimator_flags, items_flag, parse_rule

__all__ = [
    "FEWEST_LABELS",
    "FitSettings",
    "GateCounts",
    "Groups",
    "accepted_of",
    "asked_with",
    "at_calibration",
    "calibration_part",
    "fit_artifact",
    "held_out",
    "judged_by",
    "keys_of_score",
    "part_header",
    "refuse_choice",
    "refuse_few",
    "require_same",
    "split",
    "without",
    "without_choice",
]


class GateCounts(Frozen):
    """Counts of a gate on labelled questions that it was not fitted on. Intervals are 95 % Clopper-Pearson.

    Of a gate of items: an answer is accepted iff some item of it is kept, and wrong iff it then keeps a wrong item.
    """

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
    """Share of the right answers that were accepted, with its interval; None when no answer was right, and for a gate
    of items."""
    items: ItemFigures | None = None
    """Counts of the items; None for a gate of whole answers."""

    @classmethod
    def count(
        cls,
        *,
        n: int,
        n_accepted: int,
        n_errors: int,
        n_correct: int,
        n_asked: int | None = None,
    ) -> GateCounts:
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


FEWEST_LABELS = 50
"""Labels below which a fit is refused unless it is asked for."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Rare settings of a fit.

    Attributes:
        options: Settings of the rule other than ``share``, e.g. ``{"most": 20}`` of certified_groups, ``{"cap": 8}`` of
            rules for items.
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
    rule: str | Rule | None = None,
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
        score: Key of the score in the file, e.g. "semantic_entropy"; "items" for a gate that keeps or holds back each
            field of the answers.
        alpha: Target error rate among accepted answers, in (0, 1); "smallest" as in `calibrate.fit`.
        rule: Threshold rule: a name of `calibrate.rules.RULES`, with settings or without ("certified:share=0.4"), or
            one of your own; default: "certified", and "wrong_share" for items.
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
    spec, correctness, header = described(file, score), file.header.label_rule(score), file.header
    if correctness is None:
        raise UsageError(f"{file.path} has no labels. Run: calibrate label {file.typed}{items_flag(score)}")
    name, own = parse_rule(rule) if isinstance(rule, str) else (rule, {})
    if "delta" in own:
        if delta is not None:
            raise UsageError(
                f"rule {rule!r} names delta, which is given already. Write it once: --delta {own['delta']}."
            )
        delta = own.pop("delta")
    options = {**own, **settings.options, **({} if share is None else {"share": share})}
    spec = with_cap(spec, options.get("cap"))
    # Over the whole file and not the part: a question labelled both ways spoils the fit wherever its twin lies.
    refuse_contradictions(file.records)
    used = _used(file.records if part is None else table_of(part), spec, name, groups, settings.repeats)
    n_failed = refuse_failed(used, score, allowed=settings.without_failed)
    refuse_overlap(spec, used, groups=groups)
    scope = check_labelled_part(file, used, score)
    scored = scored_by(used, score, spec)
    calibration = scored.stored(clusters=groups == "cluster")
    units = units_of(used, score, groups=calibration.group is not None, spec=spec)
    options |= {} if units.cap is None else {"cap": units.cap}
    chosen = rule_for(units.unit, name)
    outcome = fit(units.u, units.wrong, alpha=alpha, rule=chosen, delta=delta, groups=units.group, **options)
    return CalibrationArtifact(
        kind=calibration.kind,
        made=made(),
        model=header.model,
        plan=narrowed_plan(header.plan, spec),
        prompt=header.prompt,
        estimator=spec,
        correctness=correctness,
        data=_fingerprint(file, used, scored, n_failed, settings.choice),
        outcome=outcome.model_copy(update={"scope": scope}),
        calibration=calibration,
        fingerprint=header.probe.greedy if header.probe is not None else None,
        items=figures_of(scored, outcome.threshold),
    )


def _used(
    records: RecordTable, spec: EstimatorSpec, rule: str | Rule | None, groups: Groups, repeats: Repeats
) -> RecordTable:
    """The records that a fit reads: without those that the score ranks by, one of each cluster and of each question."""
    used = without_ranked(spec, records, groups=groups)
    if groups == "cluster":
        # A rule that reads dependent questions takes them all; the others get one of each cluster.
        chosen = None if rule is None else rule_named(rule)
        reads = chosen is not None and chosen.reads_groups and chosen.unit == "answer"
        used = all_grouped(used) if reads else one_per_cluster(used)
    return one_per_question(used) if repeats == "once" else used


def described(file: RecordFile, score: str) -> EstimatorSpec:
    """The score of a file under a key.

    Raises:
        UsageError: The header does not describe it.
    """
    spec = file.header.estimators.get(score)
    if spec is None:
        raise UsageError(
            f"the header of {file.path} does not describe the score {score!r} (it has "
            f"{', '.join(sorted(file.header.estimators)) or 'none'}). Run: calibrate score {file.typed} "
            f"{estimator_flags(score)}"
        )
    return spec


def figures_of(scored: Scored | ScoredItems, threshold: float | None) -> ItemFigures | None:
    """The counts of items that a threshold keeps; None for whole answers."""
    return None if isinstance(scored, Scored) else item_figures(scored.items, threshold, scored.columns)


def refuse_few(file: RecordFile, score: str | None = None, *, allowed: bool) -> None:
    """Refuse to fit on so few labels that nobody should rely on the result.

    Args:
        file: The records.
        score: Key of a score; only the labels of answers that have it count.
        allowed: Whether few labels will do.

    Raises:
        UsageError: Fewer than `FEWEST_LABELS` labels, and they are not allowed.
    """
    labelled = file.records.counted_labels() >= 0 if score is None else file.records.usable(score)
    n, measured = int(np.count_nonzero(labelled)), "" if score is None else " of answers with a score"
    if 0 < n < FEWEST_LABELS and not allowed:
        raise UsageError(
            f"{file.path} has {n} labels{measured}, and a promise needs at least {FEWEST_LABELS} (from 200 on it is "
            "no longer provisional). Label more answers, or add --few."
        )


def keys_of_score(header: RecordHeader, spec: EstimatorSpec) -> list[str]:
    """Keys of the scores that are those of an artifact. The cap of items is the artifact's own, whatever was scored."""
    return [key for key, own in header.estimators.items() if with_cap(own, 1) == with_cap(spec, 1)]


def require_same(artifact: CalibrationArtifact, file: RecordFile, estimator: str) -> None:
    """Refuse records that were not made as the artifact says.

    Raises:
        UsageError: Another model, prompt, plan, estimator or correctness rule; both sides are named.
    """
    header, scored = file.header, file.header.estimators.get(estimator)
    differences = artifact.model.differences(header.model)
    sides: list[tuple[str, object, object]] = [
        ("prompt", artifact.prompt, header.prompt),
        ("score", with_cap(artifact.estimator, 1), None if scored is None else with_cap(scored, 1)),
        ("plan", artifact.plan, narrowed_plan(header.plan, artifact.estimator)),
        ("correctness rule", artifact.correctness, header.label_rule(estimator)),
    ]
    differences += unlike(sides)
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(
            f"{file.path} does not fit the artifact:\n  {listed}\nCollect, score and label both alike, or name the "
            "right scores with --score."
        )


def part_header(header: RecordHeader, part: Sequence[Record]) -> RecordHeader:
    """The header of a file that holds only a part of the records."""
    questions = [record.to_question() for record in part]
    scope = header.scope
    if scope.is_drawn:
        scope = scope.model_copy(update={"n": len(part), "drawn_sha256": draw_digest(part, scope.score)})
    return header.model_copy(
        update={"questions_sha256": fingerprint(questions), "n_questions": len(questions), "scope": scope}
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The labelled records as a gate judges them; with items an answer is accepted iff some item of it is kept.

    Attributes:
        accepted: Accepted items of each answer, shape (n,); of a whole answer 1 or 0.
        errors: Wrong ones among them.
        right: Whether the answer is right, or has no wrong item; shape (n,).
        records: Their records.
        n_asked: Questions asked that they stand for, those that could not be measured included.
        figures: Counts of items; None for whole answers.
    """

    accepted: NDArray[np.int64]
    errors: NDArray[np.int64]
    right: NDArray[np.bool_]
    records: RecordTable
    n_asked: int
    figures: ItemFigures | None

    @property
    def counts(self) -> GateCounts:
        """The counts with their intervals."""
        found = GateCounts.count(
            n=len(self.records),
            n_accepted=int(np.count_nonzero(self.accepted)),
            n_errors=int(np.count_nonzero(self.errors)),
            n_correct=int(np.count_nonzero(self.right)),
            n_asked=self.n_asked,
        )
        return found if self.figures is None else found.model_copy(update={"power": None, "items": self.figures})


def judged_by(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> Judged:
    """The labelled records as an artifact's gate judges them; undecided answers are wrong.

    Raises:
        UsageError: No record has a label.
    """
    table = table_of(records)
    if artifact.kind == "items":
        scored = ScoredItems.of(table, ItemsSpec.of(artifact.estimator))
        right, figures = scored.items.is_wrong == 0, figures_of(scored, artifact.threshold)
        accepted, errors = scored.items.counts(artifact.threshold)
        return Judged(accepted, errors, right, scored.records, asked_with(table, estimator), figures)
    labelled = table.take(table.counted_labels() >= 0)
    if not labelled:
        raise UsageError("no test record has a label. Run: calibrate label RECORDS")
    right = labelled.counted_labels() == 1
    accepted = accepted_of(artifact, labelled, estimator).astype(np.int64)
    return Judged(accepted, accepted * ~right, right, labelled, asked_with(table, estimator), None)


def held_out(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> GateCounts:
    """Counts of the artifact's gate on labelled records; undecided answers are wrong, others without a label left out.

    Raises:
        UsageError: No record has a label, or the score was chosen, or the threshold fitted, on some of them.
    """
    judged = judged_by(artifact, records, estimator)
    refuse_overlap(artifact.estimator, judged.records, what="test")
    refuse_choice(artifact, judged.records, "test")
    refuse_fitted(artifact, judged.records, "test")
    return judged.counts


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
    outcome, scores = artifact.outcome, artifact.calibration
    return GateCounts.count(
        n=scores.n,
        n_accepted=outcome.n_accepted,
        n_errors=outcome.n_errors,
        n_correct=scores.n - scores.n_wrong,
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
    # No score is at or below -inf, so a gate without a threshold accepts nothing.
    return accepts(scores, -np.inf if artifact.threshold is None else artifact.threshold)


def _fingerprint(
    file: RecordFile, used: RecordTable, scored: Scored | ScoredItems, n_failed: int, choice: EstimatorChoice | None
) -> DataFingerprint:
    return DataFingerprint(
        name=file.header.questions_name,
        sha256=scored.records.fingerprint(),
        n_questions=len(used),
        n_used=len(scored.records),
        n_unmeasured=scored.n_unmeasured,
        n_failed=n_failed,
        n_unlabelled=scored.n_unlabelled,
        n_undecided=scored.n_undecided,
        n_cut_off=_cut_off(used),
        questions=DataFingerprint.stored(array("Q", np.sort(used.asked_hashes()).tobytes())),
        turns=turns_of_records(scored.records),
        choice=choice,
    )


def _cut_off(used: RecordTable) -> int | None:
    """Answers that were cut off; None where nothing says how answers ended."""
    flags = used.flags()
    return int(np.count_nonzero(flags & CUT)) if (flags & ENDED).any() else None


def _proportion(k: int, n: int) -> tuple[float, float, float] | None:
    if n == 0:
        return None
    low, high = interval(k, n)
    return (k / n, low, high)
