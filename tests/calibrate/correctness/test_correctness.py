"""Correctness rules against hand-derived labels."""

from __future__ import annotations

import pytest

from calibrate.correctness import (
    Contains,
    CorrectnessRule,
    Exact,
    Label,
    Numeric,
    Option,
    TokenF1,
    label_records,
    make_rule,
)
from calibrate.data.questions import Question
from calibrate.data.records import Record
from guardrail.errors import GuardrailError, UsageError
from guardrail.specs import CorrectnessSpec
from guardrail.types import Sample, SampleSet


def question(*references: str, options: dict[str, str] | None = None) -> Question:
    return Question(id="q", question="?", references=references, options=options)


@pytest.mark.parametrize(
    ("rule", "answer", "references", "correct"),
    [
        (Exact(), "The Eiffel Tower!", ("eiffel tower",), True),
        (Exact(), "Eiffel", ("eiffel tower",), False),
        (Exact(), "1,000", ("1000",), True),
        (Exact(), "NYC", ("New York", "nyc"), True),
        (Exact(), "", ("x",), False),
        # 1 common word of 2 and 2: P = R = 1/2, F1 = .5, which counts.
        (TokenF1(), "red fox", ("red wolf",), True),
        # 1 common word of 3 and 2: F1 = 2/5.
        (TokenF1(), "big red fox", ("red wolf",), False),
        # The best of several references decides: 2 * 1 / (1 + 1) = 1.
        (TokenF1(), "wolf", ("a brown bear", "wolf"), True),
        (TokenF1(), "", ("wolf",), False),
    ],
)
def test_words_are_compared(rule: CorrectnessRule, answer: str, references: tuple[str, ...], correct: bool) -> None:
    assert rule.label(answer, question(*references)).correct is correct


def test_token_f1_threshold_is_a_parameter() -> None:
    assert TokenF1(threshold=0.51).label("red fox", question("red wolf")).correct is False
    assert TokenF1(threshold=0.51).spec.params == {"threshold": 0.51}
    with pytest.raises(UsageError, match=r"1\.5"):
        TokenF1(threshold=1.5)


@pytest.mark.parametrize(
    ("answer", "reference", "correct"),
    [
        ("The answer is 1,000 km.", "1000", True),
        ("0.3333333333", "1/3", True),
        ("50%", "50", True),
        ("50%", "0.5", True),
        ("50", "50 %", True),
        ("5", "50 %", False),
        ("no idea", "3", False),
        ("3", "three", True),
        ("3", "a few", None),
        ("0", "0", True),
        ("0.1", "0", False),
        ("5 km", "5000 m", False),  # nothing is converted
        ("5 km", "5 m", False),
        ("5 km", "5", True),
        ("$5", "\u20ac5", False),
        ("2125551234", "2125551235", False),  # whole numbers are not rounded
        ("1234567890123456789", "1234567890123456788", False),
        ("100000.01", "100000.02", False),  # relative 1e-7, but a cent
        ("3.333333", "10/3", True),
        ("1e-7", "0", True),
        ("50%", "50 km", False),
        ("10:30", "10:30.", True),  # not a number: compared as a text
        ("11:30", "10:30", False),
        ("30", "10:30", False),
        ("00123", "123", False),
    ],
)
def test_numeric(answer: str, reference: str, correct: bool | None) -> None:
    assert Numeric().label(answer, question(reference)).correct is correct


def test_numeric_tolerance_is_relative() -> None:
    assert Numeric(tolerance=0.01).label("101", question("100")).correct is True
    assert Numeric(tolerance=0.01).label("1010 m", question("1000 m")).correct is True
    assert Numeric(tolerance=0.01).label("1.01 km", question("1000 m")).correct is False
    assert Numeric(tolerance=0.01).label("1 kg", question("1 km")).correct is False
    assert Numeric(tolerance=0.01).label("102", question("100")).correct is False
    with pytest.raises(UsageError, match=r"0\.01 for 1 %"):
        Numeric(tolerance=1.0)


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("B", True),
        ("b", True),
        ("(B)", True),
        ("B) a lake", True),
        ("B. Lake", True),
        ("a lake", True),
        ("The answer is B", True),
        ("Answer: (B)", True),
        ("A", False),
        ("The answer is A, not option B", False),
        ("Both", False),
        ("", False),
        ("neither", False),
    ],
)
def test_option(answer: str, correct: bool) -> None:
    query = question("B", options={"A": "sea", "B": "lake"})
    assert Option().label(answer, query).correct is correct


