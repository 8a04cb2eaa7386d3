"""The evaluation protocol: many random calibration/test splits of one pool, every rule on the same splits.

The model is never called: scores and labels are fixed, only the split is random. Standard errors are Monte-Carlo errors
over splits of *this* pool; they shrink with more splits and say nothing about another pool.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from guardrail.errors import UsageError
from guardrail.notebook import as_html, axis, draw_rates, text_table
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..fitting import Target, rule_for, rule_named
from ..rules import Infeasible, Rule
from ..rules.counts import Counts, Floats, Ints, counts, items
from ..rules.items import AnswerItems
from ..scoring.metrics import ranking_of
from ..spec_syntax import rule_text

__all__ = [
    *("FEW_NOTE", "FEW_SPLITS", "FIGURES", "OF_ITEMS", "SHORT", "Estimate", "Evaluation", "EvaluationRow", "RuleSpec"),
    *("cells", "csv_text", "evaluate", "few", "flat", "meaning", "rate_of"),
]

FEW_SPLITS = 10
"""A mean over fewer splits than this is marked wherever it is shown: the splits that accept something are not like the
others, so a few of them say little about the rule."""
FEW_NOTE = (
    f"* mean over fewer than {FEW_SPLITS} splits, those that answer something: it says little. Label more questions, "
    "or compare at a larger alpha."
)
"""Meaning of the mark of `few`."""
THREADS_FROM = 200_000
"""Fewest items for which two splits are computed at the same time."""

RuleSpec: TypeAlias = str | Rule | tuple[str | Rule, Mapping[str, Any]]
"""A rule's name or a rule of one's own, also with options: ``("acrc", {"k_min": 1})``; ``delta`` may be one."""


# -- Results -----------------------------------------------------------------------------------------------------------


class Estimate(Frozen):
    """A figure with its Monte-Carlo standard error over splits."""

    value: float
    """The figure."""
    se: float | None
    """Standard error; None when one split (or none) stands behind it."""

    @classmethod
    def mean(cls, values: Sequence[float] | NDArray[Any]) -> Estimate:
        """The mean of one value a split; there is at least one."""
        each = np.asarray(values, dtype=np.float64)
        se = float(each.std(ddof=1)) / math.sqrt(each.size) if each.size > 1 else None
        return cls(value=float(each.mean()), se=se)

    @classmethod
    def ratio(cls, errors: Floats, accepted: Floats) -> Estimate:
        """The ratio of two sums, with the linearised (delta method) standard error."""
        value = float(errors.sum() / accepted.sum())
        if errors.size < 2:
            return cls(value=value, se=None)
        # Errors and accepted vary together from split to split, so the ratio's error is not that of the sum alone.
        spread = float((errors - value * accepted).std(ddof=1))
        return cls(value=value, se=spread / math.sqrt(errors.size) / float(accepted.mean()))


_WITH_ITEMS: Any = Field(default=None, exclude_if=lambda value: value is None)


class EvaluationRow(Frozen):
    """One rule at one alpha. Test figures; a split on which the gate accepts no test item counts as infeasible.

    With items of answers ``scer``, ``acceptance`` and ``power`` are shares of items, and violations are of what the
    rule bounds.
    """

    rule: str
    """Name of the rule."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options it was given."""
    alpha: float
    """Target."""
    delta: float | None
    """Failure probability, for rules that have one."""
    splits: int
    """Splits in all."""
    scer: Estimate | None
    """Mean test error rate among accepted answers, over splits that accepted something; None when none did."""
    scer_sd: float | None
    """Standard deviation of that rate over those splits; None with fewer than two."""
    pooled: Estimate | None
    """sum(errors) / sum(accepted) over all splits: the ratio of expectations; None when nothing was accepted."""
    acceptance: Estimate
    """Accepted share of the test items, those that could not be measured included, over all splits (an abstaining gate
    accepts none of them)."""
    power: Estimate | None
    """Accepted share of the correct test items, over all splits; None if no split has a correct test item."""
    violation_rate: Estimate
    """Share of all splits whose test error rate exceeds alpha. A test part errs in the opposite direction of the part
    fitted on, because both are cut from one pool, so this reads high."""
    pool_violation_rate: Estimate
    """Share of all splits whose threshold has an error rate above alpha on the whole pool. The part fitted on is in it,
    so this reads low."""
    infeasible_rate: Estimate
    """Share of all splits in which nothing was accepted: the rule was infeasible, or no test item passed."""
    shown: Estimate | None = _WITH_ITEMS
    """With items: share of the test answers of which some item is kept; None for whole answers."""
    complete: Estimate | None = _WITH_ITEMS
    """With items: share of the test answers of which every item is kept."""
    broken: Estimate | None = _WITH_ITEMS
    """With items: share of the shown test answers that keep a wrong item; None when none was shown."""

    @property
    def name(self) -> str:
        """The rule with its options, as a command takes it."""
        return rule_text(self.rule, self.options)

    @property
    def n_feasible(self) -> int:
        """Splits that accepted something: those behind ``scer`` and ``pooled``."""
        return round(self.splits * (1.0 - self.infeasible_rate.value))


