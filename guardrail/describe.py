"""The words about a gate: what it promises, what that leaves out, what it answers, and why it has no threshold.

Artifacts and outcomes store numbers and reasons; every sentence about a promise is made here, when it is shown.
Terminal, report, log and ``/readyz`` therefore say the same. Shares are of all questions asked. The words of a verdict
are in `guardrail.explain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

from .artifact import MOST_FAILED, Artifact, CalibrationArtifact, CascadeArtifact, CascadeOutcome, RouterArtifact
from .items.spec import ITEMS, ItemFigures, ItemRule
from .notebook import percent, sure
from .outcome import AVERAGE, CERTIFIED, Infeasible, InfeasibleReason, Outcome, Scope, TieBlock
from .specs import EstimatorSpec

__all__ = [
    "ANSWERS",
    "CALLS",
    "FRESH_LABELS",
    "ITEMS_OF_ANSWERS",
    "USEFUL_AUROC",
    "Asked",
    "Nouns",
    "Terms",
    "answer_if",
    "asked",
    "caveats",
    "caveats_of",
    "certifies",
    "confidence",
    "describe",
    "figures_lines",
    "found",
    "guarantee",
    "not_covered",
    "nouns_of",
    "promise_line",
    "promised_of_items",
    "promises",
    "remedy",
    "reversed_score",
    "scope_in_words",
    "share_of",
    "stops_nothing",
    "summary",
    "target_text",
    "together",
    "unguardable",
    "warning",
    "why_infeasible",
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


def nouns_of(artifact: Artifact) -> Nouns:
    """The words for what an artifact judges: calls if its score compares calls of tools, items, otherwise answers."""
    if isinstance(artifact, RouterArtifact):
        return nouns_of(next(iter(artifact.artifacts.values())))  # the groups share the score
    first = artifact.stages[0] if isinstance(artifact, CascadeArtifact) else artifact
    if first.estimator.name == ITEMS:
        return ITEMS_OF_ANSWERS
    judge = first.estimator.judge
    return CALLS if judge is not None and judge.name in ("tool_call", "observation") else ANSWERS


@dataclass(frozen=True, slots=True)
class Terms:
    """The result of one rule, as the lines state it.

    Attributes:
        rule: Name of the rule.
        certifies: Whether it is a certificate.
        confidence: 1 - delta of a certificate.
        acceptance: Share of all questions asked that it answers; 0 if it finds no threshold.
        n_accepted: Calibration questions that it answers.
        n_errors: Wrong answers among them.
        interval: 95 % interval of their error rate, if there is one.
    """

    rule: str
    certifies: bool
    confidence: float
    acceptance: float
    n_accepted: int = 0
    n_errors: int = 0
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """All questions that were asked for a calibration: every share that is shown is one of these.

    Attributes:
        measured: Share of them that could be measured; a gate abstains on the others.
        failed: Share of them without a score because a server, a rate limit or a time-out failed.
        most_failed: Share up to which failures go without saying.
        nouns: What they asked for.
    """

    measured: float = 1.0
    failed: float = 0.0
    most_failed: float = MOST_FAILED
    nouns: Nouns = ANSWERS

    @property
    def failures(self) -> str:
        """The sentence about failed questions that belongs to a promise, after a space; "" where they are few."""
        if self.failed <= self.most_failed:
            return ""
        return (
            f" {percent(self.failed)} of the {self.nouns.asked} asked for the calibration failed (server, rate limit "
            f"or time-out), so the promise is about {self.nouns.asked} like the others."
        )


ALL_MEASURED = Asked()


# -- Artifacts ---------------------------------------------------------------------------------------------------------


def describe(artifact: Artifact) -> str:
    """An artifact in a few lines: what it is, warnings, the threshold in use, what it promises and what it does not."""
    lines: list[str | None] = [_short(artifact), warning(artifact)]
    if isinstance(artifact, CalibrationArtifact):
        lines += [unguardable(artifact), reversed_score(artifact), f"Threshold in use: {answer_if(artifact)}."]
    lines += promises(artifact)
    if isinstance(artifact, RouterArtifact):
        lines.append(together(artifact))
    lines.append(not_covered(artifact))
    return "\n".join(line for line in lines if line is not None)


def answer_if(artifact: CalibrationArtifact) -> str:
    """The rule in use, in the unit and direction of the user's own score: "answer if confidence >= 0.8906"."""
    nouns, score = nouns_of(artifact), artifact.estimator
    if artifact.threshold is None:
        return f"{nouns.nothing}: no threshold was found"
    condition = score.condition if nouns.score is None else lambda limit: f"{nouns.score} {score.limit(limit)}"
    return f"{nouns.give} if {condition(artifact.threshold)}"


