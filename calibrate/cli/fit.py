"""The command that makes artifacts: fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.gate import Scope
from guardrail.notebook import percent
from guardrail.outcome import CERTIFIED

from ..binding import refuse_fitted
from ..data.columns import in_memory
from ..data.formats import ImportSettings, is_table
from ..data.labels import read_labels
from ..data.records import Record, RecordFile, write_records
from ..data.split import Groups, dependence, one_per_question, split
from ..evaluation.audit import audit, audit_router, refuse_untestable
from ..evaluation.choice import AUTO, choose_score
from ..evaluation.label_checks import suspicious, unread_answers
from ..fitting import DEFAULT_DELTA
from ..ledger import Ledger, counted
from ..pipeline import FEWEST_LABELS, FitSettings, fit_artifact, part_header, refuse_few, require_same
from ..prediction_powered import artifact_with_people
from ..report.sentences import auroc_of, second_look, unread, verdict_text
from ..router import ByGroup, fit_router
from ..rules.certificate import SHARE
from ..scoring.scores import refuse_failed
from ..spec_syntax import parse_rule
from .frame.app import command
from .frame.cascade import fit_stages
from .frame.files import keep_inputs, open_files, open_pool, pool_of, warn_incomplete, warn_unlike
from .frame.items import fit_by_items, refuse_with_items, refuse_without_items
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
    table_settings,
)
from .frame.terminal import finish, print_line
from .frame.verdicts import conclude, print_audits, print_choice, print_fits, print_ranked, print_router, print_verdict

__all__ = ["fit"]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a fit of whole answers is asked for; the fields are those of the command."""

    records: Sequence[Path]
    out: Path
    alpha: float | Literal["smallest"]
    rule: str
    delta: float | None
    share: float | None
    groups: Groups
    test_fraction: float
    test: Sequence[Path]
    table: ImportSettings
    settings: FitSettings

    @property
    def kept_out(self) -> Path:
        """The file of the questions that the fit leaves out."""
        return self.out.with_suffix(".test.jsonl")

    @property
    def labelled_by_people(self) -> Path:
        """The file of the random sample that people labelled."""
        return self.out.with_suffix(".human.jsonl")

    def cut(self, file: RecordFile) -> tuple[Sequence[Record], RecordFile | None]:
        """The records of the fit, and those to test on, which count equal questions as the fit does."""
        if self.test:
            return file.records, open_pool(self.test, self.table)
        if not self.test_fraction:
            return file.records, None
        part, rest = split(file.records, test_fraction=self.test_fraction, seed=0, groups=self.groups)
        rest = one_per_question(rest) if self.settings.repeats == "once" else rest
        return part, RecordFile(self.kept_out, part_header(file.header, rest), rest, file.torn)


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


def _fit_by_rule(job: _Job, file: RecordFile, key: str) -> _Fitted:
    """Fit by a threshold rule on the labels of the records; on the score with the highest AUROC if ``key`` is AUTO."""
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
        share=job.share,
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
    return _Fitted(artifact, key, job.records, part, test, beside=None if job.test else test)


def _fit_with_people(job: _Job, file: RecordFile, key: str, labels: Path) -> _Fitted:
    """Fit on a judge's labels of all records and people's of a random sample, which is kept."""
    artifact, sample = artifact_with_people(
        in_memory(file),
        read_labels(labels),
        score=key,
        alpha=_number(job.alpha),
        delta=DEFAULT_DELTA if job.delta is None else job.delta,
        without_failed=job.settings.without_failed,
    )
    artifact, path = counted(artifact, Ledger(job.records)), job.labelled_by_people
    return _Fitted(artifact, key, [path], sample.records, beside=replace(sample, path=path))


