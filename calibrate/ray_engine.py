"""`calibrate score` and `calibrate collect` in several processes: on this machine, or on a Ray cluster.

Ray runs things at least once; what makes it once are the files. A part of a scored file takes its name when it is
whole, and a part that exists is not computed again. An answer is on disk in a shard before it is handed over, and the
process that started the command hands each on once, in the order of the questions. Both go on after a kill.

Without an address Ray runs on this machine alone, for as long as the command, and listens on 127.0.0.1 only.
"""

from __future__ import annotations

import asyncio
import glob
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from guardrail.errors import GuardrailError, RecordError, UsageError, require
from guardrail.files import atomic_write, mode_of
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.prompting import PromptWrapping
from guardrail.sampling.native import is_native
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator

from .data.collect import CONCURRENCY, Drawing
from .data.progress import Progress, silent
from .data.questions import Question
from .data.records import (
    Record,
    RecordHeader,
    RecordReader,
    RecordWriter,
    exclusive,
    is_fragment,
    may_have_fragments,
    read_spans,
    record_line,
    refuse_other_collection,
    replace_lines,
)
from .scoring.scores import ScoreSummary, Scoring, uses_models

__all__ = ["PART_MIB", "RayCollector", "score_on_ray"]

PART_MIB = 8
"""Size of a part: one to three seconds of work, beside which the 0.8 ms that Ray needs for a task vanish."""
BUCKETS = 256
"""Most parts where equal questions share one: all of them are open while they are put together."""
RETRIES = 10
"""How often what ended its process is tried again. A node that goes away counts, and so does a part that crashes."""
PATIENCE = 60.0
"""Seconds without a result until the user reads why. Ray itself waits for ever, and says nothing."""
BATCH = 16
"""Questions handed to an actor at once; so many are asked twice at most when an actor ends before they are on disk."""
AHEAD = 64
"""Batches asked before the oldest is answered: what waits for its place in the file stays bounded."""

_LOOPBACK = {
    # `_node_ip_address="127.0.0.1"` alone is replaced by the machine's address, and every interface is listened on.
    # Where this variable forbids clusters, Ray keeps the address. It is internal: Ray is pinned, and a test looks.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # or Ray writes one to the home folder
}
_BOTH = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # the default is deprecated, and warns


