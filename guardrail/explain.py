"""The words of a verdict: why an answer was given or held back, what to do next, and all the evidence.

A verdict stores a reason and numbers; its sentences are made here, when it is shown, each of them once. Everything that
a model or its server wrote (answers and error messages) is escaped where the evidence is shown: it cannot break out of
its line or send commands to a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from .artifact import CascadeOutcome
from .describe import refusal, target_text, why_infeasible
from .items.item import ItemVerdict
from .outcome import Infeasible, InfeasibleReason
from .plain_json import visible
from .types import Basis, Cost, NoteKind, Reason, Unmeasured

if TYPE_CHECKING:
    from .verdict import Meaning, Verdict  # which call these functions

LISTED = 12
"""Most places of items that a sentence lists."""
WIDTH = 16
"""Characters of a bar."""
LONGEST = 160
"""Most characters of an answer that a line shows."""
WAY_OUT = {
    Unmeasured.MISCONFIGURED: (
        "Check the endpoint's key, model name and address, and that its server runs; until then every question is held "
        "back."
    ),
    Unmeasured.DEGENERATE_SAMPLES: (
        "`guardrail doctor --model MODEL` shows what the endpoint honours. If its answers differ although a probe got "
        'equal ones (a model of rules, a few possible answers), draw without the probe: probe="off", or the class '
        "attribute guardrail_trusted: ClassVar[bool] = True."
    ),
    Unmeasured.MODEL_CHANGED: (
        "Calibrate again on the model that answers now, or correct the pin; until then its answers are held back."
    ),
}
"""The next step where something other than the question must be looked after."""
_HIGH = {
    Basis.SAMPLES: "The model's own {many} disagree too much",
    Basis.SAMPLE_LIKELIHOOD: "The model gave its own {many} too little probability",
    Basis.ANSWER_LIKELIHOOD: "The model gave its own {one} too little probability",
    Basis.OPTIONS: "No option stands out clearly enough",
    Basis.QUESTION_ABOUT_ANSWER: "Asked about its own {one}, the model did not stand by it clearly enough",
    Basis.SCORER: "The score does not speak for the {one} clearly enough",
    Basis.CONFIDENCE: "The score does not speak for the {one} clearly enough",
    Basis.TWO_STAGES: "The model gave its own {one} too little probability, or its further {many} contradict it",
    Basis.SEVERAL: "Its scores together do not speak for the {one} clearly enough",
}
"""The meaning of a high score, of an answer or of a call."""


# -- Why, and what next ------------------------------------------------------------------------------------------------


def detail(verdict: Verdict) -> str:
    """The reason of a verdict with its numbers, the next step if it has one, and its notes."""
    outcome = verdict.outcome
    stage = f"Stage {verdict.stage} of {len(outcome.stages)}: " if isinstance(outcome, CascadeOutcome) else ""
    done = verdict.passes and verdict.reason is not Reason.PARTLY_HELD_BACK
    why = stage + _words(verdict).why(verdict)
    return " ".join((why, *(() if done else (next_step(verdict),)), *_remarks(verdict)))


def next_step(verdict: Verdict) -> str:
    """The next step after a verdict, in one sentence."""
    noted, cause = {note.kind for note in verdict.notes}, verdict.uncertainty.reason
    if cause in WAY_OUT and not {NoteKind.NOT_RECORDED, NoteKind.ANOTHER_MODEL} & noted:
        return WAY_OUT[cause]
    return _words(verdict).next(verdict)


def without_quotes(verdict: Verdict) -> str:
    """The reason and the next step for clients, without quoting a prompt, an answer or the error of a server."""
    return f"{_WORDS[verdict.reason].client(verdict)}. {next_step(verdict)}"


def reviewers_reason(verdict: Verdict) -> tuple[str, str]:
    """Why an answer is held back, for the person who decides about it: the sentence, and the numbers behind it.

    It does not tell the person to ask a person. Where the reason is not a score, the sentence is all of it.
    """
    by_the_gate = not {NoteKind.ALARM, NoteKind.NOT_RECORDED, NoteKind.ANOTHER_MODEL} & {n.kind for n in verdict.notes}
    if by_the_gate and verdict.reason is Reason.ABOVE_THRESHOLD:
        return f"{_meaning(verdict)}.", " ".join((_limit(verdict), *_remarks(verdict)))
    if by_the_gate and verdict.reason is Reason.UNMEASURED:
        return "How sure the model is could not be measured.", _unmeasured(verdict)
    if by_the_gate and verdict.reason is Reason.PARTLY_HELD_BACK:
        return "The model is not sure of the marked fields.", verdict.detail
    return verdict.detail, ""


def _unmeasured(verdict: Verdict) -> str:
    return f"{verdict.uncertainty.reason}: {verdict.uncertainty.detail}"


def _meaning(verdict: Verdict) -> str:
    return _HIGH[verdict.basis].format(one=verdict.nouns.one, many=verdict.nouns.many)


def _limit(verdict: Verdict) -> str:
    """Score and threshold, in the direction of the user's own score where that is the other one."""
    score, threshold, above = verdict.uncertainty, verdict.threshold, verdict.reason is Reason.ABOVE_THRESHOLD
    assert score.value is not None, "it was measured"
    assert threshold is not None, "it was compared"
    unit, of_scorer = " nats" if score.unit == "nats" else "", ""
    if verdict.basis is Basis.CONFIDENCE:
        top = 1.0 if score.unit == "probability" else 0.0
        of_scorer = f" (the scorer gave {top - score.value:.4g}, and {top - threshold:.4g} is enough)"
    target = target_text(verdict.alpha, certifies=verdict.outcome.certifies)
    compared = f"{score.estimator} {score.value:.4g} {'>' if above else '<='} {threshold:.4g}{unit}{of_scorer}"
    if above:
        return f"Held back: {compared}, the threshold calibrated for {target} among {verdict.nouns.given}."
    return f"Accepted: {compared}, calibrated for {target}."


