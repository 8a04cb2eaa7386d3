"""Subcommands that this package adds to ``guardrail``; their modules are heavy, so these rows stand apart from them."""

from __future__ import annotations

SERVE = ("integrations.gateway", "answer an OpenAI client behind a gate: it changes one URL")
"""Module and one-line help, as in `guardrail.__main__.COMMANDS`; named in ``pyproject.toml``."""
