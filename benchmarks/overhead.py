"""What a guard costs beyond the calls themselves: ratios measured in one run.

    python -m benchmarks.overhead

1. With an instant chat model: one guarded call against the n + 1 bare calls it makes.
2. Against a loopback endpoint with a fixed latency, in a process of its own: guarded requests at once against the raw
   ``openai`` client asking for the same number of completions in the same number of HTTP requests.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from guardrail import Guardrail
from guardrail.testing import make_artifact
from integrations.openai_chat import OpenAICompatibleChat
from tests.unit_integrations.faulty_endpoint import Endpoint, serving

N = 10
QUESTION = "What is the capital of France?"
ESTIMATOR = "discrete_semantic_entropy"
ANSWERS = ("Paris", "It is Paris.", "Lyon", "Paris, France")


class Instant(BaseChatModel):
    """Answers at once."""

    guardrail_trusted: ClassVar[bool] = True

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Paris"))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


def median(run: Callable[[], Any], repeats: int) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def instant(repeats: int) -> None:
    """One guarded call against n + 1 bare ones, in turn, so that both see the same machine."""
    model = Instant()
    guard = Guardrail(model=model, artifact=make_artifact(model, estimator=ESTIMATOR, n=N), early_stopping="off")
    loop = asyncio.new_event_loop()

    def bare() -> None:
        for _ in range(N + 1):
            model.invoke(QUESTION)

    def bare_async() -> None:
        async def all_calls() -> None:
            await asyncio.gather(*(model.ainvoke(QUESTION) for _ in range(N + 1)))

        loop.run_until_complete(all_calls())

    def guarded_async() -> None:
        loop.run_until_complete(guard.ainvoke(QUESTION))

    print(f"instant chat model, n = {N}: one guarded call against {N + 1} bare calls, median of {repeats}")
    for name, plain, guarded in (
        ("invoke", bare, lambda: guard.invoke(QUESTION)),
        ("ainvoke", bare_async, guarded_async),
    ):
        plain(), guarded()
        rounds = [(median(plain, repeats // 5), median(guarded, repeats // 5)) for _ in range(5)]
        ratio = statistics.median(ours / theirs for theirs, ours in rounds)
        theirs, ours = rounds[2]
        verdict = "kept" if ratio <= 1.5 else "EXCEEDED"
        both = f"bare {theirs * 1e3:6.2f} ms, guarded {ours * 1e3:6.2f} ms"
        print(f"  {name:8} {both}: ratio {ratio:.2f} (goal <= 1.5 {verdict})")
    loop.close()


def serve(latency: float, address: Any, stop: Any) -> None:
    """The endpoint, in a process of its own."""
    with serving(Endpoint({QUESTION: ANSWERS}, latency=latency, keep_requests=False)) as endpoint:
        address.send(endpoint.url)
        stop.wait()


async def timed(run: Callable[[], Awaitable[Any]], count: int) -> float:
    """Seconds for so many calls at once."""
    start = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(count)))
    return time.perf_counter() - start


async def against_endpoint(url: str, count: int, repeats: int) -> None:
    """Guarded requests against the raw client, in turn."""
    import openai

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
        guard = Guardrail(model=model, artifact=make_artifact(model, estimator=ESTIMATOR, n=N))
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
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50, help="of the instant part")
    parser.add_argument("--requests", type=int, default=200, help="guarded requests at once")
    parser.add_argument("--rounds", type=int, default=5, help="of the endpoint part")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds an answer takes")
    arguments = parser.parse_args()
    instant(arguments.repeats)
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
