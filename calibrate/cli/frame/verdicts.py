"""The verdict on an artifact, printed: panel, tables, warnings, and the end of the command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from guardrail.artifact import CalibrationArtifact, CascadeArtifact
from guardrail.notebook import percent
from guardrail.specs import EstimatorSpec
from guardrail.uncertainty.combine import COMBINATIONS
from guardrail.uncertainty.registry import advice

from ...data.records import Record, RecordFile
from ...evaluation.choice import Chosen
from ...evaluation.label_checks import suspicious, unread_answers
from ...evaluation.planning import labels_needed
from ...ledger import Ledger
from ...pipeline import GateCounts
from ...report.content import estimator_rows
from ...report.sentences import VerdictText, fits_line, second_look, unread
from .terminal import console, finish, print_line, shortened, table

__all__ = [
    "conclude",
    "print_advice",
    "print_choice",
    "print_facts",
    "print_fits",
    "print_labels_needed",
    "print_ranked",
    "print_second_look",
    "print_unread",
    "print_verdict",
]


def print_verdict(text: VerdictText) -> None:
    """Print the verdict in a panel, and a table of both parts."""
    if text.opening is not None:
        print_line(text.opening)
    verdict, (headline, *reasons) = text.verdict, map(escape, text.paragraphs)
    body = "\n\n".join([f"[bold red]{headline}[/]" if verdict.colour == "red" else headline, *reasons])
    console.print(Panel(body, title=verdict.title, title_align="left", border_style=verdict.colour))
    print_line(text.in_use, "bold")
    for line in text.promises:
        print_line(line)
    if text.parts:
        heads = ("part", "questions", "wrong, no gate", "answered", "wrong among answered")
        console.print(table("", heads, [(name, *_counted(counts)) for name, counts in text.parts]))


def print_facts(facts: Iterable[tuple[str, str]], caveats: Iterable[str]) -> None:
    """Print what was calibrated, and what the promise does not cover."""
    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows.add_column(style="bold", overflow="fold", max_width=24)
    rows.add_column(overflow="fold")
    for name, value in facts:
        rows.add_row(escape(name), escape(value))
    console.print(rows, highlight=False)
    console.print("\n[bold]What this does not promise[/bold]")
    for caveat in caveats:
        print_line(f"- {caveat}")


def _counted(counts: GateCounts) -> list[str]:
    wrong = counts.n - counts.n_correct
    shares = [(wrong, counts.n), (counts.n_accepted, counts.n_asked), (counts.n_errors, counts.n_accepted)]
    return [str(counts.n), *(f"{percent(k / n)} ({k})" if n else "-" for k, n in shares)]


def print_fits(artifact: CalibrationArtifact | CascadeArtifact, ledger: Ledger) -> None:
    """Print what several fits on the same labels do to the promise, if there were several."""
    if (text := fits_line(artifact)) is not None:
        print_line(text, "yellow")
    if ledger.unwritten is not None:
        print_line(f"{ledger.unwritten} cannot be written, so later fits will not count this one.", "yellow")


def print_labels_needed(artifact: CalibrationArtifact) -> None:
    """Print how many labels would do where a certificate found no threshold."""
    if (text := labels_needed(artifact)) is not None:
        print_line(f"{text} (--rule acrc needs fewer and certifies nothing.)")


def print_second_look(records: Sequence[Record], key: str, most: int = 3) -> None:
    """Print how many labels contradict an extreme score, and the first few.

    Scores and grades alone show nothing to compare: then ids and questions are printed, which the user's files know.
    """
    contradicting = suspicious(records, key)
    text = second_look(contradicting)
    if text is None:
        return
    print_line(f"Have a second look: {text[0].lower()}{text[1:]}", "yellow")
    for kind, some in (("wrong", contradicting.wrong), ("right", contradicting.right)):
        for record in some[:most]:
            answer, against = record.shown_answer, " / ".join(record.references)
            parts = [f"answered {shortened(answer)}"] if answer else []
            parts += [f"reference {shortened(against)}"] if against else []
            nothing = f"asked {shortened(record.question)}, neither answer nor reference on file"
            print_line(f"  {record.id}, labelled {kind}: {', '.join(parts) or nothing}")
    looked = (*contradicting.wrong[:most], *contradicting.right[:most])
    if not any(record.shown_answer for record in looked):
        print_line("  These records have no answers: look them up where the answers were graded.")
    elif not any(record.references for record in looked):
        print_line("  These records have no references: judge the answers by what you know of the questions.")


def print_unread(file: RecordFile, key: str) -> None:
    """Print how many answers agree with none of their samples, where the score does not read the answer."""
    if (text := unread(key, unread_answers(file, key))) is not None:
        print_line(text, "yellow")


def print_ranked(spec: EstimatorSpec) -> None:
    """Print how many questions a score ranks others by."""
    if (ranks := spec.params.get("ranks")) is not None and spec.name in COMBINATIONS:
        n = len(ranks["questions"]["ids"])
        print_line(f"{spec.name} ranks answers by {n} questions, which the fit leaves out.")


def print_advice(keys: Iterable[str]) -> None:
    """Print which of these scores another one replaces."""
    for line in advice({key.partition(":")[0] for key in keys}):
        print_line(line, "yellow")


def print_choice(chosen: Chosen, most: int = 10) -> None:
    """Print the comparison by which `--score auto` chose."""
    rows = [
        (row.name, row.auroc, row.interval, str(row.n_unmeasured))
        for row in estimator_rows(chosen.ranking[:most], chosen.estimator)
    ]
    n, rest = chosen.choice.n, len(chosen.ranking) - len(rows)
    title = f"Scores on {n} questions that the fit does not use" + (f" ({rest} more rank lower)" if rest else "")
    console.print(table(title, ("uncertainty", "AUROC", "95 % interval", "not measured"), rows))
    print_advice(key for key, *_ in rows)
    print_line(
        f"Chosen: {chosen.estimator}, on {percent(chosen.choice.share)} of the questions. The fit uses the other "
        f"{len(chosen.rest)} questions, so the choice costs labels and nothing of delta."
    )


def conclude(written: Sequence[Path], text: VerdictText, otherwise: str) -> None:
    """Print the files written and the next command: a remedy where the test part speaks against the gate.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise, so that a job that uses the artifact stops.
    """
    first, *others = text.steps[:2] if text.speaks_against else [otherwise]
    finish(written, first)
    for other in others:
        print_line(f"      {other}")
    if text.verdict.status == "refuted":
        raise typer.Exit(1)
