"""The wrapping renders, and refuses what was wrapped differently."""

from __future__ import annotations

import time

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import ValidationError

from guardrail.errors import ArtifactMismatchError
from guardrail.prompting import PromptWrapping, normal_form, question_text

BARE = PromptWrapping()
FULL = PromptWrapping(system="Be {brief}.", template="Q: {question}\nA:")


def test_options_are_rendered_one_a_line() -> None:
    assert BARE.render("Why?", {"A": "x", "B": "{y}"}) == "Why?\nA) x\nB) {y}"


def test_prompt_equals_messages_also_with_braces() -> None:
    question = "what is {this}?"
    assert FULL.to_prompt().invoke({"question": question}).to_messages() == FULL.messages(question)
    assert FULL.messages(question)[0].content == "Be {brief}."


@pytest.mark.parametrize("wrapping", [BARE, FULL])
def test_own_messages_pass(wrapping: PromptWrapping) -> None:
    assert wrapping.check(wrapping.messages("multi\nline?")) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("template", ["no placeholder", "{question} {question}"])
def test_template_has_one_placeholder(template: str) -> None:
    with pytest.raises(ValidationError, match="exactly once"):
        PromptWrapping(template=template)


def test_question_is_the_last_human_message() -> None:
    assert question_text([HumanMessage("a"), AIMessage("b"), HumanMessage("c"), AIMessage("d")]) == "c"


OPTIONS = {"A": "Paris", "B": "Rome", "C": "Bern\nor Oslo"}


@pytest.mark.parametrize(
    "wrapping",
    [
        PromptWrapping(),
        PromptWrapping(system="Be brief.", template="Q: {question}\nAnswer:"),
        PromptWrapping(option_template="({label})\n{text}"),
        PromptWrapping(option_template="{text} [{label}]"),
    ],
)
def test_messages_with_the_options_pass_and_without_them_are_refused(wrapping: PromptWrapping) -> None:
    options = {**OPTIONS, "C": "Bern"} if wrapping.option_template.startswith("{text}") else OPTIONS
    wrapping.check(wrapping.messages("Capital of France?", options), tuple(options))
    wrapping.check(wrapping.messages("Which?\nA) is a line of the question", options), tuple(options))
    for choices in (None, {"A": "Paris"}, {"A": "Paris", "B": "Rome"}, {**options, "C": " "}):
        with pytest.raises(ArtifactMismatchError, match=r"questions with the options \('A', 'B', 'C'\)"):
            wrapping.check(wrapping.messages("Capital of France?", choices), tuple(options))
    with pytest.raises(ArtifactMismatchError):
        wrapping.check(wrapping.messages("Capital?", dict(reversed(options.items()))), tuple(options))


def test_options_without_a_question_are_refused() -> None:
    with pytest.raises(ArtifactMismatchError, match="with the options"):
        PromptWrapping().check(PromptWrapping().messages("", {"A": "x", "B": "y"}), ("A", "B"))


def test_the_normal_form_of_a_long_run_of_spaces_takes_no_quadratic_time() -> None:
    start = time.perf_counter()
    assert normal_form("a" + " " * 200_000 + "b  \u200b\n c ") == "a b\n c"
    assert time.perf_counter() - start < 10  # it took minutes
