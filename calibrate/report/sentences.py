"""Sentences about an artifact, for the terminal and the report, in words that a manager understands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, EstimatorChoice
from guardrail.describe import (
    ANSWERS,
    CALLS,
    FRESH_LABELS,
    ITEMS_OF_ANSWERS,
    USEFUL_AUROC,
    Nouns,
    answer_if,
    asked,
    confidence,
    figures_lines,
    guarantee,
    nouns_of,
    remedy,
    scope_in_words,
    stops_nothing,
    summary,
    unguardable,
    warning,
    why_infeasible,
)
from guardrail.notebook import percent
from guardrail.outcome import AVERAGE, CERTIFIED, Feasible, Infeasible, InfeasibleReason
from guardrail.sampling.follow_ups import SCORE, scorer_of
from guardrail.specs import EstimatorSpec

from ..data.records import GIVEN, Record, RecordFile
from ..data.split import Dependence, dependence
from ..evaluation.audit import DIFFERENT, Audit, PromiseTest
from ..evaluation.label_checks import Suspicious, unread_answers
from ..evaluation.planning import labels_needed
from ..items.figures import item_facts
from ..pipeline import GateCounts
from ..rules import certifies
from ..scoring.metrics import AurocInterval, auroc_interval

__all__ = [
    "MOST_WARNINGS",
    "ArtifactVerdict",
    "Found",
    "Row",
    "VerdictText",
    "advice",
    "audited",
    "auroc_of",
    "cut_off_answers",
    "dependent_questions",
    "describe_auroc",
    "describe_spec",
    "facts",
    "fits_line",
    "held_out",
    "next_steps",
    "not_fitted_on",
    "ranking",
    "second_look",
    "shifted",
    "slots_argument",
    "standing",
    "unread",
    "verdict_text",
    "warnings",
]

Row = tuple[str, str]
"""A label and its value."""
MOST_WARNINGS = 2
"""Warnings that a fit shows at once; the report has the others."""
ALONE = "calibrate fit NEW_RECORDS --alpha ALPHA"
"""The command that calibrates on new questions alone, where the names of the files are unknown."""


@dataclass(frozen=True, slots=True)
class ArtifactVerdict:
    """The verdict on an artifact, read from all its evidence: what was fitted, and the test part if there is one.

    Attributes:
        status: "answers": it found a threshold, and the test part, if any, does not refute it. "above": the test part
            refutes the target, by no more than the rule lets a gate end above it. "refuted": the test part refutes
            the promise. "abstains": nothing is accepted.
        title: In a few words.
        colour: Of the verdict: green, yellow or red.
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
    if unguardable(artifact) is not None:
        colour: Literal["red", "yellow"] = "red" if stops_nothing(artifact) else "yellow"
        return ArtifactVerdict("answers", "For evaluation only: no guard can use it", colour)
    if stops_nothing(artifact):
        return ArtifactVerdict("answers", "This gate stops nothing", "red")
    may = "May let calls through" if nouns_of(artifact) is CALLS else "May answer"
    return ArtifactVerdict("answers", f"{may}, within limits", "green")


