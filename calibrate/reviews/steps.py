"""People's decisions about an agent's messages as labelled steps: from the review queue, or from LangGraph checkpoints.

A message of the agent is one step. Approved: its calls are the reference. Edited: the edit is. Rejected: its calls are
wrong, and nobody said what is right. A message with several calls is right only if all of them are. An answer is right
if it was approved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, SystemMessage, convert_to_openai_messages

from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json
from guardrail.specs import CorrectnessSpec
from guardrail.types import ToolCall, canonical_calls
from guardrail.uncertainty import Estimator

from ..agent_steps import ANSWER
from ..correctness import CorrectnessRule, label_file
from ..data.labels import stricter
from ..data.records import GIVEN, Record, RecordFile
from ..data.table import table_of
from ..pipeline import part_header
from ..scoring.compute import score_records
from .pool import NOBODY, CandidateAction, Reviewed, all_items, candidate_action, name_of

if TYPE_CHECKING:
    from guardrail.review import Item, ReviewStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedStep(Reviewed):
    """People's decisions about one message of an agent; ``messages`` are those before it, without the system message.

    Attributes:
        proposed: The calls of the message.
        gated: Names of the tools whose calls were decided about, or `ANSWER`.
        reference: The right calls, as canonical JSON; None if nobody said.
        recorded: Whether ``id`` is that of a record.
    """

    proposed: tuple[ToolCall, ...]
    gated: frozenset[str]
    reference: str | None
    recorded: bool


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision about some calls of a message, and what an edit put in their place."""

    action: CandidateAction | None
    ours: tuple[ToolCall, ...]
    theirs: tuple[ToolCall, ...] = ()


def reviews_of_store(store: ReviewStore, records: Mapping[str, Record]) -> tuple[list[ReviewedStep], int]:
    """Read people's decisions in a review queue about calls and answers whose samples were recorded.

    Args:
        store: The queue.
        records: Records by id, with the conversations.

    Returns:
        The steps in order of arrival, and the number of items that belong to none of the records.
    """
    items_of: defaultdict[str, list[Item]] = defaultdict(list)
    others = 0
    for item in all_items(store):
        name = "" if item.content.verdict is None else item.content.verdict.record or ""
        decided_about = item.content.kind in ("tool_call", ANSWER) and item.content.candidate is not None
        if decided_about and name in records and records[name].messages is not None:
            items_of[name].append(item)
        else:
            others += 1
    steps = []
    for name, items in items_of.items():
        record = records[name]
        primary = record.drawn.primary if record.drawn is not None else None
        steps.append(
            _reviewed(
                () if primary is None else primary.tool_calls,
                [_decided(item) for item in items],
                id=name,
                name=" and ".join(map(name_of, items)),
                messages=record.messages or (),
                group=record.group,
                recorded=True,
                open=any(item.state in ("pending", "claimed") for item in items),
                arrived=min(item.created for item in items),
            )
        )
    return sorted(steps, key=lambda step: step.arrived), others


def reviews_of_checkpoints(saver: Any) -> list[ReviewedStep]:
    """Read people's decisions in interrupts of `GuardrailMiddleware` and ``HumanInTheLoopMiddleware``.

    Args:
        saver: A checkpointer with the threads' whole history.

    Returns:
        The steps in order of arrival. Of two decisions about one message (both kinds of middleware asked) the later.
    """
    newest: set[tuple[str, str]] = set()
    steps: dict[str, ReviewedStep] = {}
    for checkpoint in saver.list(None):  # the newest checkpoint of a thread comes first
        at = checkpoint.config["configurable"]
        thread = (str(at["thread_id"]), str(at.get("checkpoint_ns", "")))
        is_newest = thread not in newest
        newest.add(thread)
        step = _step_of(checkpoint, thread[0], open_=is_newest)
        if step is None:
            continue
        key = canonical_json([thread, step.messages])
        later = steps.get(key)
        if later is None:
            steps[key] = step
        elif step.recorded and not later.recorded:
            steps[key] = replace(later, id=step.id, recorded=True)
    return sorted(steps.values(), key=lambda step: step.arrived)


def labelled(
    file: RecordFile,
    steps: Sequence[ReviewedStep],
    tool: str,
    estimator: Estimator,
    rule: CorrectnessRule | None = None,
) -> tuple[RecordFile, int]:
    """The records of the messages that call a tool, or are answers, scored, and labelled by people's decisions.

    What was right in one conversation and wrong in an equal one counts as wrong; the second value counts such labels.

    Args:
        file: The samples.
        steps: The decisions that are used; a message without one is undecided, which counts as wrong.
        tool: The tool, or `ANSWER`.
        estimator: The score.
        rule: Compares calls with what people said; None for answers: an approved one is right, any other wrong.

    Raises:
        UsageError: People decided about none of these messages.
    """
    drawn = {record.id: record for record in file.records if tool in _called(record)}
    used = [step for step in steps if step.id in drawn]
    if not used:
        what = "is an answer" if tool == ANSWER else f"calls {tool!r}"
        raise UsageError(
            f"no message of {file.path} that people decided about {what}. Name the file that the agent's records= "
            "wrote."
        )
    records = [drawn[step.id].model_copy(update=_label_fields(step, rule)) for step in used]
    part = replace(file, header=part_header(file.header, records), records=table_of(records))
    if rule is None:
        spec = CorrectnessSpec(name=GIVEN, version=2, params={"source": "reviews"})
        part = replace(part, header=part.header.model_copy(update={"correctness": spec}))
    else:
        part = label_file(part, rule)
    nobody = {"correct": None, "label_detail": NOBODY}
    records = [
        record.model_copy(update=nobody) if step.correct is None else record
        for record, step in zip(part.records, used, strict=True)
    ]
    records, n_both_ways = stricter(records)
    return score_records(replace(part, records=table_of(records)), [estimator]), n_both_ways


