"""Faults that an operator must see: a log line for each cause, and the state that ``/readyz`` reports."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

AGAIN = 60.0
"""Seconds after which a cause that goes on is logged again."""
SHOWN = 3600.0
"""Seconds for which a cause is shown after it was last seen."""
LASTS = 60.0
"""Seconds for which a fault counts after it was last seen. A gateway without traffic cannot show that it is over."""
IN_A_ROW = 3
"""Failed questions in a row after which an upstream counts as faulty: any server fails now and then."""
MOST = 256
"""Causes that are kept."""
AT_ONCE = frozenset({"degenerate_samples", "misconfigured", "store_unavailable"})
"""Causes that hit every question, so that the first one is a fault."""
log = logging.getLogger("guardrail")
news = log.getChild("serve")
"""Lines at level INFO, which `guardrail serve` shows: abstentions have such lines too, in the log above."""


@dataclass(slots=True)
class _Cause:
    """A cause so far: its sentence, how often and when it was seen, and its lines in the log."""

    text: str = ""
    count: int = 0
    seen: float = -math.inf
    logged: float = -math.inf
    breaks: bool = False
    """Whether questions get errors for it."""
    failed: int = 0
    """Questions in a row that got errors for it."""
    announced: bool = False
    """Whether it has a line in the log without one that it is over."""


class Health:
    """Causes by model; None stands for what all models share. Shared by threads. Texts quote no prompt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[tuple[str | None, str], _Cause] = {}

    def warn(
        self, model: str | None, name: str, text: str, *, at: str = "", again: float = AGAIN, breaks: bool = False
    ) -> None:
        """Report a cause by one of few names: it is logged at its first time, and then after ``again`` seconds.

        Its text has the cause and the way out, in a sentence. ``at``, the address and the error, is for the log alone:
        clients see the text. With ``breaks`` the cause is over with the next answer.
        """
        self._note(model, name, text, at=at, again=again, breaks=breaks, failed=0)

    def fail(self, model: str | None, name: str, text: str, *, at: str = "") -> None:
        """Report a cause for which questions get errors; if it lasts, the model is faulty."""
        failed = IN_A_ROW if name in AT_ONCE else 1
        self._note(model, name, text, at=at, again=AGAIN, breaks=True, failed=failed)

    def _note(
        self, model: str | None, name: str, text: str, *, at: str, again: float, breaks: bool, failed: int
    ) -> None:
        now = self._clock()
        with self._lock:
            if len(self._causes) >= MOST and (model, name) not in self._causes:
                # The one that was not seen for longest; one for which questions get errors only if all are such.
                del self._causes[min(self._causes, key=lambda of: (self._causes[of].failed > 0, self._causes[of].seen))]
            cause = self._causes.setdefault((model, name), _Cause())
            cause.text, cause.seen = text, now
            cause.breaks |= breaks
            cause.count += 1
            cause.failed += failed
            if now - cause.logged < again:
                return
            cause.logged, cause.announced = now, True
        log.warning("guardrail serve: %s: %s%s (%d times)", model or "gateway", text, at, cause.count)

    def recover(self, model: str | None, only: str | None = None) -> None:
        """Report that a question was answered, so that no cause lasts for which questions got errors.

        ``only`` names the one cause that is over; None stands for all.
        """
        with self._lock:
            ended = []
            for (of, name), cause in self._causes.items():
                if of == model and cause.breaks and only in (None, name):
                    ended += [name] if cause.announced else []
                    # Kept, so that a cause that comes and goes is logged once a minute.
                    cause.count, cause.seen, cause.announced, cause.failed = 0, -math.inf, False, 0
        if ended:
            news.info("guardrail serve: %s: answers again; over: %s", model or "gateway", ", ".join(ended))

    def forget(self, model: str) -> None:
        """Forget the causes of a model whose configuration has changed."""
        with self._lock:
            self._causes = {(of, name): cause for (of, name), cause in self._causes.items() if of != model}

    def fault(self, model: str | None) -> str | None:
        """The name of the cause for which a model answers nothing now, the latest of several."""
        with self._lock:
            failed = {name: cause for (of, name), cause in self._causes.items() if of == model and cause.failed}
        if sum(cause.failed for cause in failed.values()) < IN_A_ROW:
            return None
        latest = max(failed, key=lambda name: failed[name].seen)
        return latest if self._clock() - failed[latest].seen < LASTS else None

    def reasons(self, guarded: Collection[str]) -> list[str]:
        """The faults for which no question can be answered: a shared one, or one of every guarded model."""
        shared = self.fault(None)
        if shared is not None:
            return [shared]
        faults = [fault for fault in map(self.fault, guarded) if fault is not None]
        return sorted(set(faults)) if len(faults) == len(guarded) else []

    def lines(self, model: str | None) -> list[str]:
        """A line for each cause of a model that was seen within the last hour."""
        with self._lock:
            recent = self._clock() - SHOWN
            causes = [(name, cause) for (of, name), cause in self._causes.items() if of == model]
            return [f"{name} ({cause.count} times): {cause.text}" for name, cause in causes if cause.seen >= recent]