def promises(artifact: Artifact) -> tuple[str, ...]:
    """The promise in use, in one line; of a router one for each group."""
    if isinstance(artifact, RouterArtifact):
        return tuple(f"{name}: {line}" for name, part in artifact.artifacts.items() for line in promises(part))
    if isinstance(artifact, CascadeArtifact):
        return (promise_line(artifact.alpha, artifact.outcome.n, _terms(artifact), asked(artifact)),)
    return (promise_line(artifact.alpha, artifact.calibration.n, _terms(artifact), asked(artifact)),)


def _terms(artifact: CalibrationArtifact | CascadeArtifact) -> Terms:
    outcome = artifact.outcome
    return Terms(
        outcome.rule,
        certifies(outcome),
        confidence(artifact),
        outcome.acceptance if isinstance(artifact, CascadeArtifact) else artifact.acceptance,
        outcome.n_accepted,
        outcome.n_errors,
        None if isinstance(outcome, Infeasible) else outcome.interval,
    )


def certifies(outcome: Outcome | CascadeOutcome) -> bool:
    """Whether the rule of a fit is a certificate."""
    return outcome.rule == CERTIFIED if isinstance(outcome, CascadeOutcome) else outcome.certifies


def not_covered(artifact: Artifact) -> str:
    """What the promise leaves out, in one sentence."""
    parts, nouns = "models" if isinstance(artifact, CascadeArtifact) else "model", nouns_of(artifact)
    return (
        f"Not covered: one {nouns.one} by itself, {nouns.asked} unlike the calibration {nouns.asked}, and any other "
        f"{parts}, prompt, sampling or score."
    )


def scope_in_words(scope: Scope, score: EstimatorSpec) -> str | None:
    """The questions that a promise is about, in one sentence; None if it is about all questions."""
    if scope.cut is None:
        return None
    chosen = "fixed beforehand" if scope.fixed_beforehand else f"with {scope.n_within} questions below it"
    return (
        f"{scope.n} questions drawn (seed {scope.seed}) from the lowest {percent(scope.n_within / scope.n_pool)} of "
        f"{scope.n_pool} scores, {chosen}; nothing is answered beyond {score.condition(scope.cut)}"
    )


def asked(artifact: CalibrationArtifact | CascadeArtifact) -> Asked:
    """The questions that were asked for the calibration, which every share is of."""
    if isinstance(artifact, CascadeArtifact):
        return Asked(1.0, artifact.n_failed / artifact.outcome.n, nouns=nouns_of(artifact))
    data, scope = artifact.data, artifact.outcome.scope
    failed = data.n_failed / data.n_questions if data.n_questions else 0.0
    # Questions that were drawn by their scores were all measured before.
    return Asked(data.measured * scope.measured, max(failed, scope.failed), nouns=nouns_of(artifact))


def confidence(artifact: CalibrationArtifact | CascadeArtifact) -> float:
    """Confidence of the promise, over all fits on the same labels."""
    delta = artifact.outcome.delta or 0.0
    return 1 - (delta if artifact.spent is None else max(delta, artifact.spent.delta))


