"""JSON fields as items: which items a document has, which samples support them, and which a reference does."""

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from calibrate.items.answers import compare_with_gold
from guardrail.bindings import bindings_for
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.items.item import Item
from guardrail.items.json_fields import json_spec, placed
from guardrail.items.measure import items_measure
from guardrail.items.paths import leaf_fields, named_path
from guardrail.items.spec import ItemsSpec
from guardrail.judges import Judge, JudgeSpec
from guardrail.types import Missing, Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured

FREE = json_spec(cap=50)


def drawn(primary: Any, *samples: Any) -> SampleSet:
    return SampleSet(question="q", primary=_sample(primary), samples=tuple(map(_sample, samples)))


def _sample(value: Any) -> Sample:
    if isinstance(value, Sample):
        return value
    return Sample(text=value if isinstance(value, str) else json.dumps(value))


def call(name: str, **arguments: Any) -> Sample:
    return Sample(text="", tool_calls=(ToolCall(name=name, arguments=arguments),))


def split_and_measure(
    drawn: SampleSet, spec: ItemsSpec, plan: SamplingPlan | None = None, **given: Any
) -> tuple[Item, ...] | Missing:
    return items_measure(spec, **given).items(drawn, plan)


def uncertainties(spec: ItemsSpec, primary: Any, *samples: Any, **given: Any) -> dict[str, float | None]:
    items = split_and_measure(drawn(primary, *samples), spec, **given)
    assert not isinstance(items, Missing), items
    return {item.path: item.uncertainty for item in items}


def right(spec: ItemsSpec, primary: Any, reference: Any) -> dict[str, bool | None]:
    compared = compare_with_gold(_sample(primary), json.dumps(reference), spec)
    items = split_and_measure(drawn(primary, primary), spec)
    assert not isinstance(items, Missing)
    return dict(zip([item.path for item in items], compared.right, strict=True))


# -- leaves


def test_one_item_for_each_leaf_path_in_the_order_of_the_text() -> None:
    answer = {
        "b": 1,
        "a": {"x": None, "y": []},
        "c": [],
        "d": {},
        "e": ["p", "q"],
        "f": [{"k": 1}, {"k": 2}],
        "g": [[1]],
    }
    items = split_and_measure(drawn(answer, answer), FREE)
    assert isinstance(items, tuple)
    assert [(item.path, item.text) for item in items] == [
        ("/b", "1"), ("/a/x", "null"), ("/a/y", "[]"), ("/c", "[]"), ("/d", "{}"), ("/e/0", '"p"'), ("/e/1", '"q"'),
        ("/f", '[{"k": 1}, {"k": 2}]'), ("/g", "[[1]]"),
    ]  # fmt: skip


def test_paths_are_json_pointers() -> None:
    assert uncertainties(FREE, {"a/b": {"m~n": 1}}, {"a/b": {"m~n": 1}}) == {"/a~1b/m~0n": 0.0}


@pytest.mark.parametrize("value", ["3", '"word"', "null", "[]", "{}", "true"])
def test_a_document_that_is_one_value_is_one_item(value: str) -> None:
    assert uncertainties(FREE, value, value, "x") == {"": 0.5}


# -- values: by type, by value


@pytest.mark.parametrize(
    ("answer", "sample", "same"),
    [
        ("1", "1.0", True), ("1", "10e-1", True), ("0.1", "0.10000000000000000001", False), ("1", '"1"', False),
        ("0", "false", False), ("1", "true", False), ("null", "false", False), ("null", '""', False),
        ("[]", "{}", False),
        ('"\\u00e9"', '"e\\u0301"', True), ('"a"', '"A"', False), ('"a"', '"a "', False), ("true", "true", True),
        ("null", "null", True), ("[]", "null", False),
    ],
)  # fmt: skip
def test_values_are_equal_by_type_and_value(answer: str, sample: str, same: bool) -> None:
    assert uncertainties(FREE, f'{{"v": {answer}}}', f'{{"v": {sample}}}') == {"/v": 0.0 if same else 1.0}


def test_null_is_a_claim_and_a_missing_field_does_not_support_it() -> None:
    assert uncertainties(FREE, {"a": None}, {"a": None}, {}, {"a": 0}, {"a": None}) == {"/a": 0.5}


def test_the_share_of_samples_without_support_is_exactly_k_of_n() -> None:
    samples = [{"a": 1}] * 7 + [{"a": 2}, "not JSON", '{"a": 1, "a": 1}']  # a field twice is unreadable
    assert uncertainties(FREE, {"a": 1}, *samples) == {"/a": 3 / 10}


