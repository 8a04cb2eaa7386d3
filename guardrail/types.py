"""The values that flow through the library, in flow order: plan, sample, sample set, uncertainty, verdict.

All are frozen and serialise to plain JSON. Directions: uncertainty is *higher = less certain*, always.
Log-probabilities are natural logarithms (nats), of the model's own distribution before temperature or truncation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    field_validator,
    model_validator,
)

from .plain_json import canonical_json, has_visible, sha256_hex

__all__ = [
    "LEAST_LOGPROB",
    "MAX_TOKENS",
    "Basis",
    "Bindings",
    "Cost",
    "Fingerprint",
    "Frozen",
    "Missing",
    "Note",
    "NoteKind",
    "OptionScores",
    "Probing",
    "Reason",
    "Sample",
    "SampleSet",
    "SamplingPlan",
    "StopString",
    "ToolCall",
    "Uncertainty",
    "Unit",
    "Unmeasured",
    "canonical_calls",
    "is_logprob",
    "plain_json",
]

Unit = Literal["nats", "probability", "count", "distance"]
"""Unit of an uncertainty value. A count is a number of meanings, whole or effective; a distance is a norm."""

Probing = Annotated[Literal["auto", "off"], BeforeValidator(lambda value: "off" if value is False else value)]
"""Whether an endpoint is probed before its samples are believed. YAML reads ``off`` without quotes as false."""

MAX_TOKENS = 256
"""Longest answer by default, in new tokens: room for whole answers, because one that is cut off is held back."""

StopString = Annotated[str, Field(min_length=1)]
"""A string that ends an answer. An empty one occurs in every text, so every answer would be empty."""


class Frozen(BaseModel):
    """Base of every value and persisted type: immutable. An unknown name is an error, as an argument and in a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @classmethod
    def from_stored(cls, stored: str | bytes | Mapping[str, Any]) -> Self:
        """A value from the JSON that was stored of it.

        Args:
            stored: JSON as text, or as the object it holds.

        Raises:
            pydantic.ValidationError: A field is missing, unknown, or has another type. It is a `ValueError`.
        """
        return cls.model_validate_json(stored) if isinstance(stored, str | bytes) else cls.model_validate(stored)


