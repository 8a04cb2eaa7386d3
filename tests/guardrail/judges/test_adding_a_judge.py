"""Adding a judge as CONTRIBUTING.md shows: a class and one line; what it states about itself is read off it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate.cli import app
from calibrate.data.records import read_records, write_records
from calibrate.scoring.names import estimator_key, parse_estimator
from guardrail import make_estimator, make_judge, plan_for
from guardrail.errors import UsageError
from guardrail.judges import EqualityJudge, ExactJudge, Item, Judge, JudgeSpec, list_judges
from guardrail.judges.registry import JUDGES
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, ToolCall, canonical_calls
from guardrail.uncertainty import cluster, from_spec, measure

# -- What a contributor writes -----------------------------------------------------------------------------------------


class FirstLetterJudge(EqualityJudge):
    """Two answers are the same iff they begin with the same letter."""

    is_slow = False
    spec = JudgeSpec(name="first_letter", version=1, params={})

    def identity(self, text: str) -> str:
        return text[:1].casefold()


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in the registry, for one test."""
    monkeypatch.setitem(JUDGES, "first_letter", FirstLetterJudge)


# -- What follows from it ----------------------------------------------------------------------------------------------

NAME = "discrete_semantic_entropy"
CONTRIBUTING = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text(encoding="utf-8")
MODEL = ScriptedChat(script={"spread?": ["x", "apple", "berry", "cherry", "date"]})


def drawn(*texts: str) -> SampleSet:
    return SampleSet(question="q", primary=Sample(text="x"), samples=tuple(Sample(text=text) for text in texts))


def test_the_page_shows_this_judge() -> None:
    assert inspect.getsource(FirstLetterJudge) in CONTRIBUTING


def test_it_is_unknown_before() -> None:
    assert "first_letter" not in list_judges()
    with pytest.raises(UsageError, match="no judge named 'first_letter'"):
        make_judge("first_letter")


@pytest.mark.usefixtures("added")
def test_it_is_made_by_name_and_from_an_artifact() -> None:
    assert "first_letter" in list_judges()
    estimator = make_estimator("self_consistency", judge=make_judge("first_letter"))
    assert from_spec(estimator.spec).spec == estimator.spec
    plan = plan_for([estimator], n=3)
    # "Paris" and "Prague" are one meaning of two: 1 - 2/3.
    assert measure(drawn("Paris", "Prague", "Rome"), estimator, plan).value == pytest.approx(1 / 3)
    with pytest.raises(UsageError, match="does not take"):
        make_judge("first_letter", threshold=0.5)


@pytest.mark.usefixtures("added")
def test_calibrate_scores_with_it_by_name(tmp_path: Path) -> None:
    for key in ("num_sets:first_letter", "degree:from_judge(first_letter)"):
        assert estimator_key(parse_estimator(key)) == key
    path = tmp_path / "records.jsonl"
    write_records(path, header_of(4, 3), made_records(4, 3))
    arguments = ["score", str(path), "-s", "num_sets:first_letter", "-s", "degree:from_judge(first_letter)"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "400"})
    assert result.exit_code == 0, result.output
    assert set(read_records(path).header.estimators) == {"num_sets:first_letter", "degree:from_judge(first_letter)"}
    assert not list(tmp_path.glob("*.sqlite"))  # it states that it is fast, so its verdicts are not cached


# -- What a judge may leave out ----------------------------------------------------------------------------------------


class Plain(Judge):
    """Only what a judge must have, one question at a time."""

    spec = JudgeSpec(name="plain", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return [a == b for a, b in pairs]


class Quiet(Judge):
    """Only what a judge must have, in batches."""

    spec = JudgeSpec(name="quiet", version=1, params={})

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        return [a == b for _, a, b in items]


@pytest.mark.parametrize("judge", [Plain(), Quiet()])
def test_a_judge_that_states_nothing_is_slow(judge: Judge) -> None:
    estimator = make_estimator(NAME, judge=judge)
    assert estimator.is_slow
    clusters = cluster("q", ["A b", "A  b", "c"], judge)
    assert clusters is not None
    assert clusters.sizes == (2, 1)  # strings that differ in white space are one
    assert judge.equivalent("q", [("a", "a"), ("a", "b")]) == [True, False]
    assert judge.compare([("q", "a", "a"), ("r", "a", "b")]) == [True, False]


def test_a_judge_without_the_base_class_is_refused_where_it_is_given() -> None:
    """Otherwise it would fail at the first pair of answers, in the middle of a run."""

    class Other:
        spec = JudgeSpec(name="other", version=1, params={})

    for argument in ({"judge": Other()}, {"similarity": Other()}, {"similarity": ExactJudge()}):
        with pytest.raises(UsageError, match=r"the base class of .* must be guardrail.judges.*, got a (Other|Exact)"):
            make_estimator("graded_disagreement", **argument)


def test_a_judge_that_knows_tool_calls_is_asked_about_them() -> None:
    class All(Plain):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [True] * len(pairs)

    class Knows(All):
        judges_tool_calls = True

    calls = [canonical_calls([ToolCall(name="f", arguments={"x": x})]) for x in (1, 2)]
    for judge, sizes in ((All(), (1, 1)), (Knows(), (2,))):
        clusters = cluster("q", calls, judge)
        assert clusters is not None
        assert clusters.sizes == sizes


def test_a_pinned_model_may_lie_elsewhere() -> None:
    """A revision hash names the files, so the same judge loads from another folder; an unpinned path must agree."""

    def spec(model: str, revision: str | None, threshold: float = 0.5) -> JudgeSpec:
        return JudgeSpec(name="nli", version=1, params={"model": model, "revision": revision, "threshold": threshold})

    assert spec("/a", "sha256:1") == spec("/b", "sha256:1")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:2")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:1", threshold=0.6)
    assert spec("/a", "main") != spec("/b", "main")
    assert spec("/a", None) != spec("/b", None)
