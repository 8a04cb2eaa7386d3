"""The words about a gate: what it promises, what that leaves out, what it answers, and why it has no threshold.

Artifacts and outcomes store numbers and reasons; every sentence about a promise is made here, when it is shown.
Terminal, report, log and ``/readyz`` therefore say the same. Shares are of all questions asked. The words of a verdict
are in `guardrail.explain`, those of an audit in `calibrate.evaluation.promise_test`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, TypeAlias

from .artifact import (
    MOST_FAILED,
    Artifact,
    CalibrationArtifact,
    CascadeArtifact,
    CascadeOutcome,
    RouterArtifact,
    Spent,
)
from .errors import UsageError
from .items.spec import ITEMS, ItemFigures
from .notebook import percent, sure
from .outcome import AVERAGE, CERTIFIED, Infeasible, InfeasibleReason, Outcome, Scope
from .specs import EstimatorSpec

__all__ = [
    *("ANSWERS", "CALLS", "FRESH_LABELS", "ITEMS_OF_ANSWERS", "NOUNS", "USEFUL_AUROC", "Asked", "Judges", "Nouns"),
    *("answer_if", "asked", "caveats", "caveats_of", "condition", "confidence", "describe", "failures"),
    *("figures_lines", "fits_line", "guarantee", "hardly_ranks", "judges_of", "labels_are_enough", "limit"),
    *("not_covered", "nouns_of", "promises", "ranks_backwards", "refusal", "scope_in_words", "share_of"),
    *("stops_nothing", "summary", "target_text", "together", "unguardable", "upside_down", "warning", "why_infeasible"),
]

OFTEN_ABOVE = "about 40 % of such gates end above"
"""How often the true error rate of a gate of rule acrc lies above alpha; docs/guarantees.md has the simulation."""
PEOPLE = "prediction_powered"
"""The rule that fits on the labels of a judge, corrected by those of people."""
PROVISIONAL = 200
"""Labels below which a fit is called provisional: a second one may answer far more or far less."""
REVERSED = 0.4
"""AUROC below which a score is called reversed."""
USEFUL_AUROC = 0.6
"""Below this a score hardly tells right from wrong, and another score helps more than labels or another target."""
FRESH_LABELS = (
    "Calibrate on fresh labels (these are spent) with --score auto, which sets some aside to choose a better score."
)
"""What every advice to change the score ends with: labels that a fit has seen no longer choose among scores freely."""


# -- What a gate judges ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Nouns:
    """The nouns for a gate's objects: answers to questions, or an agent's calls of a tool.

    Attributes:
        one: What is right or wrong: "answer".
        many: Several of them: "answers".
        asked: What a share is of: 50 % of all "questions".
        given: What the gate accepts: at most 10 % of the "answers given" are wrong.
        accepted: What becomes of it: nothing is "answered".
        gives: What the gate does with a share in place of ``{}``: it "answers 50 % of all questions".
        give: What it does below the threshold: "answer" if the score is at most .2.
        nothing: What it does without one: "answer nothing".
        handed: The next step about a unit that is held back.
        score: What the threshold is of; None for the name of the score.
        erred: What accepted ones that count as wrong did: 8 % of these answers "were wrong".
        wrong: The same of all of them: without the gate 30 % "are wrong".
        labelled: What has a label: 9 of 200 "answers" are undecided.
        counted: What a figure counts: "questions" sorted from most to least certain.
    """

    one: str
    many: str
    asked: str
    given: str
    accepted: str
    gives: str
    give: str
    nothing: str
    handed: str
    score: str | None = None
    erred: str = "were wrong"
    wrong: str = "are wrong"
    labelled: str = "answers"
    counted: str = "questions"


ANSWERS = Nouns(
    one="answer",
    many="answers",
    asked="questions",
    given="answers given",
    accepted="answered",
    gives="answers {} questions",
    give="answer",
    nothing="answer nothing",
    handed="Hand the question to a person or a stronger model, or ask it more precisely.",
)
CALLS = Nouns(
    one="call",
    many="calls",
    asked="calls",
    given="calls let through",
    accepted="let through",
    gives="lets {} calls through",
    give="let a call through",
    nothing="let no call through",
    handed="Have a person decide about the call, or ask more precisely.",
    labelled="calls",
    counted="calls",
)
ITEMS_OF_ANSWERS = replace(
    ANSWERS,
    given="items kept",
    accepted="kept",
    gives="shows something of {} answers",
    give="keep an item",
    nothing="keep nothing",
    score="the share of samples that do not support it",
    erred="kept a wrong item",
    wrong="have a wrong item",
    labelled="items",
    counted="items",
)
Judges: TypeAlias = Literal["answers", "calls", "items"]
NOUNS: Final[dict[Judges, Nouns]] = {"answers": ANSWERS, "calls": CALLS, "items": ITEMS_OF_ANSWERS}
"""The words by what is judged."""


def judges_of(artifact: Artifact) -> Judges:
    """The objects of an artifact's gates: calls if its score compares them, items of answers, otherwise answers."""
    score = artifact.gates[0].estimator  # the groups of a router share it
    if score.name == ITEMS:
        return "items"
    return "calls" if score.judge is not None and score.judge.name in ("tool_call", "observation") else "answers"


