"""What the guards of all agent frameworks share: one judged request, and which tool calls may run.

A framework's file converts its messages to LangChain's and back; everything else is `guardrail`'s and this file's.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from guardrail.guard.abstention import Abstention, afall_back, worded
from guardrail.guard.messages import accepted_answer, with_verdict
from guardrail.guard.structured import form_of
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.specs import identify
from guardrail.types import Bindings, ToolCall, canonical_calls
from guardrail.verdict import Verdict

from .chat import is_reviewed

__all__ = ["Answer", "FrameworkGuard", "VerdictStore", "arguments_of", "refuse_settings"]

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

    Raises:
        UsageError: The file cannot be used, or another version of this library wrote it. `put` and `get` raise it, too;
            `get` also for a verdict that cannot be read: it must not count as "never judged".
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._lock = threading.Lock()
        self._name = ":memory:" if path is None else str(path)
        self._memory: sqlite3.Connection | None = None
        if path is None:
            self._memory = open_sqlite(self._name)
            weakref.finalize(self, self._memory.close)
        with self._connected() as db, db:
            self._prepare(db)

    def put(self, key: str, subject: str, verdict: Verdict) -> None:
        """Remember a verdict.

        Args:
            key: Call id, or the key of an answer.
            subject: What was judged; `get` with another subject finds nothing.
            verdict: The verdict.
        """
        with self._connected() as db, db:
            row = (key, subject, verdict.model_dump_json())
            db.execute("REPLACE INTO verdict (id, subject, verdict) VALUES (?, ?, ?)", row)
            if self._memory is not None:
                db.execute("DELETE FROM verdict WHERE rowid <= (SELECT MAX(rowid) FROM verdict) - ?", (MOST_IN_MEMORY,))

    def get(self, key: str, subject: str | None = None) -> Verdict | None:
        """The verdict on this very subject (None: on any), or None."""
        with self._connected() as db:
            found = db.execute("SELECT subject, verdict FROM verdict WHERE id = ?", (key,)).fetchone()
        if found is None or (subject is not None and found[0] != subject):
            return None
        try:
            return Verdict.from_stored(found[1])
        except ValidationError as error:
            raise UsageError(
                f"the verdict {key!r} in {self._name} cannot be read ({problem_of(error)}), so it releases nothing. "
                "Upgrade acrc-guardrail to the version that wrote it, or ask again."
            ) from error

    def close(self) -> None:
        """Forget what is in memory. A file is open during an operation only."""
        if self._memory is not None:
            self._memory.close()

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Make the table. The file's ``user_version`` is its format, except where the file has other tables, too."""
        others = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name != 'verdict'"
        if not db.execute(others).fetchone()[0]:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            check_version(version or None, FORMAT, f"the verdict store {self._name}", "name another file")
            db.execute(f"PRAGMA user_version={FORMAT}")
        db.execute("CREATE TABLE IF NOT EXISTS verdict (id TEXT PRIMARY KEY, subject TEXT, verdict TEXT)")

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
            self.verdicts.put(str(call["id"]), chosen + call_subject(call["args"]), verdict)
        return Answer(with_verdict(message, verdict), verdict)

    def may_run(self, call_id: str | None, arguments: Mapping[str, Any]) -> bool:
        """Whether a tool call was judged and accepted, or given by the abstention path, exactly as it is.

        What is not known may not run.
        """
        if call_id is None:
            return False
        subject = call_subject(arguments)
        verdict = self.verdicts.get(call_id, subject)
        if verdict is not None:
            return verdict.accepted
        return self.verdicts.get(call_id, CHOSEN + subject) is not None

    def note_answer(self, asked: Sequence[BaseMessage], given: Any, answer: Answer) -> None:
        """Remember what was given out in a conversation: an answer, or the text of an abstention.

        Args:
            asked: The conversation so far.
            given: The text, or the object made of it.
            answer: What the request gave.
        """
        abstention = not answer.verdict.accepted and str(answer.message.text) == worded(
            self.guard.abstain_message, answer.verdict
        )
        self.verdicts.put(answer_key(asked, given, abstention=abstention), "", answer.verdict)

    def given_out(self, asked: Sequence[BaseMessage], given: Any) -> tuple[bool, Verdict | None]:
        """Whether an answer with this content was given out as an answer in this conversation, and the verdict on it.

        True for accepted answers and for those of an abstention path (a person, another model); False for abstentions
        and for what this guard never saw, in this conversation: the same words may be right there and wrong here.
        """
        abstained = self.verdicts.get(answer_key(asked, given, abstention=True))
        answered = self.verdicts.get(answer_key(asked, given, abstention=False))
        return answered is not None and abstained is None, abstained or answered


def call_subject(arguments: Mapping[str, Any]) -> str:
    """Digest of a call's arguments, which differs after the call was edited."""
    text = canonical_calls([ToolCall(name="", arguments=dict(arguments))])
    return sha256_hex(text, 32)


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
