"""The rule `stated`: what states a reference, what takes it back, and how often people agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.correctness.stated import Stated
from calibrate.data.questions import Question

HUMAN_LABELS = Path(__file__).parents[4] / "shared" / "data" / "nq-human-labels.jsonl"
CAPITAL = "What is the capital of France?"


def label(question: str, references: list[str], answer: str) -> bool | None:
    return Stated().label(answer, Question(id="q", question=question, references=tuple(references))).correct


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        (CAPITAL, "Paris", "The capital of France is Paris."),
        (CAPITAL, "Paris", "Paris is the capital. It is not the only large city."),  # a negation in another sentence
        ("How many people came?", "15", "15 people came in 1995."),
        ("What is 7 x 10?", "70", "7 x 10 = 70."),
        ("How many days has July?", "thirty-one", "July has 31 days."),
        ("Who discovered X-rays?", "Wilhelm Conrad Röntgen", "It was Wilhelm Rontgen."),
        ("Who discovered X-rays?", "Röntgen", "Wilhelm Röntgen discovered X-rays."),
        ("Who was president?", "John F. Kennedy", "The president was John Kennedy."),
        ("When was he born?", "14 March 1879", "He was born on March 14th, 1879."),
        ("When was he born?", "March 1879", "He was born on 14 March 1879."),  # more exact than the reference
        (
            "Who sings 'Never say never'?",
            "Justin Bieber",
            "Never say never is by Justin Bieber.",
        ),  # the song's negation
        ("What joins bones?", "tissue between the bones", "The bones are joined by tissue that lies between bones."),
        ("Is water wet?", "yes", "Yes, it is."),
    ],
)
def test_a_sentence_that_states_a_reference_is_right(question: str, reference: str, answer: str) -> None:
    assert label(question, [reference], answer) is True


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        (CAPITAL, "Paris", "London."),
        (CAPITAL, "Paris", "I don't know."),
        (CAPITAL, "Paris", ""),
        ("What is the capital of Nicaragua?", "Managua", "The capital of Nicaragua is Nicaragua."),
        ("What is 11 + 3?", "14", "11 + 3 = 44."),
        ("How many days has July?", "one hundred and seven", "July has 31 days."),
        ("Which language is it?", "C++", "C#"),
        ("Is water wet?", "yes", "No."),
    ],
)
def test_an_answer_that_has_no_word_of_a_name_or_number_is_wrong(question: str, reference: str, answer: str) -> None:
    assert label(question, [reference], answer) is False


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        (CAPITAL, "Paris", "It is not Paris."),
        (CAPITAL, "Paris", "It isn't Paris."),
        (CAPITAL, "Paris", "Either Paris or Lyon."),
        (CAPITAL, "Paris", "It was long thought to be Paris, but it is Lyon."),
        (CAPITAL, "Paris", "That it is Paris is a common misconception."),
        (CAPITAL, "Paris", "It is near Paris."),
        ("Which continent is it?", "Africa", "South Africa"),
        ("Which continent is it?", "America", "It is America First."),
        ("How many people came?", "5", "5 million people came."),
        ("How many people came?", "5", "More than 5 people came."),
        ("What does it cost?", "5", "It costs $5."),
        ("What is left?", "42", "-42"),
        ("When was it built?", "1901", "It was built 1901-1905."),
        ("When was he born?", "14 March 1879", "He was born on March 15, 1879."),
        ("Which king was it?", "Henry VIII", "Henry VII"),
        ("Which phone is it?", "iPhone15", "iPhone14"),
        ("Is it Paris or Lyon?", "Paris", "Paris is larger than Lyon."),  # the words are the question's
        ("What is the plural of toy?", "toys", "The plural of toy is toy."),
        ("Why?", "a centre for international trade", "Because of its port."),  # a description has many wordings
        ("Is water wet?", "yes", "Yes, but only the opposite is true."),
        ("Is water wet?", "yes", "It depends."),
    ],
)
def test_a_doubt_leaves_an_answer_undecided(question: str, reference: str, answer: str) -> None:
    given = Stated().label(answer, Question(id="q", question=question, references=(reference,)))
    assert given.correct is None
    assert given.detail


def test_several_references_that_a_question_asks_for_must_all_be_stated() -> None:
    asked, references = "name two fibres made of proteins", ["wool", "silk", "hair"]
    assert label(asked, references, "Wool is one of them.") is None
    assert label(asked, references, "They are wool, and also silk.") is True


@pytest.mark.parametrize("answer", ["Anything but Paris.", "Lyon. It replaced Paris.", "It is Lyon and Paris."])
def test_word_rules_do_not_read_relations(answer: str) -> None:
    """A limitation that the docs name: such a sentence counts as right."""
    assert label(CAPITAL, ["Paris"], answer) is True


@pytest.mark.skipif(not HUMAN_LABELS.is_file(), reason="the folder of published outputs is not here")
@pytest.mark.parametrize(
    ("system", "agreement", "false_right", "undecided"),
    # Measured .988/.973/.949/.972/.951; .20/.26/1.6/.20/1.0 %; .21/.28/.27/.27/.30 on all 3,020 questions.
    [
        ("fid", 0.975, 0.006, 0.25),
        ("gpt35", 0.955, 0.008, 0.33),
        ("chatgpt", 0.925, 0.025, 0.33),
        ("gpt4", 0.955, 0.007, 0.32),
        ("newbing", 0.93, 0.016, 0.36),
    ],
)
def test_people_agree_with_what_it_decides(system: str, agreement: float, false_right: float, undecided: float) -> None:
    rule, labels = Stated(), list[tuple[bool | None, bool]]()
    for line in HUMAN_LABELS.read_text().splitlines()[::3]:
        row = json.loads(line)
        answer = row["answers"][system]
        if answer.get("text") and answer["correct"] is not None:
            question = Question(id=row["id"], question=row["question"], references=tuple(row["references"]))
            labels.append((rule.label(answer["text"], question).correct, answer["correct"]))
    decided = [(given, human) for given, human in labels if given is not None]
    assert len(labels) > 990
    assert sum(given == human for given, human in decided) / len(decided) > agreement
    assert sum(given and not human for given, human in decided) / len(labels) < false_right
    assert 1 - len(decided) / len(labels) < undecided
