"""The ledger of a record file: which certificates its labels have carried, and the confidence of all of them together.

Whichever certificate of these labels is used, it holds with probability at least 1 minus the sum of their deltas (union
bound). ``RECORDS.ledger.jsonl`` beside the records has a line for each fit. Equal lines are one fit, whatever the score
is called; another alpha is another fit. Fits of disjoint groups do not add: the largest sum of any group counts. A fit
of all other groups adds to that of a group which was one of them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from guardrail.artifact import ALL_OTHERS, CalibrationArtifact, CascadeArtifact, RouterArtifact, Spent
from guardrail.errors import UsageError
from guardrail.files import atomic_write, check_version
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen

from .data.records import exclusive

Fitted = TypeVar("Fitted", CalibrationArtifact, CascadeArtifact, RouterArtifact)
Book: TypeAlias = "dict[tuple[str, str], Line]"
log = logging.getLogger("guardrail")


class Line(Frozen):
    """One fit."""

    format: Literal[1] = 1
    """Version of this layout."""
    created: str
    """When it was fitted, ISO 8601."""
    procedure: str
    """Digest of everything but the labels: score values, rule with every setting, alpha and delta."""
    labels: str = Field(pattern="^[01]*$")
    """The labels in order of the scores, a digit each: 1 for wrong."""
    undecided: int
    """Answers among them that were undecided and counted as wrong."""
    delta: float = Field(ge=0, le=1)
    """Failure probability that the fit spends; 0 for a rule that certifies nothing."""
    group: str = ""
    """The group of the records that it is about; "" for all of them."""
    besides: tuple[str, ...] = ()
    """Of a fit of all other groups: those that it is not about."""

    @classmethod
    def of(
        cls, artifact: CalibrationArtifact | CascadeArtifact, group: str = "", besides: tuple[str, ...] = ()
    ) -> Line:
        """The line of a fitted artifact; ``group`` and ``besides`` name the groups of records that it is about."""
        stages = artifact.gates
        u = np.concatenate([np.array(stage.calibration.uncertainty, dtype="<f8") for stage in stages])
        wrong = np.concatenate([np.array(stage.calibration.error, dtype=np.uint8) for stage in stages])
        order = np.lexsort((wrong, u))  # right ones first among equal scores: the order of the file plays no part
        fit = artifact.outcome
        settings: list[object] = [fit.rule, fit.options, fit.alpha, fit.delta, group]
        for stage in stages:  # what else decides a fit: label rule, cut and clusters
            labels = stage.correctness.model_dump(mode="json")
            labels["params"].pop("undecided", None)
            settings.append([labels, stage.outcome.scope.cut, stage.calibration.group is not None])
        return cls(
            created=stages[0].made.at,
            procedure=sha256_hex(canonical_json([settings, sha256_hex(u[order].tobytes())]), 32),
            labels=(wrong[order] + ord("0")).tobytes().decode(),
            undecided=sum(stage.data.n_undecided for stage in stages),
            delta=(fit.delta or 0.0) if fit.certifies else 0.0,
            group=group,
            besides=besides,
        )

    def reads(self, group: str) -> bool:
        """Whether the fit read the labels of a group; `ALL_OTHERS` stands for a group that no fit names."""
        return self.group in ("", group) or (self.group == ALL_OTHERS and group not in self.besides)

    def decides(self, earlier: Line) -> bool:
        """Whether only undecided answers, which counted as wrong, were decided since an earlier fit: the same fit.

        Then no threshold accepts more errors than before: "0101", with the last one undecided, becomes "0100". Every
        threshold that passed the earlier test passes this one, so the earlier certificate fails only if this one does,
        and both together spend one delta.
        """
        errors, before = (_errors(line.labels) for line in (self, earlier))
        decided_as_right = before[-1:].sum() - errors[-1:].sum()
        return bool((errors <= before).all() and decided_as_right <= earlier.undecided)


class Ledger:
    """The fits on the labels of record files; without a file ``lines`` remembers them."""

    def __init__(self, records: Iterable[Path] = ()) -> None:
        self.paths = sorted({ledger_of(path) for path in records})
        self.lines: Book = {}

    def enter(self, new: Sequence[Line]) -> Spent:
        """Remember fits that were made together, each once, and return what all fits on these labels spend.

        Raises:
            UsageError: A ledger is damaged or of another version, or the fits together spend 1 or more.
        """
        fresh = {(line.procedure, line.labels): line for line in new}
        with ExitStack() as locks:
            for path in self.paths:
                with suppress(PermissionError):  # a folder that nobody here can write; `_write` says so
                    if path.parent.is_dir():
                        locks.enter_context(exclusive(path))
            books = [_read(path) | fresh for path in self.paths] or [self.lines | fresh]
            spent = max((_spent(book.values()) for book in books), key=lambda spent: spent.delta)
            if spent.delta > 1 - 1e-9:
                why = f"{spent.fits} fits on these labels spend delta {spent.delta:.3g} together, and from 1 on no"
                raise UsageError(f"{why} confidence is left. Fit on fresh labels.")
            self.lines |= fresh
            for path, book in zip(self.paths, books, strict=False):
                _write(path, book)
        return spent

    def copy_to(self, records: Path) -> None:
        """Write beside a file that is made of these what its labels have carried, and count later fits there as well.

        Of several record files the one with the most counts, because a label is in one of them.
        """
        path = ledger_of(records)
        books = [book for book in map(_read, self.paths) if book]
        if books:
            most = max(books, key=lambda book: _spent(book.values()).delta)
            self.lines |= most
        if self.lines:
            _write(path, _read(path) | self.lines)
        self.paths = sorted({*self.paths, path})


def counted(artifact: Fitted, ledger: Ledger) -> Fitted:
    """The artifact with what all fits on its labels spend; its own fit is remembered. Of a router in each group."""
    if not isinstance(artifact, RouterArtifact):
        return artifact.model_copy(update={"spent": ledger.enter([Line.of(artifact)])})
    fitted = {name: part for name, part in artifact.artifacts.items() if part.calibration.error}
    named = tuple(name for name in fitted if name != ALL_OTHERS)
    lines = [Line.of(part, name, named if name == ALL_OTHERS else ()) for name, part in fitted.items()]
    spent = ledger.enter(lines)
    parts = {name: part.model_copy(update={"spent": spent}) for name, part in fitted.items()}
    return artifact.model_copy(update={"artifacts": artifact.artifacts | parts})


def ledger_of(records: Path) -> Path:
    """The ledger of a record file."""
    return records.with_name(f"{records.stem}.ledger.jsonl")


def _errors(labels: str) -> NDArray[np.int64]:
    """Wrong answers up to each score."""
    return np.cumsum(np.frombuffer(labels.encode(), np.uint8) - ord("0"), dtype=np.int64)


def _spent(lines: Iterable[Line]) -> Spent:
    """The largest sum of delta that any one label has carried, and the fits behind it.

    Of a fit of all records at .1, and one of group a and one of group b at .05 each, a label has carried .1 + .05.
    """
    fits: list[Line] = []
    last: dict[str, Line] = {}
    for line in lines:
        if line.procedure not in last or not line.decides(last[line.procedure]):
            fits.append(line)
        last[line.procedure] = line
    groups = {ALL_OTHERS, *(line.group for line in fits if line.group)}
    deltas = max(([line.delta for line in fits if line.reads(group)] for group in groups), key=sum)
    return Spent(fits=len(deltas), delta=min(1.0, sum(deltas)))


def _read(path: Path) -> Book:
    book: Book = {}
    damaged = "is not what `calibrate fit` wrote. Restore it: it counts the fits."
    for number, text in enumerate(path.read_bytes().splitlines() if path.is_file() else (), start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(text)
            version = row["format"]
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{where} {damaged}") from error
        check_version(version, 1, where, "remove the file, which forgets the fits")  # first: it names the fields
        try:
            line = Line.from_stored(row)
        except ValueError as error:
            raise UsageError(f"{where} {damaged}") from error
        book[line.procedure, line.labels] = line
    return book


def _write(path: Path, book: Book) -> None:
    try:
        if book:
            atomic_write(path, "".join(f"{canonical_json(line.model_dump())}\n" for line in book.values()))
    except OSError:  # a folder that others own
        log.warning("%s cannot be written, so later fits will not count this one.", path)
