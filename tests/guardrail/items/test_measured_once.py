"""A draw is measured once: asking again until an item is kept changes nothing. Without a memory it would."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import PrivateAttr

from guardrail import Guardrail
from guardrail.items.json_fields import json_spec
from guardrail.testing import ScriptedChat, ended, make_artifact
from guardrail.types import Sample

QUESTIONS, N, ATTEMPTS = 150, 4, 6


class Guesser(ScriptedChat):
    """Answers a question with one field; how often it is right depends on the question. Every call is another draw."""

    _dice: random.Random = PrivateAttr(default_factory=lambda: random.Random(11))

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        ease = (int(str(messages[-1].content)) % 10) / 10
        value = "right" if self._dice.random() < ease else self._dice.choice(["wrong", "worse"])
        return ChatResult(generations=[ChatGeneration(message=ended(AIMessage(json.dumps({"field": value}))))])


def shown(*, remember: float, attempts: int) -> list[Sample]:
    """Return the answers that a caller gets who asks again until something is kept."""
    model = Guesser()
    artifact = make_artifact(model, items=json_spec(cap=1), threshold=0.0, n=N)
    guard = Guardrail(model=model, artifact=artifact, remember=remember, max_concurrency=1)
    answers = []
    for question in range(QUESTIONS):
        for _ in range(attempts):
            verdict = guard.assess(str(question))
            if verdict.accepted:
                assert verdict.candidate is not None
                answers.append(verdict.candidate)
                break
    return answers


def broken(answers: list[Sample]) -> int:
    return sum("right" not in answer.text for answer in answers)


def test_asking_again_until_an_item_is_kept_selects_nothing() -> None:
    once, again = shown(remember=300, attempts=1), shown(remember=300, attempts=ATTEMPTS)
    assert [answer.text for answer in again] == [answer.text for answer in once]


@pytest.mark.slow
def test_without_a_memory_it_would_show_more_and_break_more() -> None:
    """Negative control: the same caller, and a guard that draws each time."""
    once, again = shown(remember=300, attempts=1), shown(remember=0, attempts=ATTEMPTS)
    assert len(again) > 1.3 * len(once)
    assert broken(again) / len(again) > 1.5 * broken(once) / len(once)
