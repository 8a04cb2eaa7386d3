"""Probe, draw, decide, observe: how a prompt gets its verdict, for every wrapper of a model.

Written once as steps without I/O (`guardrail.sampling.effects`); `Guardrail`, `Cascade`, the model of a guarded agent
and the guards of agent frameworks take these steps, in threads or on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from langchain_core.callbacks import Callbacks
from langchain_core.messages import BaseMessage

from ..sampling.callbacks import streaming_disabled
from ..sampling.effects import Effect, Steps, computation
from ..sampling.sampler import Sampler
from ..types import Sample, SampleSet
from ..verdict import Reason, Verdict
from .decide import Gate, decide
from .early_stopping import Drawn, draw_until_decided
from .endpoint_trust import EndpointProblem, EndpointTrust
from .observers import Observers

__all__ = ["Assessment", "Assessor", "strictest"]

_ORDER = (Reason.INFEASIBLE, Reason.UNMEASURED, Reason.ABOVE_THRESHOLD, Reason.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the gates say about one prompt's candidate.

    Attributes:
        drawn: What was drawn.
        verdict: The verdict that counts: the first that holds the candidate back, otherwise the first; None if no gate
            judges the candidate, which may then pass.
        by_name: The verdict of each gate that judges the candidate, by its name.
    """

    drawn: SampleSet
    verdict: Verdict | None = None
    by_name: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """Whether every gate that judges the candidate accepts it, or none does judge it."""
        return self.verdict is None or self.verdict.accepted


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
    """

    sampler: Sampler
    gates: Callable[[Sample | None], Mapping[str, Gate]]
    trust: EndpointTrust
    observers: Observers
    early: bool
    primary_first: bool = False
    usable: Callable[[SampleSet], SampleSet] = lambda drawn: drawn

    def assess_steps(
        self,
        messages: Sequence[BaseMessage],
        callbacks: Callbacks,
        *,
        question: str | None = None,
        turns: str | None = None,
    ) -> Steps[Assessment]:
        """The verdict on one prompt: probe, draw, decide, observe.

        Args:
            messages: The prompt.
            callbacks: For the sampling calls.
            question: What judges read as the question; None for the last human message.
            turns: The turns of the conversation, where they were not calibrated: the verdict says so.
        """
        with streaming_disabled():
            problem: EndpointProblem = yield Effect(self.trust.check, self.trust.acheck)
            plan = self.sampler.plan
            if problem.reason is not None:  # the primary answer alone, for a person to see
                plan = plan.primary_only()
            found = yield from draw_until_decided(
                replace(self.sampler, plan=plan, callbacks=callbacks, question=question),
                messages,
                lambda candidate: tuple(_by_digest(self.gates(candidate)).values()),
                early=self.early,
                primary_first=self.primary_first,
            )
            drawn = self.usable(problem.apply_to(found.drawn))
            by_name = yield from self._decide(found if drawn is found.drawn else Drawn(drawn))
            if not by_name:
                return Assessment(drawn)
            verdict = self.trust.record(strictest(by_name.values()), problem)
            if turns is not None:
                why = f"The promise does not cover it: no calibration prompt had the turns {turns[:200]}."
                verdict = verdict.model_copy(update={"turns": turns, "detail": f"{verdict.detail} {why}"})
            seen = yield from self.observers.apply_steps(verdict, messages)
            return Assessment(drawn, seen, by_name)

    def _decide(self, found: Drawn) -> Steps[dict[str, Verdict]]:
        """The verdict of each gate that judges the candidate; gates of one artifact share it."""
        concerned = self.gates(found.drawn.primary)
        known: dict[str, Verdict] = {}
        for digest, gate in _by_digest(concerned).items():
            settled = found.settled.get(digest)
            known[digest] = yield computation(
                partial(decide, found.drawn, gate.artifact, gate.estimator, settled=settled),
                slow=settled is None and gate.estimator.is_slow,
            )
        return {name: known[gate.artifact.digest] for name, gate in concerned.items()}


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a candidate that several gates judge: the first that holds it back, otherwise the first.

    "Infeasible" and "unmeasured" come before "above the threshold", so that a person learns of a fault.
    """
    given = list(verdicts)
    held = [verdict for verdict in given if not verdict.accepted]
    return min(held, key=lambda verdict: _ORDER.index(verdict.reason)) if held else given[0]


def _by_digest(gates: Mapping[str, Gate]) -> dict[str, Gate]:
    """Each artifact's gate once."""
    return {gate.artifact.digest: gate for gate in gates.values()}
