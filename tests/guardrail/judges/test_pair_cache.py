"""Verdicts on disk: found again by judge, question and pair, under threads and processes; never an unmeasured one."""

from __future__ import annotations

import multiprocessing
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from guardrail.errors import UsageError
from guardrail.judges import (
    Entailment,
    EntailmentScores,
    Item,
    Judge,
    JudgeSpec,
    Similarity,
    ToolCallJudge,
)
from guardrail.judges.cache import PairCache, cached


class Slow:
    """A judge, a similarity and an entailment model that count what they are asked."""

    def __init__(self, revision: str = "1", answer: object = True) -> None:
        self.revision = revision
        self.answer = answer
        self.asked: list[Item] = []

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="slow", version=1, params={"revision": self.revision})


class SlowJudge(Slow, Judge):
    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.asked += [(question, a, b) for a, b in pairs]
        return [self.answer] * len(pairs)  # type: ignore[list-item]


class SlowSimilarity(Slow, Similarity):
    def similarity(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[float | None]:
        self.asked += [(question, a, b) for a, b in pairs]
        return [self.answer] * len(pairs)  # type: ignore[list-item]


class SlowEntailment(Slow, Entailment):
    def compare(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        self.asked += items
        return [self.answer] * len(items)  # type: ignore[list-item]


@pytest.fixture
def cache(tmp_path: Path) -> PairCache:
    return PairCache(tmp_path / "new" / "pairs.sqlite")


def test_a_verdict_is_asked_once_and_found_by_another_process(cache: PairCache) -> None:
    judge = SlowJudge()
    assert cached(judge, cache).equivalent("q", [("a", "b"), ("a", "b")]) == [True, True]
    again = SlowJudge(answer=False)
    assert cached(again, PairCache(cache.path)).equivalent("q", [("b", "a")]) == [True]  # whichever comes first
    assert (judge.asked, again.asked) == ([("q", "a", "b")], [])


@pytest.mark.parametrize(
    ("revision", "question", "pair"), [("2", "q", ("a", "b")), ("1", "other", ("a", "b")), ("1", "q", ("a", "c"))]
)
def test_another_revision_question_or_pair_is_asked(
    cache: PairCache, revision: str, question: str, pair: tuple[str, str]
) -> None:
    cached(SlowJudge(), cache).equivalent("q", [("a", "b")])
    other = SlowJudge(revision, answer=False)
    assert cached(other, cache).equivalent(question, [pair]) == [False]
    assert len(other.asked) == 1


def test_kinds_do_not_mix(cache: PairCache) -> None:
    cached(SlowJudge(), cache).equivalent("q", [("a", "b")])
    similarity = SlowSimilarity(answer=0.25)
    assert cached(similarity, cache).similarity("q", [("a", "b"), ("b", "a")]) == [0.25, 0.25]
    assert len(similarity.asked) == 1


def test_entailment_is_directed(cache: PairCache) -> None:
    model = SlowEntailment(answer=EntailmentScores(0.5, None, 0.25))
    there, back = cached(model, cache).compare([("q", "a", "b"), ("q", "b", "a")])
    assert there == back == EntailmentScores(0.5, None, 0.25)
    assert len(model.asked) == 2
    assert cached(model, cache).compare([("q", "b", "a")]) == [there]
    assert len(model.asked) == 2


@pytest.mark.parametrize("answer", [None, "yes", 1])
def test_what_is_no_verdict_is_not_kept(cache: PairCache, answer: object) -> None:
    cached(SlowJudge(answer=answer), cache).equivalent("q", [("a", "b")])
    assert len(cache) == 0
    assert cached(SlowJudge(), cache).equivalent("q", [("a", "b")]) == [True]


@pytest.mark.parametrize("answer", [None, float("nan"), 1.5])
def test_what_is_no_similarity_is_not_kept(cache: PairCache, answer: object) -> None:
    cached(SlowSimilarity(answer=answer), cache).similarity("q", [("a", "b")])
    cached(SlowEntailment(answer=EntailmentScores(0.5, 0.2, float("nan"))), cache).compare([("q", "a", "b")])
    assert len(cache) == 0


def test_spec_and_identity_are_those_of_the_judge(cache: PairCache) -> None:
    calls = ToolCallJudge(numbers=True)
    wrapped = cached(calls, cache)
    assert (wrapped.spec, wrapped.judges_tool_calls, wrapped.is_slow) == (calls.spec, True, False)
    slow = cached(SlowJudge(), cache)
    assert (slow.identity(" The 50%"), slow.judges_tool_calls, slow.is_slow) == ("The 50%", False, True)
    with pytest.raises(UsageError, match="str is neither a judge nor"):
        cached("exact", cache)  # type: ignore[type-var]


def test_processes_share_a_cache(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from guardrail.judges.cache import PairCache\n"
        "cache = PairCache(sys.argv[1])\n"
        "for i in range(50): cache.store({f'{sys.argv[2]}-{i}'.encode(): True, b'shared': True})\n"
    )
    path = tmp_path / "pairs.sqlite"
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), str(i)]) for i in range(2)]
    assert [process.wait() for process in running] == [0] * 2
    assert len(PairCache(path)) == 2 * 50 + 1


def test_verdicts_before_a_failure_are_kept(cache: PairCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardrail.judges.cache.SLICE", 2)

    class Failing(SlowJudge):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            if ("a", "b4") in pairs:
                raise RuntimeError("killed")
            return super().equivalent(question, pairs)

    with pytest.raises(RuntimeError, match="killed"):
        cached(Failing(), cache).equivalent("q", [("a", f"b{i}") for i in range(6)])
    assert len(cache) == 4


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "records.jsonl"
    text.write_text("not a database, and long enough to be read as one " * 5)
    with pytest.raises(UsageError, match=rf"the pair cache {text} cannot be used .*name another file"):
        PairCache(text)
    assert text.read_text().startswith("not a database")
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()
    with pytest.raises(UsageError, match="something else"):
        PairCache(other)
    for place in (tmp_path, text / "pairs", text / "x" / "pairs"):  # a folder, and places where nothing can be made
        with pytest.raises(UsageError, match=rf"the pair cache {place} cannot be used .*name another file"):
            PairCache(place)


def test_a_cache_that_turns_read_only_is_named(cache: PairCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store({b"key": True})
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **rest: connect(f"file:{path}?mode=ro", uri=True, **rest))
    assert cache.find([b"key"]) == {b"key": True}
    with pytest.raises(UsageError, match=rf"the pair cache {cache.path} cannot be used .*readonly"):
        cached(SlowJudge(), cache).equivalent("q", [("a", "b")])


def test_a_broken_cache_is_named(cache: PairCache) -> None:
    cache.store({f"key {i}".encode(): True for i in range(2000)})
    content = bytearray(cache.path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    cache.path.write_bytes(bytes(content))
    with pytest.raises(UsageError, match=rf"{cache.path} cannot be used .*name another file"):
        cache.find([b"key 1"])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_its_verdicts(cache: PairCache) -> None:
    """A connection carried across a fork would make the child believe that it holds locks, and lose what it writes."""
    cache.store({b"parent": 0.25})
    child = multiprocessing.get_context("fork").Process(target=cache.store, args=({b"child": 0.5},))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert cache.find([b"parent", b"child"]) == {b"parent": 0.25, b"child": 0.5}
