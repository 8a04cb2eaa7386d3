"""Ray gives the files that one process gives: in order, each record once, also after kills and a second start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from benchmarks.scoring import header_of, made_records
from calibrate import ray_engine
from calibrate.cli import app
from calibrate.correctness.rules import Exact
from calibrate.data.collect import Collected, collect_records
from calibrate.data.questions import read_questions
from calibrate.data.records import Record, read_records, read_spans, record_line, write_records
from calibrate.ray_engine import RayCollector, _reach, score_on_ray
from calibrate.scoring.scores import arrays, score_file, with_cache
from guardrail.errors import GuardrailError, RecordError, UsageError
from guardrail.judges import JudgeSpec
from guardrail.judges.cache import PairCache
from guardrail.types import SamplingPlan, Unmeasured
from guardrail.uncertainty import Estimator
from guardrail.uncertainty import make_estimator as make
from tests.calibrate import fakes

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")

PART = 8 << 10
"""Bytes: a few records."""
SIZE = 40
"""Records, or questions."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """The local engine, started once; what runs meanwhile takes it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "cpu_count", lambda: 1)  # a second worker takes longer to start than it saves
        with ray_engine._connected(None, print, 60) as cluster:
            yield cluster


def light(plan: SamplingPlan) -> list[Estimator]:
    return [make("semantic_entropy"), make("lexical_similarity"), make("num_sets")]


def written(path: Path, size: int = SIZE) -> Path:
    """Records of eight questions."""
    originals = list(made_records(size, 3))
    records = [record.model_copy(update={"question": originals[i % 8].question}) for i, record in enumerate(originals)]
    write_records(path, header_of(size, 3), records)
    return path


