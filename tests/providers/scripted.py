"""One scripted model behind the wire formats of the providers, on the loopback. It records its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Server", "serving"]

Body = dict[str, Any]
Answer = Callable[[Body], "str | tuple[int, str]"]
"""The answer to a request, or a status above 399 and a message."""
USED = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


class Server:
    """The scripted server: its URL, its answers, and the requests so far with their paths."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, Body]] = []
        self.lock = threading.Lock()
        self.answer: Answer = varied

    def reply(self, path: str, body: Body) -> tuple[int, Any]:
        """Return the reply to one request, as JSON; a list is sent line by line."""
        with self.lock:
            self.requests.append((path, body))
            place = len(self.requests)
        answer = self.answer({**body, "place": place})
        if not isinstance(answer, str):
            return answer[0], {
                "type": "error",
                "error": {"type": "invalid", "message": answer[1]},
                "message": answer[1],
            }
        for end, form in FORMS.items():
            if path.partition("?")[0].endswith(end):
                return 200, form(answer, bool(body.get("logprobs")))
        return 404, {"error": {"message": f"no such path: {path}"}}


def varied(body: Body) -> str:
    """Answer Paris to a question about France, and every other question differently each time."""
    return "Paris" if "France" in json.dumps(body) else f"word {body['place']}"


def _listed(text: str) -> list[Body]:
    """Return the log-probabilities of a text whose tokens are its words."""
    words = text.split()
    tokens = [*words[:1], *(f" {word}" for word in words[1:])]
    return [{"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []} for token in tokens]


def _openai(text: str, logprobs: bool) -> Any:
    message = {"role": "assistant", "content": text}
    listed = {"content": _listed(text)} if logprobs else None
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": listed}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": USED}


def _responses(answer: str, logprobs: bool) -> Any:
    text = {"type": "output_text", "text": answer, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    used = {
        "input_tokens": 5, "output_tokens": 1, "total_tokens": 6,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    common = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "completed"}
    return {
        "id": "x",
        "object": "response",
        "created_at": 0,
        "model": "m",
        "output": [message],
        "usage": used,
        **common,
    }


def _anthropic(text: str, logprobs: bool) -> Any:
    used = {"input_tokens": 5, "output_tokens": 1}
    return {
        "id": "x", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn", "stop_sequence": None, "usage": used,
    }  # fmt: skip


def _gemini(text: str, logprobs: bool) -> Any:
    content = {"role": "model", "parts": [{"text": text}]}
    used = {"promptTokenCount": 5, "candidatesTokenCount": 1, "totalTokenCount": 6}
    return {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "usageMetadata": used}


def _ollama(text: str, logprobs: bool) -> Any:
    common = {"model": "m", "created_at": "2026-01-01T00:00:00Z"}
    part = {**common, "message": {"role": "assistant", "content": text}, "done": False}
    part |= {"logprobs": _listed(text)} if logprobs else {}
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 1}
    return [part, {**common, "message": {"role": "assistant", "content": ""}, **end}]


def _cohere(text: str, logprobs: bool) -> Any:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    used = {"tokens": {"input_tokens": 5, "output_tokens": 1}}
    return {"id": "x", "finish_reason": "COMPLETE", "message": message, "usage": used}


def _converse(text: str, logprobs: bool) -> Any:
    message = {"role": "assistant", "content": [{"text": text}]}
    used = {"inputTokens": 5, "outputTokens": 1, "totalTokens": 6}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": used, "metrics": {"latencyMs": 1}}


FORMS: dict[str, Callable[[str, bool], Any]] = {
    "/chat/completions": _openai,
    "/responses": _responses,
    "/messages": _anthropic,
    ":generateContent": _gemini,
    "/api/chat": _ollama,
    "/v2/chat": _cohere,
    "/converse": _converse,
    "/invoke": _anthropic,
}


@contextmanager
def serving() -> Iterator[Server]:
    """Serve until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            read = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, reply = server.reply(self.path, json.loads(read))
            parts = reply if isinstance(reply, list) else [reply]
            content = "\n".join(map(json.dumps, parts)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-ndjson" if len(parts) > 1 else "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{listening.server_address[1]}")
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
