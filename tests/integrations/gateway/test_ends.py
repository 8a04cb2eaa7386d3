"""The end of an answer on its way through the gateway: a bad end never becomes a good one."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from guardrail import Guardrail
from guardrail.errors import UnreadableReplyError
from guardrail.sampling.replies.read import read_reply
from guardrail.testing import ScriptedChat, make_artifact
from integrations._gateway.answers import GuardReply
from integrations._gateway.protocols.chat import completion
from integrations._gateway.protocols.dialect import Dialect
from integrations._gateway.protocols.messages import MESSAGES
from integrations._gateway.protocols.responses import RESPONSES
from integrations._openai.replies import message_of


def spelled(end: Any, *, script: list[str], **more: Any) -> tuple[str, str, str]:
    """The end of an answer in the three protocols; the verdict is on the script."""
    model = ScriptedChat(default=script)
    verdict = Guardrail(model=model, artifact=make_artifact(model, threshold=0.1, n=2)).assess("q").to_metadata()
    message = AIMessage("Lim", response_metadata={} if end is None else {"finish_reason": end})
    reply = GuardReply(message, {**verdict, **more.pop("fields", {})}, fallback="large", **more)
    whole = completion(reply, formatted=False, logprobs=False, request_id="r", model="m")
    return (
        whole["choices"][0]["finish_reason"],
        MESSAGES.reply(whole, {})["stop_reason"],
        RESPONSES.reply(whole, {})["status"],
    )


@pytest.mark.parametrize("end", ["error", "abort", None, "length"])
def test_an_answer_of_a_fallback_that_may_be_a_part_is_given_out_as_a_part(end: str | None) -> None:
    """Agents run on with an answer that ended with "stop"; half an answer must not look like a whole one."""
    assert spelled(end, script=["x", "y", "z"]) == ("length", "max_tokens", "incomplete")


@pytest.mark.parametrize("end", ["error", None, "length"])
def test_an_unjudged_answer_that_is_a_part_stays_one_where_the_operator_shows_stop(end: str | None) -> None:
    """``finish_reason: stop`` is for pages that hide filtered texts; it must not make half an answer whole."""
    fields = {"handoff": "unjudged_answer"}
    assert spelled(end, script=["x", "y", "z"], shape="stop", fields=fields) == ("length", "max_tokens", "incomplete")
    assert spelled("stop", script=["x", "y", "z"], shape="stop", fields=fields) == ("stop", "end_turn", "completed")
    assert spelled(end, script=["x", "y", "z"], fields=fields) == ("content_filter", "refusal", "completed")


def test_a_whole_answer_ends_as_one_also_where_the_model_never_says_it() -> None:
    """Such a model is answered only if a part counts as an answer; clients would take every answer for a part."""
    for end, script in (("end_turn", ["x", "y", "z"]), ("stop", ["x"]), (None, ["x"])):
        assert spelled(end, script=script) == ("stop", "end_turn", "completed")


@pytest.mark.parametrize(
    ("dialect", "reply"),
    [
        (MESSAGES, {"type": "message", "content": [{"type": "text", "text": "Lim"}], "stop_reason": "pause_turn"}),
        (RESPONSES, {"output": [], "status": "failed"}),
    ],
)
def test_an_observed_answer_keeps_its_end(dialect: Dialect, reply: dict[str, Any]) -> None:
    """Otherwise half an answer is measured, and recorded for a calibration, as a whole one."""
    assert dialect.observed is not None
    whole = dialect.observed([{"model": "m", "usage": {}, **reply}])
    with pytest.raises(UnreadableReplyError, match="ended with finish_reason"):
        read_reply(message_of(whole["choices"][0], whole, None))
