"""The table of label rules on a file small enough to count by hand."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.label_rules import SYSTEMS, table


def test_cells_count_agreement_and_both_errors(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    answers = [("Paris", True), ("It is Paris.", True), ("It is not Paris.", False), ("Rome", True)]
    rows = [
        {
            "id": str(i),
            "question": "What is it?",
            "references": ["Paris"],
            "answers": {system: {"text": text, "correct": correct} for system in SYSTEMS},
        }
        for i, (text, correct) in enumerate(answers)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    *_, last = table(path).splitlines()
    # exact: only the first is right, so it errs on the second and the last. stated: the third is undecided, and of the
    # other three it errs on the last.
    cells = last.split("|")[2:-1]
    assert cells[0] == "0.500/0.000/0.500"
    assert cells[3] == "0.667/0.000/0.250, 0.250"
