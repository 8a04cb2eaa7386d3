"""Collection through a batch service: equal to live collection, in any order, through failures and kills."""

from __future__ import annotations

import hashlib
import json
import random
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from calibrate.cli import app
from calibrate.data.batches import Batches
from calibrate.data.collect import Collected, collect_records
from calibrate.data.questions import Question
from calibrate.data.records import read_records
from guardrail.errors import GuardrailError, UsageError
from guardrail.types import SamplingPlan
from integrations.openai_chat import OpenAICompatibleChat
from tests.calibrate import fakes

PLAN = SamplingPlan(n=4, temperature=0.7, max_tokens=16, logprobs=True, seed=3)
QUESTIONS = [Question(id=f"q{i}", question=f"Capital of land {i}?", references=("Oslo",)) for i in range(12)]
TOWNS = ("Oslo", "Bern", "Riga", "Kiev", "Rome")


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """A reply that depends on the request alone."""
    choices = []
    for place in range(body.get("n", 1)):
        sampled = f"{body['messages']}{body.get('seed')}/{place}" if body.get("temperature") else str(body["messages"])
        digest = hashlib.sha256(sampled.encode())
        town = f"{TOWNS[digest.digest()[0] % len(TOWNS)]} {digest.hexdigest()[:8]}"
        entry = {"token": town, "logprob": -0.3, "bytes": list(town.encode()), "top_logprobs": []}
        logprobs = {"content": [entry]} if body.get("logprobs") else None
        message = {"role": "assistant", "content": town}
        choices.append({"index": place, "message": message, "finish_reason": "stop", "logprobs": logprobs})
    usage = {"prompt_tokens": 7, "completion_tokens": len(choices), "total_tokens": 7 + len(choices)}
    return {"id": "x", "object": "chat.completion", "model": body["model"], "choices": choices, "usage": usage}


