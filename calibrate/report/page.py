"""Write one self-contained HTML file about an artifact and its records, and its figures as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import caveats, guarantee, summary, unguardable, warning
from guardrail.errors import UsageError, require
from guardrail.files import atomic_write
from guardrail.judges import Judge
from guardrail.outcome import CERTIFIED

from ..data.progress import Progress, silent
from ..data.records import Record
from ..data.split import Groups
from ..data.table import table_of
from ..evaluation.audit import Audit, audit
from ..evaluation.choice import Ranked, rank_estimators
from ..evaluation.evaluate import Evaluation, RuleSpec, evaluate
from ..evaluation.label_checks import Merged, Missed, judge_to_look_at, merged_pairs, missed, suspicious
from ..pipeline import at_calibration, calibration_part, without
from ..rules import RULES, certifies, compared_rules
from ..scoring.scores import arrays, labels_of, taken, units_of, values_of
from . import sentences
from .content import (
    FEW_NOTE,
    Part,
    categories,
    comparison,
    contradictions,
    estimator_rows,
    managed,
    missed_labels,
    reading,
    tiles,
)
from .figures import Figure, Items, risk_coverage, score_histogram
from .panels import across_alpha, violations

__all__ = ["Parts", "compare_rules", "parts_of", "sweep", "write_report"]

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Alphas of the sweep, as multiples of the artifact's."""


@dataclass(frozen=True, slots=True)
class _Page:
    """The values that the template reads, except for the sentences."""

    artifact: CalibrationArtifact
    figures: dict[str, Figure]
    parts: Sequence[Part]
    test: Audit | None
    evaluation: Evaluation | None
    ranking: Sequence[Ranked]
    missed: Missed | None
    pairs: Merged | None
    commands: Sequence[str]
    alone: str
    extra: str | None


def compare_rules(
    artifact: CalibrationArtifact,
    records: Sequence[Record],
    estimator: str,
    *,
    splits: int = 100,
    progress: Progress = silent,
) -> Evaluation:
    """The artifact's rule and all default ones at its alpha, on the same random halves of the records.

    Give it the calibration records only: a test part may be of another kind, and is never mixed with them.
    """
    pool = units_of(records, estimator, groups=artifact.calibration.group is not None)
    return evaluate(
        pool.u,
        pool.wrong,
        rules=_compared(artifact),
        alphas=[artifact.alpha],
        n_calibration=pool.u.size // 2,
        splits=splits,
        groups=pool.group,
        progress=progress,
    )


def _compared(artifact: CalibrationArtifact) -> list[RuleSpec]:
    own, delta = artifact.outcome.rule, artifact.outcome.delta
    if own not in RULES:
        return list(compared_rules())
    spec: RuleSpec = own if delta is None else (own, {"delta": delta})
    return [spec, *(name for name in compared_rules() if name != own)]


def sweep(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, evaluation: Evaluation
) -> Evaluation:
    """A few rules at several alphas, from half the artifact's to twice it, on the splits of a comparison."""
    pool = units_of(records, estimator, groups=evaluation.grouped)
    names = [name for name in (artifact.outcome.rule, CERTIFIED) if name in RULES]
    alphas = sorted({round(artifact.alpha * factor, 6) for factor in FACTORS} | {artifact.alpha})
    return evaluate(
        pool.u,
        pool.wrong,
        rules=list(dict.fromkeys(names)),
        alphas=[alpha for alpha in alphas if alpha < 1],
        n_calibration=evaluation.n_calibration,
        splits=evaluation.splits,
        seed=evaluation.seed,
        groups=pool.group,
    )


