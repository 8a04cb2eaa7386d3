"""Judges by name, and what makes two of them the same."""

from __future__ import annotations

import pytest

from guardrail.errors import UsageError
from guardrail.judges import (
    JudgeSpec,
    list_judges,
    make_judge,
)


def test_judges_by_name() -> None:
    assert {"exact", "numeric", "text", "tool_call"} <= set(list_judges())
    with pytest.raises(UsageError, match="no judge named 'oracle'"):
        make_judge("oracle")


def test_a_pinned_model_may_lie_elsewhere() -> None:
    """A revision hash names the files, so the same judge loads from another folder; an unpinned path must agree."""

    def spec(model: str, revision: str | None, threshold: float = 0.5) -> JudgeSpec:
        return JudgeSpec(name="nli", version=1, params={"model": model, "revision": revision, "threshold": threshold})

    assert spec("/a", "sha256:1") == spec("/b", "sha256:1")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:2")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:1", threshold=0.6)
    assert spec("/a", "main") != spec("/b", "main")
    assert spec("/a", None) != spec("/b", None)
