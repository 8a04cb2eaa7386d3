"""The ledger of a record file: which certificates its labels have carried, and the confidence of all of them together.

Each certificate read from the same labels fails with its own delta. Whichever of them is used, the promise holds with
probability at least 1 minus their sum (union bound). ``RECORDS.ledger.jsonl`` beside the records has a line for each
fit. The rules of counting:

* Equal lines are one fit: the same labels, score values, rule with every setting, alpha and delta. The name of the
  score plays no part. Another alpha is another fit.
* Fits of disjoint groups of one file (``fit --by group``) do not add: the largest sum of any group counts.
* A fit after undecided answers, which count as wrong, were decided is the same fit: labels only fall, so its threshold
  only grows, and the last certificate fails if any before did.
* Nothing is refused until the sum reaches 1.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, ValidationError

from guardrail.artifact import CalibrationArtifact, CascadeArtifact, RouterArtifact, Spent
from guardrail.errors import UsageError
from guardrail.files import atomic_write, check_version
from guardrail.outcome import CERTIFIED
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.types import Frozen

from .data.records import exclusive

__all__ = ["Ledger", "Line", "counted", "counted_router", "ledger_of"]

Fitted = TypeVar("Fitted", CalibrationArtifact, CascadeArtifact)


class Line(Frozen):
    """One fit."""

    format: Literal[1] = 1
    """Version of this layout."""
    created: str
    """When it was fitted, ISO 8601."""
    procedure: str
    """Digest of everything but the labels: questions, score values, rule with every setting, alpha and delta."""
    wrong: str
    """Base64 of the labels in order of the scores, one bit each: 1 for wrong."""
    undecided: int
    """Answers among ``n`` that were undecided and counted as wrong."""
    n: int
    """Labels that were used."""
    score: str
    """Name of the score, for messages."""
    rule: str
    """Name of the rule, for messages."""
    delta: float = Field(ge=0, le=1)
    """Failure probability that the fit spends; 0 for a rule that certifies nothing."""
    group: str = ""
    """The group of the records that it is about; "" for all of them."""
    continues: bool = False
    """Whether it is the fit before it again, with answers decided that were undecided then."""

    @classmethod
    def of(
        cls,
        uncertainty: ArrayLike,
        wrong: ArrayLike,
        settings: Any,
        *,
        score: str,
        rule: str,
        delta: float,
        undecided: int = 0,
        group: str = "",
    ) -> Line:
        """The line of a fit.

        Args:
            uncertainty: Score of each labelled unit, shape (n,); may be +inf.
            wrong: Its label, 0 or 1, shape (n,).
            settings: What else decides the fit, as JSON: digest of the questions, rule, options, alpha, label rule.
            score: Name of the score.
            rule: Name of the rule.
            delta: Failure probability that it spends.
            undecided: Labels that count as wrong because nobody has decided them yet.
            group: The group of the records that it is about.
        """
        u, e = np.asarray(uncertainty, dtype="<f8"), np.asarray(wrong, dtype=np.uint8)
        order = np.lexsort((e, u))  # right ones first among equal scores, so that the order of the file plays no part
        values = sha256_hex(u[order].tobytes().hex())
        return cls(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            procedure=sha256_hex(canonical_json([settings, values, rule, round(delta, 12), group], default=str))[:32],
            wrong=b64encode(np.packbits(e[order]).tobytes()).decode(),
            undecided=undecided,
            n=int(u.size),
            score=score,
            rule=rule,
            delta=delta,
            group=group,
        )

    def decides(self, earlier: Line) -> bool:
        """Whether this is an earlier fit of the same procedure with some of its undecided answers decided.

        At every threshold at most as many answers are wrong as in the earlier fit, and at most as many have become
        right as were undecided.
        """
        fallen = np.cumsum(earlier._labels - self._labels)
        return bool(fallen.min(initial=0) >= 0 and fallen[-1:].sum() <= earlier.undecided)

    @property
    def _labels(self) -> NDArray[np.int64]:
        bits = np.frombuffer(b64decode(self.wrong), dtype=np.uint8)
        return np.unpackbits(bits, count=self.n).astype(np.int64)


class Ledger:
    """The fits on the labels of record files.

    Args:
        records: The record files; the ledger of each gets a line for every fit. Without any, this object remembers.

    Attributes:
        lines: Fits that this object remembers, oldest first.
        unwritten: A file that could not be written, or None.
    """

    def __init__(self, records: Iterable[Path] = ()) -> None:
        self.paths: list[Path] = [ledger_of(path) for path in records]
        self.lines: list[Line] = []
        self.unwritten: Path | None = None

    def enter(self, new: Sequence[Line]) -> Spent:
        """Remember fits that were made together, each once, and return what all fits on these labels spend.

        Raises:
            UsageError: A ledger is damaged or of another version, or the fits together spend 1 or more.
        """
        with ExitStack() as locks:
            for path in sorted(set(self.paths)):
                if path.parent.is_dir():
                    locks.enter_context(exclusive(path))
            books = [*([self.lines] if not self.paths else []), *(_read(path) for path in self.paths)]
            spent = max((_spent([*book, *_unknown(new, book)]) for book in books), key=lambda each: each.delta)
            if spent.delta > 1 - 1e-9:
                raise UsageError(
                    f"{spent.fits} fits on these labels spend delta {spent.delta:.3g} together, and from 1 on no "
                    "confidence is left. Fit on fresh labels."
                )
            self.lines += _unknown(new, self.lines)
            for path, book in zip(self.paths, books if self.paths else (), strict=True):
                self._append(path, _unknown(new, book))
        return spent

    def copy_to(self, records: Path) -> None:
        """Write the fits that this object knows beside a new record file, and count later fits there as well."""
        path = ledger_of(records)
        known = [*self.lines, *(line for each in self.paths for line in _read(each))]
        self._append(path, _unknown(known, _read(path)))
        self.paths = sorted({*self.paths, path})

    def _append(self, path: Path, lines: Sequence[Line]) -> None:
        if not lines:
            return
        before = path.read_bytes() if path.is_file() else b""
        if before and not before.endswith(b"\n"):  # an editor may have taken the last one
            before += b"\n"
        text = "".join(f"{canonical_json(line.model_dump())}\n" for line in lines)
        try:
            atomic_write(path, before + text.encode())
        except OSError:  # a folder that others own: the fit is said, and not remembered there
            self.unwritten = path


def counted(artifact: Fitted, ledger: Ledger, score: str) -> Fitted:
    """The artifact with what all fits on its labels spend; its own fit is remembered.

    Args:
        artifact: A fitted threshold or cascade.
        ledger: The ledger of its records.
        score: Name of its score in the records, for messages.
    """
    return artifact.model_copy(update={"spent": ledger.enter([_line(artifact, score)])})


def counted_router(artifact: RouterArtifact, ledger: Ledger, score: str) -> RouterArtifact:
    """The router with what all fits on the labels of each group spend; see `counted`."""
    fitted = {name: part for name, part in artifact.artifacts.items() if part.calibration.error}
    spent = ledger.enter([_line(part, score, group=name) for name, part in fitted.items()])
    counted_parts = {name: part.model_copy(update={"spent": spent}) for name, part in fitted.items()}
    return artifact.model_copy(update={"artifacts": {**artifact.artifacts, **counted_parts}})


def _line(artifact: CalibrationArtifact | CascadeArtifact, score: str, group: str = "") -> Line:
    """The line of a fitted artifact."""
    stages = artifact.stages if isinstance(artifact, CascadeArtifact) else (artifact,)
    outcome = artifact.outcome
    certifies = outcome.rule == CERTIFIED or bool(getattr(outcome, "certifies", False))
    settings = [[_settings(stage) for stage in stages], outcome.options, artifact.alpha]
    scores = [_units(stage) for stage in stages]
    return Line.of(
        np.concatenate([u for u, _ in scores]),
        np.concatenate([wrong for _, wrong in scores]),
        settings,
        score=score,
        rule=outcome.rule,
        delta=(outcome.delta or 0.0) if certifies else 0.0,
        undecided=sum(stage.data.n_undecided for stage in stages),
        group=group,
    )


def _units(artifact: CalibrationArtifact) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores and labels that a threshold was fitted on; of gates of items, those of the items."""
    scores = artifact.calibration
    return np.array(scores.uncertainty, dtype=np.float64), np.array(scores.error, dtype=np.int64)


