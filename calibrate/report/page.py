"""Write one self-contained HTML file about an artifact and its records, and its figures as PNG."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from guardrail.artifact import CalibrationArtifact, CalibrationScores
from guardrail.describe import caveats, guarantee, nouns_of, warning
from guardrail.errors import UsageError, require
from guardrail.files import atomic_write
from guardrail.items.spec import ITEMS, ItemScores

from ..data.progress import Progress, silent
from ..data.records import Record
from ..data.split import Groups
from ..data.table import table_of
from ..evaluation.audit import audit
from ..evaluation.choice import Ranked, rank_estimators
from ..evaluation.promise_test import ALONE, Audit
from ..evaluation.results import Evaluation
from ..judging import at_calibration, calibration_part, without
from ..scoring.scores import scored_by
from .assessment import Found, VerdictText, ranking, verdict_text
from .comparison import compare_rules, sweep
from .content import (
    Part,
    categories,
    headings,
    headline,
    item_cards,
    item_sections,
    label_sections,
    reading,
    rule_table,
    score_table,
)
from .facts import auroc_of, facts
from .figures import Figure, Items, across_alpha, risk_coverage, score_histogram

_PERCENT = re.compile(r"(?<=\d) %")


def write_report(
    path: str | Path,
    artifact: CalibrationArtifact,
    records: Sequence[Record],
    *,
    estimator: str,
    test: Sequence[Record] = (),
    splits: int = 0,
    commands: Sequence[str] = (),
    alone: str = ALONE,
    progress: Progress = silent,
) -> list[Path]:
    """Write the report and, next to it, its figures as PNG.

    Args:
        path: The HTML file. The figures get its stem: ``report-risk-coverage.png``, ``report-scores.png``, and with
            splits ``report-alphas.png``.
        artifact: The artifact to report on.
        records: The records it was fitted on.
        estimator: Key of its estimator in the records.
        test: Labelled records it was not fitted on; default: those among ``records``. The verdict depends
            on them (`assessment.standing`), and they are shown beside the calibration records, never mixed with them.
        splits: Random splits of the calibration records, over which rules and other alphas are compared; 0 for no
            comparison.
        commands: Commands that reproduce the artifact, in order.
        alone: The command that calibrates on the test records alone, for a test that refutes the promise.
        progress: Called after each split.

    Returns:
        The files written, the HTML first.

    Raises:
        UsageError: The records are not those the artifact was fitted on, or no test record has a label or a score.
    """
    report = Report.of(artifact, records, estimator, test, alone=alone)
    return report.write(Path(path), splits=splits, commands=commands, progress=progress)


@dataclass(frozen=True, slots=True)
class Report:
    """An artifact beside its records.

    Attributes:
        artifact: The artifact.
        estimator: Key of its estimator in the records.
        fitted: Records of the fit.
        test: Labelled records that were not fitted on.
        n_others: Labelled records of the record file that were not fitted on.
        note: What becomes of these; None without any.
        audited: The test of its promise on the test part; None without one.
        text: The verdict, warnings and next steps.
    """

    artifact: CalibrationArtifact
    estimator: str
    fitted: Sequence[Record]
    test: Sequence[Record]
    n_others: int
    note: str | None
    audited: Audit | None
    text: VerdictText

    @classmethod
    def of(
        cls,
        artifact: CalibrationArtifact,
        records: Sequence[Record],
        estimator: str,
        test: Sequence[Record] = (),
        *,
        alone: str = ALONE,
        found: Found | None = None,
        told: tuple[Audit | None, VerdictText] | None = None,
    ) -> Report:
        """Divide the records into those of the fit and those that test the promise, and test it; see `write_report`.

        ``found`` is what the records say about the fit, for the warnings; ``told`` are the test and the words that the
        terminal has shown, so that the page says the same (None to make them).
        """
        _require_scores(artifact, records, estimator)
        fitted, others = calibration_part(artifact, records)
        others = without(others.take(others.labelled(estimator)), test)
        note = f"{len(others)} labelled questions of the record file were not fitted on."
        note += " This report leaves them out." if test else " They are the test part here."
        test = test or others
        if told is not None:
            audited, text = told
        else:
            audited = audit(artifact, test, estimator) if test else None
            text = verdict_text(artifact, audited, alone, found or Found())
        return cls(artifact, estimator, fitted, test, len(others), note if others else None, audited, text)

    def write(
        self, path: Path, *, splits: int = 0, commands: Sequence[str] = (), progress: Progress = silent
    ) -> list[Path]:
        """Write the page and its figures; see `write_report`."""
        artifact = self.artifact
        nouns = nouns_of(artifact)
        figures = _figures(artifact, self.test, self.estimator)
        evaluation = None
        if splits:
            evaluation = compare_rules(artifact, self.fitted, self.estimator, splits=splits, progress=progress)
            rows = sweep(artifact, self.fitted, self.estimator, splits=splits).rows
            base_error = evaluation.base_error
            figures["alphas"] = across_alpha({"": rows}, alpha=artifact.alpha, base_error=base_error, nouns=nouns)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = [path]
        for name, figure in figures.items():
            written.append(path.with_name(f"{path.stem}-{name}.png"))
            written[-1].write_bytes(figure.png)
        context = {
            "report": self,
            "artifact": artifact,
            "nouns": nouns,
            "open_gate": warning(artifact),
            "guarantee": guarantee(artifact.outcome, artifact.spent, nouns),
            "facts": facts(artifact),
            "caveats": caveats(artifact),
            "auroc": auroc_of(artifact),
            "ranking": ranking(artifact),
            **_evidence(self, evaluation),
            "figures": figures,
            "commands": commands,
        }
        atomic_write(path, _rendered(context), private=True)  # it shows questions and answers
        return written


def _evidence(report: Report, evaluation: Evaluation | None) -> dict[str, Any]:
    """The tables of the page, and the answers to read."""
    artifact, estimator = report.artifact, report.estimator
    parts = [Part("calibration", report.fitted, at_calibration(artifact))]
    if report.audited is not None:
        parts.append(Part("test", report.test, report.audited.held_out))
    scores = _score_ranking(artifact, parts[0].records)
    items = artifact.items is not None
    return {
        "headline": headline(parts, nouns_of(artifact)),
        "heads": headings(artifact),
        "evaluation": evaluation,
        "rules": None if evaluation is None else rule_table(evaluation, artifact),
        "categories": categories(artifact, parts, estimator),
        "scores": score_table(scores, estimator) if scores else None,
        "items": list(item_sections(artifact, parts)) if items else [],
        "item_cards": item_cards(artifact, parts[-1]) if items else [],
        "reading": [(part.name, *reading(artifact, part.records, estimator)) for part in reversed(parts)],
        "labels": list(label_sections(artifact, parts, estimator)),
    }


def _require_scores(artifact: CalibrationArtifact, records: Sequence[Record], estimator: str) -> None:
    """Check that records hold every score of the artifact, with its label."""
    calibration = artifact.calibration
    fitted: Counter[tuple[float | None, int]] = Counter(zip(calibration.uncertainty, calibration.error, strict=True))
    on_file: Counter[tuple[float | None, int]] = Counter()
    table = table_of(records)
    usable = table.take(table.usable(estimator))
    if usable:
        scored = scored_by(usable, estimator, artifact.estimator).stored(clusters=False)
        on_file.update(zip(scored.uncertainty, scored.error, strict=True))
    if missing := (fitted - on_file).total():
        raise UsageError(
            f"{missing} of the {len(calibration.error)} scores in the artifact are not among these records (by "
            f"{estimator}). Give the record file the artifact was fitted on, and the score it was fitted with."
        )


def _score_ranking(artifact: CalibrationArtifact, records: Sequence[Record]) -> Sequence[Ranked]:
    """Rank the estimators with scores on the calibration records; empty with fewer than two."""
    keys = sorted(table_of(records).score_keys() - {ITEMS})
    if len(keys) < 2 or artifact.items is not None:
        return ()
    groups: Groups = "category" if artifact.calibration.group is None else "cluster"
    return rank_estimators(records, keys, groups=groups)


def _figures(artifact: CalibrationArtifact, test: Sequence[Record] | None, estimator: str) -> dict[str, Figure]:
    items = _measured(artifact.calibration)
    other = _measured(scored_by(test, estimator, artifact.estimator).stored(clusters=False)) if test else None
    nouns = nouns_of(artifact)
    return {
        "risk-coverage": risk_coverage(items, artifact.outcome, other, nouns=nouns),
        "scores": score_histogram(items, artifact.threshold, artifact.estimator.unit, nouns=nouns),
    }


def _measured(scores: CalibrationScores | ItemScores) -> Items:
    """The scores of a figure; what could not be measured is in none."""
    values = np.array(scores.uncertainty, dtype=np.float64)  # None becomes NaN
    known = np.isfinite(values)
    return Items(values[known], np.array(scores.error)[known])


def _rendered(context: dict[str, Any]) -> str:
    jinja2 = require("jinja2", extra="calibrate")
    markup = require("markupsafe", extra="calibrate").Markup
    # Autoescape is on for everything, because questions and answers are foreign text. Only our own SVG is exempt.
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Around our own sentences: a number and its sign stay on one line. Commands and foreign text are copied, and stay.
    environment.filters["unbroken"] = lambda text: markup(_PERCENT.sub("\u00a0%", text))
    figures = {name: markup(figure.svg) for name, figure in context["figures"].items()}
    rendered: str = environment.get_template("report.html.j2").render({**context, "figures": figures})
    return rendered
