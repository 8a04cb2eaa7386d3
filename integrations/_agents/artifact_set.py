"""The artifacts of one agent, and which of them judges which message: pure, no I/O but reading their files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from langchain_core.messages import BaseMessage

from guardrail.artifact import (
    ALL_OTHERS,
    CalibrationArtifact,
    CascadeArtifact,
    RouterArtifact,
    load_artifact,
    uncalibrated,
)
from guardrail.errors import ArtifactMismatchError, UsageError, did_you_mean, refuse_unknown
from guardrail.guard.router import check_key
from guardrail.judges import ToolCallJudge
from guardrail.outcome import Diagnostics, Infeasible, InfeasibleReason
from guardrail.prompting import PromptWrapping
from guardrail.specs import EstimatorSpec, ModelIdentity
from guardrail.types import Bindings, Sample, SamplingPlan
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for

__all__ = [
    "ANSWER",
    "ANY_TOOL",
    "COLLECT",
    "ArtifactSet",
    "Given",
    "Key",
    "collecting",
    "is_collecting",
    "load",
    "routes",
]

ANY_TOOL = "*"
ANSWER = "answer"
COLLECT: Literal["collect"] = "collect"
"""Stands for an artifact: a person decides about each call or answer, and its samples are recorded."""
Given: TypeAlias = CalibrationArtifact | str | Path
"""An artifact, its file, or `COLLECT`."""
Key: TypeAlias = Callable[[Any], str | None]
"""A function of a conversation's messages that names its group, or None for "all others"."""
_NO_MODEL = ModelIdentity(provider="unknown", model="unknown")


def load(given: Given) -> CalibrationArtifact | None:
    """Return an artifact, read from its file if needed; None for `COLLECT`.

    Raises:
        UsageError: The file does not exist, and its name resembles "collect".
    """
    if isinstance(given, CalibrationArtifact):
        return given
    if given == COLLECT:
        return None
    if isinstance(given, str) and (near := did_you_mean(given, [COLLECT])) and not Path(given).exists():
        raise UsageError(f"no artifact at {given}. {near}Otherwise give the path of an artifact.")
    return CalibrationArtifact.load(given)


def routes(given: Given | RouterArtifact | None, key: Key | None) -> Mapping[str, Given | None]:
    """What judges the answers of each group of conversations; without a router, those of all others.

    Raises:
        UsageError: A router without a key function, or a key function without a router.
        ValueError: The key is not a function of messages.
    """
    if isinstance(given, str | Path) and given != COLLECT and Path(given).exists():
        loaded = load_artifact(given)
        given = given if isinstance(loaded, CascadeArtifact) else loaded  # `load` refuses it, and says why
    if not isinstance(given, RouterArtifact):
        if key is not None:
            raise UsageError("key= names the group of a router's artifact (`calibrate fit --by group`). Leave it out.")
        return {ALL_OTHERS: given}
    if key is None:
        raise UsageError(
            "this artifact has a threshold for each group of questions. Give key=, a function of the messages that "
            f"names the group of a conversation: {', '.join(map(repr, given.artifacts))}."
        )
    check_key(key)
    return given.artifacts


def common_plan(artifacts: Sequence[CalibrationArtifact]) -> SamplingPlan:
    """The plan that draws what all of these artifacts need, once.

    They may differ in the parts of a sample set that they read (log-probabilities, follow-ups, whether samples at
    all), not in how the set is drawn.

    Raises:
        ArtifactMismatchError: They were calibrated with another sampling, other tools or another prompt.
    """
    plans = [artifact.plan for artifact in artifacts]
    n = max(plan.n for plan in plans)
    parts = {
        "logprobs": any(plan.logprobs for plan in plans),
        "follow_ups": tuple(sorted({name for plan in plans for name in plan.follow_ups})),
    }
    merged = plans[0].model_copy(update={**parts, "n": n})
    first = artifacts[0]
    for artifact in artifacts:
        own = artifact.plan.model_copy(update={**parts, "n": artifact.plan.n or n})
        differ = [name for name in SamplingPlan.model_fields if getattr(own, name) != getattr(merged, name)]
        if artifact.prompt != first.prompt:
            differ.append(f"prompt ({artifact.prompt!r}, not {first.prompt!r})")
        if differ:
            raise ArtifactMismatchError(
                f"these artifacts cannot judge one agent: artifact {artifact.digest[:12]} was collected with another "
                f"{', '.join(differ)} than {first.digest[:12]}. Fit all of them on records of one collection."
            )
    return merged


