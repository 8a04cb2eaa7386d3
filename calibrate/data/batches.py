"""Collection through a batch service: request files in a folder beside the records, replies in any order.

Questions are dealt into groups. Group 7 has ``0007-1.requests.jsonl`` (OpenAI's form, one line for each model call),
``0007-1.json`` (the batch that runs it) and ``0007-1.results.jsonl`` (its replies); requests without an answer are sent
again as ``0007-2``. All of it survives a kill: no request is submitted twice, and a reply is paid for once, however
often the records are made from it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from guardrail.errors import GuardrailError, UsageError
from guardrail.files import atomic_write
from guardrail.plain_json import canonical_json, sha256_hex
from guardrail.sampling.batches import BatchReply, BatchSampler, batch_requests, batch_sample_sets
from guardrail.types import SampleSet, SamplingPlan

from .progress import Progress, silent

__all__ = ["Batches"]

MOST_REQUESTS = 50_000
"""Requests of one batch (OpenAI's limit)."""
MOST_BYTES = 190_000_000
"""Size of one request file (OpenAI's limit is 200 MB)."""
ATTEMPTS = 3
"""Batches in which a request is sent before its question fails."""
AT_ONCE = 256
"""Sample sets that are made at once."""


class Batches:
    """The batches of one record file.

    Args:
        records: The record file; the folder is ``<records>.batches`` beside it.
        submit: Whether to submit request files and wait for their replies. Otherwise they are only written, for
            another tool such as ``vllm run-batch``.
        results: Files with replies that such a tool wrote.
        wait: Seconds between two looks at the batches that run.
        most_requests: Most requests of a file.
    """

    def __init__(
        self,
        records: str | Path,
        *,
        submit: bool = True,
        results: Sequence[Path] = (),
        wait: float = 30.0,
        most_requests: int = MOST_REQUESTS,
    ) -> None:
        self.folder = Path(f"{records}.batches")
        self.submits = submit
        self._results = tuple(results)
        self._wait = wait
        self._most = most_requests
        self._digest = ""

    def bind(self, collection: Mapping[str, Any]) -> None:
        """Refuse a folder that belongs to another collection.

        Raises:
            UsageError: It does: replies to its requests would be taken for replies to these.
        """
        self._digest = sha256_hex(canonical_json(collection))
        path = self.folder / "collection.json"
        if path.exists() and json.loads(path.read_bytes()).get("sha256") != self._digest:
            raise UsageError(
                f"{self.folder} holds batches for other questions, another model or another plan. Use the settings "
                "they were made with, or write to another file with --out."
            )

    def sample_sets(
        self,
        prompts: Mapping[str, Sequence[BaseMessage]],
        model: BatchSampler,
        plan: SamplingPlan,
        *,
        progress: Progress = silent,
    ) -> Iterator[list[tuple[str, SampleSet]]]:
        """The sample sets of prompts by id, as their replies come in; none for those that wait for another tool.

        Requests that failed in all their batches are sent once more.

        Args:
            prompts: The messages of each question.
            model: The model.
            plan: How to draw; with a seed and without follow-ups.
            progress: Called while batches run.

        Raises:
            UsageError: The plan cannot be drawn by a batch, or a results file is not one for these requests.
            GuardrailError: The service did not run a batch.
        """
        ids = {_key(name): name for name in prompts}
        written = {key for names in self._asked().values() for key in names}
        self._start({name: prompts[name] for key, name in ids.items() if key not in written}, model, plan)
        asked = self._asked()
        self._import(asked)
        left = {group: names.keys() & ids.keys() for group, names in asked.items() if names.keys() & ids.keys()}
        changed, again = sorted(left), True
        while left:
            for group in changed:
                replies = self._replies(group)
                final = len(self._attempts(group)) >= ATTEMPTS and self._open(group) is None and not again
                ready = []
                for key, names in asked[group].items():
                    by_name = {name: replies.get(f"{key}.{name}", _NEVER) for name in names}
                    if key in left[group] and (final or not any(reply.may_pass for reply in by_name.values())):
                        ready.append((ids[key], by_name))
                for start in range(0, len(ready), AT_ONCE):
                    part = dict(ready[start : start + AT_ONCE])
                    drawn = batch_sample_sets(model, [prompts[name] for name in part], plan, [*part.values()])
                    yield list(zip(part, drawn, strict=True))
                left[group] -= {_key(name) for name, _ in ready}
                if not left[group]:
                    del left[group]
                elif self._open(group) is None:
                    self._send_again(group, left[group], replies)
            again = False
            if not self.submits:
                return
            changed = self._run(sorted(left), model, progress) if left else []

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, attempt: str, kind: str) -> Path:
        return self.folder / f"{attempt}.{kind}"

    def _attempts(self, group: int) -> list[str]:
        """Names of the attempts of a group, the first one first."""
        written = len(list(self.folder.glob(f"{group:04}-*.requests.jsonl")))
        return [f"{group:04}-{place}" for place in range(1, 1 + written)]

    def _open(self, group: int) -> str | None:
        """The attempt whose replies are not there yet."""
        last = self._attempts(group)[-1]
        return None if self._path(last, "results.jsonl").exists() else last

    def _lines(self, group: int) -> list[bytes]:
        """The requests of a group, in the form in which they were first written."""
        return self._path(f"{group:04}-1", "requests.jsonl").read_bytes().splitlines(keepends=True)

    def _asked(self) -> dict[int, dict[str, list[str]]]:
        """Names of the requests of each question, by group."""
        asked: dict[int, dict[str, list[str]]] = {}
        for path in sorted(self.folder.glob("*-1.requests.jsonl")):
            own = asked.setdefault(int(path.name[:4]), {})
            for line in self._lines(int(path.name[:4])):
                key, name = _custom(line)
                own.setdefault(key, []).append(name)
        return asked

    def _replies(self, group: int) -> dict[str, BatchReply]:
        """The reply to each request of a group: the first final reply, else the last."""
        reply_of: dict[str, BatchReply] = {}
        for attempt in self._attempts(group):
            path = self._path(attempt, "results.jsonl")
            for custom, _, reply in _read_results(path) if path.exists() else ():
                if custom not in reply_of or reply_of[custom].may_pass:
                    reply_of[custom] = reply
        return reply_of

    def _start(self, prompts: Mapping[str, Sequence[BaseMessage]], model: BatchSampler, plan: SamplingPlan) -> None:
        """Write the requests of questions that have none, in as many groups as the limits demand."""
        group, lines, size = 1 + max(self._asked(), default=0), list[bytes](), 0
        for name, messages in prompts.items():
            (bodies,) = batch_requests(model, [messages], plan)  # refuses a plan before the folder is bound to it
            if not lines:
                self.folder.mkdir(parents=True, exist_ok=True)
                atomic_write(self.folder / "collection.json", json.dumps({"format": 1, "sha256": self._digest}))
            own = [_request(f"{_key(name)}.{request}", body) for request, body in bodies.items()]
            added = sum(map(len, own))
            if lines and (len(lines) + len(own) > self._most or size + added > MOST_BYTES):
                atomic_write(self._path(f"{group:04}-1", "requests.jsonl"), lines, private=True)
                lines, size, group = [], 0, group + 1
            lines += own
            size += added
        if lines:
            atomic_write(self._path(f"{group:04}-1", "requests.jsonl"), lines, private=True)

    def _send_again(self, group: int, keys: Set[str], replies: Mapping[str, BatchReply]) -> None:
        """Write the next attempt: the requests of these questions that have no final reply."""
        unanswered = [
            line
            for line in self._lines(group)
            if _custom(line)[0] in keys and replies.get(".".join(_custom(line)), _NEVER).may_pass
        ]
        attempt = f"{group:04}-{1 + len(self._attempts(group))}"
        atomic_write(self._path(attempt, "requests.jsonl"), unanswered, private=True)

    def _import(self, asked: Mapping[int, Mapping[str, Any]]) -> None:
        """Copy the lines of results files of other tools to the groups that they answer."""
        group_of = {key: group for group, names in asked.items() for key in names}
        for path in self._results:
            by_group: dict[int, list[bytes]] = defaultdict(list)
            for custom, line, _ in _read_results(path):
                if (group := group_of.get(custom.split(".")[0])) is not None:
                    by_group[group].append(line)
            if not by_group:
                raise UsageError(f"{path} answers no request of {self.folder}. Give the results of the files there.")
            for group, lines in by_group.items():
                target = self._path(self._attempts(group)[-1], "results.jsonl")
                there = target.read_bytes().splitlines(keepends=True) if target.exists() else []
                atomic_write(target, dict.fromkeys([*there, *lines]), private=True)

    # -- the service ---------------------------------------------------------------------------------------------------

    def _run(self, groups: Sequence[int], model: BatchSampler, progress: Progress) -> list[int]:
        """Submit what is not submitted, and wait until a batch is done; the groups with new replies."""
        attempts = {group: attempt for group in groups if (attempt := self._open(group)) is not None}
        batches = {group: self._submitted(attempt, model) for group, attempt in attempts.items()}
        while True:
            states = {group: model.batch_state(batch) for group, batch in batches.items()}
            answered, total = (sum(getattr(s, name) for s in states.values()) for name in ("answered", "total"))
            waiting = sum(not state.done for state in states.values())
            progress(answered, total, f"{waiting} batches at the service")
            done = [group for group, state in states.items() if state.done]
            for group in done:
                state, attempt = states[group], attempts[group]
                if state.status == "failed":
                    self._path(attempt, "json").unlink()
                    raise GuardrailError(
                        f"the service did not run batch {batches[group]} ({self._path(attempt, 'requests.jsonl')}): "
                        f"{state.error or 'it gives no reason'}. Nothing is lost. Fix the cause and run the same "
                        "command again; it submits the file again."
                    )
                content = b"".join(model.batch_file(file).rstrip(b"\n") + b"\n" for file in state.files)
                atomic_write(self._path(attempt, "results.jsonl"), content, private=True)
            if done:
                return done
            time.sleep(self._wait)

    def _submitted(self, attempt: str, model: BatchSampler) -> str:
        """The batch that runs an attempt; a kill right after the submission does not submit it twice."""
        note, requests = self._path(attempt, "json"), self._path(attempt, "requests.jsonl")
        batch = json.loads(note.read_bytes()).get("batch") if note.exists() else None
        if batch is None:
            again = note.exists()
            atomic_write(note, json.dumps({"format": 1, "batch": None}))
            batch = model.submit_batch(requests, sha256_hex(requests.read_bytes(), 32), again=again)
            atomic_write(note, json.dumps({"format": 1, "batch": batch}))
        return str(batch)


