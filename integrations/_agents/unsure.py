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
from typing import Any, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import UnreadableReplyError, UsageError
from guardrail.sampling.effects import Steps, computation
from guardrail.sampling.replies.read import read_reply
from guardrail.sampling.sampler import refuse_majority
from guardrail.verdict import Verdict

from .artifact_set import load
from .calls import conversation_digest, is_of_call, same_call
from .held import MessageNote, ToolCallOrder
from .verdicts import VerdictStore

VERDICTS = Path("agent.verdicts.sqlite")
"""Where verdicts are kept by default; every process that resumes the agent needs the same file."""
_log = logging.getLogger("guardrail")


class CallCheck:
    """The question if a person has to approve a call; arguments as of `integrations.langchain_agents.unsure`."""

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
        slots = list(self._guard.artifact.prompt.slots)
        if slots:
            raise UsageError(
                f"the artifact's prompt has the slots {slots}, which approvals do not see. Use the guard of this "
                "framework, or calibrate without slots."
            )

    def steps(self, messages: Sequence[BaseMessage], call: Mapping[str, Any]) -> Steps[bool]:
        """True unless this very call was judged and accepted.

        ``call`` is the call that would run (id, name, args), ``messages`` ends with the model's message that has it.
        """
        last = max((index for index, turn in enumerate(messages) if isinstance(turn, AIMessage)), default=None)
        if last is None:
            return True
        before = messages[:last]
        message = cast(AIMessage, messages[last])
        call_id = str(call["id"])
        key = f"unsure:{conversation_digest(before)}:{call_id}"
        find = partial(self._verdicts.find, key)
        note = yield computation(find, slow=True)
        if note is None:
            proposed = any(one["id"] == call["id"] and same_call(one, call) for one in message.tool_calls)
            verdict = (yield from self._verdict(before, message)) if proposed else None
            passes = verdict is not None and verdict.passes
            judged = MessageNote(
                orders={call_id: ToolCallOrder.of(call, "accepted" if passes else "held")}, verdict=verdict
            )
            yield computation(partial(self._verdicts.put, key, judged, first=True), slow=True)
            note = yield computation(find, slow=True)  # another process may have been first
        order = ToolCallOrder(digest="", decision="held") if note is None else note.orders[call_id]
        return order.decision != "accepted" or not is_of_call(order.digest, call["name"], call["args"])

    def _verdict(self, before: Sequence[BaseMessage], message: AIMessage) -> Steps[Verdict | None]:
        """The verdict on the message; None if it cannot be judged."""
        artifact = self._guard.artifact
        messages = list(before)
        if artifact.prompt.system is not None and not any(first.type == "system" for first in messages[:1]):
            messages.insert(0, SystemMessage(artifact.prompt.system))
        turns = artifact.unknown_turns(messages)
        if turns is not None:
            _log.warning("guardrail: a person is asked, because no calibration prompt had the turns %.200r", turns)
            return None
        try:
            sample = read_reply(message)
        except UnreadableReplyError:
            return None
        return (yield from self._guard.served_steps(messages, sample)).verdict
