"""One judging pass for many questions and estimators: what is asked, how often, and who suffers when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest

from guardrail.judges import Entailment, EntailmentScores, Item, Judge, JudgeSpec, from_judge
from guardrail.types import Sample, SampleSet, SamplingPlan, ToolCall, Unmeasured
from guardrail.uncertainty import (
    Estimator,
    Evidence,
    cluster,
    make_estimator,
    measure,
    measure_stream,
)


def answers(question: str, *texts: str, primary: str = "x", logprob: float = -1.0) -> SampleSet:
    samples = tuple(
        Sample(text=text, tokens=tuple(" " + word for word in text.split()), logprobs=(logprob,) * len(text.split()))
        for text in texts
    )
    return SampleSet(question=question, primary=Sample(text=primary), samples=samples)


class Table(Judge):
    """A judge that looks pairs up, and remembers what it was asked in which batch."""

    def __init__(self, same: set[frozenset[str]] | None = None, broken: Callable[[Item], object] | None = None) -> None:
        self.same = same or set()
        self.broken = broken or (lambda item: None)
        self.batches: list[list[Item]] = []

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="table", version=1, params={})

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        self.batches.append(list(items))
        verdicts: list[bool | None] = []
        for item in items:
            trouble = self.broken(item)
            if isinstance(trouble, Exception):
                raise trouble
            verdicts.append(None if trouble == "none" else frozenset(item[1:]) in self.same)
        return verdicts

    @property
    def asked(self) -> list[Item]:
        return [item for batch in self.batches for item in batch]


def pairs_of(*pairs: tuple[str, str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in pairs}


PLAN = SamplingPlan(n=3)
measuring = import_module("guardrail.uncertainty.measure")  # the package has a function of that name
CLUSTERED = ("discrete_semantic_entropy", "num_sets", "self_consistency")


def test_all_questions_and_estimators_share_one_batch() -> None:
    made = [make_estimator(name, judge=Table()) for name in CLUSTERED]  # judges of equal specs are one judge
    list(measure_stream([answers(f"q{i}", "a1", "b1", "c1") for i in range(5)], made, PLAN))
    (batch,) = (batch for each in made if isinstance(each.judge, Table) for batch in each.judge.batches)
    assert len(batch) == 5 * 3  # u (u - 1) / 2 = 3 pairs a question, for all three estimators


def test_equal_pairs_of_equal_questions_are_asked_once_and_unordered() -> None:
    judge = Table()
    drawns = [answers("q", "a1", "b1"), answers("q", "b1", "a1"), answers("other", "a1", "b1")]
    list(measure_stream(drawns, [make_estimator("num_sets", judge=judge)], SamplingPlan(n=2)))
    assert judge.asked == [("q", "a1", "b1"), ("other", "a1", "b1")]


def test_equal_strings_cost_nothing() -> None:
    judge = Table()
    score = measure(answers("q", "New York", "New  York", " New York\n"), make_estimator("num_sets", judge=judge), PLAN)
    assert (score.value, judge.batches) == (1, [])


# -- clustering: faults that others shipped


def test_an_answer_is_claimed_once() -> None:
    # C ~ A and C ~ B but A !~ B. The Nature code gives [0, 1, 1]: B founds a cluster and claims C again.
    clusters = cluster("q", ["a1", "b1", "c1"], Table(pairs_of(("a1", "c1"), ("b1", "c1"))))
    assert clusters is not None
    assert clusters.assignment == (0, 0, 0)


class Plain(Judge):
    """A judge without a batched form, to which nothing is the same."""

    spec = JudgeSpec(name="plain", version=1, params={})

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        return [False] * len(pairs)


# -- who suffers


@pytest.mark.parametrize("trouble", ["none", RuntimeError("out of memory")])
def test_a_bad_pair_takes_down_its_own_question_only(trouble: object) -> None:
    judge = Table(broken=lambda item: trouble if item[0] == "q1" and "b1" in item else None)
    drawns = [answers(f"q{i}", "a1", "b1") for i in range(3)]
    scores = list(
        measure_stream(
            drawns, [make_estimator("num_sets", judge=judge), make_estimator("lexical_similarity")], SamplingPlan(n=2)
        )
    )
    assert [row[0].value for row in scores] == [2, None, 2]
    assert scores[1][0].reason is Unmeasured.JUDGE_FAILED
    assert "judge table" in scores[1][0].detail
    assert len(judge.batches) == (1 if trouble == "none" else 4)  # a batch that raised is asked again by question
    assert scores[1][1].value is not None  # another judge's estimators go on


def test_a_bad_text_does_not_take_down_another_set_of_the_same_question() -> None:
    judge = Table(broken=lambda item: ValueError("bad text") if "bad" in item else None)
    drawns = [answers("q", "bad", "a1", "b1"), answers("q", "a1", "b1", "c1"), answers("q", "c1", "d1", "e1")]
    scores = list(measure_stream(drawns, [make_estimator("num_sets", judge=judge)], PLAN))
    # The pair (a1, b1) was asked beside the bad one, and again for the second set, which needs it too.
    assert [row[0].value for row in scores] == [None, 3, 3]
    assert "ValueError" in scores[0][0].detail


def test_a_judge_that_always_raises_is_asked_once_a_batch_and_once_a_set() -> None:
    judge = Table(broken=lambda item: RuntimeError("down"))
    drawns = [answers(f"q{i % 2}", f"a{i}", f"b{i}", f"c{i}") for i in range(8)]
    scores = list(measure_stream(drawns, [make_estimator("num_sets", judge=judge)], PLAN))
    assert {row[0].reason for row in scores} == {Unmeasured.JUDGE_FAILED}
    assert len(judge.batches) == 1 + 8


@pytest.mark.parametrize("verdict", ["yes", 0.5, 1])
def test_what_is_no_verdict_is_unmeasured(verdict: object) -> None:
    class Odd(Plain):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return [verdict] * len(pairs)  # type: ignore[list-item]

    score = measure(answers("q", "a1", "b1"), make_estimator("num_sets", judge=Odd()), SamplingPlan(n=2))
    assert score.reason is Unmeasured.JUDGE_FAILED


def test_a_judge_that_returns_too_few_verdicts_is_unmeasured() -> None:
    class Short(Plain):
        def compare(self, items: Sequence[Item]) -> list[bool | None]:
            return [True]

    score = measure(answers("q", "a1", "b1", "c1"), make_estimator("num_sets", judge=Short()), PLAN)
    assert score.reason is Unmeasured.JUDGE_FAILED
    assert "1 answers for 3 pairs" in score.detail


def test_numpy_verdicts_are_verdicts() -> None:
    class Numpy(Plain):
        def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
            return list(np.array([True] * len(pairs)))

    assert measure(answers("q", "a1", "b1"), make_estimator("num_sets", judge=Numpy()), SamplingPlan(n=2)).value == 1


# -- bounded chunks


def test_a_stream_reads_ahead_no_further_than_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "QUESTIONS", 4)
    read = 0

    def drawns() -> object:
        nonlocal read
        for i in range(10):
            read += 1
            yield answers(f"q{i}", "a1", "b1")

    judge = Table()
    scores = measure_stream(drawns(), [make_estimator("num_sets", judge=judge)], SamplingPlan(n=2))  # type: ignore[arg-type]
    assert judge.batches == []
    next(scores)
    assert (read, len(judge.batches)) == (4, 1)
    assert len(list(scores)) == 9
    assert [len(batch) for batch in judge.batches] == [4, 4, 2]


def test_a_pass_is_full_when_it_has_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ITEMS", 5)
    judge = Table()
    list(
        measure_stream(
            [answers(f"q{i}", "a1", "b1", "c1") for i in range(4)], [make_estimator("num_sets", judge=judge)], PLAN
        )
    )
    assert [len(batch) for batch in judge.batches] == [6, 6]


# -- what formulas see


def evidence_of(estimator: Estimator, drawn: SampleSet) -> Evidence:
    received: list[Evidence] = []

    def formula(evidence: Evidence) -> float:
        received.append(evidence)
        return 0.0

    score = measure(drawn, replace(estimator, formula=formula), SamplingPlan(n=len(drawn.samples)))
    assert score.value == 0, score.detail
    return received[0]


def test_rows_say_where_each_sample_is_in_the_matrix() -> None:
    table = Table(pairs_of(("b1", "c1")))
    evidence = evidence_of(make_estimator("degree", similarity=from_judge(table)), answers("q", "c1", "a1", "b1", "a1"))
    assert evidence.matrix is not None
    assert evidence.rows is not None
    assert sorted(evidence.rows) == [0, 1, 2, 3]
    rows = list(evidence.rows)
    own = np.array(evidence.matrix)[np.ix_(rows, rows)]
    # samples c a b a: c ~ b, a = a
    np.testing.assert_array_equal(own, [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]])


def test_relevance_is_rated_once_and_in_sample_order() -> None:
    table = Table(pairs_of(("red fox", "fox")))
    evidence = evidence_of(
        make_estimator("word_sequence_entropy", similarity=from_judge(table)), answers("q", "red fox", "hen", "red fox")
    )
    assert evidence.costs == ((1.0, 1.0), (1.0,), (1.0, 1.0))
    # Without "red" it is "fox", which is alike; without "fox" it is not; a single word leaves nothing: 0, not asked.
    assert evidence.relevance == ((1.0, 0.0), (0.0,), (1.0, 0.0))
    assert sorted(item[1:] for item in table.asked) == [("fox", "red fox"), ("hen", "red fox"), ("red", "red fox")]


def test_tool_calls_have_no_pieces() -> None:
    call = Sample(text="", tool_calls=(ToolCall(name="f", arguments={}),), tokens=("t",), logprobs=(-1.0,))
    drawn = SampleSet(question="q", primary=Sample(text="x"), samples=(call, call))
    score = measure(drawn, make_estimator("sar"), SamplingPlan(n=2))
    assert score.reason is Unmeasured.NO_LOGPROBS


class Model(Entailment):
    """An entailment model that says what it is told for (premise, hypothesis), and remembers what it was asked."""

    spec = JudgeSpec(name="model", version=1, params={})

    def __init__(self, scores: dict[tuple[str, str], EntailmentScores | None]) -> None:
        self.scores = scores
        self.asked: list[Item] = []

    def compare(self, items: Sequence[Item]) -> list[EntailmentScores | None]:
        self.asked += items
        return [self.scores[a, b] for _, a, b in items]


YES, NO = EntailmentScores(0.6, 0.2, 0.2), EntailmentScores(0.1, 0.0, 0.9)


def test_contradiction_takes_the_sample_as_premise_and_the_sentence_as_hypothesis() -> None:
    model = Model({("s1", "One."): YES, ("s2", "One."): NO, ("s1", "Two."): NO, ("s2", "Two."): NO})
    drawn = answers("q", "s1", "s2", "s1", primary="One. Two.")
    evidence = evidence_of(make_estimator("selfcheck_nli", entailment=model), drawn)
    assert evidence.contradiction is not None
    # c / (c + e): .2 / .8 = .25 and .9 / 1 = .9
    assert evidence.contradiction == pytest.approx((0.25, 0.9, 0.25, 0.9, 0.9, 0.9))
    assert len(model.asked) == 4
    assert {item[0] for item in model.asked} == {""}


@pytest.mark.parametrize(
    ("scores", "detail"),
    [
        (None, "no answer"),
        (EntailmentScores(0.6), "no label for a contradiction"),
        (EntailmentScores(0.0, 1.0, 0.0), "neither"),
        (EntailmentScores(float("nan"), 0.0, 0.5), "nan"),
    ],
)
def test_an_entailment_that_says_nothing_is_unmeasured(scores: EntailmentScores | None, detail: str) -> None:
    drawn = answers("q", "s1", "s1", primary="One.")
    model = Model({("s1", "One."): scores})
    score = measure(drawn, make_estimator("selfcheck_nli", entailment=model), SamplingPlan(n=2))
    assert score.reason is Unmeasured.JUDGE_FAILED
    assert detail in score.detail


def test_without_an_entailment_model_there_is_no_score() -> None:
    score = measure(answers("q", "s1", "s1"), make_estimator("selfcheck_nli"), SamplingPlan(n=2))
    assert score.reason is Unmeasured.JUDGE_FAILED
    assert "needs an entailment model" in score.detail


class InPlace(Table):
    """A judge that takes each pair off the list that it was given."""

    def compare(self, items: Sequence[Item]) -> list[bool | None]:
        assert isinstance(items, list)
        verdicts: list[bool | None] = []
        while items:
            _, a, b = items.pop(0)
            verdicts.append(a == b)
        return verdicts


def test_a_judge_may_use_up_the_list_that_it_was_given() -> None:
    """Its verdicts were those on no pair, so that the guard of such a judge held back everything."""
    drawn = answers("q", "a", "a", "b", "b")
    estimator = make_estimator("discrete_semantic_entropy", judge=InPlace())
    assert measure(drawn, estimator, SamplingPlan(n=4)).value == pytest.approx(np.log(2))
