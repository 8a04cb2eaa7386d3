"""The steps between a verdict and its effect: a switch may hold the answer back, and observers see the verdict.

The switch is asked first, so observers see what the caller sees. An observer that fails holds an acceptance back: an
answer that could not be recorded cannot be audited. Observers that saw the acceptance before are then called again:
the last verdict that an observer gets on a question is the caller's. The switch is not asked again afterwards: an
alarm that this verdict raises counts from the next verdict on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from ..artifact import CalibrationArtifact
from ..errors import UsageError
from ..foreign_errors import describe_error
from ..prompting import copies_of
from ..sampling.effects import AsyncFunctionError, Steps, user_call
from ..types import Note, NoteKind
from ..verdict import Reason, Verdict

Observer = Callable[[Verdict, Sequence[BaseMessage]], Any]
"""Takes copies of a verdict and its messages; the result is ignored, unless it must be awaited."""

log = logging.getLogger("guardrail")


class SafetySwitch:
    """Has a guard accept nothing from `hold` to `release`. Thread-safe.

    Pass it to a guard, ``Guardrail(..., on_verdict=[switch])``. `guardrail.review.Monitors.switch` makes one that
    follows the alarms of a database, too.
    """

    def __init__(self) -> None:
        self._why: str | None = None

    def hold(self, why: str) -> None:
        """From now on accept nothing; ``why`` stands in the verdicts."""
        self._why = why

    def release(self) -> None:
        """Let answers pass again."""
        self._why = None

    def objection(self) -> str | None:
        """The reason why an accepted answer may not pass; None if it may."""
        return self._why


def _hold_if_suspended(verdict: Verdict, switches: Sequence[SafetySwitch]) -> Verdict:
    """The verdict, or, if a switch does not allow the acceptance, an abstention with its reason."""
    why = next(filter(None, (switch.objection() for switch in switches)), None) if verdict.passes else None
    return verdict if why is None else _held(verdict, NoteKind.ALARM, why)


@dataclass(frozen=True, slots=True)
class Observers:
    """The switches and observers in a guard's ``on_verdict``.

    Attributes:
        switches: Decide about every acceptance; without one all pass.
        functions: Called with every verdict, in order.
    """

    switches: tuple[SafetySwitch, ...] = ()
    functions: tuple[Observer, ...] = ()

    @classmethod
    def of(cls, hooks: Any) -> Observers:
        """One observer or switch, several, or None.

        Raises:
            UsageError: Something else.
        """
        listed = () if hooks is None else (hooks,)
        if isinstance(hooks, Iterable) and not (isinstance(hooks, SafetySwitch) or callable(hooks)):
            listed = tuple(hooks)
        functions = tuple(each for each in listed if not isinstance(each, SafetySwitch))
        for observer in functions:
            if not callable(observer):
                raise UsageError(
                    "on_verdict takes functions of (verdict, messages) and safety switches, got "
                    f"{type(observer).__name__}. For a monitor give its method: on_verdict=monitor.watch"
                )
        return cls(tuple(each for each in listed if isinstance(each, SafetySwitch)), functions)

    def admit(self, artifact: CalibrationArtifact) -> None:
        """Have every observer that compares scores watch this artifact.

        Raises:
            UsageError: An observer compares with scores of another kind, so it would ignore every verdict.
        """
        for observer in filter(_needs_scores, self.functions):
            admit = getattr(getattr(observer, "__self__", observer), "admit", None)
            if admit is not None:
                admit(artifact)

    @contextmanager
    def around(self, mode: Literal["guard", "observe"]) -> Iterator[None]:
        """Keep what observers open around a measurement, such as a span: their ``around(mode)``, if they have one."""
        with ExitStack() as opened:
            for observer in self.functions:
                around = getattr(observer, "around", None)
                if around is not None:
                    opened.enter_context(around(mode))
            yield

    def apply_steps(self, verdict: Verdict, messages: Sequence[BaseMessage]) -> Steps[Verdict]:
        """The verdict the caller gets, after observers have seen it.

        For async callers, sync observers run in a thread, except those with ``is_slow = False``.

        Raises:
            UsageError: An async observer in a sync call.
        """
        if self.switches:
            verdict = yield user_call("on_verdict", _hold_if_suspended, verdict, self.switches)
        for index, observer in enumerate(self.functions):
            before = verdict
            verdict = yield from _observed(observer, before, messages)
            if verdict.passes != before.passes:
                # Monitors that compare scores have counted this one.
                for earlier in (observer for observer in self.functions[:index] if not _needs_scores(observer)):
                    yield from _observed(earlier, verdict, messages)
        return verdict


def _observed(observer: Observer, verdict: Verdict, messages: Sequence[BaseMessage]) -> Steps[Verdict]:
    """The verdict after an observer has seen it."""
    seen = (verdict.model_copy(deep=True), copies_of(messages))
    try:
        yield user_call("on_verdict", observer, *seen, slow=getattr(observer, "is_slow", True))
    except AsyncFunctionError as error:  # unlike an error of the observer itself
        raise UsageError(str(error)) from None
    except Exception as error:  # an observer is the user's code
        described = describe_error(error)
        log.error("guardrail: on_verdict failed with %s, so no answer is given", described)
        return _held(verdict, NoteKind.NOT_RECORDED, described) if verdict.passes else verdict
    return verdict


def _needs_scores(observer: Observer) -> bool:
    return bool(getattr(getattr(observer, "__self__", observer), "needs_scores", False))


def _held(verdict: Verdict, kind: NoteKind, cause: str) -> Verdict:
    held = {"items": tuple(item.held() for item in verdict.items)}
    notes = (Note(kind=kind, about=(cause,)),)
    return verdict.model_copy(update={"accepted": False, "reason": Reason.SUSPENDED, "notes": notes, **held})


def chosen(key: str, rate: float, *, salt: str = "audit") -> bool:
    """Whether a key belongs to a sample: 64 bits of SHA-256 over salt and key, below ``rate``.

    Samples with one salt are nested: a key chosen at a rate is chosen at every higher rate. Different salts choose
    independently.
    """
    # A hash, not a random number: a retry, a restart or another process chooses the same keys again.
    digest = hashlib.sha256(f"{salt}\n{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < rate * 2.0**64
