"""Time, judged pairs and memory of `calibrate score`; the memory must not grow with the records.

    python -m benchmarks.scoring

Records are made up: answers of 4 to 16 words from a vocabulary of 5,000, samples that are variants of three answers,
one token per word with its log-probability. Every estimator that needs no model is computed. Each size runs in a
separate process; "over start" is the growth of its peak memory after all modules are loaded. Scoring is one thread that
never waits, so seconds are CPU seconds if a core is idle; the goal is set in CPU seconds.

    python -m benchmarks.scoring --engines --sizes 20000

One process against the Ray that runs on this machine (`ray start --head`), in neighbouring runs:
`discrete_semantic_entropy`, and
questions asked at an endpoint that answers after 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult

from calibrate.data.collect import collect_records
from calibrate.data.questions import Question
from calibrate.data.records import Record, RecordHeader, write_records
from calibrate.ray_engine import collect_on_ray, score_on_ray
from calibrate.scoring.compute import score_file, supported
from guardrail.judges import Item, Judge, JudgeSpec, Similarity
from guardrail.judges.base import Comparer
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.testing import ScriptedChat
from guardrail.types import Sample, SampleSet, SamplingPlan
from guardrail.uncertainty import Estimator
from guardrail.uncertainty import make_estimator as make

__all__ = ["header_of", "made_records", "main"]

VOCABULARY = 5000
GOAL_SECONDS = 10.0
GOAL_SIZE = 1000


def _sample(words: Sequence[str], dice: random.Random) -> Sample:
    tokens = tuple(word if i == 0 else f" {word}" for i, word in enumerate(words))
    return Sample(text=" ".join(words), tokens=tokens, logprobs=tuple(-dice.expovariate(2.0) for _ in words))


def made_records(n: int, samples: int = 10, seed: int = 0) -> Iterator[Record]:
    """Yield records with samples that partly agree."""
    dice = random.Random(seed)
    for i in range(n):
        answers = [
            [f"w{int(dice.paretovariate(0.5)) % VOCABULARY}" for _ in range(dice.randrange(4, 17))] for _ in "abc"
        ]

        def variant(answers: list[list[str]] = answers) -> Sample:
            words = list(answers[min(int(dice.expovariate(1.5)), 2)])
            if dice.random() < 0.5:
                words[dice.randrange(len(words))] = f"w{dice.randrange(VOCABULARY)}"
            return _sample(words, dice)

        drawn = SampleSet(question=f"question {i}", primary=variant(), samples=tuple(variant() for _ in range(samples)))
        yield Record(id=f"r{i}", question=drawn.question, references=("w1",), drawn=drawn)


def header_of(n: int, samples: int = 10) -> RecordHeader:
    """Return the header of a file of such records."""
    return RecordHeader(
        created="1970-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="made up", model="none"),
        plan=SamplingPlan(n=samples, logprobs=True),
        prompt=PromptWrapping(),
        questions_name="made up",
        questions_sha256="",
        n_questions=n,
    )


class _Counting(Comparer):
    """A judge or similarity that counts the pairs it is asked about."""

    asked = 0

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def spec(self) -> JudgeSpec:
        spec: JudgeSpec = self._inner.spec
        return spec

    def identity(self, text: str) -> str:
        key: str = self._inner.identity(text)
        return key

    def compare(self, items: Sequence[Item]) -> Sequence[Any]:
        _Counting.asked += len(items)
        answers: Sequence[Any] = self._inner.compare(items)
        return answers


class _CountingJudge(_Counting, Judge):
    """A judge that counts."""


class _CountingSimilarity(_Counting, Similarity):
    """A similarity that counts."""


def _counted(estimator: Estimator) -> Estimator:
    judge, similarity = estimator.judge, estimator.similarity
    return replace(
        estimator,
        judge=None if judge is None else _CountingJudge(judge),
        similarity=None if similarity is None else _CountingSimilarity(similarity),
    )


def _peak_mib() -> float:
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def _child(n: int) -> dict[str, float]:
    """Write and score n records; return the time, pairs and memory used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        write_records(path, header_of(n), made_records(n))
        begun = _peak_mib()
        started, worked = time.perf_counter(), time.process_time()
        _, summary = score_file(path, path, lambda plan: [_counted(estimator) for estimator in supported(plan)])
        seconds, worked = time.perf_counter() - started, time.process_time() - worked
        assert summary.n_records == n
        estimators = len(supported(SamplingPlan(n=10, logprobs=True)))
        return {
            "records": n,
            "estimators": estimators,
            "seconds": seconds,
            "worked": worked,
            "pairs": _Counting.asked,
            "peak": _peak_mib(),
            "over": _peak_mib() - begun,
        }