@dataclass(frozen=True, slots=True)
class VerdictText:
    """The lines that a fit or a test prints about an artifact.

    Attributes:
        verdict: The verdict.
        lines: `guardrail.describe.summary`.
        fits: See `fits_line`.
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
        undecided: See `undecided_answers`.
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
        tested = (held_out(artifact, test.held_out), *audited(test, nouns_of(artifact)))
    # Where a test part counts the items that nothing was fitted on, it stands for both.
    counts = figures_lines(artifact.items, artifact.outcome.rule) if test is None else ()
    return VerdictText(
        verdict=standing(artifact, test),
        lines=(*summary(artifact, _needed(artifact)), *counts),
        fits=fits_line(artifact),
        tested=tested,
        warnings=tuple(warnings(artifact, found)),
        steps=tuple(next_steps(artifact, test, alone)),
        at_run_time=unguardable(artifact),
    )


def warnings(artifact: CalibrationArtifact, found: Found = Found()) -> list[str]:
    """Warnings about a fit, the gravest first, each with its remedy."""
    useless, grouped = warning(artifact), dependent_questions(artifact, found.dependent)
    nearly_equal = found.dependent is not None and found.dependent.example is not None
    texts = (
        None if useless is None else f"{useless} Fit with a smaller --alpha, or use no gate.",
        None if _mostly_undecided(artifact) else ranking(artifact),
        grouped if nearly_equal else None,
        failed_questions(artifact, found.records),
        found.unread,
        cut_off_answers(artifact),
        undecided_answers(artifact, found.records, found.undecided),
        unnamed_model(artifact, found.records),
        found.doubtful,
        None if nearly_equal else grouped,
    )
    return [text for text in texts if text is not None]


def failed_questions(artifact: CalibrationArtifact, records: str = "RECORDS") -> str | None:
    """The share of questions that failed, with the command that asks them again; None where they are few."""
    failures = asked(artifact).failures.strip()
    return f"{failures} Ask them again: the same `calibrate collect` into {records}." if failures else None


def _of_the_numbers(artifact: CalibrationArtifact) -> Iterator[str]:
    """What the artifact's numbers advise, of less weight than a warning."""
    outcome, diagnostics, nouns = artifact.outcome, artifact.outcome.diagnostics, nouns_of(artifact)
    weak = diagnostics.auroc is not None and diagnostics.auroc < USEFUL_AUROC
    if weak and ranking(artifact) is None and isinstance(outcome, Feasible):
        yield (
            f"This score hardly tells right from wrong (AUROC {diagnostics.auroc:.2f}, and 0.5 is guessing). "
            f"{FRESH_LABELS}"
        )
    if diagnostics.base_error > 0.5:
        yield f"Use a better model or prompt: {percent(diagnostics.base_error)} of its {nouns.many} are wrong."
    if isinstance(outcome, Feasible) and outcome.tie_block > 0.2 * outcome.n:
        yield (
            f"Use a finer score: {outcome.tie_block} of {outcome.n} {nouns.asked} share the threshold's score and are "
            f"accepted or rejected together. {_finer(artifact)}"
        )
    if artifact.data.n_unmeasured > 0.05 * artifact.data.n_questions:
        yield (
            f"Fix the sampling: {_left_out(artifact)}; such {nouns.asked} are always held back. The same `calibrate "
            "collect` again asks those whose server failed."
        )


def unnamed_model(artifact: CalibrationArtifact, records: str = "RECORDS") -> str | None:
    """The way to an artifact that a guard loads, if nothing says which model gave the answers; None otherwise."""
    if artifact.model.is_known or unguardable(artifact) is not None:
        return None
    return (
        "No guard will load this artifact: the answers were imported without naming their model. Name it with "
        f"{_for_each(records, 'calibrate import {} --model MODEL')} (in Python from_frame(..., model=model)) and fit "
        "again, which is the same fit."
    )


def _for_each(records: str, command: str) -> str:
    """A command for each record file: those that change records would write several files as one."""
    return ", ".join(f"`{command.format(shlex.quote(file))}`" for file in shlex.split(records))


def _mostly_undecided(artifact: CalibrationArtifact) -> bool:
    """Whether at least half of the wrong answers are undecided ones: what they say about score and model is unknown."""
    return 0 < sum(artifact.calibration.error) <= 2 * artifact.data.n_undecided


def _needed(artifact: CalibrationArtifact) -> str | None:
    """What an artifact without a threshold needs; see `calibrate.evaluation.planning.labels_needed`."""
    if not _mostly_undecided(artifact):
        return labels_needed(artifact)
    return f"{artifact.data.n_undecided} of the {sum(artifact.calibration.error)} wrong ones are undecided"


def undecided_answers(
    artifact: CalibrationArtifact, records: str = "RECORDS", way_out: str | None = None
) -> str | None:
    """The number of undecided answers that count as wrong, their cost and the way out; None without any.

    Args:
        artifact: The artifact.
        records: The record files, as a shell takes them.
        way_out: A sentence in place of the commands that label these answers; "" for none.
    """
    undecided, n, wrong = artifact.data.n_undecided, len(artifact.calibration.error), sum(artifact.calibration.error)
    if not undecided:
        return None
    many = nouns_of(artifact).labelled
    without = percent((wrong - undecided) / (n - undecided)) if n > undecided else "-"
    if nouns_of(artifact) is ITEMS_OF_ANSWERS:
        way = f": {_for_each(records, 'calibrate label {} --items --interactive')}, then fit again."
    else:
        commands = _for_each(records, "calibrate label {} --undecided --interactive")
        way = f": {commands} (or --judge-model MODEL in place of --interactive), then fit again."
    start = (
        f"{undecided} of {n} {many} are undecided and count as wrong: {percent(wrong / n)} of the {many} are wrong "
        f"with them, {without} without."
    )
    if way_out is not None:
        return f"{start} {way_out}".rstrip()
    return f"{start} Labelling them can raise what is accepted{'.' if artifact.correctness.name == GIVEN else way}"


