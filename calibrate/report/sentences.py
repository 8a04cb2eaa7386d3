"""What a fit and its test say to a person: verdict, warnings, next steps, and everything an artifact is bound to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from guardrail.artifact import CalibrationArtifact
from guardrail.describe import (
    CALLS,
    FRESH_LABELS,
    ITEMS_OF_ANSWERS,
    USEFUL_AUROC,
    answer_if,
    confidence,
    failures,
    figures_lines,
    fits_line,
    guarantee,
    hardly_ranks,
    nouns_of,
    refusal,
    scope_in_words,
    stops_nothing,
    summary,
    unguardable,
    upside_down,
    warning,
    why_infeasible,
)
from guardrail.notebook import percent
from guardrail.outcome import Feasible, Infeasible, InfeasibleReason
from guardrail.sampling.follow_ups import SCORE, scorer_of

from ..data.records import GIVEN, Record, RecordFile
from ..data.split import Dependence, dependence
from ..evaluation.label_checks import Suspicious, unread_answers
from ..evaluation.planning import labels_needed
from ..evaluation.promise_test import ALONE, Audit
from ..items.figures import item_facts
from ..judging import GateCounts
from ..scoring.metrics import AurocInterval, auroc_interval

__all__ = [
    *("MOST_WARNINGS", "ArtifactVerdict", "Found", "Row", "VerdictText", "auroc_of", "describe_auroc"),
    *("describe_spec", "facts", "next_steps", "not_fitted_on", "ranking", "second_look"),
    *("standing", "undecided_answers", "unread", "verdict_text", "warnings"),
]

Row: TypeAlias = tuple[str, str]
"""A label and its value."""
MOST_WARNINGS = 2
"""Warnings that a fit shows at once; the report has the others."""
Colour: TypeAlias = Literal["green", "yellow", "red"]


# -- The verdict on an artifact, and all lines about it ----------------------------------------------------------------


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
    colour: Colour


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
        colour: Colour = "red" if stops_nothing(artifact) else "yellow"
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
        steps=tuple(next_steps(artifact, test, alone)),
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


def next_steps(artifact: CalibrationArtifact, test: Audit | None = None, alone: str = ALONE) -> list[str]:
    """Next steps: after a refutation its remedies, then the warnings, the gravest first, then the way into use.

    Args:
        artifact: The artifact.
        test: Its audit on questions that were not fitted on, if there are any.
        alone: The command that calibrates on those questions alone.
    """
    status = standing(artifact, test).status
    first = test.remedies(alone) if test is not None and status in ("refuted", "above") else []
    rest = [*warnings(artifact), *_lesser_advice(artifact)]
    if isinstance(artifact.outcome, Infeasible):  # its remedy is about the score as well
        rest = [refusal(artifact.outcome, nouns_of(artifact))[1], *(text for text in rest if text != ranking(artifact))]
    if status != "answers":
        return first + rest
    if (useless := unguardable(artifact)) is not None:
        return [*rest, useless]
    if nouns_of(artifact) is CALLS:
        return [*rest, "Put the artifact in front of the tool: GuardrailMiddleware(tools={TOOL: ARTIFACT})."]
    return [*rest, "Put the artifact in front of the model: Guardrail(model=..., artifact=...)."]


# -- Warnings, each with its remedy ------------------------------------------------------------------------------------


def warnings(artifact: CalibrationArtifact, found: Found = Found()) -> list[str]:
    """Warnings about a fit, the gravest first, each with its remedy."""
    grouped = _dependent_questions(artifact, found.dependent)
    nearly_equal = found.dependent is not None and found.dependent.example is not None
    open_gate, failed = warning(artifact), failures(artifact)
    ranks = None if _mostly_undecided(artifact) or _told_upside_down(artifact) else ranking(artifact)
    texts = (
        None if open_gate is None else f"{open_gate} Fit with a smaller --alpha, or use no gate.",
        ranks,
        grouped if nearly_equal else None,
        None if failed is None else f"{failed} Ask them again: the same `calibrate collect` into {found.records}.",
        found.unread,
        _cut_off_answers(artifact),
        undecided_answers(artifact, found.records, found.undecided),
        _unnamed_model(artifact, found.records),
        found.doubtful,
        None if nearly_equal else grouped,
    )
    return [text for text in texts if text is not None]


def _lesser_advice(artifact: CalibrationArtifact) -> Iterator[str]:
    """What the artifact's numbers advise, of less weight than a warning."""
    outcome, diagnostics, nouns = artifact.outcome, artifact.outcome.diagnostics, nouns_of(artifact)
    auroc = diagnostics.auroc
    if auroc is not None and auroc < USEFUL_AUROC and ranking(artifact) is None and isinstance(outcome, Feasible):
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
            f"Fix the sampling: {_left_out(artifact)}; such {nouns.asked} are always held back. The same `calibrate "
            "collect` again asks those whose server failed."
        )


