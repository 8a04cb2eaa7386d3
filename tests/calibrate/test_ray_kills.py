"""Scores and answers with Ray survive the loss of processes and of a node, and go on after the command was killed."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from calibrate import ray_engine
from calibrate.data.collect import collect_records
from calibrate.data.questions import read_questions
from calibrate.data.records import read_records
from calibrate.ray_engine import RayCollector, score_on_ray
from calibrate.scoring.scores import score_file
from tests.calibrate import fakes
from tests.calibrate.test_ray_engine import PART, PLAN, SIZE, Heavy, collected, untimed, written

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")]


@pytest.fixture
def two_nodes() -> Iterator[tuple[Any, Any]]:
    """A cluster of two nodes on the loopback interface, and its second node; this process is connected to it."""
    quick = {
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_TMPDIR": "/tmp",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**ray_engine._LOOPBACK, **ray_engine._BOTH, **quick, "OMP_NUM_THREADS": "1"}.items():
            patched.setenv(name, value)
        ray: Any = importlib.import_module("ray")
        clusters: Any = importlib.import_module("ray.cluster_utils")

        node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False}
        cluster = clusters.Cluster(initialize_head=True, head_node_args=node)
        second = cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")
        ray.init(
            address=cluster.address, _node_ip_address="127.0.0.1", log_to_driver=False, logging_level=logging.ERROR
        )
        yield cluster, second
        ray.shutdown()
        cluster.shutdown()


def test_scores_survive_a_killed_worker_and_a_lost_node(tmp_path: Path, two_nodes: tuple[Any, Any]) -> None:
    cluster, node = two_nodes
    path = written(tmp_path / "records.jsonl", 300)
    score_file(path, tmp_path / "local.jsonl", Heavy(tmp_path / "local"))
    lost: list[int] = []

    def lose(done: int, total: int, note: str = "") -> None:
        if done and not lost:
            lost.append(done)
            cluster.remove_node(node, allow_graceful=False)

    heavy = Heavy(tmp_path / "ray", kills=1)
    score_on_ray(path, tmp_path / "ray.jsonl", heavy, address="auto", part_bytes=PART, progress=lose)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert (tmp_path / "ray" / "asked.killed").exists()
    assert 0 < lost[0] < 300


def test_answers_survive_a_killed_actor_and_a_lost_node(
    tmp_path: Path, two_nodes: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, node = two_nodes
    questions = read_questions(fakes.write_questions(tmp_path / "questions.jsonl"))
    path = tmp_path / "records.jsonl"
    lost: list[int] = []

    def lose(done: int, total: int, note: str = "") -> None:
        if done and not lost:
            lost.append(done)
            cluster.remove_node(node, allow_graceful=False)

    engine = RayCollector(Mortal(tmp_path / "killed"), address="auto", actors=3)
    collect_records(questions, fakes.model(), PLAN, path, engine=engine, progress=lose)
    collect_records(questions, fakes.model(), PLAN, tmp_path / "local.jsonl")
    expected = {record.id: record for record in untimed(tmp_path / "local.jsonl")}
    assert untimed(path) == [expected[question.id] for question in questions]
    assert (tmp_path / "killed").exists()
    assert 0 < lost[0] < len(questions)


class Mortal:
    """Makes the scripted model; the first process that asks it for the 30th time is killed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self) -> fakes.MortalChat:
        if not self.mark.exists():
            self.mark.touch()
            fakes._LEFT = 30
        return fakes.model()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.calibrate import fakes
from tests.calibrate import test_ray_kills as here

def progress(done, total, note=""):
    if len(sys.argv) > 3 and done > here.ray_engine.BATCH:  # the first batch is in the file
        os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[2])
if sys.argv[1] == "score":
    source, target, heavy = folder / "records.jsonl", folder / "ray.jsonl", here.Heavy(folder / "ray")
    here.score_on_ray(source, target, heavy, part_bytes=here.PART, progress=progress)
else:
    here.collected(folder, here.RayCollector(here.Counted(folder / "asked"), actors=2), progress=progress)
"""


class Counted:
    """Makes the scripted model, which notes the questions that it answers."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __call__(self) -> fakes.MortalChat:
        log = self.log

        class Noting(fakes.MortalChat):
            def _generate(self, messages: Any, *arguments: Any, **options: Any) -> Any:
                with log.open("a") as stream:
                    stream.write(f"{messages[-1].content}\n")
                return super()._generate(messages, *arguments, **options)

        return Noting(script=fakes.script(), probability=0.5)


def started(*arguments: str) -> int:
    """Exit code of a command in a separate process, whose Ray ends with it."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment, cwd=root, check=False).returncode


def test_scoring_goes_on_after_its_own_process_was_killed(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 300)
    score_file(path, tmp_path / "local.jsonl", Heavy(tmp_path / "local"))
    assert started("score", str(tmp_path), "kill") == -signal.SIGKILL
    times = {part: part.stat().st_mtime_ns for part in tmp_path.glob(".ray.jsonl.*.parts/*.jsonl")}
    assert times
    assert not (tmp_path / "ray.jsonl").exists()
    assert started("score", str(tmp_path)) == 0
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


def test_collecting_goes_on_after_its_own_process_was_killed(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    collected(tmp_path / "local", None)
    assert started("collect", str(tmp_path), "kill") == -signal.SIGKILL
    shards = list(tmp_path.glob(".records.jsonl.shards/*.jsonl"))
    questions = {record.question for shard in shards for record in read_records(shard).records}
    assert len(read_records(tmp_path / "records.jsonl").records) == ray_engine.BATCH <= len(questions)
    assert started("collect", str(tmp_path)) == 0
    expected = {record.id: record for record in untimed(tmp_path / "local" / "records.jsonl")}
    assert untimed(tmp_path / "records.jsonl") == [expected[row["id"]] for row in fakes.rows(SIZE)]
    calls = Counter((tmp_path / "asked").read_text().splitlines())
    assert {calls[question] for question in questions} == {PLAN.n + 1}  # none of them was asked again
    assert min(calls[row["question"]] for row in fakes.rows(SIZE)) == PLAN.n + 1
