"""Several gateways on one store, stopping, and the files of `examples/deploy`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import venv
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from guardrail.errors import UsageError
from guardrail.review.errors import StoreUnavailableError
from guardrail.review.keys import ExpiringKeys
from guardrail.review.monitors import Monitors
from guardrail.review.store import ReviewStore
from guardrail.testing import make_artifact
from integrations._gateway.config import Config, parsed_config
from integrations.gateway import Gateway, _serve, _supervise, _work, add_arguments, run
from tests import postgres
from tests.integrations.gateway.conftest import MODEL, SURE, UNSURE, Held, Serve

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "examples" / "deploy"
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/reviews.db"
        return
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


# -- several gateways on one store -------------------------------------------------------------------------------------


def test_gateways_on_one_store_answer_as_one(serve: Serve, endpoint: Held, store_url: str) -> None:
    first, second = serve(reviews=store_url), serve(reviews=store_url)
    for question in (SURE, UNSURE):
        first_reply = first.ask(question).json()
        repeated = second.ask(question, AGAIN).json()
        assert repeated["choices"] == first_reply["choices"]
        assert repeated["guardrail"]["uncertainty"] == first_reply["guardrail"]["uncertainty"]
        assert repeated["usage"]["total_tokens"] == 0  # nothing was drawn
    assert endpoint.requests == 10
    endpoint.mode = "500"
    assert first.ask("down?").status_code == 503
    endpoint.mode = "ok"
    before = endpoint.requests
    assert second.ask("down?", AGAIN).status_code == 200  # an outage is not remembered
    assert endpoint.requests == before + 5
    serve().ask(SURE, AGAIN)  # the control: without the store they draw again
    assert endpoint.requests == before + 10


def test_a_process_that_is_started_again_while_the_gateway_stops_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    made, opened, create = list[Any](), list[socket.socket](), socket.create_server

    def listen(*address: Any, **settings: Any) -> socket.socket:
        opened.append(create(*address, **settings))
        return opened[-1]

    class Worker:
        """A process that ends at once, the first time; the signal to stop comes before it is started again."""

        name, exitcode, sentinel, pid = "worker 1", -9, 0, 0

        def __init__(self, **settings: Any) -> None:
            made.append(self)
            self.alive = len(made) > 1

        def start(self) -> None: ...

        def is_alive(self) -> bool:
            return self.alive

        def terminate(self) -> None:
            self.alive = False

    context, looks = SimpleNamespace(Process=Worker, set_forkserver_preload=lambda modules: None), iter(range(9))
    monkeypatch.setattr("integrations.gateway.multiprocessing.get_context", lambda method: context)
    monkeypatch.setattr("integrations.gateway.socket.create_server", listen)
    monkeypatch.setattr("integrations.gateway.wait", lambda sentinels, timeout: next(looks))
    monkeypatch.setattr("integrations.gateway.time.sleep", lambda seconds: signal.raise_signal(signal.SIGTERM))
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = [signal.getsignal(each) for each in signals]
    alias = {"upstream": {"url": "http://127.0.0.1:1/v1", "model": "m"}, "mode": "observe"}
    try:
        gateway = Gateway(Config.checked({"version": 1, "models": {"m": alias}, "port": 0}, "test"))
        _supervise(argparse.Namespace(workers=1), gateway)
    finally:
        for each, handler in zip(signals, former, strict=True):
            signal.signal(each, handler)
        for server in opened:
            server.close()
    assert [worker.alive for worker in made] == [False, False]


@pytest.mark.parametrize("verbose", [False, True])
def test_a_worker_writes_its_log_in_full_if_the_command_was_told_to(
    verbose: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests are answered in the workers, and a new process starts without the settings of the log."""
    told: list[str] = []
    for name in ("_gateway", "_serve", "show_details"):
        monkeypatch.setattr(f"integrations.gateway.{name}", lambda *_, name=name: told.append(name))
    monkeypatch.setattr("os.setpgrp", lambda: None)
    monkeypatch.setenv("GUARDRAIL_WORKER", "1")
    _work(argparse.Namespace(verbose=verbose), 1, [])
    assert told == ["show_details"] * verbose + ["_gateway", "_serve"]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_workers_share_a_port_and_draw_a_question_once(endpoint: Held, tmp_path: Path) -> None:
    config = tmp_path / "guardrail.yaml"
    upstream = {"url": endpoint.url, "model": "m", "key": "sk-upstream"}
    alias = {"upstream": upstream, "artifact": str(make_artifact(MODEL, threshold=0.1, n=4).save(tmp_path / "a.json"))}
    models = {"support": {**alias, "probe": "off"}}
    config.write_text(json.dumps({"version": 1, "port": 0, "reviews": str(tmp_path / "r.db"), "models": models}))
    command = [sys.executable, "-m", "guardrail", "serve", "--config", str(config), "--workers", "2"]
    body = {"model": "support", "messages": [{"role": "user", "content": UNSURE}]}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            shared = process.stdout.readline().split(" at ")[1].split()[0]
            ports = [int(port) for port in process.stdout.readline().rpartition(": ")[2].split(",")]
            own = [f"http://127.0.0.1:{port}/v1" for port in ports]
            replies = [httpx.post(f"{url}/chat/completions", json=body, timeout=60) for url in (*own, shared)]
            assert {reply.headers["x-guardrail-abstained"] for reply in replies} == {"true"}
            assert len({reply.headers["x-guardrail-uncertainty"] for reply in replies}) == 1
            assert endpoint.requests == 5  # drawn once
            children = [pid for child in children_of(process.pid) for pid in children_of(child)]
            assert len(children) == 2  # of the process that forks them
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            assert httpx.get(f"{own[0]}/models", timeout=60).status_code == 200  # started again
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


