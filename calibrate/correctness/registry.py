"""The rules by name, and records labelled by one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from guardrail.errors import UsageError
from guardrail.judges.json_value import is_structured
from guardrail.judges.tool_call import read_calls
from guardrail.sampling.models import resolve_model
from guardrail.types import Bindings

from ..data.progress import Progress, silent
from ..data.questions import Question
from ..data.record import NO_REFERENCE
from ..data.records import Record, RecordFile
from ..data.table import table_of
from ..spec_syntax import parse_name
from .base import CorrectnessRule, Label
from .chat_judge import ChatLabelJudge
from .rules import Contains, Exact, JsonValues, Numeric, Option, OwnRule, TokenF1, ToolCalls
from .stated import Stated

RULES: dict[str, type[CorrectnessRule]] = {
    "chat_judge": ChatLabelJudge,
    "contains": Contains,
    "exact": Exact,
    "json": JsonValues,
    "numeric": Numeric,
    "option": Option,
    "python": OwnRule,
    "stated": Stated,
    "token_f1": TokenF1,
    "tool_call": ToolCalls,
}
"""The correctness rules by name. A new rule is its class and one line here."""


def available_rules() -> tuple[str, ...]:
    """Names of the correctness rules, sorted."""
    return tuple(sorted(RULES))


def make_rule(name: str, **params: Any) -> CorrectnessRule:
    """Make a rule by name, e.g. ``make_rule("token_f1", threshold=0.6)``.

    The name may have parameters: "token_f1(threshold=0.6)". "python:MODULE:NAME" is a custom function
    (`OwnRule`).

    Raises:
        UsageError: Unknown name, a parameter the rule does not have or that is given twice, or a chat judge without a
            model.
    """
    if name.startswith("python:"):
        name, params = "python", {"function": name.removeprefix("python:"), **params}
    else:
        name, written = parse_name(name)
        if twice := written.keys() & params.keys():
            raise UsageError(
                f"parameter {min(twice)} of correctness rule {name} is given twice. Leave one of them out."
            )
        params = {**written, **params}
    if name not in RULES:
        raise UsageError(f"no correctness rule named {name!r}; choose one of {', '.join(available_rules())}")
    if name == "python" and "function" not in params:
        raise UsageError("rule python needs the function. Name it: python:MODULE:NAME")
    if name == "chat_judge" and "model" not in params:
        raise UsageError("rule chat_judge needs the model that judges. Name it: --judge-model openai:gpt-4o-mini")
    if name == "chat_judge" and isinstance(params["model"], str):
        params = {**params, "model": resolve_model(params["model"])}
    try:
        return RULES[name](**params)
    except TypeError as error:
        raise UsageError(f"correctness rule {name} does not take {sorted(params)}: {error}") from error


def default_rule(records: Sequence[Record], bindings: Bindings | None = None) -> CorrectnessRule:
    """The rule used when none is named: by the questions and the plan, never by the answers.

    `Option` when every question has options; else `JsonValues` for answers in a format, `ToolCalls` where tools are
    offered and a reference is a call, and `Stated` for all others.

    Args:
        records: The records.
        bindings: The plan's tools and answer format. Records may also have their own tools.
    """
    if records and all(record.options for record in records):
        return Option()
    if is_structured(bindings):
        return JsonValues()
    calls = any(read_calls(reference) is not None for record in records for reference in record.references)
    offered = (bindings is not None and bindings.tools) or any(record.tools for record in records)
    return ToolCalls() if offered and calls else Stated()


def label_records(records: Sequence[Record], rule: CorrectnessRule, progress: Progress = silent) -> list[Record]:
    """Label every record that has an answer and a reference; the others get ``correct=None`` and say why.

    Without a reference, an answer that people rejected is wrong.

    Raises:
        UsageError: Records were imported without answers: labels they came with are not this rule's.
        GuardrailError: A judge failed on everything.
    """
    imported = sum(record.drawn is None for record in records)
    if imported:
        raise UsageError(
            f"{imported} of {len(records)} records were imported without an answer, so {rule.spec.name} has nothing to "
            "label. Keep the labels they came with, or give labels by id (calibrate label --labels FILE)."
        )
    compared = [
        index
        for index, record in enumerate(records)
        if record.answer is not None and (record.references or record.rejected)
    ]
    pairs = [(_text(records[index], rule), _compared(records[index])) for index in compared]
    labels = dict(zip(compared, rule.label_all(pairs, progress), strict=True))
    return [_labelled(record, labels.get(index)) for index, record in enumerate(records)]


def label_file(file: RecordFile, rule: CorrectnessRule, progress: Progress = silent) -> RecordFile:
    """`label_records`, and the rule in the header.

    Raises:
        UsageError: As `label_records`, or the rule compares arguments that the tools of the records do not have.
        GuardrailError: A judge failed on everything.
    """
    if isinstance(rule, ToolCalls):
        rule.check(file.header.plan.bindings)
    header = file.header.model_copy(update={"correctness": rule.spec})
    return replace(file, header=header, records=table_of(label_records(file.records, rule, progress)))


def _text(record: Record, rule: CorrectnessRule) -> str:
    """The text that the rule reads: the answer's; for rules about JSON, that of its tool calls if it has any."""
    assert record.drawn is not None, "only answers that were drawn are labelled"
    assert record.drawn.primary is not None, "only answers that were drawn are labelled"
    primary = record.drawn.primary
    return primary.comparable if rule.reads_tool_calls else primary.text


def _compared(record: Record) -> Question:
    """The question with what the answer is compared with: its references, or what people rejected."""
    question = record.to_question()  # a rule of a user's sees no score
    return question if question.references else question.model_copy(update={"references": question.rejected})


def _labelled(record: Record, label: Label | None) -> Record:
    """The record with the rule's label; None where the rule had nothing to compare."""
    if record.answer is None:
        label = Label(None, "there is no answer to label")
    elif label is None:
        label = Label(None, NO_REFERENCE)
    elif not record.references and label.correct is not None:  # compared with an answer that people rejected
        same = label.correct
        label = Label(False) if same else Label(None, "people rejected another answer, and there is no reference")
    # Without a detail the answer would wait for a label and be left out, and not count as wrong.
    detail = label.detail or ("" if label.correct is not None else "the rule did not decide")
    return record.model_copy(update={"correct": label.correct, "label_detail": detail})
