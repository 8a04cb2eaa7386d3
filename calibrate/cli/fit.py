"""The command that makes artifacts: fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from guardrail.artifact import Artifact, CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.notebook import percent
from guardrail.outcome import CERTIFIED, Scope

from ..binding import refuse_fitted
from ..cascade import fit_cascade
from ..data.columns import in_memory
from ..data.formats import ImportSettings, is_table
from ..data.labels import read_labels
from ..data.records import Record, RecordFile, read_records, write_records
from ..data.split import Groups, one_per_question, split
from ..evaluation.audit import audit, audit_router, refuse_untestable
from ..evaluation.choice import AUTO, choose_score
from ..evaluation.label_checks import suspicious
from ..fitting import DEFAULT_DELTA
from ..ledger import Ledger, counted, follow
from ..pipeline import FEWEST_LABELS, FitSettings, fit_artifact, part_header, refuse_few, require_same
from ..prediction_powered import artifact_with_people
from ..report.sentences import Found, auroc_of, second_look
from ..router import ByGroup, fit_router
from ..rules import PLANNED
from ..rules.certificate import SHARE
from ..scoring.scores import refuse_failed
from ..spec_syntax import parse_rule
from .frame.app import command, first_problem
from .frame.files import keep_inputs, open_files, open_pool, pool_of, warn_incomplete, warn_undecided, warn_unlike
from .frame.items import refuse_with_items, refuse_without_items
from .frame.labels import print_structured, refuse_broken
from .frame.next_commands import fresh_command, listed
from .frame.options import (
    LABELS,
    PROMISE,
    CutOption,
    ItemsOption,
    MapOption,
    RightOption,
    WithoutFailedOption,
    chosen_estimator,
    share_or_smallest,
    table_flags,
    table_settings,
)
from .frame.terminal import finish, print_line
from .frame.verdicts import (
    conclude,
    print_audits,
    print_cascade,
    print_choice,
    print_fits,
    print_fitted,
    print_router,
)

__all__ = ["fit"]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a fit is asked for; the fields are those of the command."""

    records: Sequence[Path]
    out: Path
    alpha: float | Literal["smallest"]
    scores: Sequence[str]
    rule: str
    delta: float | None
    groups: Groups
    test_fraction: float
    test: Sequence[Path]
    table: ImportSettings
    columns: str
    settings: FitSettings
    few: bool
    trust_labels: bool

    @property
    def number(self) -> float:
        """Alpha as a number."""
        if self.alpha == "smallest":
            raise UsageError(
                "--alpha smallest is of rule certified for whole answers. Give --alpha as a number, e.g. 0.1."
            )
        return self.alpha

    @property
    def failing(self) -> float:
        """Failure probability."""
        return DEFAULT_DELTA if self.delta is None else self.delta

    def opened(self, beside: Path | None, *others: Path) -> tuple[list[RecordFile], RecordFile, str]:
        """The record files, one file of them all, and the key of the scores, or AUTO; warns of doubtful records.

        Args:
            beside: A file that is written next to the artifact.
            *others: Other files that are read.
        """
        if len(self.scores) > 1:
            raise UsageError(f"give one score, got {len(self.scores)}. Several are for --cascade, one a stage.")
        keep_inputs([*self.records, *self.test, *others, *self.scores], [self.out], derived=beside)
        files = open_files(self.records, self.table)
        file = pool_of(files)
        refuse_few(file, allowed=self.few)
        named = self.scores[0] if self.scores else None
        key = AUTO if named == AUTO else chosen_estimator(file, named)
        if key != AUTO:
            refuse_few(file, key, allowed=self.few)
        print_structured(file, key)
        if not self.trust_labels:
            refuse_broken(file)
        warn_incomplete(file)
        return files, file, key

    @property
    def kept_out(self) -> Path | None:
        """The file of the questions that the fit leaves out; None where it leaves out none."""
        return self.out.with_suffix(".test.jsonl") if self.test_fraction else None

    def cut(self, file: RecordFile) -> tuple[Sequence[Record], RecordFile | None]:
        """The records of the fit, and those to test on, which count equal questions as the fit does."""
        if self.test:
            return file.records, open_pool(self.test, self.table)
        if self.kept_out is None:
            return file.records, None
        part, rest = split(file.records, test_fraction=self.test_fraction, seed=0, groups=self.groups)
        rest = one_per_question(rest) if self.settings.repeats == "once" else rest
        return part, RecordFile(self.kept_out, part_header(file.header, rest), rest, file.torn)

    def save(self, artifact: Artifact, beside: RecordFile | None = None) -> list[Path]:
        """Write the artifact, and the records that belong next to it; returns the files."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        written = [artifact.save(self.out)]
        if beside is not None:
            write_records(beside.path, beside.header, beside.records)
            follow(self.records, beside.path)  # labels keep the fits that they have carried
            written.append(beside.path)
        return written


@dataclass(frozen=True, slots=True)
class _Fitted:
    """An artifact and its records.

    Attributes:
        artifact: The artifact.
        key: Key of its scores.
        sources: Record files of the fit.
        part: Records of the fit.
        test: Records to test on, if there are any.
        beside: Records to write next to the artifact: the part that was kept out, or the sample that people labelled.
    """

    artifact: CalibrationArtifact
    key: str
    sources: Sequence[Path]
    part: Sequence[Record]
    test: RecordFile | None = None
    beside: RecordFile | None = None


def _fit_by_rule(job: _Job) -> None:
    """Fit by a threshold rule on the labels of the records; on the score with the highest AUROC if one is chosen."""
    files, file, key = job.opened(job.kept_out)
    settings = job.settings
    part, test = job.cut(file)
    if key == AUTO:
        chosen = choose_score(file, groups=job.groups, part=tuple(part))
        print_choice(chosen)
        key, part, settings = chosen.estimator, chosen.rest, replace(settings, choice=chosen.choice)
    artifact = fit_artifact(
        file,
        score=key,
        alpha=job.alpha,
        rule=job.rule,
        delta=job.delta,
        groups=job.groups,
        part=part,
        settings=settings,
    )
    if test is not None:
        refuse_failed(test.records, key, allowed=settings.without_failed)
    if test is not None and job.test:  # before the fit is counted
        require_same(artifact, test, key)
        refuse_untestable(test.records, key)
        refuse_fitted(artifact, test.records, "test")
    artifact = counted(artifact, Ledger(job.records))
    fitted = _Fitted(artifact, key, job.records, part, test, beside=None if job.test else test)
    _present(fitted, files, file, job)


def _fit_with_people(job: _Job, labels: Path) -> None:
    """Fit on a judge's labels of all records and people's of a random sample, which is kept."""
    if job.scores == [AUTO]:
        raise UsageError(
            "--score auto chooses on a random part of the labels, and --human-labels reads all of them. Name an "
            "estimator."
        )
    path = job.out.with_suffix(".human.jsonl")
    files, file, key = job.opened(path, labels)
    artifact, sample = artifact_with_people(
        in_memory(file),
        read_labels(labels),
        score=key,
        alpha=job.number,
        delta=job.failing,
        without_failed=job.settings.without_failed,
    )
    artifact = counted(artifact, Ledger(job.records))
    _present(_Fitted(artifact, key, [path], sample.records, beside=replace(sample, path=path)), files, file, job)


def _fit_by_group(job: _Job, by: ByGroup) -> None:
    """Fit a router, test it on what was kept out, and write and print it.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise of a group.
    """
    files, file, key = job.opened(job.kept_out)
    if key == AUTO:
        raise UsageError("--score auto chooses one score for all questions. With --by group name a score.")
    part, test = job.cut(file)
    router = fit_router(
        file,
        score=key,
        by=by,
        alpha=job.number,
        rule=job.rule,
        delta=job.failing,
        part=part,
        settings=job.settings,
    )
    audits = {} if test is None else audit_router(router, test.records, key, repeats=job.settings.repeats)
    router = counted(router, Ledger(job.records))
    written = job.save(router, None if job.test else test)
    print_router(router)
    print_fits(next(iter(router.artifacts.values())))
    if audits:
        print_audits(audits)
    finish(
        written,
        f"calibrate report {listed([job.out])}; serve it with guardrail.Router.of(model, artifact, key=...)",
    )
    warn_unlike(files, key)
    if any(result.verdict == "refuted" for result in audits.values()):
        raise typer.Exit(1)


def _fit_cascade(job: _Job) -> None:
    """Fit the thresholds of several models together, from a record file each."""
    name, options = parse_rule(job.rule)
    if name != CERTIFIED or options.keys() - {"share"}:
        raise UsageError(
            f"--cascade is fitted by rule certified or certified:share=S, got {job.rule!r}. Leave --rule out."
        )
    keep_inputs(job.records, [job.out])
    files = [read_records(path) for path in job.records]
    if len(job.scores) not in (0, 1, len(files)):
        raise UsageError(f"give one score for all stages, or one a stage: {len(files)} files, got {len(job.scores)}.")
    names: list[str | None] = [*(job.scores if len(job.scores) > 1 else [*job.scores, None][:1] * len(files))]
    for file in files:
        warn_incomplete(file)
        warn_undecided(file)
    artifact = fit_cascade(
        files,
        alpha=job.number,
        scores=[chosen_estimator(file, name) for file, name in zip(files, names, strict=True)],
        delta=job.failing,
        share=options.get("share", SHARE),
        groups=job.groups,
        without_failed=job.settings.without_failed,
    )
    artifact = counted(artifact, Ledger(job.records))
    print_cascade(artifact, job.out, job.save(artifact))


@command("fit", "calibrating.md#fit")
def fit(
    records: Annotated[list[Path], typer.Argument(help="Record files, or tables with scores and labels.")],
    alpha: Annotated[
        Any,
        typer.Option(
            "--alpha",
            "-a",
            help="Share of wrong answers accepted; smallest: what can be certified.",
            metavar="SHARE",
            parser=share_or_smallest,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Artifact to write.")] = Path("artifact.json"),
    estimators: Annotated[
        list[str] | None,
        typer.Option("--score", "-s", help="A score; auto: the best one on 20 %.", metavar="NAME"),
    ] = None,
    items: ItemsOption = False,
    cap: Annotated[
        int | None, typer.Option(help="With --items: another cap.", min=1, show_default=False, rich_help_panel=PROMISE)
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="certified, certified:share=0.4, acrc (the paper's), ...",
            rich_help_panel=PROMISE,
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Failure probability (0.1).", rich_help_panel=PROMISE)] = None,
    by: Annotated[
        str | None,
        typer.Option(help="group, group:min_labels=20: a threshold each.", rich_help_panel=PROMISE),
    ] = None,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Each file is a model, cheapest first.", rich_help_panel=PROMISE)
    ] = False,
    test_fraction: Annotated[
        float, typer.Option(help="Share of the records to test on.", rich_help_panel=LABELS)
    ] = 0.0,
    test: Annotated[list[Path] | None, typer.Option(help="Record file to test on.", rich_help_panel=LABELS)] = None,
    human_labels: Annotated[
        Path | None,
        typer.Option(help="People's labels of a random sample.", rich_help_panel=LABELS),
    ] = None,
    cluster_by_group: Annotated[
        bool,
        typer.Option("--cluster-by-group", help="Use one question of each group.", rich_help_panel=LABELS),
    ] = False,
    count_repeats: Annotated[
        bool, typer.Option("--count-repeats", help="Use repeated questions each time.", rich_help_panel=LABELS)
    ] = False,
    trust_labels: Annotated[
        bool, typer.Option("--trust-labels", help="Fit on labels that look broken.", rich_help_panel=LABELS)
    ] = False,
    without_failed: WithoutFailedOption = False,
    few: Annotated[
        bool, typer.Option("--few", help=f"Fit on fewer than {FEWEST_LABELS} labels.", rich_help_panel=LABELS)
    ] = False,
    map: MapOption = None,
    right: RightOption = None,
    cut: CutOption = None,
) -> None:
    """Fit the threshold and write the artifact.

    Example: calibrate fit records.jsonl --alpha 0.1 --test-fraction 0.3
    Example: calibrate fit graded.csv --alpha 0.1

    Choose alpha before you look at results. Exit code 1 if the questions kept out of the fit refute the promise.
    """
    if test and test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")
    if items:
        refuse_with_items(score=estimators, by=by, human_labels=human_labels, cascade=cascade)
        estimators = [ITEMS]
    else:
        refuse_without_items(cap=cap)
    job = _Job(
        records=records,
        out=out,
        alpha=alpha,
        scores=estimators or [],
        rule=rule or PLANNED["item" if items else "answer"][0],
        delta=delta,
        groups="cluster" if cluster_by_group else "category",
        test_fraction=test_fraction,
        test=test or (),
        table=table_settings(map, right, cut),
        columns=table_flags(map, right, cut),
        settings=FitSettings({} if cap is None else {"cap": cap}, "all" if count_repeats else "once", without_failed),
        few=few,
        trust_labels=trust_labels or human_labels is not None,
    )
    if cascade:
        _fit_cascade(job)
    elif human_labels is not None:
        if rule or by or cluster_by_group or test or test_fraction:
            raise UsageError(
                "--human-labels brings its own rule (prediction_powered) and tests nothing: leave out --rule, --test, "
                "--test-fraction, --by and --cluster-by-group. To test its artifact use `calibrate audit`."
            )
        _fit_with_people(job, human_labels)
    elif by is not None:
        if cluster_by_group:
            raise UsageError(
                "groups are kinds (--by group) or clusters (--cluster-by-group). Leave out one of the two."
            )
        _fit_by_group(job, _by(by))
    else:
        _fit_by_rule(job)


def _by(text: str) -> ByGroup:
    """The settings of --by, as "group:min_labels=20,share=each,others=abstain"."""
    name, settings = parse_rule(text)
    try:
        by, wrong = ByGroup(**settings), "" if name == "group" else f"got {name!r}"
    except ValidationError as error:
        wrong = first_problem(error)
    if wrong:
        raise UsageError(
            "--by must be group, with settings min_labels=NUMBER, share=together or each, and others=fit or abstain: "
            f"{wrong}. Write for instance --by group:min_labels=20,others=abstain."
        )
    return by


def _present(fitted: _Fitted, files: Sequence[RecordFile], file: RecordFile, job: _Job) -> None:
    """Write the artifact, test it on what the fit left out, and print the verdict and the next command.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise.
    """
    artifact, key, test = fitted.artifact, fitted.key, fitted.test
    written = job.save(artifact, fitted.beside)
    warn_unlike(files, key)
    audited = None if test is None else audit(artifact, test.records, key, repeats=job.settings.repeats)
    tests, out = job.test if test is None or fitted.beside is None else [test.path], job.out
    report = f"calibrate report {listed(fitted.sources)}{job.columns} --artifact {listed([out])}"
    interval = auroc_of(artifact)
    reversed_score = interval is not None and interval.verdict == "reversed"
    # Of a reversed score every label looks suspicious.
    doubtful = None if reversed_score else _doubtful(fitted, report)
    alone = fresh_command(artifact, key, tests, out, job.columns if job.test else "")
    found = Found.of(file, key, fitted.part, records=listed(fitted.sources), doubtful=doubtful)
    text = print_fitted(artifact, fitted.part, audited, alone, found)
    if artifact.calibration.group is not None:
        print_line(f"Groups are clusters: one question of each of {artifact.data.n_questions} groups is used.")
    if test is not None:
        _print_share(test.header.scope)
    following = report + "".join(f" --test {listed([path])}" for path in tests)
    if any(map(is_table, fitted.sources)):
        following = f"calibrate report {listed([out])} | docs/start/scores.md"
    conclude(written, text, following)


def _doubtful(fitted: _Fitted, report: str) -> str | None:
    """Labels to look at again, if so many of the surest answers are wrong that they cost the threshold."""
    suspects = suspicious(fitted.part, fitted.key)
    if suspects.n_wrong <= fitted.artifact.alpha * suspects.n_certain:
        return None
    return second_look(replace(suspects, right=(), n_right=0), report)


def _print_share(scope: Scope) -> None:
    """Print the share of all questions that a test part within a scope stands for."""
    if scope.leaves_out:
        share = percent(scope.of_measured(1))
        print_line(f"Those questions lie within the scope, which {share} of all questions do; no other is answered.")