def auroc_of(artifact: CalibrationArtifact) -> AurocInterval | None:
    """AUROC of the calibration scores with its interval; None with one class only, and of items."""
    scores = artifact.calibration
    if artifact.outcome.diagnostics.auroc is None:
        return None
    return auroc_interval(np.array(scores.uncertainty), scores.error)


def ranking(artifact: CalibrationArtifact) -> str | None:
    """A warning about a score that does not rank errors; None if it ranks them, or with one class only."""
    interval = auroc_of(artifact)
    if interval is None or interval.verdict == "ranks":
        return None
    shown = f"AUROC {interval.value:.2f} (95 % interval {interval.low:.2f} to {interval.high:.2f}"
    if interval.verdict == "reversed":
        return f"{upside_down(shown.replace(' (', ', '), nouns_of(artifact))} {FRESH_LABELS}"
    shown = f"{shown}; 0.5 is guessing)"
    few = isinstance(artifact.outcome, Infeasible) and artifact.outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    if few:
        return f"{shown}: the labels are too few to show whether {artifact.estimator.name} ranks this model's errors."
    return (
        f"Nothing shows that {artifact.estimator.name} tells right from wrong on these {nouns_of(artifact).asked}: "
        f"{shown}. {FRESH_LABELS}"
    )


def _told_upside_down(artifact: CalibrationArtifact) -> bool:
    """Whether the first lines of a fit without a threshold say already that its score is upside down."""
    outcome, auroc, nouns = artifact.outcome, artifact.outcome.diagnostics.auroc, nouns_of(artifact)
    if not isinstance(outcome, Infeasible) or outcome.hint is not None or auroc is None:
        return False
    return refusal(outcome, nouns)[1] == upside_down(f"AUROC {auroc:.2f}", nouns)


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


def _dependent_questions(artifact: CalibrationArtifact, found: Dependence | None) -> str | None:
    """A warning about questions that count as independent and hardly are; None without any."""
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


def _cut_off_answers(artifact: CalibrationArtifact) -> str | None:
    """Advice about calibration answers that were cut off; None where they are few."""
    data, plan = artifact.data, artifact.plan
    if not data.many_cut_off:
        return None
    then = "measured like whole ones" if plan.cut_off == "measure" else "held back, there and at run time"
    return (
        f"Allow longer {nouns_of(artifact).many}: {data.n_cut_off} of {data.n_questions} were cut off at "
        f"{plan.max_tokens} tokens, and are {then}. Collect into a new file with a larger --max-tokens."
    )


