"""Threshold rules for the items of answers. The unit of every certificate is the answer (or its group), never the item.

Part j of answer i has an uncertainty ``u_ij`` and a label ``wrong_ij``; it is kept iff ``u_ij <= tau``. Items of one
answer may depend on each other in any way. At tau, answer i keeps ``K_i`` items, ``W_i`` of them wrong; it is *shown*
iff K_i > 0, and *broken* iff W_i exceeds the number of wrong items that is allowed (0 by default).

Three promises, each with probability 1 - delta over calibrations:

* `clean_answers`: P(broken) <= alpha over all answers, those that show nothing included.
* `clean_shown`: P(broken given shown) <= alpha.
* `wrong_share`: E[W]/E[K] <= alpha ("item"), or the mean of W/K over shown answers <= alpha ("answer").

`both` promises the first and the last at once. The two ratios do not grow with tau, so their thresholds are tested from
strict to loose until the first failure (fixed sequence): to keep a bad threshold, the first bad one must pass its own
test, and that has probability at most delta, whatever the shape of the risk curve.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError
from guardrail.items.gate import measured
from guardrail.items.spec import too_many
from guardrail.notebook import sure
from guardrail.outcome import InfeasibleReason

from ..data.item_columns import ragged_places
from ..rules.capital import LARGEST_STAKE, p_capital
from ..rules.certificate import fewest_accepted, tail
from ..thresholds.fitting import check_open_unit
from ..thresholds.rule import TOLERANCE

__all__ = [
    "RULES",
    "START_SHARE",
    "AnswerItems",
    "Found",
    "Per",
    "both",
    "check_cap",
    "check_cut",
    "clean_answers",
    "clean_shown",
    "reading_order",
    "start_shown",
    "start_wrong_share",
    "tolerated",
    "wrong_share",
]

RULES = ("wrong_share", "clean_shown", "clean_answers", "both")
"""Names of the rules."""
Per = Literal["item", "answer"]
"""Unit of a wrong share: every kept item counts once, or every shown answer does."""
START_SHARE = 0.8
"""Share of the answers that would do without an error where `wrong_share` starts. On 19 made populations .8 leaves the
fewest calibrations without a threshold: at alpha .05 and 100 answers 50 %, where .5 leaves 78 % (docs/items.md)."""
_CELLS = 2_000_000
"""Answers times thresholds that are held in memory at a time."""

Reals = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class AnswerItems:
    """The items of calibration answers, packed; what every rule reads.

    Attributes:
        ids: Id of each answer, shape (n,).
        size: Items of each answer, shape (n,).
        uncertainty: As `guardrail.items.gate.measured` returns them, so inf for what is never kept; shape (items,).
        wrong: 0 for a right item, 1 for a wrong or undecided one; shape (items,).
        cap: Most items of an answer that are ever kept.
        cut: Items above it are never kept and need no label; None for no cut.
    """

    ids: tuple[str, ...]
    size: Counts
    uncertainty: Reals
    wrong: Counts
    cap: int
    cut: float | None = None

    @classmethod
    def of(
        cls,
        uncertainties: Sequence[Sequence[float | None] | Reals],
        wrong: Sequence[Sequence[Any] | NDArray[Any]],
        *,
        cap: int,
        ids: Sequence[str] | None = None,
        cut: float | None = None,
    ) -> AnswerItems:
        """From one list of uncertainties and one of labels an answer, items in the order of the text.

        Args:
            uncertainties: None, NaN and infinity mean that an item could not be measured: it is never kept.
            wrong: 0 or False for a right item. All else, also None for a label that could not be decided, is wrong.
            cap: Most items of an answer that are kept, fixed without labels; run time uses the same.
            ids: Id of each answer; default: its position.
            cut: A largest uncertainty that was fixed before labelling; items above it are never kept.

        Raises:
            UsageError: No answers, lists of different lengths, a repeated id, a cap below 1, or a cut outside [0, 1].
        """
        names = tuple(map(str, range(len(uncertainties)))) if ids is None else tuple(ids)
        check_cap(cap)
        check_cut(cut)
        if not names:
            raise UsageError("no answers (n = 0). Calibration needs labelled answers with their items.")
        if not len(names) == len(uncertainties) == len(wrong):
            raise UsageError(
                f"{len(uncertainties)} answers have uncertainties, {len(wrong)} have labels and {len(names)} have ids. "
                "Pass one list an answer."
            )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"answer {twice!r} occurs twice. Every answer counts once in a certificate.")
        for name, scores, labels in zip(names, uncertainties, wrong, strict=True):
            if len(scores) != len(labels):
                raise UsageError(
                    f"answer {name!r} has {len(scores)} uncertainties and {len(labels)} labels. Pass one label an item."
                )
        size = np.array([len(scores) for scores in uncertainties], dtype=np.int64)
        cleaned = [measured(scores, cap) for scores in uncertainties]
        flat = np.concatenate([*cleaned, np.empty(0)])
        if cut is not None:
            flat = np.where(flat <= cut, flat, np.inf)
        labels = [0 if _is_right(label) else 1 for some in wrong for label in some]
        return cls(names, size, flat, np.array(labels, dtype=np.int64), cap, cut)

    @property
    def n(self) -> int:
        """Answers, those that keep nothing included."""
        return len(self.ids)

    @cached_property
    def answer(self) -> Counts:
        """Position of each item's answer, shape (items,)."""
        return np.repeat(np.arange(self.n), self.size)

    @cached_property
    def _ranked(self) -> tuple[Reals, Counts, Counts]:
        """Measured uncertainties in ascending order, with the answer and the label of each."""
        order = np.argsort(self.uncertainty, kind="stable")
        order = order[: int(np.isfinite(self.uncertainty).sum())]
        return self.uncertainty[order], self.answer[order], self.wrong[order]

    @cached_property
    def scores(self) -> Reals:
        """The measured uncertainties that occur, each once, ascending."""
        ranked, _, _ = self._ranked
        return np.unique(ranked)

    def take(self, places: NDArray[Any]) -> AnswerItems:
        """The answers at these positions, or those that a mask selects, in this order."""
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else np.asarray(places)
        flat = ragged_places(self.size, chosen)
        names = tuple(self.ids[i] for i in chosen)
        return AnswerItems(names, self.size[chosen], self.uncertainty[flat], self.wrong[flat], self.cap, self.cut)

    def counts(self, thresholds: Reals) -> tuple[Counts, Counts]:
        """K and W of each answer at each threshold, ascending; shape (n, thresholds) each."""
        ranked, answer, wrong = self._ranked
        # Each part is counted in the column of the first threshold that keeps it, then summed along them.
        column = np.searchsorted(thresholds, ranked)
        inside = column < thresholds.size
        cell = answer[inside] * thresholds.size + column[inside]
        shape, size = (self.n, thresholds.size), self.n * thresholds.size
        kept = np.bincount(cell, minlength=size).reshape(shape).cumsum(axis=1)
        bad = np.bincount(cell, weights=wrong[inside], minlength=size).reshape(shape).cumsum(axis=1)
        return kept, np.rint(bad).astype(np.int64)

    def first_kept(self) -> Reals:
        """Smallest threshold at which each answer shows something; inf if it never does. Shape (n,)."""
        return self._nth(np.ones(self.wrong.size, dtype=np.bool_), 0)

    def first_broken(self, allowed: int = 0) -> Reals:
        """Smallest threshold at which each answer keeps more than ``allowed`` wrong items; inf if never. Shape (n,)."""
        return self._nth(self.wrong == 1, allowed)

    def _nth(self, chosen: NDArray[np.bool_], place: int) -> Reals:
        """The uncertainty at this place among the chosen items of each answer, ascending; inf if there are fewer."""
        order = np.lexsort((self.uncertainty, self.answer))
        order = order[chosen[order]]
        size = np.bincount(self.answer[order], minlength=self.n)
        at = np.concatenate([[0], np.cumsum(size)[:-1]]) + place
        values = np.full(self.n, np.inf)
        has = size > place
        values[has] = self.uncertainty[order][at[has]]
        return values


