"""Rules by which two texts are one answer or a text is a refusal: before and without any judge that asks a model."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from calibrate.correctness import Exact, TokenF1
from calibrate.data.questions import Question
from guardrail.judges import (
    GuardedJaccard,
    JudgeSpec,
    TokenF1Judge,
    distinct_answers,
    is_refusal,
    make_judge,
    make_similarity,
    normalise,
    words,
)
from guardrail.judges.text import contradicts, guards_hold, is_hedged, overlap, shared
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import cluster, make_estimator, measure

HOSTILE = Path(__file__).parent / "hostile_pairs.jsonl"
PAIRS = Path(__file__).resolve().parents[4] / "shared" / "data" / "answer-pairs.jsonl"


def merged(a: str, b: str, judge: str) -> bool:
    """Whether a judge makes one cluster of two answers, and says so when it is asked, both ways."""
    clusters = cluster("q", [a, b], make_judge(judge))
    assert clusters is not None
    is_one_cluster = len(clusters.sizes) == 1
    assert make_judge(judge).equivalent("q", [(a, b), (b, a)]) == [is_one_cluster, is_one_cluster]
    return is_one_cluster


# -- Formulas, code, and letters that are answers ----------------------------------------------------------------------

DIFFERENT = r"""!x | x ;; a < b | a > b ;; p -> q | q -> p ;; [1, 2] | (1, 2) ;; {1} | [1] ;; x' | x
f''(x) | f'(x) ;; 6' | 6" ;; 5! | 5 ;; -5 | 5 ;; .5 | 5 ;; 1e-5 | 1e5 ;; 50% | 50 ;; $50 | €50 ;; 10⁵ | 105
10₂ | 102 ;; 5½ | 51/2 ;; x² | x2 ;; 2*3 | 2**3 ;; rm -rf . | rm -rf / ;; rm -rf / tmp | rm -rf /tmp
rm a*b | rm a * b ;; git reset --soft | git reset soft ;; ls >> a | ls > a ;; x[::-1] | x[:1] ;; a == b | a = b
ab? | ab ;; "5" | 5 ;; 'a' | a ;; AB' | AB ;; A'B | AB' ;; cd .. | cd . ;; C:\ | C:/ ;; C++ | C#
Na+ | Cl- ;; O+ | O- ;; F♯ | F♭ ;; Q♠ | Q♥ ;; A* | A ;; A^T | a^t ;; 5 mW | 5 MW ;; p ∧ q | p ∨ q ;; 3-4 | 34
A, C | C ;; A B | B ;; A and B | B ;; A1 | 1 ;; option A | option B ;; A minor | minor ;; a, b | b ;; a-b | a b
10:30 | 1030 ;; 1,5 | 15 ;; 1.234 | 1,234 ;; SELECT * FROM t | SELECT FROM t ;; echo $HOME | echo HOME
x_1 | x1"""
SAME = """Paris | paris. ;; The Beatles | Beatles ;; **Paris** | Paris ;; `Paris` | "Paris" ;; a dog | dog
A dog | The dog ;; well-known | well known ;; it isn't so | It is not so. ;; can't | cannot
1,000 ships | 1000 ships ;; Yes! | yes ;; P.T. Barnum | P. T. Barnum ;; ‘Columbus Day’ | Columbus day
Kevlar® | Kevlar ;; Poets' Society | Poets Society ;; Rome, Italy | Rome Italy ;; ＡＢ | ab ;; \ufeffParis | Paris
x = 5 | x=5 ;; 2 + 3 | 2+3 ;; [0, 1) | [0,1) ;; 50 % | 50% ;; 5 − 3 | 5-3 ;; x ≤ 5 | x <= 5
It costs $5. | It  costs\u00a0$5"""


def table(text: str) -> list[tuple[str, str]]:
    return [(a, b) for a, b in (pair.strip().split(" | ") for pair in text.replace("\n", " ;; ").split(" ;; "))]


@pytest.mark.parametrize(("a", "b"), table(DIFFERENT))
def test_what_is_not_plain_prose_is_compared_as_written(a: str, b: str) -> None:
    assert not merged(a, b, "exact")
    assert Exact().label(a, Question(id="q", question="?", references=(b,))).correct is False


@pytest.mark.parametrize(("a", "b"), table(DIFFERENT))
def test_common_words_do_not_outweigh_a_mark(a: str, b: str) -> None:
    assert not merged(a, b, "token_f1")
    assert not GuardedJaccard().similarity("", [(a, b)])[0]
    further = a == "A minor"  # to a label rule, a letter in the answer alone is a further detail
    assert TokenF1().label(a, Question(id="q", question="?", references=(b,))).correct is further


@pytest.mark.parametrize(("a", "b"), table(SAME))
def test_case_punctuation_and_articles_of_prose_do_not_count(a: str, b: str) -> None:
    assert merged(a, b, "exact")
    assert Exact().label(a, Question(id="q", question="?", references=(b,))).correct is True


@pytest.mark.parametrize("judge", ["exact", "numeric", "token_f1"])
def test_pairs_of_answers(judge: str) -> None:
    """Made to mislead: at most six wrong merges of 50 by word overlap, none by the others."""
    if not PAIRS.exists():
        pytest.skip("shared data is absent")
    pairs = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    wrong = [(pair["a"], pair["b"]) for pair in pairs if not pair["same"] and merged(pair["a"], pair["b"], judge)]
    merged_answers = {pair["a"] for pair in pairs if pair["same"] and merged(pair["a"], pair["b"], judge)}
    assert len(wrong) <= (6 if judge == "token_f1" else 0), wrong
    expected = {
        "numeric": {"$3.50", "1e3", r"\frac{1}{2}", "x = 5", "50%", "The answer is 18.", "18 apples", "twenty-one"}
    }
    assert merged_answers >= expected.get(judge, set()) | {"I don't know.", "No comment."}


@pytest.mark.parametrize(("judge", "found"), [("exact", 17), ("numeric", 32), ("token_f1", 22)])
def test_hostile_pairs(judge: str, found: int) -> None:
    """Names that share a word, negations, dates, units, code, versions, hedges: 170 that differ, 34 that do not.

    Word overlap knows no antonyms or first names: what it merges wrongly is listed, so that it does not grow unseen.
    """
    pairs = [json.loads(line) for line in HOSTILE.read_text(encoding="utf-8").splitlines()]
    assert len(pairs) == 204
    wrong = [pair["kind"] for pair in pairs if not pair["same"] and merged(pair["a"], pair["b"], judge)]
    expected = {"names sharing a word": 19, "negations": 5, "units": 1, "lists": 2}
    assert Counter(wrong) == (expected if judge == "token_f1" else {})
    assert sum(pair["same"] and merged(pair["a"], pair["b"], judge) for pair in pairs) == found


@pytest.mark.parametrize(("a", "b"), [("ป่า", "ป้า"), ("की", "का")])
def test_letters_keep_their_combining_marks(a: str, b: str) -> None:
    """Thai: forest, aunt. Hindi: of (feminine), of (masculine). To \\w the marks are not part of a word."""
    assert words(a) == [a] != words(b)
    assert normalise(a) == a
    assert TokenF1Judge().equivalent("", [(a, b), (a, f"{a} x1")]) == [False, False]


PIECES = st.sampled_from(
    ["a", "A", "the", "x", "5", ".5", "-", "+", "*", "**", "$", "%", "<", "->", "=", "/", ":", "^", "(", ")"]
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.text(
        alphabet="abA5.1 xc+-*/#%$\u20ac=<>!^:()'\"\n,\u2013\u2212\u00bd\u00b2\u207b\u0915\u0940\u0301\u266f_`\u2019",
        max_size=12,
    ),
    st.lists(st.one_of(PIECES, st.sampled_from(["foo", "Bar", " ", "n't", "'s", "1,000", ". ", '"'])), max_size=8).map(
        "".join
    ),
)


@given(TEXTS)
@example("A dog")
@example("a, b")
@example("5 MW")
@example("THEN'T")
@example("N'TN'T")
def test_normalising_twice_changes_nothing(text: str) -> None:
    normal = normalise(text)
    assume(not normal.startswith("A "))  # of "A.BCD": without its mark the letter reads as an article
    assert normalise(normal) == normal


@given(TEXTS, TEXTS)
def test_equal_answers_have_equal_digits_and_hold_the_guards(a: str, b: str) -> None:
    for x, y in ((a, b), (a, f" {a}\n"), (a, a.replace("1", "2"))):
        if normalise(x) == normalise(y):
            assert guards_hold(x, y)
            assert [c for c in x if c.isascii() and c.isdigit()] == [c for c in y if c.isascii() and c.isdigit()]


@pytest.mark.parametrize(
    ("a", "b", "hold", "contradict"),
    [
        ("it is 1.0", "it is 1", True, False),
        ("it is 1,000", "it is 1000", True, False),
        ("account 1234567890123456789", "account 1234567890123456788", False, True),
        ("it is safe", "it is not safe", False, True),
        ("x = 5", "5", True, False),
        ("2 dozen", "2", False, True),
        ("5 squared", "5", False, True),
        ("at least 5", "5", False, True),
        ("vitamin C", "vitamin D", False, True),
        ("John F Kennedy", "John Kennedy", True, False),
        ("A or B", "A and B", False, True),
        ("New Zealand in 1893", "New Zealand", False, False),  # a further detail
        ("Shaw (Ireland)", "Shaw, Ireland", True, False),
        ("5 - 3", "3 - 5", False, True),
        ("Paris - France", "Paris, France", True, False),
    ],
)
def test_guards(a: str, b: str, hold: bool, contradict: bool) -> None:
    assert guards_hold(a, b) is guards_hold(b, a) is hold
    assert contradicts(a, b) is contradicts(b, a) is contradict


# -- Word overlap ------------------------------------------------------------------------------------------------------


def test_overlap_by_hand() -> None:
    # content words: answer is none; {adapter} and {europe}
    assert overlap("", "The answer is only with an adapter.", "The answer is only in Europe.") == 0
    # {ann, smith} and {ann}; the question's own words leave nothing of "Ann", so they count
    assert overlap("Is Ann older?", "Ann Smith", "Ann") == pytest.approx(2 / 3)
    # less the question's words: {paris} and {paris}
    assert overlap("Capital of France?", "The capital of France is Paris", "Paris") == 1
    assert overlap("", "The capital of France is Paris", "Paris") == pytest.approx(2 / 4)
    # numbers count only where nothing else does: {km} and {miles}, {5} and {5, apples}
    assert overlap("", "5 km", "5 miles") == 0
    assert overlap("", "5", "5 apples") == pytest.approx(2 / 3)
    # function words alone: {it, is} and {it, was}
    assert overlap("", "it is", "it was") == 0.5
    # sets {red, fox, 5} and {red, dog, 5}
    assert shared("", "the red fox 5", "a red dog 5") == 0.5


def test_the_question_plays_a_part_in_word_overlap() -> None:
    pair = [("The only exporter of bananas is Ecuador", "The only exporter of bananas is Brazil")]
    assert TokenF1Judge().equivalent("", pair) == [True]  # exporter, bananas and one of two countries
    assert TokenF1Judge().equivalent("Who is the only exporter of bananas?", pair) == [False]


def test_a_refusal_with_a_guess_is_an_answer() -> None:
    """They were one meaning: the refusal's few words are most of those of the guess."""
    for a, b in [("I don't know.", "I don't know. Paris?"), ("I don't know. Rome?", "I don't know. Paris?")]:
        assert not merged(a, b, "token_f1")
    assert merged("I don't know.", "Not sure.", "token_f1")