class Service:
    """An endpoint with /v1/chat/completions, /v1/files and /v1/batches."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.batches: list[dict[str, Any]] = []
        self.live = 0
        self.plan: list[str] = []
        """What happens to the next batches: "expire", "fail", or "errors"; the others complete."""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.endswith("/files"):
                    boundary = self.headers["Content-Type"].split("boundary=")[1].encode()
                    part = next(part for part in content.split(b"--" + boundary) if b"filename=" in part)
                    self.reply(
                        {"id": service.keep(part.split(b"\r\n\r\n", 1)[1].removesuffix(b"\r\n")), "object": "file"}
                    )
                elif self.path.endswith("/batches"):
                    self.reply(service.start(json.loads(content)))
                else:
                    service.live += 1
                    self.reply(completion(json.loads(content)))

            def do_GET(self) -> None:
                if content_of := re.search(r"/files/([^/]+)/content", self.path):
                    self.reply(service.files[content_of[1]])
                elif content_of := re.search(r"/batches/([^/?]+)", self.path):
                    self.reply(next(batch for batch in service.batches if batch["id"] == content_of[1]))
                else:
                    self.reply({"object": "list", "data": service.batches, "has_more": False})

            def reply(self, value: Any) -> None:
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def keep(self, content: bytes) -> str:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return name

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Run a batch at once."""
        fate = self.plan.pop(0) if self.plan else "complete"
        requests = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        batch = {
            "id": f"batch-{len(self.batches)}",
            "object": "batch",
            "created_at": 0,
            "endpoint": asked["endpoint"],
            "completion_window": "24h",
            "input_file_id": asked["input_file_id"],
            "metadata": asked["metadata"],
            "status": {"expire": "expired", "fail": "failed"}.get(fate, "completed"),
            "request_counts": {"total": len(requests), "completed": len(requests), "failed": 0},
        }
        if fate == "fail":
            batch["errors"] = {"object": "list", "data": [{"code": "x", "message": "the quota is used up"}]}
        else:
            finished = requests[: len(requests) // 2] if fate == "expire" else requests
            lines = [
                result_line(request, 500 if fate == "errors" and i % 3 == 0 else 200)
                for i, request in enumerate(finished)
            ]
            random.Random(0).shuffle(lines)
            batch["output_file_id"] = self.keep(b"".join(line for line in lines if b'"status_code": 200' in line))
            batch["error_file_id"] = self.keep(b"".join(line for line in lines if b'"status_code": 200' not in line))
        self.batches.append(batch)
        return batch


def result_line(request: dict[str, Any], status: int = 200) -> bytes:
    body = completion(request["body"]) if status == 200 else {"error": {"message": "overloaded"}}
    response = {"status_code": status, "request_id": "r", "body": body}
    return (
        json.dumps({"id": "x", "custom_id": request["custom_id"], "response": response, "error": None}).encode() + b"\n"
    )


@pytest.fixture
def service() -> Iterator[Service]:
    started = Service()
    yield started
    started.server.shutdown()
    started.server.server_close()


def model_of(service: Service, **settings: Any) -> OpenAICompatibleChat:
    port = service.server.server_address[1]
    return OpenAICompatibleChat(model="towns", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0, **settings)


def collected(service: Service, path: Path, *, model: Any = None, **settings: Any) -> Collected:
    model = model or model_of(service)
    batches = Batches(path, **{"wait": 0.0, **settings})
    return collect_records(QUESTIONS, model, PLAN, path, batches=batches)


def live_records(service: Service, path: Path, **settings: Any) -> Any:
    collect_records(QUESTIONS, model_of(service, **settings), PLAN, path)
    return contents(path)


def contents(path: Path) -> dict[str, Any]:
    """Records by id, without the seconds they took."""
    content_of = {}
    for record in read_records(path).records:
        assert record.drawn is not None
        cost = record.drawn.cost.model_copy(update={"seconds": 0.0})
        content_of[record.id] = record.model_copy(update={"drawn": record.drawn.model_copy(update={"cost": cost})})
    return dict(sorted(content_of.items()))


@pytest.mark.parametrize("together", [True, False])
def test_records_equal_those_of_live_collection(
    service: Service, tmp_path: Path, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrate.data.batches.MOST_REQUESTS", 20)
    live = live_records(service, tmp_path / "live.jsonl", several_per_call=together)
    live_calls = service.live
    model = model_of(service, several_per_call=together, max_reply=4000)
    done = collected(service, tmp_path / "b.jsonl", model=model)
    assert max(map(len, service.files.values())) > 4000  # the limit is that of a reply, not of a file with many
    assert (done.n_drawn, done.n_failed) == (12, 0)
    assert contents(tmp_path / "b.jsonl") == live
    assert len(service.batches) == (2 if together else 3)
    sent = sum(len(service.files[batch["input_file_id"]].splitlines()) for batch in service.batches)
    assert sent == 12 * (2 if together else 5)
    assert service.live - live_calls < 12  # the probe


@pytest.mark.parametrize("fate", ["expire", "errors"])
def test_only_what_has_no_answer_is_sent_again(service: Service, tmp_path: Path, fate: str) -> None:
    live = live_records(service, tmp_path / "live.jsonl")
    service.plan = [fate]
    collected(service, tmp_path / "b.jsonl")
    assert contents(tmp_path / "b.jsonl") == live
    first, second = (service.files[batch["input_file_id"]].splitlines() for batch in service.batches)
    assert 0 < len(second) < len(first)
    assert set(second) < set(first)


def test_a_question_without_answers_in_three_batches_fails_and_can_be_retried(service: Service, tmp_path: Path) -> None:
    service.plan = ["errors"] * 3
    done = collected(service, tmp_path / "b.jsonl")
    assert done.n_failed == 1  # of five requests of one question: 1/3 of 1/3 of 1/3 of 60 requests
    assert "overloaded" in next(iter(done.problems))
    done = collected(service, tmp_path / "b.jsonl")
    assert (done.n_drawn, done.n_failed) == (1, 0)
    assert contents(tmp_path / "b.jsonl") == live_records(service, tmp_path / "live.jsonl")


def test_a_batch_that_the_service_does_not_run_is_submitted_again(service: Service, tmp_path: Path) -> None:
    service.plan = ["fail"]
    with pytest.raises(GuardrailError, match=r"did not run batch batch-0 .*the quota is used up.*run the same"):
        collected(service, tmp_path / "b.jsonl")
    assert collected(service, tmp_path / "b.jsonl").n_drawn == 12
    assert len(list((tmp_path / "b.jsonl.batches").glob("*.requests.jsonl"))) == 1


def test_a_kill_after_the_submission_does_not_pay_twice(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = OpenAICompatibleChat.submit_batch

    def killed(*given: Any, **named: Any) -> str:
        submit(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(OpenAICompatibleChat, "submit_batch", killed)
    with pytest.raises(KeyboardInterrupt):
        collected(service, tmp_path / "b.jsonl")
    monkeypatch.undo()
    assert collected(service, tmp_path / "b.jsonl").n_drawn == 12
    assert len(service.batches) == 1


def test_a_record_file_that_was_lost_is_made_again_from_the_folder(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    collected(service, path)
    before = contents(path)
    path.unlink()
    assert collected(service, path).n_drawn == 12
    assert contents(path) == before
    assert len(service.batches) == 1


def test_requests_can_be_exported_and_their_results_imported_in_parts(service: Service, tmp_path: Path) -> None:
    path, results = tmp_path / "b.jsonl", tmp_path / "results.jsonl"
    assert collected(service, path, submit=False).n_drawn == 0
    assert (service.live, service.batches) == (0, [])  # no probe either: there may be no live endpoint
    [exported] = (tmp_path / "b.jsonl.batches").glob("*.requests.jsonl")
    lines = [result_line(json.loads(line)) for line in exported.read_bytes().splitlines()]
    results.write_bytes(b"".join(reversed(lines[:33])))
    assert collected(service, path, submit=False, results=[results]).n_drawn == 6
    [again] = (tmp_path / "b.jsonl.batches").glob("0002.requests.jsonl")
    assert len(again.read_bytes().splitlines()) == len(lines) - 33
    results.write_bytes(b"".join(lines))
    assert collected(service, path, submit=False, results=[results]).n_drawn == 6
    assert contents(path) == live_records(service, tmp_path / "live.jsonl", several_per_call=False)


def test_a_request_that_another_tool_never_answers_fails_in_the_end(service: Service, tmp_path: Path) -> None:
    """Otherwise the collection would never be complete, and the same command would write its request for ever."""
    path, results, drawn = tmp_path / "b.jsonl", tmp_path / "results.jsonl", list[int]()
    collected(service, path, submit=False)
    for number in (1, 2, 3):
        exported = (tmp_path / "b.jsonl.batches" / f"000{number}.requests.jsonl").read_bytes().splitlines()
        lines = [result_line(json.loads(line), 500 if place == 0 else 200) for place, line in enumerate(exported)]
        results.write_bytes(b"".join(lines))
        done = collected(service, path, submit=False, results=[results])
        drawn.append(done.n_drawn)
    assert (drawn, done.n_failed) == ([11, 0, 1], 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"custom_id": "x.primary", "response": {"status', r"results.jsonl:1: not a line"), (b"", "answers no request")],
)
def test_results_that_are_torn_or_of_something_else(
    service: Service, tmp_path: Path, content: bytes, message: str
) -> None:
    results = tmp_path / "results.jsonl"
    results.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        collected(service, tmp_path / "b.jsonl", submit=False, results=[results])


def test_a_folder_of_another_collection_is_refused(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    collected(service, path)
    path.unlink()
    other = PLAN.model_copy(update={"temperature": 1.0})
    with pytest.raises(UsageError, match=r"batches for other questions, another model or another plan"):
        collect_records(QUESTIONS, model_of(service), other, path, batches=Batches(path))


def test_models_and_plans_without_batches(tmp_path: Path, service: Service) -> None:
    path = tmp_path / "b.jsonl"
    with pytest.raises(UsageError, match="MortalChat has no batch service"):
        collect_records(QUESTIONS, fakes.model(), PLAN, path, batches=Batches(path, submit=False))
    asking = PLAN.model_copy(update={"follow_ups": ("p_true",)})
    with pytest.raises(UsageError, match="cannot ask the follow-up questions p_true"):
        collect_records(QUESTIONS, model_of(service), asking, tmp_path / "c.jsonl", batches=Batches(path, submit=False))


def test_the_command_line_says_what_to_do_with_exported_requests(service: Service, tmp_path: Path) -> None:
    rows = [
        {"id": question.id, "question": question.question, "references": list(question.references)}
        for question in QUESTIONS
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = f"openai-compatible:towns@{model_of(service).base_url}"
    command = ["collect", str(tmp_path / "q.jsonl"), "-m", model, "-o", str(tmp_path / "r.jsonl"), "--engine"]
    shown = CliRunner().invoke(app, [*command, "export"])
    assert shown.exit_code == 0, shown.output
    assert "--results" in shown.output
    [exported] = (tmp_path / "r.jsonl.batches").glob("*.requests.jsonl")
    results = tmp_path / "out.jsonl"
    results.write_bytes(b"".join(result_line(json.loads(line)) for line in exported.read_bytes().splitlines()))
    shown = CliRunner().invoke(app, [*command, "batch", "--results", str(results)])
    assert shown.exit_code == 0, shown.output
    assert "12 of 12 questions are on file" in shown.output
    refused = CliRunner().invoke(app, [*command, "live", "--results", str(results)])
    assert refused.exit_code