_NEVER = BatchReply(0, error=f"no answer in {ATTEMPTS} batches")


def _key(name: str) -> str:
    """A question's id in the ids of its requests: services limit their length and characters."""
    return sha256_hex(name, 24)


def _request(custom: str, body: Mapping[str, Any]) -> bytes:
    line = {"custom_id": custom, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _custom(line: bytes) -> tuple[str, str]:
    """Key of the question and name of the request."""
    key, _, name = str(json.loads(line)["custom_id"]).partition(".")
    return key, name


def _read_results(path: Path) -> Iterable[tuple[str, bytes, BatchReply]]:
    """Id, line and reply of each line of a results file.

    Raises:
        UsageError: A line is not one of a results file.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
                yield str(values["custom_id"]), line.rstrip(b"\n") + b"\n", _reply(values)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"{path}:{number}: not a line of a batch's results ({type(error).__name__}: {error}). A torn file "
                    "has to be downloaded again; nothing of it was used."
                ) from error


def _reply(values: Mapping[str, Any]) -> BatchReply:
    """A line in OpenAI's form: ``response`` with ``status_code`` and ``body``, or ``error``."""
    response, error = values.get("response"), values.get("error")
    if not response:
        text = error.get("message") or error.get("code") if isinstance(error, dict) else error
        return BatchReply(0, error=str(text or "the service gave no reply"))
    status, body = int(response.get("status_code", 200)), response.get("body")
    if status == 200:
        return BatchReply(200, json.dumps(body).encode())
    reason = body.get("error") if isinstance(body, dict) else body
    return BatchReply(status, error=f"HTTP {status}: {json.dumps(reason)[:300]}")