def _fit_by_group(job: _Job, by: ByGroup, file: RecordFile, key: str) -> None:
    """Fit a router, test it on what was kept out, and write and print it.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise of a group.
    """
    if key == AUTO:
        raise UsageError("--score auto chooses one score for all questions. With --by group name a score.")
    part, test = job.cut(file)
    router = fit_router(
        file,
        score=key,
        by=by,
        alpha=_number(job.alpha),
        rule=job.rule,
        delta=DEFAULT_DELTA if job.delta is None else job.delta,
        share=job.share,
        part=part,
        settings=job.settings,
    )
    audits = {} if test is None else audit_router(router, test.records, key, repeats=job.settings.repeats)
    router = counted(router, Ledger(job.records))
    print_fits(next(iter(router.artifacts.values())))
    job.out.parent.mkdir(parents=True, exist_ok=True)
    written = [router.save(job.out)]
    if test is not None and not job.test:
        write_records(test.path, test.header, test.records)
        written.append(test.path)
    print_router(router)
    if audits:
        print_audits(audits)
    finish(
        written,
        f"calibrate report {listed([job.out])}; serve it with guardrail.Router.of(model, artifact, key=...)",
    )
    if any(result.verdict == "refuted" for result in audits.values()):
        raise typer.Exit(1)


