"""The code of docs/review.md runs as it stands, in order: a thread is the reviewer, a server is the receiver."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from calibrate.correctness import make_rule
from calibrate.data.collect import collect_records
from calibrate.data.formats.questions import read_questions
from guardrail.review import CandidateRule, Decision, Deliverer, ReviewStore
from guardrail.testing import ScriptedChat, make_artifact
from tests.calibrate import fakes
from tests.review_pages import reviewer

PAGE = (Path(__file__).parents[3] / "docs" / "review.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
QUESTION = "Who wrote The Waves?"
ANSWERS = ["Woolf", "Woolf", "Forster", "James", "Mansfield", "Woolf", "Stein", "Joyce", "Eliot", "Hardy", "Wells"]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CALLBACK = "https://example.org/decided"


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Names that the page assumes: a model, its artifact, and the records that the fit kept out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GUARDRAIL_WEBHOOK_SECRET", SECRET)
    model = ScriptedChat(script={**fakes.script(), QUESTION: ANSWERS})
    artifact = make_artifact(model).model_copy(update={"correctness": make_rule("token_f1").spec})
    artifact.save("artifact.json")
    questions = read_questions(fakes.write_questions(Path("questions.jsonl"), 80))
    collect_records(questions, model, artifact.plan, Path("artifact.test.jsonl"), name="questions.jsonl")
    namespace: dict[str, Any] = {"model": model, "SECRET": SECRET}
    yield namespace
    if "store" in namespace:
        namespace["store"].close()


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "docs/review.md", "exec"), names)


@contextmanager
def receiver(receive: Callable[[], Any]) -> Iterator[tuple[str, list[tuple[Any, bytes, Any]]]]:
    """A server that hands what is posted to the page's `receive`; its URL, and (headers, body, answer) of each post."""
    requests: list[tuple[Any, bytes, Any]] = []

    class Receive(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = receive()(dict(self.headers), body)
            requests.append((dict(self.headers), body, answer))
            self.send_response(answer or 204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receive)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/decided", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def deliver(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's deliverer, which runs until it is stopped: here, after one round."""
    until_stopped = Deliverer.run

    def one_round(self: Deliverer) -> None:
        self._hosts = ("127.0.0.1",)  # the receiver of the test
        assert self.run_once() == 1
        self.stop()
        until_stopped(self)
        self._store.close()

    monkeypatch.setattr(Deliverer, "run", one_round)
    run(block, {})


def test_every_block_of_the_page_runs(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wait, ticket, delivering, receiving, store_block, shown = BLOCKS
    with ReviewStore("reviews.db") as other, reviewer(other, lambda _: Decision(action="respond", text="V. Woolf")):
        run(wait, names)
    store: ReviewStore = names["store"]
    assert [(item.state, item.content.question) for item in store.items()] == [("decided", QUESTION)]

    with receiver(lambda: names["receive"]) as (url, requests):
        run(ticket.replace(CALLBACK, url), names)
        reply = names["guard"].invoke(QUESTION)
        queued = reply.response_metadata["review"]["ticket"]
        assert queued in reply.content
        decided: set[str] = set()
        names["already_seen"] = lambda event: event in decided
        run(receiving, names)
        run(store_block, names)  # decides the ticket, which is what there is to deliver
        assert store.stats().decided == 2
        deliver(delivering, monkeypatch)
    ((headers, body, answer),) = requests
    sent = json.loads(body)
    assert answer is None
    assert (sent["ticket"], sent["metadata"], sent["decision"]["text"]) == (queued, {"user": 7}, "Virginia Woolf")
    assert names["receive"](headers, body + b" ") == 401
    old = {**headers, "webhook-timestamp": "1000000000"}
    assert names["receive"](old, body) == 401
    decided.add(sent["id"])
    assert names["receive"](headers, body) == 204

    run(shown, names)
    with reviewer(store, lambda _: Decision(action="approve")):
        assert names["guard"].invoke(QUESTION).content == "Woolf"
    chosen = store.items()[-1].content.candidate_set
    assert chosen is not None
    assert chosen.epsilon == 0.2
    assert CandidateRule.load("candidates.json") == names["rule"]


def test_the_page_names_what_the_deliverer_and_the_command_do() -> None:
    assert "gives up after 15 attempts" in PAGE.replace("\n", " ")
    assert Deliverer.attempts == 15
