"""What the guards of all agent frameworks share: one judged request, and which tool calls may run.

A framework's file converts its messages to LangChain's and back; everything else is `guardrail`'s and this file's.
"""

from __future__ import annotations

import asyncio
import json
import math
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import AbstainedError, ArtifactMismatchError, UsageError
from guardrail.files import check_version, open_sqlite, problem_of
from guardrail.guard.abstention import ABSTAINED, Abstention, afall_back, worded
from guardrail.guard.assess import Abstentions, Assessment
from guardrail.guard.endpoint_trust import EndpointTrust
from guardrail.guard.messages import candidate_message, total_usage, with_verdict
from guardrail.guard.observers import Observers, as_observers, early_stopping_conflict
from guardrail.guard.structured import form_of
from guardrail.plain_json import canonical_json, sha256_hex, spelled
from guardrail.prompting import question_text
from guardrail.sampling.effects import Steps, arun
from guardrail.specs import identify
from guardrail.types import Bindings, Sample, SampleSet, SamplingPlan, ToolCall, canonical_calls
from guardrail.verdict import Verdict

from .._agents.artifact_set import ANY_TOOL, ArtifactSet, highest_agreement, load, load_gated
from .._agents.collecting import (
    RECORDS,
    StepRecords,
    collecting_artifact,
    collects_only,
    is_collecting,
    refuse_unreviewed,
    with_collected,
)
from .._agents.decisions import ALL_DECISIONS, DecisionType, checked
from .._agents.held import (
    FrozenMessage,
    HeldMessage,
    ReviewTarget,
    ToolCallOrder,
    answered,
    order_for,
    review_request,
    targets_of,
)
from .._agents.review_bridge import tools_of
from .chat import LRU, SHARED, is_reviewed

__all__ = [
    "ANSWER_TOOL",
    "CHOSEN",
    "NOT_RUN",
    "Answer",
    "CallReviews",
    "Decided",
    "FrameworkGuard",
    "VerdictStore",
    "arguments_of",
    "is_of_call",
    "refuse_settings",
]

ANSWER_TOOL = "guardrail_answer"
"""Name of the call that stands for a held-back answer until a person decides. No model is offered it."""
NOT_RUN = "This call was not run: it is not certain enough that it is right. Ask the user, or try another way."
APPROVED = "A person let this answer go out."
"""Result of an approved call of `ANSWER_TOOL`."""
APPROVE, REJECT = {"type": "approve"}, {"type": "reject"}
REFUSED = ("reject", "lapse")
CHOSEN = "chosen:"
"""Marks calls that a person or another model gave on the abstention path: they run, by the caller's choice."""
GIVEN = "edit:"
"""Before a call's id: the key of the arguments that a person gave it, or of the decision about an answer."""
FORMAT = 1
"""Version of a verdict store; 0, which SQLite gives a file without one, is the first."""
MOST_IN_MEMORY = 10_000
"""Verdicts kept without a file; older ones are forgotten, and what is forgotten counts as held back."""


