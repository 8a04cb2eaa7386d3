"""`make demo-serve`: from traffic without labels to a certified gate, behind one URL (docs/loop.md).

The servers and commands are real: `guardrail serve` in front of an OpenAI-compatible endpoint, `guardrail review`,
`calibrate`. Scripts act as the application and as the people, who know the right answers.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx
import numpy as np
import openai
import uvicorn
from langchain_core.messages import convert_to_messages
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from calibrate.cli import app as calibrate
from calibrate.correctness import TokenF1
from calibrate.data.formats.questions import read_questions
from calibrate.data.progress import bar
from calibrate.data.questions import Question
from calibrate.report.figures import COLOURS, render
from calibrate.rules.certificate import interval
from examples.demo.screen import CONSOLE, share, title
from guardrail import CalibrationArtifact
from guardrail.describe import guarantee
from guardrail.review.web.accounts import add_token

__all__ = [
    "BEFORE",
    "ESTIMATOR",
    "GUARDING",
    "OBSERVING",
    "REVIEWERS",
    "Exchange",
    "Loop",
    "Sizes",
    "commands",
    "demo",
    "endpoint",
    "gateway",
    "is_right",
    "listening",
    "observe",
    "picture",
    "rate",
    "run",
]

NAME = "orrin"
ESTIMATOR = "discrete_semantic_entropy"
TOKENS = 16
REVIEWERS = ("ann", "bob", "eve")
BEFORE = 10
"""Questions that the client asks again before the artifact is swapped in."""
FEWEST = 50
"""Questions of a mode after which the picture shows their rates: the first few would jump between 0 and 100 %."""

UPSTREAM = """\
version: 1
models:
  orrin:
    upstream: {{url: {url}, model: orrin, key: none}}
"""
OBSERVING = (
    UPSTREAM
    + """\
    mode: observe
    observe:
      plan: {{n: {n}, max_tokens: 16}}
      records: {{path: observed.jsonl}}
      queue: 4000
      max_concurrency: 32
"""
)
GUARDING = (
    UPSTREAM
    + """\
    artifact: artifact.json
