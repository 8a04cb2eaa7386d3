"""The verdict on a fit and its test, with warnings and next steps, as the terminal and the report show them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import (
    CALLS,
    FRESH_LABELS,
    ITEMS_OF_ANSWERS,
    USEFUL_AUROC,
    failures,
    figures_lines,
    fits_line,
    hardly_ranks,
    labels_are_enough,
    nouns_of,
    ranks_backwards,
    refusal,
    stops_nothing,
    summary,
    unguardable,
    upside_down,
    warning,
)
from guardrail.notebook import percent
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason

from ..data.records import GIVEN, Record, RecordFile
from ..data.split import Dependence, dependence
from ..evaluation.label_checks import Suspicious, unread_answers
from ..evaluation.planning import labels_needed
from ..evaluation.promise_test import ALONE, Audit
from ..judging import GateCounts
from .facts import auroc_of, left_out

MOST_WARNINGS = 2
"""Warnings that a fit shows at once; the report has the others."""


@dataclass(frozen=True, slots=True)
class ArtifactVerdict:
    """The verdict on an artifact, read from all its evidence: what was fitted, and the test part if there is one.

    Attributes:
        status: "answers": it found a threshold, and the test part, if any, does not refute it. "above": the test part
            refutes the target, by no more than the rule lets a gate end above it. "refuted": the test part refutes
            the promise. "abstains": nothing is accepted.
        title: In a few words.
        colour: Of the verdict.
    """

    status: Literal["answers", "above", "refuted", "abstains"]
    title: str
    colour: Literal["green", "yellow", "red"]


def standing(artifact: CalibrationArtifact, test: Audit | None = None) -> ArtifactVerdict:
    """The verdict on an artifact.

    Args:
        artifact: The artifact.
        test: Its audit on questions that were not fitted on, if there are any.
    """
    if not artifact.outcome.n_accepted:
        return ArtifactVerdict("abstains", "Abstains on everything", "red")
    if test is not None and test.contradicts_calibration:
        return ArtifactVerdict("refuted", "Refuted by the test questions", "red")
    if test is not None and test.verdict == "refuted":
        return ArtifactVerdict("above", "Above the target on the test questions", "yellow")
    open_gate = stops_nothing(artifact)
    if unguardable(artifact) is not None:
        return ArtifactVerdict("answers", "For evaluation only: no guard can use it", "red" if open_gate else "yellow")
    if open_gate:
        return ArtifactVerdict("answers", "This gate stops nothing", "red")
    may = "May let calls through" if nouns_of(artifact) is CALLS else "May answer"
    return ArtifactVerdict("answers", f"{may}, within limits", "green")


@dataclass(frozen=True, slots=True)
class VerdictText:
    """The lines that a fit or a test prints about an artifact.

    Attributes:
        verdict: The verdict.
        lines: `guardrail.describe.summary`.
        fits: See `guardrail.describe.fits_line`.
        tested: The results on the test part, and what they say about the promise.
        warnings: Warnings, the gravest first, each with its remedy.
        steps: Next steps, most useful first.
        at_run_time: The reason why no guard can use the artifact, with a remedy; None if guards can.
    """

    verdict: ArtifactVerdict
    lines: tuple[str, ...]
    fits: str | None
    tested: tuple[str, ...]
    warnings: tuple[str, ...]
    steps: tuple[str, ...]
    at_run_time: str | None

    @property
    def speaks_against(self) -> bool:
        """Whether the test part speaks against the gate."""
        return self.verdict.status in ("refuted", "above")


@dataclass(frozen=True, slots=True)
class Found:
    """What the records of a fit say about it, for its warnings.

    Attributes:
        records: The record files, as a shell takes them.
        unread: See `unread`.
        dependent: Questions of the fit that are hardly independent.
        doubtful: See `second_look`.
        undecided: A sentence in place of the commands that label undecided answers; "" for none.
    """

    records: str = "RECORDS"
    unread: str | None = None
    dependent: Dependence | None = None
    doubtful: str | None = None
    undecided: str | None = None

    @classmethod
    def of(cls, file: RecordFile, key: str, part: Sequence[Record], **more: Any) -> Found:
        """What all records, the key of the scores, and the records of the fit say; other fields as given."""
        return cls(unread=unread(key, unread_answers(file, key)), dependent=dependence(part), **more)


def verdict_text(
    artifact: CalibrationArtifact, test: Audit | None = None, alone: str = ALONE, found: Found = Found()
) -> VerdictText:
    """Put together all lines about an artifact; see `standing` and `next_steps`.

    Args:
        artifact: The artifact.
        test: Its audit on questions that were not fitted on, if there are any.
        alone: The command that calibrates on those questions alone.
        found: What the records of the fit say.
    """
    tested: tuple[str, ...] = ()
    if test is not None and artifact.outcome.n_accepted:  # of a gate that accepts nothing a test says nothing
        tested = (_held_out(artifact, test.held_out), *test.findings)
    # Where a test part counts the items that nothing was fitted on, it stands for both.
    counts = figures_lines(artifact.items, artifact.outcome.rule) if test is None else ()
    needed = labels_needed(artifact)
    if _mostly_undecided(artifact):
        needed = f"{artifact.data.n_undecided} of the {sum(artifact.calibration.error)} wrong ones are undecided"
    return VerdictText(
        verdict=standing(artifact, test),
        lines=(*summary(artifact, needed), *counts),
        fits=fits_line(artifact),
        tested=tested,
        warnings=tuple(warnings(artifact, found)),
        steps=tuple(next_steps(artifact, test, alone, found)),
        at_run_time=unguardable(artifact),
    )


def _held_out(artifact: CalibrationArtifact, counts: GateCounts) -> str:
    """Results of the gate on questions kept out of the fit, in one sentence; with items in a few."""
    if counts.items is not None:
        lines = figures_lines(counts.items, artifact.outcome.rule)
        return f"On {counts.n_asked} questions kept out of the fit: {' '.join(lines)}"
    nouns, share = nouns_of(artifact), _share(counts.acceptance)
    does, gives = f"the model answers {share}", "gives"
    if nouns is CALLS:
        does, gives = f"the gate lets {share} through", "lets through"
    start = f"On {counts.n_asked} {nouns.asked} kept out of the fit {does}"
    if counts.error_rate is None:
        return f"{start}, so there is no error rate to report (target {percent(artifact.alpha)})."
    right = "" if counts.power is None else f" It {gives} {_share(counts.power)} of its right {nouns.many}."
    return f"{start}. Of these {_share(counts.error_rate)} are wrong (target {percent(artifact.alpha)}).{right}"


def _share(values: tuple[float, float, float]) -> str:
    return f"{percent(values[0])} (95 % interval {percent(values[1])} to {percent(values[2])})"


def next_steps(
    artifact: CalibrationArtifact, test: Audit | None = None, alone: str = ALONE, found: Found = Found()
) -> list[str]:
    """Next steps: after a refutation its remedies, then the warnings, the gravest first, then the way into use.

    Args:
        artifact: The artifact.
        test: Its audit on questions that were not fitted on, if there are any.
        alone: The command that calibrates on those questions alone.
        found: What the records of the fit say.
    """
    status = standing(artifact, test).status
    infeasible = artifact.outcome if isinstance(artifact.outcome, Infeasible) else None
    steps = test.remedies(alone) if test is not None and status in ("refuted", "above") else []
    if infeasible is not None:
        steps.append(refusal(infeasible, nouns_of(artifact))[1])
    steps += warnings(artifact, found, of_ranking=infeasible is None)  # the refusal's step is about the score as well
    steps += _lesser_advice(artifact)
    if status != "answers":
        return steps
    if (useless := unguardable(artifact)) is not None:
        return [*steps, useless]
    if nouns_of(artifact) is CALLS:
        return [*steps, "Put the artifact in front of the tool: GuardrailMiddleware(tools={TOOL: ARTIFACT})."]
    return [*steps, "Put the artifact in front of the model: Guardrail(model=..., artifact=...)."]


def warnings(artifact: CalibrationArtifact, found: Found = Found(), *, of_ranking: bool = True) -> list[str]:
    """Warnings about a fit, the gravest first, each with its remedy; ``of_ranking``: `ranking` among them."""
    texts: list[str] = []
    outcome = artifact.outcome
    dependent = found.dependent if artifact.calibration.group is None else None
    if stops_nothing(artifact):
        texts.append(f"{warning(artifact)} Fit with a smaller --alpha, or use no gate.")
    if isinstance(outcome, Infeasible) and outcome.hint is None and labels_are_enough(outcome):
        of_ranking = of_ranking and not ranks_backwards(outcome)  # the first lines of such a fit say it already
    if of_ranking and not _mostly_undecided(artifact) and (ranks := ranking(artifact)) is not None:
        texts.append(ranks)
    if dependent is not None and dependent.example is not None:
        texts.append(_dependent_questions(dependent))
    if (failed := failures(artifact)) is not None:
        texts.append(f"{failed} Ask them again: the same `calibrate collect` into {found.records}.")
    if found.unread is not None:
        texts.append(found.unread)
    if artifact.data.many_cut_off:
        texts.append(_cut_off_answers(artifact))
    if (undecided := undecided_answers(artifact, found)) is not None:
        texts.append(undecided)
    if not artifact.model.is_known and unguardable(artifact) is None:
        texts.append(_unnamed_model(found.records))
    if found.doubtful is not None:
        texts.append(found.doubtful)
    if dependent is not None and dependent.example is None:
        texts.append(_dependent_questions(dependent))
    return texts


def _lesser_advice(artifact: CalibrationArtifact) -> Iterator[str]:
    """What the artifact's numbers advise, of less weight than a warning."""
    outcome, diagnostics, nouns = artifact.outcome, artifact.outcome.diagnostics, nouns_of(artifact)
    auroc = diagnostics.auroc
    if isinstance(outcome, Feasible) and auroc is not None and auroc < USEFUL_AUROC:
        interval = auroc_of(artifact)
        if interval is None or interval.verdict == "ranks":  # otherwise `ranking` says it
            yield hardly_ranks(auroc)
    if diagnostics.base_error > 0.5:
        yield f"Use a better model or prompt: {percent(diagnostics.base_error)} of its {nouns.many} are wrong."
    if isinstance(outcome, Feasible) and outcome.tie_block > 0.2 * outcome.n:
        finer = "A second score can order them: `calibrate score --score 'ties(THIS, sequence_nll)'`."
        if artifact.plan.n:  # more samples help only a score that reads some
            finer = "More samples, or a score that reads log-probabilities, tells them apart."
        yield (
            f"Use a finer score: {outcome.tie_block} of {outcome.n} {nouns.asked} share the threshold's score and are "
            f"accepted or rejected together. {finer}"
        )
    if artifact.data.n_unmeasured > 0.05 * artifact.data.n_questions:
        yield (
            f"Fix the sampling: {left_out(artifact)}; such {nouns.asked} are always held back. The same `calibrate "
            "collect` again asks those whose server failed."
        )