class VerdictStore:
    """Verdicts on tool calls by call id, and on answers by conversation and content.

    A tool call that waits for a person may wait for days and be resumed by another process: give a path then. The file
    is SQLite, written by any number of processes and threads; it holds the answers that were held back.

    Columns and fields of a newer version are ignored.

    Args:
        path: The file; None keeps the last 10,000 verdicts in memory.
        expires_in: Seconds after which a verdict is no longer known, so that it releases nothing; the next `put`
            deletes it. None: never.
        clock: Seconds since 1970; for tests.

    Raises:
        UsageError: The file cannot be used, or another version of this library wrote it. Every method raises it, too;
            `get` also for a verdict that cannot be read: it must not count as "never judged".
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        expires_in: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if expires_in is not None and not expires_in > 0:
            raise UsageError(f"expires_in must be above 0 seconds, got {expires_in}. None keeps verdicts for good.")
        self._lock = threading.Lock()
        self._name = ":memory:" if path is None else str(path)
        self._expires_in = expires_in
        self._clock = clock
        self._memory: sqlite3.Connection | None = None
        if path is None:
            self._memory = open_sqlite(self._name)
            weakref.finalize(self, self._memory.close)
        with self._connected() as db, db:
            self._prepare(db)

    @property
    def is_complete(self) -> bool:
        """Whether a call without a verdict was never judged, or its verdict expired or was deleted.

        False for a store in memory, which other processes do not share and which forgets the oldest verdicts.
        """
        return self._memory is None or self._expires_in is not None

    def put(self, key: str, subject: str, verdict: Verdict | None, question: str = "") -> None:
        """Remember a verdict.

        Args:
            key: Call id, or the key of an answer.
            subject: What was judged; `get` with another subject finds nothing.
            verdict: The verdict; None if it passes without one.
            question: What was asked, for a reviewer.
        """
        now = self._clock()
        with self._connected() as db, db:
            row = (key, subject, "null" if verdict is None else verdict.model_dump_json(), now, spelled(question))
            db.execute("REPLACE INTO verdict (id, subject, verdict, stored, question) VALUES (?, ?, ?, ?, ?)", row)
            if self._expires_in is not None:
                self._delete_before(db, now - self._expires_in)
            if self._memory is not None:
                db.execute("DELETE FROM verdict WHERE rowid <= (SELECT MAX(rowid) FROM verdict) - ?", (MOST_IN_MEMORY,))

    def get(self, key: str, subject: str | None = None) -> Verdict | None:
        """The verdict on this very subject (None: on any), or None."""
        found = self.find(key)
        return None if found is None or (subject is not None and found[0] != subject) else found[1]

    def find(self, key: str) -> tuple[str, Verdict | None] | None:
        """What stands under a key, and the verdict on it, if any; None if nothing does, or it expired."""
        oldest = -math.inf if self._expires_in is None else self._clock() - self._expires_in
        with self._connected() as db:
            row = db.execute("SELECT subject, verdict, stored FROM verdict WHERE id = ?", (key,)).fetchone()
        # A verdict that an older version stored has no time: where verdicts expire, it counts as expired.
        if row is None or (self._expires_in is not None and (row[2] is None or row[2] < oldest)):
            return None
        try:
            return str(row[0]), None if row[1] == "null" else Verdict.from_stored(row[1])
        except ValidationError as error:
            raise UsageError(
                f"the verdict {key!r} in {self._name} cannot be read ({problem_of(error)}), so it releases nothing. "
                "Upgrade acrc-guardrail to the version that wrote it, or ask again."
            ) from error

    def question(self, key: str) -> str:
        """What was asked when this was judged; "" if that is not known."""
        with self._connected() as db:
            row = db.execute("SELECT question FROM verdict WHERE id = ?", (key,)).fetchone()
        return "" if row is None or row[0] is None else str(row[0])

    def delete(self, key: str) -> bool:
        """Delete one verdict: its call is held from now on. Whether there was one."""
        with self._connected() as db, db:
            db.execute("PRAGMA secure_delete=ON")  # overwrite with zeros: nothing is left in the file
            return db.execute("DELETE FROM verdict WHERE id = ?", (key,)).rowcount > 0

    def purge(self, older_than: float) -> int:
        """Delete verdicts stored more than ``older_than`` seconds ago; their number.

        Those that an older version stored without a time are deleted, too.
        """
        with self._connected() as db, db:
            return self._delete_before(db, self._clock() - older_than)

    async def aput(self, key: str, subject: str, verdict: Verdict | None, question: str = "") -> None:
        """`put` without blocking the event loop."""
        await asyncio.to_thread(self.put, key, subject, verdict, question)

    async def aget(self, key: str, subject: str | None = None) -> Verdict | None:
        """`get` without blocking the event loop."""
        return await asyncio.to_thread(self.get, key, subject)

    async def afind(self, key: str) -> tuple[str, Verdict | None] | None:
        """`find` without blocking the event loop."""
        return await asyncio.to_thread(self.find, key)

    def close(self) -> None:
        """Forget what is in memory. A file is open during an operation only."""
        if self._memory is not None:
            self._memory.close()

    @staticmethod
    def _delete_before(db: sqlite3.Connection, moment: float) -> int:
        db.execute("PRAGMA secure_delete=ON")
        return db.execute("DELETE FROM verdict WHERE stored IS NULL OR stored < ?", (moment,)).rowcount

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Make the table. The file's ``user_version`` is its format, except where the file has other tables, too."""
        others = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name != 'verdict'"
        if not db.execute(others).fetchone()[0]:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            check_version(version or None, FORMAT, f"the verdict store {self._name}", "name another file")
            db.execute(f"PRAGMA user_version={FORMAT}")
        db.execute("CREATE TABLE IF NOT EXISTS verdict (id TEXT PRIMARY KEY, subject TEXT, verdict TEXT)")
        there = {row[1] for row in db.execute("PRAGMA table_info(verdict)")}
        for name, kind in (("stored", "REAL"), ("question", "TEXT")):  # files of older versions do not have them
            if name not in there:
                db.execute(f"ALTER TABLE verdict ADD COLUMN {name} {kind}")

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection in memory, or one to the file for this operation."""
        try:
            with self._lock:
                if self._memory is not None:
                    yield self._memory
                else:
                    with closing(open_sqlite(self._name)) as db:
                        yield db
        except sqlite3.ProgrammingError:
            raise  # a closed store is a mistake of the program
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"{self._name} cannot be used as a verdict store ({error}). Name another file, or check this one."
            ) from error


class CallReviews:
    """What people are asked about held-back calls and answers, and what becomes of them.

    A held-back answer is nowhere but in the store of verdicts, under the id of a call of `ANSWER_TOOL`, which stands
    for it in the conversation. Its argument is a digest of the conversation that it answers.

    Args:
        verdicts: Where the verdicts on the calls are kept.
        allowed: What a person may decide.

    Raises:
        UsageError: An unknown decision, or none.
    """

    def __init__(self, verdicts: VerdictStore, allowed: Sequence[DecisionType]) -> None:
        unknown = sorted(set(allowed) - set(ALL_DECISIONS))
        if unknown or not allowed:
            raise UsageError(f"allowed_decisions are some of {ALL_DECISIONS}, got {tuple(allowed)!r}")
        self.verdicts, self._allowed = verdicts, tuple(allowed)

    async def held(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> HeldMessage | None:
        """What was held back as this very call; None for a call that this guard does not hold back."""
        found = await self.verdicts.afind(call_id)
        if found is None or found[1] is None or found[1].accepted or not is_of_call(found[0], name, arguments):
            return None
        verdict = found[1].model_copy(update={"samples": ()})
        question = await asyncio.to_thread(self.verdicts.question, call_id)
        if name == ANSWER_TOOL:
            message = candidate_message(verdict.candidate or Sample(text=""), "")
            by_name = {call["name"]: verdict for call in message.tool_calls}
            judged = targets_of(message, by_name, by_name, verdict)
            frozen = FrozenMessage.of(message)
        else:
            call = {"name": name, "args": dict(arguments), "id": call_id, "type": "tool_call"}
            judged = (ReviewTarget(name=name, call_id=call_id, args=dict(arguments), verdict=verdict),)
            frozen = FrozenMessage(text="", tool_calls=(call,))
        return HeldMessage(question=question, message=frozen, judged=judged, verdict=verdict)

    async def review_request(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a person is shown about a held-back call or answer; None for a call that is not held back.

        Plain JSON in the form of the interrupts of `integrations.langgraph_review`, with the ``call_id`` on top.
        """
        held = await self.held(call_id, name, arguments)
        return None if held is None else {**review_request(held, self._allowed), "call_id": call_id}

    def order(self, value: Mapping[str, Any], decision: Mapping[str, Any]) -> ToolCallOrder:
        """What becomes of a held-back call, or of the one that stands for an answer, after a person's decision.

        Raises:
            pydantic.ValidationError: A decision that is not allowed, has another format, or cannot be carried out.
        """
        (asked,), (config,) = value["action_requests"], value["review_configs"]
        answer = {"decisions": [decision]}
        (checked_one,) = checked(answer, config["allowed_decisions"], tools_of(value))["decisions"]
        if value["kind"] == "answer":
            refused = checked_one["type"] in REFUSED
            return ToolCallOrder(digest="", decision="reject" if refused else "approve")
        return order_for({"name": asked["name"], "args": asked["args"]}, checked_one)

    async def note(self, call_id: str, given: Mapping[str, Any] | None) -> None:
        """Remember the arguments with which a person lets a call run (None: its own), or the decision on an answer."""
        if given is None:
            await asyncio.to_thread(self.verdicts.delete, f"{GIVEN}{call_id}")
        else:
            await self.verdicts.aput(f"{GIVEN}{call_id}", canonical_json(dict(given)), None)

    async def given(self, call_id: str) -> dict[str, Any] | None:
        """What a person gave a call, if anything; see `note`."""
        found = await self.verdicts.afind(f"{GIVEN}{call_id}")
        return None if found is None else arguments_of(found[0])

    async def give(self, call_id: str, arguments: Mapping[str, Any]) -> str:
        """What an approved call of `ANSWER_TOOL` returns: not the answer, which `FrameworkGuard.released` gives out."""
        held = await self.held(call_id, ANSWER_TOOL, arguments)
        decision: Any = await self.given(call_id) or APPROVE
        # A rejection stands although the framework says that the call is approved: of two people who decided at once
        # one may have edited the answer and the other rejected it, and neither let it go out as it is.
        if held is None or decision["type"] in REFUSED or (held.empty and decision == APPROVE):
            return NOT_RUN
        await self.note(call_id, decision)
        return APPROVED


