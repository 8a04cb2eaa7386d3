"""What scoring and collecting on Ray ask of it, report and refuse: a stand-in for Ray runs tasks in this process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the ray extra is not installed")

from benchmarks.scoring import header_of, made_records
from calibrate import ray_engine
from calibrate.data.collect import collect_records
from calibrate.data.questions import read_questions
from calibrate.data.records import read_records, write_records
from calibrate.ray_engine import RayCollector, score_on_ray
from calibrate.scoring.scores import score_file
from guardrail.errors import GuardrailError
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator
from guardrail.uncertainty import make_estimator as make
from tests.calibrate import fakes
from tests.golden.shown import same


class _EndedError(Exception):
    """Stands for every way in which Ray says that a process ended."""


class _TaskError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(f"in a worker: {cause}")
        self.cause = cause


class Ray(ModuleType):
    """Runs tasks and actors at once, in this process, and notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.lines: list[str] = []
        self.initialized = True
        self.loop = asyncio.new_event_loop()
        self.resources = {"CPU": 2.0}
        self.fails: list[Exception | None] = []
        self.silent = 0
        self.living = [{"NodeID": "n1", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 2.0}}]
        ended = {name: _EndedError for name in ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")}
        lost = {name: _EndedError for name in ("RayActorError", "ObjectLostError")}
        self.exceptions = SimpleNamespace(RayTaskError=_TaskError, **ended, **lost)

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self, **options: Any) -> None:
        words = {name: "(folder)" if name == "_temp_dir" else value for name, value in options.items()}
        names = ("OMP_NUM_THREADS", *ray_engine._LOOPBACK, *ray_engine._BOTH)
        environment = {name: os.environ.get(name) for name in names}
        environment["RAY_AUTH_TOKEN"] = str(len(environment["RAY_AUTH_TOKEN"] or ""))
        self.lines.append(f"init {json.dumps(words, sort_keys=True)}")
        self.lines.append(f"  environment {json.dumps(environment, sort_keys=True)}")
        if self.fails:
            raise self.fails.pop(0) or AssertionError

    def shutdown(self) -> None:
        self.lines.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}

    def nodes(self) -> list[dict[str, Any]]:
        return [*self.living, {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 64.0}}]

    def put(self, value: Any) -> Any:
        return value

    def kill(self, actor: Any) -> None:
        self.lines.append("kill")
        actor.end()

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        def made(what: Any) -> Any:
            self.lines.append(f"remote {what.__name__.strip('_')} {json.dumps(options, sort_keys=True)}")
            return Actors(self, what) if isinstance(what, type) else Task(self, what)

        return made

    def wait(self, references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        if self.silent:
            self.silent -= 1
            self.lines.append(f"wait {timeout:g} s for {len(references)}")
            return [], references
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        return reference()


class Task:
    """A task."""

    def __init__(self, ray: Ray, function: Callable[..., Any]) -> None:
        self.ray, self.function = ray, function

    def options(self, **options: Any) -> Task:
        self.ray.lines.append(f"  pinned {options['scheduling_strategy']}")
        return self

    def remote(self, *arguments: Any) -> Callable[[], Any]:
        def run() -> Any:
            failure = self.ray.fails.pop(0) if self.ray.fails else None
            if failure is not None:
                raise failure
            return self.function(*arguments)

        return run


class Actors:
    """A kind of actors."""

    def __init__(self, ray: Ray, kind: type) -> None:
        self.ray, self.kind = ray, kind

    def remote(self, model: Any, settings: Any, share: int, shard: Path, header: Any) -> Any:
        self.ray.lines.append(f"actor with {share} calls")
        actor = self.kind(model, settings, share, shard, header)
        self.ray.lines.append(f"  {actor._each} calls a question")

        def remote(questions: Any) -> Callable[[], Any]:
            self.ray.lines.append(f"  asks {questions[0].id} to {questions[-1].id}")

            def run() -> Any:
                failure = self.ray.fails.pop(0) if self.ray.fails else None
                if failure is not None or actor._writer._stream.closed:
                    raise failure or _EndedError("the actor was killed")
                return self.ray.loop.run_until_complete(actor.ask(questions))

            return run

        return SimpleNamespace(ask=SimpleNamespace(remote=remote), end=actor._writer._stream.close)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    """A stand-in in place of Ray."""
    fake = Ray()
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: f"{node} soft {soft}"  # type: ignore[attr-defined]
    constants = ModuleType("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    for name, module in (
        ("ray", fake),
        ("ray.util", ModuleType("ray.util")),
        ("ray.util.scheduling_strategies", strategies),
        ("ray._private", ModuleType("ray._private")),
        ("ray._private.ray_constants", constants),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(ray_engine, "version", lambda name: "1.0")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    yield fake
    fake.loop.close()


def light(plan: SamplingPlan) -> list[Estimator]:
    return [make("num_sets"), make("lexical_similarity")]


def written(path: Path, size: int = 24) -> Path:
    """Records of eight questions."""
    originals = list(made_records(size, 3))
    records = [record.model_copy(update={"question": originals[i % 8].question}) for i, record in enumerate(originals)]
    write_records(path, header_of(size, 3), records)
    return path


def refused(lines: list[str], name: str, call: Callable[[], Any], folder: Path) -> None:
    """Note the error of a call."""
    with pytest.raises(GuardrailError) as error:
        call()
    text = re.sub(r"bytes \d+ to \d+", "bytes (first) to (last)", str(error.value).replace(str(folder), "(folder)"))
    lines.append(f"{name}\n  {type(error.value).__name__}: {text}")


def test_scoring(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ray.lines
    path = written(tmp_path / "records.jsonl")
    score_file(path, tmp_path / "local.jsonl", light)

    def score(name: str = "ray.jsonl", **how: Any) -> Any:
        def progress(done: int, total: int, note: str = "") -> None:
            lines.append(f"progress {done} of {total} {note}".rstrip())

        how.setdefault("part_bytes", 8 << 10)
        return score_on_ray(path, tmp_path / name, light, progress=progress, say=lines.append, **how)

    _, summary = score()
    lines.append(f"the same file: {(tmp_path / 'ray.jsonl').read_bytes() == (tmp_path / 'local.jsonl').read_bytes()}")
    lines.append(
        f"summary: {summary.n_records} records, {summary.fragments} torn, num_sets {len(summary.of('num_sets')[0])}"
    )
    lines.append(f"left: {sorted(each.name for each in tmp_path.iterdir())}")
    lines.append("-- a process that ends again and again, and the same call again:")
    ray.fails = [None, _EndedError("the node died")]
    refused(lines, "score", score, tmp_path)
    lines.append(f"kept: {sorted(each.name for each in next(tmp_path.glob('.*.parts')).iterdir())}")
    (tmp_path / ".ray.jsonl.000000000000.parts").mkdir()
    score()
    lines.append(f"left: {sorted(each.name for each in tmp_path.iterdir())}")
    lines.append("-- errors of a worker:")
    ray.fails = [_TaskError(GuardrailError("the judge failed"))]
    refused(lines, "score", score, tmp_path)
    ray.fails = [_TaskError(ValueError("a bug"))]
    with pytest.raises(_TaskError, match="a bug"):
        score()
    lines.append("-- nothing gets on:")
    ray.silent = 1
    score("slow.jsonl", patience=5.0)
    ray.silent, ray.living[0]["Resources"] = 1, {"CPU": 0.5}
    score("slower.jsonl", patience=7.5)
    ray.living[0]["Resources"] = {"CPU": 2.0}
    lines.append("-- a cluster:")
    score("cluster.jsonl", address="auto")
    seen = iter([("1.0", "here"), ("0.9", "5 bytes, abc")])
    monkeypatch.setattr(ray_engine, "_seen", lambda path: next(seen))
    refused(lines, "of another version", lambda: score("other.jsonl", address="auto"), tmp_path)
    monkeypatch.undo()
    lines.append("-- refusals:")
    monkeypatch.setitem(sys.modules, "ray", ray)
    refused(lines, "no file", lambda: score_on_ray(tmp_path / "none.jsonl", tmp_path / "x.jsonl", light), tmp_path)
    state = iter([["before"], ["after"]])
    monkeypatch.setattr(ray_engine, "_state", lambda path: next(state))
    refused(lines, "a file that changes", lambda: score("changed.jsonl"), tmp_path)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", ray)
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*text[:3], text[1]]))
    refused(lines, "an id that occurs twice", score, tmp_path)
    path.write_text("".join([*text[:3], '{"id": 5}\n']))
    refused(lines, "a malformed line", score, tmp_path)
    same("ray/scoring.txt", "\n".join(lines).replace(str(tmp_path), "(folder)"))


