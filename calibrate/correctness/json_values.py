"""A rule for answers in a format: the JSON value is the reference's."""

from __future__ import annotations

from dataclasses import dataclass

from guardrail.artifact import CorrectnessSpec
from guardrail.judges import JsonJudge, normalise
from guardrail.judges.json_value import canonical_json, read_json

from ..datasets import Question
from .base import Label

__all__ = ["JsonValues"]


@dataclass(frozen=True, slots=True)
class JsonValues:
    """Right iff the answer and a reference are equal as JSON values, as `JsonJudge` compares them.

    A reference that is no object and no list ("Rome", "42") is also compared with the value of an answer that is an
    object with one field, {"capital": "Rome"}: texts by `normalise`, numbers exactly. All fields count, and an answer
    that is no JSON is wrong unless the reference is none either and their normalised texts are equal. Tool calls are
    read as the JSON of a list of calls.
    """

    @property
    def spec(self) -> CorrectnessSpec:
        """Name, version and parameters."""
        return CorrectnessSpec(name="json", version=1, params={})

    def label(self, answer: str, question: Question) -> Label:
        """Equality with any reference."""
        found = JsonJudge().identity(answer)
        same = (
            found == JsonJudge().identity(reference) or _only_field_is(answer, reference)
            for reference in question.references
        )
        return Label(any(same))


def _only_field_is(answer: str, reference: str) -> bool:
    """Whether the answer is an object whose only field has the value that a plain reference names."""
    try:
        value = read_json(answer)
    except ValueError:
        return False
    if not isinstance(value, dict) or len(value) != 1:
        return False
    only = next(iter(value.values()))
    try:
        wanted = read_json(reference)
    except ValueError:
        wanted = reference
    if isinstance(only, str) and not isinstance(wanted, dict | list):
        return normalise(only) == normalise(wanted if isinstance(wanted, str) else reference)
    return not isinstance(wanted, dict | list | str) and canonical_json(only) == canonical_json(wanted)