@dataclass(frozen=True, slots=True)
class Answer:
    """What a guarded request gives.

    Attributes:
        message: The accepted answer, what the abstention path gave, or the held-back calls under "review".
        verdict: The whole verdict; not for end users. None if nothing in the message is gated.
        calls: Model calls that it took.
    """

    message: AIMessage
    verdict: Verdict | None
    calls: int

    @property
    def abstained(self) -> bool:
        """Whether the message is the text of an abstention: no answer of the model, of a person or another model."""
        return bool(self.message.response_metadata.get(ABSTAINED))


@dataclass(frozen=True, slots=True)
class Decided:
    """The call that stands for a held-back answer, after a person's decision.

    Attributes:
        call_id: Its id.
        output: What the framework says that it returned.
    """

    call_id: str
    output: str


@dataclass(frozen=True, slots=True)
class _Gates:
    """What guards with the same model, artifacts and settings share: probes, watches, and the memory of abstentions.

    Attributes:
        guard: The first artifact's; it judges alone unless there are several artifacts or exempt tools.
        artifacts: All of them.
        assess: Judges one prompt with the gates it concerns, where there are several.
        made_of: Keeps alive what is known by its identity.
    """

    guard: Guardrail
    artifacts: ArtifactSet
    assess: Callable[[Sequence[BaseMessage], Collection[str], str | None], Steps[Assessment]] | None
    made_of: object