def held_out(artifact: CalibrationArtifact, counts: GateCounts) -> str:
    """Results of the gate on questions kept out of the fit, in one sentence; with items in a few."""
    if counts.items is not None:
        lines = figures_lines(counts.items, artifact.outcome.rule)
        return f"On {counts.n_asked} questions kept out of the fit: {' '.join(lines)}"
    nouns, share = nouns_of(artifact), _share(counts.acceptance)
    does = f"the gate lets {share} through" if nouns is CALLS else f"the model answers {share}"
    start = f"On {counts.n_asked} {nouns.asked} kept out of the fit {does}"
    if counts.error_rate is None:
        return f"{start}, so there is no error rate to report (target {percent(artifact.alpha)})."
    verb = "lets through" if nouns is CALLS else "gives"
    gave = "" if counts.power is None else f" It {verb} {_share(counts.power)} of its right {nouns.many}."
    return f"{start}. Of these {_share(counts.error_rate)} are wrong (target {percent(artifact.alpha)}).{gave}"


def facts(artifact: CalibrationArtifact) -> list[Row]:
    """The facts that the artifact binds, as labelled rows."""
    outcome, data, diagnostics = artifact.outcome, artifact.data, artifact.outcome.diagnostics
    judge, similarity, nouns = artifact.estimator.judge, artifact.estimator.similarity, nouns_of(artifact)
    n, of = artifact.calibration.n, outcome.scope
    rows = [
        ("model", _identity(artifact)),
        ("asked", _plan(artifact)),
        ("prompt", _prompt(artifact)),
        (_noun(artifact), _scored_by(artifact.estimator)),
        *([(f"same {nouns.one} if", describe_spec(judge.name, judge.params))] if judge is not None else []),
        *([("alike as by", describe_spec(similarity.name, similarity.params))] if similarity is not None else []),
        (f"right {nouns.one} if", describe_spec(artifact.correctness.name, artifact.correctness.params)),
        (nouns.asked, _data(artifact)),
        *([("score chosen", _choice(artifact.data.choice))] if artifact.data.choice is not None else []),
        *([("fits on these labels", line)] if (line := fits_line(artifact)) is not None else []),
        *([("scope", scope)] if (scope := scope_in_words(outcome.scope, artifact.estimator)) else []),
        ("rule", f"{outcome.rule} at alpha {outcome.alpha:g}" + _delta(outcome.delta) + _options(outcome.options)),
    ]
    if isinstance(outcome, Feasible):
        low, high = outcome.interval
        rows += [
            ("threshold", answer_if(artifact)),
            ("accepted", f"{outcome.n_accepted} of {n} ({percent(artifact.acceptance)} of all {nouns.asked})"),
            ("errors among them", f"{outcome.n_errors} ({percent(outcome.error_rate)}; 95 % interval "
             f"{percent(low)} to {percent(high)}, chosen after looking)"),
            ("equal to threshold", f"{outcome.tie_block} (ties are accepted together)"),
        ]  # fmt: skip
    else:
        rows += [("no threshold", f"{outcome.reason.value.replace('_', ' ')}: {why_infeasible(outcome, nouns)}")]
    rows += [
        (
            "promise",
            guarantee(artifact.outcome, 1 - confidence(artifact), nouns)
            if artifact.outcome.n_accepted
            else f"nothing, so nothing is {nouns.accepted}",
        ),
        ("error without gate", percent(diagnostics.base_error)),
        ("AUROC", describe_auroc(artifact)),
        ("most any rule accepts", percent(of.of_measured(diagnostics.max_acceptance) * of.measured)),
        ("made", f"{artifact.made.at} with {', '.join(f'{k} {v}' for k, v in artifact.made.packages.items())}"),
        ("digest", artifact.digest),
    ]
    rows += item_facts(artifact)
    if data.n_unmeasured or data.n_unlabelled:
        rows.insert(8 + (artifact.data.choice is not None), ("left out", _left_out(artifact)))
    if artifact.data.n_cut_off:
        rows.append(("cut off", f"{artifact.data.n_cut_off} of {artifact.data.n_questions} answers, at max_tokens"))
    return rows


