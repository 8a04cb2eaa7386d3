"""From one foreign row to one record."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from guardrail.judges import majority
from guardrail.plain_json import has_visible
from guardrail.sampling.replies import is_cut, is_refusal, only_readable, stated
from guardrail.types import (
    LEAST_LOGPROB,
    Missing,
    OptionScores,
    Sample,
    SampleSet,
    ToolCall,
    Uncertainty,
    Unmeasured,
    is_logprob,
)

from ..questions import Question, content_id, reference_label
from ..records import Record
from ..rows import RawRow, get_name, parsed
from ..values import get_list, get_logprob, get_number, get_object, get_text, is_infinite, read_list
from .field_map import FIELDS, ColumnMap, ScoreColumn
from .truth import Labels

__all__ = ["Builder", "OptionScale", "Primary"]

OptionScale = Literal["logit", "logprob", "probability"]
"""What option scores are: logits (any common offset), log-probabilities (at most 0), or probabilities."""

Primary = Literal["first", "sampled", "majority"]
"""Which sample is the answer, where no column holds one.

* first: the first sample, which is then no longer a sample (for files that put the greedy answer first).
* sampled: the same, for files whose first sample was drawn like the others.
* majority: the most frequent sample (`guardrail.judges.majority`). All stay samples.

The plan records it, and a guard draws its answers in the same way.
"""


_NOT_MEASURED = (
    f"that were not measured (null, infinite, or below {LEAST_LOGPROB:g}, as -9999.0); what reads them is not measured."
)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A sample, and what the file says beside it.

    Attributes:
        sample: The sample.
        correct: Whether it is right; None if the file does not say.
        unended: Whether the file has a place for the reason why it ended, and no reason there.
        unread: Whether it has log-probabilities that were not measured.
    """

    sample: Sample
    correct: bool | None = None
    unended: bool = False
    unread: bool = False


