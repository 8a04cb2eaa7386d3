"""Declared options, and nothing else, widen which tool calls count as the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrail.bindings import bindings_for
from guardrail.decision import ThresholdGate
from guardrail.errors import UsageError
from guardrail.judges import ToolCallJudge, canonical_calls, make_judge
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan, ToolCall
from guardrail.uncertainty import make_estimator, measure
from guardrail.uncertainty.plan import plan_for


def call(name: str = "pay", **arguments: Any) -> str:
    return canonical_calls([ToolCall(name=name, arguments=arguments)])


def same(judge: ToolCallJudge, a: str, b: str) -> bool | None:
    return judge.equivalent("", [(a, b)])[0]


@pytest.mark.parametrize(
    ("options", "a", "b", "expected"),
    [
        ({}, call(amount=5), call(amount="5"), False),
        ({"numbers": True}, call(amount=5), call(amount="5.00"), True),
        ({"numbers": True}, call(amount=1000), call(amount="1,000"), True),
        ({"numbers": True}, call(amount=5), call(amount="5 EUR"), False),
        ({"numbers": True}, call(id="1234567890123456789"), call(id=1234567890123456789), True),
        ({"numbers": True}, call(id="1234567890123456789"), call(id="1234567890123456788"), False),
        ({"numbers": True}, call(id="00123"), call(id="123"), False),  # a leading zero is no part of a number
        ({"numbers": True}, call(to="+49170"), call(to="49170"), False),
        ({"numbers": True}, call(x="0.10"), call(x=0.1), True),
        ({"numbers": True}, call(x="0.12345678901234567891"), call(x="0.12345678901234567892"), False),
        ({"numbers": True}, call(x="-0.0"), call(x=0), True),
        ({"numbers": True, "decimals": 2}, call(x="0.304"), call(x=0.3), True),
        ({"decimals": 2}, call(id=1234567890123456789), call(id=1234567890123456788), False),
        ({"decimals": 0}, call(x=0.6), call(x=1), True),
        ({"numbers": True}, call(amount="10,00"), call(amount=1000), False),  # a decimal comma is not a thousand
        ({"decimals": 2}, call(amount=0.1 + 0.2), call(amount=0.3), True),
        ({"decimals": 2}, call(amount=0.31), call(amount=0.3), False),
        ({"decimals": 0}, call(ok=True), call(ok=1), False),  # a truth value is no number
        ({"dates": ["%Y-%m-%d", "%d.%m.%Y"]}, call(on="2026-11-21"), call(on="21.11.2026"), True),
        ({"dates": ["%Y-%m-%d", "%d.%m.%Y"]}, call(on="2026-11-21"), call(on="22.11.2026"), False),
        ({"dates": ["%d/%m/%Y", "%m/%d/%Y"]}, call(on="03/04/2026"), call(on="04/03/2026"), False),  # not guessed
        ({"dates": ["%d/%m/%Y", "%m/%d/%Y"]}, call(on="13/04/2026"), call(on="04/13/2026"), True),
        (
            {"dates": ["%Y-%m-%dT%H:%M%z"]},
            call(at="2026-11-21T10:00+0100"),
            call(at="2026-11-21T09:00+0000"),
            True,
        ),
        ({"text": True}, call(to="The Bank."), call(to="bank"), True),
        ({"text": True}, call(to="bob"), call(to="rob"), False),
        ({"unordered": ["tags"]}, call(tags=["a", "b"]), call(tags=["b", "a"]), True),
        ({"unordered": ["tags"]}, call(path=["a", "b"]), call(path=["b", "a"]), False),
        ({"unordered": ["tags"]}, call(tags=["a", "a"]), call(tags=["a"]), False),  # a multiset
        ({"unordered": ["tags"]}, call(to={"tags": [2, 1]}), call(to={"tags": [1, 2]}), True),
        ({"arguments": ["to"]}, call(to="bob", memo="x"), call(to="bob", memo="y"), True),
        ({"arguments": ["to"]}, call(to="bob"), call(to="eve"), False),
        ({"arguments": {"pay": ["to"]}}, call("log", to="a", x=1), call("log", to="a", x=2), False),
        ({"arguments": {"*": ["to"]}}, call("log", to="a", x=1), call("log", to="a", x=2), True),
        ({"arguments": ["to"]}, call("pay", to="bob"), call("log", to="bob"), False),
    ],
)
def test_only_what_is_declared_is_the_same(options: dict[str, Any], a: str, b: str, expected: bool) -> None:
    judge = ToolCallJudge(**options)
    assert same(judge, a, b) is expected
    assert same(judge, b, a) is expected
    if options:
        assert same(ToolCallJudge(), a, b) is False  # without the option nothing of it holds
    again = make_judge(judge.spec.name, **json.loads(judge.spec.model_dump_json())["params"])
    assert again.spec == judge.spec
    assert same(again, a, b) is expected  # type: ignore[arg-type]


def test_order_of_calls() -> None:
    first, second = ToolCall(name="a", arguments={}), ToolCall(name="b", arguments={})
    forth, back = canonical_calls([first, second]), canonical_calls([second, first])
    assert same(ToolCallJudge(), forth, back) is False
    assert same(ToolCallJudge(any_order=True), forth, back) is True
    assert [judge.judges_tool_calls for judge in (ToolCallJudge(), ToolCallJudge(any_order=True))] == [False, True]


def test_the_options_reach_the_estimator() -> None:
    samples = [Sample(text="", tool_calls=(ToolCall(name="pay", arguments={"amount": v}),)) for v in (5, "5.0", "5")]
    drawn = SampleSet(question="q", primary=samples[0], samples=tuple(samples))
    plan = SamplingPlan(n=3)
    strict = make_estimator("self_consistency", judge=ToolCallJudge())
    declared = make_estimator("self_consistency", judge=ToolCallJudge(numbers=True))
    assert measure(drawn, strict, plan).value == pytest.approx(2 / 3)
    assert measure(drawn, declared, plan).value == 0.0


@pytest.mark.parametrize(
    "options", [{"dates": "%Y"}, {"unordered": "tags"}, {"arguments": "to"}, {"decimals": -1}, {"dates": ["iso"]}]
)
def test_misuse_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ToolCallJudge(**options)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.sampled_from(["5", "5.0", "The a", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "tags"]), VALUES, max_size=3))
def test_a_form_is_its_own_form(arguments: dict[str, Any]) -> None:
    """Idempotent, so clusters do not depend on whether a text was read before."""
    judge = ToolCallJudge(numbers=True, decimals=2, text=True, unordered=["tags"], any_order=True)
    form = judge.identity(call(**arguments))
    assert judge.identity(form) == form


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+0100", "9999-12-31T23:00:00-0500"])
def test_a_date_that_no_calendar_holds_in_utc_stays_a_text(text: str) -> None:
    """It raised OverflowError."""
    judge = ToolCallJudge(dates=["%Y-%m-%dT%H:%M:%S%z"])
    calls = [canonical_calls([ToolCall(name="t", arguments={"at": at})]) for at in (text, "2026-11-21T00:00:00+0100")]
    assert judge.equivalent("", [(calls[0], calls[0]), (calls[0], calls[1])]) == [True, False]


def test_a_whole_number_above_every_float_is_compared_as_it_is() -> None:
    """It raised OverflowError."""
    judge = ToolCallJudge(decimals=2)
    calls = [canonical_calls([ToolCall(name="t", arguments={"n": 10**400 + more})]) for more in (0, 1)]
    assert judge.equivalent("", [(calls[0], calls[0]), (calls[0], calls[1])]) == [True, False]


def test_a_text_nested_too_deep_for_a_call_is_compared_as_a_text() -> None:
    """It raised RecursionError."""
    deep = '{"name":"t","arguments":' + '{"a":' * 700 + "1" + "}" * 701
    assert ToolCallJudge(text=True).equivalent("", [(deep, deep), (deep, deep.replace("1", "2"))]) == [True, False]


def test_arguments_that_are_left_out_are_not_judged_and_the_verdict_says_so() -> None:
    judge = ToolCallJudge(arguments={"pay": ["to"]})
    text = call(to="bob", note="rent", memo="May")
    assert judge.left_out(text) == ("pay: memo, note",)
    assert judge.left_out(call("close", account="a")) == ()  # a tool that is not listed keeps all
    assert judge.left_out("no call") == ToolCallJudge().left_out(text) == ()
    estimator = make_estimator("discrete_semantic_entropy", judge=judge)
    artifact = make_artifact(ScriptedChat(), estimator=estimator, n=5)
    answer = Sample(text="", tool_calls=(ToolCall(name="pay", arguments={"to": "bob", "note": "rent"}),))
    for samples, accepted in (((answer,) * 5, True), ((answer,) * 3 + (Sample(text="no"),) * 2, False)):
        drawn = SampleSet(question="q", primary=answer, samples=samples)
        verdict = ThresholdGate(artifact, estimator).decide(drawn)
        assert verdict.accepted is accepted
        assert verdict.detail.endswith("the artifact leaves it out of the comparison: pay: note. Check it.")


def pay(to: str, amount: int) -> str:
    """Pay."""
    return to


ANYTHING = {"type": "function", "function": {"name": "any", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pay": ["to", "amonut"]}, "name 'amonut', which is not an argument of pay. Did you mean 'amount'?"),
        ({"pays": ["to"]}, "name 'pays', which is not a tool. Did you mean 'pay'?"),
        (["to", "memo"], "name 'memo', which is not an argument of the other tools. There are: amount, to."),
        ({"pay": ["to", "amount"], "*": ["to"]}, None),
        (["amount"], None),
        (None, None),
    ],
)
def test_arguments_are_those_of_the_tools_once_they_are_known(arguments: Any, message: str | None) -> None:
    estimator = make_estimator("primary_disagreement", judge=ToolCallJudge(arguments=arguments))
    plan_for([estimator])  # the tools are not known yet
    if message is None:
        assert plan_for([estimator], bindings=bindings_for([pay])).bindings == bindings_for([pay])
        return
    with pytest.raises(UsageError) as refused:
        plan_for([estimator], bindings=bindings_for([pay]))
    assert message in str(refused.value)


def test_a_tool_whose_schema_lists_no_arguments_may_have_any() -> None:
    bindings = Bindings(tools=(*bindings_for([pay]).tools, ANYTHING))
    for arguments in ({"any": ["iban"]}, {"*": ["iban"]}, ["iban"]):
        ToolCallJudge(arguments=arguments).check(bindings)
