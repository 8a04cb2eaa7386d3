"""A framework's own approvals, asked only about calls that are not certain enough.

The framework has already drawn the message, and asks a predicate whether a person approves a call of it. The predicate
draws the artifact's samples for the same conversation, judges the very message, and keeps the verdict under the call's
id: frameworks ask again when a run is resumed, and another answer would let a rejected call run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import UnreadableReplyError, UsageError
from guardrail.sampling.effects import Effect, Steps, computation
from guardrail.sampling.replies import read_reply
from guardrail.sampling.sampler import refuse_majority
from guardrail.verdict import Verdict

from .artifact_set import load
from .calls import call_subject, conversation_digest, same_call
from .held import Conversation
from .verdicts import VerdictStore

__all__ = ["VERDICTS", "CallCheck"]

VERDICTS = Path("agent.verdicts.sqlite")
"""Where verdicts are kept by default; every process that resumes the agent needs the same file."""
_log = logging.getLogger("guardrail")


class CallCheck:
    """Whether a person has to approve a call; see `integrations.langchain_agents.unsure`.

    Args:
        model: The agent's model.
        artifact: Judges messages that call the tool: an artifact or its file.
        verdicts: Keeps the verdicts: a file, or a store.
        guard_options: Further settings of `Guardrail`.

    Raises:
        UsageError: The artifact answers with a vote, or its prompt has slots, which the framework does not show.
    """

    def __init__(
        self,
        model: BaseChatModel,
        artifact: CalibrationArtifact | str | Path,
        verdicts: VerdictStore | str | Path,
        guard_options: Mapping[str, Any],
    ) -> None:
        self._guard = Guardrail(model=model, artifact=load(artifact), **guard_options)
        self._verdicts = verdicts if isinstance(verdicts, VerdictStore) else VerdictStore(verdicts)
        refuse_majority(self._guard.artifact.plan, "judge calls that a framework proposes")
        if self._guard.artifact.prompt.slots:
            raise UsageError(
                f"the artifact's prompt has the slots {list(self._guard.artifact.prompt.slots)}, which approvals do "
                "not see. Use the guard of this framework, or calibrate without slots."
            )

    def steps(
        self, call_id: str, name: str, arguments: Mapping[str, Any], before: Sequence[BaseMessage], message: AIMessage
    ) -> Steps[bool]:
        """Whether a person has to approve a call: True unless this very call was judged and accepted.

        Args:
            call_id: Id of the call.
            name: The tool that would run.
            arguments: Arguments with which it would run.
            before: The conversation that the message answers.
            message: The message with the call.

        Raises:
            ArtifactMismatchError: Another system prompt than the calibrated one.
        """
        key = f"unsure:{conversation_digest(before)}:{call_id}"
        row = yield computation(partial(self._verdicts.find, key), slow=True)
        subject = call_subject(name, arguments)
        if row is None:
            this = {"name": name, "args": dict(arguments)}
            proposed = any(call["id"] == call_id and same_call(call, this) for call in message.tool_calls)
            verdict = (yield from self._verdict(before, message)) if proposed else None
            put = partial(self._verdicts.put, key, subject, verdict, Conversation.of(before), first=True)
            yield computation(put, slow=True)
            row = yield computation(partial(self._verdicts.find, key), slow=True)  # another process may have been first
        return row is None or row[0] != subject or row[1] is None or not row[1].passes

    def _verdict(self, before: Sequence[BaseMessage], message: AIMessage) -> Steps[Verdict | None]:
        """The verdict on the message; None if it cannot be judged."""
        artifact, messages = self._guard.artifact, list(before)
        if artifact.prompt.system is not None and not any(one.type == "system" for one in messages[:1]):
            messages.insert(0, SystemMessage(artifact.prompt.system))
        turns = artifact.unknown_turns(messages)
        if turns is not None:
            _log.warning("guardrail: a person is asked, because no calibration prompt had the turns %.200r", turns)
            return None
        try:
            sample = read_reply(message)
        except UnreadableReplyError:
            return None
        assessment = yield Effect(
            partial(self._guard.assess_served, messages, sample), partial(self._guard.aassess_served, messages, sample)
        )
        verdict: Verdict | None = assessment.verdict
        return verdict
