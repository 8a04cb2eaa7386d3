"""The command line's frame: the app, its console, and how errors are shown."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from guardrail.errors import GuardrailError, UsageError
from guardrail.files import refuse_special
from guardrail.models import resolve_model
from guardrail.plain_json import visible

from ..data.column_store import open_each
from ..data.progress import bar
from ..data.records import RecordFile, pooled, read_records, write_records

__all__ = [
    "MODEL_HELP",
    "RecordsArgument",
    "VisibleConsole",
    "app",
    "console",
    "errors",
    "finish",
    "first_problem",
    "keep_inputs",
    "listed",
    "one_file",
    "open_files",
    "open_pool",
    "print_line",
    "read_pool",
    "resolve_model",
    "table",
    "warn_repeated",
]


class VisibleConsole(Console):
    """Prints lines that are longer than the terminal in full, which the terminal then wraps.

    Control characters of a model's answers are shown and not obeyed: an answer could repaint the screen.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, of text that is made visible."""
        return super().render_str(visible(text), **options)  # before lines are broken

    def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
        """All that is printed passes here; also what is not a Text is made visible here."""
        for one in super().render(*given, **options):
            yield one if one.control else one._replace(text=visible(one.text))

    def print(self, *objects: Any, crop: bool = False, **options: Any) -> None:
        """As rich's; a long line is not cut."""
        super().print(*objects, crop=crop, **options)


console = VisibleConsole()
errors = VisibleConsole(stderr=True)

MODEL_HELP = (
    "[bold]transformers:PATH_OR_ID[/bold] (local weights), [bold]openai-compatible:MODEL@BASE_URL[/bold] (an "
    "endpoint), [bold]python:MODULE:NAME[/bold] (a chat model, or a function that makes one, importable from here), "
    "or a LangChain name such as [bold]openai:gpt-4o-mini[/bold]."
)


AddressOption = Annotated[
    str | None,
    typer.Option(help="With --engine ray: auto or HOST:PORT of a Ray cluster. Default: this machine alone."),
]

RecordsArgument = Annotated[list[Path], typer.Argument(help="Record files; several are read as one.")]


LONGEST_TEXT = 16
"""Columns that a text keeps beside numbers in a narrow terminal, before it is folded."""


class _Commands(TyperGroup):
    """Commands in the order of the work; expected errors are shown without a traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The order of the work, not of the alphabet."""
        return [name for name in _ORDER if name in self.commands]

    def invoke(self, ctx: Any) -> Any:
        """Run a command; misuse ends with code 2, every other expected failure with 1."""
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
    "fit",
    "fit-cascade",
    "evaluate",
    "report",
    "audit",
    "drift",
    "from-reviews",
    "steps",
    "candidates",
    "inspect",
)

app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Find out when a model may answer by itself.\n\n"
        "Ask it labelled questions several times, measure how much its answers disagree, and fit the disagreement up "
        "to which at most a share [bold]alpha[/bold] of its answers is wrong. The result is one file, the artifact, "
        "that a [bold]Guardrail[/bold] loads.\n\n"
        "All at once:   [cyan]calibrate run --questions q.jsonl --model transformers:PATH --out results[/cyan]\n\n"
        "Step by step:  [cyan]collect[/cyan] (asks the model; slow, resumable) then [cyan]score[/cyan], "
        "[cyan]label[/cyan], [cyan]fit[/cyan], [cyan]report[/cyan] (seconds; the model is not called again)."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"acrc-guardrail {version('acrc-guardrail')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command as a whole."""


def keep_inputs(read: Iterable[Path | str | None], written: Iterable[Path | None]) -> None:
    """Refuse to overwrite an input: hours of answers, or labels that people gave, would be lost.

    Args:
        read: Files a command reads; None is skipped, and so are names that do not end in .json (an estimator may be a
            name or a file).
        written: Files it will write, those it derives from ``--out`` included. Leave out what it changes in place.

    Raises:
        UsageError: One of them is the same file, by any path; or a folder, a device or a pipe has the name of a
            file to write.
    """
    known = [Path(one) for one in read if isinstance(one, Path) or (one is not None and one.endswith(".json"))]
    for target in (one for one in written if one is not None):
        if target.is_dir():
            raise UsageError(f"{target} is a folder, and a file is written here. Name a file in it: {target / 'NAME'}.")
        refuse_special(target)
        for source in known:
            if _same_file(source, target):
                raise UsageError(
                    f"writing {target} would overwrite {source}, which is read here. Name another file to write."
                )


