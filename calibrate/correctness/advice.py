"""What to say when answers that are JSON or tool calls meet a rule or a judge that compares words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from guardrail.judges.json_value import read_json
from guardrail.types import Sample

from ..records import Record

__all__ = ["structured_advice"]

Kind = Literal["tool calls", "JSON objects", "texts"]
_OF_WORDS = frozenset({"exact", "token_f1"})
_OF_TEXTS = frozenset({"chat_judge", "exact", "numeric", "option", "token_f1"})
_BETTER: dict[Kind, str] = {"tool calls": "tool_call", "JSON objects": "json", "texts": "token_f1"}


def structured_advice(records: Sequence[Record], rule: str, judge: str | None = None) -> list[str]:
    """Sentences that name the better rule or judge; none where rule and judge fit the answers.

    Args:
        records: Labelled records.
        rule: Name of the rule that labelled them.
        judge: Name of the judge of the scores that will be used.
    """
    answers = [record.drawn.primary for record in records if record.drawn is not None and record.drawn.primary]
    if not answers:
        return []
    kind, count = Counter(map(_kind, answers)).most_common(1)[0]
    if 2 * count < len(answers):
        return []
    labels = [record.correct for record in records]
    none_right = False in labels and True not in labels
    said = []
    if kind == "JSON objects" and (rule in _OF_WORDS or (none_right and rule in _OF_TEXTS)):
        said.append(f"{_words(kind, 'rule', rule)} {_use(kind)}")
    if kind == "JSON objects" and judge in _OF_WORDS:
        said.append(f"{_words(kind, 'judge', str(judge))} Score with judge json: --estimator semantic_entropy:json.")
    if kind == "tool calls" and rule in _OF_TEXTS:
        said.append(f"The answers are tool calls, and rule {rule} reads texts, of which there are none. {_use(kind)}")
    if none_right and rule in ("json", "tool_call"):
        fits = rule == _BETTER[kind]
        way = "References must be JSON of the same form: compare some with the answers." if fits else _use(kind)
        said.append(f"No answer is right by rule {rule}, and most of them are {kind}. {way}")
    return said


def _words(kind: Kind, role: str, name: str) -> str:
    return (
        f"The answers are {kind}, and {role} {name} compares words, field names included: two that differ in the one "
        "value that matters may count as the same."
    )


def _use(kind: Kind) -> str:
    better = _BETTER[kind]
    return f"Use rule {better}: `calibrate label RECORDS --rule {better}`, or --correctness {better} of `run`."


def _kind(answer: Sample) -> Kind:
    if answer.tool_calls:
        return "tool calls"
    try:
        return "JSON objects" if isinstance(read_json(answer.text), dict) else "texts"
    except ValueError:
        return "texts"
