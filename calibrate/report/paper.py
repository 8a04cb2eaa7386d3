"""The paper's five tables and its figure, from the scores and labels of record files; no model is called."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..evaluation.evaluate import Estimate, RuleSpec, evaluate, few, flat
from ..evaluation.grid import Source, keys_of, need_groups
from ..scoring.scores import arrays
from ..spec_syntax import rule_text
from .figures import Figure, Palette, fitting, render, style

__all__ = ["FIGURE", "TABLES", "PaperPool", "PaperRow", "PaperTables", "average", "paper_pool", "paper_tables"]

TABLES = ("main", "risk-levels", "scores", "sizes", "ablation")
"""The tables, in the order of the paper."""
FIGURE = "figure"
"""Name of the figure's rows: every method at every alpha."""
ALPHA, ALPHAS = 0.15, (0.05, 0.1, 0.15, 0.2, 0.25)
"""The paper's alpha, and those of its risk levels."""
DELTA = 0.05
"""The paper's delta."""
N_CALIBRATION, SIZES = 1000, (100, 250, 500, 1000, 1500)
"""The paper's calibration size, and those of its table of sizes; a quarter of a pool is left to test on."""
BANDED = ("A-CRC-QA", "certified")
"""Methods that the figure draws first, thick and with a band; seven bands would hide each other."""

NamedRule: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""A rule by its name, and its settings."""


@dataclass(frozen=True, slots=True)
class PaperPool:
    """Recorded outputs of one model on one data set. Pools of the same model and data set are repetitions.

    Attributes:
        dataset: Name of the data set; models of one data set are averaged in three of the tables.
        model: Name of the model.
        error: 1 where the answer is wrong, shape (n,).
        uncertainty: Scores by name, each of shape (n,); the first is the main one.
        groups: Conversation, user or document of each item; None where items are independent.
    """

    dataset: str
    model: str
    error: ArrayLike
    uncertainty: Mapping[str, ArrayLike]
    groups: Sequence[Hashable] | None = None


class PaperRow(Frozen):
    """One row of any of the tables. Shares are proportions; fields that a table does not print are filled as well."""

    dataset: str
    """Name of the data set."""
    model: str | None
    """Name of the model; None for the mean over the data set's models."""
    label: str
    """Method, target level, score, calibration size or variant."""
    alpha: float
    """Target."""
    n_calibration: int
    """Calibration items of each split."""
    pools: int
    """Pools behind the row."""
    accuracy: float
    """Share of right answers in the pool."""
    auroc: float | None
    """AUROC in the pool, None if there is only one class."""
    scer: Estimate | None
    """Mean test error rate among accepted answers, over splits that accepted something."""
    scer_sd: float | None
    """Its standard deviation over those splits; None with fewer than two."""
    acceptance: Estimate
    """AR: accepted share of the test items."""
    acceptance_sd: float | None
    """Its standard deviation over splits."""
    power: Estimate | None
    """Accepted share of the right test items."""
    violation_rate: Estimate
    """VR: share of splits whose test error rate exceeds alpha."""
    infeasible_rate: Estimate
    """IF: share of splits that accepted nothing."""
    feasible: int
    """Splits behind ``scer``, over all pools."""


def methods(delta: float) -> dict[str, NamedRule]:
    """The paper's methods by their printed names, and the certificate at the same delta."""
    return {
        "Fixed-50": "fixed_quantile",
        "Empirical": "empirical",
        "UCB-HFD": ("hoeffding", {"delta": delta}),
        "UCB-CLP": ("clopper_pearson", {"delta": delta}),
        "LEC-Direct": "lec",
        "A-CRC-QA": "acrc",
        "certified": ("certified", {"delta": delta}),
    }


def variants() -> dict[str, NamedRule]:
    """The paper's ablations by their printed names."""
    return {
        "Without monotonization": ("acrc", {"monotone": False}),
        "Without correction": ("acrc", {"correction": False}),
        "Instance-wise envelope": ("acrc", {"envelope": True}),
        "Full A-CRC-QA": "acrc",
    }


def rule_of(label: str) -> str:
    """The rule name of a method or variant on the command line, with its name in the paper if that differs."""
    spec = (methods(DELTA) | variants()).get(label, label)
    name, options = (spec, {}) if isinstance(spec, str) else spec
    rule = rule_text(name, {option: value for option, value in options.items() if option != "delta"})
    return rule if rule == label else f"{rule} ({label})"


