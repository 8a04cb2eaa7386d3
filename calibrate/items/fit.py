"""From records with labelled items to an artifact, and what its gate does on answers it has not seen."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guardrail.artifact import CalibrationArtifact, DataFingerprint
from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS, ItemFigures, ItemRule, ItemScores, ItemsSpec
from guardrail.outcome import Diagnostics, Feasible, Infeasible, InfeasibleReason

from .. import rules
from ..binding import made, narrowed_plan, refuse_fitted, turns_of_records, unlike
from ..data.columns import open_records
from ..data.records import Record, RecordFile
from ..data.split import Groups, Repeats, one_per_cluster, one_per_question
from ..data.table import RecordTable, table_of
from ..fitting import DEFAULT_DELTA
from ..rules.certificate import interval
from ..scoring.scores import refuse_failed, unmeasured_among
from .answers import LabelledItems, labelled_items, stored_spec
from .figures import item_figures
from .rules import fit_items, rule_named

__all__ = ["answers_needed", "fit_items_artifact", "held_out_items", "require_same_items"]


def fit_items_artifact(
    records: RecordFile | str | Path,
    *,
    alpha: float,
    rule: str | None = None,
    delta: float = DEFAULT_DELTA,
    part: Sequence[Record] | None = None,
    groups: Groups = "category",
    cap: int | None = None,
    repeats: Repeats = "once",
    without_failed: bool = False,
) -> CalibrationArtifact:
    """Fit a threshold for the items of answers and bind it to everything it is valid for.

    Args:
        records: Records with items and their labels (``score --items``, ``label --items``).
        alpha: Target: the share of wrong items, or of answers with one, as the rule says.
        rule: Name of a rule of `calibrate.items.rules`; default: `wrong_share`.
        delta: Failure probability.
        part: Fit on these records only.
        groups: Whether the records' groups are clusters of dependent answers, of which one each is used.
        cap: Most items of an answer that are kept; default: that of the items in the file. Fix it without labels.
        repeats: As in `calibrate.pipeline.FitSettings`.
        without_failed: As in `calibrate.pipeline.FitSettings`.

    Returns:
        The artifact. An infeasible outcome is a result: it loads as a gate that holds every item back.

    Raises:
        UsageError: More than 1 % of the questions failed, records without items or labels, an unknown rule, or alpha or
            delta outside (0, 1).
    """
    file = records if isinstance(records, RecordFile) else open_records(records)
    chosen = rule_named(rule)
    used = table_of(file.records if part is None else part)
    used = one_per_cluster(used) if groups == "cluster" else used
    used = used if repeats == "all" else one_per_question(used)
    stored_spec(file)
    n_failed = refuse_failed(used, ITEMS, allowed=without_failed)
    data = labelled_items(file, used, cap=cap)
    unmeasured = unmeasured_among(data.items.n, data.n_unlabelled, data.n_unmeasured)
    found = fit_items(data.items.with_unmeasured(unmeasured), chosen, alpha, delta)
    threshold = found.threshold if isinstance(found, rules.Feasible) else None
    figures = item_figures(data.items, threshold, data.columns)
    scores = ItemScores(
        sizes=tuple(data.columns.size.tolist()),
        uncertainty=tuple(data.columns.uncertainty.tolist()),
        error=tuple(data.items.wrong.tolist()),
        ids=data.items.ids,
        group=tuple(group or "" for group in data.records.groups) if groups == "cluster" else None,
    )
    header = file.header
    estimator = header.estimators[ITEMS]
    return CalibrationArtifact(
        kind="items",
        made=made(),
        model=header.model,
        plan=narrowed_plan(header.plan, estimator),
        prompt=header.prompt,
        estimator=estimator.model_copy(update={"params": data.spec.model_dump(mode="json")}),
        correctness=data.correctness,
        data=_fingerprint(file, used, data, n_failed),
        outcome=_outcome(chosen, alpha, delta, found, data, figures),
        calibration=scores,
        fingerprint=header.probe.greedy if header.probe is not None else None,
        items=figures,
    )


def _outcome(
    rule: ItemRule,
    alpha: float,
    delta: float,
    found: rules.Feasible | rules.Infeasible,
    data: LabelledItems,
    figures: ItemFigures,
) -> Feasible | Infeasible:
    """The outcome in answers: accepted are those that show something, errors those that keep a wrong item."""
    everything = float(np.isfinite(data.items.first_broken()).mean())
    common: dict[str, Any] = {
        "rule": rule,
        "alpha": alpha,
        "delta": delta,
        "options": {"cap": data.spec.cap},
        "n": found.n,
        "certifies": True,
        "diagnostics": Diagnostics(base_error=everything, auroc=None, max_acceptance=1.0),
    }
    if isinstance(found, rules.Infeasible):
        kept = float(np.isfinite(data.items.uncertainty).sum()) / (data.items.n * data.spec.cap)
        reason = InfeasibleReason(found.reason)
        few = reason is InfeasibleReason.TOO_FEW_ITEMS
        needed = answers_needed(rule, alpha, delta, kept) if few else None
        return Infeasible(reason=reason, n_measured=data.items.n, needed=needed, **common)
    return Feasible(
        threshold=found.threshold,
        n_accepted=figures.shown,
        n_errors=figures.broken,
        interval=interval(figures.broken, figures.shown),
        tie_block=int((data.items.first_kept() == found.threshold).sum()),
        **common,
    )


def answers_needed(rule: ItemRule, alpha: float, delta: float, kept: float) -> int:
    """Fewest answers that can certify the promise without a single wrong item, if ``kept`` / cap is kept of each.

    ``ln(1/delta) / ln(1 + .9 alpha k / (1 - alpha))`` for a share of wrong items, with k = 1 per answer; else
    ``ln delta / ln(1 - alpha)``.
    """
    gain = math.log1p(-alpha)
    if rule.startswith("wrong_share"):
        reach = kept if rule == "wrong_share" else 1.0
        gain = -math.log1p(0.9 * alpha * reach / (1 - alpha))
    return math.ceil(math.log(delta) / gain - 1e-9)


def _fingerprint(file: RecordFile, used: RecordTable, data: LabelledItems, n_failed: int) -> DataFingerprint:
    return DataFingerprint(
        name=file.header.questions_name,
        sha256=data.records.fingerprint(),
        n_questions=len(used),
        n_used=len(data.records),
        n_unmeasured=data.n_unmeasured,
        n_failed=n_failed,
        n_unlabelled=data.n_unlabelled,
        n_undecided=data.n_undecided,
        questions=DataFingerprint.stored(array("Q", np.sort(used.asked_hashes()).tobytes())),
        turns=turns_of_records(data.records),
    )


def held_out_items(artifact: CalibrationArtifact, records: Sequence[Record]) -> LabelledItems:
    """The labelled answers among records, as the artifact's gate reads them.

    Raises:
        UsageError: The artifact was fitted on some of them, or none is labelled.
    """
    data = LabelledItems.of(table_of(records), ItemsSpec.of(artifact.estimator), artifact.correctness)
    refuse_fitted(artifact, data.records, "test")
    return data


def require_same_items(artifact: CalibrationArtifact, file: RecordFile) -> None:
    """Refuse records whose items were made otherwise than the artifact says.

    Raises:
        UsageError: Both sides are named.
    """
    header = file.header
    ours, theirs = ItemsSpec.of(artifact.estimator), stored_spec(file)
    sides: list[tuple[str, object, object]] = [
        ("prompt", artifact.prompt, header.prompt),
        *((name, getattr(ours, name), getattr(theirs, name)) for name in ("version", "keys", "optional", "judges")),
        ("plan", artifact.plan, narrowed_plan(header.plan, artifact.estimator)),
    ]
    differences = [*artifact.model.differences(header.model), *unlike(sides)]
    if differences:
        listed = "\n  ".join(differences)
        raise UsageError(f"{file.path} does not fit the artifact:\n  {listed}\nCollect and score both alike.")
