"""What stands in place of an answer that was held back is one field, the same for every guard, and not prose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from guardrail import AbstainedError, Cascade, Guardrail
from guardrail.guard.abstention import ABSTAINED, Abstention
from guardrail.guard.messages import HANDOFF
from guardrail.sampling.effects import Steps
from guardrail.testing import ScriptedChat, make_artifact
from tests.guardrail.guard.test_routing import LARGE, SMALL
from tests.guardrail.guard.test_routing import artifact as cascade_artifact

NAMES = (SMALL.name_of_model, LARGE.name_of_model)
UNSURE = ScriptedChat(default=["a", "b", "c", "d"])
SURE = ScriptedChat(name_of_model="sure", default=["Lima"])


def guard(**settings: Any) -> Guardrail:
    return Guardrail(model=UNSURE, artifact=make_artifact(UNSURE, threshold=0.1, n=4), **settings)


def cascade(**settings: Any) -> Cascade:
    models = [ScriptedChat(name_of_model=name, default=["a", "b", "c", "d"]) for name in NAMES]
    return Cascade(models, artifact=cascade_artifact(0.1, 0.1), **settings)


def judging() -> Guardrail:
    return Guardrail(model=SURE, artifact=make_artifact(SURE, threshold=0.1, n=4))


class Desk:
    """A person: at once, or later under a ticket."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer

    def __call__(self, verdict: Any) -> Any:
        raise AssertionError("a handler of whole abstentions is asked by its method")

    def steps(self, abstention: Abstention, kept: AIMessage | None = None) -> Steps[Any]:
        yield from ()
        ticket = AIMessage("Your ticket is 7.", response_metadata={ABSTAINED: True, "review": {"ticket": "7"}})
        return ticket if self.answer is None else self.answer


UNPROMISED = AIMessage("Lima", response_metadata={"guardrail": {"accepted": False, "reason": "other_turns"}})
"""Of a guard that gives out an answer without its promise."""
PATHS: list[tuple[Any, str]] = [
    ("message", "text"),
    (SURE, "unjudged_answer"),
    (RunnableLambda(lambda messages: "Lima"), "unjudged_answer"),
    (RunnableLambda(lambda messages: UNPROMISED), "unjudged_answer"),
    (judging(), "judged_answer"),
    (lambda verdict: "Ann says Lima", "person"),
    (lambda verdict: None, "text"),
    (Desk("Ann says Lima"), "person"),
    (Desk(None), "person"),
]


@pytest.mark.parametrize(("path", "handoff"), PATHS)
@pytest.mark.parametrize("made", [guard, cascade])
def test_a_program_can_tell_what_it_got(made: Callable[..., Any], path: Any, handoff: str) -> None:
    guarded = made(on_abstain=path, remember=0) if made is guard else made(on_abstain=path)
    for message in (guarded.invoke("q"), asyncio.run(guarded.ainvoke("q"))):
        shown = message.response_metadata["guardrail"]
        assert (shown["accepted"], shown["handoff"]) == (False, handoff)
        assert HANDOFF not in message.response_metadata
        assert (ABSTAINED in message.response_metadata) == (message.content not in ("Lima", "Ann says Lima"))


def test_an_answer_of_the_gate_itself_has_no_handoff() -> None:
    assert "handoff" not in judging().invoke("q").response_metadata["guardrail"]


def test_a_fallback_whose_gate_abstains_gives_a_text_and_no_answer() -> None:
    other = ScriptedChat(name_of_model="other", default=["e", "f", "g", "h"])
    inner = Guardrail(model=other, artifact=make_artifact(other, threshold=0.1, n=4))
    message = guard(on_abstain=inner).invoke("q")
    assert message.response_metadata["guardrail"]["handoff"] == "text"
    with pytest.raises(AbstainedError):
        guard(on_abstain=inner.model_copy(update={"on_abstain": "raise"})).invoke("q")
