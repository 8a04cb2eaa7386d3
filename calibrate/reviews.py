"""Learning from reviews: people's decisions become labels, and labels a new threshold. The model is not called.

A review queue holds *every* answer that was held back and a *fraction* of the accepted ones (audits, drawn with a known
probability; `guardrail.review.auditing`). That pool is not like the questions: held-back answers are over-represented.
So it is thinned. With pi_i the probability with which item i came into the queue (1 for a held-back answer, the audit
rate for an accepted one) and q the smallest of them, item i is kept with probability q / pi_i by a hash of its key.
Every question that was asked is then in the sample with the same probability q, whatever its score and its label, so
the sample is exchangeable with questions to come, exactly, and every threshold rule keeps its promise without weights.
The price: of the decisions on held-back answers only the share q is used.

The error rate among accepted answers is estimated from the audits alone, each with weight 1 / pi_i (Horvitz & Thompson
1952, in Hajek's ratio form, because the queue does not know how many answers were accepted).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from guardrail.artifact import CalibrationArtifact, CorrectnessSpec
from guardrail.errors import UsageError
from guardrail.monitor import RiskMonitor
from guardrail.stopping import is_bound
from guardrail.types import Frozen, Reason, SampleSet, Verdict

from .bounds import clopper_pearson_interval
from .collect import package_versions
from .datasets import fingerprint
from .pipeline import HeldOut, fit_artifact, held_out, part_header, split
from .progress import Progress, silent
from .records import Record, RecordFile, RecordHeader

if TYPE_CHECKING:
    from guardrail.review import Item, ReviewStore
    from guardrail.review.monitors import SharedRisk

__all__ = [
    "AcceptedError",
    "Learned",
    "Missing",
    "Pool",
    "Respond",
    "Reviewed",
    "accepted_error",
    "feed",
    "learn",
    "read_reviews",
    "thinned",
]

PAGE = 500
"""Items read at a time."""

Respond = Literal["wrong", "leave-out"]
"""What "respond" (the reviewer wrote an answer of their own) says about the candidate. "wrong" is on the safe side."""
Missing = Literal["wait", "wrong", "leave-out"]
"""What becomes of items nobody has decided.

* wait: use what arrived before the oldest item that is still open. Expired items among them count as wrong, which is on
  the safe side: a threshold fitted on too many errors accepts less.
* wrong: use everything; open and expired items count as wrong.
* leave-out: leave both out. Valid only if what was not decided is like what was.
"""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One item of the queue that an artifact in question has judged.

    Attributes:
        key: The item's key; decides about thinning.
        name: The item's id.
        question: What was asked.
        group: Conversation, user or document, where the item's metadata say so.
        verdict: What the gate said then.
        chance: Probability with which it came into the queue: 1 for held back, the audit rate for accepted.
        correct: Whether the candidate is right, as people say; None while nobody said.
        open: Whether a decision may still come.
        action: What was decided.
    """

    key: str
    name: str
    question: str
    group: str | None
    verdict: Verdict
    chance: float
    correct: bool | None
    open: bool
    action: str | None

    @property
    def audited(self) -> bool:
        """Whether it is an accepted answer."""
        return self.verdict.accepted


@dataclass(frozen=True, slots=True)
class Pool:
    """What a queue holds of some artifacts' verdicts.

    Attributes:
        items: In order of arrival.
        others: Items of other artifacts, by digest ("none" where an item has no verdict).
        both_ways: Items whose question and candidate were called right and wrong; all of them count as wrong.
    """

    items: tuple[Reviewed, ...]
    others: dict[str, int]
    both_ways: int


class AcceptedError(Frozen):
    """The error rate among accepted answers, from audits."""

    estimate: float
    """Wrong audited answers, each weighted by 1 / audit rate, over all audited answers weighted alike."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of it."""
    audited: int
    """Audited answers with a decision."""
    wrong: int
    """Wrong ones among them."""
    exact: bool
    """Clopper-Pearson, for one audit rate. Otherwise a confidence sequence (betting), wider and valid at any time."""
    acceptance: float
    """Estimated share of measured questions that were answered: sum of weights over it plus those held back."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A refit on reviews.

    Attributes:
        artifact: The new artifact.
        file: The records it was fitted on, with their header.
        test: Records kept out of the fit.
        key: Key of the scores in the records.
        rate: Probability with which every question came into the sample.
        used: Decisions in the sample.
        decided: Decisions in the pool.
        old: What the artifact in force does on the test records.
        new: What the new one does on them.
    """

    artifact: CalibrationArtifact
    file: RecordFile
    test: tuple[Record, ...]
    key: str
    rate: float
    used: int
    decided: int
    old: HeldOut
    new: HeldOut


