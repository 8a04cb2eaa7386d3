"""The paper's five tables and its figure from record files: run, print, flatten."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..evaluation.evaluate import Estimate, flat
from ..evaluation.grid import Source, paper_pool
from ..evaluation.tables import ALPHAS, SIZES, PaperTables, RecordPool, TableRow, average, methods, rule_of, run
from ..evaluation.tables import tables as paper_tables
from .content import few
from .figures import Figure
from .panels import paper_panels

__all__ = ["FORMS", "PaperView", "paper_view"]

FORMS = {
    "main": "main",
    "risk-levels": "risk_levels",
    "estimators": "estimators",
    "sizes": "calibration_sizes",
    "ablation": "ablation",
}
"""Name on the command line to field of `PaperTables`, in the order of the paper."""
DELTA = 0.05
"""The paper's delta."""
ALPHA = 0.15
"""The paper's alpha."""
N_CALIBRATION = 1000
"""The paper's calibration size, taken where the pool is large enough to leave a quarter for testing."""


class PaperView(Frozen):
    """The paper's experiments on these records."""

    alpha: float
    """Target where a table does not vary it."""
    delta: float
    """Failure probability of the confidence bounds and the certificate."""
    tables: PaperTables | None
    """The five tables; None if only the figure was asked for."""
    figure: tuple[TableRow, ...] | None
    """Every method at every alpha; None if not asked for."""

    def rows(self, name: str) -> tuple[TableRow, ...]:
        """Rows of a table by its name on the command line, or of the figure."""
        if name == "figure":
            return self.figure or ()
        return () if self.tables is None else tuple(getattr(self.tables, FORMS[name]))

    def table(self, name: str) -> list[dict[str, Any]]:
        """Flat rows: every value with its standard error, also those the paper does not print."""
        return [{"table": name} | flat(row, list(TableRow.model_fields)) for row in self.rows(name)]

    def title(self, name: str) -> str:
        """Heading of a table."""
        sizes = sorted({row.n_calibration for row in self.rows(name)})
        size = "" if name == "sizes" else f", n = {' or '.join(f'{n:,}' for n in sizes)}"
        return {
            "main": f"Main results, alpha = {self.alpha:g}{size}",
            "risk-levels": f"A-CRC across target risk levels{size}",
            "estimators": f"A-CRC by score, alpha = {self.alpha:g}{size}",
            "sizes": f"A-CRC by calibration size, alpha = {self.alpha:g}",
            "ablation": f"Ablation, alpha = {self.alpha:g}{size}",
        }[name]

    def printed(self, name: str, *, errors: bool = True) -> tuple[list[str], list[list[str]]]:
        """Columns and cells of a table as the paper prints it, with standard errors or without."""
        heads, cells = _LAYOUTS[name]
        rows = [[cell(row) for cell in cells] for row in self.rows(name)]
        return heads, rows if errors else [[re.sub(r"±[\d.]+", "", cell) for cell in row] for row in rows]

    def texts(self, name: str) -> int:
        """Number of leading columns that hold names rather than figures."""
        return {"main": 3, "estimators": 3, "ablation": 2}.get(name, 1)

    def panels(self) -> Figure:
        """The four-panel figure."""
        return paper_panels(self.figure or ())


def paper_view(
    pools: Sequence[Source],
    estimators: Sequence[str] | None,
    *,
    alphas: Sequence[float] = (),
    sizes: Sequence[int] = (),
    splits: int = 100,
    seed: int = 0,
    delta: float | None = None,
    cluster_by_group: bool = False,
    tables: bool = True,
    figure: bool = False,
    progress: Progress = silent,
) -> PaperView:
    """Run the paper's experiments on record files.

    Args:
        pools: One for each data set and model.
        estimators: Keys of scores, the main one first; None for all.
        alphas: Targets across risk levels; the first one is also the target elsewhere. Default: the paper's.
        sizes: Calibration sizes of that table; the first one is also the size elsewhere if it is the only one.
        splits: Random splits.
        seed: Of the splits.
        delta: Of the bounds and the certificate; .05 as in the paper when left out.
        cluster_by_group: Keep groups whole when splitting.
        tables: Whether to make the tables.
        figure: Whether to make the figure.
        progress: Called after each pool.
    """
    delta = DELTA if delta is None else delta
    alpha = alphas[0] if alphas else ALPHA
    levels = tuple(alphas) if len(alphas) > 1 else ALPHAS
    paper_pools = [paper_pool(source, estimators, cluster_by_group=cluster_by_group) for source in pools]
    fewest = min(np.asarray(pool.error).size for pool in paper_pools)
    n = sizes[0] if len(sizes) == 1 else _size(fewest)
    drawn = None
    if figure:
        collected = []
        for done, pool in enumerate(paper_pools, start=1):
            first = next(iter(pool.uncertainty))
            collected += run(pool, first, methods(delta), levels, n, splits, seed)
            progress(done, len(paper_pools))
        drawn = average(collected, over_models=True)
    paper_tables = None
    if tables:
        paper_tables = _tables(paper_pools, alpha, levels, sizes or _sizes(fewest), n, splits, delta, seed, progress)
    return PaperView(alpha=alpha, delta=delta, tables=paper_tables, figure=drawn)


