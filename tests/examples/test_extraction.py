"""The example that extracts fields, small and end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.screen import CONSOLE
from examples.extraction.__main__ import run, show
from examples.extraction.invoices import invoices
from examples.extraction.reader import read
from guardrail import CalibrationArtifact
from guardrail.plain_json import sha256_hex
from guardrail.review import ReviewStore

pytestmark = pytest.mark.slow


def test_fields_are_given_out_decided_and_labelled(tmp_path: Path) -> None:
    result = run(tmp_path, n=200, new=80)
    assert result.artifact.threshold is not None
    # The promise is about calibrations; this one is fixed by its seed, and twice alpha would be a defect.
    assert result.kept_wrong <= 0.1 * result.kept
    assert result.kept - result.kept_wrong > 1.5 * result.whole_right
    # The labels of the second fit are the decisions about audited invoices, and none about held-back fields alone.
    audited = [record for record in (*result.learned.file.records, *result.learned.test)]
    assert 20 <= len(audited) <= 60
    assert result.learned.artifact.calibration.n == len(result.learned.file.records)
    truth = {each.question: json.loads(each.references[0]) for each in invoices(80, seed=2, prefix="new")}
    for record in audited:
        assert record.items is not None
        assert record.item_labels is not None
        for item, label in zip(record.items, record.item_labels.right, strict=True):
            value = None if item.absent else json.loads(item.text)
            assert label == (truth[record.question].get(item.path[1:]) == value)
    assert CalibrationArtifact.load(tmp_path / "artifact.json") == result.artifact
    assert result.decided > 0
    with ReviewStore(tmp_path / "reviews.db") as store:
        items = store.items(["decided"], limit=1000)
        assert sum(len(item.decision.items) for item in items if item.decision and item.content.kind == "answer") == (
            result.decided
        )
        # Another run decides about the same invoices: the request is named by its document, not at random.
        assert {item.key.removeprefix("audit:") for item in items} <= {sha256_hex(question) for question in truth}
    with CONSOLE.capture() as screen:
        show(result)
    lines = screen.get().splitlines()
    assert "without a gate" in screen.get()
    assert CONSOLE.width <= 80  # on a wider terminal, too
    assert max(map(len, lines)) <= 80


def test_the_reader_errs_by_field_and_never_sees_the_reference() -> None:
    question = invoices(1, seed=5, prefix="x")[0]
    fields = read(question.question, None)
    assert all(str(value).rstrip("0") in question.question for value in fields.values())


def test_a_script_that_never_closes_the_endpoint_ends() -> None:
    script = (
        "from contextlib import ExitStack\n"
        "from examples.extraction.reader import serving\n"
        "stack = ExitStack()\n"
        "print(stack.enter_context(serving()))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("http://127.0.0.1:")