def read_reviews(
    store: ReviewStore,
    artifacts: Sequence[CalibrationArtifact],
    *,
    respond: Respond = "wrong",
    since: float | None = None,
    progress: Progress = silent,
) -> Pool:
    """Read what people decided about the verdicts of some artifacts.

    approve: the candidate is right. edit and reject: it is wrong. respond: as ``respond`` says.

    Args:
        store: The review store.
        artifacts: The artifact in force, and earlier ones that judged by the same procedure.
        respond: What an answer of the reviewer's own says about the candidate.
        since: Leave out what arrived before, in seconds since 1970 UTC, e.g. from before audits began.
        progress: Reports items read.

    Raises:
        UsageError: Artifacts of different procedures, or an accepted answer in the queue without an audit rate.
    """
    _refuse_different(artifacts)
    known = {artifact.digest for artifact in artifacts}
    found: list[Reviewed] = []
    others: Counter[str] = Counter()
    stats = store.stats()
    total = stats.pending + stats.claimed + stats.decided + stats.expired
    for done, item in enumerate(_items(store), start=1):
        progress(done, max(done, total))
        if since is not None and item.created < since:
            continue
        digest = str((item.content.verdict or {}).get("artifact", "none"))
        if digest not in known:
            others[digest] += 1
            continue
        found.append(_reviewed(item, respond))
    items, both_ways = _one_voice(found)
    return Pool(items, dict(others), both_ways)


def accepted_error(pool: Pool, *, missing: Missing = "wait") -> AcceptedError | None:
    """Estimate the error rate among accepted answers from audits; None before the first.

    Args:
        pool: The queue.
        missing: What becomes of audits nobody has decided.
    """
    audits = [item for item in _settled([item for item in pool.items if item.audited], missing)]
    if not audits:
        return None
    rates = {item.chance for item in audits}
    wrong = sum(not item.correct for item in audits)
    weight = sum(1 / item.chance for item in audits)
    estimate = sum((not item.correct) / item.chance for item in audits) / weight
    if len(rates) == 1:
        low, high = clopper_pearson_interval(wrong, len(audits))
    else:
        low, high = _sequence(audits, min(rates))
    held = sum(not item.audited and item.verdict.uncertainty.measured for item in pool.items)
    return AcceptedError(
        estimate=estimate,
        low=low,
        high=high,
        audited=len(audits),
        wrong=wrong,
        exact=len(rates) == 1,
        acceptance=sum(1 / item.chance for item in pool.items if item.audited)
        / (sum(1 / item.chance for item in pool.items if item.audited) + held),
    )


def thinned(pool: Pool, *, missing: Missing = "wait") -> tuple[list[Reviewed], float]:
    """The part of a pool in which every question that was asked is with the same probability.

    Args:
        pool: The queue.
        missing: What becomes of items nobody has decided.

    Returns:
        The sample in order of arrival, and that probability.

    Raises:
        UsageError: Answers were accepted and none of them audited, or nothing is left.
    """
    from guardrail.review.auditing import chosen

    _refuse_unaudited(pool)
    rate = min((item.chance for item in pool.items), default=1.0)
    kept = [item for item in pool.items if chosen(item.key, rate / item.chance, salt="thin")]
    sample = _settled(kept, missing)
    if not sample:
        waits = sum(item.open for item in kept)
        raise UsageError(
            f"no reviewed item can be used: {len(pool.items)} items of these artifacts, {len(kept)} after thinning, "
            f"{waits} of them still open. Decide open items, or see --missing."
        )
    return sample, rate