def nouns_of(artifact: Artifact) -> Nouns:
    """The words for what an artifact judges."""
    return NOUNS[judges_of(artifact)]


# -- The gate in use: its threshold, its promise, what it answers ------------------------------------------------------


def describe(artifact: Artifact) -> str:
    """An artifact in a few lines: what it is, warnings, the threshold in use, what it promises and what it does not."""
    lines: list[str | None] = [warning(artifact)]
    if isinstance(artifact, CalibrationArtifact):
        head = [repr(artifact), warning(artifact), unguardable(artifact)]
        if ranks_backwards(artifact.outcome):
            head.append(upside_down(f"AUROC {artifact.outcome.diagnostics.auroc:.2f}", nouns_of(artifact)))
        lines = [*head, f"Threshold in use: {answer_if(artifact)}."]
    lines += promises(artifact)
    if isinstance(artifact, RouterArtifact):
        lines.append(together(artifact))
    lines.append(not_covered(artifact))
    return "\n".join(line for line in lines if line is not None)


def answer_if(artifact: CalibrationArtifact) -> str:
    """The rule in use, in the unit and direction of the user's own score: "answer if confidence >= 0.8906"."""
    nouns = nouns_of(artifact)
    if artifact.threshold is None:
        return f"{nouns.nothing}: no threshold was found"
    if nouns.score is None:
        return f"{nouns.give} if {condition(artifact.estimator, artifact.threshold)}"
    return f"{nouns.give} if {nouns.score} {limit(artifact.estimator, artifact.threshold)}"


def condition(score: EstimatorSpec, threshold: float) -> str:
    """The gate at a threshold, by the user's own score in its unit and direction: "confidence >= 0.8906"."""
    return f"{score.params.get('column', score.name)} {limit(score, threshold)}"


def limit(score: EstimatorSpec, threshold: float) -> str:
    """`condition` without the name of the score."""
    if score.name.startswith("imported:"):
        return _limit_of_column(score.params.get("stored", "value"), threshold)
    unit = "" if score.unit == "probability" else f" {score.unit}"
    if score.name.startswith("score:") and score.params.get("higher") == "certain":
        return f">= {1 - threshold if score.unit == 'probability' else -threshold:.6g}{unit}"
    return f"<= {threshold:.6g}{unit}"


def _limit_of_column(stored: str, threshold: float) -> str:
    """The limit of an imported score, in as many digits as it takes to accept the same rows of the user's table.

    Args:
        stored: What of the column is the score: "value", "-value" or "1 - value".
        threshold: Of the score.
    """
    if stored == "value":
        return f"<= {threshold!r}"
    if stored != "1 - value":
        return f">= {0.0 - threshold!r}"
    # 1 - value was rounded. Of the values that give the threshold the least is meant, or the one with few digits, which
    # a person wrote.
    middle = (Fraction(threshold) + Fraction(math.nextafter(threshold, math.inf))) / 2
    least = max(float(1 - middle), 0.0)
    if 1 - least > threshold:
        least = math.nextafter(least, math.inf)
    written = float(f"{least:.12g}")
    return f">= {written if 1 - written == threshold else least!r}"


def promises(artifact: Artifact) -> tuple[str, ...]:
    """The promise in use, in one line, with the share that is answered; of a router one for each group."""
    if isinstance(artifact, RouterArtifact):
        return tuple(f"{name}: {line}" for name, part in artifact.artifacts.items() for line in promises(part))
    outcome, nouns = artifact.outcome, nouns_of(artifact)
    failed = "" if (sentence := failures(artifact)) is None else f" {sentence}"
    if not outcome.n_accepted:
        return (
            f"Rule {outcome.rule} found no threshold for {percent(artifact.alpha)} wrong {nouns.many} on "
            f"{_labels(artifact)} labels, so nothing is {nouns.accepted}.{failed}",
        )
    certificate = "a certificate: " if outcome.certifies else ""
    interval = "" if outcome.interval is None else f" (95 % interval {' to '.join(map(percent, outcome.interval))})"
    return (
        f"Rule {outcome.rule}, {certificate}{_kept(artifact)}. It {_answered(artifact)} at calibration{interval}."
        f"{failed}",
    )