def open_files(paths: Sequence[Path]) -> list[RecordFile]:
    """Record files; large ones by columns, which all cores build where they are missing."""
    return open_each(paths, shown=lambda title: bar(console, title, "parts"), workers=os.cpu_count() or 1)


def open_pool(paths: Sequence[Path]) -> RecordFile:
    """`open_files` as one, with a warning about questions that are in two of them."""
    file = pooled(open_files(paths))
    warn_repeated(file)
    return file


def listed(paths: Iterable[Path | str]) -> str:
    """Files as a shell takes them."""
    return shlex.join(map(str, paths))


def one_file(records: Sequence[Path], out: Path | None) -> tuple[Path, Path]:
    """The record file that a command changes, and where it writes it; several files are first written as one.

    Raises:
        UsageError: Several files without ``--out``, or files that cannot be one.
    """
    if len(records) == 1:
        return records[0], out or records[0]
    if out is None:
        raise UsageError(f"{len(records)} record files are written as one: name it with --out.")
    keep_inputs(records, [out])
    file = read_pool(records)
    write_records(out, file.header, file.records)
    return out, out


def read_pool(records: Sequence[Path]) -> RecordFile:
    """Record files as one, with a warning about questions that are in two of them.

    Raises:
        RecordError: As `read_records`.
        UsageError: As `read_records`.
    """
    file = read_records(*records)
    warn_repeated(file)
    return file


def warn_repeated(file: RecordFile) -> None:
    """Warn about questions that are in two of the files of a pool under other ids."""
    if file.repeated:
        one, other = file.repeated[0]
        text = (
            f"{len(file.repeated)} questions are in two of the files under other ids, e.g. {one!r} and {other!r}, and "
            "count twice. Every promise takes the questions for independent draws: leave them out of one file, unless "
            "your users repeat questions as often."
        )
        errors.print(escape(text), style="yellow", highlight=False, soft_wrap=True)  # stdout may be JSON


def print_line(text: str, style: str | None = None) -> None:
    """Print a line of plain text, without reading markup in it."""
    console.print(escape(text), style=style, highlight=False, soft_wrap=True)


def say_stalled(text: str) -> None:
    """Print why work on other processes does not get on."""
    print_line(text, "yellow")


def check_engine(engine: str, address: str | None) -> None:
    """Refuse an address without the engine that it belongs to.

    Raises:
        UsageError: There is one.
    """
    if address is not None and engine != "ray":
        raise UsageError(f"--address {address} belongs to --engine ray, which runs on a cluster. Add that, too.")


def finish(written: Iterable[Path | str], following: str) -> None:
    """Print how every command ends: the files written, and what to type next."""
    for path in written:
        console.print(f"[green]Wrote[/green] {escape(str(path))}", highlight=False, soft_wrap=True)
    console.print(f"[bold]Next:[/bold] {escape(following)}", highlight=False, soft_wrap=True)


class _WholeTable(Table):
    """A table that is as wide as its texts where no terminal limits it: in a pipe, or in a file."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(max_width=10_000)
        yield from super().__rich_console__(console, options if console.is_terminal else unlimited)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, texts: int = 1) -> Table:
    """A plain table; the first columns are texts, left-aligned, the others right. No number is cut."""
    made = _WholeTable(
        title=escape(title),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    cells = [[escape(cell) for cell in row] for row in rows]
    for i, column in enumerate(columns):
        longest = max(cell_len(word) for text in (column, *(row[i] for row in cells)) for word in (*text.split(), ""))
        made.add_column(
            escape(column),
            justify="left" if i < texts else "right",
            overflow="fold",
            min_width=min(longest, LONGEST_TEXT) if i < texts else longest,
        )
    for row in cells:
        made.add_row(*row)
    return made


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
    """The file as the user named it, and what is wrong with it: outputs are `.NAME.X.part` first, next to a lock."""
    path = Path(error.filename or "file")
    reason = error.strerror or str(error)
    unfinished = re.fullmatch(r"\.(.+)\.(?:\w+\.part|lock)", path.name)
    if unfinished is None:
        return f"{path}: {reason}"
    return (
        f"{path.with_name(unfinished[1])} cannot be written ({reason}). Name a file in a folder that exists and that "
        "you may write to, on a disk with room."
    )


def _same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same file, through links and spelling."""
    return one.samefile(other) if one.exists() and other.exists() else one.resolve() == other.resolve()