def learn(
    pool: Pool,
    artifact: CalibrationArtifact,
    *,
    name: str,
    alpha: float | None = None,
    rule: str | None = None,
    delta: float | None = None,
    missing: Missing = "wait",
    respond: Respond = "wrong",
    test_fraction: float = 0.3,
    seed: int = 0,
) -> Learned:
    """Fit a new threshold on reviews and hold it against the old one on reviews kept out of the fit.

    Args:
        pool: The queue.
        artifact: The artifact in force. It is not changed.
        name: Name of the data, for the new artifact.
        alpha: Target error rate; default: the old one's.
        rule: Threshold rule; default: the old one's.
        delta: Failure probability; default: the old one's, where the rule stays.
        missing: What becomes of items nobody has decided.
        respond: What `read_reviews` was told; written down in the new artifact.
        test_fraction: Share of the sample kept out of the fit.
        seed: Of that split.

    Raises:
        UsageError: The sample cannot be used (see `thinned`), scores are bounds from early stopping, or too few items.
    """
    _refuse_bounds(pool)
    sample, rate = thinned(pool, missing=missing)
    key = artifact.estimator.name
    groups: Literal["category", "cluster"] = "category" if artifact.calibration.group is None else "cluster"
    header = _header(artifact, sample, key, name, {"respond": respond, "missing": missing, "rate": rate})
    records = [_record(item, key) for item in sample]
    part, test = split(records, test_fraction=test_fraction, seed=seed, groups=groups)
    file = RecordFile(Path(name), header, tuple(records))
    own = artifact.outcome
    if delta is None and rule in (None, own.rule):
        delta = own.delta
    fitted = fit_artifact(
        file,
        estimator=key,
        alpha=own.alpha if alpha is None else alpha,
        rule=rule or own.rule,
        delta=delta,
        groups=groups,
        part=part,
    )
    new = fitted.model_copy(update={"lineage": (*artifact.lineage, artifact.digest)})
    return Learned(
        artifact=new,
        file=RecordFile(Path(name), part_header(header, part), tuple(part)),
        test=tuple(test),
        key=key,
        rate=rate,
        used=len(sample),
        decided=sum(item.correct is not None for item in pool.items),
        old=held_out(artifact, test, key),
        new=held_out(new, test, key),
    )


def feed(pool: Pool, monitor: SharedRisk, *, missing: Missing = "wait", progress: Progress = silent) -> int:
    """Give audited answers to a risk monitor, in order of arrival, each once however often this is run.

    Only up to the first audit that is still open: which ones are decided first may depend on whether they are right,
    and a monitor that sees the decided ones only would then be misled. Audits that expired are left out.

    Args:
        pool: The queue.
        monitor: The monitor.
        missing: "wrong" counts open and expired audits as wrong, "leave-out" passes over both.
        progress: Reports audits taken in.

    Returns:
        Audits that were new to the monitor.
    """
    audits = [item for item in pool.items if item.audited]
    told = _until_open(audits) if missing == "wait" else audits
    before = monitor.state.n
    for done, item in enumerate(told, start=1):
        if item.correct is not None or missing == "wrong":
            monitor.update(not item.correct, audit_rate=item.chance, key=item.name)
        progress(done, len(told))
    return monitor.state.n - before


def _items(store: ReviewStore) -> Iterator[Item]:
    """All items in order of arrival, a page at a time."""
    offset = 0
    while page := store.items(limit=PAGE, offset=offset):
        yield from page
        offset += len(page)


def _reviewed(item: Item, respond: Respond) -> Reviewed:
    from guardrail.review.auditing import AUDIT_RATE

    verdict = item.content.parsed_verdict()
    assert verdict is not None, "it has an artifact"
    rate = item.content.metadata.get(AUDIT_RATE)
    if verdict.accepted and not (isinstance(rate, int | float) and 0 < rate <= 1):
        raise UsageError(
            f"item {item.id} is an accepted answer without its audit rate (metadata {AUDIT_RATE!r} is {rate!r}), so "
            "nobody knows how many it stands for. Fill the queue with guardrail.review.audit_sample."
        )
    action = None if item.decision is None else item.decision.action
    group = item.content.metadata.get("group")
    return Reviewed(
        key=item.key,
        name=item.id,
        question=item.content.question,
        group=None if group is None else str(group),
        verdict=verdict,
        chance=float(rate) if verdict.accepted and rate is not None else 1.0,
        correct=_label(action, respond),
        open=item.state in ("pending", "claimed"),
        action=action,
    )


def _label(action: str | None, respond: Respond) -> bool | None:
    if action is None or (action == "respond" and respond == "leave-out"):
        return None
    return action == "approve"


def _one_voice(items: Sequence[Reviewed]) -> tuple[tuple[Reviewed, ...], int]:
    """One label for the same answer to the same question, also for items of it that nobody has decided.

    Called right and wrong, all of them are wrong: on the safe side.
    """
    said: defaultdict[str, set[bool]] = defaultdict(set)
    for item in items:
        if item.correct is not None:
            said[_content(item)].add(item.correct)
    labels = [said.get(_content(item)) for item in items]
    one = (
        item if not known else replace(item, correct=False not in known, open=False)
        for item, known in zip(items, labels, strict=True)
    )
    return tuple(one), sum(known is not None and len(known) == 2 for known in labels)


