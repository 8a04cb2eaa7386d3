"""The fit that `fit` and `run` share: records opened, a threshold fitted, counted, written, tested and printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic_core import PydanticUndefined

from guardrail.artifact import Artifact, CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.items.spec import ITEMS
from guardrail.notebook import percent
from guardrail.uncertainty.combine import COMBINATIONS

from ...data.formats.read import is_table
from ...data.records import Record, RecordFile, write_records
from ...data.split import Groups, Repeats, one_per_question, split
from ...evaluation.audit import audit
from ...evaluation.choice import AUTO, choose_score
from ...evaluation.label_checks import refuse_broken, suspicious
from ...evaluation.promise_test import Audit
from ...judging import require_same
from ...ledger import Ledger, counted
from ...pipeline import FEWEST_LABELS, fit_artifact, part_header, refuse_few
from ...report.assessment import Found, VerdictText, second_look, verdict_text
from ...report.facts import auroc_of
from ...scoring.scores import refuse_failed
from .files import keep_inputs, open_files, open_pool, pool_of, warn_incomplete, warn_unlike
from .flags import Texts, flag
from .labels import print_structured
from .next_commands import fresh_command, listed
from .options import LABELS, PROMISE, chosen_estimator
from .table_flags import TableFlags
from .terminal import print_line
from .verdicts import print_choice, print_paths, print_verdict


class FitJob(TableFlags):
    """Settings of a fit. Every field but the first is a flag of `fit`."""

    records: tuple[Path, ...]
    alpha: float | Literal["smallest"] = flag(
        "", "Share of wrong answers accepted; smallest: what can be certified.", PydanticUndefined, "-a", "SHARE"
    )
    out: Path = flag("", "Artifact to write.", Path("artifact.json"), "-o")
    score: Texts = flag("", "A score; auto: the best one on 20 %.", (), "-s", "NAME")
    items: bool = flag("", "Keep or hold back each item (field of JSON).", False)
    rule: str | None = flag(PROMISE, "certified:delta=0.05 (delta 0.1), acrc (the paper's), ...")
    by: str | None = flag(PROMISE, "group, group:min_labels=20: a threshold each.")
    cascade: bool = flag(PROMISE, "Each file is a model, cheapest first.", False)
    test_fraction: float = flag(LABELS, "Share of the records to test on.", 0.0)
    test: tuple[Path, ...] = flag(LABELS, "Record file to test on.", (), metavar="FILE")
    cluster_by_group: bool = flag(LABELS, "Use one question of each group.", False)
    count_repeats: bool = flag(LABELS, "Use repeated questions each time.", False)
    trust_labels: bool = flag(LABELS, "Fit on labels that look broken.", False)
    without_failed: bool = flag(LABELS, "Fit although more than 1 % of the questions failed.", False)
    few: bool = flag(LABELS, f"Fit on fewer than {FEWEST_LABELS} labels.", False)
    human_labels: Path | None = flag(LABELS, "People's labels of a random sample.")

    @property
    def named(self) -> str | None:
        """The score that is named; "auto" for a choice, None for the usual one.

        Raises:
            UsageError: Several are named.
        """
        if len(self.score) > 1:
            raise UsageError(f"give one score, got {len(self.score)}. Several are for --cascade, one a stage.")
        return ITEMS if self.items else next(iter(self.score), None)

    @property
    def groups(self) -> Groups:
        """What the groups of questions are."""
        return "cluster" if self.cluster_by_group else "category"

    @property
    def repeats(self) -> Repeats:
        """How often a question counts that is asked repeatedly."""
        return "all" if self.count_repeats else "once"

    @property
    def number(self) -> float:
        """Alpha as a number."""
        if self.alpha == "smallest":
            raise UsageError(
                "--alpha smallest is of rule certified for whole answers. Give --alpha as a number, e.g. 0.1."
            )
        return self.alpha


@dataclass(frozen=True, slots=True)
class Opened:
    """The records of a fit.

    Attributes:
        files: The record files.
        file: All of them as one.
        key: Key of the scores, or AUTO.
        part: Records that are fitted.
        test: Records to test on, if there are any; they count equal questions as the fit does.
    """

    files: Sequence[RecordFile]
    file: RecordFile
    key: str
    part: Sequence[Record]
    test: RecordFile | None


@dataclass(frozen=True, slots=True)
class Fitted:
    """An artifact that is written, and what was printed about it.

    Attributes:
        artifact: The artifact.
        opened: Its records.
        written: The files.
        text: What was printed.
        audited: The test on the records that were kept out; None without any.
        report: The command that shows the artifact.
    """

    artifact: CalibrationArtifact
    opened: Opened
    written: Sequence[Path]
    text: VerdictText
    audited: Audit | None
    report: str


def open_job(job: FitJob, beside: Path | None = None) -> Opened:
    """Open the records, warn of doubtful ones, refuse those that no fit should use, and cut off those to test on.

    ``beside`` is a file that is written next to the artifact; by default that of the questions kept out.
    """
    kept_out = job.out.with_suffix(".test.jsonl") if job.test_fraction else None
    keep_inputs([*job.records, *job.test, job.human_labels], [job.out], derived=beside or kept_out)
    files = open_files(job.records, job.columns)
    file = pool_of(files)
    refuse_few(file, allowed=job.few)
    key = AUTO if job.named == AUTO else chosen_estimator(file, job.named)
    if key != AUTO:
        refuse_few(file, key, allowed=job.few)
    print_structured(file, key)
    if not job.trust_labels and job.human_labels is None:
        refuse_broken(file)
    warn_incomplete(file)
    if kept_out is None:
        return Opened(files, file, key, file.records, open_pool(job.test, job.columns) if job.test else None)
    part, rest = split(file.records, test_fraction=job.test_fraction, seed=0, groups=job.groups)
    rest = one_per_question(rest) if job.repeats == "once" else rest
    return Opened(files, file, key, part, RecordFile(kept_out, part_header(file.header, rest), rest))


def save_fit(job: FitJob, artifact: Artifact, beside: RecordFile | None = None) -> list[Path]:
    """Write the artifact, and the records that belong next to it with the fits that their labels have carried."""
    job.out.parent.mkdir(parents=True, exist_ok=True)
    written = [artifact.save(job.out)]
    if beside is not None:
        write_records(beside.path, beside.header, beside.records)
        Ledger(job.records).copy_to(beside.path)
        written.append(beside.path)
    return written


def finish_fit(job: FitJob, opened: Opened, artifact: CalibrationArtifact, sample: RecordFile | None = None) -> Fitted:
    """Test an artifact on what the fit left out, count and write it, and print what was fitted.

    ``sample`` are records that people labelled, to write next to the artifact; they stand for those of the fit.
    """
    key = opened.key
    part = opened.part
    test = opened.test
    # Before the fit is counted: it refuses what tests nothing.
    audited = None if test is None else audit(artifact, test.records, key, repeats=job.repeats)
    artifact = counted(artifact, Ledger(job.records))
    kept_out = None if job.test else test
    written = save_fit(job, artifact, sample or kept_out)
    warn_unlike(opened.files, key)
    sources = [sample.path] if sample else job.records
    report = f"calibrate report {listed(sources)}{job.typed} --artifact {listed([job.out])}"
    found = Found.of(
        opened.file, key, part, records=listed(sources), doubtful=_doubtful_labels(artifact, part, key, report)
    )
    tests = [kept_out.path] if kept_out else job.test
    alone = fresh_command(artifact, key, tests, job.out, "" if kept_out else job.typed)
    text = verdict_text(artifact, audited, alone, found)
    ranks = artifact.estimator.params.get("ranks")
    if ranks is not None and artifact.estimator.name in COMBINATIONS:
        n = len(ranks["questions"]["ids"])
        print_line(f"{artifact.estimator.name} ranks answers by {n} questions, which the fit leaves out.")
    print_verdict(text)
    print_paths(artifact, part)
    if artifact.calibration.group is not None:
        print_line(f"Groups are clusters: one question of each of {artifact.data.n_questions} groups is used.")
    if test is not None and test.header.scope.leaves_out:
        share = percent(test.header.scope.of_measured(1))
        print_line(f"Those questions lie within the scope, which {share} of all questions do; no other is answered.")
    report += "".join(f" --test {listed([path])}" for path in tests)
    if any(map(is_table, sources)):
        report = f"calibrate report {listed([job.out])} | docs/start/scores.md"
    return Fitted(artifact, opened, written, text, audited, report)


def _doubtful_labels(artifact: CalibrationArtifact, part: Sequence[Record], key: str, report: str) -> str | None:
    """Labels to look at again, if so many of the surest answers are wrong that they cost the threshold."""
    interval = auroc_of(artifact)
    if interval is not None and interval.verdict == "reversed":  # every label looks suspicious
        return None
    suspects = suspicious(part, key)
    if suspects.n_wrong <= artifact.alpha * suspects.n_certain:
        return None
    return second_look(replace(suspects, right=(), n_right=0), report)


def fit_by_rule(job: FitJob) -> Fitted:
    """Fit by a threshold rule on the labels of the records; on the score with the highest AUROC if one is chosen."""
    opened = open_job(job)
    choice = None
    if opened.key == AUTO:
        chosen = choose_score(opened.file, groups=job.groups, part=opened.part)
        print_choice(chosen)
        choice = chosen.choice
        opened = replace(opened, key=chosen.estimator, part=chosen.rest)
    key = opened.key
    test = opened.test
    artifact = fit_artifact(
        opened.file,
        score=key,
        alpha=job.alpha,
        rule=job.rule,
        groups=job.groups,
        part=opened.part,
        repeats=job.repeats,
        without_failed=job.without_failed,
        choice=choice,
    )
    if test is not None:  # before the fit is counted
        refuse_failed(test.records, key, allowed=job.without_failed)
        if job.test:
            require_same(artifact, test, key)
    return finish_fit(job, opened, artifact)