def together(router: RouterArtifact) -> str:
    """The promise of all groups at once, in one sentence."""
    failing = [1 - confidence(part) for part in router.artifacts.values() if part.outcome.n_accepted]
    if not failing:
        return "No group has a threshold, so nothing is answered."
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


def stops_nothing(artifact: Artifact) -> bool:
    """Whether the gate accepts every calibration question, and its scope leaves none out."""
    if isinstance(artifact, RouterArtifact):
        gates = [part for part in artifact.artifacts.values() if part.outcome.n_accepted]
        return bool(gates) and all(map(stops_nothing, gates))
    if isinstance(artifact, CascadeArtifact):
        return 0 < artifact.outcome.n_accepted == artifact.outcome.n
    outcome = artifact.outcome
    return not outcome.scope.leaves_out and 0 < outcome.n_accepted == len(artifact.calibration.error)


def warning(artifact: Artifact) -> str | None:
    """The sentence to show in red if the gate stops nothing; otherwise None."""
    if not stops_nothing(artifact):
        return None
    if isinstance(artifact, RouterArtifact):
        return next(warning(part) for part in artifact.artifacts.values() if part.outcome.n_accepted)
    n, wrong = artifact.outcome.n_accepted, artifact.outcome.n_errors
    nouns = nouns_of(artifact)
    whose = "them" if nouns is CALLS else "their answers"
    return (
        f"This gate stops nothing: its threshold accepts each of the {n} calibration {nouns.asked}, and "
        f"{percent(wrong / n)} of {whose} were wrong."
    )


def reversed_score(artifact: CalibrationArtifact) -> str | None:
    """The sentence to show if wrong answers score as the more certain ones (AUROC below 0.4); otherwise None."""
    auroc = artifact.outcome.diagnostics.auroc
    if auroc is None or auroc >= REVERSED:
        return None
    many = nouns_of(artifact).many
    return (
        f"Check the score: wrong {many} have the lower scores (AUROC {auroc:.2f}; 0.5 is guessing). Lower must "
        'mean more certain. A confidence is imported as such: from_frame(..., confidence="COLUMN"), or '
        "--map confidence=NAME:COLUMN. Or are the labels reversed?"
    )


def unguardable(artifact: CalibrationArtifact) -> str | None:
    """The reason why no guard can use the artifact, with a remedy; None if guards can."""
    name = artifact.estimator.name
    if not name.startswith("imported:"):
        return None
    return (
        f"No guard can use this artifact: it cannot compute {name} for a new question. Write the score as a @scorer "
        "(docs/scores.md), or compare new scores with the threshold yourself."
    )


def _short(artifact: Artifact) -> str | None:
    return repr(artifact) if isinstance(artifact, CalibrationArtifact) else None


# -- What a fit leads with ---------------------------------------------------------------------------------------------


def summary(artifact: CalibrationArtifact | CascadeArtifact, needed: str | None = None) -> tuple[str, ...]:
    """The lines that a fit leads with: threshold, promise, share answered, error rate without the gate.

    Without a threshold: what cannot be promised, what could be, and the labels that would do.

    Args:
        artifact: An artifact of whole answers, or of a cascade (whose thresholds stand in a table of its stages).
        needed: Labels that would do, in one sentence, without a threshold.
    """
    outcome, nouns = artifact.outcome, nouns_of(artifact)
    if isinstance(artifact, CascadeArtifact):
        labels = n = artifact.outcome.n
        left_out = ""
        none = f"{nouns.nothing}: no threshold was found"
        condition = "the first stage answers whose condition holds" if outcome.n_accepted else none
        rest: tuple[str, ...] = () if outcome.n_accepted else (why_infeasible(artifact.outcome, nouns),)
    else:
        labels, left_out = artifact.calibration.n, _left_out(artifact)
        n = artifact.outcome.scope.n_asked or artifact.data.n_questions
        condition = answer_if(artifact)
        without = "of everything within the scope" if artifact.outcome.scope.leaves_out else "without the gate"
        rest = (f"{without} {percent(artifact.outcome.diagnostics.base_error)} {nouns.wrong}",)
        if isinstance(artifact.outcome, Infeasible):
            rest = (*_way_to_a_threshold(artifact.outcome, needed, nouns), *rest)
    if not outcome.n_accepted:
        target = percent(artifact.alpha)
        refused = (
            f"{target} wrong {nouns.many} cannot be promised on these {labels} labels{left_out} by rule {outcome.rule}"
        )
        return (condition, refused, *rest)
    terms, of = _terms(artifact), asked(artifact)
    share, wrong = f"{percent(terms.acceptance)} of all {n:,}", percent(outcome.n_errors / outcome.n_accepted)
    few = f" (provisional: {labels} labels{left_out})" if labels < PROVISIONAL else ""
    return (
        condition,
        _kept(artifact.alpha, labels, terms, of),
        f"{nouns.gives.format(share)}; {wrong} of these {nouns.many} {nouns.erred} here{few}",
        *rest,
    )


