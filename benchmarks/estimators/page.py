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

_LACKING = "Not on file:"
_OPTION_ESTIMATORS = {"max_softmax", "predictive_entropy"}


class BaselineRow(Frozen):
    """A simple score to beat, computed without any estimator."""

    name: str
    """What it is."""
    published: float
    """Its AUROC as stated with the data."""
    figures: Figures
    """As measured here."""


class Measured(Frozen):
    """Everything about one file."""

    name: str
    """As `--files` takes it."""
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
    """What the file is, what it lacks, and what could not be measured."""
    ensemble: Comparison | None
    """Whether an ensemble helps."""


class Page(Frozen):
    """The whole table."""

    format: Literal[1] = 1
    """Version of this layout; a file without one is of the first."""
    resamples: int
    """Bootstrap resamples behind each interval."""
    files: tuple[Measured, ...]
    """In the order shown."""


def markdown(page: Page, command: str) -> str:
    """The page ``docs/estimators.md``."""
    choice = [each for each in page.files if each.rows and each.rows.keys() <= _OPTION_ESTIMATORS]
    texts = [each for each in page.files if each not in choice]
    parts = [_opening(page, command), *map(_file, texts), _choice(choice), _ensembles(page), _left_out(page)]
    return "\n\n".join(_wrapped(part) for part in parts if part) + "\n"


def _opening(page: Page, command: str) -> str:
    alphas = " / ".join(f"{alpha:g}" for alpha in ALPHAS)
    return f"""# Estimators on recorded outputs of real models

This page is generated. Do not edit it; run

    {command}

Every estimator that a file supports, sorted by AUROC. **AUROC** is the probability that a wrong answer scores above a
right one (.5 is useless), with its 95 % percentile bootstrap interval ({page.resamples:,} resamples; of whole clusters
where questions depend on each other). **answered** is the percentage of questions answered at alpha {alphas}, when rule
`acrc` is fitted on one half of the questions and used on the other, mean over {HALVES} random halves. Rows marked * are
baselines, computed without an estimator; **against** * is the paired difference in AUROC. "name:judge" and
"name:similarity" are variants. Estimators with the same figures share a row. `estimators.json`, beside this page, has
every figure with its interval, the area under the risk-coverage curve (AURC), the error rate among accepted answers,
and the weights of the ensembles.

Read across a table, not between tables: files differ in models, questions and what counts as right. Intervals may
overlap although one estimator is better, because all are measured on the same questions. Do not pick an estimator from
this page and then calibrate it on the same questions."""


def _file(found: Measured) -> str:
    head = ["uncertainty", "AUROC", "answered"]
    labels = {f"`{name}`": _cells(figures) for name, figures in found.rows.items()}
    if found.baseline is not None:
        head.insert(2, "against *")
        for name in found.rows:
            labels[f"`{name}`"].insert(1, _difference(found.against[name]))
        auroc, answered = _cells(found.baseline.figures)
        labels[f"* {found.baseline.name}"] = [auroc, "", answered]
    shared: dict[tuple[str, ...], list[str]] = {}
    for label, cells in labels.items():
        shared.setdefault(tuple(cells), []).append(label)
    ranked = sorted(
        ([", ".join(names), *cells] for cells, names in shared.items()), key=lambda row: row[1], reverse=True
    )
    notes = "\n\n".join(note for note in found.notes if not note.startswith(_LACKING))
    base = ""
    if found.baseline is not None:
        ours = found.baseline.figures.auroc.value
        base = f"\n\nBaseline as published with the data: AUROC {found.baseline.published:.3f}; here {ours:.3f}."
    return f"## {found.title}\n\n{_size(found)} {notes}{base}\n\n{table(head, ranked, 1)}"


def _choice(files: Sequence[Measured]) -> str:
    if not files:
        return ""
    head = ["file", "questions", "wrong", "uncertainty", "AUROC", "answered"]
    rows = [
        [each.title, f"{figures.n:,}", f"{100 * figures.error_rate:.0f} %", f"`{name}`", *_cells(figures)]
        for each in files
        for name, figures in sorted(each.rows.items(), key=lambda row: row[1].auroc.value, reverse=True)
    ]
    notes = dict.fromkeys(note for each in files for note in each.notes if not note.startswith(_LACKING))
    return "\n\n".join(["## Multiple choice", *notes, table(head, rows, 1)])


def _size(found: Measured) -> str:
    first = next(iter(found.rows.values()), None)
    return "" if first is None else f"{first.n:,} questions, {100 * first.error_rate:.0f} % wrong."


