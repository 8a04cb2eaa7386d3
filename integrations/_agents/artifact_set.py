"""Which artifact judges which message of an agent: pure, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.assess import Abstentions, Assessor
from guardrail.guard.decide import Gate
from guardrail.guard.early_stopping import can_stop_early, saves_calls
from guardrail.guard.endpoint_trust import EndpointTrust, agreement_rate
from guardrail.guard.observers import Observers
from guardrail.sampling.native import is_native
from guardrail.sampling.sampler import Sampler
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, from_spec

from .collecting import COLLECT, Gated, is_collecting

__all__ = [
    "ANSWER",
    "ANY_TOOL",
    "ArtifactSet",
    "EarlyStopping",
    "common_plan",
    "highest_agreement",
    "load",
    "load_gated",
]

ANY_TOOL = "*"
ANSWER = "answer"
EarlyStopping = Literal["auto", "on", "off"]


def load_gated(gated: CalibrationArtifact | str | Path) -> Gated:
    """What a tool is gated by: `load`, or "collect"."""
    return COLLECT if isinstance(gated, str) and gated == COLLECT else load(gated)


def load(artifact: CalibrationArtifact | str | Path) -> CalibrationArtifact:
    """An artifact, or the one in a file.

    Raises:
        UsageError: It has a threshold for each segment.
    """
    found = artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)
    return found.refuse_segments("a guard of an agent")


def common_plan(artifacts: Sequence[CalibrationArtifact]) -> SamplingPlan:
    """The plan that draws what all of these artifacts need, once.

    They may differ in what they read of a sample set (log-probabilities, follow-ups, whether samples at all), not in
    how it is drawn.

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
            "unanimous_at": plans[0].unanimous_at if len(plans) == 1 else None,
        }
    )
    same = {"logprobs": merged.logprobs, "follow_ups": merged.follow_ups, "unanimous_at": merged.unanimous_at}
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


