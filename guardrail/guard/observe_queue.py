"""Served answers that wait to be measured, and the counts of what became of them; for `Watcher` and the gateway."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..verdict import Reason, Verdict

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
        report: Called with each count: "observations" and a field of `Observed`, or "observations_dropped" and a cause.
    """

    def __init__(
        self,
        *,
        most: int = MOST,
        at_once: int = AT_ONCE,
        most_bytes: int = MOST_BYTES,
        report: Callable[[str, str], None] = lambda name, label: None,
    ) -> None:
        self._most = most
        self._at_once = at_once
        self._most_bytes = most_bytes
        self._report = report
        self._waiting: deque[tuple[Callable[[], str], int]] = deque()
        self._bytes = 0
        self._workers = 0
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

    def offer(self, measure: Callable[[], str], size: int) -> bool:
        """Measure an answer later.

        Args:
            measure: Measures the answer, and returns the field of `Observed` to count it under; "" if it has called
                `drop`.
            size: Bytes of the answer and its conversation, which wait with it.

        Returns:
            False if it was dropped, because too many wait.
        """
        if not self.hold(size):
            self.drop("queue_full")
            return False
        with self._state:
            has_room = len(self._waiting) < self._most
            needs_worker = has_room and self._workers < self._at_once
            if has_room:
                self._waiting.append((measure, size))
            if needs_worker:
                self._workers += 1
        if needs_worker:
            threading.Thread(target=self._work, name="guardrail-observe", daemon=True).start()
        if not has_room:
            self.free(size)
            self.drop("queue_full")
        return has_room

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
            if self._bytes + size > self._most_bytes:
                return False
            self._bytes += size
            return True

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
                fate = measure()
                if fate:
                    self.count(fate)
            except Exception as error:  # it must not end the thread; the caller has the answer already
                log.warning("guardrail: an observed answer was not measured (%s)", type(error).__name__)
                log.debug("guardrail: observing failed", exc_info=error)
                self.drop("failed")
            finally:
                self.free(size)


def fate_of(verdict: Verdict) -> str:
    """The field of `Observed` that a verdict counts under."""
    if verdict.accepted:
        return "accepted"
    return "unmeasured" if verdict.reason is Reason.UNMEASURED else "abstained"
