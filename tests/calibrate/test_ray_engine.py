"""Ray gives the files that one process gives, each record once; what is on file is not drawn again."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate import ray_engine
from calibrate.cli import app
from calibrate.data.collect import Collected, collect_records
from calibrate.data.formats.questions import read_questions
from calibrate.data.records import read_records, record_line, write_records
from calibrate.ray_engine import collect_on_ray, score_on_ray
from calibrate.scoring.compute import score_file
from guardrail.errors import GuardrailError, RecordError, UsageError
from guardrail.types import SamplingPlan
from guardrail.uncertainty import Estimator
from guardrail.uncertainty import make_estimator as make
from tests.calibrate import fakes
from tests.calibrate.data.test_collect import NativeChat

PART = 1 / 128
"""MiB: a few records."""
SIZE = 140
"""Records, or questions: three batches of questions."""
PLAN = SamplingPlan(n=3)


def light(plan: SamplingPlan) -> list[Estimator]:
    return [make("semantic_entropy"), make("lexical_similarity"), make("num_sets")]


class InProcess:
    """The part of Ray that is used, without processes: batches of rows go through one actor."""

    def __init__(self) -> None:
        self.context = SimpleNamespace(execution_options=SimpleNamespace(preserve_order=False))
        self.ActorPoolStrategy = SimpleNamespace
        self.RayActorError = ProcessLookupError

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def nodes(self) -> list[str]:
        return ["here"]

    def from_items(self, items: Sequence[dict[str, Any]], *, override_num_blocks: int) -> InProcess:
        self.items = items
        return self

    def map_batches(self, kind: Any, *, fn_constructor_args: Any, batch_size: int, **pool: Any) -> InProcess:
        self.actor, self.size = kind(*fn_constructor_args), batch_size
        return self

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self.items), self.size):
            yield from self.actor(
                self.require("pyarrow").table({"row": column(self.items, start, self.size)})
            ).to_pylist()

    def require(self, name: str, *, extra: str = "ray") -> Any:
        return import_module(name) if name == "pyarrow" else self


def column(items: Sequence[dict[str, Any]], start: int, size: int) -> list[Any]:
    return [item["row"] for item in items[start : start + size]]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(ray_engine, "require", InProcess().require)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Ray on the loopback interface, for as long as the tests of this file."""
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as folder:
        for name, value in {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # internal: without it Ray takes the machine's own address
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0" * 64,
        }.items():
            patched.setenv(name, value)
        found: Any = pytest.importorskip("ray")
        found.init(
            "local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder,
            object_store_memory=256 << 20, log_to_driver=False, logging_level="ERROR",
        )  # fmt: skip
        yield found
        found.shutdown()


def written(path: Path, size: int = SIZE) -> Path:
    write_records(path, header_of(size, 3), made_records(size, 3))
    return path


def by_ray(path: Path, target: Path, **options: Any) -> Any:
    return score_file(path, target, light, engine=partial(score_on_ray, part_mib=PART), **options)


def collected(path: Path, make_model: Callable[[], Any] | None = None, **options: Any) -> Collected:
    """Answers of the scripted model; by Ray if there is what makes the model."""
    questions = read_questions(fakes.write_questions(path.with_name("questions.jsonl"), SIZE))
    if make_model is not None:
        options |= {"engine": partial(collect_on_ray, model=make_model)}
    return collect_records(questions, (make_model or fakes.model)(), PLAN, path, **options)


def lines_of(path: Path) -> list[bytes]:
    """The records by id, without how long they took."""
    records = sorted(read_records(path).records, key=lambda record: record.id)
    return [
        record_line(record.model_copy(update={"drawn": record.drawn.model_copy(update={"cost": None})}))
        for record in records
        if record.drawn is not None
    ]


