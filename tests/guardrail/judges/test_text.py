"""Words, normal forms, refusals, and the judge that compares the words which answers add to their question."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrail.errors import UsageError
from guardrail.judges import Judge, JudgeSpec, TextJudge, distinct_answers, is_refusal, make_judge, normalise
from guardrail.judges.words import agree, read
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import cluster, make_estimator, measure

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]


def merged(a: str, b: str, judge: str, question: str = "") -> bool:
    clusters = cluster(question, [a, b], make_judge(judge))
    assert clusters is not None
    return len(clusters.sizes) == 1


def table(text: str) -> list[tuple[str, str]]:
    return [(a, b) for a, b in (pair.strip().split(" | ") for pair in text.replace("\n", " ;; ").split(" ;; "))]


# -- Words: a false merge hides that a model is unsure; a false split costs an answer -------------------------------

DIFFERENT = r"""!x | x ;; a < b | a > b ;; p -> q | q -> p ;; [1, 2] | (1, 2) ;; {1} | [1] ;; x' | x ;; f''(x) | f'(x)
6' | 6" ;; 5! | 5 ;; -5 | 5 ;; .5 | 5 ;; 1e-5 | 1e5 ;; 50% | 50 ;; $50 | €50 ;; 10⁵ | 105 ;; 10₂ | 102 ;; 5½ | 51/2
x² | x2 ;; 2*3 | 2**3 ;; rm -rf . | rm -rf / ;; rm a*b | rm a * b ;; git reset --soft | git reset soft ;; x[1] | x 1
a == b | a = b ;; ab? | ab ;; "5" | 5 ;; 'a' | a ;; AB' | AB ;; cd .. | cd . ;; C++ | C# ;; Na+ | Cl- ;; F♯ | F♭
A^T | a^t ;; 5 mW | 5 MW ;; 3-4 | 34 ;; A, C | C ;; A B | B ;; A and B | B ;; A1 | 1 ;; option A | option B
a, b | b ;; 10:30 | 1030 ;; 1,5 | 15 ;; 1.234 | 1,234
a & b | a and b ;; flags & mask | flags and mask ;; A & B | A and B ;; ../src | src ;; .env | env ;; 'abc' | abc
a.b | a b"""
SAME = """Paris | paris. ;; The Beatles | Beatles ;; **Paris** | Paris ;; `Paris` | "Paris" ;; a dog | dog
A dog | The dog ;; well-known | well known ;; it isn't so | It is not so. ;; can't | cannot ;; 1,000 ships | 1000 ships
Yes! | yes ;; P.T. Barnum | P. T. Barnum ;; Kevlar® | Kevlar ;; Rome, Italy | Rome Italy
ＡＢ | ab ;; \ufeffParis | Paris ;; 18.0 | 18
x = 5 | x=5 ;; 2 + 3 | 2+3 ;; [0, 1) | [0,1) ;; 50 % | 50% ;; 5 − 3 | 5-3 ;; Malmö | Malmo
It is = 5 | It is equals 5
'BLOODY SUNDAY' | Bloody Sunday ;; ..RANGERS | Rangers ;; Ben & Jerry's | Ben and Jerry's"""


@pytest.mark.parametrize(("a", "b"), table(DIFFERENT))
def test_what_is_not_prose_is_compared_as_written(a: str, b: str) -> None:
    assert not merged(a, b, "exact")
    assert not merged(a, b, "text")


@pytest.mark.parametrize(("a", "b"), table(SAME))
def test_case_accents_punctuation_and_articles_of_prose_do_not_count(a: str, b: str) -> None:
    assert merged(a, b, "exact")
    assert merged(a, b, "text")


@pytest.mark.parametrize(
    ("text", "words", "marks"),
    [
        ("The Eiffel Tower, in Paris.", ["eiffel", "tower", "in", "paris"], []),
        ("It isn't 1,000.0 kg!", ["it", "is", "not", "1000", "kg"], []),
        ("C++ (the language)", ["C++", "language"], ["C++"]),
        ("-5.0 or 3.5", ["-5", "or", "3.5"], []),  # a decimal point is no punctuation
        ("\uff21\uff22", ["ab"], []),  # full-width letters
        ("ป่า", ["ป่า"], []),  # Thai: a forest; without its mark it is an aunt
        ("A", ["A"], []),  # an answer, not an article
        ("  ", [], []),
    ],
)
def test_words_by_hand(text: str, words: list[str], marks: list[str]) -> None:
    assert (list(read(text).words), list(read(text).marks)) == (words, marks)


@given(st.text(alphabet="abA5.1 xc+-*/#%$=<>!^:()'\"\n,\u2013\u00bd\u0915\u0940\u0301_`\u2019", max_size=12))
def test_equal_forms_have_equal_digits(text: str) -> None:
    for other in (f" {text}\n", text.replace("1", "2")):
        if normalise(text) == normalise(other):
            assert [c for c in text if c.isdigit()] == [c for c in other if c.isdigit()]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("it is safe", "it is not safe", False),
        ("in 1945", "in 1944", False),
        ("C++ is old", "C# is old", False),
        ("2 dozen", "2", False),
        ("Shaw (Ireland)", "Shaw of Ireland", True),
    ],
)
def test_what_two_texts_must_share_for_a_model_to_compare_them(a: str, b: str, same: bool) -> None:
    assert agree(a, b) is agree(b, a) is same


@pytest.mark.parametrize("sign", ["\u00ad", "\u200b", "\u2060", "\ufeff", "\u200b\u200e"])
def test_an_invisible_sign_inside_a_number_is_not_dropped(sign: str) -> None:
    for judge in ("exact", "numeric", "text", "json"):
        assert not merged(f"5{sign}0", "50", judge)
        assert not merged(f"5{sign}.50", "5.50", judge)
    assert merged(f"Par{sign}is 50", "Paris 50", "exact")


@pytest.mark.parametrize("piece", ["/", "1,", "$", "\\", " ", '"', "*", "`", "-", "(", "9", "A ", "1 000 ", "**a"])
def test_long_texts_end(piece: str) -> None:
    """A pattern that backtracks would not, and the answer's author chooses the text."""
    text = piece * (100_000 // len(piece))
    for judge in ("exact", "text", "numeric"):
        assert make_judge(judge).equivalent("q", [(text, f"{text} x")]) == [False]


def test_distinct_answers_are_counted_by_normal_form_and_shown_in_their_first_wording() -> None:
    assert distinct_answers(["Rome", "The Paris.", "paris", "rome", "Paris"]) == [("The Paris.", 3), ("Rome", 2)]
    assert distinct_answers([]) == []


# -- Refusals: an answer that is taken for one is lost ------------------------------------------------------------

REFUSALS = """Sorry | I'm sorry. | Sorry, I can't say | I\u2019m sorry, but I cannot help with that. | Not sure
unknown | No comment. | I am sorry that I do not know the answer | I can't help you with that. | I'd rather not say.
I cannot answer this question | I don't know, sorry. | As an AI language model, I cannot answer that question.
I don't have enough information to answer this question. | I refuse to answer."""
ANSWERS = """Sorry by Justin Bieber | Sorry Seems to Be the Hardest Word | The Great Unknown
Sorry, I think it is Paris | I can't help falling in love | I Can't Help Myself | I Can't Tell You Why | Not sure-footed
I know: Paris | No | Sorrento | I don't know. Paris. | I'm not sure, but 17. | I do not have it.
Never Say Never | Nothing to say
Never | I cannot say more than 5 | It is not certain | I can't help with medical advice, but the usual dose is 5 mg."""


@pytest.mark.parametrize("text", REFUSALS.replace("\n", " | ").split(" | "))
def test_refusals_are_one_meaning(text: str) -> None:
    assert is_refusal(text)
    assert all(merged(text, "I don't know.", judge) for judge in ("exact", "numeric", "text"))


@pytest.mark.parametrize("text", ANSWERS.replace("\n", " | ").split(" | "))
def test_an_answer_is_not_a_refusal(text: str) -> None:
    assert not is_refusal(text)
    assert not merged(text, "I don't know", "exact")


# -- The judge ---------------------------------------------------------------------------------------------------------

CAPITAL = "What is the capital of Eritrea?"
ECHO = "The capital of Eritrea is Eritrea."


@pytest.mark.parametrize(
    ("question", "a", "b", "same"),
    [
        (CAPITAL, "The capital of Eritrea is Asmara.", "Asmara", True),  # own words: {asmara} and {asmara}
        (CAPITAL, "Asmara", "Asmara, in the highlands", True),  # 1 of 1 of the shorter answer's
        (CAPITAL, "The capital of Eritrea is Asmara.", "The capital of Eritrea is Aroma.", False),
        (CAPITAL, "It is Asmara.", "It is not Asmara.", False),
        (CAPITAL, "Asmara", "Asmara or Massawa", False),  # or it would join Asmara and Massawa
        (CAPITAL, ECHO, "The capital of Eritrea is Asmara.", False),  # an echo has no own words
        (CAPITAL, ECHO, "Asmara", False),
        ("Which option?", "Option A", "A", True),
        ("Which option?", "Option A", "Option B", False),
        ("", "Jean Paul Sartre", "Jean Paul Marat", True),  # 2 of 3: the price of the threshold
        ("", "John Adams", "John Tyler", False),  # 1 of 2
        ("", "in 1945", "in 1944", False),
        ("", "New Zealand in 1893", "New Zealand", True),  # a further detail
        ("", "1, 2", "1, 2, 3", False),  # a list, not a detail
        ("", "from 10 to 20", "from 20 to 10", False),
        ("", "2 dozen", "2", False),
        ("", "My best guess is Paris.", "My best guess is Rome.", False),
        ("", "It is.", "That is it.", False),  # no word of either counts
        ("Which is larger?", "x = 5", "x = 6", False),
        ("Which is prime, 197 or 918?", "The number 197", "The number 918", False),  # own words: {number} of both
        ("Which is prime, 197 or 918?", "The number 197", "197, a prime number", True),
    ],
)
def test_own_words_by_hand(question: str, a: str, b: str, same: bool) -> None:
    assert TextJudge().equivalent(question, [(a, b), (b, a)]) == [same, same]


@given(
    *[
        st.lists(st.sampled_from(["red", "fox", "5", "6", "5", "not", "A", "five", ",", "+", "is"]), max_size=5).map(
            " ".join
        )
    ]
    * 2
)
def test_a_verdict_does_not_depend_on_the_order_of_the_pair(a: str, b: str) -> None:
    there, back, own = TextJudge().equivalent("Is it a fox?", [(a, b), (b, a), (a, a)])
    assert there is back
    assert own is True


def test_the_threshold_is_a_share_of_the_shorter_answers_own_words() -> None:
    pair = [("Jean Paul Sartre", "Jean Paul Marat")]
    assert TextJudge(threshold=0.66).equivalent("", pair) == [True]
    assert TextJudge(threshold=0.67).equivalent("", pair) == [False]
    assert make_judge("text", threshold=0.7).spec == JudgeSpec(name="text", version=1, params={"threshold": 0.7})
    with pytest.raises(UsageError, match=r"threshold must be in \(0, 1\], got 50"):
        make_judge("text", threshold=50)


@pytest.mark.parametrize("judge", ["exact", "numeric", "text"])
def test_pairs_that_differ_are_not_merged(judge: str) -> None:
    """Pairs of short answers made to mislead. What word overlap merges wrongly is listed, so that it does not grow."""
    known = {"Add 30 ml of water", "Martin Luther", "World War I", "Pope John Paul I", "twenty", "red, green and blue"}
    wrong = {row["a"] for row in PAIRS if not row["same"] and merged(row["a"], row["b"], judge)}
    assert wrong == (known if judge == "text" else set())


def test_pairs_that_mean_the_same_are_seldom_split() -> None:
    """A split costs an answer. Numbers in another notation are the business of `numeric`."""
    same = [row for row in PAIRS if row["same"]]
    both = [row for row in same if merged(row["a"], row["b"], "text") or merged(row["a"], row["b"], "numeric")]
    assert len(same) - len(both) <= 7


class No(Judge):
    """Takes no two answers for the same, and notes what it is asked."""

    spec = JudgeSpec(name="no", version=1, params={})

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        self.asked += pairs
        return [False] * len(pairs)


def test_only_equal_strings_are_merged_before_a_judge_is_asked() -> None:
    """White space aside. The faulty form merged what folds to one string, and no pair was judged."""
    judge = No()
    texts = ["May it please", "may it please", " May  it please\n", "The Polish", "polish"]
    drawn = SampleSet(question="q", primary=Sample(text="x"), samples=tuple(Sample(text=text) for text in texts))
    score = measure(drawn, make_estimator("discrete_semantic_entropy", judge=judge), SamplingPlan(n=5))
    assert len(judge.asked) == 6  # four strings
    assert score.value == pytest.approx(-0.4 * math.log(0.4) - 3 * 0.2 * math.log(0.2))
