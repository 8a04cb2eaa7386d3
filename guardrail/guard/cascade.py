"""`Cascade`: several models asked in order, the cheapest first, with thresholds that were calibrated together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ..artifact import GOES_ON, CascadeArtifact
from ..errors import ArtifactMismatchError, UsageError
from ..sampling.effects import Steps
from ..sampling.models import resolve_model
from ..types import Cost, Note, NoteKind, Reason
from ..verdict import Verdict
from .abstention import ABSTENTION, Wording
from .base import GuardedChatModel, refuse_same_guard
from .chat_model import Guardrail
from .observers import Observers


class Cascade(GuardedChatModel):
    """A drop-in chat model that asks the cheapest model first and a better one only where that one is not sure.

    Example:
        >>> system = Cascade([small, large], artifact="cascade.json", on_abstain=ask_a_person)  # doctest: +SKIP
        >>> (system.prompt | system).invoke({"question": "Who wrote Faust?"})                   # doctest: +SKIP

    Stage 1 answers iff its uncertainty is at most its threshold; if it is not certain, or its model has no answer to
    this question (`GOES_ON`), stage 2 is asked, and so on; if none is certain, the abstention path is taken. The error
    rate among the answers of the whole system is what the artifact (`calibrate fit --cascade`) speaks of. Stages
    without a threshold are not asked.

    A stage that cannot decide for another reason (its model, endpoint or judge failed; its switch holds back) takes the
    whole system to the abstention path: the next one would get questions that its threshold was not calibrated for.

    The verdict in ``response_metadata["guardrail"]`` names the stage; its cost and ``usage_metadata`` sum over stages.

    Current limitations: tools and structured output are refused, and all stages share one prompt.

    Raises:
        ArtifactError: The artifact cannot be read, or a stage was calibrated with something else.
    """

    models: list[BaseChatModel]
    """One chat model (or its name) a stage, in the artifact's order. They are never changed."""
    artifact: CascadeArtifact
    """The cascade's artifact, or the path of its JSON file."""
    on_abstain: Any = "message"
    """The path if no stage is certain, as in `Guardrail`: "message", "raise", a Runnable (or a model's name), or a
    human hook."""
    abstain_message: Wording = ABSTENTION
    """Text for the user under "message", or a function of the verdict; as in `Guardrail`."""
    on_verdict: Any = Field(default=None, repr=False)
    """Called with every verdict of the system and its messages; as in `Guardrail`. A stage's own verdicts go to the
    ``on_verdict`` of its guard (``stage_settings``)."""
    stage_settings: list[dict[str, Any]] = Field(default_factory=list, repr=False)
    """Further settings of the stages' guards (using, probe, ...), one dict a stage."""

    _guards: tuple[Guardrail, ...] = PrivateAttr()
    _observers: Observers = PrivateAttr()

    def __init__(self, models: Sequence[BaseChatModel | str] | None = None, /, **fields: Any) -> None:
        """The fields by name; or the models first."""
        if models is not None:
            if "models" in fields:
                raise UsageError("models was given twice. Give it once.")
            fields["models"] = models
        super().__init__(**fields)

    @classmethod
    def _way_out(cls, name: str) -> str:
        if name in Guardrail.model_fields:
            return f"a stage's guard has it: stage_settings=[{{{name!r}: ...}}, ...], one dict a stage."
        return super()._way_out(name)

    @field_validator("models", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ValueError(
                f"models must be a list of chat models or their names, one a stage, got {type(value).__name__}. "
                "Write models=[small, large]."
            )
        return [resolve_model(model) if isinstance(model, str) else model for model in value]

    @field_validator("artifact", mode="before")
    @classmethod
    def _load(cls, value: Any) -> Any:
        return CascadeArtifact.load(value) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _one_guard_a_stage(self) -> Self:
        stages = self.artifact.stages
        if len(self.models) != len(stages):
            raise ArtifactMismatchError(
                f"the artifact has {len(stages)} stages, got {len(self.models)} models. Give one model a stage, in "
                f"order: {', '.join(stage.model.model for stage in stages)}."
            )
        refuse_same_guard(self.on_abstain, stages)
        self._observers = Observers.of(self.on_verdict)
        if self._observers.switches:
            raise UsageError("a safety switch goes to a stage: stage_settings=[{'on_verdict': switch}, ...].")
        settings = self.stage_settings or [{} for _ in stages]
        if len(settings) != len(stages):
            raise UsageError(f"stage_settings must have one dict a stage: {len(stages)} stages, got {len(settings)}.")
        self._guards = tuple(
            Guardrail(**{**settings_of_stage, "model": model, "artifact": stage, "on_abstain": "message"})
            for model, stage, settings_of_stage in zip(self.models, stages, settings, strict=True)
        )
        return self

    @cached_property
    def _asked(self) -> tuple[tuple[int, Guardrail], ...]:
        """Stages that can answer; the last one alone, for its candidate, where none can."""
        able = [(i, guard) for i, guard in enumerate(self._guards, 1) if guard.artifact.threshold is not None]
        return tuple(able) or ((len(self._guards), self._guards[-1]),)

    # -- assessing ---------------------------------------------------------------------------------------------------

    def _verdict(
        self, messages: Sequence[BaseMessage], callbacks: Callbacks, arguments: Mapping[str, Any] | None = None
    ) -> Steps[Verdict]:
        verdicts: list[tuple[int, Verdict]] = []
        with self._observers.around("guard"):
            for number, guard in self._asked:
                verdict = yield from guard._verdict(messages, callbacks, arguments)
                verdicts.append((number, verdict))
                if not _goes_on(verdict):
                    break
            return (yield from self._observers.apply_steps(self._of_system(verdicts), messages))

    def _of_system(self, verdicts: Sequence[tuple[int, Verdict]]) -> Verdict:
        """The verdict of the last stage that was asked, with the cost and the promise of the whole cascade."""
        number, last = verdicts[-1]
        stages = tuple(verdict for _, verdict in verdicts)
        notes = last.notes
        after = next((other for other, _ in self._asked if other > number), None)
        if not last.passes and after is not None:
            notes = (*notes, Note(kind=NoteKind.NEXT_STAGE_NOT_ASKED, about=(str(after),)))
        system = {
            "outcome": self.artifact.outcome,
            "artifact": self.artifact.digest,
            "cost": sum((verdict.cost for verdict in stages), start=Cost()),
            "notes": notes,
            "stage": number,
            "stages": stages,
        }
        return last.model_copy(update=system)

    def _memory(self) -> dict[str, Any]:
        stage_settings = self.stage_settings or [{} for _ in self._guards]
        return {
            "stage_settings": [
                {**settings, **guard._memory()} for settings, guard in zip(stage_settings, self._guards, strict=True)
            ]
        }

    @property
    def _remembers(self) -> bool:
        return all(guard._remembers for guard in self._guards)

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Refused: the artifact binds prompts without tools.

        Raises:
            UsageError: Always, with the way out.
        """
        raise UsageError("this cascade is calibrated for answers without tools. Bind them to an unguarded model.")

    @property
    def _llm_type(self) -> str:
        return "guardrail_cascade"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"artifact": self.artifact.digest, "models": [model._identifying_params for model in self.models]}


def _goes_on(verdict: Verdict) -> bool:
    """Whether the next stage is asked: this one was not certain, or its model had no answer to this question."""
    if verdict.reason is Reason.UNMEASURED:
        return verdict.uncertainty.reason in GOES_ON
    return verdict.reason is Reason.ABOVE_THRESHOLD
