"""The command line in the process of a test."""

from __future__ import annotations

from typer.testing import CliRunner

from calibrate.cli import app

__all__ = ["Command", "run"]

Command = tuple[object, ...]
"""The words of a command, to which a test adds its own."""


def run(*arguments: object, keys: str = "", code: int = 0) -> str:
    """Run a command of `calibrate` that ends with this code; its output on one line, without the frames of panels.

    Args:
        *arguments: The words of the command.
        keys: Standard input.
        code: The exit code.
    """
    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words, input=keys, env={"COLUMNS": "240"})
    assert result.exit_code == code, (result.output, result.exception)
    return " ".join(result.output.replace("\u2502", " ").split())
