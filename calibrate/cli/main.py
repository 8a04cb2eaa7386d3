"""All commands, gathered: importing a command module registers its commands."""

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
)
from .app import app

__all__ = ["app"]
_COMMANDS = (
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
)