class Noted:
    """A judge that is slow enough for a cache, and writes down each pair that it is asked about."""

    spec = JudgeSpec(name="noted", version=1, params={})

    def __init__(self, log: Path, kills: int = 0) -> None:
        self.log = log
        self.kills = kills

    def equivalent(self, question: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        if self.kills and not (killed := self.log.with_suffix(".killed")).exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with self.log.open("a") as stream:
            stream.writelines(json.dumps([question, *sorted(pair)]) + "\n" for pair in pairs)
        return [first[:1] == second[:1] for first, second in pairs]


class Heavy:
    """Estimators with such a judge and its cache."""

    def __init__(self, folder: Path, kills: int = 0) -> None:
        self.folder = folder
        self.kills = kills

    def __call__(self, plan: SamplingPlan) -> list[Estimator]:
        self.folder.mkdir(exist_ok=True)
        judge = Noted(self.folder / "asked.jsonl", self.kills)
        return [with_cache(make("num_sets", judge=judge), PairCache(self.folder / "pairs.sqlite"))]

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked.jsonl").read_text().splitlines()


# -- score


@pytest.mark.usefixtures("engine")
def test_parts_give_the_file_that_one_process_gives(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl")
    file = read_records(path)
    doubts = {"correct": None, "label_detail": "no sentence states a reference"}
    labels = [doubts if i % 3 == 0 else {"correct": i % 3 == 1} for i in range(SIZE)]
    labelled = [record.model_copy(update=label) for record, label in zip(file.records, labels, strict=True)]
    write_records(path, file.header.model_copy(update={"correctness": Exact().spec}), labelled)
    _, expected = score_file(path, tmp_path / "local.jsonl", light)
    steps: list[tuple[int, int]] = []
    header, summary = score_on_ray(
        path,
        tmp_path / "ray.jsonl",
        light,
        part_bytes=PART,
        progress=lambda done, total, note="": steps.append((done, total)),
    )
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert len(ray_engine._ranges(path, 0, PART)[0]) > 3  # or one part would prove little
    assert header == read_records(tmp_path / "ray.jsonl").header
    counted = arrays(read_records(tmp_path / "ray.jsonl").records, "num_sets")
    assert (counted.n_undecided, counted.error.size, int(counted.error.sum())) == (14, SIZE, 27)  # 13 are wrong
    for key in header.estimators:
        assert summary.of(key) == expected.of(key)
        assert len(set(summary.of(key)[0])) > 1
    assert steps[-1] == (SIZE, SIZE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local.jsonl", "ray.jsonl", "records.jsonl"]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("by_model", [False, True])
def test_torn_lines_of_a_gateway_are_left_out_and_counted(tmp_path: Path, by_model: bool) -> None:
    path = written(tmp_path / "records.jsonl")
    header, *lines = path.read_bytes().splitlines(keepends=True)
    path = tmp_path / "observed.jsonl"
    torn = b'{"id": "torn", "quest\n'
    values = json.loads(header)
    values["header"]["questions_name"] = "observed: m"
    path.write_bytes(
        json.dumps(values).encode() + b"\n" + b"".join([*lines[:1], torn, *lines[1:30], torn, *lines[30:], torn[:-1]])
    )
    estimators = [Heavy(tmp_path / name) if by_model else light for name in ("local", "ray")]
    _, expected = score_file(path, tmp_path / "local.jsonl", estimators[0])
    _, summary = score_on_ray(path, tmp_path / "ray.jsonl", estimators[1], part_bytes=PART)
    assert (expected.fragments, summary.fragments, summary.n_records) == (2, 2, SIZE)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


@pytest.mark.usefixtures("engine")
def test_a_model_is_asked_once_about_a_pair_and_never_again_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "records.jsonl")
    score_file(path, tmp_path / "local.jsonl", Heavy(tmp_path / "local"))
    heavy = Heavy(tmp_path / "ray")

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ray_engine, "replace_lines", killed)  # every part is done, and the target is not written
        with pytest.raises(KeyboardInterrupt):
            score_on_ray(path, tmp_path / "ray.jsonl", heavy, part_bytes=PART)
    pairs = heavy.asked
    assert len(pairs) == len(set(pairs)) > 0
    assert sorted(pairs) == sorted(Heavy(tmp_path / "local").asked)
    (tmp_path / "ray" / "pairs.sqlite").unlink()  # what is computed again would ask again
    score_on_ray(path, tmp_path / "ray.jsonl", heavy, part_bytes=PART)
    assert heavy.asked == pairs
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()
    assert not list(tmp_path.glob(".*.parts"))


@pytest.mark.usefixtures("engine")
def test_the_command(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl", 3)
    result = CliRunner().invoke(app, ["score", str(path), "-e", "num_sets", "--engine", "ray", "--part-mib", "1"])
    assert result.exit_code == 0, result.output
    assert all("num_sets" in record.scores for record in read_records(path).records)


@pytest.mark.slow
@pytest.mark.usefixtures("engine")
def test_a_part_that_always_crashes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 0)
    path = written(tmp_path / "records.jsonl", 3)
    with pytest.raises(GuardrailError, match=r"scored bytes \d+ to \d+ of .*records.jsonl ended 1 times"):
        score_on_ray(path, tmp_path / "ray.jsonl", Heavy(tmp_path / "ray", kills=1))
    assert not (tmp_path / "ray.jsonl").exists()
    score_on_ray(path, tmp_path / "ray.jsonl", Heavy(tmp_path / "ray", kills=1))  # the cause is gone
    assert len(read_records(tmp_path / "ray.jsonl").records) == 3


def test_equal_questions_share_a_part(tmp_path: Path) -> None:
    path = written(tmp_path / "records.jsonl")

    def parts_of(spans: Sequence[ray_engine.Spans]) -> list[set[str]]:
        return [{record.question for record in read_spans(path, part)} for part in spans]

    start = len(path.read_bytes().splitlines(keepends=True)[0])
    parts, order = ray_engine._buckets(path, start, PART)
    questions = parts_of(parts)
    assert sum(map(len, questions)) == len(set.union(*questions)) == 8
    assert len(order) == SIZE == sum(map(len, parts))
    assert sum(map(len, parts_of(ray_engine._ranges(path, start, PART)[0]))) > 8  # the check sees it where they do not


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("line", ['{"id": 7}\n', "torn", "twice"])
def test_a_bad_line_is_named_as_ever(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "records.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    bad = {"torn": lines[-1][:-40], "twice": lines[1]}.get(line, line)
    path.write_text("".join([*lines, bad]))
    target = tmp_path / "scored.jsonl"
    if line == "torn":
        score_on_ray(path, target, light, part_bytes=PART)
        assert len(read_records(target).records) == SIZE
        return
    rule = "already in record 1" if line == "twice" else f":{SIZE + 2}: field 'id'"
    with pytest.raises(RecordError, match=rule) as raised:
        score_on_ray(path, target, light, part_bytes=PART)
    assert raised.type is RecordError, "not Ray's error, whose text is a traceback"
    assert not target.exists()


def test_what_does_not_fit_any_node_is_named(engine: Any) -> None:
    class ReportedError(Exception):
        pass

    def say(text: str) -> None:
        raise ReportedError(text)

    impatient = ray_engine._Cluster(engine.ray, say, 0.01)
    waiting = engine.ray.remote(num_gpus=3)(ray_engine._seen).remote("")
    with pytest.raises(ReportedError, match=r"asks for 1 CPU and 3 GPU; 1 nodes have .* 0 GPU .*No node has that much"):
        impatient.wait([waiting], {"CPU": 1, "GPU": 3})
    engine.ray.cancel(waiting)
    assert "other jobs hold the rest" in impatient.stall({"CPU": 1})


def test_a_node_of_another_version_or_without_the_file_is_refused(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "records.jsonl", 3)
    engine.refuse_strangers(path)
    monkeypatch.setattr(ray_engine, "version", lambda name: "9.9")
    with pytest.raises(UsageError, match=r"node 127.0.0.1 has acrc-guardrail .* here it is 9.9 and \d+ bytes"):
        engine.refuse_strangers(path)


def test_the_manifest_of_the_docs_runs_a_command_that_exists() -> None:
    """Its form was compared with the schema of KubeRay by hand; nothing here can run it."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    manifest = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    program, command, *arguments = shlex.split(manifest["spec"]["entrypoint"])
    commands: Any = get_command(app)
    declared = commands.commands[command]
    assert program == "calibrate"
    assert {option for option in arguments if option.startswith("-")} <= {
        name for option in declared.params for name in option.opts
    }
    cluster = manifest["spec"]["rayClusterSpec"]
    assert f"ray=={cluster['rayVersion']}" in (Path(__file__).parents[2] / "constraints.txt").read_text(
        encoding="utf-8"
    )
    assert cluster["authOptions"]["mode"] == "token"


# -- what listens


def listening(pids: set[int], tables: dict[str, str], links: Callable[[int], list[str]]) -> list[str]:
    """The addresses, in hexadecimal, on which processes listen: from /proc."""
    sockets = {link[8:-1] for pid in pids for link in links(pid) if link.startswith("socket:[")}
    rows = [line.split() for text in tables.values() for line in text.splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets]


def outside(addresses: Sequence[str]) -> list[str]:
    """The addresses that are not of the loopback interface: 127.0.0.1, as IPv4 or within IPv6, or ::1."""
    return [address for address in addresses if not address.endswith("0100007F") and address != f"{'0' * 24}01000000"]


def descendants(root: int) -> set[int]:
    parent = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    family = {root}
    while more := {pid for pid, above in parent.items() if above in family} - family:
        family |= more
    return family


def links_of(pid: int) -> list[str]:
    try:
        return [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
@pytest.mark.usefixtures("engine")
def test_the_local_engine_listens_on_the_loopback_interface_only() -> None:
    tables = {
        name: Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6") if Path(f"/proc/net/{name}").exists()
    }
    addresses = listening(descendants(os.getpid()), tables, links_of)
    assert len(addresses) > 3  # its control store, scheduler and workers
    assert outside(addresses) == []
    open_to_all = (
        "sl\n 0: 00000000:1F90 00000000:0000 0A 0 0 0 0 0 77 1\n"  # the check sees one that listens on 0.0.0.0
    )
    assert outside(listening({1}, {"tcp": open_to_all}, lambda _: ["socket:[77]"])) == ["00000000"]


# -- collect


def collected(folder: Path, engine: RayCollector | None, **options: Any) -> Collected:
    questions = read_questions(fakes.write_questions(folder / "questions.jsonl", SIZE))
    return collect_records(
        questions, fakes.model(), PLAN, folder / "records.jsonl", name="questions.jsonl", engine=engine, **options
    )


PLAN = SamplingPlan(n=3)


def untimed(path: Path) -> list[Record]:
    """The records without how long they took."""
    content = (record.model_dump(mode="json") for record in read_records(path).records)
    return [
        Record.from_stored({**record, "drawn": {**record["drawn"], "cost": {**record["drawn"]["cost"], "seconds": 0}}})
        for record in content
    ]


@pytest.mark.usefixtures("engine")
def test_actors_give_the_records_of_one_process_in_order_and_ask_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    collected(tmp_path / "local", None)
    file = read_records(tmp_path / "local" / "records.jsonl")
    drawn_before = file.records[5].model_copy(update={"label_detail": "from the shard"})
    assert drawn_before.drawn is not None
    overloaded = drawn_before.drawn.model_copy(update={"problem": Unmeasured.MODEL_FAILED, "problem_detail": "busy"})
    failed = file.records[6].model_copy(update={"drawn": overloaded})
    assert failed.may_be_drawn_again
    shard = tmp_path / ".records.jsonl.shards" / "1.jsonl"  # of a process that was killed
    shard.parent.mkdir()
    write_records(shard, file.header, [drawn_before, failed])
    with shard.open("ab") as stream:
        stream.write(b'{"id": "p7", "quest')
    done = collected(tmp_path, RayCollector(fakes.model, actors=1))
    expected = {record.id: record for record in untimed(tmp_path / "local" / "records.jsonl")}
    records = untimed(tmp_path / "records.jsonl")
    assert [record.id for record in records] == [row["id"] for row in fakes.rows(SIZE)]
    assert [record.label_detail for record in records if record.label_detail] == ["from the shard"]
    same = [record.model_copy(update={"label_detail": ""}) for record in records]
    assert [record_line(record) for record in same] == [record_line(expected[record.id]) for record in records]
    assert done.n_drawn == SIZE
    assert not list(tmp_path.glob(".*"))
    assert collected(tmp_path, RayCollector(fakes.model)).n_drawn == 0  # all are there


def test_shards_of_another_collection_are_refused(tmp_path: Path) -> None:
    collected(tmp_path, None)
    path = tmp_path / "records.jsonl"
    file = read_records(path)
    other = file.header.model_copy(update={"plan": SamplingPlan(n=7)})
    shard = tmp_path / ".records.jsonl.shards" / "1.jsonl"
    shard.parent.mkdir()
    write_records(shard, other, file.records)
    path.unlink()
    with pytest.raises(UsageError, match=r"another collection(.|\n)*plan.n: file 7, now 3"):
        collected(tmp_path, RayCollector(fakes.model))


def test_misuse_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "records.jsonl", 3)
    for command in (["score", str(path)], ["collect", str(path), "--model", "python:tests.calibrate.fakes:model"]):
        result = CliRunner().invoke(app, [*command, "--address", "auto"])
        assert result.exit_code == 2
        assert "belongs to --engine ray" in result.output
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    result = CliRunner().invoke(app, ["score", str(path), "-e", "num_sets", "--engine", "ray"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "ray is not installed. Install it with: pip install 'acrc-guardrail[ray]'" in " ".join(result.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_cluster_that_does_not_answer_is_named_and_given_up() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address, said = f"127.0.0.1:{free.getsockname()[1]}", list[str]()
        with pytest.raises(UsageError, match=rf"nothing answers at {address} after 0\.2 s .*refused"):
            _reach(address, said.append, 0.2)
        assert said == [f"Ray at {address} does not answer (Connection refused); trying for 0.2 s."]
        free.listen()
        _reach(f"ray://{address}", said.append, 0.2)
        _reach("auto", said.append, 0.2)
    assert len(said) == 1
