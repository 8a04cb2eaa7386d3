"""What may be tried again around a guard: what could not be measured. A measured abstention is a result.

Whoever draws again after an abstention draws until a wrong answer happens to look certain; the error rate among answers
is then what the retries make of it, and no longer the calibrated one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.retry import RunnableRetry

from ._limits import bounded, limit_of
from .errors import AbstainedError
from .types import Reason, Verdict

__all__ = ["Retriable", "Retry", "is_result", "may_be_retried"]

Retriable = tuple[type[BaseException], ...] | Callable[[BaseException], bool]
"""Types of exceptions, or a function that says yes."""


def is_result(verdict: Verdict) -> bool:
    """Whether a verdict is an abstention that another draw could only turn into an error.

    Not what could not be measured, and not what an alarm or a failed record held back. Of a cascade, any stage's.
    """
    verdicts: tuple[Verdict, ...] = getattr(verdict, "stages", ()) or (verdict,)
    return any(one.reason in (Reason.ABOVE_THRESHOLD, Reason.INFEASIBLE) for one in verdicts)


def may_be_retried(error: BaseException, on_abstain: Any) -> bool:
    """Whether a guard that raised this may be asked again.

    Args:
        error: What it raised.
        on_abstain: The guard's. Of a Runnable or a handler any error may come after a measured abstention.
    """
    if not isinstance(on_abstain, str):
        return False
    return not (isinstance(error, AbstainedError) and is_result(error.verdict))


class Retry(RunnableRetry[LanguageModelInput, AIMessage]):  # type: ignore[no-redef]
    """A guard that is asked again where that is allowed, each question of a batch by itself.

    LangChain's own batch asks every question that failed again if the first of them may be, and may give one question's
    answer to another (langchain-core 1.7 and 1.8).
    """

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """`invoke` for several inputs at once, under one common limit."""
        with bounded(limit_of(config)):
            return Runnable.batch(self, inputs, config, return_exceptions=return_exceptions, **kwargs)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[AIMessage]:
        """`batch` without blocking the event loop."""
        with bounded(limit_of(config)):
            return await Runnable.abatch(self, inputs, config, return_exceptions=return_exceptions, **kwargs)

    def with_retry(self, **settings: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The guard with these settings instead: two retries around each other would ask again all the same."""
        return self.bound.with_retry(**settings)

    @classmethod
    def of(
        cls, guard: Runnable[LanguageModelInput, AIMessage], on_abstain: Any, wanted: Retriable, **settings: Any
    ) -> Retry:
        """A guard that retries what is wanted and allowed."""

        def retried(error: BaseException) -> bool:
            asked_for = isinstance(error, wanted) if isinstance(wanted, tuple) else wanted(error)
            return asked_for and may_be_retried(error, on_abstain)

        return cls(bound=guard, retry_exception_types=retried, **settings)