class PaperTables(Frozen):
    """The paper's experiments on these records."""

    alpha: float
    """Target where a table does not vary it."""
    delta: float
    """Failure probability of the confidence bounds and of the certificate."""
    rows: dict[str, tuple[PaperRow, ...]]
    """Rows by the name of their table (`TABLES`, `FIGURE`): those that were asked for.

    "main": every method, by data set and model. "risk-levels": A-CRC by target; means over models. "scores": A-CRC by
    score. "sizes": A-CRC by calibration size; means over models. "ablation": variants of A-CRC; means over models.
    """

    def flat(self, name: str) -> list[dict[str, Any]]:
        """Rows as columns: every value with its standard error, also those the paper does not print."""
        return [{"table": name} | flat(row, list(PaperRow.model_fields)) for row in self.rows[name]]

    def title(self, name: str) -> str:
        """Heading of a table."""
        sizes = sorted({row.n_calibration for row in self.rows[name]})
        size = "" if name == "sizes" else f", n = {' or '.join(f'{n:,}' for n in sizes)}"
        target = "" if name == "risk-levels" else f", alpha = {self.alpha:g}"
        subject = {
            "main": "Main results",
            "risk-levels": "A-CRC across target risk levels",
            "scores": "A-CRC by score",
            "sizes": "A-CRC by calibration size",
            "ablation": "Ablation",
        }[name]
        return subject + target + size

    def printed(self, name: str, *, errors: bool = True) -> tuple[tuple[str, ...], list[list[str]]]:
        """Columns and cells of a table as the paper prints it, with standard errors or without."""
        heads = _COLUMNS[name]
        rows = [[_CELLS[head](row) for head in heads] for row in self.rows[name]]
        return heads, rows if errors else [[re.sub(r"±[\d.]+", "", cell) for cell in row] for row in rows]

    def texts(self, name: str) -> int:
        """Number of leading columns that hold names rather than figures."""
        return {"main": 3, "scores": 3, "ablation": 2}.get(name, 1)

    def figure(self) -> Figure:
        """The paper's figure: SCER and acceptance against alpha, two panels for each data set."""
        return _panels(self.rows[FIGURE])


def paper_pool(source: Source, scores: Sequence[str] | None, *, cluster_by_group: bool = False) -> PaperPool:
    """The items of record files that have a label and every one of the scores, so that all rows are of the same items.

    Raises:
        UsageError: No item has all of them, or groups are missing.
    """
    keys = keys_of(source, scores)
    usable = [
        record
        for record in source.records
        if all(key in record.scores and record.scores[key].value is not None for key in keys)
    ]
    scored = {key: arrays(usable, key) for key in keys}
    first = scored[keys[0]]
    need_groups(first, cluster_by_group)
    return PaperPool(
        dataset=source.dataset,
        model=source.model,
        error=first.error,
        uncertainty={key: scored[key].uncertainty for key in keys},
        groups=first.group if cluster_by_group else None,
    )


def paper_tables(
    pools: Sequence[PaperPool],
    names: Sequence[str] = TABLES,
    *,
    alphas: Sequence[float] = (),
    sizes: Sequence[int] = (),
    splits: int = 100,
    seed: int = 0,
    delta: float = DELTA,
    progress: Progress = silent,
) -> PaperTables:
    """Run the paper's experiments: random splits of each pool, the same for every method.

    With several pools of one model and data set standard errors are those between pools; with one, those between its
    splits, which say nothing about another pool.

    Args:
        pools: One for each data set and model, or several as repetitions.
        names: Which of `TABLES` and `FIGURE`.
        alphas: Targets across risk levels; the first one is also the target elsewhere. Default: the paper's.
        sizes: Calibration sizes of that table; a single one is the size elsewhere. Default: the paper's that fit.
        splits: Random splits of each pool.
        seed: Of the splits.
        delta: Failure probability of the confidence bounds and of the certificate.
        progress: Called after each pool.

    Raises:
        UsageError: No pool, a pool without a score, or as `calibrate.evaluation.evaluate.evaluate`.
    """
    if not pools or not all(pool.uncertainty for pool in pools):
        raise UsageError("the paper's tables need at least one pool, and each pool at least one score.")
    alpha = alphas[0] if alphas else ALPHA
    levels = tuple(alphas) if len(alphas) > 1 else ALPHAS
    fewest = min(np.asarray(pool.error).size for pool in pools)
    n = sizes[0] if len(sizes) == 1 else N_CALIBRATION if 3 * fewest >= 4 * N_CALIBRATION else fewest // 2
    found: dict[str, list[PaperRow]] = {name: [] for name in names}
    for done, pool in enumerate(pools, start=1):
        own = partial(_evaluated, pool, splits=splits, seed=seed)
        for name in names:
            match name:
                case "main":
                    found[name] += own(methods(delta), [alpha], n)
                case "risk-levels":
                    found[name] += [
                        row.model_copy(update={"label": f"{row.alpha:.2f}"}) for row in own({"": "acrc"}, levels, n)
                    ]
                case "scores":
                    for score in pool.uncertainty:
                        found[name] += own({score: "acrc"}, [alpha], n, score=score)
                case "sizes":
                    for size in sizes or _sizes(fewest):
                        found[name] += own({f"{size:,}": "acrc"}, [alpha], size)
                case "ablation":
                    found[name] += own(variants(), [alpha], n)
                case _:
                    found[name] += own(methods(delta), levels, n)
        progress(done, len(pools))
    averaged = {name: average(each, over_models=name not in ("main", "scores")) for name, each in found.items()}
    return PaperTables(alpha=alpha, delta=delta, rows=averaged)


