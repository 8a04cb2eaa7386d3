"""The error rate among accepted answers, from audits: as an estimate, and given to a monitor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from guardrail.monitor.risk import interval_of
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..rules.certificate import interval
from .pool import Missing, ReviewedItem, ReviewPool, settled

if TYPE_CHECKING:
    from guardrail.review import RiskMonitor


class AcceptedError(Frozen):
    """The error rate among accepted answers, from audits.

    Answers without a decision count as wrong, except in `low`, so that the interval holds for either label; `Missing`
    says which of them are used.
    """

    estimate: float
    """Wrong audited answers, each weighted by 1 / audit rate, over all audited answers weighted alike."""
    low: float
    """Lower end of the 95 % interval, with answers without a decision counted as right."""
    high: float
    """Upper end of it, with answers without a decision counted as wrong."""
    audited: int
    """Audited answers that are used."""
    wrong: int
    """Wrong ones among them."""
    undecided: int = 0
    """Those among the wrong ones that have no decision."""
    exact: bool
    """Clopper-Pearson, for one audit rate. Otherwise a confidence sequence (betting), wider and valid at any time."""
    acceptance: float
    """Estimated share of measured questions that were answered: sum of weights over it plus those held back."""


def accepted_error(pool: ReviewPool, *, missing: Missing = "wait") -> AcceptedError | None:
    """Estimate the error rate among accepted answers from audits; None before the first.

    Args:
        pool: The queue.
        missing: How audits without a decision are used.
    """
    audits = settled(pool.audits, missing)
    if not audits:
        return None
    wrong = [item for item in audits if not item.correct]
    accepted = _weight(pool.audits)
    # Each stands for 1 / its chance. A call that was held back as a whole has chance 1. One that was held back for some
    # of its arguments is in the pool only as an audit (`ReviewPool.partial`): at an audit rate of .1 it stands for ten.
    held_back = _weight([item for item in pool.items if not item.audited and item.verdict.uncertainty.measured])
    return AcceptedError(
        estimate=_weight(wrong) / _weight(audits),
        low=_interval([(item.chance, item.correct is not False) for item in audits])[0],
        high=_interval([(item.chance, item.correct is True) for item in audits])[1],
        audited=len(audits),
        wrong=len(wrong),
        undecided=sum(item.correct is None for item in audits),
        exact=len({item.chance for item in audits}) == 1,
        acceptance=accepted / (accepted + held_back),
    )


def _weight(items: Sequence[ReviewedItem]) -> float:
    """The number of questions that some items stand for."""
    return sum(1 / item.chance for item in items)


def _interval(audits: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """The interval for the share of wrong answers: rate of the audit, and whether the answer counts as right."""
    results_of: defaultdict[float, list[bool]] = defaultdict(list)
    for rate, right in audits:
        results_of[rate].append(right)
    tallies = tuple((rate, len(right), right.count(False)) for rate, right in sorted(results_of.items()))
    if len(tallies) == 1:
        return interval(tallies[0][2], tallies[0][1])
    measured = interval_of(tallies, tallies[0][0])
    assert measured is not None
    return measured[1], measured[2]


def given_items(pool: ReviewPool, *, missing: Missing = "wait") -> tuple[int, int, float] | None:
    """Wrong items among those that were given out, from audits; None before the first.

    Args:
        pool: The queue of a gate of items.
        missing: How audits without a decision are used: each of their items counts as wrong.

    Returns:
        Wrong items, all items, and the share of wrong ones, each weighted by 1 / audit rate.
    """
    given_out: list[tuple[bool, float]] = []  # whether each item is right, and the chance of its audit
    for item in settled([item for item in pool.audits if item.verdict.by_items], missing):
        labels = item.labels or (None,) * len(item.verdict.items)
        pairs = zip(item.verdict.items, labels, strict=True)
        given_out += [(label is True, item.chance) for judged, label in pairs if judged.kept]
    if not given_out:
        return None
    wrong = [chance for is_right, chance in given_out if not is_right]
    share = sum(1 / chance for chance in wrong) / sum(1 / chance for _, chance in given_out)
    return len(wrong), len(given_out), share


def feed(pool: ReviewPool, monitor: RiskMonitor, *, missing: Missing = "wait", progress: Progress = silent) -> int:
    """Feed audited answers to a risk monitor, in order of arrival, each once, even if this runs again.

    Only up to the first audit that is still open: which ones are decided first may depend on whether they are right,
    and a monitor that sees the decided ones only would then be misled. An audit without a decision is never an error to
    a monitor, which takes nothing back. Audits that expired are left out, and so are those of another artifact than the
    monitor's.

    Args:
        pool: The queue.
        monitor: The monitor.
        missing: "leave-out" skips open audits; the others wait for them.
        progress: Reports audits taken in.

    Returns:
        Audits that were new to the monitor.
    """
    state = monitor.state
    audits = [item for item in pool.audits if item.verdict.artifact == state.artifact]
    used = settled(audits, "leave-out" if missing == "leave-out" else "wait")
    for done, item in enumerate(used, start=1):
        if item.correct is not None:
            monitor.update(not item.correct, audit_rate=item.chance, key=item.id)
        progress(done, len(used))
    return monitor.state.n - state.n