class Evaluation(Frozen):
    """Result of :func:`evaluate`."""

    format: Literal[1] = 1
    """Version of this layout."""
    n: int
    """Items in the pool."""
    n_calibration: int
    """Calibration items of each split (at most that many when splitting by group)."""
    splits: int
    """Random splits."""
    seed: int
    """Seed of the splits."""
    grouped: bool
    """Whether whole groups were kept on one side."""
    base_error: float
    """Share of wrong answers in the pool."""
    auroc: float | None
    """AUROC of the score for errors on the pool; None if there is only one class."""
    aurc: float
    """Area under the risk-coverage curve of the pool."""
    excess_aurc: float
    """AURC minus that of a perfect ranking."""
    test_auroc: Estimate | None
    """Mean AUROC over the test parts with its Monte-Carlo error; None if no test part has both classes."""
    test_aurc: Estimate
    """The same for the area under the risk-coverage curve."""
    test_excess_aurc: Estimate
    """The same for the excess AURC."""
    rows: tuple[EvaluationRow, ...]
    """One row a rule and alpha, in the order given, rules outermost."""

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form, without the rows."""
        for name in ("n", "n_calibration", "splits", "base_error", "auroc"):
            yield name, getattr(self, name)
        yield "rules", sorted({row.rule for row in self.rows})

    def __str__(self) -> str:
        """The rows as a table of at most 80 columns, for `print`."""
        rows = [(row.name, f"{row.alpha:g}", *cells(row, SHORT, errors=False)) for row in self.rows]
        return text_table(("rule", "alpha", *SHORT), rows)

    def _repr_html_(self) -> str:
        area = "-" if self.auroc is None else f"{self.auroc:.3f}"
        title = (
            f"{self.splits} random splits, fitted on {self.n_calibration} of {self.n} questions: "
            f"{100 * self.base_error:.1f} % wrong without a gate, AUROC {area}"
        )
        rows = [(row.name, f"{row.alpha:g}", *cells(row)) for row in self.rows]
        return as_html(title, [("in %", meaning()), ("*", FEW_NOTE)], ("rule", "alpha", *FIGURES), rows)

    def plot(self, ax: Any = None) -> Any:
        """Test error rate of every rule with its spread over splits (one standard deviation), against the target.

        With several alphas, the first is shown.

        Raises:
            MissingDependencyError: matplotlib is not installed (extra "calibrate").
        """
        ax = axis(ax)
        rows = [row for row in self.rows if row.alpha == self.rows[0].alpha]
        draw_rates(ax, [rate_of(row, row.rule) for row in rows], self.rows[0].alpha)
        return ax

    def table(self) -> list[dict[str, Any]]:
        """Flat rows: a column for each value and ``_se`` for its standard error; None where a figure is missing."""
        names = list(EvaluationRow.model_fields)
        return [
            flat(row, names) | {"options": ", ".join(f"{name}={value}" for name, value in row.options.items())}
            for row in self.rows
        ]

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole result as JSON, also written to ``path`` if given. ``Evaluation.from_stored`` reads it."""
        text = self.model_dump_json(indent=2) + "\n"
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


