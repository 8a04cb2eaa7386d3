"""The verdict: what the gate decided about one prompt, and how it is shown as text, Markdown and HTML.

Everything that a model or its server wrote (answers and error messages) is escaped: it cannot break out of its line or
send commands to a terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from .artifact import CascadeOutcome
from .describe import ANSWERS, CALLS, Nouns, certifies, guarantee, target_text, why_infeasible
from .errors import GuardrailError
from .items.item import ItemVerdict
from .items.release import release
from .items.spec import ITEMS
from .judges.text import distinct_answers
from .outcome import Infeasible, InfeasibleReason, Outcome
from .plain_json import visible
from .types import Basis, Cost, Frozen, Note, NoteKind, Reason, Sample, Uncertainty, Unmeasured

__all__ = ["WAY_OUT", "AbstainedError", "Meaning", "Reason", "UnmeasuredError", "Verdict", "as_html", "as_markdown"]
__all__ += ["as_text", "next_step", "reviewers_reason", "score_bar"]


class Meaning(Frozen):
    """One group of samples that mean the same, as the estimator's judge sees it; or one option."""

    text: str
    """The most frequent wording in the group, or the option."""
    size: int | None = None
    """Number of samples in the group; None for an option."""
    share: float
    """``size`` divided by the number of samples; of an option its probability."""


