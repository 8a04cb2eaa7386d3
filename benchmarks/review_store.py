"""Speed of a full review store on SQLite: ``python -m benchmarks.review_store [--before CHECKOUT]``.

A database with many items, a tenth of them waiting. Eight threads of one process add items; then eight clients read the
first page of the queue (``GET /``) from ``guardrail review`` in a separate process. ``--before`` measures another
checkout of this repository in the same run, in turns, with the same file.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from sqlalchemy import insert

from guardrail.review import Candidate, Content, Decision, ReviewStore
from guardrail.review.queue.schema import items

THREADS = 8
TOKEN = "benchmark-token-0123456789"
QUESTION = Content(
    question="Who wrote The Waves? " + "?" * 200,
    messages=({"role": "human", "content": "x" * 3_000},),
    candidate=Candidate(text="Virginia Woolf " * 40),
)


def fill(path: Path, n: int) -> None:
    """A store with ``n`` items: every tenth waits, the others are decided."""
    content = QUESTION.model_dump_json()
    with ReviewStore(path) as store, store.database.write() as connection:
        for first in range(0, n, 1_000):
            rows = []
            for i in range(first, min(first + 1_000, n)):
                at = time.time() - n + i
                action = None if i % 10 == 0 else "approve" if i % 3 else "reject"
                row = {"id": f"{i:032x}", "key": f"key {i}", "kind": "answer", "content": content, "created": at}
                decision = None if action is None else Decision(action=action, reviewer="ann", at=at).model_dump_json()
                row |= {"state": "decided" if action else "pending", "action": action, "decision": decision}
                rows.append({**row, "decided_at": at if action else None, "holder": "ann" if action else None})
            connection.execute(insert(items), rows)


def timed(seconds: float, makers: list[Callable[[], Callable[[], object]]]) -> dict[str, float]:
    """Rate and latencies of several threads that each call what their maker gives, for so long."""
    seconds_each: list[float] = []
    begin, end = threading.Barrier(len(makers)), []

    def work(make: Callable[[], Callable[[], object]]) -> None:
        act, mine = make(), []
        begin.wait()
        end.append(time.perf_counter() + seconds)
        while (start := time.perf_counter()) < end[0]:
            act()
            mine.append(time.perf_counter() - start)
        seconds_each.extend(mine)

    threads = [threading.Thread(target=work, args=(make,)) for make in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds_each.sort()
    return {
        "rate": len(seconds_each) / seconds,
        "p50": seconds_each[len(seconds_each) // 2],
        "p99": seconds_each[int(len(seconds_each) * 0.99)],
    }


def enqueue(path: Path, seconds: float) -> dict[str, float]:
    """Threads of one process that add items."""
    with ReviewStore(path) as store:
        return timed(seconds, [lambda: lambda: store.enqueue(QUESTION)] * THREADS)


def read_page(path: Path, seconds: float) -> dict[str, float]:
    """Clients that read the first page of the queue."""
    settings = {**os.environ, "GUARDRAIL_REVIEW_TOKENS": f"ann:reviewer:{TOKEN}"}
    command = [sys.executable, "-m", "guardrail", "review", "--db", str(path), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings)
    try:
        assert server.stdout is not None
        match = re.search(r"http://127.0.0.1:(\d+)", server.stdout.readline())
        assert match is not None
        port = int(match[1])
        return timed(seconds, [lambda: _reader(port)] * THREADS)
    finally:
        server.terminate()
        server.wait()


def _reader(port: int) -> Callable[[], object]:
    """Signs in, and gives what reads the page over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str, str]:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, text, (answer.getheader("set-cookie") or "").split(";")[0]

    _, page, cookie = ask("GET", "/sign-in")
    form = re.search(r'name="form_token" value="([^"]+)"', page)
    assert form is not None
    body = urlencode({"form_token": form[1], "token": TOKEN})
    kind = "application/x-www-form-urlencoded"
    _, _, cookie = ask("POST", "/sign-in", body, **{"Cookie": cookie, "Content-Type": kind})

    def read() -> None:
        status, text, _ = ask("GET", "/", Cookie=cookie)
        assert status == 200
        assert "Virginia Woolf" in text or "The Waves" in text

    return read


def main() -> None:
    """Measure, and print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file is not None:
        print(
            json.dumps(
                {measured.__name__: measured(options.file, options.seconds) for measured in (enqueue, read_page)}
            )
        )
        return
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        for name, checkout in (("before", options.before), ("now", here)):
            if checkout is None:
                continue
            # Each makes its own file, as a release would have left it.
            file = Path(folder) / f"{name}.db"
            run = [
                sys.executable,
                str(Path(__file__).resolve()),
                "--seconds",
                str(options.seconds),
                "--file",
                str(file),
            ]
            settings = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
            code = (
                f"from review_store import fill; from pathlib import Path; fill(Path({str(file)!r}), {options.items})"
            )
            paths = {**settings, "PYTHONPATH": os.pathsep.join([str(checkout.resolve()), str(here / "benchmarks")])}
            subprocess.run([sys.executable, "-c", code], env=paths, cwd=folder, check=True)
            done = subprocess.run(
                [*run, "--file", str(file)], env=settings, cwd=folder, stdout=subprocess.PIPE, check=True
            )
            for measured, row in json.loads(done.stdout).items():
                print(
                    f"{name:7}{measured:10}{options.items:>9,} items, {THREADS} threads: {row['rate']:8.1f}/s   "
                    f"p50 {row['p50'] * 1e3:7.1f} ms   p99 {row['p99'] * 1e3:7.1f} ms"
                )


if __name__ == "__main__":
    main()