def summary(artifact: CalibrationArtifact | CascadeArtifact, needed: str | None = None) -> tuple[str, ...]:
    """The lines that a fit leads with: threshold, promise, share answered, error rate without the gate.

    Without a threshold: what cannot be promised, what could be, and the labels that would do.

    Args:
        artifact: An artifact of whole answers, or of a cascade (whose thresholds stand in a table of its stages).
        needed: Labels that would do, in one sentence, without a threshold.
    """
    outcome, nouns, labels = artifact.outcome, nouns_of(artifact), _labels(artifact)
    rest: tuple[str, ...]
    if isinstance(artifact, CascadeArtifact):
        n, left_out = outcome.n, ""
        condition = "the first stage answers whose condition holds"
        if not outcome.n_accepted:
            condition = f"{nouns.nothing}: no threshold was found"
        rest = () if outcome.n_accepted else (why_infeasible(artifact.outcome, nouns),)
    else:
        n, left_out = artifact.outcome.scope.n_asked or artifact.data.n_questions, _left_out(artifact)
        condition = answer_if(artifact)
        without = "of everything within the scope" if artifact.outcome.scope.leaves_out else "without the gate"
        rest = (f"{without} {percent(artifact.outcome.diagnostics.base_error)} {nouns.wrong}",)
        if isinstance(artifact.outcome, Infeasible):
            rest = (*_way_to_a_threshold(artifact.outcome, needed, nouns), *rest)
    if not outcome.n_accepted:
        target = f"{percent(artifact.alpha)} wrong {nouns.many}"
        refused = f"{target} cannot be promised by rule {outcome.rule} on these {labels} labels{left_out}"
        return (condition, refused, *rest)
    provisional = f" (provisional: {labels} labels{left_out})" if labels < PROVISIONAL else ""
    return (condition, _kept(artifact), f"{_answered(artifact, n)} here{provisional}", *rest)


def _answered(artifact: CalibrationArtifact | CascadeArtifact, n: int | None = None) -> str:
    """The share of all (``n``) questions that is answered, and what of it was wrong; ends before "here"."""
    outcome, nouns = artifact.outcome, nouns_of(artifact)
    share = f"{percent(artifact.acceptance)} of all{'' if n is None else f' {n:,}'}"
    wrong = percent(outcome.n_errors / outcome.n_accepted)
    return f"{nouns.gives.format(share)}; {wrong} of these {nouns.many} {nouns.erred}"


def _kept(artifact: CalibrationArtifact | CascadeArtifact) -> str:
    """The promise of a threshold's rule, without a full stop."""
    outcome = artifact.outcome
    promise = _words_of(outcome).short.format_map(_fields(outcome, artifact.spent, nouns_of(artifact)))
    # A gate that accepts everything ends where the model does, so the share of the others says nothing about it.
    if outcome.rule == AVERAGE and outcome.n_accepted < _labels(artifact):
        return f"{promise}: {OFTEN_ABOVE} {percent(artifact.alpha)} wrong"
    return promise


def _labels(artifact: CalibrationArtifact | CascadeArtifact) -> int:
    """Labels that were fitted on."""
    return artifact.outcome.n if isinstance(artifact, CascadeArtifact) else artifact.calibration.n


def _left_out(artifact: CalibrationArtifact) -> str:
    """Why there are fewer labels than questions, as ", without 11 of 84 questions: 11 not measured (11 cut off)"."""
    data, reasons = artifact.data, []
    if data.n_unmeasured:
        cut_off = f" ({data.n_cut_off} cut off)" if data.n_cut_off and artifact.plan.cut_off == "abstain" else ""
        reasons.append(f"{data.n_unmeasured} not measured{cut_off}")
    if data.n_unlabelled:
        reasons.append(f"{data.n_unlabelled} not labelled")
    if not reasons:
        return ""
    left_out = f"{data.n_unmeasured + data.n_unlabelled} of {data.n_questions} {nouns_of(artifact).asked}"
    return f", without {left_out}: {', '.join(reasons)}"


def _way_to_a_threshold(outcome: Infeasible, needed: str | None, nouns: Nouns) -> Iterator[str]:
    hint = outcome.hint
    if hint is None or outcome.reason in (InfeasibleReason.TOO_FEW_ITEMS, InfeasibleReason.TIE_BLOCK_TOO_LARGE):
        yield why_infeasible(outcome, nouns)
    if hint is not None:
        yield (
            f"of the {hint.n_accepted} most certain {nouns.many} {hint.n_errors} were wrong: for these "
            f"{percent(hint.bound)} can be promised (--alpha smallest)"
        )
    if outcome.rule == CERTIFIED:
        more = "" if needed is None else f"{needed[0].lower()}{needed[1:].rstrip('.')}; "
        yield f"{more}--rule {AVERAGE} needs fewer labels and certifies nothing"


@dataclass(frozen=True, slots=True)
class Asked:
    """All questions that were asked for a calibration: every share that is shown is one of these.

    Attributes:
        measured: Share of them that could be measured; a gate abstains on the others.
        failed: Share of them without a score because a server, a rate limit or a time-out failed.
    """

    measured: float
    failed: float

    @property
    def many_failed(self) -> bool:
        """Whether so many failed that the promise has to say so."""
        return self.failed > MOST_FAILED


