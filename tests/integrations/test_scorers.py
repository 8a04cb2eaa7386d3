"""Ready-made scorers, against the published client on the loopback and against fakes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda

from guardrail import Guardrail, PromptWrapping, Scorer
from guardrail.judges import JudgeSpec
from guardrail.judges.base import EntailmentScores
from guardrail.prompting import turns_of
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Unmeasured
from guardrail.verdict import Verdict
from integrations.scorers import decision, grounded, stated_confidence

MODEL = ScriptedChat(default=["Paris"])


def verdict(
    own: Scorer, messages: Any = "q?", model: ScriptedChat = MODEL, prompt: PromptWrapping | None = None
) -> Verdict:
    turns = [turns_of(messages) if not isinstance(messages, str) else "human"]
    artifact = make_artifact(model, estimator=own.estimator, prompt=prompt, turns=turns)
    return Guardrail(model=model, artifact=artifact, scorer=own, remember=0).assess(messages)


# -- decisions ---------------------------------------------------------------------------------------------------------


class Decisions:
    """An endpoint of decisions that notes its requests and replies with one answer."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"type": "predicate", "name": "wrong", "probability": 0.25}
        self.model, self.status = "gpt-6-luna", 200
        self.seen: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                body = json.dumps({"answers": [outer.answer], "model": outer.model, "usage": {}}).encode()
                self.send_response(outer.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.settings: Any = {
            "base_url": f"http://127.0.0.1:{self.server.server_port}/v1",
            "api_key": "k",
            "max_retries": 0,
        }


@pytest.fixture
def decisions() -> Iterator[Decisions]:
    endpoint = Decisions()
    thread = threading.Thread(target=endpoint.server.serve_forever)
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    thread.join()
    endpoint.server.server_close()


def test_a_decision_about_an_answer(decisions: Decisions) -> None:
    with openai.OpenAI(**decisions.settings) as client:
        own = decision(client, "gpt-6-luna", "The answer is wrong.")
        judged = verdict(own)
    assert (judged.accepted, judged.uncertainty.value, judged.cost.calls) == (True, 0.25, 2)
    assert decisions.seen == [
        {
            "model": "gpt-6-luna",
            "input": [{"role": "user", "content": "q?"}, {"role": "assistant", "content": "Paris"}],
            "questions": [{"type": "predicate", "name": "wrong", "instructions": "The answer is wrong."}],
        }
    ]


def test_a_decision_about_a_tool_call_with_the_async_client(decisions: Decisions) -> None:
    def calling(amount: int, name: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": amount}, "id": name, "type": "tool_call"}])

    messages = [HumanMessage("pay"), calling(1, "c1"), ToolMessage("no", tool_call_id="c1"), HumanMessage("again")]
    own = decision(openai.AsyncOpenAI(**decisions.settings), "gpt-6-luna", "Not what the user asked for.", name="risk")
    judged = verdict(own, messages, ScriptedChat(default=[calling(2, "c2")]))
    assert judged.uncertainty.estimator == "score:risk@1"
    assert judged.uncertainty.value == 0.25
    assert decisions.seen[0]["input"] == [
        {"role": "user", "content": "pay"},
        {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": '{"amount":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "no"},
        {"role": "user", "content": "again"},
        {"type": "function_call", "call_id": "candidate-0", "name": "pay", "arguments": '{"amount":2}'},
    ]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"answer": {"type": "refusal", "name": "wrong"}}, Unmeasured.JUDGE_FAILED),
        ({"model": "gpt-7"}, Unmeasured.JUDGE_FAILED),
        ({"status": 500}, Unmeasured.MODEL_FAILED),
        ({"status": 401}, Unmeasured.MISCONFIGURED),
    ],
)
def test_no_decision_is_no_acceptance(decisions: Decisions, changed: dict[str, Any], reason: Unmeasured) -> None:
    vars(decisions).update(changed)
    with openai.OpenAI(**decisions.settings) as client:
        judged = verdict(decision(client, "gpt-6-luna", "The answer is wrong."))
    assert (judged.accepted, judged.uncertainty.reason) == (False, reason)


# -- stated confidence -------------------------------------------------------------------------------------------------


class Confident(ScriptedChat):
    """A chat model whose structured output is scripted."""

    reply: Any = None

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Any:
        async def answer(messages: Sequence[Any]) -> Any:
            assert json.loads(messages[-1].content) == {"question": "q?", "answer": "Paris"}
            return self.reply

        return RunnableLambda(answer)


@pytest.mark.parametrize(
    ("reply", "value"),
    [({"percent": 90}, 0.1), ({"percent": 0.0}, 1.0), ({"percent": 101}, None), ({}, None), (None, None)],
)
def test_stated_confidence(reply: Any, value: float | None) -> None:
    own = stated_confidence(Confident(reply=reply))
    judged = verdict(own)
    assert judged.uncertainty.value == (None if value is None else pytest.approx(value))
    assert own.params["model"]["model"] == "scripted"


# -- entailment --------------------------------------------------------------------------------------------------------


class Words:
    """A premise entails a hypothesis by the share of its words that it has; no score for an empty premise."""

    spec = JudgeSpec(name="words", version=1, params={})

    def entailment_batch(self, items: Sequence[tuple[str, str, str]]) -> list[EntailmentScores | None]:
        shares = []
        for question, premise, hypothesis in items:
            assert question == ""
            words = hypothesis.strip(".").split()
            shares.append(EntailmentScores(sum(word in premise for word in words) / len(words)) if premise else None)
        return shares


PROMPT = PromptWrapping(template="{context}\n--\n{question}", slots=("context",))


def test_the_weakest_sentence_decides_whether_an_answer_is_grounded() -> None:
    model = ScriptedChat(default=["Ann came. Bob left."])
    own = grounded(Words())
    messages = PROMPT.messages("q?", slots={"context": "Ann came. Bob slept."})
    assert verdict(own, messages, model, PROMPT).uncertainty.value == 0.5  # "Bob left": one of two words
    assert own.params == {"slot": "context", "entailment": {"name": "words", "version": 1, "params": {}}}


def test_nothing_to_compare_with_is_unmeasured() -> None:
    empty = PROMPT.messages("q?", slots={"context": ""})
    for own, messages, prompt in ((grounded(Words()), empty, PROMPT), (grounded(Words()), "q?", None)):
        assert verdict(own, messages, MODEL, prompt).uncertainty.reason is Unmeasured.JUDGE_FAILED


def test_ready_made_scorers_work_on_an_event_loop() -> None:
    own = stated_confidence(Confident(reply={"percent": 80}))
    guard = Guardrail(model=MODEL, artifact=make_artifact(MODEL, estimator=own.estimator), scorer=own)
    assert asyncio.run(guard.aassess("q?")).accepted