def _left_out(artifact: CalibrationArtifact) -> str:
    """Why there are fewer labels than questions, as ", without 11 of 84 questions: 11 not measured (11 cut off)"."""
    data = artifact.data
    cut_off = data.n_cut_off if artifact.plan.cut_off == "abstain" else 0
    unmeasured = f"{data.n_unmeasured} not measured" + (f" ({cut_off} cut off)" if cut_off else "")
    reasons = [
        *([unmeasured] if data.n_unmeasured else []),
        *([f"{data.n_unlabelled} not labelled"] if data.n_unlabelled else []),
    ]
    left_out = data.n_unmeasured + data.n_unlabelled
    return (
        f", without {left_out} of {data.n_questions} {nouns_of(artifact).asked}: {', '.join(reasons)}"
        if reasons
        else ""
    )


def _way_to_a_threshold(outcome: Infeasible, needed: str | None, nouns: Nouns) -> Iterator[str]:
    hint = outcome.hint
    own_remedy = (InfeasibleReason.TOO_FEW_ITEMS, InfeasibleReason.TIE_BLOCK_TOO_LARGE)
    if hint is None or outcome.reason in own_remedy:
        yield why_infeasible(outcome, nouns)
    if hint is not None:
        yield (
            f"of the {hint.n_accepted} most certain {nouns.many} {hint.n_errors} were wrong: for these "
            f"{percent(hint.bound)} can be promised (--alpha smallest)"
        )
    if outcome.rule == CERTIFIED:
        more = "" if needed is None else f"{needed[0].lower()}{needed[1:].rstrip('.')}; "
        yield f"{more}--rule {AVERAGE} needs fewer labels and certifies nothing"


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
    """What a rule for items leaves out, a sentence each; none for other rules."""
    if rule not in get_args(ItemRule):
        return ()
    silent = (
        "An answer of which nothing is kept counts as clean: read the share of answers that show something beside it."
    )
    if rule == "clean_answers":
        own: tuple[str, ...] = (silent,)
    elif rule == "clean_shown":
        own = ()
    else:
        own = (
            "It is about all items together, not about each field: a rare field may err far more often.",
            "It says nothing certain about the share of answers with a wrong item; that figure is an estimate.",
        )
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


# -- Promises ----------------------------------------------------------------------------------------------------------


