"""From one foreign row to one record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from guardrail.judges import normalise
from guardrail.types import OptionScores, Sample, SampleSet, ToolCall, Uncertainty, Unmeasured

from ..questions import Question, Row, content_id, get_name, reference_label
from ..records import Record
from .columns import ColumnMap, ScoreColumn, get_list, get_number, get_object, get_text, get_truth

__all__ = ["Builder", "OptionScale", "Primary"]

OptionScale = Literal["logit", "probability"]
"""What option scores are: logits or log-likelihoods (any common offset), or probabilities."""

Primary = Literal["first", "majority"]
"""Which sample is the answer, where no column holds one.

* first: the first sample, which is then no longer a sample (for files that put the greedy answer first).
* majority: the most frequent sample (normalised, 18 as 18.0; the earliest of them on a tie). All stay samples.
"""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A sample, and whether the file says that it is right."""

    sample: Sample
    correct: bool | None = None


@dataclass(slots=True)
class Builder:
    """Makes records of rows. The first good row decides which fields the others must have.

    Attributes:
        columns: Which column holds what.
        primary: Which sample is the answer, where no column holds one.
        option_scale: What option scores are; None reads it from the column "option_scale".
        textual: Whether lists and numbers come as texts (CSV).
        expected: Fields that every row must have; set by `expect`.
    """

    columns: ColumnMap
    primary: Primary = "majority"
    option_scale: OptionScale | None = None
    textual: bool = False
    expected: frozenset[str] = field(default_factory=frozenset)
    _labels: tuple[str, ...] | None = None

    def expect(self, row: Row) -> None:
        """Fix the fields that every row must have: those that were mapped, and those this row has."""
        names = ("question", "answer", "samples", "options", "option_scores")
        self.expected = frozenset(
            name
            for name in names
            if (columns := self.columns.of(name))
            and (self.columns.mapped(name) or any(column in row.values for column in columns))
        )

    def build(self, row: Row) -> Record:
        """The record of a row.

        Raises:
            RecordError: A field is missing or malformed; file, line and field are named.
        """
        question = self._question(row)
        scores = self._option_scores(row)
        if scores is not None and question.options is None:
            question = question.model_copy(update={"options": {label: label for label in scores.labels}})
        samples = self._samples(row)
        primary, rest = self._answer(row, samples, scores)
        drawn = None
        if primary is not None or self.expected & {"answer", "samples", "option_scores"}:
            drawn = SampleSet(
                question=question.question,
                primary=primary.sample if primary else None,
                samples=tuple(one.sample for one in rest),
                options=scores,
                problem=None if primary else Unmeasured.MODEL_FAILED,
                problem_detail="" if primary else "the file has no answer here",
            )
        correct = self._correct(row, primary)
        return Record(
            **question.model_dump(),
            drawn=drawn,
            scores={score.key: _score(row, score) for score in self.columns.scores},
            correct=correct,
        )

    def _column(self, name: str) -> str:
        return self.columns.of(name)[0]

    def _question(self, row: Row) -> Question:
        given = get_name(row, self._column("id"))
        options = None
        if "options" in self.expected:
            column = self._column("options")
            found = get_object(row, column, textual=self.textual)
            if found is None:
                raise row.fail(column, None, "every row must have its options, label to text")
            options = {label: str(text) for label, text in found.items()}
        if "question" in self.expected:
            text = get_text(row, self._column("question"))
        elif given is not None:
            text = f"(question {given})"
        else:
            raise row.fail("question", None, "a row needs a question or an id. Map a column: --map question=COLUMN.")
        references = get_list(row, self._column("references"), textual=self.textual)
        for item in references:
            if isinstance(item, bool) or not isinstance(item, str | int | float) or not str(item).strip():
                column = self._column("references")
                raise row.fail(column, references, f"every accepted answer must be a non-empty text; {item!r} is not")
        return Question(
            id=given or content_id(text, options),
            question=text,
            references=tuple(str(item).strip() for item in references),
            options=options,
            group=get_name(row, self._column("group")),
        )

    def _option_scores(self, row: Row) -> OptionScores | None:
        if "option_scores" not in self.expected:
            return None
        columns = self.columns.of("option_scores")
        name = columns[0]
        if len(columns) > 1:
            values = {column: row.values.get(column) for column in columns}
        else:
            found = get_object(row, name, textual=self.textual)
            if found is None:
                raise row.fail(name, None, "every row must have a score for each option")
            values = found
        labels = tuple(values)
        self._labels = self._labels or labels
        if set(labels) != set(self._labels):
            raise row.fail(
                name, list(labels), f"the rows before have options {', '.join(self._labels)}; split the file"
            )
        scale = self._scale(row)
        return OptionScores(
            labels=self._labels,
            loglikelihoods=tuple(_loglikelihood(row, name, values[label], scale) for label in self._labels),
        )

    def _scale(self, row: Row) -> str:
        if self.option_scale is not None:
            return self.option_scale
        column = self._column("option_scale")
        value = row.values.get(column)
        if value not in ("logit", "probability"):
            raise row.fail(column, value, "say what option scores are: --option-scale logit or probability")
        return str(value)

    def _samples(self, row: Row) -> list[_Drawn]:
        if "samples" not in self.expected:
            return []
        columns = self.columns.of("samples")
        if len(columns) > 1:
            return [_Drawn(Sample(text=get_text(row, column, empty=True))) for column in columns]
        items = get_list(row, columns[0], textual=self.textual)
        if not items:
            raise row.fail(columns[0], row.values.get(columns[0]), "every row must have its samples, a list of texts")
        return [_sample(row, columns[0], item) for item in items]

    def _answer(
        self, row: Row, samples: Sequence[_Drawn], scores: OptionScores | None
    ) -> tuple[_Drawn | None, Sequence[_Drawn]]:
        """The primary answer, and what remains as samples."""
        if "answer" in self.expected:
            column = self._column("answer")
            if column in row.values and row.values[column] is None and "samples" in self.expected:
                return None, samples  # marked as missing: the record stays and abstains
            value = row.values.get(column, "" if self.textual else None)
            return _sample(row, column, value), samples
        if scores is not None:
            return _Drawn(Sample(text=scores.best)), samples
        if not samples:
            return None, samples
        if self.primary == "first":
            return samples[0], samples[1:]
        counts = Counter(_same(one.sample.text) for one in samples)
        most = counts.most_common(1)[0][0]  # the earliest of the most frequent: Counter keeps the order of insertion
        return next(one for one in samples if _same(one.sample.text) == most), samples

    def _correct(self, row: Row, primary: _Drawn | None) -> bool | None:
        given = get_truth(row, self._column("correct"))
        wrong = get_truth(row, self._column("error"))
        if given is not None and wrong is not None and given is wrong:
            raise row.fail(self._column("error"), wrong, f"the row says both that it is correct ({given}) and that not")
        if given is None and wrong is not None:
            given = not wrong
        return given if given is not None or primary is None else primary.correct


