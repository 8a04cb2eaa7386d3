"""Retries around a guard (`GuardedChatModel.with_retry`): only failures of the transport may be retried.

Drawing again after any other abstention ends when a wrong answer happens to look certain; the retries then determine
the error rate among answers, not the calibration. Retries that this file cannot see get the verdict again from
`guardrail.sampling.draws.Draws`.
"""

from __future__ import annotations

from typing import Any, Self

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.retry import RunnableRetry

from ..sampling.limits import bounded, limit_of
from ..verdict import UnmeasuredError


class Retry(RunnableRetry[LanguageModelInput, AIMessage]):  # type: ignore[no-redef]
    """A guard that is asked again if the error allows it, each question of a batch by itself.

    LangChain's own batch repeats every failed question if the first of them may be repeated, and may give one question
    the answer to another (langchain-core 1.7 and 1.8).
    """

    @classmethod
    def of(
        cls,
        guard: Runnable[LanguageModelInput, AIMessage],
        *,
        retry_if_exception_type: Any = (Exception,),
        stop_after_attempt: int = 3,
        **settings: Any,
    ) -> Self:
        """The guard with the arguments of LangChain's ``with_retry``."""

        def lost(error: BaseException) -> bool:
            wanted = retry_if_exception_type
            named = isinstance(error, wanted) if isinstance(wanted, tuple) else wanted(error)
            return named and isinstance(error, UnmeasuredError)

        return cls(bound=guard, retry_exception_types=lost, max_attempt_number=stop_after_attempt, **settings)

    def batch(self, inputs: list[LanguageModelInput], config: Any = None, **kwargs: Any) -> list[AIMessage]:
        """`invoke` for several inputs at once, under one common limit."""
        with bounded(limit_of(config)):
            return Runnable.batch(self, inputs, config, **kwargs)

    async def abatch(self, inputs: list[LanguageModelInput], config: Any = None, **kwargs: Any) -> list[AIMessage]:
        """`batch` without blocking the event loop."""
        with bounded(limit_of(config)):
            return await Runnable.abatch(self, inputs, config, **kwargs)

    def with_retry(self, **settings: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The guard with these settings instead: two nested retries would multiply their attempts."""
        return self.bound.with_retry(**settings)