def test_words_may_be_joined_by_a_slash_but_paths_are_marks() -> None:
    assert merged("Warfarin/Coumadin", "warfarin", "token_f1")
    assert not merged("src/main/app.py", "src/test/app.py", "token_f1")
    assert not merged("'hi!'", "'HI!'", "token_f1")


def test_the_label_rule_wants_common_content_and_no_contradiction() -> None:
    def right(answer: str, reference: str) -> bool | None:
        return TokenF1().label(answer, Question(id="q", question="?", references=(reference,))).correct

    assert right("It is Paris.", "Paris")
    assert right("New Zealand in 1893", "New Zealand")
    assert not right("not in Paris", "in Paris")
    assert not right("C++", "C#")
    assert not right("The answer is only with an adapter.", "The answer is only in Europe.")
    assert not right("25,000 miles", "24,900 miles")
    assert not right("1969 (24 February)", "1969")  # a bracket may hold another year, and is not read


# -- Refusals ----------------------------------------------------------------------------------------------------------

REFUSALS = """Sorry | I'm sorry. | Sorry, I can't say | I\u2019m sorry, but I cannot help with that. | Not sure
unknown | No comment. | I am sorry that I do not know the answer | We're sorry, we are unable to provide this
I can't help you with that. | I'd rather not say. | I cannot answer this question | I can't tell for sure
I'm sorry but I couldn't find any information about it | I don't know, sorry.
As an AI language model, I cannot answer that question.
I don't have enough information to answer this question. | I refuse to answer."""
ANSWERS = """Sorry by Justin Bieber | I'm Sorry by Brenda Lee | Sorry Seems to Be the Hardest Word
I'm Sorry I Haven't a Clue | The Great Unknown | Sorry, I Didn't Know | Sorry, I think it is Paris
I'm sorry, but Paris is the capital | I can't help falling in love | I Can't Help Myself | I Can't Tell You Why
I Can't Tell a Lie | Not sure-footed | I know: Paris | No | Sorrento | I don't know. Paris.
I'm not sure, but 17. | I do not have it. | I cannot say more than 5 | I do not know it, Rome perhaps"""
HEDGES = [
    "I can't help with medical advice, but the usual dose is {} mg.",
    "I cannot answer this with certainty, but it was {}.",
    "I'm sorry, but I cannot find the exact date; it was probably {}.",
    "I'm not sure, but {}.",
    "I apologize, but I do not have current figures. It was about {}.",
    "I have no information except {}.",
]


