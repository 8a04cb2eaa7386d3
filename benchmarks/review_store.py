"""Speed of a full review store on SQLite: ``python -m benchmarks.review_store [--before CHECKOUT]``.

A database with many items, a tenth of them waiting. Eight threads of one process add items; then eight clients read the
first page of the queue (``GET /``) from ``guardrail review``, a separate process. ``--before`` measures another
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
from guardrail.review.tables import items
from guardrail.review.web.accounts import add_token

THREADS = 8
QUESTION = Content(
    question="Who wrote The Waves? " + "?" * 200,
    messages=({"role": "human", "content": "x" * 3_000},),
    candidate=Candidate(text="Virginia Woolf " * 40),
)


def fill(path: Path, n: int) -> None:
    """Write a store with ``n`` items: every tenth waits, the others are decided."""
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
    """Return the rate and latencies of threads that each call the function of their maker for some seconds."""
    latencies: list[float] = []
    begin, end = threading.Barrier(len(makers)), []

    def work(make: Callable[[], Callable[[], object]]) -> None:
        act, mine = make(), []
        begin.wait()
        end.append(time.perf_counter() + seconds)
        while (start := time.perf_counter()) < end[0]:
            act()
            mine.append(time.perf_counter() - start)
        latencies.extend(mine)

    threads = [threading.Thread(target=work, args=(make,)) for make in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latencies.sort()
    return {
        "rate": len(latencies) / seconds,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[int(len(latencies) * 0.99)],
    }


def enqueue(path: Path, seconds: float) -> dict[str, float]:
    """Measure threads of one process that add items."""
    with ReviewStore(path) as store:
        return timed(seconds, [lambda: lambda: store.enqueue(QUESTION)] * THREADS)


def read_page(path: Path, seconds: float) -> dict[str, float]:
    """Measure clients that read the first page of the queue."""
    tokens = path.with_name("tokens.json")
    token = add_token(tokens, "ann", "reviewer")
    command = [sys.executable, "-m", "guardrail", "review", f"--db={path}", "--port=0", f"--tokens={tokens}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = re.search(r"http://127.0.0.1:(\d+)", server.stdout.readline())
        assert address is not None
        port = int(address[1])
        return timed(seconds, [lambda: _reader(port, token)] * THREADS)
    finally:
        server.terminate()
        server.wait()


def _reader(port: int, token: str) -> Callable[[], object]:
    """Sign in, and return a function that reads the page over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str, str]:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, text, (answer.getheader("set-cookie") or "").split(";")[0]

    headers = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"}
    _, _, cookie = ask("POST", "/sign-in", urlencode({"token": token}), **headers)

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
    arguments = parser.parse_args()
    if arguments.file is not None:
        print(
            json.dumps(
                {measure.__name__: measure(arguments.file, arguments.seconds) for measure in (enqueue, read_page)}
            )
        )
        return
    here = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        for name, checkout in (("before", arguments.before), ("now", here)):
            if checkout is None:
                continue
            # Each checkout fills its own file, because the schemas of two releases may differ.
            file = Path(folder) / f"{name}.db"
            run = [
                sys.executable,
                str(Path(__file__).resolve()),
                "--seconds",
                str(arguments.seconds),
                "--file",
                str(file),
            ]
            settings = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
            code = (
                f"from review_store import fill; from pathlib import Path; fill(Path({str(file)!r}), {arguments.items})"
            )
            paths = {**settings, "PYTHONPATH": os.pathsep.join([str(checkout.resolve()), str(here / "benchmarks")])}
            subprocess.run([sys.executable, "-c", code], env=paths, cwd=folder, check=True)
            done = subprocess.run(
                [*run, "--file", str(file)], env=settings, cwd=folder, stdout=subprocess.PIPE, check=True
            )
            for figure, row in json.loads(done.stdout).items():
                print(
                    f"{name:7}{figure:10}{arguments.items:>9,} items, {THREADS} threads: {row['rate']:8.1f}/s   "
                    f"p50 {row['p50'] * 1e3:7.1f} ms   p99 {row['p99'] * 1e3:7.1f} ms"
                )


if __name__ == "__main__":
    main()
