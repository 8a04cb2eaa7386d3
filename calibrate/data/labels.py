"""Labels that people gave: a file of record ids and whether the answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from guardrail.errors import RecordError, UsageError
from guardrail.files import check_version
from guardrail.plain_json import sha256_hex
from guardrail.specs import CorrectnessSpec

from .questions import read_rows
from .records import Record

__all__ = ["GivenLabels", "apply_labels", "read_labels"]

_WORDS = {"true": True, "1": True, "yes": True, "right": True, "false": False, "0": False, "no": False, "wrong": False}


@dataclass(frozen=True, slots=True)
class GivenLabels:
    """Labels read from a file.

    Attributes:
        path: The file.
        correct: Whether the answer is right, by record id.
        sha256: Hash of the labels, in canonical order.
        skipped: Records a person looked at and could not decide (null, from an interactive session).
        answers: The answer that was judged, by record id, where the file says so.
    """

    path: Path
    correct: dict[str, bool]
    sha256: str
    skipped: frozenset[str] = frozenset()
    answers: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> CorrectnessSpec:
        """What the artifact stores in the place of a rule."""
        return CorrectnessSpec(name="given", version=1, params={"file": self.path.name, "sha256": self.sha256})


def read_labels(path: str | Path) -> GivenLabels:
    """Read labels: JSONL or CSV with ``id`` and ``correct`` (true/false, 1/0, yes/no, right/wrong).

    A field ``judged`` is the answer that was judged. Beside it ``correct`` may be null: looked at, and not decided.

    Raises:
        RecordError: A malformed row or a second label for an id; file, line and field are named.
        UsageError: No such file, or no label in it.
    """
    path = Path(path)
    correct: dict[str, bool] = {}
    skipped: set[str] = set()
    answers: dict[str, str] = {}
    for row in read_rows(path):
        name = str(row.values.get("id") or "").strip()
        if not name:
            raise row.fail("id", row.values.get("id"), "every label needs the id of its record")
        given = row.values.get("format")
        if isinstance(given, int):  # of a labelling session; other files may use the column for anything
            way_out = "write id and correct only"
            check_version(given, 1, f"{path}: the label of {name!r}", way_out, error=RecordError)
        if name in correct or name in skipped:
            raise row.fail("id", name, "it has a label already; remove one of the two")
        given, answer = row.values.get("correct"), row.values.get("judged")
        if isinstance(answer, str):
            answers[name] = answer
        if given is None and "correct" in row.values and name in answers:
            skipped.add(name)
            continue
        if str(given).strip().lower() not in _WORDS:
            raise row.fail("correct", given, "write true or false")
        correct[name] = _WORDS[str(given).strip().lower()]
    if not correct and not skipped:
        raise UsageError(f'{path} holds no label. Write one JSON object a line: {{"id": ..., "correct": true}}')
    digest = sha256_hex("".join(f"{name}\t{correct[name]}\n" for name in sorted(correct)))
    return GivenLabels(path, correct, digest, frozenset(skipped), answers)


def apply_labels(records: Sequence[Record], labels: GivenLabels) -> list[Record]:
    """Label records by id; a record without a label says so.

    Raises:
        UsageError: A label for a record that does not exist, or for another answer than the record has: it is
            probably the wrong file.
    """
    unknown = sorted((set(labels.correct) | labels.skipped) - {record.id for record in records})
    if unknown:
        raise UsageError(
            f"{labels.path} labels {len(unknown)} records that are not in the record file, e.g. {unknown[0]!r}. "
            "Give the labels of these records."
        )
    for record in records:
        judged = labels.answers.get(record.id)
        if judged is not None and judged != (record.answer or ""):
            raise UsageError(
                f"{labels.path}: the label of {record.id!r} is for the answer {judged[:80]!r}, but the record's answer "
                f"is {str(record.answer)[:80]!r}. Give the labels of these records."
            )
    return [_labelled(record, labels) for record in records]


def _labelled(record: Record, labels: GivenLabels) -> Record:
    correct = labels.correct.get(record.id)
    how = "skipped" if record.id in labels.skipped else "no label"
    detail = "" if correct is not None else f"{how} in {labels.path.name}"
    return record.model_copy(update={"correct": correct, "label_detail": detail})
