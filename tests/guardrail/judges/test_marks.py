"""Which marks make another answer, before any judge is asked."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calibrate.correctness import Exact
from calibrate.data.questions import Question
from guardrail.judges import ExactJudge, GuardedJaccard, JudgeSpec, TokenF1Judge, is_refusal, normalise, words
from guardrail.judges.text import guards_hold
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import cluster, make, measure

DIFFERENT = [
    ("O+", "O-"),
    ("Blood type O +", "Blood type O -"),
    ("C++", "C#"),
    ("C++", "C"),
    ("Na+", "Cl-"),
    ("A*", "A"),
    ("18+", "18"),
    ("x > 5", "x < 5"),
    ("x = 5", "x != 5"),
    ("x \u2264 5", "x \u2265 5"),
    ("A -> B", "A <- B"),
    (".5", "5"),
    ("1e-5", "1e+5"),
    ("50%", "50"),
    ("$50", "\u20ac50"),
    ("$50", "50"),
    ("\u20135", "5"),
    ("\u22125", "5"),
    ("- 5", "5"),
    ("2*3", "2+3"),
    ("2+3", "2-3"),
    ("2*3", "2**3"),
    ("2/3", "3/2"),
    ("x + y", "x - y"),
    ("x/y", "x-y"),
    ("1/2", "1 2"),
    ("5\u00bd", "51/2"),
    ("10\u2075", "105"),
    ("F\u266f", "F\u266d"),
    ("Q\u2660", "Q\u2665"),
    ("-\u221e", "\u221e"),
    ("10\u2082", "102"),
    ("5\u2030", "5"),
    ("Q\u2666", "Q\u2667"),
]
SAME = [
    ("*Paris*", "Paris"),
    ("The answer is **5%**.", "the answer is 5%"),
    ("`Paris`", '"Paris"'),
    ("well-known", "well known"),
    ("AC/DC", "AC DC"),
    ("M*A*S*H", "M A S H"),
    ("COVID-19", "Covid 19"),
    ("F-16 (jet)", "f 16 jet."),
    ("Paris - the capital", "Paris, the capital"),
    ("1939\u20131945", "1939-1945"),
    ("5 \u2212 3", "5-3"),
    ("\u22125", "-5"),
    ("+5", "5"),
    ("1993*", "1993"),
    ("50 \u20ac", "\u20ac50"),
    ("50 %", "50%"),
    ("1,000", "1000"),
    ("1\u00bd", "1 1/2"),
    ("10\u207b\u2075", "10^{-5}"),
    ("3 \u00d7 4", "3*4"),
    ("x=5", "x == 5"),
    ("$x = 5$", "x = 5"),
    ("O+.", "the O +"),
    ("F\u266f", "f#"),
    ("* Paris\n* Rome", "Paris\nRome"),
    ("It's #1!", "it's 1"),
    ("x === 5", "x = 5"),
    ("x <> 5", "x != 5"),
    ("x \u2260 5", "x != 5"),
    ("A \u2194 B", "A <-> B"),
    ("3\u00b74", "3*4"),
    ("\u20145", "-5"),
    ("Q\u2665\ufe0f", "Q\u2665"),
    ("-> Paris", "Paris"),
    ("5 *see below", "5 see below"),
    ("Paris ^1", "Paris 1"),
    ("Paris---", "Paris"),
    ("vitamin-C", "vitamin C"),
    ("AB - the type", "AB the type"),
    ("x#y", "x y"),
    ("x**", "x"),
]


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_marks_that_make_another_answer(a: str, b: str) -> None:
    assert normalise(a) != normalise(b)
    pairs = [(a, b), (b, a), (f"It is {a}", f"It is {b}")]
    assert ExactJudge().equivalent("", pairs) == [False] * 3
    assert TokenF1Judge().equivalent("", pairs) == [False] * 3
    assert GuardedJaccard().similarity("", pairs) == [0.0] * 3
    assert Exact().label(a, Question(id="q", question="?", references=(b,))).correct is False


@pytest.mark.parametrize(("a", "b"), SAME)
def test_punctuation_that_does_not(a: str, b: str) -> None:
    assert normalise(a) == normalise(b)
    assert guards_hold(a, b)
    assert Exact().label(a, Question(id="q", question="?", references=(b,))).correct is True


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("C ++", "c++"),
        ("AB -", "ab-"),
        ("5%/cup", "5% / cup"),
        ("7$75", "7 $75"),
        ("$AAPL", "$ aapl"),
        ("apples + pears", "apples + pears"),
        ("(2+3)^2", "2 + 3 ^ 2"),
        ("10 : 30", "10 : 30"),
        ("vitamin-C > 5", "vitamin c > 5"),
        ("AB - type > 5", "ab type > 5"),
        ("<i>5", "i 5"),
        ("*5*-6", "5 -6"),
        ("0-)--", "0-"),
    ],
)
def test_how_marks_are_written(text: str, normal: str) -> None:
    assert normalise(text) == normal == normalise(normal)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("\u0e1b\u0e48\u0e32", "\u0e1b\u0e49\u0e32"),  # Thai: forest, aunt
        ("\u0915\u0940", "\u0915\u093e"),  # Hindi: of (feminine), of (masculine)
    ],
)
def test_letters_keep_their_combining_marks(a: str, b: str) -> None:
    """To a regular expression they are no part of a word: these would be one word."""
    assert words(a) == [a] != words(b)
    assert normalise(a) == a
    assert TokenF1Judge().equivalent("", [(a, b), (a, f"{a} x")]) == [False, True]


class No:
    """Takes no two answers for the same, and counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="no", version=1, params={})

    def equivalent(self, question: str, pairs: list[tuple[str, str]]) -> list[bool | None]:
        self.asked += len(pairs)
        return [False] * len(pairs)


