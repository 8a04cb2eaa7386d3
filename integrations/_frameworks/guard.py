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
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from guardrail import CalibrationArtifact, Guardrail
from guardrail.errors import ArtifactMismatchError, UsageError
from guardrail.files import check_version, open_sqlite, problem_of
from guardrail.guard.abstention import ABSTAINED, Abstention, afall_back
from guardrail.guard.messages import accepted_answer, with_verdict
from guardrail.guard.structured import form_of
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.specs import identify
from guardrail.types import Bindings, ToolCall, canonical_calls
from guardrail.verdict import Verdict

from .chat import is_reviewed

__all__ = ["Answer", "FrameworkGuard", "VerdictStore", "arguments_of", "is_of_call", "refuse_settings"]

CHOSEN = "chosen:"
"""Marks calls that a person or another model gave on the abstention path: they run, by the caller's choice."""
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

    def put(self, key: str, subject: str, verdict: Verdict) -> None:
        """Remember a verdict.

        Args:
            key: Call id, or the key of an answer.
            subject: What was judged; `get` with another subject finds nothing.
            verdict: The verdict.
        """
        now = self._clock()
        with self._connected() as db, db:
            row = (key, subject, verdict.model_dump_json(), now)
            db.execute("REPLACE INTO verdict (id, subject, verdict, stored) VALUES (?, ?, ?, ?)", row)
            if self._expires_in is not None:
                self._delete_before(db, now - self._expires_in)
            if self._memory is not None:
                db.execute("DELETE FROM verdict WHERE rowid <= (SELECT MAX(rowid) FROM verdict) - ?", (MOST_IN_MEMORY,))

    def get(self, key: str, subject: str | None = None) -> Verdict | None:
        """The verdict on this very subject (None: on any), or None."""
        found = self.find(key)
        return None if found is None or (subject is not None and found[0] != subject) else found[1]

    def find(self, key: str) -> tuple[str, Verdict] | None:
        """What was judged under a key, and the verdict; None if there is none, or it expired."""
        oldest = -math.inf if self._expires_in is None else self._clock() - self._expires_in
        with self._connected() as db:
            row = db.execute("SELECT subject, verdict, stored FROM verdict WHERE id = ?", (key,)).fetchone()
        # A verdict that an older version stored has no time: where verdicts expire, it counts as expired.
        if row is None or (self._expires_in is not None and (row[2] is None or row[2] < oldest)):
            return None
        try:
            return str(row[0]), Verdict.from_stored(row[1])
        except ValidationError as error:
            raise UsageError(
                f"the verdict {key!r} in {self._name} cannot be read ({problem_of(error)}), so it releases nothing. "
                "Upgrade acrc-guardrail to the version that wrote it, or ask again."
            ) from error

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

    async def aput(self, key: str, subject: str, verdict: Verdict) -> None:
        """`put` without blocking the event loop."""
        await asyncio.to_thread(self.put, key, subject, verdict)

    async def aget(self, key: str, subject: str | None = None) -> Verdict | None:
        """`get` without blocking the event loop."""
        return await asyncio.to_thread(self.get, key, subject)

    async def afind(self, key: str) -> tuple[str, Verdict] | None:
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
        db.execute("CREATE TABLE IF NOT EXISTS verdict (id TEXT PRIMARY KEY, subject TEXT, verdict TEXT, stored REAL)")
        if "stored" not in {row[1] for row in db.execute("PRAGMA table_info(verdict)")}:
            db.execute("ALTER TABLE verdict ADD COLUMN stored REAL")  # a file of before verdicts could expire

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a guarded request gives.

    Attributes:
        message: The accepted answer, what the abstention path gave, or the held-back calls under "review".
        verdict: The whole verdict; not for end users.
    """

    message: AIMessage
    verdict: Verdict

    @property
    def abstained(self) -> bool:
        """Whether the message is the text of an abstention: no answer of the model, of a person or another model."""
        return bool(self.message.response_metadata.get(ABSTAINED))


class FrameworkGuard:
    """One artifact's guard, for frameworks that bring their own agents.

    Args:
        model: The chat model to guard.
        artifact: The calibration artifact, or the path of its JSON file.
        on_abstain: As for `Guardrail`, or "review": a held-back tool call is proposed and runs once a person approves.
        verdicts: Where verdicts on tool calls are kept.
        guard_options: Further settings of `Guardrail`.
    """

    def __init__(
        self,
        model: BaseChatModel,
        artifact: CalibrationArtifact | str | Path,
        *,
        on_abstain: Any,
        verdicts: VerdictStore | None,
        guard_options: Mapping[str, Any],
    ) -> None:
        self.holds = is_reviewed(on_abstain)
        identify(model)  # its complaints come as they are, not as a validation error of the guard
        path = "message" if self.holds else on_abstain
        # An agent's conversation grows with every tool it calls, so it is marked where a plain guard would refuse it.
        options = {"turns": "mark", **guard_options}
        self.guard = Guardrail(model=model, artifact=artifact, on_abstain=path, **options)
        self.verdicts = verdicts or VerdictStore()

    async def ask(
        self, messages: Sequence[BaseMessage], asked: Bindings, *, holdable: Collection[str] = (), parsed: bool = False
    ) -> Answer:
        """Judge one request and act on the verdict.

        Args:
            messages: The conversation.
            asked: Tools and answer format of the request; exactly the artifact's.
            holdable: Names of tools whose calls can wait for a person.
            parsed: Whether a text would be taken for something else than an answer to a person.

        Raises:
            ArtifactMismatchError: Other tools, format or prompt than the artifact's.
            AbstainedError: Under "raise", and where a text would be taken for an answer.
        """
        plan = self.guard.artifact.plan
        _same_bindings(plan.bindings or Bindings(), asked)
        form = form_of(plan, None, asked.model_dump(exclude_defaults=True))
        verdict = await self.guard.aassess(list(messages))
        chosen = ""
        if verdict.accepted:
            message = accepted_answer(verdict, self.guard.artifact.model.model)
        elif self.holds and (held := _held_calls(verdict, holdable)) is not None:
            message = held
        else:
            chosen = CHOSEN
            form = "format" if parsed and form == "text" else form
            message = await afall_back(
                Abstention(
                    verdict, messages, self.guard.on_abstain, self.guard.abstain_message, None, plan.bindings, form
                )
            )
        for call in message.tool_calls:
            subject = call_subject(call["name"], call["args"])
            await self.verdicts.aput(str(call["id"]), chosen + subject, verdict)
        return Answer(with_verdict(message, verdict), verdict)

    async def may_run(self, call_id: str | None, name: str | None, arguments: Mapping[str, Any]) -> bool:
        """Whether a tool call was judged and accepted, or given by the abstention path, exactly as it is.

        What is not known may not run.
        """
        found = None if call_id is None else await self.verdicts.afind(call_id)
        if found is None or not is_of_call(found[0], name, arguments):
            return False
        return found[1].accepted or found[0].startswith(CHOSEN)

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
        abstained = self.verdicts.get(answer_key(asked, given, abstention=True))
        answered = self.verdicts.get(answer_key(asked, given, abstention=False))
        return answered is not None and abstained is None, abstained or answered


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
    return f"{'abstention' if abstention else 'answer'}:{sha256_hex(canonical_json([said, plain]))}"


def _held_calls(verdict: Verdict, holdable: Collection[str]) -> AIMessage | None:
    """The held-back calls as a message, if all of them can wait for a person."""
    candidate = verdict.candidate
    if candidate is None or not candidate.tool_calls:
        return None
    if any(call.name not in holdable for call in candidate.tool_calls):
        return None
    calls: list[Any] = [
        {"name": call.name, "args": call.arguments, "id": f"call_{uuid4().hex[:24]}", "type": "tool_call"}
        for call in candidate.tool_calls
    ]
    # Without the text beside the calls: a person decides about the calls only.
    return AIMessage(content="", tool_calls=calls, response_metadata={"finish_reason": "tool_calls"})


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
