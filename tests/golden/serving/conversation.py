"""Conversations with a gateway as golden texts: requests, whole replies, what the upstream got, and log lines.

The gateway runs in this process, in front of a scripted endpoint of the loopback. Ids, times, digests, ports and
folders are replaced by fixed words, and numbers are rounded.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from integrations._gateway.config import Config
from integrations.gateway import Gateway
from tests.golden.shown import pretty, rounded, same
from tests.integrations.openai.faulty_endpoint import Endpoint, serving

IDS = (
    ("ID", re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9a-f])")),
    ("CALL", re.compile(r"(?<=call_)[0-9a-f]{24}(?![0-9a-f])")),
    ("DIGEST", re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")),
    ("SHORT", re.compile(r"(?<=sha256:)[0-9a-f]{5,7}(?![0-9a-f])")),
)
TIMES = re.compile(r'("(?:created|created_at|completed_at|decided)": )\d{10}(?:\.\d+)?')
MOMENTS = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|\+00:00| UTC)?")
AGENTS = re.compile(r"(?:python-httpx|Python)/\d+[\w./ ]*")
LONG = re.compile(r"\d+\.\d{7,}(?:e-?\d+)?")
RECURSION = re.compile(r"(?<=maximum recursion depth exceeded)[^()\"']*")
ERRNO = re.compile(r"\[Errno \d+\]")
UNREADABLE = re.compile(r"(cannot be read as JSON: ).* at line 1 column \d+")
"""The words of the JSON parser, which differ between its versions."""
DROPPED = frozenset({"content-length", "date", "server"})


class Words:
    """Fixed words for what differs between runs; the same text always gets the same word."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words, self._numbered = dict(words), dict[str, str]()
        self._numbers = {word: itertools.count(1) for word, _ in IDS}

    def add(self, text: str, word: str) -> None:
        self._words[text] = word

    def replace(self, text: str) -> str:
        for old, word in sorted(self._words.items(), key=lambda pair: -len(pair[0])):
            text = text.replace(old, word)
        for word, pattern in IDS:
            text = pattern.sub(lambda found, word=word: self._number(word, found[0]), text)  # type: ignore[misc]
        text = ERRNO.sub("[Errno N]", RECURSION.sub("", text))
        text = LONG.sub(lambda number: f"{float(number[0]):.6g}", text)
        return UNREADABLE.sub(r"\1WHY", AGENTS.sub("AGENT", MOMENTS.sub("TIME", TIMES.sub(r"\1TIME", text))))

    def _number(self, word: str, text: str) -> str:
        if text not in self._numbered:
            self._numbered[text] = f"{word}{next(self._numbers[word])}"
        return self._numbered[text]


class Script(Endpoint):
    """An endpoint whose draws are the same in each run: without a seed it gives the first answer, or "Lima"."""

    def _text(self, question: str, temperature: float, seed: int | None, index: int) -> str:
        if question not in self.answers:
            return "Lima"
        return super()._text(question, temperature if seed is not None else 0.0, seed, index)


