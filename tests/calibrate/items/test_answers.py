"""Records with items: measuring, labelling by reference and by hand, packing for a fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from calibrate.data.records import Record, RecordFile
from calibrate.data.table import table_of
from calibrate.items.answers import (
    cap_of_counts,
    label_items,
    labels_by_hand,
    measure_records,
    spec_of_answers,
    stored_spec,
)
from calibrate.pipeline import fit_artifact
from calibrate.scoring.items import ScoredItems
from guardrail.errors import UsageError
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS, ItemsSpec
from guardrail.types import Unmeasured
from tests.calibrate.items.cards import N_SAMPLES, SCHEMA, invoices, record_file


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> RecordFile:
    file = record_file(tmp_path_factory.mktemp("items") / "records.jsonl", invoices(80))
    return measure_records(file, items_measure(json_spec(file.header.plan.bindings)))


def test_each_field_has_the_share_of_samples_without_it(measured: RecordFile) -> None:
    record = measured.records[0]
    assert record.drawn is not None
    assert record.drawn.primary is not None
    own = json.loads(record.drawn.primary.text)
    others = [json.loads(sample.text) for sample in record.drawn.samples]
    assert {item.path: item.uncertainty for item in (record.items or ())} == {
        f"/{name}": sum(other[name] != own[name] for other in others) / N_SAMPLES for name in own
    }
    smallest = min(item.uncertainty for item in (record.items or ()) if item.uncertainty is not None)
    assert record.scores["items"].value == smallest


def test_an_answer_that_cannot_be_split_has_no_items(measured: RecordFile) -> None:
    record = measured.records[39]
    assert record.items is None
    assert record.scores["items"].reason is Unmeasured.UNREADABLE


def test_labels_by_reference(measured: RecordFile) -> None:
    labelled = label_items(measured)
    for record in labelled.records:
        if record.items is None:
            assert record.item_labels is None
            continue
        assert record.drawn is not None
        assert record.drawn.primary is not None
        own, gold = json.loads(record.drawn.primary.text), json.loads(record.references[0])
        labels = record.item_labels
        assert labels is not None
        assert labels.right == tuple(own[name] == gold[name] for name in own)
        assert labels.n_reference == len(gold)


def test_the_reference_that_most_fields_agree_with_counts(measured: RecordFile) -> None:
    record = measured.records[0]
    other = record.model_copy(update={"references": ('{"number": 0}', *record.references)})
    both = label_items(RecordFile(measured.path, measured.header, (other,)))
    alone = label_items(RecordFile(measured.path, measured.header, (record,)))
    assert both.records[0].item_labels == alone.records[0].item_labels


def test_labels_survive_a_new_measurement_of_the_same_items_only(measured: RecordFile) -> None:
    labelled = label_items(measured)
    same = measure_records(labelled, items_measure(json_spec(measured.header.plan.bindings)))
    assert [r.item_labels for r in same.records] == [r.item_labels for r in labelled.records]
    other = measure_records(labelled, items_measure(json_spec(schema=SCHEMA, judges={"/total": "numeric"})))
    assert other.header.item_correctness is None
    assert not any(record.item_labels for record in other.records)
    with pytest.raises(UsageError, match=r"has no labels\. Run: calibrate label .* --items"):
        fit_artifact(other, score=ITEMS, alpha=0.1)


def test_packing_counts_what_is_left_out(measured: RecordFile) -> None:
    labelled = label_items(measured)
    records = [r.model_copy(update={"item_labels": None}) if i < 10 else r for i, r in enumerate(labelled.records)]
    data = ScoredItems.of(table_of(records), json_spec(labelled.header.plan.bindings, cap=2))
    assert (data.n_unmeasured, data.n_unlabelled) == (2, 10)
    assert data.items.n == 68
    assert data.items.cap == 2
    assert (data.items.uncertainty.reshape(-1, 4) < 2).sum(axis=1).tolist() == [2] * 68


def test_labels_by_hand(tmp_path: Path) -> None:
    file = record_file(tmp_path / "records.jsonl", invoices(3))
    file = measure_records(file, items_measure(json_spec(file.header.plan.bindings)))
    every = {f"/{name}": True for name in SCHEMA["properties"]}
    rows = [
        {"id": "invoice-0", "items": every | {"/total": False}},
        {"id": "invoice-2", "items": every | {"/due": None}},
    ]
    labelled = labels_by_hand(file, rows, "labels.jsonl", "0" * 64)
    first = labelled.records[0].item_labels
    assert first is not None
    assert first.right == (True, False, True, True)
    assert not labelled.records[1].item_labels
    data = ScoredItems.of(table_of(labelled.records), stored_spec(labelled))
    assert data.n_undecided == 1
    assert data.items.wrong.tolist() == [0, 1, 0, 0, 0, 0, 0, 1]
    for bad, message in (
        ({"id": "nobody", "items": {}}, "labels the record 'nobody'"),
        ({"id": "invoice-0", "items": {"/totl": True}}, "labels the item '/totl'"),
        ({"id": "invoice-0", "items": {"/total": "yes"}}, 'must be true, false or null, got "yes"'),
        ({"id": "invoice-0", "items": [True]}, "must be an object"),
        ({"id": "invoice-1", "items": {"/total": True}}, "labels some items of 'invoice-1' and not /number"),
    ):
        with pytest.raises(UsageError, match=message):
            labels_by_hand(file, [bad], "labels.jsonl", "0" * 64)


def test_the_cap_is_that_of_the_schema_or_a_quantile() -> None:
    records = invoices(20)
    assert spec_of_answers(records, None, schema=SCHEMA).cap == 4
    assert spec_of_answers(records, None).cap == 4
    assert spec_of_answers(records, None, cap=2).cap == 2
    assert cap_of_counts([1, 2, 9]) == 2
    assert cap_of_counts([1] * 269 + [5] * 31) == 5
    with pytest.raises(UsageError, match="no answer could be split"):
        cap_of_counts([])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"judges": {"/totl": "numeric"}}, "a judge is named for '/totl'.*/buyer, /due, /number, /total"),
        ({"judges": {"/number/*": "numeric"}}, "a judge is named for '/number/\\*'"),
        ({"judges": {"total": "numeric"}}, "a judge is named for 'total'"),
        ({"keys": {"/items": "sku"}}, "a key field is named for '/items'"),
        ({"optional": ["/deu"]}, "an optional field is named for '/deu'"),
    ],
)
def test_a_path_that_no_field_has_is_refused_with_the_fields(options: dict[str, Any], words: str) -> None:
    """Such a judge was never asked, and such an optional field was a right item of every answer."""
    with pytest.raises(UsageError, match=words):
        spec_of_answers(invoices(5), None, **options)


def test_paths_of_the_schema_of_samples_and_of_references_are_fields() -> None:
    record = invoices(1)[0]
    other = {"tags": ["a"], "items": [{"sku": 1, "price": 2}], "buyer": {"name": "x"}}
    inside = record.model_copy(update={"references": (json.dumps(other),)})

    def made(records: Sequence[Record], schema: dict[str, Any] | None = None, **options: Any) -> ItemsSpec:
        return spec_of_answers(records, None, cap=4, schema=schema, **options)

    paths = {"/tags/*": "exact", "/items/*/price": "numeric"}
    spec = made([record, inside], judges=paths, keys={"/items": "sku"}, optional=["/buyer"])
    assert sorted(spec.judges) == sorted(paths)
    with pytest.raises(UsageError, match="a list of objects is one field unless"):
        made([record, inside], judges=paths)
    schema = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}}}
    assert made([record], schema, judges={"/tags/*": "exact"}).judges
    with pytest.raises(UsageError, match="Fields: none"):
        made([], judges={"/tags/*": "exact"})


def test_a_file_without_items_names_the_command(tmp_path: Path) -> None:
    file = record_file(tmp_path / "records.jsonl", invoices(3))
    with pytest.raises(UsageError, match=r"Run: calibrate score .* --items"):
        fit_artifact(file, score=ITEMS, alpha=0.1)