def check_cap(cap: int) -> None:
    """Refuse a cap that is not a number of items.

    Raises:
        UsageError: It is not a whole number, or below 1.
    """
    if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
        raise UsageError(f"cap must be a whole number of items, at least 1, got {cap!r}.")


def check_cut(cut: float | None) -> None:
    """Refuse a cut that is not an uncertainty of items.

    Raises:
        UsageError: It lies outside [0, 1].
    """
    if cut is not None and not 0 <= cut <= 1:
        raise UsageError(f"a cut is an uncertainty of items, in [0, 1], got {cut}. Leave it out to label every item.")


def _is_right(label: Any) -> bool:
    return label is not None and bool(label == 0)


@dataclass(frozen=True)
class Found:
    """The result of a rule.

    Attributes:
        threshold: tau, the largest uncertainty that is kept; None if nothing may be kept.
        guarantee: The promise in one sentence.
        reason: Why there is no threshold.
        detail: The reason in words, with what to do next.
        certified: All thresholds that passed, ascending: each keeps the promise.
        start: First threshold tested by rules that test a sequence.
        tolerated: Broken calibration answers that `clean_answers` tolerates.
    """

    threshold: float | None
    guarantee: str
    reason: InfeasibleReason | None = None
    detail: str = ""
    certified: tuple[float, ...] = ()
    start: float | None = None
    tolerated: int | None = None


