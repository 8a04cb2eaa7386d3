"""People's decisions about an agent's messages as labelled steps: from the review queue, or from LangGraph checkpoints.

A message of the agent is one step. Approved: its calls are the reference. Edited: the edit is. Rejected: its calls are
wrong, and nobody said what is right. A message with several calls is right only if all of them are. An answer is right
if it was approved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, SystemMessage, convert_to_messages, convert_to_openai_messages

from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json
from guardrail.specs import CorrectnessSpec
from guardrail.types import ToolCall, canonical_calls
from guardrail.uncertainty import Estimator

from ..agent_steps import ANSWER, step_of
from ..correctness import CorrectnessRule, label_records, labelled_by
from ..data.questions import Question
from ..data.records import GIVEN, Record, RecordFile, RecordHeader, write_records
from ..data.table import table_of
from ..pipeline import part_header
from ..scoring.compute import score_records
from .pool import Ended, Missing, Respond, all_items, in_place, settled

if TYPE_CHECKING:
    from guardrail.review import Item, ReviewStore

__all__ = [
    "ReviewedStep",
    "labelled_answers",
    "labelled_records",
    "labelled_steps",
    "reviews_of_checkpoints",
    "reviews_of_store",
    "undecided_ids",
    "write_part",
]

NOBODY = "nobody decided"
"""Label detail of a step without a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedStep(Ended):
    """People's decisions about one message of an agent.

    Attributes:
        id: Id of its record, otherwise of its interrupt.
        name: Words by which a person finds it: the item of the queue and its holder, or the thread.
        messages: The conversation before it, without the system message, in OpenAI's form.
        group: The conversation it is part of.
        proposed: The calls of the message.
        gated: Names of the tools whose calls were decided about.
        reference: The right calls, as canonical JSON; None if nobody said.
        recorded: Whether ``id`` is that of a record.
        arrived: When it was asked; sorts as it came.
        in_thread: Whether it comes from LangChain or LangGraph, which have threads; other frameworks have runs.
    """

    id: str
    name: str
    messages: tuple[dict[str, Any], ...]
    group: str | None
    proposed: tuple[ToolCall, ...]
    gated: frozenset[str]
    reference: str | None
    recorded: bool
    arrived: str | float
    in_thread: bool = True


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision about some calls of a message, and what an edit put in their place."""

    action: str | None
    ours: tuple[ToolCall, ...]
    theirs: tuple[ToolCall, ...] = ()


def reviews_of_store(
    store: ReviewStore, records: Mapping[str, Record], *, respond: Respond = "wrong"
) -> tuple[list[ReviewedStep], int]:
    """Read people's decisions in a review queue about calls and answers whose samples were recorded.

    Args:
        store: The queue.
        records: Records by id, with the conversations.
        respond: Meaning of "respond" for the calls.

    Returns:
        The steps in order of arrival, and the number of items that belong to none of the records.
    """
    items_of: defaultdict[str, list[Item]] = defaultdict(list)
    others = 0
    for item in all_items(store):
        name = str((item.content.verdict or {}).get("record"))
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
                respond,
                id=name,
                name=" and ".join(map(_named, items)),
                messages=record.messages or (),
                group=record.group,
                recorded=True,
                open=any(item.state in ("pending", "claimed") for item in items),
                arrived=min(item.created for item in items),
                in_thread=all("call_id" not in item.content.metadata for item in items),
            )
        )
    return sorted(steps, key=lambda step: step.arrived), others


def reviews_of_checkpoints(saver: Any, *, respond: Respond = "wrong") -> list[ReviewedStep]:
    """Read people's decisions in interrupts of `GuardrailMiddleware` and ``HumanInTheLoopMiddleware``.

    Args:
        saver: A checkpointer with the threads' whole history.
        respond: Meaning of "respond" for the calls.

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
        step = _step_of(checkpoint, thread[0], respond, open_=is_newest)
        if step is None:
            continue
        key = canonical_json([thread, step.messages])
        later = steps.get(key)
        if later is None:
            steps[key] = step
        elif step.recorded and not later.recorded:
            steps[key] = replace(later, id=step.id, recorded=True)
    return sorted(steps.values(), key=lambda step: step.arrived)


