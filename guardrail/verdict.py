"""The verdict: what the gate decided about one prompt, and how it is shown as text, Markdown and HTML.

Everything that a model or its server wrote (answers and error messages) is escaped: it cannot break out of its line or
send commands to a terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from html import escape
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from .items.item import ItemVerdict
from .plain_json import visible
from .types import Cost, Frozen, Sample, Uncertainty, Unmeasured

__all__ = ["Meaning", "Reason", "Verdict", "as_html", "as_markdown", "as_text", "next_step"]


class Reason(StrEnum):
    """The reason of a verdict."""

    WITHIN_THRESHOLD = "within_threshold"
    """Accepted: uncertainty <= threshold."""
    ABOVE_THRESHOLD = "above_threshold"
    """Abstained: measured, and too uncertain."""
    UNMEASURED = "unmeasured"
    """Abstained: the uncertainty could not be measured; see ``Verdict.uncertainty.reason``."""
    INFEASIBLE = "infeasible"
    """Abstained: calibration found no threshold that keeps its promise, so nothing is accepted."""
    SUSPENDED = "suspended"
    """Abstained: the gate accepts, but a switch holds answers back after an alarm, or recording the verdict failed."""
    PARTLY_HELD_BACK = "partly_held_back"
    """Some items are kept and others held back; see ``Verdict.items``. Accepted: the candidate has the kept items only.
    Abstained for a tool call, which must not run without an argument."""
    OTHER_TURNS = "other_turns"
    """Given out, and not accepted: the uncertainty is within the threshold, but no calibration prompt had such turns,
    so that the promise does not cover the answer (``turns="mark"``)."""


class Meaning(Frozen):
    """One group of samples that mean the same, as the estimator's judge sees it."""

    text: str
    """The most frequent wording in the group."""
    size: int
    """Number of samples in the group."""
    share: float
    """``size`` divided by the number of samples."""


class Verdict(Frozen):
    """The decision of the gate about one prompt, and everything a person needs to understand it."""

    accepted: bool
    """Whether the gate accepts the candidate, so that it is returned and the promise covers it."""
    reason: Reason
    """The reason of the decision."""
    detail: str
    """The reason in words, with the numbers and what to do about it."""
    uncertainty: Uncertainty
    """The measured uncertainty, or why there is none."""
    threshold: float | None
    """Accept iff uncertainty <= threshold; None when calibration was infeasible."""
    alpha: float
    """Target error rate among accepted answers."""
    guarantee: str
    """The promise of the artifact's rule, in one sentence."""
    artifact: str
    """Digest of the artifact that decided."""
    candidate: Sample | None
    """The frozen answer that was judged: what is returned on acceptance, or what a reviewer approves."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Distinct answers among the samples (or the options) with their share, most frequent first."""
    meanings: tuple[Meaning, ...] = ()
    """The clusters the uncertainty was computed from, largest first; empty where the estimator forms none."""
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
    """The items of the original answer, each with its uncertainty and whether it is kept; empty if the artifact gates
    whole answers, or the answer could not be split."""
    whole: Sample | None = None
    """The original answer, if ``candidate`` has only the items of it that are kept; None otherwise."""

    @model_serializer(mode="wrap")
    def _without_the_default(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Most verdicts are about what was calibrated: their stored form stays what it was before these fields.
        content: dict[str, Any] = write(self)
        for name in ("turns", "record", "items", "whole"):
            if getattr(self, name) in (None, ()):
                content.pop(name, None)
        return content

    @property
    def held_back(self) -> tuple[ItemVerdict, ...]:
        """The items that are held back."""
        return tuple(item for item in self.items if not item.kept)

    @property
    def original(self) -> Sample | None:
        """The answer as the model gave it: the frozen candidate that a person decides about."""
        return self.whole or self.candidate

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
        if not self.accepted or self.candidate is None:
            return self.without_answers()
        content = {**self.without_answers(), "candidate": self.candidate.judged_part.model_dump(mode="json")}
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
            "guardrail_stage": getattr(self, "stage", None),  # of a cascade
        }

    def without_answers(self) -> dict[str, Any]:
        """Plain JSON without the fields that quote what the model said; items keep their places."""
        content = self.model_dump(mode="json", exclude=_ANSWERS)
        if self.items:
            content["items"] = [item.shown(text=False) for item in self.items]
            content["held_back"] = [item.shown_path for item in self.held_back]
        return content


_ANSWERS = {"candidate", "alternatives", "meanings", "samples", "items", "whole"}
"""Fields of a verdict that quote the model. A new field that does so belongs here."""
WIDTH = 32
"""Characters of a bar."""
LONGEST = 160
"""Most characters of an answer that a line shows."""
_NEXT = {
    Reason.WITHIN_THRESHOLD: "Nothing: the answer was given.",
    Reason.ABOVE_THRESHOLD: "Hand the question to a person or a stronger model, or ask it more precisely.",
    Reason.UNMEASURED: "Fix the cause and retry, or hand the question to a person; the answer may be fine.",
    Reason.SUSPENDED: "Look into the alarm (docs/monitoring.md); until then a person may release the answer.",
    Reason.PARTLY_HELD_BACK: "Have a person decide about the items that were held back.",
    Reason.OTHER_TURNS: "Calibrate on conversations with these turns; until then no error rate of theirs is known.",
    Reason.INFEASIBLE: "Route these questions elsewhere, or calibrate with a larger alpha, more data or another model.",
}
WAY_OUT = {
    Unmeasured.MISCONFIGURED: (
        "Check the endpoint's key, model name and address, and that its server runs; until then every question is held "
        "back."
    ),
    Unmeasured.DEGENERATE_SAMPLES: (
        "`guardrail doctor --model MODEL` shows what the endpoint honours. If its answers differ although a probe got "
        'equal ones (a model of rules, a few possible answers), draw without the probe: probe="off", or the class '
        "attribute guardrail_trusted = True."
    ),
    Unmeasured.MODEL_CHANGED: (
        "Calibrate again on the model that answers now, or correct the pin; until then its answers are held back."
    ),
}
"""The next step where something other than the question must be looked after."""


def next_step(verdict: Verdict) -> str:
    """The next step after this verdict, in one sentence."""
    if (reason := verdict.uncertainty.reason) in WAY_OUT:
        return WAY_OUT[reason]
    if verdict.record is not None:
        return "Decide about it: `calibrate learn` makes decisions labels, and labels an artifact."
    if verdict.reason is Reason.UNMEASURED and verdict.is_result:
        return (
            "Hand the question to a person: the answer is unclear for this question, and asking again would not help."
        )
    return _NEXT[verdict.reason]


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
    sections: list[tuple[str, Sequence[str]]] = [("Answer", [_answer(verdict)])]
    if verdict.items:
        sections.append(("Items", [_part_line(item) for item in verdict.items]))
    if verdict.meanings:
        heading = f"{len(verdict.samples) or sum(m.size for m in verdict.meanings)} samples, {_count(verdict.meanings)}"
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
    candidate = verdict.candidate
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
    if uncertainty.detail:
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
