"""One writer at a time: an exclusive lock on a file beside the one that is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guardrail.errors import UsageError

__all__ = ["exclusive"]

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the only lock on ``path`` (a hidden ``.name.lock`` beside it). Released by the system if the process dies.

    Raises:
        UsageError: Another process holds it; nothing was read or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.parent / f".{path.name}.lock"
    descriptor = _acquire(lock, path)
    try:
        yield
    finally:
        if sys.platform != "win32":  # an open file cannot be removed there
            lock.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(lock: Path, path: Path) -> int:
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _try_lock(descriptor)
            # The holder removes the file when it is done: a lock on a removed file protects nothing.
            if sys.platform == "win32" or (lock.exists() and os.fstat(descriptor).st_ino == lock.stat().st_ino):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            raise UsageError(
                f"{path} is being written by another process. Two writers would interleave their records: wait for it, "
                "stop it, or write to another file."
            ) from error
        os.close(descriptor)
