"""Probe, draw, decide, observe: the steps from a prompt to its verdict, for every wrapper of a model.

Written once as steps without I/O (`guardrail.sampling.effects`); `Guardrail`, `Cascade`, the model of a guarded agent
and the guards of agent frameworks take these steps, in threads or on an event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from pydantic import Field

from ..artifact import CalibrationArtifact
from ..decision import Gate, by_first_call
from ..errors import ArtifactMismatchError
from ..explain import next_step, without_quotes
from ..items.gate import undivided
from ..judges import with_majority
from ..plain_json import sha256_hex
from ..prompting import has_blank, letters_of, normal_form, prompt_content, question_text
from ..sampling.callbacks import streaming_disabled
from ..sampling.calls import in_sample
from ..sampling.draws import NOTHING, Draw, Draws
from ..sampling.effects import Steps, computation
from ..sampling.native import is_native
from ..sampling.prober import fault_steps, is_news, with_fault
from ..sampling.replies.read import only_offered
from ..sampling.sampler import Sampler, joined
from ..types import (
    Cost,
    Fingerprint,
    Frozen,
    Missing,
    Note,
    NoteKind,
    Reason,
    Sample,
    SampleSet,
    Uncertainty,
    Unmeasured,
)
from ..verdict import Verdict
from .observers import Observers

log = logging.getLogger("guardrail")

LEFT_OUT = 64
"""Most characters in a slot that is left out of the memory, see `check_left_out`."""
_FAULTS: dict[Unmeasured | None, str] = {
    Unmeasured.MISCONFIGURED: "answers no call",
    Unmeasured.DEGENERATE_SAMPLES: "cannot be measured, so every question is held back",
}
"""Faults that an operator has to correct, in words."""
_ORDER = (
    Reason.INFEASIBLE,
    Reason.UNMEASURED,
    Reason.ABOVE_THRESHOLD,
    Reason.PARTLY_HELD_BACK,
    Reason.OTHER_TURNS,
    Reason.SUSPENDED,
)


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
        """Whether every gate that judges the candidate lets it pass; True if none judges it."""
        return self.verdict is None or self.verdict.passes

    @property
    def is_result(self) -> bool:
        """Whether any gate's verdict is an abstention that nothing draws again, see `Verdict.is_result`.

        An infeasible gate does not count: it accepts nothing, so another draw selects nothing.
        """
        return any(verdict.is_result and verdict.reason is not Reason.INFEASIBLE for verdict in self.by_name.values())


class Remembered(Frozen):
    """The verdicts that a repeated prompt gets again, in their form before the observers saw them."""

    by_name: dict[str, Verdict]
    """The verdict of each gate."""
    not_offered: Sample | None = Field(default=None, exclude_if=lambda sample: sample is None)
    """As `SampleSet.not_offered`."""

    def again(self, question: str) -> Assessment:
        """The assessment for a prompt that was asked again; its cost is 0, because nothing is drawn for it now."""
        by_name = {name: _again(verdict) for name, verdict in self.by_name.items()}
        verdict = strictest(by_name.values())
        drawn = SampleSet(question=question, primary=verdict.candidate, not_offered=self.not_offered)
        return Assessment(drawn, verdict, by_name)


def _again(verdict: Verdict) -> Verdict:
    return verdict.model_copy(update={"cost": Cost(), "notes": (*verdict.notes, Note(kind=NoteKind.ASKED_BEFORE))})


@dataclass(frozen=True, slots=True)
class Assessor:
    """Gives prompts their verdicts.

    Attributes:
        sampler: Draws; the plan is that of all gates.
        gates: The gates that judge a candidate, by name; several names may share one.
        every_gate: What may judge some candidate, each as text; () for the artifacts that judge a missing one. A
            remembered verdict is given again where these are the same.
        observers: See every verdict, and may hold an acceptance back.
        first: Samples of the first of two stages, which may decide, and save the others; None if no gate has stages.
        accept_only: Whether it may only accept, because a person sees the samples of what is held back.
        primary_first: Whether the primary answer is drawn alone at first in any case, as no gate may judge it.
        usable: Takes out of a set what the caller could not give out.
        draws: Remembers draws and verdicts, so that nothing is drawn again.
        usable_items: The verdict for a caller that can use more, or fewer, answers in items than the gate gives out.
            Observers see its result: what they must not miss or hold back is what the caller gets.
        probe: Whether the endpoint is probed before it is trusted.
        fingerprint: That of the calibrated weights, which a probe compares.
    """

    sampler: Sampler
    gates: Callable[[Sample | None], Mapping[str, Gate]]
    observers: Observers
    every_gate: tuple[str, ...] = ()
    first: int | None = None
    accept_only: bool = False
    primary_first: bool = False
    usable: Callable[[SampleSet], SampleSet] = lambda drawn: drawn
    draws: Draws = field(default_factory=Draws)
    usable_items: Callable[[Verdict], Verdict] = lambda verdict: verdict
    probe: bool = True
    fingerprint: Fingerprint | None = None

    def assess_steps(
        self,
        messages: Sequence[BaseMessage],
        callbacks: Callbacks = None,
        *,
        question: str | None = None,
        turns: Mapping[str, str] | None = None,
        served: Sample | None = None,
    ) -> Steps[Assessment]:
        """The verdict on one prompt: probe, draw, decide, observe; or the verdict that is remembered.

        Observers see a remembered abstention once, when it is new, and an acceptance each time it is given out. Of an
        answer that was served already they see the verdict each time.

        Args:
            messages: The prompt.
            callbacks: For the sampling calls.
            question: What judges read as the question; None for the last human message.
            turns: The turns of the conversation, by the digest of each artifact that was not calibrated on such: its
                verdict says so.
            served: An answer to judge that was served already; only its samples are drawn, all of them.
        """
        memory = yield from self._memory(messages, question)
        text = question_text(messages) if question is None else question
        gates = "+".join(sorted(self.every_gate or _by_digest(self.gates(None))))
        name = f"judged by {gates}"  # other thresholds of the same procedure judge the same draw anew
        assessment = yield from _remembered(memory, name, text)
        if served is not None and (assessment is None or assessment.accepted or not _is_same(assessment, served)):
            # An answer that was cut off is another one than the whole answer with the same words.
            name = f"served {_digest(normal_form(served.comparable))} {served.finish_reason} by {gates}"
            assessment = yield from _remembered(memory, name, text)
        if assessment is not None and served is None:
            assert assessment.verdict is not None, "a verdict is remembered"
            if not self.usable_items(assessment.verdict).passes:
                return assessment
        with streaming_disabled(), self.observers.around("guard" if served is None else "observe"):
            fault, probing = None, Cost()
            if self.probe:
                fault, probing = yield from fault_steps(self.sampler.model, self.sampler.plan, self.fingerprint)
            if assessment is None or fault is not None:  # a former acceptance by such an endpoint shows nothing
                sampler = replace(self.sampler, callbacks=callbacks, question=question, memory=memory)
                assessment = yield from self._judged(sampler, messages, served, turns or {}, name, fault, probing)
            if assessment.verdict is None:
                return assessment
            observed = yield from self._observed(assessment, messages)
            return observed if served is not None else log_abstention(observed)

    def _judged(
        self,
        sampler: Sampler,
        messages: Sequence[BaseMessage],
        served: Sample | None,
        turns: Mapping[str, str],
        name: str,
        fault: Missing | None,
        probing: Cost,
    ) -> Steps[Assessment]:
        """Draw (of a served answer the samples behind it), judge, and remember the verdict under a name.

        Args:
            sampler: Draws, with the memory of the prompt.
            messages: The prompt.
            served: As in `assess_steps`.
            turns: As in `assess_steps`.
            name: What the verdict is remembered under.
            fault: What the probe found wrong with the endpoint.
            probing: The cost of a probe that was made just now, which the verdict bears.
        """
        if fault is not None:  # the primary answer alone, for a person to see; nothing of it is remembered
            sampler = replace(sampler, plan=sampler.plan.primary_only(), memory=NOTHING)
        settled: Mapping[str, Uncertainty] = {}
        if served is None:
            complete, settled = yield from self._draw(sampler, messages)
        else:
            complete = yield from sampler.draw_behind_steps(messages, served)
        # Again, since the vote of the samples becomes the primary answer after the drawing.
        drawn = self.usable(only_offered(with_fault(complete, fault), sampler.plan.bindings))
        by_name = yield from self._decide(drawn, settled if drawn is complete else {})
        if not by_name:
            return Assessment(drawn)
        by_name = {gate: unpromised(each, turns.get(each.artifact)) for gate, each in by_name.items()}
        verdict = strictest(by_name.values())
        log_fault(verdict, sampler.model)
        assessment = Assessment(drawn, verdict.model_copy(update={"cost": verdict.cost + probing}), by_name)
        if verdict.passes or assessment.is_result:
            return (yield from _noted(assessment, sampler.memory, name))
        return assessment

    def _draw(
        self, sampler: Sampler, messages: Sequence[BaseMessage]
    ) -> Steps[tuple[SampleSet, Mapping[str, Uncertainty]]]:
        """The sample set, and the uncertainties by which its first call decided, see `by_first_call`.

        The samples that were not drawn count in ``cost.saved``.
        """
        plan, n = sampler.plan, self.first or 0
        alone = self.first is not None or self.primary_first
        if not alone or plan.n == 0 or plan.primary == "majority":
            (drawn,) = yield from sampler.draw_steps([messages])
            return (with_majority(drawn) if plan.primary == "majority" else drawn), {}
        if n and sampler.memory.draws.seconds <= 0:  # the second stage continues the first
            sampler = replace(sampler, memory=Draw(Draws(), "stages"))
        (drawn,) = yield from replace(sampler, plan=plan.model_copy(update={"n": n})).draw_steps([messages])
        gates = tuple(_by_digest(self.gates(drawn.primary)).values())
        # A sample that cannot be read is not in a set: the next one takes its place, as in a set drawn at once.
        lost = drawn.primary is not None and len(drawn.samples) < n
        lost = lost and drawn.problem in (Unmeasured.UNREADABLE, Unmeasured.REJECTED)
        # A primary draw that failed needs no samples: no gate could accept its answer.
        if not gates or (drawn.problem is not None and not lost):
            return drawn, {}
        if self.first is not None and not lost:
            look = partial(by_first_call, drawn, gates, accept_only=self.accept_only)
            slow = any(gate.estimator.takes_time(drawn) for gate in gates)
            settled: Mapping[str, Uncertainty] | None = yield computation(look, slow=slow)
            if settled is not None:
                cost = drawn.cost.model_copy(update={"saved": plan.n - n})
                return drawn.model_copy(update={"cost": cost}), settled
        sampler = replace(sampler, primary=False)
        if lost and is_native(sampler.model):
            # Those that cannot be read were drawn, too: what is left of the plan follows, as in a set drawn at once.
            left = replace(sampler, plan=plan.model_copy(update={"n": plan.n - n}), name="rest")
            (samples,) = yield from left.draw_steps([messages])
            return joined(drawn, samples), {}
        (samples,) = yield from sampler.draw_steps([messages])
        return joined(drawn.model_copy(update={"samples": ()}), samples), {}  # those of the first stage are among them

    def _observed(self, assessment: Assessment, messages: Sequence[BaseMessage]) -> Steps[Assessment]:
        """The assessment after switch and observers have seen its verdict."""
        assert assessment.verdict is not None, "some gate judges the answer"
        usable = self.usable_items(assessment.verdict)
        return replace(assessment, verdict=(yield from self.observers.apply_steps(usable, messages)))

    def _memory(self, messages: Sequence[BaseMessage], question: str | None) -> Steps[Draw]:
        """The memory of a prompt: its question, counted slots and the procedure that measures it are the key.

        A prompt with a blank, which may be shown as a space or as nothing, has the memory of the first prompt that may
        look like it, and the first prompt without one has that of a prompt with a blank before it.
        """
        if in_sample():  # the answers of a guard that another guard draws from must vary
            return NOTHING
        gates = self.gates(None).values()
        prompt = next((gate.artifact.prompt for gate in gates), None)
        slots, names = ({}, ()) if prompt is None else (prompt.slots_of(messages), prompt.question_slots)
        if self.draws.seconds > 0:
            check_left_out(slots, names)
        procedures = sorted({_procedure(gate.artifact) for gate in gates})

        def draw_of(form: Callable[[str], str]) -> Draw:
            counted = [(name, form(text)) for name, text in sorted(slots.items()) if name in names]
            read = prompt_content(messages, question, hide_system=bool(slots), form=form)
            return Draw(self.draws, _digest(procedures, self.sampler.plan, read, counted))

        blanks: list[bool] = []

        def noting_blanks(text: str) -> str:
            blanks.append(has_blank(text))
            return normal_form(text)

        draw, alike = draw_of(noting_blanks), draw_of(letters_of)
        kind = "blank" if any(blanks) else "plain"
        first, key = (yield from alike.add("first", f"{kind} {draw.key}")).split()
        if kind == "plain" and (first == "plain" or (yield from alike.add("plain", draw.key)) != draw.key):
            return draw
        return Draw(self.draws, key)

    def _decide(self, drawn: SampleSet, settled: Mapping[str, Uncertainty]) -> Steps[dict[str, Verdict]]:
        """The verdict of each gate that judges the candidate; gates of one artifact share it."""
        concerned = self.gates(drawn.primary)
        by_digest: dict[str, Verdict] = {}
        for digest, gate in _by_digest(concerned).items():
            bound = settled.get(digest)
            verdict: Verdict = yield computation(
                partial(gate.decide, drawn, settled=bound),
                slow=bound is None and gate.estimator.takes_time(drawn),
            )
            by_digest[digest] = verdict
        return {name: by_digest[gate.artifact.digest] for name, gate in concerned.items()}


def check_left_out(texts: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse a text that is more than a clock or a name in a slot that is left out of the memory.

    The first verdict on a question is given out for any text in such a slot. Instructions there would decide the
    verdict of everybody who asks the question. They cannot make another question either, since each change would draw
    again, and select.

    Args:
        texts: The texts of the slots, by name.
        names: The slots that make another question.

    Raises:
        ArtifactMismatchError: A slot that is not among ``names`` holds several lines, or more than `LEFT_OUT`
            characters.
    """
    for name, text in texts.items():
        lines = len(text.splitlines())
        if name in names or (len(text) <= LEFT_OUT and lines <= 1):
            continue
        fault = (
            f"The slot {name!r} holds {len(text)} characters in {lines} line{'s' * (lines != 1)}. A slot that does not "
            f"make another question must be one line of at most {LEFT_OUT} characters, such as a clock or a name."
        )
        way_out = f"Put the text into another slot, or calibrate with {name!r} among the question_slots."
        raise ArtifactMismatchError(fault, way_out, public=f"{fault} {way_out}")