# -- No wrong item in an answer, over all answers ----------------------------------------------------------------------


def tolerated(n: int, alpha: float, delta: float | None) -> int:
    """Broken calibration answers that `clean_answers` tolerates; -1 if even none would not do.

    The largest c with P(Bin(n, alpha) <= c) <= delta; on average over calibrations (delta None):
    ``floor(alpha (n + 1)) - 1``.
    """
    if delta is None:
        return math.floor(alpha * (n + 1) + TOLERANCE) - 1
    return int(np.searchsorted(np.asarray(tail(np.arange(n), n, alpha)), delta, side="right")) - 1


def clean_answers(items: AnswerItems, *, alpha: float, delta: float | None, allowed: int = 0) -> Found:
    """P(an answer keeps more than ``allowed`` wrong items) <= alpha, over all answers.

    Formula: with s_i the smallest threshold that breaks answer i and c = `tolerated`, tau is the largest score that
    occurs strictly below the (c + 1)-th smallest s. Being broken grows with tau by construction, so no assumption and
    no correction for multiplicity is needed.

    Guarantee: with probability 1 - delta over calibrations; for delta None on average over them (conformal factuality,
    Mohri & Hashimoto, arXiv 2402.10978). Proof of the certificate: let t0 be the smallest t with P(s <= t) > alpha, so
    P(s <= t0) >= alpha (right-continuity). P(s <= tau) > alpha implies tau >= t0, so at most c of n values s_i are at
    most t0, which has probability at most P(Bin(n, alpha) <= c) <= delta. Ties are covered.

    An answer that shows nothing counts as clean, so never state this without the share of answers shown and the share
    of those that are broken.

    Raises:
        UsageError: alpha, delta or allowed out of range.
    """
    _check(alpha, delta, allowed)
    broken = too_many(allowed)
    start = "On average" if delta is None else f"With probability at least {sure(delta)}"
    most = f"{alpha:g}" if delta is None else f"at most {alpha:g}"
    guarantee = (
        f"{start} over calibrations, the share of all answers that keep {broken} is {most}, if answers are independent "
        "draws from the same source. An answer of which nothing is kept counts as clean."
    )
    c = tolerated(items.n, alpha, delta)
    if c < 0:
        needed = math.ceil(1 / alpha - 1 - TOLERANCE) if delta is None else int(fewest_accepted(0, alpha, delta))
        return Found(
            None,
            guarantee,
            InfeasibleReason.TOO_FEW_ITEMS,
            f"{items.n} answers are too few for rule 'clean_answers' at alpha = {alpha:g}: it takes {needed}, even "
            "without a single wrong item. Label more answers.",
            tolerated=c,
        )
    limit = float(np.sort(items.first_broken(allowed))[c])
    below = items.scores[items.scores < limit]
    if not below.size:
        return Found(
            None,
            guarantee,
            InfeasibleReason.MOST_CONFIDENT_ITEMS_ARE_WRONG,
            f"More than {c} of {items.n} answers keep {broken} at every threshold: their most certain items are wrong. "
            "Use a score that ranks wrong items higher, or a larger alpha.",
            tolerated=c,
        )
    return Found(float(below[-1]), guarantee, certified=tuple(below.tolist()), tolerated=c)


# -- No wrong item in an answer that shows something -------------------------------------------------------------------