# -- lists


def test_lists_of_scalars_are_multisets_by_item() -> None:
    # the second "a" needs samples with two of them
    samples = ({"t": ["a"]}, {"t": ["a", "a"]}, {"t": ["b", "a", "a"]}, {"t": "a"})
    assert uncertainties(FREE, {"t": ["a", "b", "a"]}, *samples) == {
        "/t/0": 0.25, "/t/1": 0.75, "/t/2": 0.5,
    }  # fmt: skip
    assert right(FREE, {"t": ["a", "a", "a"]}, {"t": ["a", "x", "a"]}) == {"/t/0": True, "/t/1": True, "/t/2": False}


def test_a_list_of_objects_is_one_item_and_its_order_counts() -> None:
    two = [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]
    assert uncertainties(FREE, {"l": two}, {"l": two}, {"l": two[::-1]}) == {"/l": 0.5}


def test_with_a_key_field_the_items_are_matched_by_it() -> None:
    spec = json_spec(cap=9, keys={"/l": "sku"})
    answer = {"l": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}]}
    other = {"l": [{"sku": "b", "n": 2}, {"sku": "a", "n": 3}]}
    assert uncertainties(spec, answer, other, {"l": [{"sku": "b", "n": 2}]}) == {
        "/l/0/sku": 0.5, "/l/0/n": 1.0, "/l/1/sku": 0.0, "/l/1/n": 0.0,
    }  # fmt: skip
    twice = {"l": [{"sku": "a", "n": 1}, {"sku": "a", "n": 1}]}
    assert uncertainties(spec, twice, twice) == {"/l": 0.0}  # no key tells the items apart
    assert uncertainties(spec, answer, twice) == dict.fromkeys(["/l/0/sku", "/l/0/n", "/l/1/sku", "/l/1/n"], 1.0)


# -- optional fields


class Invoice(BaseModel):
    total: float
    due: str | None = None
    tags: list[str] = Field(default=[], max_length=3)


def test_an_optional_field_that_is_left_out_is_an_item() -> None:
    spec = json_spec(schema=Invoice.model_json_schema())
    assert (spec.optional, spec.cap) == (("/due", "/tags"), 5)
    items = split_and_measure(
        drawn({"total": 1}, {"total": 1}, {"total": 1, "due": None}, "broken", {"total": 1}), spec
    )
    assert isinstance(items, tuple)
    assert [(item.path, item.uncertainty, item.absent) for item in items] == [
        ("/total", 0.25, False), ("/due", 0.5, True), ("/tags", 0.25, True),
    ]  # fmt: skip
    assert right(spec, {"total": 1}, {"total": 2, "tags": []}) == {"/total": False, "/due": True, "/tags": False}


def test_the_fields_of_a_schema_are_counted_through_references_and_unions() -> None:
    class Address(BaseModel):
        street: str
        zip: str | None = None

    class Person(BaseModel):
        home: Address
        office: Address | None = None
        items: list[Address]
        names: list[str]

    fields = leaf_fields(Person.model_json_schema())
    assert (fields.most, fields.unbounded) == (None, ("/names",))
    assert set(fields.optional) == {"/home/zip", "/office", "/office/zip"}
    with pytest.raises(UsageError, match="the lists /names have no maxItems"):
        json_spec(schema=Person.model_json_schema())
    keyed = leaf_fields(Person.model_json_schema(), {"/items": "street"})
    assert keyed.unbounded == ("/items", "/names")
    assert "/items/*/zip" in keyed.optional
    with pytest.raises(UsageError, match="there is no schema"):
        json_spec()


def test_a_schema_that_refers_to_itself_ends() -> None:
    class Node(BaseModel):
        name: str
        next: "Node | None" = None

    fields = leaf_fields(Node.model_json_schema())
    assert fields.most is not None


# -- judges by path


def test_a_field_has_its_own_judge() -> None:
    spec = json_spec(cap=9, judges={"/km": "numeric", "/day": "date", "/name": "exact", "/l/*": "exact"})
    answer = {"km": "5 km", "day": "2020-01-02", "name": "The Rome", "l": ["A"], "free": "Rome"}
    sample = {"km": "5", "day": "2020-01-02", "name": "rome", "l": ["a"], "free": "rome"}
    assert uncertainties(spec, answer, sample) == {"/km": 0.0, "/day": 0.0, "/name": 0.0, "/l/0": 0.0, "/free": 1.0}
    # A text is never a number or a truth value, whatever the judge.
    assert uncertainties(spec, {"km": "5"}, {"km": 5}) == {"/km": 1.0}
    assert uncertainties(spec, {"name": "true"}, {"name": True}) == {"/name": 1.0}
    assert right(spec, answer, {**sample, "km": "6"})["/km"] is False