def asked(artifact: CalibrationArtifact | CascadeArtifact) -> Asked:
    """The questions that were asked for the calibration, which every share is of."""
    if isinstance(artifact, CascadeArtifact):
        return Asked(1.0, artifact.n_failed / artifact.outcome.n)
    data, scope = artifact.data, artifact.outcome.scope
    failed = data.n_failed / data.n_questions if data.n_questions else 0.0
    # Questions that were drawn by their scores were all measured before.
    return Asked(data.measured * scope.measured, max(failed, scope.failed))


def failures(artifact: CalibrationArtifact | CascadeArtifact) -> str | None:
    """The sentence about failed questions that belongs to a promise; None where they are few."""
    share, name = asked(artifact), nouns_of(artifact).asked
    if not share.many_failed:
        return None
    return (
        f"{percent(share.failed)} of the {name} asked for the calibration failed (server, rate limit or time-out), so "
        f"the promise is about {name} like the others."
    )


def confidence(artifact: CalibrationArtifact | CascadeArtifact) -> float:
    """Confidence of a certificate, over all fits on the same labels.

    Raises:
        UsageError: The rule states no delta, so it has no confidence.
    """
    return 1 - _failure(artifact.outcome, artifact.spent)


def _failure(outcome: Outcome | CascadeOutcome, spent: Spent | None) -> float:
    """Probability that a certificate fails, of all fits on the same labels."""
    if outcome.delta is None:
        raise UsageError(
            f"rule {outcome.rule!r} states no delta, so its promise has no confidence. Fit with a rule that has one, "
            f"e.g. {CERTIFIED!r}."
        )
    return outcome.delta if spent is None else max(outcome.delta, spent.delta)


def fits_line(artifact: CalibrationArtifact | CascadeArtifact) -> str | None:
    """The effect of other certificates from the same labels on this one; None without any."""
    spent, outcome = artifact.spent, artifact.outcome
    # Fits that certify nothing spend nothing, and without a certificate there is no confidence to lose.
    if spent is None or not outcome.certifies or spent.delta <= (outcome.delta or 0.0) + 1e-9:
        return None
    return (
        f"{spent.fits} fits have used these labels; whichever of them you use, its promise holds with "
        f"{percent(1 - spent.delta)} confidence."
    )


def together(router: RouterArtifact) -> str:
    """The promise of all groups at once, in one sentence."""
    in_use = [part for part in router.gates if part.outcome.n_accepted]
    if not in_use:
        return "No group has a threshold, so nothing is answered."
    if not all(part.outcome.certifies for part in in_use):
        return "Not every threshold is a certificate, so nothing is promised about all of them at once."
    failing = [1 - confidence(part) for part in in_use]
    if len(failing) == 1:
        return f"The one threshold holds with {percent(1 - failing[0])} confidence."
    alone = percent(1 - max(failing))
    if sum(failing) >= 1:
        return (
            f"Each of the {len(failing)} thresholds holds with {alone} confidence. Nothing is promised about all of "
            "them at once, nor about a mix of the groups."
        )
    return (
        f"All {len(failing)} thresholds hold at once, and so for any mix of the groups, with "
        f"{percent(1 - sum(failing))} confidence; each by itself with {alone}."
    )


def scope_in_words(scope: Scope, score: EstimatorSpec) -> str | None:
    """The questions that a promise is about, in one sentence; None if it is about all questions."""
    if scope.cut is None:
        return None
    return (
        f"{scope.n} questions drawn (seed {scope.seed}) from the lowest {percent(scope.n_within / scope.n_pool)} of "
        f"{scope.n_pool} scores, with {scope.n_within} questions below it; nothing is answered beyond "
        f"{condition(score, scope.cut)}"
    )


def target_text(alpha: float, *, certifies: bool) -> str:
    """The target of a gate in a verdict; only a certificate is stated without "on average"."""
    return f"{alpha:.0%} error" if certifies else f"{alpha:.0%} error on average"


# -- Warnings about a gate ---------------------------------------------------------------------------------------------


def stops_nothing(artifact: Artifact) -> bool:
    """Whether the gate accepts every calibration question, and its scope leaves none out."""
    if isinstance(artifact, RouterArtifact):
        gates = [part for part in artifact.gates if part.outcome.n_accepted]
        return bool(gates) and all(map(stops_nothing, gates))
    if isinstance(artifact, CalibrationArtifact):
        if artifact.items is not None and artifact.items.kept < artifact.items.items:
            return False
        if artifact.outcome.scope.leaves_out:
            return False
    return 0 < artifact.outcome.n_accepted == _labels(artifact)


