"""The command that makes artifacts: fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from guardrail.describe import PEOPLE
from guardrail.errors import UsageError
from guardrail.outcome import CERTIFIED

from ..cascade import fit_cascade
from ..data.columns import in_memory
from ..data.labels import read_labels
from ..data.records import read_records
from ..evaluation.audit import audit_router
from ..evaluation.choice import AUTO
from ..fitting import DEFAULT_DELTA
from ..ledger import Ledger, counted
from ..prediction_powered import artifact_with_people
from ..router import ByGroup, fit_router
from ..rules.certificate import SHARE
from ..spec_syntax import parse_rule
from .frame.app import command, first_problem
from .frame.files import keep_inputs, warn_incomplete, warn_undecided, warn_unlike
from .frame.fitting import FitJob, Fitted, finish_fit, fit_by_rule, open_job, save_fit
from .frame.flags import load_settings, with_flags
from .frame.next_commands import listed
from .frame.options import chosen_estimator, refuse_options, refuse_with_items
from .frame.terminal import finish
from .frame.verdicts import conclude, print_audits, print_cascade, print_fits, print_router


@command("fit", "calibrating.md#fit")
@with_flags(FitJob)
def fit(
    *,
    records: Annotated[list[Path], typer.Argument(help="Record files, or tables with scores and labels.")],
    given: dict[str, Any],
) -> None:
    """Fit the threshold and write the artifact.

    Example: calibrate fit records.jsonl --alpha 0.1 --test-fraction 0.3
    Example: calibrate fit graded.csv --alpha 0.1

    Choose alpha before you look at results. Exit code 1 if the questions kept out of the fit refute the promise.
    """
    job = load_settings(FitJob, None, {**given, "records": records})
    if job.items:
        refuse_with_items(score=job.score, by=job.by, human_labels=job.human_labels, cascade=job.cascade)
    if job.test and job.test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")
    if job.cascade:
        _fit_cascade(job)
    elif job.human_labels is None and job.by is not None:
        _fit_by_group(job, _by_group(job, job.by))
    else:
        fitted = fit_by_rule(job) if job.human_labels is None else _fit_with_people(job, job.human_labels)
        conclude(fitted.written, fitted.text, fitted.report)


def _by_group(job: FitJob, text: str) -> ByGroup:
    """The settings of --by, as "group:min_labels=20,share=each,others=abstain"."""
    if job.cluster_by_group:
        raise UsageError("groups are kinds (--by group) or clusters (--cluster-by-group). Leave out one of the two.")
    name, settings = parse_rule(text)
    problem = f"got {name!r}"
    if name == "group":
        try:
            return ByGroup(**settings)
        except ValidationError as error:
            problem = first_problem(error)
    raise UsageError(
        "--by must be group, with settings min_labels=NUMBER, share=together or each, and others=fit or abstain: "
        f"{problem}. Write for instance --by group:min_labels=20,others=abstain."
    )


def _fit_with_people(job: FitJob, labels: Path) -> Fitted:
    """Fit on a judge's labels of all records and people's of a random sample, which is kept."""
    name, options = parse_rule(job.rule or PEOPLE)
    others = (options.keys() - {"delta"}, job.by, job.cluster_by_group, job.test, job.test_fraction)
    if name != PEOPLE or any(others):
        raise UsageError(
            f"--human-labels brings its own rule ({PEOPLE}, or {PEOPLE}:delta=D) and tests nothing: leave out --rule, "
            "--test, --test-fraction, --by and --cluster-by-group. To test its artifact use `calibrate audit`."
        )
    if job.named == AUTO:
        raise UsageError(
            "--score auto chooses on a random part of the labels, and --human-labels reads all of them. Name an "
            "estimator."
        )
    path = job.out.with_suffix(".human.jsonl")
    opened = open_job(job, beside=path)
    artifact, sample = artifact_with_people(
        in_memory(opened.file),
        read_labels(labels),
        score=opened.key,
        alpha=job.number,
        delta=options.get("delta", DEFAULT_DELTA),
        without_failed=job.without_failed,
    )
    return finish_fit(job, replace(opened, part=sample.records), artifact, replace(sample, path=path))


def _fit_by_group(job: FitJob, by: ByGroup) -> None:
    """Fit a router, test it on what was kept out, and write and print it; exit with 1 if that refutes a group."""
    opened = open_job(job)
    key = opened.key
    test = opened.test
    if key == AUTO:
        raise UsageError("--score auto chooses one score for all questions. With --by group name a score.")
    router = fit_router(
        opened.file,
        score=key,
        by=by,
        alpha=job.number,
        rule=job.rule or CERTIFIED,
        part=opened.part,
        repeats=job.repeats,
        without_failed=job.without_failed,
    )
    audits = {} if test is None else audit_router(router, test.records, key, repeats=job.repeats)
    router = counted(router, Ledger(job.records))
    written = save_fit(job, router, None if job.test else test)
    print_router(router)
    print_fits(router.gates[0])
    if audits:
        print_audits(audits)
    use = "serve it with guardrail.Router.of(model, artifact, key=...)"
    finish(written, f"calibrate report {listed([job.out])}; {use}")
    warn_unlike(opened.files, key)
    if any(result.verdict == "refuted" for result in audits.values()):
        raise typer.Exit(1)


def _fit_cascade(job: FitJob) -> None:
    """Fit the thresholds of several models together, from a record file each."""
    why = "has no effect on a cascade. Leave it out."
    refuse_options(
        why, test=job.test, test_fraction=job.test_fraction or None, by=job.by, human_labels=job.human_labels
    )
    refuse_options(why, count_repeats=job.count_repeats, map=job.map, right=job.right, cut=job.cut)
    name, options = parse_rule(job.rule or CERTIFIED)
    if name != CERTIFIED or options.keys() - {"share", "delta"}:
        raise UsageError(
            f"--cascade is fitted by rule certified or certified:share=S,delta=D, got {job.rule!r}. Leave --rule out."
        )
    keep_inputs(job.records, [job.out])
    files = [read_records(path) for path in job.records]
    if len(job.score) not in (0, 1, len(files)):
        raise UsageError(f"give one score for all stages, or one a stage: {len(files)} files, got {len(job.score)}.")
    names: list[str | None] = [*(job.score if len(job.score) > 1 else [*job.score, None][:1] * len(files))]
    for file in files:
        warn_incomplete(file)
        warn_undecided(file)
    artifact = fit_cascade(
        files,
        alpha=job.number,
        scores=[chosen_estimator(file, name) for file, name in zip(files, names, strict=True)],
        delta=options.get("delta", DEFAULT_DELTA),
        share=options.get("share", SHARE),
        groups=job.groups,
        without_failed=job.without_failed,
    )
    artifact = counted(artifact, Ledger(job.records))
    print_cascade(artifact, job.out, save_fit(job, artifact))
