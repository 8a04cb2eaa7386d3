"""The artifacts of one agent, and which of them judges which message: pure, no I/O but reading their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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

from .options import COLLECT, REVIEW, ArtifactLike, GateOptions, Key, judges_of

ANY_TOOL = "*"
ANSWER = "answer"
_NO_MODEL = ModelIdentity(provider="unknown", model="unknown")


def load(source: ArtifactLike) -> CalibrationArtifact | None:
    """Return an artifact, read from its file if needed; None for `COLLECT`.

    Raises:
        UsageError: The file does not exist, and its name resembles "collect".
    """
    if isinstance(source, CalibrationArtifact):
        return source
    if source == COLLECT:
        return None
    near = did_you_mean(source, [COLLECT]) if isinstance(source, str) else ""
    if near and not Path(source).exists():
        raise UsageError(f"no artifact at {source}. {near}Otherwise give the path of an artifact.")
    return CalibrationArtifact.load(source)


def _routes(source: ArtifactLike | RouterArtifact | None, key: Key | None) -> Mapping[str, ArtifactLike | None]:
    """The judges of answers for each group of conversations; without a router, those of all others."""
    if isinstance(source, str | Path) and source != COLLECT and Path(source).exists():
        loaded = load_artifact(source)
        if not isinstance(loaded, CascadeArtifact):  # `load` refuses it, and says why
            source = loaded
    if not isinstance(source, RouterArtifact):
        if key is not None:
            raise UsageError("key= names the group of a router's artifact (`calibrate fit --by group`). Leave it out.")
        return {ALL_OTHERS: source}
    if key is None:
        raise UsageError(
            "this artifact has a threshold for each group of questions. Give key=, a function of the messages that "
            f"names the group of a conversation: {', '.join(map(repr, source.artifacts))}."
        )
    check_key(key)
    return source.artifacts


def _common_plan(artifacts: Sequence[CalibrationArtifact]) -> SamplingPlan:
    """The plan that draws what all of these artifacts need, once.

    They may differ in the parts of a sample set that they read (log-probabilities, follow-ups, whether samples at
    all), not in how the set is drawn.
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
        completed = artifact.plan.model_copy(update={**parts, "n": artifact.plan.n or n})
        differ = [name for name in SamplingPlan.model_fields if getattr(completed, name) != getattr(merged, name)]
        if artifact.prompt != first.prompt:
            differ.append(f"prompt ({artifact.prompt!r}, not {first.prompt!r})")
        if differ:
            raise ArtifactMismatchError(
                f"these artifacts cannot judge one agent: artifact {artifact.digest[:12]} was collected with another "
                f"{', '.join(differ)} than {first.digest[:12]}. Fit all of them on records of one collection."
            )
    return merged


# -- Without an artifact -----------------------------------------------------------------------------------------------


def is_collecting(artifact: CalibrationArtifact) -> bool:
    """True if an artifact only stands for one."""
    outcome = artifact.outcome
    return isinstance(outcome, Infeasible) and outcome.reason is InfeasibleReason.NOT_CALIBRATED


def _collecting(
    model: ModelIdentity, plan: SamplingPlan, prompt: PromptWrapping, estimator: EstimatorSpec
) -> CalibrationArtifact:
    """A stand-in for an artifact: it accepts nothing."""
    nothing = Diagnostics(base_error=0.0, auroc=None, max_acceptance=0.0)
    reason = InfeasibleReason.NOT_CALIBRATED
    outcome = Infeasible(reason=reason, rule="none", alpha=0.0, delta=None, n=0, diagnostics=nothing)
    return uncalibrated(model, plan, prompt, estimator, outcome)


def _stand_ins(
    options: GateOptions, model: ModelIdentity, system: str | None, bindings: Bindings
) -> tuple[CalibrationArtifact, CalibrationArtifact]:
    """Stand-ins for the artifacts of calls and of answers, in a request of an agent that has none."""
    of_user = judges_of(options["using"]).get("tool_call")
    judge = of_user if isinstance(of_user, ToolCallJudge) else ToolCallJudge()
    calls = make_estimator("primary_disagreement", judge=judge)
    answers = make_estimator("primary_disagreement")
    plan = options["plan"] or plan_for([calls])
    if plan.bindings is None:
        plan = plan.model_copy(update={"bindings": bindings})
    judge.check(plan.bindings)
    prompt = PromptWrapping(system=system)
    return _collecting(model, plan, prompt, calls.spec), _collecting(model, plan, prompt, answers.spec)