def warning(artifact: Artifact) -> str | None:
    """The sentence to show in red if the gate stops nothing; otherwise None."""
    if not stops_nothing(artifact):
        return None
    if isinstance(artifact, RouterArtifact):
        return next(warning(part) for part in artifact.gates if part.outcome.n_accepted)
    n, wrong, nouns = artifact.outcome.n_accepted, artifact.outcome.n_errors, nouns_of(artifact)
    return (
        f"This gate stops nothing: its threshold accepts each of the {n} calibration {nouns.asked}, and "
        f"{percent(wrong / n)} of {'them' if nouns is CALLS else 'their answers'} were wrong."
    )


def ranks_backwards(outcome: Outcome) -> bool:
    """Whether wrong answers score as the more certain ones (AUROC below 0.4)."""
    auroc = outcome.diagnostics.auroc
    return auroc is not None and auroc < REVERSED


def upside_down(shown: str, nouns: Nouns = ANSWERS) -> str:
    """The way out of a score that is low for wrong answers; ``shown`` is its AUROC, if known with its interval."""
    return (
        f"Check the score: wrong {nouns.many} have the lower scores ({shown}; 0.5 is guessing), and lower must mean "
        "more certain. Is the score upside down? Pass a confidence as 1 - confidence, or import it as one: --map "
        'confidence=NAME:COLUMN, from_frame(..., confidence="COLUMN"). If it is not, the labels may be reversed.'
    )


def hardly_ranks(auroc: float) -> str:
    """The way out of a score whose AUROC is little above one half."""
    return f"This score hardly tells right from wrong (AUROC {auroc:.2f}, and 0.5 is guessing). {FRESH_LABELS}"


def unguardable(artifact: CalibrationArtifact) -> str | None:
    """The reason why no guard can use the artifact, with a remedy; None if guards can."""
    name = artifact.estimator.name
    if not name.startswith("imported:"):
        return None
    return (
        f"No guard can use this artifact: it cannot compute {name} for a new question. Write the score as a @scorer "
        "(docs/scores.md), or compare new scores with the threshold yourself."
    )


# -- What the promise says, and what it leaves out ---------------------------------------------------------------------


def guarantee(outcome: Outcome | CascadeOutcome, spent: Spent | None = None, nouns: Nouns = ANSWERS) -> str:
    """The promise of a fit with its assumptions, from rule, alpha and delta; of a rule of one's own by its kind.

    Args:
        outcome: The fit.
        spent: What all fits on the same labels spend; None for this fit alone.
        nouns: What the gate judges.

    Raises:
        UsageError: The rule certifies without a delta.
    """
    if outcome.rule == "none" or not outcome.n:
        return "None: nothing was calibrated."
    options = outcome.options
    fields = _fields(outcome, spent, nouns)
    if _is_stage(outcome):
        stage = f"As stage {options['stage']} of {options['stages']} only, for the system: "
        return stage + _OF_SYSTEM.format_map(fields)
    if outcome.certifies and isinstance(outcome, CascadeOutcome):
        return _OF_SYSTEM.format_map(fields)
    words = _words_of(outcome)
    promise = words.full.format_map(fields)
    if words.reads_groups or "items" not in options:
        return promise
    return (
        f"{promise} Of {options['items']} questions in {options['groups']} groups one of each group was used, picked "
        "without looking at scores or labels: the error rate is that of a random question of a random group."
    )


def not_covered(artifact: Artifact) -> str:
    """The limits of the promise, in one sentence."""
    models, nouns = "models" if isinstance(artifact, CascadeArtifact) else "model", nouns_of(artifact)
    return (
        f"Not covered: one {nouns.one} by itself, {nouns.asked} unlike the calibration {nouns.asked}, and any other "
        f"{models}, prompt, sampling or score."
    )


def caveats(artifact: CalibrationArtifact) -> list[str]:
    """`not_covered` in full, a sentence each; then what the rule leaves out."""
    alpha, nouns = percent(artifact.outcome.alpha), nouns_of(artifact)
    one, many, asked_for = nouns.one, nouns.many, nouns.asked
    return [
        f"Not that one {one} is right: {alpha} is a rate over many accepted {many}, not a probability for this one.",
        f"Not for other {asked_for}: it holds for {asked_for} like the calibration {asked_for}. When topics, users or "
        "wording change, measure again.",
        "Not for another model, prompt, sampling or score: the artifact refuses what it can notice; a provider "
        "that changes a model behind its name it cannot.",
        f"Not more than the label rule sees: 'wrong' means wrong by {artifact.correctness.name}; a rule that "
        "errs moves the true rate.",
        "Not for the best of several tries: alpha and rule chosen after looking at results weaken every stated "
        "confidence.",
        *caveats_of(artifact.outcome.rule),
    ]


def caveats_of(rule: str) -> tuple[str, ...]:
    """The limits of a rule for items, a sentence each; none for other rules."""
    return _RULES[rule].caveats if rule in _RULES else ()


# -- Items of answers --------------------------------------------------------------------------------------------------


def share_of(k: int, n: int) -> str:
    """A share with its counts: "5 % (3 of 60)"."""
    return f"{percent(k / n)} ({k} of {n})" if n else "none"