def guarantee(outcome: Outcome | CascadeOutcome, failure: float | None = None, nouns: Nouns = ANSWERS) -> str:
    """The promise of a fit with its assumptions, from rule, alpha and delta; of a rule of one's own by its kind.

    Args:
        outcome: The fit.
        failure: Probability that the promise fails, of all fits on the same labels (1 - `confidence`); default: delta.
        nouns: What the gate judges.
    """
    rule, alpha, certain = outcome.rule, outcome.alpha, sure(failure or outcome.delta or 0.1)
    if rule == "none" or not outcome.n:
        return "None: nothing was calibrated."
    at_most = f"With probability at least {certain} over calibrations the error rate among"
    if rule == CERTIFIED and (isinstance(outcome, CascadeOutcome) or "stage" in outcome.options):
        stage, stages = outcome.options.get("stage"), outcome.options.get("stages")
        return (
            f"{'' if stage is None else f'As stage {stage} of {stages} only, for the system: '}"
            f"{at_most} the system's {nouns.many} is at most {alpha:g}, in finite samples, if {nouns.asked} are "
            "independent draws from the same source. The thresholds lie on a path made of these questions' own scores, "
            "which is tested, not proved."
        )
    if rule in get_args(ItemRule):
        return (
            f"With probability at least {certain} over calibrations, {promised_of_items(rule, alpha)}, if answers are "
            "independent draws from the same source. Items of an answer may depend on each other."
        )
    if not isinstance(outcome, CascadeOutcome) and outcome.certifies:
        every = rule == "certified_groups"
        once = f" as a mean over groups (every group with an accepted {nouns.one} counts once)"
        return (
            f"{at_most} accepted {nouns.many} is at most {alpha:g}"
            f"{once if every and outcome.options.get('most') is None else ''}, in finite samples, if "
            f"{'groups' if every else nouns.asked} are independent draws from the same source.{_of_groups(outcome)}"
        )
    other = "Not a certificate: rule {rule} promises nothing about new {asked}."
    options = {"people": 0, "judge_only": 0, **outcome.options, "rule": rule, "alpha": alpha, "delta": outcome.delta}
    options |= {"many": nouns.many, "asked": nouns.asked}
    groups = "" if isinstance(outcome, CascadeOutcome) else _of_groups(outcome)
    return _WITHOUT_CERTIFICATE.get(rule, other).format(**options) + groups


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


def _of_groups(outcome: Outcome) -> str:
    """The sentence about items that come in groups."""
    if outcome.rule == "certified_groups":
        return " Questions within a group may depend on each other."
    if "items" not in outcome.options:
        return ""
    return (
        f" Of {outcome.options['items']} questions in {outcome.options['groups']} groups one of each group was used, "
        "picked without looking at scores or labels: the error rate is that of a random question of a random group."
    )


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


def promise_line(alpha: float, n: int, terms: Terms, of: Asked = ALL_MEASURED) -> str:
    """The promise of a gate in one line: what it is, the share that it answers, and what was wrong at calibration.

    Args:
        alpha: Target error rate among answers.
        n: Calibration questions.
        terms: The rule in use.
        of: The questions that the share is of.
    """
    target = percent(alpha)
    if not terms.n_accepted:
        return (
            f"Rule {terms.rule} found no threshold for {target} wrong {of.nouns.many} on {n} labels, so "
            f"nothing is {of.nouns.accepted}.{of.failures}"
        )
    kind = "a certificate: " if terms.certifies else ""
    wrong = percent(terms.n_errors / terms.n_accepted)
    interval = "" if terms.interval is None else f" (95 % interval {' to '.join(map(percent, terms.interval))})"
    return (
        f"Rule {terms.rule}, {kind}{_kept(alpha, n, terms, of)}. It "
        f"{of.nouns.gives.format(f'{percent(terms.acceptance)} of all')}; at calibration "
        f"{wrong} of these {of.nouns.many} {of.nouns.erred}{interval}.{of.failures}"
    )


def _kept(alpha: float, n: int, terms: Terms, of: Asked) -> str:
    """What the rule of a threshold keeps, without a full stop."""
    target = percent(alpha)
    if terms.certifies:
        # The one certificate that does not count every answer once.
        kind = ", as a mean over groups" if terms.rule == "certified_groups" else ""
        if terms.rule in get_args(ItemRule):
            return f"{promised_of_items(terms.rule, alpha)}, with {percent(terms.confidence)} confidence"
        return f"at most {target} of the {of.nouns.given} are wrong, with {percent(terms.confidence)} confidence{kind}"
    if terms.rule != AVERAGE:
        return "asymptotic, not a certificate" if terms.rule == PEOPLE else "not a certificate"
    # A gate that accepts everything ends where the model does, so the share of the others says nothing about it.
    above = "" if terms.n_accepted == n else f": {OFTEN_ABOVE} {target} wrong"
    return f"on average over calibrations, not a certificate{above}"