class Lines(logging.Handler):
    """The log lines of the gateway since the last look."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Conversation:
    """A text of what was asked and replied, which ends as a golden file."""

    def __init__(self, endpoint: Endpoint, folder: Path, log: Lines, loop: asyncio.Runner) -> None:
        self.endpoint, self.folder, self._log, self._loop = endpoint, folder, log, loop
        self.words = Words({urlsplit(endpoint.url).netloc: "upstream", str(folder): "FOLDER"})
        self.gateways: list[Gateway] = []
        self._told: list[str] = []

    # -- the gateway ---------------------------------------------------------------------------------------------------

    def upstream(self, **more: Any) -> dict[str, Any]:
        return {"url": self.endpoint.url, "model": "m", "key": "sk-upstream", "timeout": 10, "max_retries": 0, **more}

    def serve(self, models: Mapping[str, Any], **settings: Any) -> Gateway:
        """Start a gateway; each model has the upstream and no probe unless it says otherwise."""
        whole = {name: {"upstream": self.upstream(), "probe": "off", **alias} for name, alias in models.items()}
        gateway = Gateway(Config.checked({"version": 1, "models": whole, "drain": 5, **settings}, "test"))
        self.gateways.append(gateway)
        return gateway

    def serve_file(self, path: Path) -> Gateway:
        """Start a gateway with a configuration file."""
        self.gateways.append(Gateway(path))
        return self.gateways[-1]

    def guard(self, artifact: Any, **alias: Any) -> dict[str, Any]:
        """The fields of a model that guards with this artifact."""
        path = self.folder / f"artifact-{len(list(self.folder.glob('artifact-*')))}.json"
        return {"artifact": artifact.save(path), **alias}

    def run(self, work: Any) -> Any:
        return self._loop.run(work)

    # -- the text ------------------------------------------------------------------------------------------------------

    def tell(self, *lines: str) -> None:
        self._told.extend(lines)

    def title(self, text: str) -> None:
        self.tell("", f"## {text}", "")

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, *, quiet: bool = False
    ) -> httpx.Response:
        """Send a request and tell it with its reply; with ``quiet`` only send it."""
        reply = self.send(method, path, body, headers)
        if not quiet:
            self.tell(*self._request(method, path, body, headers), *self._reply(reply))
        return reply

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        reply: httpx.Response = self._loop.run(self._send(method, path, body, dict(headers or {})))
        return reply

    async def _send(self, method: str, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(self.gateways[-1])
        content: dict[str, Any] = {"content": body} if isinstance(body, str | bytes) else {"json": body}
        if body is None:
            content = {}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8700", verify=False) as client:
            return await client.request(method, path, headers=headers, **content)

    def _request(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None) -> Iterator[str]:
        yield f"{method} {self.words.replace(path)}"
        yield from (f"  {name}: {self.words.replace(value)}" for name, value in (headers or {}).items())
        if body is not None:
            shown = body if isinstance(body, str) else repr(body) if isinstance(body, bytes) else pretty(body)
            yield from (f"  {line}" for line in self.words.replace(shown).split("\n"))

    def _reply(self, reply: httpx.Response) -> Iterator[str]:
        yield f"-> {reply.status_code}"
        for name, value in reply.headers.multi_items():
            if name not in DROPPED:
                yield f"   {name}: {self.words.replace(value)}"
        yield from (f"   {line}" for line in self._body(reply).split("\n"))
        yield ""

    def _body(self, reply: httpx.Response) -> str:
        kind = reply.headers.get("content-type", "")
        if kind.startswith("application/json") and reply.content:
            return self.words.replace(pretty(rounded(reply.json())))
        if kind.startswith("text/event-stream"):
            return "\n".join(map(self._event, reply.text.strip("\n").split("\n")))
        return self.words.replace(reply.text)

    def _event(self, line: str) -> str:
        name, _, data = line.partition(": ")
        if name == "data" and data.startswith("{"):
            data = json.dumps(rounded(json.loads(data)), ensure_ascii=False)
        return self.words.replace(f"{name}: {data}" if data else line)

    def row(self, what: str, reply: httpx.Response) -> None:
        """Tell an error in a line or two."""
        found = reply.json()
        error = found.get("error") or {"message": found.get("blocked_reason"), "code": found.get("code")}
        named = [str(error[name]) for name in ("type", "code", "param") if error.get(name) is not None]
        text = self.words.replace(f"{reply.status_code} {' '.join(named)}\n    {error['message']}")
        self.tell(self.words.replace(what), f"  {text}")

    def received(self, *names: str, since: int = 0) -> None:
        """Tell what the upstream got, in any order and without the seeds, with these headers."""
        requests = Counter[str]()
        for headers, body in list(zip(self.endpoint.headers, self.endpoint.bodies, strict=True))[since:]:
            shown = {name: value for name, value in body.items() if name != "seed"}
            with_headers = [f"\n     {name}: {headers[name]}" for name in names if name in headers]
            told = json.dumps(shown, ensure_ascii=False, sort_keys=True) + "".join(with_headers)
            requests[self.words.replace(told)] += 1
        for request, number in sorted(requests.items()):
            self.tell(f"   upstream got{f' {number} times' * (number > 1)} {request}")

    def log(self) -> None:
        """Tell the log lines since the last look; equal ones in a row are one with their number."""
        for line, equal in itertools.groupby(map(self.words.replace, self._log.lines)):
            number = len(list(equal))
            self.tell(f"log: {line}{f'  ({number} lines)' * (number > 1)}")
        self._log.lines.clear()

    def forget_log(self) -> None:
        self._log.lines.clear()

    def ends_as(self, name: str) -> None:
        same(name, "\n".join(self._told))


@contextmanager
def conversation(folder: Path, answers: Mapping[str, Sequence[str]], title: str) -> Iterator[Conversation]:
    """A conversation with an endpoint that gives these answers."""
    log, logger = Lines(), logging.getLogger("guardrail")
    former = logger.level
    with serving(Script(answers=answers)) as endpoint, asyncio.Runner() as loop:
        logger.addHandler(log)
        logger.setLevel(logging.INFO)
        told = Conversation(endpoint, folder, log, loop)
        told.tell(f"# {title}")
        try:
            yield told
        finally:
            for gateway in told.gateways:
                loop.run(gateway.aclose())
            logger.removeHandler(log)
            logger.setLevel(former)
