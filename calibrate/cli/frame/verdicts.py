"""The verdict on an artifact, printed: panel, tables, warnings, and the end of the command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.markup import escape
from rich.panel import Panel

from guardrail.artifact import CalibrationArtifact
from guardrail.notebook import percent
from guardrail.outcome import Infeasible

from ...data.records import Record
from ...evaluation.audit import Audit
from ...evaluation.choice import Chosen
from ...evaluation.label_checks import suspicious
from ...pipeline import GateCounts
from ...report import sentences
from ...report.content import estimator_rows
from ...report.sentences import certificate, headline, next_steps, no_early_stopping, ranking, second_look
from .terminal import console, finish, print_line, shortened, table

__all__ = [
    "conclude",
    "print_choice",
    "print_no_early_stopping",
    "print_second_look",
    "print_tested_segments",
    "print_verdict",
]


AGAINST = ("refuted", "above")
"""Verdicts in which the test part speaks against the gate."""


def print_verdict(artifact: CalibrationArtifact, test: Audit | None = None, merged: str = sentences.MERGED) -> None:
    """The verdict, in a panel, and both parts side by side.

    Args:
        artifact: The artifact.
        test: Its audit on questions kept out of the fit, if there are any.
        merged: The command that calibrates on those as well.
    """
    if artifact.calibration.group is not None:
        print_line(f"Groups are clusters: one question of each of {artifact.data.n_questions} groups is used.")
    found, steps = sentences.standing(artifact, test), next_steps(artifact, test, merged)
    tested = [] if test is None else [sentences.held_out(artifact, test.held_out)]
    if isinstance(artifact.outcome, Infeasible) and found.status == "abstains":
        body = [f"Why: {artifact.outcome.detail}", *tested]
    elif found.status == "answers":
        body = [sentences.promise(artifact), certificate(artifact)]
        body += steps[:-1] if artifact.segments is not None else []
        body += [*tested, *(sentences.audited(test) if test is not None else ())]
    else:
        # Where the test part speaks against the gate, the steps hold commands and stand below, where no box cuts them.
        shown = () if found.status in AGAINST else steps[:2]
        body = [*(sentences.audited(test)[1:] if test is not None else ()), *tested, *shown]
    ranked = ranking(artifact)
    also = (ranked, sentences.cut_off_answers(artifact))
    body += [one for one in also if one is not None and one not in body]
    text = "\n\n".join([headline(artifact, test), *body])
    console.print(Panel(escape(text), title=found.title, title_align="left", border_style=found.colour))
    if test is not None:
        heads = ("part", "questions", "wrong, no gate", "answered", "wrong among answered")
        parts = (("calibration", test.at_calibration), ("test", test.held_out))
        console.print(table("", heads, [(name, *_counted(counts)) for name, counts in parts]))
    if rows := sentences.segment_table(artifact):
        columns = ("segment", "questions", "wrong", "threshold", "answered", "wrong", "one: answered", "one: wrong")
        console.print(table("Segments", columns, rows), "one: under one threshold for all questions", highlight=False)
    print_tested_segments(test)


def print_tested_segments(test: Audit | None) -> None:
    """Each segment on the test questions; nothing without segments."""
    if test is not None and test.segments:
        columns = ("segment", "questions", "answered", "wrong among answered", "its promise")
        console.print(table("Segments on the test questions", columns, sentences.tested_segments(test)))


def _counted(counts: GateCounts) -> list[str]:
    wrong = counts.n - counts.n_correct
    shares = [(wrong, counts.n), (counts.n_accepted, counts.n), (counts.n_errors, counts.n_accepted)]
    return [str(counts.n), *(f"{percent(k / n)} ({k})" if n else "-" for k, n in shares)]


def print_no_early_stopping(artifact: CalibrationArtifact, where: str = "") -> None:
    """One line where guards with this artifact draw all samples by default."""
    if (early := no_early_stopping(artifact)) is not None:
        print_line(f"Early stopping{where}: {early[0].lower()}{early[1:]}", "yellow")


def print_second_look(records: Sequence[Record], key: str, most: int = 3) -> None:
    """Labels that contradict an extreme score: how many, and the first few."""
    found = suspicious(records, key)
    text = second_look(found)
    if text is None:
        return
    print_line(f"Have a second look: {text[0].lower()}{text[1:]}", "yellow")
    for kind, some in (("wrong", found.wrong), ("right", found.right)):
        for record in some[:most]:
            against = " / ".join(record.references) or "not on file"
            print_line(
                f"  {record.id}, labelled {kind}: answered {shortened(record.shown_answer or '')}, "
                f"reference {shortened(against)}"
            )


def print_choice(chosen: Chosen, most: int = 10) -> None:
    """How `--estimator auto` chose."""
    rows = [
        (row.name, row.auroc, row.interval, row.acceptance, str(row.n_unmeasured))
        for row in estimator_rows(chosen.ranking[:most], chosen.estimator)
    ]
    n, rest = chosen.choice.n, len(chosen.ranking) - len(rows)
    title = f"Estimators on {n} questions that the fit does not use" + (f" ({rest} more rank lower)" if rest else "")
    console.print(table(title, ("uncertainty", "AUROC", "95 % interval", "accepted", "not measured"), rows))
    print_line(f"Chosen: {chosen.estimator}. The fit uses the other {len(chosen.rest)} questions.")


def conclude(
    written: Sequence[Path | str], artifact: CalibrationArtifact, test: Audit | None, merged: str, otherwise: str
) -> None:
    """Print the files written and what to type next: what would help where the test part speaks against the gate.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise, so that a job that goes on with it stops.
    """
    status = sentences.standing(artifact, test).status
    first, *others = next_steps(artifact, test, merged)[:2] if status in AGAINST else [otherwise]
    finish(written, first)
    for other in others:
        print_line(f"      {other}")
    if status == "refuted":
        raise typer.Exit(1)