_gates: LRU[_Gates] = LRU(SHARED)


class FrameworkGuard:
    """The guard of one agent, for frameworks that bring their own agents.

    Args:
        model: The chat model to guard.
        artifact: Judges answers, and without ``tools`` every call that is not exempt; an artifact or its file. None
            lets answers pass.
        tools: Judges messages that call a tool: artifact or file by tool name; "*" is every other tool. "collect" in
            its place, where there is none yet: a person decides about every call, and its samples are recorded.
        exempt: Tools whose calls pass.
        judge: The judge object, for artifacts whose judge cannot be made by name; or several by name.
        on_abstain: As for `Guardrail`, or "review": a held-back tool call is proposed and runs once a person approves;
            a call of `ANSWER_TOOL` is proposed in place of a held-back answer, which goes out once a person approves.
        verdicts: Where verdicts on tool calls, and held-back answers, are kept.
        guard_options: Further settings of `Guardrail`.
        allowed_decisions: What a person may decide about what is held back.
        records: Record file for samples of tools that "collect".
        plan: How these are drawn, if there is no artifact at all; default: ten at temperature 0.7.

    Raises:
        UsageError: `ANSWER_TOOL` is gated or exempt, or a tool collects where no person decides.
    """

    def __init__(
        self,
        model: BaseChatModel,
        artifact: CalibrationArtifact | str | Path | None,
        *,
        tools: Mapping[str, CalibrationArtifact | str | Path] | None = None,
        exempt: Sequence[str] = (),
        judge: Any = None,
        on_abstain: Any,
        verdicts: VerdictStore | None,
        guard_options: Mapping[str, Any],
        allowed_decisions: Sequence[DecisionType] = ALL_DECISIONS,
        records: str | Path = RECORDS,
        plan: SamplingPlan | None = None,
    ) -> None:
        self.holds = is_reviewed(on_abstain)
        if ANSWER_TOOL in {*exempt, *(tools or {})}:
            raise UsageError(f"{ANSWER_TOOL!r} is the guard's own tool. Leave it out of tools= and exempt=.")
        running = identify(model)  # its complaints come as they are, not as a validation error of the guard
        # An agent's conversation grows with every tool it calls, so it is marked where a plain guard would refuse it.
        options = {"turns": "mark", **guard_options}
        judge = options.pop("judge", judge)
        answer = None if artifact is None else load(artifact)
        given = {name: load_gated(one) for name, one in (tools or {}).items()}
        refuse_unreviewed(given, reviewed=self.holds)
        if tools is None and answer is not None:
            given = {ANY_TOOL: answer}
        self.exempt = frozenset(exempt)
        alone = tools is None and not self.exempt
        path, kept_in = "message" if self.holds else on_abstain, Path(records)

        def gates(system: str | None, bindings: Bindings) -> _Gates:
            empty = partial(collecting_artifact, running, plan=plan, system=system, bindings=bindings)
            gated = with_collected(answer, given, empty)
            key = (
                id(model),
                None if answer is None else answer.digest,
                tuple((name, one.digest) for name, one in sorted(gated.items())),
                (self.exempt, alone, self.holds, str(records)),
                tuple((name, _token(one)) for name, one in sorted({**options, "judge": judge, "path": path}.items())),
            )
            return _gates.get(
                key,
                lambda: _made(
                    model, answer, gated, self.exempt, judge, path, options, kept_in, alone=alone, shown=self.holds
                ),
            )

        # An agent without any artifact collects under the system prompt and the tools that its first request shows.
        self._collects_only = collects_only(answer, given)
        self._gates_of = gates
        self._shared = gates(None, Bindings())
        self.verdicts = verdicts or VerdictStore()
        self.reviews = CallReviews(self.verdicts, allowed_decisions)

    @property
    def guard(self) -> Guardrail:
        """The guard of the first artifact."""
        return self._shared.guard

    @property
    def artifacts(self) -> ArtifactSet:
        """The artifacts of the agent."""
        return self._shared.artifacts

    async def ask(
        self,
        messages: Sequence[BaseMessage],
        asked: Bindings,
        *,
        holdable: Collection[str] = (),
        answers: Collection[str] = (),
        parsed: bool = False,
        waits: bool = False,
    ) -> Answer:
        """Judge one request and act on the verdict.

        Args:
            messages: The conversation.
            asked: Tools and answer format of the request; exactly the artifact's.
            holdable: Names of tools whose calls can wait for a person.
            answers: Names of tools whose call is the answer (structured output).
            parsed: Whether a text would be taken for something else than an answer to a person.
            waits: Whether an answer can wait for a person: the agent has `ANSWER_TOOL`.

        Raises:
            ArtifactMismatchError: Other tools, format or prompt than the artifact's.
            UsageError: A tool that is neither gated nor exempt.
            AbstainedError: Under "raise", and where a text would be taken for an answer.
        """
        shared = self._shared
        if self._collects_only:
            system = next((str(one.text) for one in messages[:1] if one.type == "system"), None)
            shared = self._gates_of(system, asked)
        plan = shared.artifacts.plan
        _same_bindings(plan.bindings or Bindings(), asked)
        form = form_of(plan, None, asked.model_dump(exclude_defaults=True))
        judged = await self._judged(shared, list(messages), asked, answers)
        candidate, verdict = judged.drawn.primary, judged.verdict
        chosen, held = "", None
        if judged.accepted and candidate is not None:
            message = candidate_message(candidate.judged_part, self.guard.artifact.model.model)
        elif (
            self.holds
            and (held := _held(candidate, messages, {*holdable, *self.exempt}, answers, waits=waits)) is not None
        ):
            message = held
        else:
            assert verdict is not None, "a message that no gate judges is accepted"
            chosen = CHOSEN
            form = "format" if parsed and form == "text" else form
            guard = self.guard
            message = await afall_back(
                Abstention(verdict, messages, guard.on_abstain, guard.abstain_message, None, plan.bindings, form)
            )
        for call in message.tool_calls:
            subject = call_subject(call["name"], call["args"])
            one = None if call["name"] in self.exempt else judged.by_name.get(call["name"], verdict)
            if not judged.accepted and one is not None and one.accepted:
                one = verdict  # the strictest gate holds all calls of the message
            if held is not None and one is not None and call["name"] == ANSWER_TOOL:
                one = one.model_copy(update={"candidate": _answer_of(candidate, answers)})
            await self.verdicts.aput(str(call["id"]), chosen + subject, one, question_text(messages))
        if verdict is None:
            metadata = {**message.response_metadata, "guardrail": None}
            update = {"response_metadata": metadata, "usage_metadata": total_usage(judged.drawn.cost)}
            return Answer(message.model_copy(update=update), None, judged.drawn.cost.calls)
        return Answer(with_verdict(message, verdict), verdict, verdict.cost.calls)

    async def _judged(
        self, shared: _Gates, messages: Sequence[BaseMessage], asked: Bindings, answers: Collection[str]
    ) -> Assessment:
        if shared.assess is None:
            verdict = await shared.guard.aassess(messages)
            drawn = SampleSet(question="", primary=verdict.candidate, cost=verdict.cost)
            return Assessment(drawn, verdict)
        shared.artifacts.check_tools([name for name in asked.tool_names if name not in answers])
        shared.artifacts.check_messages(messages)
        return await arun(shared.assess(messages, answers, self._unknown_turns(messages)))

    def _unknown_turns(self, messages: Sequence[BaseMessage]) -> str | None:
        """The turns of a conversation that none of the artifacts was calibrated on, which its verdict names."""
        calibrated = [artifact for artifact in self.artifacts.artifacts if not is_collecting(artifact)]
        found = [artifact.unknown_turns(messages) for artifact in calibrated]
        if not found or any(turns is None for turns in found):
            return None
        if self.guard.turns == "refuse":
            raise ArtifactMismatchError(
                f"none of the artifacts was calibrated on prompts with the turns {str(found[0])[:200]!r}. Calibrate on "
                'such conversations, or give turns="mark" to answer without the promise.'
            )
        return found[0]

    async def may_run(self, call_id: str | None, name: str | None, arguments: Mapping[str, Any]) -> bool:
        """Whether a tool call was judged and accepted, or given by the abstention path, exactly as it is.

        What is not known may not run.
        """
        found = None if call_id is None else await self.verdicts.afind(call_id)
        if found is None or not is_of_call(found[0], name, arguments):
            return False
        return found[1] is None or found[1].accepted or found[0].startswith(CHOSEN)

    # -- answers -----------------------------------------------------------------------------------------------------

    async def released(
        self,
        decided: Decided,
        messages: Sequence[BaseMessage],
        *,
        parsed: bool = False,
        fits: Callable[[str], bool] = lambda text: False,
    ) -> Answer:
        """A held-back answer after a person's decision. Nothing is drawn.

        Args:
            decided: The call that stands for it, and its result.
            messages: The conversation before that call.
            parsed: As of `ask`.
            fits: Whether a text is an answer of the format, where it is parsed.

        Raises:
            UsageError: Nothing was held back as this call in this conversation.
            AbstainedError: The person gave no answer, and a text would be taken for one.
        """
        arguments = {"conversation": conversation_digest(messages)}
        held = await self.reviews.held(decided.call_id, ANSWER_TOOL, arguments)
        if held is None:
            raise UsageError(
                f"no answer to this conversation waits under the call {decided.call_id!r}, so nothing is given out. "
                "The conversation was changed, its verdict expired, or another process keeps it: give both the same "
                "VerdictStore(path). Otherwise ask again without that call."
            )
        verdict, model = held.verdict, self.guard.artifact.model.model
        decision: Any = await self.reviews.given(decided.call_id) or REJECT
        if decided.output != APPROVED and decision["type"] not in REFUSED:  # it was rejected after that decision
            decision = REJECT
        frozen = answered(held, decision, lambda verdict: worded(self.guard.abstain_message, verdict))
        refused = decision["type"] in REFUSED
        said = {**verdict.to_metadata(), "review": [{"name": "answer", "decision": decision["type"]}]}
        metadata = {**frozen.metadata, "model_name": model, "guardrail": said} | ({ABSTAINED: True} if refused else {})
        message = frozen.model_copy(update={"metadata": metadata}).to_message()
        if parsed and not message.tool_calls and (refused or not fits(frozen.text)):
            raise AbstainedError(verdict, frozen.text)
        for call in message.tool_calls:
            subject = CHOSEN + call_subject(call["name"], call["args"])
            await self.verdicts.aput(str(call["id"]), subject, verdict, held.question)
        return Answer(message, verdict, 0)

    async def note_answer(self, asked: Sequence[BaseMessage], given: Any, answer: Answer) -> None:
        """Remember what was given out in a conversation: an answer, or the text of an abstention.

        Args:
            asked: The conversation so far.
            given: The text, or the object made of it.
            answer: What the request gave.
        """
        await self.verdicts.aput(answer_key(asked, given, abstention=answer.abstained), "", answer.verdict)

    async def given_out(self, asked: Sequence[BaseMessage], given: Any) -> tuple[bool, Verdict | None]:
        """Whether an answer with this content was given out as an answer in this conversation, and the verdict on it.

        True for accepted answers and for those of an abstention path (a person, another model); False for abstentions
        and for what this guard never saw, in this conversation: the same words may be right there and wrong here.
        """
        return await asyncio.to_thread(self.given_out_sync, asked, given)

    def given_out_sync(self, asked: Sequence[BaseMessage], given: Any) -> tuple[bool, Verdict | None]:
        """`given_out` in this thread."""
        abstained = self.verdicts.find(answer_key(asked, given, abstention=True))
        answered = self.verdicts.find(answer_key(asked, given, abstention=False))
        found = abstained or answered
        return answered is not None and abstained is None, None if found is None else found[1]


