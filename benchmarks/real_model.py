"""Speed of SmolLM2-135M-Instruct in float32 and bfloat16, in one run: `python -m benchmarks.real_model`.

Twenty questions of the demo, the greedy answer and ten samples each, at most 24 tokens; the rounds of the two dtypes
alternate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from langchain_core.messages import HumanMessage

from examples.demo import smollm2
from guardrail.types import SamplingPlan
from integrations.transformers_chat import TransformersChat

QUESTIONS = [[HumanMessage(question.question)] for question in smollm2.questions()[:20]]
PLAN = SamplingPlan(n=10, temperature=0.7, top_p=0.9, max_tokens=24, stop=("\n",), logprobs=True)


def batches(chat: TransformersChat, plan: SamplingPlan) -> None:
    """Draw all questions in one batch."""
    chat.draw_samples(QUESTIONS, plan, seeds=range(len(QUESTIONS)))


def seconds(work: Callable[[], None]) -> float:
    """Return the seconds that a piece of work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    chats = {dtype: smollm2.chat(dtype) for dtype in ("float32", "bfloat16")}
    greedy = PLAN.model_copy(update={"n": 0})
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for dtype, chat in chats.items():
            for name, work in (
                ("11 answers", lambda chat=chat: batches(chat, PLAN)),
                ("greedy only", lambda chat=chat: batches(chat, greedy)),
            ):
                times.setdefault((name, dtype), []).append(seconds(work))
    for name in dict.fromkeys(name for name, _ in times):
        full, half = (statistics.median(times[name, dtype]) for dtype in chats)
        sys.stdout.write(f"{name:<14} float32 {full:6.1f} s   bfloat16 {half:6.1f} s   ratio {full / half:.2f}\n")


if __name__ == "__main__":
    main()