def test_scoring_with_a_model(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of one question share a part, and each task asks for a device where there are any."""
    path = written(tmp_path / "records.jsonl")
    score_file(path, tmp_path / "local.jsonl", light)
    monkeypatch.setattr(ray_engine, "uses_models", lambda estimators: True)
    ray.resources = {"CPU": 2.0, "GPU": 1.0}
    ray.silent = 1
    score_on_ray(path, tmp_path / "ray.jsonl", light, part_bytes=8 << 10, say=ray.lines.append)
    ray.lines.append(f"the same: {(tmp_path / 'ray.jsonl').read_bytes() == (tmp_path / 'local.jsonl').read_bytes()}")
    start = path.read_bytes().index(b"\n") + 1
    spans, order = ray_engine._buckets(path, start, 8 << 10)
    ray.lines.append(f"parts of {[len(each) for each in spans]} records, in the order {order.tolist()}")
    ranges, _ = ray_engine._ranges(path, start, 8 << 10)
    lengths = [path.read_bytes()[first:last].count(b"\n") for ((first, last),) in ranges]
    ray.lines.append(f"ranges of {lengths} records, nothing between: {ranges[0][0][0] == start}")
    ray.lines.append(f"seen: {[len(ray_engine._seen(str(path))[1].split()), ray_engine._seen('/no/such/file')]}")
    names = ("PART_MIB", "BUCKETS", "RETRIES", "PATIENCE", "BATCH", "AHEAD")
    limits = {name: getattr(ray_engine, name) for name in names}
    ray.lines.append(f"limits: {limits}")
    same("ray/scoring-with-a-model.txt", "\n".join(ray.lines))


def test_connecting(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ray.lines

    @contextmanager
    def started() -> Iterator[None]:
        before = dict(os.environ)
        ray.initialized = False
        yield
        lines.append(f"environment as before: {dict(os.environ) == before}")

    def connect(address: str | None) -> None:
        with ray_engine._connected(address, lines.append, 5.0) as cluster:
            lines.append(f"connected: {cluster.ray is ray}, patience {cluster.patience:g}")

    with started():
        connect(None)
    with started():
        connect("auto")
    ray.fails = [ConnectionError("no head node")]
    with started():
        refused(lines, "a cluster that does not answer", lambda: connect("auto"), tmp_path)
    ray.fails = [RuntimeError("no room")]
    with started():
        refused(lines, "this machine does not", lambda: connect(None), tmp_path)
    sys.modules["ray._private.ray_constants"].ENABLE_RAY_CLUSTER = True  # type: ignore[attr-defined]
    with started():
        refused(lines, "imported too early", lambda: connect(None), tmp_path)
    clock, left = [0.0], [0]

    def create_connection(address: Any, timeout: float) -> Any:
        lines.append(f"try {address} for {timeout:g} s")
        if left[0]:
            left[0] -= 1
            raise ConnectionRefusedError(111, "Connection refused")
        return SimpleNamespace(__enter__=None)

    def sleep(seconds: float) -> None:
        lines.append(f"sleep {seconds:g}")
        clock[0] += seconds

    class Open:
        def __enter__(self) -> None:
            lines.append("open")

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(ray_engine, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    monkeypatch.setattr(
        ray_engine, "socket", SimpleNamespace(create_connection=lambda *a, **k: create_connection(*a, **k) and Open())
    )
    for address in ("auto", "host", "host:port", "ray://10.0.0.1:10001", "[::1]:6379"):
        lines.append(f"reach {address}")
        ray_engine._reach(address, lines.append, 3.0)
    left[0] = 2
    ray_engine._reach("10.0.0.1:6379", lines.append, 2.5)
    left[0] = 9
    refused(lines, "nobody", lambda: ray_engine._reach("10.0.0.1:6379", lines.append, 2.5), tmp_path)
    same("ray/connecting.txt", "\n".join(lines))


def test_collecting(ray: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ray.lines
    questions = read_questions(fakes.write_questions(tmp_path / "questions.jsonl", 36))
    plan = SamplingPlan(n=2, temperature=0.7, max_tokens=16)

    def collect(name: str, **how: Any) -> None:
        lines.append(f"-- {name}:")
        engine = RayCollector(fakes.model, say=lines.append, patience=5.0, **how)
        path = tmp_path / f"{name.replace(' ', '-')}.jsonl"
        collect_records(questions, fakes.model(), plan, path, name="questions.jsonl", engine=engine)
        lines.append(f"records: {[record.id for record in read_records(path).records] == [q.id for q in questions]}")
        lines.append(f"shards are gone: {not list(tmp_path.glob('.*.shards'))}")

    collect("by default")
    collect("five calls", max_concurrency=5, actors=2)
    collect("one call", max_concurrency=1)
    ray.silent = 1
    collect("slow")
    ray.fails = [_EndedError("the actor died")]
    collect("an actor is lost")
    ray.fails = [_EndedError("the actor died")] * 40
    refused(lines, "actors end again and again", lambda: collect("none", actors=1), tmp_path)
    lines.append(f"shards stay: {len(list(tmp_path.glob('.none.jsonl.shards/*')))}")
    ray.fails = []
    collect("none")
    ray.living.append({"NodeID": "n2", "NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": {"CPU": 1.0}})
    ray.living.append({"NodeID": "n3", "NodeManagerAddress": "10.0.0.3", "Alive": True, "Resources": {"CPU": 1.0}})
    collect("a cluster", address="auto")
    monkeypatch.setattr(ray_engine, "is_native", lambda model: True)
    refused(lines, "a model with weights", lambda: collect("native"), tmp_path)
    same("ray/collecting.txt", "\n".join(lines).replace(str(tmp_path), "(folder)"))
