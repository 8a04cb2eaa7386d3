"""Tables as Markdown: ours alone, and ours beside what the paper prints; and pages with generated blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.paper.printed import Printed
from benchmarks.paper.protocol import Row
from calibrate.evaluation.results import Estimate
from guardrail.errors import UsageError

__all__ = ["across", "beside", "compact", "form", "table", "with_blocks"]

NONE = "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> str:
    """A Markdown table whose first columns are text and the others numbers."""
    rule = [":--"] * text_columns + ["--:"] * (len(head) - text_columns)
    return "\n".join("|" + "|".join(row) + "|" for row in (head, rule, *rows))


def _number(value: Estimate | float | None, digits: int, scale: float = 1.0) -> str:
    number = value.value if isinstance(value, Estimate) else value
    return NONE if number is None else f"{scale * number:.{digits}f}"


def _ours(row: Row, column: str) -> str:
    of = row.figures
    return {
        "AUROC": _number(row.auroc, 3),
        "accuracy": _number(row.accuracy, 3),
        "SCER": _number(of.scer, 3),
        "SCER ± sd": _number(of.scer, 3) + ("" if of.scer_sd is None else f"±{of.scer_sd:.3f}"),
        "AR": _number(of.acceptance, 1, 100),
        "Power": _number(of.power, 1, 100),
        "VR": _number(of.violation_rate, 0, 100),
        "IF": _number(of.infeasible_rate, 0, 100),
    }[column]


def _theirs(row: Printed | None, column: str) -> str:
    if row is None:
        return NONE
    return {
        "AUROC": _number(row.auroc, 3),
        "SCER": _number(row.scer, 3),
        "SCER ± sd": f"{row.scer:.3f}±{row.scer_sd or 0.0:.3f}",
        "AR": _number(row.acceptance, 1),
        "Power": _number(row.power, 1),
        "VR": _number(row.violation_rate, 0),
        "IF": _number(row.infeasible_rate, 0),
    }[column]


def form(rows: Sequence[Row], columns: Sequence[str], label: str) -> str:
    """Ours in the form of the paper's tables; the model stands in a column where rows have one."""
    with_model = any(row.model is not None for row in rows)
    head = ["data", *(["model"] if with_model else []), label, *columns]
    body = [
        [row.dataset, *([row.model or ""] if with_model else []), row.label, *(_ours(row, c) for c in columns)]
        for row in rows
    ]
    return table(head, body, 2 + with_model)


def beside(rows: Sequence[Row], printed: Sequence[Printed], columns: Sequence[str], label: str) -> str:
    """`form` with cells of "printed/ours"; a row that the paper does not have stands without printed figures."""
    theirs = {(p.dataset, p.model, p.label): p for p in printed}
    with_model = any(row.model is not None for row in rows)
    head = ["data", *(["model"] if with_model else []), label, *columns]
    body = []
    for row in rows:
        match = theirs.get((row.dataset, row.model, row.label))
        cells = [f"{_theirs(match, column)}/{_ours(row, column)}" for column in columns]
        body.append([row.dataset, *([row.model or ""] if with_model else []), row.label, *cells])
    return table(head, body, 2 + with_model)


def across(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A line a data set and a column a label; the quantities of a cell are separated by "/"."""
    labels = list(dict.fromkeys(row.label for row in rows))
    cells = {(row.dataset, row.label): "/".join(_ours(row, column) for column in columns) for row in rows}
    datasets = dict.fromkeys(row.dataset for row in rows)
    body = [[dataset, *(cells.get((dataset, label), NONE) for label in labels)] for dataset in datasets]
    return table(["data", *labels], body, 1)


def compact(rows: Sequence[Row]) -> str:
    """The main table with a line a pool and a column a method: AR/SCER/VR."""
    labels = list(dict.fromkeys(row.label for row in rows))
    pools: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        pools.setdefault((row.dataset, row.model or ""), {})[row.label] = row
    body = []
    for (dataset, model), by_label in pools.items():
        first = by_label[labels[0]]
        cells = [dataset, model, f"{first.n:,}", _ours(first, "accuracy"), _ours(first, "AUROC")]
        body.append(cells + [_cell(by_label[label]) for label in labels])
    return table(["data", "model", "n", "accuracy", "AUROC", *labels], body, 2)


def _cell(row: Row) -> str:
    return "nothing" if row.figures.scer is None else "/".join(_ours(row, column) for column in ("AR", "SCER", "VR"))


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """Return the page with the text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` replaced.

    Raises:
        UsageError: The page lacks a block.
    """
    for name, text in blocks.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, *after = page.split(begin)
        if len(after) != 1 or after[0].count(end) != 1:
            raise UsageError(f"the page must have {begin} and, behind it, {end} once each. Add the two lines to it.")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after[0].split(end)[1]}"
    return page
