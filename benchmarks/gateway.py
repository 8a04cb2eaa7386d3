"""Cost of `guardrail serve`: ratios and differences measured in one run, and its resources after many requests.

    python -m benchmarks.gateway                     # latency and throughput
    python -m benchmarks.gateway load                # 50 and 200 clients, and the processor's time of a question
    python -m benchmarks.gateway hostile             # the wait of other clients while one sends hostile bodies
    python -m benchmarks.gateway floods              # upstreams that send without end
    python -m benchmarks.gateway --requests 50000    # memory over so many guarded questions
    python -m benchmarks.gateway --soak 3600         # leaks: a bounded rate of everything, with upstream faults

The upstream (loopback, fixed latency), the gateway and the clients run in separate processes. ``--litellm PYTHON``
measures LiteLLM's proxy beside it; it needs a separate environment:

    python3 -m venv litellm-venv && litellm-venv/bin/pip install "litellm[proxy]==1.108.7"
    python -m benchmarks.gateway --litellm litellm-venv/bin/python
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx
import numpy as np
import openai

from guardrail.testing import make_artifact
from integrations.openai_chat import OpenAICompatibleChat
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

__all__ = ["Footprint", "leaks", "soak"]

QUESTION = "What is the capital of France?"
FAULTS = ("500", "429", "stall", "reset", "html", "truncated", "cut_stream", "empty")
KEY = "sk-of-a-local-benchmark"
"""The clients' key."""
HEAD = {"authorization": f"Bearer {KEY}"}
PARTS = ("latency", "apart", "together", "passed", "load", "hostile", "floods")
TOLERATED = 10
"""Files, sockets or threads that a gateway may hold more than before: connections that have just been opened."""
GROWTH = 1.2
"""Growth of its memory that is tolerated: less than what a leak of every tenth request would hold."""
RESTS = 20.0
"""Seconds without requests before a measurement: longer than idle connections and running questions last."""
Call = Callable[[], Awaitable[Any]]


# -- processes --------------------------------------------------------------------------------------------------------


@dataclass
class Faulty(Endpoint):
    """An endpoint that answers a share of the requests with one of `FAULTS`."""

    share: float = 0.0

    async def _answer(self, body: dict[str, Any], reader: Any, writer: Any) -> bool:
        self.mode = random.choice(FAULTS) if random.random() < self.share else "ok"
        return await super()._answer(body, reader, writer)


def _serve_upstream(latency: float, share: float, address: Any, stop: Any) -> None:
    answers = {QUESTION: ["Paris", "Lyon"]}  # if all samples always agreed, a guard would probe the endpoint again
    with serving(Faulty(answers, latency=latency, share=share, keep_requests=False)) as endpoint:
        address.send(endpoint.url)
        stop.wait()