def _sizes(items: int) -> tuple[int, ...]:
    """The paper's sizes that fit, or, of a small pool, an eighth, a quarter and a half."""
    fit = tuple(size for size in SIZES if 4 * size <= 3 * items)
    return fit if len(fit) > 1 else tuple(sorted({max(1, items // part) for part in (8, 4, 2)}))


def _evaluated(
    pool: PaperPool,
    rules: Mapping[str, RuleSpec],
    alphas: Sequence[float],
    n_calibration: int,
    *,
    splits: int,
    seed: int,
    score: str | None = None,
) -> list[PaperRow]:
    """Rows of one pool and score (default: its main one), rules outermost."""
    evaluation = evaluate(
        pool.uncertainty[next(iter(pool.uncertainty)) if score is None else score],
        pool.error,
        rules=list(rules.values()),
        alphas=alphas,
        n_calibration=n_calibration,
        splits=splits,
        seed=seed,
        groups=pool.groups,
    )
    labels = [label for label in rules for _ in alphas]
    return [
        PaperRow(
            dataset=pool.dataset,
            model=pool.model,
            label=label,
            alpha=row.alpha,
            n_calibration=evaluation.n_calibration,
            pools=1,
            accuracy=1.0 - evaluation.base_error,
            auroc=evaluation.auroc,
            scer=row.scer,
            scer_sd=row.scer_sd,
            acceptance=row.acceptance,
            acceptance_sd=None if row.acceptance.se is None else row.acceptance.se * math.sqrt(row.splits),
            power=row.power,
            violation_rate=row.violation_rate,
            infeasible_rate=row.infeasible_rate,
            feasible=row.n_feasible,
        )
        for label, row in zip(labels, evaluation.rows, strict=True)
    ]


# -- Means over pools and over models ----------------------------------------------------------------------------------


def average(rows: Sequence[PaperRow], *, over_models: bool = False) -> tuple[PaperRow, ...]:
    """Mean over pools of one model, and over the models of a data set if asked; in order of first appearance."""
    merged = _merge(rows, lambda row: (row.dataset, row.model, row.label, row.alpha), _between)
    if over_models:
        merged = _merge(merged, lambda row: (row.dataset, row.label, row.alpha), _across)
    return tuple(merged)


def _merge(
    rows: Sequence[PaperRow],
    key: Callable[[PaperRow], tuple[Any, ...]],
    combine: Callable[[Sequence[Estimate]], Estimate],
) -> list[PaperRow]:
    order: dict[tuple[Any, ...], int] = {}
    for row in rows:
        order.setdefault(key(row), len(order))
    ranked = sorted(rows, key=lambda row: order[key(row)])
    return [_mean_row(list(same), combine) for _, same in groupby(ranked, key=key)]


def _mean_row(rows: Sequence[PaperRow], combine: Callable[[Sequence[Estimate]], Estimate]) -> PaperRow:
    if len(rows) == 1 and combine is _between:
        return rows[0]
    updates: dict[str, Any] = {
        "model": rows[0].model if combine is _between else None,
        "pools": sum(row.pools for row in rows),
        "feasible": sum(row.feasible for row in rows),
    }
    for name in ("scer", "acceptance", "power", "violation_rate", "infeasible_rate"):
        estimates = [value for row in rows if (value := getattr(row, name)) is not None]
        updates[name] = combine(estimates) if estimates else None
    for name in ("accuracy", "auroc", "scer_sd", "acceptance_sd"):
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        updates[name] = math.fsum(values) / len(values) if values else None
    return rows[0].model_copy(update=updates)


def _between(values: Sequence[Estimate]) -> Estimate:
    """Pools of one population: the spread between them is the error."""
    x = np.array([value.value for value in values])
    return Estimate(value=float(x.mean()), se=float(x.std(ddof=1)) / math.sqrt(x.size) if x.size > 1 else values[0].se)


def _across(values: Sequence[Estimate]) -> Estimate:
    """Different models: each keeps its own error."""
    errors = [value.se for value in values if value.se is not None]
    mean = math.fsum(value.value for value in values) / len(values)
    return Estimate(value=mean, se=math.hypot(*errors) / len(values) if len(errors) == len(values) else None)


# -- As the paper prints them ------------------------------------------------------------------------------------------


def _scer(row: PaperRow) -> str:
    if row.scer is None:
        return "-"
    error = "" if row.scer.se is None else f"±{row.scer.se:.3f}"
    return f"{row.scer.value:.3f}{error}{few(row.feasible)}"


def _percent(name: str) -> Callable[[PaperRow], str]:
    def shown(row: PaperRow) -> str:
        value: Estimate | None = getattr(row, name)
        if value is None:
            return "-"
        return f"{100 * value.value:.1f}" + ("" if value.se is None else f"±{100 * value.se:.1f}")

    return shown


_CELLS: dict[str, Callable[[PaperRow], str]] = {
    "data set": lambda row: row.dataset,
    "model": lambda row: row.model or "mean",
    "method": lambda row: rule_of(row.label),
    "variant": lambda row: rule_of(row.label),
    "alpha": lambda row: row.label,
    "score": lambda row: row.label,
    "n": lambda row: row.label,
    "AUROC": lambda row: "-" if row.auroc is None else f"{row.auroc:.3f}",
    "SCER": _scer,
    "sd": lambda row: "-" if row.scer_sd is None else f"{row.scer_sd:.3f}",
    "AR %": _percent("acceptance"),
    "power %": _percent("power"),
    "VR %": _percent("violation_rate"),
    "IF %": _percent("infeasible_rate"),
}
"""The text of each column."""
_COLUMNS = {
    "main": ("data set", "model", "method", "SCER", "AR %", "power %", "VR %"),
    "risk-levels": ("data set", "alpha", "SCER", "AR %", "power %", "VR %", "IF %"),
    "scores": ("data set", "model", "score", "AUROC", "SCER", "AR %", "power %"),
    "sizes": ("data set", "n", "SCER", "sd", "AR %", "VR %", "IF %"),
    "ablation": ("data set", "variant", "SCER", "AR %", "VR %"),
}


def _panels(rows: Sequence[PaperRow]) -> Figure:
    """SCER and acceptance against alpha for each data set; of one data set also power and splits above alpha."""
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    kinds: list[tuple[str, str]] = [("scer", "test SCER"), ("acceptance", "acceptance rate")]
    if len(datasets) == 1:
        kinds += [("power", "power"), ("violation_rate", "splits above alpha")]
    jobs = [(dataset, field, title) for dataset in datasets for field, title in kinds]

    def draw(axes: Any, colour: Palette) -> None:
        for panel, (dataset, field, title) in zip(axes, jobs, strict=True):
            _panel(panel, [row for row in rows if row.dataset == dataset], field, colour)
            panel.set_title(f"{dataset}: {title}, %", loc="left", color=colour.ink, fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        columns = fitting(axes[0], 4, 2)
        axes[0].figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False, labelcolor=colour.ink
        )

    down, title = len(jobs) // 2, "Risk and acceptance across target levels"
    return render(draw, "panels", title, size=(10.0, 3.6 * down + 0.6), panels=(down, 2))


def _panel(panel: Any, rows: Sequence[PaperRow], field: str, colour: Palette) -> None:
    """One panel; bands are one standard deviation over splits."""
    labels = sorted(dict.fromkeys(row.label for row in rows), key=lambda label: label not in BANDED)
    for index, label in enumerate(labels):
        ink, dashes, marker = style(index, colour)
        points = [(row, value) for row in rows if row.label == label and (value := getattr(row, field)) is not None]
        x, y = [100 * row.alpha for row, _ in points], [100 * value.value for _, value in points]
        width = 2.6 if label in BANDED else 1.5
        panel.plot(x, y, color=ink, ls=dashes, marker=marker, ms=4.5, lw=width, label=rule_of(label))
        sds = [100 * sd for row, _ in points if (sd := getattr(row, f"{field}_sd", None)) is not None]
        if label in BANDED and sds and len(sds) == len(y):
            low = [at - sd for at, sd in zip(y, sds, strict=True)]
            high = [at + sd for at, sd in zip(y, sds, strict=True)]
            panel.fill_between(x, low, high, color=ink, alpha=0.13, lw=0)
    targets = sorted({100 * row.alpha for row in rows})
    if field == "scer":
        panel.plot(targets, targets, color=colour.ink, lw=1, ls=(0, (1, 2)), label="target alpha")
    panel.set_xticks(targets)
    panel.set_xlabel("target alpha, %")
    panel.set_ylim(bottom=0)