def ranking(artifact: CalibrationArtifact) -> str | None:
    """A warning about a score that does not rank errors; None if it ranks them, or with one class only."""
    interval = auroc_of(artifact)
    if interval is None or interval.verdict == "ranks":
        return None
    auroc, span = f"AUROC {interval.value:.2f}", f"95 % interval {interval.low:.2f} to {interval.high:.2f}"
    if interval.verdict == "reversed":
        return f"{upside_down(f'{auroc}, {span}', nouns_of(artifact))} {FRESH_LABELS}"
    shown = f"{auroc} ({span}; 0.5 is guessing)"
    if isinstance(artifact.outcome, Infeasible) and artifact.outcome.reason is InfeasibleReason.TOO_FEW_ITEMS:
        return f"{shown}: the labels are too few to show whether {artifact.estimator.name} ranks this model's errors."
    return (
        f"Nothing shows that {artifact.estimator.name} tells right from wrong on these {nouns_of(artifact).asked}: "
        f"{shown}. {FRESH_LABELS}"
    )


def unread(key: str, counts: tuple[int, int] | None) -> str | None:
    """A warning about answers that agree with none of their samples; None below 1 % of them.

    Args:
        key: The score, which reads the samples alone.
        counts: See `calibrate.evaluation.label_checks.unread_answers`.
    """
    if counts is None or counts[0] < max(1, 0.01 * counts[1]):
        return None
    alone, n = counts
    return (
        f"{alone} of {n} answers ({percent(alone / n)}) agree with none of their samples, and {key} compares the "
        "samples alone: it may accept such an answer. A score that compares them with the answer: --score "
        "graded_disagreement."
    )


