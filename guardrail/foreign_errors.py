"""Errors of other libraries, as text that quotes no held-back answer.

An exception's text may quote an answer or a prompt: a judge quotes the pair it was given, a database the row it
refused, a parser the reply it could not read, and servers the generation that did not fit a tool or the request that
they refused. Verdicts, metadata and logs therefore name the type, and of a server's reply the status, code and type;
the full exception is logged at level DEBUG. Why a model could not be called at all ("connection refused", "out of
memory") is shown in full, because no server wrote it and the operator needs it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable

from .errors import GuardrailError, UnreadableReplyError
from .plain_json import visible

LONGEST = 300
"""Characters of an exception that are shown."""
QUOTED = 200
"""Characters of a server's words that are shown to a person who calibrates or examines."""
IN_FULL = "in full in the log, at level DEBUG"
READING = (ValueError, TypeError, LookupError, AttributeError)
"""Raised by code that reads a reply; LangChain's and pydantic's errors are of these types."""
_KEY = re.compile(r"(?=[^ ]*\d)[\w./+=~-]{20,}")
"""A word that may be a key."""
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
"""Codes and types that are shown; anything else in their place may be text of a model."""

log = logging.getLogger("guardrail")


def describe_error(error: Exception, *, asking: bool = False) -> str:
    """An exception as text that is safe to show: it quotes no answer.

    Args:
        error: What was raised.
        asking: Whether a call to a model raised it; the call contained no answer. The text is then shown in full,
            unless a server wrote it, or reading the model's reply may have raised it.
    """
    name, text = type(error).__name__, visible(str(error))
    ours = isinstance(error, GuardrailError | UnreadableReplyError)
    facts = reply_facts(error)
    if ours or (asking and not facts and not isinstance(error, READING)):
        return f"{name}: {text}" if len(text) <= LONGEST or ours else f"{name}: {text[:LONGEST]}..."
    log.debug("guardrail: %s", name, exc_info=error)
    if isinstance(error, OSError) and type(error).__module__ == "builtins" and error.errno is not None:
        return f"{name}: {os.strerror(error.errno)}"
    return f"{name} ({'; '.join([*facts, IN_FULL])})"


def server_words(error: object, secrets: Iterable[str] = ()) -> str:
    """What a server said in an error, on one line, at most `QUOTED` characters, without what may be a key.

    A guard never shows it: a server may quote an answer that is held back.
    """
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else body
    message = inner.get("message") if isinstance(inner, dict) else inner
    text = str(error) if body is None else ""
    if isinstance(message, str):
        text = message
    for secret in secrets:
        text = text.replace(secret, "***")
    text = visible(_KEY.sub("***", " ".join(text.split())))
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def show_details() -> None:
    """Write the log of this package to stderr in full, with what servers said: ``-v`` of the command lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False


def reply_facts(error: Exception) -> list[str]:
    """Status, code and type of the server's reply that an exception carries, in words; empty if it carries none.

    Read from the attributes of the clients of OpenAI, Anthropic, Google, Ollama, httpx and botocore.
    """
    response, body = getattr(error, "response", None), getattr(error, "body", None)
    code, kind = getattr(error, "code", None), getattr(error, "type", None)
    if isinstance(response, dict):  # botocore
        code = response.get("Error", {}).get("Code")
    if isinstance(body, dict):
        inner = body["error"] if isinstance(body.get("error"), dict) else body
        code, kind = code or inner.get("code"), kind or inner.get("type")
    facts = {"HTTP status": http_status(error), "code": code, "type": kind}
    shown = [f"{name} {value}" for name, value in facts.items() if value and _WORD.fullmatch(str(value))]
    return shown or ["a reply of the server"] * (response is not None or body is not None)


def http_status(error: Exception) -> int | None:
    """HTTP status of an error, from the places in which SDKs store it; None if it has no status."""
    reply = getattr(error, "response", None)
    inner = reply.get("ResponseMetadata") if isinstance(reply, dict) else None  # botocore
    places = (error, "status_code"), (error, "code"), (reply, "status_code"), (inner, "HTTPStatusCode")
    values = [at.get(name) if isinstance(at, dict) else getattr(at, name, None) for at, name in places]
    # Some SDKs keep codes of their own in `code`; only an HTTP status says who is at fault.
    return next((int(value) for value in values if isinstance(value, int) and 100 <= value < 600), None)
