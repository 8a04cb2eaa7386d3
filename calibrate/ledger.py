"""The ledger of a record file: which certificates its labels have carried, and the confidence of all of them together.

Each certificate read from the same labels fails with its own delta. Whichever of them is used, the promise holds with
probability at least 1 minus their sum (union bound). ``RECORDS.ledger.jsonl`` beside the records has a line for each
fit. Equal lines are one fit, whatever the score is called; another alpha is another fit. Fits of disjoint groups of one
file (``fit --by group``) do not add: the largest sum of any group counts. Nothing is refused until the sum reaches 1.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from pydantic import Field

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact, Spent
from guardrail.describe import certifies
from guardrail.errors import UsageError
from guardrail.files import atomic_write, check_version
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen

from .data.records import exclusive

__all__ = ["Ledger", "Line", "counted", "ledger_of"]

Fitted = TypeVar("Fitted", CalibrationArtifact, CascadeArtifact, RouterArtifact)
log = logging.getLogger("guardrail")


class Line(Frozen):
    """One fit."""

    format: Literal[1] = 1
    """Version of this layout."""
    created: str
    """When it was fitted, ISO 8601."""
    procedure: str
    """Digest of everything but the labels: questions, score values, rule with every setting, alpha and delta."""
    labels: str = Field(pattern="^[01]*$")
    """The labels in order of the scores, a digit each: 1 for wrong."""
    undecided: int
    """Answers among them that were undecided and counted as wrong."""
    delta: float = Field(ge=0, le=1)
    """Failure probability that the fit spends; 0 for a rule that certifies nothing."""
    group: str = ""
    """The group of the records that it is about; "" for all of them."""

    @classmethod
    def of(cls, artifact: CalibrationArtifact | CascadeArtifact, group: str = "") -> Line:
        """The line of a fitted artifact; ``group`` names the group of records that it is about."""
        stages = artifact.stages if isinstance(artifact, CascadeArtifact) else (artifact,)
        u = np.concatenate([np.array(stage.calibration.uncertainty, dtype="<f8") for stage in stages])
        wrong = np.concatenate([np.array(stage.calibration.error, dtype=np.uint8) for stage in stages])
        order = np.lexsort((wrong, u))  # right ones first among equal scores: the order of the file plays no part
        fit = artifact.outcome
        settings = [fit.rule, fit.options, fit.alpha, fit.delta, group, *map(_settings, stages)]
        values = sha256_hex(u[order].tobytes())
        return cls(
            created=artifact.created,
            procedure=sha256_hex(canonical_json([settings, values]), 32),
            labels=(wrong[order] + ord("0")).tobytes().decode(),
            undecided=sum(stage.data.n_undecided for stage in stages),
            delta=(fit.delta or 0.0) if certifies(fit) else 0.0,
            group=group,
        )

    def decides(self, earlier: Line) -> bool:
        """Whether only undecided answers, which counted as wrong, were decided since an earlier fit: the same fit.

        Labels only fall then, so the threshold only grows, and the last certificate fails only if one before did.
        """
        ours, theirs = (np.frombuffer(line.labels.encode(), np.uint8).astype(np.int64) for line in (self, earlier))
        fallen = np.cumsum(theirs - ours)
        return bool(fallen.min(initial=0) >= 0 and fallen[-1:].sum() <= earlier.undecided)


class Ledger:
    """The fits on the labels of record files; without a file ``lines`` remembers them."""

    def __init__(self, records: Iterable[Path] = ()) -> None:
        self.paths = sorted({ledger_of(path) for path in records})
        self.lines: list[Line] = []

    def enter(self, new: Sequence[Line]) -> Spent:
        """Remember fits that were made together, each once, and return what all fits on these labels spend.

        Raises:
            UsageError: A ledger is damaged or of another version, or the fits together spend 1 or more.
        """
        with ExitStack() as locks:
            for path in self.paths:
                with suppress(PermissionError):  # a folder that nobody here can write; `_write` says so
                    if path.parent.is_dir():
                        locks.enter_context(exclusive(path))
            books = [_with(_read(path), new) for path in self.paths] or [_with(self.lines, new)]
            spent = max(map(_spent, books), key=lambda each: each.delta)
            if spent.delta > 1 - 1e-9:
                raise UsageError(
                    f"{spent.fits} fits on these labels spend delta {spent.delta:.3g} together, and from 1 on no "
                    "confidence is left. Fit on fresh labels."
                )
            self.lines = _with(self.lines, new)
            for path, book in zip(self.paths, books, strict=False):
                _write(path, book)
        return spent

    def copy_to(self, records: Path) -> None:
        """Write the fits that this object knows beside a new record file, and count later fits there as well."""
        path = ledger_of(records)
        _write(path, _with(_read(path), [*self.lines, *(line for each in self.paths for line in _read(each))]))
        self.paths = sorted({*self.paths, path})


def counted(artifact: Fitted, ledger: Ledger) -> Fitted:
    """The artifact with what all fits on its labels spend; its own fit is remembered. Of a router in each group."""
    if not isinstance(artifact, RouterArtifact):
        return artifact.model_copy(update={"spent": ledger.enter([Line.of(artifact)])})
    fitted = {name: part for name, part in artifact.artifacts.items() if part.calibration.error}
    spent = ledger.enter([Line.of(part, name) for name, part in fitted.items()])
    parts = {name: part.model_copy(update={"spent": spent}) for name, part in fitted.items()}
    return artifact.model_copy(update={"artifacts": {**artifact.artifacts, **parts}})


def ledger_of(records: Path) -> Path:
    """The ledger of a record file."""
    return records.with_name(f"{records.stem}.ledger.jsonl")


def _settings(artifact: CalibrationArtifact) -> list[object]:
    """What else decides a fit: questions, label rule, cut and clusters."""
    labels = artifact.correctness.model_dump(mode="json")
    labels["params"].pop("undecided", None)
    return [labels, artifact.data.sha256, artifact.outcome.scope.cut, artifact.calibration.group is not None]


def _with(book: Sequence[Line], new: Sequence[Line]) -> list[Line]:
    """The fits of a book, and the new ones that are not among them."""
    lines = {(line.procedure, line.labels): line for line in book}
    for line in new:
        lines.setdefault((line.procedure, line.labels), line)
    return list(lines.values())


def _spent(lines: Sequence[Line]) -> Spent:
    """The largest sum of delta that any one label has carried, and the fits behind it."""
    by_group: defaultdict[str, list[float]] = defaultdict(list)
    last: dict[str, Line] = {}
    for line in lines:
        if line.procedure not in last or not line.decides(last[line.procedure]):
            by_group[line.group].append(line.delta)
        last[line.procedure] = line
    whole = by_group.pop("", [])
    largest = max(by_group.values(), key=sum, default=[])
    return Spent(fits=len(whole) + len(largest), delta=min(1.0, sum(whole) + sum(largest)))


def _read(path: Path) -> list[Line]:
    lines: list[Line] = []
    for number, text in enumerate(path.read_bytes().splitlines() if path.is_file() else (), start=1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(text)
            version = row["format"]
            lines.append(Line.from_stored({**row, "format": 1}))
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{where} is not what `calibrate fit` wrote. Restore it: it counts the fits.") from error
        check_version(version, 1, where, "remove the file, which forgets the fits")
    return lines


def _write(path: Path, lines: Sequence[Line]) -> None:
    try:
        if lines:
            atomic_write(path, "".join(f"{canonical_json(line.model_dump())}\n" for line in lines).encode())
    except OSError:  # a folder that others own
        log.warning("%s cannot be written, so later fits will not count this one.", path)