def figures_lines(figures: ItemFigures | None, rule: str) -> list[str]:
    """Counts of items, answers and recall in sentences; none without them.

    A promise about all answers never stands without them: silence alone would keep it.

    Args:
        figures: The counts.
        rule: The rule of the fit.
    """
    if figures is None:
        return []
    right, kept_right = figures.items - figures.wrong, figures.kept - figures.kept_wrong
    certified = "" if rule == "clean_shown" else "; an estimate, not certified"
    lines = [
        f"Items: {share_of(figures.kept, figures.items)} kept, {share_of(figures.kept_wrong, figures.kept)} of them "
        f"wrong (without a gate {share_of(figures.wrong, figures.items)}); {share_of(kept_right, right)} of the right "
        "ones pass.",
        f"Answers: {share_of(figures.shown, figures.answers)} show something, "
        f"{share_of(figures.complete, figures.answers)} are complete; of those shown "
        f"{share_of(figures.broken, figures.shown)} keep a wrong item{_between(figures.broken_interval)}{certified}.",
    ]
    if rule == "wrong_share_per_answer" and figures.wrong_per_answer is not None:
        lines.append(f"A shown answer keeps {percent(figures.wrong_per_answer)} wrong items on average.")
    if figures.reference:
        lines.append(
            f"Recall: {share_of(figures.recalled or 0, figures.reference)} of the fields of the references are passed "
            f"on rightly{_between(figures.recall_interval)}."
        )
    return lines


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f", 95 % interval {percent(ends[0])} to {percent(ends[1])}"


# -- Fits without a threshold: what was found, and the one step that helps most ----------------------------------------


def why_infeasible(outcome: Infeasible | CascadeOutcome, nouns: Nouns = ANSWERS) -> str:
    """Why a fit found no threshold, with its numbers, and the one step that helps most as the last sentence."""
    return " ".join(refusal(outcome, nouns))


def refusal(outcome: Infeasible | CascadeOutcome, nouns: Nouns = ANSWERS) -> tuple[str, str]:
    """The result of a fit without a threshold, and the step that helps most."""
    if isinstance(outcome, Infeasible) and labels_are_enough(outcome):
        return _tied(outcome) if outcome.ties else _never_low_enough(outcome, nouns), _better_score(outcome, nouns)
    if outcome.reason is InfeasibleReason.STAGE_NOT_USED:
        return "The system accepts more when this stage does not answer.", "The other stages answer."
    if isinstance(outcome, CascadeOutcome) or "stage" in outcome.options:
        return _refusal_of_system(outcome, nouns)
    if outcome.reason is InfeasibleReason.NOT_CALIBRATED:
        return (
            "There is no artifact yet, so a person decides about each one.",
            "Decide about it: `calibrate learn` makes decisions labels, and labels an artifact.",
        )
    if outcome.reason is InfeasibleReason.UNKNOWN_GROUP:
        groups = ", ".join(outcome.options.get("known_groups", ()))
        return (
            f"The question is of none of the groups that have a threshold (they are: {groups}).",
            "Name its group, or hand it to a person.",
        )
    if (refusal_of_rule := _words_of(outcome).refusal) is not None:
        return refusal_of_rule(outcome)
    least = f": one threshold alone takes {outcome.needed} error-free accepted items" if outcome.needed else ""
    at = "" if outcome.delta is None else f" and delta = {outcome.delta:.3g}{least}"
    items = f"{outcome.n_measured} items are too few for rule {outcome.rule!r} at alpha = {outcome.alpha:g}"
    return f"Even without a single error {items}{at}.", f"Label more {nouns.asked}."


def labels_are_enough(outcome: Infeasible) -> bool:
    """Whether a fit of whole answers failed by its score and not by its labels; `refusal` then says how to mend it."""
    if outcome.reason not in (InfeasibleReason.RISK_NEVER_LOW_ENOUGH, InfeasibleReason.TIE_BLOCK_TOO_LARGE):
        return False
    return _words_of(outcome).refusal is None and "stage" not in outcome.options


def _refusal_of_system(outcome: Infeasible | CascadeOutcome, nouns: Nouns) -> tuple[str, str]:
    finding = f"An error rate of {outcome.alpha:g} cannot be certified where the stages begin to answer."
    if outcome.reason is InfeasibleReason.TOO_FEW_ITEMS:
        enough = outcome.needed is not None and outcome.needed <= outcome.n  # but not of measured ones
        there = f"of {outcome.n} fewer could be measured" if enough else f"there are {outcome.n}"
        finding = f"It takes {outcome.needed} questions without an error at alpha = {outcome.alpha:g}; {there}."
    return finding, f"Label more {nouns.asked}, use better scores or models, or ask for a larger alpha."


