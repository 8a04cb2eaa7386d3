"""A made-up population for the tests of `calibrate`: questions of known difficulty and a scripted model."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult

from guardrail.testing import ScriptedChat

SIZE = 240
WORDS = ("amber", "birch", "cedar", "dahlia", "elm", "fern", "ginkgo", "hazel")
KILL_AFTER = "TEST_KILL_AFTER_CALLS"
"""Environment variable: the model kills its own process, as `kill -9` does, when it is called this many times."""


def rows(size: int = SIZE) -> list[dict[str, Any]]:
    """Open questions: "plant 7?" with one right word, and a category."""
    return [
        {
            "id": f"p{i}",
            "question": f"plant {i}?",
            "references": [WORDS[i % len(WORDS)]],
            "group": ("trees", "shrubs", "herbs")[i % 3],
        }
        for i in range(size)
    ]


def script(size: int = SIZE) -> dict[str, list[str | Exception]]:
    """Answers: the easier the question, the more often they are right. One draw for all, fixed by a seed."""
    dice = random.Random(7)
    answers: dict[str, list[str | Exception]] = {}
    for row in rows(size):
        right = row["references"][0]
        ease = dice.random() ** 0.4
        drawn = [right if dice.random() < ease else dice.choice(WORDS) for _ in range(11)]
        answers[row["question"]] = list(drawn)
    return answers


def write_questions(path: Path, size: int = SIZE) -> Path:
    """Write the questions as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(size)), encoding="utf-8")
    return path


class MortalChat(ScriptedChat):
    """A scripted model that may kill its own process at a given call."""

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        _count_down()
        return super()._generate(messages, stop=stop, run_manager=run_manager, **kwargs)


_LEFT = int(os.environ.get(KILL_AFTER, "-1"))
_LOCK = threading.Lock()


def _count_down() -> None:
    global _LEFT
    with _LOCK:
        if _LEFT == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        _LEFT -= 1


def model() -> MortalChat:
    """The model: `--model python:tests.calibrate.fakes:model`."""
    return MortalChat(script=script(), probability=0.5)


DOWN: set[int] = set()
"""Numbers of the plants that the model of `overloaded` fails to answer, as an overloaded server does."""


def overloaded() -> ScriptedChat:
    """The model behind a server that fails some calls: `--model python:tests.calibrate.fakes:overloaded`."""
    answers = {
        question: [ConnectionError("HTTP 503")] if i in DOWN else texts
        for i, (question, texts) in enumerate(script().items())
    }
    return scripted(answers)


def scripted(answers: Mapping[str, Sequence[str | Exception]]) -> ScriptedChat:
    """A model that answers from this script."""
    return ScriptedChat(script=answers, probability=0.5)


def faq_rows(size: int) -> list[dict[str, Any]]:
    """Questions of a shop: the reference is "12 days", the answer often a sentence around it."""
    return [{"id": f"f{i}", "question": f"How long for {i}?", "references": [f"{10 + i} days"]} for i in range(size)]


def faq() -> ScriptedChat:
    """The shop's model; every tenth answer is cut off: `--model python:tests.calibrate.fakes:faq`."""
    dice, script = random.Random(5), {}
    forms = ("{}", "It can be returned to us by post within {}.", "It is {}.")
    for i, row in enumerate(faq_rows(110)):
        ease = dice.random() ** 0.4
        drawn_texts = [
            row["references"][0] if dice.random() < ease else f"{dice.randrange(10, 99)} days" for _ in range(11)
        ]
        texts: list[str | Exception | AIMessage] = [dice.choice(forms).format(text) for text in drawn_texts]
        if i % 10 == 0:
            texts[0] = AIMessage(str(texts[0]), response_metadata={"finish_reason": "length"})
        script[row["question"]] = texts
    return ScriptedChat(script=script, probability=0.5)
