"""The evaluation protocol: many random calibration/test splits of one pool, every rule on the same splits.

The model is never called: scores and labels are fixed, only the split is random. Standard errors are Monte-Carlo errors
over splits of *this* pool; they shrink with more splits and say nothing about another pool.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from guardrail.errors import UsageError
from guardrail.notebook import as_html, axis, draw_rates, text_table
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..fitting import Target, rule_for, rule_named
from ..rules import Infeasible, Rule
from ..rules.counts import Counts, counts, items
from ..rules.items import AnswerItems
from ..scoring.metrics import ranking_of
from ..spec_syntax import rule_text

__all__ = [
    *("FEW_NOTE", "FEW_SPLITS", "Estimate", "Evaluation", "EvaluationRow", "RuleSpec", "csv_text", "evaluate", "few"),
    "flat",
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


class Estimate(Frozen):
    """A figure with its Monte-Carlo standard error over splits."""

    value: float
    """The figure."""
    se: float | None
    """Standard error; None when one split (or none) stands behind it."""


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


def few(n_feasible: int) -> str:
    """The mark of a mean over fewer than ten splits; empty otherwise, and without a mean."""
    return "*" if 0 < n_feasible < FEW_SPLITS else ""


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

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV (an empty cell for None), also written to ``path`` if given."""
        return _written(csv_text(self.table()), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole result as JSON, also written to ``path`` if given. ``Evaluation.from_stored`` reads it."""
        return _written(self.model_dump_json(indent=2) + "\n", path)


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
    scores, labels = items(uncertainty, error)
    answers = None if cap is None else AnswerItems.of_rows(scores, labels, groups or range(scores.size), cap)
    n = scores.size if answers is None else answers.n
    _check_protocol(n, rules, alphas, n_calibration, splits)
    tallies = [_Tally(*_target(spec, alpha, delta, cap), splits) for spec in rules for alpha in alphas]
    ranking = _Ranking()
    # The pool is sorted once: both parts of a split are taken from it in this order.
    order = np.argsort(scores, kind="stable")
    ranked, wrong, rank = scores[order], labels[order], np.empty(order.size, dtype=np.int32)
    rank[order] = np.arange(order.size, dtype=np.int32)
    members = None if groups is None else _members(scores.size, groups, n_calibration, by_answer=answers is not None)
    ids = None if groups is None else [groups[i] for i in order.tolist()]
    pool = counts(ranked, wrong)
    area, risk, excess = ranking_of(pool)

    def run(number: int, child: np.random.SeedSequence) -> Counts:
        """Fill in one split; its test part."""
        calibration = _calibration_part(n, n_calibration, child, members, by_answer=answers is not None)
        inside = np.zeros(ranked.size, dtype=np.bool_)
        inside[rank[calibration]] = True
        test, fitted = counts(ranked[~inside], wrong[~inside]), np.flatnonzero(inside)
        for tally in tallies:
            own = None if ids is None else [ids[i] for i in fitted.tolist()]
            part, _ = tally.target.units(own, fitted.size)
            group = None if own is None else [own[i] for i in part.tolist()]
            result = tally.target.choose(ranked[fitted[part]], wrong[fitted[part]], group)
            threshold = None if isinstance(result, Infeasible) else result.threshold
            tally.record(number, threshold, test, pool)
            if answers is not None:
                fitted_on = np.bincount(answers.answer[calibration], minlength=n) > 0
                tally.record_answers(number, threshold, answers, ~fitted_on)
        return test

    # numpy works on large arrays without the interpreter's lock; small ones would only wait for each other.
    with ThreadPoolExecutor(2 if scores.size >= THREADS_FROM else 1) as threads:
        children = np.random.SeedSequence(seed).spawn(splits)  # the same splits, independent of rules and alphas
        for number, test in enumerate(threads.map(run, range(splits), children), start=1):
            if test.measured:
                ranking.record(*ranking_of(test))
            progress(number, splits)
    return Evaluation(
        n=n,
        n_calibration=n_calibration,
        splits=splits,
        seed=seed,
        grouped=groups is not None and answers is None,
        base_error=pool.errors / max(1, pool.measured),
        auroc=area,
        aurc=risk,
        excess_aurc=excess,
        **ranking.estimates(),
        rows=tuple(tally.row() for tally in tallies),
    )


class _Ranking:
    """Ranking of the test items by the score, collected split by split."""

    def __init__(self) -> None:
        self.auroc: list[float] = []
        self.aurc: list[float] = []
        self.excess: list[float] = []

    def record(self, area: float | None, risk: float, excess: float) -> None:
        self.auroc += [] if area is None else [area]
        self.aurc.append(risk)
        self.excess.append(excess)

    def estimates(self) -> dict[str, Estimate | None]:
        return {
            "test_auroc": _mean(np.array(self.auroc)) if self.auroc else None,
            "test_aurc": _mean(np.array(self.aurc)),
            "test_excess_aurc": _mean(np.array(self.excess)),
        }


class _Tally:
    """Test counts of one rule at one alpha, collected split by split."""

    def __init__(self, target: Target, options: dict[str, Any], splits: int) -> None:
        self.target = target
        self._options = options
        self._accepted = np.zeros(splits)
        self._errors = np.zeros(splits)
        self._right = np.zeros(splits)
        self._n = np.zeros(splits)
        self._violated = np.zeros(splits)
        self._above = np.zeros(splits)
        self._answers: list[tuple[float, float, float | None]] = []

    def record(self, split: int, threshold: float | None, test: Counts, pool: Counts) -> None:
        """Count what a threshold does on the test part and the whole pool; None accepts nothing."""
        self._right[split] = test.measured - test.errors
        self._n[split] = test.n
        if threshold is None:
            return
        accepted, errors = test.accepted(threshold)
        self._accepted[split], self._errors[split] = accepted, errors
        self._violated[split] = accepted > 0 and errors / accepted > self.target.alpha
        in_all, wrong_in_all = pool.accepted(threshold)
        self._above[split] = wrong_in_all / in_all > self.target.alpha

    def record_answers(self, split: int, threshold: float | None, some: AnswerItems, tested: NDArray[np.bool_]) -> None:
        """Count answers, where items are accepted: the rule may bound a share of these."""
        K, W = some.counts(threshold)
        for part, violated in ((tested, self._violated), (np.ones(some.n, dtype=np.bool_), self._above)):
            risk = self.target.rule.risk_of(K[part], W[part])
            violated[split] = risk is not None and risk > self.target.alpha
        shown = K[tested] > 0
        broken = float((W[tested][shown] > 0).mean()) if shown.any() else None
        self._answers.append((float(shown.mean()), float((some.size == K)[tested].mean()), broken))

    def row(self) -> EvaluationRow:
        some = self._accepted > 0
        rate = self._errors[some] / self._accepted[some]
        with_right = self._right > 0
        # A split without a right answer has no power; 0 would pull the mean down.
        power = (self._accepted - self._errors)[with_right] / self._right[with_right]
        return EvaluationRow(
            rule=self.target.rule.name,
            options=self._options,
            alpha=self.target.alpha,
            delta=self.target.delta,
            splits=some.size,
            scer=_mean(rate) if rate.size else None,
            scer_sd=float(rate.std(ddof=1)) if rate.size > 1 else None,
            pooled=_ratio(self._errors, self._accepted) if rate.size else None,
            acceptance=_mean(self._accepted / self._n),
            power=_mean(power) if power.size else None,
            violation_rate=_mean(self._violated),
            pool_violation_rate=_mean(self._above),
            infeasible_rate=_mean((~some).astype(np.float64)),
            **self._of_answers(),
        )

    def _of_answers(self) -> dict[str, Estimate]:
        columns = zip(("shown", "complete", "broken"), zip(*self._answers, strict=True), strict=False)
        known = {name: [value for value in values if value is not None] for name, values in columns}
        return {name: _mean(np.array(values)) for name, values in known.items() if values}


def _mean(values: NDArray[np.float64]) -> Estimate:
    se = float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else None
    return Estimate(value=float(values.mean()), se=se)


def _ratio(errors: NDArray[np.float64], accepted: NDArray[np.float64]) -> Estimate:
    """Ratio of sums, with the linearised (delta method) standard error."""
    value = float(errors.sum() / accepted.sum())
    if errors.size < 2:
        return Estimate(value=value, se=None)
    # Errors and accepted vary together from split to split, so the ratio's error is not that of the sum alone.
    spread = float((errors - value * accepted).std(ddof=1))
    return Estimate(value=value, se=spread / math.sqrt(errors.size) / float(accepted.mean()))


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
    n: int,
    n_calibration: int,
    child: np.random.SeedSequence,
    members: list[NDArray[np.int64]] | None,
    *,
    by_answer: bool = False,
) -> NDArray[np.int64]:
    """Indices of the items to calibrate on. Groups are taken in random order, skipping those that no longer fit.

    Answers with items count once, however many items they have.
    """
    generator = np.random.default_rng(child)
    if members is None:
        return generator.permutation(n)[:n_calibration]
    if by_answer:
        return np.concatenate([members[i] for i in generator.permutation(n)[:n_calibration]])
    parts: list[NDArray[np.int64]] = []
    room = n_calibration
    for i in generator.permutation(len(members)):
        # Groups stay whole, since items of one group on both sides would make the test look too good.
        if members[i].size <= room:
            parts.append(members[i])
            room -= members[i].size
    return np.concatenate(parts)


def _members(
    n: int, groups: Sequence[Hashable], n_calibration: int, *, by_answer: bool = False
) -> list[NDArray[np.int64]]:
    """Items of each group."""
    if len(groups) != n:
        raise UsageError(f"groups has {len(groups)} ids and uncertainty has {n} items. Pass one id an item.")
    places: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        places.setdefault(group, []).append(index)
    if not by_answer and min(map(len, places.values())) > n_calibration:
        raise UsageError(f"every group has more than n_calibration = {n_calibration} items. Raise n_calibration.")
    return [np.array(indices, dtype=np.int64) for indices in places.values()]


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


FIGURES = {
    "wrong": "scer",
    "pooled": "pooled",
    "given": "acceptance",
    "right": "power",
    "above": "violation_rate",
    "all": "pool_violation_rate",
    "none": "infeasible_rate",
}
"""Columns of a table of rules, in %, with the field that each shows."""
_MEANINGS = {
    "wrong": "share of the answers given, mean of splits",
    "pooled": "the same, of all splits together",
    "given": "share of the questions that are answered",
    "right": "share of the right answers that are given",
    "above": "splits above alpha on their test part (reads high: it errs in the opposite direction of the fitted part)",
    "all": "splits above alpha on all questions (reads low: those fitted on are among them)",
    "none": "splits that answer nothing",
}


OF_ITEMS = ("right", "given", "wrong", "shown", "complete", "broken", "above", "none")
"""The columns of a table of rules for items."""
_MEANINGS_OF_ITEMS = {
    "right": "share of the right items that are kept",
    "given": "share of the items that are kept",
    "wrong": "share of the items kept",
    "shown": "answers of which some item is kept",
    "complete": "answers of which every item is kept",
    "broken": "of the answers shown those that keep a wrong item",
    "above": "splits above alpha on their test part (reads high)",
    "none": "splits that keep nothing",
}


def meaning(figures: Sequence[str] = tuple(FIGURES)) -> str:
    """The meaning of the columns of a table of rules."""
    meanings = _MEANINGS_OF_ITEMS if "shown" in figures else _MEANINGS
    return "; ".join(f"{name}: {meanings[name]}" for name in figures) + "."


SHORT = ("wrong", "given", "right", "above", "none")
"""The columns of a table for `print`."""


def cells(row: EvaluationRow, figures: Sequence[str] = tuple(FIGURES), *, errors: bool = True) -> list[str]:
    """The figures of a row as texts, with standard errors behind the sign, and the mark of `few` at its means."""
    shown = []
    for name in figures:
        value: Estimate | None = getattr(row, FIGURES.get(name, name))
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


def flat(value: Any, names: Sequence[str]) -> dict[str, Any]:
    """Fields as columns; an `Estimate` becomes two, the second with ``_se``."""
    columns: dict[str, Any] = {}
    for name in names:
        attribute = getattr(value, name)
        estimate = type(value).model_fields[name].annotation
        if attribute is not None and hasattr(attribute, "se"):
            columns[name], columns[f"{name}_se"] = attribute.value, attribute.se
        # By the annotation: a value of None does not say that it would have been two columns.
        elif "Estimate" in str(estimate):
            columns[name] = columns[f"{name}_se"] = None
        else:
            columns[name] = attribute
    return columns


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as CSV; an empty cell for None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _written(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
