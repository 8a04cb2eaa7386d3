"""The table as a page and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal

from benchmarks.estimators.figures import ALPHAS, HALVES, Figures, Interval
from benchmarks.paper.markdown import table
from guardrail.types import Frozen
from guardrail.uncertainty import list_estimators

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


class Page(Frozen):
    """The whole table."""

    format: Literal[1] = 1
    """Version of this layout."""
    resamples: int
    """Bootstrap resamples behind each interval."""
    files: tuple[Measured, ...]
    """In the order shown."""


def markdown(page: Page, command: str) -> str:
    """The page ``docs/estimators.md``."""
    choice = [each for each in page.files if each.rows and each.rows.keys() <= _OPTION_ESTIMATORS]
    texts = [each for each in page.files if each not in choice]
    parts = [_opening(page, command), _files(page), _sampled(texts), _choice(choice), _left_out(page)]
    return "\n\n".join(_wrapped(part) for part in parts if part) + "\n"


def _opening(page: Page, command: str) -> str:
    alphas = "/".join(f"{alpha:g}" for alpha in ALPHAS)
    return f"""# Scores on recorded outputs of real models

This page is generated. Do not edit it; run

    {command}

**AUROC** is the probability that a wrong answer scores above a right one (.5 is useless). **Answered** is the
percentage of questions answered at alpha {alphas}, when rule `acrc` is fitted on one half of the questions and used on
the other, mean over {HALVES} random halves. [`estimators.json`](estimators.json) has every figure with its 95 %
bootstrap interval ({page.resamples:,} resamples), and more.

Compare scores within a file. Intervals may overlap although one score is better, because all are measured on the same
questions. Do not pick a score from this page and then calibrate it on the same questions."""


def _files(page: Page) -> str:
    """The files, how wide intervals of AUROC are on them, and how it is read; estimators.json has every note."""
    head = ["file", "content", "questions", "wrong", "AUROC interval up to"]
    rows: list[list[str]] = []
    notes: dict[str, list[str]] = {}
    for each in page.files:
        figures = list(each.rows.values())
        if not figures:
            continue
        width = max((row.auroc.high - row.auroc.low) / 2 for row in figures)
        wrong = f"{100 * figures[0].error_rate:.0f} %"
        rows.append([f"`{each.name}`", each.title, f"{figures[0].n:,}", wrong, f"± {width:.3f}"])
        particular = [note for note in each.notes if not note.startswith(_LACKING)][:1]
        if each.baseline is not None:
            base, ours = each.baseline, each.baseline.figures.auroc.value
            particular.append(f"Baseline: {base.name}, published AUROC {base.published:.3f}, here {ours:.3f}.")
        if particular:
            notes.setdefault(" ".join(particular), []).append(f"`{each.name}`")
    about = [f"{', '.join(names)}: {note}" for note, names in notes.items()]
    return "\n\n".join(["## Files", table(head, rows, 2), *about])


def _sampled(files: Sequence[Measured]) -> str:
    if not files:
        return ""
    names = sorted({name for each in files for name in each.rows})
    best = {each.name: max((f"{row.auroc.value:.3f}" for row in each.rows.values()), default="") for each in files}
    rows = []
    for name in names:
        cells = [f"`{name}`"]
        for each in files:
            cell = _short(each.rows[name]) if name in each.rows else ""
            cells.append(cell.replace(best[each.name], f"**{best[each.name]}**", 1) if best[each.name] else cell)
        rows.append(cells)
    baselines = ["" if each.baseline is None else _short(each.baseline.figures) for each in files]
    rows.append(["baseline", *baselines])
    return f"""## Sampled answers

AUROC and answered; the highest AUROC of a file is bold. "name:judge" and "name:similarity" compare answers in another
way than the default. Empty: the file lacks what the estimator needs, or the variant was left out.

{table(["uncertainty", *(each.name for each in files)], rows, 1)}"""


def _choice(files: Sequence[Measured]) -> str:
    head = ["file", *sorted({name for each in files for name in each.rows})]
    rows = [
        [f"`{each.name}`", *(_interval(each.rows[name].auroc) + " " + _answered(each.rows[name]) for name in head[1:])]
        for each in files
    ]
    return f"## Multiple choice\n\nAUROC with its interval, and answered.\n\n{table(head, rows, 1)}" if files else ""


def _short(figures: Figures) -> str:
    return f"{figures.auroc.value:.3f} {_answered(figures)}"


def _answered(figures: Figures) -> str:
    return "/".join(f"{100 * figures.acceptance[f'{alpha:g}'].value:.0f}" for alpha in ALPHAS)


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _left_out(page: Page) -> str:
    absent = sorted(set(list_estimators()).difference(*(each.rows for each in page.files)))
    nowhere = f"Measured on no file: {', '.join(f'`{name}`' for name in absent)}. " if absent else ""
    return f"""## Not covered

No recorded file has log-probabilities of sampled text, so estimators that need them, or ask a further question, are
measured only on the embedded model (1.5 million weights, answers of a few words) and the first 500 questions of this
file:

    calibrate collect examples/tiny_model/questions/open.jsonl --model transformers:examples/tiny_model/orrin-1.5m \\
      -s semantic_entropy -s p_true -s verbalised -s selfcheck_prompt --max-tokens 16 --out RECORDS
    calibrate label RECORDS --rule token_f1

{nowhere}No trained entailment model was available."""


def _wrapped(text: str) -> str:
    """Paragraphs filled to 120 columns; tables, headings and commands as they are."""
    plain = ("|", "#", "    ")
    return "\n\n".join(
        block if block.startswith(plain) else textwrap.fill(block, 120, break_long_words=False, break_on_hyphens=False)
        for block in text.split("\n\n")
    )
