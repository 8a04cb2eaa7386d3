"""Calibrating an agent's decisions: recorded conversations, cut before a decision, with what the right one was.

A step is the conversation up to a message of the agent, and the reference: the call (or answer) that was right there.
The model is asked for that one message again, with the agent's system prompt and tools, as it will be at run time:

    steps = read_questions("steps.jsonl")    # or steps_of(conversation, group=...)
    plan = plan_for([make("primary_disagreement", judge=ToolCallJudge(numbers=True))], bindings=bindings_for(tools))
    prompt = PromptWrapping(system="You are the bank's assistant.")
    collect_records(steps, model, plan, "steps.records.jsonl", prompt=prompt)
    parts = split_by_action("steps.records.jsonl", exempt=["balance"])   # {"transfer": ..., "answer": ...}

    artifact = fit_action(parts["transfer"], make("primary_disagreement", judge=ToolCallJudge(numbers=True)), alpha=0.1)

One artifact for each dangerous tool, one for answers; the same step by step: score, label (rule ``tool_call``), fit.

Steps of one conversation are not independent: give each the conversation as its ``group`` and fit with clusters.
What it assumes: the recorded conversations up to a step are like those at run time. An agent that acts differently than
the recorded one leads its users elsewhere; record the guarded agent's own conversations and calibrate again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    SystemMessage,
    convert_to_openai_messages,
)

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.judges import canonical_calls
from guardrail.types import ToolCall
from guardrail.uncertainty import Estimator

from .correctness import CorrectnessRule, ToolCalls, label_file
from .data.questions import Question, asked_text, content_id
from .data.records import Record, read_records, write_records
from .data.split import Groups
from .ledger import Ledger, counted
from .pipeline import fit_artifact, part_header
from .scoring.compute import score_records
from .scoring.names import estimator_key

__all__ = ["ANSWER", "fit_action", "split_by_action", "steps_of"]

ANSWER = "answer"
"""Name of the part in which the agent answers instead of calling a tool."""


def steps_of(conversation: Sequence[BaseMessage], *, group: str) -> list[Question]:
    """The steps of a recorded conversation in which the agent did everything right: one a message of the agent.

    A system message is left out: it is given when collecting.
    """
    messages = [message for message in conversation if not isinstance(message, SystemMessage)]
    steps = []
    for index, message in enumerate(messages):
        if not isinstance(message, AIMessage) or index == 0:
            continue
        calls = [ToolCall(name=call["name"], arguments=call["args"]) for call in message.tool_calls]
        reference = canonical_calls(calls) if calls else str(message.text)
        before: Any = convert_to_openai_messages(messages[:index])
        text = asked_text(before)
        name = content_id(text, None, messages=before)  # as in a question file
        steps.append(Question(id=name, question=text, references=(reference,), group=group, messages=tuple(before)))
    return steps


def split_by_action(path: str | Path, *, exempt: Collection[str] = ()) -> dict[str, Path]:
    """Cut a record file by what the model proposed: one file for each tool it called, one for answers.

    What a gate will see is decided by the proposed message, so that is what the parts are made by, never by the
    reference. A message that calls several tools is in the part of each. Messages that call exempt tools only, and
    steps where the model failed, are in none.

    Args:
        path: A record file; the parts stand next to it.
        exempt: Tools that will not be gated.

    Returns:
        Files by tool name, and "answer".

    Raises:
        UsageError: A tool that is not exempt is named "answer".
    """
    path = Path(path)
    file = read_records(path)
    parts: dict[str, list[Record]] = {}
    for record in file.records:
        primary = record.drawn.primary if record.drawn is not None else None
        if primary is None:
            continue
        names = {call.name for call in primary.tool_calls} - set(exempt)
        if ANSWER in names:
            raise UsageError(
                f"record {record.id} calls a tool named {ANSWER!r}, which is the part of the final answers. Give it "
                "another name and collect again, or exempt it."
            )
        for name in names if primary.tool_calls else {ANSWER}:
            parts.setdefault(name, []).append(record)
    paths = {}
    for name, records in sorted(parts.items()):
        paths[name] = path.with_name(f"{path.name.split('.')[0]}.{name}.jsonl")
        write_records(paths[name], part_header(file.header, records), records)
    return paths


def fit_action(
    path: str | Path,
    estimator: Estimator,
    *,
    alpha: float,
    correctness: CorrectnessRule | None = None,
    rule: str = "certified",
    groups: Groups = "cluster",
) -> CalibrationArtifact:
    """Score, label and fit one part, in one go; scores and labels are written into the file.

    Fits on the labels of the part are counted in the ledger beside it (`calibrate.ledger`).

    Args:
        path: A part that `split_by_action` made.
        estimator: What is computed; its judge says when two proposals are the same.
        alpha: Target error rate among the proposals that go out.
        correctness: When a proposal is right; default: `ToolCalls` without options.
        rule: Threshold rule, with its settings or without.
        groups: Whether the steps' groups are conversations (one step of each is used), or "category" to treat steps as
            independent.
    """
    file = label_file(score_records(read_records(path), [estimator]), correctness or ToolCalls())
    write_records(path, file.header, file.records)
    key = estimator_key(estimator)
    artifact = fit_artifact(path, score=key, alpha=alpha, rule=rule, groups=groups)
    return counted(artifact, Ledger([Path(path)]))
