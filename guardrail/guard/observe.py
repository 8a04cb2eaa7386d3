"""Observe mode: answers are served as they are, and verdicts on the served answers are computed behind them.

Also the record files that a running program writes, which `calibrate` reads.

Which requests are measured is chosen before anything is known about them, by a hash. What is not measured although it
was chosen is counted, because dropping slow answers would drop hard questions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from ..bindings import SettingRole, bindings_for, names
from ..errors import GuardrailError, UsageError
from ..prompting import PromptWrapping
from ..sampling.replies import read_reply
from ..specs import ModelIdentity
from ..types import Bindings, Sample, SampleSet, SamplingPlan
from ..verdict import Reason, Verdict

__all__ = [
    "ObserveQueue",
    "Observed",
    "RecordLines",
    "chosen",
    "fate_of",
    "unlike_calls",
    "unlike_plan",
    "unlike_served",
]

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
    own = {name: getattr(model, name, None) for name in names(SettingRole.PLAN) - {"stop"}}
    own |= {name: value for name, value in given.items() if name in names(SettingRole.PLAN, SettingRole.SHAPING)}
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
            measure: Does it, and returns the field of `Observed` to count it under.
            size: Bytes that it holds.

        Returns:
            False if it was dropped, because too many wait.
        """
        with self._lock:
            fits = self._most_bytes is None or self._bytes + size <= self._most_bytes
            self._bytes += size if fits else 0
        try:
            if not fits:
                raise queue.Full
            self._waiting.put_nowait((measure, size))
        except queue.Full:
            self._free(size if fits else 0)
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
            prepared: What measures it; None, or a `GuardrailError`, if it was not drawn as the plan's primary answer.
            key: Names the answer: its hash decides whether it is measured.
            rate: The probability of that.
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
        taken = measure
        self.offer(lambda: fate_of(taken()))

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
            self._free(size)
            self.drop("stopping")
            self._waiting.task_done()
        return done

    def _free(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def _work(self) -> None:
        while True:
            with self._lock:  # so that an answer that is offered now is seen by this thread, or starts another
                try:
                    measure, size = self._waiting.get_nowait()
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
                self._free(size)
                self._waiting.task_done()


def fate_of(verdict: Verdict) -> str:
    """Field of `Observed` that a verdict counts under."""
    if verdict.accepted:
        return "accepted"
    return "unmeasured" if verdict.reason is Reason.UNMEASURED else "abstained"


# -- recording ---------------------------------------------------------------------------------------------------------


class RecordLines:
    """Appends to a record file, in the form that `calibrate.data.records` reads; shared by threads.

    Args:
        path: The file; made with its header if it does not exist. A torn last line is removed.
        name: Name of the set, for the header.
        model: Whose answers it holds.
        plan: How they are drawn.
        prompt: How questions are wrapped.

    Raises:
        UsageError: The file holds answers of another model, plan or prompt.
    """

    def __init__(
        self, path: Path, *, name: str, model: ModelIdentity, plan: SamplingPlan, prompt: PromptWrapping
    ) -> None:
        self._path, self._lock = path, threading.Lock()
        parts = {"model": model, "plan": plan, "prompt": prompt}
        same = {what: part.model_dump(mode="json") for what, part in parts.items()}
        if not path.exists() or not path.stat().st_size:
            known = {"format": 1, "created": datetime.now(UTC).isoformat(timespec="seconds"), **same}
            self._begin({"header": {**known, "questions_name": name, "questions_sha256": "", "n_questions": 0}})
        content = path.read_bytes()
        try:
            header = json.loads(content.partition(b"\n")[0])["header"]
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path} is not a record file. Give another path for the records.") from error
        differ = [what for what, value in same.items() if header.get(what) != value]
        if differ:
            raise UsageError(f"{path} holds records of another {differ[0]}. Give another path for the records.")
        os.truncate(path, content.rfind(b"\n") + 1)

    def append(self, key: str, question: str, drawn: SampleSet, more: Mapping[str, Any]) -> None:
        """Write one record; it is on disk when this returns.

        Args:
            key: Its id.
            question: What was asked.
            drawn: The answers.
            more: Further fields of a record.
        """
        self._write({"id": key, "question": question, **more, "drawn": drawn.model_dump(mode="json")})

    def _begin(self, header: Mapping[str, Any]) -> None:
        """Make the file with its header, or leave it to another process that does so now."""
        self._path.unlink(missing_ok=True)
        part = self._path.with_name(f".{self._path.name}.{uuid4().hex}.part")
        try:
            self._write(header, part)
            os.link(part, self._path)
        except FileExistsError:
            pass
        finally:
            part.unlink(missing_ok=True)

    def _write(self, row: Mapping[str, Any], path: Path | None = None) -> None:
        line = f"{json.dumps(row, ensure_ascii=False)}\n".encode("utf-8", "replace")  # half a pair would break the file
        opened = os.open(path or self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with self._lock, open(opened, "wb") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