# -- The protocol ------------------------------------------------------------------------------------------------------


def evaluate(
    uncertainty: ArrayLike,
    error: ArrayLike,
    *,
    rules: Sequence[RuleSpec],
    alphas: Sequence[float],
    n_calibration: int,
    splits: int = 100,
    seed: int = 0,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    cap: int | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Run every rule at every alpha on the same random splits of one pool.

    Args:
        uncertainty: Scores of the pool, shape (n,); higher is less certain, +inf where it could not be measured.
        error: 0 or 1, shape (n,).
        rules: Names or rules of your own, or such with options.
        alphas: Targets, each in (0, 1).
        n_calibration: Items to calibrate on; the rest is the test part.
        splits: Random splits (100 in the paper, of a pool of 4,000 with 1,000 for calibration).
        seed: Same seed, same pool: same splits for all rules.
        delta: For rules that use one and do not bring their own; their default when None.
        groups: Group of each item. Groups stay whole: random groups are taken while they fit into ``n_calibration``.
            Rules read them as `calibrate.fit` does. Rules for items need them: the answer of each item, and n and
            ``n_calibration`` count answers.
        cap: Of rules for items: most items of an answer that can be kept.
        progress: Called after each split.

    Returns:
        The evaluation.

    Raises:
        UsageError: As :func:`calibrate.fit`; or no rules, alphas or splits, or an impossible split.
    """
    pool = _Pool.of(uncertainty, error, groups, cap)
    _check_protocol(pool.n, rules, alphas, n_calibration, splits)
    tried = [_target(spec, alpha, delta, cap) for spec in rules for alpha in alphas]
    children = np.random.SeedSequence(seed).spawn(splits)  # the same splits, independent of rules and alphas
    by_answer = pool.answers is not None
    members = None if groups is None else _members(groups, n_calibration, by_answer=by_answer)
    part_of = partial(_calibration_part, pool.n, n_calibration, members=members, by_answer=by_answer)
    done = list(_run(pool, [target for target, _ in tried], part_of, children, progress))
    rankings = [ranking for ranking, _ in done if ranking is not None]
    areas = [area for area, *_ in rankings if area is not None]
    auroc, aurc, excess = ranking_of(pool.counts)
    return Evaluation(
        n=pool.n,
        n_calibration=n_calibration,
        splits=splits,
        seed=seed,
        grouped=groups is not None and pool.answers is None,
        base_error=pool.counts.errors / max(1, pool.counts.measured),
        auroc=auroc,
        aurc=aurc,
        excess_aurc=excess,
        test_auroc=Estimate.mean(areas) if areas else None,
        test_aurc=Estimate.mean([area for _, area, _ in rankings]),
        test_excess_aurc=Estimate.mean([area for *_, area in rankings]),
        rows=tuple(_row(*rule, [found[place] for _, found in done]) for place, rule in enumerate(tried)),
    )


_Ranking: TypeAlias = tuple[float | None, float, float]
"""AUROC, AURC and excess AURC."""


def _run(
    pool: _Pool,
    targets: Sequence[Target],
    part_of: Callable[[np.random.SeedSequence], Ints],
    children: Sequence[np.random.SeedSequence],
    progress: Progress,
) -> Iterator[tuple[_Ranking | None, list[_Split]]]:
    """Of each split the ranking of the test part, if something of it was measured, and what every rule does."""

    def run(child: np.random.SeedSequence) -> tuple[_Ranking | None, list[_Split]]:
        inside = pool.inside(part_of(child))
        test = counts(pool.u[~inside], pool.wrong[~inside])
        return ranking_of(test) if test.measured else None, [pool.tried(target, inside, test) for target in targets]

    # numpy works on large arrays without the interpreter's lock; small ones would only wait for each other.
    with ThreadPoolExecutor(2 if pool.u.size >= THREADS_FROM else 1) as threads:
        for number, result in enumerate(threads.map(run, children), start=1):
            yield result
            progress(number, len(children))


def _check_protocol(
    n: int, rules: Sequence[RuleSpec], alphas: Sequence[float], n_calibration: int, splits: int
) -> None:
    if not rules or not alphas:
        raise UsageError("evaluate needs at least one rule and one alpha.")
    if isinstance(rules, str):
        raise UsageError(f"rules must be a list of rules, got {rules!r}. Write [{rules!r}].")
    if splits < 1:
        raise UsageError(f"splits must be at least 1, got {splits}. The paper uses 100.")
    if not 1 <= n_calibration < n:
        raise UsageError(
            f"n_calibration must leave items to test on: between 1 and {n - 1} for a pool of {n}, got {n_calibration}."
        )


def _target(spec: RuleSpec, alpha: float, delta: float | None, cap: int | None = None) -> tuple[Target, dict[str, Any]]:
    """The target of a rule, and the options that it was given."""
    name, given = spec if isinstance(spec, tuple) else (spec, {})
    options = dict(given)
    # A common delta goes to the rules that take one; a rule's own delta comes first.
    own = options.pop("delta", delta if rule_named(name).uses_delta else None)
    chosen = rule_for("answer" if cap is None else "item", name)
    settings = options if cap is None else {"cap": cap, **options}
    return Target.of(chosen, alpha=alpha, delta=own, settings=settings), options


def _calibration_part(
    n: int, n_calibration: int, child: np.random.SeedSequence, members: list[Ints] | None, by_answer: bool = False
) -> Ints:
    """Indices of the items to calibrate on. Groups are taken in random order, skipping those that no longer fit.

    Answers with items count once, however many items they have.
    """
    generator = np.random.default_rng(child)
    if members is None:
        return generator.permutation(n)[:n_calibration]
    if by_answer:
        return np.concatenate([members[i] for i in generator.permutation(n)[:n_calibration]])
    parts: list[Ints] = []
    room = n_calibration
    for i in generator.permutation(len(members)):
        # Groups stay whole, since items of one group on both sides would make the test look too good.
        if members[i].size <= room:
            parts.append(members[i])
            room -= members[i].size
    return np.concatenate(parts)


def _members(groups: Sequence[Hashable], n_calibration: int, *, by_answer: bool = False) -> list[Ints]:
    """Items of each group."""
    places: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        places.setdefault(group, []).append(index)
    if not by_answer and min(map(len, places.values())) > n_calibration:
        raise UsageError(f"every group has more than n_calibration = {n_calibration} items. Raise n_calibration.")
    return [np.array(indices, dtype=np.int64) for indices in places.values()]


class _Split(NamedTuple):
    """What a rule does on one split: counts of test items, and whether its risk is above alpha."""

    n: int
    right: int
    accepted: int
    errors: int
    violated: bool
    above: bool
    """The same as ``violated``, of the whole pool."""
    answers: tuple[float, float, float | None] | None = None
    """With items: shares of the test answers that are shown and complete, and of the shown ones that are broken."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """The items in the order of their scores: sorted once, both parts of every split are taken in this order.

    Attributes:
        u: Scores, increasing.
        wrong: Labels in the same order.
        rank: Place in the order of the scores of each item as given.
        groups: Group of each item, in the order of the scores.
        counts: Of all items.
        answers: With items: the answers that they are of, in the order given.
    """

    u: Floats
    wrong: Ints
    rank: NDArray[np.int32]
    groups: Sequence[Hashable] | None
    counts: Counts
    answers: AnswerItems | None

    @classmethod
    def of(cls, uncertainty: ArrayLike, error: ArrayLike, groups: Sequence[Hashable] | None, cap: int | None) -> _Pool:
        scores, labels = items(uncertainty, error)
        n = scores.size
        if groups is not None and len(groups) != n:
            raise UsageError(f"groups has {len(groups)} ids and uncertainty has {n} items. Pass one id an item.")
        answers = None if cap is None else AnswerItems.of_rows(scores, labels, groups or range(n), cap)
        order, rank = np.argsort(scores, kind="stable"), np.empty(n, dtype=np.int32)
        rank[order] = np.arange(n, dtype=np.int32)
        u, wrong = scores[order], labels[order]
        ordered = None if groups is None else [groups[i] for i in order.tolist()]
        return cls(u, wrong, rank, ordered, counts(u, wrong), answers)

    @property
    def n(self) -> int:
        """Items; with items of answers the number of answers."""
        return self.u.size if self.answers is None else self.answers.n

    def inside(self, calibration: Ints) -> NDArray[np.bool_]:
        """Which items, in the order of their scores, are those to calibrate on."""
        inside = np.zeros(self.u.size, dtype=np.bool_)
        inside[self.rank[calibration]] = True
        return inside

    def tried(self, target: Target, inside: NDArray[np.bool_], test: Counts) -> _Split:
        """Fit a rule on the items inside, and count what it does on the others."""
        fitted = np.flatnonzero(inside)
        own = None if self.groups is None else [self.groups[i] for i in fitted.tolist()]
        part, _ = target.units(own, fitted.size)
        group = None if own is None else [own[i] for i in part.tolist()]
        result = target.choose(self.u[fitted[part]], self.wrong[fitted[part]], group)
        threshold = None if isinstance(result, Infeasible) else result.threshold
        if self.answers is not None:
            fitted_on = np.bincount(self.answers.answer[inside[self.rank]], minlength=self.answers.n) > 0
            return _counted(target, threshold, test, self.counts, self.answers, ~fitted_on)
        return _counted(target, threshold, test, self.counts)


def _counted(
    target: Target,
    threshold: float | None,
    test: Counts,
    pool: Counts,
    answers: AnswerItems | None = None,
    tested: NDArray[np.bool_] | None = None,
) -> _Split:
    """What a threshold does on the test part and on the whole pool; None accepts nothing."""
    k, e = (0, 0) if threshold is None else test.accepted(threshold)
    right = test.measured - test.errors
    if answers is None or tested is None:
        in_all, wrong_in_all = (0, 0) if threshold is None else pool.accepted(threshold)
        violated, above = (n > 0 and wrong / n > target.alpha for n, wrong in ((k, e), (in_all, wrong_in_all)))
        return _Split(test.n, right, k, e, violated, above)
    K, W = answers.counts(threshold)  # the rule may bound a share of answers
    risks = target.rule.risk_of(K[tested], W[tested]), target.rule.risk_of(K, W)
    violated, above = (risk is not None and risk > target.alpha for risk in risks)
    shown = K[tested] > 0
    broken = float((W[tested][shown] > 0).mean()) if shown.any() else None
    shares = (float(shown.mean()), float((answers.size == K)[tested].mean()), broken)
    return _Split(test.n, right, k, e, violated, above, shares)


def _row(target: Target, options: dict[str, Any], splits: Sequence[_Split]) -> EvaluationRow:
    n, right, accepted, errors = (np.array(column, dtype=np.float64) for column in list(zip(*splits, strict=True))[:4])
    some, with_right = accepted > 0, right > 0
    rate = errors[some] / accepted[some]
    # A split without a right answer has no power; 0 would pull the mean down.
    power = (accepted - errors)[with_right] / right[with_right]
    answers = [split.answers for split in splits if split.answers is not None]
    columns = zip(("shown", "complete", "broken"), zip(*answers, strict=True), strict=False)
    known = {name: [value for value in values if value is not None] for name, values in columns}
    return EvaluationRow(
        rule=target.rule.name,
        options=options,
        alpha=target.alpha,
        delta=target.delta,
        splits=len(splits),
        scer=Estimate.mean(rate) if rate.size else None,
        scer_sd=float(rate.std(ddof=1)) if rate.size > 1 else None,
        pooled=Estimate.ratio(errors, accepted) if rate.size else None,
        acceptance=Estimate.mean(accepted / n),
        power=Estimate.mean(power) if power.size else None,
        violation_rate=Estimate.mean([split.violated for split in splits]),
        pool_violation_rate=Estimate.mean([split.above for split in splits]),
        infeasible_rate=Estimate.mean(~some),
        **{name: Estimate.mean(values) for name, values in known.items() if values},
    )


# -- Tables of rules ---------------------------------------------------------------------------------------------------


class _Column(NamedTuple):
    """A column of a table of rules, in %: the field that it shows, and its meaning, for answers and for items."""

    field: str
    meaning: str
    of_items: str = ""


_COLUMNS = {
    "wrong": _Column("scer", "share of the answers given, mean of splits", "share of the items kept"),
    "pooled": _Column("pooled", "the same, of all splits together"),
    "given": _Column("acceptance", "share of the questions that are answered", "share of the items that are kept"),
    "right": _Column("power", "share of the right answers that are given", "share of the right items that are kept"),
    "shown": _Column("shown", "", "answers of which some item is kept"),
    "complete": _Column("complete", "", "answers of which every item is kept"),
    "broken": _Column("broken", "", "of the answers shown those that keep a wrong item"),
    "above": _Column(
        "violation_rate",
        "splits above alpha on their test part (reads high: it errs in the opposite direction of the fitted part)",
        "splits above alpha on their test part (reads high)",
    ),
    "all": _Column(
        "pool_violation_rate", "splits above alpha on all questions (reads low: those fitted on are among them)"
    ),
    "none": _Column("infeasible_rate", "splits that answer nothing", "splits that keep nothing"),
}
FIGURES = tuple(name for name, column in _COLUMNS.items() if column.meaning)
"""The columns of a table of rules."""
SHORT = ("wrong", "given", "right", "above", "none")
"""Those of a narrow one, for `print`."""
OF_ITEMS = ("right", "given", "wrong", "shown", "complete", "broken", "above", "none")
"""Those of rules for items."""


def meaning(figures: Sequence[str] = FIGURES) -> str:
    """The meaning of the columns of a table of rules."""
    meanings = {name: _COLUMNS[name].of_items if "shown" in figures else _COLUMNS[name].meaning for name in figures}
    return "; ".join(f"{name}: {text}" for name, text in meanings.items()) + "."


def few(n_feasible: int) -> str:
    """The mark of a mean over fewer than ten splits; empty otherwise, and without a mean."""
    return "*" if 0 < n_feasible < FEW_SPLITS else ""


def cells(row: EvaluationRow, figures: Sequence[str] = FIGURES, *, errors: bool = True) -> list[str]:
    """The figures of a row as texts, with standard errors behind the sign, and the mark of `few` at its means."""
    shown = []
    for name in figures:
        value: Estimate | None = getattr(row, _COLUMNS[name].field)
        error = "" if value is None or value.se is None or not errors else f"±{100 * value.se:.1f}"
        mark = few(row.n_feasible) if name in ("wrong", "pooled", "broken") else ""
        shown.append("-" if value is None else f"{100 * value.value:.1f}{error}{mark}")
    return shown


def rate_of(row: EvaluationRow, name: str) -> tuple[str, float | None, float, float]:
    """A row for `draw_rates`: the mean test error rate, one standard deviation to either side."""
    if row.scer is None:
        return name, None, 0.0, 0.0
    spread = row.scer_sd or 0.0
    return name, row.scer.value, max(0.0, row.scer.value - spread), row.scer.value + spread


def flat(value: Frozen, names: Sequence[str]) -> dict[str, Any]:
    """Fields as columns; an `Estimate` becomes two, the second with ``_se``."""
    columns: dict[str, Any] = {}
    for name in names:
        cell = getattr(value, name)
        # By the annotation: a value of None does not say that it would have been two columns.
        if "Estimate" in str(type(value).model_fields[name].annotation):
            columns[name], columns[f"{name}_se"] = (None, None) if cell is None else (cell.value, cell.se)
        else:
            columns[name] = cell
    return columns


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; an empty cell for None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