def _mostly_undecided(artifact: CalibrationArtifact) -> bool:
    """Whether at least half of the wrong answers are undecided ones: what they say about score and model is unknown."""
    return 0 < sum(artifact.calibration.error) <= 2 * artifact.data.n_undecided


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
    nouns = nouns_of(artifact)
    without = percent((wrong - undecided) / (n - undecided)) if n > undecided else "-"
    start = (
        f"{undecided} of {n} {nouns.labelled} are undecided and count as wrong: {percent(wrong / n)} of the "
        f"{nouns.labelled} are wrong with them, {without} without."
    )
    if way_out is not None:
        return f"{start} {way_out}".rstrip()
    start = f"{start} Labelling them can raise what is accepted"
    if artifact.correctness.name == GIVEN:
        return f"{start}."
    if nouns is ITEMS_OF_ANSWERS:
        return f"{start}: {_for_each(records, 'calibrate label {} --items --interactive')}, then fit again."
    commands = _for_each(records, "calibrate label {} --undecided --interactive")
    return f"{start}: {commands} (or --judge-model MODEL in place of --interactive), then fit again."


def _unnamed_model(artifact: CalibrationArtifact, records: str) -> str | None:
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
    said = [f"{n} {'says' if n == 1 else 'say'} {what}" for n, what in kinds if n]
    if not said:
        return None
    listed = f" See them: {report}" if report else ""
    return f"Of the labels, {' and '.join(said)}. If such a label is wrong, it moves the threshold.{listed}"


def not_fitted_on(n_left_out: int, n_shown: int) -> str | None:
    """Note that a record file holds labelled questions that were not fitted on; None if it holds none.

    Args:
        n_left_out: Such questions in no part of the report.
        n_shown: Such questions that are its test part although the user named no test file.
    """
    if not n_left_out and not n_shown:
        return None
    then = "This report leaves them out." if n_left_out else "They are the test part here."
    return f"{n_left_out or n_shown} labelled questions of the record file were not fitted on. {then}"


# -- Everything an artifact is bound to --------------------------------------------------------------------------------


def facts(artifact: CalibrationArtifact) -> list[Row]:
    """The facts that the artifact binds, as labelled rows."""
    rows = (*_made_of(artifact), *_fitted(artifact), *item_facts(artifact))
    return [(name, value) for name, value in rows if value is not None]


def _made_of(artifact: CalibrationArtifact) -> Iterator[tuple[str, str | None]]:
    """What was asked, measured and labelled; a value of None is left out."""
    model, score, data, nouns = artifact.model, artifact.estimator, artifact.data, nouns_of(artifact)
    choice, system = data.choice, artifact.prompt.system
    yield "model", f"{model.model} ({model.provider}, {model.revision[:19] if model.revision else 'revision unknown'})"
    yield "asked", _plan(artifact)
    yield "prompt", f"{'' if system is None else f'system {system!r}; '}template {artifact.prompt.template!r}"
    yield "uncertainty" if scorer_of(artifact.plan) is None else "score", _score(artifact)
    for name, spec in ((f"same {nouns.one} if", score.judge), ("alike as by", score.similarity)):
        yield name, None if spec is None else describe_spec(spec.name, spec.params)
    yield f"right {nouns.one} if", describe_spec(artifact.correctness.name, artifact.correctness.params)
    yield nouns.asked, f"{data.n_used} used of {data.n_questions} in {data.name} (sha256 {data.sha256[:12]})"
    yield "left out", _left_out(artifact) if data.n_unmeasured or data.n_unlabelled else None
    if choice is not None:
        yield (
            "score chosen",
            f"{choice.candidates[0]}, of {len(choice.candidates)} the one with the highest AUROC ({choice.auroc:.3f}) "
            f"on {choice.n} labelled questions that the fit did not use ({percent(choice.share)} of all)",
        )
    yield "cut off", f"{data.n_cut_off} of {data.n_questions} answers, at max_tokens" if data.n_cut_off else None