def _tied(outcome: Infeasible) -> str:
    n, ties = outcome.n_measured, outcome.ties
    assert ties is not None, "the block is too large"
    ends = [ties.without, ties.within] if ties.without[0] else [ties.within]
    around = ", then ".join(f"{e} wrong of {k} accepted ({e / k:.1%})" for k, e in ends)
    return (
        f"The scores have {ties.distinct} distinct values; {ties.size} of {n} items ({ties.size / n:.0%}) share the "
        f"score {ties.score:g} and must be accepted or rejected together: {around}. A cut inside the block would do."
    )


def _never_low_enough(outcome: Infeasible, nouns: Nouns) -> str:
    n, base, (k, e) = outcome.n_measured, outcome.diagnostics.base_error, _closest(outcome)
    overall = (
        f"No threshold satisfies rule {outcome.rule!r} at alpha = {outcome.alpha:g}: overall {round(base * n)} of {n} "
        f"{nouns.many} are wrong ({base:.1%})."
    )
    if outcome.hint is not None:
        return (
            f"{overall} {outcome.alpha:g} cannot be certified: of the {k} most certain items ({k / outcome.n:.0%}) {e} "
            f"are wrong. For these {outcome.hint.bound:.2g} can (--alpha smallest)."
        )
    return f"{overall} Accepting the {k} most certain came closest, with {e} wrong ({e / k:.1%})." if k else overall


def _better_score(outcome: Infeasible, nouns: Nouns) -> str:
    """The remedy where labels are enough: the score first, as without one neither labels nor alpha help for long."""
    auroc = outcome.diagnostics.auroc
    if ranks_backwards(outcome):
        return upside_down(f"AUROC {auroc:.2f}", nouns)
    if outcome.ties:
        return f"Use a finer uncertainty score (more samples, or a continuous score). {FRESH_LABELS}"
    if auroc is not None and auroc < USEFUL_AUROC:
        return hardly_ranks(auroc)
    accepted, wrong = _closest(outcome)
    if wrong <= outcome.alpha * accepted:
        return f"Label more {nouns.asked}: that rate is within the target, but the items are too few to show it."
    return f"Use a better uncertainty score. {FRESH_LABELS}"


def _closest(outcome: Infeasible) -> tuple[int, int]:
    """Items accepted, and wrong answers among them, where a rule without a threshold came closest."""
    if outcome.hint is not None:
        return outcome.hint.n_accepted, outcome.hint.n_errors
    return outcome.closest or (0, 0)


def _refusal_of_items(outcome: Infeasible) -> tuple[str, str]:
    if outcome.reason is not InfeasibleReason.TOO_FEW_ITEMS:
        return (
            f"At no threshold that can be tested is the risk of rule {outcome.rule} shown to be at most "
            f"{outcome.alpha:g}: too many of the most certain items are wrong.",
            "Use a score that ranks wrong items higher, label more answers, or ask for a larger alpha.",
        )
    needed = f": it takes about {outcome.needed}, even without a single wrong item" if outcome.needed else ""
    smaller = ", or allow fewer items an answer (a smaller cap)" if outcome.rule == "wrong_share" else ""
    return (
        f"{outcome.n_measured} answers are too few for rule {outcome.rule} at alpha = {outcome.alpha:g} and delta = "
        f"{outcome.delta or 0:g}{needed}.",
        f"Label more answers{smaller}.",
    )


def _refusal_by_people(outcome: Infeasible) -> tuple[str, str]:
    if outcome.reason is InfeasibleReason.TOO_FEW_ITEMS:
        return (
            f"People labelled {outcome.options['people']} answers; a threshold needs {outcome.needed} accepted ones "
            "among them.",
            "Have more labelled, drawn at random.",
        )
    k, e = _closest(outcome)
    return (
        f"At the first threshold tested {e} of the {k} accepted answers that people labelled are wrong, which with the "
        f"judge's labels does not show an error rate of {outcome.alpha:g}.",
        "Label more by hand, or use a larger alpha or a better score.",
    )


# -- The words of each rule: a rule with words of its own has a row ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RuleWords:
    """The sentences about a threshold rule. Names in braces are those of `_fields`.

    Attributes:
        short: The promise in a line, without a full stop.
        full: The promise with its assumptions.
        caveats: What it leaves out, a sentence each.
        refusal: What a fit without a threshold found, and the step that helps most; None: by its score, see `refusal`.
        reads_groups: Whether it reads all items of a group; otherwise one of each group is used.
    """

    short: str
    full: str
    caveats: tuple[str, ...] = ()
    refusal: Callable[[Infeasible], tuple[str, str]] | None = None
    reads_groups: bool = False


