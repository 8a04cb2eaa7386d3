"""The paper's five tables in form, from any pools of scores and errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from guardrail.errors import UsageError
from guardrail.types import Frozen

from ..data.progress import Progress, silent
from ..spec_syntax import rule_text
from .evaluate import Estimate, Evaluation, EvaluationRow, RuleSpec, evaluate

__all__ = [
    "ALPHAS",
    "SIZES",
    "PaperTables",
    "RecordPool",
    "TableRow",
    "average",
    "methods",
    "rule_of",
    "run",
    "tables",
    "variants",
]

ALPHAS = (0.05, 0.1, 0.15, 0.2, 0.25)
SIZES = (100, 250, 500, 1000, 1500)


@dataclass(frozen=True, slots=True)
class RecordPool:
    """Recorded outputs of one model on one data set. Pools of the same model and data set are repetitions."""

    dataset: str
    """Name of the data set; models of one data set are averaged in three of the tables."""
    model: str
    """Name of the model."""
    error: ArrayLike
    """1 where the answer is wrong, shape (n,)."""
    uncertainty: Mapping[str, ArrayLike]
    """Scores by estimator, each of shape (n,); the first is the main one."""
    groups: Sequence[Hashable] | None = None
    """Conversation, user or document of each item; None when items are independent."""
    n_calibration: int | None = None
    """Calibration items of each split where not the tables' own; None for those."""


class TableRow(Frozen):
    """One row of any of the tables. Shares are proportions; fields that a table does not print are filled as well."""

    dataset: str
    """Name of the data set."""
    model: str | None
    """Name of the model; None for the mean over the data set's models."""
    label: str
    """Method, target level, estimator, calibration size or variant."""
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
    """Its standard deviation over those splits."""
    acceptance: Estimate
    """AR: accepted share of the test items."""
    acceptance_sd: float | None
    """Its standard deviation over splits."""
    power: Estimate | None
    """Accepted share of the correct test items."""
    violation_rate: Estimate
    """VR: share of splits whose test error rate exceeds alpha."""
    infeasible_rate: Estimate
    """IF: share of splits that accepted nothing."""
    feasible: int
    """Splits behind ``scer``, over all pools."""


class PaperTables(Frozen):
    """The five tables."""

    main: tuple[TableRow, ...]
    """Every method, by data set and model, and the certificate beside them."""
    risk_levels: tuple[TableRow, ...]
    """A-CRC by target level; means over models."""
    estimators: tuple[TableRow, ...]
    """A-CRC by estimator."""
    calibration_sizes: tuple[TableRow, ...]
    """A-CRC by calibration size; means over models. Sizes that leave less than a quarter to test on are left out."""
    ablation: tuple[TableRow, ...]
    """Variants of A-CRC; means over models."""