class Verdict(Frozen):
    """The decision of the gate about one prompt, and everything a person needs to understand it."""

    accepted: bool
    """Whether the gate accepts the candidate, so that it is returned and the promise covers it."""
    reason: Reason
    """The reason of the decision."""
    uncertainty: Uncertainty
    """The measured uncertainty, or why there is none."""
    threshold: float | None
    """Accept iff uncertainty <= threshold; None when calibration was infeasible."""
    alpha: float
    """Target error rate among accepted answers."""
    outcome: Outcome | CascadeOutcome
    """The fit behind the threshold: its rule and counts, or why it found none."""
    basis: Basis
    """What the score reads."""
    artifact: str
    """Digest of the artifact that decided."""
    candidate: Sample | None
    """The frozen answer that was judged, as the model gave it; see `given` for what of it is given out."""
    meanings: tuple[Meaning, ...] = ()
    """What the uncertainty was computed from: the clusters of the samples, largest first, or the options; empty where
    the estimator compares neither."""
    samples: tuple[str, ...] = ()
    """Text of every sample, in the order drawn."""
    cost: Cost = Cost()
    """Calls, tokens and seconds that the decision took."""
    turns: str | None = None
    """Turns of the conversation (`guardrail.prompting.turns_of`) if the artifact was not calibrated on such, and so
    promises nothing about it; None if it was, or if that was not checked."""
    record: str | None = None
    """Id of the record that keeps the samples, for a tool that has no artifact yet ("collect"); None otherwise."""
    items: tuple[ItemVerdict, ...] = ()
    """The items of the candidate, each with its place, its uncertainty and whether it is kept: the whole answer is one
    item, and so is each field of JSON if fields are gated. Empty without an answer, or if it has no fields."""
    notes: tuple[Note, ...] = ()
    """Further facts, for `detail`."""
    stage: int | None = None
    """Of a cascade: the number of the stage that was asked last, from 1. It gave the answer if the verdict accepts."""

    @model_validator(mode="before")
    @classmethod
    def _data_only(cls, content: Any) -> Any:
        # What `shown` and `without_answers` write beside the data is made from the data again.
        if isinstance(content, dict) and not content.keys().isdisjoint(_DERIVED):
            return {name: value for name, value in content.items() if name not in _DERIVED}
        return content

    @model_serializer(mode="wrap")
    def _without_the_default(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Most verdicts are about what was calibrated: their stored form stays what it was before these fields.
        content: dict[str, Any] = write(self)
        for name in ("turns", "record", "items", "notes", "stage"):
            if getattr(self, name) in (None, ()):
                content.pop(name, None)
        return content

    @property
    def detail(self) -> str:
        """The reason in words, with the numbers and what to do about it."""
        return _in_words(self)

    @property
    def guarantee(self) -> str:
        """The promise of the artifact's rule, in one sentence."""
        return guarantee(self.outcome, nouns=self.nouns)

    @property
    def nouns(self) -> Nouns:
        """The words for what was judged: calls of tools, or an answer."""
        return CALLS if self.candidate is not None and self.candidate.tool_calls else ANSWERS

    @property
    def by_items(self) -> bool:
        """Whether each field of the answer was judged by itself."""
        return self.uncertainty.estimator == ITEMS

    @property
    def held_back(self) -> tuple[ItemVerdict, ...]:
        """The items that are held back."""
        return tuple(item for item in self.items if not item.kept)

    @property
    def given(self) -> Sample | None:
        """The answer that is given out: the candidate, of which only the kept items are left; None if nothing is."""
        if self.candidate is None or not self.passes:
            return None
        return release(self.candidate, self.items) if self.by_items else self.candidate

    @property
    def alternatives(self) -> tuple[tuple[str, float], ...]:
        """Distinct answers among the samples (or the options) with their share, most frequent first."""
        if not self.samples:
            return tuple((each.text, each.share) for each in self.meanings)
        n = len(self.samples)
        return tuple((text, count / n) for text, count in distinct_answers(self.samples))

    @property
    def is_result(self) -> bool:
        """Whether this is an abstention that another draw could only turn into an error, so that nothing retries it.

        The question was measured and is too uncertain, or it could not be measured for a cause that depends on the
        question (`Unmeasured.depends_on_question`). Not what the transport or an alarm held back.
        """
        if self.reason is Reason.UNMEASURED:
            return self.uncertainty.reason is not None and self.uncertainty.reason.depends_on_question
        held = (Reason.ABOVE_THRESHOLD, Reason.INFEASIBLE, Reason.PARTLY_HELD_BACK)
        return not self.accepted and self.reason in held

    @property
    def passes(self) -> bool:
        """Whether the candidate is given out: it is accepted, or ``turns="mark"`` lets it out without the promise."""
        return self.accepted or self.reason is Reason.OTHER_TURNS

    def explain(self) -> str:
        """All the evidence as text, for a person who may see an answer that was held back."""
        return as_text(self)

    def _repr_markdown_(self) -> str:
        return as_markdown(self)

    def _repr_html_(self) -> str:
        return as_html(self)

    def to_metadata(self) -> dict[str, Any]:
        """Plain JSON for ``response_metadata["guardrail"]``.

        Only an accepted answer leaves through the metadata: they hold the candidate of an acceptance, and otherwise no
        words of the model. The verdict itself has all of them (``guard.assess()``, handlers, errors).
        """
        if not self.accepted or self.given is None:
            return self.without_answers()
        content = {**self.without_answers(), "candidate": self.given.judged_part.model_dump(mode="json")}
        if self.items:
            content["items"] = [item.shown(text=item.kept) for item in self.items]
        return content

    def trace_fields(self) -> dict[str, Any]:
        """The verdict in flat fields for traces, without any text of an answer."""
        return {
            "guardrail_accepted": self.accepted,
            "guardrail_reason": self.reason.value,
            "guardrail_score": self.uncertainty.estimator,
            "guardrail_uncertainty": self.uncertainty.value,
            "guardrail_threshold": self.threshold,
            "guardrail_alpha": self.alpha,
            "guardrail_artifact": self.artifact,
            "guardrail_calls": self.cost.calls,
            "guardrail_turns": self.turns,
            "guardrail_stage": self.stage,
        }

    def shown(self, **options: Any) -> dict[str, Any]:
        """Plain JSON for other programs: the data, with reason and promise in words ("detail", "guarantee").

        Args:
            **options: As `pydantic.BaseModel.model_dump`, such as ``exclude``.
        """
        return {**self.model_dump(mode="json", **options), **{name: getattr(self, name) for name in _SENTENCES}}

    def without_answers(self) -> dict[str, Any]:
        """`shown` without the fields that quote what the model said; items keep their places."""
        content = self.shown(exclude=_ANSWERS)
        if self.items:
            content["items"] = [item.shown(text=False) for item in self.items]
            content["held_back"] = [item.shown_path for item in self.held_back]
        return content


_ANSWERS = {"candidate", "meanings", "samples", "items"}
"""Fields of a verdict that quote the model. A new field that does so belongs here."""
_SENTENCES = ("detail", "guarantee")
"""Properties that `Verdict.shown` writes beside the data."""
_DERIVED = {*_SENTENCES, "held_back"}
WIDTH = 32
"""Characters of a bar."""
LONGEST = 160
"""Most characters of an answer that a line shows."""


class AbstainedError(GuardrailError):
    """The guard abstained, and ``on_abstain="raise"`` is set or a text would have been taken for an answer.

    Works with ``guard.with_fallbacks([other], exceptions_to_handle=(AbstainedError,))`` and with LangChain's
    ``ModelFallbackMiddleware``.

    Attributes:
        verdict: The full verdict, with the frozen candidate answer that was held back.
        message: The text the user would have received. ``str(error)`` is the verdict's detail, for the log.
        ticket: Ticket under which a person decides (`guardrail.review.ticket`), or None.
    """

    def __init__(self, verdict: Verdict, message: str | None = None, ticket: str | None = None) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict
        self.message = verdict.detail if message is None else message
        self.ticket = ticket

    @classmethod
    def of(cls, verdict: Verdict, message: str | None = None, ticket: str | None = None) -> AbstainedError:
        """An `UnmeasuredError` if the transport failed, so that nothing was measured; otherwise an `AbstainedError`.

        For a cascade, only if no stage was measured: a retry would draw that stage again.
        """
        failed = verdict.reason.value == "unmeasured" and not verdict.is_result
        return (UnmeasuredError if failed else AbstainedError)(verdict, message, ticket)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.verdict, self.message, self.ticket)  # pickling passes it between processes


