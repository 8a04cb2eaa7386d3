"""The `calibrate` command line, about one module for each command; `frame` holds what commands share.

Importing a command's module adds the command to `app`.
"""

from __future__ import annotations

from . import (
    audit,
    candidates,
    cascade,
    collect,
    ensemble,
    evaluate,
    fit,
    import_,
    label,
    plan,
    report,
    reviews,
    run,
    score,
    select,
    steps,
    two_stage,
)
from .frame.app import app

__all__ = [
    "app",
    "audit",
    "candidates",
    "cascade",
    "collect",
    "ensemble",
    "evaluate",
    "fit",
    "import_",
    "label",
    "plan",
    "report",
    "reviews",
    "run",
    "score",
    "select",
    "steps",
    "two_stage",
]
