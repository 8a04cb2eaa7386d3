"""All commands, gathered: importing a command module registers its commands."""

from __future__ import annotations

from . import (
    _cli_audit,
    _cli_candidates,
    _cli_cascade,
    _cli_collect,
    _cli_ensemble,
    _cli_evaluate,
    _cli_fit,
    _cli_import,
    _cli_label,
    _cli_plan,
    _cli_report,
    _cli_reviews,
    _cli_run,
    _cli_score,
)
from ._cli_app import app

__all__ = ["app"]
_COMMANDS = (
    _cli_audit,
    _cli_candidates,
    _cli_cascade,
    _cli_collect,
    _cli_ensemble,
    _cli_evaluate,
    _cli_fit,
    _cli_import,
    _cli_label,
    _cli_plan,
    _cli_report,
    _cli_reviews,
    _cli_run,
    _cli_score,
)
