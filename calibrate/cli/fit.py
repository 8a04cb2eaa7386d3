"""Commands that make and explain artifacts: fit, inspect."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from guardrail.artifact import CalibrationArtifact, Reach
from guardrail.errors import ArtifactError, UsageError

from ..data.column_store import in_memory
from ..data.labels import GivenLabels, read_labels
from ..data.records import Record, RecordFile, write_records
from ..data.split import Groups, split
from ..evaluation.audit import audit
from ..evaluation.choice import AUTO, choose_estimator
from ..pipeline import fit_artifact, looked_before, part_header, refuse_fitted, require_same
from ..prediction_powered import artifact_with_people
from ..report import sentences
from ..report.sentences import (
    caveats,
    facts,
    next_steps,
)
from ..scoring.metrics import ks_two_sample
from ..scoring.scores import arrays
from ..segments import BySegment
from .frame.app import app
from .frame.files import keep_inputs, open_pool, warn_incomplete
from .frame.labels import print_structured
from .frame.next_commands import listed, merged_command
from .frame.options import LooksOption, RecordsArgument, chosen_estimator, parsed_looks
from .frame.terminal import console, finish, print_line
from .frame.verdicts import conclude, print_choice, print_no_early_stopping, print_second_look, print_verdict

__all__ = ["fit", "inspect"]

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
    choice: dict[str, Any] = {}
    if key == AUTO:
        chosen = choose_estimator(file, alpha=alpha, rule=rule, delta=delta, groups=groups, part=tuple(part), seed=seed)
        print_choice(chosen)
        key, part, choice = chosen.estimator, chosen.rest, {"choice": chosen.choice}
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
    )
    artifact = artifact.model_copy(update=choice)
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
