"""Fields recognised by the names of a file's columns."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable, Sequence

from ..row import RawRow
from .field_map import FIELDS, SCORES, ColumnMap, score_column

_LABELS = ("correct", "error")
"""Fields of labels."""

_RECOGNISED = ("id", "question", "references", "answer", *_LABELS, "group")
"""Fields that are recognised beside scores in a table that has its scores and labels."""

_USUAL = {
    "question": "prompt query input instruction",
    "references": "ref reference gold gold_answer golden_answer ground_truth target expected expected_answer",
    "answer": "response output prediction completion model_answer llm_answer reply",
    "samples": "generations completions responses",
    "correct": "is_correct right ok label passed",
    "error": "is_error wrong incorrect",
    "confidence": "confidence conf probability prob p_true",
    "certainty": "certainty logprob mean_logprob log_likelihood",
    "score": "score uncertainty entropy semantic_entropy perplexity",
}
"""Names that the columns of a field often have. An import needs a mapping all the same: a guess may be wrong."""

_ROOT = re.compile(r"[.\[| ]")
"""End of the column that a path begins with."""


def column_names(rows: Iterable[RawRow]) -> list[str]:
    """All columns of the rows, in order of appearance."""
    return list(dict.fromkeys(str(name) for row in rows for name in row.values))


def recognised(rows: Sequence[RawRow], columns: ColumnMap) -> ColumnMap:
    """The map with the columns that are not mapped and have a usual name, such as "confidence" or "is_correct".

    A confidence above 1, as a percentage, is read as a number that is higher for certain answers.
    """
    names = column_names(rows)
    fields = dict(columns.columns)
    scores = list(columns.scores)
    read, known = _taken(columns, names)
    for name in names:
        field = _usual_field(name)
        if field is None or name in read or field in known:
            continue
        if field in SCORES:
            if field == "confidence" and any((row.number_or_none(row.values.get(name)) or 0) > 1 for row in rows):
                field = "certainty"
            scores.append(score_column(name, f"{'_'.join(name.split())}:{name}", field))
        elif field in _RECOGNISED:
            fields[field] = (name,)
            known |= set(_LABELS) if field in _LABELS else {field}
    return ColumnMap(fields, tuple(scores))


def read_as(columns: ColumnMap, names: Sequence[str]) -> str:
    """The sentence that says which column was taken for what.

    Args:
        columns: The map with the recognised columns.
        names: All columns of the file.
    """
    parts: list[str] = []
    used: set[str] = set()
    for score in columns.scores:
        direction = "lower" if score.holds == "score" else "higher"
        parts.append(f"score {score.column} ({direction} is more certain)")
        used.add(score.column)
    for holds in FIELDS:
        for name in columns.of(holds):
            if name in names or columns.mapped(holds):
                parts.append(name if name == holds else f"{holds} {name}")
                used.add(name)
    unread = [name for name in names if name and name not in used]
    return f"Read as {', '.join(parts)}" + (f"; not read: {', '.join(unread)}." if unread else ".")


def proposed(names: Collection[str], columns: ColumnMap) -> str:
    """Options that read columns which are not read, by what such names usually or nearly say; "" without any.

    Args:
        names: All columns of the file.
        columns: The map that they are read with.
    """
    read, known = _taken(columns, names)
    left = [name for name in names if name not in read]
    numbered: dict[str, list[str]] = {}
    for name in left:
        match = re.fullmatch(r"(.*\D)\d+", name)  # "sample1" is of "sample"
        if match:
            numbered.setdefault(match[1], []).append(name)
    samples = max(numbered.values(), key=len, default=[])
    options = []
    for name in left:
        near = difflib.get_close_matches(_plain(name), FIELDS, n=1, cutoff=0.8)
        field = _usual_field(name) or next(iter(near), None)
        if field is not None and field not in known and name not in samples:
            options.append(f"--map {shlex.quote(f'{field}={name}')}")
    if len(samples) > 1 and "samples" not in known:
        options.append(f"--map samples={','.join(samples)}")
    return " ".join(options)


def _taken(columns: ColumnMap, names: Collection[str]) -> tuple[set[str], set[str]]:
    """The columns that are read, and the fields that have one; a label and its opposite are one, and so are scores."""
    read = {name for field in FIELDS for name in columns.of(field)} | columns.named
    read |= {_ROOT.split(path, maxsplit=1)[0] for path in read}
    fields = {field for field in FIELDS if columns.mapped(field) or any(name in names for name in columns.of(field))}
    fields |= set(_LABELS) if fields & set(_LABELS) else set()
    return read, fields | (set(SCORES) if columns.scores else set())


def _usual_field(column: str) -> str | None:
    """The field that a column of this name usually holds; None for other names."""
    plain = _plain(column)
    if plain in FIELDS:
        return plain
    return next((name for name, names in _USUAL.items() if plain in names.split()), None)


def _plain(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")
