"""The answers in a row: samples with their log-probabilities and tool calls, and the scores of options."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guardrail.sampling.replies.ends import is_refusal, stated
from guardrail.types import LEAST_LOGPROB, Sample, ToolCall, is_logprob

from ..row import RawRow, is_missing, is_plain, read_list

_LOGPROBS = ("logprobs", "log_probs", "token_logprobs")
_READ = frozenset(
    {*_LOGPROBS, "index", "message", "role", "text", "content", "observation", "tool_calls", "tokens", "correct"}
    | {"finish_reason"}
)
"""Fields of a sample that `read_answer` reads."""


@dataclass(slots=True)
class Cautions:
    """Values of a file that were read otherwise than they are written, counted.

    Attributes:
        counts: How often each sentence applies.
        missing: Cells of each column that say that they have no value.
        unread: Fields of answers that are not read.
    """

    counts: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    unread: set[str] = field(default_factory=set)

    def unmeasured(self, what: str) -> None:
        """Count a placeholder for a value that was not measured."""
        rule = f"(null, infinite, or below {LEAST_LOGPROB:g}, as -9999.0); what reads them is not measured."
        self.counts[f"{what} that were not measured {rule}"] += 1

    def notes(self) -> Iterator[str]:
        """The sentences."""
        for sentence, count in self.counts.items():
            yield f"{count} {sentence}"
        if self.missing:
            listed = ", ".join(f"{column} ({count})" for column, count in sorted(self.missing.items()))
            yield f"Cells that say null, None or NaN have no value: {listed}."
        if self.unread:
            unread = ", ".join(sorted(self.unread))
            yield f"These fields of the answers were not read: {unread}. Log-probabilities are read from 'logprobs'."


@dataclass(frozen=True, slots=True)
class Drawn:
    """A sample, and what the file says beside it.

    Attributes:
        sample: The sample.
        correct: Whether it is right; None if the file does not say.
        unended: Whether the file has a place for the reason why it ended, and no reason there.
    """

    sample: Sample
    correct: bool | None = None
    unended: bool = False


def read_samples(row: RawRow, columns: Sequence[str], cautions: Cautions) -> list[Drawn]:
    """The samples of a row by field: a list in one column, or a column for each; null, a call that failed, has none.

    Raises:
        RecordError: They are missing or malformed.
    """
    written = row.values.get("samples", ...)
    if written is None:
        return []
    items = [] if written is ... else row.listed("samples")
    if isinstance(written, str) and not row.textual:
        items = read_list(written) or items  # as pandas reads its own lists back from CSV
    if not items:
        raise row.fail("samples", row.values.get("samples"), "every row must have its samples, a list of texts")
    missing = [index for index, item in enumerate(items) if is_missing(item)]
    if missing and len(columns) > 1:
        raise row.fail(columns[missing[0]], None, "every row must have all of its samples")
    if missing:
        cautions.counts["samples are null; they are empty answers, as at run time."] += len(missing)
        items = ["" if is_missing(item) else item for item in items]
    details = zip(items, _for_each(row, "logprobs", len(items)), _for_each(row, "tokens", len(items)), strict=True)
    return [read_answer(row, "samples", cautions, *detail) for detail in details]


def _for_each(row: RawRow, name: str, n: int) -> Sequence[Any]:
    """What a row has for each of its samples; None for each if it has nothing."""
    values = row.values.get(name)
    if values is None:
        return [None] * n
    values = read_list(values) if isinstance(values, str) else values
    if not isinstance(values, list | tuple) or len(values) != n:
        rule = f"it must have {name} for each of the {n} samples, a list of lists. Where it is something else, "
        raise row.fail(name, row.values[name], f"{rule}leave it out: --map {name}=-")
    return values


def read_answer(
    row: RawRow, column: str, cautions: Cautions, item: Any, logprobs: Any = None, tokens: Any = None
) -> Drawn:
    """An answer from a text, or from an object with text, tokens, log-probabilities, tool calls and its label.

    A tool call without text is compared by its observation, if there is one: the same result from another query is the
    same answer.

    Raises:
        RecordError: It has no text, or a field of it is malformed.
    """
    if is_plain(item):
        item = {"text": item}
    elif not isinstance(item, dict):
        way_out = f". Where only some rows have one, leave it out: --map {column}=-" if item is None else ""
        raise row.fail(column, item, f'an answer must be a text, or an object with "text"{way_out}')
    cautions.unread.update(name for name, value in item.items() if name not in _READ and value is not None)
    if isinstance(item.get("message"), dict):  # a choice of a chat completion
        item = {**item["message"], **item}
    calls = item.get("tool_calls") or []
    texts = ("text", "content", "observation") if calls else ("text", "content")
    text = _first({**item, "content": text_of(item.get("content"))}, *texts)
    if text is None and (calls or {"text", "content"} & item.keys()):
        text = ""
    if not is_plain(text):
        names = " or ".join(f"{row.column(column)}.{name}" for name in list(item)[:4])
        raise row.fail(column, item, f'an answer must have a "text" (or "tool_calls"). Where is it? E.g. {names}')
    correct = item.get("correct")
    if correct is not None and not isinstance(correct, bool):
        raise row.fail(column, item, '"correct" of an answer must be true or false')
    logprobs = _first(item, *_LOGPROBS) if logprobs is None else logprobs
    tokens = item.get("tokens") if tokens is None else tokens
    pair = None if logprobs is None else _token_logprobs(row, column, logprobs, tokens)
    if pair is None and (logprobs is not None or not item.keys().isdisjoint(_LOGPROBS)):
        cautions.unmeasured("answers have log-probabilities")
    try:
        sample = Sample(
            text=str(text).strip(),
            tool_calls=tuple(_call(row, column, call) for call in calls),
            tokens=None if pair is None else pair[0],
            logprobs=None if pair is None else pair[1],
        )
    except ValueError as error:
        raise row.fail(column, item, f"it is not an answer: {error}") from error
    drawn = Drawn(sample, correct)
    return with_end(drawn, item["finish_reason"]) if "finish_reason" in item else drawn


def with_end(drawn: Drawn, reason: Any) -> Drawn:
    """A sample with the reason why it ended, as the file states it."""
    end = stated(reason)
    update = {"finish_reason": end, "refusal": is_refusal(end)}
    return replace(drawn, sample=drawn.sample.model_copy(update=update), unended=end is None)


def text_of(content: Any) -> Any:
    """The text of a message's content, which may be a list of parts; thoughts and pictures are left out."""
    if not isinstance(content, list):
        return content
    kinds = ("text", "output_text", "input_text")
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") in kinds]
    return "".join(text for text in texts if isinstance(text, str))


