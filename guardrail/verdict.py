"""The verdict: what the gate decided about one prompt, as data. Its words are made in `guardrail.explain`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from . import explain
from .artifact import CascadeOutcome
from .describe import ANSWERS, CALLS, Nouns, guarantee
from .errors import GuardrailError
from .items.item import ItemVerdict
from .items.release import release
from .items.spec import ITEMS
from .judges.text import distinct_answers
from .outcome import Outcome
from .types import Basis, Cost, Frozen, Note, Reason, Sample, Uncertainty

__all__ = ["AbstainedError", "Meaning", "Reason", "UnmeasuredError", "Verdict"]


def _is_empty(value: Any) -> bool:
    """Whether a field says nothing: most verdicts lack it, and so does their stored form."""
    return value is None or value == ()


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
    turns: str | None = Field(default=None, exclude_if=_is_empty)
    """Turns of the conversation (`guardrail.prompting.turns_of`) if the artifact was not calibrated on such, and so
    promises nothing about it; None if it was, or if that was not checked."""
    record: str | None = Field(default=None, exclude_if=_is_empty)
    """Id of the record that keeps the samples, for a tool that has no artifact yet ("collect"); None otherwise."""
    items: tuple[ItemVerdict, ...] = Field(default=(), exclude_if=_is_empty)
    """The items of the candidate, each with its place, its uncertainty and whether it is kept: the whole answer is one
    item, and so is each field of JSON if fields are gated. Empty without an answer, or if it has no fields."""
    notes: tuple[Note, ...] = Field(default=(), exclude_if=_is_empty)
    """Further facts, for `detail`."""
    stage: int | None = Field(default=None, exclude_if=_is_empty)
    """Of a cascade: the number of the stage that was asked last, from 1. It gave the answer if the verdict accepts."""
    stages: tuple[Verdict, ...] = Field(default=(), exclude_if=_is_empty)
    """Of a cascade: the verdicts of the stages that were asked, in order; the verdict itself has the cost and the
    promise of the whole system."""

    @model_validator(mode="before")
    @classmethod
    def _data_only(cls, content: Any) -> Any:
        # What `shown` and `without_answers` write beside the data is made from the data again.
        if isinstance(content, dict) and not content.keys().isdisjoint(_DERIVED):
            return {name: value for name, value in content.items() if name not in _DERIVED}
        return content

    @property
    def detail(self) -> str:
        """The reason in words, with the numbers and what to do about it."""
        return explain.detail(self)

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
        question (`Unmeasured.depends_on_question`). Not what the transport or an alarm held back. Of a cascade: whether
        any stage's verdict is one.
        """
        if self.stages:
            return any(stage.is_result for stage in self.stages)
        if self.reason is Reason.UNMEASURED:
            return self.uncertainty.reason is not None and self.uncertainty.reason.depends_on_question
        held = (Reason.ABOVE_THRESHOLD, Reason.INFEASIBLE, Reason.PARTLY_HELD_BACK)
        return not self.accepted and self.reason in held

    @property
    def passes(self) -> bool:
        """Whether the candidate is given out: it is accepted, or let out without the promise (`Reason.OTHER_TURNS`)."""
        return self.accepted or self.reason is Reason.OTHER_TURNS

    def explain(self) -> str:
        """All the evidence as text, for a person who may see an answer that was held back."""
        return explain.as_text(self)

    def _repr_html_(self) -> str:
        return explain.as_html(self)

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
        if self.stages:
            content["stages"] = [stage.to_metadata() for stage in self.stages]
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
        if self.stages:  # what a stage accepted may be held after all, by an observer or a switch
            content["stages"] = [stage.without_answers() for stage in self.stages]
        return content


_ANSWERS = {"candidate", "meanings", "samples", "items", "stages"}
"""Fields of a verdict that quote the model. A new field that does so belongs here."""
_SENTENCES = ("detail", "guarantee")
"""Properties that `Verdict.shown` writes beside the data."""
_DERIVED = {*_SENTENCES, "held_back"}


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