@dataclass(slots=True)
class Builder:
    """Makes records of rows. The first good row decides which fields the others must have.

    Attributes:
        columns: Which column holds what.
        primary: Which sample is the answer, where no column holds one.
        option_scale: What option scores are; None reads it from the column "option_scale".
        labels: How labels are read.
        cut_off: Whether an answer that was cut off, or whose end the file states as unknown, is an answer like others.
        expected: Fields that every row must have; set by `expect`.
        ready: Whether `expect` was called.
        numbered: Ids of rows that have neither id nor question.
    """

    columns: ColumnMap
    primary: Primary = "majority"
    option_scale: OptionScale | None = None
    labels: Labels = field(default_factory=Labels)
    cut_off: Literal["abstain", "measure"] = "abstain"
    expected: frozenset[str] = field(default_factory=frozenset)
    ready: bool = False
    numbered: set[str] = field(default_factory=set)
    _labels: tuple[str, ...] | None = None
    _n_rows: int = 0
    _cautions: Counter[str] = field(default_factory=Counter)
    """How often each of the sentences applied of values that were read otherwise than they are written."""
    _missing: Counter[str] = field(default_factory=Counter)
    _unread: set[str] = field(default_factory=set)

    def expect(self, row: RawRow) -> None:
        """Fix the fields that every row must have: those that were mapped, and those this row has."""
        self.ready = True
        names = ("question", "answer", "samples", "options", "option_scores")
        self.expected = frozenset(
            name
            for name in names
            if (columns := self.columns.of(name))
            and (self.columns.mapped(name) or any(column in row.values for column in columns))
        )

    def build(self, row: RawRow) -> Record:
        """The record of a row. NaN is a missing value, as in data frames.

        Raises:
            RecordError: A field is missing or malformed; file, line and field are named.
        """
        values = {name: value for name, value in row.values.items() if not _is_nan(value)}
        row = replace(row, values=values)
        if row.textual:
            self._missing.update(name for name, value in values.items() if value is None and name in self._used)
        self._n_rows += 1
        question = self._question(row)
        scores = self._option_scores(row)
        if self._labels is not None and question.options is None:
            question = question.model_copy(update={"options": {label: label for label in self._labels}})
        samples = self._samples(row)
        primary, rest = self._answer(row, samples, scores)
        drawn, missing = None, None
        if primary is not None or self.expected & {"answer", "samples", "option_scores"}:
            drawn = self._drawn(question, primary, rest, scores)
            missing = self._held_back(drawn)
        correct = self._correct(row, primary)
        return Record(
            **question.model_dump(),
            drawn=drawn,
            scores={score.key: self._score(row, score, missing) for score in self.columns.scores},
            correct=correct,
        )

    def _drawn(
        self, question: Question, primary: _Drawn | None, rest: Sequence[_Drawn], scores: OptionScores | None
    ) -> SampleSet:
        """The sample set of a row, read as a guard reads replies."""
        problem = Missing(Unmeasured.MODEL_FAILED, "the file has no answer here") if primary is None else None
        if primary is None and "option_scores" in self.expected:
            problem = Missing(Unmeasured.NO_OPTIONS, "the score of an option is a placeholder")
        # Of samples the most frequent is the answer, so each of them must be whole.
        given_out = rest if self.planned == "majority" else (primary,)
        if self.cut_off == "abstain" and any(drawn is not None and drawn.unended for drawn in given_out):
            problem = Missing(Unmeasured.UNREADABLE, "the file does not say why the answer ended (finish_reason)")
        drawn = SampleSet(
            question=question.question,
            primary=primary.sample if primary else None,
            samples=tuple(drawn.sample for drawn in rest),
            options=scores,
            problem=None if problem is None else problem.reason,
            problem_detail="" if problem is None else problem.detail,
        )
        read = only_readable(drawn)  # it leaves faulty samples out, which here stay to be looked at
        return drawn.model_copy(update={"problem": read.problem, "problem_detail": read.problem_detail})

    def _held_back(self, drawn: SampleSet) -> Missing | None:
        """The reason why a score of the answer does not count: a guard would not give it out."""
        primary = drawn.primary
        if primary is not None and not primary.tool_calls and not has_visible(primary.text):
            return Missing(Unmeasured.EMPTY_ANSWER, "the answer is empty")
        broke_off = drawn.problem is Unmeasured.MODEL_FAILED and primary is not None
        if drawn.problem is not None and (broke_off or drawn.problem is Unmeasured.UNREADABLE):
            return Missing(drawn.problem, drawn.problem_detail)
        cut = self.cut_off == "abstain" and drawn.primary is not None and is_cut(drawn.primary.finish_reason)
        return Missing(Unmeasured.CUT_OFF, "the answer was cut off") if cut else None

    def notes(self) -> Iterator[str]:
        """Sentences about values that were read otherwise than they are written."""
        for sentence, count in self._cautions.items():
            yield f"{count} {sentence}"
        if self._missing:
            listed = ", ".join(f"{column} ({count})" for column, count in sorted(self._missing.items()))
            yield f"Cells that say null, None or NaN have no value: {listed}."
        if self._unread:
            unread = ", ".join(sorted(self._unread))
            yield f"These fields of the answers were not read: {unread}. Log-probabilities are read from 'logprobs'."
        yield from self.labels.notes()

    @property
    def _used(self) -> set[str]:
        """Every column that is read."""
        named = {column for name in FIELDS for column in self.columns.of(name)}
        return named | {score.column for score in self.columns.scores}

    def _column(self, name: str) -> str:
        """The column of a field; "" if the map leaves the field out."""
        return next(iter(self.columns.of(name)), "")

    def _question(self, row: RawRow) -> Question:
        """The question of a row, with the conversation that it ends if that has more than one turn."""
        name = get_name(row, self._column("id"))
        options = None
        if "options" in self.expected:
            column = self._column("options")
            labelled = get_object(row, column)
            if labelled is None:
                raise row.fail(column, None, "every row must have its options, label to text")
            options = {label: str(text) for label, text in labelled.items()}
        messages = None
        if "question" in self.expected:
            text, messages = self._asked(row, self._column("question"))
        else:
            if name is None and self.expected & {"answer", "samples"}:
                columns = ", ".join(map(str, row.values))
                rule = (
                    f"answers need a question or an id, and the columns are {columns}. Map one: --map question=COLUMN."
                )
                raise row.fail("question", None, rule)
            if name is None:  # graded scores without any text can be certified
                self._cautions["rows have neither id nor question: the number of the row stands for both."] += 1
                name = f"row-{self._n_rows}"
                self.numbered.add(name)
            text = f"(question {name})"
        tools = self._tools(row)
        return Question(
            id=name or content_id(text, options, tools=tools, messages=messages),
            question=text,
            references=self._references(row),
            options=options,
            group=get_name(row, self._column("group")),
            tools=tools,
            messages=messages,
        )

    def _asked(self, row: RawRow, column: str) -> tuple[str, tuple[dict[str, Any], ...] | None]:
        """The text of a question, and the conversation before and with it: a text, or messages in OpenAI's form."""
        value = parsed(row.values.get(column))
        if isinstance(value, dict) and isinstance(value.get("messages"), list):
            value = value["messages"]
        if isinstance(value, dict):
            row = RawRow(row.where, {column: value})  # a cell with JSON: the error names the fields in it
        if not isinstance(value, list):
            return get_text(row, column), None
        turns = [turn for turn in value if isinstance(turn, dict) and isinstance(turn.get("role"), str)]
        spoken = [turn for turn in turns if turn["role"] not in ("system", "developer")]
        if len(turns) < len(value) or not spoken or spoken[-1]["role"] != "user":
            raise row.fail(column, value, "a list must be messages with role and content, the last one of the user")
        if len(spoken) < len(turns):
            self._cautions["rows have a system message, which is not read; name it with --set system=TEXT."] += 1
        text = get_text(RawRow(row.where, {column: _plain(spoken[-1].get("content"))}), column)
        return text, tuple(spoken) if len(spoken) > 1 else None

    def _references(self, row: RawRow) -> tuple[str, ...]:
        column = self._column("references")
        listed = row.values.get(column)
        items = read_list(listed) if isinstance(listed, str) and listed.lstrip().startswith("[") else None
        if row.textual or not items or not all(isinstance(item, str) for item in items):
            items = get_list(row, column)
        else:
            self._cautions['references are lists written as text (["a", "b"]) and were read as lists.'] += 1
        good = [item for item in items if item is not None and str(item).strip()]
        for item in good or items:
            if isinstance(item, bool) or not isinstance(item, str | int | float) or not str(item).strip():
                raise row.fail(column, items, f"every accepted answer must be a non-empty text; {item!r} is not")
        if len(good) < len(items):
            self._cautions["rows have an empty accepted answer among others; it was left out."] += 1
        return tuple(str(item).strip() for item in good)

    def _tools(self, row: RawRow) -> tuple[dict[str, Any] | str, ...] | None:
        column = self._column("tools")
        tools = row.values.get(column)
        if isinstance(tools, str):
            tools = read_list(tools)
        if tools is None and row.values.get(column) is None:
            return None
        if not isinstance(tools, list) or not all(isinstance(tool, dict | str) for tool in tools):
            raise row.fail(column, row.values[column], "it must be a list of the offered tools, objects or names")
        return tuple(tools)

    def _option_scores(self, row: RawRow) -> OptionScores | None:
        if "option_scores" not in self.expected:
            return None
        columns = self.columns.of("option_scores")
        name = columns[0]
        if len(columns) > 1:
            values = {column: row.values.get(column) for column in columns}
        else:
            labelled = get_object(row, name, keep=self._labels or ())
            if labelled is None:
                raise row.fail(name, None, "every row must have a score for each option")
            values = labelled
        labels = tuple(values)
        self._labels = self._labels or labels
        if set(labels) != set(self._labels):
            raise row.fail(
                name, list(labels), f"the rows before have options {', '.join(self._labels)}; split the file"
            )
        scale = self._scale(row)
        listed = [_loglikelihood(row, name, values[label], scale) for label in self._labels]
        measured = [value for value in listed if value is not None]
        if len(measured) < len(listed) or min(measured) - max(measured) < LEAST_LOGPROB:
            self._cautions[f"rows have scores of options {_NOT_MEASURED}"] += 1
            return None
        return OptionScores(labels=self._labels, loglikelihoods=tuple(measured))

    def _scale(self, row: RawRow) -> str:
        if self.option_scale is not None:
            return self.option_scale
        column = self._column("option_scale")
        value = row.values.get(column)
        if value not in ("logit", "logprob", "probability"):
            raise row.fail(column, value, "say what option scores are: --option-scale logit, logprob or probability")
        return str(value)

    def _samples(self, row: RawRow) -> list[_Drawn]:
        if "samples" not in self.expected:
            return []
        columns = self.columns.of("samples")
        if len(columns) == 1 and columns[0] in row.values and row.values[columns[0]] is None:
            return []  # a call that failed: the record stays and abstains
        items: list[Any]
        if len(columns) > 1:
            items = [get_text(row, column, empty=True) for column in columns]
        else:
            items = get_list(row, columns[0])
        if not items:
            raise row.fail(columns[0], row.values.get(columns[0]), "every row must have its samples, a list of texts")
        if None in items:
            self._cautions["samples are null; they are empty answers, as at run time."] += items.count(None)
            items = ["" if item is None else item for item in items]
        for item in items:
            if isinstance(item, dict):
                self._unread.update(name for name, value in item.items() if name not in _READ and value is not None)
        logprobs, tokens = self._beside(row, "logprobs", len(items)), self._beside(row, "tokens", len(items))
        return [self._sample(row, columns[0], *fields) for fields in zip(items, logprobs, tokens, strict=True)]

    def _sample(self, row: RawRow, column: str, *fields: Any) -> _Drawn:
        """`_sample`, with a count of log-probabilities that were not measured."""
        drawn = _sample(row, column, *fields)
        if drawn.unread:
            self._cautions[f"answers have log-probabilities {_NOT_MEASURED}"] += 1
        return drawn

    def _beside(self, row: RawRow, name: str, n: int) -> Sequence[Any]:
        """A value for each sample, from one column with a list or from a column each; None for each where absent."""
        columns = self.columns.of(name)
        values: Any
        if len(columns) > 1:
            values = [row.values.get(column) for column in columns]
        else:
            value = row.values.get(self._column(name))
            values = read_list(value) if isinstance(value, str) else value
            if value is None:
                return [None] * n
        if not isinstance(values, list | tuple) or len(values) != n:
            rule = f"it must have {name} for each of the {n} samples, a list of lists. Where it is something else, "
            raise row.fail(columns[0], row.values.get(columns[0]), f"{rule}leave it out: --map {name}=-")
        return values

    def _answer(
        self, row: RawRow, samples: Sequence[_Drawn], scores: OptionScores | None
    ) -> tuple[_Drawn | None, Sequence[_Drawn]]:
        """The primary answer, and what remains as samples."""
        if "answer" in self.expected:
            column = self._column("answer")
            if column in row.values and row.values[column] is None:
                return None, samples  # marked as missing: the record stays and abstains
            value = row.values.get(column, "" if row.textual else None)
            own = () if samples else (row.values.get(self._column("logprobs")), row.values.get(self._column("tokens")))
            drawn = self._sample(row, column, value, *own)
            end = self._column("finish_reason")
            return _ending(drawn, row.values[end]) if end in row.values else drawn, samples
        if scores is not None:
            return _Drawn(Sample(text=scores.best)), samples
        if not samples:
            return None, samples
        if self.primary != "majority":
            return samples[0], samples[1:]
        place = majority([drawn.sample for drawn in samples])
        assert place is not None, "there are samples"
        return samples[place], samples

    @property
    def planned(self) -> Literal["greedy", "sampled", "majority"]:
        """The primary answer that a guard draws, so that it gives out answers like those that were read."""
        # An answer in a column, and the first of the samples, stand for the greedy one; options have no samples.
        own_column = self.expected & {"answer", "option_scores"} or "samples" not in self.expected
        return "greedy" if own_column or self.primary == "first" else self.primary

    def _correct(self, row: RawRow, primary: _Drawn | None) -> bool | None:
        labels = [
            self.labels.read(row, column, of_errors=name == "error")
            for name in ("correct", "error")
            for column in self.columns.of(name)
            if column in row.values
        ]
        read = {label for label in labels if label is not None}
        if len(read) > 1:
            column = self._column("error")
            raise row.fail(column, row.values[column], "the row says both that it is correct and that it is not")
        if read:
            return read.pop()
        return None if primary is None else primary.correct

    def _score(self, row: RawRow, score: ScoreColumn, missing: Missing | None) -> Uncertainty:
        """An imported score; unmeasured if the answer is not whole, or without a number."""
        spec, value, stored = score.spec, row.values.get(score.column), None
        if value is None or not str(value).strip():
            missing = missing or Missing(Unmeasured.NOT_RECORDED, f"the file has no value in column {score.column!r}")
        elif (stored := _stored(row, score, value)) is None:
            self._cautions[f"scores have values {_NOT_MEASURED}"] += 1
            missing = missing or Missing(Unmeasured.NOT_RECORDED, f"column {score.column!r} has a placeholder here")
        if missing is None:
            return Uncertainty(value=stored, unit=spec.unit, estimator=score.key)
        reason, detail = missing.reason, missing.detail
        return Uncertainty(value=None, unit=spec.unit, estimator=score.key, reason=reason, detail=detail)