class Prefix(Judge):
    """Texts are the same if they begin with the same letter; raises for "!"; has no verdict on "?"."""

    spec = JudgeSpec(name="own_prefix", version=1, params={})
    is_slow = False

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        if any("!" in a + b for a, b in pairs):
            raise RuntimeError("!")
        return [None if "?" in b else a[0] == b[0] for a, b in pairs]


def test_a_judge_of_the_users_own() -> None:
    own = Prefix()
    spec = json_spec(cap=9, judges={"/a": own})
    with pytest.raises(ArtifactMismatchError, match=r"field /a was calibrated with judge 'own_prefix'.*judge="):
        items_measure(spec)
    assert uncertainties(spec, {"a": "Rome"}, {"a": "Riga"}, {"a": "Oslo"}, judges={"/a": own}) == {"/a": 0.5}
    with pytest.raises(ArtifactMismatchError, match=r"judges were given for \['/b'\]"):
        items_measure(spec, judges={"/a": own, "/b": own})
    other = Prefix()
    other.spec = JudgeSpec(name="own_prefix", version=2, params={})
    with pytest.raises(ArtifactMismatchError, match="the judge of the field /a differs"):
        items_measure(spec, judges={"/a": other})


@pytest.mark.parametrize("sample", ["R?", "R!"])
def test_an_item_without_a_verdict_is_unmeasured_and_the_others_are_not(sample: str) -> None:
    spec = json_spec(cap=9, judges={"/a": Prefix()})
    values = uncertainties(
        spec, {"a": "Rome", "b": 1}, {"a": sample, "b": 1}, {"a": "R", "b": 1}, judges={"/a": Prefix()}
    )
    assert values == {"/a": None, "/b": 0.0}


def test_long_lists_are_compared_in_linear_time() -> None:
    """A model that repeats itself writes hundreds of items: comparing every two took minutes, within a request."""
    many = [7] * 300 + list(range(300))
    spec = json_spec(cap=9, keys={"/rows": "id"})
    rows = [{"id": k, "v": 0} for k in range(150)]
    start = time.process_time()
    values = uncertainties(spec, {"x": many, "rows": rows}, *[{"x": many[:-1], "rows": rows[::-1]}] * 3)
    assert time.process_time() - start < 2
    assert [place for place, value in values.items() if value] == ["/x/599"]


LONG = ([0] * 200_000, {str(k): 0 for k in range(50_000)}, [0] * 1_001)


@pytest.mark.parametrize("value", LONG)
def test_an_answer_of_too_many_values_abstains_at_once(value: Any) -> None:
    """Comparing 200,000 values took 80 s, and their verdicts were 16 MB of metadata, within one request."""
    start = time.process_time()
    missing = split_and_measure(drawn({"x": value}, {"x": value}, {"x": 0}), FREE)
    assert time.process_time() - start < 2
    assert isinstance(missing, Missing)
    assert "more than 1,000 values" in missing.detail
    assert uncertainties(FREE, {"x": 0}, {"x": value, "y": 0}) == {"/x": 1.0}  # as a sample, it supports nothing
    with pytest.raises(UsageError, match="it has more than 1,000 values"):
        right(FREE, {"x": 0}, {"x": value})


def test_an_answer_of_as_many_values_as_are_measured() -> None:
    assert len(uncertainties(FREE, [0] * 1_000, [0] * 1_000)) == 1_000


@given(
    st.lists(st.sampled_from(["R", "Ro", "R?", "S"]), max_size=6),
    st.lists(st.sampled_from(["R", "Ro", "R?", "S"]), max_size=6),
    st.booleans(),
)
def test_items_are_counted_as_if_every_two_were_compared(own: list[str], other: list[str], judged: bool) -> None:
    judge = Prefix()
    made = {"/*": judge} if judged else {}
    spec = json_spec(cap=9, judges=made)

    def same(a: str, b: str) -> bool | None:
        return True if a == b else judge.equivalent("", [(a, b)])[0] if judged else False

    expected = {}
    for i, item in enumerate(own):
        place = 1 + [same(item, earlier) for earlier in own[:i]].count(True)
        verdicts = [same(item, there) for there in other]
        unknown = None in verdicts and verdicts.count(True) < place
        expected[f"/{i}"] = None if unknown else float(verdicts.count(True) < place)
    if own:
        assert uncertainties(spec, own, other, judges=made) == expected