def start_shown(unlabelled: AnswerItems, n: int, *, alpha: float, delta: float, other: bool) -> float | None:
    """First threshold that `clean_shown` tests: where enough answers are shown for a test to pass without an error.

    Args:
        unlabelled: Answers whose labels play no part.
        n: Calibration answers.
        alpha: Target.
        delta: Level.
        other: Whether these are other answers than the calibration answers. Their share of shown answers differs from
            that of the calibration answers by chance, so the start then has two standard deviations to spare.

    Returns:
        None if too few answers are ever shown.
    """
    needed = float(int(fewest_accepted(0, alpha, delta)))
    if other:
        needed += 2 * math.sqrt(needed)
    shown = np.sort(unlabelled.first_kept())
    place = math.ceil(needed / n * unlabelled.n - TOLERANCE) - 1
    return float(shown[place]) if place < unlabelled.n and math.isfinite(shown[place]) else None


def clean_shown(
    items: AnswerItems, *, alpha: float, delta: float, start: float | None, grid: Reals | None = None, allowed: int = 0
) -> Found:
    """P(an answer keeps more than ``allowed`` wrong items, given that it keeps any item) <= alpha.

    Formula: at a threshold k answers are shown and e of them broken; it passes if P(Bin(k, alpha) <= e) <= delta. The
    thresholds are tested in ascending order from ``start`` until the first failure.

    Guarantee: with probability 1 - delta over calibrations, for any risk curve: given k, e is Binomial(k, risk). The
    start must not depend on the labels; taken from the calibration answers' own scores, the promise was simulated.

    Args:
        items: Calibration answers.
        alpha: Target.
        delta: Failure probability.
        start: From `start_shown`; None where no threshold can pass.
        grid: Thresholds, ascending, fixed without labels; default: the scores that occur.
        allowed: Wrong items that an answer may keep.
    """
    _check(alpha, delta, allowed)
    broken = too_many(allowed)
    guarantee = (
        f"With probability at least {sure(delta)} over calibrations, at most {alpha:g} of the answers of which "
        f"something is kept keep {broken}, in finite samples and whatever the shape of the risk curve, if answers are "
        "independent draws from the same source."
    )
    shown, bad = np.sort(items.first_kept()), np.sort(items.first_broken(allowed))

    def p_values(thresholds: Reals) -> Reals:
        k, e = np.searchsorted(shown, thresholds, "right"), np.searchsorted(bad, thresholds, "right")
        return np.where(k > 0, np.asarray(tail(e, k, alpha)), 1.0)

    return _fixed_sequence(items, "clean_shown", guarantee, start, grid, p_values, alpha, delta)


# -- Share of wrong items among those kept -----------------------------------------------------------------------------


def start_wrong_share(
    unlabelled: AnswerItems, n: int, *, alpha: float, delta: float, per: Per, share: float = START_SHARE
) -> float | None:
    """First threshold that `wrong_share` tests: where a share of the answers would do without an error.

    Formula: the first score with ``ln(1/delta) / ln(1 + .9 alpha k / (1 - alpha)) <= share n``, k the mean of K / cap,
    or the share of answers shown ("answer"). The larger the share, the stricter the first threshold: fewer of its items
    are wrong, and each answer says less. It reads no label, so the promise holds for any share
    (`python -m benchmarks.item_starts` compares some).

    Args:
        unlabelled: Answers whose labels play no part.
        n: Calibration answers.
        alpha: Target.
        delta: Level.
        per: Unit of the share.
        share: Share of the answers that would do. If even the first score needs more of them, up to .8.

    Returns:
        None if no threshold passes on n answers.
    """
    scores = unlabelled.scores
    for part in (share, max(share, 0.8)):
        needed = math.expm1(math.log(1 / delta) / (part * n)) * (1 - alpha) / (LARGEST_STAKE * alpha)
        if per == "item":
            ranked = np.sort(unlabelled.uncertainty)
            place = math.ceil(needed * unlabelled.cap * unlabelled.n - TOLERANCE) - 1
        else:
            ranked = np.sort(unlabelled.first_kept())
            place = math.ceil(needed * unlabelled.n - TOLERANCE) - 1
        if scores.size and needed <= 1 and place < ranked.size and math.isfinite(ranked[place]):
            return float(ranked[place])
    return None


