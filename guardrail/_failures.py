"""What is told of somebody else's exception, whose text may quote an answer that is held back.

A judge quotes the pair it was given, a database the row it refused, a parser the reply it could not read, and some
servers the generation that did not fit a tool. So verdicts, metadata and logs then name the type only; the whole
exception is in the log at level DEBUG. Why a model could not be asked ("connection refused", "out of memory", "quota
exceeded") is told in full: whoever has to mend it needs it.
"""

from __future__ import annotations

import logging
import os

from ._readable import UnreadableReplyError
from .errors import GuardrailError

__all__ = ["told"]

LONGEST = 300
"""Characters of an exception that are told."""
_READING = (ValueError, TypeError, LookupError, AttributeError)
"""What code raises that reads a reply; LangChain's and pydantic's errors are of these kinds."""
_QUOTING = ("failed_generation", "generated_text", "model_output", "raw_output")
"""What stands in error replies that quote the model (Groq's for a call that fits no tool, for one)."""

log = logging.getLogger("guardrail")


def told(error: Exception, *, asking: bool = False) -> str:
    """An exception in words that quote no answer.

    Args:
        error: What was raised.
        asking: Whether it came of asking a model, which was handed no answer. Then it is told in full, unless it may
            come of reading what the model said.
    """
    name, text = type(error).__name__, str(error)
    status = getattr(error, "status_code", None)
    ours = isinstance(error, GuardrailError | UnreadableReplyError)
    plain = asking and not isinstance(error, _READING) and not any(name in text for name in _QUOTING)
    if ours or plain:
        return f"{name}: {text}" if len(text) <= LONGEST or ours else f"{name}: {text[:LONGEST]}..."
    log.debug("guardrail: %s", name, exc_info=error)
    if isinstance(error, OSError) and type(error).__module__ == "builtins" and error.errno is not None:
        return f"{name}: {os.strerror(error.errno)}"
    where = "in full in the log, at level DEBUG"
    return f"{name} (HTTP status {status}; {where})" if isinstance(status, int) else f"{name} ({where})"
