"""Probe, draw, decide, observe: the steps from a prompt to its verdict, for every wrapper of a model.

Written once as steps without I/O (`guardrail.sampling.effects`); `Guardrail`, `Cascade`, the model of a guarded agent
and the guards of agent frameworks take these steps, in threads or on an event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.messages import BaseMessage

from ..plain_json import sha256_hex
from ..prompting import role_of
from ..sampling.callbacks import streaming_disabled
from ..sampling.calls import in_sample
from ..sampling.effects import Steps, computation, run
from ..sampling.limits import new_lock
from ..sampling.sampler import Sampler
from ..types import Cost, Sample, SampleSet
from ..verdict import Reason, Verdict
from .decide import Gate, decide
from .early_stopping import Drawn, draw_until_decided
from .endpoint_trust import EndpointTrust
from .observers import Observers

__all__ = ["REMEMBERED", "Abstentions", "Assessment", "Assessor", "strictest"]

REMEMBERED = 300.0
"""Seconds for which an abstention is given again instead of drawn again."""
MOST = 10_000
"""Abstentions that are remembered at once; the oldest make room."""

_PARTS = ("name", "tool_calls", "tool_call_id", "additional_kwargs")
_ORDER = (Reason.INFEASIBLE, Reason.UNMEASURED, Reason.ABOVE_THRESHOLD, Reason.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Assessment:
    """The verdicts of the gates on one prompt's candidate.

    Attributes:
        drawn: The sample set.
        verdict: The verdict that counts: the first that holds the candidate back, otherwise the first; None if no gate
            judges the candidate, which may then pass.
        by_name: The verdict of each gate that judges the candidate, by its name.
    """

    drawn: SampleSet
    verdict: Verdict | None = None
    by_name: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether every gate that judges the candidate accepts it; True if none judges it."""
        return self.verdict is None or self.verdict.accepted

    @property
    def is_result(self) -> bool:
        """Whether any gate's verdict is an abstention that nothing draws again, see `Verdict.is_result`.

        An infeasible gate does not count: it accepts nothing, so another draw selects nothing.
        """
        return any(verdict.is_result and verdict.reason is not Reason.INFEASIBLE for verdict in self.by_name.values())


