"""Layouts of published files of recorded outputs: how each is recognised, and its columns.

Most need no code, only a column map. Where one row holds several systems or nested answers, ``adapt`` rewrites the row
into the plain form; it never computes a score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guardrail.errors import UsageError

from ..questions import RawRow
from .field_map import ColumnMap, ScoreColumn

__all__ = ["LAYOUTS", "Layout", "detect"]

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """One published layout.

    Attributes:
        name: What a user writes after --format.
        kind: jsonl or csv, for a file whose name does not tell.
        matches: Whether a file is of this layout, by its name and first row.
        columns: Its column map.
        systems: Names of the systems in a row, for files that hold several.
        adapt: A row in plain form, for one system ("" where there is only one); None for a row to leave out.
        left_out: What those rows are.
        temperature: Temperature of the samples, where the source states it.
        note: A caution; shown to the user.
    """

    name: str
    kind: str
    matches: Callable[[Path, Values], bool]
    columns: ColumnMap = field(default_factory=ColumnMap)
    systems: Callable[[Values], tuple[str, ...]] = lambda values: ()
    adapt: Callable[[RawRow, str], Values | None] = lambda row, system: row.values
    left_out: str = ""
    temperature: float | None = None
    note: str = ""

    def choose(self, values: Values, system: str | None) -> str:
        """The system to read.

        Raises:
            UsageError: The file has several systems and none was named, or it lacks the named one.
        """
        there = self.systems(values)
        if not there:
            if system is not None:
                raise UsageError(f"--system {system!r}: a {self.name} file holds one system only; leave it out")
            return ""
        if system not in there:
            but_named = "" if system is None else f", not {system!r}"
            raise UsageError(
                f"a {self.name} file holds several systems: {', '.join(there)}{but_named}. Choose: --system NAME"
            )
        return system


def _sample_fields(values: Values) -> set[str]:
    """Fields of the first sample, where samples are objects."""
    samples = values.get("samples")
    return set(samples[0]) if isinstance(samples, list) and samples and isinstance(samples[0], dict) else set()


# QA-Eval as published (EVOUNA/NQ.json, TQ.json), an array of
#     {"question": ..., "golden_answer": "a/b", "answer_fid": ..., "judge_fid": true, ..., "improper": false}
# and with the answers gathered in one object: {"answers": {"fid": {"text": ..., "correct": true}, ...}, ...}.


def _is_nq(path: Path, values: Values) -> bool:
    answers = values.get("answers")
    gathered = isinstance(answers, dict) and all(
        isinstance(answer, dict) and set(answer) == {"text", "correct"} for answer in answers.values()
    )
    return gathered or ("golden_answer" in values and bool(_nq_systems(values)))


def _nq_systems(values: Values) -> tuple[str, ...]:
    published = tuple(name.removeprefix("judge_") for name in values if name.startswith("judge_"))
    return published or tuple(values.get("answers", {}))


def _nq(row: RawRow, system: str) -> Values | None:
    """One system's answer with the label people gave; the other systems' answers are the samples."""
    values = dict(row.values)
    if "golden_answer" in values:
        if values.get("improper"):
            return None
        names = _nq_systems(values)
        place = re.search(r"\d+(?=\]?$)", row.where)  # a dozen questions occur twice, and none has an id
        values["id"] = values.get("id") or f"row-{place[0] if place else row.where}"
        values["references"] = str(values["golden_answer"]).split("/")
        values["answers"] = {n: {"text": values.get(f"answer_{n}"), "correct": values[f"judge_{n}"]} for n in names}
    answers = values.get("answers")
    if not isinstance(answers, dict) or not isinstance(answers.get(system), dict):
        raise row.fail("answers", answers, f"it must be an object with an answer of {system!r}")
    texts = {name: str(answer.get("text") or "") for name, answer in answers.items() if isinstance(answer, dict)}
    return {
        **{name: values.get(name) for name in ("id", "question", "references")},
        "answer": texts[system],
        "samples": [text for name, text in texts.items() if name != system],
        "correct": answers[system].get("correct"),
    }


def _mmlu_systems(values: Values) -> tuple[str, ...]:
    return tuple(name.removesuffix("/error") for name in values if name.endswith("/error"))


def _mmlu(row: RawRow, system: str) -> Values:
    names = ("error", "stated_confidence", "logit_confidence")
    return {
        "id": row.values.get("id"),
        "group": row.values.get("group"),
        **{name: row.values.get(f"{system}/{name}") for name in names},
    }


def _is_agent(path: Path, values: Values) -> bool:
    return "primary" in values and "tool_calls" in _sample_fields(values)


def _has_options(values: Values) -> bool:
    return isinstance(values.get("options"), dict) and values.get("option_scale") in ("logit", "logprob", "probability")


_OPTION_SCORES = {"option_scores": ("options",), "options": ()}

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "triviaqa20",
            "jsonl",
            lambda path, values: path.name.startswith("triviaqa-20samples") and _sample_fields(values) == {"text"},
            note="One reference and no aliases: read some labels before you trust a rule.",
        ),
        Layout(
            "gsm8k13",
            "jsonl",
            lambda path, values: "variant" in _sample_fields(values),
            note="The samples are greedy answers to 13 prompts: they disagree about prompts, not about chance.",
        ),
        Layout(
            "cruxeval",
            "jsonl",
            lambda path, values: _sample_fields(values) == {"text", "correct"},
            temperature=0.2,
            note="The answer is the most frequent sample, with the grade that executing the code gave it.",
        ),
        Layout(
            "nq",
            "jsonl",
            _is_nq,
            systems=_nq_systems,
            adapt=_nq,
            left_out='questions that people marked "improper"',
            note="Labels are people's. The samples are the other systems' answers: disagreement between systems.",
        ),
        Layout(
            "medqa",
            "jsonl",
            lambda path, values: _has_options(values) and "correct" in values,
            ColumnMap(_OPTION_SCORES),
        ),
        Layout(
            "mmbench",
            "jsonl",
            lambda path, values: _has_options(values) and "reference" in values,
            ColumnMap({**_OPTION_SCORES, "references": ("reference",)}),
        ),
        Layout(
            "mmlu-pro",
            "csv",
            lambda path, values: bool(_mmlu_systems(values)),
            ColumnMap(
                {},
                (
                    ScoreColumn("stated_confidence", "stated_confidence", confidence=True),
                    ScoreColumn("logit_confidence", "logit_confidence", confidence=True),
                ),
            ),
            systems=_mmlu_systems,
            adapt=_mmlu,
            note="Scores and grades only: the file holds neither questions nor answers.",
        ),
        Layout(
            "intercode",
            "jsonl",
            _is_agent,
            ColumnMap({"answer": ("primary",)}),
            note="Answers are compared by what their query returned, not by its text.",
        ),
    )
}
"""Layouts by name, in the order in which they are tried."""


def detect(path: Path, values: Values) -> Layout | None:
    """The layout of a file, by its name and first row; None when it is none of them."""
    return next((layout for layout in LAYOUTS.values() if layout.matches(path, values)), None)
