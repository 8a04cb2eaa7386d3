"""``python -m guardrail`` and the ``guardrail`` command: one subcommand a module, loaded when it is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from .errors import GuardrailError
from .plain_json import visible

__all__ = ["main"]

COMMANDS = {
    "doctor": ("guardrail.doctor", "check an artifact, its model, judge and endpoint before they serve"),
    "monitor": ("guardrail.review.monitor_command", "bring the monitors up to date with what guards have written"),
    "review": ("guardrail.review.command", "serve the page on which people decide what was held back"),
    "serve": ("integrations.gateway", "answer an OpenAI client behind a gate: it changes one URL"),
}
"""Module of each subcommand, with ``add_arguments(parser)`` and ``run(arguments) -> exit code``, and its help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; default: those of the process.

    Returns:
        The exit code: 0 for success, 1 for a failed check or an error of this library, 2 for wrong arguments.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="guardrail", description="Guardrail for LLMs: run-time tools.")
    parser.add_argument("--version", action="version", version=f"acrc-guardrail {version('acrc-guardrail')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    meant = next((word for word in given if word in COMMANDS), None)
    try:
        for name, (module, text) in COMMANDS.items():
            command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
            if name == meant:  # only the command that is meant is imported
                import_module(module).add_arguments(command)
        if not given:
            parser.print_help(sys.stderr)
            return 2
        arguments = parser.parse_args(given)
        code: int = import_module(COMMANDS[arguments.command][0]).run(arguments)
    except GuardrailError as error:
        print(visible(f"guardrail {meant}: {error}"), file=sys.stderr)  # noqa: T201
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