def log_abstention(assessment: Assessment) -> Assessment:
    """Log why an answer is held back, wholly or in part, and the next step; return the assessment.

    The line quotes neither the question nor the model. A measurement that failed for a cause outside the question is a
    warning, because it holds back every question until somebody acts.
    """
    verdict = assessment.verdict
    assert verdict is not None, "some gate judges the answer"
    if verdict.passes and verdict.reason is not Reason.PARTLY_HELD_BACK:
        return assessment
    # A wrong configuration is logged once, see `log_fault`; so is another model, by the client that reads replies.
    logged = verdict.uncertainty.reason in (Unmeasured.MISCONFIGURED, Unmeasured.MODEL_CHANGED) or verdict.is_result
    failed = not logged and verdict.reason in (Reason.UNMEASURED, Reason.SUSPENDED)
    log.log(
        logging.WARNING if failed else logging.INFO,
        "guardrail: held back%s (%s; score %s; artifact %.14s). %s",
        " in part" if verdict.accepted else "",
        verdict.reason.value,
        verdict.uncertainty.estimator,
        verdict.artifact,
        without_quotes(verdict),
    )
    return assessment


def log_fault(verdict: Verdict, model: BaseChatModel) -> None:
    """Log a fault of the endpoint that an operator has to correct, once: the user reads only that of an abstention."""
    score = verdict.uncertainty
    if score.reason in _FAULTS:
        if is_news(model, score.detail):
            log.error("guardrail: the endpoint %s (%s). %s", _FAULTS[score.reason], score.detail, next_step(verdict))
    elif score.measured:
        is_news(model, "")  # corrected: the next time is news again