"""
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of every step.

    Attributes:
        labels: Answers that people label.
        scope: Share of the lowest scores that they are drawn from.
        alpha: Target error rate among the answers that are given.
        n: Samples for each question.
        at_once: Questions that the client asks at once.
    """

    labels: int = 300
    scope: float = 0.75
    alpha: float = 0.1
    n: int = 10
    at_once: int = 32


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question of the client, and the reply to it.

    Attributes:
        correct: Whether the text is a right answer.
        accepted: The gateway's verdict; None if it only observed.
    """

    question: Question
    text: str
    correct: bool
    accepted: bool | None


@dataclass(frozen=True, slots=True)
class Loop:
    """The results of the loop.

    Attributes:
        observed: Exchanges while the gateway only observed.
        swapped: Repeated questions while the artifact was swapped in, up to the first guarded reply.
        guarded: New questions after the swap.
        artifact: The artifact in use.
    """

    observed: Sequence[Exchange]
    swapped: Sequence[Exchange]
    guarded: Sequence[Exchange]
    artifact: CalibrationArtifact

    @property
    def answers(self) -> list[Exchange]:
        """The exchanges after the swap that got an answer."""
        return [exchange for exchange in self.guarded if exchange.accepted]


def commands(sizes: Sizes) -> list[str]:
    """Return the commands of the loop, in order; people label between the third and the fourth."""
    label = "calibrate label to-label.jsonl --review-store reviews.db"
    return [
        f"calibrate score observed.jsonl --score {ESTIMATOR} --out scored.jsonl",
        f"calibrate sample --records scored.jsonl --scope {sizes.scope:g} --n {sizes.labels} --out to-label.jsonl",
        label,
        label,
        f"calibrate fit to-label.jsonl --alpha {sizes.alpha:g} --out artifact.json",
    ]


def run(url: str, traffic: Sequence[Question], fresh: Sequence[Question], folder: Path, sizes: Sizes) -> Loop:
    """Run the whole loop: observe, sample, label, fit, swap, guard.

    Args:
        url: The model's OpenAI-compatible API.
        traffic: Questions that the client asks first.
        fresh: Questions that it asks after the swap.
        folder: Folder for the files.
        sizes: The sizes of every step.
    """
    score, sample, ask_people, fetch, fit = commands(sizes)
    with gateway(url, folder, sizes) as (process, served):
        title("1. observe: the client gets what it always got, and the gateway measures behind it")
        observed = observe(served, traffic, sizes)
        title("2. score without labels, and draw what to label")
        _calibrate(folder, score)
        _calibrate(folder, sample)
        title("3. people label on the review page")
        _calibrate(folder, ask_people)
        _people_label(folder, {question.question: question for question in traffic}, sizes.labels)
        _calibrate(folder, fetch)
        title("4. certify")
        _calibrate(folder, fit)
        title("5. swap the artifact in while serving, and go on asking")

        def swap() -> None:
            (folder / "guardrail.yaml").write_text(GUARDING.format(url=url), encoding="utf-8")
            process.send_signal(signal.SIGHUP)

        swapped = _ask_until_guarded(served, traffic, swap)
        guarded = _ask_all(served, fresh, sizes, "asking new questions ")
    return Loop(observed, swapped, guarded, CalibrationArtifact.load(folder / "artifact.json"))


# -- the servers -------------------------------------------------------------------------------------------------------


def endpoint(model: Any) -> Starlette:
    """Serve a chat model as an OpenAI-compatible API; the model must accept OpenAI's names of settings."""

    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        settings = {name: body[name] for name in ("temperature", "top_p", "max_tokens", "n", "seed") if name in body}
        result = await model.agenerate([convert_to_messages(body["messages"])], **settings)
        choices = [
            {
                "index": number,
                "message": {"role": "assistant", "content": generation.text},
                "finish_reason": generation.message.response_metadata["finish_reason"],
            }
            for number, generation in enumerate(result.generations[0])
        ]
        usage = result.llm_output["token_usage"]
        reply = {"id": "c", "object": "chat.completion", "created": int(time.time()), "model": body["model"]}
        return JSONResponse({**reply, "choices": choices, "usage": usage})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an application on a free local port; yield the URL of its API."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        started.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def gateway(url: str, folder: Path, sizes: Sizes) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a `guardrail serve` that observes a model; yield the process and the URL for clients."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("observed.jsonl", "to-label.labels.jsonl", "reviews.db"):
        (folder / name).unlink(missing_ok=True)  # a demo starts afresh
    (folder / "guardrail.yaml").write_text(OBSERVING.format(url=url, n=sizes.n), encoding="utf-8")
    with _command(folder, "guardrail serve --config guardrail.yaml --port 0") as server:
        yield server