@command("fit", "calibrating.md#fit")
def fit(
    records: Annotated[list[Path], typer.Argument(help="Record files, or tables with scores and labels.")],
    alpha: Annotated[
        str,
        typer.Option(
            "--alpha", "-a", help="Share of wrong answers accepted; smallest: what can be certified.", metavar="SHARE"
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
    groups: Groups = "cluster" if cluster_by_group else "category"
    target, spent = _target(alpha), DEFAULT_DELTA if delta is None else delta
    if cascade:
        fit_stages(
            records,
            out,
            alpha=_number(target),
            estimators=estimators or (),
            delta=spent,
            share=_share_of_cascade(rule),
            cluster_by_group=cluster_by_group,
            without_failed=without_failed,
        )
        return
    if len(estimators or ()) > 1:
        raise UsageError(f"give one score, got {len(estimators or ())}. Several are for --cascade, one a stage.")
    estimator = estimators[0] if estimators else None
    if items:
        refuse_with_items(estimator=estimator, by=by, human_labels=human_labels, count_repeats=count_repeats)
        fit_by_items(
            records,
            out,
            alpha=_number(target),
            delta=delta,
            rule=rule,
            cap=cap,
            groups=groups,
            test_fraction=test_fraction,
            test=test or (),
            seed=0,
            without_failed=without_failed,
        )
        return
    refuse_without_items(cap=cap)
    _refuse_conflicts(rule, human_labels, test, test_fraction, by=by, clusters=cluster_by_group)
    name, options = _rule_and_options(rule or CERTIFIED)
    job = _Job(
        records=records,
        out=out,
        alpha=target,
        rule=name,
        delta=delta,
        share=options.pop("share", None),
        groups=groups,
        test_fraction=test_fraction,
        test=test or (),
        table=table_settings(map, right, cut),
        settings=FitSettings(options, "all" if count_repeats else "once", without_failed),
    )
    grouping = None if by is None else _by(by)
    beside = job.labelled_by_people if human_labels is not None else job.kept_out if test_fraction else None
    keep_inputs([*records, *job.test, human_labels, estimator], [out, beside])
    files = open_files(records, job.table)
    file = pool_of(files)
    refuse_few(file, allowed=few)
    key = _key(file, estimator, reads_all=human_labels is not None)
    if key != AUTO:
        refuse_few(file, key, allowed=few)
    print_structured(file, key)
    if human_labels is None and not trust_labels:
        refuse_broken(file)
    warn_incomplete(file)
    if grouping is not None:
        _fit_by_group(job, grouping, file, key)
        warn_unlike(files, key)
        return
    fitted = _fit_by_rule(job, file, key) if human_labels is None else _fit_with_people(job, file, key, human_labels)
    out.parent.mkdir(parents=True, exist_ok=True)
    fitted.artifact.save(out)
    if fitted.beside is not None:
        write_records(fitted.beside.path, fitted.beside.header, fitted.beside.records)
    print_ranked(fitted.artifact.estimator)
    warn_unlike(files, fitted.key)
    _present(fitted, file, job)


def _target(text: str) -> float | Literal["smallest"]:
    """The value of --alpha."""
    if text == "smallest":
        return "smallest"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--alpha must be a number in (0, 1) or 'smallest', got {text!r}. Write 0.1.") from None


def _number(target: float | Literal["smallest"]) -> float:
    if target == "smallest":
        raise UsageError("--alpha smallest is of rule certified for whole answers. Give --alpha as a number, e.g. 0.1.")
    return target


def _rule_and_options(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its settings, as "certified:share=0.4"."""
    parsed = parse_rule(text)
    return (parsed, {}) if isinstance(parsed, str) else parsed


def _share_of_cascade(rule: str | None) -> float:
    """The share from which rule certified tests thresholds, which is all of --rule that a cascade has."""
    name, options = _rule_and_options(rule or "certified")
    if name != "certified" or options.keys() - {"share"}:
        raise UsageError(f"--cascade is fitted by rule certified or certified:share=S, got {rule!r}. Leave --rule out.")
    return float(options.get("share", SHARE))


def _by(text: str) -> ByGroup:
    """The settings of --by, as "group:min_labels=20,share=each,others=abstain"."""
    name, options = _rule_and_options(text)
    allowed: dict[str, Any] = {"share": ("together", "each"), "others": ("fit", "abstain")}
    wrong = [
        f"{key}={value}"
        for key, value in options.items()
        if value not in allowed.get(key, ()) and not (key == "min_labels" and isinstance(value, int))
    ]
    if name != "group" or wrong:
        raise UsageError(
            f"--by must be group, with settings min_labels=NUMBER, share=together or each, and others=fit or abstain, "
            f"got {text!r}. Write for instance --by group:min_labels=20,others=abstain."
        )
    return ByGroup(**options)


def _refuse_conflicts(
    rule: str | None,
    human_labels: Path | None,
    test: Sequence[Path] | None,
    test_fraction: float,
    *,
    by: str | None,
    clusters: bool,
) -> None:
    """Refuse options that exclude each other, before a file is read."""
    if human_labels is not None and (rule or by or clusters or test or test_fraction):
        raise UsageError(
            "--human-labels brings its own rule (prediction_powered) and tests nothing: leave out --rule, --test, "
            "--test-fraction, --by and --cluster-by-group. To test its artifact use `calibrate audit`."
        )
    if by and clusters:
        raise UsageError("groups are kinds (--by group) or clusters (--cluster-by-group). Leave out one of the two.")
    if test and test_fraction:
        raise UsageError("--test and --test-fraction exclude each other: give a test file, or a share to keep out")


def _key(file: RecordFile, estimator: str | None, *, reads_all: bool) -> str:
    """Key of the scores, or AUTO."""
    if estimator != AUTO:
        return chosen_estimator(file, estimator)
    if reads_all:
        raise UsageError(
            "--score auto chooses on a random part of the labels, and --human-labels reads all of them. Name an "
            "estimator."
        )
    return AUTO


def _present(fitted: _Fitted, file: RecordFile, job: _Job) -> None:
    """Test the artifact on what the fit left out, and print the verdict and the next command.

    Raises:
        typer.Exit: With code 1 where the test part refutes the promise.
    """
    artifact, key, test = fitted.artifact, fitted.key, fitted.test
    audited = None if test is None else audit(artifact, test.records, key, repeats=job.settings.repeats)
    tests, out = job.test if test is None or fitted.beside is None else [test.path], job.out
    report = f"calibrate report {listed(fitted.sources)} --artifact {listed([out])}"
    interval = auroc_of(artifact)
    reversed_score = interval is not None and interval.verdict == "reversed"
    text = verdict_text(
        artifact,
        audited,
        fresh_command(artifact, key, tests, out),
        listed(fitted.sources),
        unread=unread(key, unread_answers(file, key)),
        dependent=dependence(fitted.part),
        # Of a reversed score every label looks suspicious.
        doubtful=None if reversed_score else _doubtful(fitted, report),
    )
    print_verdict(text)
    if artifact.calibration.group is not None:
        print_line(f"Groups are clusters: one question of each of {artifact.data.n_questions} groups is used.")
    if test is not None:
        _print_share(test.header.scope)
    following = report + "".join(f" --test {listed([path])}" for path in tests)
    if any(map(is_table, fitted.sources)):
        following = f"calibrate report {listed([out])} | docs/start/scores.md"
    conclude([out] if fitted.beside is None else [out, fitted.beside.path], text, following)


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
