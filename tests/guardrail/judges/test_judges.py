"""Normalisation and lexical judges, on cases worked out by hand."""

from __future__ import annotations

import pytest

from guardrail.errors import UsageError
from guardrail.judges import (
    ExactJudge,
    JudgeSpec,
    TokenF1Judge,
    is_refusal,
    list_entailments,
    list_judges,
    make_judge,
    normalise,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  PARIS ", "paris"),
        ("1,000,000 people", "1000000 people"),
        ("3.5", "3.5"),
        ("-5", "-5"),
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


@pytest.mark.parametrize("text", ["I don't know.", "I do not know", "Not sure", "unknown", "Sorry, I can't say"])
def test_refusals(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize("text", ["Paris", "The Unknown Soldier", "I know: Paris", "No", "Sorrento"])
def test_answers_are_no_refusals(text: str) -> None:
    assert not is_refusal(text)


def test_token_f1_by_hand() -> None:
    # words: {it, is, paris} and {paris}: 1 in common, P = 1/3, R = 1, F1 = 2 * (1/3) / (4/3) = 1/2
    assert token_f1("It is Paris.", "Paris") == 0.5
    # multiplicity: {b, b} and {b}: P = 1/2, R = 1, F1 = 2/3 ("the" is an article)
    assert token_f1("the b b", "b") == pytest.approx(2 / 3)
    assert token_f1("", "") == 1.0
    assert token_f1("", "x") == 0.0


JUDGE = TokenF1Judge()


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("Paris", "It is Paris.", True),
        ("in 1945", "in 1944", False),  # F1 = .5 would pass: the number guard stops it
        ("it was 1,000 ships", "it was 1000 ships", True),
        ("it is safe to eat", "it is not safe to eat", False),  # F1 = 10/11: the negation guard stops it
        ("it isn't safe", "it is not safe", True),
        ("Rome", "Paris", False),
        ("King Henry VIII", "King Henry VII", False),
        ("King Henry VIII", "Henry VIII", True),
        ("World War II", "World War Two", True),
        ("World War I", "World War II", False),
        ("twenty", "twenty-one", False),
        ("two thirds", "two", False),
        ("at least five", "at most five", False),
        ("the first floor", "the second floor", False),
        ("Henry Tudor", "Henry VII Tudor", True),  # a number in one only: a further detail
        ("C major", "C minor", False),
        ("5 mW", "5 MW", False),
        ("I cannot say for sure; Paris", "I cannot say for sure; Rome", False),
        ("My best guess is Paris.", "My best guess is Rome.", False),
        ("My best guess is Paris.", "I guess Paris", True),
        ("To the best of my knowledge, Paris", "To the best of my knowledge, Rome", False),
        ("I'm no expert, but I'd say Paris", "I'm no expert, but I'd say Rome", False),
        ("I am not able to confirm it, but Paris", "I am not able to confirm it, but Rome", False),
    ],
)
def test_token_f1_judge_guards(a: str, b: str, same: bool) -> None:
    assert JUDGE.equivalent("q", [(a, b)]) == [same]
    assert JUDGE.equivalent("q", [(b, a)]) == [same]


ASKED = "What is the capital of Eritrea?"
ECHO = "The capital of Eritrea is Eritrea."


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (ECHO, "The capital of Eritrea is Asmara.", False),
        (ECHO, "Asmara", False),
        (ECHO, "The capital of Eritrea is not Asmara.", False),
        (ECHO, "I don't know.", False),
        (ECHO, "It is the capital of Eritrea.", True),
        (ECHO, "Eritrea", True),
        ("The capital of Eritrea is Asmara.", "Asmara", True),
        ("It is.", "That is it.", True),  # no content word: nothing of the question is repeated
    ],
)
def test_an_answer_that_repeats_the_question_is_like_no_other(a: str, b: str, same: bool) -> None:
    assert JUDGE.equivalent(ASKED, [(a, b), (b, a)]) == [same, same]


def test_an_echo_joins_no_two_answers() -> None:
    pairs = [(ECHO, "The capital of Eritrea is Asmara."), (ECHO, "The capital of Eritrea is Aroma.")]
    assert JUDGE.equivalent(ASKED, pairs) == [False, False]
    assert JUDGE.equivalent("", pairs) == [True, True]  # the same texts repeat nothing where nothing was asked


def test_exact_judge() -> None:
    assert ExactJudge().equivalent("q", [("The cat!", "cat"), ("cat", "cats")]) == [True, False]


def test_judges_by_name() -> None:
    assert {"exact", "numeric", "token_f1", "tool_call"} <= set(list_judges())
    assert "nli" in list_entailments()
    assert make_judge("token_f1", threshold=0.7).spec.params == {"threshold": 0.7}
    with pytest.raises(UsageError, match="no judge named 'oracle'"):
        make_judge("oracle")
    with pytest.raises(UsageError, match=r"threshold must be in \(0, 1\], got 50"):
        make_judge("token_f1", threshold=50)


def test_a_pinned_model_may_lie_elsewhere() -> None:
    """A revision hash names the files, so the same judge loads from another folder; an unpinned path must agree."""

    def spec(model: str, revision: str | None, threshold: float = 0.5) -> JudgeSpec:
        return JudgeSpec(name="nli", version=1, params={"model": model, "revision": revision, "threshold": threshold})

    assert spec("/a", "sha256:1") == spec("/b", "sha256:1")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:2")
    assert spec("/a", "sha256:1") != spec("/b", "sha256:1", threshold=0.6)
    assert spec("/a", "main") != spec("/b", "main")
    assert spec("/a", None) != spec("/b", None)