@contextmanager
def _command(folder: Path, line: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server's command in another process; yield the process and the URL that it prints."""
    CONSOLE.print(f"[bold]$ {line}[/]", soft_wrap=True)
    arguments = [sys.executable, "-m", *shlex.split(line)]
    with subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            printed = process.stdout.readline()
            address = re.search(r"http://\S+", printed)
            if address is None:
                raise RuntimeError(f"{line} did not start; its message is above. {printed}")
            yield process, address[0]
        finally:
            process.terminate()


def _calibrate(folder: Path, line: str) -> None:
    """Run one `calibrate` command in a folder, where its files are."""
    CONSOLE.print(f"\n[bold]$ {line}[/]", soft_wrap=True)
    here = Path.cwd()
    os.chdir(folder)
    try:
        code = calibrate(shlex.split(line)[1:], standalone_mode=False)
    finally:
        os.chdir(here)
    if code:
        raise RuntimeError(f"{line} ended with code {code}.")


# -- the client --------------------------------------------------------------------------------------------------------


def observe(url: str, questions: Sequence[Question], sizes: Sizes) -> list[Exchange]:
    """Ask through a gateway that observes, and wait until it has measured what it served."""
    exchanges = _ask_all(url, questions, sizes, "asking               ")
    with bar(CONSOLE, "measured behind them ") as progress, httpx.Client() as client:
        while True:
            counters = client.get(f"{url.removesuffix('/v1')}/guardrail/v1/observed").json()[NAME]
            fates = ("collected", "unmeasured", "not_comparable")
            done = sum(counters[fate] for fate in fates) + sum(counters["dropped"].values())
            progress(done, counters["chosen"])
            if done == counters["chosen"]:
                break
            time.sleep(0.2)
    counts = ", ".join(f"{counters[fate]} {fate.replace('_', ' ')}" for fate in ("served", "chosen", *fates))
    CONSOLE.print(f"{counts}, {sum(counters['dropped'].values())} dropped", style="dim")
    return exchanges


def _ask_all(url: str, questions: Sequence[Question], sizes: Sizes, label: str) -> list[Exchange]:
    exchanges: list[Exchange] = []
    with (
        # A busy machine sheds questions with 503 and Retry-After.
        openai.OpenAI(base_url=url, api_key="unused", max_retries=20) as client,
        bar(CONSOLE, label) as progress,
        ThreadPoolExecutor(sizes.at_once) as pool,
    ):
        for exchange in pool.map(lambda question: _ask(client, question, question.id), questions):
            exchanges.append(exchange)
            progress(len(exchanges), len(questions))
    return exchanges


def _ask_until_guarded(
    url: str, questions: Sequence[Question], swap: Callable[[], None], most: int = 10_000
) -> list[Exchange]:
    """Ask as before, swap the artifact in while a question is on its way, and go on until the gateway guards."""
    exchanges: list[Exchange] = []
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client, ThreadPoolExecutor(1) as pool:
        for number in range(most):
            running = pool.submit(_ask, client, questions[number % len(questions)], f"again-{number}")
            if number == BEFORE:
                swap()
            exchanges.append(running.result())
            if exchanges[-1].accepted is not None:
                CONSOLE.print(f"{number} replies before the first guarded one, none failed", style="dim")
                return exchanges
    raise RuntimeError("the gateway did not take the artifact; its log says why.")


def _ask(client: openai.OpenAI, question: Question, key: str) -> Exchange:
    """The application's call; the same before and after the swap."""
    reply = client.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": question.question}],
        temperature=0,
        max_tokens=TOKENS,
        extra_headers={"Idempotency-Key": key},
    )
    text = reply.choices[0].message.content or ""
    verdict = (reply.model_extra or {}).get("guardrail")
    return Exchange(question, text, is_right(text, question), None if verdict is None else verdict["accepted"])


# -- the people --------------------------------------------------------------------------------------------------------


def is_right(answer: str, question: Question) -> bool:
    """Return whether an answer is one of the references; the people know these."""
    return TokenF1().label(answer, question).correct is True


def _people_label(folder: Path, answer_key: Mapping[str, Question], total: int) -> None:
    """Let three people, who know the answers, label the waiting items at the same time."""
    tokens = [add_token(folder / "review-tokens.json", name, "reviewer") for name in REVIEWERS]
    counter, done = threading.Lock(), 0
    with (
        _command(folder, "guardrail review --db reviews.db --port 0") as (_, url),
        bar(CONSOLE, "labelling            ", "labels") as progress,
        ThreadPoolExecutor(len(tokens)) as pool,
    ):

        def decided() -> None:
            nonlocal done
            with counter:
                done += 1
                progress(done, total)

        list(pool.map(lambda token: _label_on_page(url, token, answer_key, decided), tokens))


def _label_on_page(url: str, token: str, answer_key: Mapping[str, Question], decided: Callable[[], None]) -> None:
    """Act as one person: sign in, and approve or reject one answer after the other until none waits."""
    own = {"Sec-Fetch-Site": "same-origin"}  # as browsers say of the page's forms
    with httpx.Client(base_url=url, timeout=60, headers=own) as browser:
        browser.post("/sign-in", data={"token": token})
        item = browser.post("/next").headers["location"]
        while item != "/":
            page = browser.get(item).text
            question = answer_key[_text(page, r'<h1 class="question">(.*?)</h1>')]
            right = is_right(_text(page, r'<div class="candidate pre" id="candidate">(.*?)</div>'), question)
            decision = {"lease": _field(page, "lease"), "action": "approve" if right else "reject"}
            reply = browser.post(f"{item}/decide", data=decision)
            if reply.status_code != 303:
                raise RuntimeError("the review page refused a decision.")
            decided()
            item = reply.headers["location"]  # after a label, the next answer