def check_references(row: Row, record: Record) -> None:
    """Refuse a reference that names no option.

    Raises:
        RecordError: No reference names an option.
    """
    question = record.to_question()
    if question.options and question.references and reference_label(question) is None:
        rule = f"one of them must be an option label ({', '.join(question.options)}) or the text of exactly one option"
        raise row.fail("references", list(question.references), rule)


def _same(text: str) -> str:
    """Equal for samples that count as one answer in a vote: normalised, and 18 is 18.0."""
    folded = normalise(text)
    try:
        return repr(float(folded))
    except ValueError:
        return folded


def _sample(row: Row, column: str, item: Any) -> _Drawn:
    """A sample from a text, or from an object with text, tool calls, observation and whether it is right.

    A tool call without text is compared by its observation: the same result from another query is the same answer.
    """
    if isinstance(item, str | int | float) and not isinstance(item, bool):
        return _Drawn(Sample(text=str(item).strip()))
    if not isinstance(item, dict):
        raise row.fail(column, item, 'an answer must be a text, or an object with "text"')
    calls = item.get("tool_calls") or []
    text = item.get("text", item.get("observation") if calls else None)
    if not isinstance(text, str | int | float) or isinstance(text, bool):
        raise row.fail(column, item, 'an answer must have a "text" (or "tool_calls" and their "observation")')
    try:
        made = tuple(ToolCall(name=str(call["name"]), arguments=dict(call["arguments"])) for call in calls)
    except (KeyError, TypeError, ValueError) as error:
        raise row.fail(column, calls, 'a tool call must be {"name": ..., "arguments": {...}}') from error
    correct = item.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise row.fail(column, item, '"correct" of an answer must be true or false')
    try:
        return _Drawn(Sample(text=str(text).strip(), tool_calls=made, **_tokens(item)), correct)
    except (KeyError, TypeError, ValueError) as error:
        rule = f"log-probabilities must be finite numbers of at most 0, one a token: {_why(error)}"
        raise row.fail(column, item, rule) from error


def _tokens(item: dict[str, Any]) -> dict[str, Any]:
    """Tokens and log-probabilities of an answer; without texts of the tokens, what reads them is not measured."""
    numbers = item.get("logprobs")
    if numbers is None:
        return {}
    return {"tokens": tuple(item.get("tokens") or [""] * len(numbers)), "logprobs": tuple(map(float, numbers))}


def _why(error: Exception) -> str:
    return error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)


def _loglikelihood(row: Row, column: str, value: object, scale: str) -> float:
    number = get_number(row, column, value)
    if scale == "logit":
        return number
    if not 0 < number <= 1.01:  # bfloat16 rounds up to 1.004
        raise row.fail(
            column, value, "a probability must be in (0, 1]. Give logits (--option-scale logit) where it is 0."
        )
    return math.log(number)


def _score(row: Row, score: ScoreColumn) -> Uncertainty:
    spec = score.spec
    value = row.values.get(score.column)
    if value is None or str(value).strip() == "":
        return Uncertainty(
            value=None,
            unit=spec.unit,
            estimator=score.key,
            reason=Unmeasured.NOT_RECORDED,
            detail=f"the file has no value in column {score.column!r}",
        )
    number = get_number(row, score.column, value)
    if score.confidence:
        if not 0 <= number <= 1:
            raise row.fail(
                score.column, value, "a confidence must be in [0, 1]. Map other scores as score=NAME:COLUMN."
            )
        number = 1 - number
    return Uncertainty(value=number, unit=spec.unit, estimator=score.key)
