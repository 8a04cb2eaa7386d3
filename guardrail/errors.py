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

from importlib import import_module
from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import LangChainException

if TYPE_CHECKING:
    from .types import Verdict

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
    "UsageError",
    "require",
]


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
