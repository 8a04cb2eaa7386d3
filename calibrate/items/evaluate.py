"""Rules for items on answers that they were not fitted on: over random splits, and in simulated calibrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guardrail.errors import UsageError

from ..data.progress import Progress, silent
from ..data.records import RecordFile
from ..data.split import one_per_question
from ..evaluation.planning import DEFAULT_SIZES
from .answers import key_of_items, packed_answers
from .fit import ItemsRule, fit_items
from .rules import RULES, AnswerItems

__all__ = [
    "SIZES",
    "ItemsRow",
    "answers_needed",
    "chosen_rules",
    "compared_rules",
    "evaluate_items",
    "pilot_items",
    "plan_items",
    "simulate_items",
]

SIZES = DEFAULT_SIZES[:5]
"""Numbers of labelled answers that are simulated by default."""


@dataclass(frozen=True, slots=True)
class ItemsRow:
    """A rule at a target; means over calibrations. A calibration that finds no threshold keeps nothing.

    Attributes:
        rule: The rule with its unit, as `--rule` takes it.
        alpha: Its target.
        n: Answers it is fitted on.
        kept: Share of items kept.
        right_kept: Share of right items kept; None with a cut, above which nobody knows which items are right.
        shown: Share of answers of which something is kept.
        complete: Share of answers of which everything is kept.
        wrong: Share of wrong ones among the kept; None if nothing is ever kept.
        broken: Share of shown answers that keep too many wrong items; None if nothing is ever shown.
        violated: Share of calibrations whose risk on the test answers is above alpha.
        infeasible: Share of calibrations that find no threshold.
    """

    rule: str
    alpha: float
    n: int
    kept: float
    right_kept: float | None
    shown: float
    complete: float
    wrong: float | None
    broken: float | None
    violated: float
    infeasible: float


def pilot_items(file: RecordFile, kind: str, *, cap: int | None = None, cut: float | None = None) -> AnswerItems:
    """The labelled answers of a file, one for each question.

    Args:
        file: Records with items and labels.
        kind: "json" or "sentences".
        cap: Another cap than that of the items.
        cut: Items above it are never kept and need no label, as in `fit_items_artifact`.

    Raises:
        UsageError: As `packed_answers`.
    """
    return packed_answers(file, key_of_items(file, kind), part=one_per_question(file.records), cap=cap, cut=cut).items


def chosen_rules(kind: str, rules: Sequence[ItemsRule | str]) -> list[ItemsRule]:
    """Rules with the defaults of a kind of items, from rules or their texts.

    Raises:
        UsageError: As `ItemsRule.read`.
    """
    return [ItemsRule.read(rule).resolved(kind) for rule in rules]


def compared_rules(kind: str) -> list[ItemsRule]:
    """The rules that are compared by default: the default of the kind first."""
    share = [ItemsRule("wrong_share", "item"), ItemsRule("wrong_share", "answer")]
    others = [ItemsRule(name).resolved(kind) for name in RULES if name != "wrong_share"]
    return [*(share if kind == "json" else share[::-1]), *others]


def evaluate_items(
    items: AnswerItems,
    *,
    rules: Sequence[ItemsRule],
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
        rules: Rules, with their unit.
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
    if splits < 1:
        raise UsageError(f"splits must be at least 1, got {splits}.")

    def draw(rng: np.random.Generator) -> tuple[AnswerItems, AnswerItems]:
        order = rng.permutation(items.n)
        return items.take(order[:n]), items.take(order[n:])

    return _rows(draw, rules, alphas, delta, n, splits, seed, progress, items.cut)


def simulate_items(
    pool: AnswerItems,
    *,
    rules: Sequence[ItemsRule],
    alphas: Sequence[float],
    n: int,
    delta: float = 0.1,
    calibrations: int = 250,
    seed: int = 0,
    progress: Progress = silent,
) -> list[ItemsRow]:
    """Draw calibrations of n answers from a pool with replacement; the pool is the population, so the risk is known.

    Args:
        pool: Labelled answers.
        rules: Rules, with their unit.
        alphas: Targets.
        n: Answers of a calibration.
        delta: Failure probability.
        calibrations: Simulated calibrations.
        seed: Seed.
        progress: Reports rows done.

    Raises:
        UsageError: No answer or no calibration is asked for.
    """
    if n < 1:
        raise UsageError(f"a calibration needs at least 1 answer, got {n}.")
    if calibrations < 1:
        raise UsageError(f"the number of simulated calibrations must be at least 1, got {calibrations}.")

    def draw(rng: np.random.Generator) -> tuple[AnswerItems, AnswerItems]:
        some = pool.take(rng.integers(0, pool.n, n))
        # An answer that is drawn twice is two draws, and needs two names.
        return replace(some, ids=tuple(map(str, range(n)))), pool

    return _rows(draw, rules, alphas, delta, n, calibrations, seed, progress, pool.cut)


def plan_items(
    pool: AnswerItems,
    *,
    rules: Sequence[ItemsRule],
    alpha: float,
    sizes: Sequence[int],
    delta: float = 0.1,
    calibrations: int = 250,
    seed: int = 0,
    progress: Progress = silent,
) -> list[ItemsRow]:
    """`simulate_items` for several numbers of answers, in this order.

    Args:
        pool: Labelled answers.
        rules: Rules, with their unit.
        alpha: Target.
        sizes: Answers of a calibration.
        delta: Failure probability.
        calibrations: Simulated calibrations of each size.
        seed: Seed.
        progress: Reports sizes done.

    Raises:
        UsageError: As `simulate_items`.
    """
    rows: list[ItemsRow] = []
    for done, n in enumerate(sizes, start=1):
        rows += simulate_items(
            pool, rules=rules, alphas=[alpha], n=n, delta=delta, calibrations=calibrations, seed=seed
        )
        progress(done, len(sizes))
    return rows


def _rows(
    draw: Callable[[np.random.Generator], tuple[AnswerItems, AnswerItems]],
    rules: Sequence[ItemsRule],
    alphas: Sequence[float],
    delta: float,
    n: int,
    runs: int,
    seed: int,
    progress: Progress,
    cut: float | None,
) -> list[ItemsRow]:
    rows = []
    pairs = [(rule, alpha) for alpha in alphas for rule in rules]
    for done, (rule, alpha) in enumerate(pairs, start=1):
        rng = np.random.default_rng(seed)
        results = [_counted(*draw(rng), rule, alpha, delta) for _ in range(runs)]
        row = _mean(rule, alpha, n, results)
        rows.append(row if cut is None else replace(row, right_kept=None))
        progress(done, len(pairs))
    return rows


def _counted(some: AnswerItems, test: AnswerItems, rule: ItemsRule, alpha: float, delta: float) -> dict[str, Any]:
    threshold = fit_items(some, alpha=alpha, delta=delta, rule=rule).threshold
    if threshold is None:
        return {"feasible": False}
    kept, wrong = (counts[:, 0].astype(np.float64) for counts in test.counts(np.array([threshold])))
    shown, broken = kept > 0, wrong > rule.allowed
    return {
        "feasible": True,
        "kept": kept.sum() / max(1, test.size.sum()),
        "right_kept": (kept.sum() - wrong.sum()) / max(1, (test.wrong == 0).sum()),
        "shown": shown.mean(),
        "complete": ((kept == test.size) & shown).mean(),
        "wrong": wrong.sum() / kept.sum() if shown.any() else None,
        "broken": broken.sum() / shown.sum() if shown.any() else None,
        "violated": _violated(kept, wrong, broken, rule, alpha),
    }


def _violated(
    kept: NDArray[np.float64], wrong: NDArray[np.float64], broken: NDArray[np.bool_], rule: ItemsRule, alpha: float
) -> bool:
    shown = kept > 0
    if not shown.any():
        return False
    share = wrong.sum() / kept.sum() if rule.per == "item" else (wrong[shown] / kept[shown]).mean()
    return bool(
        {
            "wrong_share": share > alpha,
            "clean_shown": broken[shown].mean() > alpha,
            "clean_answers": broken.mean() > alpha,
            "both": share > alpha or broken.mean() > (rule.clean_alpha or alpha),
        }[str(rule.name)]
    )


def _mean(rule: ItemsRule, alpha: float, n: int, results: Sequence[dict[str, Any]]) -> ItemsRow:
    feasible = [result for result in results if result["feasible"]]

    def share(name: str) -> float:
        return float(sum(result[name] for result in feasible) / len(results))

    def among(name: str) -> float | None:
        values = [result[name] for result in feasible if result[name] is not None]
        return float(np.mean(values)) if values else None

    return ItemsRow(
        rule=rule.text,
        alpha=alpha,
        n=n,
        kept=share("kept"),
        right_kept=share("right_kept"),
        shown=share("shown"),
        complete=share("complete"),
        wrong=among("wrong"),
        broken=among("broken"),
        violated=share("violated"),
        infeasible=1 - len(feasible) / len(results),
    )


def answers_needed(alpha: float, delta: float, share: float) -> int:
    """Fewest answers that certify a share of wrong items without a single error.

    Formula: ``ln(1/delta) / ln(1 + .9 alpha k / (1 - alpha))``, k the mean of items kept over the cap.
    """
    return math.ceil(math.log(1 / delta) / math.log1p(0.9 * alpha * share / (1 - alpha)) - 1e-9)
