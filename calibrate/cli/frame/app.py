"""The app: its commands in the order of the work, and errors as panels with exit codes."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.panel import Panel
from typer.core import TyperGroup

from guardrail.errors import GuardrailError, UsageError

from .terminal import errors

__all__ = ["app", "first_problem"]


class _Commands(TyperGroup):
    """Commands in the order of the work; expected errors are shown without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Commands in the order of the work, not of the alphabet."""
        return [name for name in _ORDER if name in self.commands]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with the first paragraph of their help, which typer would cut to one line."""
        commands = [(name, self.commands[name].help or "") for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(text.partition("\n\n")[0].split())) for name, text in commands])

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


_ORDER = (
    "plan",
    "run",
    "import",
    "collect",
    "score",
    "sample",
    "label",
    "ensemble",
    "two-stage",
    "fit",
    "fit-cascade",
    "evaluate",
    "report",
    "audit",
    "drift",
    "from-reviews",
    "steps",
    "candidates",
    "select",
    "inspect",
)

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


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"acrc-guardrail {version('acrc-guardrail')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command as a whole."""


def first_problem(error: ValidationError) -> str:
    """The first problem of a validation error, in one line."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"{field}: {message}, got {first['input']!r}" if field else message


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