@dataclass(frozen=True)
class ArtifactSet:
    """The artifacts of one agent.

    Attributes:
        answer: Judges final answers; None lets them pass.
        tools: Judges messages that call these tools; "*" stands for every other one.
        exempt: Tools whose calls pass.
        judges: Judge objects by name, for artifacts whose judge cannot be made by name.
        plan: Draws what all of them need.
        estimators: Made for each artifact, by its digest.
    """

    answer: CalibrationArtifact | None
    tools: Mapping[str, CalibrationArtifact]
    exempt: Collection[str]
    judges: Mapping[str, object] = field(default_factory=dict)
    similarity: object = None
    entailment: object = None
    plan: SamplingPlan = field(init=False)
    estimators: Mapping[str, Estimator] = field(init=False)

    def __post_init__(self) -> None:
        if not self.artifacts:
            raise UsageError("nothing would be gated: pass artifact=... for answers, tools={name: artifact}, or both")
        both = sorted(set(self.tools) & set(self.exempt))
        if both:
            raise UsageError(f"{both} are gated (tools=) and exempt at once. Name each tool in one of them.")
        object.__setattr__(self, "plan", common_plan(self.artifacts))
        made = {artifact.digest: self._estimator(artifact) for artifact in self.artifacts}
        object.__setattr__(self, "estimators", made)

    @property
    def artifacts(self) -> list[CalibrationArtifact]:
        """Each artifact once."""
        given = [*([] if self.answer is None else [self.answer]), *self.tools.values()]
        return list({artifact.digest: artifact for artifact in given}.values())

    @property
    def drawn_plan(self) -> SamplingPlan:
        """What is drawn: the plan; without samples if nothing can be accepted anyway."""
        hopeless = all(artifact.threshold is None and not is_collecting(artifact) for artifact in self.artifacts)
        return self.plan.primary_only() if hopeless else self.plan

    @property
    def passes_something(self) -> bool:
        """Whether there are messages that need no samples."""
        return self.answer is None or bool(self.exempt)

    def check_tools(self, names: Sequence[str]) -> None:
        """Refuse a tool that is neither gated nor exempt.

        Raises:
            UsageError: Naming the tool and the three ways out.
        """
        for name in names:
            if name not in self.tools and name not in self.exempt and ANY_TOOL not in self.tools:
                raise UsageError(
                    f"tool {name!r} is neither gated nor exempt. Add it to tools={{{name!r}: artifact}}, gate every "
                    f"other tool with tools={{'*': artifact}}, or, if it only reads, pass exempt=[{name!r}]."
                )

    def check_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Refuse another system prompt than the calibrated one; see `PromptWrapping.check`."""
        self.artifacts[0].prompt.check(messages, None)

    def judging(self, sample: Sample | None, answers: Collection[str] = ()) -> dict[str, CalibrationArtifact]:
        """The artifacts that judge a candidate, by name ("answer" or the tool's); none if all of it passes.

        A message with tool calls is judged by its calls alone, not by the text beside them. A missing candidate is
        judged by one artifact, which will say why it is missing.

        Args:
            sample: The candidate.
            answers: Tools whose call *is* the answer (structured output).
        """
        if sample is None:
            return {ANSWER: self.answer or self.artifacts[0]}
        return self.judging_calls([call.name for call in sample.tool_calls], answers)

    def judging_calls(self, calls: Sequence[str], answers: Collection[str] = ()) -> dict[str, CalibrationArtifact]:
        """`judging` for a message that calls these tools; an answer calls none."""
        found: dict[str, CalibrationArtifact] = {}
        if self.answer is not None and (not calls or any(name in answers for name in calls)):
            found[ANSWER] = self.answer
        for name in calls:
            if name in self.exempt or name in answers:
                continue
            # Only a name the model made up is left over (`check_tools`); the tool node has nothing to run for it.
            own = self.tools.get(name, self.tools.get(ANY_TOOL))
            found[name] = own or self.answer or self.artifacts[0]
        return found

    def gates(self, model: BaseChatModel, stopping: EarlyStopping, *, shown: bool) -> dict[str, Gate]:
        """A gate for each artifact, by its digest.

        Args:
            model: The agent's model.
            stopping: Whether drawing may stop before all samples are there; see `Guardrail`.
            shown: Whether a person is shown what was held back. Under "auto" all samples of an abstention are then
                drawn, for the person to see.
        """
        found = {}
        for artifact in self.artifacts:
            estimator = self.estimators[artifact.digest]
            early: Literal["none", "acceptances", "all"] = "none"
            if is_collecting(artifact):
                early = "none"  # its record needs all samples
            elif stopping == "on" and can_stop_early(self.plan, estimator):
                early = "all"
            elif stopping == "auto" and saves_calls(model, self.plan, estimator, artifact.data):
                early = "acceptances" if shown else "all"
            found[artifact.digest] = Gate(artifact, estimator, early)
        return found

    def assessor(
        self,
        model: BaseChatModel,
        gates: Mapping[str, Gate],
        trust: EndpointTrust,
        observers: Observers,
        abstentions: Abstentions,
        *,
        answers: Collection[str] = (),
        step: str = "",
        max_concurrency: int | None = None,
        usable: Callable[[SampleSet], SampleSet] = lambda drawn: drawn,
    ) -> Assessor:
        """Judges one message with the gates that it concerns; one that concerns none needs no samples.

        Args:
            model: The agent's model, with the request's settings.
            gates: As of `gates`.
            trust: In the model.
            observers: See the verdicts.
            abstentions: Remembers them.
            answers: Tools whose call is the answer (structured output).
            step: As of `Assessor`.
            max_concurrency: Calls in flight at once.
            usable: As of `Assessor`.
        """

        def concerned(candidate: Sample | None) -> dict[str, Gate]:
            return {name: gates[artifact.digest] for name, artifact in self.judging(candidate, answers).items()}

        plan = self.drawn_plan
        passes = self.passes_something and bool(plan.n) and not plan.follow_ups
        return Assessor(
            sampler=Sampler(model, plan, max_concurrency=max_concurrency),
            gates=concerned,
            trust=trust,
            observers=observers,
            early=any(gate.early != "none" for gate in gates.values()),
            primary_first=passes and not is_native(model),
            usable=usable,
            abstentions=abstentions,
            step=step,
        )

    def _estimator(self, artifact: CalibrationArtifact) -> Estimator:
        spec = artifact.estimator
        judge = self.judges.get(spec.judge.name) if spec.judge is not None else None
        return from_spec(spec, judge=judge, similarity=self.similarity, entailment=self.entailment)  # type: ignore[arg-type]


def highest_agreement(gates: Collection[Gate]) -> float | None:
    """An upper estimate of how often all samples agreed at calibration; see `agreement_rate`."""
    rates = [agreement_rate(gate.artifact, gate.estimator.needs, stops_early=gate.early != "none") for gate in gates]
    known = [rate for rate in rates if rate is not None]
    return max(known) if len(known) == len(rates) else None
