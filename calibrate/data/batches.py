"""Collection through a batch service: request files in a folder beside the records, replies in any order.

``0007.requests.jsonl`` (OpenAI's form, one line for each model call) has the requests of some questions, ``0007.json``
the batch that runs them, ``0007.results.jsonl`` its replies. All of it survives a kill: no request is submitted twice,
and a reply is paid for once, however often the records are made from it. Requests that get no answer are sent again, in
a file of their own.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
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
"""Times that a request is sent before its question fails; the next collection begins again."""
AT_ONCE = 256
"""Sample sets that are made at once."""
Asked = dict[str, dict[str, set[str]]]
"""The numbers of the files that have each request, by question and by name of the request."""
Replies = dict[str, dict[str, BatchReply]]
"""The reply to each request, by question and by name of the request."""


class Batches:
    """The batches of one record file.

    Args:
        records: The record file; the folder is ``<records>.batches`` beside it.
        submit: Whether to submit request files and wait for their replies. Otherwise they are only written, for
            another tool such as ``vllm run-batch``.
        results: Files with replies that such a tool wrote.
        wait: Seconds between two looks at the batches that run.
    """

    def __init__(
        self, records: str | Path, *, submit: bool = True, results: Sequence[Path] = (), wait: float = 30.0
    ) -> None:
        self.folder, self.submits = Path(f"{records}.batches"), submit
        self._results, self._wait, self._digest = tuple(results), wait, ""

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

        def drawn(replies: Replies) -> Iterator[list[tuple[str, SampleSet]]]:
            for start in range(0, len(replies), AT_ONCE):
                keys = list(replies)[start : start + AT_ONCE]
                asked = [prompts[ids[key]] for key in keys]
                sets = batch_sample_sets(model, asked, plan, [replies[key] for key in keys])
                yield [(ids[key], made) for key, made in zip(keys, sets, strict=True)]

        left = set(ids)
        self._import()
        for attempt in range(1 + ATTEMPTS):
            asked, again = self._asked(), list[str]()
            for replies in self._replied(asked, left):
                unanswered = {
                    # Another tool is asked once in a call, so the files of a request count its attempts.
                    key: [
                        f"{key}.{name}"
                        for name, reply in own.items()
                        if reply.may_pass and attempt < ATTEMPTS and (self.submits or len(asked[key][name]) < ATTEMPTS)
                    ]
                    for key, own in replies.items()
                }
                yield from drawn({key: replies[key] for key, customs in unanswered.items() if not customs})
                left -= {key for key, customs in unanswered.items() if not customs}
                again += chain.from_iterable(unanswered.values())
            new = (_requests_of(key, model, prompts[name], plan) for key, name in ids.items() if key not in asked)
            self._send(chain(self._lines(again), new))
            if not self.submits or not left:
                return
            self._run(model, progress)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, file: str, kind: str) -> Path:
        return self.folder / f"{file}.{kind}"

    def _files(self) -> list[str]:
        """The numbers of the request files."""
        return sorted(path.name.partition(".")[0] for path in self.folder.glob("*.requests.jsonl"))

    def _requests(self, file: str) -> Iterator[tuple[str, str, bytes]]:
        """Question, name and line of each request of a file."""
        with self._path(file, "requests.jsonl").open("rb") as lines:
            for line in lines:
                key, _, name = str(json.loads(line)["custom_id"]).partition(".")
                yield key, name, line

    def _asked(self) -> Asked:
        asked: Asked = {}
        for file in self._files():
            for key, name, _ in self._requests(file):
                asked.setdefault(key, {}).setdefault(name, set()).add(file)
        return asked

    def _replied(self, asked: Asked, left: Collection[str]) -> Iterator[Replies]:
        """Replies to the questions that wait for none, file by file; of several to a request the first final one."""
        by_files: dict[frozenset[str], Replies] = defaultdict(dict)
        for key in sorted(asked.keys() & left):
            files = frozenset(chain.from_iterable(asked[key].values()))
            if all(self._path(file, "results.jsonl").exists() for file in files):
                by_files[files][key] = dict.fromkeys(asked[key], _NEVER)
        for files, replies in by_files.items():
            for file in sorted(files):
                for custom, _, reply in _read_results(self._path(file, "results.jsonl")):
                    key, _, name = custom.partition(".")
                    if key in replies and replies[key].get(name, reply).may_pass:
                        replies[key][name] = reply
            yield replies

    def _lines(self, customs: Collection[str]) -> Iterator[list[bytes]]:
        """The lines of requests with these ids, each once."""
        left = set(customs)
        for file in self._files() if left else ():
            for key, name, line in self._requests(file):
                if (custom := f"{key}.{name}") in left:
                    left.remove(custom)
                    yield [line]

    def _send(self, requests: Iterable[list[bytes]]) -> None:
        """Write requests, those of a question together, in as many files as the limits demand."""
        lines, size = list[bytes](), 0
        for own in requests:
            added = sum(map(len, own))
            if lines and (len(lines) + len(own) > MOST_REQUESTS or size + added > MOST_BYTES):
                self._write(lines)
                lines, size = [], 0
            lines += own
            size += added
        if lines:
            self._write(lines)

    def _write(self, lines: Sequence[bytes]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(self.folder / "collection.json", json.dumps({"format": 1, "sha256": self._digest}))
        number = 1 + max(map(int, self._files()), default=0)
        atomic_write(self._path(f"{number:04}", "requests.jsonl"), lines, private=True)

    def _import(self) -> None:
        """Copy the lines of results files of other tools to the last files that asked for them."""
        asked = self._asked() if self._results else {}
        for path in self._results:
            by_file: dict[str, list[bytes]] = defaultdict(list)
            for custom, line, _ in _read_results(path):
                key, _, name = custom.partition(".")
                if files := asked.get(key, {}).get(name):
                    by_file[max(files)].append(line)
            if not by_file:
                raise UsageError(f"{path} answers no request of {self.folder}. Give the results of the files there.")
            for file, lines in by_file.items():
                target = self._path(file, "results.jsonl")
                there = target.read_bytes().splitlines(keepends=True) if target.exists() else []
                atomic_write(target, dict.fromkeys([*there, *lines]), private=True)

    # -- the service ---------------------------------------------------------------------------------------------------

    def _run(self, model: BatchSampler, progress: Progress) -> None:
        """Submit what is not submitted, and wait until all replies are on file."""
        waiting = [file for file in self._files() if not self._path(file, "results.jsonl").exists()]
        batches = {file: self._submitted(file, model) for file in waiting}
        while batches:
            states = {file: model.batch_state(batch) for file, batch in batches.items()}
            answered, total = (sum(getattr(s, name) for s in states.values()) for name in ("answered", "total"))
            progress(answered, total, f"{sum(not s.done for s in states.values())} batches at the service")
            for file in [file for file, state in states.items() if state.done]:
                state, batch = states[file], batches.pop(file)
                if state.status == "failed":
                    self._path(file, "json").unlink()
                    raise GuardrailError(
                        f"the service did not run batch {batch} ({self._path(file, 'requests.jsonl')}): "
                        f"{state.error or 'it gives no reason'}. Nothing is lost. Fix the cause and run the same "
                        "command again; it submits the file again."
                    )
                content = b"".join(model.batch_file(reply).rstrip(b"\n") + b"\n" for reply in state.files)
                atomic_write(self._path(file, "results.jsonl"), content, private=True)
            if batches:
                time.sleep(self._wait)

    def _submitted(self, file: str, model: BatchSampler) -> str:
        """The batch that runs a file; a kill right after the submission does not submit it twice."""
        note, requests = self._path(file, "json"), self._path(file, "requests.jsonl")
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


def _requests_of(key: str, model: BatchSampler, messages: Sequence[BaseMessage], plan: SamplingPlan) -> list[bytes]:
    """The lines of a question's requests."""
    (bodies,) = batch_requests(model, [messages], plan)
    common = {"method": "POST", "url": "/v1/chat/completions"}
    lines = ({"custom_id": f"{key}.{name}", **common, "body": body} for name, body in bodies.items())
    return [json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines]


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