def _token(value: object) -> object:
    """What tells a setting from another in a key: plain values by what they are, objects by which they are."""
    return value if isinstance(value, str | int | float | None) else id(value)


def _made(
    model: BaseChatModel,
    answer: CalibrationArtifact | None,
    gated: Mapping[str, CalibrationArtifact],
    exempt: Collection[str],
    judge: Any,
    path: Any,
    options: Mapping[str, Any],
    records: Path,
    *,
    alone: bool,
    shown: bool,
) -> _Gates:
    """The gates of one agent; see `FrameworkGuard`."""
    judges = dict(judge) if isinstance(judge, Mapping) else {} if judge is None else {judge.spec.name: judge}
    artifacts = ArtifactSet(
        answer, gated, exempt, judges, similarity=options.get("similarity"), entailment=options.get("entailment")
    )
    first = artifacts.artifacts[0]
    spec = first.estimator.judge
    own = judges.get(spec.name) if spec is not None and isinstance(judge, Mapping) else judge
    guard = Guardrail(
        model=model, artifact=first, on_abstain=path, **({} if own is None else {"judge": own}), **options
    )
    made_of = (judge, path, options)
    if alone:
        return _Gates(guard, artifacts, None, made_of)
    observers = Observers(guard.switch, as_observers(guard.on_verdict))
    for artifact in artifacts.artifacts:
        artifact.check_model(identify(model))
        observers.admit(artifact)
        if guard.switch is not None:
            guard.switch.check(artifact.threshold)
    stopping = guard.early_stopping if early_stopping_conflict(observers, path) is None else "off"
    gates = artifacts.gates(model, stopping, shown=shown)
    enabled = guard.probe == "auto"
    trust = EndpointTrust(model, artifacts.plan, rate=highest_agreement(gates.values()), enabled=enabled)
    abstentions = guard.remember if isinstance(guard.remember, Abstentions) else Abstentions(guard.remember)

    kept: list[StepRecords] = []  # made with the first request, when system prompt and tools are known

    def assess(messages: Sequence[BaseMessage], answers: Collection[str], turns: str | None) -> Steps[Assessment]:
        assessor = artifacts.assessor(
            model, gates, trust, observers, abstentions, answers=answers, max_concurrency=guard.max_concurrency
        )
        question = first.prompt.question_of(messages)
        found = yield from assessor.assess_steps(messages, None, question=question, turns=turns)
        if not any(map(is_collecting, artifacts.artifacts)):
            return found
        if not kept:
            kept.append(StepRecords(records, artifacts.artifacts, artifacts.plan))
        return (yield from kept[0].noted(found, messages, None))

    return _Gates(guard, artifacts, assess, made_of)


