"""Time and memory of `fit`, `evaluate`, `audit` and `report` on millions of records; see docs/scale.md.

    python -m benchmarks.scale /mnt/space                      # 5 million records, 23 GB, deleted afterwards
    python -m benchmarks.scale /mnt/space --records 200000 --keep

Two record files are made up, one to fit on and one to audit with: lines of 1.5 to 3 KB, a continuous score and one with
few values, about 20 % wrong answers. Each command runs in a separate process; memory is the largest resident set of
that process or of one of its workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.correctness import Exact
from calibrate.data.records import Record, RecordHeader
from guardrail.prompting import PromptWrapping
from guardrail.specs import ModelIdentity
from guardrail.types import SamplingPlan
from guardrail.uncertainty import make_estimator as make

__all__ = ["main", "write_log"]

CHUNK = 50_000
"""Records that one process writes in one job."""
KEYS = ("semantic_entropy", "discrete_semantic_entropy")
SHORTEST, LONGEST = 1_500, 3_000
_WORDS = b" ".join(b"lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor".split() * 60)


def _header(n: int) -> bytes:
    estimators = [make(name) for name in KEYS]
    header = RecordHeader(
        created="2026-01-01T00:00:00+00:00",
        model=ModelIdentity(provider="made-up", model="made-up"),
        plan=SamplingPlan(n=10, logprobs=True),
        prompt=PromptWrapping(),
        questions_name="made-up.jsonl",
        questions_sha256="0" * 64,
        n_questions=n,
        correctness=Exact().spec,
        estimators={estimator.name: estimator.spec for estimator in estimators},
    )
    return json.dumps({"header": header.model_dump(mode="json")}).encode() + b"\n"


def _lengths(start: int, stop: int) -> NDArray[np.int64]:
    """Return the bytes of each line: fixed beforehand, so that processes write side by side into one file."""
    return SHORTEST + (np.arange(start, stop, dtype=np.int64) * 7_919) % (LONGEST - SHORTEST + 1)


def _line(i: int, seed: int, length: int, values: tuple[float, float], wrong: bool) -> bytes:
    name = b"%d-%d" % (seed, i)
    head = (
        b'{"id":"%s","question":"What is the capital of country %s?","references":["town %s"],"options":null,'
        b'"slots":null,"group":"topic %d","turns":"human","drawn":{"question":"What is the capital of country %s?",'
        b'"primary":{"text":"%s %s","tool_calls":[],"tokens":null,"logprobs":null,"finish_reason":"stop",'
        b'"refusal":false},"samples":[{"text":"'
    ) % (name, name, name, i % 40, name, b"village" if wrong else b"town", name)
    tail = (
        b'","tool_calls":[],"tokens":null,"logprobs":null,"finish_reason":"stop","refusal":false}],"options":null,'
        b'"follow_ups":{},"cost":{"calls":2,"input_tokens":50,"output_tokens":90,"seconds":1.5,"saved":0},'
        b'"problem":null,"problem_detail":""},"scores":{"%s":{"value":%s,"unit":"nats","estimator":"%s",'
        b'"reason":null,"detail":""},"%s":{"value":%s,"unit":"nats","estimator":"%s","reason":null,"detail":""}},'
        b'"correct":%s,"label_detail":""}\n'
    )
    scores = [part for key, value in zip(KEYS, values, strict=True) for part in _score(key, value)]
    closed = tail % (*scores, b"false" if wrong else b"true")
    at = i % 1_000
    return head + _WORDS[at : at + length - len(head) - len(closed)] + closed


def _score(key: str, value: float) -> tuple[bytes, bytes, bytes]:
    return key.encode(), repr(value).encode(), key.encode()


def _write_chunk(path: Path, offset: int, start: int, stop: int, seed: int) -> int:
    dice = np.random.default_rng([seed, start])
    wrong = dice.random(stop - start) < 0.2
    fine = dice.gamma(np.where(wrong, 3.0, 1.0))
    coarse = np.minimum(np.floor(4 * fine), 12) / 4
    lengths = _lengths(start, stop).tolist()
    rows = zip(range(start, stop), lengths, fine.tolist(), coarse.tolist(), wrong.tolist(), strict=True)
    lines = [_line(i, seed, length, (a, b), bad) for i, length, a, b, bad in rows]
    with path.open("r+b") as log:
        log.seek(offset)
        log.writelines(lines)
    return stop - start


def write_log(path: Path, n: int, *, seed: int, workers: int) -> None:
    """Write a record file of n made-up records."""
    first = _header(n)
    starts = range(0, n, CHUNK)
    sizes = [int(_lengths(start, min(n, start + CHUNK)).sum()) for start in starts]
    offsets = len(first) + np.cumsum([0, *sizes])
    path.write_bytes(first)
    os.truncate(path, int(offsets[-1]))
    done, begun = 0, time.monotonic()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        jobs = [
            executor.submit(_write_chunk, path, int(offset), start, min(n, start + CHUNK), seed)
            for start, offset in zip(starts, offsets[:-1], strict=True)
        ]
        for job in as_completed(jobs):
            done += job.result()
            print(f"\r{path.name}: {done:,} of {n:,} records", end="", file=sys.stderr, flush=True)
    with path.open("rb") as log:  # the hand-written lines must have the format that the product reads
        log.readline()
        for line, length in zip(log, _lengths(0, 3).tolist(), strict=False):
            Record.from_stored(line)
            assert len(line) == length
    size = path.stat().st_size / 1e9
    print(f"\r{path.name}: {n:,} records, {size:.2f} GB, in {time.monotonic() - begun:.0f} s", file=sys.stderr)


def _run(*arguments: str | Path) -> tuple[float, float]:
    """Return the seconds and MiB of one command.

    Raises:
        RuntimeError: The command failed.
    """
    begun = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "calibrate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begun
    if child.returncode not in (0, 1) or b"Traceback" in output or b"Error:" in output:  # 1: the promise is refuted
        raise RuntimeError(f"calibrate {arguments[0]} failed with {child.returncode}:\n{output.decode()[-3_000:]}")
    scale = 1024 * 1024 if sys.platform == "darwin" else 1024
    return seconds, usage.ru_maxrss / scale


@contextmanager
def _folder(parent: Path, keep: bool) -> Iterator[Path]:
    folder = parent / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the files, run the commands and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files are written; 4.6 KB a record")
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--keep", action="store_true", help="keep the files; a second run uses them")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--only", nargs="*", default=None, help="names of rows to run; default: all")
    options = parser.parse_args(arguments)
    with _folder(options.folder, options.keep) as folder:
        log, fresh, artifact = folder / "records.jsonl", folder / "fresh.jsonl", folder / "artifact.json"
        for seed, path in enumerate((log, fresh), start=1):
            if not path.is_file():
                write_log(path, options.records, seed=seed, workers=options.workers)
        key = ("--score", KEYS[0])
        fit = ("fit", log, "--alpha", "0.1", *key, "--out", artifact)
        audit = ("audit", "--records", fresh, "--artifact", artifact)
        rules = [part for rule in ("acrc", "certified", "empirical") for part in ("--rule", rule)]
        splits = ("--splits", str(options.splits))
        rows: dict[str, tuple[str | Path, ...]] = {
            "fit, the first time": fit,
            "fit": fit,
            "fit, rule certified": (*fit, "--rule", "certified"),
            "fit, a score of few values": (
                "fit",
                log,
                "--alpha",
                "0.1",
                "--score",
                KEYS[1],
                "--out",
                folder / "few.json",
            ),
            f"evaluate, {options.splits} splits, 3 rules": ("evaluate", log, "--alpha", "0.1", *key, *rules, *splits),
            "audit, the first time": audit,
            "audit": audit,
            "report, without splits": (
                "report",
                log,
                "--artifact",
                artifact,
                "--splits",
                "0",
                "--out",
                folder / "r.html",
            ),
        }
        print(f"| {options.records:,} records | s | MiB |\n|---|---|---|")
        for name, command in rows.items():
            if options.only is not None and name not in options.only:
                continue
            print(f"{name} ...", end="\r", file=sys.stderr, flush=True)
            try:
                seconds, memory = _run(*command)
                print(f"| `calibrate` {name} | {seconds:.1f} | {memory:,.0f} |", flush=True)
            except RuntimeError as error:
                print(f"| `calibrate` {name} | failed | |", flush=True)
                print(error, file=sys.stderr)
        stored = {
            path.name: f"{path.stat().st_size / 2**20:,.1f} MiB"
            for path in (artifact, folder / "few.json")
            if path.is_file()
        }
        columns = sum(path.stat().st_size for path in log.with_name("records.jsonl.cols").glob("*")) / 2**20
        print(f"\nlog {log.stat().st_size / 2**20:,.0f} MiB, columns {columns:,.0f} MiB, artifacts {stored}")


if __name__ == "__main__":
    main()
