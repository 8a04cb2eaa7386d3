"""The commands before anything is labelled: plan, how many questions to label, and sample, which ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import PydanticUndefined

from guardrail.describe import scope_in_words
from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.outcome import CERTIFIED
from guardrail.types import Frozen

from ..data.progress import bar
from ..data.records import RecordFile, header_of, read_records, write_records
from ..data.split import one_per_question
from ..evaluation.planning import DEFAULT_SIZES, Plan, plan_scope
from ..evaluation.planning import plan as simulate
from ..evaluation.populations import Population
from ..pipeline import described
from ..rules import PLANNED
from ..scope import draw_to_label, refuse_scope_after_labels
from ..scoring.items import ScoredItems
from ..scoring.scores import arrays
from .frame.app import command
from .frame.files import keep_inputs, open_pool
from .frame.flags import Texts, flag, load_settings, with_flags
from .frame.options import chosen_estimator, refuse_options, refuse_with_items
from .frame.terminal import console, finish, print_line, table


class Planned(Frozen):
    """Settings of a simulation. Every field is a flag of `plan`."""

    alpha: float = flag("", "Share of wrong answers accepted.", PydanticUndefined, "-a")
    accuracy: float | None = flag("", "Your guess of the share of right answers, e.g. 0.7.")
    auroc: float | None = flag("", "Your guess of the AUROC of the score, e.g. 0.75.")
    acceptance: float | None = flag("", "Share of questions to answer. Default: half of what is possible.")
    rule: Texts = flag("", f"Default: {', '.join(PLANNED['answer'])}.", (), metavar="NAME")
    n: tuple[int, ...] = flag("", "Labelled questions (100 to 3000).", (), metavar="N")
    records: tuple[Path, ...] = flag("", "Scored records without labels: where to spend labels.", (), metavar="FILE")
    pilot: tuple[Path, ...] = flag("", "A hundred or more labelled records, instead of guesses.", (), metavar="FILE")
    labels: tuple[int, ...] = flag("", "With --records: labels you can afford (300).", (), metavar="N")
    score: str | None = flag("", "Which score, if the file has several.", None, "-s", "NAME")
    repetitions: int = flag("", "Simulated calibrations.", 300, ge=2)
    items: bool = flag("", "Keep or hold back each item (field of JSON).", False)


@command("plan", "calibrating.md#plan-how-many-questions-to-label")
@with_flags(Planned)
def plan(*, given: dict[str, Any]) -> None:
    """Estimate how many questions to label for a wanted acceptance, by simulation with each rule. No model is called.

    Example: calibrate plan -a 0.1 --accuracy 0.7 --auroc 0.8 --acceptance 0.3
    Example: calibrate plan --alpha 0.1 --pilot pilot.jsonl

    With --pilot it simulates the pilot's real scores, ties included. With --records it uses the real scores of
    unlabelled questions, and says from which part of them to draw the questions that people label.
    """
    asked = load_settings(Planned, None, given)
    if asked.items:
        others = ("score", "accuracy", "auroc", "records", "labels")
        refuse_with_items(**{name: getattr(asked, name) for name in others})
        if not asked.pilot:
            raise UsageError("--items plans from a pilot: a hundred or more records with labelled items, as --pilot.")
    if asked.records:
        refuse_options("has no effect with --records. Leave it out.", n=asked.n, acceptance=asked.acceptance)
        _plan_scopes(asked)
        return
    if asked.labels:
        raise UsageError(
            "--labels needs --records, the scored questions to choose from. Use --n for numbers of labels."
        )
    if not asked.pilot and None in (asked.accuracy, asked.auroc):
        raise UsageError("give --accuracy and --auroc (guesses), or labelled records as --pilot, or --records.")
    with bar(console, "simulating", "calibrations") as progress:
        result = simulate(
            asked.alpha,
            accuracy=asked.accuracy,
            auroc=asked.auroc,
            pilot=_pilot(asked) if asked.pilot else None,
            target_acceptance=asked.acceptance,
            rules=asked.rule or None,
            sizes=asked.n or DEFAULT_SIZES,
            repetitions=asked.repetitions,
            progress=progress,
        )
    _print_result(result)
    following = f"calibrate fit RECORDS --items --alpha {asked.alpha:g}"
    finish([], following if asked.items else "calibrate collect QUESTIONS --model MODEL --out records.jsonl")


def _pilot(asked: Planned) -> Population:
    """Labelled records as a population, of whole answers or of answers with their items."""
    if not asked.items:
        return Population.of_pilot(*_labelled(asked.pilot, asked.score))
    file = open_pool(asked.pilot)
    spec = described(file, ITEMS)
    return Population.of_items(ScoredItems.of(one_per_question(file.records), ItemsSpec.of(spec)).items)


def _labelled(pilot: Sequence[Path], estimator: str | None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores and errors of a pilot."""
    file = open_pool(pilot)
    scored = arrays(file.records, chosen_estimator(file, estimator))
    return scored.uncertainty, scored.error.astype(np.int64)