def reading_order(ids: Sequence[str], seed: int = 0) -> Counts:
    """Positions of answers in the order in which the bettor reads them: that of SHA-256 over seed and id.

    It is the order in which `calibrate label --interactive` asks, so that labels given so far are the first of it. It
    has nothing to do with score, length or time: read by length, certificates fail in 60 of 100 calibrations.
    """
    keys = [hashlib.sha256(f"{seed}:{name}".encode("utf-8", "backslashreplace")).digest() for name in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)


def wrong_share(
    items: AnswerItems,
    *,
    alpha: float,
    delta: float,
    per: Per,
    start: float | None,
    grid: Reals | None = None,
    seed: int = 0,
    planned: int | None = None,
    groups: Sequence[str] | None = None,
    largest_group: int | None = None,
) -> Found:
    """Share of wrong items among all items kept, or its mean over the answers of which something is kept.

    Formula: ``Z_i = W_i - alpha K_i``, at most ``(1 - alpha) cap``; per answer it is divided by K_i and at most
    1 - alpha. A threshold is bad iff E[Z] > 0, and `calibrate.rules.capital.p_capital` tests that. Thresholds are
    tested in ascending order from ``start`` until the first failure.

    Guarantee: with probability 1 - delta over calibrations, without asymptotics, for any dependence within answers and
    any risk curve. Betting: arXiv 2010.09686; fixed sequence: arXiv 2110.01052.

    Args:
        items: Calibration answers.
        alpha: Target.
        delta: Failure probability.
        per: "item" or "answer".
        start: From `start_wrong_share`; None where no threshold can pass.
        grid: Thresholds, ascending, fixed without labels; default: the scores that occur.
        seed: Seed of the reading order. Fix it before looking.
        planned: Of several looks at growing labels: the number of answers of the last look, which the stakes are set
            for. The labels of every look are then those of the first answers in reading order, and looking is free,
            as p is a running maximum. The start must then be the same at every look.
        groups: Group of each answer (conversation, document), if answers of a group depend on each other.
        largest_group: Most items (answers, per answer) of any group, declared and not read off the data; required with
            groups that repeat.

    Raises:
        UsageError: A number out of range, a group larger than declared, or groups without that number.
    """
    _check(alpha, delta, 0)
    if per not in ("item", "answer"):
        raise UsageError(f"per must be 'item' or 'answer', got {per!r}.")
    units, names = _units(items, groups)
    most = _most(items, per, units, len(names), largest_group)
    if planned is not None and planned < len(names):
        raise UsageError(f"planned must be at least the {len(names)} answers of this look, got {planned}.")
    share = (
        "wrong items among all items kept"
        if per == "item"
        else "wrong items among those kept of an answer, as a mean over the answers of which something is kept,"
    )
    guarantee = (
        f"With probability at least {sure(delta)} over calibrations, the share of {share} is at most {alpha:g}, in "
        "finite samples and whatever the shape of the risk curve, if answers are independent draws from the same "
        "source. Items of an answer may depend on each other."
    )
    order = reading_order(names, seed)
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))

    def p_values(thresholds: Reals) -> Reals:
        kept, wrong = items.counts(thresholds)
        excess = wrong - alpha * kept
        if per == "answer":
            excess = np.where(kept > 0, excess / np.maximum(kept, 1), 0.0)
        read = np.zeros((len(names), thresholds.size))
        np.add.at(read, rank[units], excess)
        return p_capital(read, (1 - alpha) * most, delta, planned)

    return _fixed_sequence(items, "wrong_share", guarantee, start, grid, p_values, alpha, delta)


def _units(items: AnswerItems, groups: Sequence[str] | None) -> tuple[Counts, Sequence[str]]:
    """Number of each answer's independent unit, and the units' names."""
    if groups is None:
        return np.arange(items.n), items.ids
    if len(groups) != items.n:
        raise UsageError(f"groups has {len(groups)} names and there are {items.n} answers. Pass one name an answer.")
    number: dict[str, int] = {}
    units = np.array([number.setdefault(name, len(number)) for name in groups], dtype=np.int64)
    return units, list(number)


