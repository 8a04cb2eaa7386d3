"""Results of evaluations, and the one table that the terminal, `print`, a notebook and the report show of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from guardrail.notebook import BLUE, GREY, RED, Table, as_html, axis
from guardrail.types import Frozen

from ..rules.counts import Floats
from ..spec_syntax import rule_text


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
        return cls(value=float(each.mean()), se=_standard_error(each, each.size))

    @classmethod
    def ratio(cls, errors: Floats, accepted: Floats) -> Estimate:
        """The ratio of two sums, with the linearised (delta method) standard error."""
        value = float(errors.sum() / accepted.sum())
        # Errors and accepted vary together from split to split, so the ratio's error is not that of the sum alone.
        se = _standard_error(errors - value * accepted, errors.size)
        return cls(value=value, se=None if se is None else se / float(accepted.mean()))


def _standard_error(values: Floats, n: int) -> float | None:
    return float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else None


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
    """Result of `calibrate.evaluate`."""

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

    @property
    def area(self) -> str:
        """The AUROC as text."""
        return "-" if self.auroc is None else f"{self.auroc:.3f}"

    @property
    def _alone(self) -> EvaluationGrid:
        return EvaluationGrid(cells=(Cell(dataset="", model="", estimator="", evaluation=self),))

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form, without the rows."""
        for name in ("n", "n_calibration", "splits", "base_error", "auroc"):
            yield name, getattr(self, name)
        yield "rules", sorted({row.rule for row in self.rows})

    def __str__(self) -> str:
        """The rows as a table of at most 80 columns, for `print`."""
        return str(self._alone.table(SHORT, errors=False))

    def _repr_html_(self) -> str:
        title = (
            f"{self.splits} random splits, fitted on {self.n_calibration} of {self.n} questions: "
            f"{100 * self.base_error:.1f} % wrong without a gate, AUROC {self.area}"
        )
        return _card(title, self._alone)

    def plot(self, ax: Any = None) -> Any:
        """Test error rate of every rule with its spread over splits (one standard deviation), against the target.

        With several alphas, the first is shown.

        Raises:
            MissingDependencyError: matplotlib is not installed (extra "calibrate").
        """
        return self._alone.plot(ax)

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole result as JSON, also written to ``path`` if given. ``Evaluation.from_stored`` reads it."""
        text = self.model_dump_json(indent=2) + "\n"
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


class Cell(Frozen):
    """One score and calibration size."""

    dataset: str
    """Name of the questions."""
    model: str
    """Name of the model."""
    estimator: str
    """Key of the estimator."""
    evaluation: Evaluation
    """Every rule at every alpha."""


class EvaluationGrid(Frozen):
    """Evaluations of several scores or calibration sizes, as one table."""

    cells: tuple[Cell, ...]
    """In the order given: scores, sizes."""

    @property
    def ranked(self) -> tuple[Cell, ...]:
        """The cells by AUROC on their pools, best first."""
        # No AUROC (one class only) ranks last: nothing is known about such a score.
        return tuple(sorted(self.cells, key=lambda cell: -(cell.evaluation.auroc or 0.0)))

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The short form, without the cells."""
        yield "scores", [cell.estimator for cell in self.ranked]
        yield "rules", sorted({row.rule for cell in self.cells for row in cell.evaluation.rows})

    def __str__(self) -> str:
        """A table, best AUROC first, for `print`: a line an estimator and rule."""
        return str(EvaluationGrid(cells=self.ranked).table(SHORT[:3], errors=False))

    def _repr_html_(self) -> str:
        return _card("Scores by AUROC, rules on the same splits", EvaluationGrid(cells=self.ranked))

    def table(
        self,
        figures: Sequence[str] | None = None,
        *,
        errors: bool = True,
        rule: Callable[[EvaluationRow], str] = lambda row: row.name,
    ) -> Table:
        """A row for each rule and alpha of each cell: score and size if they differ, then the figures.

        Args:
            figures: Columns, in %; default: `FIGURES`.
            errors: Whether standard errors stand behind the figures.
            rule: The text of a rule.
        """
        figures = FIGURES if figures is None else figures
        by_score = len({cell.estimator for cell in self.cells}) > 1
        by_size = len({cell.evaluation.n_calibration for cell in self.cells}) > 1
        heads = ("score", "rule", "AUROC", "n", "alpha")
        shown = (by_score, True, by_score, by_size, True)
        rows = []
        for cell in self.cells:
            for row in cell.evaluation.rows:
                size = str(cell.evaluation.n_calibration)
                named = (cell.estimator, rule(row), cell.evaluation.area, size, f"{row.alpha:g}")
                rows.append((*compress(named, shown), *cells(row, figures, errors=errors)))
        return Table((*compress(heads, shown), *figures), rows, named=1 + by_score)

    def plot(self, ax: Any = None) -> Any:
        """Test error rate of every estimator and rule, best AUROC first, with its spread over splits.

        With several alphas, the first is shown.

        Raises:
            MissingDependencyError: matplotlib is not installed (extra "calibrate").
        """
        alpha, ax = self.cells[0].evaluation.rows[0].alpha, axis(ax)
        shown = [(cell.estimator, row) for cell in self.ranked for row in cell.evaluation.rows if row.alpha == alpha]
        for height, (_, row) in enumerate(reversed(shown)):
            if row.scer is None:
                ax.annotate(" answers nothing", (0, height), va="center", color=GREY)
                continue
            rate, spread = row.scer.value, row.scer_sd or 0.0
            ax.plot([100 * max(0.0, rate - spread), 100 * (rate + spread)], [height, height], color=BLUE, lw=2)
            ax.plot([100 * rate], [height], "o", color=BLUE)
        ax.axvline(100 * alpha, color=RED, lw=1.5, ls=":", label=f"target {100 * alpha:g} %")
        names = [", ".join(filter(None, (name, row.rule))) for name, row in reversed(shown)]
        ax.set_yticks(range(len(names)), names)
        ax.set(xlim=(0, None), ylim=(-0.6, len(names) - 0.4), xlabel="wrong among answered, %")
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
        return ax

    def records(self) -> list[dict[str, Any]]:
        """Flat rows for a file: the pool, the ranking of the score, and the fields of `EvaluationRow`.

        A standard error has a column of its own with ``_se``; a figure that is missing is None.
        """
        return [
            {name: getattr(cell, name) for name in ("dataset", "model", "estimator")}
            | _flat(cell.evaluation, ("n", "n_calibration", "base_error", *_RANKING))
            | _flat(row, list(EvaluationRow.model_fields))
            | {"options": ", ".join(f"{name}={value}" for name, value in row.options.items())}
            for cell in self.cells
            for row in cell.evaluation.rows
        ]