def call_subject(name: str, arguments: Mapping[str, Any]) -> str:
    """A call's tool, and a digest of its arguments, which differs after the call was edited."""
    text = canonical_calls([ToolCall(name="", arguments=dict(arguments))])
    return f"{sha256_hex(text, 32)}:{name}"


def is_of_call(subject: str, name: str | None, arguments: Mapping[str, Any]) -> bool:
    """Whether a stored verdict is about this very call.

    Args:
        subject: What was stored. Older versions stored no name.
        name: The tool; None where the framework does not say which.
        arguments: Its arguments.
    """
    digest, _, known = subject.removeprefix(CHOSEN).partition(":")
    same = digest == call_subject("", arguments).partition(":")[0]
    return same and (name is None or known in ("", name))


def answer_key(asked: Sequence[BaseMessage], given: Any, *, abstention: bool) -> str:
    """Key of an answer: of the conversation up to its last question, and of the answer's text or its object's JSON.

    What follows the question (calls of tools and their results) is left out, as frameworks show their guardrails the
    input of a run and not what the run added to it; so are system messages, which the artifact fixes.
    """
    last = max((place for place, message in enumerate(asked) if message.type == "human"), default=len(asked))
    said = [(message.type, str(message.text)) for message in asked[: last + 1] if message.type != "system"]
    plain = given if isinstance(given, str) else to_jsonable_python(given, fallback=repr)
    digest = sha256_hex(canonical_json([said, plain]).encode("utf-8", "surrogatepass"))
    return f"{'abstention' if abstention else 'answer'}:{digest}"


