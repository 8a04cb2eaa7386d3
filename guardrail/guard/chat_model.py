"""`Guardrail`: a chat model that wraps a chat model and answers only when the gate accepts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ..artifact import CalibrationArtifact
from ..bindings import bindings_for
from ..decision import Gate, first_samples
from ..errors import ArtifactMismatchError, UsageError
from ..items.gate import gate_of, released_call
from ..items.partial import partial_or
from ..sampling.call_settings import TRANSPORT, check_settings
from ..sampling.draws import REMEMBERED, Draws
from ..sampling.effects import Steps
from ..sampling.follow_ups import Scoring
from ..sampling.models import resolve_model
from ..sampling.sampler import Sampler
from ..specs import identify
from ..types import Probing, Sample
from ..uncertainty import Scorer
from ..verdict import Verdict
from .abstention import ABSTENTION, Form, Wording
from .assess import Assessment, Assessor
from .base import GuardedChatModel, Using, refuse_same_guard
from .observers import Observers
from .structured import FORM, Method, form_of, method_of, parser_of, structured, tracing_of, wanted_bindings


class Guardrail(GuardedChatModel):
    """A drop-in chat model that returns an answer only when its calibrated uncertainty is low enough.

    Example:
        >>> guard = Guardrail(model=chat, artifact="calibration.json")      # doctest: +SKIP
        >>> chain = guard.prompt | guard | StrOutputParser()                # doctest: +SKIP
        >>> chain.invoke({"question": "Who wrote Faust?"})                  # doctest: +SKIP

    Each call draws the artifact's samples, measures their disagreement, compares it once with the threshold, and then
    returns the primary answer or takes the abstention path. A question that cannot be measured is an abstention.

    The verdict is plain JSON in ``response_metadata["guardrail"]``; ``usage_metadata`` sums over all samples.

    Streaming: nothing can be shown before the verdict, so ``stream`` yields one chunk, after it. Callbacks that stream
    tokens see no sample; tracers see them as child runs.

    Tools and structured output work for artifacts that were calibrated with the very same tools or format
    (docs/langchain.md); every call then carries them, bound or not.

    Current limitations: the guard checks the system message, the last human message and who speaks in which order; it
    does not check that the question, or what was said before it, is like that of calibration.

    Raises:
        ArtifactError: The artifact cannot be read, or was made for another model, estimator, judge or prompt.
    """

    model: BaseChatModel
    """The chat model to guard. It is never changed."""
    artifact: CalibrationArtifact
    """The calibration artifact, or the path of its JSON file."""
    on_abstain: Any = "message"
    """The path of an abstention: "message" returns `abstain_message`; "raise" raises `AbstainedError`; a Runnable
    (another model or its name, a chain) is invoked with the same messages; any other callable is a human hook: it
    receives the `Verdict` (and may be async) and returns a text, an AIMessage, or None for the message."""
    abstain_message: Wording = ABSTENTION
    """Text for the user under "message"; or a function of the `Verdict`, which sees the answer that was held back."""
    using: Using = Field(default_factory=lambda: Using(), repr=False)
    """The objects of the score that cannot be made by name, e.g. ``{"judge": ChatJudge(model)}``."""
    probe: Probing = "auto"
    """Whether an endpoint is probed before its samples are believed: a few calls at the first question
    (docs/endpoints.md). Local samplers and fakes are never probed."""
    on_verdict: Any = Field(default=None, repr=False)
    """Called with every final verdict and its messages, before it is acted on: one function or several, e.g.
    ``[drift.watch, audit_sample(store, rate=0.1)]``. If one fails, an accepted answer is held back. A `SafetySwitch`
    among them holds accepted answers back after a monitor's alarm (docs/monitoring.md): the verdict is "suspended"."""
    remember: Any = Field(default=REMEMBERED, repr=False)
    """Seconds for which a draw and its verdict are remembered: a caller who asks the same again gets the same verdict,
    and an attempt that failed or was cancelled is continued (docs/langchain.md). Retries would otherwise go on until a
    wrong answer looks certain. 0 for never; or a `Draws` that several guards share."""
    max_concurrency: int | None = Field(default=None, ge=1)
    """Calls in flight at once for one question (default 16; a native sampler of an endpoint has 64, a local one draws
    all at once). ``max_concurrency`` of a call's or a batch's configuration bounds the whole call or batch as well."""

    _assessor: Assessor = PrivateAttr()

    @field_validator("model", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return resolve_model(value) if isinstance(value, str) else value

    @field_validator("artifact", mode="before")
    @classmethod
    def _load(cls, value: Any) -> Any:
        return CalibrationArtifact.load(value) if isinstance(value, str | Path) else value

    @field_validator("remember")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, Draws) or (number and 0 <= value < math.inf):
            return value
        raise ValueError(f"remember must be seconds (0 for never) or a Draws to share, got {value!r}")

    @model_validator(mode="after")
    def _same_procedure(self) -> Self:
        artifact = self.artifact
        artifact.check_model(identify(self.model))
        check_settings(self.model, artifact.plan)
        refuse_same_guard(self.on_abstain, artifact.gates)
        if not isinstance(scorer := self.using.get("scorer"), Scorer | None):
            raise UsageError(f"using['scorer'] must be a scorer (@scorer), got {type(scorer).__name__}.")
        gate = gate_of(artifact, **self.using)
        observers = Observers.of(self.on_verdict)
        observers.admit(artifact)
        # Without a threshold nothing can be accepted: only the primary answer is drawn, for a person to see.
        plan = artifact.plan if artifact.threshold is not None else artifact.plan.primary_only()
        scoring = Scoring.of(gate.estimator.scorers, artifact.prompt)
        self._assessor = Assessor(
            sampler=Sampler(self.model, plan, max_concurrency=self.max_concurrency, scoring=scoring),
            gates=partial(_always, {"answer": gate}),  # unlike a lambda, part of a deep copy
            observers=observers,
            probe=self.probe == "auto",
            fingerprint=artifact.fingerprint,
            first=first_samples(plan, [gate.estimator]),
            # The promise of a list of candidates is about all questions that are held back.
            accept_only=getattr(self.on_abstain, "candidates", None) is not None,
            draws=self.remember if isinstance(self.remember, Draws) else Draws(self.remember),
        )
        return self

    # -- assessing ---------------------------------------------------------------------------------------------------

    def _verdict(
        self, messages: Sequence[BaseMessage], callbacks: Callbacks, arguments: Mapping[str, Any] | None = None
    ) -> Steps[Verdict]:
        artifact = self.artifact
        if not hasattr(self.model, "guardrail_identity"):  # such a model may have to hash its weights
            artifact.check_model(identify(self.model))  # its name may have been set since the guard was made
        artifact.check_prompt(messages)
        unknown = artifact.marked_turns(messages)
        turns = {} if unknown is None else {artifact.digest: unknown}
        question = artifact.prompt.question_of(messages)
        assessor = self._assessor
        transport = {name: value for name, value in (arguments or {}).items() if name in TRANSPORT}
        if transport:
            assessor = replace(assessor, sampler=replace(assessor.sampler, transport=transport))
        if FORM in (arguments or {}):
            # The arguments of the call are read as an object, and no tool runs.
            assessor = replace(assessor, usable_items=released_call)
        assessment = yield from assessor.assess_steps(messages, callbacks, question=question, turns=turns)
        assert assessment.verdict is not None, "the one gate judges every candidate"
        return assessment.verdict

    def _memory(self) -> dict[str, Any]:
        return {"remember": self._assessor.draws}

    @property
    def _remembers(self) -> bool:
        return self._assessor.draws.seconds > 0

    # -- observing ---------------------------------------------------------------------------------------------------

    def served_steps(self, messages: Sequence[BaseMessage], answer: Sample) -> Steps[Assessment]:
        """The steps to the verdict on an answer that was served already, drawing only its samples.

        Args:
            messages: The prompt.
            answer: The answer; it must have been drawn as the plan's primary answer.

        Raises:
            ArtifactMismatchError: The prompt is not like those of calibration.
        """
        self.check_served(messages)
        question = self.artifact.prompt.question_of(messages)
        return self._assessor.assess_steps(messages, question=question, served=answer)

    def check_served(self, messages: Sequence[BaseMessage]) -> None:
        """Refuse the prompt of a served answer that is not like those of calibration.

        Raises:
            ArtifactMismatchError: It is not.
        """
        self.artifact.check_prompt(messages)
        if (turns := self.artifact.unknown_turns(messages)) is not None:
            raise ArtifactMismatchError(f"no calibration prompt had the turns {turns[:200]!r}")

    # -- tools and structured output -----------------------------------------------------------------------------------

    def bind(self, **kwargs: Any) -> Any:
        """Bind the tools and the format of calibration, or settings of transport; anything else is refused here.

        Raises:
            ArtifactMismatchError: Sampling settings, or tools or a format other than the artifact's.
        """
        form_of(self.artifact.plan, kwargs.get("stop"), {k: value for k, value in kwargs.items() if k != "stop"})
        return super().bind(**kwargs)

    def bind_tools(
        self,
        tools: Sequence[Any],
        *,
        tool_choice: str | bool | dict[str, Any] | None = None,
        strict: bool | None = None,
        response_format: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The guard for callers that bind tools: exactly the tools of its calibration, in any order.

        An abstention makes no tool call. If the caller forces a call, a text is not an answer, so it raises
        `AbstainedError` unless ``on_abstain`` gives a call.

        Args:
            tools: Functions, classes, LangChain tools or schemas.
            tool_choice: The choice of calibration, or None.
            strict: The value of calibration.
            response_format: The format of calibration, or None.
            **kwargs: Settings that do not change how answers are drawn.

        Raises:
            ArtifactMismatchError: The artifact was calibrated without these tools; the message names the way out.
            UsageError: A tool cannot be described.
        """
        bindings = bindings_for(tools, tool_choice=tool_choice, response_format=response_format, strict=strict)
        bound: Runnable[LanguageModelInput, AIMessage] = self.bind(
            **bindings.model_dump(exclude_defaults=True), **kwargs
        )
        return bound

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Method | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """A runnable that returns objects of the schema the artifact was calibrated with.

        With an artifact for items, an answer of which some fields are held back is a `guardrail.Partial` of the others.

        An abstention is never parsed: it raises `AbstainedError` (with ``include_raw`` it is the ``parsing_error``),
        unless ``on_abstain`` is a Runnable or handler that gives an answer of the schema.

        Args:
            schema: Pydantic class, TypedDict, JSON schema or OpenAI tool.
            include_raw: Return a dict of "raw", "parsed" and "parsing_error".
            method: "function_calling", "json_schema" or "json_mode". Default: the method of calibration.
            strict: The value of calibration.
            **kwargs: Settings that do not change how answers are drawn.

        Raises:
            ArtifactMismatchError: The artifact was calibrated without this schema; the message names the way out.
            UsageError: An unknown method; or an artifact whose ``other_turns`` is "mark" without ``include_raw``.
        """
        if self.artifact.prompt.other_turns == "mark" and not include_raw:
            raise UsageError(
                'the artifact has other_turns="mark", which gives out answers without a promise, and an object of the '
                'schema cannot say so. Give include_raw=True, whose "raw" has the verdict, or calibrate with '
                "other_turns=refuse."
            )
        calibrated = self.artifact.plan.bindings
        method = method or method_of(calibrated)
        bindings = wanted_bindings(schema, method, calibrated, strict)
        form: Form = "calls" if method == "function_calling" else "format"
        bound = self.bind(
            **bindings.model_dump(exclude_defaults=True), **tracing_of(schema, method), **{FORM: form}, **kwargs
        )
        parser = partial_or(parser_of(schema, method), schema)
        return structured(bound, parser, include_raw=include_raw)

    # -- LangChain plumbing ------------------------------------------------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return "guardrail"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"artifact": self.artifact.digest, "model": self.model._identifying_params}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        return self.model._get_ls_params(stop=stop, **kwargs)


def _always(gates: Mapping[str, Gate], candidate: Sample | None) -> Mapping[str, Gate]:
    """These gates, for every candidate."""
    return gates
