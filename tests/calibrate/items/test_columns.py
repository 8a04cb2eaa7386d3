"""Items by columns: the results of the log, for every command that reads them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.data import columns
from calibrate.data.columns import open_records
from calibrate.data.item_columns import ItemColumns
from calibrate.data.record import ItemLabels, Record
from calibrate.data.records import RecordFile, read_records, write_records
from calibrate.items.answers import label_items, measure_records
from calibrate.items.figures import item_figures
from calibrate.judging import held_out
from calibrate.pipeline import fit_artifact
from calibrate.report import write_report
from calibrate.rules.items import AnswerItems
from guardrail.errors import RecordError
from guardrail.items.json_fields import json_spec
from guardrail.items.measure import items_measure
from guardrail.items.spec import ITEMS
from tests.calibrate.items.cards import invoices, record_file

pytest.importorskip("msgspec")


@contextmanager
def by_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(columns, "LARGE", 0)
        patch.setattr(columns, "_BATCH", 5_000)  # several reads
        yield


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers with every kind of item and label; every third question is asked again under another id."""
    dice = random.Random(3)
    records = []
    for i, record in enumerate(invoices(120, seed=4)):
        records.append(record.model_copy(update={"group": f"buyer {i % 9}"}))
        if i % 3 == 0:
            records.append(record.model_copy(update={"id": f"{record.id} again", "group": f"buyer {i % 9}"}))
    path = tmp_path_factory.mktemp("columns") / "records.jsonl"
    file = record_file(path, records)
    spec = json_spec(file.header.plan.bindings, optional=["/discount"])
    file = label_items(measure_records(file, items_measure(spec)))

    def altered(record: Record) -> Record:
        """Some items without a measurement, some labels undecided, and some answers without labels."""
        if record.items is None or record.item_labels is None:
            return record
        chance = dice.random()
        if chance < 0.1:
            return record.model_copy(update={"item_labels": None})
        labels, items = record.item_labels, record.items
        if chance < 0.2:
            labels = ItemLabels(right=(None, *labels.right[1:]), n_reference=labels.n_reference)
        if chance > 0.9:
            items = (items[0].model_copy(update={"uncertainty": None, "detail": "no verdict"}), *items[1:])
        return record.model_copy(update={"items": items, "item_labels": labels})

    changed = [altered(record) for record in file.records]
    write_records(path, file.header, changed)
    return path


@pytest.fixture
def both(log: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RecordFile, RecordFile]:
    """The file by its records and by its columns."""
    with by_columns(monkeypatch):
        by_column = open_records(log)
    return read_records(log), by_column


def listed(columns: ItemColumns) -> dict[str, Any]:
    """The columns with each item's path instead of its number."""
    names = [columns.paths[i] for i in columns.path]
    numbers = ("size", "labels", "reference", "uncertainty", "absent", "right")
    # As text, in which NaN is NaN.
    return {"path": names, **{name: [str(value) for value in getattr(columns, name)] for name in numbers}}


def test_columns_of_items_are_those_of_the_records(both: tuple[RecordFile, RecordFile]) -> None:
    by_record, by_column = (file.records for file in both)
    whole = listed(by_record.items())
    assert listed(by_column.items()) == whole
    assert {"-1", "5"} == set(whole["size"])
    assert {"-1", "0", "1"} == set(whole["right"])
    assert "nan" in whole["uncertainty"]
    assert "True" in whole["absent"]
    some = np.random.default_rng(0).permutation(len(by_record))[:50]
    for places in (some, some[:1], some[:0], np.arange(len(by_record)) % 2 == 0):
        assert listed(by_column.take(places).items()) == listed(by_record.take(places).items())
        assert listed(by_column.items().take(places)) == listed(by_record.take(places).items())


def test_an_answer_without_items_can_be_labelled_and_one_without_labels_is_not() -> None:
    nothing: Any = np.zeros(0)
    columns = ItemColumns(
        size=np.array([0, 0, -1]), labels=np.array([0, -1, 0]), reference=np.array([-1, -1, -1]), uncertainty=nothing,
        absent=nothing, path=nothing, right=nothing, paths=(),
    )  # fmt: skip
    assert columns.measured.tolist() == [True, True, False]
    assert columns.labelled.tolist() == [True, False, False]


def test_the_interval_of_recall_by_hand() -> None:
    """Kept right items 1, 1, 0 of references with 2, 2, 1 fields: share .4, residuals .2, .2, -.4, mean size 5/3."""
    columns = ItemColumns(
        size=np.array([2, 1, 1]), labels=np.array([2, 1, 1]), reference=np.array([2, 2, 1]),
        uncertainty=np.array([0.1, 0.9, 0.1, 0.9]), absent=np.zeros(4, dtype=np.bool_),
        path=np.zeros(4, dtype=np.int64), right=np.ones(4, dtype=np.int8), paths=("/a",),
    )  # fmt: skip
    figures = item_figures(AnswerItems.of([[0.1, 0.9], [0.1], [0.9]], [[0, 0], [0], [0]], cap=5), 0.5, columns=columns)
    assert (figures.reference, figures.recalled) == (5, 2)
    spread = 1.96 * (0.08**0.5) / (5 / 3) / 3**0.5
    assert figures.recall_interval == pytest.approx((0.4 - spread, 0.4 + spread))


def test_figures_on_other_answers_and_the_report_are_those_of_the_records(
    both: tuple[RecordFile, RecordFile], tmp_path: Path
) -> None:
    halves = [(file, file.records.take(np.arange(len(file.records)) < 80)) for file in both]
    artifact = fit_artifact(both[0], score=ITEMS, part=halves[0][1], alpha=0.3)
    assert artifact.threshold is not None
    figures, pages = [], []
    for number, (file, _) in enumerate(halves):
        used = {int(value) for value in halves[0][1].asked_hashes()}
        rest = file.records.take(np.array([int(h) not in used for h in file.records.asked_hashes()]))
        figures.append(held_out(artifact, rest, ITEMS))
        page = tmp_path / str(number) / "report.html"
        write_report(page, artifact, file.records, estimator=ITEMS, test=rest)
        pages.append(page.read_text(encoding="utf-8"))
    assert figures[0] == figures[1]
    assert pages[0] == pages[1]


def test_a_bad_item_is_refused_by_file_line_and_field(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bad.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[3])
    record["items"][1]["uncertainty"] = 1.5
    path.write_text("\n".join([*lines[:3], json.dumps(record), *lines[4:]]) + "\n", encoding="utf-8")
    with pytest.raises(RecordError) as by_records:
        read_records(path)
    with by_columns(monkeypatch), pytest.raises(RecordError) as by_column:
        open_records(path)
    assert str(by_column.value) == str(by_records.value)
    assert ":4: " in str(by_column.value)


@pytest.mark.parametrize(
    ("labels", "why"),
    [({"right": [True]}, r"1 labels for \d items"), ({"n_reference": -2}, "n_reference.*-2")],
)
def test_labels_that_do_not_fit_the_items_are_refused_by_file_and_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: dict[str, Any], why: str
) -> None:
    path = tmp_path / "bad.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines()
    place = next(i for i, line in enumerate(lines[1:], start=1) if json.loads(line).get("item_labels"))
    record = json.loads(lines[place])
    record["item_labels"] |= labels
    path.write_text("\n".join([*lines[:place], json.dumps(record), *lines[place + 1 :]]) + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match=f"bad.jsonl:{place + 1}: .*{why}") as by_records:
        read_records(path)
    with by_columns(monkeypatch), pytest.raises(RecordError) as by_column:
        open_records(path)
    assert str(by_column.value) == str(by_records.value)
