"""Transport to an endpoint: deadlines that hold, retries, exact counts, no secrets in errors."""

from __future__ import annotations

import asyncio
import copy
import functools
import math
import operator
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run

from guardrail import Guardrail, SamplingPlan, Unmeasured
from guardrail.errors import GuardrailError, UsageError
from guardrail.sampling.sampler import Sampler
from guardrail.testing import make_artifact
from guardrail.types import SampleSet
from integrations._openai.clients import _sessions, session_of_loop
from integrations.openai_chat import DeadlineError, EndpointError, OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import LINE_ENDS, TRICKLES, Endpoint, eventually, serving

KEY, TOKEN = "sk-very-secret-0123456789", "header-secret-9876"
QUESTION = [HumanMessage("unsure?")]


def chat(endpoint: Endpoint, **settings: Any) -> OpenAICompatibleChat:
    return OpenAICompatibleChat(**{"model": "m", "base_url": endpoint.url, "api_key": KEY, "timeout": 20, **settings})


# -- ways to call


def invoke(model: OpenAICompatibleChat, **config: Any) -> str:
    return str(model.invoke("sure?", config or None).content)  # type: ignore[arg-type]


def ainvoke(model: OpenAICompatibleChat, **config: Any) -> str:
    return str(asyncio.run(model.ainvoke("sure?", config or None)).content)  # type: ignore[arg-type]


def stream(model: OpenAICompatibleChat, **config: Any) -> str:
    return "".join(str(chunk.content) for chunk in model.stream("sure?", config or None))  # type: ignore[arg-type]


def astream(model: OpenAICompatibleChat, **config: Any) -> str:
    async def collect() -> str:
        return "".join([str(chunk.content) async for chunk in model.astream("sure?", config or None)])  # type: ignore[arg-type]

    return asyncio.run(collect())


CALLS, STREAMS = (invoke, ainvoke), (stream, astream)


def drawn_by(way: str, model: OpenAICompatibleChat, plan: SamplingPlan) -> SampleSet:
    if way == "sync":
        return Sampler(model, plan).draw([QUESTION])[0]
    return asyncio.run(Sampler(model, plan).adraw([QUESTION]))[0]


# -- deadlines: a server that trickles gives up at last, so that a call without a deadline ends in another error


@pytest.mark.parametrize("way", [*CALLS, *STREAMS])
@pytest.mark.parametrize("mode", ["stall", *TRICKLES])
def test_the_deadline_holds_whatever_trickles(endpoint: Endpoint, mode: str, way: Any) -> None:
    endpoint.mode = mode
    with pytest.raises(DeadlineError, match=r"^no complete reply within the time-out of 0\.3 s$"):
        way(chat(endpoint, timeout=0.3))
    assert eventually(lambda: endpoint.open == 0)  # the connection is closed with it


@pytest.mark.slow
def test_the_time_that_a_reader_of_a_stream_takes_does_not_count(endpoint: Endpoint) -> None:
    endpoint.answers = {"sure?": ["one two three"]}
    model = chat(endpoint, timeout=4.0, temperature=0.0)
    texts = []
    for chunk in model.stream("sure?"):
        texts.append(chunk.content)
        time.sleep(1.4)  # three and more of them are longer than the deadline
    assert "".join(map(str, texts)) == "one two three"


def test_a_stream_that_is_left_early_closes_its_connection(endpoint: Endpoint) -> None:
    endpoint.mode = "trickle_events"
    model = chat(endpoint)
    chunks = model.stream("sure?")
    assert next(chunks).content == "a"
    chunks.close()  # type: ignore[attr-defined]
    assert eventually(lambda: endpoint.open == 0)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
def test_ctrl_c_frees_everything(endpoint: Endpoint) -> None:
    endpoint.mode = "stall"
    main = threading.get_ident()

    def interrupt() -> None:
        endpoint.stalled.wait(10)
        time.sleep(0.2)  # a request may arrive before its caller waits for it
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Sampler(chat(endpoint, timeout=60), SamplingPlan(n=4)).draw([QUESTION])
    assert eventually(lambda: endpoint.open == 0)
    endpoint.mode = "ok"
    assert invoke(chat(endpoint)) == "Paris"


