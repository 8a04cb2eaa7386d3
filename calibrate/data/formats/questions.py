"""Question files of any known format: our own, and the data sets of the paper, as published and as on the hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from guardrail.errors import RecordError, UsageError

from ..questions import Question, question_of, read_questions
from ..row import RawRow
from ..rows import json_document, read_rows
from .build import Builder, fields_of
from .field_map import ColumnMap, ImportSettings

__all__ = ["QUESTION_FORMATS", "load_questions"]


def load_questions(
    path: str | Path,
    format: str | None = None,
    *,
    columns: ColumnMap | None = None,
    require_references: bool = True,
) -> list[Question]:
    """Read questions.

    Args:
        path: A file, or a folder of a Hugging Face dataset.
        format: One of `QUESTION_FORMATS`; None recognises it.
        columns: Columns, or paths into nested ones, of a file of another form; or None.
        require_references: Whether our own format needs references; data sets always have them.

    Returns:
        The questions in file order; at least one, with distinct ids.

    Raises:
        UsageError: An unknown format, a missing file, a file of no known format, or no question.
        RecordError: A part is malformed; file, place and field are named.
        MissingDependencyError: Parquet or Arrow without pyarrow.
    """
    path = Path(path)
    if not path.exists():
        raise UsageError(f"no file at {path}. Give the path of a question file or data folder.")
    name = format or ("mapped" if columns is not None else _detect(path))
    if columns is not None:
        questions = _mapped(read_rows(path), columns)
    elif name == "own":
        return read_questions(path, require_references=require_references)
    elif name in _READERS:
        questions = _READERS[name](path)
    else:
        raise UsageError(f"no question format named {name!r}. Known: {', '.join(QUESTION_FORMATS)}.")
    if not questions:
        raise UsageError(f"{path} holds no question in format {name}.")
    first: set[str] = set()
    for question in questions:
        if question.id in first:
            raise RecordError(f"{path}: field 'id': got {question.id!r}, which two questions have. Remove one of them.")
        first.add(question.id)
    return questions


def _mapped(rows: Iterator[RawRow], columns: ColumnMap) -> list[Question]:
    """Questions of rows by a map of their columns, or paths into nested ones."""
    plain = ("id", "question", "references", "options", "group")
    mapped = {name: columns.of(name) for name in plain if columns.mapped(name)}
    only = ColumnMap({**mapped, "answer": (), "samples": (), "tools": ()})
    whole = [row.with_paths(sorted(only.named)) for row in rows]
    builder = Builder(ImportSettings(columns=only), fields_of(whole[0], only) if whole else frozenset())
    return [builder.build(row).to_question() for row in whole]


def _detect(path: Path) -> str:
    """The format of a file by its name and its begin."""
    kind = path.suffix.lower()
    if path.is_dir() or kind == ".parquet":
        return "hf"
    values = _begin(path, whole=kind == ".json") if kind in (".jsonl", ".ndjson", ".json") else None
    if isinstance(values, dict) and set(_MedMCQA.model_fields) - _OPTIONAL <= values.keys():
        return "medmcqa"
    if kind != ".json" or isinstance(values, list):
        return "own"
    data = values.get("data") if isinstance(values, dict) else None
    if isinstance(data, list) and data and isinstance(data[0], dict) and {"story", "questions"} <= data[0].keys():
        return "coqa"
    raise UsageError(
        f"{path} is of no known format. Name it: --set questions_format={'|'.join(_READERS)}; or rename it to .jsonl "
        "if it holds one question a line."
    )


def _begin(path: Path, *, whole: bool) -> Any:
    """A whole JSON document, or the first line of JSON lines; None without either."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    for part in (text, text.partition("\n")[0]) if whole else (text.partition("\n")[0],):
        try:
            return json.loads(part)
        except json.JSONDecodeError:
            continue
    return None


class _Published(BaseModel):
    """Base of what is read of a data set."""

    model_config = ConfigDict(str_strip_whitespace=True, str_min_length=1, coerce_numbers_to_str=True)


Read = TypeVar("Read", bound=_Published)


def _read(kind: type[Read], row: RawRow) -> Read:
    """A row as published.

    Raises:
        RecordError: It is not; the place is named by its path: ``dev.json:data[3].questions[0]``.
    """
    try:
        return kind.model_validate(row.values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        *above, field = first["loc"]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in above)
        got = None if first["type"] == "missing" else first["input"]
        where = RawRow(row.where + (place if not row.where.endswith(":") else place.removeprefix(".")), {})
        raise where.fail(str(field), got, f"{first['msg']}. Correct the file, or copy it again.") from error


# -- CoQA (Reddy et al. 2019): conversations about a story. Every turn becomes one question: the story, the earlier
# turns with their gold answers, and the turn itself. Turns of a conversation depend on each other, so its id is the
# group (fit with --cluster-by-group).


class _Turn(_Published):
    input_text: str
    turn_id: StrictInt


class _Story(_Published):
    id: str
    story: str
    questions: list[_Turn]
    answers: list[_Turn]
    additional_answers: dict[str, list[_Turn]] = Field(default_factory=dict)


class _CoQA(_Published):
    data: list[_Story]


def _coqa(path: Path) -> list[Question]:
    document = json_document(path, "The file is truncated or not a JSON document; copy it again.")
    whole = _read(_CoQA, RawRow(f"{path}:", document if isinstance(document, dict) else {"data": document}))
    return [
        question
        for number, story in enumerate(whole.data)
        for question in _conversation(RawRow(f"{path}:data[{number}]", {}), story)
    ]