@pytest.mark.parametrize("text", REFUSALS.replace("\n", " | ").split(" | "))
def test_refusals_are_one_meaning(text: str) -> None:
    assert is_refusal(text)
    for judge in ("exact", "numeric", "token_f1"):
        assert merged(text, "I don't know.", judge)


@pytest.mark.parametrize("text", ANSWERS.replace("\n", " | ").split(" | "))
def test_an_answer_is_not_a_refusal(text: str) -> None:
    assert not is_refusal(text)
    assert not merged(text, "I don't know", "exact")


@pytest.mark.parametrize("hedge", HEDGES)
@pytest.mark.parametrize("judge", ["exact", "numeric", "token_f1"])
def test_a_hedged_answer_is_an_answer(hedge: str, judge: str) -> None:
    """It was a refusal, so five doses were one meaning at entropy 0."""
    texts = [hedge.format(dose) for dose in (5, 50, 100, 500, 1000)]
    assert not any(map(is_refusal, texts))
    clusters = cluster("What is the dose?", texts, make_judge(judge))
    assert clusters is not None
    assert clusters.sizes == (1,) * 5


def test_apologies_have_nothing_in_common_with_an_answer() -> None:
    """They repeat the question, and so do answers."""
    apology, answer = "I'm sorry, but I couldn't find the author of Emma.", "The author of Emma is Jane Austen."
    assert is_hedged(apology)
    assert not is_hedged(answer)
    for name in ("jaccard", "rouge_l", "guarded_jaccard"):
        assert make_similarity(name).similarity("", [(apology, answer), (apology, apology + " ")]) == [0, 1]