class Bindings(Frozen):
    """Tools and answer format that every call carries in addition to its messages.

    Part of the plan, so a threshold calibrated with these tools is valid with these tools only. Usually made from
    Python functions and classes by :func:`guardrail.bindings.bindings_for`.
    """

    tools: tuple[dict[str, Any], ...] = ()
    """Tools in OpenAI's form: ``{"type": "function", "function": {"name": ..., "parameters": ...}}``."""
    tool_choice: str | None = None
    """None leaves the choice to the model, "any" requires some call; otherwise the name of the tool to call."""
    response_format: dict[str, Any] | None = None
    """OpenAI's ``response_format``, e.g. a JSON schema the answer must follow; None for free text."""

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(str(tool["function"]["name"]) for tool in self.tools)

    @property
    def digest(self) -> str:
        """First twelve hex digits of SHA-256 over the canonical JSON; the order of the tools does not matter."""
        content = self.model_dump(mode="json")
        content["tools"] = sorted(content["tools"], key=lambda tool: str(tool["function"]["name"]))
        return sha256_hex(canonical_json(content), 12)

    @field_validator("tools")
    @classmethod
    def _openai_form(cls, tools: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for tool in tools:
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError(
                    f"a tool must be {{'type': 'function', 'function': {{'name': ...}}}}, got {str(tool)[:200]}. "
                    "`guardrail.bindings.bindings_for` makes that of functions and classes."
                )
        return tools

    @model_validator(mode="after")
    def _choice_is_on_offer(self) -> Self:
        names = self.tool_names
        if len(set(names)) != len(names):
            raise ValueError(f"tool names must be distinct, got {names}")
        if self.tool_choice is not None and self.tool_choice not in ("any", *names):
            raise ValueError(f"tool_choice {self.tool_choice!r} must be None, 'any' or one of the tools {names}")
        return self


class SamplingPlan(Frozen):
    """The way outputs are drawn. Part of the artifact: run time repeats exactly the drawing of calibration.

    Usually derived from the needs that estimators declare, by :func:`guardrail.uncertainty.plan.plan_for`.
    """

    n: int = Field(default=10, ge=0)
    """Number of sampled responses, not counting the primary (greedy) answer. 0 when no estimator needs samples."""
    temperature: float = 0.7
    """Sampling temperature of the n samples, and of the primary answer if ``primary`` is "sampled"."""
    top_p: float = Field(default=0.9, gt=0.0, le=1.0)
    """Nucleus mass of the n samples; 1.0 switches truncation off."""
    max_tokens: int = Field(default=MAX_TOKENS, ge=1)
    """Longest answer, in new tokens."""
    stop: tuple[StopString, ...] = ()
    """Strings that end an answer. They are not part of it."""
    stop_token_ids: tuple[NonNegativeInt, ...] = ()
    """Ids of tokens that end an answer, beside the model's own end tokens. They are not part of it. Only a local model
    takes them."""
    logprobs: bool = False
    """Whether token log-probabilities of the primary answer and of the samples are needed."""
    follow_ups: tuple[str, ...] = ()
    """Names of the further questions asked about the drawn answers, e.g. ("p_true",)."""
    options: tuple[str, ...] | None = None
    """Labels whose log-likelihood is read after the prompt, e.g. ("A", "B", "C", "D"); None for open answers.
    With options and n = 0 the primary answer is the most likely option and nothing is generated."""
    bindings: Bindings | None = None
    """Tools and answer format every call carries; None for plain text answers."""
    cut_off: Literal["abstain", "measure"] = "abstain"
    """The treatment of a primary answer that was cut off at ``max_tokens``, or whose reply does not say why it ended:
    "abstain", unmeasured at calibration and run time; "measure", an answer like others."""
    seed: int | None = 0
    """Base seed. Each request's seed is derived from it and the prompt; None draws fresh randomness every time."""
    primary: Literal["greedy", "sampled", "majority"] = "greedy"
    """The way the primary answer is drawn: "greedy" at temperature 0; "sampled" with the temperature and top_p of the
    samples, for models that take no other temperature than 1 (reasoning models); "majority", not drawn: it is the most
    frequent of the n samples (`guardrail.judges.majority`), as in imported files without an answer."""

    @field_validator("options")
    @classmethod
    def _at_least_two_distinct(cls, options: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if options is not None and (len(options) < 2 or len(set(options)) != len(options)):
            raise ValueError(f"options must be at least two distinct labels, got {options!r}")
        return options

    @model_validator(mode="after")
    def _sample_honestly(self) -> Self:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise ValueError(f"temperature must be a finite number above 0, got {self.temperature}")
        if self.n and self.temperature == 0:
            raise ValueError(
                "temperature must be above 0 for samples, got 0: at temperature 0 all samples are equal and every "
                "question looks certain. Use 0.7 (the default); the primary answer is drawn at 0 anyway."
            )
        if self.primary == "sampled" and self.temperature == 0:
            raise ValueError('a primary answer that is "sampled" needs a temperature above 0, got 0. Use 1.')
        # A follow-up would be asked before the vote.
        if self.primary == "majority" and (self.n < 2 or self.follow_ups):
            raise ValueError(
                'a primary answer by "majority" is the vote of all n samples: it needs n of at least 2, without '
                f"follow_ups, got n = {self.n} and {self.follow_ups}."
            )
        return self

    @property
    def calls(self) -> int:
        """Calls of the model that a question costs, each for one answer: the primary, the samples, what it is asked."""
        asked = sum(not name.startswith("score:") for name in self.follow_ups)  # a scorer counts its own calls
        return (self.primary != "majority") + self.n + asked

    def primary_only(self) -> SamplingPlan:
        """The same plan without further questions, and without samples unless the primary answer is their vote."""
        return self if self.primary == "majority" else self.model_copy(update={"n": 0, "follow_ups": ()})


class ToolCall(Frozen):
    """One tool call proposed by the model."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments as parsed JSON."""


LEAST_LOGPROB = -745.0
"""Least log-probability that is a measurement, in nats: below it the probability is 0 in double precision.

Servers write placeholders there for "not computed" or "not among the likeliest": -9999.0 (OpenAI, vLLM), -1e30, the
least 32-bit float (llama.cpp). Tokens that a model chose, and options that it was asked about, stay far above, because
the logits of a model differ by tens and not by hundreds.
"""


def is_logprob(value: float) -> bool:
    """Whether a number is a log-probability that was measured: at least `LEAST_LOGPROB`, and at most 0 up to rounding.

    Servers round, so a certain token may come back as 1e-9.
    """
    return LEAST_LOGPROB <= value <= 1e-6


Fingerprint = tuple[tuple[tuple[str, float], ...], ...]
"""Tokens of greedy answers with their log-probabilities: other weights give others."""


class Sample(Frozen):
    """One model output."""

    text: str
    """Text of the answer, surrounding white space stripped, stop string and special tokens excluded."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Tool calls in the order the model made them."""
    tokens: tuple[str, ...] | None = None
    """Decoded answer tokens, special and end tokens excluded; None when log-probabilities were not measured."""
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each of ``tokens`` under the untempered model; see `is_logprob`."""
    token_bytes: tuple[str, ...] | None = None
    """UTF-8 bytes of each of ``tokens`` in hex, if some token is not whole characters; None if ``tokens`` suffice."""
    finish_reason: str | None = None
    """"stop", "length", "tool_calls", "content_filter", or another value from the server; None if it is not known."""
    refusal: bool = False
    """Whether the reply's metadata says that the model refused or the server blocked the output."""

    @property
    def comparable(self) -> str:
        """The text that judges compare: the canonical JSON of the tool calls, or the text of an answer without calls.

        A text without a visible character is empty: white space, control and format characters, fillers.
        """
        if self.tool_calls:
            return canonical_calls(self.tool_calls)
        return self.text.strip() if has_visible(self.text) else ""

    @property
    def judged_part(self) -> Sample:
        """This output without what judges do not compare: the text beside tool calls, and the tokens of both."""
        if not (self.tool_calls and self.text):
            return self
        return self.model_copy(update={"text": "", "tokens": None, "logprobs": None, "token_bytes": None})

    @model_validator(mode="after")
    def _aligned_and_finite(self) -> Self:
        if (self.tokens is None) != (self.logprobs is None):
            raise ValueError("tokens and logprobs go together: give both or neither")
        if self.tokens is not None and self.logprobs is not None:
            if len(self.tokens) != len(self.logprobs):
                raise ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probabilities")
            if self.token_bytes is not None and len(self.token_bytes) != len(self.tokens):
                raise ValueError(f"{len(self.tokens)} tokens but bytes of {len(self.token_bytes)}")
            bad = next((i for i, value in enumerate(self.logprobs) if not is_logprob(value)), None)
            if bad is not None:
                raise ValueError(
                    f"logprobs[{bad}] is {self.logprobs[bad]}; a log-probability is at most 0 and at least "
                    f"{LEAST_LOGPROB:g} (less is a placeholder). Leave the log-probabilities of this answer out."
                )
        return self


class OptionScores(Frozen):
    """Log-likelihood of each answer option given the prompt."""

    labels: tuple[str, ...]
    """Option labels, in the plan's order."""
    loglikelihoods: tuple[float, ...]
    """ln p(option | prompt), divided by the number of the option's tokens where there are several; up to a common
    offset. Finite, and at most 745 apart (`LEAST_LOGPROB`): further apart, one is a placeholder."""

    @model_validator(mode="after")
    def _aligned_and_finite(self) -> Self:
        if len(self.labels) != len(self.loglikelihoods) or len(self.labels) < 2:
            raise ValueError(f"{len(self.labels)} labels but {len(self.loglikelihoods)} log-likelihoods; need >= 2")
        for label, value in zip(self.labels, self.loglikelihoods, strict=True):
            if not math.isfinite(value):
                raise ValueError(f"log-likelihood of option {label!r} is {value}; it must be finite")
        if (least := min(self.loglikelihoods)) - max(self.loglikelihoods) < LEAST_LOGPROB:
            raise ValueError(f"a log-likelihood is {least:g}, which is a placeholder; the options were not measured")
        return self

    @property
    def best(self) -> str:
        """Label with the highest log-likelihood (the first of them on an exact tie)."""
        return self.labels[max(range(len(self.labels)), key=self.loglikelihoods.__getitem__)]

    @property
    def probabilities(self) -> tuple[float, ...]:
        """Softmax of the log-likelihoods, shifted by their maximum so that it cannot overflow; sums to 1."""
        top = max(self.loglikelihoods)
        weights = [math.exp(value - top) for value in self.loglikelihoods]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    def shares(self) -> tuple[tuple[str, float], ...]:
        """Labels with their probability, most likely first."""
        return tuple(sorted(zip(self.labels, self.probabilities, strict=True), key=lambda pair: -pair[1]))


class Cost(Frozen):
    """The cost of a measurement, summed over the primary answer and all samples."""

    calls: int = 0
    """Model calls made (a native sampler that prefills once counts one call a request)."""
    input_tokens: int = 0
    """Prompt tokens processed, as the model or server counts them."""
    output_tokens: int = 0
    """Tokens generated."""
    seconds: float = 0.0
    """Wall-clock seconds from the first call to the last answer."""
    saved: int = 0
    """Samples of the plan that were not drawn, because they could not have changed the verdict."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            seconds=self.seconds + other.seconds,
            saved=self.saved + other.saved,
        )


class Unmeasured(StrEnum):
    """Reasons why an uncertainty could not be measured. The gate abstains for all of them."""

    SAMPLING_SHORTFALL = "sampling_shortfall"
    """Fewer samples came back than the plan asks for."""
    MODEL_FAILED = "model_failed"
    """The model or its server could not be reached, raised an error or timed out."""
    MISCONFIGURED = "misconfigured"
    """The endpoint answers no call at all: its key, model name or address is wrong (HTTP 401, 403, 404), or there is no
    server."""
    DEGENERATE_SAMPLES = "degenerate_samples"
    """A probe showed that the endpoint's samples do not vary as sampling must."""
    NO_LOGPROBS = "no_logprobs"
    """Token log-probabilities are missing or incomplete, or one of them is a placeholder (`is_logprob`)."""
    NO_OPTIONS = "no_options"
    """Option log-likelihoods are missing, or not all labels were read."""
    EMPTY_ANSWER = "empty_answer"
    """The primary answer or a sample has no content to judge."""
    REFUSED = "refused"
    """The model or its server refused to answer."""
    CUT_OFF = "cut_off"
    """The primary answer ended because it became too long, so it is not whole."""
    JUDGE_FAILED = "judge_failed"
    """The equivalence judge gave no verdict on a required pair."""
    NOT_RECORDED = "not_recorded"
    """An imported record does not have this score."""
    NOT_FINITE = "not_finite"
    """The formula gave NaN or an infinity."""
    UNREADABLE = "unreadable"
    """A reply cannot be read, judged and given out as it is, or the model's own code failed on it."""
    MODEL_CHANGED = "model_changed"
    """A reply names another model, or another configuration of the server, than the pinned one."""
    REJECTED = "rejected"
    """The server refused this very request (HTTP 4xx): a filter, a prompt that is too long, an unknown setting."""

    @property
    def depends_on_question(self) -> bool:
        """Whether the question itself may be the cause: then this is a result, and nothing draws it again.

        False for failures of the transport (and for an endpoint that a probe refuses): they would hit any question, so
        another attempt selects nothing.
        """
        return self not in _TRANSPORT


_TRANSPORT = frozenset(
    {
        Unmeasured.MODEL_FAILED,
        Unmeasured.MISCONFIGURED,
        Unmeasured.DEGENERATE_SAMPLES,
        Unmeasured.MODEL_CHANGED,
    }
)
"""Reasons that say nothing about the question. A new reason depends on the question unless it is listed here."""


class SampleSet(Frozen):
    """Everything drawn for one prompt."""

    question: str
    """Text of the last human message. Judges read it as the question."""
    primary: Sample | None
    """The answer returned when the gate accepts: greedy, or the most likely option. None if it failed."""
    samples: tuple[Sample, ...] = ()
    """The n sampled responses, in no meaningful order."""
    options: OptionScores | None = None
    """Option log-likelihoods, when the plan reads options."""
    follow_ups: dict[str, tuple[SampleSet, ...]] = Field(default_factory=dict)
    """Replies to the plan's further questions, by name; each is a primary answer or an option read-out."""
    cost: Cost = Cost()
    """Calls, tokens and seconds."""
    problem: Unmeasured | None = None
    """The reason why this set is incomplete, or None if it has everything the plan asks for."""
    problem_detail: str = ""
    """The problem in words, e.g. "asked for 10 samples, received 1"."""
    not_offered: Sample | None = Field(default=None, exclude_if=lambda sample: sample is None)
    """The primary answer where it calls a tool that was not offered: a person may see it; nothing gives it out."""


class Uncertainty(Frozen):
    """A measured uncertainty, or the reason why it is missing. Never NaN, never a stand-in number."""

    value: float | None
    """Higher is less certain; None when it could not be measured."""
    unit: Unit
    """Unit of ``value``."""
    estimator: str
    """Name of the estimator that produced it."""
    reason: Unmeasured | None = None
    """The reason why ``value`` is None; None if it was measured."""
    detail: str = ""
    """The reason in words."""
    is_bound: bool = Field(default=False, exclude_if=lambda is_bound: not is_bound)
    """Whether ``value`` is a bound and not the score: the first of two stages decided, without further samples."""
    first: float | None = Field(default=None, exclude_if=lambda first: first is None)
    """Of two stages: the score of the first one, which every verdict has; otherwise None."""

    @model_validator(mode="after")
    def _value_or_reason(self) -> Self:
        if (self.value is None) == (self.reason is None):
            raise ValueError("an Uncertainty has either a value or a reason, never both or neither")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"an uncertainty must be finite, got {self.value}")
        return self

    @property
    def measured(self) -> bool:
        """Whether there is a value."""
        return self.value is not None


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
    """Not accepted: the uncertainty is within the threshold, but no calibration prompt had such turns, so that the
    promise does not cover the answer. An agent's gate holds it back; a guard gives it out where its artifact says
    ``other_turns="mark"``."""


class Basis(StrEnum):
    """What a score reads; `guardrail.describe` says what a high one means."""

    SAMPLES = "samples"
    """How far the samples agree."""
    SAMPLE_LIKELIHOOD = "sample_likelihood"
    """The probability of the samples."""
    ANSWER_LIKELIHOOD = "answer_likelihood"
    """The probability of the answer."""
    OPTIONS = "options"
    """The probabilities of the options."""
    QUESTION_ABOUT_ANSWER = "question_about_answer"
    """The model's reply to a question about its own answer."""
    SCORER = "scorer"
    """The number of a user's scorer, where a high one speaks against the answer."""
    CONFIDENCE = "confidence"
    """The number of a user's scorer, where a high one speaks for the answer."""
    TWO_STAGES = "two_stages"
    """A first call, and samples where it is not sure enough."""
    SEVERAL = "several"
    """Several scores together."""


class NoteKind(StrEnum):
    """A fact about a verdict beside its reason and its numbers."""

    AGREES_WITH_NONE = "agrees_with_none"
    """The answer means the same as none of the samples. ``about``: the score, if it compares the samples alone."""
    NOT_COMPARED = "not_compared"
    """The artifact leaves arguments of the call out of the comparison. ``about``: their names."""
    ASKED_BEFORE = "asked_before"
    """The same prompt was asked before; this is its verdict."""
    ALARM = "alarm"
    """The switch holds the answer back. ``about``: its reason."""
    NOT_RECORDED = "not_recorded"
    """An observer failed, so the answer is held back. ``about``: the error."""
    ANOTHER_MODEL = "another_model"
    """The message did not come from the guarded model. ``about``: why it cannot be given out, if it cannot."""
    NO_LABEL = "no_label"
    """Collecting for a calibration: nobody is asked, because what was not measured gives no label."""
    NEXT_STAGE_NOT_ASKED = "next_stage_not_asked"
    """A stage of a cascade could not decide, so that the next one was not asked. ``about``: its number."""


class Note(Frozen):
    """A fact about a verdict; `guardrail.describe` has its sentence."""

    kind: NoteKind
    """The fact."""
    about: tuple[str, ...] = ()
    """What it is about: names, or an error in its own words."""


class Missing(Exception):  # noqa: N818 - a result as often as an error
    """The reason of a missing value: a formula raises it, and what measures returns it.

    Attributes:
        reason: The reason.
        detail: The same in words.
    """

    def __init__(self, reason: Unmeasured, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Missing) and self.args == other.args

    __hash__ = Exception.__hash__


def canonical_calls(calls: Iterable[ToolCall]) -> str:
    """Canonical JSON of tool calls: a list of {"arguments", "name"} in the order of the calls.

    Keys are sorted, white space is dropped, and a whole number is written without decimals (1.0 is 1). Strings stay as
    they are: "1" is not 1, and two ways to write a date differ. The order of calls and of list elements counts.
    """
    listed = [{"name": call.name, "arguments": plain_json(call.arguments)} for call in calls]
    return canonical_json(listed, default=repr)


def plain_json(value: Any) -> Any:
    """A value with text keys, lists for tuples, and whole numbers without decimals."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
