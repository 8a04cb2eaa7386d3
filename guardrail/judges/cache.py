"""A cache of verdicts on disk: a pair that was judged once is not judged again, by any process.

One SQLite file holds the verdicts of any number of judges, similarities and entailment models. The key of a verdict is
the digest of the judge's spec (name, version and parameters, which include a model's revision), the question and the
two texts; the texts themselves are not stored. Pairs without a verdict are not stored either, and are asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError
from ..files import check_version, open_sqlite
from ..plain_json import canonical_json
from .base import Comparer, Entailment, EntailmentScores, Item, Judge, Role
from .similarity import Similarity

__all__ = ["PairCache", "cached"]

Model = TypeVar("Model", bound=Comparer)
SLICE = 512
"""Items asked before their verdicts are written: the most that a kill loses."""
_LAYOUT = 1
_CREATE = "CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"


class PairCache:
    """Verdicts in one SQLite file. Safe under threads and processes; a verdict is on disk when `store` returns.

    Args:
        path: The file; made if it is not there, and so is its folder.

    Raises:
        UsageError: The file is not a pair cache, or cannot be read or written. `find` and `store` raise it too, if that
            happens later.

    Example:
        >>> judge = cached(my_judge, PairCache("pairs.sqlite"))  # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._connected():
            pass

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """The stored values by key; keys without a value are omitted."""
        stored: dict[bytes, Any] = {}
        with self._connected() as connection:
            for key in keys:
                row = connection.execute("SELECT value FROM verdicts WHERE key = ?", (key,)).fetchone()
                stored.update({} if row is None else {key: json.loads(row[0])})
        return stored

    def store(self, values: Mapping[bytes, Any]) -> None:
        """Store values, all or none. The first of two different values for a key stays."""
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        with self._connected() as connection, connection:
            # Two processes may ask about a pair at once, and all later readers must see the same verdict.
            connection.executemany("INSERT OR IGNORE INTO verdicts (key, value) VALUES (?, ?)", rows)

    def __len__(self) -> int:
        with self._connected() as connection:
            return int(connection.execute("SELECT count(*) FROM verdicts").fetchone()[0])

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A connection for one operation: one shared with a forked child would lose the child's verdicts."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(open_sqlite(self.path)) as connection:
                _check_layout(connection, self.path)
                yield connection
        except (OSError, json.JSONDecodeError, sqlite3.DatabaseError) as error:
            raise UsageError(
                f"the pair cache {self.path} cannot be used ({error}). Wait if another process writes it, or name "
                "another file in a folder with free space and write access; verdicts that it lacks are asked for again."
            ) from error


def _check_layout(connection: sqlite3.Connection, path: Path) -> None:
    """Make the table in a new file, and refuse a file of another program or version."""
    (layout,) = connection.execute("PRAGMA user_version").fetchone()
    if layout == 0:
        # The table may be there without a version: another process makes the same file at this moment.
        if connection.execute("SELECT count(*) FROM sqlite_master WHERE name != 'verdicts'").fetchone()[0]:
            raise UsageError(f"{path} is an SQLite file of something else. Name another file for the pair cache.")
        with connection:
            connection.execute(_CREATE)
            connection.execute(f"PRAGMA user_version={_LAYOUT}")
    elif layout != _LAYOUT:
        check_version(layout, _LAYOUT, f"the pair cache {path}", "name another file")


class _Cached(Comparer):
    """Asks the cache first and the inner judge, similarity or entailment model for the rest."""

    def __init__(self, inner: Any, cache: PairCache) -> None:
        self._inner = inner
        self._cache = cache

    # A cache changes no verdict, so all that it states is what the inner one states.
    spec = property(attrgetter("_inner.spec"))
    is_slow = property(attrgetter("_inner.is_slow"))
    judges_tool_calls = property(attrgetter("_inner.judges_tool_calls"))

    def identity(self, text: str) -> str:
        """The value of the inner one."""
        key: str = self._inner.identity(text)
        return key

    def compare(self, items: Sequence[Item]) -> list[Any]:
        """Answers from the cache if it has them, else of the inner one."""
        judge = canonical_json([self.role, self.spec.model_dump(mode="json")], compact=False)
        keys = [_key(self.role, judge, item) for item in items]
        known = {key: _of_json(value) for key, value in self._cache.find(list(dict.fromkeys(keys))).items()}
        # By key, so that equal pairs are asked once.
        missing = {key: item for key, item in zip(keys, items, strict=True) if key not in known}
        unknown = list(missing)
        for start in range(0, len(unknown), SLICE):
            part = unknown[start : start + SLICE]
            answers = self._inner.compare([missing[key] for key in part])
            fresh = {key: answer for key, answer in zip(part, answers, strict=True) if answer is not None}
            # Invalid answers go to the caller, who reports them, but not to disk, where they would last.
            self._cache.store({key: _as_json(answer) for key, answer in fresh.items() if self._is_valid(answer)})
            known.update(fresh)
        return [known.get(key) for key in keys]

    def _is_valid(self, answer: Any) -> bool:
        try:
            self._inner.read(answer)
        except (AttributeError, TypeError, ValueError):
            return False
        return True


def _key(role: Role, judge: str, item: Item) -> bytes:
    """Digest of a judge and an item. The order of the two texts counts only for the directed items of entailment."""
    question, a, b = item
    texts = [question, a, b] if role == "entailment" or a <= b else [question, b, a]
    return hashlib.sha256(f"{judge}{json.dumps(texts)}".encode("utf-8", "surrogatepass")).digest()


def _as_json(answer: Any) -> Any:
    """An answer as JSON holds it. NumPy's numbers become Python's."""
    if isinstance(answer, EntailmentScores):
        scores = (answer.entailment, answer.neutral, answer.contradiction)
        return [None if score is None else float(score) for score in scores]
    return answer.item() if hasattr(answer, "item") else answer


def _of_json(value: Any) -> Any:
    return EntailmentScores(*value) if isinstance(value, list) else value


class CachedJudge(_Cached, Judge):
    """A judge whose verdicts are stored; made by `cached`."""


class CachedSimilarity(_Cached, Similarity):
    """A similarity whose ratings are stored; made by `cached`."""


class CachedEntailment(_Cached, Entailment):
    """An entailment model whose scores are stored; made by `cached`."""


def cached(inner: Model, cache: PairCache) -> Model:
    """A judge, similarity or entailment model with a cache. Its spec is the same, so artifacts load with or without it.

    Useful for models. Judges that ask no model answer faster than a file can be read.

    Args:
        inner: Answers what the cache does not have.
        cache: Stores the answers.

    Raises:
        UsageError: ``inner`` is none of the three.
    """
    wrappers: dict[Role, Any] = {"judge": CachedJudge, "similarity": CachedSimilarity, "entailment": CachedEntailment}
    if not isinstance(inner, Comparer):
        raise UsageError(f"{type(inner).__name__} is neither a judge nor a similarity nor an entailment model")
    model: Model = wrappers[inner.role](inner, cache)
    return model