class UnmeasuredError(AbstainedError):
    """The guard abstained because the model, its server or its endpoint failed. Another attempt may succeed.

    Not where the question may be the cause (an empty, refused, unreadable or unjudged answer): that is a result, which
    nothing may draw again, and raises a plain `AbstainedError`.
    """


# -- The reason in words -----------------------------------------------------------------------------------------------

LISTED = 12
"""Most places of items that a sentence lists."""
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
_NEXT = {
    Reason.WITHIN_THRESHOLD: "Nothing: the answer was given.",
    Reason.ABOVE_THRESHOLD: "Hand the question to a person or a stronger model, or ask it more precisely.",
    Reason.UNMEASURED: "Fix the cause and retry, or hand the question to a person; the answer may be fine.",
    Reason.SUSPENDED: "Look into the alarm (docs/monitoring.md); until then a person may release the answer.",
    Reason.PARTLY_HELD_BACK: "Have a person decide about the items that were held back.",
    Reason.OTHER_TURNS: "Calibrate on conversations with these turns; until then no error rate of theirs is known.",
    Reason.INFEASIBLE: "Route these questions elsewhere, or calibrate with a larger alpha, more data or another model.",
}
_NEXT_OF_CALLS = {
    Reason.WITHIN_THRESHOLD: "Nothing: the call was let through.",
    Reason.ABOVE_THRESHOLD: "Have a person decide about the call, or ask more precisely.",
    Reason.INFEASIBLE: "Have people decide about these calls, or calibrate with a larger alpha, more data or another "
    "model.",
}
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


def next_step(verdict: Verdict) -> str:
    """The next step after a verdict, in one sentence."""
    if (reason := verdict.uncertainty.reason) in WAY_OUT:
        return WAY_OUT[reason]
    if verdict.record is not None:
        return "Decide about it: `calibrate learn` makes decisions labels, and labels an artifact."
    if verdict.reason is Reason.UNMEASURED and verdict.is_result:
        return (
            "Hand the question to a person: the answer is unclear for this question, and asking again would not help."
        )
    if verdict.nouns is CALLS and verdict.reason in _NEXT_OF_CALLS:
        return _NEXT_OF_CALLS[verdict.reason]
    return _NEXT[verdict.reason]


def reviewers_reason(verdict: Verdict) -> tuple[str, str]:
    """Why an answer is held back, for the person who decides about it: the sentence, and the numbers behind it.

    It does not tell the person to ask a person. Where the reason is not a score, the sentence is all of it.
    """
    if any(note.kind in (NoteKind.ALARM, NoteKind.NOT_RECORDED, NoteKind.ANOTHER_MODEL) for note in verdict.notes):
        return verdict.detail, ""
    if verdict.reason is Reason.ABOVE_THRESHOLD:
        return f"{_meaning(verdict)}.", " ".join((_above(verdict), *_remarks(verdict)))
    if verdict.reason is Reason.UNMEASURED:
        score = verdict.uncertainty
        return "How sure the model is could not be measured.", f"{score.reason}: {score.detail}"
    return verdict.detail, ""


