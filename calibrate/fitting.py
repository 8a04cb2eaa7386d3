"""From scores and labels to a threshold: `fit` runs a rule of `calibrate.rules` and explains what it found."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError, did_you_mean
from guardrail.outcome import CERTIFIED, Diagnostics, Feasible, Hint, Infeasible, InfeasibleReason, TieBlock

from .rules import PLANNED, RULES, Result, Rule, Unit
from .rules.certificate import fewest_accepted, interval, smallest
from .rules.counts import TOLERANCE, Bools, Counts, Floats, Ints, check_share, counts, items
from .rules.counts import Feasible as Threshold
from .rules.items import AnswerItems
from .rules.plug_in import default_k_min
from .spec_syntax import parse_rule

DEFAULT_DELTA: Final = 0.1
"""delta where a rule uses one and none is given."""


def fit(
    u: ArrayLike,
    wrong: ArrayLike,
    *,
    alpha: float | Literal["smallest"],
    rule: str | Rule = CERTIFIED,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    **settings: Any,
) -> Feasible | Infeasible:
    """Choose the threshold of a gate that accepts iff ``u <= threshold``.

    Pure: the same items in any order give the same outcome. With repeated groups, which item of a group is used depends
    on the order within the group, and certified_groups reads items without groups in the order given. Only scores that
    occur are thresholds, so ties are accepted or rejected together. O(n log n).

    Args:
        u: Scores, shape (n,); higher is less certain. +inf where the uncertainty was not measured: no threshold accepts
            such an item, and it is one of the n of every share.
        wrong: 1 where the answer is wrong, 0 where it is correct, shape (n,).
        alpha: Target error rate among accepted answers, in (0, 1); or "smallest", of rule certified: the first
            threshold that the walk would test, with the exact bound of its error rate (`calibrate.rules.smallest`).
        rule: A name of `calibrate.rules.RULES`, or a `calibrate.Rule` of your own; what each promises is in the
            docstring of its function and in docs/guarantees.md.
        delta: Failure probability of rules that have one; 0.1 when left out.
        groups: Ids of the conversation, user or document of each item. With repeated ids items are not independent:
            "certified_groups" reads all of them, and every other rule uses one item a group (counts are of those; the
            options of the outcome have the number of items). Of rules for items of answers the id of the answer.
        **settings: Settings of the rule, e.g. ``share=.4``, declared before labels are seen.

    Returns:
        ``Feasible`` with the threshold, or ``Infeasible`` with the reason.

    Raises:
        UsageError: Misuse: no items, lengths that differ, a score that is NaN, a label other than 0 or 1, alpha or
            delta outside (0, 1), an unknown rule or setting, or delta for a rule without one.
    """
    tested = 0.5 if alpha == "smallest" else alpha  # any alpha: the first tested threshold does not depend on it
    target = Target.of(rule, alpha=tested, delta=delta, settings=settings)
    scores, labels = items(u, wrong)
    part, options = target.units(groups, scores.size)
    scores = scores[part]
    labels = labels[part]
    group = None if groups is None else [groups[i] for i in part.tolist()]
    if alpha == "smallest":
        return _smallest(target, scores, labels, counts(scores, labels), options)
    at = target.answers(scores, labels, group).as_answers() if target.by_item else counts(scores, labels)
    return _outcome(target, at, target.choose(scores, labels, group), {} if target.by_item else options)


@dataclass(frozen=True, slots=True)
class Target:
    """A rule with its target, failure probability and settings, all checked.

    Attributes:
        rule: The rule.
        alpha: Target error rate, in (0, 1).
        delta: Failure probability, in (0, 1); None for a rule that uses none.
        settings: Every setting of the rule, with defaults filled in.
    """

    rule: Rule
    alpha: float
    delta: float | None
    settings: Mapping[str, Any]

    @classmethod
    def of(
        cls, rule: str | Rule, *, alpha: float, delta: float | None = None, settings: Mapping[str, Any] | None = None
    ) -> Target:
        """Check everything about a fit but its items.

        Raises:
            UsageError: As `fit`.
        """
        chosen = rule_named(rule)
        settings = settings or {}
        check_share("alpha", alpha)
        if delta is not None and not chosen.uses_delta:
            raise UsageError(
                f"rule {chosen.name!r} makes no statement with a delta, got delta = {delta!r}. "
                "Leave delta out, or choose rule certified."
            )
        if chosen.uses_delta:
            delta = DEFAULT_DELTA if delta is None else delta
            check_share("delta", delta)
        known = chosen.settings
        if unknown := [name for name in settings if name not in known]:
            hint = did_you_mean(unknown[0], known)
            options = f"Its options: {', '.join(known)}." if known else "It takes no options."
            raise UsageError(f"rule {chosen.name!r} takes no option {unknown[0]!r}. {hint}{options}")
        target = cls(chosen, float(alpha), None if delta is None else float(delta), {**known, **settings})
        target.choose(np.zeros(1), np.zeros(1, dtype=np.int64))  # the function refuses settings that make no sense
        return target

    @property
    def by_item(self) -> bool:
        """Whether items of answers are accepted, each by itself."""
        return self.rule.unit == "item"

    def answers(self, u: ArrayLike, wrong: ArrayLike, groups: Sequence[Hashable] | None) -> AnswerItems:
        """Items as the answers that they are of."""
        return AnswerItems.of_rows(u, wrong, range(np.size(u)) if groups is None else groups, self.settings["cap"])

    @property
    def level(self) -> float:
        """delta, or its default for a rule that reads none."""
        return DEFAULT_DELTA if self.delta is None else self.delta

    def choose(self, u: ArrayLike, wrong: ArrayLike, groups: Sequence[Hashable] | None = None) -> Result:
        """The result of the rule's function; without groups every unit is its own."""
        settings = dict(self.settings)
        if self.rule.reads_groups:
            settings["group"] = range(np.size(np.asarray(u))) if groups is None else groups
        return self.rule.choose(u, wrong, self.alpha, self.level, **settings)

    def units(self, groups: Sequence[Hashable] | None, n: int) -> tuple[Ints, dict[str, int]]:
        """Which of n items the rule is given, and the numbers of items and groups where any group has two.

        Raises:
            UsageError: Text, or another number of ids than items.
        """
        if groups is None:
            return np.arange(n), {}
        if isinstance(groups, str) or len(groups) != n:
            raise UsageError(f"groups must be one id an item, got {groups!r:.80} for {n} items.")
        picked = one_of_each(groups)
        if picked.size == n:
            return picked, {}
        return np.arange(n) if self.rule.reads_groups else picked, {"items": n, "groups": picked.size}

    def resolved(self, n: int) -> dict[str, Any]:
        """The settings for n items, for the record."""
        settings = dict(self.settings)
        if "k_min" in settings and settings["k_min"] is None:
            settings["k_min"] = default_k_min(n, self.alpha)
        return settings


