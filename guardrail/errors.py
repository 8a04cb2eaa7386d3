"""Everything this library raises on purpose, on one screen.

* GuardrailError
  x UsageError              the caller asked for something that cannot be done (also a ValueError)
  x MissingDependencyError  an optional package is not installed (also an ImportError)
  x ArtifactError           a calibration artifact cannot be trusted
    - ArtifactFormatError   not JSON, truncated, wrong schema, or from a future version
    - ArtifactTamperedError the digest does not match the content
    - ArtifactMismatchError it was made for another model, plan, prompt, estimator or judge
  x RecordError             a question or record file has a bad row (file, line and field are named)
  x PromptTooLongError      the prompt does not fit the model's context window (also a ValueError)
  x AbstainedError          the guard abstained and was told to raise; carries the verdict
    - UnmeasuredError       because the uncertainty could not be measured, which says nothing about the answer

Misuse and a bad artifact raise. A measurement that failed never raises: it abstains, with its reason in the verdict.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import LangChainException

__all__ = [
    "AbstainedError",
    "ArtifactError",
    "ArtifactFormatError",
    "ArtifactMismatchError",
    "ArtifactTamperedError",
    "GuardrailError",
    "MissingDependencyError",
    "PromptTooLongError",
    "RecordError",
    "UnmeasuredError",
    "UnreadableReplyError",
    "UsageError",
    "require",
    "told",
]

if TYPE_CHECKING:
    from .verdict import Verdict


class GuardrailError(LangChainException):
    """Base of every error this library raises on purpose."""


class UsageError(GuardrailError, ValueError):
    """The caller asked for something that cannot be done. The message names the value, the rule and the way out."""


class MissingDependencyError(GuardrailError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class ArtifactError(GuardrailError):
    """A calibration artifact cannot be trusted."""


class ArtifactFormatError(ArtifactError):
    """The file is not a complete artifact of a version this library reads."""


class ArtifactTamperedError(ArtifactError):
    """The content does not match the digest written with it."""


class ArtifactMismatchError(ArtifactError):
    """The artifact was made for something else than what is running; both sides are named."""


class RecordError(GuardrailError):
    """A row of a question or record file is malformed; file, line and field are named."""


class PromptTooLongError(GuardrailError, ValueError):
    """The prompt (plus room for the answer) exceeds the model's context window."""


class AbstainedError(GuardrailError):
    """The guard abstained, and a text would have been taken for an answer or was not wanted (``on_abstain="raise"``).

    Works with ``guard.with_fallbacks([other], exceptions_to_handle=(AbstainedError,))`` and with LangChain's
    ``ModelFallbackMiddleware``.

    Attributes:
        verdict: The full verdict, with the frozen candidate answer that was held back.
        message: What the user would have been told. ``str(error)`` is the verdict's detail, for the log.
    """

    def __init__(self, verdict: Verdict, message: str | None = None) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict
        self.message = verdict.detail if message is None else message

    @classmethod
    def of(cls, verdict: Verdict, message: str | None = None) -> AbstainedError:
        """An `UnmeasuredError` where the uncertainty could not be measured, else an `AbstainedError`.

        Of a cascade none of whose stages was measured: where one was, another try would draw that one again.
        """
        stages: tuple[Verdict, ...] = getattr(verdict, "stages", ()) or (verdict,)
        unmeasured = all(stage.reason.value == "unmeasured" for stage in stages)
        return (UnmeasuredError if unmeasured else AbstainedError)(verdict, message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.verdict, self.message)  # so that it survives another process


class UnmeasuredError(AbstainedError):
    """The guard abstained because the uncertainty could not be measured: the model, server or judge failed."""


def require(package: str, *, extra: str) -> Any:
    """Import an optional package, or say which extra brings it.

    Args:
        package: Dotted module name, e.g. ``"torch"``.
        extra: The extra of this distribution that installs it, e.g. ``"local"``.

    Returns:
        The imported module.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        message = f"{package} is not installed. Install it with: pip install 'acrc-guardrail[{extra}]'"
        raise MissingDependencyError(message) from error


# -- What is told of somebody else's exception, whose text may quote an answer that is held back -----------------------
# A judge quotes the pair it was given, a database the row it refused, a parser the reply it could not read, and some
# servers the generation that did not fit a tool. So verdicts, metadata and logs then name the type only; the whole
# exception is in the log at level DEBUG. Why a model could not be asked ("connection refused", "out of memory", "quota
# exceeded") is told in full: whoever has to mend it needs it.

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


class UnreadableReplyError(ValueError):
    """A model's reply holds what cannot be judged and given out as it is."""
