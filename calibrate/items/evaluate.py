"""Rules for items on answers that they were not fitted on: over random splits, and in simulated calibrations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guardrail.errors import UsageError
from guardrail.items.spec import ItemRule

from ..data.progress import Progress, silent
from ..data.records import RecordFile
from ..data.split import one_per_question
from ..rules.counts import Feasible
from .answers import labelled_items
from .figures import item_figures
from .rules import RULES, AnswerItems, fit_items

__all__ = ["SIZES", "ItemsRow", "evaluate_items", "pilot_items", "plan_items"]

SIZES = (100, 200, 300, 500, 1000)
"""Numbers of labelled answers that are simulated by default."""


@dataclass(frozen=True, slots=True)
class ItemsRow:
    """A rule at a target; means over calibrations. A calibration that finds no threshold keeps nothing.

    Attributes:
        rule: The rule.
        alpha: Its target.
        n: Answers it is fitted on.
        kept: Share of items kept.
        right_kept: Share of right items kept.
        shown: Share of answers of which something is kept.
        complete: Share of answers of which everything is kept.
        wrong: Share of wrong ones among the kept; None if nothing is ever kept.
        broken: Share of shown answers that keep a wrong item; None if nothing is ever shown.
        violated: Share of calibrations whose risk on the test answers is above alpha.
        infeasible: Share of calibrations that find no threshold.
    """

    rule: str
    alpha: float
    n: int
    kept: float
    right_kept: float
    shown: float
    complete: float
    wrong: float | None
    broken: float | None
    violated: float
    infeasible: float


def pilot_items(file: RecordFile, cap: int | None = None) -> AnswerItems:
    """The labelled answers of a file, one for each question; with another cap than that of the items if it is given.

    Raises:
        UsageError: As `labelled_items`.
    """
    return labelled_items(file, one_per_question(file.records), cap=cap).items


def evaluate_items(
    items: AnswerItems,
    *,
    rules: Sequence[ItemRule] = RULES,
    alphas: Sequence[float],
    delta: float = 0.1,
    n_calibration: int | None = None,
    splits: int = 100,
    seed: int = 0,
    progress: Progress = silent,
) -> list[ItemsRow]:
    """Fit on a random split of the answers and count on the others, many times; every rule sees the same splits.

    A small test split errs in the direction opposite to that of the fit, so ``violated`` reads high.

    Args:
        items: Labelled answers.
        rules: Rules by name.
        alphas: Targets.
        delta: Failure probability.
        n_calibration: Answers to fit on; default: half.
        splits: Random splits.
        seed: Seed of the splits.
        progress: Reports rows done.

    Raises:
        UsageError: Too few answers to cut, or no split.
    """
    n = items.n // 2 if n_calibration is None else n_calibration
    if not 0 < n < items.n:
        raise UsageError(f"{items.n} labelled answers cannot be cut into {n} to fit on and others to test on.")

    def draw(rng: np.random.Generator) -> tuple[AnswerItems, AnswerItems]:
        order = rng.permutation(items.n)
        return items.take(order[:n]), items.take(order[n:])

    rows = []
    pairs = [(rule, alpha) for alpha in alphas for rule in rules]
    for done, (rule, alpha) in enumerate(pairs, start=1):
        rows.append(_row(draw, rule, alpha, delta, n, splits, seed))
        progress(done, len(pairs))
    return rows


def plan_items(
    pool: AnswerItems,
    *,
    rules: Sequence[ItemRule] = RULES[:1],
    alpha: float,
    sizes: Sequence[int] = SIZES,
    delta: float = 0.1,
    repetitions: int = 250,
    seed: int = 0,
    progress: Progress = silent,
) -> list[ItemsRow]:
    """Draw calibrations of several sizes from a pool with replacement; the pool is the population: its risk is known.

    Args:
        pool: Labelled answers.
        rules: Rules by name.
        alpha: Target.
        sizes: Answers of a calibration.
        delta: Failure probability.
        repetitions: Simulated calibrations of each size.
        seed: Seed.
        progress: Reports sizes done.

    Raises:
        UsageError: No answer or no calibration is asked for.
    """
    rows: list[ItemsRow] = []
    for done, n in enumerate(sizes, start=1):
        if n < 1:
            raise UsageError(f"a calibration needs at least 1 answer, got {n}.")

        def draw(rng: np.random.Generator, n: int = n) -> tuple[AnswerItems, AnswerItems]:
            some = pool.take(rng.integers(0, pool.n, n))
            # An answer that is drawn twice is two draws, and needs two names.
            return replace(some, ids=tuple(map(str, range(n)))), pool

        rows += [_row(draw, rule, alpha, delta, n, repetitions, seed) for rule in rules]
        progress(done, len(sizes))
    return rows


def _row(
    draw: Callable[[np.random.Generator], tuple[AnswerItems, AnswerItems]],
    rule: ItemRule,
    alpha: float,
    delta: float,
    n: int,
    runs: int,
    seed: int,
) -> ItemsRow:
    if runs < 1:
        raise UsageError(f"the number of splits or simulated calibrations must be at least 1, got {runs}.")
    rng = np.random.default_rng(seed)
    results: list[dict[str, Any]] = []
    for _ in range(runs):
        some, test = draw(rng)
        found = fit_items(some, rule, alpha, delta)
        if isinstance(found, Feasible):
            results.append(_counted(test, found.threshold, rule, alpha))

    def share(name: str) -> float:
        return float(sum(result[name] for result in results) / runs)

    def among(name: str) -> float | None:
        values = [result[name] for result in results if result[name] is not None]
        return float(np.mean(values)) if values else None

    names = ("kept", "right_kept", "shown", "complete", "violated")
    means = {name: share(name) for name in names} | {name: among(name) for name in ("wrong", "broken")}
    return ItemsRow(rule=rule, alpha=alpha, n=n, infeasible=1 - len(results) / runs, **means)  # type: ignore[arg-type]


def _counted(test: AnswerItems, threshold: float, rule: ItemRule, alpha: float) -> dict[str, Any]:
    figures = item_figures(test, threshold)
    risk = figures.share(rule)
    return {
        "kept": figures.kept / figures.items,
        "right_kept": (figures.kept - figures.kept_wrong) / max(1, figures.items - figures.wrong),
        "shown": figures.shown / figures.answers,
        "complete": figures.complete / figures.answers,
        "wrong": figures.share("wrong_share"),
        "broken": figures.share("clean_shown"),
        "violated": risk is not None and risk > alpha,
    }