class Waiting(ScriptedChat):
    """A model that answers after 50 ms, as an endpoint does."""

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        await asyncio.sleep(0.05)
        return self._generate(messages, stop, run_manager.get_sync() if run_manager else None, **options)


def waiting() -> Waiting:
    """Return the model; every process creates its own."""
    answers = [f"answer {i}" for i in range(6)]
    return Waiting(script={f"question {i}": list(answers) for i in range(1_000)})


def _engines(n: int, rounds: int = 2) -> None:
    """Print records and questions a second by one process and by Ray."""
    questions = [Question(id=f"q{i}", question=f"question {i}") for i in range(min(n, 1_000))]
    plan = SamplingPlan(n=5)

    def chosen(plan: SamplingPlan) -> list[Estimator]:
        return [make("discrete_semantic_entropy")]

    with tempfile.TemporaryDirectory() as folder:
        path, out, drawn = (Path(folder, name) for name in ("records.jsonl", "out.jsonl", "drawn.jsonl"))
        write_records(path, header_of(n), made_records(n))
        print(
            f"{n} records, {path.stat().st_size >> 20} MiB; {len(questions)} questions; {os.cpu_count()} CPUs",
            flush=True,
        )
        print("seconds:                         score  score ray  collect  collect ray", flush=True)
        for _ in range(rounds):
            collect = partial(collect_records, questions, waiting(), plan, drawn, max_concurrency=32)
            took = []
            works: tuple[Callable[[], object], ...] = (
                lambda: score_file(path, out, chosen),
                lambda: score_file(path, out, chosen, engine=score_on_ray),
                collect,
                partial(collect, engine=partial(collect_on_ray, model=waiting, calls=32)),
            )
            for work in works:
                drawn.unlink(missing_ok=True)
                started = time.perf_counter()
                work()
                took.append(time.perf_counter() - started)
            print(" " * 31 + "  ".join(f"{seconds:6.1f}" for seconds in took), flush=True)


def main() -> int:
    """Print the table; exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[GOAL_SIZE, 4 * GOAL_SIZE])
    parser.add_argument("--engines", action="store_true", help="one process against Ray")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print(json.dumps(_child(arguments.child)))
        return 0
    if arguments.engines:
        _engines(arguments.sizes[0])
        return 0
    print("records  estimators  seconds  CPU s  records/s  pairs judged  peak MiB  over start MiB")
    missed = False
    for n in arguments.sizes:
        command = [sys.executable, "-m", "benchmarks.scoring", "--child", str(n)]
        figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(
            f"{n:7}  {figures['estimators']:10}  {figures['seconds']:7.2f}  {figures['worked']:5.1f}  "
            f"{n / figures['seconds']:9.0f}  {figures['pairs']:12}  {figures['peak']:8.0f}  {figures['over']:14.1f}",
            flush=True,
        )
        missed |= n == GOAL_SIZE and figures["worked"] > GOAL_SECONDS
    print(f"Goal: {GOAL_SIZE} records in {GOAL_SECONDS:.0f} CPU seconds: {'missed' if missed else 'kept'}.")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
