"""Retries around a guard (`GuardedChatModel.with_retry`): only failures of the transport may be retried.

Every other abstention is a result. Drawing again after an abstention ends when a wrong answer happens to look certain;
the retries then determine the error rate among answers, not the calibration. The same holds for empty, refused,
unreadable and unjudged answers, which come with certain questions. Retries that this file cannot see get the verdict
again from `guardrail.sampling.draws.Draws`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.retry import RunnableRetry

from ..sampling.limits import bounded, limit_of
from ..verdict import AbstainedError

__all__ = ["Retriable", "Retry", "may_be_retried"]


Retriable = tuple[type[BaseException], ...] | Callable[[BaseException], bool]
"""Types of exceptions, or a function that returns True for those to retry."""


def may_be_retried(error: BaseException, on_abstain: Any) -> bool:
    """Whether a guard that raised this may be asked again.

    Args:
        error: The error that it raised.
        on_abstain: The guard's setting. Any error of a Runnable or a handler may come after a measured abstention.
    """
    if not isinstance(on_abstain, str):
        return False
    return not (isinstance(error, AbstainedError) and error.verdict.is_result)


class Retry(RunnableRetry[LanguageModelInput, AIMessage]):  # type: ignore[no-redef]
    """A guard that is asked again if the error allows it, each question of a batch by itself.

    LangChain's own batch repeats every failed question if the first of them may be repeated, and may give one question
    the answer to another (langchain-core 1.7 and 1.8).
    """

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
