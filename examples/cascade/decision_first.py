"""A decision model first, an LLM where it is not certain, a person for the rest: on the loopback, in seconds.

    python -m examples.cascade.decision_first

Support tickets are sent to a team. Stage 1 is a decision model (OpenAI's decisions API): one short call returns the
team with its probability, which is the score. Stage 2 is an LLM, whose answer the decision model rates ("The answer is
wrong."). Both thresholds are certified together. The servers are scripted; the clients are the published ones.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, ClassVar

import openai
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from calibrate.data.questions import Question
from examples.cascade import Stage, System, fitted, report, system
from integrations.openai_chat import OpenAICompatibleChat
from integrations.scorers import decision

ALPHA = 0.1
LABELLED, FRESH = 400, 150
TEAMS = ("billing", "technical", "sales")
PERSON = "a person"


class Deciding(BaseChatModel):
    """A decision model as a chat model: the answer is its choice, with the log-probability of the choice."""

    guardrail_trusted: ClassVar[bool] = True
    client: Any
    name_of_model: str

    @property
    def _llm_type(self) -> str:
        return "deciding"

    def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
        return {"ls_provider": "openai-decisions", "ls_model_name": self.name_of_model}

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        question = {"type": "choice", "name": "team", "instructions": "Which team?", "choices": list(TEAMS)}
        reply = self.client.decisions.create(
            model=self.name_of_model,
            input=[{"role": "user", "content": messages[-1].text}],
            questions=[question],
        )
        answer = reply.answers[0]
        if answer.type != "choice" or reply.model != self.name_of_model:
            return ChatResult(generations=[ChatGeneration(message=AIMessage(""))])  # empty: the next stage is asked
        logprobs = {"content": [{"token": answer.choice, "logprob": math.log(max(answer.confidence, 1e-9))}]}
        message = AIMessage(answer.choice, response_metadata={"logprobs": logprobs, "finish_reason": "stop"})
        return ChatResult(generations=[ChatGeneration(message=message)])


def team(ticket: str) -> str:
    """The team that people would choose."""
    return TEAMS[random.Random(f"team {ticket}").randrange(3)]


def _guess(ticket: str, who: str, skill: float) -> tuple[str, float]:
    """A scripted model's team, and a probability that errs the less the easier the ticket is for it."""
    dice = random.Random(f"{who} {ticket}")
    ease = random.Random(f"ease {ticket}").gauss(skill, 2.5) + dice.gauss(0, 0.5)
    chance = 1 / (1 + math.exp(-ease))
    right, others = team(ticket), [each for each in TEAMS if each != team(ticket)]
    return (right if dice.random() < chance else dice.choice(others)), chance


def _reply(path: str, request: dict[str, Any]) -> dict[str, Any]:
    if path.endswith("/chat/completions"):
        answer, _ = _guess(request["messages"][-1]["content"], "llm", 4.0)
        candidate = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        usage = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "llm",
            "choices": [candidate],
            "usage": usage,
        }
    ticket, question = request["input"][0]["content"], request["questions"][0]
    if question["type"] == "predicate":
        _, chance = _guess(ticket, "llm", 4.0)
        answered: dict[str, Any] = {"type": "predicate", "name": question["name"], "probability": 1 - chance}
    else:
        choice, chance = _guess(ticket, "decider", 2.0)
        rest = (1 - chance) / 2
        shares = [{"value": each, "probability": chance if each == choice else rest} for each in TEAMS]
        answered = {"type": "choice", "name": "team", "choice": choice, "confidence": chance, "probabilities": shares}
    spent = {
        "input_tokens": 20,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 21,
    }
    return {"answers": [answered], "model": request["model"], "usage": spent}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        body = json.dumps(_reply(self.path, request)).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def servers() -> Iterator[str]:
    """The scripted endpoint of both models on the loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def person(verdict: Any, messages: Any) -> str:
    """A person answers; here it is known to be right."""
    return team(messages[-1].text)


def run(labelled: int = LABELLED, fresh: int = FRESH) -> System:
    """Certify the cascade on labelled tickets, and ask it fresh ones."""
    tickets = [f"ticket {number}" for number in range(labelled + fresh)]
    with servers() as url, openai.OpenAI(base_url=url, api_key="none") as client, TemporaryDirectory() as folder:
        stages = (
            Stage("decision model", Deciding(client=client, name_of_model="decider-1"), "sequence_nll"),
            Stage(
                "LLM, rated by a decision",
                OpenAICompatibleChat(model="llm", base_url=url),
                decision(client, "decider-1", "The answer is wrong."),
            ),
        )
        questions = [Question(id=each, question=each, references=(team(each),)) for each in tickets[:labelled]]
        artifact = fitted(stages, questions, Path(folder), ALPHA)
        cascade = system(stages, artifact, person)
        return System().ask(cascade, stages, {each: team(each) for each in tickets[labelled:]}, PERSON)


if __name__ == "__main__":
    print("\n".join(report(run(), ALPHA, PERSON)))