def _field(page: str, name: str) -> str:
    return _text(page, rf'name="{name}" value="([^"]+)"')


def _text(page: str, pattern: str) -> str:
    match = re.search(pattern, page, flags=re.DOTALL)
    if match is None:
        raise RuntimeError(f"the review page has no {pattern}.")
    return unescape(match[1])


# -- the results -------------------------------------------------------------------------------------------------------


def rate(errors: int, total: int) -> tuple[float, float, float] | None:
    """Return a share with its 95 % interval; None if the total is 0."""
    return (errors / total, *interval(errors, total)) if total else None


def picture(loop: Loop, path: Path) -> Path:
    """Draw the error rate among the answers given, and the share answered, since each mode began, as PNG."""
    before, after = len(loop.observed), len(loop.guarded)

    def draw(both: Any) -> None:
        error, answered = both
        for exchanges, start, line in ((loop.observed, 0, COLOURS.blue), (loop.guarded, before, COLOURS.green)):
            is_answered = np.array([exchange.accepted is not False for exchange in exchanges], dtype=float)
            wrong = np.array([not exchange.correct for exchange in exchanges]) * is_answered
            number, shown = np.arange(1, len(exchanges) + 1), np.cumsum(is_answered)
            for axes, rates in ((error, np.cumsum(wrong) / np.maximum(shown, 1)), (answered, shown / number)):
                axes.plot((start + number)[FEWEST:], 100 * rates[FEWEST:], color=line, lw=2.2)
        alpha = 100 * loop.artifact.alpha
        error.axhline(alpha, color=COLOURS.red, lw=1.6, ls=(0, (2, 2)))
        error.annotate(
            f"target {alpha:g} %", (0, alpha), xytext=(4, -4), textcoords="offset points", va="top", color=COLOURS.red
        )
        for axes in both:
            axes.axvline(before, color=COLOURS.ink, lw=1.2)
            axes.set_xlim(0, before + after)
            axes.set_ylim(0, None)
        answered.set_ylim(0, 105)
        common = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        answered.annotate("observes", (before, 0.1), xytext=(-8, 0), ha="right", color=COLOURS.blue, **common)
        answered.annotate("guards", (before, 0.1), xytext=(8, 0), color=COLOURS.green, **common)
        error.set_ylabel("% wrong among answers given")
        answered.set_ylabel("% of questions answered")
        answered.set_xlabel("questions of the client (each point: all since the gateway began to observe, or to guard)")

    figure = render(
        draw, "loop", "Error rate and share answered, before and after the swap", size=(9.0, 5.6), panels=(2, 1)
    )
    path.write_bytes(figure.png)
    return path


def demo(out: Path) -> Loop:
    """Run the loop on the embedded model, with 2,000 questions first and the other 850 after the swap."""
    from examples.demo.embedded import MODEL, TASKS
    from integrations.transformers_chat import TransformersChat

    questions = read_questions(TASKS[0].questions)
    with listening(endpoint(TransformersChat(model=str(MODEL)))) as url:
        return run(url, questions[:2000], questions[2000:], out, Sizes())


def main() -> None:
    """Show the loop, and write a picture."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.loop", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-output") / "loop", help="output folder")
    out: Path = parser.parse_args().out
    started = time.monotonic()
    CONSOLE.print("[bold]acrc-guardrail[/]: an application gets a certified gate by changing one URL")
    CONSOLE.print("The embedded model answers behind a local OpenAI-compatible endpoint.\n", style="dim")
    loop = demo(out)
    title(f"done in {time.monotonic() - started:.0f} s")
    for name, exchanges in (("observed", loop.observed), ("guarded", loop.guarded)):
        answers = [exchange for exchange in exchanges if exchange.accepted is not False]
        answered = rate(len(answers), len(exchanges))
        wrong = rate(sum(not answer.correct for answer in answers), len(answers))
        CONSOLE.print(
            f"{name:<9} {len(exchanges):,} questions: answered {share(answered)}, wrong of these {share(wrong)}"
        )
    CONSOLE.print(f"promise   {guarantee(loop.artifact.outcome)}", style="dim")
    CONSOLE.print(f"\n{picture(loop, out / 'loop.png')}", soft_wrap=True)


if __name__ == "__main__":
    main()
