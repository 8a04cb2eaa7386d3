"""A scripted OpenAI-compatible endpoint on the loopback, honest or faulty in one chosen way, that counts everything.

It runs on an event loop in a thread, speaks HTTP/1.1 over plain streams (so that it can also violate it), and draws
from a script: temperature 0 takes the first answer of a question, any other temperature draws among all of them.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import math
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

__all__ = ["Endpoint", "serving"]

WORDS = ["amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "jade", "karma", "linen"]
GREEDY_LOGPROB, OTHER_LOGPROB = -1.5, -2.5
PATH = "/chat/completions"
TRICKLED = 400
"""Drops of a trickle, .02 s apart."""
LONG = b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
LINE_ENDS = {"cr": "\r", "crlf": "\r\n"}
"""Other line ends than LF of server-sent events; the standard allows all three."""
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TRICKLES = {
    "trickle": (b"HTTP/1.1 200 OK\r\n" + LONG, b" "),
    "trickle_500": (b"HTTP/1.1 500 E\r\n" + LONG, b" "),
    "trickle_head": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
    "trickle_events": (EVENTS, b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'),
    "keep_alive": (EVENTS, b": still here\n\n"),
}
"""First bytes and repeated bytes of a server, for each way to trickle."""
ENDS = {
    "finish_error": "error",
    "finish_abort": "abort",
    "finish_resource": "insufficient_system_resource",
    "finish_unknown": "eos_reached",
}
"""Ends of an answer that no server of OpenAI's protocol gives to a whole one."""
PARTS: dict[str, list[dict[str, Any]]] = {
    "thought_in_parts": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}],
    "unknown_part": [{"type": "audio", "id": "a"}],
}
"""Parts of a content before its text."""
BESIDE: dict[str, dict[str, Any]] = {
    "call_of_no_function": {"tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
    "older_call": {"function_call": {"name": "add", "arguments": "{}"}},
}
"""Fields of a message beside its text."""
BOMB = gzip.compress(b" " * 2**22)
TOKEN = re.compile(r"\s*\S+")


@dataclass
class Endpoint:
    """The server's script, its fault and its counts. ``mode`` may be changed at any time."""

    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Answers by question; others are answered with random words."""
    mode: str = "ok"
    """The fault; see the methods below."""
    latency: float = 0.0
    """Seconds until an answer."""
    retry_after: str = "0"
    """Value of the Retry-After header of a 429."""
    faults: float = math.inf
    """Number of requests that get the fault; later requests get good answers."""
    thought: int = 200
    """Tokens that the model in the mode "thinking" spends before it answers."""
    options: Mapping[str, float] = field(default_factory=dict)
    """First tokens that ``top_logprobs`` lists, with their log-probabilities; default: from the answer."""
    identity: Callable[[int], Mapping[str, Any]] = lambda _: {}
    """Fields of the reply to a request, by its number from 1; a field of None is left out."""
    keep_requests: bool = True
    """Whether to remember bodies and headers."""
    url: str = ""
    """Root of the API, once it serves."""
    requests: int = 0
    """Requests that arrived whole."""
    open: int = 0
    """Connections open now."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """HTTP headers of the requests, names in lower case."""
    cache: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Replies of the modes that answer from a cache, by request. These modes ignore n."""
    passed: dict[str, int] = field(default_factory=dict)
    """Requests of each kind that came in the mode "cached_late"."""
    stalled: threading.Event = field(default_factory=threading.Event)
    """Set as soon as a request hangs."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.open += 1
        try:
            while (request := await _read(reader)) is not None:
                headers, body = request
                self.requests += 1
                if self.keep_requests:
                    self.bodies.append(body)
                    self.headers.append(headers)
                if not await self._answer(body, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):  # the last: the server stops
            pass
        finally:
            self.open -= 1
            with suppress(Exception):
                writer.close()

    async def _answer(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is over."""
        mode = self.mode if self.faults > 0 else "ok"
        if mode != "ok":
            self.faults -= 1
        if self.latency:
            await asyncio.sleep(self.latency)
        if mode in ("reset", "stall", "cut", *TRICKLES):
            await self._break(mode, reader, writer)
            return False
        content = self._canned(mode) or self._refused(mode, body)
        if content is None:
            completion = self._cached(body, mode) if mode.startswith("cached") else self.completion(body, mode)
            if mode == "truncated":
                whole = json.dumps(completion).encode()
                content = _http(whole[: len(whole) // 2])
            else:
                whole = json.dumps(completion).encode()
                content = self._events(completion, mode) if body.get("stream") else _http(whole)
        writer.write(content)
        await writer.drain()
        return True

    def _canned(self, mode: str) -> bytes | None:
        """A reply that does not depend on the question, or None."""
        if mode == "400":
            key = self.headers[-1].get("authorization", "") if self.headers else ""
            return _http(json.dumps({"error": {"message": f"bad request with {key}"}}).encode(), 400)
        return {
            "429": _http(b'{"error": {"message": "slow down"}}', 429, f"Retry-After: {self.retry_after}\r\n"),
            "redirect": _http(b"", 307, f"Location: {self.url}{PATH}\r\n"),
            "529": _http(b'{"error": {"message": "overloaded"}}', 529),
            "200_with_error": _http(b'{"error": {"message": "overloaded", "code": 529}}'),
            "200_with_error_uncoded": _http(b'{"error": {"message": "provider returned error"}, "choices": null}'),
            "500": _http(b'{"error": {"message": "broken"}}', 500),
            "cookies": _http(b"{}", 200, "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"),
            "html": _http(b"<html>It works!</html>"),
            "list": _http(b"[1, 2]"),
            "bomb": _http(BOMB, 200, "Content-Encoding: gzip\r\n"),
            "deep": _http(b"[" * 200_000),
        }.get(mode)

    async def _break(self, mode: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reset the connection, or keep the client waiting until it goes away."""
        if mode == "reset":
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif mode == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\n" + LONG + b"{")
        elif mode == "stall":
            self.stalled.set()
            await reader.read()
        else:
            head, drop = TRICKLES[mode]
            writer.write(head)
            for _ in range(TRICKLED):  # then it gives up, so that a client without a deadline fails in another way
                writer.write(drop)
                await writer.drain()
                await asyncio.sleep(0.02)

    def _refused(self, mode: str, body: Mapping[str, Any]) -> bytes | None:
        """The reply of a server that gives four answers at once at most, or takes no key, or None."""
        if mode == "logprobs_400" and body.get("logprobs"):
            return _http(b'{"error": {"message": "logprobs is not supported by the provider Example"}}', 400)
        if mode == "no_seed" and "seed" in body:
            return _http(b'{"error": {"message": "unknown field seed"}}', 400)
        if mode == "n_capped" and int(body.get("n") or 1) > 4:
            return _http(b'{"error": {"message": "n must be <= 4"}}', 400)
        echo = json.dumps({"error": {"message": f"{'.' * 150} not you, {self.headers[-1]}"}}) if self.headers else ""
        if mode in ("echo_200", "echo_401"):
            return _http(echo.encode(), int(mode[-3:]))
        if mode == "echo_stream":
            return _http(f"data: {echo}\n\n".encode(), kind="text/event-stream")
        return None

    def _cached(self, body: Mapping[str, Any], mode: str) -> dict[str, Any]:
        """The reply that the same request got before; in the mode "cached_but_seed" regardless of its seed.

        In the mode "cached_late" also regardless of its n, and only after three requests have come, as if they had been
        in flight together.
        """
        if mode == "cached_late":
            late = json.dumps(
                {name: value for name, value in body.items() if name not in ("seed", "n")}, sort_keys=True
            )
            self.passed[late] = self.passed.get(late, 0) + 1
            reply = self.completion(body, mode)
            first = self.cache.setdefault(late, reply)
            return reply if self.passed[late] <= 3 else first
        key = {name: value for name, value in body.items() if mode == "cached" or name != "seed"}
        return self.cache.setdefault(json.dumps(key, sort_keys=True), self.completion(body, mode))

    # --- answers ------------------------------------------------------------------------------------------------------

    def completion(self, body: Mapping[str, Any], mode: str) -> dict[str, Any]:
        """The reply to a request as a JSON object."""
        n = int(body.get("n") or 1)
        n = {"n_ignored": 1, "cached": 1, "cached_but_seed": 1, "one_too_many": n + 1}.get(mode, n)
        if mode == "empty":
            n = 0
        choices = [self._choice(body, index, mode) for index in range(n)]
        generated = sum(len(TOKEN.findall(_text_of(choice["message"]))) for choice in choices)
        named = {"model": body["model"], "system_fingerprint": "fp_1", **self.identity(self.requests)}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            **{name: value for name, value in named.items() if value is not None},
            "choices": choices,
            "usage": {"prompt_tokens": 7, "completion_tokens": generated, "total_tokens": 7 + generated},
        }

    def _choice(self, body: Mapping[str, Any], index: int, mode: str) -> dict[str, Any]:
        temperature = 0.0 if mode == "temperature_ignored" else float(body.get("temperature", 1.0))
        question = str(body["messages"][-1]["content"])
        text = self._text(question, temperature, body.get("seed"), index)
        if mode == "huge":
            text = "x" * 10_000_000  # 10 MB
        finish: str | None = "stop"
        refusal: str | None = None
        if mode == "refusal":
            text, refusal = "", "I cannot help with that."
        if mode == "thinking" and int(body.get("max_tokens") or 999) < self.thought:
            text, finish = "", "length"
        if mode == "content_filter":
            finish = "content_filter"
        finish = {"finish_null": None, "finish_empty": ""}.get(mode, ENDS.get(mode, finish))
        message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": refusal}
        if mode in PARTS:
            message["content"] = [*PARTS[mode], {"type": "text", "text": text}]
        if mode == "thought_in_text":
            message["content"] = f"<think>\nhm</think>\n{text}"
        if mode == "thought_without_end":
            message["content"] = f"<think>\n{text}"
        if mode == "called_nothing":
            message, finish = {**message, "tool_calls": []}, "tool_calls"
        message |= BESIDE.get(mode, {})
        if mode == "tool":
            call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
            message, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": finish, "logprobs": None}
        if mode == "finish_missing":
            del choice["finish_reason"]
        plain = mode == "logprobs_with_top_only" and not isinstance(body.get("top_logprobs"), int)
        plain = plain or (mode == "logprobs_sometimes" and self.requests % 9 == 0)
        if body.get("logprobs") and not plain and mode not in ("no_logprobs", "tool"):
            choice["logprobs"] = {"content": self._tokens(question, text, float(body.get("temperature", 1.0)), mode)}
        return choice

    def _text(self, question: str, temperature: float, seed: int | None, index: int) -> str:
        answers = self.answers.get(question)
        if temperature == 0:
            return answers[0] if answers else ", ".join(WORDS[:8])
        draw = random.Random(None if seed is None else hashlib.sha256(f"{seed}/{index}/{question}".encode()).digest())
        return draw.choice(answers) if answers else ", ".join(draw.choices(WORDS, k=8))

    def _tokens(self, question: str, text: str, temperature: float, mode: str) -> list[dict[str, Any]]:
        greedy = TOKEN.findall(self._text(question, 0.0, None, 0))
        items = []
        for place, token in enumerate(TOKEN.findall(text)):
            first = {greedy[0]: GREEDY_LOGPROB, token: GREEDY_LOGPROB if token == greedy[0] else OTHER_LOGPROB}
            listed = dict(self.options or first) if place == 0 else {token: GREEDY_LOGPROB}
            value = listed.get(token, OTHER_LOGPROB)
            if mode == "scaled" and temperature == 0:
                value, listed = 0.0, {token: 0.0}
            value = {"nan": math.nan, "-inf": -math.inf}.get(mode, value)
            tops = [{"token": t, "logprob": v, "bytes": list(t.encode())} for t, v in listed.items()]
            items.append({"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": tops})
        return items

    def _events(self, completion: Mapping[str, Any], mode: str) -> bytes:
        """The reply as server-sent events, token by token."""
        choice = completion["choices"][0] if completion["choices"] else {"message": {}, "finish_reason": None}
        named = {name: completion[name] for name in ("model", "system_fingerprint") if name in completion}
        common = {"id": "x", "object": "chat.completion.chunk", "created": 0, **named}
        deltas: list[dict[str, Any]] = [{"content": t} for t in TOKEN.findall(_text_of(choice["message"]))]
        deltas += [{"tool_calls": [{"index": 0, **call}]} for call in choice["message"].get("tool_calls") or []]
        events = [{**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        end = {"finish_reason": choice["finish_reason"]}
        if mode == "ends_with_text":
            events[-1]["choices"][0] |= end
        elif mode != "cut_stream":
            events.append({**common, "choices": [{"index": 0, "delta": {}, **end}]})
        usage = completion["usage"]
        if mode == "running_totals":
            for number, event in enumerate(events, start=1):
                event["usage"] = {**usage, "completion_tokens": min(number, usage["completion_tokens"])}
        elif mode != "cut_stream":
            events.append({**common, "choices": [], "usage": usage})
        content = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        if mode in LINE_ENDS:
            content = content.replace("\n", LINE_ENDS[mode])
        return _http(content.encode(), kind="text/event-stream")


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else str(content[-1]["text"])


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Headers and JSON body of the next request; None when the client has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return headers, json.loads(await reader.readexactly(int(headers["content-length"])))


def _http(content: bytes, status: int = 200, more: str = "", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[Endpoint]:
    """Serve until the block ends; ``endpoint.url`` says where."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0, backlog=4096, limit=1 << 24)
        endpoint.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await stop.wait()
        server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(run())
        loop.close()

    thread = threading.Thread(target=work, name="faulty-endpoint")
    thread.start()
    ready.wait(10)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait for the server's side of an event; whether it came."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()
