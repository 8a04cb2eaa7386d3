"""The rules by name, and records labelled by one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from guardrail.errors import UsageError
from guardrail.judges.json_value import is_structured
from guardrail.judges.tool_call import read_calls
from guardrail.types import Bindings
from guardrail.uncertainty import answer_text

from ..progress import Progress, silent
from ..records import Record
from .base import BatchRule, CorrectnessRule, Label
from .chat_judge import ChatJudge
from .json_values import JsonValues
from .rules import Exact, Numeric, Option, TokenF1
from .tool_calls import ToolCalls

__all__ = ["available_rules", "default_rule", "label_records", "make_rule"]

_RULES: dict[str, Callable[..., CorrectnessRule]] = {
    "chat_judge": ChatJudge,
    "exact": Exact,
    "json": JsonValues,
    "numeric": Numeric,
    "option": Option,
    "token_f1": TokenF1,
    "tool_call": ToolCalls,
}


def available_rules() -> tuple[str, ...]:
    """Names of the correctness rules, sorted."""
    return tuple(sorted(_RULES))


def make_rule(name: str, **params: Any) -> CorrectnessRule:
    """Make a rule by name, e.g. ``make_rule("token_f1", threshold=0.6)``.

    Raises:
        UsageError: Unknown name, a parameter the rule does not have, or a chat judge without a model.
    """
    if name not in _RULES:
        raise UsageError(f"no correctness rule named {name!r}; choose one of {', '.join(available_rules())}")
    if name == "chat_judge" and "model" not in params:
        raise UsageError("rule chat_judge needs the model that judges. Name it: --judge-model openai:gpt-4o-mini")
    try:
        return _RULES[name](**params)
    except TypeError as error:
        raise UsageError(f"correctness rule {name} does not take {sorted(params)}: {error}") from error


def default_rule(records: Sequence[Record], bindings: Bindings | None = None) -> CorrectnessRule:
    """The rule used when none is named: by the questions and the plan, never by the answers.

    `Option` when every question has options; else `JsonValues` for answers in a format, `ToolCalls` where tools are
    offered and a reference is a call, and `TokenF1` for all others.

    Args:
        records: The records.
        bindings: The plan's tools and answer format.
    """
    if records and all(record.options for record in records):
        return Option()
    if is_structured(bindings):
        return JsonValues()
    calls = any(read_calls(reference) is not None for record in records for reference in record.references)
    return ToolCalls() if bindings is not None and bindings.tools and calls else TokenF1()


def label_records(records: Sequence[Record], rule: CorrectnessRule, progress: Progress = silent) -> list[Record]:
    """Label every record that has an answer and a reference; the others get ``correct=None`` and say why.

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
    items = [(_text(r, rule), r.to_question()) for r in records if r.answer is not None and r.references]
    if isinstance(rule, BatchRule):
        found = iter(rule.label_all(items, progress))
    else:
        found = (rule.label(answer, question) for answer, question in items)
    return [_labelled(record, found) for record in records]


def _text(record: Record, rule: CorrectnessRule) -> str:
    """What the rule reads: the answer's text; for rules about JSON, that of its tool calls where there are any."""
    assert record.drawn is not None, "only answers that were drawn are labelled"
    assert record.drawn.primary is not None, "only answers that were drawn are labelled"
    return answer_text(record.drawn.primary) if isinstance(rule, ToolCalls | JsonValues) else record.drawn.primary.text


def _labelled(record: Record, found: Iterator[Label]) -> Record:
    if record.answer is None:
        label = Label(None, "there is no answer to label")
    elif not record.references:
        label = Label(None, "there is no reference")
    else:
        label = next(found)
    return record.model_copy(update={"correct": label.correct, "label_detail": label.detail})
