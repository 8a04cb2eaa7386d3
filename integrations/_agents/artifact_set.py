"""The artifacts of one agent, and which of them judges which message: pure, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from guardrail.artifact import CalibrationArtifact
from guardrail.decision import Gate
from guardrail.errors import ArtifactMismatchError, TurnsMismatchError, UsageError, did_you_mean, refuse_unknown
from guardrail.guard.abstention import ABSTENTION, Wording
from guardrail.guard.observers import Observer
from guardrail.items.gate import gate_of, judges_among
from guardrail.monitor import SafetySwitch
from guardrail.sampling.draws import Draws
from guardrail.sampling.follow_ups import scorer_of
from guardrail.specs import ModelIdentity
from guardrail.types import Bindings, Sample, SamplingPlan
from guardrail.uncertainty import Scorer

from .collecting import COLLECT, Gated, collecting_artifact, is_collecting, with_collected

__all__ = ["ANSWER", "ANY_TOOL", "ArtifactSet", "GateSettings", "common_plan", "load", "load_tools"]

ANY_TOOL = "*"
ANSWER = "answer"
TOOL_CALL = "tool_call"
"""Name of the judge that compares calls, also those that are collected."""


def load_tools(tools: object, exempt: object = ()) -> dict[str, Gated]:
    """The artifact of each tool, see `load`; or "collect".

    Args:
        tools: What the caller gave as ``tools=``.
        exempt: What the caller gave as ``exempt=``; only checked.

    Raises:
        UsageError: ``tools`` is not a mapping of names, ``exempt`` not a collection of them, or a file does not exist
            and its name resembles "collect".
    """
    if not isinstance(tools, Mapping) or not all(isinstance(name, str) for name in tools):
        raise UsageError(f'tools= must be a mapping by tool name, such as {{"refund": "collect"}}, got {tools!r:.200}.')
    if isinstance(exempt, str) or not isinstance(exempt, Collection) or not all(isinstance(n, str) for n in exempt):
        raise UsageError(f'exempt= must be a list of tool names, such as ["balance"], got {exempt!r:.200}.')
    return {name: _load_gated(gate) for name, gate in tools.items()}


def _load_gated(gated: CalibrationArtifact | str | Path) -> Gated:
    if isinstance(gated, str) and gated == COLLECT:
        return COLLECT
    if isinstance(gated, str) and (near := did_you_mean(gated, [COLLECT])) and not Path(gated).exists():
        raise UsageError(f"no artifact at {gated}. {near}Otherwise give the path of an artifact.")
    return load(gated)


def load(artifact: CalibrationArtifact | str | Path) -> CalibrationArtifact:
    """Return an artifact, read from its file if needed."""
    return artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)


def common_plan(artifacts: Sequence[CalibrationArtifact]) -> SamplingPlan:
    """The plan that draws what all of these artifacts need, once.

    They may differ in the parts of a sample set that they read (log-probabilities, follow-ups, whether samples at
    all), not in how the set is drawn.

    Raises:
        ArtifactMismatchError: They were calibrated with another sampling, other tools or another prompt.
    """
    plans = [artifact.plan for artifact in artifacts]
    n = max(plan.n for plan in plans)
    merged = plans[0].model_copy(
        update={
            "n": n,
            "logprobs": any(plan.logprobs for plan in plans),
            "follow_ups": tuple(sorted({name for plan in plans for name in plan.follow_ups})),
        }
    )
    same = {"logprobs": merged.logprobs, "follow_ups": merged.follow_ups}
    for artifact in artifacts:
        own = artifact.plan.model_copy(update={**same, "n": n if artifact.plan.n == 0 else artifact.plan.n})
        if own != merged:
            fields = [name for name in SamplingPlan.model_fields if getattr(own, name) != getattr(merged, name)]
            raise ArtifactMismatchError(
                f"these artifacts cannot judge one agent: artifact {artifact.digest[:12]} was collected with another "
                f"{', '.join(fields)} than {artifacts[0].digest[:12]}. Fit all of them on records of one collection."
            )
        if artifact.prompt != artifacts[0].prompt:
            raise ArtifactMismatchError(
                f"these artifacts cannot judge one agent: artifact {artifact.digest[:12]} was collected with another "
                f"prompt ({artifact.prompt!r}) than {artifacts[0].digest[:12]} ({artifacts[0].prompt!r})."
            )
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """Settings of `Guardrail` that the gate of an agent takes under the same names; see there."""

    abstain_message: Wording = ABSTENTION
    judge: Any = None
    """A judge object, or several by name."""
    similarity: object = None
    entailment: object = None
    scorer: Scorer | Sequence[Scorer] | None = None
    """A scorer, or several; each artifact finds its own by name."""
    probe: Literal["auto", "off"] = "auto"
    switch: SafetySwitch | None = None
    on_verdict: Observer | Sequence[Observer] | None = None
    max_concurrency: int | None = None
    remember: Draws | float | None = None
    remember_slots: tuple[str, ...] | None = None
    turns: Literal["refuse", "mark"] | None = None
    """None does not look at turns."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> GateSettings:
        """The settings that a caller gave as keywords.

        Raises:
            UsageError: There is no such setting.
        """
        known = [each.name for each in fields(cls)]
        for name in given:
            refuse_unknown(name, known, "the keywords of an agent's guard", "a setting")
        return cls(**given)

    @property
    def judges(self) -> dict[str, Any]:
        """The judge objects by name."""
        judge = self.judge
        return dict(judge) if isinstance(judge, Mapping) else {} if judge is None else {judge.spec.name: judge}

    @property
    def scorers(self) -> dict[str, Scorer]:
        """The scorers by the name of their estimator."""
        scorer = self.scorer
        listed = [] if scorer is None else [scorer] if isinstance(scorer, Scorer) else list(scorer)
        return {each.follow_up: each for each in listed}


