"""People's decisions: whether each candidate is right, with what probability it was reviewed, and which can be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from guardrail.artifact import CalibrationArtifact
from guardrail.errors import UsageError
from guardrail.plain_json import canonical_json
from guardrail.types import Sample
from guardrail.verdict import Verdict

from ..data.progress import Progress, silent
from ..judging import unlike

if TYPE_CHECKING:
    from guardrail.review import Item, ReviewStore


PAGE = 500
"""Items read at a time."""
NOBODY = "nobody decided"
"""Label detail of what has no decision: it is undecided, and counts as wrong."""

Missing = Literal["wait", "wrong", "leave-out"]
"""How items without a decision are used.

* wait: use what arrived up to the oldest item that is still open; that item counts as wrong. Where wrong answers stay
  open longer, what precedes it ends with a run of right ones, and without it a sample looks better than the questions.
  Expired items count as wrong, too, which is on the safe side: a threshold fitted on too many errors accepts less.
* wrong: use everything; open and expired items count as wrong.
* leave-out: leave both out. Valid only if what was not decided is like what was.
"""


CandidateAction = Literal["approve", "edit", "reject"]
"""What a decision says of a candidate: it was right, it should have been another, or it was wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """A person's decision about an answer, or about a message of an agent.

    Attributes:
        id: Id of the item of the queue; of a message that of its record, or else of its interrupt.
        name: Words by which a person finds it.
        group: Conversation, user or document, where it is known.
        messages: The conversation; None where there is no more of it than the question.
        correct: Whether the candidate is right, as people decided; None without a decision.
        open: Whether a decision may still come.
        action: What the decision says of the candidate; None without one.
        arrived: When it was asked, in seconds since 1970 UTC.
    """

    id: str
    name: str
    group: str | None
    messages: tuple[dict[str, Any], ...] | None
    correct: bool | None
    open: bool
    action: CandidateAction | None
    arrived: float


_Row = TypeVar("_Row", bound=Reviewed)


def settled(rows: Sequence[_Row], missing: Missing) -> list[_Row]:
    """The rows that `Missing` lets a fit or an estimate use; those without a decision count as wrong there.

    Args:
        rows: In order of arrival.
        missing: How rows without a decision are used.
    """
    if missing == "leave-out":
        return [row for row in rows if row.correct is not None]
    end = _oldest_open(rows) if missing == "wait" else len(rows)
    return list(rows[: end + 1] if end else ())


def usable(rows: Sequence[_Row], missing: Missing, what: str) -> list[_Row]:
    """The `settled` rows.

    Args:
        rows: In order of arrival.
        missing: How rows without a decision are used.
        what: Name of the rows, e.g. "reviews of this artifact".

    Raises:
        UsageError: There are none.
    """
    used = settled(rows, missing)
    if not used:
        n_open = sum(row.open for row in rows)
        behind = waiting(rows, missing) or "Decide about open ones first."
        raise UsageError(f"none of the {len(rows)} {what} can be used yet; {n_open} are open. {behind}")
    return used


def waiting(rows: Sequence[Reviewed], missing: Missing, what: str = "decisions") -> str | None:
    """A sentence about the decisions that wait for the oldest open row, with the ways out; None if none waits."""
    end = _oldest_open(rows) if missing == "wait" else len(rows)
    decided = sum(row.correct is not None for row in rows[end:])
    if not decided:
        return None
    first = rows[end]
    since = datetime.fromtimestamp(first.arrived, UTC)
    return (
        f"{decided} {what} wait behind {first.name}, open since {since:%Y-%m-%d %H:%M} UTC: they are used in order of "
        "arrival, because which are decided first may depend on whether they are right. Decide about that one; or use "
        "them now: --missing wrong counts open ones as wrong, --missing leave-out leaves them out."
    )


def _oldest_open(rows: Sequence[Reviewed]) -> int:
    """The index of the oldest open row; the number of rows if none is open."""
    return next((index for index, row in enumerate(rows) if row.open), len(rows))


# -- Answers that an artifact judged -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedItem(Reviewed):
    """A person's decision about an answer that an artifact in question has judged.

    Attributes:
        key: The item's key; decides about thinning.
        question: The question.
        verdict: Verdict of the gate at that time, with the candidate that the reviewer was shown.
        chance: Probability with which it came into the queue: 1 for held back, the audit rate for accepted.
        context: The conversation it was asked in, as far as the item knows it: the same question in another one may
            have another right answer.
        labels: Whether the answer is right, or each item of the verdict, for a gate of items. Empty without a decision.
    """

    key: str
    question: str
    verdict: Verdict
    chance: float
    context: str = ""
    labels: tuple[bool | None, ...] = ()

    @property
    def audited(self) -> bool:
        """Whether it is an accepted answer."""
        return self.verdict.accepted