def test_option_without_options_cannot_be_labelled() -> None:
    assert Option().label("A", question("A")).correct is None


def test_rules_by_name() -> None:
    assert make_rule("token_f1", threshold=0.7) == TokenF1(0.7)
    names = "chat_judge, contains, exact, json, numeric, option, python, stated, token_f1, tool_call"
    with pytest.raises(UsageError, match=f"choose one of {names}"):
        make_rule("fuzzy")
    with pytest.raises(UsageError, match="does not take"):
        make_rule("exact", threshold=0.5)


def test_a_rule_is_written_with_its_parameters() -> None:
    assert make_rule("token_f1(threshold=0.7)") == TokenF1(0.7)
    assert make_rule("tool_call(numbers=true)").spec == make_rule("tool_call", numbers=True).spec
    judged = make_rule("chat_judge(model=python:tests.calibrate.fakes:model)").spec
    assert (judged.name, judged.params["model"]) == ("chat_judge", "scripted")
    with pytest.raises(UsageError, match="threshold of correctness rule token_f1 is given twice"):
        make_rule("token_f1(threshold=0.7)", threshold=0.6)
    with pytest.raises(UsageError, match="does not take"):
        make_rule("exact(threshold=0.5)")


@pytest.mark.parametrize(
    ("answer", "reference", "correct"),
    [
        ("You can return it within 30 days.", "30 days", True),
        ("You cannot return it within 30 days.", "30 days", False),
        ("You can\u2019t return it within 30 days.", "30 days", False),
        ("30 days, no questions asked", "30 days", True),
        ("Not Rome. It is Paris.", "Paris", True),  # negation in another sentence
        ("It is Paris. Not Rome.", "Rome", False),
        ("No, you cannot.", "No", True),  # the reference is the negation
        ("I live in St. Louis now.", "St. Louis", True),
        ("The capital (Paris) is large", "the Paris", True),
        ("She is parisian.", "Paris", False),  # whole words
        ("days within 30", "30 days", False),  # in order
        ("It costs $50.", "50", False),
        ("It is written in C++.", "C", False),
        ("It is written in C++, mostly.", "C++", True),
        ("3.5 km", "3", False),
        ("30,000 people", "30", False),
        ("1,000 people", "1000", True),
        ("5 million people", "5", False),
        ("5 thousands", "5", False),
        ("about 50 percent", "50", False),
        ("minus 5 degrees", "5", False),
        ("a power of 5 MW", "5 mW", False),
        ("5 squared", "5", False),
        ("x = 5 % 3", "5", False),  # beside an operator
        ("5!", "5", False),
        ("[0, 1)", "(0, 1]", False),
        ("!done", "done", False),
        ('The height is 6".', "6'", False),
        ('"Paris", I think.', "Paris", True),
        ("Paris - the capital", "Paris", True),
        ("", "x", False),
    ],
)
def test_contains(answer: str, reference: str, correct: bool) -> None:
    assert make_rule("contains").label(answer, question("none of this", reference)).correct is correct


OWN = "tests.calibrate.correctness.test_correctness"


def starts_alike(answer: str, asked: Question) -> bool | None:
    return answer[0] == asked.references[0][0] if answer else None


def says_maybe(answer: str, asked: Question) -> str:
    return "maybe"


EQUATION_RULES = (Exact(), TokenF1(), Contains(), Numeric())