def _tables(
    pools: Sequence[RecordPool],
    alpha: float,
    alphas: Sequence[float],
    sizes: Sequence[int],
    n: int,
    splits: int,
    delta: float,
    seed: int,
    progress: Progress,
) -> PaperTables:
    return paper_tables(
        list(pools),
        alpha=alpha,
        alphas=alphas,
        sizes=sizes,
        n_calibration=n,
        splits=splits,
        delta=delta,
        seed=seed,
        progress=progress,
    )


def _size(items: int) -> int:
    return N_CALIBRATION if 3 * items >= 4 * N_CALIBRATION else items // 2


def _sizes(items: int) -> tuple[int, ...]:
    """The paper's sizes that fit, or, of a small pool, an eighth, a quarter and a half."""
    fitting = tuple(size for size in SIZES if 4 * size <= 3 * items)
    return fitting if len(fitting) > 1 else tuple(sorted({max(1, items // part) for part in (8, 4, 2)}))


def _rate(row: TableRow) -> str:
    return "-" if row.scer is None else f"{row.scer.value:.3f}{_error(row.scer, 3, 1)}{few(row)}"


def _spread(row: TableRow) -> str:
    if row.scer is None:
        return "-"
    return f"{row.scer.value:.3f}{few(row)}" + ("" if row.scer_sd is None else f" (sd {row.scer_sd:.3f})")


def _percent(name: str) -> Callable[[TableRow], str]:
    def shown(row: TableRow) -> str:
        value: Estimate | None = getattr(row, name)
        return "-" if value is None else f"{100 * value.value:.1f}{_error(value, 1, 100)}"

    return shown


def _error(value: Estimate, digits: int, scale: float) -> str:
    return "" if value.se is None else f"±{scale * value.se:.{digits}f}"


def _area(row: TableRow) -> str:
    return "-" if row.auroc is None else f"{row.auroc:.3f}"


def _model(row: TableRow) -> str:
    return row.model or "mean"


_AR, _POWER = ("AR %", _percent("acceptance")), ("power %", _percent("power"))
_VR, _IF = ("VR %", _percent("violation_rate")), ("IF %", _percent("infeasible_rate"))
_DATASET: tuple[str, Callable[[TableRow], str]] = ("data set", lambda row: row.dataset)


def _layout(
    *columns: tuple[str, Callable[[TableRow], str]],
) -> tuple[list[str], list[Callable[[TableRow], str]]]:
    return [head for head, _ in columns], [cell for _, cell in columns]


def _label(head: str) -> tuple[str, Callable[[TableRow], str]]:
    return head, lambda row: row.label


def _named(head: str) -> tuple[str, Callable[[TableRow], str]]:
    return head, lambda row: rule_of(row.label)


_LAYOUTS = {
    "main": _layout(_DATASET, ("model", _model), _named("method"), ("SCER", _rate), _AR, _POWER, _VR),
    "risk-levels": _layout(_DATASET, _label("alpha"), ("SCER", _rate), _AR, _POWER, _VR, _IF),
    "estimators": _layout(
        _DATASET, ("model", _model), _label("estimator"), ("AUROC", _area), ("SCER", _rate), _AR, _POWER
    ),
    "sizes": _layout(_DATASET, _label("n"), ("SCER", _spread), _AR, _VR, _IF),
    "ablation": _layout(_DATASET, _named("variant"), ("SCER", _rate), _AR, _VR),
}
