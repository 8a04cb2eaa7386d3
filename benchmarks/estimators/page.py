"""The table as a page and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from benchmarks.estimators.ensembles import Comparison
from benchmarks.estimators.figures import ALPHAS, HALVES, Figures, Interval
from benchmarks.estimators.sources import FILES
from benchmarks.paper.markdown import table
from guardrail.types import Frozen

__all__ = ["BaselineRow", "Measured", "Page", "markdown"]


class BaselineRow(Frozen):
    """A simple score to beat, computed without any estimator."""

    name: str
    """How it is computed."""
    published: float
    """Its AUROC according to the publishers of the data."""
    figures: Figures
    """Its figures, measured here."""


class Measured(Frozen):
    """Everything about one file."""

    name: str
    """Name for `--files`."""
    title: str
    """Heading."""
    clustered: bool
    """Whether clusters were resampled whole."""
    rows: dict[str, Figures]
    """By estimator."""
    baseline: BaselineRow | None
    """A simple score to beat."""
    against: dict[str, Interval]
    """By estimator: AUROC minus that of the baseline, paired; empty without a baseline."""
    notes: tuple[str, ...]
    """Remarks on the file, on missing inputs, and on scores that could not be measured."""
    ensemble: Comparison | None
    """Comparison of an ensemble with its best member."""


class Page(Frozen):
    """The whole table."""

    format: Literal[1] = 1
    """Version of this layout; a file without this field has version 1."""
    resamples: int
    """Bootstrap resamples behind each interval."""
    files: tuple[Measured, ...]
    """Files in the order shown."""


def markdown(page: Page, command: str) -> str:
    """Return the page ``docs/estimators.md``."""
    parts = [_opening(page, command), *map(_file, page.files), _ensembles(page), _left_out()]
    return "\n\n".join(_wrapped(part) for part in parts if part) + "\n"


def _opening(page: Page, command: str) -> str:
    return f"""# Estimators on recorded outputs of real models

This page is generated. Do not edit it; run

    {command}

Every estimator that a file supports, sorted by AUROC. **AUROC** is the probability that a wrong answer scores above a
right one (.5 is useless); **AURC** the area under the risk-coverage curve (lower is better); **answered** the share of
questions answered, in percent, when rule `acrc` is fitted on one half of the questions and used on the other, mean over
{HALVES} random halves. In brackets: 95 % percentile bootstrap intervals ({page.resamples:,} resamples; of whole
clusters where questions depend on each other). "name:judge" and "name:similarity" are variants that compare answers in
another way than the default. Rows marked * are baselines, computed by a few lines of counting without an estimator, and
**against** * is the paired difference in AUROC.

Read across a table, not between tables: files differ in models, questions and what counts as right. Overlapping
intervals do not mean that two estimators are equally good, because they are measured on the same questions; see the
ensembles for paired differences. Do not pick an estimator from this page and then calibrate it on the same
questions."""


def _file(measured: Measured) -> str:
    head = ["uncertainty", "AUROC", "AURC", *(f"answered, alpha {alpha:g}" for alpha in ALPHAS)]
    rows = [[f"`{name}`", *_cells(figures)] for name, figures in measured.rows.items()]
    if measured.baseline is not None:
        head.insert(2, "against *")
        rows = [
            [*row[:2], _difference(measured.against[name]), *row[2:]]
            for name, row in zip(measured.rows, rows, strict=True)
        ]
        base_cells = _cells(measured.baseline.figures)
        rows.append([f"* {measured.baseline.name}", base_cells[0], "", *base_cells[1:]])
    ranked = sorted(rows, key=lambda row: row[1], reverse=True)
    first = next(iter(measured.rows.values()), None)
    size = "" if first is None else f"{first.n} questions, {100 * first.error_rate:.0f} % wrong."
    notes = "\n\n".join(measured.notes)
    base = ""
    if measured.baseline is not None:
        ours = measured.baseline.figures.auroc.value
        base = f"\n\nBaseline as published with the data: AUROC {measured.baseline.published:.3f}; here {ours:.3f}."
    return f"## {measured.title}\n\n{size} {notes}{base}\n\n{table(head, ranked, 1)}"


def _cells(figures: Figures) -> list[str]:
    percent = [_interval(figures.acceptance[f"{alpha:g}"], 100, 0) for alpha in ALPHAS]
    return [_interval(figures.auroc), _interval(figures.aurc), *percent]


def _interval(interval: Interval, scale: float = 1, digits: int = 3) -> str:
    value, low, high = (f"{scale * each:.{digits}f}" for each in (interval.value, interval.low, interval.high))
    return f"{value} [{low}, {high}]"


def _difference(interval: Interval) -> str:
    return f"{interval.value:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _ensembles(page: Page) -> str:
    compared = [file for file in page.files if file.ensemble is not None]
    if not compared:
        return ""
    head = ["file", "best single member", "its AUROC", "ensemble", "difference", "mean of 20 cuts", "better in"]
    head += [f"answered, alpha {alpha:g}: difference" for alpha in ALPHAS]
    rows, weights = [], []
    for file in compared:
        each = file.ensemble
        assert each is not None
        rows.append(
            [
                file.name,
                f"`{each.best_single}`",
                f"{each.single_auroc:.3f}",
                f"{each.ensemble_auroc:.3f}",
                _interval(each.difference["auroc"]),
                f"{each.mean_difference:+.3f}",
                f"{100 * each.share_better:.0f} %",
                *(_interval(each.difference[f"{alpha:g}"], 100, 1) for alpha in ALPHAS),
            ]
        )
        listed = ", ".join(f"`{name}` {weight:.2f}" for name, weight in each.weights.items())
        weights.append(f"Weights on {file.name} ({each.n_train} training questions, {each.n_rest} compared): {listed}.")
    shown = "\n\n".join(weights)
    return f"""## Do ensembles help?