def _first(item: Mapping[str, Any], *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


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
    if not isinstance(logprobs, list | tuple):
        rule = "log-probabilities must be a list with one number, at most 0, for each token"
        way_out = "A number for the whole answer is a score: --map certainty=NAME:COLUMN"
        raise row.fail(column, logprobs, f"{rule}. {way_out}")
    if logprobs and all(isinstance(entry, dict) for entry in logprobs):
        tokens = [entry.get("token") for entry in logprobs]
        logprobs = [entry.get("logprob") for entry in logprobs]
    numbers = [row.logprob(column, entry) for entry in logprobs]
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


def loglikelihood(row: RawRow, column: str, value: object, scale: str) -> float | None:
    """The log-likelihood of an option, up to a common offset; None if it was not measured.

    Raises:
        RecordError: It is not a number of this scale.
    """
    number = None if value is None else row.number(column, value)
    if number is None or math.isinf(number):
        return None
    if scale == "logprob" and number > 1e-6:
        raise row.fail(column, value, "a log-probability is at most 0. Logits are --option-scale logit.")
    if scale in ("logit", "logprob"):
        return number if scale == "logit" or is_logprob(number) else None
    if not 0 <= number <= 1.01:  # bfloat16 rounds up to 1.004
        raise row.fail(column, value, "a probability must be in [0, 1]. Logits are --option-scale logit.")
    return math.log(number) if number else None
