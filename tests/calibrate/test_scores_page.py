"""docs/scores.md: its commands run as they stand, and its wrappers wrap."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guardrail import Guardrail
from guardrail.artifact import CalibrationArtifact
from guardrail.testing import ScriptedChat, make_artifact
from tests.calibrate.test_docs import BLOCK, ROOT, run_page


def test_the_commands_run_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"question": f"{i}?", "references": [str(i) if i >= 20 else "no"]} for i in range(200)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    try:
        run_page("scores.md")
    finally:
        sys.modules.pop("my_scores", None)
    assert capsys.readouterr().out.splitlines()[-1] == "2"
    assert CalibrationArtifact.load("scored.json").estimator.name == "score:verified@1"


def test_an_evaluator_and_a_classifier_in_their_lines(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "scores.md").read_text(encoding="utf-8"))
    page: dict[str, Any] = {}
    exec(next(text for language, title, text in blocks if language == "python" and not title), page)
    ids = tmp_path / "ids.txt"
    ids.write_text("an id\n")

    class Classifier:
        def predict_proba(self, rows: list[list[int]]) -> Any:
            return np.array([[1 - len(row) / 10, len(row) / 10] for row in rows])

    evaluated = page["wrapped"](lambda inputs, outputs: {"score": float(inputs == "q?" and outputs == "a")}, "1")
    classified = page["classified"](Classifier(), lambda question, answer: [1, 2], "1", ids)
    model = ScriptedChat(default=["a"])
    for own, value in ((evaluated, 0.0), (classified, 0.2)):
        guard = Guardrail(model=model, artifact=make_artifact(model, estimator=own.estimator), scorer=own)
        assert guard.assess("q?").uncertainty.value == pytest.approx(value)
