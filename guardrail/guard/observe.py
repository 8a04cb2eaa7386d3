"""Observe mode: answers are served as they are, and verdicts on the served answers are computed behind them.

Which requests are measured is chosen before anything is known about them, by a hash. What is not measured although it
was chosen is counted, because dropping slow answers would drop hard questions.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from ..bindings import Effect, bindings_for, names
from ..types import Bindings, SamplingPlan
from ..verdict import Reason, Verdict

__all__ = ["ObserveQueue", "Observed", "chosen", "fate_of", "unlike_calls", "unlike_plan", "unlike_served"]

MOST = 1000
"""Answers that wait to be measured; later ones are dropped."""
AT_ONCE = 4
"""Answers that are measured at once."""
_NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "n": 1,
}
"""Values that are the same as leaving a setting out."""
_LIMITS = ("max_tokens", "max_completion_tokens")
_READ = frozenset({"logprobs", "top_logprobs"})
"""Settings that say what is reported, not how it is drawn."""
_WHOLE = frozenset({"stop", "tool_calls"})
log = logging.getLogger("guardrail")


def chosen(key: str, rate: float, *, salt: str = "audit") -> bool:
    """Whether a key belongs to a sample: 64 bits of SHA-256 over salt and key, below ``rate``.

    Samples with one salt are nested: a key chosen at a rate is chosen at every higher rate. Different salts choose
    independently.
    """
    digest = hashlib.sha256(f"{salt}\n{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < rate * 2.0**64


# -- is a served answer the one that the plan would have drawn? -------------------------------------------------------


def unlike_plan(given: Mapping[str, Any], plan: SamplingPlan, fixed: Mapping[str, Any] | None = None) -> list[str]:
    """Names of the settings by which an answer would be drawn otherwise than the plan's primary answer, sorted.

    Args:
        given: Settings of a call, by OpenAI's names.
        plan: The plan.
        fixed: Settings that every call has beside the plan's.
    """
    greedy = plan.primary == "greedy"
    known: dict[str, Any] = {
        **_NEUTRAL,
        "temperature": 0.0 if greedy else plan.temperature,
        "top_p": plan.top_p,
        "stop": list(plan.stop),
        **dict.fromkeys(_LIMITS, plan.max_tokens),
        **(fixed or {}),
    }

    def same(name: str, value: Any) -> bool:
        if name == "stop":
            value = list(value) if isinstance(value, list | tuple) else [value]
        if name == "top_p" and greedy and value == 1:  # a greedy answer is drawn without truncation
            return True
        return name in known and bool(known[name] == value)

    return sorted(name for name, value in given.items() if not same(name, value))


def unlike_served(
    given: Mapping[str, Any],
    plan: SamplingPlan,
    *,
    finish: str | None,
    tokens: int | None,
    fixed: Mapping[str, Any] | None = None,
) -> list[str]:
    """`unlike_plan` for an answer that was served: what the request left out has the server's default.

    An answer that ended by itself within the plan's length is the same under any limit.

    Args:
        given: Settings of the request; None counts as absent. A seed does not matter.
        plan: The plan.
        finish: Why the answer ended.
        tokens: Its length; None if unknown.
        fixed: Settings that every call has beside the plan's; the request must have them, too.
    """
    sent = {name: value for name, value in given.items() if value is not None and name != "seed"}
    limits = [sent.pop(name) for name in _LIMITS if name in sent]
    stop = {"stop": ()} if plan.stop else {}
    wrong = unlike_plan({"temperature": 1.0, "top_p": 1.0, **stop, **sent}, plan, fixed)
    wrong += [name for name in fixed or () if name not in sent]
    ended = finish in _WHOLE and tokens is not None and tokens <= plan.max_tokens
    if not ended and (not limits or any(one != plan.max_tokens for one in limits)):
        wrong.append("max_tokens")
    return sorted(wrong)


def unlike_calls(
    model: BaseChatModel,
    plan: SamplingPlan,
    stop: Sequence[str] | None,
    given: Mapping[str, Any],
    message: AIMessage,
) -> list[str]:
    """`unlike_served` for a call of a LangChain model: settings of the call come before the model's own fields.

    Fields that no plan fixes count neither way, since a guard's calls have them as well.

    Args:
        model: The model.
        plan: The plan.
        stop: Stop strings of the call.
        given: Further arguments of the call.
        message: The answer.

    Raises:
        UsageError: The tools of the call cannot be described.
    """
    bound = {name: given.get(name) for name in ("tool_choice", "response_format")}
    if bindings_for(given.get("tools") or (), **bound).digest != (plan.bindings or Bindings()).digest:
        return ["tools"]
    own = {name: getattr(model, name, None) for name in names(Effect.PLAN) - {"stop"}}
    own |= {name: value for name, value in given.items() if name in names(Effect.PLAN, Effect.SHAPING)}
    own["stop"] = (stop if stop is not None else getattr(model, "stop", None)) or None
    usage = message.usage_metadata
    return unlike_served(
        {name: value for name, value in own.items() if name not in _READ},
        plan,
        finish=message.response_metadata.get("finish_reason"),
        tokens=None if usage is None else usage["output_tokens"],
    )


# -- measuring behind what is served ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observed:
    """What became of the answers so far.

    Attributes:
        served: All answers.
        chosen: Those that the hash chose to measure.
        accepted: Measured, and the guard would have given them.
        abstained: Measured, and the guard would have held them back.
        unmeasured: The guard would have held them back because they could not be measured.
        not_comparable: Drawn otherwise than the calibrated answers, so a verdict would not be about what was served.
            They do not count as accepted.
        collected: Drawn without an artifact, for records.
        dropped: Chosen, and lost, by cause: "queue_full", "incomplete", "unreadable", "upstream_error", "failed",
            "stopping".
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
    """Measures served answers in threads of its own, in the order of their arrival; shared by threads.

    Args:
        most: Answers that wait; when so many do, the newest is dropped, whatever it is.
        at_once: Answers that are measured at once.
    """

    def __init__(self, *, most: int = MOST, at_once: int = AT_ONCE) -> None:
        self._most, self._at_once = most, at_once
        self._waiting: queue.Queue[Callable[[], str]] = queue.Queue(most)
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._running = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> ObserveQueue:
        return ObserveQueue(most=self._most, at_once=self._at_once)

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

    def offer(self, measure: Callable[[], str]) -> bool:
        """Measure an answer later.

        Args:
            measure: Does it, and returns the field of `Observed` to count it under.

        Returns:
            False if it was dropped, because too many wait.
        """
        try:
            self._waiting.put_nowait(measure)
        except queue.Full:
            self.drop("queue_full")
            return False
        with self._lock:
            start = self._running < self._at_once
            self._running += start
        if start:
            threading.Thread(target=self._work, name="guardrail-observe", daemon=True).start()
        return True

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
                self._waiting.get_nowait()
            except queue.Empty:
                break
            self.drop("stopping")
            self._waiting.task_done()
        return done

    def _work(self) -> None:
        while True:
            with self._lock:  # so that an answer that is offered now is seen by this thread, or starts another
                try:
                    measure = self._waiting.get_nowait()
                except queue.Empty:
                    self._running -= 1
                    return
            try:
                self.count(measure())
            except Exception as error:  # it must not end the thread, nor reach whom the answer was served
                log.warning("guardrail: an observed answer was not measured (%s)", type(error).__name__)
                log.debug("guardrail: observing failed", exc_info=error)
                self.drop("failed")
            finally:
                self._waiting.task_done()


def fate_of(verdict: Verdict) -> str:
    """Field of `Observed` that a verdict counts under."""
    if verdict.accepted:
        return "accepted"
    return "unmeasured" if verdict.reason is Reason.UNMEASURED else "abstained"