def _label_fields(step: ReviewedStep, rule: CorrectnessRule | None) -> dict[str, Any]:
    """The fields of a record that a decision says: its label, or what is right or wrong for a rule to compare with."""
    if rule is None:
        return {"group": step.group, "correct": step.correct}
    references = () if step.reference is None else (step.reference,)
    rejected = (canonical_calls(step.proposed),) if step.reference is None else ()
    return {"group": step.group, "references": references, "rejected": rejected}


def _called(record: Record) -> set[str]:
    primary = record.drawn.primary if record.drawn is not None else None
    return set() if primary is None else {call.name for call in primary.tool_calls} or {ANSWER}


def _reviewed(proposed: Sequence[ToolCall], decided: Sequence[_Decided], *, open: bool, **known: Any) -> ReviewedStep:
    """Combine the decisions about a message; a decision about none of its calls is about an answer."""
    actions = [decision.action for decision in decided]
    gated = frozenset(call.name for decision in decided for call in decision.ours) or frozenset({ANSWER})
    worst_first: tuple[CandidateAction | None, ...] = ("reject", None, "edit", "approve")
    action = next((kind for kind in worst_first if kind in actions), None)
    reference: str | None = None
    if action in ("approve", "edit") and gated != {ANSWER}:
        calls = _edited(proposed, decided)
        if calls is None:
            action = None
        else:
            reference = canonical_calls(calls)
    correct = action == "approve" if reference is None else reference == canonical_calls(proposed)
    return ReviewedStep(
        proposed=tuple(proposed),
        gated=gated,
        reference=reference,
        correct=None if action is None else correct,
        action=action,
        open=open and action is None,
        **known,
    )


def _edited(proposed: Sequence[ToolCall], decided: Sequence[_Decided]) -> list[ToolCall] | None:
    """The calls of a message after a person replaced some; None if the message lacks the calls to replace."""
    calls: list[ToolCall] = list(proposed)
    free = list(range(len(calls)))
    for decision in decided:
        for ours, theirs in zip(decision.ours, decision.theirs or decision.ours, strict=True):
            index = next((index for index in free if calls[index] == ours), None)
            if index is None:
                return None
            free.remove(index)
            calls[index] = theirs
    return calls


def _decided(item: Item) -> _Decided:
    assert item.content.candidate is not None, "others are left out"

    def gated(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        return tuple(call for index, call in enumerate(calls) if index not in item.content.fixed)

    ours = gated(item.content.candidate.tool_calls)
    decision = item.decision
    if decision is None:
        return _Decided(None, ours)
    edited = () if decision.candidate is None else gated(decision.candidate.tool_calls)
    if decision.action == "edit" and ours and len(edited) != len(ours):
        return _Decided("reject", ours)  # a text, or more calls, in place of these: they were wrong
    return _Decided(candidate_action(decision.action), ours, edited)


def _step_of(checkpoint: Any, thread: str, *, open_: bool) -> ReviewedStep | None:
    """The step of a checkpoint: its interrupts about the last message and their answers; None without interrupts."""
    requests = list(_asked(checkpoint.pending_writes or ()))
    messages = list(checkpoint.checkpoint["channel_values"].get("messages") or ())
    last = next((index for index in reversed(range(len(messages))) if isinstance(messages[index], AIMessage)), None)
    if not requests or last is None:
        return None
    first = requests[0][1]
    shown = first["candidate"]["tool_calls"] if "candidate" in first else messages[last].tool_calls
    if "candidate" in first and not messages[last].response_metadata.get("guardrail_held"):
        last = len(messages)  # an application removed the message that stands for the held calls
    before = [message for message in messages[:last] if not isinstance(message, SystemMessage)]
    plain: Any = convert_to_openai_messages(before)
    record = (first.get("verdict") or {}).get("record")
    return _reviewed(
        [ToolCall(name=call["name"], arguments=call["args"]) for call in shown],
        [decided for _, value, answer in requests for decided in _answered(value, answer)],
        id=record or requests[0][0],
        name=f"the message in the thread {thread!r}",
        messages=tuple(plain),
        group=thread,
        recorded=record is not None,
        open=open_,
        arrived=datetime.fromisoformat(checkpoint.checkpoint["ts"]).timestamp(),
    )


def _asked(writes: Sequence[tuple[str, str, Any]]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Interrupts about tool calls: id, value, and the answer (None without one)."""
    answers = {task: value for task, channel, value in writes if channel == "__resume__"}
    for task, channel, value in writes:
        for interrupt in value if channel == "__interrupt__" else ():
            resume = answers.get(task)
            if _is_about_calls(interrupt.value):
                yield (
                    interrupt.id,
                    interrupt.value,
                    resume[0] if isinstance(resume, list) and len(resume) == 1 else None,
                )


def _is_about_calls(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return value.get("type") == "tool_approval" or ("action_requests" in value and value.get("kind") != "answer")


def _answered(value: Mapping[str, Any], answer: Any) -> Iterator[_Decided]:
    """A decision for each call that an interrupt asked about."""
    alone = value.get("type") == "tool_approval"
    actions = [value] if alone else value["action_requests"]
    decisions = [answer] if alone else (answer or {}).get("decisions", ())
    for index, action in enumerate(actions):
        ours = (ToolCall(name=action["name"], arguments=action["args"]),)
        decision = decisions[index] if index < len(decisions) else None
        kind = None if decision is None or decision["type"] == "lapse" else candidate_action(decision["type"])
        edited = decision["edited_action"] if decision is not None and kind == "edit" else None
        theirs = () if edited is None else (ToolCall(name=edited["name"], arguments=edited["args"]),)
        yield _Decided(kind, ours, theirs)
