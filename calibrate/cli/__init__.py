"""The `calibrate` command line, about one module for each command; `frame` holds what commands share.

A command's module is imported when the command is called, because all of them together take seconds. Importing it adds
the command to `app`; `frame.app.COMMANDS` names the modules.
"""

from __future__ import annotations

from .frame.app import app

__all__ = ["app"]