_RANKING = ("auroc", "aurc", "excess_aurc", "test_auroc", "test_aurc", "test_excess_aurc")


def _card(title: str, grid: EvaluationGrid) -> str:
    return as_html(title, [("in %", meaning()), ("*", FEW_NOTE)], grid.table())


def _flat(value: Frozen, names: Sequence[str]) -> dict[str, Any]:
    """Fields as columns; an `Estimate` becomes two."""
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


# -- The columns of a table of rules -----------------------------------------------------------------------------------

FEW_SPLITS = 10
"""A mean over fewer splits than this is marked wherever it is shown: the splits that accept something are not like the
others, so a few of them say little about the rule."""
FEW_NOTE = (
    f"* mean over fewer than {FEW_SPLITS} splits, those that answer something: it says little. Label more questions, "
    "or compare at a larger alpha."
)
"""Meaning of the mark of `few`."""


class _Column(NamedTuple):
    """A column of a table of rules, in %: the field that it shows, and its meaning for answers and for items."""

    field: str
    of_answers: str = ""
    of_items: str = ""


_COLUMNS = {
    "wrong": _Column("scer", "share of the answers given, mean of splits", "share of the items kept"),
    "pooled": _Column("pooled", "the same, of all splits together"),
    "given": _Column("acceptance", "share of the questions that are answered", "share of the items that are kept"),
    "right": _Column("power", "share of the right answers that are given", "share of the right items that are kept"),
    "shown": _Column("shown", of_items="answers of which some item is kept"),
    "complete": _Column("complete", of_items="answers of which every item is kept"),
    "broken": _Column("broken", of_items="of the answers shown those that keep a wrong item"),
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
FIGURES = tuple(name for name, column in _COLUMNS.items() if column.of_answers)
"""The columns of a table of rules."""
SHORT = ("wrong", "given", "right", "above", "none")
"""Those of a narrow one, for `print`."""
OF_ITEMS = ("right", "given", "wrong", "shown", "complete", "broken", "above", "none")
"""Those of rules for items."""


def meaning(figures: Sequence[str] = FIGURES) -> str:
    """The meaning of the columns of a table of rules."""
    kind = "of_items" if "shown" in figures else "of_answers"
    return "; ".join(f"{name}: {getattr(_COLUMNS[name], kind)}" for name in figures) + "."


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