def rule_named(name: str | Rule) -> Rule:
    """The rule of that name; a rule of one's own is returned unchanged.

    Raises:
        UsageError: An unknown name; the nearest names are suggested. Or a rule of one's own has the name of another:
            artifacts and tables know rules by their names.
    """
    if isinstance(name, Rule):
        if RULES.get(name.name, name) is not name:
            raise UsageError(f"{name.name!r} is the name of another rule. Give yours its own name.")
        return name
    if name in RULES:
        return RULES[name]
    raise UsageError(
        f"unknown rule {name!r}. {did_you_mean(name, RULES)}Rules: {', '.join(sorted(RULES))}. Pass a rule of your own "
        "as an object: calibrate.Rule(...)."
    )


def rule_for(unit: Unit, rule: str | Rule | None) -> Rule:
    """The rule of a fit on whole answers, or on items of answers; its default for None.

    Raises:
        UsageError: An unknown rule, or one of the other unit.
    """
    chosen = rule_named(PLANNED[unit][0] if rule is None else rule)
    if chosen.unit != unit:
        unit_name, other = ("items", "whole answers") if unit == "item" else ("whole answers", "items of answers")
        these = ", ".join(name for name, each in RULES.items() if each.unit == unit)
        raise UsageError(
            f"rule {chosen.name!r} is about {other}, and these scores are of {unit_name}. Choose one of: {these}."
        )
    return chosen


def target_of(
    unit: Unit, rule: str | Rule | None, *, alpha: float, delta: float | None = None, cap: int | None = None
) -> tuple[Target, dict[str, Any]]:
    """The target of a rule as users write it, such as "acrc:k_min=1", and the settings that its text gives.

    A delta in the text comes before the common one, which a rule that uses none does not get. ``cap`` is the most items
    that an answer keeps, for rules of items that do not name their own.

    Raises:
        UsageError: As `rule_for` and `fit`, or a text that cannot be read.
    """
    name, options = parse_rule(rule) if isinstance(rule, str) else (rule, {})
    chosen = rule_for(unit, name)
    delta_of_rule = options.pop("delta", delta if chosen.uses_delta else None)
    settings = options if cap is None else {"cap": cap, **options}
    return Target.of(chosen, alpha=alpha, delta=delta_of_rule, settings=settings), options


