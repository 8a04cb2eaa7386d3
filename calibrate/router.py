"""A certificate for each group of the questions (intent, tenant, language), as a router's artifact.

One threshold keeps the error rate of all accepted answers at alpha, on average over groups: in a hard group it may be
far above. A certificate for each group, fitted on its questions alone, holds there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from guardrail.artifact import ALL_OTHERS, CalibrationArtifact, RouterArtifact, uncalibrated
from guardrail.errors import UsageError
from guardrail.outcome import CERTIFIED, Diagnostics, Infeasible, InfeasibleReason
from guardrail.types import Frozen

from .data.columns import open_records
from .data.records import Record, RecordFile
from .data.split import Repeats
from .data.table import RecordTable, table_of
from .fitting import DEFAULT_DELTA, rule_named
from .pipeline import fit_artifact
from .rules import Rule
from .spec_syntax import parse_rule, rule_text


class ByGroup(Frozen):
    """Settings of a fit with a certificate for each group."""

    share: Literal["together", "each"] = "together"
    """"together": every certificate spends delta divided by their number, so that all of them hold at once with
    probability 1 - delta. "each": every one spends delta; of K certificates up to K * delta fail on average."""
    others: Literal["fit", "abstain"] = "fit"
    """Questions of smaller groups, and of none: "fit" one certificate for them together, or "abstain"."""
    min_labels: PositiveInt = 50
    """Labelled questions from which on a group gets a certificate."""


def fit_router(
    records: RecordFile | str | Path,
    *,
    score: str,
    alpha: float,
    by: ByGroup = ByGroup(),
    rule: str | Rule = CERTIFIED,
    delta: float = DEFAULT_DELTA,
    part: Sequence[Record] | None = None,
    repeats: Repeats = "once",
    without_failed: bool = False,
) -> RouterArtifact:
    """Fit a certificate for each of the records' groups, on the questions of that group alone.

    Which groups get one depends on the number of labels, not on what the labels say. Given these numbers, the questions
    of a group are draws from its population, so each certificate holds with its share of delta; by the union bound all
    hold at once with probability 1 - delta ("together").

    Args:
        records: A record file, scored and labelled; its records have groups.
        score: Key of the score in the file.
        alpha: Target error rate among accepted answers, in (0, 1).
        by: How to fit.
        rule: A rule that certifies, with settings or without.
        delta: Failure probability, where the text of the rule names none.
        part: Fit on these records only (a calibration part); default: all of the file.
        repeats: As for `fit_artifact`.
        without_failed: As for `fit_artifact`, in each group.

    Raises:
        UsageError: A rule that does not certify, labels drawn within a scope, no group with enough labels, or what
            `fit_artifact` refuses.
    """
    file = records if isinstance(records, RecordFile) else open_records(records)
    table = file.records if part is None else table_of(part)
    if isinstance(rule, str):
        name, options = parse_rule(rule)
        delta = options.pop("delta", delta)
        rule, chosen = rule_text(name, options), rule_named(name)
    else:
        chosen = rule
    if not chosen.certifies:
        raise UsageError(f"rule {chosen.name!r} certifies nothing, and groups divide delta. Use rule 'certified'.")
    if file.header.scope.is_drawn:
        raise UsageError(
            "a threshold for each group cannot be fitted on questions that were drawn by their scores. Leave out one "
            "of the two."
        )
    groups = _with_enough_labels(table, score, by.min_labels)
    codes, names = table.coded("group")
    place_of = {name: code for code, name in enumerate(names)}
    parts = {name: table.take(codes == place_of[name]) for name in groups}
    rest = table.take(~np.isin(codes, [place_of[name] for name in groups]))
    fits_others = by.others == "fit" and bool(rest.usable(score).any())
    if fits_others:
        parts[ALL_OTHERS] = rest
    spent = delta / len(parts) if by.share == "together" else delta
    artifacts = {
        name: fit_artifact(
            file,
            score=score,
            alpha=alpha,
            rule=rule,
            delta=spent,
            part=part_records,
            repeats=repeats,
            without_failed=without_failed,
        )
        for name, part_records in parts.items()
    }
    if not fits_others:
        artifacts[ALL_OTHERS] = _nothing_for_others(artifacts[groups[0]], groups)
    return RouterArtifact(artifacts=artifacts)


def _with_enough_labels(table: RecordTable, score: str, fewest: int) -> list[str]:
    """The groups with a certificate of their own, sorted.

    Raises:
        UsageError: No group has so many labels.
    """
    codes, names = table.coded("group")
    usable = table.usable(score)
    # A group of the very name of the rest is part of it, as at run time.
    labels = {
        name: int(np.count_nonzero(usable & (codes == code)))
        for code, name in enumerate(names)
        if name is not None and name != ALL_OTHERS
    }
    if groups := sorted(name for name, n in labels.items() if n >= fewest):
        return groups
    most = max(labels.items(), key=lambda item: item[1], default=None)
    largest = "no question has a group" if most is None else f"the largest, {most[0]!r}, has {most[1]}"
    raise UsageError(
        f"no group has {fewest} labelled questions: {largest}. Label more questions, lower min_labels (--by "
        "group:min_labels=N), or fit one threshold."
    )


def by_route(artifact: RouterArtifact, records: Sequence[Record]) -> dict[str, RecordTable]:
    """The records that a router sends to each of its artifacts by their groups; routes without any are left out."""
    table = table_of(records)
    codes, names = table.coded("group")
    routes = [name if name in artifact.artifacts else ALL_OTHERS for name in names]
    masks = {
        route: np.isin(codes, [i for i, each in enumerate(routes) if each == route]) for route in artifact.artifacts
    }
    return {route: table.take(mask) for route, mask in masks.items() if mask.any()}


def _nothing_for_others(like: CalibrationArtifact, groups: Sequence[str]) -> CalibrationArtifact:
    """An artifact for the questions of no group, which accepts nothing."""
    outcome = Infeasible(
        rule=like.outcome.rule,
        alpha=like.alpha,
        delta=None,
        n=0,
        diagnostics=Diagnostics(base_error=0.0, auroc=None, max_acceptance=0.0),
        reason=InfeasibleReason.UNKNOWN_GROUP,
        options={"known_groups": list(groups)},
    )
    return uncalibrated(like.model, like.plan, like.prompt, like.estimator, outcome, turns=like.data.turns)