def _fitted(artifact: CalibrationArtifact) -> Iterator[tuple[str, str | None]]:
    """What was fitted, and what that promises; a value of None is left out."""
    outcome, nouns, scope = artifact.outcome, nouns_of(artifact), artifact.outcome.scope
    yield "fits on these labels", fits_line(artifact)
    yield "scope", scope_in_words(scope, artifact.estimator)
    delta = "" if outcome.delta is None else f", delta {outcome.delta:g}"
    yield "rule", describe_spec(f"{outcome.rule} at alpha {outcome.alpha:g}{delta}", outcome.options)
    if isinstance(outcome, Feasible):
        low, high = map(percent, outcome.interval)
        n = f"{outcome.n_accepted} of {artifact.calibration.n}"
        yield "threshold", answer_if(artifact)
        yield "accepted", f"{n} ({percent(artifact.acceptance)} of all {nouns.asked})"
        rate = f"{percent(outcome.error_rate)}; 95 % interval {low} to {high}, chosen after looking"
        yield "errors among them", f"{outcome.n_errors} ({rate})"
        yield "equal to threshold", f"{outcome.tie_block} (ties are accepted together)"
        yield "promise", guarantee(outcome, 1 - confidence(artifact), nouns)
    else:
        yield "no threshold", f"{outcome.reason.value.replace('_', ' ')}: {why_infeasible(outcome, nouns)}"
        yield "promise", f"nothing, so nothing is {nouns.accepted}"
    yield "error without gate", percent(outcome.diagnostics.base_error)
    yield "AUROC", describe_auroc(artifact)
    yield "most any rule accepts", percent(scope.of_measured(outcome.diagnostics.max_acceptance) * scope.measured)
    packages = ", ".join(f"{name} {version}" for name, version in artifact.made.packages.items())
    yield "made", f"{artifact.made.at} with {packages}"
    yield "digest", artifact.digest


def _plan(artifact: CalibrationArtifact) -> str:
    plan = artifact.plan
    if plan.options is not None and plan.n == 0:
        return f"likelihood of the options {', '.join(plan.options)}"
    samples = f"{plan.n} samples at temperature {plan.temperature:g}, top_p {plan.top_p:g}" if plan.n else "no samples"
    answer = f"1 {plan.primary} answer and {samples}"
    if plan.primary == "majority":
        answer = f"{samples}, of which the most frequent is the answer"
    logprobs = ", log-probabilities" if plan.logprobs else ""
    rated = "".join(f", rated by the scorer {name}" for name in plan.follow_ups if name.startswith(SCORE))
    return f"{answer}, up to {plan.max_tokens} tokens{logprobs}{rated}"


def _score(artifact: CalibrationArtifact) -> str:
    """The score with its unit, and of a scorer the direction: thresholds and tables are in terms of uncertainty."""
    score = artifact.estimator
    text = f"{score.name} v{score.version}, in {score.unit}"
    if score.params.get("higher") != "certain":
        return text
    return f"{text}; lower is more certain: {'1 ' if score.unit == 'probability' else ''}- the scorer's number"


def _left_out(artifact: CalibrationArtifact) -> str:
    data = artifact.data
    failed = f" ({data.n_failed} because a server, rate limit or time-out failed)" if data.n_failed else ""
    return f"{data.n_unmeasured} not measured{failed}, {data.n_unlabelled} not labelled, of {data.n_questions}"


def describe_auroc(artifact: CalibrationArtifact) -> str:
    """The AUROC with its interval."""
    interval = auroc_of(artifact)
    if interval is None:
        return "of whole answers only" if nouns_of(artifact) is ITEMS_OF_ANSWERS else "only one class"
    return f"{interval.value:.3f} ({percent(interval.confidence)} interval {interval.low:.3f} to {interval.high:.3f})"


_HIDDEN = ("diagnose", "support", "version")


def describe_spec(name: str, params: dict[str, object]) -> str:
    """A name and its parameters: "token_f1 (threshold 0.5)"."""
    shown = [f"{key} {value}" for key, value in params.items() if key not in _HIDDEN and value != {}]
    return f"{name} ({', '.join(shown)})" if shown else name