def _content(item: Reviewed) -> str:
    candidate = item.verdict.candidate
    calls = [call.model_dump() for call in candidate.tool_calls] if candidate is not None else []
    text = None if candidate is None else candidate.text.strip()
    return json.dumps([item.question.strip(), text, calls], sort_keys=True)


def _until_open(items: Sequence[Reviewed]) -> list[Reviewed]:
    """What arrived before the oldest open item."""
    first = next((i for i, item in enumerate(items) if item.open), len(items))
    return list(items[:first])


def _settled(items: Sequence[Reviewed], missing: Missing) -> list[Reviewed]:
    """Items with a label each, as `Missing` says."""
    if missing == "leave-out":
        return [item for item in items if item.correct is not None]
    used = _until_open(items) if missing == "wait" else items
    left_out = [item for item in used if item.action == "respond" and item.correct is None]
    return [item if item.correct is not None else replace(item, correct=False) for item in used if item not in left_out]


def _sequence(audits: Iterable[Reviewed], smallest: float) -> tuple[float, float]:
    monitor = RiskMonitor(0.5, min_audit_rate=smallest)  # alpha and delta play no part in the interval
    counts: defaultdict[float, list[int]] = defaultdict(lambda: [0, 0])
    for item in audits:
        counts[item.chance][0] += 1
        counts[item.chance][1] += not item.correct
    tallies = tuple((rate, audited, wrong) for rate, (audited, wrong) in sorted(counts.items()))
    monitor.state = monitor.state.model_copy(update={"tallies": tallies})
    found = monitor.interval()
    assert found is not None
    return found[1], found[2]


def _refuse_different(artifacts: Sequence[CalibrationArtifact]) -> None:
    first = artifacts[0]
    for other in artifacts[1:]:
        found = first.model.differences(other.model)
        for field in ("plan", "prompt", "estimator"):
            ours, theirs = getattr(first, field), getattr(other, field)
            if ours != theirs:
                found.append(f"{field}: {first.digest[:19]} {ours!r}, {other.digest[:19]} {theirs!r}")
        if found:
            listed = "\n  ".join(found)
            raise UsageError(
                f"reviews of these artifacts cannot be pooled: scores are comparable only under one procedure.\n"
                f"  {listed}\nLearn from the reviews of one of them."
            )


def _refuse_unaudited(pool: Pool) -> None:
    """Where answers were accepted and none is in the queue, the queue says nothing about them."""
    gates = {item.verdict.artifact: item.verdict.threshold for item in pool.items}
    audited = {item.verdict.artifact for item in pool.items if item.audited}
    silent_ones = [digest for digest, threshold in gates.items() if threshold is not None and digest not in audited]
    if silent_ones:
        raise UsageError(
            f"no accepted answer of artifact {silent_ones[0]} was audited, so the queue holds only what was held back; "
            "a threshold fitted on that says nothing about answers that are given. Audit a known share: "
            "Guardrail(..., on_verdict=guardrail.review.audit_sample(store, rate=0.1))."
        )


def _refuse_bounds(pool: Pool) -> None:
    bounds = sum(is_bound(item.verdict.uncertainty) for item in pool.items)
    if bounds:
        raise UsageError(
            f"{bounds} of {len(pool.items)} reviewed verdicts were settled early, so their uncertainty is a bound and "
            'no score. A threshold needs scores: set early_stopping="off" on the guard and collect reviews again '
            "(--since leaves older ones out)."
        )


def _header(
    artifact: CalibrationArtifact, sample: Sequence[Reviewed], key: str, name: str, params: dict[str, Any]
) -> RecordHeader:
    questions = [_record(item, key).to_question() for item in sample]
    return RecordHeader(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=artifact.model,
        plan=artifact.plan,
        prompt=artifact.prompt,
        questions_name=name,
        questions_sha256=fingerprint(questions),
        n_questions=len(questions),
        correctness=CorrectnessSpec(name="given", version=1, params={"source": "reviews", **params}),
        estimators={key: artifact.estimator},
        packages=package_versions(),
    )


def _record(item: Reviewed, key: str) -> Record:
    """A record with the score and the label, and the answer that was judged; samples are not kept by the queue."""
    verdict = item.verdict
    drawn = SampleSet(question=item.question, primary=verdict.candidate, cost=verdict.cost)
    detail = "" if verdict.reason is not Reason.SUSPENDED else "held back after an alarm"
    return Record(
        id=item.name,
        question=item.question,
        group=item.group,
        drawn=drawn,
        scores={key: verdict.uncertainty},
        correct=item.correct,
        label_detail=detail,
    )
