"""Characters that nobody sees: whoever varied them would draw a question again until an answer is accepted."""

from __future__ import annotations

import sys
import unicodedata
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from guardrail import Guardrail
from guardrail.judges.registry import make_judge
from guardrail.plain_json import BLANK, INVISIBLE, has_visible, visible
from guardrail.prompting import PromptWrapping, normal_form, prompt_content
from guardrail.testing import ScriptedChat, make_artifact

# Default-ignorable code points (DerivedCoreProperties.txt), controls, and what is not a character, one of each kind.
UNSEEN = [
    *("\x00", "\x07", "\x1b", "\x7f", "\x9f", "\u00ad", "\u034f", "\u061c", "\u17b4", "\u180b", "\u180e", "\u180f"),
    *("\u200b", "\u200d", "\u202e", "\u2060", "\u2065", "\u206f", "\ufe00", "\ufe0f", "\ufeff", "\ufff0", "\ufff9"),
    *("\ufdd0", "\uffff", "\U0001d173", "\U00016fe4", "\U000e0041", "\U000e0100", "\U000e0fff"),
]
EMPTY = ["\u115f", "\u1160", "\u3164", "\uffa0", "\u2800", "\U0001d159"]
"""Blanks: shown as a space or as nothing."""
SPACES = ["\x0b", "\x0c", "\x1c", "\x85", "\r", "\u2009", "\u200a", "\u202f", "\u2028", "\u2029"]
"""White space whose width, or line end, depends on where it is shown."""


@pytest.mark.parametrize("sign", UNSEEN, ids=ascii)
def test_what_nobody_sees_makes_no_other_question(sign: str) -> None:
    plain = normal_form("Is it 5 or 6?\n  no")
    assert normal_form(f"{sign}I{sign}s it{sign}  5 or{sign} {sign}6?\n{sign} {sign} no{sign * 3}\n") == plain
    assert not has_visible(f" {sign}\n")


@pytest.mark.parametrize("sign", EMPTY + SPACES, ids=ascii)
def test_a_blank_makes_one_other_question_at_most_wherever_it_stands(sign: str) -> None:
    places = ["What is{} it?\n  no", "What{} is it?\n  no", "What{}is{}it?{} \n{}no", "{}What is it?\n  no{}{}"]
    assert len({normal_form(text.replace("{}", sign)) for text in places} - {"What is it?\n  no"}) == 1
    assert not has_visible(f"{sign} {sign}")


MARKING = PromptWrapping(other_turns="mark")


@pytest.mark.parametrize("sign", ["\u2800", "\u3164", "\u2009", "\r"], ids=ascii)
@pytest.mark.parametrize("first", ["plain", "blank"])
def test_a_blank_gives_no_further_try(sign: str, first: str) -> None:
    """Nobody sees a blank at the end of a question, and each place of one would be another draw."""
    plain = [[HumanMessage("Rome?"), AIMessage("No."), HumanMessage("Who is it?")]]
    texts = [f"Who is it?{sign}", f"Who{sign}is it?", f"Who is{sign} it?", f"Wh{sign}o is it?"]
    blank: list[list[BaseMessage]] = [[*plain[0][:2], HumanMessage(text)] for text in texts]
    blank += [[HumanMessage(f"Rome?{sign}"), *plain[0][1:]], [HumanMessage(f"Rome?{sign}"), *blank[0][1:]]]
    model = ScriptedChat(default=["a", "b", "c", "d"])
    guard = Guardrail(model=model, artifact=make_artifact(model, threshold=0.0, n=3, prompt=MARKING))
    verdicts = [guard.assess(messages) for messages in (plain + blank if first == "plain" else blank + plain)]
    assert [verdict.cost.calls for verdict in verdicts] == [4] + [0] * 6


def test_questions_that_differ_in_white_space_stay_apart_beside_one_with_a_blank() -> None:
    """The answer to one of them was otherwise given out for the other."""
    model = ScriptedChat()
    guard = Guardrail(model=model, artifact=make_artifact(model, n=3))
    asked = ["now\u2800here?", "nowhere?", "now here?", "nowhere?", "now here?", "no\u2800where?"]
    assert [guard.assess(question).cost.calls for question in asked] == [4, 0, 4, 0, 0, 0]


def test_the_signs_left_out_are_all_that_unicode_names_in_the_running_version() -> None:
    unseen = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs")]
    assert all(INVISIBLE.fullmatch(sign) or sign.isspace() for sign in unseen)
    assert all(
        BLANK.fullmatch(sign) or sign in " \t\n\u00a0\u3000" for sign in map(chr, range(0x10000)) if sign.isspace()
    )


def test_indents_and_paragraphs_that_look_the_same_make_no_other_question() -> None:
    assert normal_form("if a:\n \tb\n\n\n\nc\r\nd") == normal_form("if a:\n\u00a0       b\n\n \nc\nd")
    assert normal_form("if a:\n  b") != normal_form("if a:\nb")


def test_earlier_calls_and_pictures_that_look_the_same_make_no_other_question() -> None:
    """A client of an agent's model sends the calls back, and could write them in countless ways."""

    def after(arguments: dict[str, Any], picture: dict[str, Any]) -> Any:
        call = {"name": "look", "args": arguments, "id": "c"}
        return prompt_content([HumanMessage(["q", picture]), AIMessage("", tool_calls=[call])])

    seen = after({"of": "a", "n": 1}, {"type": "image_url", "image_url": {"url": "x", "detail": "low"}})
    assert seen == after(
        {"n": 1, "of\u200b": "a\ufe0f"}, {"image_url": {"detail": "low", "url": "x"}, "type": "image_url"}
    )
    picture = {"type": "image_url", "image_url": {"url": "x", "detail": "low"}}
    for other in ({"of": "b", "n": 1}, {"of": "a", "n": True}, {"of": ["a"], "n": 1}, {"of": "a"}):
        assert seen != after(other, picture)


def test_a_picture_that_the_model_made_makes_another_question_and_its_thoughts_do_not() -> None:
    def after(*blocks: dict[str, Any]) -> Any:
        return prompt_content([HumanMessage("Draw."), AIMessage(["Here.", *blocks]), HumanMessage("What is it?")])

    assert after({"type": "image", "base64": "AA=="}) != after({"type": "image", "base64": "BB=="})
    assert after({"type": "thinking", "thinking": "hm", "signature": "a"}) == after()


def test_the_name_of_a_speaker_makes_no_other_question() -> None:
    def asked(name: str | None) -> list[BaseMessage]:
        return [HumanMessage("q", name=name), AIMessage("a", name=name), HumanMessage("r", name=name)]

    assert prompt_content(asked("user-1")) == prompt_content(asked("user-2")) == prompt_content(asked(None))


@pytest.mark.parametrize("sign", ["\x00", "\u034f", "\u200d", "\ufe0f", "\U000e0100"], ids=ascii)
def test_judges_do_not_tell_answers_apart_by_what_nobody_sees(sign: str) -> None:
    assert make_judge("exact").equivalent("", [(f"Par{sign}is", "Paris"), (f"5{sign}0", "50")]) == [True, False]
    assert make_judge("exact").equivalent("", [("New\u2800York", "New York")]) == [True]


def test_a_terminal_shows_what_hides_and_keeps_what_shapes_a_sign() -> None:
    assert visible("a\u034fb\u2800\ufff0") == "a\\u034fb\\u2800\\ufff0"
    assert visible("\u0645\u06cc\u200c\u062e \u2764\ufe0f \u8fbb\U000e0100") == (
        "\u0645\u06cc\u200c\u062e \u2764\ufe0f \u8fbb\U000e0100"
    )