class Abstentions:
    """Abstentions of the last minutes: a caller who asks the same again gets the verdict, not another draw.

    Retries, middleware and hooks that take an abstention for a failure ask again. If that drew again, they would go on
    until a wrong answer happens to look certain, and the error rate among answers would be what the retries make of it.
    So every abstention that depends on the question (`Assessment.is_result`) stays in memory for a while, under a
    digest of the prompt, the plan with its tools and answer format, and the artifacts. Of the samples nothing is kept
    but their verdict. Acceptances, failures of the transport and answers that an alarm held back are not remembered.

    Shared by threads, tasks and the guards that it is given to. A deep copy remembers nothing.

    Args:
        seconds: Lifetime from the draw on; 0 remembers nothing.
        most: Abstentions that are remembered at once; the oldest make room.
        clock: Seconds that only grow.
    """

    def __init__(
        self, seconds: float = REMEMBERED, *, most: int = MOST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self._most, self._clock = seconds, most, clock
        self._lock = new_lock(self)
        self._known: OrderedDict[str, tuple[float, Assessment]] = OrderedDict()

    def __deepcopy__(self, memo: dict[int, Any]) -> Abstentions:
        return Abstentions(self.seconds, most=self._most, clock=self._clock)

    def get(self, key: str) -> Assessment | None:
        """The assessment stored under a key, or None; its cost is 0, because nothing is drawn for it now."""
        with self._lock:
            self._expire()
            entry = self._known.get(key)
        return None if entry is None else entry[1]

    def note(self, key: str, assessment: Assessment) -> None:
        """Remember an assessment if it is a result; the first one under a key stays."""
        if self.seconds <= 0 or not assessment.is_result or assessment.verdict is None:
            return
        again = replace(
            assessment,
            drawn=SampleSet(question=assessment.drawn.question, primary=assessment.drawn.primary),
            verdict=_again(assessment.verdict),
            by_name={name: _again(verdict) for name, verdict in assessment.by_name.items()},
        )
        with self._lock:
            self._expire()
            self._known.setdefault(key, (self._clock() + self.seconds, again))
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def _expire(self) -> None:
        now = self._clock()  # entries stand in the order in which they end
        while self._known and next(iter(self._known.values()))[0] <= now:
            self._known.popitem(last=False)


def _again(verdict: Verdict) -> Verdict:
    detail = f"{verdict.detail} The same prompt was asked before; this is its verdict, and nothing was drawn again."
    return verdict.model_copy(update={"cost": Cost(), "detail": detail})


@dataclass(frozen=True, slots=True)
class Assessor:
    """Gives prompts their verdicts.

    Attributes:
        sampler: Draws; the plan is that of all gates.
        gates: The gates that judge a candidate, by name; several names may share one.
        trust: Probes and watches the endpoint.
        observers: See every verdict, and may hold an acceptance back.
        early: Whether a gate may stop the drawing once its verdict is certain.
        primary_first: Whether the primary answer is drawn alone at first, as it may need no samples.
        usable: Takes out of a set what the caller could not give out.
        abstentions: Remembers abstentions, so that nothing is drawn again; None remembers nothing.
        step: What else has to be equal for a prompt to be the same, e.g. the step of an agent's run; "" for nothing.
    """

    sampler: Sampler
    gates: Callable[[Sample | None], Mapping[str, Gate]]
    trust: EndpointTrust
    observers: Observers
    early: bool
    primary_first: bool = False
    usable: Callable[[SampleSet], SampleSet] = lambda drawn: drawn
    abstentions: Abstentions | None = None
    step: str = ""

    def assess_steps(
        self,
        messages: Sequence[BaseMessage],
        callbacks: Callbacks,
        *,
        question: str | None = None,
        turns: str | None = None,
    ) -> Steps[Assessment]:
        """The verdict on one prompt: probe, draw, decide, observe; or the abstention that `Abstentions` remembers.

        Observers see a remembered abstention once, when it is new.

        Args:
            messages: The prompt.
            callbacks: For the sampling calls.
            question: What judges read as the question; None for the last human message.
            turns: The turns of the conversation, where they were not calibrated: the verdict says so.
        """
        memory = None if in_sample() else self.abstentions
        key = "" if memory is None else self._key(messages)
        remembered = None if memory is None else memory.get(key)
        if remembered is not None:
            return remembered
        with streaming_disabled(), self.observers.around("guard"):
            problem = yield from self.trust.check_steps()
            plan = self.sampler.plan
            if problem.reason is not None:  # the primary answer alone, for a person to see
                plan = plan.primary_only()
            waves = yield from draw_until_decided(
                replace(self.sampler, plan=plan, callbacks=callbacks, question=question),
                messages,
                lambda candidate: tuple(_by_digest(self.gates(candidate)).values()),
                early=self.early,
                primary_first=self.primary_first,
            )
            drawn = self.usable(problem.apply_to(waves.drawn))
            by_name = yield from self._decide(waves if drawn is waves.drawn else Drawn(drawn))
            if not by_name:
                return Assessment(drawn)
            verdict = self.trust.record(strictest(by_name.values()), problem)
            if turns is not None:
                why = f"The promise does not cover it: no calibration prompt had the turns {turns[:200]}."
                verdict = verdict.model_copy(update={"turns": turns, "detail": f"{verdict.detail} {why}"})
            final = yield from self.observers.apply_steps(verdict, messages)
            assessment = Assessment(drawn, final, by_name)
            if memory is not None and problem.reason is None:
                memory.note(key, assessment)
            return assessment

    def observe_steps(
        self, messages: Sequence[BaseMessage], served: Sample, *, question: str | None = None
    ) -> Steps[Assessment]:
        """The verdict on an answer that was served already: only its samples are drawn, all of them.

        Nothing is remembered: each answer that was served needs its own verdict.

        Args:
            messages: The prompt.
            served: The answer.
            question: As in `assess_steps`.
        """
        with streaming_disabled(), self.observers.around("observe"):
            problem = yield from self.trust.check_steps()
            plan = self.sampler.plan if problem.reason is None else self.sampler.plan.primary_only()
            sampler = replace(self.sampler, plan=plan, question=question)
            drawn = yield from sampler.draw_behind_steps(messages, served)
            drawn = self.usable(problem.apply_to(drawn))
            by_name = yield from self._decide(Drawn(drawn))
            verdict = self.trust.record(strictest(by_name.values()), problem)
            final = yield from self.observers.apply_steps(verdict, messages)
            return Assessment(drawn, final, by_name)

    def served_verdict(self, messages: Sequence[BaseMessage], served: Sample, question: str) -> Verdict:
        """The verdict of `observe_steps`, drawn in this thread; at least one gate must judge the answer."""
        verdict = run(self.observe_steps(messages, served, question=question)).verdict
        assert verdict is not None, "some gate judges the answer"
        return verdict

    def _key(self, messages: Sequence[BaseMessage]) -> str:
        """Digest of everything that makes two prompts equal; ids and response metadata of messages do not count."""
        prompt = [
            [role_of(message), _content(message), *(getattr(message, part, None) for part in _PARTS)]
            for message in messages
        ]
        identity = (self.step, sorted(_by_digest(self.gates(None))), self.sampler.plan, prompt)
        return sha256_hex(repr(identity).encode("utf-8", "surrogatepass"))  # unlike JSON, any content has a repr

    def _decide(self, waves: Drawn) -> Steps[dict[str, Verdict]]:
        """The verdict of each gate that judges the candidate; gates of one artifact share it."""
        concerned = self.gates(waves.drawn.primary)
        by_digest: dict[str, Verdict] = {}
        for digest, gate in _by_digest(concerned).items():
            settled = waves.settled.get(digest)
            verdict: Verdict = yield computation(
                partial(decide, waves.drawn, gate.artifact, gate.estimator, settled=settled),
                slow=settled is None and gate.estimator.takes_time(waves.drawn),
            )
            by_digest[digest] = gate.signed(verdict)
        return {name: by_digest[gate.artifact.digest] for name, gate in concerned.items()}


def _content(message: BaseMessage) -> Any:
    """The content of a message, without the ids of its blocks: LangChain's constructors make new ones each time."""
    blocks: Any = message.content
    if isinstance(blocks, str):
        return blocks
    return [{k: v for k, v in block.items() if k != "id"} if isinstance(block, dict) else block for block in blocks]


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a candidate that several gates judge: the first that holds it back, otherwise the first.

    "Infeasible" and "unmeasured" come before "above the threshold", so that a person learns of a fault.
    """
    candidates = list(verdicts)
    abstentions = [verdict for verdict in candidates if not verdict.accepted]
    return min(abstentions, key=lambda verdict: _ORDER.index(verdict.reason)) if abstentions else candidates[0]


def _by_digest(gates: Mapping[str, Gate]) -> dict[str, Gate]:
    """Each artifact's gate once."""
    return {gate.artifact.digest: gate for gate in gates.values()}
