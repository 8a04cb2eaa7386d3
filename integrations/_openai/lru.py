"""A small thread-safe cache: the values used last, by key."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class LRU(Generic[Value]):
    """The values used last, by key; the value unused for longest makes room. Shared by threads and tasks.

    Unlike `functools.lru_cache`, a deep copy is empty, and each call brings the function that makes the value.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> LRU[Value]:
        return LRU(self._most)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value under a key, made by ``make`` if it is missing.

        ``make`` runs under the lock, so that two callers cannot make the same value twice.
        """
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
            return self._values[key]
