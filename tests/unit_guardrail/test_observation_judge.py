"""Tool calls judged by what they give back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from guardrail.errors import UsageError
from guardrail.judges import ExactJudge, canonical_calls, from_judge
from guardrail.judges.cache import PairCache, cached
from guardrail.judges.observation import ObservationJudge
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from guardrail.uncertainty import cluster, make, measure

ROWS = {"SELECT a": [["x"], ["y"]], "SELECT b": (("x",), ("y",)), "SELECT c": [["y"], ["x"]]}


def call(query: str, tool: str = "sql") -> ToolCall:
    return ToolCall(name=tool, arguments={"query": query})


def text(*queries: str, tool: str = "sql") -> str:
    return canonical_calls([call(query, tool) for query in queries])


class Database:
    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, call: ToolCall) -> Any:
        assert call.name == "sql"
        query = call.arguments["query"]
        self.ran.append(query)
        if query not in ROWS:
            raise LookupError(query)
        return ROWS[query]


def judge(database: Database, **options: Any) -> ObservationJudge:
    return ObservationJudge(database, **{"tools": {"sql"}, "version": "db-1", **options})


def test_two_ways_to_ask_are_the_same() -> None:
    database = Database()
    pairs = [(text("SELECT a"), text("SELECT b")), (text("SELECT a"), text("SELECT c"))]
    assert judge(database).equivalent("q", pairs) == [True, False]
    assert database.ran == ["SELECT a", "SELECT b", "SELECT c"]  # each once


def test_rows_in_any_order_where_that_is_declared() -> None:
    asked = judge(Database(), canonical=sorted).equivalent("q", [(text("SELECT a"), text("SELECT c"))])
    assert asked == [True]


def test_a_call_that_is_not_declared_safe_is_never_run() -> None:
    database = Database()
    pairs = [(text("SELECT a"), text("SELECT a", tool="delete")), (text("SELECT a", tool="delete"), text("SELECT b"))]
    assert judge(database).equivalent("q", pairs) == [None, None]
    assert database.ran == ["SELECT a", "SELECT b"]


def test_errors_are_observations_only_where_that_is_declared() -> None:
    pairs = [(text("DROP 1"), text("DROP 2")), (text("DROP 1"), text("SELECT a"))]
    assert judge(Database()).equivalent("q", pairs) == [None, None]
    assert judge(Database(), errors=True).equivalent("q", pairs) == [False, False]  # the messages differ

    def refused(call: ToolCall) -> Any:
        raise PermissionError("no")

    same = ObservationJudge(refused, tools={"sql"}, version="1", errors=True)
    assert same.equivalent("q", pairs[:1]) == [True]


@pytest.mark.parametrize("observation", [object(), float("nan"), {1, 2}])
def test_what_cannot_be_compared_is_unmeasured(observation: object) -> None:
    odd = ObservationJudge(lambda call: observation, tools={"sql"}, version="1")
    assert odd.equivalent("q", [(text("SELECT a"), text("SELECT b"))]) == [None]


def test_recorded_observations_take_the_place_of_running() -> None:
    recorded = {text("SELECT a"): "rows ", text("SELECT b"): "rows", text("SELECT a", "SELECT b"): "both"}
    offline = ObservationJudge(observations=recorded, tools={"sql"}, version="db-1")
    pairs = [
        (text("SELECT a"), text("SELECT b")),
        (text("SELECT a"), text("SELECT z")),
        (text("SELECT a", "SELECT b"), text("SELECT a")),
    ]
    assert offline.equivalent("q", pairs) == [True, None, False]
    assert offline.spec == judge(Database()).spec  # calibrated offline, served live
    assert offline.spec != judge(Database(), version="db-2").spec


def test_several_calls_are_compared_in_order() -> None:
    pairs = [
        (text("SELECT a", "SELECT c"), text("SELECT b", "SELECT c")),
        (text("SELECT a", "SELECT c"), text("SELECT c", "SELECT a")),
    ]
    assert judge(Database()).equivalent("q", pairs) == [True, False]


def test_texts() -> None:
    spelled = '{"name": "sql", "arguments": {"query": "SELECT a"}}'
    pairs = [("Paris", "Rome"), ("Paris", text("SELECT a")), (spelled, text("SELECT b"))]
    assert judge(Database()).equivalent("q", pairs) == [False, False, True]


def drawn(queries: Sequence[str], tool: str = "sql") -> SampleSet:
    samples = tuple(Sample(text="", tool_calls=(call(query, tool),)) for query in queries)
    return SampleSet(question="q", primary=samples[0], samples=samples)


def test_inside_a_clustering_only_this_judge_is_asked_about_calls() -> None:
    queries, plan = ["SELECT a", "SELECT b", "SELECT c"], SamplingPlan(n=3)
    assert measure(drawn(queries), make("num_sets", judge=judge(Database())), plan).value == 2
    graded = make("eigenvalue", similarity=from_judge(judge(Database())))
    assert measure(drawn(queries), graded, plan).value == 2
    unsafe = measure(drawn(queries, "delete"), make("num_sets", judge=judge(Database())), plan)
    assert unsafe.reason is Unmeasured.JUDGE_FAILED

    class Agreeable(ExactJudge):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [True] * len(pairs)

    # Any other judge never sees calls: equal only when their JSON is.
    assert measure(drawn(queries), make("num_sets", judge=Agreeable()), plan).value == 3


def test_equal_calls_are_one_without_being_run() -> None:
    database = Database()
    found = cluster("q", [text("SELECT a", tool="delete")] * 3, judge(database))
    assert found is not None
    assert (found.sizes, database.ran) == ((3,), [])


def test_a_cache_knows_calls_too(tmp_path: Any) -> None:
    database = Database()
    cache = PairCache(tmp_path / "pairs.sqlite")
    for _ in range(2):
        kept = cached(judge(database), cache)
        found = cluster("q", [text("SELECT a"), text("SELECT b")], kept)
        assert found is not None
        assert found.sizes == (2,)
    assert len(database.ran) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"version": "1"}, "pass run="),
        ({"version": "1", "run": str}, "no tool is declared safe"),
        ({"version": "1", "run": str, "tools": "sql"}, "collection of names"),
    ],
)
def test_misuse(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ObservationJudge(**options)