def unpromised(verdict: Verdict, turns: str | None) -> Verdict:
    """The verdict on a conversation with turns that were not calibrated, if there are such: nothing is accepted.

    What the gate accepts as a whole passes a guard all the same where the prompt's ``other_turns`` is "mark"; a part of
    an answer does not.
    """
    if turns is None:
        return verdict
    marked = undivided(verdict).model_copy(update={"turns": turns})
    if not marked.accepted:
        return marked
    return marked.model_copy(update={"accepted": False, "reason": Reason.OTHER_TURNS})


def _remembered(memory: Draw, name: str, question: str) -> Steps[Assessment | None]:
    """The assessment that is remembered under a name, or None."""
    stored = yield from memory.get(name)
    return None if stored is None else Remembered.from_stored(stored).again(question)


def _is_same(held: Assessment, served: Sample) -> bool:
    """Whether the answer that was held back is the served one."""
    primary = held.drawn.primary
    return primary is not None and normal_form(primary.comparable) == normal_form(served.comparable)


def _noted(assessment: Assessment, memory: Draw, name: str) -> Steps[Assessment]:
    """The assessment, remembered; or that of an attempt that was judged side by side with this one, and before it."""
    drawn = assessment.drawn
    written = Remembered(by_name=dict(assessment.by_name), not_offered=drawn.not_offered).model_dump_json()
    first = yield from memory.add(name, written)
    return assessment if first == written else Remembered.from_stored(first).again(drawn.question)


def _procedure(artifact: CalibrationArtifact) -> str:
    """Digest of what a score depends on, except the plan: artifacts that share it judge one draw."""
    return _digest(*(part.model_dump_json() for part in (artifact.model, artifact.prompt, artifact.estimator)))


def _digest(*parts: Any) -> str:
    return sha256_hex(repr(parts).encode("utf-8", "surrogatepass"))  # unlike JSON, any content has a repr


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