@contextmanager
def upstream(latency: float, share: float = 0.0) -> Iterator[str]:
    """Run the upstream; yield its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    process = context.Process(target=_serve_upstream, args=(latency, share, theirs, stop))
    process.start()
    try:
        yield ours.recv()
    finally:
        stop.set()
        process.join(10)


class Served(NamedTuple):
    """A gateway: the root of its API, and its process id."""

    url: str
    pid: int


@contextmanager
def gateway(folder: Path, url: str, n: int, timeout: float = 60.0, **settings: Any) -> Iterator[Served]:
    """Run `guardrail serve` with an alias of each kind; ``settings`` are added to its configuration."""
    model = OpenAICompatibleChat(model="m", base_url=url, api_key="none")
    artifact = str(make_artifact(model, threshold=1.0, n=n).save(folder / "artifact.json"))
    common = {"upstream": {"url": url, "model": "m", "key": "none", "timeout": timeout, "max_retries": 1}}
    guarded = {**common, "artifact": artifact}
    models = {
        "apart": {**guarded, "probe": "off"},  # n + 1 requests a question
        "together": guarded,  # the probe finds that n is honoured: 2 requests
        "passed": {**common, "mode": "observe"},  # without artifact or plan nothing is measured
        "watched": {**guarded, "probe": "off", "mode": "observe"},
    }
    path = folder / "guardrail.yaml"
    keys = [{"name": "benchmark", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "max_concurrency": 1000}]
    config = {"version": 1, "port": 0, "max_concurrency": 1000, "drain": 5, "models": models, "keys": keys, **settings}
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "guardrail", "serve", "--config", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Served(process.stdout.readline().split(" at ")[1].split()[0], process.pid)
        finally:
            process.terminate()


@contextmanager
def litellm(interpreter: str, folder: Path, url: str) -> Iterator[Served]:
    """Run LiteLLM's proxy at its best: one process as the gateway, without a database and without logs."""
    params = {"model": "openai/m", "api_base": url, "api_key": "none", "timeout": 60, "max_retries": 0}
    path = folder / "litellm.json"
    path.write_text(json.dumps({"model_list": [{"model_name": "passed", "litellm_params": params}]}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = str(Path(interpreter).absolute().with_name("litellm"))
    command = [program, "--config", str(path), "--host", "127.0.0.1", "--port", port, "--num_workers", "1"]
    more = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": KEY}
    more |= {"LITELLM_MODE": "PRODUCTION", "DISABLE_SCHEMA_UPDATE": "True"}
    with (folder / "litellm.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **more})
    try:
        for _ in range(600):
            with suppress(httpx.HTTPError):
                httpx.get(f"http://127.0.0.1:{port}/health/liveliness")
                break
            if process.poll() is not None:
                raise SystemExit(f"LiteLLM's proxy ended:\n{(folder / 'litellm.log').read_text()[-2000:]}\n{__doc__}")
            time.sleep(0.2)
        yield Served(f"http://127.0.0.1:{port}/v1", process.pid)
    finally:
        process.terminate()
        process.wait()


# -- latency and throughput -------------------------------------------------------------------------------------------


async def in_turns(calls: Mapping[str, Call], rounds: int, each: int, pause: float = 0.0) -> dict[str, Any]:
    """Return the seconds of calls, of shape [rounds, each]: every round makes ``each`` calls of each kind in turn.

    The kinds alternate within a round, so that a machine that slows down slows all of them alike.
    """
    times: dict[str, list[list[float]]] = {name: [] for name in calls}
    for number in range(-1, rounds):  # the first round only opens connections
        for name, call in calls.items():
            seconds = []
            for _ in range(each):
                start = time.perf_counter()
                await call()
                seconds.append(time.perf_counter() - start)
            if number >= 0:
                times[name].append(seconds)
            await asyncio.sleep(pause)
    return {name: np.array(rows) for name, rows in times.items()}


def print_added(times: Mapping[str, Any], base: str) -> None:
    """Print the time that each kind adds to ``base``: p50 as the median of the rounds, p99 over all of them."""
    print(f"  {base}: p50 {np.median(times[base]) * 1e3:.1f} ms, p99 {np.quantile(times[base], 0.99) * 1e3:.1f} ms")
    for name in [kind for kind in times if kind != base]:
        p50 = np.median(np.median(times[name], axis=1) - np.median(times[base], axis=1))
        p99 = np.quantile(times[name], 0.99) - np.quantile(times[base], 0.99)
        print(f"  {name}: added p50 {p50 * 1e3:+.1f} ms, p99 {p99 * 1e3:+.1f} ms")


async def throughput(
    calls: Mapping[str, Call], clients: int, rounds: int, each: int = 1, rest: Call | None = None
) -> dict[str, list[float]]:
    """Return the answers a second in each round; every client asks one question after another."""
    rates: dict[str, list[float]] = {name: [] for name in calls}

    async def ask(call: Call) -> None:
        for _ in range(each):
            await call()

    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            await asyncio.gather(*(ask(call) for _ in range(clients)))
            rates[name].append(clients * each / (time.perf_counter() - start))
            await asyncio.sleep(0.5)
            if rest is not None:
                await rest()
    return rates


def print_shares(rates: Mapping[str, list[float]], base: str) -> None:
    """Print the throughput of each kind of call, and its share of the throughput of ``base``: medians of the rounds."""
    for name, ours in rates.items():
        share = statistics.median(our_rate / theirs for our_rate, theirs in zip(ours, rates[base], strict=True))
        print(f"  {name}: {statistics.median(ours):.0f} questions/s, {share:.0%}")


def asking(url: str, model: str, **fields: Any) -> Call:
    """Return a call of the raw client."""
    client = openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=300)
    message: Any = {"role": "user", "content": QUESTION}
    return partial(client.chat.completions.create, model=model, messages=[message], **fields)


class Lean:
    """The leanest client at hand: one session of aiohttp that posts small bodies and reads the replies.

    A request that an overloaded server sheds is sent again when the server says so, as SDKs do. ``seconds`` are those
    of the answers, and ``shed`` counts the 503.
    """

    def __init__(self) -> None:
        # Servers close an idle connection after 5 s (LiteLLM's) or more; a request that is just being sent would fail.
        pool = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
        self.session, self.numbers = aiohttp.ClientSession(connector=pool), itertools.count()
        self.seconds, self.shed = list[float](), 0

    def asking(self, url: str, model: str, **fields: Any) -> Call:
        """Return a call."""
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], **fields}
        head = {"content-type": "application/json", **HEAD}

        async def call() -> None:
            # The gateway would join equal questions that are under way.
            content = json.dumps({**body, "user": str(next(self.numbers))}).encode()
            while True:
                start = time.perf_counter()
                async with self.session.post(f"{url}/chat/completions", data=content, headers=head) as reply:
                    await reply.read()
                if reply.status != 503:
                    break
                self.shed += 1
                await asyncio.sleep(float(reply.headers["retry-after"]))
            assert reply.status == 200, reply.status
            self.seconds.append(time.perf_counter() - start)

        return call