WORKERS: list[tuple[dict[str, Any], str]] = [
    ({}, "--workers needs --reviews STORE, or `reviews`"),
    ({"mode": "observe"}, r"needs its own record file. Put \$\{GUARDRAIL_WORKER\}"),
]


@pytest.mark.parametrize(("alias", "refusal"), WORKERS)
def test_workers_that_would_draw_twice_or_share_a_file_are_refused(
    tmp_path: Path, alias: dict[str, Any], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUARDRAIL_WORKER", "1")  # and put back at the end
    artifact = str(make_artifact(MODEL).save(tmp_path / "a.json"))
    records = {"records": {"path": str(tmp_path / "observed.jsonl")}}
    model = {"upstream": {"url": "http://127.0.0.1:1/v1", "model": "m"}, "artifact": artifact, "observe": records}
    config = tmp_path / "guardrail.yaml"
    config.write_text(json.dumps({"version": 1, "models": {"support": {**model, **alias}}}))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["--config", str(config), "--workers", "2"])
    with pytest.raises(UsageError, match=refusal):
        run(arguments)
    monkeypatch.delattr(os, "setpgrp")
    with pytest.raises(UsageError, match="needs a system that forks"):
        run(arguments)


def test_an_abstention_as_an_error_is_remembered_for_all(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    reviews = str(tmp_path / "reviews.db")
    first, second = (serve({"on_abstain": "error"}, reviews=reviews) for _ in range(2))
    reply, repeated = first.ask(UNSURE), second.ask(UNSURE, AGAIN)
    assert (reply.status_code, repeated.status_code, repeated.content) == (400, 400, reply.content)
    assert repeated.headers["x-guardrail-reason"] == "above_threshold"
    assert endpoint.requests == 5


def test_gateways_that_answer_side_by_side_give_the_same_answer(serve: Serve, endpoint: Held, store_url: str) -> None:
    endpoint.holding = True
    first, second = serve(reviews=store_url), serve(reviews=store_url)
    with ThreadPoolExecutor() as pool:
        pending = [pool.submit(served.ask, UNSURE) for served in (first, second)]
        endpoint.wait_for(10)
        endpoint.released.set()
        replies = [each.result(20).json() for each in pending]
    assert replies[0]["guardrail"]["uncertainty"] == replies[1]["guardrail"]["uncertainty"]
    assert first.ask(UNSURE).json()["guardrail"]["uncertainty"] == replies[0]["guardrail"]["uncertainty"]
    assert endpoint.requests == 10


def test_without_its_store_a_gateway_draws_nothing(
    serve: Serve, endpoint: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> None:
        raise StoreUnavailableError("the review store cannot be reached")

    served = serve(reviews=str(tmp_path / "reviews.db"))
    with monkeypatch.context() as unwritable:
        unwritable.setattr(ExpiringKeys, "add", unavailable)
        assert [served.ask().status_code for _ in range(2)] == [503, 503]
    assert served.ask().status_code == 200  # what was drawn meanwhile is told to the others, and given out
    monkeypatch.setattr(ExpiringKeys, "get", unavailable)
    reply = served.ask(UNSURE)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
    assert reply.headers["retry-after"]
    assert endpoint.requests == 5
    monkeypatch.setattr(ReviewStore, "item", unavailable)
    looked = served.http.get("/guardrail/v1/tickets/1")
    assert (looked.status_code, looked.json()["error"]["code"]) == (503, "store_unavailable")


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
def test_a_store_that_hangs_holds_no_question_longer_than_its_deadline(
    serve: Serve, endpoint: Held, store_url: str
) -> None:
    served = serve(reviews=store_url)
    database = served.gateway._store.database
    assert served.ask(UNSURE).status_code == 200  # the control: it can be reached
    with ThreadPoolExecutor(40) as pool:
        database.deadline = 0.15
        with postgres.stopped(store_url):
            replies = list(pool.map(served.ask, [SURE] * 40))  # more than there are threads to wait for the store
            assert {(reply.status_code, reply.json()["error"]["code"]) for reply in replies} == {
                (503, "store_unavailable")
            }
            assert served.http.get("/healthz").status_code == 200
            looked = served.http.get(f"/guardrail/v1/tickets/{'0' * 32}")
            assert (looked.status_code, looked.json()["error"]["code"]) == (503, "store_unavailable")
        assert endpoint.requests == 5  # nothing was drawn
        database.deadline, endpoint.holding = 5.0, True
        pending = pool.submit(served.ask)
        for _ in range(2):
            endpoint.wait_for(5)
        database.deadline = 0.15
        with postgres.stopped(store_url):
            endpoint.released.set()
            assert pending.result(20).status_code == 503  # another gateway could not continue this draw
        database.deadline = 5.0
        assert served.ask(headers=AGAIN).json()["guardrail"]["accepted"]
    assert endpoint.requests == 10


def test_gateways_share_a_drift_monitor(serve: Serve, tmp_path: Path) -> None:
    artifact = make_artifact(MODEL, threshold=0.1, n=4)
    reviews = str(tmp_path / "reviews.db")
    for served in (serve({"monitor": True}, artifact, reviews=reviews) for _ in range(2)):
        assert served.ask().json()["guardrail"]["accepted"]
    name = f"support-{artifact.digest[:12]}"
    with ReviewStore(reviews) as store:
        assert [(view.name, view.state.n) for view in Monitors(store).all()] == [(name, 2)]


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_what_runs_is_finished_and_remembered_when_it_stops(serve: Serve, endpoint: Held, tmp_path: Path) -> None:
    endpoint.holding = True
    reviews = str(tmp_path / "reviews.db")
    served = serve(reviews=reviews)
    served.leave(SURE, lambda: endpoint.wait_for(5))
    served.running.server.should_exit = True
    endpoint.released.set()
    served.running.thread.join(20)
    assert not served.running.thread.is_alive()
    assert serve(reviews=reviews).ask(headers=AGAIN).json()["guardrail"]["accepted"]
    assert endpoint.requests == 5


def test_after_the_grace_time_what_runs_is_stopped_and_free_for_others(
    serve: Serve, endpoint: Held, tmp_path: Path
) -> None:
    endpoint.holding = True
    reviews = str(tmp_path / "reviews.db")
    served = serve(reviews=reviews, drain=0)
    served.leave(SURE, lambda: endpoint.wait_for(5))
    served.running.server.should_exit = True
    served.running.thread.join(20)
    assert not served.running.thread.is_alive()
    endpoint.released.set()
    assert serve(reviews=reviews).ask(headers=AGAIN).json()["guardrail"]["accepted"]
    assert endpoint.requests == 10


def test_clients_of_stopped_questions_are_answered(
    endpoint: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.holding = True
    path = make_artifact(MODEL, threshold=0.1, n=4).save(tmp_path / "artifact.json")
    upstream = {"url": endpoint.url, "model": "m", "key": "k", "max_retries": 0}
    alias = {"upstream": upstream, "artifact": path, "probe": "off"}
    gateway = Gateway(Config.checked({"version": 1, "models": {"support": alias}, "port": 0, "drain": 0}, "test"))
    client = socket.socket()

    async def ask_and_stop(self: Any, sockets: object = None) -> None:
        client.connect(self.servers[0].sockets[0].getsockname())
        body = json.dumps({"model": "support", "messages": [{"role": "user", "content": SURE}]})
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await asyncio.to_thread(endpoint.wait_for, 5)

    monkeypatch.setattr("uvicorn.Server.main_loop", ask_and_stop)
    with client:
        serving = threading.Thread(target=_serve, args=(gateway,), daemon=True)
        serving.start()
        serving.join(20)
        assert not serving.is_alive()
        assert b'"stopping"' in client.recv(10_000)


# -- the files ---------------------------------------------------------------------------------------------------------


def steps() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, each with its argument."""
    text = re.sub(r"^#.*\n|\\\n\s*", "", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [(first, rest) for first, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def last(instruction: str) -> str:
    return [rest for first, rest in steps() if first == instruction][-1]


def test_the_image_runs_without_root_and_gets_its_signals() -> None:
    assert last("FROM") == "${PYTHON}"
    assert "slim" in dict(steps())["ARG"]
    assert last("USER") == "10001:10001"
    assert (yaml.safe_load(last("ENTRYPOINT")), yaml.safe_load(last("CMD"))[0]) == (["guardrail"], "serve")
    program = yaml.safe_load(last("HEALTHCHECK").partition(" CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "HEALTHCHECK", "exec")
    assert not any("ENV" in first and "KEY" in rest for first, rest in steps())
    sent = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").split()
    assert sent[0] == "*"
    assert all((ROOT / pattern[1:]).exists() for pattern in sent if pattern.startswith("!"))


def test_compose_and_configuration_fit_each_other(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    gateway, database = compose["services"]["gateway"], compose["services"]["database"]
    assert (DEPLOY / gateway["build"]["context"] / gateway["build"]["dockerfile"]).resolve() == DEPLOY / "Containerfile"
    assert gateway["depends_on"]["database"]["condition"] == "service_healthy"
    assert "healthcheck" in database
    assert {*gateway["secrets"], *database["secrets"]} == set(compose["secrets"])
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])
    mounted = {volume.split(":")[1] for volume in gateway["volumes"]}
    assert yaml.safe_load(last("CMD"))[-1] in mounted
    text = (DEPLOY / "guardrail.yaml").read_text(encoding="utf-8")
    secrets = set(re.findall(r"\$\{file:/run/secrets/(\w+)\}", text))
    assert secrets == set(gateway["secrets"])
    for name in secrets:
        (tmp_path / name).write_text("s3cret\n", encoding="utf-8")
    variables = dict.fromkeys(gateway["environment"], "a" * 64) | {"UPSTREAM_URL": "https://models.example/v1"}
    config = parsed_config(text.replace("/run/secrets", str(tmp_path)), "guardrail.yaml", variables)
    assert config.reviews is not None
    assert config.reviews.get_secret_value() == "postgresql://guardrail:s3cret@database/guardrail"
    assert "s3cret" not in config.model_dump_json()  # what `--check` prints
    assert str(config.models["support"].artifact) in mounted
    assert int(gateway["stop_grace_period"].removesuffix("s")) > config.drain
    user, name = (database["environment"][variable] for variable in ("POSTGRES_USER", "POSTGRES_DB"))
    assert f"//{user}:" in text
    assert f"/{name}\n" in text


@pytest.mark.slow
def test_the_steps_of_the_image_without_a_container(tmp_path: Path, endpoint: Held) -> None:
    """A fresh environment with the Containerfile's own pip commands serves, is ready, answers, and stops on SIGTERM."""
    venv.create(tmp_path / "app", with_pip=True)
    commands = [rest for first, rest in steps() if first == "RUN" and "pip install" in rest]
    assert any("--require-hashes" in command for command in commands)
    for command in commands:
        words = shlex.split(command.replace("/app/", f"{tmp_path}/app/"))
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    artifact = make_artifact(MODEL, threshold=0.1, n=4).save(tmp_path / "artifact.json")
    guardrail = [str(tmp_path / "app" / "bin" / "guardrail"), "serve", "--port", "0", "--upstream", endpoint.url]
    environment = {**os.environ, "OPENAI_API_KEY": "sk-upstream", "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONPATH", None)
    endpoint.holding = True
    with subprocess.Popen(
        [*guardrail, "--model", "m", "--artifact", str(artifact)], cwd=tmp_path, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as served:  # fmt: skip
        try:
            assert served.stdout is not None
            url = served.stdout.readline().split()[3].removesuffix("/v1")
            with urllib.request.urlopen(f"{url}/readyz", timeout=20) as reply:
                assert reply.status == 200
            body = b'{"model": "m", "messages": [{"role": "user", "content": "sure?"}]}'
            head = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/v1/chat/completions", body, head)
            with ThreadPoolExecutor() as pool:
                answer = pool.submit(lambda: urllib.request.urlopen(request, timeout=60).read())
                endpoint.wait_for(1)
                served.send_signal(signal.SIGTERM)
                endpoint.released.set()
                assert b'"accepted":true' in answer.result(60)  # what ran was finished
            assert served.wait(60) in (0, -signal.SIGTERM)
        finally:
            with suppress(ProcessLookupError):
                served.kill()
