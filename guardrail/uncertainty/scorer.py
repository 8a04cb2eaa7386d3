"""Scorers: functions of the user's that rate one answer, certified and served like any estimator.

A scorer is asked as a follow-up whose reply is a number: the plan names it ``score:NAME@VERSION``, the reply is stored
in the sample set, and the scorer's estimator reads it from there. So collection, guards, observe mode and agents ask it
in the same way, and no stored format knows about it.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import Parameter, iscoroutinefunction, signature
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from ..errors import ArtifactMismatchError, GuardrailError, UsageError
from ..foreign_errors import describe_error
from ..plain_json import canonical_json, sha256_hex
from ..prompting import PromptWrapping, copies_of
from ..sampling.background import BackgroundLoop
from ..sampling.effects import Effect, Steps
from ..sampling.follow_ups import SCORE, FollowUp
from ..sampling.limits import adopt_limits, current_limits, limits_for_threads, take_slot
from ..sampling.models import import_named
from ..sampling.replies.failures import transport_cause
from ..specs import EstimatorSpec
from ..types import Cost, Missing, Sample, SampleSet, Unit, Unmeasured
from .base import Estimator, Evidence, Needs
from .training import Training

__all__ = ["Scorer", "load_scorer", "scorer"]

Direction = Literal["certain", "uncertain"]

READS = ("question", "answer", "messages", "slots", "tool_calls", "logprobs", "samples")
"""Parameter names of a scorer. The last two have to be drawn; the others cost nothing."""
TIMEOUT = 30.0
"""Seconds that a score may take by default."""
HANGING = 64
"""Calls of a scorer that may hang, where calls in flight have no limit."""
TRAINING = "training"
"""Parameter of the spec that holds the training questions. A guard does not compare it."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """A function that rates answers, with everything a score depends on. `scorer` makes one of a function.

    It may depend only on its arguments, its parameters and fresh randomness: not on earlier answers, not on other
    answers of a batch. Each draw is scored once; a failed call of a server is the only result that is not final.

    Attributes:
        function: Returns a finite number; anything else leaves the answer unmeasured, so that a guard holds it back.
        name: Name, an identifier.
        version: As for `scorer`, like the next five.
        higher: The meaning of a high number.
        params: What a score depends on beside the code.
        unit: Unit of the number. A "probability" outside [0, 1] is unmeasured.
        timeout: Seconds after which an answer is unmeasured.
        calls: Model calls that one score costs, for the cost of a verdict. Not compared.
        training: The questions that the score was fitted on; a threshold must be fitted on others.
        reads: The function's parameters, in the order of `READS`.
    """

    function: Callable[..., Any]
    name: str
    version: int
    higher: Direction
    params: Mapping[str, Any] = field(default_factory=dict)
    unit: Unit = "probability"
    timeout: float = TIMEOUT
    calls: int = 1
    training: Training | None = None
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.version < 1:
            raise UsageError(f"a scorer has an identifier and a version from 1, got {self.name!r}, {self.version!r}")
        if self.higher not in ("certain", "uncertain"):
            raise UsageError(f'higher must be "certain" or "uncertain", got {self.higher!r}: which answers score high?')
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise UsageError(f"timeout must be a number of seconds above 0, got {self.timeout!r}")
        try:
            plain = json.loads(json.dumps(dict(self.params), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UsageError(f"params of the scorer {self.name} must be plain JSON: {error}") from error
        object.__setattr__(self, "params", plain)
        object.__setattr__(self, "reads", _reads(self.function, self.name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    @property
    def is_async(self) -> bool:
        """True if the function has to be awaited."""
        called = type(self.function).__call__  # of an object that can be called
        return iscoroutinefunction(self.function) or iscoroutinefunction(called)

    @property
    def follow_up(self) -> str:
        """Name in plans, record files and specs: ``score:NAME@VERSION``."""
        return f"{SCORE}{self.name}@{self.version}"

    @cached_property
    def estimator(self) -> Estimator:
        """The score as an estimator, for `guardrail.plan_for`: higher is less certain."""
        params = {
            "higher": self.higher,
            "reads": list(self.reads),
            "timeout": self.timeout,
            "params": dict(self.params),
        }
        if self.training is not None:
            params[TRAINING] = self.training.model_dump(mode="json")
        needs = Needs(
            samples="samples" in self.reads,
            logprobs="logprobs" in self.reads,
            follow_up=FollowUp(self.follow_up, _not_asked),
        )
        return Estimator(self.follow_up, self.version, self.unit, needs, self._formula, params=params, scorer=self)

    @cached_property
    def digest(self) -> str:
        """Digest of all that moves a score. Replies carry it: a file may hold those of another scorer of this name."""
        return sha256_hex(canonical_json(_compared(self.estimator.spec)), 16)

    def serving(self, spec: EstimatorSpec) -> Estimator:
        """The estimator of an artifact that was calibrated with this scorer.

        Raises:
            ArtifactMismatchError: Another name, version, direction, unit, parameter or argument; both sides are named.
        """
        calibrated, running = _compared(spec), _compared(self.estimator.spec)
        if calibrated != running:
            raise ArtifactMismatchError(
                f"scorer differs: calibrated with {calibrated}, given {running}. Scores are not comparable: calibrate "
                "again, or give the scorer that made the artifact."
            )
        # The training questions stay those of the artifact: their file need not exist where answers are served.
        return replace(self.estimator, params=dict(spec.params))

    def reply_steps(
        self, messages: Sequence[BaseMessage], drawn: SampleSet, prompt: PromptWrapping | None
    ) -> Steps[SampleSet]:
        """The reply about a drawn set that has an answer: the number as text, or the reason why it is missing.

        Args:
            messages: The prompt.
            drawn: What was drawn for it.
            prompt: The wrapping of the prompt, which says what its question and its slots are.
        """
        started = time.perf_counter()
        fields: dict[str, Any]
        try:
            number = yield from self._rated(messages, drawn, prompt)
            fields = {"primary": Sample(text=repr(number))}
        except Missing as missing:
            fields = {"primary": None, "problem": missing.reason, "problem_detail": missing.detail}
        cost = Cost(calls=self.calls, seconds=time.perf_counter() - started)
        return SampleSet(question=self.digest, cost=cost, **fields)

    def _rated(self, messages: Sequence[BaseMessage], drawn: SampleSet, prompt: PromptWrapping | None) -> Steps[float]:
        """The number that the function gives; raises `Missing` if there is none."""
        try:
            arguments = _arguments(self.reads, messages, drawn, prompt)
        except GuardrailError as error:  # a slot's text that fits the template in two ways
            raise Missing(Unmeasured.UNREADABLE, str(error)) from error
        limits = current_limits()
        call = partial(self._within_time, partial(self.function, **arguments), limits[0].n if limits else HANGING)
        try:
            with ExitStack() as slots:
                yield take_slot(slots)
                # One loop for all sync code: clients keep connections, which belong to the loop that opened them.
                value = yield Effect(lambda: scorer_loop.run(call()), call)
        except Missing:  # too slow, or of a ready-made scorer, which knows the reason
            raise
        except Exception as error:  # the user's code may raise anything; without a number the answer is held back
            # An outage says nothing about the question and must not be remembered like an abstention; everything else
            # may depend on the answer, and nothing scores it again.
            raise Missing(transport_cause(error) or Unmeasured.JUDGE_FAILED, describe_error(error)) from error
        return _number(value, self.unit)

    async def _within_time(self, call: Callable[[], Any], most: int) -> Any:
        """The result of the function, a sync one in a thread; ``most`` calls may hang."""
        thread = None if self.is_async else self._thread(call, most)
        try:
            async with asyncio.timeout(self.timeout) as scope:
                return await (call() if thread is None else asyncio.wrap_future(thread.result))
        except TimeoutError:
            if not scope.expired():
                raise  # of the function's own client: a failure of the transport
            if thread is not None:
                self._hanging.add(thread)
            raise Missing(Unmeasured.JUDGE_FAILED, f"no score within {self.timeout:g} s") from None
        except (SystemExit, KeyboardInterrupt) as error:  # would end the loop of all sync code
            raise RuntimeError(f"the scorer raised {type(error).__name__}") from error

    def _thread(self, call: Callable[[], Any], most: int) -> _CallThread:
        """The call in a thread, which a time-out leaves behind: threads cannot be stopped.

        A scorer that hangs would leave one behind for every question, so where ``most`` of them hang no call begins.
        """
        self._hanging.difference_update([each for each in self._hanging.copy() if not each.is_alive()])
        if len(self._hanging) >= most:  # no reason to do with the question, so it is not remembered like an abstention
            raise Missing(Unmeasured.MODEL_FAILED, f"{len(self._hanging)} calls of {self.name} hang")
        thread = _CallThread(call)
        try:
            thread.start()
        except RuntimeError as error:  # the process has no thread left
            raise Missing(Unmeasured.MODEL_FAILED, f"{self.name} has no thread to run in: {error}") from error
        return thread

    @cached_property
    def _hanging(self) -> set[_CallThread]:
        """Threads of calls that did not end in time. In a forked process none of them is alive."""
        return set()

    def _formula(self, evidence: Evidence) -> float:
        follow_up = self.estimator.needs.follow_up
        assert follow_up is not None
        reply = follow_up.reply(evidence.drawn)
        if reply.question != self.digest or reply.primary is None:
            raise Missing(
                Unmeasured.NOT_RECORDED, f"the score on file is of another {self.follow_up}: raise version= of one"
            )
        value = float(reply.primary.text)
        if self.higher == "uncertain":
            return value
        return 1 - value if self.unit == "probability" else -value


def scorer(
    *,
    version: int,
    higher: Direction,
    params: Mapping[str, Any] | None = None,
    unit: Unit = "probability",
    trained_on: str | Path | Iterable[str] | None = None,
    timeout: float = TIMEOUT,
    calls: int = 1,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Scorer]:
    """Make a `Scorer` of a function, sync or async, whose parameter names say what it reads.

    ========== =====================================================================================
    question   The question, as judges read it.
    answer     The answer's text; for an answer with tool calls, these as canonical JSON.
    messages   The prompt, a list of LangChain messages.
    slots      Texts of the prompt's slots by name (`PromptWrapping.slots`).
    tool_calls The answer's tool calls, a tuple of `ToolCall`.
    logprobs   Log-probabilities of the answer's tokens, natural logarithm.
    samples    Texts of the sampled answers; only these cost further model calls.
    ========== =====================================================================================

    Args:
        version: Raise it with any change that can move a score.
        higher: "certain" if a high number means a good answer, "uncertain" if it means a risk.
        params: What a score depends on beside the code, as plain JSON.
        unit: Unit of the number; a "probability" is in [0, 1].
        trained_on: The questions that the score was fitted on: a file, or texts. A text, or a line of a file, is the
            id or the text of a question, or the name of a group; a line of a ``.jsonl`` file is a question or record.
            `calibrate fit` refuses them.
        timeout: Seconds after which an answer is unmeasured.
        calls: Model calls that one score costs; 0 for a local function.
        name: Name; default: that of the function.

    Raises:
        UsageError: Another parameter name, a wrong setting, or a file that cannot be read.
    """
    training = None if trained_on is None else Training.of(trained_on)

    def decorated(function: Callable[..., Any]) -> Scorer:
        scorer_name = name or str(getattr(function, "__name__", type(function).__name__))
        return Scorer(function, scorer_name, version, higher, params or {}, unit, timeout, calls, training)

    return decorated


def load_scorer(text: str) -> Scorer:
    """The scorer that "MODULE:NAME" names, also in the working folder: a `Scorer`, or a function that makes one.

    It runs code: never pass names from untrusted input.

    Raises:
        UsageError: Nothing is found there, or it is not a scorer.
    """
    if ":" not in text:
        raise UsageError(f"scorer {text!r} names no attribute. Write MODULE:NAME, e.g. my_scores:verified.")
    loaded = import_named(text, f"scorer {text!r}")
    if callable(loaded) and not isinstance(loaded, Scorer) and not signature(loaded).parameters:
        loaded = loaded()
    if not isinstance(loaded, Scorer):
        raise UsageError(f"scorer {text!r} is a {type(loaded).__name__}. Decorate the function with @guardrail.scorer.")
    return loaded


def _compared(spec: EstimatorSpec) -> dict[str, Any]:
    """The parts of a spec that a guard compares."""
    content = spec.model_dump(mode="json", include={"name", "version", "unit", "params"})
    return {**content, "params": {name: value for name, value in spec.params.items() if name != TRAINING}}


def _reads(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    """The parameters of a scorer's function.

    Raises:
        UsageError: One has another name, or cannot be passed by name.
    """
    parameters = signature(function).parameters.values()
    named = [each for each in parameters if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)]
    unknown = [str(each) for each in parameters if each not in named or each.name not in READS]
    if unknown or not named:
        raise UsageError(
            f"the scorer {name} has the parameters ({', '.join(unknown)}); a scorer takes any of {', '.join(READS)}, "
            "by these names. Put constants into the function, and into params=."
        )
    return tuple(read for read in READS if read in {each.name for each in named})


def _not_asked(prompt: Sequence[BaseMessage], drawn: SampleSet) -> list[list[BaseMessage]]:
    raise AssertionError("a scorer is asked, not the model")


def _arguments(
    reads: Sequence[str], messages: Sequence[BaseMessage], drawn: SampleSet, prompt: PromptWrapping | None
) -> dict[str, Any]:
    """The arguments that a scorer reads; raises `Missing` if one of them is missing."""
    assert drawn.primary is not None  # only sets with an answer are rated
    primary = drawn.primary.judged_part
    if "logprobs" in reads and primary.logprobs is None:
        raise Missing(Unmeasured.NO_LOGPROBS, "the answer has no token log-probabilities")
    # Copies of all that could be changed: the scorer must not change the answer that goes out.
    values: dict[str, Callable[[], Any]] = {
        "question": lambda: drawn.question if prompt is None else prompt.question_of(messages),
        "answer": lambda: primary.comparable,
        "messages": lambda: copies_of(messages),
        "slots": lambda: {} if prompt is None else prompt.slots_of(messages),
        "tool_calls": lambda: tuple(call.model_copy(deep=True) for call in primary.tool_calls),
        "logprobs": lambda: primary.logprobs,
        "samples": lambda: tuple(sample.comparable for sample in drawn.samples),
    }
    return {name: values[name]() for name in reads}


def _number(value: Any, unit: Unit) -> float:
    """The score as a float; raises `Missing` if it is not one."""
    if value is None:
        raise Missing(Unmeasured.JUDGE_FAILED, "the scorer gave no score (None)")
    # True is 1 to Python; a scorer that returns it has forgotten its number.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Missing(Unmeasured.JUDGE_FAILED, f"the scorer returned a {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Missing(Unmeasured.NOT_FINITE, f"the scorer returned {number}")
    if unit == "probability" and not 0 <= number <= 1:
        raise Missing(
            Unmeasured.NOT_FINITE, f"the scorer returned {number:g}, which is not a probability. Declare its unit="
        )
    return number


class _CallThread(threading.Thread):
    """A call in a daemon thread, within the caller's context: the interpreter does not wait for a hanging call."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="guardrail-scorer", daemon=True)
        self.result: Future[Any] = Future()
        self.result.set_running_or_notify_cancel()  # a caller that stops waiting cannot take the place of the result
        self._call, self._context = call, copy_context()
        self._context.run(adopt_limits, limits_for_threads())

    def run(self) -> None:
        """Call, and keep the result or the exception."""
        try:
            self.result.set_result(self._context.run(self._call))
        except BaseException as error:
            self.result.set_exception(error)


scorer_loop = BackgroundLoop("guardrail-scorers")
"""Event loop on which sync code waits for scorers."""