def target_text(alpha: float, *, certifies: bool) -> str:
    """The target of a gate in a verdict; only a certificate is stated without "on average"."""
    return f"{alpha:.0%} error" if certifies else f"{alpha:.0%} error on average"


# -- Fits without a threshold -----------------------------------------------------------------------------------------


def why_infeasible(outcome: Infeasible | CascadeOutcome, nouns: Nouns = ANSWERS) -> str:
    """Why a fit found no threshold, with its numbers, and the one step that helps most as the last sentence."""
    return f"{found(outcome, nouns)}{remedy(outcome, nouns)}"


def remedy(outcome: Infeasible | CascadeOutcome, nouns: Nouns = ANSWERS) -> str:
    """The step that helps most where a fit found no threshold."""
    reason, few = outcome.reason, outcome.reason is InfeasibleReason.TOO_FEW_ITEMS
    if reason is InfeasibleReason.NOT_CALIBRATED:
        return "Decide about it: `calibrate learn` makes decisions labels, and labels an artifact."
    if reason is InfeasibleReason.UNKNOWN_GROUP:
        return "Name its group, or hand it to a person."
    if reason is InfeasibleReason.STAGE_NOT_USED:
        return "The other stages answer."
    if isinstance(outcome, CascadeOutcome) or "stage" in outcome.options:
        return f"Label more {nouns.asked}, use better scores or models, or ask for a larger alpha."
    if reason is InfeasibleReason.TIE_BLOCK_TOO_LARGE:
        return f"Use a finer uncertainty score (more samples, or a continuous score). {FRESH_LABELS}"
    if outcome.rule in get_args(ItemRule):
        smaller = ", or allow fewer items an answer (a smaller cap)" if outcome.rule == "wrong_share" else ""
        ranks = "Use a score that ranks wrong items higher, label more answers, or ask for a larger alpha."
        return f"Label more answers{smaller}." if few else ranks
    if outcome.rule == PEOPLE:
        drawn = "Have more labelled, drawn at random."
        return drawn if few else "Label more by hand, or use a larger alpha or a better score."
    if few:
        return f"Label more {nouns.asked}."
    # The score comes first: with a score that does not rank errors neither labels nor a larger alpha help for long.
    auroc = outcome.diagnostics.auroc
    if auroc is not None and auroc < USEFUL_AUROC:
        shown = f"AUROC {auroc:.2f}, and 0.5 is guessing"
        if auroc < 0.5:
            return f"Check whether the score is upside down: higher must mean less certain ({shown})."
        return f"This score hardly tells right from wrong ({shown}). {FRESH_LABELS}"
    accepted, wrong = _closest(outcome)
    if wrong <= outcome.alpha * accepted:
        return f"Label more {nouns.asked}: that rate is within the target, but the items are too few to show it."
    return f"Use a better uncertainty score. {FRESH_LABELS}"


def found(outcome: Infeasible | CascadeOutcome, nouns: Nouns = ANSWERS) -> str:
    """What a fit without a threshold found, before `remedy`; ends with a space."""
    rule, alpha, reason = outcome.rule, outcome.alpha, outcome.reason
    few = reason is InfeasibleReason.TOO_FEW_ITEMS
    if isinstance(outcome, CascadeOutcome) or "stage" in outcome.options:
        if reason is InfeasibleReason.STAGE_NOT_USED:
            return "The system accepts more when this stage does not answer. "
        if not few:
            return f"An error rate of {alpha:g} cannot be certified where the stages begin to answer. "
        return f"It takes {outcome.needed} questions without an error at alpha = {alpha:g}; there are {outcome.n}. "
    if reason is InfeasibleReason.NOT_CALIBRATED:
        return "There is no artifact yet, so a person decides about each one. "
    if reason is InfeasibleReason.UNKNOWN_GROUP:
        groups = ", ".join(outcome.options.get("known_groups", ()))
        return f"The question is of none of the groups that have a threshold (they are: {groups}). "
    if rule in get_args(ItemRule):
        return _found_of_items(outcome)
    if rule == PEOPLE:
        return _found_by_people(outcome)
    if few:
        items = f"{outcome.n_measured} items are too few for rule {rule!r} at alpha = {alpha:g}"
        least = f": one threshold alone takes {outcome.needed} error-free accepted items"
        sure = "" if outcome.delta is None else f" and delta = {outcome.delta:.3g}{least if outcome.needed else ''}"
        return f"Even without a single error {items}{sure}. "
    return _upside_down(outcome) + (_tied(outcome, outcome.ties) if outcome.ties else _never_low_enough(outcome, nouns))