def one_of_each(groups: Sequence[Hashable]) -> Ints:
    """Indices of one item of each group, in order: its position in the group is a hash of the group's id.

    Neither scores nor labels are looked at, so what is picked is a random item of each group. The order of the groups
    plays no part; the order of the items within a group decides which of them is picked.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    # Not hash(): Python salts it per process, and the pick must be the same in every run.
    numbers = (int.from_bytes(hashlib.sha256(f"0:{group}".encode()).digest()[:8], "big") for group in members)
    return np.sort([indices[number % len(indices)] for indices, number in zip(members.values(), numbers, strict=True)])


# -- The outcome of a fit: its figures, and why nothing was found ------------------------------------------------------


def _outcome(target: Target, at: Counts, result: Result, options: Mapping[str, Any]) -> Feasible | Infeasible:
    base = at.errors / at.measured if at.measured else 0.0
    # Accepting every right answer, 1 - base, and errors up to alpha of what is accepted. What items allow is not known.
    reachable = 1.0 if target.by_item else min(1.0, (1.0 - base) / (1.0 - target.alpha)) * at.measured / at.n
    common: dict[str, Any] = {
        "rule": target.rule.name,
        "alpha": target.alpha,
        "delta": target.delta,
        "options": {**target.resolved(at.n), **options},
        "n": at.n,
        "diagnostics": Diagnostics(
            base_error=base, auroc=None if target.by_item else at.auroc, max_acceptance=reachable
        ),
        "certifies": target.rule.certifies,
    }
    if isinstance(result, Threshold):
        return feasible(result, int(at.ties[at.threshold == result.threshold].sum()), **common)
    first, common["n_measured"] = result.first, at.measured
    hint = None
    if first is not None and first.bound is not None:
        hint = Hint(threshold=first.threshold, n_accepted=first.k, n_errors=first.e, bound=first.bound)
    if result.reason == "too_few_items" or not at.measured:
        needed = None
        if target.delta is not None:
            needed = int(fewest_accepted(0, target.alpha, target.delta)) if result.start is None else result.start
        return Infeasible(reason=InfeasibleReason.TOO_FEW_ITEMS, needed=needed, hint=hint, **common)
    if target.by_item:
        return Infeasible(reason=InfeasibleReason(result.reason), **common)
    # Would a cut inside a block of ties do, errors spread evenly? Otherwise the risk is never low enough.
    if at.k.size < at.measured and isinstance(target.choose(*_untied(at)), Threshold):
        return Infeasible(reason=InfeasibleReason.TIE_BLOCK_TOO_LARGE, ties=_largest_block(at), hint=hint, **common)
    closest = None if hint is not None else _closest(at, target.alpha)
    return Infeasible(reason=InfeasibleReason.RISK_NEVER_LOW_ENOUGH, closest=closest, hint=hint, **common)


def feasible(result: Threshold, tie_block: int, **common: Any) -> Feasible:
    """The outcome of a threshold that accepts k items, e of them wrong, ``tie_block`` of them with its very score."""
    return Feasible(
        threshold=result.threshold,
        n_accepted=result.k,
        n_errors=result.e,
        interval=interval(result.e, result.k),
        tie_block=tie_block,
        **common,
    )


def _largest_block(at: Counts) -> TieBlock:
    block = int(at.ties.argmax())
    k, e = np.concatenate(([0], at.k)), np.concatenate(([0], at.e))
    return TieBlock(
        score=float(at.threshold[block]),
        size=int(at.ties[block]),
        distinct=at.k.size,
        without=(int(k[block]), int(e[block])),
        within=(int(k[block + 1]), int(e[block + 1])),
    )


def _closest(at: Counts, alpha: float) -> tuple[int, int]:
    """Accepted items, and wrong ones among them, at the lowest error rate of at least `default_k_min` items."""
    # With fewer items the search points past the end, and the last threshold stands in.
    first = min(int(np.searchsorted(at.k, default_k_min(at.n, alpha))), at.k.size - 1)
    best = first + int((at.e[first:] / at.k[first:]).argmin())
    return int(at.k[best]), int(at.e[best])


def _smallest(target: Target, u: Floats, wrong: Ints, at: Counts, options: Mapping[str, Any]) -> Feasible | Infeasible:
    """The first threshold that rule certified would test, with the bound of its error rate as alpha."""
    name = target.rule.name
    if name != CERTIFIED:
        raise UsageError(f"alpha='smallest' is of rule 'certified', got rule {name!r}. Give alpha as a number.")
    result = smallest(u, wrong, target.level, share=target.settings["share"])
    if isinstance(result, Threshold) and result.bound is not None:
        # Upward to thousandths: what people read is then no less than what was certified.
        bound = math.ceil(1_000 * result.bound) / 1_000
        target = Target(target.rule, bound, target.delta, target.settings)
    return _outcome(target, at, result, {**options, "alpha": "smallest"})


def _untied(at: Counts) -> tuple[Floats, Bools]:
    """As many items without ties, the errors of each block spread evenly over it."""
    k, e = np.concatenate(([0], at.k)), np.concatenate(([0], at.e))
    # Rounded up, so that a fraction of an error never makes the imagined cut look better than a real one.
    errors = np.ceil(np.interp(np.arange(1, at.measured + 1), k, e) - TOLERANCE)
    unmeasured = at.n - at.measured
    scores = np.append(np.arange(float(at.measured)), np.full(unmeasured, np.inf))
    return scores, np.append(np.diff(errors, prepend=0) > 0, np.zeros(unmeasured, dtype=np.bool_))
