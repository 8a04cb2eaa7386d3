"""Many guards and review pages on one PostgreSQL whose processes are killed, stopped, restarted and used up.

    python -m benchmarks.replicas --guards 20 --pages 5

Each guard is a process that answers questions, reports every verdict to a monitor with a unique score, and writes
down the score of each answer that it gave. Each page is a `guardrail review`. At the end every score written down must
be in the history of the monitor exactly once. Killed processes are restarted, as an orchestrator would do; all others
have to recover by themselves.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import psycopg
from langchain_core.messages import BaseMessage

from guardrail import Guardrail
from guardrail.review import Monitors, ReviewStore
from guardrail.review.web.accounts import add_token
from guardrail.testing import ScriptedChat, make_artifact
from guardrail.verdict import Verdict
from tests import postgres

__all__ = ["Report", "run"]

QUESTION = "Capital of France?"
MODEL = ScriptedChat(script={QUESTION: ["Paris"]})
ARTIFACT = make_artifact(MODEL)
PATIENCE = 120.0
"""Seconds after which a wait fails."""


@dataclass
class Report:
    """Counts and recovery times of one run.

    Attributes:
        accepted: Answers given.
        unwatched: Answers given whose score is not in the history: must be 0.
        doubled: Scores counted more than once: must be 0.
        folded: Scores counted.
        recovered: Seconds from the end of each fault until every guard has given an answer again and every page serves.
        held: Answers held back, or whose verdict could not be recorded.
    """

    accepted: int = 0
    unwatched: int = 0
    doubled: int = 0
    folded: int = 0
    held: int = 0
    recovered: dict[str, float] = field(default_factory=dict)


def guard(url: str, number: int, folder: Path) -> None:
    """Run the process of a guard until the file ``stop`` exists."""
    store = ReviewStore(url)
    monitors = Monitors(store)
    drift = monitors.drift("drift", ARTIFACT)
    score = [0.0]

    def watch(verdict: Verdict, messages: list[BaseMessage]) -> None:
        value = verdict.uncertainty.model_copy(update={"value": score[0]})
        drift.watch(verdict.model_copy(update={"uncertainty": value}), messages)

    switch = monitors.switch(names="quiet", every=1.0)
    guarded = Guardrail(model=MODEL, artifact=ARTIFACT, on_verdict=[switch, watch])
    with (folder / f"guard-{number}-{os.getpid()}").open("w") as answers:
        while not (folder / "stop").exists():
            score[0] = float(random.getrandbits(52))
            accepted = guarded.assess(QUESTION).accepted
            answers.write(f"{int(score[0])} {'given' if accepted else 'held'}\n")
            answers.flush()
            time.sleep(0.25)


class Replicas:
    """The processes of guards and pages."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.guards: list[subprocess.Popen[str]] = []
        self.pages: list[tuple[subprocess.Popen[str], str]] = []

    def start_guard(self, number: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.replicas", "--guard", str(number), self.url, str(self.folder)]
        with (self.folder / f"log-guard-{number}").open("a") as log:
            return subprocess.Popen(command, text=True, stderr=log)

    def start_page(self) -> tuple[subprocess.Popen[str], str]:
        tokens = self.folder / "tokens.json"
        add_token(tokens, "ann", "reviewer")
        command = [sys.executable, "-m", "guardrail", "review", f"--db={self.url}", "--port=0", f"--tokens={tokens}"]
        with (self.folder / "log-pages").open("a") as log:
            page = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=log)
        assert page.stdout is not None
        return page, page.stdout.readline().split()[2]

    def answers_of(self, guard: subprocess.Popen[str]) -> int:
        """Return the number of answers that the process of a guard has given."""
        return sum(
            line.endswith("given\n")
            for path in self.folder.glob(f"guard-*-{guard.pid}")
            for line in path.read_text().splitlines(keepends=True)
        )

    def wait_for_all(self) -> float:
        """Return the seconds until every guard has given another answer and every page responds."""
        start, before = time.monotonic(), [self.answers_of(guard) for guard in self.guards]
        waiting: list[Callable[[], bool]] = [
            *(
                lambda guard=guard, n=n: self.answers_of(guard) > n
                for guard, n in zip(self.guards, before, strict=True)
            ),
            *(lambda url=url: _serves(url) for _, url in self.pages),
        ]
        while waiting := [done for done in waiting if not done()]:
            if time.monotonic() - start > PATIENCE:
                raise TimeoutError(f"{len(waiting)} processes did not recover within {PATIENCE:g} s")
            time.sleep(0.1)
        return time.monotonic() - start

    def kill(self, guards: int, pages: int) -> None:
        """Kill some processes, and start others in their place."""
        for number in range(guards):
            self.guards[number].kill()
            self.guards[number].wait()
            self.guards[number] = self.start_guard(number)
        for number in range(pages):
            self.pages[number][0].kill()
            self.pages[number][0].communicate()
            self.pages[number] = self.start_page()

    def end(self) -> None:
        """Stop all processes; kill those that do not stop."""
        (self.folder / "stop").touch()
        for page, _ in self.pages:
            page.send_signal(signal.SIGINT)
        for process in (*self.guards, *(page for page, _ in self.pages)):
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def _serves(url: str) -> bool:
    try:
        return httpx.get(f"{url}/sign-in", timeout=10).status_code == 200 and _healthy(url)
    except httpx.HTTPError:
        return False


