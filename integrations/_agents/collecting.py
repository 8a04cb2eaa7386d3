"""Tools without an artifact: every call waits for a person, and its samples are recorded.

A call that cannot be measured can never be a label, so nobody is asked about it: the agent abstains, and the log names
the cause, at the first such call.
`calibrate learn` makes labels out of people's decisions, and an artifact of both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from langchain_core.messages import BaseMessage, SystemMessage, convert_to_openai_messages

from guardrail.artifact import CalibrationArtifact, uncalibrated
from guardrail.errors import UsageError
from guardrail.guard.assess import Assessment
from guardrail.guard.record_lines import RecordLines
from guardrail.judges import ToolCallJudge
from guardrail.outcome import Diagnostics, Infeasible, InfeasibleReason
from guardrail.prompting import PromptWrapping, conversation_text, turns_of
from guardrail.sampling.effects import Steps, computation
from guardrail.specs import EstimatorSpec, ModelIdentity
from guardrail.types import Bindings, SamplingPlan, Unmeasured
from guardrail.uncertainty import make_estimator
from guardrail.uncertainty.plan import plan_for
from guardrail.verdict import WAY_OUT, Reason, Verdict

__all__ = [
    "COLLECT",
    "RECORDS",
    "Gated",
    "StepRecords",
    "ask_which_arguments_matter",
    "collecting_artifact",
    "is_collecting",
    "refuse_unreviewed",
    "with_collected",
]

log = logging.getLogger("guardrail")
COLLECT: Literal["collect"] = "collect"
"""Stands for a tool's artifact: a person decides about each call, and its samples are recorded."""
RECORDS = Path("agent.records.jsonl")
"""Where samples are recorded by default."""
Gated: TypeAlias = CalibrationArtifact | Literal["collect"]
"""The gate of a tool."""


def refuse_unreviewed(tools: Mapping[str, Any], *, reviewed: bool) -> None:
    """Refuse to collect where no person decides.

    Raises:
        UsageError: A tool collects, and held-back calls go another way.
    """
    if not reviewed and COLLECT in [gate for gate in tools.values() if isinstance(gate, str)]:
        raise UsageError(
            'tools={NAME: "collect"} holds every call for a person, so it needs on_abstain="review". '
            "Collect with these, or give the tool an artifact."
        )


def with_collected(
    answer: CalibrationArtifact | None,
    tools: Mapping[str, Gated],
    make: Callable[[], CalibrationArtifact],
) -> dict[str, CalibrationArtifact]:
    """Artifacts by tool; collecting ones draw like the other artifacts of the agent, so that one draw serves all.

    Args:
        answer: The artifact for answers.
        tools: The gate of each tool.
        make: Makes a collecting artifact, where the agent has no artifact at all.
    """
    calibrated = [gate for gate in (answer, *tools.values()) if isinstance(gate, CalibrationArtifact)]
    if len(calibrated) == len(tools) + (answer is not None):
        return {name: gate for name, gate in tools.items() if isinstance(gate, CalibrationArtifact)}
    first = calibrated[0] if calibrated else None
    own = make() if first is None else _uncalibrated(first.model, first.plan, first.prompt, first.estimator)
    return {name: gate if isinstance(gate, CalibrationArtifact) else own for name, gate in tools.items()}


def collecting_artifact(
    model: ModelIdentity, *, plan: SamplingPlan | None, system: str | None, bindings: Bindings, judge: object = None
) -> CalibrationArtifact:
    """Stand-in for an artifact in an agent that has none: it accepts nothing.

    Args:
        model: The agent's model.
        plan: How samples are drawn; None for ten of them at temperature 0.7. A plan without tools gets the agent's.
        system: The agent's system prompt.
        bindings: The agent's tools.
        judge: Says which calls a person sees as one, if it is a `ToolCallJudge`; default: those that are equal.

    Raises:
        UsageError: The judge compares arguments that the tools do not have.
    """
    chosen = judge if isinstance(judge, ToolCallJudge) else ToolCallJudge()
    estimator = make_estimator("primary_disagreement", judge=chosen)
    plan = plan or plan_for([estimator])
    if plan.bindings is None:
        plan = plan.model_copy(update={"bindings": bindings})
    chosen.check(plan.bindings)
    return _uncalibrated(model, plan, PromptWrapping(system=system), estimator.spec)


def is_collecting(artifact: CalibrationArtifact) -> bool:
    """Whether an artifact was made by `collecting_artifact` or `with_collected`."""
    outcome = artifact.outcome
    return isinstance(outcome, Infeasible) and outcome.reason is InfeasibleReason.NOT_CALIBRATED


def _uncalibrated(
    model: ModelIdentity, plan: SamplingPlan, prompt: PromptWrapping, estimator: EstimatorSpec
) -> CalibrationArtifact:
    figures = Diagnostics(base_error=0.0, auroc=None, max_acceptance=0.0)
    outcome = Infeasible(
        reason=InfeasibleReason.NOT_CALIBRATED,
        detail="this tool has no artifact yet, so a person decides about every call.",
        rule="none",
        alpha=0.0,
        delta=None,
        n=0,
        diagnostics=figures,
    )
    return uncalibrated(model, plan, prompt, estimator, outcome)