# -- Without an artifact -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _StandIns:
    """Makes what stands for the artifacts of an agent that has none.

    Attributes:
        plan: How samples are drawn; None for ten of them at temperature 0.7. A plan without tools gets the agent's.
        judge: Says which calls a person sees as one; default: those that are equal.
    """

    plan: SamplingPlan | None
    judge: ToolCallJudge | None

    def made(
        self, model: ModelIdentity, system: str | None, bindings: Bindings
    ) -> tuple[CalibrationArtifact, CalibrationArtifact]:
        """The stand-ins for calls and for answers.

        Raises:
            UsageError: The judge compares arguments that the tools do not have.
        """
        judge = self.judge or ToolCallJudge()
        calls = make_estimator("primary_disagreement", judge=judge)
        plan = self.plan or plan_for([calls])
        if plan.bindings is None:
            plan = plan.model_copy(update={"bindings": bindings})
        judge.check(plan.bindings)
        answers, prompt = make_estimator("primary_disagreement"), PromptWrapping(system=system)
        of_calls, of_answers = (collecting(model, plan, prompt, each.spec) for each in (calls, answers))
        return of_calls, of_answers


def is_collecting(artifact: CalibrationArtifact) -> bool:
    """Whether an artifact only stands for one."""
    outcome = artifact.outcome
    return isinstance(outcome, Infeasible) and outcome.reason is InfeasibleReason.NOT_CALIBRATED


def collecting(
    model: ModelIdentity, plan: SamplingPlan, prompt: PromptWrapping, estimator: EstimatorSpec
) -> CalibrationArtifact:
    """A stand-in for an artifact: it accepts nothing."""
    outcome = Infeasible(
        reason=InfeasibleReason.NOT_CALIBRATED,
        rule="none",
        alpha=0.0,
        delta=None,
        n=0,
        diagnostics=Diagnostics(base_error=0.0, auroc=None, max_acceptance=0.0),
    )
    return uncalibrated(model, plan, prompt, estimator, outcome)


