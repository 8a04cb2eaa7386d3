"""docs/scores.md: its commands run as they stand, and its metric is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def test_a_metric_in_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published package runs in tests/providers; here a stand-in with its names."""
    blocks = BLOCK.findall((ROOT / "docs" / "scores.md").read_text(encoding="utf-8"))
    page: dict[str, Any] = {}
    exec(next(text for language, title, text in blocks if language == "python" and not title), page)
    cases = ModuleType("deepeval.test_case")
    vars(cases)["LLMTestCase"] = SimpleNamespace
    monkeypatch.setitem(sys.modules, "deepeval.test_case", cases)

    class Metric:
        def measure(self, case: Any, _show_indicator: bool) -> float:
            assert (case.input, case.actual_output, case.retrieval_context) == ("q?", "a", [])
            return 0.75

    own = page["measured_by"](Metric, "1")
    model = ScriptedChat(default=["a"])
    guard = Guardrail(model=model, artifact=make_artifact(model, estimator=own.estimator), using={"scorer": own})
    assert guard.assess("q?").uncertainty.value == 0.25
