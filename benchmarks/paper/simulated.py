"""Binormal populations with the accuracy and AUROC that the paper's tables imply."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks.paper.printed import POPULATIONS, Population
from calibrate.evaluation.planning import Binormal
from calibrate.evaluation.tables import Pool

__all__ = ["simulated_pools"]


def simulated_pools(
    repetitions: int, *, items: int = 4_000, seed: int = 0, populations: Sequence[Population] = POPULATIONS
) -> list[Pool]:
    """Independent pools of every population, the paper's 4,000 items each.

    The scores of the estimators of one pool are drawn independently of each other given the errors.
    """
    children = np.random.SeedSequence(seed).spawn(repetitions * len(populations))
    pairs = product(populations, range(repetitions))
    return [
        _pool(population, items, np.random.default_rng(child))
        for (population, _), child in zip(pairs, children, strict=True)
    ]


def _pool(population: Population, items: int, rng: np.random.Generator) -> Pool:
    error = (rng.random(items) >= population.accuracy).astype(np.int8)
    scores = {
        name: rng.normal(size=items) + Binormal(population.accuracy, auroc).gap * error
        for name, auroc in population.auroc.items()
    }
    return Pool(population.dataset, population.model, error, scores)
