"""Answers that were served unguarded are measured behind them: what a guard would have done, before it is switched on.

    watcher = Watcher(Guardrail(model=model, artifact="artifact.json"))
    answer = model.invoke(messages, {"callbacks": [watcher]})     # the application's own model, unchanged
    watcher.observed.acceptance                                   # share of the answers that the guard would have given

A hash chooses the answers to measure before anything is known about them. Every chosen answer that is not measured is
counted, because dropping slow answers would drop hard questions.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult

from guardrail import Guardrail
from guardrail.errors import GuardrailError, UnreadableReplyError, UsageError
from guardrail.guard.comparability import unlike_calls
from guardrail.guard.observers import chosen
from guardrail.sampling.effects import run
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import refuse_majority
from guardrail.types import Sample
from guardrail.verdict import Reason, Verdict

__all__ = ["ObserveQueue", "Observed", "Watcher", "fate_of"]

MOST = 1000
"""Answers that wait to be measured; later ones are dropped."""
MOST_BYTES = 64 * 2**20
"""Bytes of answers that wait or are measured; later ones are dropped."""
AT_ONCE = 4
"""Answers that are measured at once."""
log = logging.getLogger("guardrail")


@dataclass(frozen=True, slots=True)
class Observed:
    """Counts of the answers so far, by what became of them.

    Attributes:
        served: All answers.
        chosen: Answers that the hash chose to measure.
        accepted: Measured, and the guard would have given them.
        abstained: Measured, and the guard would have held them back.
        unmeasured: The guard would have held them back because they could not be measured.
        not_comparable: Drawn with other settings than the calibrated answers, so a verdict would be about another
            answer. They do not count as accepted.
        collected: Drawn without an artifact, for records.
        dropped: Chosen, and lost, by cause: "queue_full", "incomplete", "unreadable", "upstream_error", "failed",
            "stopping", "unwritten" (its record could not be written).
    """

    served: int = 0
    chosen: int = 0
    accepted: int = 0
    abstained: int = 0
    unmeasured: int = 0
    not_comparable: int = 0
    collected: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def acceptance(self) -> float | None:
        """Share of the measured answers that the guard would have given; None before the first."""
        measured = self.accepted + self.abstained + self.unmeasured
        return self.accepted / measured if measured else None


class ObserveQueue:
    """Measures served answers in background threads, in the order of their arrival; shared by threads.

    Args:
        most: Answers that wait; when so many do, the newest is dropped.
        at_once: Answers that are measured at once.
        most_bytes: Bytes of answers that wait or are measured; a newer one is dropped.
        report: Is told of each count: "observations" and a field of `Observed`, or "observations_dropped" and a cause.
    """

    def __init__(
        self,
        *,
        most: int = MOST,
        at_once: int = AT_ONCE,
        most_bytes: int = MOST_BYTES,
        report: Callable[[str, str], None] = lambda name, label: None,
    ) -> None:
        self._most, self._at_once, self._most_bytes, self._report = most, at_once, most_bytes, report
        self._waiting: deque[tuple[Callable[[], str], int]] = deque()
        self._bytes = self._workers = 0
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._state = threading.Condition(threading.Lock())

    @property
    def observed(self) -> Observed:
        """The counts until now."""
        with self._state:
            return Observed(**self._counts, dropped=dict(self._dropped))

    def count(self, *fates: str) -> None:
        """Count an answer under fields of `Observed`."""
        with self._state:
            self._counts.update(fates)
        for fate in fates:
            self._report("observations", fate)

    def drop(self, cause: str) -> None:
        """Count an answer that was chosen and is lost."""
        with self._state:
            self._dropped[cause] += 1
        self._report("observations_dropped", cause)

    def offer(self, measure: Callable[[], str], size: int = 0) -> bool:
        """Measure an answer later.

        Args:
            measure: Measures the answer, and returns the field of `Observed` to count it under; "" if it has called
                `drop`.
            size: Bytes that the answer holds.

        Returns:
            False if it was dropped, because too many wait.
        """
        fits = self.hold(size)
        with self._state:
            taken = fits and len(self._waiting) < self._most
            if taken:
                self._waiting.append((measure, size))
            start = taken and self._workers < self._at_once
            self._workers += start
        if start:
            threading.Thread(target=self._work, name="guardrail-observe", daemon=True).start()
        if not taken:
            self.free(size if fits else 0)
            self.drop("queue_full")
        return taken

    def drain(self, seconds: float) -> bool:
        """Wait until everything is measured; what waits after that time is dropped, and counted.

        Returns:
            Whether everything was measured.
        """
        with self._state:
            done = self._state.wait_for(lambda: not self._workers, seconds)
            left = list(self._waiting)
            self._waiting.clear()
        for _, size in left:
            self.free(size)
            self.drop("stopping")
        return done

    def hold(self, size: int) -> bool:
        """Count bytes of an answer that arrives or waits; False if that would be too many."""
        with self._state:
            fits = self._bytes + size <= self._most_bytes
            self._bytes += size if fits else 0
            return fits

    def free(self, size: int) -> None:
        """Count bytes off."""
        with self._state:
            self._bytes -= size

    def _work(self) -> None:
        while True:
            with self._state:  # an answer offered at this moment is either taken here, or starts another thread
                if not self._waiting:
                    self._workers -= 1
                    self._state.notify_all()
                    return
                measure, size = self._waiting.popleft()
            try:
                if fate := measure():
                    self.count(fate)
            except Exception as error:  # it must not end the thread; the caller has the answer already
                log.warning("guardrail: an observed answer was not measured (%s)", type(error).__name__)
                log.debug("guardrail: observing failed", exc_info=error)
                self.drop("failed")
            finally:
                self.free(size)


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
        self._guard, self._rate, self._queue = guard, rate, ObserveQueue()
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
        self._queue.offer(partial(self._measure, messages, settings, model, message, answer))

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


def fate_of(verdict: Verdict) -> str:
    """The field of `Observed` that a verdict counts under."""
    if verdict.accepted:
        return "accepted"
    return "unmeasured" if verdict.reason is Reason.UNMEASURED else "abstained"