@pytest.mark.parametrize("rule", EQUATION_RULES, ids=lambda rule: rule.spec.name)
@pytest.mark.parametrize(
    ("asked", "answer", "reference"),
    [
        ("What is 7 x 10?", "7 x 10 = 70.", "70"),
        ("What is 7 x 10?", "The answer is 7 \u00d7 10 = 70", "70"),
        ("What is 12 x 9?", "12 x 9 = 100 + 8 = 108.", "108"),
        ("What is x?", "x\u00a0= -70", "-70"),
        ("What is the total of 40 and 30?", "So the total of 40 and 30 = 70", "70"),
        ("What is 700 x 10?", "700 x 10 = 7,000", "7000"),
    ],
)
def test_an_equation_says_its_right_hand_side(rule: CorrectnessRule, asked: str, answer: str, reference: str) -> None:
    assert rule.label(answer, Question(id="q", question=asked, references=(reference,))).correct is True


@pytest.mark.parametrize(
    ("asked", "answer", "reference"),
    [
        ("What is 7 x 10?", "7 x 10 = 60.", "70"),
        ("What is 7 x 10?", "7 x 10 = 70.", "10"),
        ("What is 7 x 10?", "70 = 7 x 10", "10"),
        ("What is 9 x 12?", "9 x 12 = 12 x 9 = 100.", "12"),
        ("What is 9 x 12?", "9 x 12 = 12 x 9", "12"),
        ("What is 9 x 12?", "9 x 12 = 12 x 9", "9"),
        ("What is x?", "x == 70", "70"),
        ("What is x?", "x >= 70", "70"),
        ("What is x?", "x != 70", "70"),
        ("What is x?", "x \u2260 70", "70"),
        ("What is x?", "x ~= 70", "70"),
        ("What is x?", "x => 70", "70"),
        ("What is x?", "x += 70", "70"),
        ("What is x?", "x = 70 + 5", "70"),
        ("What is x?", "x = 5 - 70", "70"),
        ("What is x?", "f(x=70)", "70"),
        ("What is x?", "https://x.org/?x=70", "70"),
        ("What is 7 x 10?", "It is not true that 7 x 10 = 70.", "70"),
        ("What is 7 x 10?", "7 x 10 isn't = 70.", "70"),
        ("What is x?", "x = 3/70", "70"),
    ],
)
def test_an_equation_says_nothing_else(asked: str, answer: str, reference: str) -> None:
    query = Question(id="q", question=asked, references=(reference,))
    assert [rule.label(answer, query).correct for rule in EQUATION_RULES] == [False] * 4


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("Is x 2 or 70?", "x = 2 or x = 70"),
        ("Is x 2 or 70?", "2 or x = 70"),
        ("What is x if not 2?", "not x = 70"),
        ("What are x and y?", "x = 2 and y = 70"),
        ("What are x and y?", "x = 2, y = 70"),
        ("What is x?", "x = 2\ny = 70"),
        ("What is x?", "x = 2. x = 70"),
        ("What is 7 x 10?", "It would be wrong to say that 7 x 10 = 70"),
        ("What is x?", "2 < x = 70"),
        ("What is x?", "2x = 70"),  # a multiple of a variable does not state its value
        ("What is x?", "-x = 70"),
        ("What is x?", "- x = 70"),
    ],
)
def test_an_answer_that_says_more_is_no_equation(asked: str, answer: str) -> None:
    query = Question(id="q", question=asked, references=("70",))
    assert True not in [rule.label(answer, query).correct for rule in (Exact(), TokenF1(), Numeric())]
    assert Exact().label("x = 70", query).correct is True


@pytest.mark.parametrize("answer", ["Unless x = 70", "let x = 70", "say x = 70"])
def test_other_words_before_an_equation_may_limit_it(answer: str) -> None:
    assert Exact().label(answer, Question(id="q", question="What is x?", references=("70",))).correct is False


@pytest.mark.parametrize("rule", [Exact(), Contains(), Numeric()], ids=lambda rule: rule.spec.name)
@pytest.mark.parametrize(("answer", "correct"), [("y=3*2", True), ("x = y=3*2", False)])
def test_an_equation_as_reference_is_compared_as_a_whole(rule: CorrectnessRule, answer: str, correct: bool) -> None:
    asked = Question(id="q", question="What is y?", references=("y=3*2",))
    assert rule.label(answer, asked).correct is correct