def conversation_digest(messages: Sequence[BaseMessage]) -> str:
    """32 hex digits of what a conversation says, without system messages and ids."""
    said = [
        (
            message.type,
            str(message.text),
            [(call["name"], call["args"]) for call in getattr(message, "tool_calls", ())],
            message.additional_kwargs,
        )
        for message in messages
        if message.type != "system"
    ]
    return sha256_hex(repr(said).encode("utf-8", "surrogatepass"), 32)


def _held(
    candidate: Sample | None,
    messages: Sequence[BaseMessage],
    holdable: Collection[str],
    answers: Collection[str],
    *,
    waits: bool,
) -> AIMessage | None:
    """The held-back calls, and a call that stands for a held-back answer, if all of them can wait for a person."""
    proposed = () if candidate is None else candidate.tool_calls
    calls = [(call.name, call.arguments) for call in proposed if call.name not in answers]
    if any(name not in holdable for name, _ in calls):
        return None
    if len(calls) < len(proposed) or not proposed:
        if not waits:
            return None
        calls.append((ANSWER_TOOL, {"conversation": conversation_digest(messages)}))
    made: list[Any] = [
        {"name": name, "args": args, "id": f"call_{uuid4().hex[:24]}", "type": "tool_call"} for name, args in calls
    ]
    # Without the text beside the calls: a person decides about the calls only.
    return AIMessage(content="", tool_calls=made, response_metadata={"finish_reason": "tool_calls"})


