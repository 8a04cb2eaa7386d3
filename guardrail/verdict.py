"""The verdict: what the gate decided about one prompt, and how it is shown as text, Markdown and HTML.

Everything that a model or its server wrote (answers and error messages) is escaped: it cannot break out of its line or
send commands to a terminal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from .artifact import CascadeOutcome
from .describe import guarantee, next_step, reason_in_words, settled_early
from .items.item import ItemVerdict
from .items.release import release
from .judges.vote import distinct_answers
from .outcome import Outcome
from .plain_json import visible
from .types import Basis, Cost, Frozen, Note, Reason, Sample, Uncertainty, Unmeasured

__all__ = ["Meaning", "Reason", "Verdict", "as_html", "as_markdown", "as_text", "score_bar"]


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
    """The items of the candidate, each with its uncertainty and whether it is kept; empty if the artifact gates whole
    answers, or the answer could not be split."""
    notes: tuple[Note, ...] = ()
    """Further facts, for `detail`."""
    stage: int | None = None
    """Of a cascade: the number of the stage that was asked last, from 1. It gave the answer if the verdict accepts."""

    @model_validator(mode="before")
    @classmethod
    def _data_only(cls, content: Any) -> Any:
        # The sentences of `shown` are made from the data again.
        if isinstance(content, dict) and not content.keys().isdisjoint(_SENTENCES):
            return {name: value for name, value in content.items() if name not in _SENTENCES}
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
        return reason_in_words(self)

    @property
    def guarantee(self) -> str:
        """The promise of the artifact's rule, in one sentence."""
        return guarantee(self.outcome)

    @property
    def held_back(self) -> tuple[ItemVerdict, ...]:
        """The items that are held back."""
        return tuple(item for item in self.items if not item.kept)

    @property
    def given(self) -> Sample | None:
        """The answer that is given out: the candidate, of which only the kept items are left; None if nothing is."""
        if self.candidate is None or not self.passes:
            return None
        return release(self.candidate, self.items) if self.items else self.candidate

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
WIDTH = 32
"""Characters of a bar."""
LONGEST = 160
"""Most characters of an answer that a line shows."""


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
        lines.append(_line(settled_early(uncertainty)))
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
