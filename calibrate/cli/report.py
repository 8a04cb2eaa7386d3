"""The command that shows what a gate does and promises: report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from guardrail.artifact import Artifact, CalibrationArtifact, CascadeArtifact, RouterArtifact, load_artifact
from guardrail.describe import caveats_of, not_covered
from guardrail.errors import UsageError

from ..data.progress import bar
from ..data.records import RecordFile
from ..evaluation.audit import audit
from ..evaluation.promise_test import ALONE
from ..judging import keys_of_score, require_same
from ..report import assessment, parts_of, write_report
from ..report.facts import facts
from ..rules import RULES
from ..scoring.names import stored_key
from .frame.app import command
from .frame.files import keep_inputs, open_pool
from .frame.next_commands import fit_flags, fresh_command, listed
from .frame.options import CutOption, MapOption, RightOption, TableFlags, chosen_estimator
from .frame.terminal import console, finish, print_line
from .frame.verdicts import conclude, print_cascade, print_facts, print_more, print_router, print_verdict

__all__ = ["report"]


@command("report", "calibrating.md#report")
def report(
    records: Annotated[
        list[Path],
        typer.Argument(help="Record files the artifact was fitted on; or an artifact alone, to say it in words."),
    ],
    artifact: Annotated[Path, typer.Option("--artifact", help="Artifact that `fit` wrote.")] = Path("artifact.json"),
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file; figures go next to it.")] = Path("report.html"),
    test: Annotated[list[Path] | None, typer.Option(help="Record file kept out of the fit, if it is another.")] = None,
    estimator: Annotated[str | None, typer.Option("--score", "-s", help="Key of the scores, if several fit.")] = None,
    splits: Annotated[int, typer.Option(help="Random splits for the table of rules; 0 leaves it out.", min=0)] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="An artifact alone: its content, for programs.")] = False,
    map: MapOption = None,
    right: RightOption = None,
    cut: CutOption = None,
) -> None:
    """Write one HTML page that shows what the gate does; of an artifact alone, say in words what it promises.

    Example: calibrate report records.jsonl --artifact artifact.json
    Example: calibrate report artifact.json

    Labelled questions that were not fitted on, of these files or of --test, stand beside the others as the test part.
    The verdict depends on them as well; exit code 1 if they refute the promise.
    """
    if len(records) == 1 and records[0].suffix == ".json":
        if test:
            raise UsageError(
                f"an artifact alone is said in words. To test its promise: calibrate audit --records {listed(test)} "
                f"--artifact {listed(records)}"
            )
        _say(load_artifact(records[0]), records[0], as_json=as_json)
        return
    if as_json:
        raise UsageError(
            "--json prints the content of an artifact. Name the artifact alone: report ARTIFACT.json --json"
        )
    # A browser shows a file without a suffix as text, or saves it.
    out = out if out.suffix or out.exists() else out.with_suffix(".html")  # what exists is refused, or written again
    keep_inputs([*records, artifact, *(test or ())], [out])
    loaded = load_artifact(artifact)
    if not isinstance(loaded, CalibrationArtifact):
        of_one = "RouterArtifact.load(FILE).artifacts[NAME]" if loaded.kind == "router" else "CascadeArtifact.stages"
        raise UsageError(
            f"a {loaded.kind} has no page. Say it in words: calibrate report {listed([artifact])}, or save one of its "
            f"artifacts ({of_one} in Python)."
        )
    page = _Page(records, test or (), artifact, out, TableFlags(map, right, cut))
    conclude(*_write_page(loaded, page, estimator, splits), f"open {out} in a browser")


@dataclass(frozen=True, slots=True)
class _Page:
    """The files of a page, as a user named them, and the options about tables."""

    records: Sequence[Path]
    test: Sequence[Path]
    artifact: Path
    out: Path
    columns: TableFlags

    def command(self) -> str:
        """The command that writes the page."""
        tested = "".join(f" --test {listed([path])}" for path in self.test)
        return (
            f"calibrate report {listed(self.records)} --artifact {listed([self.artifact])}{self.columns.typed}{tested} "
            f"--out {listed([self.out])}"
        )

    def fit_command(self, artifact: CalibrationArtifact, key: str, n_left_out: int) -> list[str]:
        """The command that makes the artifact, if these files and the artifact tell all of it.

        A custom rule, people's labels and the seed of a test part that was kept out are not in the artifact.
        """
        n_chosen_on = 0 if artifact.data.choice is None else artifact.data.choice.n
        if n_left_out > n_chosen_on or artifact.outcome.rule not in RULES:
            return []
        flags = f"{self.columns.typed} {fit_flags(artifact, key)} --out {listed([self.artifact])}"
        return [f"calibrate fit {listed(self.records)}{flags}"]


def _write_page(
    artifact: CalibrationArtifact, page: _Page, estimator: str | None, splits: int
) -> tuple[list[Path], assessment.VerdictText]:
    """Write the page and print what the test part says; returns the files, and the verdict in words."""
    file = open_pool(page.records, page.columns.settings)
    test_file = open_pool(page.test, page.columns.settings) if page.test else None
    key = estimator_of(file, artifact, estimator)
    for each in (file, test_file):
        if each is not None:
            require_same(artifact, each, key)
    test = () if test_file is None else test_file.records
    parts = parts_of(artifact, file.records, key, test)
    n_tested_here = 0 if page.test else len(parts.test)
    if (extra := assessment.not_fitted_on(parts.n_left_out, n_tested_here)) is not None:
        print_line(extra, "yellow")
    # A part of the record file that was kept out of the fit is not a file.
    alone = fresh_command(artifact, key, page.test, page.artifact, page.columns.typed) if page.test else ALONE
    with bar(console, "writing the report", "splits") as progress:
        written = write_report(
            page.out,
            artifact,
            file.records,
            estimator=key,
            test=test,
            splits=splits,
            commands=[*page.fit_command(artifact, key, parts.n_left_out + n_tested_here), page.command()],
            alone=alone,
            progress=progress,
        )
    audited = audit(artifact, parts.test, key) if parts.test else None
    text = assessment.verdict_text(artifact, audited, alone, assessment.Found(listed(page.records)))
    if audited is not None:
        print_verdict(text)
        print_more(text)
    return written, text


def _say(artifact: Artifact, path: Path, *, as_json: bool) -> None:
    """Print what an artifact promises, and what it does not."""
    if as_json:
        typer.echo(json.dumps({"digest": artifact.digest, **artifact.content}, indent=1))
        return
    if isinstance(artifact, RouterArtifact):
        print_router(artifact)
        return
    if isinstance(artifact, CascadeArtifact):
        print_cascade(artifact, path)
        return
    text = assessment.verdict_text(artifact)
    print_verdict(text, most=None)
    print_line(not_covered(artifact))
    print_facts(facts(artifact), caveats_of(artifact.outcome.rule))
    finish([], *(text.steps or ("Nothing needs doing.",)))


def estimator_of(file: RecordFile, artifact: CalibrationArtifact, name: str | None) -> str:
    """Key of the artifact's estimator in a record file."""
    if name is not None:
        return stored_key(file.header.estimators, name, file.header.plan.bindings)
    keys = keys_of_score(file.header, artifact.estimator)
    return keys[0] if keys else chosen_estimator(file, None)
