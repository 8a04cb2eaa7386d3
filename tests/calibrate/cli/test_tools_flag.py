"""`--tools`: what was offered while collecting is in the records, the plan and so in the artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.cli.frame.settings import CollectSettings
from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from guardrail import UsageError
from guardrail.bindings import bindings_for
from guardrail.testing import ScriptedChat
from guardrail.types import SamplingPlan

QUESTIONS = [Question(id=str(i), question=f"{i}?", references=("x",)) for i in range(3)]


def look_up(city: str) -> str:
    """Look a city up."""
    return city


def plan(tools: Path | None) -> SamplingPlan:
    return CollectSettings(n=2, max_tokens=8, tools=tools).plan(QUESTIONS)


def test_tools_are_in_the_records_and_another_collection_without_them_is_refused(tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(bindings_for([look_up]).model_dump_json())
    model, path = ScriptedChat(default=["a", "b", "c"]), tmp_path / "records.jsonl"
    collect_records(QUESTIONS, model, plan(tools), path)
    assert read_records(path).header.plan.bindings == bindings_for([look_up])
    with pytest.raises(UsageError):
        collect_records(QUESTIONS, model, plan(None), path)
