"""Options of the guard of an agent, in every framework: their names, their defaults, and the objects among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, SkipValidation, TypeAdapter, with_config
from typing_extensions import TypedDict

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import refuse_unknown
from guardrail.guard.abstention import ABSTENTION, OnAbstain
from guardrail.guard.base import Using
from guardrail.sampling.draws import REMEMBERED, Draws
from guardrail.types import Probing, SamplingPlan
from guardrail.uncertainty import Scorer

COLLECT: Literal["collect"] = "collect"
"""Stands for an artifact: a person decides about each call or answer, and its samples are recorded."""
REVIEW: Literal["review"] = "review"
"""``on_abstain``: a person decides about what is held back."""
ArtifactLike: TypeAlias = CalibrationArtifact | str | Path
"""An artifact, its file, or `COLLECT`."""
Key: TypeAlias = Callable[[Any], str | None]
"""A function of a conversation's messages that names its group, or None for "all others"."""


@with_config(extra="forbid", arbitrary_types_allowed=True)
class GateOptions(TypedDict, total=False):
    """Options of an agent's guard beside the artifact for its answers, the same in every framework."""

    tools: SkipValidation[Mapping[str, ArtifactLike] | None]
    """Judges messages that call a tool: an artifact or its file by tool name; "*" is every other tool. "collect" in
    place of an artifact, here or for answers: a person decides about each, and its samples are recorded for
    `calibrate learn`. Not given in a framework other than LangChain: the artifact for answers judges calls, too."""
    exempt: SkipValidation[Sequence[str]]
    """Tools whose calls pass: those that only read."""
    key: Any
    """Of a router's artifact: a function of the conversation's messages that names its group, or None for "all others".
    It chooses the threshold, so it must not take the name from what a client wrote."""
    on_abstain: SkipValidation[OnAbstain | Literal["review"]]
    """"review" (default): a person decides. "message": the agent ends with ``abstain_message``. "raise":
    `AbstainedError`; a retry of the same step gets it again, without another draw, unless nothing could be measured. A
    Runnable (a stronger model) gets the messages and the tools and answers in place. Any other callable gets the
    `Verdict` and returns a text, an AIMessage, or None for the message."""
    records: str | Path
    """Record file for samples of what "collects"; default: ``agent.records.jsonl``."""
    plan: SamplingPlan | None
    """Sampling plan if nothing has an artifact; default: ten samples at temperature 0.7. A plan without tools gets the
    agent's."""
    abstain_message: Any
    """As in `Guardrail`."""
    using: Using
    """As in `Guardrail`, except that several judges are a mapping by name, and several scorers a list: each artifact
    finds its own. If nothing has an artifact, a `ToolCallJudge` says which calls a person is shown as one: those with
    the same arguments that matter, `ToolCallJudge(arguments={"refund": ["order_id", "amount"]})`."""
    probe: Probing
    """As in `Guardrail`."""
    on_verdict: Any
    """As in `Guardrail`."""
    max_concurrency: Annotated[int, Field(ge=1)] | None
    """As in `Guardrail`."""
    remember: Draws | Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """As in `Guardrail`."""


_OPTIONS: TypeAdapter[GateOptions] = TypeAdapter(GateOptions)
_DEFAULTS: GateOptions = {
    "tools": None,
    "exempt": (),
    "key": None,
    "on_abstain": REVIEW,
    "records": "agent.records.jsonl",
    "plan": None,
    "abstain_message": ABSTENTION,
    "using": {},
    "probe": "auto",
    "on_verdict": None,
    "max_concurrency": None,
    "remember": REMEMBERED,
}


def options_of(options: Mapping[str, Any]) -> GateOptions:
    """The options that a caller gave, and the defaults of all others; an unknown one, or a wrong value, is refused."""
    for name in options:
        refuse_unknown(name, _DEFAULTS, "the keywords of an agent's guard", "a setting")
    return {**_DEFAULTS, **_OPTIONS.validate_python(dict(options))}


def judges_of(using: Using) -> dict[str, Any]:
    """The judge objects by name."""
    judge = using.get("judge")
    return dict(judge) if isinstance(judge, Mapping) else {} if judge is None else {judge.spec.name: judge}


def scorers_of(using: Using) -> dict[str, Scorer]:
    """The scorers by the name of their estimator."""
    scorer = using.get("scorer")
    listed = [] if scorer is None else [scorer] if isinstance(scorer, Scorer) else list(scorer)
    return {scorer.follow_up: scorer for scorer in listed}