def _dependent_questions(dependent: Dependence) -> str:
    """A warning about questions that count as independent and hardly are."""
    way = "fit with --cluster-by-group, which uses one question of each"
    if dependent.example is None:
        return (
            f"{dependent.n} questions come in {dependent.units} groups and count as independent. If those of a group "
            f"depend on each other (one document, one user), {way}."
        )
    first, second = dependent.example
    way = f"{way.capitalize()}." if dependent.grouped else f"Give each kind a group (--map group=COLUMN), and {way}."
    return (
        f"{dependent.n} questions are of {dependent.units} kinds, as {first!r} and {second!r}, that differ in a word "
        f"and have one answer, and they count as independent. {way}"
    )


def _cut_off_answers(artifact: CalibrationArtifact) -> str:
    """Advice about calibration answers that were cut off."""
    data, plan = artifact.data, artifact.plan
    then = "measured like whole ones" if plan.cut_off == "measure" else "held back, there and at run time"
    return (
        f"Allow longer {nouns_of(artifact).many}: {data.n_cut_off} of {data.n_questions} were cut off at "
        f"{plan.max_tokens} tokens, and are {then}. Collect into a new file with a larger --max-tokens."
    )


def _mostly_undecided(artifact: CalibrationArtifact) -> bool:
    """Whether at least half of the wrong answers are undecided ones: what they say about score and model is unknown."""
    return 0 < sum(artifact.calibration.error) <= 2 * artifact.data.n_undecided