def _upside_down(outcome: Infeasible) -> str:
    auroc = outcome.diagnostics.auroc
    reversed_scores = auroc is not None and auroc < 1 - USEFUL_AUROC
    return "Wrong answers have the lower scores. If they are confidences, pass 1 - confidence. " * reversed_scores


def _tied(outcome: Infeasible, ties: TieBlock) -> str:
    n, ends = outcome.n_measured, [ties.without, ties.within] if ties.without[0] else [ties.within]
    around = ", then ".join(f"{e} wrong of {k} accepted ({e / k:.1%})" for k, e in ends)
    return (
        f"The scores have {ties.distinct} distinct values; {ties.size} of {n} items ({ties.size / n:.0%}) share the "
        f"score {ties.score:g} and must be accepted or rejected together: {around}. A cut inside the block would do. "
    )


def _closest(outcome: Infeasible) -> tuple[int, int]:
    """Items accepted, and wrong answers among them, where a rule without a threshold came closest."""
    if outcome.hint is not None:
        return outcome.hint.n_accepted, outcome.hint.n_errors
    return outcome.closest or (0, 0)


def _never_low_enough(outcome: Infeasible, nouns: Nouns) -> str:
    alpha, n, hint = outcome.alpha, outcome.n_measured, outcome.hint
    k, e = _closest(outcome)
    base = outcome.diagnostics.base_error
    if hint is not None:
        said = (
            f"{alpha:g} cannot be certified: of the {k} most certain items ({k / outcome.n:.0%}) {e} are wrong. For "
            f"these {hint.bound:.2g} can (--alpha smallest). "
        )
    else:
        said = f"Accepting the {k} most certain came closest, with {e} wrong ({e / k:.1%}). " if k else ""
    return (
        f"No threshold satisfies rule {outcome.rule!r} at alpha = {alpha:g}: overall {round(base * n)} of {n} "
        f"{nouns.many} are wrong ({base:.1%}). {said}"
    )


def _found_of_items(outcome: Infeasible) -> str:
    if outcome.reason is not InfeasibleReason.TOO_FEW_ITEMS:
        return (
            f"At no threshold that can be tested is the risk of rule {outcome.rule} shown to be at most "
            f"{outcome.alpha:g}: too many of the most certain items are wrong. "
        )
    needed = f": it takes about {outcome.needed}, even without a single wrong item" if outcome.needed else ""
    return (
        f"{outcome.n_measured} answers are too few for rule {outcome.rule} at alpha = {outcome.alpha:g} and delta = "
        f"{outcome.delta or 0:g}{needed}. "
    )


def _found_by_people(outcome: Infeasible) -> str:
    if outcome.reason is InfeasibleReason.TOO_FEW_ITEMS:
        labelled = f"People labelled {outcome.options['people']} answers"
        return f"{labelled}; a threshold needs {outcome.needed} accepted ones among them. "
    k, e = _closest(outcome)
    return (
        f"At the first threshold tested {e} of the {k} accepted answers that people labelled are wrong, which with the "
        f"judge's labels does not show an error rate of {outcome.alpha:g}. "
    )