def _healthy(url: str) -> bool:
    return httpx.get(f"{url}/health", timeout=10).status_code == 200


@contextmanager
def used_up(url: str) -> Iterator[None]:
    """Use up all connections of the server within the block."""
    with ExitStack() as stack:
        with suppress(psycopg.OperationalError):
            while True:
                stack.enter_context(psycopg.connect(url))
        yield


def run(
    guards: int, pages: int, *, killed: int = 3, stop: float = 10.0, say: Callable[[str], object] = print
) -> Report:
    """Run everything once.

    Args:
        guards: Processes that guard.
        pages: Processes that serve the review page.
        killed: Guards that are killed, and one page.
        stop: Seconds for which the server is stopped, and for which its connections are used up.
        say: Called with a line for each fault.
    """
    report = Report()
    with postgres.server() as url, tempfile.TemporaryDirectory() as name:
        with ReviewStore(url) as store:
            Monitors(store).drift("drift", ARTIFACT)
            Monitors(store).risk("quiet", ARTIFACT)
        replicas = Replicas(url, Path(name))
        try:
            for _ in range(pages):
                replicas.pages.append(replicas.start_page())
            for number in range(guards):
                replicas.guards.append(replicas.start_guard(number))
            say(f"all started after {replicas.wait_for_all():.1f} s")

            def stopped() -> None:
                with postgres.stopped(url):
                    time.sleep(stop)

            def full() -> None:
                with used_up(url):
                    time.sleep(stop)

            faults: dict[str, Callable[[], object]] = {
                f"{killed} guards and a page killed": lambda: replicas.kill(killed, min(1, pages)),
                f"server stopped for {stop:g} s": stopped,
                "server crashed and restarted": lambda: postgres.restart(url),
                f"connection limit reached for {stop:g} s": full,
            }
            for fault, happens in faults.items():
                happens()
                report.recovered[fault] = replicas.wait_for_all()
                say(f"{fault}: all answer again after {report.recovered[fault]:.1f} s")
        finally:
            replicas.end()
        lines = [line.split() for path in Path(name).glob("guard-*") for line in path.read_text().splitlines()]
        with ReviewStore(url) as store:
            counts = Counter(int(step.value) for step in Monitors(store).history("drift", most=10**9))
    accepted = {int(score) for score, fate in lines if fate == "given"}
    report.accepted, report.held = len(accepted), sum(fate == "held" for _, fate in lines)
    report.unwatched = len(accepted - counts.keys())
    report.doubled = sum(count > 1 for count in counts.values())
    report.folded = sum(counts.values())
    return report


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guards", type=int, default=20)
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--guard", nargs=3, metavar=("NUMBER", "URL", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.guard:
        number, url, folder = arguments.guard
        guard(url, int(number), Path(folder))
        return
    report = run(arguments.guards, arguments.pages, say=partial(print, flush=True))
    print(
        f"{report.accepted} answers given, {report.held} held back, {report.folded} scores counted; "
        f"{report.unwatched} answers without their watch, {report.doubled} scores counted twice"
    )


if __name__ == "__main__":
    main()