NamedRule: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""A rule by its name, and its settings."""


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
    spec = (methods(0.05) | variants()).get(label, label)
    named_rule, options = spec if isinstance(spec, tuple) else (spec, {})
    name = named_rule if isinstance(named_rule, str) else named_rule.name
    rule = rule_text(name, {option: value for option, value in options.items() if option != "delta"})
    return rule if rule == label else f"{rule} ({label})"


@dataclass(frozen=True, slots=True)
class _Settings:
    n_calibration: int
    splits: int
    seed: int


@dataclass(slots=True)
class _Collected:
    """Rows of single pools, by table."""

    main: list[TableRow] = field(default_factory=list)
    risk_levels: list[TableRow] = field(default_factory=list)
    estimators: list[TableRow] = field(default_factory=list)
    calibration_sizes: list[TableRow] = field(default_factory=list)
    ablation: list[TableRow] = field(default_factory=list)


def tables(
    pools: RecordPool | Sequence[RecordPool],
    *,
    alpha: float = 0.15,
    alphas: Sequence[float] = ALPHAS,
    sizes: Sequence[int] = SIZES,
    n_calibration: int = 1000,
    splits: int = 100,
    delta: float = 0.05,
    seed: int = 0,
    progress: Progress = silent,
) -> PaperTables:
    """Run the paper's experiments on recorded scores and errors; no model is called.

    Protocol of the paper: random splits of each pool, the same for every method, ``n_calibration`` items to calibrate
    on and the rest to test. With several pools of one model and data set, standard errors are those between pools;
    with one, those between its splits, which say nothing about another pool.

    Args:
        pools: One pool or several.
        alpha: Target where a table does not vary it.
        alphas: Targets of the risk-level table.
        sizes: Calibration sizes of that table.
        n_calibration: Calibration items elsewhere.
        splits: Random splits of each pool.
        delta: Failure probability of the confidence bounds and of the certificate (.05 in the paper).
        seed: Of the splits.
        progress: Called after each pool.

    Returns:
        The tables.

    Raises:
        UsageError: No pool, a pool without an estimator, or as :func:`calibrate.evaluation.evaluate.evaluate`.
    """
    record_pools = [pools] if isinstance(pools, RecordPool) else list(pools)
    if not record_pools or not all(pool.uncertainty for pool in record_pools):
        raise UsageError("tables need at least one pool, and each pool at least one score.")
    collected = _Collected()
    for done, pool in enumerate(record_pools, start=1):
        settings = _Settings(pool.n_calibration or n_calibration, splits, seed)
        _one_pool(pool, settings, alpha, alphas, sizes, delta, collected)
        progress(done, len(record_pools))
    return PaperTables(
        main=average(collected.main),
        risk_levels=average(collected.risk_levels, over_models=True),
        estimators=average(collected.estimators),
        calibration_sizes=average(collected.calibration_sizes, over_models=True),
        ablation=average(collected.ablation, over_models=True),
    )


def _one_pool(
    pool: RecordPool,
    settings: _Settings,
    alpha: float,
    alphas: Sequence[float],
    sizes: Sequence[int],
    delta: float,
    collected: _Collected,
) -> None:
    first = next(iter(pool.uncertainty))
    n, splits, seed = settings.n_calibration, settings.splits, settings.seed
    collected.main += run(pool, first, methods(delta), [alpha], n, splits, seed)
    levels = run(pool, first, {"": "acrc"}, alphas, n, splits, seed)
    collected.risk_levels += [row.model_copy(update={"label": f"{row.alpha:.2f}"}) for row in levels]
    for estimator in pool.uncertainty:
        collected.estimators += run(pool, estimator, {estimator: "acrc"}, [alpha], n, splits, seed)
    items = np.asarray(pool.error).size
    for size in (size for size in sizes if 4 * size <= 3 * items):
        collected.calibration_sizes += run(pool, first, {f"{size:,}": "acrc"}, [alpha], size, splits, seed)
    collected.ablation += run(pool, first, variants(), [alpha], n, splits, seed)


def run(
    pool: RecordPool,
    estimator: str,
    labelled: Mapping[str, RuleSpec],
    alphas: Sequence[float],
    n_calibration: int,
    splits: int,
    seed: int,
) -> list[TableRow]:
    """Rows of one pool and estimator, labels outermost."""
    evaluation = evaluate(
        pool.uncertainty[estimator],
        pool.error,
        rules=list(labelled.values()),
        alphas=alphas,
        n_calibration=n_calibration,
        splits=splits,
        seed=seed,
        groups=pool.groups,
    )
    labels = [label for label in labelled for _ in alphas]
    return [_row(pool, label, evaluation, row) for label, row in zip(labels, evaluation.rows, strict=True)]


def _row(pool: RecordPool, label: str, evaluation: Evaluation, row: EvaluationRow) -> TableRow:
    se = row.acceptance.se
    return TableRow(
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
        acceptance_sd=None if se is None else se * math.sqrt(row.splits),
        power=row.power,
        violation_rate=row.violation_rate,
        infeasible_rate=row.infeasible_rate,
        feasible=row.n_feasible,
    )


def average(rows: Sequence[TableRow], *, over_models: bool = False) -> tuple[TableRow, ...]:
    """Mean over pools of one model, and over the models of a data set if asked; in order of first appearance."""
    merged = _merge(rows, lambda row: (row.dataset, row.model, row.label, row.alpha), _between)
    if over_models:
        merged = _merge(merged, lambda row: (row.dataset, row.label, row.alpha), _across)
    return tuple(merged)


def _merge(
    rows: Sequence[TableRow],
    key: Callable[[TableRow], tuple[Any, ...]],
    combine: Callable[[Sequence[Estimate]], Estimate],
) -> list[TableRow]:
    order: dict[tuple[Any, ...], int] = {}
    for row in rows:
        order.setdefault(key(row), len(order))
    ranked = sorted(rows, key=lambda row: order[key(row)])
    return [_mean_row(list(same), combine) for _, same in groupby(ranked, key=key)]


def _mean_row(rows: Sequence[TableRow], combine: Callable[[Sequence[Estimate]], Estimate]) -> TableRow:
    if len(rows) == 1 and combine is _between:
        return rows[0]

    def estimate(name: str) -> Estimate | None:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        return combine(values) if values else None

    def plain(name: str) -> float | None:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        return math.fsum(values) / len(values) if values else None

    names = {row.model for row in rows}
    figures = {name: estimate(name) for name in ("scer", "acceptance", "power", "violation_rate", "infeasible_rate")}
    means = {name: plain(name) for name in ("accuracy", "auroc", "scer_sd", "acceptance_sd")}
    return rows[0].model_copy(
        update={
            **figures,
            **means,
            "model": rows[0].model if len(names) == 1 and combine is _between else None,
            "pools": sum(row.pools for row in rows),
            "feasible": sum(row.feasible or 0 for row in rows),
        }
    )


def _between(values: Sequence[Estimate]) -> Estimate:
    """Pools of one population: the spread between them is the error."""
    x = np.array([value.value for value in values])
    return Estimate(value=float(x.mean()), se=float(x.std(ddof=1)) / math.sqrt(x.size) if x.size > 1 else values[0].se)


def _across(values: Sequence[Estimate]) -> Estimate:
    """Different models: each keeps its own error."""
    errors = [value.se for value in values if value.se is not None]
    mean = math.fsum(value.value for value in values) / len(values)
    return Estimate(value=mean, se=math.hypot(*errors) / len(values) if len(errors) == len(values) else None)
