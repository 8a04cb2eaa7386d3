"""Tables as Markdown: ours alone, and ours beside what the paper prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.paper.printed import Printed
from calibrate.evaluation.evaluate import Estimate
from calibrate.evaluation.tables import TableRow

__all__ = ["COLUMNS", "across", "beside", "compact", "largest_errors", "table"]

NONE = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """One measured quantity: its name as in the paper, how ours is written, and how the printed one is."""

    name: str
    ours: Callable[[TableRow], str]
    printed: Callable[[Printed], str]


def _rate(value: Estimate | None) -> str:
    return NONE if value is None else f"{value.value:.3f}"


def _percent(value: Estimate | None, digits: int = 1) -> str:
    return NONE if value is None else f"{100 * value.value:.{digits}f}"


def _text(value: float | int | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _with_sd(row: TableRow) -> str:
    has_sd = row.scer is not None and row.scer_sd is not None
    return _rate(row.scer) + (f"±{row.scer_sd:.3f}" if has_sd else "")


COLUMNS = {
    "AUROC": Column("AUROC", lambda row: _text(row.auroc, ".3f"), lambda p: _text(p.auroc, ".3f")),
    "SCER": Column("SCER", lambda row: _rate(row.scer), lambda p: f"{p.scer:.3f}"),
    "SCER ± sd": Column("SCER ± sd", _with_sd, lambda p: f"{p.scer:.3f}±{p.scer_sd or 0.0:.3f}"),
    "AR": Column("AR", lambda row: _percent(row.acceptance), lambda p: f"{p.acceptance:.1f}"),
    "Power": Column("Power", lambda row: _percent(row.power), lambda p: _text(p.power, ".1f")),
    "VR": Column("VR", lambda row: _percent(row.violation_rate, 0), lambda p: _text(p.violation_rate, "d")),
    "IF": Column("IF", lambda row: _percent(row.infeasible_rate, 0), lambda p: _text(p.infeasible_rate, "d")),
}
"""What a table can show, by its name."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> str:
    """A Markdown table whose first columns are text and the others numbers."""
    rule = [":--"] * text_columns + ["--:"] * (len(head) - text_columns)
    return "\n".join("|" + "|".join(row) + "|" for row in (head, rule, *rows))


def beside(rows: Sequence[TableRow], printed: Sequence[Printed], columns: Sequence[str], label: str) -> str:
    """Cells of "printed/ours"; a row of ours that the paper does not have stands without printed figures.

    Rows are matched by data set, model and label, in our order.
    """
    printed_rows = {(p.dataset, p.model, p.label): p for p in printed}
    with_model = any(row.model is not None for row in rows)
    head = ["data", *(["model"] if with_model else []), label, *columns]
    body = []
    for row in rows:
        match = printed_rows.get((row.dataset, row.model, row.label))
        cells = [row.dataset, *([row.model or ""] if with_model else []), row.label]
        for column in columns:
            cells.append(f"{NONE if match is None else COLUMNS[column].printed(match)}/{COLUMNS[column].ours(row)}")
        body.append(cells)
    return table(head, body, 2 + with_model)


def across(rows: Sequence[TableRow], columns: Sequence[str]) -> str:
    """Ours alone, a line a data set and a column a label; the quantities of a cell are separated by "/"."""
    labels = list(dict.fromkeys(row.label for row in rows))
    cells = {(row.dataset, row.label): "/".join(COLUMNS[column].ours(row) for column in columns) for row in rows}
    datasets = dict.fromkeys(row.dataset for row in rows)
    body = [[dataset, *(cells.get((dataset, label), NONE) for label in labels)] for dataset in datasets]
    return table(["data", *labels], body, 1)


def compact(rows: Sequence[TableRow]) -> str:
    """The main table with a line a pool and a column a method: acceptance, error rate, share of splits above alpha."""
    labels = list(dict.fromkeys(row.label for row in rows))
    pools: dict[tuple[str, str], dict[str, TableRow]] = {}
    for row in rows:
        pools.setdefault((row.dataset, row.model or ""), {})[row.label] = row
    body = []
    for (dataset, model), pool in pools.items():
        first = next(iter(pool.values()))
        cells = [dataset, model, f"{first.n_calibration:,}", f"{first.accuracy:.3f}", _text(first.auroc, ".3f")]
        body.append(cells + [_cell(pool[label]) for label in labels])
    return table(["data", "model", "n", "accuracy", "AUROC", *labels], body, 2)


def _cell(row: TableRow) -> str:
    if row.scer is None:
        return "nothing"
    return f"{_percent(row.acceptance)}/{_rate(row.scer)}/{_percent(row.violation_rate, 0)}"


def largest_errors(rows: Sequence[TableRow]) -> tuple[float, float]:
    """The largest standard errors of SCER and of AR among these rows."""
    scer = [row.scer.se for row in rows if row.scer is not None and row.scer.se is not None]
    return max(scer, default=0.0), max((row.acceptance.se or 0.0 for row in rows), default=0.0)