def check_references(row: RawRow, record: Record) -> None:
    """Refuse a reference that names no option.

    Raises:
        RecordError: No reference names an option.
    """
    if record.options and record.references and reference_label(record) is None:
        rule = f"one of them must be an option label ({', '.join(record.options)}) or the text of exactly one option"
        raise row.fail("references", list(record.references), rule)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


_LOGPROBS = frozenset({"logprobs", "log_probs", "token_logprobs"})
_READ = _LOGPROBS | {
    "index",
    "message",
    "role",
    "text",
    "content",
    "observation",
    "tool_calls",
    "tokens",
    "correct",
    "finish_reason",
}
"""Fields of a sample that `_sample` reads."""


def _sample(row: RawRow, column: str, item: Any, logprobs: Any = None, tokens: Any = None) -> _Drawn:
    """A sample from a text, or from an object with text, tokens, log-probabilities, tool calls and whether it is right.

    A tool call without text is compared by its observation, if there is one: the same result from another query is the
    same answer.
    """
    if isinstance(item, str | int | float) and not isinstance(item, bool):
        sample = _made(row, column, text=str(item).strip(), logprobs=logprobs, tokens=tokens)
        return _Drawn(sample, unread=sample.logprobs is None and logprobs is not None)
    if not isinstance(item, dict):
        raise row.fail(column, item, 'an answer must be a text, or an object with "text"')
    if isinstance(item.get("message"), dict):  # a choice of a chat completion
        item = {**item["message"], **item}
    if isinstance(item.get("content"), list):
        item = {**item, "content": _plain(item["content"])}
    calls = item.get("tool_calls") or []
    text = _first(item, "text", "content", "observation" if calls else "text")
    if text is None and (calls or {"text", "content"} & item.keys()):
        text = ""
    if not isinstance(text, str | int | float) or isinstance(text, bool):
        names = " or ".join(f"{column}.{name}" for name in list(item)[:4])
        raise row.fail(column, item, f'an answer must have a "text" (or "tool_calls"). Where is it? E.g. {names}')
    correct = item.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise row.fail(column, item, '"correct" of an answer must be true or false')
    sample = _made(
        row,
        column,
        text=str(text).strip(),
        logprobs=_first(item, "logprobs", "log_probs", "token_logprobs") if logprobs is None else logprobs,
        tokens=item.get("tokens") if tokens is None else tokens,
        tool_calls=tuple(_call(row, column, call) for call in calls),
    )
    drawn = _Drawn(sample, correct, unread=sample.logprobs is None and bool(_LOGPROBS & item.keys()))
    return _ending(drawn, item["finish_reason"]) if "finish_reason" in item else drawn


