"""Observe mode: answers are served unchanged, and verdicts on the served answers are computed behind them.

A hash chooses the requests to measure before anything is known about them. Every chosen answer that is not measured is
counted, because dropping slow answers would drop hard questions.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage

from ..errors import GuardrailError
from ..sampling.replies import read_reply
from ..types import Sample
from ..verdict import Reason, Verdict

__all__ = ["ObserveQueue", "Observed", "chosen", "fate_of"]

MOST = 1000
"""Answers that wait to be measured; later ones are dropped."""
AT_ONCE = 4
"""Answers that are measured at once."""
log = logging.getLogger("guardrail")


def chosen(key: str, rate: float, *, salt: str = "audit") -> bool:
    """Whether a key belongs to a sample: 64 bits of SHA-256 over salt and key, below ``rate``.

    Samples with one salt are nested: a key chosen at a rate is chosen at every higher rate. Different salts choose
    independently.
    """
    # A hash, not a random number: a retry, a restart or another process chooses the same keys again.
    digest = hashlib.sha256(f"{salt}\n{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < rate * 2.0**64


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
        most_bytes: Bytes of answers that wait or are measured; a newer one is dropped; None for no limit.
    """

    def __init__(self, *, most: int = MOST, at_once: int = AT_ONCE, most_bytes: int | None = None) -> None:
        self._most, self._at_once, self._most_bytes = most, at_once, most_bytes
        self._waiting: queue.Queue[tuple[Callable[[], str], int]] = queue.Queue(most)
        self._bytes = 0
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._running = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> ObserveQueue:
        return ObserveQueue(most=self._most, at_once=self._at_once, most_bytes=self._most_bytes)

    @property
    def observed(self) -> Observed:
        """The counts until now."""
        with self._lock:
            return Observed(**self._counts, dropped=dict(self._dropped))

    def count(self, *fates: str) -> None:
        """Count an answer under fields of `Observed`."""
        with self._lock:
            self._counts.update(fates)

    def drop(self, cause: str) -> None:
        """Count an answer that was chosen and is lost."""
        with self._lock:
            self._dropped[cause] += 1

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
        try:
            if not fits:
                raise queue.Full
            self._waiting.put_nowait((measure, size))
        except queue.Full:
            self.free(size if fits else 0)
            self.drop("queue_full")
            return False
        with self._lock:
            start = self._running < self._at_once
            self._running += start
        if start:
            threading.Thread(target=self._work, name="guardrail-observe", daemon=True).start()
        return True

    def observe(
        self,
        message: AIMessage | None,
        prepared: Callable[[Sample], Callable[[], Verdict] | None],
        *,
        key: str,
        rate: float,
    ) -> None:
        """Have an answer that was served measured later, if it is chosen; nothing is raised.

        Args:
            message: The answer; None if it failed, or if the caller left its stream.
            prepared: Returns the function that measures it; None, or a `GuardrailError`, if the answer was not drawn as
                the plan's primary answer.
            key: Names the answer: its hash decides whether it is measured.
            rate: The probability that it is measured.
        """
        self.count("served")
        if not chosen(key, rate, salt="observe"):
            return
        self.count("chosen")
        if message is None:
            self.drop("incomplete")
            return
        try:
            answer = read_reply(message)
        except Exception:  # such a reply would be unmeasured in a guard; here nothing must reach the application
            self.drop("unreadable")
            return
        try:
            measure = prepared(answer)
        except GuardrailError:
            measure = None
        except Exception as error:
            log.debug("guardrail: observing failed", exc_info=error)
            self.drop("failed")
            return
        if measure is None:
            self.count("not_comparable")
            return
        self.offer(lambda: fate_of(measure()))

    def drain(self, seconds: float) -> bool:
        """Wait until everything is measured; what waits after that time is dropped, and counted.

        Returns:
            Whether everything was measured.
        """
        ends = time.monotonic() + seconds
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks and (left := ends - time.monotonic()) > 0:
                self._waiting.all_tasks_done.wait(left)
        done = not self._waiting.unfinished_tasks
        while not self._waiting.empty():
            try:
                _, size = self._waiting.get_nowait()
            except queue.Empty:
                break
            self.free(size)
            self.drop("stopping")
            self._waiting.task_done()
        return done

    def hold(self, size: int) -> bool:
        """Count bytes of an answer that arrives or waits; False if that would be too many."""
        with self._lock:
            fits = self._most_bytes is None or self._bytes + size <= self._most_bytes
            self._bytes += size if fits else 0
            return fits

    def free(self, size: int) -> None:
        """Count bytes off."""
        with self._lock:
            self._bytes -= size

    def _work(self) -> None:
        while True:
            with self._lock:  # an answer offered at this moment is either taken here, or starts another thread
                try:
                    measure, size = self._waiting.get_nowait()
                except queue.Empty:
                    self._running -= 1
                    return
            try:
                if fate := measure():
                    self.count(fate)
            except Exception as error:  # it must not end the thread; the caller has the answer already
                log.warning("guardrail: an observed answer was not measured (%s)", type(error).__name__)
                log.debug("guardrail: observing failed", exc_info=error)
                self.drop("failed")
            finally:
                self.free(size)
                self._waiting.task_done()


def fate_of(verdict: Verdict) -> str:
    """The field of `Observed` that a verdict counts under."""
    if verdict.accepted:
        return "accepted"
    return "unmeasured" if verdict.reason is Reason.UNMEASURED else "abstained"