def undecided_answers(artifact: CalibrationArtifact, found: Found = Found()) -> str | None:
    """The number of undecided answers that count as wrong, their cost and the way out; None without any."""
    undecided, n, wrong = artifact.data.n_undecided, len(artifact.calibration.error), sum(artifact.calibration.error)
    if not undecided:
        return None
    nouns = nouns_of(artifact)
    without = percent((wrong - undecided) / (n - undecided)) if n > undecided else "-"
    start = (
        f"{undecided} of {n} {nouns.labelled} are undecided and count as wrong: {percent(wrong / n)} of the "
        f"{nouns.labelled} are wrong with them, {without} without."
    )
    if found.undecided is not None:
        return f"{start} {found.undecided}".rstrip()
    start = f"{start} Labelling them can raise what is accepted"
    if artifact.correctness.name == GIVEN:
        return f"{start}."
    if nouns is ITEMS_OF_ANSWERS:
        return f"{start}: {_for_each(found.records, 'calibrate label {} --items --interactive')}, then fit again."
    commands = _for_each(found.records, "calibrate label {} --undecided --interactive")
    return f"{start}: {commands} (or --judge-model MODEL in place of --interactive), then fit again."


def _unnamed_model(records: str) -> str:
    """The way to an artifact that a guard loads, if nothing says which model gave the answers."""
    return (
        "No guard will load this artifact: the answers were imported without naming their model. Name it with "
        f"{_for_each(records, 'calibrate import {} --model MODEL')} (in Python from_frame(..., model=model)) and fit "
        "again, which is the same fit."
    )


def _for_each(records: str, command: str) -> str:
    """A command for each record file: those that change records would write several files as one."""
    return ", ".join(f"`{command.format(shlex.quote(file))}`" for file in shlex.split(records))


def second_look(suspicious: Suspicious, report: str = "") -> str | None:
    """The number of labels that contradict an extreme score, in one sentence; None if none does.

    Args:
        suspicious: These labels.
        report: The command whose report lists them; "" where they stand beside the sentence.
    """
    kinds = (
        (suspicious.n_wrong, "wrong though the model was very certain"),
        (suspicious.n_right, "right though it was very uncertain"),
    )
    counts = [f"{n} {'says' if n == 1 else 'say'} {what}" for n, what in kinds if n]
    if not counts:
        return None
    listed = f" See them: {report}" if report else ""
    return f"Of the labels, {' and '.join(counts)}. If such a label is wrong, it moves the threshold.{listed}"