def _hub_story(row: RawRow, number: int) -> _Story:
    """A conversation as on the hub, which has neither ids nor additional answers."""

    def turns(texts: Any) -> Any:
        listed = enumerate(texts, start=1) if isinstance(texts, list) else ()
        return [{"input_text": text, "turn_id": turn} for turn, text in listed]

    values = row.values
    answers = values["answers"].get("input_text")
    story = {"id": f"coqa-{number}", "story": values["story"], "questions": turns(values["questions"])}
    return _read(_Story, RawRow(row.where, {**story, "answers": turns(answers)}))


def _conversation(row: RawRow, story: _Story) -> Iterator[Question]:
    gold = [
        {turn.turn_id: turn.input_text for turn in turns}
        for turns in (story.answers, *story.additional_answers.values())
    ]
    asked = [turn.turn_id for turn in story.questions]
    if sorted(gold[0]) != sorted(asked):
        raise row.fail("answers", sorted(gold[0]), f"there must be one answer for each turn_id of {asked}")
    history = ""
    for turn in story.questions:
        answers = [answer[turn.turn_id] for answer in gold if turn.turn_id in answer]
        yield Question(
            id=f"{story.id}-{turn.turn_id}",
            question=f"{story.story}\n\n{history}Q: {turn.input_text}\nA:",
            references=tuple(dict.fromkeys(answers)),
            group=story.id,
        )
        history += f"Q: {turn.input_text}\nA: {answers[0]}\n"


# -- MedMCQA (Pal et al. 2022): one JSON object a line. The official files count cop, the right option, from 1 (the
# builder of `datasets` subtracts 1), the copy on the hub counts from 0 and its card says otherwise. Nothing in a row
# tells them apart, but the file does: a 0 or a 4 occurs in any real one. Where neither does, the base has to be named
# (medmcqa-1 or medmcqa-0): reading it wrong would shift every label.


class _MedMCQA(_Published):
    id: str
    question: str
    opa: str
    opb: str
    opc: str
    opd: str
    cop: StrictInt = Field(ge=-1, le=4)
    subject_name: str | None = None


_OPTIONAL = {"id", "subject_name"}


def _medmcqa(rows: Sequence[RawRow], base: int | None = None) -> list[Question]:
    """Questions; the group is the subject, and ``base`` what cop counts from (None reads it off the rows)."""
    published = [_read(_MedMCQA, row) for row in rows]
    cops = [each.cop for each in published]
    if -1 in cops:
        raise rows[cops.index(-1)].fail("cop", -1, "the answers of the test part are withheld. Use another part.")
    base = _base(rows, cops) if base is None else base
    questions = []
    for row, each in zip(rows, published, strict=True):
        if not base <= each.cop < base + 4:
            raise row.fail(
                "cop", each.cop, f"it must be in {base} ... {base + 3} where options are counted from {base}"
            )
        options = {"A": each.opa, "B": each.opb, "C": each.opc, "D": each.opd}
        right = tuple(options)[each.cop - base]
        questions.append(
            Question(id=each.id, question=each.question, references=(right,), options=options, group=each.subject_name)
        )
    return questions


def _base(rows: Sequence[RawRow], cops: Sequence[int]) -> int:
    if 0 in cops and 4 in cops:
        zero, four = rows[cops.index(0)].where, rows[cops.index(4)].where
        raise UsageError(
            f"cop is 0 at {zero} and 4 at {four}: two files that count differently were mixed. Split them."
        )
    if 0 not in cops and 4 not in cops:
        raise UsageError(
            f"in {len(cops)} rows cop is never 0 or 4, so it may count from 1 (official files) or from 0 (the copy "
            "on the hub). Say which: --set questions_format=medmcqa-1 or medmcqa-0."
        )
    return 0 if 0 in cops else 1


# -- Readers by format -------------------------------------------------------------------------------------------------


def _rows(path: Path) -> list[RawRow]:
    """All rows; the first that cannot be read stops. The official files of MedMCQA have lines, and end with .json."""
    kind = "jsonl" if path.is_file() and path.suffix.lower() == ".json" else None
    rows = list(read_rows(path, kind))
    if not rows:
        raise UsageError(f"{path} holds no row")
    return rows


def _hub(path: Path) -> list[Question]:
    """A data set folder or Parquet file: one of the known sets by its columns, or our own fields as columns."""
    rows = _rows(path)
    values: Mapping[str, Any] = rows[0].values
    if set(_MedMCQA.model_fields) - _OPTIONAL <= values.keys():
        return _medmcqa(rows)
    if "story" in values and isinstance(values.get("questions"), list) and isinstance(values.get("answers"), dict):
        return [each for i, row in enumerate(rows) for each in _conversation(row, _hub_story(row, i))]
    if {"question", "references"} <= values.keys():
        return [question_of(row, require_references=True) for row in rows]
    raise UsageError(
        f"{path} has columns {', '.join(values)}; those of MedMCQA and CoQA are known, and question, references[, "
        "options, group, id]. Name the columns: --map question=COLUMN --map references=COLUMN."
    )


_READERS: dict[str, Callable[[Path], list[Question]]] = {
    "coqa": _coqa,
    "hf": _hub,
    "medmcqa": lambda path: _medmcqa(_rows(path)),
    "medmcqa-0": lambda path: _medmcqa(_rows(path), 0),
    "medmcqa-1": lambda path: _medmcqa(_rows(path), 1),
}

QUESTION_FORMATS = ("own", *_READERS)
"""Formats by name; "own" is the one of this project, JSONL or CSV."""
