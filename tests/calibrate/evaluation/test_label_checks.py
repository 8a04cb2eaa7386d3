"""AUROC intervals by hand and by coverage; labels that contradict the score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import special, stats

from calibrate.data.records import Record
from calibrate.dataframe import from_frame
from calibrate.evaluation.label_checks import (
    judge_to_look_at,
    labelled_answers,
    merged,
    merged_text,
    missed,
    suspicious,
    unread_answers,
)
from calibrate.report.assessment import unread
from calibrate.scoring.metrics import ks_two_sample
from guardrail.judges import ExactJudge, JudgeSpec, TextJudge
from guardrail.types import Sample, SampleSet, Uncertainty


def test_kolmogorov_smirnov_by_hand() -> None:
    # 1 2 3 4 against 3 4 5 6: at 2 the first is at .5, the second at 0.
    draws = np.random.default_rng(0)
    for n, m in ((5, 40), (60, 30)):
        left, right = draws.integers(0, 20, n) / 4, draws.integers(0, 25, m) / 4
        assert ks_two_sample(left, right)[0] == stats.ks_2samp(left, right, method="asymp").statistic
    distance, p = ks_two_sample(np.array([1.0, 2, 3, 4]), np.array([3.0, 4, 5, 6]))
    assert distance == 0.5
    assert p == pytest.approx(float(special.kolmogorov(math.sqrt(2) * 0.5)))


def record(name: str, value: float | None, correct: bool | None) -> Record:
    score = Uncertainty(estimator="s", value=value, unit="nats") if value is not None else None
    return Record(id=name, question=name, correct=correct, scores={} if score is None else {"s": score})


def test_suspicious_labels_by_hand() -> None:
    # Twenty scores 0..19, so two may lie below (above) an extreme one. Wrong: 1, 2, 5; right: all others.
    records = [record(f"q{i:02}", float(i), i not in (1, 2, 5)) for i in range(20)]
    suspects = suspicious([*records, record("none", None, False), record("unlabelled", 0.0, None)], "s")
    assert [r.id for r in suspects.wrong] == ["q01", "q02"]
    assert [r.id for r in suspects.right] == ["q19", "q18", "q17"]
    assert (suspects.n_wrong, suspects.n_right) == (2, 3)
    few = suspicious(records, "s", k=1)
    assert ([r.id for r in few.wrong], [r.id for r in few.right], few.n_right) == (["q01"], ["q19"], 3)


def test_ties_count_as_the_extreme_they_are() -> None:
    records = [record(f"q{i}", 0.0 if i < 8 else 1.0 + i, i != 7) for i in range(12)]
    assert [r.id for r in suspicious(records, "s").wrong] == ["q7"]  # nobody is more certain than the block of eight
    same = [record(f"q{i}", 0.0, i != 7) for i in range(12)]
    assert suspicious(same, "s").n_wrong == suspicious(same, "s").n_right == 0  # a constant score contradicts nothing
    assert suspicious([], "s").wrong == ()


def answered(
    name: str, answer: str, reference: str, *, correct: bool | None = None, samples: Sequence[str] = ()
) -> Record:
    drawn = SampleSet(
        question="How long?", primary=Sample(text=answer), samples=tuple(Sample(text=text) for text in samples)
    )
    return Record(id=name, question="How long?", references=(reference,), drawn=drawn, correct=correct)


FAQ = [
    answered("a", "You can return it within 30 days.", "30 days", correct=False),
    answered("b", "You can return it within 14 days.", "30 days", correct=False),
    answered("c", "You cannot return it within 30 days.", "30 days", correct=False),
    answered("d", "30 days", "30 days", correct=True),
    answered("e", "The return window is 30 days long.", "30 days"),
]


def test_answers_labelled_wrong_that_contain_the_reference_are_counted() -> None:
    misses = missed(FAQ, "token_f1")
    assert misses is not None
    assert ([record.id for record in misses.records], misses.n_wrong, misses.rule) == (["a"], 3, "contains")
    assert missed(FAQ, "contains") is None  # another rule made these labels: nothing is said about them
    assert missed([FAQ[1], FAQ[3]], "token_f1") is None


def test_where_the_references_are_numbers_the_rule_for_numbers_is_named() -> None:
    misses = missed([answered("n", "The answer is 42 km.", "42", correct=False)], "exact")
    assert misses is not None
    assert misses.rule == "numeric"


@pytest.mark.parametrize(
    ("n_right", "n_wrong", "shown"), [(9, 9, (3, 3)), (9, 1, (5, 1)), (0, 9, (0, 6)), (2, 1, (2, 1))]
)
def test_labelled_answers_are_of_both_kinds(n_right: int, n_wrong: int, shown: tuple[int, int]) -> None:
    records = [
        answered(f"{label}{i}", "x", "x", correct=label)
        for label, n in ((True, n_right), (False, n_wrong))
        for i in range(n)
    ]
    labels = [record.correct for record in labelled_answers([*FAQ[4:], *records])]
    assert (labels.count(True), labels.count(False)) == shown
    assert labelled_answers(records) == labelled_answers(records[::-1])


def test_wrong_answers_that_a_judge_takes_for_right_ones_are_named() -> None:
    """To a score with such a judge a wrong answer agrees with right ones, so it is accepted."""
    north, south = "Mexico is in North America", "Mexico is in South America"
    records = [
        answered("a", south, north, correct=False),
        answered("b", "Peru", "Chile", correct=False),
        answered("c", f"Well, {north.lower()}.", north, correct=False),  # contains it: the label may be wrong
        answered("d", north, north, correct=True),
    ]
    found = merged(records, TextJudge())
    assert found is not None
    assert (found.judge, found.pairs, found.n_wrong) == ("text", (("a", south, north),), 2)
    said = merged_text(found)
    assert f"Judge text takes 1 of 2 wrong answers for right ones, e.g. '{south}' for '{north}'." in said
    assert "--score 'graded_disagreement:chat(model=MODEL)'" in said
    assert merged(records, ExactJudge()) is None
    assert merged(records, judge_to_look_at(JudgeSpec(name="nli", version=4, params={"model": "m"}))) is None
    assert judge_to_look_at(TextJudge().spec) == TextJudge()


def test_answers_that_a_score_does_not_read_are_counted() -> None:
    rows = [
        {"question": f"{i}?", "samples": ["oak", "Oak.", "oak"], "answer": "elm" if i < 3 else "oak"} for i in range(40)
    ]
    records = from_frame(rows).score("discrete_semantic_entropy", "graded_disagreement")
    assert unread_answers(records.file, "graded_disagreement") is None
    alone = unread_answers(records.file, "discrete_semantic_entropy")
    assert alone == (3, 40)
    assert (unread("entropy", alone) or "").startswith("3 of 40 answers (7.5 %) agree with none of their samples")
    assert unread("entropy", (3, 400)) is None  # below 1 %
    # Scores on file are read, and say the same.
    assert unread_answers(records.score("primary_disagreement").file, "discrete_semantic_entropy") == (3, 40)
    voted = from_frame([{"question": row["question"], "samples": row["samples"]} for row in rows])
    assert unread_answers(voted.score("discrete_semantic_entropy").file, "discrete_semantic_entropy") is None
