"""Which artifact judges which message of an agent, and the verdicts: pure, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from langchain_core.messages import BaseMessage

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.guard.decide import adecide, decide
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator, from_spec
from guardrail.verdict import Verdict

from .held import strictest

__all__ = ["Gates", "Judgement", "common_plan", "load"]

ANY_TOOL = "*"
ANSWER = "answer"


def load(artifact: CalibrationArtifact | str | Path) -> CalibrationArtifact:
    """An artifact, or the one in a file."""
    return artifact if isinstance(artifact, CalibrationArtifact) else CalibrationArtifact.load(artifact)


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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gates say about one message.

    Attributes:
        verdict: The one that decides: the first that holds it back, else the first; None when nothing of it is gated.
        by_name: The verdict on each gated thing, by tool name, or "answer".
    """

    verdict: Verdict | None
    by_name: Mapping[str, Verdict]

    @property
    def accepted(self) -> bool:
        """Whether every artifact concerned accepts, or none is."""
        return self.verdict is None or self.verdict.accepted


@dataclass(frozen=True)
class Gates:
    """The artifacts of one agent.

    Attributes:
        answer: Judges final answers; None lets them pass.
        tools: Judges messages that call these tools; "*" stands for every other one.
        exempt: Tools whose calls pass.
        judges: Judge objects by name, for artifacts whose judge cannot be made by name.
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
    def passes_something(self) -> bool:
        """Whether there are messages that need no samples."""
        return self.answer is None or bool(self.exempt)

    def check_tools(self, names: Sequence[str]) -> None:
        """Refuse a tool nobody decided about.

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

    def gated(self, sample: Sample | None, answers: Collection[str] = ()) -> dict[str, CalibrationArtifact]:
        """Artifacts a candidate concerns, by name ("answer" or the tool's). None of it gated: empty.

        A message with tool calls is judged by its calls alone, whatever text comes with them. A candidate that is not
        there concerns all artifacts.

        Args:
            sample: The candidate.
            answers: Tools whose call *is* the answer (structured output).
        """
        if sample is None:
            return {ANSWER: self.answer or self.artifacts[0]}
        calls = [call.name for call in sample.tool_calls]
        found: dict[str, CalibrationArtifact] = {}
        if self.answer is not None and (not calls or any(name in answers for name in calls)):
            found[ANSWER] = self.answer
        for name in calls:
            if name in self.exempt or name in answers:
                continue
            # Only a name the model made up is left over (`check_tools`); the tool node has nothing to run for it.
            artifact = self.tools.get(name, self.tools.get(ANY_TOOL)) or self.answer or self.artifacts[0]
            found[name] = artifact
        return found

    def judge(self, drawn: SampleSet, answers: Collection[str] = ()) -> Judgement:
        """Verdicts on a complete set."""
        concerned = self.gated(drawn.primary, answers)
        known = {
            digest: decide(drawn, artifact, self.estimators[digest]) for digest, artifact in _each(concerned).items()
        }
        return _judgement(concerned, known)

    async def ajudge(self, drawn: SampleSet, answers: Collection[str] = ()) -> Judgement:
        """`judge` without blocking the event loop."""
        concerned = self.gated(drawn.primary, answers)
        known = {
            digest: await adecide(drawn, artifact, self.estimators[digest])
            for digest, artifact in _each(concerned).items()
        }
        return _judgement(concerned, known)

    def _estimator(self, artifact: CalibrationArtifact) -> Estimator:
        spec = artifact.estimator
        judge = self.judges.get(spec.judge.name) if spec.judge is not None else None
        return from_spec(spec, judge=judge, similarity=self.similarity, entailment=self.entailment)  # type: ignore[arg-type]


def _each(concerned: Mapping[str, CalibrationArtifact]) -> dict[str, CalibrationArtifact]:
    """Each artifact once, by digest."""
    return {artifact.digest: artifact for artifact in concerned.values()}


def _judgement(concerned: Mapping[str, CalibrationArtifact], known: Mapping[str, Verdict]) -> Judgement:
    verdicts = {name: known[artifact.digest] for name, artifact in concerned.items()}
    return Judgement(strictest(list(verdicts.values())) if verdicts else None, verdicts)