def _in_words(verdict: Verdict) -> str:
    """The reason of a verdict, with its numbers, its notes and the way out."""
    outcome = verdict.outcome
    stage = f"Stage {verdict.stage} of {len(outcome.stages)}: " if isinstance(outcome, CascadeOutcome) else ""
    return " ".join((stage + _why(verdict), *_remarks(verdict)))


def _why(verdict: Verdict) -> str:
    notes, score = {note.kind: " ".join(note.about) for note in verdict.notes}, verdict.uncertainty
    unmeasured = f"({score.reason}: {score.detail})"
    if NoteKind.ALARM in notes:
        return f"Held back although the gate accepts, because of an alarm. {notes[NoteKind.ALARM]}"
    if NoteKind.NOT_RECORDED in notes:
        return (
            f"Held back although the gate accepts: the verdict could not be recorded ({notes[NoteKind.NOT_RECORDED]}). "
            "Answers that cannot be recorded are not given. Fix the observer (on_verdict)."
        )
    if NoteKind.ANOTHER_MODEL in notes:
        fault = notes[NoteKind.ANOTHER_MODEL]
        return (
            "Held back: the message did not come from the guarded model, so its score could not be measured. Hand it "
            f"to a person.{f' It cannot be given out either: {fault}.' if fault else ''}"
        )
    if NoteKind.NO_LABEL in notes:
        way_out = "`guardrail doctor --model MODEL` shows what the endpoint honours."
        if score.reason is Unmeasured.CUT_OFF:
            way_out = "Give plan= a larger max_tokens."
        return (
            f"Held back, and nobody is asked: it could not be measured {unmeasured}, so no decision about it could "
            f"become a label. {_looked_after(score, way_out)}"
        )
    if verdict.reason is Reason.PARTLY_HELD_BACK:
        return _in_part(verdict)
    if verdict.reason is Reason.INFEASIBLE:
        return _without_threshold(verdict)
    if verdict.reason is Reason.UNMEASURED:
        way_out = "The answer itself may be fine. Fix the cause and retry, or hand the question to a person."
        if score.reason is not None and score.reason.depends_on_question:
            way_out = "Hand the question to a person; nothing draws it again."
        return f"Held back: the score could not be measured {unmeasured}. {_looked_after(score, way_out)}"
    return _compared(verdict)


def _looked_after(score: Uncertainty, otherwise: str) -> str:
    """The way out of a cause that is not the question's; otherwise the text given."""
    return otherwise if score.reason is None else WAY_OUT.get(score.reason, otherwise)


def _compared(verdict: Verdict) -> str:
    if verdict.reason is not Reason.ABOVE_THRESHOLD:
        target = target_text(verdict.alpha, certifies=certifies(verdict.outcome))
        return f"Accepted: {_limit(verdict)}, calibrated for {target}."
    return f"{_above(verdict)} {_meaning(verdict)}; {verdict.nouns.handed}."


def _meaning(verdict: Verdict) -> str:
    return _HIGH[verdict.basis].format(one=verdict.nouns.one, many=verdict.nouns.many)


def _above(verdict: Verdict) -> str:
    target = target_text(verdict.alpha, certifies=certifies(verdict.outcome))
    return f"Held back: {_limit(verdict)}, the threshold calibrated for {target} among {verdict.nouns.given}."


def _limit(verdict: Verdict) -> str:
    """Score and threshold, in the direction of the user's own score where that is the other one."""
    score, threshold = verdict.uncertainty, verdict.threshold
    assert score.value is not None, "it was measured"
    assert threshold is not None, "it was compared"
    unit, own = " nats" if score.unit == "nats" else "", ""
    if verdict.basis is Basis.CONFIDENCE:
        top = 1.0 if score.unit == "probability" else 0.0
        own = f" (the scorer gave {top - score.value:.4g}, and {top - threshold:.4g} is enough)"
    sign = ">" if verdict.reason is Reason.ABOVE_THRESHOLD else "<="
    return f"{score.estimator} {score.value:.4g} {sign} {threshold:.4g}{unit}{own}"


