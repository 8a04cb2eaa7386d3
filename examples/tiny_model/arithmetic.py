"""Sums and products of graded difficulty, with the operand pairs of the pool kept out of training."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import add, mul

from examples.tiny_model.dice import Dice
from examples.tiny_model.world import WORLD_SEED

TEMPLATES = {
    "+": ("What is {} + {}?", "Compute {} + {}.", "How much is {} plus {}?"),
    "*": ("What is {} times {}?", "Compute {} times {}.", "How much is {} multiplied by {}?"),
}
FORMS = ("{}", "{}.", "= {}")
"""Surface forms of a number, in the order of `FORM_WEIGHTS`; they differ in punctuation alone."""


@dataclass(frozen=True, slots=True)
class Level:
    """One difficulty.

    Attributes:
        group: Group name in the pool.
        sign: "+" or "*".
        first: Inclusive range of one operand.
        second: Inclusive range of the other.
        pool: Number of operand pairs kept for the pool.
        share: Weight of the level among the arithmetic rows of training; 0 for a level that is asked but never taught.
    """

    group: str
    sign: str
    first: tuple[int, int]
    second: tuple[int, int]
    pool: int
    share: float

    def answer(self, first: int, second: int) -> int:
        """Return the right result."""
        operation: Callable[[int, int], int] = add if self.sign == "+" else mul
        return operation(first, second)


LEVELS = (
    Level("arithmetic-add-small", "+", (1, 30), (1, 30), 150, 0.4),
    Level("arithmetic-add-large", "+", (31, 99), (31, 99), 200, 0.3),
    Level("arithmetic-multiply", "*", (2, 20), (2, 20), 100, 0.2),
    Level("arithmetic-add-giant", "+", (1000, 4999), (1000, 4999), 200, 0.0),
    Level("arithmetic-add-huge", "+", (100, 999), (100, 999), 150, 0.1),
)


@lru_cache(maxsize=1)
def held_out() -> dict[str, tuple[tuple[int, int], ...]]:
    """Return, by group, the operand pairs of the pool.

    A pair stands for both orders: if (3, 17) is in the pool, training sees neither 3 + 17 nor 17 + 3.
    """
    return {level.group: _pairs(level) for level in LEVELS}


def _pairs(level: Level) -> tuple[tuple[int, int], ...]:
    dice = Dice(f"{WORLD_SEED}/{level.group}")
    chosen: dict[frozenset[int], tuple[int, int]] = {}
    while len(chosen) < level.pool:
        pair = (dice.between(*level.first), dice.between(*level.second))
        chosen.setdefault(frozenset(pair), pair)
    return tuple(chosen.values())


@lru_cache(maxsize=1)
def _forbidden() -> dict[str, frozenset[frozenset[int]]]:
    return {group: frozenset(frozenset(pair) for pair in pairs) for group, pairs in held_out().items()}


def draw_training_problem(dice: Dice) -> tuple[Level, int, int]:
    """Return a level and operands that the pool does not contain."""
    level = dice.weighted(LEVELS, [level.share for level in LEVELS])
    while True:
        first, second = dice.between(*level.first), dice.between(*level.second)
        if frozenset((first, second)) not in _forbidden()[level.group]:
            return level, first, second