# -- retries of streams


@pytest.mark.parametrize("way", STREAMS)
@pytest.mark.parametrize("mode", ["429", "500", "reset"])
def test_a_stream_is_asked_for_again_until_it_begins(endpoint: Endpoint, mode: str, way: Any) -> None:
    endpoint.mode, endpoint.faults = mode, 2
    assert way(chat(endpoint, max_retries=2)) == "Paris"
    assert endpoint.requests == 3
    endpoint.faults = 2
    with pytest.raises(EndpointError):
        way(chat(endpoint, max_retries=1))
    assert endpoint.requests == 5


@pytest.mark.parametrize("mode", LINE_ENDS)
def test_events_are_read_whatever_ends_their_lines(endpoint: Endpoint, mode: str) -> None:
    """A server may end lines with CR, CR LF or LF; its answer must not be lost for that."""
    endpoint.answers, endpoint.mode = {"sure?": ["one two three"]}, mode
    assert stream(chat(endpoint)) == "one two three"


@pytest.mark.parametrize("way", STREAMS)
@pytest.mark.parametrize("mode", ["html", "list", "deep", "empty"])
def test_what_is_no_stream_is_an_error(endpoint: Endpoint, mode: str, way: Any) -> None:
    endpoint.mode = mode
    with pytest.raises(EndpointError, match="model 'm': "):
        way(chat(endpoint))


@pytest.mark.parametrize("way", STREAMS)
def test_a_stream_that_breaks_off_is_an_error(endpoint: Endpoint, way: Any) -> None:
    endpoint.mode = "cut_stream"
    with pytest.raises(EndpointError, match="ended without a finish_reason, so the answer is cut off"):
        way(chat(endpoint))


