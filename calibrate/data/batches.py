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
from guardrail.sampling.batches import BatchReply, batch_requests, batch_sample_sets
from guardrail.types import SampleSet, SamplingPlan

from .progress import Progress, silent

MOST_REQUESTS = 50_000
"""Requests of one batch (OpenAI's limit)."""
MOST_BYTES = 190_000_000
"""Size of one request file (OpenAI's limit is 200 MB)."""
ATTEMPTS = 3
"""Times that a request is sent before its question fails; the next collection begins again."""
AT_ONCE = 256
"""Sample sets that are made at once."""
Replies = dict[str, dict[str, BatchReply]]
"""The reply to each request, by question and by name of the request."""


class Batches:
    """The batches of one record file.

    Args:
        records: The record file; the folder is ``<records>.batches`` beside it.
        submit: Whether to submit request files and wait for replies; otherwise another tool (vllm run-batch) does.
        results: Files with replies that such a tool wrote.
        wait: Seconds between two looks at the batches that run.
    """

    def __init__(self, records: Path, *, submit: bool = True, results: Sequence[Path] = (), wait: float = 30.0) -> None:
        self.folder, self.submits = Path(f"{records}.batches"), submit
        self._results, self._wait = tuple(results), wait

    def bind(self, collection: Mapping[str, Any]) -> None:
        """Make the folder that of a collection.

        Raises:
            UsageError: It is that of another one: replies to its requests would be taken for replies to these.
        """
        digest, path = sha256_hex(canonical_json(collection)), self.folder / "collection.json"
        if self._files() and json.loads(path.read_bytes()).get("sha256") != digest:
            raise UsageError(
                f"{self.folder} holds batches for other questions, another model or another plan. Use the settings "
                "they were made with, or write to another file with --out."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps({"format": 1, "sha256": digest}))

    def sample_sets(
        self,
        prompts: Mapping[str, Sequence[BaseMessage]],
        model: Any,
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
        left = {sha256_hex(name, 24): name for name in prompts}  # services limit the characters of an id
        self._import()
        for attempt in range(1 + ATTEMPTS):
            asked = self._asked()
            again: set[tuple[str, str]] = set()
            for replied in self._replied(asked, left.keys()):
                # Another tool is asked once in a call, so the files of a request count its attempts.
                unanswered = {
                    (key, name)
                    for key, replies_by_name in replied.items()
                    for name, reply in replies_by_name.items()
                    if reply.may_pass and (attempt if self.submits else len(asked[key][name])) < ATTEMPTS
                }
                again |= unanswered
                waiting = {key for key, _ in unanswered}
                whole = [key for key in replied if key not in waiting]
                for start in range(0, len(whole), AT_ONCE):
                    replies = [replied[key] for key in whole[start : start + AT_ONCE]]
                    names = [left.pop(key) for key in whole[start : start + AT_ONCE]]
                    drawn = batch_sample_sets(model, [prompts[name] for name in names], plan, replies)
                    yield list(zip(names, drawn, strict=True))
            new = (_requests(key, model, prompts[name], plan) for key, name in left.items() if key not in asked)
            self._send(chain(self._lines(again), new))
            if not self.submits or not left:
                return
            self._run(model, progress)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _files(self) -> list[str]:
        """The numbers of the request files."""
        return sorted(path.name.partition(".")[0] for path in self.folder.glob("*.requests.jsonl"))

    def _asked(self) -> dict[str, dict[str, list[str]]]:
        """The numbers of the files that have each request, by question and by name of the request."""
        asked = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
        for file in self._files():
            for key, name, _, _ in _lines_of(self.folder / f"{file}.requests.jsonl"):
                asked[key][name].append(file)
        return asked

    def _replied(self, asked: dict[str, dict[str, list[str]]], left: Collection[str]) -> Iterator[Replies]:
        """Replies to the questions that wait for none, some at a time; of several to a request the first final one."""
        by_files: dict[tuple[str, ...], Replies] = defaultdict(dict)
        for key in sorted(asked.keys() & left):
            files = tuple(sorted(set(chain.from_iterable(asked[key].values()))))
            if all((self.folder / f"{file}.results.jsonl").exists() for file in files):
                by_files[files][key] = dict.fromkeys(asked[key], _NEVER)
        for files, replies in by_files.items():
            for file in files:
                for key, name, _, values in _lines_of(self.folder / f"{file}.results.jsonl"):
                    if name in replies.get(key, ()) and replies[key][name].may_pass:
                        replies[key][name] = BatchReply.of(values)
            yield replies

    def _lines(self, left: set[tuple[str, str]]) -> Iterator[list[bytes]]:
        """The lines of requests by question and name, each once."""
        for file in self._files() if left else ():
            for key, name, line, _ in _lines_of(self.folder / f"{file}.requests.jsonl"):
                if (key, name) in left:
                    left.remove((key, name))
                    yield [line]

    def _send(self, requests: Iterable[list[bytes]]) -> None:
        """Write requests, those of a question together, in as many files as the limits demand."""
        lines: list[bytes] = []
        size = 0
        for lines_of_question in chain(requests, [[]]):
            added = sum(map(len, lines_of_question))
            if lines and (
                not lines_of_question
                or len(lines) + len(lines_of_question) > MOST_REQUESTS
                or size + added > MOST_BYTES
            ):
                number = 1 + max(map(int, self._files()), default=0)
                atomic_write(self.folder / f"{number:04}.requests.jsonl", lines, private=True)
                lines = []
                size = 0
            lines += lines_of_question
            size += added

    def _import(self) -> None:
        """Copy the lines of results files of other tools to the last files that asked for them."""
        asked = self._asked() if self._results else {}
        for path in self._results:
            by_file: dict[str, list[bytes]] = defaultdict(list)
            for key, name, line, _ in _lines_of(path):
                if files := asked.get(key, {}).get(name):
                    by_file[files[-1]].append(line)
            if not by_file:
                raise UsageError(f"{path} answers no request of {self.folder}. Give the results of the files there.")
            for file, lines in by_file.items():
                target = self.folder / f"{file}.results.jsonl"
                there = target.read_bytes().splitlines(keepends=True) if target.exists() else []
                atomic_write(target, dict.fromkeys([*there, *lines]), private=True)

    # -- the service ---------------------------------------------------------------------------------------------------

    def _run(self, model: Any, progress: Progress) -> None:
        """Submit what is not submitted, and wait until all replies are on file."""
        waiting = [file for file in self._files() if not (self.folder / f"{file}.results.jsonl").exists()]
        batches = {file: self._submitted(file, model) for file in waiting}
        while batches:
            states = {file: model.batch_state(batch) for file, batch in batches.items()}
            answered = sum(state.answered for state in states.values())
            total = sum(state.total for state in states.values())
            progress(answered, total, f"{sum(not s.done for s in states.values())} batches at the service")
            for file in [file for file, state in states.items() if state.done]:
                state = states[file]
                batch = batches.pop(file)
                if state.status == "failed":
                    (self.folder / f"{file}.json").unlink()
                    raise GuardrailError(
                        f"the service did not run batch {batch} ({self.folder}/{file}.requests.jsonl): "
                        f"{state.error or 'it gives no reason'}. Nothing is lost. Fix the cause and run the same "
                        "command again; it submits the file again."
                    )
                content = b"".join(model.batch_file(reply).rstrip(b"\n") + b"\n" for reply in state.files)
                atomic_write(self.folder / f"{file}.results.jsonl", content, private=True)
            if batches:
                time.sleep(self._wait)

    def _submitted(self, file: str, model: Any) -> str:
        """The batch that runs a file; a kill right after the submission does not submit it twice."""
        note = self.folder / f"{file}.json"
        requests = self.folder / f"{file}.requests.jsonl"
        batch = json.loads(note.read_bytes()).get("batch") if note.exists() else None
        if batch is None:
            again = note.exists()
            atomic_write(note, json.dumps({"format": 1, "batch": None}))
            batch = model.submit_batch(requests, sha256_hex(requests.read_bytes(), 32), again=again)
            atomic_write(note, json.dumps({"format": 1, "batch": batch}))
        return str(batch)


_NEVER = BatchReply(0, error=f"no answer in {ATTEMPTS} batches")


def _requests(key: str, model: Any, messages: Sequence[BaseMessage], plan: SamplingPlan) -> list[bytes]:
    """The lines of a question's requests."""
    (bodies,) = batch_requests(model, [messages], plan)
    url = "/v1/chat/completions"
    lines = [
        {"custom_id": f"{key}.{name}", "method": "POST", "url": url, "body": body} for name, body in bodies.items()
    ]
    return [json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines]


def _lines_of(path: Path) -> Iterator[tuple[str, str, bytes, dict[str, Any]]]:
    """Question, name, line and values of each request or reply in a file."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
                key, _, name = str(values["custom_id"]).partition(".")
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{path}:{number}: not a line of a batch's results ({type(error).__name__}: {error}). A torn file "
                    "has to be downloaded again; nothing of it was used."
                ) from error
            yield key, name, line.rstrip(b"\n") + b"\n", values
