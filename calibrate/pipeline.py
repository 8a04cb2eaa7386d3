"""From scored, labelled records to an artifact."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact, DataFingerprint, EstimatorChoice, Made
from guardrail.errors import UsageError
from guardrail.items.spec import ItemFigures
from guardrail.specs import EstimatorSpec

from .data.columns import open_records
from .data.labels import refuse_contradictions
from .data.questions import fingerprint
from .data.record import package_versions
from .data.records import Record, RecordFile, RecordHeader
from .data.split import Groups, Repeats, all_grouped, one_per_cluster, one_per_question
from .data.table import CUT, ENDED, RecordTable, table_of
from .fitting import fit, rule_for, rule_named
from .items.figures import item_figures
from .narrowing import narrowed_plan
from .rules import Rule
from .scope import check_labelled_part, draw_digest
from .scoring.apart import refuse_overlap, without_ranked
from .scoring.items import ScoredItems, with_cap
from .scoring.scores import Scored, refuse_failed, scored_by, units_of
from .spec_syntax import estimator_flags, items_flag, parse_rule

FEWEST_LABELS = 50
"""Labels below which a fit is refused unless it is asked for."""


def fit_artifact(
    records: RecordFile | str | Path,
    *,
    score: str,
    alpha: float | Literal["smallest"],
    rule: str | Rule | None = None,
    delta: float | None = None,
    groups: Groups = "category",
    part: Sequence[Record] | None = None,
    repeats: Repeats = "once",
    without_failed: bool = False,
    choice: EstimatorChoice | None = None,
) -> CalibrationArtifact:
    """Fit a threshold on records and bind it to everything it is valid for.

    Questions without a score count among all, and no threshold accepts them. This function remembers nothing: of
    several fits on the same labels each one states its delta. `calibrate.ledger` counts them.

    Args:
        records: A record file, scored and labelled.
        score: Key of the score in the file, e.g. "semantic_entropy"; "items" for a gate that keeps or holds back each
            field of the answers.
        alpha: Target error rate among accepted answers, in (0, 1); "smallest" as in `calibrate.fit`.
        rule: Threshold rule: a name of `calibrate.rules.RULES`, with settings or without, or one of your own; default:
            "certified", and "wrong_share" for items. "certified:share=0.4" tests thresholds from that share of the
            questions on (default .25): declare it before labels are seen, about half of what you expect to be
            answered. "wrong_share:cap=8" keeps at most that many items of an answer.
        delta: Failure probability, for rules that have one, where the text of the rule names none (default 0.1).
        groups: Whether the records' groups are categories, or clusters of dependent items. Of clusters one item each is
            used, or, by rule "certified_groups", all of them.
        part: Fit on these records only (a calibration part); default: all of the file.
        repeats: Equal questions (same text, options and tools) are no independent draws: of each one record is used,
            the one whose id has the smallest hash. "all" uses every record.
        without_failed: Fit without the questions that have no score because a server, a rate limit or a time-out
            failed, however many there are. The promise then states their share.
        choice: How the score was chosen (`calibrate.evaluation.choice.choose_score`); None: it was named.

    Returns:
        The artifact. An infeasible outcome is a result: it loads as a gate that abstains on everything.

    Raises:
        UsageError: More than 1 % of the questions failed, records without scores or labels, a question that is labelled
            both ways, labels on a selected part of the questions, a cluster rule without groups, or a rule that cannot
            be used.
    """
    file = records if isinstance(records, RecordFile) else open_records(records)
    spec = described(file, score)
    correctness = file.header.label_rule(score)
    header = file.header
    if correctness is None:
        raise UsageError(f"{file.path} has no labels. Run: calibrate label {file.typed}{items_flag(score)}")
    name, options = parse_rule(rule) if isinstance(rule, str) else (rule, {})
    options = {"delta": delta, **options}
    spec = with_cap(spec, options.get("cap"))
    # Over the whole file and not the part: a question labelled both ways spoils the fit wherever its twin lies.
    refuse_contradictions(file.records)
    used = _used(file.records if part is None else table_of(part), spec, name, groups, repeats)
    n_failed = refuse_failed(used, score, allowed=without_failed)
    refuse_overlap(spec, used, groups=groups)
    scope = check_labelled_part(file, used, score)
    scored = scored_by(used, score, spec)
    calibration = scored.stored(clusters=groups == "cluster")
    units = units_of(used, score, groups=calibration.group is not None, spec=spec)
    options |= {} if units.cap is None else {"cap": units.cap}
    chosen = rule_for(units.unit, name)
    outcome = fit(units.u, units.wrong, alpha=alpha, rule=chosen, groups=units.group, **options)
    return CalibrationArtifact(
        kind=calibration.kind,
        made=Made(at=datetime.now(UTC).isoformat(timespec="seconds"), packages=package_versions()),
        model=header.model,
        plan=narrowed_plan(header.plan, spec),
        prompt=header.prompt,
        estimator=spec,
        correctness=correctness,
        data=_fingerprint(file, used, scored, n_failed, choice),
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


def part_header(header: RecordHeader, part: Sequence[Record]) -> RecordHeader:
    """The header of a file that holds only a part of the records."""
    questions = [record.to_question() for record in part]
    scope = header.scope
    if scope.is_drawn:
        scope = scope.model_copy(update={"n": len(part), "drawn_sha256": draw_digest(part, scope.score)})
    return header.model_copy(
        update={"questions_sha256": fingerprint(questions), "n_questions": len(questions), "scope": scope}
    )


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
        turns=_turns(scored.records),
        choice=choice,
    )


def _turns(usable: RecordTable) -> tuple[str, ...] | None:
    """Turns of the prompts that the threshold was fitted on; None if those of some prompt are unknown."""
    names = usable.coded("turns")[1]
    distinct = sorted(turns for turns in names if turns is not None)
    return tuple(distinct) if distinct and len(distinct) == len(names) else None


def _cut_off(used: RecordTable) -> int | None:
    """Answers that were cut off; None where nothing says how answers ended."""
    flags = used.flags()
    return int(np.count_nonzero(flags & CUT)) if (flags & ENDED).any() else None