def test_contains_reads_an_equation_within_a_sentence() -> None:
    asked = Question(id="q", question="What is 7 x 10?", references=("70",))
    assert Contains().label("Multiply the two. To do so, take ten sevens: 7 x 10 = 70 in all.", asked).correct is True
    assert Contains().label("Nobody thinks so, but 7 x 10 = 70.", asked).correct is False


def test_a_rule_of_ones_own_is_a_function_named_by_its_module() -> None:
    rule = make_rule(f"python:{OWN}:starts_alike")
    assert rule.label("wolf", question("whale")).correct is True
    assert rule.label("fox", question("whale")).correct is False
    assert rule.label("", question("whale")) == Label(None, "the rule returned None")
    # An artifact's spec makes the same rule; a function that was changed is another rule.
    assert make_rule(rule.spec.name, **rule.spec.params).spec == rule.spec
    with pytest.raises(UsageError, match="has changed: its source has sha256"):
        make_rule("python", function=f"{OWN}:starts_alike", sha256="0" * 16)
    assert make_rule(f"python:{OWN}:says_maybe").spec.params["sha256"] != rule.spec.params["sha256"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("python", "python:MODULE:NAME"),
        (f"python:{OWN}", "names no attribute"),
        (f"python:{OWN}:nothing", "has no 'nothing'"),
        ("python:no_such_module:f", "no module 'no_such_module'"),
        (f"python:{OWN}:OWN", "is a str; it must be a function"),
    ],
)
def test_a_rule_of_ones_own_that_cannot_be_used_says_why(name: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        make_rule(name)


def test_a_rule_of_ones_own_must_decide() -> None:
    with pytest.raises(GuardrailError, match=r"returned 'maybe' on question 'q'; it must return True, False or None"):
        make_rule(f"python:{OWN}:says_maybe").label("x", question("y"))
    with pytest.raises(GuardrailError, match="raised IndexError on question 'q'"):
        make_rule(f"python:{OWN}:starts_alike").label("x", Question(id="q", question="?", references=("",)))


def test_imported_records_have_nothing_to_label() -> None:
    with pytest.raises(UsageError, match="1 of 1 records were imported without an answer"):
        label_records([Record(id="d", question="?", correct=True)], Exact())


def test_a_rule_that_gives_no_reason_leaves_an_answer_undecided() -> None:
    """Without a detail the answer would look as if nobody had read it, and a fit would leave it out."""

    class Silent(CorrectnessRule):
        spec = CorrectnessSpec(name="silent", version=1, params={})

        def label(self, answer: str, question: Question) -> Label:
            return Label(None)

    drawn = SampleSet(question="q?", primary=Sample(text="x"))
    record = Record(id="1", question="q?", references=("x",), drawn=drawn)
    rejected = record.model_copy(update={"references": (), "rejected": ("y",)})
    bare = record.model_copy(update={"references": ()})
    given = label_records([record, bare], Silent()) + label_records([rejected], Exact())
    assert [each.is_undecided for each in given] == [True, False, True]


def test_a_rule_that_could_not_compare_with_a_rejected_answer_says_why() -> None:
    """Who runs a judge that is down would read that people rejected another answer, and not look for the fault."""

    class Down(CorrectnessRule):
        spec = CorrectnessSpec(name="down", version=1, params={})

        def label(self, answer: str, question: Question) -> Label:
            return Label(None, "the judge failed: down")

    drawn = SampleSet(question="q?", primary=Sample(text="x"))
    rejected = Record(id="1", question="q?", rejected=("y",), drawn=drawn)
    (given,) = label_records([rejected], Down())
    assert (given.correct, given.label_detail) == (None, "the judge failed: down")
    (other,) = label_records([rejected], Exact())
    assert (other.correct, other.label_detail) == (None, "people rejected another answer, and there is no reference")