`calibrate ensemble` fits weights on a training part, here 30 % of the questions, from every estimator in the table of
the file that is measured on nine questions in ten. Ensemble and best single member (the one with the highest AUROC on
the training part) are compared on the other questions, on the same resamples. A difference whose interval contains 0 is
not significant. {_verdict(compared)}

{table(head, rows, 2)}

An ensemble costs questions: those it was trained on cannot calibrate it, and a threshold fitted on any of them is
refused. A single estimator costs none. The commands, on a scored and labelled record file:

    calibrate ensemble records.jsonl --members degree,self_consistency --train-fraction 0.3 --out ensemble.json
    calibrate score ensemble.rest.jsonl --estimator ensemble.json
    calibrate fit ensemble.rest.jsonl --estimator ensemble.json --alpha 0.1 --out artifact.json

{shown}"""


def _verdict(compared: Sequence[Measured]) -> str:
    better = [file.name for file in compared if file.ensemble and file.ensemble.difference["auroc"].low > 0]
    worse = [file.name for file in compared if file.ensemble and file.ensemble.difference["auroc"].high < 0]
    sentences = [
        f"It ranked better on {', '.join(better)}." if better else "It did not rank better on any of the files.",
        f"It ranked worse on {', '.join(worse)}." if worse else "",
    ]
    gain = [
        f"{file.name} at alpha {alpha:g}"
        for file in compared
        for alpha in ALPHAS
        if file.ensemble and file.ensemble.difference[f"{alpha:g}"].low > 0
    ]
    loss = [
        f"{file.name} at alpha {alpha:g}"
        for file in compared
        for alpha in ALPHAS
        if file.ensemble and file.ensemble.difference[f"{alpha:g}"].high < 0
    ]
    sentences.append(
        f"It answered more on {', '.join(gain)}." if gain else "It did not answer measurably more on any file."
    )
    if loss:
        sentences.append(f"It answered less on {', '.join(loss)}.")
    return " ".join(each for each in sentences if each)


def _left_out() -> str:
    return f"""## Not covered

Most estimators use only the samples and not the answer that is returned (`primary_disagreement`, `graded_disagreement`,
the self-check and the follow-up estimators use it). This decides the result if the samples are not draws of the same
model, as in InterCode and NQ-open.

No recorded file has log-probabilities of sampled text, so the estimators that read them, and those that ask the model a
further question, are measured on the embedded model's own answers only: a model of 1.5 million weights that answers in
a few words. This page does not show how well they work on a large model. Its records are answers to the first 500
questions of this file:

    calibrate collect examples/tiny_model/questions/open.jsonl --model transformers:examples/tiny_model/orrin-1.5m \\
      -e semantic_entropy -e p_true -e verbalised -e selfcheck_prompt --max-tokens 16 --out RECORDS
    calibrate label RECORDS --rule token_f1

`mmlu-pro-confidence.csv` holds scores without answers, so there is nothing to estimate (docs/paper.md uses it). No
trained entailment model was available. Files by the name that `--files` takes: {", ".join(FILES)}."""


def _wrapped(text: str) -> str:
    """Fill paragraphs to 120 columns; tables, headings and commands stay unchanged."""
    plain = ("|", "#", "    ")
    return "\n\n".join(
        block if block.startswith(plain) else textwrap.fill(block, 120, break_long_words=False, break_on_hyphens=False)
        for block in text.split("\n\n")
    )
