"""Texts of refused requests: they name fields of the request and settings of the configuration, and no Python."""

from __future__ import annotations

import re
from typing import Any

import pytest

from guardrail.errors import ArtifactMismatchError
from guardrail.prompting import PromptWrapping
from guardrail.testing import make_artifact
from tests.integrations.gateway.conftest import MODEL, SURE, Serve

PYTHON = re.compile(
    r"`|\('[^']*',|\b(guard|guardrail|calibrate|artifact|self)\.\w|\w\(|\w=[\"']|\w+Error\b|bindings_for|\bNone\b|<class"
)
USER, ANSWER = {"role": "user", "content": SURE}, {"role": "assistant", "content": "Paris"}


def test_a_refusal_of_other_turns_names_the_setting(serve: Serve) -> None:
    reply = serve().http.post("/v1/chat/completions", json={"model": "support", "messages": [USER, ANSWER, USER]})
    assert "other_turns=mark" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "prompt", [PromptWrapping(system="The code word is swordfish."), PromptWrapping(template="swordfish: {question}")]
)
def test_a_refusal_quotes_no_calibrated_prompt_and_speaks_of_turns_only_where_these_differ(
    serve: Serve, prompt: PromptWrapping, caplog: pytest.LogCaptureFixture
) -> None:
    """The prompt is the operator's; any client could read it by sending another one."""
    served = serve(artifact=make_artifact(MODEL, threshold=0.1, n=4, prompt=prompt))
    with caplog.at_level("DEBUG", logger="guardrail"):
        reply = served.ask(SURE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_as_calibrated")
    assert "swordfish" not in reply.text
    assert "turns" not in reply.text
    assert "swordfish" in caplog.text  # for the operator, at level DEBUG
    assert not any("swordfish" in record.getMessage() for record in caplog.records if record.levelname != "DEBUG")


SYSTEM = PromptWrapping(system="The code word is swordfish.")
DATED = PromptWrapping(system="Swordfish. It is {date}.", slots=("date",), question_slots=())


@pytest.mark.parametrize(
    ("prompt", "messages", "where"),
    [
        (SYSTEM, [USER], "The system message is missing"),
        (SYSTEM, [{"role": "system", "content": "Hi"}, USER], "The system message differs from the calibrated one"),
        (SYSTEM, [USER, {"role": "system", "content": SYSTEM.system}], "The system message is not the first message"),
        (PromptWrapping(), [{"role": "system", "content": "Hi"}, USER], "An extra message of role system"),
        (PromptWrapping(template="swordfish: {question}"), [USER], "The text around the question differs"),
        (
            DATED,
            [{"role": "system", "content": f"Swordfish. It is {'a' * 70}."}, USER],
            "The slot 'date' holds 70 characters in 1 line",
        ),
    ],
)
def test_a_refusal_says_where_a_prompt_differs_and_the_log_how_to_see_all_of_it(
    serve: Serve, prompt: PromptWrapping, messages: list[dict[str, Any]], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve({}, make_artifact(MODEL, threshold=0.1, n=4, prompt=prompt))
    reply = served.http.post("/v1/chat/completions", json={"model": "support", "messages": messages})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "not_as_calibrated")
    assert error["message"].startswith(where)
    assert "swordfish" not in error["message"].lower()
    assert not PYTHON.search(error["message"]), error["message"]
    assert "guardrail -v serve" in caplog.text
    if prompt.slots:
        assert "'date' among the question_slots" in error["message"]


def test_the_check_finds_python() -> None:
    for text in (
        "Use `guard.prompt | guard`.",
        'give turns="mark"',
        "guardrail.bindings.bindings_for(tools)",
        "ValueError: x",
    ):
        assert PYTHON.search(text)
    error = ArtifactMismatchError("the prompt differs.", "Use guard.prompt.")
    assert (str(error), error.fault) == ("the prompt differs. Use guard.prompt.", "the prompt differs.")