def write_report(
    path: str | Path,
    artifact: CalibrationArtifact,
    records: Sequence[Record],
    *,
    estimator: str,
    test: Sequence[Record] | None = None,
    evaluation: Evaluation | None = None,
    commands: Sequence[str] = (),
    alone: str = sentences.ALONE,
    judge: Judge | None = None,
) -> list[Path]:
    """Write the report and, next to it, its figures as PNG.

    Args:
        path: The HTML file. The figures get its stem: ``report-risk-coverage.png``, ``report-scores.png``, and with an
            evaluation ``report-reliability.png`` and ``report-alphas.png``.
        artifact: The artifact to report on.
        records: The records it was fitted on.
        estimator: Key of its estimator in the records.
        test: Labelled records it was not fitted on; default: those among ``records`` (`parts_of`). The verdict depends
            on them (`sentences.standing`), and they are shown beside the calibration records, never mixed with them.
        evaluation: Comparison of rules over random splits of the calibration records, if wanted; see `compare_rules`.
            With it the report also shows other alphas, on the same splits.
        commands: Commands that reproduce the artifact, in order.
        alone: The command that calibrates on the test records alone, for a test that refutes the promise.
        judge: Shows which short answers the artifact's judge took for the same; default: that judge, if it asks no
            model (`calibrate.evaluation.label_checks.judge_to_look_at`).

    Returns:
        The files written, the HTML first.

    Raises:
        UsageError: The records are not those the artifact was fitted on, the evaluation is of others, or no test
            record has a label or a score.
    """
    path = Path(path)
    split = parts_of(artifact, records, estimator, test or ())
    shown = split.fitted
    parts = [Part("calibration", shown, at_calibration(artifact))]
    audited = None
    if split.test:
        audited = audit(artifact, split.test, estimator)
        parts.append(Part("test", split.test, audited.held_out))
    figures = _figures(artifact, split.test, estimator)
    if evaluation is not None:
        figures |= _comparisons(artifact, shown, estimator, evaluation)
    judge = judge or judge_to_look_at(artifact.estimator.judge)
    page = _Page(
        artifact,
        figures,
        parts,
        audited,
        evaluation,
        ranking=_ranking(artifact, shown),
        missed=missed(shown, artifact.correctness.name),
        pairs=None if judge is None else merged_pairs(shown, judge),
        commands=commands,
        alone=alone,
        extra=sentences.not_fitted_on(split.n_left_out, 0 if test else len(split.test)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path]
    for name, figure in figures.items():
        target = path.with_name(f"{path.stem}-{name}.png")
        target.write_bytes(figure.png)
        written.append(target)
    _write(path, _render(page, estimator))
    return written


@dataclass(frozen=True, slots=True)
class Parts:
    """Records in the parts of a report, none of them in two.

    Attributes:
        fitted: Records of the calibration part.
        test: Labelled records that were not fitted on.
        n_left_out: Labelled records of neither part.
    """

    fitted: Sequence[Record]
    test: Sequence[Record]
    n_left_out: int = 0


def parts_of(
    artifact: CalibrationArtifact, records: Sequence[Record], estimator: str, test: Sequence[Record] = ()
) -> Parts:
    """Divide records into those of the fit and those that test the promise.

    Args:
        artifact: The artifact.
        records: The records it was fitted on. Others among them are the test part, if no other is given;
        estimator: Key of its estimator in the records.
        test: The test part.

    Raises:
        UsageError: The records lack scores of the artifact, or do not tell which of them it was fitted on.
    """
    _require_scores(artifact, records, estimator)
    fitted, others = calibration_part(artifact, records, estimator)
    others = without(taken(others, labels_of(others) >= 0), test)
    if test:
        return Parts(fitted, test, len(others))
    return Parts(fitted, others)


def _require_scores(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> None:
    """Check that records hold every score of the artifact."""
    values, label = values_of(records, estimator), labels_of(records)
    calibration = artifact.calibration
    score, error = np.array(calibration.uncertainty), np.array(calibration.error)
    missing = sum(_lacking(score[error == wrong], values[label == 1 - wrong]) for wrong in (0, 1))
    if missing:
        raise UsageError(
            f"{missing} of the {len(calibration.error)} scores in the artifact are not among these records (by "
            f"{estimator}). Give the record file the artifact was fitted on, and the score it was fitted with."
        )


def _lacking(wanted_values: NDArray[np.float64], values: NDArray[np.float64]) -> int:
    """Count the wanted values that ``values`` lacks; a value that occurs twice must be there twice."""
    needed, n_needed = np.unique(wanted_values, return_counts=True)
    there, n_there = np.unique(values[~np.isnan(values)], return_counts=True)
    if not there.size:
        return wanted_values.size
    place = np.minimum(np.searchsorted(there, needed), there.size - 1)
    present = np.where(there[place] == needed, n_there[place], 0)
    return int(np.maximum(n_needed - present, 0).sum())


def _ranking(artifact: CalibrationArtifact, records: Sequence[Record]) -> Sequence[Ranked]:
    """Rank the estimators with scores on the calibration records; empty with fewer than two."""
    keys = sorted(table_of(records).score_keys())
    if len(keys) < 2:
        return ()
    groups: Groups = "category" if artifact.calibration.group is None else "cluster"
    return rank_estimators(records, keys, groups=groups)


def _figures(artifact: CalibrationArtifact, test: Sequence[Record] | None, estimator: str) -> dict[str, Figure]:
    scores = artifact.calibration
    items = Items(np.array(scores.uncertainty), np.array(scores.error))
    other = None
    if test:
        pool = arrays(test, estimator)
        other = Items(pool.uncertainty, pool.error)
    spec = artifact.estimator
    return {
        "risk-coverage": risk_coverage(items, artifact.outcome, other),
        "scores": score_histogram(items, artifact.threshold, spec.unit),
    }


def _comparisons(
    artifact: CalibrationArtifact,
    shown: Sequence[Record],
    estimator: str,
    evaluation: Evaluation,
) -> dict[str, Figure]:
    """Figures on the calibration records: splits of each rule above the target, and results at other targets."""
    n = units_of(shown, estimator).u.size
    if n != evaluation.n:
        raise UsageError(
            f"the evaluation is of {evaluation.n} questions, and there are {n} calibration records: a report mixes "
            "calibration and test records nowhere. Give `compare_rules` the calibration records."
        )
    rows = [row for row in evaluation.rows if row.alpha == artifact.alpha]
    promised = {row.rule: row.delta for row in rows if certifies(row.rule) and row.delta is not None}
    swept = sweep(artifact, shown, estimator, evaluation)
    return {
        "reliability": violations(rows, promised),
        "alphas": across_alpha(swept.rows, artifact.alpha, evaluation.base_error),
    }


def _render(page: _Page, estimator: str) -> str:
    jinja2 = require("jinja2", extra="calibrate")
    markup = require("markupsafe", extra="calibrate").Markup
    # Autoescape is on for everything, because questions and answers are foreign text. Only our own SVG is exempt.
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    looked = [(part.name, suspicious(part.records, estimator)) for part in page.parts]
    rows = [] if page.evaluation is None else comparison(page.evaluation, page.artifact)
    context: dict[str, Any] = {
        "artifact": page.artifact,
        "standing": sentences.standing(page.artifact, page.test),
        "good": page.artifact.outcome.n_accepted > 0,
        "parts": [(part.name, *reading(page.artifact, part.records, estimator)) for part in page.parts],
        "guarantee": guarantee(page.artifact.outcome),
        "lines": summary(page.artifact),
        "open_gate": warning(page.artifact),
        "useless": unguardable(page.artifact),
        "audited": [] if page.test is None else sentences.audited(page.test),
        "facts": sentences.facts(page.artifact),
        "caveats": caveats(page.artifact),
        "steps": sentences.next_steps(page.artifact, page.test, page.alone),
        "extra": page.extra,
        "tiles": tiles(page.artifact, page.parts),
        "test": page.test,
        "test_words": None if page.test is None else sentences.held_out(page.artifact, page.test.held_out),
        "figures": {name: markup(figure.svg) for name, figure in page.figures.items()},
        "evaluation": page.evaluation,
        "rules": managed(rows),
        "all_rules": rows,
        "few": FEW_NOTE if any(row.error.endswith("*") for row in rows) else None,
        "auroc": sentences.auroc_of(page.artifact),
        "ranking": sentences.ranking(page.artifact),
        "second_look": [
            f"{name.capitalize()}: {text}"
            for name, suspicious in looked
            if (text := sentences.second_look(suspicious)) is not None
        ],
        "looked": [row for name, suspicious in looked for row in contradictions(suspicious, estimator, name)],
        "categories": categories(page.artifact, page.parts, estimator),
        "estimators": estimator_rows(page.ranking, estimator),
        "missed": page.missed,
        "missed_labels": [] if page.missed is None else missed_labels(page.missed, estimator),
        "pairs": page.pairs,
        "commands": page.commands,
    }
    rendered: str = environment.get_template("report.html.j2").render(context)
    return rendered.replace(" %", "\u00a0%")  # a number and its sign stay on one line


def _write(path: Path, text: str) -> None:
    atomic_write(path, text, private=True)  # it shows questions and answers
