"""Answers that were served unguarded are measured behind them: what a guard would have done, before it is switched on.

    watcher = Watcher(Guardrail(model=model, artifact="artifact.json"))
    answer = model.invoke(messages, {"callbacks": [watcher]})     # the application's own model, unchanged
    watcher.observed.acceptance                                   # share of the answers that the guard would have given

A hash chooses the answers to measure before anything is known about them. Every chosen answer that is not measured is
counted, because dropping slow answers would drop hard questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult

from guardrail import Guardrail
from guardrail.errors import GuardrailError, UnreadableReplyError, UsageError
from guardrail.guard.comparability import unlike_calls
from guardrail.guard.observe_queue import Observed, ObserveQueue, fate_of
from guardrail.guard.observers import chosen
from guardrail.sampling.effects import run
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import refuse_majority
from guardrail.types import Sample

__all__ = ["ObserveQueue", "Observed", "Watcher", "fate_of"]


class Watcher(BaseCallbackHandler):
    """Measures the answers of a model that is called with this object among its callbacks; streams as well.

    The calls and their answers do not change. Verdicts reach the ``on_verdict`` of the guard, and `observed`
    counts them. An answer that was drawn with other settings than the plan's, or by another model, is counted as not
    comparable.

    Args:
        guard: A guard around the same model. It draws only the samples behind an answer.
        rate: The probability with which an answer is measured. A hash of the call's run id chooses.

    Raises:
        UsageError: ``rate`` is not in (0, 1], or the answer of the artifact is a vote, which no single call draws.
    """

    def __init__(self, guard: Guardrail, *, rate: float = 1.0) -> None:
        if not 0 < rate <= 1:
            raise UsageError(f"rate must be in (0, 1], got {rate!r}. Write 0.2 for a fifth of the answers.")
        refuse_majority(guard.artifact.plan, "observe answers that were served")
        self._guard = guard
        self._rate = rate
        self._queue = ObserveQueue()
        self._called: dict[UUID, tuple[Sequence[BaseMessage], Mapping[str, Any], Any]] = {}

    @property
    def observed(self) -> Observed:
        """Counts of the answers so far."""
        return self._queue.observed

    def drain(self, seconds: float) -> bool:
        """As `ObserveQueue.drain`."""
        return self._queue.drain(seconds)

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], *, run_id: UUID, **details: Any
    ) -> None:
        """Note the prompt and the settings of a call."""
        model = (details.get("metadata") or {}).get("ls_model_name")
        self._called[run_id] = (messages[0], details.get("invocation_params") or {}, model)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **details: Any) -> None:
        """Have the answer of a call measured, if it is chosen."""
        generations = response.generations[0] if response.generations else []
        message = getattr(generations[0], "message", None) if generations else None
        self._observe(run_id, message if isinstance(message, AIMessage) else None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **details: Any) -> None:
        """Count an answer that failed, or whose stream the caller left."""
        self._observe(run_id, None)

    def _observe(self, run_id: UUID, message: AIMessage | None) -> None:
        """Count an answer that was served, and have it measured later if it is chosen; nothing is raised."""
        messages, settings, model = self._called.pop(run_id, ((), {}, None))
        if not messages:  # no chat model was called
            return
        self._queue.count("served")
        if not chosen(str(run_id), self._rate, salt="observe"):
            return
        self._queue.count("chosen")
        if message is None:
            self._queue.drop("incomplete")
            return
        try:
            answer = read_reply(message)  # now: the application may change the message
        except UnreadableReplyError:  # it would be unmeasured in a guard
            self._queue.drop("unreadable")
            return
        size = sum(len(repr(held).encode()) for held in (*messages, message, settings))
        self._queue.offer(partial(self._measure, messages, settings, model, message, answer), size)

    def _measure(
        self,
        messages: Sequence[BaseMessage],
        settings: Mapping[str, Any],
        model: Any,
        message: AIMessage,
        answer: Sample,
    ) -> str:
        """Measure an answer; the field of `Observed` that it counts under."""
        guard = self._guard
        try:
            guard.check_served(messages)
            unlike = unlike_calls(guard.model, guard.artifact.plan, settings.get("stop"), settings, message)
        except GuardrailError:  # not drawn as the plan draws its primary answer
            return "not_comparable"
        if unlike or model != guard.model._get_ls_params().get("ls_model_name"):
            return "not_comparable"
        verdict = run(guard.served_steps(messages, answer)).verdict
        assert verdict is not None, "the one gate judges every candidate"
        return fate_of(verdict)
