"""JSON compared as values: what is the same, what is not, and where this comparison is the default."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from guardrail import Guardrail
from guardrail.bindings import bindings_for
from guardrail.judges import JsonJudge, JudgeSpec, TextJudge, default_judge, make_judge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings
from guardrail.uncertainty import make_estimator


class Decision(BaseModel):
    decision: str


FORMAT = bindings_for(response_format=Decision)


def same(a: str, b: str) -> bool | None:
    return JsonJudge().equivalent("", [(a, b)])[0]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"a": 1, "b": [1, 2]}', ' {"b":[1,2],"a":1}\n'),
        ('{"a": {"x": 1, "y": 2}}', '{"a": {"y": 2, "x": 1}}'),
        ("1", "1.0"),
        ("100", "1e2"),
        ("0.10", "1e-1"),
        ("0", "-0.0"),
        ("1" + 5000 * "0", "1e5000"),
        ('"caf\\u00e9"', '"caf\u00e9"'),
        ("[]", "[ ]"),
        ("The answer.", "the answer"),  # neither is JSON
    ],
)
def test_the_same(a: str, b: str) -> None:
    assert same(a, b) is True


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('{"capital": "Rome"}', '{"capital": "Lyon"}'),
        ('{"a": "Rome"}', '{"a": "rome"}'),
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": null}', "{}"),
        ('{"a": "b c"}', '{"a b": "c"}'),
        ("[1, 2]", "[2, 1]"),
        ("[1, 200]", "[1200]"),
        ("0.1", "0.1000000000000000055511151231257827"),  # one binary number
        ("1e400", "2e400"),  # both are infinite as binary numbers
        ("12345678901234567890", "12345678901234567891"),
        ('"Rome"', "Rome"),
        ('{"a": 1}', 'Sure: {"a": 1}'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),  # readers differ in which one counts
        ("NaN", "1"),
        ("1e" + 30 * "9", "1"),
        (2000 * "[" + 2000 * "]", "[]"),
    ],
)
def test_not_the_same(a: str, b: str) -> None:
    assert same(a, b) is False


def test_a_text_never_has_the_identity_of_a_value() -> None:
    assert JsonJudge().identity("5e0!") != JsonJudge().identity("5")
    assert JsonJudge().identity("json 5e0") != JsonJudge().identity("5")


def test_it_is_made_by_name_and_is_the_default_for_answers_in_a_format() -> None:
    assert make_judge("json").spec == JudgeSpec(name="json", version=4, params={})
    assert default_judge(FORMAT) == JsonJudge()
    assert default_judge(Bindings(response_format={"type": "json_object"})) == JsonJudge()
    for plain in (None, Bindings(), bindings_for([Decision]), Bindings(response_format={"type": "text"})):
        assert default_judge(plain) == TextJudge()
    assert make_estimator("semantic_entropy", bindings=FORMAT).judge == JsonJudge()
    assert make_estimator("semantic_entropy", bindings=FORMAT, judge=make_judge("exact")).judge == make_judge("exact")
    assert make_estimator("degree", bindings=FORMAT).judge is None


@pytest.mark.parametrize("estimator", ["semantic_entropy", "discrete_semantic_entropy", "primary_disagreement"])
def test_opposite_decisions_in_one_format_are_uncertain_at_run_time(estimator: str) -> None:
    answers = [f'{{"decision": "{word}"}}' for word in ("approve", "reject", "approve")]
    model = ScriptedChat(script={"q": answers}, probability=0.9)
    artifact = make_artifact(model, estimator=estimator, bindings=FORMAT)
    assert artifact.estimator.judge == JsonJudge().spec
    assert (Guardrail(model=model, artifact=artifact).assess("q").uncertainty.value or 0.0) > 0.4


def test_an_artifact_with_another_judge_keeps_it() -> None:
    model = ScriptedChat(script={"q": ['{"decision": "approve"}', '{"decision": "reject"}']}, probability=0.9)
    artifact = make_artifact(model, bindings=FORMAT)
    older = artifact.model_copy(update={"estimator": make_estimator("discrete_semantic_entropy").spec})
    assert Guardrail(model=model, artifact=older).assess("q").uncertainty.value == 0.0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('```json\n{"city": "Rome"}\n```', True),
        ('```\n{"city": "Rome"}\n```\n', True),
        ('Here it is:\n\n```JSON\n{ "city":"Rome" }```', True),
        ('```json\n{"city": "Lyon"}\n```', False),
        ('```json\n{"city": "Rome"}\n``` I hope this helps.', False),
        ('```json\n{"city": "Lyon"}\n```\n```json\n{"city": "Rome"}\n```', False),
        ('```json\n{"city": "Ro', False),
    ],
)
def test_a_fence_around_json_does_not_count_as_it_does_not_at_run_time(text: str, same: bool) -> None:
    assert JsonJudge().equivalent("", [('{"city": "Rome"}', text)]) == [same]