# -- The set -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArtifactSet:
    """The artifacts of one agent.

    Attributes:
        answer: Judges final answers; None lets them pass.
        tools: Judges messages that call these tools; "*" stands for every other tool.
        exempt: Tools whose calls pass.
        stand_ins: Of an agent without any artifact: each request brings its own system prompt and tools.
        plan: Draws what all of them need.
    """

    answer: CalibrationArtifact | None
    tools: Mapping[str, CalibrationArtifact]
    exempt: Collection[str] = ()
    stand_ins: _StandIns | None = None
    plan: SamplingPlan = field(init=False)

    @classmethod
    def of(
        cls,
        artifact: Given | None,
        tools: Mapping[str, Given] | None,
        exempt: Collection[str],
        *,
        reviewed: bool,
        plan: SamplingPlan | None = None,
        judge: object = None,
    ) -> ArtifactSet:
        """The artifacts as a caller gives them; see `GuardrailMiddleware`.

        Args:
            artifact: Judges final answers; "collect" for none yet. None lets answers pass.
            tools: By tool name, likewise.
            exempt: Tools whose calls pass.
            reviewed: Whether a person decides about held-back messages.
            plan: How samples are drawn for an agent without any artifact.
            judge: Which calls are the same, for such an agent; others than a `ToolCallJudge` are not used.

        Raises:
            UsageError: These are no tools or names, a tool is gated and exempt at once, nothing is gated, or something
                collects where no person decides.
        """
        tools = {} if tools is None else tools
        if not isinstance(tools, Mapping) or not all(isinstance(name, str) for name in tools):
            raise UsageError(
                f'tools= must be a mapping by tool name, such as {{"refund": "collect"}}, got {tools!r:.200}.'
            )
        if isinstance(exempt, str) or not isinstance(exempt, Collection) or not all(isinstance(n, str) for n in exempt):
            raise UsageError(f'exempt= must be a list of tool names, such as ["balance"], got {exempt!r:.200}.')
        if both := sorted(set(tools) & set(exempt)):
            raise UsageError(f"{both} are gated (tools=) and exempt at once. Name each tool in one of them.")
        if artifact is None and not tools:
            raise UsageError("nothing would be gated: pass artifact=... for answers, tools={name: artifact}, or both")
        answer = None if artifact is None else load(artifact)
        by_tool = {name: load(given) for name, given in tools.items()}
        loaded = [*([] if artifact is None else [answer]), *by_tool.values()]
        known = [each for each in loaded if each is not None]
        if len(known) < len(loaded) and not reviewed:
            raise UsageError(
                '"collect" in place of an artifact holds every call or answer for a person, so it needs '
                'on_abstain="review". Collect with it, or give an artifact.'
            )
        stand_ins = None
        if known:
            # Stand-ins draw like the artifacts, so that one draw serves all.
            first = known[0]
            calls = answers = collecting(first.model, first.plan, first.prompt, first.estimator)
        else:
            stand_ins = _StandIns(plan, judge if isinstance(judge, ToolCallJudge) else None)
            calls, answers = stand_ins.made(_NO_MODEL, None, Bindings())
        return cls(
            None if artifact is None else answer or answers,
            {name: each or calls for name, each in by_tool.items()},
            frozenset(exempt),
            stand_ins,
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", common_plan(self.artifacts))

    @property
    def artifacts(self) -> list[CalibrationArtifact]:
        """Each artifact once."""
        return list({artifact.digest: artifact for artifact in self.by_name.values()}.values())

    @property
    def by_name(self) -> dict[str, CalibrationArtifact]:
        """Each artifact by what it judges: "answer", or a tool's name."""
        return {**({} if self.answer is None else {ANSWER: self.answer}), **self.tools}

    def for_request(self, model: ModelIdentity, system: str | None, bindings: Bindings) -> ArtifactSet:
        """These artifacts; for an agent without any, what stands for them under the request's conditions."""
        if self.stand_ins is None:
            return self
        calls, answers = self.stand_ins.made(model, system, bindings)
        return replace(self, answer=None if self.answer is None else answers, tools=dict.fromkeys(self.tools, calls))

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
        """Refuse a tool that is neither gated nor exempt, one named "answer", and names of no tool of the agent."""
        if not names:  # an agent without tools lacks those of its artifacts, and is refused for that reason
            return
        for name in sorted(self.tools):
            refuse_unknown(name, (ANY_TOOL, *names), "the keys of tools=", "a tool of this agent")
        for name in sorted(self.exempt):
            refuse_unknown(name, names, "the names in exempt=", "a tool of this agent")
        for name in names:
            if name == ANSWER and name not in self.exempt:
                raise UsageError(
                    f"a tool named {name!r} cannot be gated: it would be taken for the final answers, whose artifact, "
                    "decisions and labels have this name. Give the tool another name."
                )
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
        """Whether some artifact was calibrated with another model; never for an agent without any."""
        return self.stand_ins is None and any(artifact.model.differences(model) for artifact in self.artifacts)

    def unknown_turns(self, messages: Sequence[BaseMessage]) -> dict[str, str]:
        """The turns of a conversation, by the digest of each artifact that was not calibrated on such."""
        calibrated = [artifact for artifact in self.artifacts if not is_collecting(artifact)]
        unknown = {artifact.digest: artifact.unknown_turns(messages) for artifact in calibrated}
        return {digest: turns for digest, turns in unknown.items() if turns is not None}

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
        names = [call.name for call in sample.tool_calls]
        judging: dict[str, CalibrationArtifact] = {}
        if self.answer is not None and (not names or any(name in answers for name in names)):
            judging[ANSWER] = self.answer
        for name in names:
            if name not in self.exempt and name not in answers:
                # Only a name the model made up has no artifact (`check_tools`); the tool node cannot run it.
                judging[name] = self.tools.get(name) or self.tools.get(ANY_TOOL) or self.answer or self.artifacts[0]
        return judging
