"""Tool calls judged by what they give back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.judges import ExactJudge, canonical_calls, from_judge
from guardrail.judges.observation import ObservationJudge, ObservationSimilarity
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from guardrail.uncertainty import cluster, from_spec, make_estimator, measure

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
    # graded by the words that the two messages share
    (alike,) = ObservationSimilarity(judge(Database(), errors=True)).similarity("q", pairs[:1])
    assert alike is not None
    assert 0 < alike < 1


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
    assert measure(drawn(queries), make_estimator("num_sets", judge=judge(Database())), plan).value == 2
    graded = make_estimator("eigenvalue", similarity=from_judge(judge(Database())))
    assert measure(drawn(queries), graded, plan).value == 2
    unsafe = measure(drawn(queries, "delete"), make_estimator("num_sets", judge=judge(Database())), plan)
    assert unsafe.reason is Unmeasured.JUDGE_FAILED

    class Agreeable(ExactJudge):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [True] * len(pairs)

    # Any other judge never sees calls: equal only when their JSON is.
    assert measure(drawn(queries), make_estimator("num_sets", judge=Agreeable()), plan).value == 3


def test_equal_calls_are_one_without_being_run() -> None:
    database = Database()
    clusters = cluster("q", [text("SELECT a", tool="delete")] * 3, judge(database))
    assert clusters is not None
    assert (clusters.sizes, database.ran) == ((3,), [])


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


# -- how alike observations are


def test_observations_are_compared_as_words() -> None:
    rated = ObservationSimilarity(judge(Database()))
    pairs = [
        (text("SELECT a"), text("SELECT b")),  # the same observation
        (text("SELECT a"), text("SELECT c")),  # the same words in another order: not the same, but wholly alike
        (text("SELECT x y"), "x"),  # a call and a text, whatever words the call is written in
        ("one two", "two three"),  # two texts
        (text("SELECT a"), text("SELECT d")),  # raises: nothing was observed
    ]
    assert rated.similarity("q", pairs) == [1.0, 1.0, 0.0, 1 / 3, None]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("red\ngreen", "green\nblue", 1 / 3),  # line ends are no letters
        ([["Ann", 3], ["Bob", 4]], [["Ann", 3], ["Cid", 4]], 3 / 5),
        ({"n": 3, "of": "x"}, {"of": "y", "n": 3}, 3 / 5),
        ({"ok": True}, {"ok": None}, 1 / 3),
    ],
)
def test_values_of_any_shape_are_words(one: object, other: object, expected: float) -> None:
    observations = {text("1"): one, text("2"): other}
    rated = ObservationSimilarity(ObservationJudge(observations=observations, version="1"))
    assert rated.similarity("q", [(text("1"), text("2"))]) == [pytest.approx(expected)]


def test_votes_by_observation_are_refined_by_observation() -> None:
    """Two of three runs return other rows than the proposal: one has a row in common, and so counts less."""
    observations = {text("p"): ["x", "y"], text("q"): ["y", "x"], text("r"): ["z"], text("s"): ["x", "y"]}
    by_result = ObservationJudge(observations=observations, version="1")
    estimator = make_estimator("graded_disagreement", judge=by_result, similarity=ObservationSimilarity(by_result))
    drawn = SampleSet(
        question="q",
        primary=Sample(text="", tool_calls=(call("p"),)),
        samples=tuple(Sample(text="", tool_calls=(call(query),)) for query in ("q", "r", "s")),
    )
    assert measure(drawn, estimator, SamplingPlan(n=3)).value == pytest.approx((2 + 1 / 3) / 4)


def test_an_artifact_names_both_parts_and_asks_for_the_object() -> None:
    by_result = ObservationJudge(observations={}, version="7")
    rated = ObservationSimilarity(by_result)
    assert rated.spec.params["judge"]["params"]["version"] == "7"
    assert rated.spec.params["similarity"]["name"] == "jaccard"
    spec = make_estimator("graded_disagreement", judge=by_result, similarity=rated).spec
    with pytest.raises(ArtifactMismatchError, match="'similarity': \\.\\.\\."):
        from_spec(spec, judge=by_result)
    assert from_spec(spec, judge=by_result, similarity=rated).spec == spec