# -- What a judge that asks a model is asked ---------------------------------------------------------------------------


class No:
    """Takes no two answers for the same, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    @property
    def spec(self) -> JudgeSpec:
        return JudgeSpec(name="no", version=1, params={})

    def equivalent(self, question: str, pairs: list[tuple[str, str]]) -> list[bool | None]:
        self.asked += pairs
        return [False] * len(pairs)


def test_only_equal_strings_are_merged_before_a_judge_is_asked() -> None:
    """White space aside. The faulty form merged what folds to one string, and no pair was judged."""
    judge = No()
    texts = ["May it please", "may it please", " May  it please\n", "The Polish", "polish"]
    drawn = SampleSet(question="q", primary=Sample(text="x"), samples=tuple(Sample(text=text) for text in texts))
    score = measure(drawn, make_estimator("discrete_semantic_entropy", judge=judge), SamplingPlan(n=5))  # type: ignore[arg-type]
    assert len(judge.asked) == 6  # four strings
    assert score.value == pytest.approx(-0.4 * math.log(0.4) - 3 * 0.2 * math.log(0.2))


@pytest.mark.parametrize(
    "piece",
    ["/", "1,", "$", "\\", " ", '"', "*", "`", "-", "(", "9", "A ", "1 000 ", "**a", "\\frac{", "x=5 ", "\u2018"],
)
def test_long_texts_end(piece: str) -> None:
    """A pattern that backtracks would not: 16 KB of slashes took seconds."""
    text = piece * (100_000 // len(piece))
    for judge in ("exact", "token_f1", "numeric"):
        assert make_judge(judge).equivalent("q", [(text, f"{text} x")]) == [False]


def test_distinct_answers_are_counted_by_normal_form_and_shown_in_their_first_wording() -> None:
    assert distinct_answers(["Rome", "The Paris.", "paris", "rome", "Paris"]) == [("The Paris.", 3), ("Rome", 2)]
    assert distinct_answers(["b", "a"]) == [("b", 1), ("a", 1)]  # ties in order of appearance
    assert distinct_answers([]) == []