@dataclass(frozen=True, slots=True)
class ReviewPool:
    """The items of a queue about verdicts of some artifacts.

    Attributes:
        items: In order of arrival.
        others: Number of items that other artifacts judged, or none.
        both_ways: Items whose question, conversation and candidate were called right and wrong; all count as wrong.
        partial: Items about answers of which some items were given out, and only the others decided. They are left
            out: items that were held back are a selected sample, and the audits stand for these answers.
    """

    items: tuple[ReviewedItem, ...]
    others: int = 0
    both_ways: int = 0
    partial: int = 0

    @property
    def audits(self) -> list[ReviewedItem]:
        """The accepted answers."""
        return [item for item in self.items if item.audited]

    def of(self, artifact: CalibrationArtifact) -> ReviewPool:
        """The items that one artifact judged: answers of two gates say nothing about either alone."""
        return ReviewPool(tuple(item for item in self.items if item.verdict.artifact == artifact.digest))


def read_reviews(
    store: ReviewStore,
    artifacts: Sequence[CalibrationArtifact],
    *,
    since: float | None = None,
    progress: Progress = silent,
) -> ReviewPool:
    """Read people's decisions about the verdicts of some artifacts.

    approve: the candidate is right. edit, reject, respond and answer: it is wrong. For a gate of items this holds of
    each item; an answer of which every item was decided counts as wrong if any item that was given out is wrong.

    Args:
        store: The review store.
        artifacts: The artifact in force, and earlier ones that judged by the same procedure.
        since: Leave out what arrived before, in seconds since 1970 UTC, e.g. from before audits began.
        progress: Reports items read.

    Raises:
        UsageError: Artifacts of different procedures, or an accepted answer in the queue without an audit rate.
    """
    _refuse_different(artifacts)
    digests = {artifact.digest for artifact in artifacts}
    reviewed: list[ReviewedItem] = []
    others = partial = 0
    stats = store.stats()
    total = stats.pending + stats.claimed + stats.decided + stats.expired
    for done, item in enumerate(all_items(store), start=1):
        progress(done, max(done, total))
        if since is not None and item.created < since:
            continue
        verdict = item.content.verdict
        if verdict is None or verdict.artifact not in digests:
            others += 1
            continue
        if item.content.kind != "audit" and _keeps_some(verdict):  # only the items that were held back were decided
            partial += 1
        else:
            reviewed.append(_reviewed(item, verdict))
    items, both_ways = _one_label_each(reviewed)
    return ReviewPool(items, others, both_ways, partial)


def all_items(store: ReviewStore) -> Iterator[Item]:
    """All items in order of arrival, a page at a time."""
    offset = 0
    while page := store.items(limit=PAGE, offset=offset):
        yield from page
        offset += len(page)


def candidate_action(action: str) -> CandidateAction:
    """What a decision says of the candidate. A person who answers in its place, the agent or the user, rejects it."""
    if action == "approve":
        return "approve"
    return "edit" if action == "edit" else "reject"


def name_of(item: Item) -> str:
    """Words by which a person finds an item of the queue, and who holds it."""
    held = ""
    if item.state == "claimed" and item.lease_until is not None:
        until = datetime.fromtimestamp(item.lease_until, tz=UTC)
        held = f", where {item.holder} holds it until {until:%Y-%m-%d %H:%M} UTC unless an administrator takes it back"
    return f"item {item.id} (/items/{item.id} on the review page{held})"


def _keeps_some(verdict: Verdict) -> bool:
    return verdict.by_items and any(item.kept for item in verdict.items)


