"""Rules for parts on answers that they were not fitted on: over random splits, and in simulated calibrations."""

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
from .answers import key_of_parts, packed_answers
from .fit import PartsRule, fit_parts
from .rules import RULES, AnswerParts

__all__ = [
    "SIZES",
    "PartsRow",
    "answers_needed",
    "chosen_rules",
    "compared_rules",
    "evaluate_parts",
    "pilot_parts",
    "plan_parts",
    "simulate_parts",
]

SIZES = DEFAULT_SIZES[:5]
"""Numbers of labelled answers that are simulated by default."""


@dataclass(frozen=True, slots=True)
class PartsRow:
    """A rule at a target; means over calibrations. A calibration that finds no threshold keeps nothing.

    Attributes:
        rule: The rule with its unit, as `--rule` takes it.
        alpha: Its target.
        n: Answers it is fitted on.
        kept: Share of parts kept.
        right_kept: Share of right parts kept; None with a cut, above which nobody knows which parts are right.
        shown: Share of answers of which something is kept.
        complete: Share of answers of which everything is kept.
        wrong: Share of wrong ones among the kept; None if nothing is ever kept.
        broken: Share of shown answers that keep too many wrong parts; None if nothing is ever shown.
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


def pilot_parts(file: RecordFile, kind: str, *, cap: int | None = None, cut: float | None = None) -> AnswerParts:
    """The labelled answers of a file, one for each question.

    Args:
        file: Records with parts and labels.
        kind: "json" or "sentences".
        cap: Another cap than that of the parts.
        cut: Parts above it are never kept and need no label, as in `fit_parts_artifact`.

    Raises:
        UsageError: As `packed_answers`.
    """
    return packed_answers(file, key_of_parts(file, kind), part=one_per_question(file.records), cap=cap, cut=cut).parts


def chosen_rules(kind: str, rules: Sequence[PartsRule | str]) -> list[PartsRule]:
    """Rules with the defaults of a kind of parts, from rules or their texts.

    Raises:
        UsageError: As `PartsRule.read`.
    """
    return [PartsRule.read(rule).resolved(kind) for rule in rules]


def compared_rules(kind: str) -> list[PartsRule]:
    """The rules that are compared by default: the default of the kind first."""
    share = [PartsRule("wrong_share", "part"), PartsRule("wrong_share", "answer")]
    others = [PartsRule(name).resolved(kind) for name in RULES if name != "wrong_share"]
    return [*(share if kind == "json" else share[::-1]), *others]


def evaluate_parts(
    parts: AnswerParts,
    *,
    rules: Sequence[PartsRule],
    alphas: Sequence[float],
    delta: float = 0.1,
    n_calibration: int | None = None,
    splits: int = 100,
    seed: int = 0,
    progress: Progress = silent,
) -> list[PartsRow]:
    """Fit on a random part of the answers and count on the others, many times; every rule sees the same splits.

    A test part that is small errs in the direction opposite to the part fitted on, so ``violated`` reads high.

    Args:
        parts: Labelled answers.
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
    n = parts.n // 2 if n_calibration is None else n_calibration
    if not 0 < n < parts.n:
        raise UsageError(f"{parts.n} labelled answers cannot be cut into {n} to fit on and others to test on.")
    if splits < 1:
        raise UsageError(f"splits must be at least 1, got {splits}.")

    def draw(rng: np.random.Generator) -> tuple[AnswerParts, AnswerParts]:
        order = rng.permutation(parts.n)
        return parts.take(order[:n]), parts.take(order[n:])

    return _rows(draw, rules, alphas, delta, n, splits, seed, progress, parts.cut)


def simulate_parts(
    pool: AnswerParts,
    *,
    rules: Sequence[PartsRule],
    alphas: Sequence[float],
    n: int,
    delta: float = 0.1,
    calibrations: int = 250,
    seed: int = 0,
    progress: Progress = silent,
) -> list[PartsRow]:
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

    def draw(rng: np.random.Generator) -> tuple[AnswerParts, AnswerParts]:
        some = pool.take(rng.integers(0, pool.n, n))
        # An answer that is drawn twice is two draws, and needs two names.
        return replace(some, ids=tuple(map(str, range(n)))), pool

    return _rows(draw, rules, alphas, delta, n, calibrations, seed, progress, pool.cut)


def plan_parts(
    pool: AnswerParts,
    *,
    rules: Sequence[PartsRule],
    alpha: float,
    sizes: Sequence[int],
    delta: float = 0.1,
    calibrations: int = 250,
    seed: int = 0,
    progress: Progress = silent,
) -> list[PartsRow]:
    """`simulate_parts` for several numbers of answers, in this order.

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
        UsageError: As `simulate_parts`.
    """
    rows: list[PartsRow] = []
    for done, n in enumerate(sizes, start=1):
        rows += simulate_parts(
            pool, rules=rules, alphas=[alpha], n=n, delta=delta, calibrations=calibrations, seed=seed
        )
        progress(done, len(sizes))
    return rows


def _rows(
    draw: Callable[[np.random.Generator], tuple[AnswerParts, AnswerParts]],
    rules: Sequence[PartsRule],
    alphas: Sequence[float],
    delta: float,
    n: int,
    runs: int,
    seed: int,
    progress: Progress,
    cut: float | None,
) -> list[PartsRow]:
    rows = []
    pairs = [(rule, alpha) for alpha in alphas for rule in rules]
    for done, (rule, alpha) in enumerate(pairs, start=1):
        rng = np.random.default_rng(seed)
        results = [_counted(*draw(rng), rule, alpha, delta) for _ in range(runs)]
        row = _mean(rule, alpha, n, results)
        rows.append(row if cut is None else replace(row, right_kept=None))
        progress(done, len(pairs))
    return rows


def _counted(some: AnswerParts, test: AnswerParts, rule: PartsRule, alpha: float, delta: float) -> dict[str, Any]:
    threshold = fit_parts(some, alpha=alpha, delta=delta, rule=rule).threshold
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
    kept: NDArray[np.float64], wrong: NDArray[np.float64], broken: NDArray[np.bool_], rule: PartsRule, alpha: float
) -> bool:
    shown = kept > 0
    if not shown.any():
        return False
    share = wrong.sum() / kept.sum() if rule.per == "part" else (wrong[shown] / kept[shown]).mean()
    return bool(
        {
            "wrong_share": share > alpha,
            "clean_shown": broken[shown].mean() > alpha,
            "clean_answers": broken.mean() > alpha,
            "both": share > alpha or broken.mean() > (rule.clean_alpha or alpha),
        }[str(rule.name)]
    )


def _mean(rule: PartsRule, alpha: float, n: int, results: Sequence[dict[str, Any]]) -> PartsRow:
    feasible = [result for result in results if result["feasible"]]

    def share(name: str) -> float:
        return float(sum(result[name] for result in feasible) / len(results))

    def among(name: str) -> float | None:
        values = [result[name] for result in feasible if result[name] is not None]
        return float(np.mean(values)) if values else None

    return PartsRow(
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
    """Fewest answers that certify a share of wrong parts without a single error.

    Formula: ``ln(1/delta) / ln(1 + .9 alpha k / (1 - alpha))``, k the mean of parts kept over the cap.
    """
    return math.ceil(math.log(1 / delta) / math.log1p(0.9 * alpha * share / (1 - alpha)) - 1e-9)
