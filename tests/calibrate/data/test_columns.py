"""Columns beside a record file: the results of the records, and never those of another file."""

from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibrate.correctness.registry import structured_advice
from calibrate.data import columns
from calibrate.data.columns import ColumnRecords, open_records, records_fingerprint
from calibrate.data.labels import contradictions, refuse_contradictions
from calibrate.data.records import Record, RecordFile, read_records, rewrite_records, write_records
from calibrate.data.split import one_per_cluster, split
from calibrate.evaluation.label_checks import suspicious
from calibrate.pipeline import fit_artifact, held_out
from calibrate.scoring.reach import waiting_of, waits_for_label
from calibrate.scoring.scores import Scored, arrays
from guardrail.errors import RecordError, UsageError

pytest.importorskip("msgspec")
pytest.importorskip("pyarrow")

KEY = "discrete_semantic_entropy"


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LARGE", 0)


def in_columns(path: Path) -> tuple[RecordFile, ColumnRecords]:
    file = open_records(path)
    assert isinstance(file.records, ColumnRecords)
    return file, file.records


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns or raises, as something that can be compared."""
    try:
        found = call()
    except UsageError as error:
        return str(error)
    if isinstance(found, Scored):
        named = None if found.group is None else tuple(found.group)
        counts = (found.n_records, found.n_unmeasured, found.n_unlabelled)
        return tuple(found.ids), found.uncertainty.tolist(), found.error.tolist(), named, counts
    return found


def ids(records: Sequence[Record]) -> list[str]:
    return [record.id for record in records]


def assert_same(path: Path, key: str) -> None:
    """Everything that a fit reads, by columns and by records."""
    plain = read_records(path)
    file, records = in_columns(path)
    assert (file.header, file.torn, len(records)) == (plain.header, plain.torn, len(plain.records))
    assert list(records) == list(plain.records)
    assert list(records.ids) == ids(plain.records)
    assert outcome(lambda: arrays(records, key)) == outcome(lambda: arrays(plain.records, key))
    assert records_fingerprint(records) == records_fingerprint(plain.records)
    assert waiting_of(records, file.header).tolist() == [waits_for_label(one, file.header) for one in plain.records]
    assert outcome(lambda: refuse_contradictions(records)) == outcome(lambda: refuse_contradictions(plain.records))
    assert records.both_ways()[1] == len(contradictions(plain.records))
    for rule in ("exact", "tool_call"):
        assert structured_advice(records, rule) == structured_advice(plain.records, rule)
    assert suspicious(records, key) == suspicious(plain.records, key)
    for groups in ("category", "cluster"):
        for test_fraction in (0.3, 0.5):
            cut = lambda some: [ids(part) for part in split(some, test_fraction=test_fraction, groups=groups)]  # noqa
            assert outcome(lambda: cut(records)) == outcome(lambda: cut(plain.records))
    assert outcome(lambda: ids(one_per_cluster(records))) == outcome(lambda: ids(one_per_cluster(plain.records)))


def content(file: RecordFile, key: str, **asked: Any) -> Any:
    artifact = fit_artifact(file, estimator=key, alpha=0.2, **asked)
    return {name: value for name, value in artifact.content.items() if name != "created"}


def test_a_fit_is_that_of_the_records(records_path: Path) -> None:
    assert_same(records_path, KEY)
    plain, (file, _) = read_records(records_path), in_columns(records_path)
    for rule in ("acrc", "certified"):
        assert content(file, KEY, rule=rule) == content(plain, KEY, rule=rule)
    part, rest = split(file.records, test_fraction=0.4)
    ours, theirs = split(plain.records, test_fraction=0.4)
    assert content(file, KEY, part=part) == content(plain, KEY, part=ours)
    artifact = fit_artifact(plain, estimator=KEY, alpha=0.2, part=ours)
    assert held_out(artifact, rest, KEY) == held_out(artifact, theirs, KEY)
