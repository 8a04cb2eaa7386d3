"""A scripted model: behind a function, and behind an OpenAI-compatible HTTP server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["PAY", "SURE", "UNSURE", "Served", "Upstream"]

PAY = {
    "type": "function",
    "function": {
        "name": "pay",
        "description": "Pay.",
        "parameters": {"type": "object", "properties": {"amount": {"type": "integer"}}},
    },
}
SURE = "Capital of France?"
UNSURE = "Capital of Atlantis?"


def message_of(question: str, temperature: float, place: int) -> dict[str, Any]:
    """The message of a scripted model."""
    sampled = bool(temperature)
    if question == SURE:
        return {"role": "assistant", "content": "Paris is it"}
    if question.startswith("Pay"):
        amount = place if sampled and "?" in question else 5
        call = {"name": "pay", "arguments": json.dumps({"amount": amount})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{place}", "type": "function", "function": call}],
        }
    return {"role": "assistant", "content": ["Oslo", "Bern", "Riga", "Kiev"][place % 4] if sampled else "Rome"}


def words(message: dict[str, Any]) -> list[str]:
    """The tokens of a scripted text."""
    return str(message["content"] or "").split()


class Upstream:
    """A scripted model behind `complete`, and behind an HTTP server."""

    def __init__(self, answer: Callable[[str, float, int], dict[str, Any]] = message_of) -> None:
        self.answer = answer
        self.calls: list[dict[str, Any]] = []
        self.broken = False
        self._lock = threading.Lock()

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            place = sum(bool(call.get("temperature")) for call in self.calls)
            self.calls.append(request)
        question = next(message["content"] for message in reversed(request["messages"]) if message["role"] == "user")
        message = self.answer(question, request.get("temperature", 1), place)
        if request["messages"][-1]["role"] == "tool":
            message = {"role": "assistant", "content": "Done."}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        listed: list[dict[str, Any]] = [
            {"token": word, "logprob": -0.1, "bytes": None, "top_logprobs": []} for word in words(message)
        ]
        logprobs = {"content": listed} if request.get("logprobs") else None
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
        }

    async def complete(self, **request: Any) -> Any:
        if self.broken:
            raise ConnectionError("down")
        return self.reply(request)


class Served:
    """A scripted OpenAI-compatible server."""

    def __init__(self, answer: Callable[[str, float, int], dict[str, Any]] = message_of) -> None:
        self.upstream = Upstream(answer)
        upstream = self.upstream

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = json.dumps(upstream.reply(request)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