def _plan_scopes(asked: Planned) -> None:
    """Print the acceptance where labels are drawn from all questions, or from those of the lowest scores only."""
    rule, *others = asked.rule or (CERTIFIED,)
    if others:
        raise UsageError(f"--records compares scopes for one rule, got {1 + len(others)}. Name one --rule.")
    file = open_pool(asked.records)
    key = chosen_estimator(file, asked.score)
    scores = file.records.scores(key)
    scores = scores[~np.isnan(scores)]
    if not scores.size:
        raise UsageError(f"{file.path} has no {key!r} scores. Run: calibrate score {file.typed}")
    if asked.pilot:
        population, errors = Population.of_pilot(*_labelled(asked.pilot, key), at=scores), "as in the pilot"
    elif asked.accuracy is not None and asked.auroc is not None:
        population = Population.binormal(asked.accuracy, asked.auroc).with_ranks_of(scores)
        errors = "by the guessed accuracy and AUROC"
    else:
        raise UsageError(
            "--records needs to know how often answers are wrong: give --pilot, or guesses as --accuracy and --auroc."
        )
    budgets, repetitions = sorted(set(asked.labels or (300,))), asked.repetitions
    with bar(console, "simulating", "scopes") as progress:
        plans = plan_scope(
            population, alpha=asked.alpha, labels=budgets, rule=rule, repetitions=repetitions, progress=progress
        )
    if not plans:
        raise UsageError(f"{scores.size} scored questions are too few to draw {budgets[0]} from. Score more.")
    cells = {cell: f"{100 * accepted:.1f} ({100 * none:.0f})" for cell, (accepted, none) in plans.items()}
    shown = [
        ["all" if share == 1 else f"lowest {share:.0%}", *(cells.get((share, n), "-") for n in budgets)]
        for share in sorted({share for share, _ in plans}, reverse=True)
    ]
    print_line(
        f"Answered of all questions, % (in brackets: calibrations that answer nothing, %), by rule {rule}, where "
        "labels are drawn from all questions or from the lowest scores only:"
    )
    console.print(table("", ["labels from", *map(str, budgets)], shown))
    print_line(f"Simulated: {repetitions} calibrations on {scores.size} real scores, errors {errors}.", "dim")
    flags = " ".join(f"--records {shlex.quote(str(path))}" for path in asked.records)
    share, n = max(plans, key=lambda cell: (cell[1], plans[cell][0]))
    finish([], f"calibrate sample {flags} --scope {share:g} --n {n}")


def _print_result(plan: Plan) -> None:
    shown = plan.table()
    console.print(table(plan.title, shown.heads, shown.rows))
    opening, *lines = plan.words
    print_line(opening)
    for line in lines:
        print_line(f"- {line}")
    kind = "normal scores" if plan.populations == "binormal" else "the pilot's scores,"
    caution = "Real scores differ" if plan.populations == "binormal" else "Another pilot would differ"
    print_line(
        f"Simulated: {plan.repetitions} calibrations of {kind} with accuracy {plan.accuracy:.3g} and AUROC "
        f"{plan.auroc:.3g}. {caution}; take the numbers as orders of magnitude.",
        "dim",
    )


def _labelled_draws(folders: Iterable[Path]) -> list[RecordFile]:
    """The record files of folders that `calibrate sample` drew and that have labels."""
    drawn = []
    for path in sorted({path for folder in folders for path in folder.glob("*.jsonl")}):
        header = header_of(path)
        if header is not None and header.scope.is_drawn and header.correctness is not None:
            drawn.append(read_records(path))
    return drawn


class Draw(Frozen):
    """Settings of a draw. Every field is a flag of `sample`."""

    records: tuple[Path, ...] = flag("", "Scored records without labels.", PydanticUndefined, metavar="FILE")
    n: int = flag("", "Questions to label.", PydanticUndefined)
    scope: float = flag(
        "",
        "Share of the lowest scores to draw from; 1 for all questions. Below 1, 300 labels at a scope of 0.5 need "
        "3 x 300 / 0.5 = 1800 scored questions",
        1.0,
    )
    out: Path = flag("", "Record file to write.", Path("to-label.jsonl"), "-o")
    score: str | None = flag("", "Which score, if the file has several.", None, "-s", "NAME")
    without_failed: bool = flag("", "Draw although more than 1 % of the questions failed.", False)


@command("sample", "label-where-it-matters.md")
@with_flags(Draw)
def sample(*, given: dict[str, Any]) -> None:
    """Draw what to label, where labels matter: at random from the share of the lowest scores.

    Example: calibrate sample --records scored.jsonl --scope 0.5 --n 300

    Questions above the cut will never be answered, so a label on them is wasted. The file that is written remembers how
    it was drawn; `label` and `fit` take it, and acceptance is counted over all questions. `plan --records` compares
    scopes. A scope that differs from that of a labelled draw of the same questions, in the same folder, is refused.
    """
    asked = load_settings(Draw, None, given)
    records, out = asked.records, asked.out
    keep_inputs(records, [out])
    file = open_pool(records)
    key = chosen_estimator(file, asked.score)
    refuse_scope_after_labels(file, asked.scope, _labelled_draws({path.parent for path in (*records, out)}))
    drawn = draw_to_label(file, key, share=asked.scope, n=asked.n, without_failed=asked.without_failed)
    write_records(out, drawn.header, drawn.records)
    print_line(f"{scope_in_words(drawn.header.scope, file.header.estimators[key])}.")
    name = shlex.quote(str(out))
    finish([out], f"calibrate label {name}, then calibrate fit {name} --rule certified --alpha ALPHA")
