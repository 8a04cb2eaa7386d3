"""``python -m guardrail`` and the ``guardrail`` command: one subcommand a module, loaded when it is called.

A package adds a subcommand by an entry point of the group ``acrc_guardrail.commands``. Its target is a row as in
`COMMANDS`, in a module that is light to import, because every call of ``guardrail`` lists all commands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points, version

from .errors import GuardrailError, load_entry_point
from .foreign_errors import show_details
from .plain_json import visible

__all__ = ["list_commands", "main"]

Command = tuple[str, str]
"""Module of a subcommand, with ``add_arguments(parser)`` and ``run(arguments) -> exit code``, and its one-line help."""

VERBOSE = "write the log in full, with what servers said"
GROUP = "acrc_guardrail.commands"
COMMANDS: dict[str, Command] = {
    "doctor": ("guardrail.doctor", "check an artifact, its model, judge and endpoint before they serve"),
    "monitor": ("guardrail.review.monitor_command", "show the monitors of a review store; 1 while an alarm is open"),
    "review": ("guardrail.review.command", "serve the page on which people decide what was held back"),
}
"""The subcommands of this package. An entry point cannot replace one."""


def list_commands(called: str | None = None) -> dict[str, Command]:
    """The subcommands by name, in order: those of this package, and those of entry points.

    Args:
        called: The command to run. Any other command whose package cannot be loaded says so in its help.

    Raises:
        MissingDependencyError: The package of the called command lacks a dependency.
    """
    rows = dict(COMMANDS)
    for entry in entry_points(group=GROUP):
        if entry.name in COMMANDS:
            continue
        try:
            module, text = load_entry_point(entry)
            rows[entry.name] = (module, text)
        except Exception as error:
            if entry.name == called:
                raise
            rows[entry.name] = (entry.module, f"not available: {error}")  # the other commands must still run
    return dict(sorted(rows.items()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments; default: those of the process.

    Returns:
        The exit code: 0 for success, 1 for a failed check or an error of this library, 2 for wrong arguments.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="guardrail", description="Guardrail for LLMs: run-time tools.")
    parser.add_argument("--version", action="version", version=f"acrc-guardrail {version('acrc-guardrail')}")
    parser.add_argument("-v", "--verbose", action="store_true", help=VERBOSE)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names = {*COMMANDS, *(entry.name for entry in entry_points(group=GROUP))}
    called = next((word for word in words if word in names), None)
    try:
        rows = list_commands(called)
        for name, (module, text) in rows.items():
            subparser = subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
            # Without a default, which would replace a -v before the command.
            subparser.add_argument("-v", "--verbose", action="store_true", default=argparse.SUPPRESS, help=VERBOSE)
            if name == called:  # the modules of the other commands stay unloaded: some need a web framework
                import_module(module).add_arguments(subparser)
        if not words:
            parser.print_help(sys.stderr)
            return 2
        arguments = parser.parse_args(words)
        if arguments.verbose:
            show_details()
        code: int = import_module(rows[arguments.command][0]).run(arguments)
    except GuardrailError as error:
        print(visible(f"guardrail {called}: {error}"), file=sys.stderr)  # noqa: T201
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