# -- The set -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArtifactSet:
    """The artifacts of one agent.

    Attributes:
        answer: Judges final answers; None lets them pass.
        tools: Judges messages that call these tools; "*" stands for every other tool.
        options: The options of the guard.
        stand_in: Whether the agent has no artifact, so that each request brings its own system prompt and tools.
        plan: Draws what all of them need.
    """

    answer: CalibrationArtifact | None
    tools: Mapping[str, CalibrationArtifact]
    options: GateOptions
    stand_in: bool
    plan: SamplingPlan = field(init=False)

    @classmethod
    def by_route(
        cls, source: ArtifactLike | RouterArtifact | None, options: GateOptions, *, calls_too: bool
    ) -> dict[str, ArtifactSet]:
        """The artifacts for each group of conversations, as a caller gives them; without a router one set for all.

        Raises:
            UsageError: A router without a key function, or a key function without a router; the options name no tools,
                or a tool as gated and exempt at once; nothing is gated; or something collects where no person decides.
            ValueError: The key is not a function of messages.
        """
        tools = options["tools"]
        sets = {}
        for route, artifact in _routes(source, options["key"]).items():
            gated = {ANY_TOOL: artifact} if calls_too and tools is None and artifact is not None else tools
            sets[route] = cls._of(artifact, gated, options)
        return sets

    @classmethod
    def _of(
        cls, artifact: ArtifactLike | None, tools: Mapping[str, ArtifactLike] | None, options: GateOptions
    ) -> ArtifactSet:
        exempt = options["exempt"]
        tools = {} if tools is None else tools
        if not isinstance(tools, Mapping) or not all(isinstance(name, str) for name in tools):
            raise UsageError(
                f'tools= must be a mapping by tool name, such as {{"refund": "collect"}}, got {tools!r:.200}.'
            )
        if isinstance(exempt, str) or not isinstance(exempt, Collection) or not all(isinstance(n, str) for n in exempt):
            raise UsageError(f'exempt= must be a list of tool names, such as ["balance"], got {exempt!r:.200}.')
        both = sorted(set(tools) & set(exempt))
        if both:
            raise UsageError(f"{both} are gated (tools=) and exempt at once. Name each tool in one of them.")
        if artifact is None and not tools:
            raise UsageError("nothing would be gated: pass artifact=... for answers, tools={name: artifact}, or both")
        answer = None if artifact is None else load(artifact)
        by_tool = {name: load(source) for name, source in tools.items()}
        loaded = [*([] if artifact is None else [answer]), *by_tool.values()]
        known = [artifact for artifact in loaded if artifact is not None]
        if len(known) < len(loaded) and options["on_abstain"] != REVIEW:
            raise UsageError(
                '"collect" in place of an artifact holds every call or answer for a person, so it needs '
                'on_abstain="review". Collect with it, or give an artifact.'
            )
        if known:
            # Stand-ins draw like the artifacts, so that one draw serves all.
            first = known[0]
            calls = answers = _collecting(first.model, first.plan, first.prompt, first.estimator)
        else:
            calls, answers = _stand_ins(options, _NO_MODEL, None, Bindings())
        judging = {name: loaded_for_tool or calls for name, loaded_for_tool in by_tool.items()}
        return cls(None if artifact is None else answer or answers, judging, options, stand_in=not known)

    def __post_init__(self) -> None:
        object.__setattr__(self, "plan", _common_plan(self.artifacts))

    @property
    def exempt(self) -> Collection[str]:
        """Tools whose calls pass."""
        return self.options["exempt"]

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
        if not self.stand_in:
            return self
        calls, answers = _stand_ins(self.options, model, system, bindings)
        return replace(self, answer=None if self.answer is None else answers, tools=dict.fromkeys(self.tools, calls))

    @property
    def drawn_plan(self) -> SamplingPlan:
        """The plan, reduced to the primary answer if no artifact can accept anything."""
        hopeless = all(artifact.threshold is None and not is_collecting(artifact) for artifact in self.artifacts)
        return self.plan.primary_only() if hopeless else self.plan

    @property
    def passes_something(self) -> bool:
        """True if some messages need no samples."""
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

    def check_nothing_lacks(self, requested: Bindings) -> None:
        """Refuse a request that lacks calibrated tools, choice or format: the samples would carry them nevertheless.

        `guardrail.bindings.check_bindings` refuses a request with more than the artifacts have.
        """
        known = self.plan.bindings or Bindings()
        lacking = sorted(set(known.tool_names) - set(requested.tool_names))
        if lacking:
            fault = f"with the tools {known.tool_names}, but this agent does not offer {lacking}"
            way_out = "Give it the same tools, or calibrate again with its own."
        elif known.tool_choice is not None and requested.tool_choice is None:
            fault = f"with tool_choice {known.tool_choice!r}, which this request leaves to the model"
            way_out = "Calibrate without a tool_choice: frameworks drop it after a tool has run."
        elif known.response_format is not None and requested.response_format is None:
            fault = "for structured answers, but this agent asks for text"
            way_out = "Give it the calibrated output type, or calibrate again without."
        else:
            return
        raise ArtifactMismatchError(f"the artifact was calibrated {fault}.", way_out)

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
