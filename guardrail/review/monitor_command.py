"""``guardrail monitor``: fold the scores that guards have written into the drift monitors."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from ..errors import UsageError, require
from ..files import sqlite_path
from ..plain_json import visible
from .command import DATABASE, ENV_DATABASE
from .limits import check_seconds

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Any number of these may run; each fold is done by one. Guards and `guardrail\n"
        "review` fold as well: run this where there are many guards, so that they have\n"
        "less to do.\n\n"
        f"Environment:\n  {ENV_DATABASE}  the database, like --db, but not in the process list"
    )
    parser.add_argument("--db", help=f"SQLite path or postgresql:// URL (default: {DATABASE})")
    parser.add_argument("--poll", type=float, default=0.2, help="seconds between two looks (default: 0.2)")
    parser.add_argument("--once", action="store_true", help="fold what is there, print the monitors, and exit")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    require("sqlalchemy", extra="review")
    from .monitors.inbox import InboxWorker
    from .monitors.store import Monitors
    from .queue.store import ReviewStore

    check_seconds("--poll", arguments.poll, "Use 0.2.")
    database = arguments.db or os.environ.get(ENV_DATABASE) or DATABASE
    path = sqlite_path(database)
    if path is not None and not path.exists():
        raise UsageError(f"there is no review store '{path}', so there are no monitors. Give its path with --db.")
    with ReviewStore(database) as store:
        if arguments.once:
            monitors = Monitors(store)
            _print(f"Folded {monitors.fold()} scores.")
            for view in monitors.all():
                alarm = "acknowledged alarm" if view.acknowledged else "ALARM" if view.alarm else "no alarm"
                _print(f"{view.name} ({view.kind}): {view.n} updates, ln(wealth) {view.log_wealth:.2f}, {alarm}")
            return 0
        worker, ended = InboxWorker(store.database, arguments.poll), threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        worker.start()
        _print("Folding. Ctrl-C or SIGTERM stops it.")
        while not ended.wait(1):  # on Windows a signal does not end a wait without a limit
            pass
        worker.stop()
    return 0


def _print(line: str) -> None:
    sys.stdout.write(visible(line, one_line=True) + "\n")
    sys.stdout.flush()
