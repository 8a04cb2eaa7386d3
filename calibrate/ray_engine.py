"""`calibrate score` and `calibrate collect` in the processes of a Ray cluster, through `ray.data`.

Batches of rows go to a pool of actors, and lines of a record file come back. Ray repeats the batch of one that ended.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from itertools import chain
from math import ceil
from typing import Any

from langchain_core.language_models import BaseChatModel

from guardrail.errors import GuardrailError, UsageError, require
from guardrail.sampling.native import is_native

from .data.collect import BATCH_SIZE, CONCURRENCY, Drawing, Pace, runner
from .data.records import Record, RecordReader, is_torn, read_spans, record_line, spans_of
from .scoring.compute import Score

PART_MIB = 8
"""MiB of a record file that an actor scores at a time."""
QUESTIONS = 64
"""Questions that an actor asks at a time."""
RETRIES = 10
"""Times that a batch is tried again if its actor ends."""
Work = Callable[[list[Any]], list[bytes]]
"""Makes lines of a record file from a batch of rows."""


@contextmanager
def _connected(address: str, on_gpus: bool) -> Iterator[tuple[Any, int]]:
    """Ray, which is that of the process if it has one, and the number of its GPUs that actors share."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # or it writes to the terminal
    ray = require("ray", extra="ray")
    if started_here := not ray.is_initialized():
        host, _, port = address.rpartition(":")
        try:
            if port.isdecimal():  # Ray itself tries for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address, log_to_driver=False, logging_level="ERROR")
        except OSError as error:
            raise UsageError(f"no Ray answers at {address} ({error}). Start one, e.g. `ray start --head`.") from error
    try:
        yield ray, int(ray.cluster_resources().get("GPU", 0)) if on_gpus else 0
    finally:
        if started_here:
            ray.shutdown()


class _Worker:
    """An actor. It makes its work at the first batch, and returns errors: those that it raised would be Ray's."""

    def __init__(self, release: str, make: Callable[[], Work]) -> None:
        self._release = release
        self._make = make

    def __call__(self, batch: Any) -> Any:
        result: list[bytes] | Exception
        try:
            if not hasattr(self, "_work"):
                if (here := version("acrc-guardrail")) != self._release:
                    raise UsageError(f"a node has acrc-guardrail {here}, not {self._release}. Install the same one.")
                self._work = self._make()
            result = self._work([pickle.loads(row) for row in batch["row"].to_pylist()])
        except (GuardrailError, OSError) as error:
            result = error
        return require("pyarrow", extra="ray").table({"result": [pickle.dumps(result)]})


def _results(
    make: Callable[[], Work], rows: Sequence[Any], *, size: int, actors: int, gpus: int, ordered: bool
) -> Generator[list[Record], None, None]:
    """The records that actors make of each batch of ``size`` rows; in the order of the rows, or as they are done."""
    if not rows:
        return
    data = require("ray.data", extra="ray")
    ended = require("ray.exceptions", extra="ray").RayActorError
    batches = ceil(len(rows) / size)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # A part of a CPU: where a node is lost, those that are left can hold all actors.
    pool = {"num_gpus": 1} if gpus else {"num_cpus": 0.25, "scheduling_strategy": "SPREAD"}
    pool |= {"max_restarts": RETRIES, "max_task_retries": RETRIES, "batch_size": size, "batch_format": "pyarrow"}
    pool |= {"compute": data.ActorPoolStrategy(size=min(actors, batches))}
    with warnings.catch_warnings(action="ignore"):  # Ray warns of its own settings, and of what 2.64 will drop
        source = data.from_items([{"row": pickle.dumps(row)} for row in rows], override_num_blocks=batches)
        source.context.enable_progress_bars = source.context.print_on_execution_start = False
        source.context.execution_options.preserve_order = ordered
        results = source.map_batches(_Worker, fn_constructor_args=(version("acrc-guardrail"), make), **pool).iter_rows()
    try:
        for result in (pickle.loads(row["result"]) for row in results):
            if isinstance(result, Exception):
                raise result
            yield list(map(Record.from_stored, result))
    except ended as error:
        raise GuardrailError(f"a process ended {RETRIES + 1} times. What is on file is kept: {error}") from error


def score_on_ray(
    reader: RecordReader, score: Callable[[], Score], models: bool, *, address: str = "auto", part_mib: float = PART_MIB
) -> Iterator[Record]:
    """The records with scores, in order, of a file that all nodes see: a `ScoringEngine`.

    ``score``, which must be picklable, is made in every actor: one a CPU, or one a GPU for judges that are ``models``.
    """
    path = reader.path.absolute()
    spans = spans_of(path, reader.good, int(part_mib * 2**20))
    with path.open("rb") as stream:
        reader.warn_of(sum(line.endswith(b"\n") and is_torn(line) for line in stream) if reader.skips else 0)

    def make() -> Work:
        made = score()
        return lambda spans: [record_line(record) for record in made(read_spans(path, spans))]

    with _connected(address, models) as (ray, gpus):
        actors = gpus or int(ray.cluster_resources()["CPU"])
        parts_in_order = _results(make, spans, size=1, actors=actors, gpus=gpus, ordered=True)
        with closing(parts_in_order) as parts:
            yield from chain.from_iterable(parts)


def collect_on_ray(
    drawing: Drawing, *, model: Callable[[], BaseChatModel], address: str = "auto", calls: int = 0, size: int = 0
) -> Generator[list[Record], None, None]:
    """The records of questions in the order in which they are done: a `DrawingEngine`.

    ``model``, which must be picklable, makes the model in every actor: one a GPU for a model that holds weights, which
    draws ``size`` questions at once (16); otherwise one a node, at least two, with ``calls`` together (16 each).
    """
    native = is_native(drawing.model)
    plan = drawing.plan
    prompt = drawing.prompt
    with _connected(address, native) as (ray, gpus):
        actors = gpus or max(1 if native else 2, len(ray.nodes()))
        calls_of_actor = max(1, calls // actors) if calls else CONCURRENCY

        def make() -> Work:  # its variables go to the actors: `drawing` holds the model, which need not be picklable
            chat = model()

            def draw(questions: list[Any]) -> list[bytes]:
                mine = Drawing(questions, chat, plan, prompt)
                return [record_line(record) for record in _drawn(mine, size or BATCH_SIZE, calls_of_actor)]

            return draw

        as_done = _results(make, drawing.questions, size=QUESTIONS, actors=actors, gpus=gpus, ordered=False)
        with closing(as_done) as batches:
            yield from batches


def _drawn(drawing: Drawing, size: int, calls: int) -> Iterable[Record]:
    """The records of an actor's questions: in batches of ``size`` for a model that holds weights, else by ``calls``."""
    pace = Pace(calls, calls)
    if is_native(drawing.model):
        return chain.from_iterable(drawing.batches(size, pace))

    async def streamed() -> list[Record]:
        return [record async for record in drawing.stream(pace)]

    return runner().run(streamed())