def _answer_of(candidate: Sample | None, answers: Collection[str]) -> Sample | None:
    """What of a candidate is the answer: its text, or its calls that are the structured answer."""
    if candidate is None or not candidate.tool_calls:
        return candidate
    calls = tuple(call for call in candidate.tool_calls if call.name in answers)
    return candidate.judged_part.model_copy(update={"tool_calls": calls})


def _same_bindings(known: Bindings, asked: Bindings) -> None:
    """Refuse a request without tools, choice or format that the artifact has: its calls would carry them all the same.

    What is asked for in excess is refused by `guardrail.bindings.check_bindings`.
    """
    lacking = sorted(set(known.tool_names) - set(asked.tool_names))
    if lacking:
        raise ArtifactMismatchError(
            f"the artifact was calibrated with the tools {known.tool_names}, but this agent does not offer {lacking}. "
            "Give the agent the same tools, or calibrate again with the agent's."
        )
    if known.tool_choice is not None and asked.tool_choice is None:
        raise ArtifactMismatchError(
            f"the artifact was calibrated with tool_choice {known.tool_choice!r}, this request leaves it to the "
            "model (frameworks do so after a tool has run). Calibrate without a tool_choice."
        )
    if known.response_format is not None and asked.response_format is None:
        raise ArtifactMismatchError(
            "the artifact was calibrated for structured answers, but this agent asks for text. Give the agent the "
            "calibrated output type, or calibrate again without."
        )


def arguments_of(text: object) -> dict[str, Any]:
    """Arguments of a tool call as an object.

    Raises:
        ValueError: They are not a JSON object.
    """
    found = json.loads(text) if isinstance(text, str) and text.strip() else (text or {})
    if not isinstance(found, dict):
        raise ValueError(f"arguments of a tool call must be a JSON object, got {str(found)[:80]!r}")
    return found


def refuse_settings(kept: Mapping[str, Any], given: Mapping[str, Any], harmless: Collection[str], where: str) -> None:
    """Refuse run-time settings that change how answers are drawn.

    Args:
        kept: Settings the model was calibrated with, in addition to the artifact's plan.
        given: Settings of the request; None means "not given".
        harmless: Names of settings that cannot change an answer.
        where: What the user calls them.

    Raises:
        ArtifactMismatchError: Naming them.
    """
    wrong = sorted(
        name for name, value in given.items() if value is not None and name not in harmless and kept.get(name) != value
    )
    if wrong:
        raise ArtifactMismatchError(
            f"{where} {', '.join(f'{name}={given[name]!r}' for name in wrong)} would change how answers are drawn; the "
            "artifact fixes that. Leave them out, or calibrate with them and pass calibrated_settings=."
        )
