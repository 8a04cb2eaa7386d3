"""Overhead of a guard beyond the calls themselves: ratios measured in one run.

    python -m benchmarks.overhead

1. With chat models that take 5, 50 and 300 ms for a call (and an instant one): one guarded call against the n + 1
   bare calls it makes, side by side in both.
2. A question guarded by a score of one more call (a decision model, a judge's confidence) against the two bare calls,
   one after the other.
3. Against a loopback endpoint with a fixed latency, in a separate process: guarded requests at once against the raw
   ``openai`` client asking for the same number of completions in the same number of HTTP requests.

With ``--uqlm PYTHON`` also uqlm's black-box scoring with the same instant model, against the bare calls in its process.
uqlm is needed here only, and lives in a separate environment:

    python3 -m venv uqlm-venv && uqlm-venv/bin/pip install --upgrade pip
    uqlm-venv/bin/pip install "uqlm==0.6.7" "transformers<5" "numpy<2" "pyarrow<22" "httpx>=0.27"
    python -m benchmarks.overhead --uqlm uqlm-venv/bin/python
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar
from unittest import mock

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

N = 10
QUESTION = "What is the capital of France?"
ESTIMATOR = "discrete_semantic_entropy"
ANSWERS = ("Paris", "It is Paris.", "Lyon", "Paris, France")


class Instant(BaseChatModel):
    """A chat model that answers after a fixed time; at once by default."""

    guardrail_trusted: ClassVar[bool] = True
    latency: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.latency:
            time.sleep(self.latency)
        return self._answer()

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        if self.latency:
            await asyncio.sleep(self.latency)
        return self._answer()

    def _answer(self) -> ChatResult:
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage("Paris", response_metadata={"finish_reason": "stop"}))]
        )


def median(run: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def in_turn(plain: Callable[[], Any], other: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the median seconds of both over rounds of five calls each, and the median ratio.

    Rounds are short, so that both see the same machine: a shared one changes its speed within tenths of a second.
    """
    plain(), other()
    rounds = [(median(plain, 5), median(other, 5)) for _ in range(max(repeats // 5, 3))]
    theirs, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    return theirs, ours, statistics.median(ours / theirs for theirs, ours in rounds)


async def bare_calls(model: BaseChatModel) -> None:
    """Make the n + 1 calls alone."""
    await asyncio.gather(*(model.ainvoke(QUESTION) for _ in range(N + 1)))


def paired(plain: Callable[[], Any], other: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Return the median seconds of one call of each, the median of their differences, and that in processor time.

    Each call of ``other`` is compared with the call of ``plain`` before it, so that a machine that changes its speed
    changes both; processor time leaves out what other processes of the machine take.
    """
    plain(), other()
    times: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        points = [(time.perf_counter(), time.process_time())]
        for run in (plain, other):
            run()
            points.append((time.perf_counter(), time.process_time()))
        (a, used_a), (b, used_b), (c, used_c) = points
        times.append((b - a, (c - b) - (b - a), (used_c - used_b) - (used_b - used_a)))
    theirs, added, used = (statistics.median(column) for column in zip(*times, strict=True))
    return theirs, added, used


LATENCIES = {0.0: 1.0, 0.005: 0.5, 0.05: 0.2, 0.3: 0.05}
"""Seconds of a call, and the share of the repeats for this latency."""


def with_latency(repeats: int) -> None:
    """Print the time of a guarded call and of n + 1 bare calls, for several latencies of the model."""
    print(f"one guarded call against {N + 1} bare calls side by side, n = {N}")
    for latency, share in LATENCIES.items():
        model, many = Instant(latency=latency), max(int(repeats * share), 15)
        for name, (theirs, ours, ratio) in against_bare(model, many).items():
            both = f"bare {theirs * 1e3:6.1f} ms, guarded {ours * 1e3:6.1f} ms"
            added = f"{(ours - theirs) * 1e3:+5.1f} ms, ratio {ratio:.3f}"
            print(f"  {latency * 1e3:3.0f} ms a call, {name:8} {both}: {added}")


def against_bare(model: Instant, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return the median seconds of the bare and the guarded calls, and the median ratio, sync and async."""
    from guardrail import Guardrail
    from guardrail.testing import make_artifact

    guard = Guardrail(model=model, artifact=make_artifact(model, estimator=ESTIMATOR, n=N), remember=0)
    loop = asyncio.new_event_loop()
    with ThreadPoolExecutor(N + 1) as pool:

        def bare() -> None:
            list(pool.map(model.invoke, [QUESTION] * (N + 1)))

        timings = {
            "invoke": in_turn(bare, lambda: guard.invoke(QUESTION), repeats),
            "ainvoke": in_turn(
                lambda: loop.run_until_complete(bare_calls(model)),
                lambda: loop.run_until_complete(guard.ainvoke(QUESTION)),
                repeats,
            ),
        }
    loop.close()
    return timings


def with_a_score(repeats: int) -> None:
    """Print the time that a guard adds to a call and a call of a scorer, for several latencies of both."""
    print("\none question guarded by a score of one call against the two bare calls in turn")
    for latency, share in LATENCIES.items():
        for name, (bare, added, used) in against_two(Instant(latency=latency), max(int(repeats * share), 15)).items():
            goal = f"{added * 1e3:+5.2f} ms (goal at most 5 ms {'kept' if added <= 0.005 else 'MISSED'})"
            both = f"two bare calls {bare * 1e3:6.1f} ms, a guarded question {goal}"
            print(f"  {latency * 1e3:3.0f} ms a call, {name:8} {both}; {used * 1e3:.2f} ms of processor time")


def against_two(model: Instant, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Return `paired` of two bare calls and a guarded question, sync and async."""
    from guardrail import Guardrail, Scorer, scorer
    from guardrail.testing import make_artifact

    @scorer(version=1, higher="certain")
    def decided(answer: str) -> float:
        return float(model.invoke(answer).text == "Paris")

    @scorer(version=1, higher="certain")
    async def decided_later(answer: str) -> float:
        return float((await model.ainvoke(answer)).text == "Paris")

    def guarded(own: Scorer) -> Guardrail:
        return Guardrail(
            model=model, artifact=make_artifact(model, estimator=own.estimator), using={"scorer": own}, remember=0
        )

    async def bare() -> None:
        await model.ainvoke(QUESTION)
        await model.ainvoke(QUESTION)

    guard, later, loop = guarded(decided), guarded(decided_later), asyncio.new_event_loop()
    timings = {
        "invoke": paired(lambda: [model.invoke(QUESTION) for _ in range(2)], lambda: guard.invoke(QUESTION), repeats),
        "ainvoke": paired(
            lambda: loop.run_until_complete(bare()), lambda: loop.run_until_complete(later.ainvoke(QUESTION)), repeats
        ),
    }
    loop.close()
    return timings


class Warm(Instant):
    """The instant model with the temperature that uqlm sets."""

    temperature: float = 1.0


def worker(repeats: int) -> None:
    """Run under uqlm's interpreter: time its scoring and print one JSON line.

    uqlm sleeps for fixed times after drawing and after scoring; its time is taken with and without these pauses.
    """
    model = Warm()
    scorer = importlib.import_module("uqlm").BlackBoxUQ(llm=model, scorers=["exact_match"])
    loop = asyncio.new_event_loop()
    pauses: list[float] = []

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)

    def bare() -> None:
        loop.run_until_complete(bare_calls(model))

    def scored() -> Any:
        return loop.run_until_complete(scorer.generate_and_score([QUESTION], num_responses=N, show_progress_bars=False))

    result = scored().to_dict()["data"]
    assert (result["exact_match"], len(result["sampled_responses"][0])) == ([1.0], N), result
    shipped = in_turn(bare, scored, 10)
    with mock.patch("asyncio.sleep", no_pause), mock.patch("time.sleep", pauses.append):
        scored()
        paused, count = sum(pauses), len(pauses)
        unpaused = in_turn(bare, scored, repeats)
    loop.close()
    print(json.dumps({"shipped": shipped, "unpaused": unpaused, "paused": paused, "pauses": count}))


def peer(interpreter: str, repeats: int) -> None:
    """Measure uqlm in a separate process."""
    command = [interpreter, __file__, "--worker", "--repeats", str(repeats)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        reason = (ran.stderr.splitlines() or ["no message"])[-1]
        raise SystemExit(f"{reason}\nuqlm did not run under {interpreter}. How to install it:\n{__doc__}")
    timings = json.loads(ran.stdout.splitlines()[-1])
    print(f"uqlm BlackBoxUQ.generate_and_score (exact_match), n = {N}, against {N + 1} bare calls in its process")
    without = f"without its {timings['pauses']} pauses of {timings['paused']:.2f} s in all"
    for name, key in (("as shipped", "shipped"), (without, "unpaused")):
        theirs, ours, ratio = timings[key]
        print(f"  {name}: bare {theirs * 1e3:6.2f} ms, uqlm {ours * 1e3:6.2f} ms: ratio {ratio:.2f}")


def serve(latency: float, address: Any, stop: Any) -> None:
    """Serve the endpoint until ``stop`` is set; runs in a separate process."""
    from tests.integrations.openai.faulty_endpoint import Endpoint, serving

    with serving(Endpoint({QUESTION: ANSWERS}, latency=latency, keep_requests=False)) as endpoint:
        address.send(endpoint.url)
        stop.wait()


async def timed(run: Callable[[], Awaitable[Any]], count: int) -> float:
    """Return the seconds of ``count`` calls at once."""
    start = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(count)))
    return time.perf_counter() - start


async def against_endpoint(url: str, count: int, repeats: int) -> None:
    """Print the times of guarded requests and of the raw client, measured in turn."""
    import openai

    from guardrail import Guardrail
    from guardrail.testing import make_artifact
    from integrations.openai_chat import OpenAICompatibleChat

    raw = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
    message: Any = {"role": "user", "content": QUESTION}

    async def complete(n: int = 1) -> None:
        await raw.chat.completions.create(model="m", messages=[message], n=n, temperature=0.7, max_tokens=64)

    async def separately() -> None:
        await asyncio.gather(*(complete() for _ in range(N + 1)))

    async def together() -> None:
        await asyncio.gather(complete(), complete(N))

    print(f"\nloopback endpoint, {count} guarded requests at once against the raw client, median of {repeats}")
    for name, several, plain in (
        (f"{N + 1} requests a question", False, separately),
        ("2 requests a question (n honoured)", True, together),
    ):
        model = OpenAICompatibleChat(model="m", base_url=url, timeout=300, several_per_call=several)
        guard = Guardrail(model=model, artifact=make_artifact(model, estimator=ESTIMATOR, n=N), remember=0)
        ask = partial(guard.ainvoke, [HumanMessage(QUESTION)])
        await ask()
        await plain()
        rounds = []
        for _ in range(repeats):
            theirs = await timed(plain, count)
            rounds.append((theirs, await timed(ask, count)))
        share = statistics.median(theirs / ours for theirs, ours in rounds)
        theirs, ours = (statistics.median(column) for column in zip(*rounds, strict=True))
        verdict = "kept" if share >= 0.9 else "MISSED"
        print(
            f"  {name}: raw {theirs:.2f} s ({count / theirs:.0f} questions/s), guarded {ours:.2f} s "
            f"({count / ours:.0f}/s): {share:.0%} of the throughput (goal 90 % {verdict})"
        )
    await raw.close()


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300, help="of the first part")
    parser.add_argument("--requests", type=int, default=200, help="guarded requests at once")
    parser.add_argument("--rounds", type=int, default=5, help="of the endpoint part")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds an answer takes")
    parser.add_argument("--uqlm", metavar="PYTHON", help="a Python interpreter that has uqlm 0.6.7")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.repeats)
        return
    with_latency(arguments.repeats)
    with_a_score(arguments.repeats)
    if arguments.uqlm:
        peer(arguments.uqlm, arguments.repeats)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stop = context.Event()
    server = context.Process(target=serve, args=(arguments.latency, theirs, stop))
    server.start()
    try:
        asyncio.run(against_endpoint(ours.recv(), arguments.requests, arguments.rounds))
    finally:
        stop.set()
        server.join(10)


if __name__ == "__main__":
    main()
