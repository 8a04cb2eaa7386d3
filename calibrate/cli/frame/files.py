"""Files that commands read and write: record files opened as one, inputs protected, warnings about missing records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guardrail.errors import UsageError, require
from guardrail.files import refuse_special, sqlite_path

from ...data.columns import open_each
from ...data.formats.field_map import ImportSettings
from ...data.formats.read import graded_file, is_table
from ...data.progress import bar
from ...data.records import RecordFile, pooled, read_records, write_records
from ...evaluation.unlike import unlike_file
from ...ledger import Ledger
from ...scope import waiting_of
from .terminal import console, print_line, print_warning

if TYPE_CHECKING:
    from guardrail.review import ReviewStore


def keep_inputs(read: Iterable[Path | None], written: Iterable[Path | None], *, derived: Path | None = None) -> None:
    """Refuse to overwrite an input: hours of answers, or labels that people gave, would be lost.

    Args:
        read: Files a command reads; None is skipped.
        written: Files it will write. Leave out what it changes in place.
        derived: A file it will write whose name follows from ``--out``.

    Raises:
        UsageError: One of them is the same file, by any path; or a folder, a device or a pipe has the name of a
            file to write.
    """
    sources = list(filter(None, read))
    for target in filter(None, [*written, derived]):
        if target.is_dir():
            raise UsageError(f"{target} is a folder, and a file is written here. Name a file in it: {target / 'NAME'}.")
        refuse_special(target)
        for source in sources:
            if _same_file(source, target):
                way_out = "Name another file to write."
                if target is derived:
                    way_out = "The name follows from --out: give --out another name."
                raise UsageError(f"writing {target} would overwrite {source}, which is read here. {way_out}")


def _same_file(a: Path, b: Path) -> bool:
    """Whether two paths lead to the same file, through links and spelling."""
    return a.samefile(b) if a.exists() and b.exists() else a.resolve() == b.resolve()


def open_files(paths: Sequence[Path], table: ImportSettings | None = None) -> list[RecordFile]:
    """Open record files, and tables with scores and labels; ``table`` says what is not recognised of these.

    The columns of large files are made where they are missing.
    """
    tables = {path: _read_table(path, table) for path in paths if is_table(path)}
    if not tables:
        return open_each(paths, shown=lambda title: bar(console, title, "bytes"))
    return [tables[path] if path in tables else read_records(path) for path in paths]


def _read_table(path: Path, settings: ImportSettings | None) -> RecordFile:
    """Read a table, and print which column was taken for what."""
    imported, columns = graded_file(path, settings)
    print_line(f"{path}: {len(imported.file.records)} rows. {columns}")
    for note in imported.notes:
        print_line(note, "yellow")
    return imported.file


def open_pool(paths: Sequence[Path], table: ImportSettings | None = None) -> RecordFile:
    """Open files as one (`open_files`), and warn about questions that are in two of them."""
    return pool_of(open_files(paths, table))


def pool_of(files: Sequence[RecordFile]) -> RecordFile:
    """Open files as one; warns about questions that are in two of them."""
    file = pooled(files)
    warn_repeated(file)
    return file


def warn_unlike(files: Sequence[RecordFile], key: str) -> None:
    """Warn if a file looks as if its questions were of another kind than the others' (`unlike_file`)."""
    unlike = unlike_file(files, key)
    if unlike is not None:
        path, difference = unlike
        print_line(
            f"{path} looks different from the other files ({difference.text}, p = {difference.p:.1g}): the promise is "
            "for questions mixed as here, and for neither kind alone. Fit on the files that are like the questions at "
            "run time.",
            "yellow",
        )


def one_file(records: Sequence[Path], out: Path | None) -> tuple[Path, Path]:
    """Return the record file that a command changes and the one it writes; several files are first written as one.

    Each fit on the labels spends its delta, under every name of the file: the ledger of fits is copied beside ``out``.

    Raises:
        UsageError: Several files without ``--out``, or files that cannot be one.
    """
    if len(records) == 1 and (out is None or out.resolve() == records[0].resolve()):
        return records[0], records[0]
    if out is None:
        raise UsageError(f"{len(records)} record files are written as one: name it with --out.")
    keep_inputs(records, [out])
    Ledger(records).copy_to(out)
    if len(records) == 1:
        return records[0], out
    file = open_pool(records)
    write_records(out, file.header, file.records)
    return out, out


def warn_repeated(file: RecordFile) -> None:
    """Warn about questions that are in two of the files of a pool under other ids."""
    if file.repeated:
        first, second = file.repeated[0]
        text = (
            f"{len(file.repeated)} questions are in two of the files under other ids, e.g. {first!r} and {second!r}, "
            "and count twice. Every promise takes the questions for independent draws: leave them out of one file, "
            "unless your users repeat questions as often."
        )
        print_warning(text)


def warn_incomplete(file: RecordFile) -> None:
    """Warn when questions, or labels within a draw, are missing: the missing ones may differ from the others."""
    missing = file.header.n_questions - len(file.records)
    if missing > 0:
        print_line(
            f"Only {len(file.records)} of {file.header.n_questions} questions are in {file.path}: the collection was "
            "not finished, and the easy ones may have come first. Run the same `calibrate collect` again.",
            "yellow",
        )
    if not file.header.scope.is_drawn:
        return
    waiting = waiting_of(file.records).tolist()
    # Labels follow the order of the draw, so records that still wait are its last. An earlier gap may be a choice.
    if True in waiting and not all(waiting[waiting.index(True) :]):
        print_line(
            f"{sum(waiting)} of the {len(waiting)} questions that were drawn have no label, and they are not the last "
            "of the draw. If they were left out because they are hard to judge, the promise does not hold. Label the "
            f"first that waits, {file.records[waiting.index(True)].id!r}, and the others before the last label.",
            "yellow",
        )


def warn_undecided(file: RecordFile) -> None:
    """Say how many answers count as wrong although the rule did not decide them."""
    n = int(file.records.undecided().sum())
    if n:
        print_warning(
            f"{n} of {len(file.records)} answers of {file.path} are undecided and count as wrong. Labels of a rule "
            f"are completed with: calibrate label {file.typed} --undecided --interactive"
        )


def pair_cache(records: Path) -> Path:
    """The file that keeps verdicts of models about the answers of a record file."""
    return records.with_name(f"{records.stem}.pairs.sqlite")


def opened_store(location: str) -> ReviewStore:
    """Open a review store that exists; the file of another is not made."""
    require("sqlalchemy", extra="review")
    from guardrail.review import ReviewStore

    path = sqlite_path(location)
    if path is not None and not path.is_file():
        raise UsageError(f"no review store at {path}. Name the file or URL that the guard's ReviewStore was given.")
    return ReviewStore(location)