def _most(items: AnswerItems, per: Per, units: Counts, n_units: int, declared: int | None) -> int:
    """Largest number of items (answers, per answer) of a unit: the cap, or what is declared for groups."""
    single = items.cap if per == "item" else 1
    if n_units == items.n:
        return single
    what = "items" if per == "item" else "answers"
    if declared is None:
        raise UsageError(
            f"rule 'wrong_share' needs largest_group, the most {what} that any group can ever have: a number that you "
            "allow, not one read off the data. Without one, use one answer of each group."
        )
    weight = np.minimum(items.size, items.cap) if per == "item" else np.ones(items.n, dtype=np.int64)
    largest = int(np.bincount(units, weights=weight).max())
    if largest > declared:
        raise UsageError(
            f"a group has {largest} {what}, more than largest_group = {declared}, and the promise rests on that "
            "number. Declare the most that can ever occur."
        )
    return declared


# -- Both at once ------------------------------------------------------------------------------------------------------


def both(share: Found, clean: Found) -> Found:
    """Both promises at once, of results that were fitted at delta / 2 each.

    The threshold is the largest certified one of `wrong_share` at or below that of `clean_answers`, whose promise holds
    at every smaller threshold.
    """
    guarantee = f"{share.guarantee} At the same time: {clean.guarantee}"
    missing = next((found for found in (share, clean) if found.threshold is None), None)
    if missing is not None:
        return Found(None, guarantee, missing.reason, missing.detail, start=share.start, tolerated=clean.tolerated)
    assert clean.threshold is not None
    within = tuple(tau for tau in share.certified if tau <= clean.threshold)
    if not within:
        return Found(
            None,
            guarantee,
            InfeasibleReason.RISK_NEVER_LOW_ENOUGH,
            f"Rule 'wrong_share' certifies thresholds from {share.certified[0]:g} on, and rule 'clean_answers' none "
            f"above {clean.threshold:g}. Ask for one of the two promises, or for a larger alpha.",
            start=share.start,
            tolerated=clean.tolerated,
        )
    return Found(within[-1], guarantee, certified=within, start=share.start, tolerated=clean.tolerated)


# -- The fixed sequence ------------------------------------------------------------------------------------------------


def _fixed_sequence(
    items: AnswerItems,
    rule: str,
    guarantee: str,
    start: float | None,
    grid: Reals | None,
    p_values: Callable[[Reals], Reals],
    alpha: float,
    delta: float,
) -> Found:
    """Test thresholds in ascending order from the start until the first failure."""
    if start is None or (items.cut is not None and start > items.cut):
        return Found(
            None,
            guarantee,
            InfeasibleReason.TOO_FEW_ITEMS,
            f"{items.n} answers are too few for rule {rule!r} at alpha = {alpha:g} and delta = {delta:g}: at no "
            "threshold enough is kept for a test to pass, even without a single wrong item. Label more answers"
            + (", or allow fewer items an answer (a smaller cap)." if rule == "wrong_share" else "."),
        )
    thresholds = items.scores if grid is None else np.unique(np.asarray(grid, dtype=np.float64))
    # p is constant between scores, so the start is tested itself although it may be a score of other answers only.
    thresholds = np.concatenate([[start], thresholds[thresholds > start]])
    if items.cut is not None:
        thresholds = thresholds[thresholds <= items.cut]
    # Chunks double because most sequences stop early, and a long one must not pay for many small calls.
    position, chunk, largest = 0, 16, max(1, _CELLS // items.n)
    first = 1.0
    while position < thresholds.size:
        stop = min(thresholds.size, position + min(chunk, largest))
        p = p_values(thresholds[position:stop])
        first = float(p[0]) if position == 0 else first
        failed = np.flatnonzero(p > delta)
        if failed.size:
            position += int(failed[0])
            break
        position, chunk = stop, 2 * chunk
    if position == 0:
        return Found(
            None,
            guarantee,
            InfeasibleReason.RISK_NEVER_LOW_ENOUGH,
            f"The strictest threshold that enough items reach ({start:g}) does not pass (p = {first:.3g} > "
            f"{delta:g}): too many of the most certain items are wrong. Use a score that ranks wrong items higher, "
            "label more answers, or ask for a larger alpha.",
            start=start,
        )
    certified = tuple(thresholds[:position].tolist())
    return Found(certified[-1], guarantee, certified=certified, start=start)


def _check(alpha: float, delta: float | None, allowed: int) -> None:
    check_open_unit("alpha", alpha)
    if delta is not None:
        check_open_unit("delta", delta)
    if isinstance(allowed, bool) or not isinstance(allowed, int) or allowed < 0:
        raise UsageError(f"allowed must be a whole number of wrong items, got {allowed!r}.")
