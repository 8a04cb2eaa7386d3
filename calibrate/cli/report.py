"""The command that shows what a gate does and promises: report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import NonNegativeInt

from guardrail.artifact import Artifact, CalibrationArtifact, CascadeArtifact, RouterArtifact, load_artifact
from guardrail.describe import caveats_of, not_covered
from guardrail.errors import UsageError

from ..data.progress import bar
from ..evaluation.promise_test import ALONE
from ..judging import keys_of_score, require_same
from ..report import Report
from ..report.assessment import Found, verdict_text
from ..report.facts import facts
from ..rules import RULES
from .frame.app import command
from .frame.files import keep_inputs, open_pool
from .frame.flags import flag, load_settings, with_flags
from .frame.next_commands import fit_flags, fresh_command, listed
from .frame.options import chosen_estimator
from .frame.table_flags import TableFlags
from .frame.terminal import console, finish, print_line
from .frame.verdicts import conclude, print_cascade, print_facts, print_more, print_router, print_verdict


class Page(TableFlags):
    """Settings of a report. Every field is a flag of `report`."""

    artifact: Path = flag("", "Artifact that `fit` wrote.", Path("artifact.json"))
    out: Path = flag("", "HTML file; figures go next to it.", Path("report.html"), "-o")
    test: tuple[Path, ...] = flag("", "Record file kept out of the fit, if it is another.", (), metavar="FILE")
    splits: NonNegativeInt = flag("", "Random splits for the table of rules; 0 leaves it out.", 100)
    as_json: bool = flag("", "An artifact alone: its content, for programs.", False, name="--json")


@command("report", "calibrating.md#report")
@with_flags(Page)
def report(
    *,
    records: Annotated[
        list[Path],
        typer.Argument(help="Record files the artifact was fitted on; or an artifact alone, to say it in words."),
    ],
    given: dict[str, Any],
) -> None:
    """Write one HTML page that shows what the gate does; of an artifact alone, say in words what it promises.

    Example: calibrate report records.jsonl --artifact artifact.json
    Example: calibrate report artifact.json

    Labelled questions that were not fitted on, of these files or of --test, stand beside the others as the test part.
    The verdict depends on them as well; exit code 1 if they refute the promise.
    """
    asked = load_settings(Page, None, given)
    if len(records) == 1 and records[0].suffix == ".json":
        if asked.test:
            raise UsageError(
                "an artifact alone is said in words. To test its promise: calibrate audit --records "
                f"{listed(asked.test)} --artifact {listed(records)}"
            )
        _say(load_artifact(records[0]), records[0], as_json=asked.as_json)
        return
    if asked.as_json:
        raise UsageError(
            "--json prints the content of an artifact. Name the artifact alone: report ARTIFACT.json --json"
        )
    _write_page(asked, records)


def _write_page(asked: Page, records: Sequence[Path]) -> None:
    """Write the page about an artifact and its records; with a test part print what that says."""
    artifact, test = asked.artifact, asked.test
    # A browser shows a file without a suffix as text, or saves it.
    whole = asked.out.suffix or asked.out.exists()  # what exists is refused, or written again
    out = asked.out if whole else asked.out.with_suffix(".html")
    keep_inputs([*records, artifact, *test], [out])
    loaded = load_artifact(artifact)
    if not isinstance(loaded, CalibrationArtifact):
        of_one = "RouterArtifact.load(FILE).artifacts[NAME]" if loaded.kind == "router" else "CascadeArtifact.stages"
        raise UsageError(
            f"a {loaded.kind} has no page. Say it in words: calibrate report {listed([artifact])}, or save one of its "
            f"artifacts ({of_one} in Python)."
        )
    file = open_pool(records, asked.columns)
    tested = open_pool(test, asked.columns) if test else None
    keys = keys_of_score(file.header, loaded.estimator)
    key = keys[0] if keys else chosen_estimator(file, None)
    for record_file in filter(None, (file, tested)):
        require_same(loaded, record_file, key)
    page = Report.of(
        loaded,
        file.records,
        key,
        () if tested is None else tested.records,
        # A part of the record file that was kept out of the fit is not a file.
        alone=fresh_command(loaded, key, test, artifact, asked.typed) if test else ALONE,
        found=Found.of(file, key, file.records, records=listed(records)),
    )
    if page.note is not None:
        print_line(page.note, "yellow")
    read, named = f"{listed(records)}{asked.typed}", "".join(f" --test {listed([path])}" for path in test)
    commands = [f"calibrate report {read} --artifact {listed([artifact])}{named} --out {listed([out])}"]
    if _is_whole_fit(page):
        commands.insert(0, f"calibrate fit {read} {fit_flags(loaded, key)} --out {listed([artifact])}")
    with bar(console, "writing the report", "splits") as progress:
        written = page.write(out, splits=asked.splits, commands=commands, progress=progress)
    if page.audited is not None:
        print_verdict(page.text)
        print_more(page.text)
    conclude(written, page.text, f"open {out} in a browser")


def _is_whole_fit(page: Report) -> bool:
    """Whether the record files and the artifact tell all about its fit.

    A custom rule, people's labels and the seed of a test part that was kept out are not in the artifact.
    """
    choice = page.artifact.data.choice
    return page.n_others <= (0 if choice is None else choice.n) and page.artifact.outcome.rule in RULES


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
    text = verdict_text(artifact)
    print_verdict(text, most=None)
    print_line(not_covered(artifact))
    print_facts(facts(artifact), caveats_of(artifact.outcome.rule))
    finish([], *(text.steps or ("Nothing needs doing.",)))