def labelled_steps(items: Sequence[ReviewedStep], missing: Missing = "wait") -> list[Question]:
    """Make steps about calls with the right calls, or with the rejected ones.

    Args:
        items: In order of arrival.
        missing: How steps without a decision are used. Where they count as wrong, their calls count as rejected.
    """
    return [
        step_of(
            convert_to_messages(list(item.messages)),
            id=item.id,
            references=() if item.reference is None else (item.reference,),
            rejected=(canonical_calls(item.proposed),) if item.reference is None else (),
            group=item.group,
        )
        for item in settled(items, missing)
    ]


def undecided_ids(items: Iterable[ReviewedStep]) -> set[str]:
    """The ids of the steps that nobody decided, whether or not somebody still may."""
    return {item.id for item in items if item.correct is None and item.action is None}


def labelled_records(
    file: RecordFile,
    steps: Sequence[Question],
    rule: CorrectnessRule,
    estimator: Estimator,
    undecided: Collection[str] = (),
) -> RecordFile:
    """The records of some steps about calls, scored, and labelled by their references.

    Args:
        file: Their samples.
        steps: The steps.
        rule: Compares calls with references.
        estimator: The score.
        undecided: Ids of steps that nobody decided: their records are undecided, which counts as wrong.

    Raises:
        UsageError: None of the steps has a record.
    """
    labels = {step.id: step.model_dump(include={"references", "rejected", "group"}) for step in steps}
    labelled = label_records(_with_labels(file, labels), rule)
    unsure = {"correct": None, "label_detail": NOBODY}
    labelled = [record.model_copy(update=unsure) if record.id in undecided else record for record in labelled]
    return _scored(file, labelled_by(file.header, rule), labelled, estimator)


def labelled_answers(
    file: RecordFile, items: Sequence[ReviewedStep], estimator: Estimator, missing: Missing = "wait"
) -> RecordFile:
    """The records of some steps about answers, scored, and labelled by people's decisions.

    Raises:
        UsageError: None of the steps has a record.
    """
    undecided = undecided_ids(items)
    labels = {
        item.id: {"correct": item.correct, "group": item.group}
        if item.id not in undecided
        else {"correct": None, "group": item.group, "label_detail": NOBODY}
        for item in settled(items, missing)
    }
    spec = CorrectnessSpec(name=GIVEN, version=2, params={"source": "reviews", "missing": missing})
    header = file.header.model_copy(update={"correctness": spec})
    return _scored(file, header, _with_labels(file, labels), estimator)


def _with_labels(file: RecordFile, labels: Mapping[str, Mapping[str, Any]]) -> list[Record]:
    drawn = {record.id: record for record in file.records if record.id in labels}
    records = [drawn[name].model_copy(update=dict(label)) for name, label in labels.items() if name in drawn]
    if not records:
        raise UsageError(f"{file.path} has no record of these steps. Name the file that the agent's records= wrote.")
    return records


def _scored(file: RecordFile, header: RecordHeader, records: Sequence[Record], estimator: Estimator) -> RecordFile:
    return score_records(replace(file, header=header, records=table_of(records)), [estimator])


def write_part(file: RecordFile, tool: str, path: Path) -> None:
    """Write the records of the messages that call a tool, or are answers.

    Raises:
        UsageError: The message does not exist.
    """
    part = [record for record in file.records if tool in _called(record)]
    if not part:
        what = "is an answer" if tool == ANSWER else f"calls {tool!r}"
        raise UsageError(f"no message of {file.path} {what}. Name the file that the agent's records= wrote.")
    write_records(path, part_header(file.header, part), part)


def _called(record: Record) -> set[str]:
    primary = record.drawn.primary if record.drawn is not None else None
    return set() if primary is None else {call.name for call in primary.tool_calls} or {ANSWER}


