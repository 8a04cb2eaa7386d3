"""Commands that make and explain artifacts: fit, inspect."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from guardrail.artifact import CalibrationArtifact, Reach
from guardrail.errors import ArtifactError, UsageError
from guardrail.outcome import Infeasible

from ..data.column_store import in_memory, share_ids
from ..data.labels import GivenLabels, read_labels
from ..data.records import Record, RecordFile, with_other_ids, write_records
from ..data.split import Groups, split
from ..evaluation.audit import Audit, audit
from ..evaluation.choice import AUTO, Chosen, choose_estimator
from ..evaluation.label_checks import suspicious
from ..pipeline import GateCounts, fit_artifact, looked_before, part_header, refuse_fitted, require_same
from ..prediction_powered import artifact_with_people
from ..report import sentences
from ..report.content import estimator_rows
from ..report.sentences import (
    caveats,
    certificate,
    facts,
    headline,
    next_steps,
    no_early_stopping,
    ranking,
    second_look,
)
from ..scoring.metrics import ks_two_sample
from ..scoring.reach import waiting_of
from ..scoring.scores import arrays
from ..segments import BySegment
from ..thresholds.registry import rules
from .frame import RecordsArgument, app, console, finish, keep_inputs, listed, open_pool, print_line, table
from .label import print_structured, shortened
from .score import chosen_estimator

__all__ = [
    "LooksOption",
    "conclude",
    "fit",
    "fit_flags",
    "inspect",
    "merged_command",
    "parsed_looks",
    "print_choice",
    "print_no_early_stopping",
    "print_second_look",
    "print_tested_segments",
    "print_verdict",
    "warn_incomplete",
]

AGAINST = ("refuted", "above")
"""Verdicts in which the test part speaks against the gate."""

LooksOption = Annotated[
    str | None,
    typer.Option(help="Numbers of labels at which you will look, e.g. 100,200,400; each look spends a part of delta."),
]

ByOption = Annotated[
    Literal["group"] | None,
    typer.Option(help="Certify a threshold for each group (intent, topic) instead of one for all questions."),
]


@app.command()
def fit(
    records: RecordsArgument,
    alpha: Annotated[float, typer.Option("--alpha", "-a", help="Share of wrong answers you accept among those given.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path("artifact.json"),
    estimator: Annotated[
        str | None,
        typer.Option(
            "--estimator",
            "-e",
            help="Default: semantic_entropy, or predictive_entropy with options. auto: the one with the highest AUROC "
            "on 30 % of the questions, which the fit does not use.",
        ),
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="Threshold rule: acrc (the paper's; default), certified (provable), ...")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Failure probability, for rules that have one (0.1).")] = None,
    cluster_by_group: Annotated[
        bool,
        typer.Option("--cluster-by-group", help="Groups are conversations, users, documents: use one question each."),
    ] = False,
    test_fraction: Annotated[
        float, typer.Option(help="Keep this share of the records out of the fit and test on it.")
    ] = 0.0,
    test: Annotated[
        list[Path] | None, typer.Option(help="Record file to test on, scored and labelled. May be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    by: ByOption = None,
    segment_delta: Annotated[
        Literal["together", "each"],
        typer.Option(help="With --by: one delta for all segments together (divided among them), or for each."),
    ] = "together",
    unknown_segment: Annotated[
        Literal["others", "abstain"],
        typer.Option(help="With --by: questions of other segments get a threshold fitted on the others, or abstain."),
    ] = "others",
    min_labels: Annotated[int, typer.Option(help="With --by: labels a group needs for a threshold.")] = 50,
    human_labels: Annotated[
        Path | None,
        typer.Option(help="Labels people gave to a random sample; the records' own are then a judge's."),
    ] = None,
    look: Annotated[
        int | None,
        typer.Option(help="Of several declared looks: which one this is, from 1. It spends its part of delta."),
    ] = None,
    looks: LooksOption = None,
) -> None:
    """Fit the threshold and write the artifact.

    Choose alpha before you look at results. The artifact always also says what can be [italic]certified[/italic] (90 %
    confidence) on the same scores, for every rule. Exit code 1 if the questions kept out of the fit refute the promise.

    Example: [cyan]calibrate fit records.jsonl --alpha 0.1 --test-fraction 0.3 --out artifact.json[/cyan]
    """
    kept_out, asked_people = out.with_suffix(".test.jsonl"), out.with_suffix(".human.jsonl")
    also = [kept_out] if test_fraction else [asked_people] if human_labels is not None else []
    keep_inputs([*records, *(test or ()), human_labels, estimator], [out, *also])
    _refuse_conflicts(
        people=human_labels is not None,
        rule=any(one is not None for one in (rule, look, looks)),
        look=look is not None,
        segments=by is not None,
        clusters=cluster_by_group,
        test=bool(test),
        test_fraction=bool(test_fraction),
    )
    file = open_pool(records)
    key = _key(file, estimator, reads_all=human_labels is not None or look is not None)
    print_structured(file, key)
    groups: Groups = "cluster" if cluster_by_group else "category"
    if human_labels is not None:
        _fit_with_people(in_memory(file), key, human_labels, alpha, delta, out, asked_people)
        return
    part: Sequence[Record] = file.records
    rest: Sequence[Record] | None = None
    tested = open_pool(test) if test else None
    if tested is not None:
        rest = tested.records
    elif test_fraction:
        part, rest = split(file.records, test_fraction=test_fraction, seed=seed, groups=groups)
    warn_incomplete(file)
    rule = rule or ("certified" if by else "acrc")
    choice = None
    if key == AUTO:
        chosen = choose_estimator(file, alpha=alpha, rule=rule, delta=delta, groups=groups, part=tuple(part), seed=seed)
        print_choice(chosen)
        key, part, choice = chosen.estimator, chosen.rest, chosen.choice
    artifact = fit_artifact(
        file,
        estimator=key,
        alpha=alpha,
        rule=rule,
        delta=delta,
        groups=groups,
        part=None if look is not None else part,
        look=look,
        looks=parsed_looks(looks),
        by=BySegment(segment_delta, unknown_segment, min_labels) if by else None,
        choice=choice,
    )
    if tested is not None:
        require_same(artifact, tested, key)
        refuse_fitted(artifact, tested.records, "test")
    out.parent.mkdir(parents=True, exist_ok=True)
    _warn_looked_before(artifact, out)
    artifact.save(out)
    written = [out]
    if rest is not None and tested is None:
        write_records(kept_out, part_header(file.header, rest), rest)
        written.append(kept_out)
    audited = None if rest is None else audit(artifact, rest, key)
    # A part kept out by --test-fraction is in the record file, which is merged already.
    merged = merged_command(artifact, key, records, test or (), out)
    print_verdict(artifact, audited, merged)
    print_no_early_stopping(artifact)
    print_second_look(part, key)
    if audited is not None:
        _print_share((file if tested is None else tested).header.reach)
    tests = [kept_out] if test_fraction else test or ()
    usual = f"calibrate report {listed(records)} --artifact {shlex.quote(str(out))}"
    usual += "".join(f" --test {shlex.quote(str(path))}" for path in tests)
    conclude(written, artifact, audited, merged, usual)


def _refuse_conflicts(
    *, people: bool, rule: bool, look: bool, segments: bool, clusters: bool, test: bool, test_fraction: bool
) -> None:
    """Refuse options of `fit` that exclude each other, before a file is read."""
    if people and (rule or segments or clusters or test or test_fraction):
        raise UsageError(
            "--human-labels brings its own rule (prediction_powered) and tests nothing: leave out --rule, --test, "
            "--test-fraction, --look, --looks, --by and --cluster-by-group. To test its artifact use `calibrate audit`."
        )
    if segments and clusters:
        raise UsageError("groups are segments (--by group) or clusters (--cluster-by-group). Leave out one of the two.")
    if test and test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")
    if test_fraction and look:
        raise UsageError("a look reads all labels up to it: leave out --test-fraction, and test on other questions.")


def _key(file: RecordFile, estimator: str | None, *, reads_all: bool) -> str:
    """Key of the scores, or AUTO."""
    if estimator != AUTO:
        return chosen_estimator(file, estimator)
    if reads_all:
        raise UsageError(
            "--estimator auto chooses on a random part of the labels, and --human-labels and --look read all of them. "
            "Name an estimator."
        )
    return AUTO


def _print_share(reach: Reach | None) -> None:
    """Say what a test part within reach is a share of."""
    if reach is not None and reach.leaves_out:
        share = sentences.percent(reach.n_within / reach.n_pool)
        print_line(f"Those questions lie within reach, which {share} of all questions do; no other is answered.")


def parsed_looks(text: str | None) -> tuple[int, ...]:
    """The numbers of labels in "100,200,400"; none for None.

    Raises:
        UsageError: Anything else.
    """
    try:
        return () if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"looks are whole numbers of labels with commas between them, got {text!r}. Write 100,200,400."
        ) from None


def _warn_looked_before(artifact: CalibrationArtifact, out: Path) -> None:
    """Warn where an artifact at --out, or next to it, is an earlier look at fewer labels of the same questions."""
    for path in filter(Path.is_file, sorted(out.parent.glob("*.json"))):
        try:
            with path.open("rb") as file:
                head = file.read(2**18)
            used = re.search(rb'\n  "n_used": (\d+)', head)
            if not head.startswith(b'{\n "digest"') or used is None or int(used[1]) >= artifact.data.n_used:
                continue  # other JSON, or no look at fewer labels; either may take long to read
            earlier = CalibrationArtifact.load(path)
        except (ArtifactError, OSError):
            continue
        if looked_before(earlier, artifact):
            print_line(
                f"{path} was fitted on {earlier.outcome.n} labels of these questions, this artifact on "
                f"{artifact.outcome.n}, and the looks were not declared together: the promise is weaker. Each "
                "certificate holds by itself, but the one you choose after seeing both may fail with the sum of their "
                "probabilities. Declare looks before the first label (calibrate sample --looks 100,200,400).",
                "yellow",
            )
            return


def _fit_with_people(
    file: RecordFile, key: str, human_labels: Path, alpha: float, delta: float | None, out: Path, sample_path: Path
) -> None:
    """A judge's labels on all records, people's on a random sample of them."""
    warn_incomplete(file)
    labels = read_labels(human_labels)
    artifact, sample = artifact_with_people(file, labels, estimator=key, alpha=alpha, delta=delta)
    _warn_not_random(file, labels, key)
    out.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(out)
    write_records(sample_path, sample.header, sample.records)
    print_verdict(artifact)
    print_no_early_stopping(artifact)
    print_second_look(sample.records, key)
    finish([out, sample_path], f"calibrate report {listed([sample_path])} --artifact {listed([out])}")


def _warn_not_random(file: RecordFile, labels: GivenLabels, key: str) -> None:
    pool = arrays(file.records, key)
    seen = np.array([name in labels.correct for name in pool.ids])
    if seen.all():
        return
    distance, p = ks_two_sample(pool.uncertainty[seen], pool.uncertainty[~seen])
    if p < 0.01:
        print_line(
            f"The answers in {labels.path} differ in {key} from the others (largest distance {distance:.2f}, p = "
            f"{p:.2g}): they do not look like a random sample, and only a random one carries the promise.",
            "yellow",
        )


@app.command()
def inspect(
    artifact: Annotated[Path, typer.Argument(help="Artifact that `fit` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="The raw content, for programs.")] = False,
) -> None:
    """Say what an artifact promises, in words.

    Example: [cyan]calibrate inspect artifact.json[/cyan]
    """
    loaded = CalibrationArtifact.load(artifact)
    if as_json:
        typer.echo(json.dumps({"digest": loaded.digest, **loaded.content}, indent=1))
        return
    print_verdict(loaded)
    rows = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in facts(loaded):
        rows.add_row(escape(name), escape(value))
    console.print(rows, highlight=False)
    console.print("\n[bold]What this does not promise[/bold]")
    for caveat in caveats(loaded):
        print_line(f"- {caveat}")
    steps = next_steps(loaded) or ["Nothing needs doing."]
    finish([], steps[0])
    for step in steps[1:]:
        print_line(f"      {step}")


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


def warn_incomplete(file: RecordFile) -> None:
    """Warn when questions, or labels within a draw, are missing: those that are there need not be like the others."""
    missing = file.header.n_questions - len(file.records)
    if missing > 0:
        print_line(
            f"Only {len(file.records)} of {file.header.n_questions} questions are in {file.path}: the collection was "
            "not finished, and the easy ones may have come first. Run the same `calibrate collect` again.",
            "yellow",
        )
    if file.header.reach is None:
        return
    waiting = waiting_of(file.records, file.header).tolist()
    if True in waiting and not all(waiting[waiting.index(True) :]):
        print_line(
            f"{sum(waiting)} of the {len(waiting)} questions that were drawn have no label, and they are not the last "
            "of the draw. If they were left out because they are hard to judge, the promise does not hold. Label the "
            f"first that waits, {file.records[waiting.index(True)].id!r}, and the others before the last label.",
            "yellow",
        )


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
    return [str(counts.n), *(f"{sentences.percent(k / n)} ({k})" if n else "-" for k, n in shares)]


def merged_command(
    artifact: CalibrationArtifact, key: str, records: Sequence[Path], fresh: Sequence[Path], out: Path
) -> str:
    """The command that calibrates on new record files as well: `fit` reads several as one.

    A fresh file with an id of the others (both number their questions from 1) is copied with other ids first.
    """
    files, commands = list(records), []
    for path in fresh:
        if records and share_ids([*records, path]):
            path, command = with_other_ids(path)
            commands.append(command)
        files.append(path)
    target = shlex.quote(str(out.with_name(f"{out.stem}-new.json")))
    return " && ".join([*commands, f"calibrate fit {listed(files)} {fit_flags(artifact, key)} --out {target}"])


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


def fit_flags(artifact: CalibrationArtifact, key: str) -> str:
    """The options of `fit` that make such an artifact; a custom rule has none."""
    outcome, own = artifact.outcome, artifact.segments
    flags = [f"--estimator {shlex.quote(key)} --alpha {artifact.alpha:g}"]
    known = outcome.rule in rules()
    if known:
        flags.append(f"--rule {outcome.rule}")
    if artifact.calibration.group is not None:
        flags.append("--cluster-by-group")
    if own is not None:
        flags.append(
            f"--delta {own.delta:g} --by group --segment-delta {own.share} --unknown-segment {own.unknown} "
            f"--min-labels {own.min_labels}"
        )
    elif known and outcome.delta is not None and artifact.looks is None:
        flags.append(f"--delta {outcome.delta:g}")
    return " ".join(flags)


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