def _reviewed(item: Item, verdict: Verdict) -> ReviewedItem:
    from guardrail.review.hooks import AUDIT_RATE

    verdict = _as_shown(item, verdict)
    rate = item.content.metadata.get(AUDIT_RATE)
    chosen = verdict.accepted or _keeps_some(verdict)
    if chosen and not (isinstance(rate, int | float) and 0 < rate <= 1):
        raise UsageError(
            f"item {item.id} is an accepted answer without its audit rate (metadata {AUDIT_RATE!r} is {rate!r}), so "
            "the number of answers it stands for is unknown. Fill the queue with guardrail.review.audit_sample."
        )
    action = None if item.decision is None else candidate_action(item.decision.action)
    group, *threads = (item.content.metadata.get(name) for name in ("group", "thread_id", "conversation"))
    labels = tuple[bool | None, ...]()
    if action is not None:
        labels = _item_labels(item, verdict) if verdict.by_items else (action == "approve",)
    return ReviewedItem(
        id=item.id,
        name=name_of(item),
        key=item.key,
        question=item.content.question,
        group=None if group is None else str(group),
        verdict=verdict,
        chance=float(rate) if chosen and rate is not None else 1.0,
        correct=_answer_right(verdict, labels),
        labels=labels,
        open=item.state in ("pending", "claimed"),
        action=action,
        context=canonical_json([item.content.messages, *threads], default=str),
        messages=item.content.messages if len(item.content.messages) > 1 else None,
        arrived=item.created,
    )


def _as_shown(item: Item, verdict: Verdict) -> Verdict:
    """The verdict with the candidate of the item, which the decision is about; a stored verdict may have none."""
    from guardrail.review import Candidate

    shown = item.content.candidate
    if verdict.candidate is not None and Candidate.of(verdict.candidate) == shown:
        return verdict
    candidate = None if shown is None else Sample(text=shown.text, tool_calls=shown.tool_calls)
    return verdict.model_copy(update={"candidate": candidate})


def _item_labels(item: Item, verdict: Verdict) -> tuple[bool | None, ...]:
    """The labels of a decided item. A decision about the whole says something about each item only if it approves."""
    assert item.decision is not None, "it has an action"
    decided = {decision.path: decision.action == "approve" for decision in item.decision.items}
    whole = True if item.decision.action == "approve" else None
    return tuple(decided.get(item.path, whole) for item in verdict.items)


def _answer_right(verdict: Verdict, labels: Sequence[bool | None]) -> bool | None:
    """Whether the answer is right; None without labels.

    With items: whether no item that was given out is wrong; of an answer that was held back, whether no item is.
    """
    if not labels or not verdict.by_items:
        return labels[0] if labels else None
    pairs = zip(verdict.items, labels, strict=True)
    return all(label is True for item, label in pairs if item.kept or not verdict.accepted)


def _one_label_each(items: Sequence[ReviewedItem]) -> tuple[tuple[ReviewedItem, ...], int]:
    """One label for the same answer to the same question.

    An answer that was called right and wrong is wrong everywhere: on the safe side, and a fit refuses two labels. An
    item without a decision has the label of the same answer in the same conversation. Returns also the number of items
    that were called both.
    """
    labels_of: defaultdict[str, list[tuple[bool | None, ...]]] = defaultdict(list)
    for item in items:
        if item.labels:
            labels_of[_content(item)].append(item.labels)
    decided_in = {(_content(item), item.context) for item in items if item.labels}
    both_ways = 0
    labelled: list[ReviewedItem] = []
    for item in items:
        content = _content(item)
        same = labels_of[content] if (content, item.context) in decided_in else []
        given = [set(some) for some in zip(*same, strict=True)]  # for the answer, or for each item of it
        if any({True, False} <= some for some in given):
            both_ways += 1
        labels = tuple(_strictest(some) for some in given)
        correct = _answer_right(item.verdict, labels)
        labelled.append(replace(item, labels=labels, correct=correct, open=item.open and not labels))
    return tuple(labelled), both_ways


def _strictest(labels: Set[bool | None]) -> bool | None:
    """Wrong if anybody said so, else right if anybody did."""
    if False in labels:
        return False
    return True if True in labels else None


def _content(item: ReviewedItem) -> str:
    """What was asked, as `Question.asked`, and what was answered."""
    candidate = item.verdict.candidate
    calls = [call.model_dump() for call in candidate.tool_calls] if candidate is not None else []
    text = None if candidate is None else candidate.text.strip()
    paths = [judged.path for judged in item.verdict.items] if item.verdict.by_items else []
    return canonical_json([item.question.strip(), item.messages, text, calls, paths])


def _refuse_different(artifacts: Sequence[CalibrationArtifact]) -> None:
    first = artifacts[0]
    for other in artifacts[1:]:
        sides = [(name, getattr(first, name), getattr(other, name)) for name in ("plan", "prompt", "estimator")]
        names = (first.digest[:19], other.digest[:19])
        if differences := first.model.differences(other.model) + unlike(sides, names):
            listed = "\n  ".join(differences)
            raise UsageError(
                f"reviews of these artifacts cannot be pooled: scores are comparable only under one procedure.\n"
                f"  {listed}\nLearn from the reviews of one of them."
            )