class Counting(Prefix):
    """Counts the pairs that it is asked about."""

    def __init__(self) -> None:
        self.pairs = 0

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.pairs += len(pairs)
        return super().equivalent(question, pairs)


def items(n: int, k: int) -> str:
    return json.dumps({"x": [f"{k} item {i}" for i in range(n)], "y": 1})


def test_a_list_too_long_for_the_judge_of_its_items_is_held_back_unasked() -> None:
    """Comparing 1,000 items with those of ten samples would ask the judge ten million times, within a request."""
    judge = Counting()
    spec = json_spec(cap=2000, judges={"/x/*": judge})
    measured = split_and_measure(
        drawn(items(900, 0), *(items(900, k) for k in range(10))), spec, judges={"/x/*": judge}
    )
    assert not isinstance(measured, Missing)
    assert judge.pairs == 0
    assert {item.uncertainty for item in measured[:-1]} == {None}
    assert "900 different items" in measured[0].detail
    assert (measured[-1].path, measured[-1].uncertainty) == ("/y", 0.0)
    assert items_between(spec, judge, 100, 100)[0].uncertainty == 1.0
    assert 0 < judge.pairs <= 100 * 100 * 2
    long_sample = items_between(spec, judge, 100, 101)[0]
    assert (long_sample.uncertainty, long_sample.detail) == (None, "the field's judge gave no verdict on some sample")
    # Equal items are one: a model that repeats itself is measured.
    repeated = json.dumps({"x": ["a"] * 900, "y": 1})
    values = uncertainties(spec, repeated, repeated, judges={"/x/*": judge})
    assert set(values.values()) == {0.0}


def items_between(spec: ItemsSpec, judge: Counting, own: int, other: int) -> tuple[Item, ...]:
    measured = split_and_measure(drawn(items(own, 0), items(other, 1)), spec, judges={"/x/*": judge})
    assert not isinstance(measured, Missing)
    return measured


def test_labels_of_a_list_too_long_for_its_judge_are_undecided() -> None:
    judge = Counting()
    spec = json_spec(cap=2000, judges={"/x/*": judge})
    compared = compare_with_gold(_sample(items(101, 0)), items(101, 1), spec, judges={"/x/*": judge})
    assert compared.right == (*(None,) * 101, True)


class Failing(Prefix):
    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        raise RuntimeError("no network")


def test_an_answer_is_unmeasured_if_the_judge_of_its_items_fails() -> None:
    spec = json_spec(cap=9, judges={"/x/*": Failing()})
    text = '{"x": ["a", "b"]}'
    missing = split_and_measure(drawn(text, text), spec, judges={"/x/*": Failing()})
    assert isinstance(missing, Missing)
    assert missing.reason is Unmeasured.JUDGE_FAILED


# -- what cannot be measured


@pytest.mark.parametrize("text", ["not JSON", '{"a": 1, "a": 2}', '{"a": 1', '{"a": NaN}', r'{"a": "\ud800"}'])
def test_an_answer_that_cannot_be_split_is_unmeasured(text: str) -> None:
    missing = split_and_measure(drawn(text, text), FREE)
    assert isinstance(missing, Missing)
    assert missing.reason is Unmeasured.UNREADABLE


def test_an_answer_without_all_samples_or_cut_off_is_unmeasured() -> None:
    plan = SamplingPlan(n=2, cut_off="abstain")
    few = split_and_measure(drawn({"a": 1}, {"a": 1}), FREE, plan)
    assert isinstance(few, Missing)
    assert few.reason is Unmeasured.SAMPLING_SHORTFALL
    none = split_and_measure(drawn({"a": 1}), FREE)
    assert isinstance(none, Missing)
    assert none.reason is Unmeasured.SAMPLING_SHORTFALL
    cut = Sample(text='{"a": 1}', finish_reason="length")
    missing = split_and_measure(drawn(cut, {"a": 1}, {"a": 1}), FREE, plan)
    assert isinstance(missing, Missing)
    assert missing.reason is Unmeasured.CUT_OFF
    refused = split_and_measure(drawn(Sample(text="no", refusal=True), {"a": 1}), FREE)
    assert isinstance(refused, Missing)
    assert refused.reason is Unmeasured.REFUSED


def test_another_version_of_the_splitting_is_refused() -> None:
    with pytest.raises(ArtifactMismatchError, match="calibrated with version 99 of items, this is version 1"):
        items_measure(FREE.model_copy(update={"version": 99}))


