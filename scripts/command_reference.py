"""MkDocs hook: `docs/cli.md` lists every command and option, read from the commands when the site is built."""

from __future__ import annotations

import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from inspect import cleandoc
from typing import Any

import typer

from calibrate.cli import app
from guardrail.__main__ import list_commands

MARKER = "<!-- commands -->"


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Replace the marker of a page by the reference; MkDocs calls this for every page."""
    return markdown.replace(MARKER, "\n\n".join([*_calibrate(), *_guardrail()])) if MARKER in markdown else markdown


def _calibrate() -> Iterator[str]:
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="calibrate")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        nested = typer.Context(command, info_name=name, parent=context)
        pieces = " ".join(command.collect_usage_pieces(nested))
        yield f"## calibrate {name} {{#{name}}}"
        yield _with_code(cleandoc(command.help or ""))
        yield f"```\ncalibrate {name} {pieces}\n```"
        records = [parameter.get_help_record(nested) for parameter in command.get_params(nested)]
        rows = [f"| `{left}` | {_cell(right)} |" for left, right in filter(None, records)]
        yield "\n".join(["| argument or option | meaning |", "| :-- | :-- |", *rows])


def _guardrail() -> Iterator[str]:
    for name, (module, text) in list_commands().items():
        parser = ArgumentParser(prog=f"guardrail {name}", description=f"{text[0].upper()}{text[1:]}.")
        import_module(module).add_arguments(parser)
        parser.formatter_class = partial(RawDescriptionHelpFormatter, width=100)  # not that of the terminal
        yield f"## guardrail {name} {{#guardrail-{name}}}"
        yield f"```\n{parser.format_help().rstrip()}\n```"


def _with_code(text: str) -> str:
    """Help with its examples, "Example: calibrate ...", as code."""
    return re.sub(r"^([A-Z][\w ]+: +)(calibrate .*)$", r"\1`\2`\n", text, flags=re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