def _cells(figures: Figures) -> list[str]:
    answered = "/".join(f"{100 * figures.acceptance[f'{alpha:g}'].value:.0f}" for alpha in ALPHAS)
    return [_interval(figures.auroc), answered]


def _interval(found: Interval) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _difference(found: Interval) -> str:
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _ensembles(page: Page) -> str:
    compared = [found for found in page.files if found.ensemble is not None]
    if not compared:
        return ""
    head = ["file", "trained on", "compared on", "best single member", "its AUROC", "ensemble", "difference"]
    head += ["mean of 20 cuts", "better in"]
    rows = [
        [
            found.name,
            f"{each.n_train:,}",
            f"{each.n_rest:,}",
            f"`{each.best_single}`",
            f"{each.single_auroc:.3f}",
            f"{each.ensemble_auroc:.3f}",
            _interval(each.difference["auroc"]),
            f"{each.mean_difference:+.3f}",
            f"{100 * each.share_better:.0f} %",
        ]
        for found in compared
        if (each := found.ensemble)
    ]
    return f"""## Do ensembles help?

`calibrate ensemble` fits weights on a training part, here 30 % of the questions, from every estimator that is measured
on nine questions in ten. Ensemble and best single member (the highest AUROC on the training part) are compared on the
other questions, on the same resamples. A difference whose interval contains 0 is not significant.
{_verdict(compared)}

{table(head, rows, 4)}

An ensemble costs questions: those it was trained on cannot calibrate it, and a threshold fitted on any of them is
refused.

    calibrate ensemble records.jsonl --members degree,self_consistency --train-fraction 0.3 --out ensemble.json
    calibrate score ensemble.rest.jsonl --estimator ensemble.json
    calibrate fit ensemble.rest.jsonl --estimator ensemble.json --alpha 0.1 --out artifact.json"""


def _verdict(compared: Sequence[Measured]) -> str:
    better = [found.name for found in compared if found.ensemble and found.ensemble.difference["auroc"].low > 0]
    worse = [found.name for found in compared if found.ensemble and found.ensemble.difference["auroc"].high < 0]
    said = [
        f"It ranked better on {', '.join(better)}." if better else "It did not rank better on any of the files.",
        f"It ranked worse on {', '.join(worse)}." if worse else "",
    ]
    gain = [
        f"{found.name} at alpha {alpha:g}"
        for found in compared
        for alpha in ALPHAS
        if found.ensemble and found.ensemble.difference[f"{alpha:g}"].low > 0
    ]
    loss = [
        f"{found.name} at alpha {alpha:g}"
        for found in compared
        for alpha in ALPHAS
        if found.ensemble and found.ensemble.difference[f"{alpha:g}"].high < 0
    ]
    said.append(f"It answered more on {', '.join(gain)}." if gain else "It did not answer measurably more on any file.")
    if loss:
        said.append(f"It answered less on {', '.join(loss)}.")
    return " ".join(each for each in said if each)


def _left_out(page: Page) -> str:
    lacking: dict[str, list[str]] = {}
    for each in page.files:
        for note in each.notes:
            if note.startswith(_LACKING):
                lacking.setdefault(note, []).append(each.name)
    gaps = "\n\n".join(f"{note} ({', '.join(names)})" for note, names in lacking.items())
    return f"""## Not covered

Most estimators use only the samples and not the answer that is returned (`primary_disagreement`, `graded_disagreement`,
the self-check and the follow-up estimators use it). This decides the result if the samples are not draws of the same
model, as in InterCode and NQ-open.

No recorded file has log-probabilities of sampled text, so the estimators that read them, and those that ask the model a
further question, are measured on the embedded model's own answers only: a model of 1.5 million weights that answers in
a few words. Its records are answers to the first 500 questions of this file:

    calibrate collect examples/tiny_model/questions/open.jsonl --model transformers:examples/tiny_model/orrin-1.5m \\
      -e semantic_entropy -e p_true -e verbalised -e selfcheck_prompt --max-tokens 16 --out RECORDS
    calibrate label RECORDS --rule token_f1

{gaps}

`mmlu-pro-confidence.csv` holds scores without answers, so there is nothing to estimate (docs/paper.md uses it). No
trained entailment model was available. Files by the name that `--files` takes: {", ".join(FILES)}."""


def _wrapped(text: str) -> str:
    """Paragraphs filled to 120 columns; tables, headings and commands as they are."""
    plain = ("|", "#", "    ")
    return "\n\n".join(
        block if block.startswith(plain) else textwrap.fill(block, 120, break_long_words=False, break_on_hyphens=False)
        for block in text.split("\n\n")
    )