async def load(arguments: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> None:
    """Measure throughput at 1, 50 and 200 clients beside LiteLLM's proxy, and the processor's time of a question."""
    lean, served = Lean(), stack.enter_context(gateway(folder, url, arguments.n, remember=0))
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": 64}
    calls = {
        "raw": lean.asking(url, "m", **settings),
        "passed": lean.asking(served.url, "passed", **settings),
        "watched": lean.asking(served.url, "watched", **settings),
        "guarded": lean.asking(served.url, "together"),
    }
    pids = {"passed": served.pid, "guarded": served.pid}
    if arguments.litellm:
        proxy = stack.enter_context(litellm(arguments.litellm, folder, url))
        calls["LiteLLM"], pids["LiteLLM"] = lean.asking(proxy.url, "passed", **settings), proxy.pid
    base = "LiteLLM" if arguments.litellm else "raw"

    async def measured() -> None:
        """Wait until the answers that passed are measured, so that this does not slow what comes next."""
        while True:
            async with lean.session.get(
                f"{served.url.removesuffix('/v1')}/guardrail/v1/observed", headers=HEAD
            ) as reply:
                counts = (await reply.json())["watched"]
            done = sum(counts[fate] for fate in ("accepted", "abstained", "unmeasured", "not_comparable"))
            if done + sum(counts["dropped"].values()) >= counts["chosen"]:
                return
            await asyncio.sleep(0.2)

    print("one lean client", flush=True)
    print_added(await in_turns(calls, max(3, arguments.rounds // 4), 5, pause=0.1), "raw")
    await measured()
    for name, pid in pids.items():
        used = []
        for _ in range(5):
            before = processor_seconds(pid)
            for _ in range(40):
                await calls[name]()
            used.append((processor_seconds(pid) - before) / 40)
        print(
            f"{name}: {statistics.median(used) * 1e3:.1f} ms of processor a question (least {min(used) * 1e3:.1f}), "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    for clients in (50, 200):
        await throughput(calls, clients, 1, rest=measured)
        rates = await throughput(
            calls, clients, max(3, arguments.rounds // 10), each=max(1, 400 // clients), rest=measured
        )
        print(f"{clients} lean clients, as a share of {base}; load {os.getloadavg()[0]:.1f}", flush=True)
        print_shares(rates, base)
        lean.seconds, lean.shed = [], 0
        await throughput({"guarded": calls["guarded"]}, clients, 3, each=max(1, 400 // clients), rest=measured)
        p99 = np.quantile(lean.seconds, 0.99)
        print(f"  guarded: p99 of an answer {p99:.2f} s; {lean.shed} requests shed, {len(lean.seconds)} answered")
        if base != "raw":
            print("  and of raw", flush=True)
            print_shares({name: rates[name] for name in ("raw", "passed", "watched", "guarded")}, "raw")
    await lean.session.close()


def processor_seconds(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def compare(arguments: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> None:
    """Measure and print the figures about time."""
    parts = {"load": load, "hostile": hostile_bodies_to_both, "floods": floods}
    for name in arguments.parts:
        if name in parts:
            await parts[name](arguments, url, folder, stack)
    if not parts.keys() >= set(arguments.parts):
        await latency(arguments, url, folder, stack)


async def latency(arguments: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> None:
    """Measure one call at a time and many at once, beside a client of the SDK."""
    n, rounds, clients = arguments.n, arguments.rounds, arguments.clients
    few = max(3, rounds // 10)
    plain = stack.enter_context(gateway(folder, url, n)).url
    stored = stack.enter_context(gateway(folder, url, n, reviews=str(folder / "reviews.db"))).url
    raw = asking(url, "m", temperature=0, max_tokens=64)
    several = asking(url, "m", temperature=1, max_tokens=64, n=n)

    async def apart() -> None:
        await asyncio.gather(*(raw() for _ in range(n + 1)))

    async def together() -> None:
        await asyncio.gather(raw(), several())

    for name, direct in (("apart", apart), ("together", together)):
        how = f"{n + 1} requests" if name == "apart" else "2 requests, n honoured"
        calls = {"direct": direct, "guarded": asking(plain, name), "with store": asking(stored, name)}
        if "latency" in arguments.parts:
            print(f"one guarded question ({how}) over the same requests side by side", flush=True)
            print_added(await in_turns(calls, rounds, 5), "direct")
        if name in arguments.parts:
            print(f"{clients} clients at once ({how})", flush=True)
            await in_turns(calls, 0, 1)
            print_shares(
                await throughput({kind: calls[kind] for kind in ("direct", "guarded")}, clients, few), "direct"
            )
    if "passed" not in arguments.parts:
        return
    passing = {
        "raw": raw,
        "passed": asking(plain, "passed", temperature=0, max_tokens=64),
        "watched": asking(plain, "watched", temperature=0, max_tokens=64),
    }
    if arguments.litellm:
        proxy = stack.enter_context(litellm(arguments.litellm, folder, url))
        passing["LiteLLM"] = asking(proxy.url, "passed", temperature=0, max_tokens=64)
    print("one answer passed through, over the raw upstream", flush=True)
    times = await in_turns(passing, rounds, 5, pause=0.1)
    print_added(times, "raw")
    print("observing, over a plain pass-through")
    print_added({name: times[name] for name in ("passed", "watched")}, "passed")
    counts = httpx.get(f"{plain.removesuffix('/v1')}/guardrail/v1/observed", headers=HEAD).json()["watched"]
    assert counts["accepted"] >= 0.5 * counts["served"], counts
    print(f"{clients} clients at once, one answer each", flush=True)
    print_shares(await throughput(passing, clients, few, each=3), "raw")


# -- hostile bodies ---------------------------------------------------------------------------------------------------


def hostile_bodies(model: str) -> dict[str, bytes]:
    """Return bodies within the gateway's default ``max_body`` that take long to read."""
    message = {"role": "user", "content": QUESTION}
    tool = {"type": "function", "function": {"name": "f", "description": "x", "parameters": {"type": "object"}}}
    parts = {"role": "user", "content": [{"type": "text", "text": "x"}] * 200_000}
    few_parts = {"role": "user", "content": [{"type": "text", "text": "x"}] * 16_000}
    fields: dict[str, dict[str, Any]] = {
        "200,000 messages": {"messages": [message] * 200_000},
        "400,000 metadata": {"metadata": {f"key{number:06}": "x" for number in range(400_000)}},
        "80,000 tools": {"tools": [tool] * 80_000},
        "3,000,000 integers": {"x": [1] * 3_000_000},
        "200,000 parts": {"messages": [parts]},
        "16,000 parts": {"messages": [few_parts]},  # within the limit on values
        "nested 100,000 deep": {},
        # Within max_guarded_body.
        "1 MB of text": {"messages": [{"role": "user", "content": "x" * 1_000_000}]},
        "1 MB of quotes": {"messages": [{"role": "user", "content": '",' * 340_000}]},
        "9 MB of text": {"messages": [{"role": "user", "content": "x" * 9_000_000}]},
        "5 MB of quotes": {"messages": [{"role": "user", "content": '",' * 1_700_000}]},
        "45,000 metadata": {"metadata": {f"key{number:06}": "x" for number in range(45_000)}},
    }
    bodies = {}
    for name, more in fields.items():
        bodies[name] = json.dumps({"model": model, "messages": [message], **more}, separators=(",", ":")).encode()
    bodies["nested 100,000 deep"] = b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    return bodies


def _probe(url: str, pipe: Any) -> None:
    """Ask for /healthz until the pipe says stop; send the slowest answer's seconds after each message."""
    with httpx.Client(timeout=120, trust_env=False) as client:
        while True:
            worst = 0.0
            while not pipe.poll(0.01):
                start = time.perf_counter()
                client.get(url)
                worst = max(worst, time.perf_counter() - start)
            if pipe.recv() == "stop":
                return
            pipe.send(worst)


async def hostile_bodies_to_both(arguments: argparse.Namespace, url: str, folder: Path, stack: ExitStack) -> None:
    """Measure `hostile` for a model that guards and for one that is observed."""
    served = stack.enter_context(gateway(folder, url, arguments.n))
    for name in ("together", "watched"):
        print(f"hostile bodies to {name}", flush=True)
        await asyncio.to_thread(hostile, served, name)


def hostile(served: Served, model: str) -> dict[str, float]:
    """Return the slowest /healthz, in seconds, while one client sends each body three times; print them."""
    context, root = multiprocessing.get_context("spawn"), served.url.removesuffix("/v1")
    ours, theirs = context.Pipe()
    process = context.Process(target=_probe, args=(f"{root}/healthz", theirs))
    process.start()
    worst = {}

    def slowest() -> float:
        ours.send("next")
        return float(ours.recv())

    head = {"content-type": "application/json", **HEAD}
    with httpx.Client(timeout=120, trust_env=False) as client:
        time.sleep(2)
        slowest()
        time.sleep(3)
        worst["no body"] = slowest()
        print(f"  no other request: worst /healthz {worst['no body'] * 1e3:.0f} ms", flush=True)
        for name, body in hostile_bodies(model).items():
            before, start = processor_seconds(served.pid), time.perf_counter()
            statuses = {
                client.post(f"{served.url}/chat/completions", content=body, headers=head).status_code for _ in range(3)
            }
            seconds, used = time.perf_counter() - start, processor_seconds(served.pid) - before
            worst[name] = slowest()
            print(
                f"  {name} ({len(body) / 1e6:.1f} MB, status {statuses}): worst /healthz {worst[name] * 1e3:.0f} ms, "
                f"{used / 3 * 1e3:.0f} ms of processor and {seconds / 3 * 1e3:.0f} ms a body; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    ours.send("stop")
    process.join(10)
    return worst


# -- floods -----------------------------------------------------------------------------------------------------------


@dataclass
class Flooding(Endpoint):
    """An endpoint whose replies are 64 KiB chunks without end."""

    async def _answer(self, body: dict[str, Any], reader: Any, writer: Any) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b" " * 2**16 + b"\r\n"
        for _ in range(16 * 100):  # 100 MiB
            writer.write(chunk)
            await writer.drain()
        return False


async def floods(arguments: argparse.Namespace, url: str, folder: Path, stack: ExitStack, count: int = 8) -> None:
    """Print the memory of a gateway while questions get endless replies."""
    flooding = Flooding(keep_requests=False)
    with serving(flooding), gateway(folder, flooding.url, arguments.n) as served:
        before, lean, most = Footprint.of(served.pid).memory, Lean(), 0.0
        head = {"content-type": "application/json", **HEAD}
        bodies = [
            {"model": "apart", "messages": [{"role": "user", "content": f"{number}?"}]} for number in range(count)
        ]
        posts = [lean.session.post(f"{served.url}/chat/completions", json=body, headers=head) for body in bodies]
        replies = [asyncio.ensure_future(post) for post in posts]
        while not all(reply.done() for reply in replies):
            most = max(most, Footprint.of(served.pid).memory)
            await asyncio.sleep(0.02)
        statuses = Counter(reply.result().status for reply in replies)
        await lean.session.close()
        print(
            f"{count} floods of 64 KiB chunks: memory {before:.0f} to {most:.0f} MiB at most; statuses {dict(statuses)}"
        )


# -- resources --------------------------------------------------------------------------------------------------------


class Footprint(NamedTuple):
    """Memory, files, sockets and threads of a process."""

    memory: float
    """Resident set, MiB."""
    files: int
    """Open files, sockets included."""
    sockets: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """Read them from /proc, so on Linux only."""
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        links = []
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # just closed
                links.append(os.readlink(link))
        sockets = sum(link.startswith("socket:") for link in links)
        return cls(int(status["VmRSS"].split()[0]) / 1024, len(links), sockets, int(status["Threads"]))


def leaks(before: Footprint, after: Footprint) -> list[str]:
    """Return the names of the resources that grew by more than chance."""
    counts = ("files", "sockets", "threads")
    grown = [name for name in counts if getattr(after, name) > getattr(before, name) + TOLERATED]
    return [*grown, *(["memory"] if after.memory > GROWTH * before.memory else [])]


async def ask_many(served: Served, models: tuple[str, ...], count: int, at_once: int) -> list[float]:
    """Ask ``count`` different questions; return the memory after each hundredth of them."""
    numbers, memory = iter(range(count)), []
    async with httpx.AsyncClient(timeout=300, headers=HEAD) as client:

        async def ask() -> None:
            for number in numbers:
                content = QUESTION if number % 2 else f"Question {number}?"
                body = {"model": models[number % len(models)], "messages": [{"role": "user", "content": content}]}
                reply = await client.post(f"{served.url}/chat/completions", json={**body, "user": str(number)})
                assert reply.status_code == 200, reply.text
                if not number % max(1, count // 100):
                    memory.append(Footprint.of(served.pid).memory)

        await asyncio.gather(*(ask() for _ in range(at_once)))
    return memory


def print_memory(memory: list[float]) -> None:
    """Print the median of each quarter."""
    quarters = [statistics.median(part) for part in np.array_split(memory, 4)]
    print(f"memory by quarter: {', '.join(f'{quarter:.1f}' for quarter in quarters)} MiB")
    print(f"last quarter against the second: {quarters[3] / quarters[1] - 1:+.1%}")


async def soak(
    seconds: float, rate: float = 10.0, say: Callable[[str], object] = print
) -> tuple[Footprint, Footprint, Counter[str]]:
    """Ask a gateway at a fixed rate in every way, with faults of the upstream and clients that leave.

    Args:
        seconds: Duration.
        rate: Requests a second.
        say: Called with a line for each measurement.

    Returns:
        Its resources after the first tenth and at the end, both times at rest; and the replies by status.
    """
    replies: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(upstream(0.05, share=0.05))
        more: dict[str, Any] = {
            "reviews": str(folder / "reviews.db"),
            "remember": 5,
            "stream_hold": 0.02,
        }
        served = stack.enter_context(gateway(folder, url, n=4, timeout=2.0, **more))

        async def ask(client: httpx.AsyncClient, number: int) -> None:
            content = QUESTION if random.random() < 0.5 else f"Question {number}?"
            name = random.choice(("apart", "together", "passed", "watched"))
            body: dict[str, Any] = {"model": name, "temperature": 0}
            body |= {"messages": [{"role": "user", "content": content}], "stream": random.random() < 0.3}
            if name not in ("passed", "watched"):
                del body["temperature"]
            again = {"x-stainless-retry-count": "1"} if random.random() < 0.1 else {}
            patience = 0.1 if random.random() < 0.1 else 30.0
            try:
                async with asyncio.timeout(patience):
                    reply = await client.post(f"{served.url}/chat/completions", json=body, headers=again)
                replies[str(reply.status_code)] += 1
            except (TimeoutError, httpx.HTTPError) as error:
                replies[type(error).__name__] += 1

        async def go_on(seconds: float) -> Footprint:
            async with httpx.AsyncClient(timeout=None, headers=HEAD) as client, asyncio.TaskGroup() as group:
                ends, number = time.monotonic() + seconds, 0
                while time.monotonic() < ends:
                    group.create_task(ask(client, number := number + 1))
                    await asyncio.sleep(1 / rate)
            await asyncio.sleep(RESTS)
            footprint = Footprint.of(served.pid)
            say(f"{sum(replies.values())} requests: {footprint}")
            return footprint

        before = await go_on(seconds / 10)
        after = await go_on(seconds * 0.9)
    say(f"replies: {dict(replies.most_common())}; grown: {leaks(before, after) or 'nothing'}")
    return before, after, replies


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"which figures about time (default: all of {', '.join(PARTS)})")
    parser.add_argument("--n", type=int, default=10, help="samples of a question")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of five calls of each kind")
    parser.add_argument("--clients", type=int, default=200, help="clients at once")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds an upstream answer takes")
    parser.add_argument("--litellm", metavar="PYTHON", help="a Python interpreter that has litellm[proxy]")
    parser.add_argument("--requests", type=int, help="memory over so many requests")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="leaks under faults")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or PARTS
    if arguments.soak:
        before, after, _ = asyncio.run(soak(arguments.soak, say=partial(print, flush=True)))
        raise SystemExit(bool(leaks(before, after)))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.requests:
            url = stack.enter_context(upstream(0.0))
            served = stack.enter_context(gateway(folder, url, n=4))
            print_memory(asyncio.run(ask_many(served, ("together",), arguments.requests, at_once=16)))
            return
        url = stack.enter_context(upstream(arguments.latency))
        asyncio.run(compare(arguments, url, folder, stack))


if __name__ == "__main__":
    main()
