"""docs/estimators-reference.md has a row for every estimator that agrees with its spec, and its blocks run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from guardrail.sampling import follow_ups
from guardrail.uncertainty import list_estimators, make_estimator

PAGE = (Path(__file__).parents[3] / "docs" / "estimators-reference.md").read_text(encoding="utf-8")
CELLS = re.compile(r"(?<!\\)\|")


def rows() -> dict[str, list[str]]:
    cells_by_name = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in CELLS.split(line)[1:-1]]
        if len(cells) == 6 and cells[0].startswith("`"):
            assert cells[0] not in cells_by_name
            cells_by_name[cells[0].strip("`")] = cells
    return cells_by_name


def test_every_estimator_has_one_row() -> None:
    assert tuple(sorted(rows())) == list_estimators()


@pytest.mark.parametrize("name", list_estimators())
def test_a_row_agrees_with_the_spec(name: str) -> None:
    _, _, needs, scale, source, _ = rows()[name]
    spec, declared = make_estimator(name).spec, make_estimator(name).needs
    assert scale.startswith(f"{spec.unit}, ")
    assert source
    expected = {
        "samples": declared.samples,
        "logprobs": declared.logprobs,
        "options": declared.options,
        "judge": declared.judge,
        "similarity": declared.similarity or declared.likeness or declared.relevance is not None,
        "entailment": declared.entailment,
        "follow-up": declared.follow_up is not None,
    }
    assert set(needs.split(", ")) == {word for word, needed in expected.items() if needed}


def test_every_follow_up_has_its_cost() -> None:
    listed = re.findall(r"^\|`(\w+)`\|[^|]+\|[^|]+\|$", PAGE, flags=re.MULTILINE)
    assert sorted(listed) == sorted(follow_ups.FOLLOW_UPS)


def test_the_blocks_run(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})
    printed = capsys.readouterr().out
    assert "nats True" in printed
    assert float(printed.splitlines()[-1]) == pytest.approx(0.15)
