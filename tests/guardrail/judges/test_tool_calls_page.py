"""The Python block of docs/tool-calls.md runs, and the figures of docs/results.md are what the benchmark prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from guardrail.judges import canonical_calls
from guardrail.types import ToolCall

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "tool-calls.md").read_text(encoding="utf-8")
RESULTS = (DOCS / "results.md").read_text(encoding="utf-8")
DATA = Path(__file__).parents[4] / "shared" / "data" / "intercode-sql-agents.jsonl"


def test_the_block_runs() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"run_query": lambda call: call.arguments["query"].upper()}
    exec(block, names)
    a, b = (
        canonical_calls([ToolCall(name="transfer", arguments={"to": "bob", "amount": amount, "memo": memo})])
        for amount, memo in (("5.00", "rent"), (5, "for rent"))
    )
    assert names["declared"].equivalent("", [(a, b)]) == [True]
    lower, upper = (canonical_calls([ToolCall(name="execute_sql", arguments={"query": q})]) for q in ("a", "A"))
    assert names["observed"].equivalent("", [(lower, upper)]) == [True]


@pytest.mark.skipif(not DATA.exists(), reason="the shared data are not here")
def test_the_scores_behind_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.tool_calls import ranked, read, scores

    questions = read(DATA)
    assert len(questions) == 1034
    import numpy as np

    wrong = np.array([question.wrong for question in questions])
    u = scores(questions, "primary_disagreement", "observation")
    # Independent: share of the other runs whose result differs from the primary's.
    expected = [
        np.nan
        if q.drawn.primary is None or len(q.drawn.samples) < 5
        else np.mean([q.observations[text(s)] != q.observations[text(q.drawn.primary)] for s in q.drawn.samples])
        for q in questions
    ]
    same = np.isclose(u, expected, equal_nan=True)
    assert same.mean() > 0.99  # white space around a result aside
    value, low, high = ranked(u, wrong)
    assert f"{value:.3f} ({low:.3f} to {high:.3f})" in RESULTS


def text(sample: Any) -> str:
    return canonical_calls(sample.tool_calls)