def fits_line(artifact: CalibrationArtifact | CascadeArtifact) -> str | None:
    """The effect of other certificates from the same labels on this one; None without any."""
    spent, outcome = artifact.spent, artifact.outcome
    certified = outcome.rule == CERTIFIED or bool(getattr(outcome, "certifies", False))
    # Fits that certify nothing spend nothing, and without a certificate there is no confidence to lose.
    if spent is None or not certified or spent.delta <= (outcome.delta or 0.0) + 1e-9:
        return None
    return (
        f"{spent.fits} fits have used these labels; whichever of them you use, its promise holds with "
        f"{percent(1 - spent.delta)} confidence."
    )


def cut_off_answers(artifact: CalibrationArtifact) -> str | None:
    """Advice about calibration answers that were cut off; None where they are few."""
    data, plan = artifact.data, artifact.plan
    if not data.many_cut_off:
        return None
    then = "measured like whole ones" if plan.cut_off == "measure" else "held back, there and at run time"
    return (
        f"Allow longer {nouns_of(artifact).many}: {data.n_cut_off} of {data.n_questions} were cut off at "
        f"{plan.max_tokens} tokens, and are {then}. Collect into a new file with a larger --max-tokens."
    )


def next_steps(artifact: CalibrationArtifact, test: Audit | None = None, alone: str = ALONE) -> list[str]:
    """Next steps: after a refutation its remedies, then the warnings, the gravest first, then the way into use.

    Args:
        artifact: The artifact.
        test: Its audit on questions that were not fitted on, if there are any.
        alone: The command that calibrates on those questions alone.
    """
    status = standing(artifact, test).status
    first = advice(test, alone) if test is not None and status in ("refuted", "above") else []
    rest = [*warnings(artifact), *_of_the_numbers(artifact)]
    if isinstance(artifact.outcome, Infeasible):  # its remedy is about the score as well
        rest = [remedy(artifact.outcome, nouns_of(artifact)), *(text for text in rest if text != ranking(artifact))]
    if status != "answers":
        return first + rest
    if (useless := unguardable(artifact)) is not None:
        return [*rest, useless]
    if nouns_of(artifact) is CALLS:
        return [*rest, "Put the artifact in front of the tool: GuardrailMiddleware(tools={TOOL: ARTIFACT})."]
    more = slots_argument(artifact)
    left_out = " Leave out slots that make no other question, as a clock." if artifact.prompt.slots else ""
    return [*rest, f"Put the artifact in front of the model: Guardrail(model=..., artifact=...{more}).{left_out}"]


def slots_argument(artifact: CalibrationArtifact) -> str:
    """The argument that a guard of a prompt with slots needs, after a comma; "" for other prompts."""
    return f", remember_slots={artifact.prompt.slots!r}" if artifact.prompt.slots else ""


def not_fitted_on(n_left_out: int, n_shown: int) -> str | None:
    """Note that a record file holds labelled questions that were not fitted on; None if it holds none.

    Args:
        n_left_out: Such questions in no part of the report.
        n_shown: Such questions that are its test part although the user named no test file.
    """
    if n_left_out:
        return f"{n_left_out} labelled questions of the record file were not fitted on. This report leaves them out."
    if n_shown:
        return f"{n_shown} labelled questions of the record file were not fitted on. They are the test part here."
    return None


def auroc_of(artifact: CalibrationArtifact) -> AurocInterval | None:
    """AUROC of the calibration scores with its interval; None with one class only, and of items."""
    scores = artifact.calibration
    if artifact.outcome.diagnostics.auroc is None:
        return None
    return auroc_interval(np.array(scores.uncertainty), scores.error)