_WHICH_MATTER = (
    "Which arguments matter? Calls are the same only if all arguments are equal, and these are free text (%s): samples "
    "that differ in a note count as different calls. Choose the arguments that matter before you look at decisions, "
    "and name them when decisions become labels: calibrate learn ... --tool TOOL --compare ARGUMENT,ARGUMENT"
)


_IDENTIFIER = re.compile(r"(?:^|[_-])(?:id|uuid|key|code|number|iban)$|[a-z]I[dD]$", re.ASCII)
"""Names of arguments that are written in one way, though their schema says "string" only: id, order_id, orderId."""


def ask_which_arguments_matter(
    bindings: Bindings | None, tools: Mapping[str, CalibrationArtifact], exempt: Collection[str]
) -> None:
    """Log a question about the free-text arguments of the tools that collect, before people decide about calls."""
    free = []
    for tool in () if bindings is None else bindings.tools:
        function = tool["function"]
        name = function["name"]
        gate = None if name in exempt else tools.get(name, tools.get("*"))
        if gate is not None and is_collecting(gate) and not _compares_some(gate, name):
            properties = function.get("parameters", {}).get("properties", {})
            # Named values, a format, a pattern or an id leave one way to write the same thing; other texts have many.
            texts = [
                argument
                for argument, schema in properties.items()
                if schema.get("type") == "string"
                and not schema.keys() & {"enum", "const", "format", "pattern"}
                and not _IDENTIFIER.search(argument)
            ]
            free += [f"{name}: {', '.join(texts)}"] if texts else []
    if free:
        log.warning(_WHICH_MATTER, "; ".join(free))


def _compares_some(gate: CalibrationArtifact, tool: str) -> bool:
    """Whether somebody chose the arguments of a tool that are compared."""
    chosen = None if gate.estimator.judge is None else gate.estimator.judge.params.get("arguments")
    return chosen is not None and (not isinstance(chosen, Mapping) or not chosen.keys().isdisjoint((tool, "*")))


_DOCTOR = "`guardrail doctor --model MODEL` shows what the endpoint honours."
_WAYS_OUT = {**WAY_OUT, Unmeasured.CUT_OFF: "Give plan= a larger max_tokens."}


class StepRecords:
    """Records the samples drawn for calls of tools without an artifact.

    Args:
        path: The record file.
        artifacts: The artifacts of the agent, one of which collects.
        plan: How samples are drawn.

    Raises:
        UsageError: The file holds records of another model, plan (tools included) or prompt.
    """

    def __init__(self, path: Path, artifacts: Sequence[CalibrationArtifact], plan: SamplingPlan) -> None:
        self._collecting = {artifact.digest for artifact in artifacts if is_collecting(artifact)}
        self._logged: set[Unmeasured | None] = set()
        first = artifacts[0]
        self._lines = RecordLines(path, name="agent", model=first.model, plan=plan, prompt=first.prompt)

    def noted(self, assessment: Assessment, messages: Sequence[BaseMessage], group: str | None) -> Steps[Assessment]:
        """Record the draw if a tool of the message collects; the verdicts of the result name the record.

        Args:
            assessment: The verdicts and the draw.
            messages: The conversation.
            group: Names the conversation; None to tell conversations by their first message.
        """
        judged = [verdict for verdict in assessment.by_name.values() if verdict.artifact in self._collecting]
        if not judged:
            return assessment
        unmeasured = next((verdict for verdict in judged if not verdict.uncertainty.measured), None)
        if unmeasured is not None:
            return replace(assessment, verdict=self._without_label(unmeasured))
        key = f"step-{uuid4().hex[:12]}"
        turns = [message for message in messages if not isinstance(message, SystemMessage)]
        plain = convert_to_openai_messages(turns)
        first = conversation_text(turns[:1])

        def write() -> None:
            more = {"turns": turns_of(messages), "messages": plain, "group": first if group is None else group}
            self._lines.append(key, conversation_text(turns), assessment.drawn, more)

        yield computation(write, slow=True)

        def named(verdict: Verdict) -> Verdict:
            return verdict.model_copy(update={"record": key})

        return replace(
            assessment,
            verdict=None if assessment.verdict is None else named(assessment.verdict),
            by_name={name: named(verdict) for name, verdict in assessment.by_name.items()},
        )

    def is_label(self, verdict: Verdict | None) -> bool:
        """Whether a decision about a message could become a label, or is about other tools than those that collect."""
        return verdict is None or verdict.reason is not Reason.UNMEASURED or verdict.artifact not in self._collecting

    def _without_label(self, verdict: Verdict) -> Verdict:
        """The verdict on a message that cannot be measured, after a word in the log: once for each cause."""
        reason = verdict.uncertainty.reason
        way_out = _WAYS_OUT.get(reason, _DOCTOR) if reason is not None else _DOCTOR
        detail = (
            f"Held back, and nobody is asked: it could not be measured ({reason}: {verdict.uncertainty.detail}), so no "
            f"decision about it could become a label. {way_out}"
        )
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning("guardrail: collecting is interrupted. %s", detail)
        return verdict.model_copy(update={"reason": Reason.UNMEASURED, "detail": detail})
