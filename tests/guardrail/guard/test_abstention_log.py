"""The log of a guard says why an answer is held back and what to do, and quotes nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from langchain_core.messages import AIMessage

from guardrail import Guardrail
from guardrail.testing import ScriptedChat, make_artifact

SECRET = "zebra"


def logged(
    caplog: pytest.LogCaptureFixture, answers: Sequence[str | Exception | AIMessage], threshold: float | None = 0.2
) -> list[tuple[str, str]]:
    chat = ScriptedChat(script={SECRET: answers})
    artifact = make_artifact(chat, threshold=threshold, estimator="primary_disagreement")
    with caplog.at_level(logging.INFO, logger="guardrail"):
        Guardrail(model=chat, artifact=artifact).assess(SECRET)
    assert SECRET not in caplog.text
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_too_uncertain(caplog: pytest.LogCaptureFixture) -> None:
    ((level, line),) = logged(caplog, [SECRET, "b", "c"])
    assert level == "INFO"
    assert "held back (above_threshold; score primary_disagreement; artifact sha256:" in line
    assert "The uncertainty 1 is above the calibrated threshold 0.2. Hand" in line
    assert line.endswith("Hand the question to a person or a stronger model, or ask it more precisely.")


def test_a_failing_model_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ((level, line),) = logged(caplog, [SECRET, RuntimeError(SECRET)])
    assert level == "WARNING"
    assert "The uncertainty could not be measured (model_failed)." in line
    assert "Fix the cause and retry" in line


def test_an_artifact_without_a_threshold_names_no_fault_of_the_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    ((level, line),) = logged(caplog, [SECRET], threshold=None)
    assert level == "INFO"
    assert "The calibration found no threshold" in line
    chat = ScriptedChat()
    guard = Guardrail(model=chat, artifact=make_artifact(chat, threshold=None, estimator="primary_disagreement"))
    text = guard.assess("q").explain()
    assert "no samples are drawn without a threshold" in text
    assert "received 0" not in text


def test_an_empty_answer_is_not_said_to_be_fine() -> None:
    chat = ScriptedChat(script={"q": [""]})
    guard = Guardrail(model=chat, artifact=make_artifact(chat, threshold=0.2, estimator="primary_disagreement"))
    detail = guard.assess("q").detail
    assert "may be fine" not in detail
    assert "Hand the question to a person" in detail


def test_nothing_is_logged_of_an_acceptance(caplog: pytest.LogCaptureFixture) -> None:
    assert logged(caplog, ["a"]) == []