@dataclass(frozen=True)
class ArtifactSet:
    """The artifacts of one agent.

    Attributes:
        answer: Judges final answers; None lets them pass.
        tools: Judges messages that call these tools; "*" stands for every other tool.
        exempt: Tools whose calls pass.
        settings: Settings of the guard.
        collect_plan: How samples are drawn for tools without an artifact, if the agent has no artifact at all.
        plan: Draws what all of them need.
        gates: The gate of each artifact, by its digest.
    """

    answer: CalibrationArtifact | None
    tools: Mapping[str, CalibrationArtifact]
    exempt: Collection[str]
    settings: GateSettings
    collect_plan: SamplingPlan | None = None
    plan: SamplingPlan = field(init=False)
    gates: Mapping[str, Gate] = field(init=False)

    @classmethod
    def of(
        cls,
        artifact: CalibrationArtifact | str | Path | None,
        tools: Mapping[str, Gated],
        settings: GateSettings,
        *,
        exempt: Collection[str],
        plan: SamplingPlan | None = None,
        model: ModelIdentity | None = None,
    ) -> ArtifactSet:
        """The artifacts as an adapter's caller gives them.

        Args:
            artifact: Judges final answers: an artifact or its file. None lets answers pass.
            tools: Artifact or "collect" by tool name, see `load_tools`.
            settings: Settings of the guard.
            exempt: Tools whose calls pass.
            plan: As ``collect_plan``.
            model: The agent's model, if it is known already; see `for_request`.
        """
        answer = None if artifact is None else load(artifact)
        # The first request of an agent that only collects brings the system prompt and the tools, see `for_request`.
        identity = model or ModelIdentity(provider="unknown", model="unknown")
        same = settings.judges.get(TOOL_CALL)
        stand_in = partial(collecting_artifact, identity, plan=plan, system=None, bindings=Bindings(), judge=same)
        gated = with_collected(answer, tools, stand_in)
        return cls(answer, gated, frozenset(exempt), settings, plan)

    def __post_init__(self) -> None:
        if not self.artifacts:
            raise UsageError("nothing would be gated: pass artifact=... for answers, tools={name: artifact}, or both")
        both = sorted(set(self.tools) & set(self.exempt))
        if both:
            raise UsageError(f"{both} are gated (tools=) and exempt at once. Name each tool in one of them.")
        object.__setattr__(self, "plan", common_plan(self.artifacts))
        gates = {artifact.digest: self._gate(artifact) for artifact in self.artifacts}
        object.__setattr__(self, "gates", gates)

    @property
    def artifacts(self) -> list[CalibrationArtifact]:
        """Each artifact once."""
        artifacts = [*([] if self.answer is None else [self.answer]), *self.tools.values()]
        return list({artifact.digest: artifact for artifact in artifacts}.values())

    @property
    def collects(self) -> bool:
        """Whether some tools have no artifact yet."""
        return any(map(is_collecting, self.artifacts))

    @property
    def collects_only(self) -> bool:
        """Whether no tool has an artifact, so that each request brings its own system prompt and tools."""
        return all(map(is_collecting, self.artifacts))

    def for_request(self, model: ModelIdentity, system: str | None, bindings: Bindings) -> ArtifactSet:
        """These artifacts, or for an agent that only collects those that collect under the request's conditions."""
        if not self.collects_only:
            return self
        same = self.settings.judges.get(TOOL_CALL)
        own = collecting_artifact(model, plan=self.collect_plan, system=system, bindings=bindings, judge=same)
        return replace(self, tools=dict.fromkeys(self.tools, own))

    @property
    def drawn_plan(self) -> SamplingPlan:
        """The plan, reduced to the primary answer if no artifact can accept anything."""
        hopeless = all(artifact.threshold is None and not is_collecting(artifact) for artifact in self.artifacts)
        return self.plan.primary_only() if hopeless else self.plan

    @property
    def passes_something(self) -> bool:
        """Whether some messages need no samples."""
        return self.answer is None or bool(self.exempt)

    def check_tools(self, names: Sequence[str]) -> None:
        """Refuse a tool that is neither gated nor exempt, and a name that is none of the agent's tools.

        Raises:
            UsageError: Naming the tool and the ways out.
        """
        # An agent without tools lacks those of its artifacts, and is refused for that reason.
        for name in sorted(self.tools) if names else ():
            refuse_unknown(name, (ANY_TOOL, *names), "the keys of tools=", "a tool of this agent")
        for name in sorted(self.exempt) if names else ():
            refuse_unknown(name, names, "the names in exempt=", "a tool of this agent")
        for name in names:
            if name not in self.tools and name not in self.exempt and ANY_TOOL not in self.tools:
                raise UsageError(
                    f"tool {name!r} is neither gated nor exempt. Add it to tools={{{name!r}: artifact}}, gate every "
                    f"other tool with tools={{'*': artifact}}, or, if it only reads, pass exempt=[{name!r}]."
                )

    def check_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Refuse another system prompt than the calibrated one; see `PromptWrapping.check`."""
        try:
            self.artifacts[0].prompt.check(messages, None)
        except ArtifactMismatchError as error:
            way_out = (
                "Give the agent the calibrated prompt (LangChain: create_agent(..., system_prompt=...)), or calibrate "
                "again with the prompt you want."
            )
            raise ArtifactMismatchError(error.fault, way_out) from error

    def check_model(self, model: ModelIdentity) -> None:
        """Refuse another model than the calibrated one; see `CalibrationArtifact.check_model`."""
        for artifact in self.artifacts:
            artifact.check_model(model)

    def is_other_model(self, model: ModelIdentity) -> bool:
        """Whether some artifact was calibrated with another model; never for an agent that only collects."""
        return not self.collects_only and any(artifact.model.differences(model) for artifact in self.artifacts)

    def unknown_turns(self, messages: Sequence[BaseMessage], *, refuse: bool) -> str | None:
        """The turns of a conversation, for its verdict to name; None if some artifact was calibrated on such turns.

        Raises:
            TurnsMismatchError: No artifact was, and ``refuse`` is set.
        """
        calibrated = [artifact for artifact in self.artifacts if not is_collecting(artifact)]
        unknown = [artifact.unknown_turns(messages) for artifact in calibrated]
        if not unknown or any(turns is None for turns in unknown):
            return None
        if refuse:
            raise TurnsMismatchError(
                f"none of the artifacts was calibrated on prompts with the turns {str(unknown[0])[:200]!r}. Calibrate "
                'on such conversations, or give turns="mark" to answer without the promise.'
            )
        return unknown[0]

    def judging(self, sample: Sample | None, answers: Collection[str] = ()) -> dict[str, CalibrationArtifact]:
        """The artifacts that judge a candidate, by name ("answer" or the tool's); empty if all of it passes.

        A message with tool calls is judged by its calls alone, not by the text beside them. A missing candidate is
        judged by one artifact, whose verdict gives the reason.

        Args:
            sample: The candidate.
            answers: Tools whose call *is* the answer (structured output).
        """
        if sample is None:
            return {ANSWER: self.answer or self.artifacts[0]}
        return self.judging_calls([call.name for call in sample.tool_calls], answers)

    def judging_calls(self, calls: Sequence[str], answers: Collection[str] = ()) -> dict[str, CalibrationArtifact]:
        """`judging` for a message that calls these tools; an answer calls none."""
        judging: dict[str, CalibrationArtifact] = {}
        if self.answer is not None and (not calls or any(name in answers for name in calls)):
            judging[ANSWER] = self.answer
        for name in calls:
            if name in self.exempt or name in answers:
                continue
            # Only a name the model made up has no artifact (`check_tools`); the tool node cannot run it.
            own = self.tools.get(name, self.tools.get(ANY_TOOL))
            judging[name] = own or self.answer or self.artifacts[0]
        return judging

    def _gate(self, artifact: CalibrationArtifact) -> Gate:
        return gate_of(
            artifact,
            judge=judges_among(artifact, self.settings.judges),
            similarity=self.settings.similarity,  # type: ignore[arg-type]
            entailment=self.settings.entailment,  # type: ignore[arg-type]
            scorer=self.settings.scorers.get(scorer_of(artifact.plan) or ""),
        )