def describe_auroc(artifact: CalibrationArtifact) -> str:
    """The AUROC with its interval."""
    interval = auroc_of(artifact)
    if interval is None:
        return "of whole answers only" if nouns_of(artifact) is ITEMS_OF_ANSWERS else "only one class"
    return f"{interval.value:.3f} ({percent(interval.confidence)} interval {interval.low:.3f} to {interval.high:.3f})"


def ranking(artifact: CalibrationArtifact) -> str | None:
    """A warning about a score that does not rank errors; None if it ranks them, or with one class only."""
    interval = auroc_of(artifact)
    if interval is None or interval.verdict == "ranks":
        return None
    many = nouns_of(artifact).many
    start = f"AUROC {interval.value:.2f} (95 % interval {interval.low:.2f} to {interval.high:.2f}; 0.5 is guessing)"
    if interval.verdict == "reversed":
        return (
            f"Check the score: {start}. Wrong {many} are more certain than right ones. Is the score upside down? "
            "Higher must mean less certain; a confidence is imported with `--map confidence=NAME:COLUMN`. If it is "
            f"not, the labels may be reversed (does `correct` mark the right {many}?). If neither, this score "
            f"misleads. {FRESH_LABELS}"
        )
    few = InfeasibleReason.TOO_FEW_ITEMS
    if isinstance(artifact.outcome, Infeasible) and artifact.outcome.reason is few:
        return f"{start}: the labels are too few to show whether {artifact.estimator.name} ranks this model's errors."
    return (
        f"Nothing shows that {artifact.estimator.name} tells right from wrong on these {nouns_of(artifact).asked}: "
        f"{start}. {FRESH_LABELS}"
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


def dependent_questions(artifact: CalibrationArtifact, found: Dependence | None) -> str | None:
    """A warning about questions that count as independent and hardly are; None without any.

    Args:
        artifact: The artifact.
        found: Such questions among those that were fitted on.
    """
    if found is None or artifact.calibration.group is not None:
        return None
    way = "fit with --cluster-by-group, which uses one question of each"
    if found.example is None:
        return (
            f"{found.n} questions come in {found.units} groups and count as independent. If those of a group depend "
            f"on each other (one document, one user), {way}."
        )
    first, second = found.example
    way = f"{way.capitalize()}." if found.grouped else f"Give each kind a group (--map group=COLUMN), and {way}."
    return (
        f"{found.n} questions are of {found.units} kinds, as {first!r} and {second!r}, that differ in a word and have "
        f"one answer, and they count as independent. {way}"
    )


def second_look(suspicious: Suspicious, report: str = "") -> str | None:
    """The number of labels that contradict an extreme score, in one sentence; None if none does.

    Args:
        suspicious: These labels.
        report: The command whose report lists them; "" where they stand beside the sentence.
    """
    says = {1: "1 says"}
    kinds = []
    if n := suspicious.n_wrong:
        kinds.append(f"{says.get(n, f'{n} say')} wrong though the model was very certain")
    if n := suspicious.n_right:
        kinds.append(f"{says.get(n, f'{n} say')} right though it was very uncertain")
    if not kinds:
        return None
    listed = f" See them: {report}" if report else ""
    return f"Of the labels, {' and '.join(kinds)}. If such a label is wrong, it moves the threshold.{listed}"


def audited(audit: PromiseTest, nouns: Nouns = ANSWERS) -> list[str]:
    """The verdict of an audit in words, and the likely cause of a refutation, a paragraph each."""
    target = percent(audit.target)
    if audit.rate is None:
        return [f"No accepted {nouns.one} has a label, so nothing can be said about a rate of {target}."]
    counts = _seen(audit, nouns)
    if audit.verdict == "refuted":
        refuted = f"{counts} {_unlikely(audit)} The promise does not hold on these {nouns.asked}."
        return [refuted, _cause(audit, nouns)] if isinstance(audit, Audit) else [refuted]
    sure = percent(1 - audit.level)
    if audit.verdict == "supported":
        return [
            f"{counts} The error rate is at most {percent(audit.upper or 0.0)} with {sure} confidence "
            f"(target {target})."
        ]
    more = "More labels would decide it."
    if audit.rate == audit.target:
        more = "No number of further labels would decide it: the rate lies on the target."
    elif audit.needed is not None:
        more = f"At the present rate, about {audit.needed:,} more labels would decide it."
    return [f"{counts} That neither refutes nor proves an error rate of {target} at {sure} confidence. {more}"]


_SEEN = {
    "wrong_share": "{e} of {n} labelled items that are kept were wrong",
    "wrong_share_per_answer": "Of the {n} labelled items that are kept {e} were wrong; the mean over answers counts",
    "clean_shown": "{e} of {n} labelled answers that show something keep a wrong item",
    "clean_answers": "{e} of {n} labelled answers keep a wrong item",
}
"""What a promise about items counts, by its rule."""


def _seen(audit: PromiseTest, nouns: Nouns) -> str:
    kind = f"accepted {nouns.many}" if audit.population == "accepted" else nouns.asked
    seen = _SEEN.get(audit.rule) if isinstance(audit, Audit) else None
    counted = (seen or f"{{e}} of {{n}} labelled {kind} were wrong").format(e=audit.n_errors, n=audit.n)
    return f"{counted} ({percent(audit.rate)}; target {percent(audit.target)})."


def _unlikely(audit: PromiseTest) -> str:
    if audit.anytime:
        return (
            f"If the error rate were {percent(audit.target)} or less, so much evidence would ever appear with a "
            f"probability of at most {audit.p_refute:.2g}, however often one looks."
        )
    return (
        f"If the error rate were {percent(audit.target)} or less, so many errors would have a probability of at most "
        f"{audit.p_refute:.2g}."
    )


def shifted(audit: Audit, nouns: Nouns = ANSWERS) -> list[str]:
    """Differences of the fresh questions, or calls, from those of the calibration, and other warnings; a line each."""
    shift, asked_for = audit.shift, nouns.asked
    lines = []
    if shift.calibration is not None and shift.acceptance_p is not None:
        kind = f"these {asked_for}"
        if shift.within is not None:
            kind = f"the {asked_for} within the scope ({percent(shift.within)} of these)"
        lines.append(
            f"Accepted: {percent(shift.fresh)} of {kind}, {percent(shift.calibration)} at calibration "
            f"(p = {shift.acceptance_p:.2g})."
        )
    lines.append(f"Uncertainty against calibration: largest distance {shift.ks:.3f} (p = {shift.ks_p:.2g}).")
    if shift.scores_differ:
        differ = f"These {asked_for} look different from the calibration {asked_for}: the promise may not carry over."
        lines.append(differ)
    if audit.n_repeated:
        lines.append(
            f"{audit.n_repeated} records are not read: another one asks the same question, or is of the same cluster."
        )
    if audit.n_unlabelled:
        lines.append(
            f"{audit.n_unlabelled} accepted {nouns.many} have no label. That is sound only if those labelled were "
            "picked at random."
        )
    return lines


def _cause(audit: Audit, nouns: Nouns) -> str:
    """The most likely cause of a refutation."""
    asked_for = nouns.asked
    here, there = (percent(_base_error(counts)) for counts in (audit.held_out, audit.at_calibration))
    base = f"{here} of all {nouns.many} {nouns.wrong}, {there} at calibration"
    if audit.cause == "questions":
        shift, what = audit.shift, "uncertainty"
        p = shift.ks_p
        if p >= DIFFERENT and shift.acceptance_p is not None:
            what, p = "share accepted", shift.acceptance_p
        return (
            f"Likely cause: these {asked_for} look different from the calibration {asked_for} ({what}: p = {p:.2g}; "
            f"{base}). A promise holds for {asked_for} like the calibration {asked_for} only, under every rule."
        )
    if audit.cause == "labels":
        start = (
            f"Likely cause: the labels, or harder {asked_for}. Uncertainty is as it was, and yet {base} (p = "
            f"{audit.base_error_p:.2g}). Compare the label rules and references of the two files. If the labels are "
            f"right, these {asked_for} are harder in a way that the score does not show."
        )
    else:
        start = f"Nothing shows that {asked_for} or labels differ from those at calibration."
    if certifies(audit.rule):
        return f"{start} A certificate fails for a share delta of calibrations by itself."
    return f"{start} Rule {audit.rule} certifies nothing: about half of its gates lie somewhat above alpha."


def _base_error(counts: GateCounts) -> float:
    return 1 - counts.n_correct / counts.n


def advice(audit: Audit, alone: str = ALONE) -> list[str]:
    """Remedies after a refutation, most useful first; never a rule that would not have helped here.

    Args:
        audit: An audit that refutes.
        alone: The command that calibrates on the fresh questions alone.
    """
    steps = [f"If run time asks such questions, fit on these alone, then test on others: {alone}"]
    if audit.cause == "labels":
        steps.insert(0, "Compare the labels of the two files first: the same rule, references of the same form.")
    if audit.cause == "chance" and audit.rule == AVERAGE:
        steps.insert(0, "Use rule certified (--rule certified), which accepts less and fails with probability delta.")
    return steps


def _identity(artifact: CalibrationArtifact) -> str:
    model = artifact.model
    revision = f", {model.revision[:19]}" if model.revision else ", revision unknown"
    return f"{model.model} ({model.provider}{revision})"


def _noun(artifact: CalibrationArtifact) -> str:
    """The word for the measurement: a scorer gives a score."""
    return "uncertainty" if scorer_of(artifact.plan) is None else "score"


def _scored_by(estimator: EstimatorSpec) -> str:
    """An estimator with its unit, and of a scorer the direction: thresholds and tables are in terms of uncertainty."""
    text = f"{estimator.name} v{estimator.version}, in {estimator.unit}"
    if estimator.params.get("higher") != "certain":
        return text
    turned = "1 - the scorer's number" if estimator.unit == "probability" else "- the scorer's number"
    return f"{text}; lower is more certain: {turned}"


def _finer(artifact: CalibrationArtifact) -> str:
    """The way to a finer score; more samples help only a score that reads some."""
    if artifact.plan.n:
        return "More samples, or a score that reads log-probabilities, tells them apart."
    return "A second score can order them: `calibrate score --score 'ties(THIS, sequence_nll)'`."


def _plan(artifact: CalibrationArtifact) -> str:
    plan = artifact.plan
    if plan.options is not None and plan.n == 0:
        return f"likelihood of the options {', '.join(plan.options)}"
    samples = f"{plan.n} samples at temperature {plan.temperature:g}, top_p {plan.top_p:g}" if plan.n else "no samples"
    answer = f"1 {plan.primary} answer and {samples}"
    if plan.primary == "majority":
        answer = f"{samples}, of which the most frequent is the answer"
    asked = "".join(f", rated by the scorer {name}" for name in plan.follow_ups if name.startswith(SCORE))
    return f"{answer}, up to {plan.max_tokens} tokens" + (", log-probabilities" * plan.logprobs) + asked


def _prompt(artifact: CalibrationArtifact) -> str:
    prompt = artifact.prompt
    system = f"system {prompt.system!r}; " if prompt.system is not None else ""
    return f"{system}template {prompt.template!r}"


def _data(artifact: CalibrationArtifact) -> str:
    data = artifact.data
    return f"{data.n_used} used of {data.n_questions} in {data.name} (sha256 {data.sha256[:12]})"


def _choice(choice: EstimatorChoice) -> str:
    return (
        f"{choice.candidates[0]}, of {len(choice.candidates)} the one with the highest AUROC ({choice.auroc:.3f}) on "
        f"{choice.n} labelled questions that the fit did not use ({percent(choice.share)} of all)"
    )


def _left_out(artifact: CalibrationArtifact) -> str:
    data = artifact.data
    failed = f" ({data.n_failed} because a server, rate limit or time-out failed)" if data.n_failed else ""
    return f"{data.n_unmeasured} not measured{failed}, {data.n_unlabelled} not labelled, of {data.n_questions}"


def describe_spec(name: str, params: dict[str, object]) -> str:
    """A name and its parameters: "token_f1 (threshold 0.5)"."""
    return name + _options(params)


def _delta(delta: float | None) -> str:
    return "" if delta is None else f", delta {delta:g}"


_HIDDEN = ("diagnose", "support", "version")


def _options(options: dict[str, object]) -> str:
    shown = [f"{name} {value}" for name, value in options.items() if name not in _HIDDEN and value != {}]
    return f" ({', '.join(shown)})" if shown else ""


def _share(values: tuple[float, float, float]) -> str:
    return f"{percent(values[0])} (95 % interval {percent(values[1])} to {percent(values[2])})"