def test_a_judge_is_asked_about_answers_that_differ_in_a_mark() -> None:
    """The faulty form folded O+ and O-: no pair was judged, and entropy was 0."""
    judge = No()
    texts = ["O+", "O-", "O+", "O-"]
    drawn = SampleSet(question="q", primary=Sample(text="O+"), samples=tuple(Sample(text=text) for text in texts))
    found = measure(drawn, make("discrete_semantic_entropy", judge=judge), SamplingPlan(n=4))  # type: ignore[arg-type]
    assert found.value == pytest.approx(math.log(2))
    assert judge.asked == 1


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("account 1234567890123456789", "account 1234567890123456788", False),
        ("account 12345678901234567890123456789012345", "account 12345678901234567890123456789012346", False),
        ("it is 1.0", "it is 1", True),
        ("it is 1,000", "it is 1000.00", True),
        ("it is 007", "it is 7", True),
        ("it is -0", "it is 0", True),
        ("it is 0.10", "it is .1", True),
        ("it is 5km", "it is 7km", False),
        ("it is 5km", "it is 5 km", True),
        ("vitamin B12", "vitamin B6", False),
        ("it is \u0665", "it is 5", True),  # an Arabic digit
        ("5 > x", "x > 5", False),
        ("2/3", "3/2", False),
        ("x = 5", "5", True),
        ("$50", "$50.00", True),
        ("not-", "no+", False),
        ("it is 1e999999999", "it is 1e99999999", False),
    ],
)
def test_the_guards_compare_digits_and_marks(a: str, b: str, same: bool) -> None:
    assert guards_hold(a, b) is guards_hold(b, a) is same


PIECES = [
    "a",
    "the",
    "x",
    "5",
    ".5",
    "-",
    "+",
    "*",
    "**",
    "$",
    "%",
    "<",
    "->",
    "=",
    "/",
    ":",
    "^",
    "C",
    "foo",
    " ",
    "(",
]
TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(
        alphabet="ab5.1 xc+-*/#%$\u20ac=<>!^:()'\"\n,\u2013\u2212\u00bd\u00b2\u207b\u0915\u0940\u0301\u266f\u221e_`",
        max_size=12,
    ),
    st.lists(st.sampled_from([*PIECES, " ", ")", "-5", "#", "1e-5", "\n- ", "\u221e", "n't", "'s "]), max_size=8).map(
        "".join
    ),
)


@given(TEXTS)
@example("0\u2010)\u207b\u207b")
@example("foo--)-")
def test_normalising_twice_changes_nothing_and_keeps_the_words(text: str) -> None:
    """What early stopping rests on: everything a light judge reads is the same for all texts with one normal form."""
    once = normalise(text)
    assert normalise(once) == once
    assert words(once) == words(text)
    assert guards_hold(once, text)


@given(TEXTS, TEXTS)
def test_equal_strings_are_the_same_to_every_light_judge(a: str, b: str) -> None:
    if normalise(a) == normalise(b):
        assert guards_hold(a, b)
    assert TokenF1Judge().equivalent("", [(a, b)]) == TokenF1Judge().equivalent("", [(normalise(a), normalise(b))])


@pytest.mark.parametrize(
    "text",
    [
        "Sorry",
        "I'm sorry.",
        "Sorry, I can't say",
        "I\u2019m sorry, but I cannot help with that.",
        "I am sorry that I do not know the answer",
        "We're sorry, we are unable to provide this",
        "I can't help with that",
        "I can't help you with that.",
        "I cannot answer this question",
        "I can't tell for sure",
        "I'm sorry but I couldn't find any information about it",
    ],
)
def test_refusals_have_a_clause(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "Sorry by Justin Bieber",
        "I'm Sorry by Brenda Lee",
        "Sorry Seems to Be the Hardest Word",
        "I'm Sorry I Haven't a Clue",
        "Sorry, I Didn't Know",
        "Sorry, I think it is Paris",
        "I'm sorry, but Paris is the capital",
        "I can't help falling in love",
        "I Can't Help Myself",
        "I Can't Tell You Why",
        "I Can't Tell a Lie",
        "Not sure-footed",
        "The Great Unknown",
    ],
)
def test_titles_are_no_refusals(text: str) -> None:
    assert not is_refusal(text)
    clusters = cluster("q", [text, "I don't know"], ExactJudge())
    assert clusters is not None
    assert clusters.sizes == (1, 1)
