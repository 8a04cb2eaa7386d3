"""Notes about tool calls and answers, kept for as long as a person may take to decide.

The memory of draws (`guardrail.sampling.draws`) cannot give them: it forgets within minutes, and knows prompts, not
calls.
"""

from __future__ import annotations

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guardrail.errors import UsageError
from guardrail.files import check_version, open_sqlite, problem_of
from guardrail.plain_json import canonical_json

from .held import MessageNote

FORMAT = 1
"""Version of a verdict store, in SQLite's ``user_version``."""
MOST_IN_MEMORY = 10_000
"""Verdicts kept without a file; older ones are forgotten, and a call without a verdict counts as held back."""


class VerdictStore:
    """Notes with verdicts and decisions: about tool calls by call id, about answers by conversation and content.

    A tool call may wait for a person for days and be resumed by another process: give a path then. The file is SQLite,
    written by any number of processes and threads; it holds the answers that were held back.

    Args:
        path: The file; None keeps the last 10,000 verdicts in memory.

    Raises:
        UsageError: The file cannot be used, or another version of this library wrote it. Every method raises it, too;
            `find` also for a note that cannot be read: it must not count as "never judged".
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._lock = threading.Lock()
        self._name = ":memory:" if path is None else str(path)
        self._memory: sqlite3.Connection | None = None
        if path is None:
            self._memory = open_sqlite(self._name)
            weakref.finalize(self, self._memory.close)
        with self._connected() as db, db:
            self._prepare(db)

    def put(self, key: str, note: MessageNote, *, first: bool = False) -> None:
        """Store a note; ``first``: a note that the key already has stays, and counts as stored now."""
        text = "COALESCE((SELECT note FROM verdict WHERE id = ?), ?)" if first else "?"
        row = (key, *([key] if first else []), note.model_dump_json(), time.time())
        with self._connected() as db, db:
            db.execute(f"REPLACE INTO verdict (id, note, stored) VALUES (?, {text}, ?)", row)
            if self._memory is not None:
                db.execute("DELETE FROM verdict WHERE rowid <= (SELECT MAX(rowid) FROM verdict) - ?", (MOST_IN_MEMORY,))

    def find(self, key: str) -> MessageNote | None:
        """The note under a key; None for an unknown key."""
        with self._connected() as db:
            row = db.execute("SELECT note FROM verdict WHERE id = ?", (key,)).fetchone()
        if row is None:
            return None
        try:
            return MessageNote.from_stored(row[0])
        except ValidationError as error:
            raise UsageError(
                f"the verdict {key!r} in {self._name} cannot be read ({problem_of(error)}), so it releases nothing. "
                "Upgrade acrc-guardrail to the version that wrote it, or ask again."
            ) from error

    def decide(self, key: str, decision: Mapping[str, Any] | None, *, given: bool = False) -> None:
        """Note a person's decision about what is held under a key; the last one counts. It is deleted with the note.

        Args:
            key: The key.
            decision: The decision; None takes back an earlier one.
            given: Whether the answer under this key goes out next, see `MessageNote.given`.
        """
        decisions = canonical_json([] if decision is None else [dict(decision)])
        into = "UPDATE verdict SET note = json_set(note, '$.decisions', json(?), '$.given', json(?)) WHERE id = ?"
        with self._connected() as db, db:
            db.execute(into, (decisions, canonical_json(given), key))

    def purge(self, older_than: float) -> int:
        """Delete verdicts stored more than ``older_than`` seconds ago; return their number. Their calls do not run."""
        with self._connected() as db, db:
            db.execute("PRAGMA secure_delete=ON")  # overwrite with zeros, so that no answer stays in the file
            return db.execute("DELETE FROM verdict WHERE stored < ?", (time.time() - older_than,)).rowcount

    def close(self) -> None:
        """Close the database in memory. A file is open during an operation only."""
        if self._memory is not None:
            self._memory.close()

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Make the table. The file's ``user_version`` is its format, except in a file with other tables."""
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables <= {"verdict"}:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if tables or version:
                check_version(version, FORMAT, f"the verdict store {self._name}", "name another file")
            db.execute(f"PRAGMA user_version={FORMAT}")  # before the table: another process may open the file now
        db.execute("CREATE TABLE IF NOT EXISTS verdict (id TEXT PRIMARY KEY, note TEXT NOT NULL, stored REAL NOT NULL)")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection in memory, or one to the file for this operation."""
        try:
            with self._lock:
                if self._memory is not None:
                    yield self._memory
                else:
                    with closing(open_sqlite(self._name)) as db:
                        yield db
        except sqlite3.ProgrammingError:
            raise  # a closed store is a mistake of the program
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"{self._name} cannot be used as a verdict store ({error}). Name another file, or check this one."
            ) from error