def _reviewed(
    proposed: Sequence[ToolCall], decided: Sequence[_Decided], respond: Respond, *, open: bool, **known: Any
) -> ReviewedStep:
    """Combine the decisions about a message; a decision about none of its calls is about an answer."""
    actions = [decision.action for decision in decided]
    gated = frozenset(call.name for decision in decided for call in decision.ours) or frozenset({ANSWER})
    action: str | None = "approve"
    for kind in ("edit", "respond", None, "reject"):  # the last of these that was taken
        action = kind if kind in actions else action
    correct: bool | None = None
    reference: str | None = None
    if action == "reject" or (action == "respond" and respond == "wrong"):
        correct = False
    elif action in ("approve", "edit") and gated == {ANSWER}:
        correct = action == "approve"
    elif action in ("approve", "edit"):
        calls = _edited(proposed, decided)
        if calls is None:
            action = None
        else:
            reference = canonical_calls(calls)
            correct = reference == canonical_calls(proposed)
    return ReviewedStep(
        proposed=tuple(proposed),
        gated=gated,
        reference=reference,
        correct=correct,
        action=action,
        open=open and correct is None and action is None,
        **known,
    )


def _edited(proposed: Sequence[ToolCall], decided: Sequence[_Decided]) -> list[ToolCall] | None:
    """The calls of a message after a person replaced some; None if the message lacks the calls to replace."""
    calls: list[ToolCall] = list(proposed)
    free = list(range(len(calls)))
    for decision in decided:
        for ours, theirs in zip(decision.ours, decision.theirs or decision.ours, strict=True):
            place = next((place for place in free if calls[place] == ours), None)
            if place is None:
                return None
            free.remove(place)
            calls[place] = theirs
    return calls


def _named(item: Item) -> str:
    if item.state != "claimed" or item.lease_until is None:
        return f"item {item.id}"
    until = datetime.fromtimestamp(item.lease_until, tz=UTC)
    return f"item {item.id}, which {item.holder} holds until {until:%Y-%m-%d %H:%M} UTC"


def _decided(item: Item) -> _Decided:
    assert item.content.candidate is not None, "others are left out"

    def gated(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        return tuple(call for place, call in enumerate(calls) if place not in item.content.fixed)

    ours, decision = gated(item.content.candidate.tool_calls), item.decision
    if decision is None:
        return _Decided(None, ours)
    edited = () if decision.candidate is None else gated(decision.candidate.tool_calls)
    if decision.action == "edit" and ours and len(edited) != len(ours):
        return _Decided("reject", ours)  # a text, or more calls, in place of these: they were wrong
    return _Decided(in_place(decision.action), ours, edited)


def _step_of(checkpoint: Any, thread: str, respond: Respond, *, open_: bool) -> ReviewedStep | None:
    """The step of a checkpoint: its interrupts about the last message and their answers; None without interrupts."""
    requests = list(_asked(checkpoint.pending_writes or ()))
    messages = list(checkpoint.checkpoint["channel_values"].get("messages") or ())
    last = next((place for place in reversed(range(len(messages))) if isinstance(messages[place], AIMessage)), None)
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
        respond,
        id=record or requests[0][0],
        name=f"in the thread {thread!r}",
        messages=tuple(plain),
        group=thread,
        recorded=record is not None,
        open=open_,
        arrived=str(checkpoint.checkpoint["ts"]),
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
    for place, action in enumerate(actions):
        ours = (ToolCall(name=action["name"], arguments=action["args"]),)
        decision = decisions[place] if place < len(decisions) else None
        kind = None if decision is None or decision["type"] == "lapse" else in_place(decision["type"])
        edited = decision["edited_action"] if decision is not None and kind == "edit" else None
        theirs = () if edited is None else (ToolCall(name=edited["name"], arguments=edited["args"]),)
        yield _Decided(kind, ours, theirs)
