"""A router's artifact in words: a table of its groups, and the audits of their promises."""

from __future__ import annotations

from collections.abc import Mapping

from guardrail.artifact import RouterArtifact
from guardrail.describe import promises, together
from guardrail.notebook import percent

from ...evaluation.audit import Audit
from .terminal import console, print_line, print_words, table

__all__ = ["print_audits", "print_router"]


def print_router(artifact: RouterArtifact) -> None:
    """Print a row for each group, and what all of them promise together."""
    rows = []
    for name, part in artifact.artifacts.items():
        n, k, e = len(part.calibration.error), part.outcome.n_accepted, part.outcome.n_errors
        rows.append(
            (
                name,
                str(n),
                percent(sum(part.calibration.error) / n) if n else "-",
                "nothing" if part.threshold is None else part.estimator.limit(part.threshold),
                percent(part.acceptance),
                f"{percent(e / k)} ({e} of {k})" if k else "-",
            )
        )
    columns = ("group", "labels", "wrong, no gate", "answers if", "answered", "wrong among answered")
    console.print(table("Groups", columns, rows))
    for line in promises(artifact):
        print_words(line)
    print_words(together(artifact), "bold")
    nothing = [name for name, part in artifact.artifacts.items() if part.calibration.error and part.threshold is None]
    if nothing:
        print_line(f"Nothing is answered in: {', '.join(nothing)}. Label more questions of these groups.", "yellow")


def print_audits(audits: Mapping[str, Audit]) -> None:
    """Print a row for each group that was tested on fresh questions."""
    rows = [
        (
            name,
            str(result.held_out.n),
            percent(result.held_out.acceptance[0]),
            f"{percent(result.n_errors / result.n)} ({result.n_errors} of {result.n})",
            result.verdict,
        )
        for name, result in audits.items()
    ]
    columns = ("group", "questions", "answered", "wrong among answered", "its promise")
    console.print(table("Groups on the test questions", columns, rows))