def _plain(content: Any) -> Any:
    """The text of a message's content, which may be a list of parts; thoughts and pictures are left out."""
    if not isinstance(content, list):
        return content
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") in _TEXTS]
    return "".join(text for text in texts if isinstance(text, str))


_TEXTS = ("text", "output_text", "input_text")
"""Types of parts that are read."""


def _ending(drawn: _Drawn, reason: Any) -> _Drawn:
    """A sample with the reason why it ended, as the file states it."""
    end = stated(reason)
    update = {"finish_reason": end, "refusal": is_refusal(end)}
    return replace(drawn, sample=drawn.sample.model_copy(update=update), unended=end is None)


def _first(item: Mapping[str, Any], *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _made(row: RawRow, column: str, *, logprobs: Any, tokens: Any, **fields: Any) -> Sample:
    pair = None if logprobs is None else _token_logprobs(row, column, logprobs, tokens)
    try:
        return Sample(**fields, tokens=None if pair is None else pair[0], logprobs=None if pair is None else pair[1])
    except ValueError as error:
        raise row.fail(column, fields, f"it is not an answer: {error}") from error


def _token_logprobs(
    row: RawRow, column: str, logprobs: Any, tokens: Any
) -> tuple[tuple[str, ...], tuple[float, ...]] | None:
    """Tokens and their log-probabilities, from two lists, or as OpenAI's APIs give them; tokens are "" if unknown.

    No estimator reads the text of tokens that do not spell the answer. None if a log-probability was not measured.
    """
    if isinstance(logprobs, str):
        logprobs = read_list(logprobs)
    if isinstance(logprobs, dict):
        tokens = _first(logprobs, "tokens") or tokens
        logprobs = _first(logprobs, "content", "token_logprobs")
        if logprobs is None:
            return None
    rule = "log-probabilities must be a list with one number, at most 0, for each token"
    if not isinstance(logprobs, list | tuple):
        raise row.fail(
            column,
            logprobs,
            f"{rule}. A number for the whole answer is a score: --map certainty=NAME:COLUMN",
        )
    if logprobs and all(isinstance(entry, dict) for entry in logprobs):
        tokens = [entry.get("token") for entry in logprobs]
        logprobs = [entry.get("logprob") for entry in logprobs]
    numbers = [get_logprob(row, column, entry) for entry in logprobs]
    if isinstance(tokens, str):
        tokens = read_list(tokens)
    texts = tuple(str(token or "") for token in tokens) if tokens is not None else ("",) * len(numbers)
    if len(texts) != len(numbers):
        raise row.fail(column, list(texts), f"there are {len(texts)} tokens and {len(numbers)} log-probabilities")
    measured = tuple(number for number in numbers if number is not None)
    return (texts, measured) if len(measured) == len(numbers) else None


def _call(row: RawRow, column: str, call: Any) -> ToolCall:
    """A tool call as this library, LangChain or OpenAI's API writes it."""
    try:
        inner = call.get("function", call)
        arguments = inner["arguments"] if "arguments" in inner else inner["args"]
        # A call without arguments is written as "" by some servers.
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        return ToolCall(name=str(inner["name"]), arguments=dict(arguments))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise row.fail(column, call, 'a tool call must be {"name": ..., "arguments": {...}}') from error


def _loglikelihood(row: RawRow, column: str, value: object, scale: str) -> float | None:
    """The log-likelihood of an option, up to a common offset; None if it was not measured."""
    if value is None or is_infinite(row, value):
        return None
    number = get_number(row, column, value)
    if scale == "logprob" and number > 1e-6:
        raise row.fail(column, value, "a log-probability is at most 0. Logits are --option-scale logit.")
    if scale in ("logit", "logprob"):
        return number if scale == "logit" or is_logprob(number) else None
    if not 0 <= number <= 1.01:  # bfloat16 rounds up to 1.004
        raise row.fail(column, value, "a probability must be in [0, 1]. Logits are --option-scale logit.")
    return math.log(number) if number else None


def _stored(row: RawRow, score: ScoreColumn, value: object) -> float | None:
    """The uncertainty that a value is stored as; None for a placeholder: infinite, or lower than any score can be."""
    if not score.confidence:
        number = -math.inf if is_infinite(row, value) else get_number(row, score.column, value)
        return None if number < LEAST_LOGPROB else -number if score.certain else number
    written, percent = str(value).strip(), 1
    if written.endswith("%"):
        value, percent = written.removesuffix("%").strip(), 100
    number = get_number(row, score.column, value) / percent
    if not 0 <= number <= 1:
        named = score.name if score.name == score.column else f"{score.name}:{score.column}"
        raise row.fail(
            score.column,
            value,
            "a confidence must be in [0, 1], or have the sign %. Map the column that holds one; if this one holds "
            f"numbers that are higher for certain answers, --map {shlex.quote(f'certainty={named}')}",
        )
    return 1 - number
