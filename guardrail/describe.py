"""The words about a gate: what it promises, what that leaves out, what it answers, and why it has no threshold.

Artifacts and outcomes store numbers and reasons; every sentence about a promise is made here, when it is shown.
Terminal, report, log and ``/readyz`` therefore say the same. Shares are of all questions asked. The words of a verdict
are in `guardrail.explain`, those of an audit in `calibrate.evaluation.promise_test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

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
from .items.spec import ITEMS, ItemFigures, ItemRule
from .notebook import percent, sure
from .outcome import AVERAGE, CERTIFIED, Infeasible, InfeasibleReason, Outcome, Scope
from .specs import EstimatorSpec

__all__ = [
    *("ANSWERS", "CALLS", "FRESH_LABELS", "ITEMS_OF_ANSWERS", "NOUNS", "USEFUL_AUROC", "Asked", "Judges", "Nouns"),
    *("answer_if", "asked", "caveats", "caveats_of", "confidence", "describe", "failures", "figures_lines"),
    *("fits_line", "guarantee", "hardly_ranks", "judges_of", "labels_are_enough", "not_covered", "nouns_of"),
    *("promised_of_items", "promises", "ranks_backwards", "refusal", "scope_in_words", "share_of", "stops_nothing"),
    *("summary", "target_text", "together", "unguardable", "upside_down", "warning", "why_infeasible"),
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
    """What a gate judges, in words: answers to questions, or an agent's calls of a tool.

    Attributes:
        one: What is right or wrong.
        many: The same, several of them.
        asked: What a share is of.
        given: What the gate accepts.
        accepted: What becomes of what it accepts.
        gives: What it does with a share, ``{}``.
        give: The effect of accepting a unit.
        nothing: What it does without a threshold.
        handed: The next step about a unit that is held back.
        score: What the threshold is of; None for the name of the score.
        erred: What became of accepted ones that count as wrong.
        wrong: What is said of all that count as wrong.
        labelled: What has a label.
        counted: What a figure counts.
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
    """What an artifact judges: calls if its score compares calls of tools, items of answers, otherwise answers."""
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
    nouns, score, limit = nouns_of(artifact), artifact.estimator, artifact.threshold
    if limit is None:
        return f"{nouns.nothing}: no threshold was found"
    return f"{nouns.give} if {score.condition(limit) if nouns.score is None else f'{nouns.score} {score.limit(limit)}'}"


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
    """What the rule of a threshold keeps, without a full stop."""
    outcome, target, nouns = artifact.outcome, percent(artifact.alpha), nouns_of(artifact)
    if outcome.certifies:
        certain = f"with {percent(confidence(artifact))} confidence"
        if outcome.rule in get_args(ItemRule):
            return f"{promised_of_items(outcome.rule, artifact.alpha)}, {certain}"
        # The one certificate that does not count every answer once.
        groups = ", as a mean over groups" if outcome.rule == "certified_groups" else ""
        return f"at most {target} of the {nouns.given} are wrong, {certain}{groups}"
    if outcome.rule != AVERAGE:
        return "asymptotic, not a certificate" if outcome.rule == PEOPLE else "not a certificate"
    # A gate that accepts everything ends where the model does, so the share of the others says nothing about it.
    above = "" if outcome.n_accepted == _labels(artifact) else f": {OFTEN_ABOVE} {target} wrong"
    return f"on average over calibrations, not a certificate{above}"


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
    of, name = asked(artifact), nouns_of(artifact).asked
    if not of.many_failed:
        return None
    return (
        f"{percent(of.failed)} of the {name} asked for the calibration failed (server, rate limit or time-out), so the "
        f"promise is about {name} like the others."
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
    each = percent(1 - max(failing))
    if sum(failing) >= 1:
        return (
            f"Each of the {len(failing)} thresholds holds with {each} confidence. Nothing is promised about all of "
            "them at once, nor about a mix of the groups."
        )
    return (
        f"All {len(failing)} thresholds hold at once, and so for any mix of the groups, with "
        f"{percent(1 - sum(failing))} confidence; each by itself with {each}."
    )


def scope_in_words(scope: Scope, score: EstimatorSpec) -> str | None:
    """The questions that a promise is about, in one sentence; None if it is about all questions."""
    if scope.cut is None:
        return None
    return (
        f"{scope.n} questions drawn (seed {scope.seed}) from the lowest {percent(scope.n_within / scope.n_pool)} of "
        f"{scope.n_pool} scores, with {scope.n_within} questions below it; nothing is answered beyond "
        f"{score.condition(scope.cut)}"
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
    rule, alpha, options = outcome.rule, outcome.alpha, outcome.options
    if rule == "none" or not outcome.n:
        return "None: nothing was calibrated."
    of_stage = rule == CERTIFIED and "stage" in options
    if not (outcome.certifies or of_stage):
        given = {"people": 0, "judge_only": 0, **options, "rule": rule, "alpha": alpha, "delta": outcome.delta}
        words = _WITHOUT_CERTIFICATE.get(rule, "Not a certificate: rule {rule} promises nothing about new {asked}.")
        return words.format(**given, many=nouns.many, asked=nouns.asked) + _of_groups(outcome)
    certain = f"With probability at least {sure(_failure(outcome, spent))} over calibrations"
    source = "are independent draws from the same source."
    if of_stage or isinstance(outcome, CascadeOutcome):
        stage = "As stage {stage} of {stages} only, for the system: ".format(**options) if of_stage else ""
        return (
            f"{stage}{certain} the error rate among the system's {nouns.many} is at most {alpha:g}, in finite samples, "
            f"if {nouns.asked} {source} The thresholds lie on a path made of these questions' own scores, which is "
            "tested, not proved."
        )
    if rule in get_args(ItemRule):
        return (
            f"{certain}, {promised_of_items(rule, alpha)}, if answers {source} Items of an answer may depend on each "
            "other."
        )
    by_group, mean = rule == "certified_groups", ""
    if by_group and options.get("most") is None:
        mean = f" as a mean over groups (every group with an accepted {nouns.one} counts once)"
    return (
        f"{certain} the error rate among accepted {nouns.many} is at most {alpha:g}{mean}, in finite samples, if "
        f"{'groups' if by_group else nouns.asked} {source}{_of_groups(outcome)}"
    )


_WITHOUT_CERTIFICATE = {
    AVERAGE: (
        "Asymptotic and on average over calibrations: for independent items the error rate among accepted {many} "
        "tends to alpha or less as n grows. Not a certificate: about 40 % of calibrations end slightly above alpha."
    ),
    "crc_joint": (
        "P(accepted and wrong) <= {alpha:g} per question, in finite samples for exchangeable items. This is a share of "
        "all {asked}, not of the accepted ones."
    ),
    PEOPLE: (
        "Asymptotic; not a certificate. The probability over calibrations that the error rate among accepted {many}, "
        "by people's labels, exceeds {alpha:g} tends to {delta:g} or less as both label sets grow ({people} "
        "{many} labelled by people, {judge_only} by the judge only). It needs independent {asked} from the source "
        "that is served later, and a random sample for people."
    ),
}
"""Rules that certify nothing about the accepted answers, and say something all the same."""


def _of_groups(outcome: Outcome | CascadeOutcome) -> str:
    """The sentence about items that come in groups, after a space."""
    if outcome.rule == "certified_groups":
        return " Questions within a group may depend on each other."
    if "items" not in outcome.options:
        return ""
    return (
        f" Of {outcome.options['items']} questions in {outcome.options['groups']} groups one of each group was used, "
        "picked without looking at scores or labels: the error rate is that of a random question of a random group."
    )


def not_covered(artifact: Artifact) -> str:
    """What the promise leaves out, in one sentence."""
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


# -- Items of answers --------------------------------------------------------------------------------------------------


def promised_of_items(rule: str, alpha: float) -> str:
    """What a rule of items promises, as "at most 5 % of the items kept are wrong"."""
    most = f"at most {percent(alpha)} of"
    return {
        "wrong_share": f"{most} the items kept are wrong",
        "wrong_share_per_answer": f"{most} the items that an answer keeps are wrong, on average over the answers of "
        "which something is kept",
        "clean_shown": f"{most} the answers of which something is kept keep a wrong item",
        "clean_answers": f"{most} all answers keep a wrong item, where an answer of which nothing is kept counts as "
        "clean",
    }[rule]


def caveats_of(rule: str) -> tuple[str, ...]:
    """What a rule for items leaves out, a sentence each; none for other rules."""
    if rule not in get_args(ItemRule):
        return ()
    own: tuple[str, ...] = (
        "It is about all items together, not about each field: a rare field may err far more often.",
        "It says nothing certain about the share of answers with a wrong item; that figure is an estimate.",
    )
    if rule == "clean_answers":
        own = (
            "An answer of which nothing is kept counts as clean: read the share of answers that show something beside "
            "it.",
        )
    elif rule == "clean_shown":
        own = ()
    kept = "It is about what is kept. Recall, the share of the right content that is passed on, is an estimate."
    return (kept, *own, "Draw once. Drawing again until more is kept breaks the promise.")


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
    """What a fit without a threshold found, and the step that helps most."""
    if isinstance(outcome, Infeasible) and labels_are_enough(outcome):
        return _tied(outcome) if outcome.ties else _never_low_enough(outcome, nouns), _better_score(outcome, nouns)
    alpha, few = outcome.alpha, outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    if outcome.reason is InfeasibleReason.STAGE_NOT_USED:
        return "The system accepts more when this stage does not answer.", "The other stages answer."
    if isinstance(outcome, CascadeOutcome) or "stage" in outcome.options:
        seen = f"An error rate of {alpha:g} cannot be certified where the stages begin to answer."
        if few:
            seen = f"It takes {outcome.needed} questions without an error at alpha = {alpha:g}; there are {outcome.n}."
        return seen, f"Label more {nouns.asked}, use better scores or models, or ask for a larger alpha."
    if outcome.reason is InfeasibleReason.NOT_CALIBRATED:
        return (
            "There is no artifact yet, so a person decides about each one.",
            "Decide about it: `calibrate learn` makes decisions labels, and labels an artifact.",
        )
    if outcome.reason is InfeasibleReason.UNKNOWN_GROUP:
        groups = ", ".join(outcome.options.get("known_groups", ()))
        seen = f"The question is of none of the groups that have a threshold (they are: {groups})."
        return seen, "Name its group, or hand it to a person."
    if outcome.rule in get_args(ItemRule):
        return _refusal_of_items(outcome)
    if outcome.rule == PEOPLE:
        return _refusal_by_people(outcome)
    least = f": one threshold alone takes {outcome.needed} error-free accepted items" if outcome.needed else ""
    at = "" if outcome.delta is None else f" and delta = {outcome.delta:.3g}{least}"
    items = f"{outcome.n_measured} items are too few for rule {outcome.rule!r} at alpha = {alpha:g}"
    return f"Even without a single error {items}{at}.", f"Label more {nouns.asked}."


def labels_are_enough(outcome: Infeasible) -> bool:
    """Whether a fit of whole answers failed by its score and not by its labels; `refusal` then says how to mend it."""
    if outcome.reason not in (InfeasibleReason.RISK_NEVER_LOW_ENOUGH, InfeasibleReason.TIE_BLOCK_TOO_LARGE):
        return False
    return outcome.rule not in (*get_args(ItemRule), PEOPLE) and "stage" not in outcome.options


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
