"""People's decisions, item by item: whether each candidate is right, and with what probability it was reviewed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json
from guardrail.types import Sample
from guardrail.verdict import Verdict

from ..data.progress import Progress, silent

if TYPE_CHECKING:
    from guardrail.review import Item, ReviewStore

__all__ = [
    "UNDECIDED",
    "Ended",
    "Missing",
    "Respond",
    "ReviewPool",
    "ReviewedItem",
    "Waiting",
    "all_items",
    "read_reviews",
    "settled",
    "until_open",
    "waiting",
]

PAGE = 500
"""Items read at a time."""

Respond = Literal["wrong", "leave-out"]
"""What "respond" (the reviewer wrote another answer) says about the candidate. "wrong" is on the safe side."""
Missing = Literal["wait", "wrong", "leave-out"]
"""How items without a decision are used.

* wait: use what arrived up to the oldest item that is still open; that item counts as wrong. Where wrong answers stay
  open longer, what precedes it ends with a run of right ones, and without it a sample looks better than the questions.
  Expired items count as wrong, too, which is on the safe side: a threshold fitted on too many errors accepts less.
* wrong: use everything; open and expired items count as wrong.
* leave-out: leave both out. Valid only if what was not decided is like what was.
"""
UNDECIDED = "Or use them now: --missing wrong counts open items as wrong, --missing leave-out leaves them out."
"""The ways past open items; see `Missing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The decision about an item, or its lack.

    Attributes:
        correct: Whether the candidate is right, as people decided; None without a decision.
        open: Whether a decision may still come.
        action: The decision.
    """

    correct: bool | None
    open: bool
    action: str | None


_Item = TypeVar("_Item", bound=Ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedItem(Ended):
    """One item of the queue that an artifact in question has judged.

    Attributes:
        key: The item's key; decides about thinning.
        name: The item's id.
        question: The question.
        group: Conversation, user or document, where the item's metadata say so.
        verdict: Verdict of the gate at that time, with the candidate that the reviewer was shown.
        chance: Probability with which it came into the queue: 1 for held back, the audit rate for accepted.
        context: The conversation it was asked in, as far as the item knows it: the same question in another one may
            have another right answer.
        arrived: When it came into the queue, in seconds since 1970 UTC.
    """

    key: str
    name: str
    question: str
    group: str | None
    verdict: Verdict
    chance: float
    context: str = ""
    messages: tuple[dict[str, Any], ...] | None = None
    """The conversation, where there is more of it than the question."""
    arrived: float = 0.0
    items: tuple[bool | None, ...] = ()
    """Whether each item of the verdict is right, for a gate of items; empty without a decision."""

    @property
    def labels(self) -> tuple[bool | None, ...]:
        """The labels that a decision gave: of each item, or of the whole answer. Empty without one."""
        return self.items or (() if self.correct is None else (self.correct,))

    def relabelled(self, labels: tuple[bool | None, ...]) -> ReviewedItem:
        """The item with labels of the same answer from elsewhere."""
        if not self.verdict.by_items:
            return replace(self, correct=labels[0], open=False)
        return replace(self, items=labels, correct=_answer_right(self.verdict, labels), open=False)

    @property
    def audited(self) -> bool:
        """Whether it is an accepted answer."""
        return self.verdict.accepted


@dataclass(frozen=True, slots=True)
class Waiting:
    """Decisions that are not used yet, because an item that arrived before them is still open (see `Missing`).

    Attributes:
        decided: Number of these decisions.
        item: Id of the oldest open item.
        arrived: Time at which that item came into the queue, in seconds since 1970 UTC.
    """

    decided: int
    item: str
    arrived: float

    def describe(self, what: str) -> str:
        """A sentence with the way out.

        Args:
            what: Name of the waiting decisions, e.g. "decided audits".
        """
        since = datetime.fromtimestamp(self.arrived, UTC)
        return (
            f"{self.decided} {what} wait behind item {self.item}, open since {since:%Y-%m-%d %H:%M} UTC: they are used "
            "in order of arrival, because which are decided first may depend on whether they are right. Decide that "
            f"item (/items/{self.item} on the review page, where an administrator can take it back from its holder). "
            f"{UNDECIDED}"
        )


@dataclass(frozen=True, slots=True)
class ReviewPool:
    """The items of a queue about verdicts of some artifacts.

    Attributes:
        items: In order of arrival.
        others: Items of other artifacts, by digest ("none" where an item has no verdict).
        both_ways: Items whose question, conversation and candidate were called right and wrong; all count as wrong.
        partial: Items about answers of which some items were given out, and only the others decided. They are left
            out: items that were held back are a selected sample, and the audits stand for these answers.
    """

    items: tuple[ReviewedItem, ...]
    others: dict[str, int]
    both_ways: int
    partial: int = 0

    def of(self, artifact: CalibrationArtifact) -> ReviewPool:
        """The items that one artifact judged: answers of two gates say nothing about either alone."""
        return ReviewPool(tuple(item for item in self.items if item.verdict.artifact == artifact.digest), {}, 0)


def read_reviews(
    store: ReviewStore,
    artifacts: Sequence[CalibrationArtifact],
    *,
    respond: Respond = "wrong",
    since: float | None = None,
    progress: Progress = silent,
) -> ReviewPool:
    """Read people's decisions about the verdicts of some artifacts.

    approve: the candidate is right. edit and reject: it is wrong. respond: as ``respond`` says. For a gate of items
    this holds of each item; an answer of which every item was decided counts as wrong if any item that was given out
    is wrong.

    Args:
        store: The review store.
        artifacts: The artifact in force, and earlier ones that judged by the same procedure.
        respond: What "respond" (the reviewer wrote another answer) says about the candidate.
        since: Leave out what arrived before, in seconds since 1970 UTC, e.g. from before audits began.
        progress: Reports items read.

    Raises:
        UsageError: Artifacts of different procedures, or an accepted answer in the queue without an audit rate.
    """
    _refuse_different(artifacts)
    digests = {artifact.digest for artifact in artifacts}
    reviewed: list[ReviewedItem] = []
    others: Counter[str] = Counter()
    partial = 0
    stats = store.stats()
    total = stats.pending + stats.claimed + stats.decided + stats.expired
    for done, item in enumerate(all_items(store), start=1):
        progress(done, max(done, total))
        if since is not None and item.created < since:
            continue
        digest = str((item.content.verdict or {}).get("artifact", "none"))
        if digest not in digests:
            others[digest] += 1
            continue
        if _only_held_back(item):
            partial += 1
            continue
        reviewed.append(_reviewed(item, respond))
    items, both_ways = _one_label_each(reviewed)
    return ReviewPool(items, dict(others), both_ways, partial)


def until_open(items: Sequence[_Item]) -> list[_Item]:
    """Items that arrived before the oldest open one. A monitor gets the rest later."""
    first = next((i for i, item in enumerate(items) if item.open), len(items))
    return list(items[:first])


def waiting(items: Sequence[ReviewedItem], missing: Missing = "wait") -> Waiting | None:
    """The decisions that wait for the oldest open item; None if none waits."""
    used = len(until_open(items)) if missing == "wait" else len(items)
    decided = sum(item.correct is not None for item in items[used:])
    return Waiting(decided, items[used].name, items[used].arrived) if decided else None


def settled(items: Sequence[_Item], missing: Missing) -> list[_Item]:
    """Items with a label each, as `Missing` says; empty if the oldest open item is the first."""
    if missing == "leave-out":
        return [item for item in items if item.correct is not None]
    used = items
    if missing == "wait":
        ended = until_open(items)
        used = items[: len(ended) + 1] if ended else []
    return [
        item if item.correct is not None else replace(item, correct=False)
        for item in used
        if item.correct is not None or item.action != "respond"
    ]


def all_items(store: ReviewStore) -> Iterator[Item]:
    """All items in order of arrival, a page at a time."""
    offset = 0
    while page := store.items(limit=PAGE, offset=offset):
        yield from page
        offset += len(page)


def _only_held_back(item: Item) -> bool:
    """Whether people decided the items that were held back of an answer with other items. Its audit stands for it."""
    verdict = item.content.parsed_verdict()
    return item.content.kind != "audit" and verdict is not None and _keeps_some(verdict)


def _keeps_some(verdict: Verdict) -> bool:
    return verdict.by_items and any(item.kept for item in verdict.items)


def _reviewed(item: Item, respond: Respond) -> ReviewedItem:
    from guardrail.review.hooks import AUDIT_RATE

    verdict = _as_shown(item)
    rate = item.content.metadata.get(AUDIT_RATE)
    chosen = verdict.accepted or _keeps_some(verdict)
    if chosen and not (isinstance(rate, int | float) and 0 < rate <= 1):
        raise UsageError(
            f"item {item.id} is an accepted answer without its audit rate (metadata {AUDIT_RATE!r} is {rate!r}), so "
            "the number of answers it stands for is unknown. Fill the queue with guardrail.review.audit_sample."
        )
    action = None if item.decision is None else in_place(item.decision.action)
    group, *threads = (item.content.metadata.get(name) for name in ("group", "thread_id", "conversation"))
    correct, items = None, tuple[bool | None, ...]()
    if action is not None and (action != "respond" or respond == "wrong"):
        correct = action == "approve"
    if correct is not None and verdict.by_items:
        items = _item_labels(item, verdict)
        correct = _answer_right(verdict, items)
    return ReviewedItem(
        key=item.key,
        name=item.id,
        question=item.content.question,
        group=None if group is None else str(group),
        verdict=verdict,
        chance=float(rate) if chosen and rate is not None else 1.0,
        correct=correct,
        items=items,
        open=item.state in ("pending", "claimed"),
        action=action,
        context=canonical_json([item.content.messages, *threads], default=str),
        messages=item.content.messages if len(item.content.messages) > 1 else None,
        arrived=item.created,
    )


def in_place(action: str) -> str:
    """The action; "respond" of a person who answered in place of the candidate, whether the agent or the user."""
    return "respond" if action == "answer" else action


def _as_shown(item: Item) -> Verdict:
    """The verdict with the candidate of the item, which the decision is about; a stored verdict may have none."""
    from guardrail.review import Candidate

    verdict, shown = item.content.parsed_verdict(), item.content.candidate
    assert verdict is not None, "it has an artifact"
    if verdict.candidate is not None and Candidate.of(verdict.candidate) == shown:
        return verdict
    candidate = None if shown is None else Sample(text=shown.text, tool_calls=shown.tool_calls)
    return verdict.model_copy(update={"candidate": candidate})


def _item_labels(item: Item, verdict: Verdict) -> tuple[bool | None, ...]:
    """The labels of a decided item. A decision about the whole says something about each item only if it approves."""
    assert item.decision is not None, "it has an action"
    decided = {each.path: each.action == "approve" for each in item.decision.items}
    whole = True if item.decision.action == "approve" else None
    return tuple(decided.get(item.path, whole) for item in verdict.items)


def _answer_right(verdict: Verdict, labels: Sequence[bool | None]) -> bool:
    """Whether no item that was given out is wrong; of an answer that was held back, whether no item is."""
    pairs = zip(verdict.items, labels, strict=True)
    return all(label is True for item, label in pairs if item.kept or not verdict.accepted)


def _one_label_each(items: Sequence[ReviewedItem]) -> tuple[tuple[ReviewedItem, ...], int]:
    """One label for the same answer to the same question in the same conversation, also for items without a decision.

    An answer that was called right and wrong is wrong: on the safe side. Returns also the number of such items.
    """
    places = [_content(item) for item in items]
    labels_of: defaultdict[str, set[tuple[bool | None, ...]]] = defaultdict(set)
    for place, item in zip(places, items, strict=True):
        if item.labels:
            labels_of[place].add(item.labels)
    both_ways, labelled = 0, []
    for place, item in zip(places, items, strict=True):
        # Of each item of the answer, the labels that people gave it.
        given = [set(some) for some in zip(*labels_of.get(place, ()), strict=True)]
        both_ways += any({True, False} <= some for some in given)
        merged = tuple(False if False in some else True if True in some else None for some in given)
        labelled.append(item.relabelled(merged) if given else item)
    return tuple(labelled), both_ways


def _content(item: ReviewedItem) -> str:
    """The question, its conversation and the answer, as a key."""
    candidate = item.verdict.candidate
    calls = [call.model_dump() for call in candidate.tool_calls] if candidate is not None else []
    text = None if candidate is None else candidate.text.strip()
    places = [each.path for each in item.verdict.items] if item.verdict.by_items else []
    return canonical_json([item.question.strip(), item.context, text, calls, *([places] if places else [])])


def _refuse_different(artifacts: Sequence[CalibrationArtifact]) -> None:
    first = artifacts[0]
    for other in artifacts[1:]:
        differences = first.model.differences(other.model)
        for field in ("plan", "prompt", "estimator"):
            ours, theirs = getattr(first, field), getattr(other, field)
            if ours != theirs:
                differences.append(f"{field}: {first.digest[:19]} {ours!r}, {other.digest[:19]} {theirs!r}")
        if differences:
            listed = "\n  ".join(differences)
            raise UsageError(
                f"reviews of these artifacts cannot be pooled: scores are comparable only under one procedure.\n"
                f"  {listed}\nLearn from the reviews of one of them."
            )