def _after_unmeasured(verdict: Verdict) -> str:
    if verdict.is_result:
        return (
            "Hand the question to a person: the answer is unclear for this question, and asking again would not help."
        )
    return "Fix the cause and retry, or hand the question to a person; the answer may be fine."


def _without_threshold(verdict: Verdict) -> str:
    outcome, many = verdict.outcome, verdict.nouns.many
    assert isinstance(outcome, Infeasible | CascadeOutcome), "it has no threshold"
    if outcome.reason in _WITHOUT_A_FIT:
        (why, _), measured = refusal(outcome, verdict.nouns), verdict.uncertainty.measured
        shown = outcome.reason is InfeasibleReason.NOT_CALIBRATED and not measured
        return f"Held back: {why[0].lower()}{why[1:]}{f' Not measured: {_unmeasured(verdict)}.' if shown else ''}"
    reason = "stage_not_used" if outcome.reason is None else outcome.reason.value
    return (
        f"Held back: calibration found no threshold that keeps the error among {many} at {outcome.alpha:g}, so nothing "
        f"is accepted ({reason}: {why_infeasible(outcome, verdict.nouns)})"
    )


def _after_no_threshold(verdict: Verdict) -> str:
    outcome, asked = verdict.outcome, verdict.nouns.asked
    if isinstance(outcome, Infeasible) and outcome.reason in _WITHOUT_A_FIT:
        return refusal(outcome, verdict.nouns)[1]
    return f"Route these {asked} elsewhere, or calibrate with a larger alpha, more data or another model."


_WITHOUT_A_FIT = (InfeasibleReason.NOT_CALIBRATED, InfeasibleReason.UNKNOWN_GROUP)


def _in_part(verdict: Verdict) -> str:
    """The reason of a verdict on items of which some are kept, with the places of the others."""
    held, n = verdict.held_back, len(verdict.items)
    places = ", ".join(item.shown_path or "(the whole value)" for item in held[:LISTED])
    places += f" and {len(held) - LISTED} more" if len(held) > LISTED else ""
    counted, limit = f"{n - len(held)} of {n} items", f"(uncertainty <= {verdict.threshold:.4g})"
    if verdict.accepted:
        return f"Accepted in part: kept {counted} {limit}. Held back: {places}."
    answer = verdict.candidate
    calls = answer is not None and answer.tool_calls
    without = "a call must not run without the others" if calls else "the caller takes a whole answer only"
    return f"Held back: {counted} are certain enough {limit}, but {without}: {places}."


