"""Scorers of published packages on loopback: decision models of LangChain, openevals, deepeval.

`make test-scorers` installs the packages in a separate environment; a missing package skips its tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from guardrail import Guardrail, Scorer
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.types import Bindings, Unmeasured
from guardrail.verdict import Verdict
from integrations.scorers import evaluated, langchain_decision

from .scripted import serving

MODEL = ScriptedChat(default=["Paris"])
CALLING = AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 2}, "id": "c", "type": "tool_call"}])
PAGE = Path(__file__).parents[2] / "docs" / "scores.md"


TOOLS = Bindings(tools=({"type": "function", "function": {"name": "pay", "parameters": {}}},))


def verdict(own: Scorer, model: ScriptedChat = MODEL, bindings: Bindings | None = None) -> Verdict:
    artifact = make_artifact(model, estimator=own.estimator, bindings=bindings)
    return Guardrail(model=model, artifact=artifact, using={"scorer": own}, remember=0).assess("q?")


# -- langchain-core: BaseDecisionModel ---------------------------------------------------------------------------------


class Answers(HTTPServer):
    """An endpoint that notes its requests and gives one reply."""

    def __init__(self) -> None:
        self.reply: Any = {"model": "m", "answers": {"wrong": {"type": "noul", "noul": 0.25}}}
        self.status, self.seen = 200, list[Any]()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.seen.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                body = json.dumps(outer.reply).encode()
                self.send_response(outer.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def answers() -> Iterator[Answers]:
    with Answers() as endpoint:
        thread = Thread(target=endpoint.serve_forever)
        thread.start()
        yield endpoint
        endpoint.shutdown()
        thread.join()


def decision_model(answers: Answers) -> Any:
    decisions: Any = pytest.importorskip("langchain_core.decisions", reason="langchain-core is older than 1.8")
    import httpx

    class Remote(decisions.BaseDecisionModel):  # type: ignore[misc]
        """What a provider's package implements."""

        @property
        def _provider(self) -> str:
            return "remote"

        def _classify(self, state: Any, questions: Any) -> Any:
            asked = {name: question.model_dump(exclude_none=True) for name, question in questions.items()}
            shown = [{"role": each.type, "text": each.text, "calls": getattr(each, "tool_calls", [])} for each in state]
            url = f"http://127.0.0.1:{answers.server_port}/"
            reply = httpx.post(url, json={"state": shown, "questions": asked})
            return decisions.ClassifierResponse.model_validate(reply.raise_for_status().json())

    return Remote(model="m")


def test_a_decision_model_of_langchain_about_an_answer_and_about_a_tool_call(answers: Answers) -> None:
    own = langchain_decision(decision_model(answers), "The answer is wrong.")
    judged = verdict(own)
    assert (judged.accepted, judged.uncertainty.value, judged.cost.calls) == (True, 0.25, 2)
    assert own.params == {"model": "m", "wrong": "The answer is wrong.", "client": "langchain Remote"}
    assert verdict(own, ScriptedChat(default=[CALLING]), TOOLS).uncertainty.value == 0.25
    text, call = answers.seen
    assert text["questions"] == {"wrong": {"type": "noul", "instructions": "The answer is wrong."}}
    assert [(turn["role"], turn["text"]) for turn in text["state"]] == [("human", "q?"), ("ai", "Paris")]
    assert [(each["name"], each["args"]) for each in call["state"][-1]["calls"]] == [("pay", {"amount": 2})]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"reply": {"model": "other", "answers": {"wrong": {"type": "noul", "noul": 0.1}}}}, Unmeasured.JUDGE_FAILED),
        ({"reply": {"model": "m", "answers": {}}}, Unmeasured.JUDGE_FAILED),
        ({"reply": {"model": "m", "answers": {"wrong": {"type": "noul", "noul": 7}}}}, Unmeasured.JUDGE_FAILED),
        ({"status": 500}, Unmeasured.MODEL_FAILED),
        ({"status": 401}, Unmeasured.MISCONFIGURED),
    ],
)
def test_no_decision_is_no_acceptance(answers: Answers, changed: dict[str, Any], reason: Unmeasured) -> None:
    vars(answers).update(changed)
    judged = verdict(langchain_decision(decision_model(answers), "The answer is wrong."))
    assert (judged.accepted, judged.uncertainty.reason) == (False, reason)


# -- evaluators and metrics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "value"), [(0.75, 0.25), (True, None)])
def test_a_judge_of_openevals(score: Any, value: float | None) -> None:
    openevals = pytest.importorskip("openevals.llm", reason="make test-scorers installs it")
    from langchain_openai import ChatOpenAI

    with serving() as server:
        server.answer = lambda body: json.dumps({"reasoning": "because", "score": score})
        judge: Any = ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        evaluator = openevals.create_llm_as_judge(
            prompt="Is {outputs} right for {inputs}?", judge=judge, continuous=score is not True
        )
        judged = verdict(evaluated(evaluator, params={"prompt": "1", "model": "m"}))
        assert "Is Paris right for q??" in json.dumps(server.requests)
    assert (judged.uncertainty.value, judged.accepted) == (value, value is not None)


def test_a_metric_of_deepeval_in_the_lines_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPEVAL_TELEMETRY_OPT_OUT", "1")
    metrics = pytest.importorskip("deepeval.metrics", reason="make test-scorers installs it")
    (block,) = [text for text in re.findall("```python\n(.*?)```", PAGE.read_text(), re.S) if "deepeval" in text]
    page: dict[str, Any] = {}
    exec(block, page)
    for pattern, value in (("Par.*", 0.0), ("Rome", 1.0)):
        own = page["measured_by"](lambda pattern=pattern: metrics.PatternMatchMetric(pattern), pattern)
        assert verdict(own).uncertainty.value == value
