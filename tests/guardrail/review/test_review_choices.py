"""Decisions of one click on an answer of the list, without the page."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrail.judges import canonical_calls
from guardrail.review import ACTIONS, Candidate, CandidateSet, Content
from guardrail.review.web.choices import CHOSEN, Choice, choices_of, choose
from guardrail.types import ToolCall

TO_ANN = ToolCall(name="transfer", arguments={"to": "ann", "amount": 5.0})
TO_BOB = ToolCall(name="transfer", arguments={"to": "bob", "amount": 5})
BALANCE = ToolCall(name="balance", arguments={})


def content(candidate: Candidate | None, *answers: str, likely: tuple[str, ...] = (), **changes: Any) -> Content:
    """An item with these answers in its list."""
    chosen = None
    if likely:
        pairs = tuple((text, 1 / len(likely)) for text in likely)
        chosen = CandidateSet(answers=pairs, epsilon=0.2, attained=True, attainable=0.1, delta=0.1)
    shares = tuple((text, 1 / len(answers)) for text in answers)
    return Content(question="?", candidate=candidate, alternatives=shares, candidate_set=chosen, **changes)


def named(item: Content, text: str) -> Choice:
    """The row of a text."""
    return next(choice for choice in choices_of(item) if choice.text == text)


def action_of(choice: Choice) -> str | None:
    """What choosing an answer decides."""
    return None if choice.decision is None else choice.decision.action


def test_another_answer_is_an_edit_and_the_candidate_an_approval() -> None:
    item = content(Candidate(text="Woolf"), "Woolf", "  Mansfield <b> ")
    approve, edit = choices_of(item)
    assert (approve.judged, action_of(approve), approve.digit) == (True, "approve", "1")
    assert (edit.judged, action_of(edit), edit.digit) == (False, "edit", "2")
    decision = choose(item, edit.key, "looked up")
    assert decision is not None
    assert decision.candidate == Candidate(text="  Mansfield <b> ")
    assert decision.note == f"looked up {CHOSEN}"
    decision = choose(item, approve.key, "looked up")
    assert decision is not None
    assert (decision.action, decision.candidate, decision.note) == ("approve", None, "looked up")
    assert decision.outcome(item) == Candidate(text="Woolf")


@pytest.mark.parametrize("worded", ["Virginia Woolf", "virginia  woolf.", " VIRGINIA\nWOOLF "])
def test_the_candidate_in_other_case_is_the_candidate_and_shown_in_its_own_wording(worded: str) -> None:
    (row,) = choices_of(content(Candidate(text="Virginia Woolf."), worded))
    assert (row.judged, action_of(row), row.text) == (True, "approve", "Virginia Woolf.")


@pytest.mark.parametrize(
    ("candidate", "other"), [("C", "C++"), ("5", "-5"), ("3.5", "35"), ("Woolf", "Woolf?"), (".", "")]
)
def test_other_signs_are_another_answer(candidate: str, other: str) -> None:
    for choice, another in ((candidate, other), (other, candidate)):
        (row,) = choices_of(content(Candidate(text=choice), another))
        assert not row.judged


def test_each_answer_is_listed_once_with_its_whole_share() -> None:
    """The calibrated list first, with the shares that its promise is about; four of the eight samples say Forster."""
    likely = CandidateSet(
        answers=(("Woolf", 0.25), ("Mansfield", 0.125)), epsilon=0.2, attained=True, attainable=0.1, delta=0.1
    )
    others = (("woolf", 0.25), ("Forster", 0.375), ("mansfield.", 0.125), ("forster.", 0.125), ("Stein", 0.125))
    item = Content(question="?", candidate=Candidate(text="Woolf"), alternatives=others, candidate_set=likely)
    rows = [(choice.text, choice.share, choice.folded, choice.digit) for choice in choices_of(item)]
    assert rows == [
        ("Woolf", 0.25, False, "1"),
        ("Mansfield", 0.125, False, "2"),
        ("Forster", 0.5, True, ""),
        ("Stein", 0.125, True, ""),
    ]


def test_digits_are_for_what_is_in_sight() -> None:
    choices = choices_of(content(Candidate(text="x"), *(f"answer {i}" for i in range(12))))
    assert [choice.digit for choice in choices] == [*"12345678", "", "", "", ""]
    assert all(action_of(choice) == "edit" for choice in choices)
    likely = tuple(f"answer {i}" for i in range(12))
    choices = choices_of(content(Candidate(text="x"), likely=likely))
    assert [choice.digit for choice in choices] == [*"123456789", *[""] * 3]


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_answer_cannot_be_chosen(empty: str) -> None:
    item = content(Candidate(text="Woolf"), empty, "Forster")
    assert [(action_of(choice), choice.digit) for choice in choices_of(item)] == [(None, ""), ("edit", "1")]
    assert choose(item, choices_of(item)[0].key) is None
    assert choices_of(content(Candidate(text=""), ""))[0].decision is None


@pytest.mark.parametrize(
    ("allowed", "candidate", "actions"),
    [
        (("approve", "edit", "reject", "respond"), "Woolf", ["approve", "edit"]),
        (("approve", "edit", "reject"), "Woolf", ["approve", "edit"]),
        (("approve", "reject", "respond"), "Woolf", ["approve", "respond"]),
        (("edit", "reject"), "Woolf", [None, "edit"]),
        (("approve", "reject"), "Woolf", ["approve", None]),
        (("reject", "respond"), None, ["respond", "respond"]),
        (("reject",), None, [None, None]),
    ],
)
def test_only_what_is_allowed(allowed: Any, candidate: str | None, actions: list[str | None]) -> None:
    judged = None if candidate is None else Candidate(text=candidate)
    item = content(judged, "Woolf", "Forster", allowed=allowed)
    assert [action_of(choice) for choice in choices_of(item)] == actions
    decision = choose(item, named(item, "Forster").key)
    if actions[1] is not None:
        assert decision is not None
        assert decision.outcome(item) == Candidate(text="Forster")


def calling(*calls: ToolCall, **changes: Any) -> Content:
    """An item about tool calls, with another recipient, another tool and a text among the alternatives."""
    others = [canonical_calls(calls), canonical_calls([TO_BOB]), canonical_calls([BALANCE]), "It is done."]
    return content(Candidate(text="On it.", tool_calls=calls), *others, **{"kind": "tool_call", **changes})


def test_tool_calls_with_other_arguments() -> None:
    item = calling(TO_ANN)
    same, bob, other_tool, text = choices_of(item)
    assert [action_of(same), action_of(bob), action_of(other_tool), action_of(text)] == ["approve", "edit", None, None]
    decision = choose(item, bob.key)
    assert decision is not None
    # What the model said along with its own calls belongs to those.
    assert decision.candidate == Candidate(tool_calls=(TO_BOB,))
    assert list(decision.candidate.tool_calls[0].arguments) == ["to", "amount"]  # in the candidate's order
    # The text in place of a tool's result is the person's own, so an answer of the model is none.
    assert choices_of(calling(TO_ANN, allowed=("reject", "respond")))[1].decision is None


def test_who_waits_for_something_else_is_offered_nothing() -> None:
    # A plain graph's item about a whole message, calls and all: its edit is a text.
    assert [action_of(choice) for choice in choices_of(calling(TO_ANN, kind="answer"))] == ["approve", None, None, None]
    # Two calls: one is not enough.
    assert choices_of(calling(TO_ANN, BALANCE))[1].decision is None
    # A text is waited for: no calls.
    item = content(Candidate(text="Woolf"), canonical_calls([TO_BOB]), "Forster")
    assert [action_of(choice) for choice in choices_of(item)] == [None, "edit"]


def test_a_label_is_not_chosen_from_the_models_answers() -> None:
    """Their order and shares would lean it towards the score."""
    item = calling(TO_ANN, kind="audit", allowed=("approve", "edit", "reject"))
    assert [action_of(choice) for choice in choices_of(item)] == [None] * 4
    assert choose(item, named(item, "It is done.").key) is None


texts = st.sampled_from(["", " ", "a", "A.", "b", "c d", "C  D", canonical_calls([TO_BOB]), canonical_calls([BALANCE])])


@given(
    candidate=st.one_of(st.none(), st.builds(Candidate, text=texts), st.just(Candidate(tool_calls=(TO_ANN,)))),
    answers=st.lists(texts, max_size=12),
    likely=st.lists(texts, max_size=12),
    kind=st.sampled_from(["answer", "tool_call", "audit"]),
    allowed=st.lists(st.sampled_from(ACTIONS), min_size=1, unique=True),
)
def test_what_is_shown_is_what_goes_out(
    candidate: Candidate | None, answers: list[str], likely: list[str], kind: Any, allowed: Any
) -> None:
    if candidate is None:
        allowed = ["reject", "respond"]
    item = content(candidate, *answers, likely=tuple(likely), kind=kind, allowed=tuple(allowed))
    rows = [choice for choice in choices_of(item) if choice.decision is not None]
    assert [choice.digit for choice in rows if choice.digit] == list("123456789")[
        : sum(bool(choice.digit) for choice in rows)
    ]
    assert len({choice.key for choice in rows}) == len(rows)
    for row in rows:
        decision = choose(item, row.key)
        assert decision is not None
        assert decision.action == action_of(row)
        assert decision.action in allowed
        out = decision.outcome(item)
        assert out is not None
        assert (canonical_calls(out.tool_calls) if out.tool_calls else out.text) == row.text
        assert (decision.action == "approve") == row.judged