def _nothing(text: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A Ray that runs, and whom to tell that it does not get on."""

    ray: Any
    say: Callable[[str], None]
    patience: float

    def resources(self) -> dict[str, float]:
        """Resources of all nodes together."""
        total: dict[str, float] = self.ray.cluster_resources()
        return total

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that live."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def wait(self, running: Collection[Any], asks: Mapping[str, float]) -> list[Any]:
        """The finished tasks, at least one; reports a reason if none finishes for long.

        Args:
            running: The tasks to wait for.
            asks: Resources that each of them needs.
        """
        while True:
            done: list[Any] = self.ray.wait(list(running), timeout=self.patience)[0]
            if done:
                return done
            self.say(self.stall(asks))

    def stall(self, asks: Mapping[str, float]) -> str:
        """Why nothing was done for so long: resources asked for, against those that are there."""
        free, each = self.ray.available_resources(), [node["Resources"] for node in self.nodes]
        asked_for = " and ".join(f"{number:g} {name}" for name, number in asks.items())
        there = ", ".join(f"{self.resources().get(n, 0):g} {n} ({free.get(n, 0):g} free)" for n in asks)
        fits = any(all(node.get(name, 0) >= number for name, number in asks.items()) for node in each)
        cause = (
            "What runs takes that long, or other jobs hold the rest; `ray status` shows them."
            if fits
            else "No node has that much, so it waits until one joins. Add such a node, or stop the command."
        )
        return (
            f"Nothing was done for {self.patience:g} s. Each task asks for {asked_for}; {len(each)} nodes have "
            f"{there}. {cause}"
        )

    def result(self, reference: Any) -> Any:
        """The value that a task returned.

        Raises:
            GuardrailError: The error that it raised.
        """
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GuardrailError | OSError):
                raise error.cause from None
            raise

    def refuse_strangers(self, path: Path) -> None:
        """Refuse nodes that cannot take part.

        Raises:
            UsageError: A node does not see the file, or has another version of this package.
        """
        pinned = require("ray.util.scheduling_strategies", extra="ray").NodeAffinitySchedulingStrategy
        task, here = self.ray.remote(num_cpus=0)(_seen), _seen(str(path))
        for node in self.nodes:
            there = self.result(task.options(scheduling_strategy=pinned(node["NodeID"], soft=False)).remote(str(path)))
            if there != here:
                name = node["NodeManagerAddress"]
                raise UsageError(
                    f"node {name} has acrc-guardrail {there[0]} and sees {path} as {there[1]}; here it is {here[0]} "
                    f"and {here[1]}. All nodes need the same version, and files on storage that they share."
                )


def _seen(path: str) -> tuple[str, str]:
    """Version of this package on a node, and the size and beginning of a file there."""
    try:
        with open(path, "rb") as stream:
            return version("acrc-guardrail"), f"{os.path.getsize(path)} bytes, {sha256_hex(stream.read(1 << 16), 12)}"
    except OSError as error:
        return version("acrc-guardrail"), str(error.strerror)


@contextmanager
def _connected(address: str | None, say: Callable[[str], None], patience: float) -> Iterator[_Cluster]:
    """Ray: that of the process if it has one, the cluster at an address, or a Ray that lives until the end.

    Raises:
        UsageError: Ray was imported too early to be kept on the loopback interface, or does not start.
        MissingDependencyError: Ray is not installed (extra "ray").
    """
    imported = sys.modules.get("ray")
    if imported is not None and imported.is_initialized():
        yield _Cluster(imported, say, patience)
        return
    before = dict(os.environ)
    with ExitStack() as stack:
        stack.callback(_restore, before)
        os.environ.update(_BOTH if address else {**_LOOPBACK, **_BOTH})
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # a worker a core: threads would only wait for each other
        ray = require("ray", extra="ray")
        options: dict[str, Any] = {"address": address}
        if address is None:
            if require("ray._private.ray_constants", extra="ray").ENABLE_RAY_CLUSTER:
                raise UsageError(
                    "ray was imported before, in a way that lets it listen on every interface. Call `ray.init` "
                    "yourself, or import it after this."
                )
            # Sockets have names of 107 bytes at most, which a TMPDIR of the user may not leave room for.
            folder = tempfile.mkdtemp(prefix="ray", dir="/tmp" if os.path.isdir("/tmp") else None)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            options = {
                "address": "local",  # also where RAY_ADDRESS names a cluster
                "num_cpus": os.cpu_count() or 1,
                "include_dashboard": False,
                "object_store_memory": 80 << 20,  # nothing large passes through it
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": folder,
            }
        else:
            _reach(address, say, patience)
        stack.callback(ray.shutdown)
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise UsageError(f"Ray at {address or 'this machine'} does not answer: {error}") from error
        yield _Cluster(ray, say, patience)


def _reach(address: str, say: Callable[[str], None], patience: float) -> None:
    """Wait until a cluster takes connections. Ray itself tries for minutes, and says nothing.

    Args:
        address: ``host:port`` or ``ray://host:port``; others, such as "auto", Ray finds on this machine.
        say: Called with a line of text if the first attempt fails.
        patience: Seconds.

    Raises:
        UsageError: Nothing took a connection.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    end, said = time.monotonic() + patience, False
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=max(0.1, end - time.monotonic())):
                return
        except OSError as error:
            left = end - time.monotonic()
            if left <= 0:
                raise UsageError(
                    f"nothing answers at {address} after {patience:g} s ({error.strerror or error}). Check the address "
                    "with `ray status --address`, and that a firewall lets this machine through."
                ) from error
            if not said:
                say(f"Ray at {address} does not answer ({error.strerror or error}); trying for {patience:g} s.")
                said = True
            time.sleep(min(1.0, left))


