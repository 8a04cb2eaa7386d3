"""The app: its commands in the order of the work, and errors as panels with exit codes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.panel import Panel
from typer.core import TyperCommand, TyperGroup

from guardrail.errors import GuardrailError, UsageError
from guardrail.foreign_errors import show_details

from .terminal import errors

COMMANDS = {
    "plan": "plan",
    "run": "run",
    "import": "import_",
    "collect": "collect",
    "score": "score",
    "sample": "plan",
    "label": "label",
    "fit": "fit",
    "evaluate": "evaluate",
    "report": "report",
    "audit": "audit",
    "learn": "learn",
}
"""The module of each command, in the order of the work."""


def _summary(name: str) -> str:
    """The first paragraph of a command's help, read without importing its module, which may take a second."""
    module = Path(__file__).parents[1] / f"{COMMANDS[name]}.py"
    functions = {node.name: node for node in ast.parse(module.read_bytes()).body if isinstance(node, ast.FunctionDef)}
    text = ast.get_docstring(functions.get(name) or functions[f"{name}_"]) or ""
    return " ".join(text.partition("\n\n")[0].split())


class _Commands(TyperGroup):
    """Commands in the order of the work, each imported when it is read; errors are shown without a traceback."""

    def __init__(self, *, commands: Any = None, **options: Any) -> None:
        waiting: dict[str, Any] = dict.fromkeys(COMMANDS)
        super().__init__(commands=waiting | (commands or {}), **options)

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command of this name; importing its module adds it to `app`."""
        if name in COMMANDS and self.commands[name] is None:
            import_module(f"calibrate.cli.{COMMANDS[name]}")
            self.commands[name] = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        return self.commands.get(name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands in the order of the work, not of the alphabet."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first paragraph of their help, which typer would cut to one line."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in COMMANDS])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; exit with code 2 on misuse, with 1 on every other expected failure."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise _failure(str(error), 2) from error
        except GuardrailError as error:
            raise _failure(str(error), 1) from error
        except ValidationError as error:
            raise _failure(first_problem(error), 2) from error
        except BrokenPipeError:
            raise  # the reader went away (`| head`); typer ends quietly
        except OSError as error:
            raise _failure(_of_file(error), 1) from error
        except KeyboardInterrupt as error:
            raise _failure("Stopped. What is on disk stays; the same command goes on from there.", 130) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich's columns cut option names in a terminal of 80 columns
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Find out when a model may answer by itself.\n\n"
        "Ask it labelled questions several times, measure how much its answers disagree, and fit the disagreement up "
        "to which a share alpha of its answers is wrong. The result is one file, the artifact, "
        "that a Guardrail loads.\n\n"
        "All at once:   calibrate run --questions q.jsonl --model transformers:PATH --out results\n\n"
        "Step by step:  collect (asks the model; slow, resumable) then score, "
        "label, fit, report (seconds; the model is not called again)."
    ),
)


COLUMNS = "Columns of a table"
"""The last heading of options."""
UNBROKEN = "\u2011"
"""Stands for a hyphen while click breaks lines, which it does after hyphens, also in names to copy."""


class _Command(TyperCommand):
    """Help with the options under their headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the options by their heading."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and parameter.name != "help":
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                names = re.sub(r"<list\[([^\]]+)\]>", lambda match: f"<{match[1].lower()}>", record[0])
                names = names.replace(" range>", ">") + (" ..." if getattr(parameter, "multiple", False) else "")
                headings.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(
                    (names, record[1].replace("-", UNBROKEN))
                )
        order = {"Arguments": 0, "Options": 1, COLUMNS: 3}
        for heading, records in sorted(headings.items(), key=lambda heading: order.get(heading[0], 2)):
            with formatter.section(heading):
                formatter.write_dl(records)
        formatter.buffer[:] = [text.replace(UNBROKEN, "-") for text in formatter.buffer]


def command(name: str, page: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to `app` as the command of this name, with its page of the documentation."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        # After a line with a backspace, click keeps the lines of a paragraph: examples are commands to copy.
        text = inspect.cleandoc(function.__doc__ or "").replace("\n\nExample:", "\n\n\b\nExample:")
        return app.command(name, cls=_Command, help=text, epilog=f"Documentation: docs/{page}")(function)

    return add


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"acrc-guardrail {version('acrc-guardrail')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Write the log in full, with what servers said.")
    ] = False,
) -> None:
    """Options of the command as a whole."""
    if verbose:
        show_details()


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error, in one line."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    got = f"got {first['input']!r}"
    return f"{field}: {message}" + ("" if got in message else f", {got}") if field else message


def _failure(message: str, code: int) -> typer.Exit:
    errors.print(Panel(escape(message), title="Error", title_align="left", border_style="red"))
    return typer.Exit(code)


def _of_file(error: OSError) -> str:
    """Describe an error by the file that the user named; outputs are first written as `.NAME.X.part`."""
    path = Path(error.filename or "file")
    reason = error.strerror or str(error)
    unfinished = re.fullmatch(r"\.(.+)\.(?:\w+\.part|lock)", path.name)
    if unfinished is None:
        return f"{path}: {reason}"
    return (
        f"{path.with_name(unfinished[1])} cannot be written ({reason}). Name a file in a folder that exists and that "
        "you may write to, on a disk with room."
    )
