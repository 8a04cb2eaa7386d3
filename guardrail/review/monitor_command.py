"""``guardrail monitor``: what the monitors of a review store have found."""

from __future__ import annotations

import argparse
import sys

from ..plain_json import visible
from .command import DATABASE, ENV_DATABASE, existing_store
from .monitors import Monitors

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "Ends with 1 while there is an alarm that nobody has acknowledged, e.g. for cron.\n\n"
        f"Environment:\n  {ENV_DATABASE}  the database, like --db, but not in the process list"
    )
    parser.add_argument("--db", help=f"SQLite path or postgresql:// URL (default: {DATABASE})")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    with existing_store(arguments) as store:
        views = Monitors(store).all()
    for view in views:
        state = view.state
        alarm = "acknowledged alarm" if view.acknowledged else "ALARM" if state.alarm else "no alarm"
        line = f"{view.name} ({state.kind}): {state.n} updates, ln(wealth) {state.log_wealth:.2f}, {alarm}"
        sys.stdout.write(visible(line, one_line=True) + "\n")
    return int(any(view.state.alarm is not None and not view.acknowledged for view in views))
