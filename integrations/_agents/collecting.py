"""Calls and answers without an artifact: each waits for a person, and its samples are recorded.

What cannot be measured can never be a label, so nobody is asked about it: the agent abstains, and the log names the
cause, at the first such message. `calibrate learn` makes labels out of people's decisions, and an artifact of both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from langchain_core.messages import BaseMessage, SystemMessage, convert_to_openai_messages

from guardrail.artifact import CalibrationArtifact
from guardrail.guard.assess import Assessment
from guardrail.guard.record_lines import RecordLines
from guardrail.prompting import conversation_text, turns_of
from guardrail.sampling.effects import Steps, computation
from guardrail.types import Note, NoteKind, SamplingPlan, Unmeasured
from guardrail.verdict import Reason, Verdict

from .artifact_set import is_collecting

log = logging.getLogger("guardrail")


class StepRecords:
    """Records the samples drawn for calls of tools without an artifact.

    Raises:
        UsageError: The file holds records of another model, plan (tools included) or prompt.
    """

    def __init__(self, path: Path, artifacts: Sequence[CalibrationArtifact], plan: SamplingPlan) -> None:
        self._collecting = {artifact.digest for artifact in artifacts if is_collecting(artifact)}
        self._logged: set[Unmeasured | None] = set()
        self._bindings = plan.bindings
        first = artifacts[0]
        self._lines = RecordLines(path, name="agent", model=first.model, plan=plan, prompt=first.prompt)

    def noted(self, assessment: Assessment, messages: Sequence[BaseMessage], group: str | None) -> Steps[Assessment]:
        """Record the draw if a tool of the message collects; the verdicts of the result name the record.

        ``group`` names the conversation; without it conversations are told apart by their first message.
        """
        judged = [verdict for verdict in assessment.by_name.values() if verdict.artifact in self._collecting]
        if not judged:
            return assessment
        unmeasured = next((verdict for verdict in judged if not verdict.uncertainty.measured), None)
        if unmeasured is not None:
            return replace(assessment, verdict=self._without_label(unmeasured))
        key = f"step-{uuid4().hex[:12]}"
        turns = [message for message in messages if not isinstance(message, SystemMessage)]
        plain = convert_to_openai_messages(turns)
        first = conversation_text(turns[:1])

        def write() -> None:
            group_name = first if group is None else group
            more = {"turns": turns_of(messages, self._bindings), "messages": plain, "group": group_name}
            self._lines.append(key, conversation_text(turns), assessment.drawn, more)

        yield computation(write, slow=True)

        def named(verdict: Verdict) -> Verdict:
            return verdict.model_copy(update={"record": key})

        return replace(
            assessment,
            verdict=None if assessment.verdict is None else named(assessment.verdict),
            by_name={name: named(verdict) for name, verdict in assessment.by_name.items()},
        )

    def is_label(self, verdict: Verdict | None) -> bool:
        """True if a decision about a message could become a label, or is about other tools than those that collect."""
        return verdict is None or verdict.reason is not Reason.UNMEASURED or verdict.artifact not in self._collecting

    def _without_label(self, verdict: Verdict) -> Verdict:
        """The verdict on a message that cannot be measured, after a word in the log: once for each cause."""
        reason = verdict.uncertainty.reason
        held = verdict.model_copy(
            update={"reason": Reason.UNMEASURED, "notes": (*verdict.notes, Note(kind=NoteKind.NO_LABEL))}
        )
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning("guardrail: collecting is interrupted. %s", held.detail)
        return held