# -- without Ray


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("gateway", [False, True])
def test_parts_give_the_file_that_one_process_gives(
    tmp_path: Path, gateway: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of a gateway whose disk was full: its torn lines are left out and counted. Scores would shift by a line."""
    path = written(tmp_path / "records.jsonl")
    header, *lines = path.read_bytes().splitlines(keepends=True)
    if gateway:
        values = json.loads(header)
        values["header"]["questions_name"] = "observed: m"
        torn = b'{"id": "torn", "quest\n'
        path.write_bytes(json.dumps(values).encode() + b"\n" + b"".join([*lines[:30], torn, *lines[30:], torn[:-1]]))
    _, expected = score_file(path, tmp_path / "local.jsonl", light)
    steps: list[int] = []
    header_now, summary = by_ray(path, tmp_path / "ray.jsonl", progress=lambda done, total, note="": steps.append(done))
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert header_now == read_records(tmp_path / "ray.jsonl").header
    assert summary.n_records == expected.n_records == SIZE
    assert caplog.text.count("1 torn lines were left out") == 2 * gateway
    assert steps[-1] == SIZE


@pytest.mark.usefixtures("in_process")
def test_a_bad_line_is_named_and_the_target_stays(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 3)
    path.write_text(path.read_text() + '{"id": 7}\n')
    with pytest.raises(RecordError, match=r":5: field 'id'"):
        by_ray(path, tmp_path / "ray.jsonl")
    assert not (tmp_path / "ray.jsonl").exists()


@pytest.mark.usefixtures("in_process")
def test_a_node_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores could differ from those of the other nodes."""
    releases = iter(["1.0", "9.9"])
    monkeypatch.setattr(ray_engine, "version", lambda name: next(releases))
    with pytest.raises(UsageError, match=r"a node has acrc-guardrail 9\.9, not 1\.0"):
        by_ray(written(tmp_path / "records.jsonl", 3), tmp_path / "ray.jsonl")


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("make_model", [fakes.model, NativeChat])
def test_what_is_on_file_after_a_kill_is_not_drawn_again(tmp_path: Path, make_model: Callable[[], Any]) -> None:
    """For a model behind calls, and for one that holds weights. Answers are paid for."""

    def killed(done: int, total: int, note: str = "") -> None:
        if done == 2 * ray_engine.QUESTIONS:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collected(tmp_path / "records.jsonl", make_model, progress=killed)
    done = collected(tmp_path / "records.jsonl", make_model)
    assert (done.n_resumed, done.n_drawn) == (ray_engine.QUESTIONS, SIZE - ray_engine.QUESTIONS)
    questions = read_questions(tmp_path / "questions.jsonl")
    collect_records(questions, make_model(), PLAN, tmp_path / "local.jsonl")
    assert lines_of(tmp_path / "records.jsonl") == lines_of(tmp_path / "local.jsonl")
    assert collected(tmp_path / "records.jsonl", make_model).n_drawn == 0


def test_misuse_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "records.jsonl", 3)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    result = CliRunner().invoke(app, ["score", str(path), "-s", "num_sets", "--engine", "ray"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "ray is not installed. Install it with: pip install 'acrc-guardrail[ray]'" in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


# -- with Ray


class Mortal:
    """Makes the scripted model; ``kills`` processes that ask it are killed at its 30th call."""

    def __init__(self, folder: Path, kills: int) -> None:
        self.folder, self.kills = folder, kills

    def __call__(self) -> fakes.MortalChat:
        if os.environ.get("RAY_RAYLET_PID") and len(list(self.folder.glob("killed*"))) < self.kills:
            tempfile.mkstemp(prefix="killed", dir=self.folder)
            fakes._LEFT = 30
        return fakes.model()


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_files_are_those_of_one_process_although_a_worker_is_killed(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl")
    command = ["score", str(path), "-s", "num_sets", "-o"]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "by_ray"), "--engine", "ray"])
    assert result.exit_code == 0, result.output
    CliRunner().invoke(app, [*command, str(tmp_path / "by_one")])
    assert (tmp_path / "by_ray").read_bytes() == (tmp_path / "by_one").read_bytes()
    assert collected(tmp_path / "ray.jsonl", Mortal(tmp_path, 1)).n_drawn == SIZE
    assert len(list(tmp_path.glob("killed*"))) == 1
    collected(tmp_path / "local.jsonl")
    assert lines_of(tmp_path / "ray.jsonl") == lines_of(tmp_path / "local.jsonl")


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_a_batch_that_always_ends_its_process_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray alone would try for ever, and say nothing."""
    monkeypatch.setattr(ray_engine, "RETRIES", 1)
    with pytest.raises(GuardrailError, match="a process ended 2 times"):
        collected(tmp_path / "ray.jsonl", Mortal(tmp_path, 99))
