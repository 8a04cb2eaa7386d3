"""The better rule or judge, where answers that are JSON or tool calls meet one that compares words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from guardrail.judges.registry import JUDGES

from ..data.records import Record
from ..data.table import AnswerKind, table_of
from .registry import RULES

_BETTER: dict[AnswerKind, str] = {"tool calls": "tool_call", "JSON objects": "json", "texts": "stated"}
_BLIND = "compares words, field names included: two that differ in the one value that matters may count as the same"


def structured_advice(records: Sequence[Record], rule: str, judge: str | None = None) -> list[str]:
    """Sentences that name the better rule or judge; none where rule and judge fit the answers.

    Args:
        records: Labelled records.
        rule: Name of the rule that labelled them.
        judge: Name of the judge of the scores that will be used.
    """
    table = table_of(records)
    kinds = table.kinds()
    if not kinds:
        return []
    ((kind, count),) = kinds.most_common(1)
    if 2 * count < kinds.total():
        return []
    advice: list[str] = []
    if rule in RULES:  # people's labels have none
        advice.append(_about_rule(rule, kind, table.labels().tolist()))
    if kind == "JSON objects" and judge in JUDGES and JUDGES[judge].compares_words:
        way = "Score with judge json: --score semantic_entropy:json."
        advice.append(f"The answers are {kind}, and judge {judge} {_BLIND}. {way}")
    return [sentence for sentence in advice if sentence]


def _about_rule(rule: str, kind: AnswerKind, labels: Collection[int]) -> str:
    """The better rule for answers most of which are of a kind; "" if this rule reads them as they are."""
    better = _BETTER[kind]
    use = f"Use rule {better}: `calibrate label RECORDS --rule {better}`, or --correctness {better} of `run`."
    none_right = 0 in labels and 1 not in labels
    compares_words = RULES[rule].compares_words
    if RULES[rule].reads_tool_calls:
        if not none_right:
            return ""
        way = "References must be JSON of the same form: compare some with the answers." if rule == better else use
        return f"No answer is right by rule {rule}, and most of them are {kind}. {way}"
    if kind == "texts" or (kind == "JSON objects" and not compares_words and not none_right):
        return ""
    return f"The answers are {kind}, and rule {rule} {_BLIND if compares_words else 'reads texts'}. {use}"