@pytest.mark.parametrize("mode", ["ok", "ends_with_text", "running_totals"])
def test_what_a_stream_used_is_counted_once_whenever_the_server_tells(endpoint: Endpoint, mode: str) -> None:
    endpoint.answers, endpoint.mode = {"sure?": ["one two three"]}, mode
    chunks = list(chat(endpoint).stream("sure?"))
    whole = functools.reduce(operator.add, chunks)
    assert (whole.content, whole.response_metadata["finish_reason"]) == ("one two three", "stop")
    usages = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usages == [whole.usage_metadata] == [{"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}]


# -- counts


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_request_that_waits_for_its_turn_is_sent_and_counted(endpoint: Endpoint, way: str) -> None:
    endpoint.mode = "stall"
    plan = SamplingPlan(n=4)
    drawn = drawn_by(way, chat(endpoint, timeout=0.5, max_concurrency=2), plan)  # three of five wait; that time is free
    assert drawn.problem is Unmeasured.MODEL_FAILED
    assert drawn.cost.calls == 5
    assert eventually(lambda: endpoint.requests == drawn.cost.calls)


def test_no_attempt_is_made_without_time(endpoint: Endpoint) -> None:
    sending = chat(endpoint)._endpoint().asend({"model": "m", "messages": []}, time.monotonic() - 1)
    attempted = asyncio.run(sending)
    assert isinstance(attempted.error, DeadlineError)
    assert attempted.attempts == endpoint.requests == 0


def test_a_server_that_is_not_there_was_sent_nothing() -> None:
    model = OpenAICompatibleChat(model="m", base_url="http://127.0.0.1:1/v1", timeout=20)
    (drawn,) = Sampler(model, SamplingPlan(n=2)).draw([QUESTION])
    assert (drawn.problem, drawn.cost.calls) == (Unmeasured.MISCONFIGURED, 0)


# -- a server that gives no more than four answers at once


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("several", [None, True])
def test_a_server_that_refuses_so_many_at_once_is_asked_one_by_one(
    endpoint: Endpoint, several: bool | None, way: str
) -> None:
    endpoint.mode = "n_capped"
    model = chat(endpoint, several_per_call=several)
    guard = Guardrail(model=model, artifact=make_artifact(model, n=6), remember=0)
    verdicts = [guard.assess("unsure?") if way == "sync" else asyncio.run(guard.aassess("unsure?")) for _ in range(2)]
    assert [verdict.uncertainty.reason for verdict in verdicts] == [None, None]
    # a probe of 5, a greedy answer, the six at once that were refused, and six alone; later without the refusal
    assert [verdict.cost.calls for verdict in verdicts] == [5 + 1 + 1 + 6, 1 + 6]
    assert endpoint.requests == 20
    assert len({body["seed"] for body in endpoint.bodies[5:] if "n" not in body}) == 7
    assert model._state.refused_n == 6


def test_a_request_that_is_refused_for_another_reason_stays_refused(endpoint: Endpoint) -> None:
    model = chat(endpoint, several_per_call=True)
    endpoint.mode = "400"
    (drawn,) = Sampler(model, SamplingPlan(n=6)).draw([QUESTION])
    assert drawn.problem is Unmeasured.REJECTED
    assert "2 of 2 calls failed, the first with ReplyError (HTTP status 400" in drawn.problem_detail
    assert drawn.cost.calls == endpoint.requests == 3  # greedy, six at once, one alone
    assert model._state.refused_n == math.inf


# -- a model that thinks


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_model_that_thinks_is_probed_with_longer_answers(endpoint: Endpoint, way: str) -> None:
    endpoint.mode = "thinking"
    model = chat(endpoint)
    artifact = make_artifact(model, n=4)

    def ask(max_tokens: int) -> Any:
        plan = artifact.plan.model_copy(update={"max_tokens": max_tokens})
        guard = Guardrail(model=model, artifact=artifact.model_copy(update={"plan": plan}))
        return guard.assess("sure?") if way == "sync" else asyncio.run(guard.aassess("sure?"))

    short = ask(100)
    assert short.uncertainty.reason is Unmeasured.MODEL_FAILED
    assert "spent all 100 tokens of an answer on thought" in short.detail
    assert "max_tokens" in short.detail
    assert short.cost.calls == 4 + 4 + 1
    assert ask(100).cost.calls == 1  # known
    long = ask(512)  # not known: another plan gives it more
    assert long.accepted
    assert long.cost.calls == 4 + 4 + 1 + 2
    assert ask(512).cost.calls == 2


# -- secrets


class Traces(BaseTracer):
    """Keeps what a tracer would send away."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def _persist_run(self, run: Run) -> None:
        self.text += run.model_dump_json()


def chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("way", [*CALLS, *STREAMS])
@pytest.mark.parametrize("mode", ["echo_401", "echo_200", "echo_stream", "400"])
def test_a_key_that_a_server_echoes_is_shown_nowhere(endpoint: Endpoint, mode: str, way: Any) -> None:
    endpoint.mode = mode
    model = chat(endpoint, default_headers={"X-Token": f"Token {TOKEN}"})
    traces = Traces()
    with pytest.raises(GuardrailError) as caught:
        way(model, callbacks=[traces])
    assert endpoint.headers[-1]["x-token"] == f"Token {TOKEN}"
    if mode == "echo_401":
        assert isinstance(caught.value, EndpointError)
        assert caught.value.status_code == 401
    shown = ["".join(traceback.format_exception(caught.value)), traces.text]
    assert list(chain(caught.value)) == [caught.value]  # nothing that it came from
    for error in chain(caught.value):
        shown += [str(error), repr(error), str(vars(error)), str(error.args)]
    assert traces.text
    for text in shown:
        # also no beginning of one: a message is cut after it was cleaned
        assert not any(secret[:9] in text for secret in (KEY, TOKEN))


# -- clients


@pytest.mark.parametrize("way", [*CALLS, *STREAMS])
def test_a_copy_with_another_address_talks_to_that(endpoint: Endpoint, way: Any) -> None:
    with serving(Endpoint(answers={"sure?": ["Oslo"]})) as other:
        model = chat(endpoint)
        assert way(model) == "Paris"
        moved = model.model_copy(update={"base_url": other.url, "api_key": None, "default_headers": {"X-A": "b"}})
        assert way(moved) == "Oslo"
        assert KEY not in str(other.headers)
        assert other.headers[-1]["x-a"] == "b"
        assert way(model) == "Paris"
        moved.base_url = endpoint.url
        assert way(moved) == "Paris"


def test_a_copy_with_the_same_address_shares_connections(endpoint: Endpoint) -> None:
    model = chat(endpoint)
    for copied in (model, model.model_copy(update={"temperature": 0.5}), model):
        assert invoke(copied) == "Paris"
    assert endpoint.open == 1


def test_deep_copies_and_pickles_start_afresh(endpoint: Endpoint) -> None:
    model = chat(endpoint)
    assert invoke(model) == "Paris"
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (copied.model_dump(), copied.api_key) == (model.model_dump(), model.api_key)
        assert copied._state is not model._state
        assert invoke(copied) == "Paris"


def test_an_idle_connection_is_closed(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that asks seldom keeps no connection open at the server."""
    monkeypatch.setattr("integrations._openai.clients.IDLE", 0.05)
    model = chat(endpoint)

    async def main() -> None:
        assert (await model.ainvoke("sure?")).content == "Paris"
        assert endpoint.open == 1
        while endpoint.open:
            await asyncio.sleep(0.01)
        assert (await model.ainvoke("sure?")).content == "Paris"

    asyncio.run(asyncio.wait_for(main(), 20))


def test_a_loop_may_end_while_another_gets_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a question fails with a RuntimeError ("dictionary changed size") because another thread is done."""
    open_, end = threading.Event(), threading.Event()

    async def asks_and_ends() -> None:
        await session_of_loop()
        open_.set()
        await asyncio.to_thread(end.wait, 20)

    other = threading.Thread(target=lambda: asyncio.run(asks_and_ends()))

    class Slow:
        """A loop that is looked at for so long that the other one ends."""

        def is_closed(self) -> bool:
            end.set()
            other.join(0.3)
            return False

    other.start()
    assert open_.wait(20)
    monkeypatch.setitem(_sessions, Slow(), (None, None))  # type: ignore[misc]
    try:
        asyncio.run(session_of_loop())
    finally:
        end.set()
        other.join(20)
    assert not other.is_alive()


SCRIPT = """
import os, sys
from integrations.openai_chat import OpenAICompatibleChat
model = OpenAICompatibleChat(model="m", base_url=sys.argv[1], timeout=20)
said = [model.invoke("sure?").content]
child = os.fork()
said += [model.invoke("sure?").content, next(iter(model.stream("sure?"))).content]
if not child:
    os._exit(said != ["Paris"] * 3)  # as multiprocessing does
assert said == ["Paris"] * 3, said
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_forked_process_has_connections_of_its_own_and_both_end_quietly(endpoint: Endpoint) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SCRIPT, endpoint.url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_connection_that_fails_names_the_address_without_its_secrets() -> None:
    model = OpenAICompatibleChat(model="m", base_url="http://127.0.0.1:9/secret-path/v1", api_key=KEY, max_retries=0)
    with pytest.raises(EndpointError, match=r"No connection to http://127\.0\.0\.1:9: check base_url") as caught:
        model.invoke("hi")
    assert "secret" not in str(caught.value)


def test_settings_of_transport_reach_the_server(endpoint: Endpoint) -> None:
    sent: dict[str, Any] = {"user": "alice", "service_tier": "flex", "store": False, "safety_identifier": "a"}
    model = chat(endpoint)
    model.invoke("q", **sent)
    [drawn] = model.draw_samples([[HumanMessage("q")]], SamplingPlan(n=2), seeds=[1], **sent)
    assert drawn.problem is None
    assert all(sent.items() <= request.items() for request in endpoint.bodies)
    assert endpoint.requests >= 2
    with pytest.raises(UsageError, match="timeout and default_headers are its own fields"):
        model.invoke("q", extra_headers={"a": "b"})
