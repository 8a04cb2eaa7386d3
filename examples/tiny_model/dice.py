"""Seeded draws that are the same on every Python version.

Only `random.Random.random()` is promised by the standard library to keep its sequence; `shuffle`, `choice` and
`sample` are not. Everything here is built on that one method.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """A stream of reproducible draws.

    Args:
        seed: A text naming the stream; two streams with different seeds are unrelated.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._random.random() < probability

    def below(self, bound: int) -> int:
        """Return an integer drawn evenly from 0 to bound - 1."""
        return int(self._random.random() * bound)

    def between(self, low: int, high: int) -> int:
        """Return an integer drawn evenly from low to high, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """Return one item, each equally likely."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """Return one item with probability proportional to its weight."""
        mark = self._random.random() * sum(weights)
        for item, weight in zip(items, weights, strict=True):
            mark -= weight
            if mark < 0:
                return item
        return items[-1]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order (Fisher-Yates)."""
        deck = list(items)
        for last in range(len(deck) - 1, 0, -1):
            other = self.below(last + 1)
            deck[last], deck[other] = deck[other], deck[last]
        return deck