def _restore(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


# -- score: tasks over byte ranges, one part of the target each ------------------------------------------------------

Builder = Callable[[SamplingPlan], Sequence[Estimator]]
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _RayJob:
    """Settings that all parts share."""

    name: str
    source: Path
    header: RecordHeader
    estimators: Builder


def score_on_ray(
    source: str | Path,
    target: str | Path,
    estimators: Builder,
    *,
    address: str | None = None,
    part_bytes: int = PART_MIB << 20,
    progress: Progress = silent,
    say: Callable[[str], None] = _nothing,
    patience: float = PATIENCE,
) -> tuple[RecordHeader, ScoreSummary]:
    """`score_file` in many processes: the same target, byte for byte.

    Finished parts are kept in a folder beside the target (``.NAME.X.parts``) until the target is written; the same call
    goes on with them. With a judge that is a model, equal questions share a part, so that no pair is asked twice.

    Args:
        source: Record file, on storage that all nodes see.
        target: Record file to write, on such storage.
        estimators: From the file's plan to what to compute; called once in every process, and must be picklable.
        address: ``auto`` or ``HOST:PORT`` of a cluster; None for this machine alone.
        part_bytes: Bytes of the source that one task reads.
        progress: Reports records done, of the questions of the file.
        say: Called with a line of text if nothing is done for ``patience`` seconds.
        patience: Seconds.

    Raises:
        UsageError: As `score_file`; or the nodes do not see the same file, or the source changed meanwhile.
        RecordError: A malformed line, or an id that occurs twice. The target stays unchanged.
        GuardrailError: A part ended its process again and again.
    """
    source, target = Path(source).absolute(), Path(target).absolute()
    if not source.is_file():
        raise UsageError(
            f"no record file at {source}. `calibrate collect` makes one, and of people's decisions `calibrate steps`."
        )
    with exclusive(target):
        with source.open("rb") as stream:
            reader = RecordReader(source, stream)
        state = _state(source)
        scoring = Scoring.of(reader.header, estimators)
        models = uses_models(scoring.estimators)
        parts, order = (_buckets if models else _ranges)(source, reader.good, part_bytes)
        torn = _fragments(source) if may_have_fragments(reader.header) else 0
        written = scoring.header.model_dump(mode="json")
        name = sha256_hex(canonical_json([state, written, part_bytes, version("acrc-guardrail")]), 12)
        folder = target.with_name(f".{target.name}.{name}.parts")
        for other in glob.glob(f".{glob.escape(target.name)}.*.parts", root_dir=target.parent, include_hidden=True):
            if other != folder.name:  # of a file or of settings that are no longer there
                shutil.rmtree(target.parent / other)
        files = [folder / f"{number:06}.jsonl" for number in range(len(parts))]
        job = _RayJob(name, source, reader.header, estimators)
        left = [number for number, file in enumerate(files) if not file.exists()]
        done = sum(file.read_bytes().count(b"\n") for file in files if file.exists())
        total = reader.header.n_questions
        progress(done, max(done, total))
        if left:
            with _connected(address, say, patience) as cluster:
                if address is not None:
                    cluster.refuse_strangers(source)
                folder.mkdir(exist_ok=True)
                for n_scored in _score_parts(
                    cluster, job, {number: (parts[number], files[number]) for number in left}, models
                ):
                    done += n_scored
                    progress(done, max(done, total), f"{len(cluster.nodes)} nodes" if address else "")
        if _state(source) != state:
            raise UsageError(f"{source} was changed while it was scored. Run the same command again.")
        summary = ScoreSummary()
        summary.fragments = torn
        mode = mode_of(target, source)
        replace_lines(target, scoring.header, _summarised(_merged(files, order), source, summary), mode=mode)
        shutil.rmtree(folder, ignore_errors=True)
    return scoring.header, summary


def _score_parts(
    cluster: _Cluster, job: _RayJob, parts: Mapping[int, tuple[Spans, Path]], models: bool
) -> Iterator[int]:
    """The number of records of each part, as soon as the part is done."""
    asks: dict[str, float] = {"CPU": 1}
    if models and cluster.resources().get("GPU"):
        asks["GPU"] = 1  # one process for each device: models of two would share its memory
    task = cluster.ray.remote(
        num_cpus=1, num_gpus=asks.get("GPU", 0), max_retries=RETRIES, scheduling_strategy="SPREAD"
    )(_score_part)
    shared, errors = cluster.ray.put(job), cluster.ray.exceptions
    ended = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
    running: dict[Any, int] = {}
    left = deque(parts.items())
    while left or running:
        # Two for each CPU: no process waits for work, and an interrupt does not wait for a long queue.
        while left and len(running) < 2 * max(1, cluster.resources().get("CPU", 1)):
            number, (spans, file) = left.popleft()
            running[task.remote(shared, spans, file)] = number
        for reference in cluster.wait(running, asks):
            number = running.pop(reference)
            try:
                yield cluster.result(reference)
            except ended as error:
                spans, _ = parts[number]
                raise GuardrailError(
                    f"the process that scored bytes {spans[0][0]} to {spans[-1][1]} of {job.source} ended "
                    f"{RETRIES + 1} times ({error}). The other parts are kept. Remove the cause, e.g. too little "
                    "memory, and run the same command again."
                ) from error


_MADE: dict[str, Scoring] = {}
"""The scoring of the job that a process works for: a judge that is a model is loaded once in each."""


def _score_part(job: _RayJob, spans: Spans, file: Path) -> int:
    """Score parts of a file in a worker, write them to a separate file and return how many records they are."""
    if job.name not in _MADE:
        _MADE.clear()
        _MADE[job.name] = Scoring.of(job.header, job.estimators)
    count = 0

    def lines() -> Iterator[bytes]:
        nonlocal count
        records = read_spans(job.source, spans, fragments=may_have_fragments(job.header))
        for record in _MADE[job.name].of_records(records):
            count += 1
            yield record_line(record)

    if not file.exists():  # a task runs again if its node was lost after it was done
        atomic_write(file, lines(), mode=mode_of(job.source))
    return count


def _state(path: Path) -> list[Any]:
    """Facts that tell a file from a changed version of itself without reading all of it."""
    status = path.stat()
    with path.open("rb") as stream:
        stream.seek(max(0, status.st_size - 4096))
        return [str(path), status.st_size, status.st_mtime_ns, sha256_hex(stream.read())]


def _fragments(path: Path) -> int:
    """Torn lines before the last one, which the parts leave out."""
    with path.open("rb") as stream:
        return sum(line.endswith(b"\n") and is_fragment(line) for line in stream)


def _ranges(path: Path, start: int, size: int) -> tuple[list[Spans], None]:
    """Parts of about ``size`` bytes that end with a line."""
    parts: list[Spans] = []
    end = path.stat().st_size
    with path.open("rb") as stream:
        while start < end:
            stream.seek(min(start + size, end) - 1)
            stream.readline()
            parts.append(((start, stream.tell()),))
            start = stream.tell()
    return parts, None


def _buckets(path: Path, start: int, size: int) -> tuple[list[Spans], array[int]]:
    """Parts that hold all records of a question each, and the part of each line."""
    decoder = require("msgspec", extra="ray").json.Decoder(dict)
    number = min(BUCKETS, 1 + path.stat().st_size // size)
    spans: list[list[tuple[int, int]]] = [[] for _ in range(number)]
    order = array("H")
    with path.open("rb") as stream:
        stream.seek(start)
        for line in stream:
            stop = start + len(line)
            if line.strip():
                try:
                    text = str(decoder.decode(line).get("question"))
                except ValueError:
                    text = ""  # the worker reads it, too, and knows what to do with it
                bucket = zlib.crc32(text.encode(errors="replace")) % number
                spans[bucket].append((start, stop))
                if text or not is_fragment(line):  # the worker refuses a torn line, or leaves it out
                    order.append(bucket)
            start = stop
    return [tuple(spans_of) for spans_of in spans], order


def _merged(files: Sequence[Path], order: array[int] | None) -> Iterator[bytes]:
    """The lines of all parts, in the order of the source."""
    if order is None:
        for file in files:
            with file.open("rb") as stream:
                yield from stream
        return
    with ExitStack() as stack:
        streams = [stack.enter_context(file.open("rb")) for file in files]
        for bucket in order:
            yield streams[bucket].readline()  # empty for a torn last line


@dataclass(frozen=True, slots=True)
class _Score:
    value: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    """Fields of a scored record that are decoded."""

    id: str
    scores: dict[str, _Score]


def _summarised(lines: Iterator[bytes], source: Path, summary: ScoreSummary) -> Iterator[bytes]:
    """The lines, once each id is known to be there once and the scores were counted."""
    decoder = require("msgspec", extra="ray").json.Decoder(_Line)
    number_of: dict[str, int] = {}
    for line in filter(None, lines):
        entry = decoder.decode(line)
        if entry.id in number_of:
            raise RecordError(
                f"{source}: field 'id': got {entry.id!r} in record {len(number_of) + 1}, which is already in record "
                f"{number_of[entry.id]}. Every question has one record: remove one of the two lines."
            )
        number_of[entry.id] = len(number_of) + 1
        summary.add({key: (score.value, score.reason) for key, score in entry.scores.items()})
        yield line


# -- collect: a few actors, each with its own shard ------------------------------------------------------------------


class RayCollector:
    """Asks an endpoint from several processes: an `DrawingEngine` of `collect_records`.

    Each actor keeps its answers in a shard (a record file in ``.NAME.shards`` beside the target), every one on disk
    before the next is waited for. Records come in the order of the questions. What a killed process left in its shards
    is not asked again, except for failures whose cause does not lie in the question.

    Args:
        model: Makes the model, in each actor; must be picklable.
        address: ``auto`` or ``HOST:PORT`` of a cluster; None for this machine alone.
        max_concurrency: Calls in flight at once, of all actors together (default 16 an actor).
        actors: Default: two on this machine, one a node of a cluster and at least two.
        say: Called with a line of text if nothing is answered for ``patience`` seconds.
        patience: Seconds.
    """

    def __init__(
        self,
        model: Callable[[], BaseChatModel],
        *,
        address: str | None = None,
        max_concurrency: int | None = None,
        actors: int | None = None,
        say: Callable[[str], None] = _nothing,
        patience: float = PATIENCE,
    ) -> None:
        self._model = model
        self._address = address
        self._calls = max_concurrency
        self._actors = actors
        self._say = say
        self._patience = patience
        self._folder: Path | None = None

    def records(self, drawing: Drawing, path: Path, header: RecordHeader) -> Generator[list[Record], None, None]:
        """The records of all questions, in their order; see `calibrate.data.collect.DrawingEngine`.

        Raises:
            UsageError: The model is of local weights; or nodes do not see the same file.
            GuardrailError: Actors end again and again.
        """
        if is_native(drawing.model):
            raise UsageError(
                f"{type(drawing.model).__name__} holds weights, which one process a device serves best. Leave --engine "
                "ray out, or serve the weights (e.g. with vLLM) and name the endpoint."
            )
        path = path.absolute()
        self._folder = path.with_name(f".{path.name}.shards")
        ids = {question.id for question in drawing.questions}
        waiting: dict[str, Record] = {}
        for shard in sorted(self._folder.glob("*.jsonl")):
            waiting.update(
                (id, record)
                for id, record in _in_shard(shard, header, ids - waiting.keys()).items()
                if not record.may_be_drawn_again
            )
        batches = [drawing.questions[at : at + BATCH] for at in range(0, len(drawing.questions), BATCH)]
        if batches:
            with _connected(self._address, self._say, self._patience) as cluster:
                if self._address is not None:
                    cluster.refuse_strangers(path)
                self._folder.mkdir(exist_ok=True)
                yield from self._asked(cluster, drawing, header, batches, waiting)
        self.forget()

    def forget(self) -> None:
        """Remove the shards."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _asked(
        self,
        cluster: _Cluster,
        drawing: Drawing,
        header: RecordHeader,
        batches: Sequence[Sequence[Question]],
        waiting: dict[str, Record],
    ) -> Iterator[list[Record]]:
        """The batches in their order; ``known`` holds what waits for its place."""
        count = min(self._actors or max(2, len(cluster.nodes)), self._calls or len(batches), len(batches))
        calls = self._calls or CONCURRENCY * count
        # A share of a CPU: where a node is lost, those that are left can hold all actors.
        kind = cluster.ray.remote(num_cpus=0.25, max_concurrency=4, scheduling_strategy="SPREAD")(_Asker)

        def started(place: int) -> tuple[Any, Path]:
            shard = Path(self._folder or "", f"{uuid4().hex}.jsonl")  # a new one each time: a torn line stays the last
            share = calls // count + (place < calls % count)
            settings = (drawing.plan, drawing.prompt, drawing.messages)
            return kind.remote(self._model, settings, share, shard, header), shard

        actors = [started(place) for place in range(count)]
        # A reply, too, is lost with its node, although the answers in it are in the shard.
        lost_errors = (cluster.ray.exceptions.RayActorError, cluster.ray.exceptions.ObjectLostError)
        running: dict[Any, tuple[int, int, Path]] = {}
        left, following, lost = deque(range(len(batches))), 0, 0
        try:
            while True:
                while following < len(batches) and all(question.id in waiting for question in batches[following]):
                    yield [waiting.pop(question.id) for question in batches[following]]
                    following += 1
                if following == len(batches):
                    return
                while left and left[0] < following + AHEAD and len(running) < 2 * count:
                    number = left.popleft()
                    questions = [question for question in batches[number] if question.id not in waiting]
                    if questions:
                        place = min(
                            range(count), key=lambda actor: sum(busy == actor for _, busy, _ in running.values())
                        )
                        actor, shard = actors[place]
                        running[actor.ask.remote(questions)] = number, place, shard
                for reference in cluster.wait(running, {"CPU": 0.25}) if running else ():
                    number, place, shard = running.pop(reference)
                    try:
                        waiting.update((record.id, record) for record in cluster.result(reference))
                        lost = 0
                    except lost_errors as error:
                        waiting.update(_in_shard(shard, header, {question.id for question in batches[number]}))
                        left.appendleft(number)
                        if actors[place][1] == shard:
                            lost += 1
                            if lost > RETRIES:
                                raise GuardrailError(f"{lost} processes that ask the model ended: {error}") from error
                            cluster.ray.kill(actors[place][0])  # one that only cannot be reached would go on asking
                            actors[place] = started(place)
        finally:
            for actor, _ in actors:
                cluster.ray.kill(actor)


class _Asker:
    """An actor: asks its share of the questions, with its share of the calls in flight."""

    def __init__(
        self,
        model: Callable[[], BaseChatModel],
        settings: tuple[SamplingPlan, PromptWrapping, Mapping[str, Sequence[BaseMessage]]],
        calls: int,
        shard: Path,
        header: RecordHeader,
    ) -> None:
        self._drawing = Drawing((), model(), *settings)
        self._each = min(self._drawing.plan.n + 1, calls)
        self._places = asyncio.Semaphore(max(1, calls // self._each))
        replace_lines(shard, header, ())
        self._writer = RecordWriter(shard.open("ab"))

    async def ask(self, questions: Sequence[Question]) -> list[Record]:
        """The records of questions, once all of them are on disk."""
        return list(await asyncio.gather(*map(self._one, questions)))

    async def _one(self, question: Question) -> Record:
        async with self._places:
            record = await self._drawing.one(question, self._each)
            self._writer.append([record])
            return record


def _in_shard(path: Path, header: RecordHeader, ids: Collection[str]) -> dict[str, Record]:
    """The records of some questions in a shard.

    Raises:
        UsageError: The shard is of another collection.
    """
    if not path.exists():
        return {}
    with path.open("rb") as stream:
        reader = RecordReader(path, stream)
        refuse_other_collection(path, reader.header, header)
        return {record.id: record for record in reader if record.id in ids}