def _noted(verdict: Verdict, kind: NoteKind) -> str:
    """The subject of a note."""
    return next((" ".join(note.about) for note in verdict.notes if note.kind is kind), "")


def _another_model(verdict: Verdict) -> str:
    fault = _noted(verdict, NoteKind.ANOTHER_MODEL)
    return (
        "Held back: the message did not come from the guarded model, so it could not be measured."
        f"{f' It cannot be given out either: {fault}.' if fault else ''}"
    )


def _after_no_label(verdict: Verdict) -> str:
    if verdict.uncertainty.reason is Unmeasured.CUT_OFF:
        return "Give plan= a larger max_tokens."
    return "`guardrail doctor --model MODEL` shows what the endpoint honours."


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a reason, each made from the verdict.

    Attributes:
        why: The reason with its numbers.
        next: The next step.
        client: The reason for clients, without a full stop, and without a quote of a prompt, an answer or an error.
    """

    why: Callable[[Verdict], str]
    next: Callable[[Verdict], str]
    client: Callable[[Verdict], str] = lambda _: ""


def _always(text: str) -> Callable[[Verdict], str]:
    return lambda _: text


_WORDS = {
    Reason.WITHIN_THRESHOLD: _Words(
        why=_limit,
        next=_always("Nothing: the gate accepts it."),
        client=_always("The answer is certain enough"),
    ),
    Reason.ABOVE_THRESHOLD: _Words(
        why=lambda verdict: f"{_limit(verdict)} {_meaning(verdict)}.",
        next=lambda verdict: verdict.nouns.handed,
        client=lambda verdict: (
            f"The uncertainty {verdict.uncertainty.value:.4g} is above the calibrated threshold "
            f"{verdict.threshold or 0:.4g}"
        ),
    ),
    Reason.UNMEASURED: _Words(
        why=lambda verdict: f"Held back: the score could not be measured ({_unmeasured(verdict)}).",
        next=_after_unmeasured,
        client=lambda verdict: f"The uncertainty could not be measured ({verdict.uncertainty.reason})",
    ),
    Reason.INFEASIBLE: _Words(
        why=_without_threshold,
        next=_after_no_threshold,
        client=_always("The calibration found no threshold that keeps the error rate, so no answer is given"),
    ),
    Reason.SUSPENDED: _Words(
        why=lambda verdict: (
            f"Held back although the gate accepts, because of an alarm. {_noted(verdict, NoteKind.ALARM)}"
        ),
        next=_always("Look into the alarm (docs/monitoring.md); until then a person may release the answer."),
        client=_always("An alarm, or a failure to record the verdict, holds all answers back"),
    ),
    Reason.PARTLY_HELD_BACK: _Words(
        why=_in_part,
        next=_always("Have a person decide about the items that were held back."),
        client=_always("Fields of the answer are not certain enough"),
    ),
    Reason.OTHER_TURNS: _Words(
        why=_limit,
        next=_always("Calibrate on conversations with these turns; until then no error rate of theirs is known."),
        client=_always("The promise does not cover this conversation, since no calibration prompt had its turns"),
    ),
}
"""The words of every reason."""
_NOTED = {
    NoteKind.ALARM: _WORDS[Reason.SUSPENDED],
    NoteKind.NOT_RECORDED: _Words(
        why=lambda verdict: (
            "Held back although the gate accepts: the verdict could not be recorded "
            f"({_noted(verdict, NoteKind.NOT_RECORDED)}). Answers that cannot be recorded are not given."
        ),
        next=_always("Fix the observer (on_verdict)."),
    ),
    NoteKind.ANOTHER_MODEL: _Words(why=_another_model, next=_always("Hand it to a person.")),
    NoteKind.NO_LABEL: _Words(
        why=lambda verdict: (
            f"Held back, and nobody is asked: it could not be measured ({_unmeasured(verdict)}), so no decision about "
            "it could become a label."
        ),
        next=_after_no_label,
    ),
}
"""The words of notes that say more than the reason, the gravest first."""


def _words(verdict: Verdict) -> _Words:
    noted = {note.kind for note in verdict.notes}
    return next((words for kind, words in _NOTED.items() if kind in noted), _WORDS[verdict.reason])


def _remarks(verdict: Verdict) -> Iterator[str]:
    """The sentences after the reason."""
    score, notes = verdict.uncertainty, {note.kind: note.about for note in verdict.notes}
    if score.is_bound:
        yield f"The score itself was not needed: {_settled_early(verdict)}."
    if (about := notes.get(NoteKind.AGREES_WITH_NONE)) is not None:
        unread = f", and {about[0]} compares the samples alone" if about else ""
        yield f"The {verdict.nouns.one} agrees with none of the {len(verdict.samples)} samples{unread}."
    if NoteKind.NOT_COMPARED in notes:
        listed = "; ".join(notes[NoteKind.NOT_COMPARED])
        yield f"Not judged, because the artifact leaves it out of the comparison: {listed}. Check it."
    if verdict.by_items and verdict.items and not verdict.held_back:
        yield f"Kept: all {len(verdict.items)} items."
    if verdict.turns is not None:
        yield f"The promise does not cover it: no calibration prompt had the turns {verdict.turns[:200]}."
    if NoteKind.ASKED_BEFORE in notes:
        yield "The same prompt was asked before; this is its verdict, and nothing was drawn again."
    if NoteKind.NEXT_STAGE_NOT_ASKED in notes:
        stage, after = verdict.stage, notes[NoteKind.NEXT_STAGE_NOT_ASKED][0]
        yield (
            f"Stage {after} was not asked instead: its threshold was calibrated for questions that stage {stage} is "
            f"not certain about, not for all of them. Until stage {stage} decides again, have a person answer, or a "
            f"guard of its own around the model of stage {after} (`calibrate fit`)."
        )


def _settled_early(verdict: Verdict) -> str:
    """How the first of two stages decided."""
    first, n = f"whose score is {verdict.uncertainty.first:.4g}", len(verdict.samples)
    if n:
        return f"settled by the answer and its first {n} samples, {first}, whatever the other samples say"
    return f"settled by the first call, {first}, whatever the samples say"


# -- All the evidence --------------------------------------------------------------------------------------------------


def as_text(verdict: Verdict) -> str:
    """All the evidence in plain text. It shows an answer that was held back, so it is not for the end user."""
    lines = [f"{_headline(verdict)} ({verdict.reason.value})", _line(verdict.detail), ""]
    for heading, body in _sections(verdict):
        first, *rest = body
        lines.append(f"{heading:<11}{first}")
        lines += [f"{'':<11}{line}" for line in rest]
    return "\n".join(lines)


def as_html(verdict: Verdict) -> str:
    """`as_text` as one HTML element without scripts; every text is escaped."""
    colour = "#1a7f37" if verdict.accepted else "#b35900"
    style = f"border-left:4px solid {colour};padding-left:8px;white-space:pre-wrap"
    return f'<pre style="{style}">{escape(as_text(verdict))}</pre>'


def _headline(verdict: Verdict) -> str:
    if verdict.accepted:
        return "ACCEPTED" if verdict.reason is not Reason.PARTLY_HELD_BACK else "ACCEPTED IN PART"
    if verdict.passes:
        return "GIVEN OUT WITHOUT THE PROMISE"
    return "HELD BACK, could not be measured" if verdict.reason is Reason.UNMEASURED else "HELD BACK"


def _sections(verdict: Verdict) -> list[tuple[str, Sequence[str]]]:
    """Headings with their lines, in reading order; each has at least one line."""
    sections: list[tuple[str, Sequence[str]]] = [(verdict.nouns.one.capitalize(), [_answer(verdict)])]
    if verdict.by_items and verdict.items:
        sections.append(("Items", [_part_line(item) for item in verdict.items]))
    if verdict.meanings and verdict.samples:
        heading = f"{len(verdict.samples)} samples, {_count(verdict.meanings)}"
        sections.append(("Meanings", [heading, *(_share_line(m.share, m.text, m.size) for m in verdict.meanings)]))
    elif verdict.alternatives:
        wordings = "distinct wordings among the samples (the score may count some as the same answer)"
        title = wordings if verdict.samples else "options and their probability"
        sections.append(("Evidence", [title, *(_share_line(share, text) for text, share in verdict.alternatives)]))
    if verdict.samples:
        sections.append(("Samples", [f"{i + 1}. {_short(text)}" for i, text in enumerate(verdict.samples)]))
    sections += [
        ("Score", _score(verdict)),
        ("Guarantee", [f"alpha = {verdict.alpha:g}. {_line(verdict.guarantee)}"]),
        ("Artifact", [verdict.artifact]),
        ("Cost", [_cost(verdict.cost)]),
    ]
    return sections


def _answer(verdict: Verdict) -> str:
    candidate = verdict.given or verdict.candidate
    if candidate is None:
        return "none: the model gave none"
    calls = "; ".join(f"{call.name}({_arguments(call.arguments)})" for call in candidate.tool_calls)
    shown = _short(" ".join(item for item in (candidate.text, calls) if item))
    return shown if verdict.passes else f"{shown}  (held back)"


def _part_line(item: ItemVerdict) -> str:
    share = "  -  " if item.uncertainty is None else f"{item.uncertainty:5.2f}"
    text = "(absent)" if item.absent else item.text
    return f"{'kept' if item.kept else 'HELD'} {share}  {_line(item.path or '(all)')}  {_short(text)}"


def _arguments(arguments: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _count(meanings: Sequence[Meaning]) -> str:
    return "1 meaning" if len(meanings) == 1 else f"{len(meanings)} meanings"


def _share_line(share: float, text: str, size: int | None = None) -> str:
    filled = round(WIDTH * min(max(share, 0.0), 1.0))
    bar = "#" * filled + "." * (WIDTH - filled)
    number = "" if size is None else f" ({size})"
    return f"{share:>5.0%} {bar} {_short(text)}{number}"


def _score(verdict: Verdict) -> list[str]:
    uncertainty, threshold = verdict.uncertainty, verdict.threshold
    unit = {"probability": "", "count": "", "distance": ""}.get(uncertainty.unit, f" {uncertainty.unit}")
    limit = "no threshold" if threshold is None else f"threshold {threshold:.4g}{unit}"
    if verdict.reason is Reason.INFEASIBLE and uncertainty.reason is Unmeasured.SAMPLING_SHORTFALL:
        # Only the answer is drawn where nothing can be accepted; "received 0" would read like a fault of the endpoint.
        return [f"{uncertainty.estimator} not measured: no samples are drawn without a threshold"]
    if uncertainty.value is None:
        return [f"{uncertainty.estimator} not measured ({uncertainty.reason}: {_line(uncertainty.detail)}), {limit}"]
    lines = [f"{uncertainty.estimator} {uncertainty.value:.4g}{unit}, {limit} (higher is less certain)"]
    if uncertainty.is_bound:
        lines.append(_line(_settled_early(verdict)))
    elif uncertainty.detail:
        lines.append(_line(uncertainty.detail))
    return lines


def _cost(cost: Cost) -> str:
    saved = f", {cost.saved} samples not needed" if cost.saved else ""
    return (
        f"{cost.calls} calls, {cost.input_tokens} input and {cost.output_tokens} output tokens, "
        f"{cost.seconds:.3g} s{saved}"
    )


def _line(text: str) -> str:
    """One printable line; line breaks and control characters become escape sequences."""
    return visible(text, one_line=True)


def _short(text: str) -> str:
    """`_line`, cut after `LONGEST` characters."""
    line = _line(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."
