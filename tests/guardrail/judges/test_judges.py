"""Normalisation and lexical judges, on cases worked out by hand."""

from __future__ import annotations

import pytest

from guardrail.errors import UsageError
from guardrail.judges import (
    ExactJudge,
    JudgeSpec,
    list_entailments,
    list_judges,
    make_judge,
    normalise,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  PARIS ", "paris"),
        ("1,000,000 people", "1000000 people"),
        ("3.5", "3.5"),
        ("-5.0", "-5"),
        ("it isn't", "it is not"),
        ("can't", "cannot"),
        ("A", "A"),  # an answer, not an article
        ("\uff21\uff22", "ab"),  # full-width letters
        ("\U0001f600", "\U0001f600"),
        ("", ""),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


def test_a_decimal_point_is_not_punctuation() -> None:
    assert normalise("3.5") != normalise("35")
    assert normalise("1,5") != normalise("15")  # only thousands separators are dropped


def test_exact_judge() -> None:
    assert ExactJudge().equivalent("q", [("The cat!", "cat"), ("cat", "cats")]) == [True, False]


def test_judges_by_name() -> None:
    assert {"exact", "numeric", "text", "tool_call"} <= set(list_judges())
    assert "nli" in list_entailments()
    assert make_judge("text", threshold=0.7).spec.params == {"threshold": 0.7}
    with pytest.raises(UsageError, match="no judge named 'oracle'"):
        make_judge("oracle")
    with pytest.raises(UsageError, match=r"threshold must be in \(0, 1\], got 50"):
        make_judge("text", threshold=50)


def test_a_pinned_model_may_lie_elsewhere() -> None:
    """A revision hash names the files, so the same judge loads from another folder; an unpinned path must agree."""

    def spec(model: str, revision: str | None, threshold: float = 0.5) -> JudgeSpec:
        return JudgeSpec(name="nli", version=1, params={"model": model, "revision": revision, "threshold": threshold})

    assert spec("/a", "sha256:1") == spec("/b", "sha256:1")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:2")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:1", threshold=0.6)
    assert spec("/a", "main") != spec("/b", "main")
    assert spec("/a", None) != spec("/b", None)