# -- tool calls


def test_the_arguments_of_a_call_are_the_document() -> None:
    answer = call("pay", to="bob", amount=5)
    samples = (call("pay", amount=5.0, to="bo"), call("send", to="bob", amount=5), Sample(text='{"to": "bob"}'))
    assert uncertainties(FREE, answer, *samples) == {"/to": 1.0, "/amount": 2 / 3}
    two = Sample(text="", tool_calls=(*answer.tool_calls, *answer.tool_calls))
    assert isinstance(split_and_measure(drawn(two, two), FREE), Missing)
    assert uncertainties(FREE, answer, two) == {"/to": 1.0, "/amount": 1.0}


def test_a_text_is_not_supported_by_a_call() -> None:
    assert uncertainties(FREE, {"to": "bob"}, call("pay", to="bob")) == {"/to": 1.0}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"to": "bob", "amount": 6}, (True, False)),
        ({"name": "pay", "arguments": {"to": "bob", "amount": 5}}, (True, True)),
        ([{"name": "pay", "arguments": {"to": "bob", "amount": 5}}], (True, True)),
        ({"name": "send", "arguments": {"to": "bob", "amount": 5}}, (False, False)),
    ],
)
def test_the_reference_of_a_call_may_name_the_tool(reference: Any, expected: tuple[bool, ...]) -> None:
    assert compare_with_gold(call("pay", to="bob", amount=5), json.dumps(reference), FREE).right == expected


# -- references


def test_items_are_right_where_the_reference_says_the_same_and_its_fields_are_counted() -> None:
    compared = compare_with_gold(_sample({"a": 1, "t": ["x"]}), '{"a": 2, "t": ["x", "x"], "c": null}', FREE)
    assert (compared.right, compared.n_reference) == ((False, True), 4)


def test_a_reference_that_is_not_json_is_refused() -> None:
    with pytest.raises(UsageError, match=r"reference is not a JSON document.*'Rome'"):
        compare_with_gold(_sample({"a": 1}), "Rome", FREE)


def test_the_schema_of_bindings() -> None:
    assert json_spec(bindings_for(response_format=Invoice)).cap == 5
    assert json_spec(bindings_for([Invoice])).optional == ("/due", "/tags")


def test_a_cap_of_zero_is_not_the_default() -> None:
    with pytest.raises(ValidationError, match="cap"):
        json_spec(schema={"type": "object", "properties": {"a": {}, "b": {}}}, cap=0)


@pytest.mark.parametrize("path", ["/b/c", "/l/2", "/a/x"])
def test_a_value_is_placed_only_where_the_answer_has_a_place(path: str) -> None:
    answer: Any = {"a": 1, "l": [1, 2]}
    with pytest.raises(ValueError, match=f"^the answer has no place '{path}'$"):
        placed(answer, path, 3)
    assert placed(answer, "/l/1", 3) == {"a": 1, "l": [1, 3]}
    assert placed(answer, "/b", 3) == {"a": 1, "l": [1, 2], "b": 3}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "by": {"type": "object", "additionalProperties": {"type": "object", "properties": {"code": {}}}},
        "who": {"anyOf": [{"properties": {"name": {}}}, {"properties": {"firm": {}}}]},
    },
    "$defs": {"item": {"type": "object", "properties": {"price": {}}}},
}


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/items/3/price", "/items/3/price"),
        ("/items/3/cancer", "/items/3/*"),
        ("/who/firm", "/who/firm"),
        ("/by/cancer/code", "/by/*/code"),
        ("/cancer/price", "/*/*"),  # the schema names price elsewhere only
        ("/1987", "/*"),  # a year of birth is no place in a list
        ("", ""),
    ],
)
def test_a_path_is_shown_without_the_models_words(path: str, shown: str) -> None:
    """{"lung cancer": true} would leave as a path although its value is held back."""
    assert named_path(path, json_spec(cap=1), SCHEMA) == shown


def test_without_a_schema_only_the_paths_of_the_specification_are_named() -> None:
    """An operator who names fields must read which of them are held back."""
    spec = json_spec(cap=1, optional=["/due"], keys={"/items": "sku"}, judges={"/to/name": "exact"})
    for path in ("/due", "/items/0/sku", "/to/name"):
        assert named_path(path, spec, None) == path
    assert named_path("/items/0/cancer", spec, None) == "/items/0/*"
    assert named_path("/to/cancer", spec, None) == "/to/*"
