"""The model of the example: reads invoices by rules, guesses where they are unclear, behind an OpenAI-compatible URL.

It never sees the right fields. Where a line names a field, it reads the value there, nearly always. Otherwise it picks
among the values of the right kind, each field by itself, so it errs by field, as models do.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from guardrail.plain_json import sha256_hex

__all__ = ["MODEL", "read", "serving"]

MODEL = "reader"
NAMED = {
    "number": r"Invoice number: (\S+)", "date": r"Invoice date: (\S+)", "buyer": r"Bill to: (.+)",
    "net": r"Net: (\S+)", "total": r"Total: (\S+)", "due": r"Due: (\S+)",
}  # fmt: skip
DATES, AMOUNTS = r"\d{4}-\d\d-\d\d", r"\d+\.\d\d"
KINDS = {
    "number": r"(?:Ref\. |order )(\S*\d)", "date": DATES, "buyer": r"(?:Ship to: |c/o )(.+)",
    "net": AMOUNTS, "total": AMOUNTS, "due": DATES,
}  # fmt: skip


def read(text: str, dice: random.Random | None) -> dict[str, Any]:
    """Return the fields of an invoice.

    Args:
        text: The invoice.
        dice: For a sampled answer; None for the most likely one.
    """
    fields: dict[str, Any] = {}
    for name in NAMED:
        values = _weighted(text, name)
        if not values:
            continue
        if dice is None:
            value = max(values, key=values.__getitem__)
        else:
            value = dice.choices(list(values), list(values.values()))[0]
        if value is not None:
            fields[name] = float(value) if name in ("net", "total") else value
    return fields


def _weighted(text: str, name: str) -> dict[str | None, float]:
    """Return the values that the reader takes into account for a field, with their weights."""
    likes = random.Random(sha256_hex(f"{name} {text}"))  # its opinion about this invoice, the same at every reading
    named = re.search(NAMED[name], text)
    candidates: dict[str | None, float] = {
        value: likes.random() ** 2 + 0.05 for value in dict.fromkeys(re.findall(KINDS[name], text))
    }
    if name in ("net", "total"):  # a net is rarely the largest amount, a total nearly always
        amounts = sorted((value for value in candidates if value is not None), key=float, reverse=name == "total")
        candidates = {value: candidates[value] * 4.0**-place for place, value in enumerate(amounts)}
    if name == "due":
        candidates = {value: weight for value, weight in candidates.items() if f"Invoice date: {value}" not in text}
        candidates[None] = 0.1 + likes.random()  # it may say nothing
    if named is not None:
        others = sum(candidates.values()) - candidates.get(named[1], 0.0)
        candidates[named[1]] = candidates.get(named[1], 0.0) + (30 + 300 * likes.random()) * max(others, 0.1)
    return candidates


def _reply(body: dict[str, Any]) -> dict[str, Any]:
    text = str(body["messages"][-1]["content"])
    greedy = not body.get("temperature", 1)
    texts = []
    for place in range(body.get("n") or 1):
        dice = random.Random(sha256_hex(text if greedy else f"{body.get('seed')} {place} {text}"))
        fields = read(text, None if greedy else dice)
        # A request that holds no invoice (a probe of the endpoint) gets some words.
        texts.append(
            json.dumps(fields) if fields else " ".join(dice.choices(["red", "blue", "green", "grey", "pink"], k=20))
        )
    choices = [
        {"index": i, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        for i, answer in enumerate(texts)
    ]
    counts = {"prompt_tokens": len(text) // 4, "completion_tokens": sum(len(answer) // 4 for answer in texts)}
    usage = {**counts, "total_tokens": sum(counts.values())}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": MODEL, "choices": choices, "usage": usage}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        content = json.dumps(_reply(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """Serve the model on a free port of the loopback; yield the URL of its API."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        # A script that never closes it does so as the process ends: `shutdown` would wait for a thread that is gone.
        if not sys.is_finalizing():
            server.shutdown()
            server.server_close()
            thread.join()
