"""The causes of failed calls: a reply that cannot be read, a request that the server refused, or the transport."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from json import JSONDecodeError

from ...errors import BrokenOffReplyError, PromptTooLongError
from ...foreign_errors import READING, http_status
from ...types import Sample, Unmeasured

_PASSING = frozenset({401, 402, 403, 404, 407, 408, 409, 425, 429})
"""HTTP status of errors that would hit any request: keys, addresses, limits, time."""
_MISCONFIGURED = frozenset({401, 403, 404})
"""HTTP status of errors that a wrong key, model name or address causes; they last until somebody corrects it."""
_REPLY_ERRORS = frozenset(
    {"ContentFilterFinishReasonError", "LengthFinishReasonError", "ModelBehaviorError", "UnexpectedModelBehavior"}
)
"""Class names of errors without a status that SDKs and agent frameworks raise about a reply; none of them is imported.

An adapter cannot add its own: an application may wrap a framework's model without it, and a question whose failure
depends on it would then be drawn again.
"""
_TRANSPORT_ERRORS = frozenset({"APIConnectionError", "ClientConnectionError", "TransportError"})
"""Class names of errors without a status that HTTP clients (OpenAI's and Anthropic's SDK, aiohttp, httpx) raise when a
connection fails."""


def cause_of(error: Exception) -> Unmeasured:
    """The reason why a call gave no answer: an unreadable reply, a request that the server refused, or a failed call.

    Errors of code that reads replies count as unreadable replies: some integrations raise them if a filter removed the
    answer. In doubt the question is the cause, so that nothing draws it again.
    """
    if isinstance(error, PromptTooLongError):
        return Unmeasured.REJECTED
    if isinstance(error, BrokenOffReplyError):
        return Unmeasured.MODEL_FAILED
    status = http_status(error)
    if status in _MISCONFIGURED or (status is None and _finds_no_server(error)):
        return Unmeasured.MISCONFIGURED
    if status is not None and not 200 <= status < 300:
        return Unmeasured.REJECTED if 400 <= status < 500 and status not in _PASSING else Unmeasured.MODEL_FAILED
    if isinstance(error, OSError) and not isinstance(error, JSONDecodeError):  # some SSL errors are also a ValueError
        return Unmeasured.MODEL_FAILED
    reading = status is not None or isinstance(error, READING)
    if reading or any(kind.__name__ in _REPLY_ERRORS for kind in type(error).__mro__):
        return Unmeasured.UNREADABLE
    return Unmeasured.MODEL_FAILED


def transport_cause(error: Exception) -> Unmeasured | None:
    """`cause_of` if a connection or a server failed; None for any other error, which may depend on the answer.

    Unlike a model's client, the code that raised it may be anybody's: an error counts as the transport's only if it has
    an HTTP status or comes from the system or an HTTP client.
    """
    transport = any(
        isinstance(cause, OSError) or _TRANSPORT_ERRORS & {kind.__name__ for kind in type(cause).__mro__}
        for cause in _causes(error)
    )
    cause = cause_of(error) if transport or http_status(error) is not None else None
    return None if cause is None or cause.depends_on_question else cause


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and the errors behind it."""
    cause: BaseException | None = error
    # Causes may form a cycle, so the chain is followed so far only.
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__  # httpcore hides the system's error ("from None")


def _finds_no_server(error: BaseException) -> bool:
    """Whether no server answers: the host is unknown or refuses connections. SDKs wrap these errors in their own."""
    return any(isinstance(cause, ConnectionRefusedError | socket.gaierror) for cause in _causes(error))


def failed_calls(
    failures: Sequence[tuple[Unmeasured, str]], calls: int, answers: Iterable[Sample]
) -> tuple[Unmeasured, str] | None:
    """The problem of a set in which calls failed, and its detail; None if none failed.

    The reason is the first cause that depends on the question, if there is one. After that comes a reply of another
    model than the pinned one. A wrong configuration is the reason only if it is the cause of every failed call.

    Args:
        failures: The cause of each failed call, and the error.
        calls: Number of calls.
        answers: The answers of the other calls; a refusal or an empty answer is a cause, too.
    """
    if not failures:
        return None
    causes = [cause for cause, _ in failures]
    of_answers = [
        Unmeasured.REFUSED if answer.refusal else Unmeasured.EMPTY_ANSWER
        for answer in answers
        if answer.refusal or not answer.comparable
    ]
    reason = next((cause for cause in (*causes, *of_answers) if cause.depends_on_question), Unmeasured.MODEL_FAILED)
    if reason is Unmeasured.MODEL_FAILED and Unmeasured.MODEL_CHANGED in causes:
        reason = Unmeasured.MODEL_CHANGED
    elif reason is Unmeasured.MODEL_FAILED and set(causes) == {Unmeasured.MISCONFIGURED}:
        reason = Unmeasured.MISCONFIGURED
    return reason, f"{len(failures)} of {calls} calls failed, the first with {failures[0][1]}"


def refused_samples(samples: Sequence[Sample]) -> tuple[Unmeasured, str] | None:
    """The problem of a set with samples that are refusals, and its detail; None without."""
    refused = sum(sample.refusal for sample in samples)
    return (
        (Unmeasured.REFUSED, f"{refused} of {len(samples)} samples are refusals or were filtered") if refused else None
    )
