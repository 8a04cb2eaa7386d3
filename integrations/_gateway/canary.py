"""A canary: known questions that the gateway itself asks, so that a changed model shows before users meet it."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import UsageError
from guardrail.foreign_errors import describe_error
from guardrail.monitor import Drift
from guardrail.monitor.canary import BASELINE
from guardrail.plain_json import sha256_hex

from .config import CanaryConfig
from .metrics import Metrics

AT_ONCE = 4
"""Questions of a round that are measured at once."""
MOST_QUESTIONS = 1000
CLAIMED = 0.95
"""Part of the interval for which a process claims a round: below 1, so that it may claim the next one in time."""
AGAIN = 0.1
"""Part of the interval after which a process looks again whose round failed or was another's."""
log = logging.getLogger("guardrail")


class Canary:
    """The known questions of one alias, and the monitor of their scores. Its rounds reach no observer and no memory.

    Args:
        alias: Name of the alias; ``config`` and ``artifact`` are its own.
        guard: Makes a guard whose verdicts nobody observes and whose draws nobody remembers.
        store: The review store, which keeps the monitor: a restart must not take a changed model for the baseline.
        metrics: Count its questions, and show its alarm.

    Raises:
        UsageError: The file of questions cannot be read, or its questions cannot be asked with this artifact.
    """

    def __init__(
        self,
        alias: str,
        config: CanaryConfig,
        artifact: CalibrationArtifact,
        guard: Callable[[], Guardrail],
        store: Any,
        metrics: Metrics,
    ) -> None:
        self._alias = alias
        self._every = config.every
        self._guard = guard
        self._store = store
        self._metrics = metrics
        self._reference = Drift(artifact)
        content, self._asked = _questions(config.questions, artifact)
        self.name = f"{alias}-canary-{sha256_hex(content + artifact.digest.encode(), 6)}"
        from guardrail.review.monitors import Monitors

        self.monitor = Monitors(store).canary(self.name, len(self._asked))
        self.due = 0.0
        """Time of the next round on the monotonic clock."""
        self._fault = self._alarm = ""
        calls = len(self._asked) * (artifact.plan.n + 1) * 3600 / self._every
        log.warning(
            "guardrail serve: models.%s asks %d canary questions every %g s, up to %.0f calls an hour. The first %d "
            "rounds are the baseline: %d rounds are in the store",
            alias, len(self._asked), self._every, calls, BASELINE, self.monitor.state.rounds,
        )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        """The state after the last round, for an operator."""
        return [f"canary: {text}" for text in (self._fault, self._alarm) if text]

    async def round(self) -> None:
        """Ask all questions once, unless another process on the store has just done so. Reports faults and alarms."""
        began = time.monotonic()
        self.due = math.inf
        next_round = began + AGAIN * self._every
        fault = ""
        try:
            if await asyncio.to_thread(self._claim):
                next_round = began + self._every
                fault = await self._ask()
            alarm = await asyncio.to_thread(lambda: self.monitor.alarm)
            self._say(fault, "" if alarm is None else alarm.detail)
        except Exception as error:  # e.g. the store: the next round must not wait for a restart
            self._say(f"the last round failed: {describe_error(error)}", self._alarm)
        finally:
            self.due = next_round
        self._metrics.show("canary_alarm", bool(self._alarm), self._alias)

    async def _ask(self) -> str:
        """Ask all questions and bet on their scores; returns why some were not measured, or an empty text."""
        slots = asyncio.Semaphore(AT_ONCE)
        guard = self._guard()
        missing: Counter[str] = Counter()

        async def score(messages: Any) -> float | None:
            async with slots:
                try:
                    verdict = await guard.aassess(messages)
                    value, reason = self._reference.score(verdict), str(verdict.uncertainty.reason)
                except Exception as error:  # the other questions go on
                    value, reason = None, type(error).__name__
                missing.update([] if value is not None else [reason])
                return value

        scores = await asyncio.gather(*(score(messages) for messages in self._asked))
        measured = len(scores) - missing.total()
        self._metrics.count("canary_questions", self._alias, "measured", by=measured)
        self._metrics.count("canary_questions", self._alias, "unmeasured", by=missing.total())
        if measured:
            await asyncio.to_thread(self.monitor.update, scores)
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(missing.items()))
        return f"{missing.total()} of {len(scores)} questions could not be measured ({reasons})" if reasons else ""

    def _say(self, fault: str, alarm: str) -> None:
        """Log a fault and an alarm that the round before did not have."""
        for text, before in ((fault, self._fault), (alarm, self._alarm)):
            if text and not before:
                log.error("guardrail serve: %s: canary: %s", self._alias, text)
        if self._fault and not fault:
            log.warning("guardrail serve: %s: canary: all questions could be measured again", self._alias)
        self._fault, self._alarm = fault, alarm

    def _claim(self) -> bool:
        """Whether this process asks the next round of all processes on the store."""
        from guardrail.review.keys import ExpiringKeys

        keys = ExpiringKeys(self._store.database)
        return keys.add(f"round of {self.name}", "asked", CLAIMED * self._every) is None


def _questions(path: Path, artifact: CalibrationArtifact) -> tuple[bytes, list[Any]]:
    """The bytes of a file of questions, and the messages of each."""
    if artifact.prompt.slots:
        raise UsageError(f"canary: known questions do not fill the slots {artifact.prompt.slots} of the prompt.")
    try:
        content = path.read_bytes()
        rows = [json.loads(line) for line in content.decode("utf-8").splitlines() if line.strip()]
        asked = [artifact.prompt.messages(row["question"], row.get("options")) for row in rows]
    except OSError as error:
        raise UsageError(f"{path}: the canary's questions cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f'{path}: the canary needs a JSON object with "question" on each line ({type(error).__name__}: {error}).'
        ) from error
    if not 1 <= len(asked) <= MOST_QUESTIONS:
        raise UsageError(f"{path}: the canary needs 1 to {MOST_QUESTIONS} questions, got {len(asked)}.")
    return content, asked