def _settings(artifact: CalibrationArtifact) -> list[object]:
    """What else decides a fit: questions, label rule, cut and clusters."""
    labels = artifact.correctness.model_dump(mode="json")
    labels["params"].pop("undecided", None)
    return [
        labels,
        artifact.data.sha256,
        artifact.outcome.scope.cut,
        artifact.calibration.group is not None,
    ]


def ledger_of(records: Path) -> Path:
    """The ledger of a record file."""
    return records.with_name(f"{records.stem}.ledger.jsonl")


def _unknown(new: Sequence[Line], known: Sequence[Line]) -> list[Line]:
    """The fits that are not among the known ones, each once."""
    book = list(known)
    for line in new:
        same = [other for other in book if other.procedure == line.procedure]
        if all(other.wrong != line.wrong for other in same):
            book.append(line.model_copy(update={"continues": bool(same) and line.decides(same[-1])}))
    return book[len(known) :]


def _spent(lines: Sequence[Line]) -> Spent:
    """The largest sum of delta that any one label has carried, and the fits behind it."""
    by_group: defaultdict[str, list[float]] = defaultdict(list)
    for line in lines:
        if not line.continues:
            by_group[line.group].append(line.delta)
    whole = by_group.pop("", [])
    largest = max(by_group.values(), key=sum, default=[])
    return Spent(fits=len(whole) + len(largest), delta=min(1.0, sum(whole) + sum(largest)))


def _read(path: Path) -> list[Line]:
    if not path.is_file():
        return []
    lines = []
    for number, text in enumerate(path.read_bytes().removesuffix(b"\n").split(b"\n"), start=1):
        where = f"{path}, line {number}"
        damaged = f"{where} is not a line that `calibrate fit` wrote. Restore the file: it counts the fits."
        try:
            row = json.loads(text)
            version = row.get("format")
        except (ValueError, AttributeError) as error:
            raise UsageError(damaged) from error
        check_version(version, 1, where, "remove the file, which forgets the fits")
        try:
            lines.append(Line.from_stored(row))
        except ValidationError as error:
            raise UsageError(damaged) from error
    return lines
