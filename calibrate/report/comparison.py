"""The results of other rules and other targets: the records of a fit, divided again and again."""

from __future__ import annotations

from collections.abc import Sequence

from guardrail.artifact import CalibrationArtifact

from ..data.progress import Progress, silent
from ..data.records import Record
from ..evaluation.evaluate import evaluate
from ..evaluation.results import Evaluation
from ..rules import PLANNED, RULES, compared_rules
from ..scoring.scores import units_of
from ..spec_syntax import rule_text

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Alphas of the sweep, as multiples of the artifact's."""


def compare_rules(
    artifact: CalibrationArtifact,
    records: Sequence[Record],
    estimator: str,
    *,
    rules: Sequence[str] | None = None,
    alphas: Sequence[float] | None = None,
    splits: int = 100,
    progress: Progress = silent,
) -> Evaluation:
    """Rules on the same random halves of the records; by default the artifact's and all usual ones at its alpha.

    Give it the calibration records only: a test part may be of another kind, and is never mixed with them.
    """
    rule_in_use = artifact.outcome.rule
    usual = compared_rules()
    if rule_in_use in RULES:
        others = (name for name in compared_rules(RULES[rule_in_use].unit) if name != rule_in_use)
        usual = (_rule_in_use(artifact), *others)
    pool = units_of(records, estimator, groups=artifact.calibration.group is not None, spec=artifact.estimator)
    return evaluate(
        pool.u,
        pool.wrong,
        rules=rules or usual,
        alphas=alphas or [artifact.alpha],
        n_calibration=pool.n // 2,
        splits=splits,
        groups=pool.group,
        cap=pool.cap,
        progress=progress,
    )


def _rule_in_use(artifact: CalibrationArtifact) -> str:
    """The rule of an artifact with its delta."""
    outcome = artifact.outcome
    return rule_text(outcome.rule, {} if outcome.delta is None else {"delta": outcome.delta})


def sweep(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, *, splits: int) -> Evaluation:
    """A few rules at several alphas, from half the artifact's to twice it, on the splits of a comparison."""
    rule = artifact.outcome.rule
    usual = PLANNED[RULES[rule].unit if rule in RULES else "answer"][0]
    rules = [_rule_in_use(artifact)] if rule in RULES else []
    if usual != rule:
        rules.append(usual)
    alphas = sorted({round(artifact.alpha * factor, 6) for factor in FACTORS} | {artifact.alpha})
    below_1 = [alpha for alpha in alphas if alpha < 1]
    return compare_rules(artifact, records, estimator, rules=rules, alphas=below_1, splits=splits)