def _without_threshold(verdict: Verdict) -> str:
    outcome = verdict.outcome
    assert isinstance(outcome, Infeasible | CascadeOutcome), "it has no threshold"
    nouns = verdict.nouns
    why = why_infeasible(outcome, nouns)
    if outcome.reason is InfeasibleReason.NOT_CALIBRATED:
        score = verdict.uncertainty
        fault = "" if score.measured else f" Not measured: {score.reason}: {score.detail}."
        return f"Held back: {why[0].lower()}{why[1:]}{fault}"
    if outcome.reason is InfeasibleReason.UNKNOWN_GROUP:
        return f"Held back: {why[0].lower()}{why[1:]}"
    reason = "stage_not_used" if outcome.reason is None else outcome.reason.value
    return (
        f"Held back: calibration found no threshold that keeps the error among {nouns.many} at {outcome.alpha:g}, so "
        f"nothing is accepted ({reason}: {why}) Route these {nouns.asked} elsewhere, or calibrate with a larger alpha, "
        f"more {nouns.asked}, or a better model."
    )


def _in_part(verdict: Verdict) -> str:
    """The reason of a verdict on items of which some are kept, with the places of the others."""
    held, n = verdict.held_back, len(verdict.items)
    places = ", ".join(item.shown_path or "(the whole value)" for item in held[:LISTED])
    places += f" and {len(held) - LISTED} more" if len(held) > LISTED else ""
    counted, limit = f"{n - len(held)} of {n} items", f"(uncertainty <= {verdict.threshold:.4g})"
    if verdict.accepted:
        return (
            f"Accepted in part: kept {counted} {limit}. Held back: {places}. Have a person decide about these, or do "
            "without them."
        )
    answer = verdict.candidate
    calls = answer is not None and answer.tool_calls
    without = "a call must not run without the others" if calls else "the caller takes a whole answer only"
    return f"Held back: {counted} are certain enough {limit}, but {without}: {places}. Have a person decide about them."


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


def as_markdown(verdict: Verdict) -> str:
    """`as_text` as Markdown; the evidence is a code block, so nothing in it is markup."""
    body = as_text(verdict)
    longest = max((len(run) for run in re.findall(r"`+", body)), default=0)
    fence = "`" * max(3, longest + 1)  # longer than any run of backticks in an answer
    return f"**{_headline(verdict)}**\n\n{fence}text\n{body}\n{fence}"


def as_html(verdict: Verdict) -> str:
    """The evidence as one HTML element without scripts; every text is escaped."""
    colour = "#1a7f37" if verdict.accepted else "#b35900"
    rows = "".join(
        f'<tr><th style="text-align:left;vertical-align:top">{escape(heading)}</th>'
        f'<td style="text-align:left"><pre style="margin:0">{escape(chr(10).join(body))}</pre></td></tr>'
        for heading, body in _sections(verdict)
    )
    return (
        f'<div style="border-left:4px solid {colour};padding-left:8px"><strong>{escape(_headline(verdict))}</strong> '
        f"({escape(verdict.reason.value)})<p>{escape(_line(verdict.detail))}</p><table>{rows}</table></div>"
    )


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
        ("Next", [next_step(verdict)]),
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
    filled = round(WIDTH / 2 * min(max(share, 0.0), 1.0))
    bar = "#" * filled + "." * (WIDTH // 2 - filled)
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
    if threshold is not None:
        lines.append(score_bar(uncertainty.value, threshold))
    if uncertainty.is_bound:
        lines.append(_line(_settled_early(verdict)))
    elif uncertainty.detail:
        lines.append(_line(uncertainty.detail))
    return lines


def score_bar(value: float, threshold: float) -> str:
    """Score and threshold on one scale, ``0 [====|......*...] 1.5``: "=" is accepted, "|" threshold, "*" score."""
    low, high = min(0.0, value, threshold), max(0.0, value, threshold)
    high = high if math.isclose(high, low) else high + 0.1 * (high - low)
    span = (high - low) or 1.0

    def place(number: float) -> int:
        return min(WIDTH - 1, max(0, int((number - low) / span * WIDTH)))

    limit, score = place(threshold), place(value)
    if value > threshold and score <= limit:  # rounding must not contradict the comparison
        score = min(WIDTH - 1, limit + 1)
        limit = min(limit, score - 1)
    elif value <= threshold and score >= limit:
        limit = min(WIDTH - 1, score + 1)
        score = min(score, limit - 1)
    cells = ["=" if i < limit else "." for i in range(WIDTH)]
    cells[limit], cells[score] = "|", "*"
    return f"{low:.4g} [{''.join(cells)}] {high:.4g}"


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