_SURE = "With probability at least {sure} over calibrations"
_IF_DRAWN = "are independent draws from the same source."
_OF_SYSTEM = (
    _SURE
    + " the error rate among the system's {nouns.many} is at most {fit.alpha:g}, in finite samples, if {nouns.asked} "
    + _IF_DRAWN
) + " The thresholds lie on a path made of these questions' own scores, which is tested, not proved."
_CERTIFICATE = _RuleWords(
    short="at most {target} of the {nouns.given} are wrong, with {confidence} confidence",
    full=_SURE
    + " the error rate among accepted {nouns.many} is at most {fit.alpha:g}, in finite samples, if {nouns.asked} "
    + _IF_DRAWN,
)
"""Rule certified, and a rule of one's own that certifies."""
_NO_CERTIFICATE = _RuleWords(
    short="not a certificate", full="Not a certificate: rule {fit.rule} promises nothing about new {nouns.asked}."
)
"""A rule that certifies nothing and has no row."""


def _of_items(promise: str, *caveats: str) -> _RuleWords:
    """The words of a rule for items, of which at most alpha of what is named may be wrong."""
    promise = "at most {target} of " + promise
    return _RuleWords(
        short=promise + ", with {confidence} confidence",
        full=f"{_SURE}, {promise}, if answers {_IF_DRAWN} Items of an answer may depend on each other.",
        caveats=(
            "It is about what is kept. Recall, the share of the right content that is passed on, is an estimate.",
            *caveats,
            "Draw once. Drawing again until more is kept breaks the promise.",
        ),
        refusal=_refusal_of_items,
        reads_groups=True,
    )


_OF_ALL_ITEMS = (
    "It is about all items together, not about each field: a rare field may err far more often.",
    "It says nothing certain about the share of answers with a wrong item; that figure is an estimate.",
)
_RULES: Final[dict[str, _RuleWords]] = {
    "certified_groups": _RuleWords(
        short=_CERTIFICATE.short + ", as a mean over groups",
        full=_SURE
        + " the error rate among accepted {nouns.many} is at most {fit.alpha:g}{mean}, in finite samples, if groups "
        + _IF_DRAWN
        + " Questions within a group may depend on each other.",
        reads_groups=True,
    ),
    "wrong_share": _of_items("the items kept are wrong", *_OF_ALL_ITEMS),
    "wrong_share_per_answer": _of_items(
        "the items that an answer keeps are wrong, on average over the answers of which something is kept",
        *_OF_ALL_ITEMS,
    ),
    "clean_shown": _of_items("the answers of which something is kept keep a wrong item"),
    "clean_answers": _of_items(
        "all answers keep a wrong item, where an answer of which nothing is kept counts as clean",
        "An answer of which nothing is kept counts as clean: read the share of answers that show something beside it.",
    ),
    AVERAGE: _RuleWords(
        short="on average over calibrations, not a certificate",
        full="Asymptotic and on average over calibrations: for independent items the error rate among accepted "
        "{nouns.many} tends to alpha or less as n grows. Not a certificate: about 40 % of calibrations end slightly "
        "above alpha.",
    ),
    "crc_joint": _RuleWords(
        short=_NO_CERTIFICATE.short,
        full="P(accepted and wrong) <= {fit.alpha:g} per question, in finite samples for exchangeable items. This is a "
        "share of all {nouns.asked}, not of the accepted ones.",
    ),
    PEOPLE: _RuleWords(
        short="asymptotic, not a certificate",
        full="Asymptotic; not a certificate. The probability over calibrations that the error rate among accepted "
        "{nouns.many}, by people's labels, exceeds {fit.alpha:g} tends to {fit.delta:g} or less as both label sets "
        "grow ({fit.options[people]} {nouns.many} labelled by people, {fit.options[judge_only]} by the judge only). It "
        "needs independent {nouns.asked} from the source that is served later, and a random sample for people.",
        refusal=_refusal_by_people,
    ),
}


def _words_of(outcome: Outcome | CascadeOutcome) -> _RuleWords:
    """The row of a rule; nothing that certifies nothing is given the words of a certificate."""
    without_row = _CERTIFICATE if outcome.certifies else _NO_CERTIFICATE
    words = _RULES.get(outcome.rule, without_row)
    return words if ("{sure}" in words.full) == outcome.certifies else without_row


def _fields(outcome: Outcome | CascadeOutcome, spent: Spent | None, nouns: Nouns) -> dict[str, object]:
    """The figures of a fit and the words of what it judges, for the sentences of its rule."""
    fields: dict[str, object] = {"fit": outcome, "nouns": nouns, "target": percent(outcome.alpha), "mean": ""}
    if outcome.options.get("most") is None:  # of certified_groups: without a bound of its size a group counts once
        fields["mean"] = f" as a mean over groups (every group with an accepted {nouns.one} counts once)"
    if outcome.certifies or _is_stage(outcome):
        failure = _failure(outcome, spent)
        fields |= {"confidence": percent(1 - failure), "sure": sure(failure)}
    return fields


def _is_stage(outcome: Outcome | CascadeOutcome) -> bool:
    """Whether this is one stage's share of a certified cascade, whose promise is that of the whole system."""
    return outcome.rule == CERTIFIED and "stage" in outcome.options
